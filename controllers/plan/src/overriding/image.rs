//! imageOverrider: registry, repository, tag or digest of container images.

use std::sync::LazyLock;

use crowsnest_api::policy::{ImageComponent, ImageOverrider, OverriderOperator};
use regex::Regex;
use serde_json::Value;

use super::OverrideError;
use crowsnest_apimachinery::unstructured::{self, text};

/// Overrides the image at the predicate's path, or every container's image where there is no predicate. Init
/// containers are left alone, as in Karmada.
pub fn apply(manifest: &mut Value, overrider: &ImageOverrider) -> Result<(), OverrideError> {
    if let Some(predicate) = &overrider.predicate {
        let path = &predicate.path;
        let image =
            image_at(manifest, path).map_err(|reason| OverrideError::Predicate { path: path.clone(), reason })?;
        if !path.starts_with('/') {
            return Err(OverrideError::ImagePath);
        }
        *image = overridden(image, overrider)?;
        return Ok(());
    }
    for container in super::containers(manifest).into_iter().flatten() {
        let image = overridden(text(container, &["image"]), overrider)?;
        unstructured::set(container, &["image"], Value::String(image));
    }
    Ok(())
}

/// Walks a `/`-separated path of keys and list indices (no escapes) to the key that holds the image.
fn image_at<'a>(manifest: &'a mut Value, path: &str) -> Result<&'a mut String, String> {
    let steps: Vec<&str> = path.trim_matches('/').split('/').collect();
    let mut current = manifest;
    let mut at = 0;
    while at + 1 < steps.len() {
        let (step, next) = (steps[at], steps[at + 1]);
        current = match current.get_mut(step) {
            Some(object @ Value::Object(_)) => object,
            Some(Value::Array(list)) => {
                at += 1;
                let index: usize = next.parse().map_err(|_| format!("path({next}) of rawObj's is not number"))?;
                list.get_mut(index).ok_or_else(|| format!("path({next}) does not exist"))?
            }
            _ => {
                return Err(format!(
                    "path({step}) of rawObj's type is not map[string]interface{{}} and []interface{{}}"
                ));
            }
        };
        at += 1;
    }
    let last = steps.last().copied().unwrap_or_default();
    match current.get_mut(last) {
        Some(Value::String(image)) => Ok(image),
        _ => Err(format!("failed to convert path({last}) to string")),
    }
}

struct Image {
    registry: String,
    repository: String,
    tag: String,
    digest: String,
}

fn pattern(expression: &str) -> Regex {
    #[expect(clippy::expect_used, reason = "the expressions are constants of this file, covered by its tests")]
    Regex::new(expression).expect("a valid expression")
}

/// The grammar of the distribution project: `[domain/]path[:tag][@digest]`.
static REFERENCE: LazyLock<Regex> = LazyLock::new(|| {
    let domain = r"(?:(?:[a-zA-Z0-9]|[a-zA-Z0-9][a-zA-Z0-9-]*[a-zA-Z0-9])(?:\.(?:[a-zA-Z0-9]|[a-zA-Z0-9][a-zA-Z0-9-]*[a-zA-Z0-9]))*|\[(?:[a-fA-F0-9:]+)\])(?::[0-9]+)?";
    let part = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*";
    let tag = r"[\w][\w.-]{0,127}";
    let digest = r"[A-Za-z][A-Za-z0-9]*(?:[-_+.][A-Za-z][A-Za-z0-9]*)*:[0-9a-fA-F]{32,}";
    pattern(&format!("^((?:{domain}/)?{part}(?:/{part})*)(?::({tag}))?(?:@({digest}))?$"))
});
static TAG: LazyLock<Regex> = LazyLock::new(|| pattern(r"^[\w][\w.-]{0,127}$"));
static DIGEST: LazyLock<Regex> =
    LazyLock::new(|| pattern(r"^[A-Za-z][A-Za-z0-9]*(?:[-_+.][A-Za-z][A-Za-z0-9]*)*:[0-9a-fA-F]{32,}$"));

impl Image {
    /// A digest beside a tag is dropped, as Karmada does.
    fn parse(image: &str) -> Result<Self, &'static str> {
        let Some(parts) = REFERENCE.captures(image) else {
            return Err(match image {
                "" => "repository name must have at least one component",
                _ if REFERENCE.is_match(&image.to_lowercase()) => "repository name must be lowercase",
                _ => "invalid reference format",
            });
        };
        let group = |index| parts.get(index).map_or("", |part| part.as_str());
        let name = group(1);
        let (registry, repository) = match name.split_once('/') {
            Some((first, rest)) if first.contains(['.', ':']) || first == "localhost" => (first, rest),
            _ => ("", name),
        };
        let (tag, digest) = (group(2), group(3));
        if name.split_once('/').map_or(name, |(_, path)| path).len() > LONGEST_PATH {
            return Err("repository name must not be more than 255 characters");
        }
        check_digest(digest)?;
        Ok(Image {
            registry: registry.to_owned(),
            repository: repository.to_owned(),
            tag: tag.to_owned(),
            digest: if tag.is_empty() { digest.to_owned() } else { String::new() },
        })
    }

    fn set_tag_or_digest(&mut self, text: &str) {
        if TAG.is_match(text) {
            (self.tag, self.digest) = (text.to_owned(), String::new());
        } else if DIGEST.is_match(text) {
            (self.tag, self.digest) = (String::new(), text.to_owned());
        }
    }

    fn remove_tag_or_digest(&mut self) {
        if self.tag.is_empty() { self.digest.clear() } else { self.tag.clear() }
    }

    fn render(&self) -> String {
        let name = match self.registry.as_str() {
            "" => self.repository.clone(),
            registry => format!("{registry}/{}", self.repository),
        };
        match (self.tag.as_str(), self.digest.as_str()) {
            ("", "") => name,
            ("", digest) => format!("{name}@{digest}"),
            (tag, _) => format!("{name}:{tag}"),
        }
    }
}

const LONGEST_PATH: usize = 255;

fn check_digest(digest: &str) -> Result<(), &'static str> {
    let Some((algorithm, encoded)) = digest.split_once(':') else { return Ok(()) };
    let length = match algorithm {
        "sha256" => 64,
        "sha384" => 96,
        "sha512" => 128,
        _ => return Err("unsupported digest algorithm"),
    };
    if encoded.len() != length {
        return Err("invalid checksum digest length");
    }
    let lowercase = encoded.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    if lowercase { Ok(()) } else { Err("invalid checksum digest format") }
}

fn edit(component: &mut String, overrider: &ImageOverrider) {
    match overrider.operator {
        OverriderOperator::Add => component.push_str(&overrider.value),
        OverriderOperator::Replace => component.clone_from(&overrider.value),
        OverriderOperator::Remove => component.clear(),
        OverriderOperator::Other(_) => {}
    }
}

fn overridden(image: &str, overrider: &ImageOverrider) -> Result<String, OverrideError> {
    let mut parts = Image::parse(image).map_err(|reason| OverrideError::Image { image: image.to_owned(), reason })?;
    match &overrider.component {
        ImageComponent::Registry => edit(&mut parts.registry, overrider),
        ImageComponent::Repository => edit(&mut parts.repository, overrider),
        ImageComponent::Tag => match overrider.operator {
            OverriderOperator::Remove => parts.remove_tag_or_digest(),
            _ => {
                let mut text = if parts.tag.is_empty() { parts.digest.clone() } else { parts.tag.clone() };
                edit(&mut text, overrider);
                parts.set_tag_or_digest(&text);
            }
        },
        ImageComponent::Other(component) => return Err(OverrideError::Component(component.clone())),
    }
    Ok(parts.render())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::registry_replace("nginx:1.25", "Registry", "replace", "r.io:5000", "r.io:5000/nginx:1.25")]
    #[case::registry_add("r.io/lib/nginx", "Registry", "add", ":80", "r.io:80/lib/nginx")]
    #[case::registry_remove("localhost/nginx:1", "Registry", "remove", "", "nginx:1")]
    #[case::repository("r.io/lib/nginx:1", "Repository", "replace", "other", "r.io/other:1")]
    #[case::tag_add("nginx:1.25", "Tag", "add", "-alpine", "nginx:1.25-alpine")]
    #[case::tag_to_digest(
        "nginx:1",
        "Tag",
        "replace",
        "sha256:50d858e0985ecc7f60418aaf0cc5ab587f42c2570a884095a9e8ccacd0f6545c",
        "nginx@sha256:50d858e0985ecc7f60418aaf0cc5ab587f42c2570a884095a9e8ccacd0f6545c"
    )]
    #[case::neither_tag_nor_digest("nginx:1", "Tag", "replace", "a/b", "nginx:1")]
    #[case::tag_remove("nginx:1", "Tag", "remove", "", "nginx")]
    fn images(
        #[case] image: &str,
        #[case] component: &str,
        #[case] operator: &str,
        #[case] value: &str,
        #[case] expected: &str,
    ) {
        let overrider = ImageOverrider {
            predicate: None,
            component: component.into(),
            operator: operator.into(),
            value: value.to_owned(),
        };
        assert_eq!(overridden(image, &overrider).as_deref(), Ok(expected));
    }
}
