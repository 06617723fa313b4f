//! imageOverrider: registry, repository, tag or digest of container images.

use std::sync::LazyLock;

use crowsnest_api::policy::{ImageComponent, ImageOverrider, OverriderOperator};
use regex::Regex;
use serde_json::Value;

use super::OverrideError;
use crowsnest_apimachinery::unstructured::{self, text};

/// Overrides the image at the predicate's path or, without predicate, the image of every container. As in Karmada,
/// init containers are unchanged. Returns a note for each digest that was removed because it no longer applies.
pub fn apply(manifest: &mut Value, overrider: &ImageOverrider) -> Result<Vec<String>, OverrideError> {
    if let Some(predicate) = &overrider.predicate {
        let path = &predicate.path;
        let image =
            find_image(manifest, path).map_err(|reason| OverrideError::Predicate { path: path.clone(), reason })?;
        if !path.starts_with('/') {
            return Err(OverrideError::ImagePath);
        }
        let overridden = override_image(image, overrider)?;
        *image = overridden.image;
        return Ok(Vec::from_iter(overridden.note));
    }
    let mut notes = Vec::new();
    for container in super::containers(manifest).into_iter().flatten() {
        let OverriddenImage { image, note } = override_image(text(container, &["image"]), overrider)?;
        unstructured::set(container, &["image"], Value::String(image));
        notes.extend(note);
    }
    Ok(notes)
}

/// Resolves a `/`-separated path of keys and list indexes (without escapes) to the image. Errors have Karmada's
/// wording.
fn find_image<'a>(manifest: &'a mut Value, path: &str) -> Result<&'a mut String, String> {
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

/// Parts of an image reference; missing parts are empty. If a reference has both a tag and a digest, container
/// runtimes pull by digest.
struct Image {
    registry: String,
    repository: String,
    tag: String,
    digest: String,
}

fn compile(expression: &str) -> Regex {
    #[expect(clippy::expect_used, reason = "the expressions are constants of this file, covered by its tests")]
    Regex::new(expression).expect("a valid expression")
}

/// Reference grammar of the distribution project: `[domain/]path[:tag][@digest]`.
static REFERENCE: LazyLock<Regex> = LazyLock::new(|| {
    let domain = r"(?:(?:[a-zA-Z0-9]|[a-zA-Z0-9][a-zA-Z0-9-]*[a-zA-Z0-9])(?:\.(?:[a-zA-Z0-9]|[a-zA-Z0-9][a-zA-Z0-9-]*[a-zA-Z0-9]))*|\[(?:[a-fA-F0-9:]+)\])(?::[0-9]+)?";
    let part = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*";
    let tag = r"[\w][\w.-]{0,127}";
    let digest = r"[A-Za-z][A-Za-z0-9]*(?:[-_+.][A-Za-z][A-Za-z0-9]*)*:[0-9a-fA-F]{32,}";
    compile(&format!("^((?:{domain}/)?{part}(?:/{part})*)(?::({tag}))?(?:@({digest}))?$"))
});
static TAG: LazyLock<Regex> = LazyLock::new(|| compile(r"^[\w][\w.-]{0,127}$"));
static DIGEST: LazyLock<Regex> =
    LazyLock::new(|| compile(r"^[A-Za-z][A-Za-z0-9]*(?:[-_+.][A-Za-z][A-Za-z0-9]*)*:[0-9a-fA-F]{32,}$"));

impl Image {
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
            Some((first, rest)) if is_registry(first) => (first, rest),
            _ => ("", name),
        };
        let (tag, digest) = (group(2), group(3));
        if name.split_once('/').map_or(name, |(_, path)| path).len() > MAX_PATH_LENGTH {
            return Err("repository name must not be more than 255 characters");
        }
        check_digest(digest)?;
        Ok(Image {
            registry: registry.to_owned(),
            repository: repository.to_owned(),
            tag: tag.to_owned(),
            digest: digest.to_owned(),
        })
    }

    /// Sets the tag or the digest, depending on the text. Since a digest identifies the content of one tag, a new tag
    /// removes it. As in Karmada, invalid text changes nothing.
    fn set_tag_or_digest(&mut self, text: &str) {
        if TAG.is_match(text) {
            if self.tag != text {
                self.digest.clear();
            }
            text.clone_into(&mut self.tag);
        } else if DIGEST.is_match(text) {
            (self.tag, self.digest) = (String::new(), text.to_owned());
        }
    }

    /// Removes the tag, or the digest of a reference without a tag.
    fn remove_tag_or_digest(&mut self) {
        if self.tag.is_empty() { self.digest.clear() } else { self.tag.clear() }
    }

    fn render(&self) -> String {
        let part = |text: &str, before: &str, after: &str| match text {
            "" => String::new(),
            text => format!("{before}{text}{after}"),
        };
        [part(&self.registry, "", "/"), self.repository.clone(), part(&self.tag, ":", ""), part(&self.digest, "@", "")]
            .concat()
    }
}

/// True if the first component of a name is a registry. Repositories are in lowercase (distribution/reference,
/// `splitDockerDomain`).
fn is_registry(component: &str) -> bool {
    component.contains(['.', ':'])
        || component == "localhost"
        || component.contains(|character: char| character.is_ascii_uppercase())
}

const MAX_PATH_LENGTH: usize = 255;

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
    let is_lowercase = encoded.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    if is_lowercase { Ok(()) } else { Err("invalid checksum digest format") }
}

fn edit(component: &mut String, overrider: &ImageOverrider) {
    match overrider.operator {
        OverriderOperator::Add => component.push_str(&overrider.value),
        OverriderOperator::Replace => component.clone_from(&overrider.value),
        OverriderOperator::Remove => component.clear(),
        OverriderOperator::Other(_) => {}
    }
}

struct OverriddenImage {
    image: String,
    /// Note about a digest that was removed because the tag changed.
    note: Option<String>,
}

fn override_image(image: &str, overrider: &ImageOverrider) -> Result<OverriddenImage, OverrideError> {
    let mut parts = Image::parse(image).map_err(|reason| OverrideError::Image { image: image.to_owned(), reason })?;
    let digest = parts.digest.clone();
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
    let removed = !digest.is_empty() && parts.digest.is_empty() && !parts.tag.is_empty();
    let note = removed
        .then(|| format!("digest {digest} is removed from {image}, because it does not identify tag {}", parts.tag));
    Ok(OverriddenImage { image: parts.render(), note })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    macro_rules! digest {
        () => {
            "sha256:50d858e0985ecc7f60418aaf0cc5ab587f42c2570a884095a9e8ccacd0f6545c"
        };
    }
    const PINNED: &str = concat!("r.io/team/app:v1@", digest!());

    #[rstest]
    #[case::registry_replace("nginx:1.25", "Registry", "replace", "r.io:5000", "r.io:5000/nginx:1.25")]
    #[case::registry_add("r.io/lib/nginx", "Registry", "add", ":80", "r.io:80/lib/nginx")]
    #[case::registry_remove("localhost/nginx:1", "Registry", "remove", "", "nginx:1")]
    #[case::registry_with_port("localhost:5000/nginx", "Registry", "replace", "r.io", "r.io/nginx")]
    #[case::registry_by_address("[::1]:5000/a/nginx:1", "Registry", "replace", "r.io", "r.io/a/nginx:1")]
    #[case::registry_in_uppercase("HARBOR/team/nginx:1", "Registry", "replace", "r.io", "r.io/team/nginx:1")]
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
    #[case::registry_of_pinned(PINNED, "Registry", "replace", "m.io", concat!("m.io/team/app:v1@", digest!()))]
    #[case::registry_removed(PINNED, "Registry", "remove", "", concat!("team/app:v1@", digest!()))]
    #[case::repository_of_pinned(PINNED, "Repository", "add", "-x", concat!("r.io/team/app-x:v1@", digest!()))]
    #[case::tag_of_pinned(PINNED, "Tag", "replace", "v2", "r.io/team/app:v2")]
    #[case::tag_added(PINNED, "Tag", "add", "-alpine", "r.io/team/app:v1-alpine")]
    #[case::same_tag(PINNED, "Tag", "replace", "v1", PINNED)]
    #[case::tag_removed(PINNED, "Tag", "remove", "", concat!("r.io/team/app@", digest!()))]
    #[case::invalid_tag(PINNED, "Tag", "replace", "a/b", PINNED)]
    #[case::digest_removed(concat!("app@", digest!()), "Tag", "remove", "", "app")]
    #[case::registry_of_digest(concat!("app@", digest!()), "Registry", "add", "m.io", concat!("m.io/app@", digest!()))]
    fn images_are_overridden(
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
        let OverriddenImage { image: result, note } = override_image(image, &overrider).expect("a valid image");
        assert_eq!(result, expected);
        let removed = (image == PINNED && !result.contains('@')).then(|| {
            format!("digest {} is removed from {PINNED}, because it does not identify tag {}", digest!(), &result[14..])
        });
        assert_eq!(note, removed);
    }
}
