//! Source or destination of a copy: a local path, or `[[CLUSTER/]NAMESPACE/]POD:PATH`. Has no side effects.

use std::path::PathBuf;
use std::str::FromStr;

use anyhow::bail;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum CopyEndpoint {
    Local(PathBuf),
    Remote(ContainerPath),
}

/// A path in a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ContainerPath {
    pub(super) cluster: Option<String>,
    pub(super) namespace: Option<String>,
    pub(super) pod: String,
    pub(super) path: String,
}

impl FromStr for CopyEndpoint {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // Local paths with a colon must start with `/` or `.`.
        let is_local = text.starts_with(['/', '.']) || !text.contains(':');
        if is_local {
            return if text.is_empty() { Err("a path is missing".to_owned()) } else { Ok(Self::Local(text.into())) };
        }
        let (pod, path) = text.split_once(':').unwrap_or((text, ""));
        if path.is_empty() {
            return Err(format!("invalid argument {text:?}: expected POD:PATH"));
        }
        let parts: Vec<&str> = pod.split('/').collect();
        if parts.iter().any(|part| part.is_empty()) {
            return Err(format!("invalid pod {pod:?}: expected [[CLUSTER/]NAMESPACE/]POD"));
        }
        let (cluster, namespace, pod) = match parts.as_slice() {
            [pod] => (None, None, pod),
            [namespace, pod] => (None, Some(namespace), pod),
            [cluster, namespace, pod] => (Some(cluster), Some(namespace), pod),
            _ => return Err(format!("invalid pod {pod:?}: expected [[CLUSTER/]NAMESPACE/]POD")),
        };
        let to_owned_part = |part: Option<&&str>| part.map(|part| (*part).to_owned());
        let (cluster, namespace) = (to_owned_part(cluster), to_owned_part(namespace));
        Ok(Self::Remote(ContainerPath { cluster, namespace, pod: (*pod).to_owned(), path: path.to_owned() }))
    }
}

impl ContainerPath {
    /// Destination path of a source with this name: inside of an existing folder, or the path itself.
    pub(super) fn destination(&self, name: &str, into_folder: bool) -> anyhow::Result<String> {
        let path = self.path.trim_end_matches('/');
        let destination = match (into_folder || self.path.ends_with('/'), path) {
            (true, path) => format!("{path}/{name}"),
            (false, path) => path.to_owned(),
        };
        if split(&destination).1 == "." || destination.ends_with("..") {
            bail!("invalid destination {:?}: it must end with a file name", self.path);
        }
        Ok(destination)
    }
}

/// Splits a path into its folder and base name.
pub(super) fn split(path: &str) -> (&str, &str) {
    match path.rsplit_once('/') {
        None => (".", path),
        Some(("", "")) => ("/", "."),
        Some(("", base)) => ("/", base),
        Some((folder, base)) => (folder, base),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[rstest::rstest]
    #[case("./a:b", "local ./a:b")]
    #[case("a", "local a")]
    #[case("/tmp/a", "local /tmp/a")]
    #[case("web-0:/etc", "- - web-0 /etc")]
    #[case("shop/web-0:app.log", "- shop web-0 app.log")]
    #[case("m1/shop/web-0:/a:b", "m1 shop web-0 /a:b")]
    #[case("web-0:", "expected POD:PATH")]
    #[case("a/b/c/d:/x", "invalid pod")]
    #[case("shop/:/x", "invalid pod")]
    #[case("", "a path is missing")]
    fn endpoints_are_parsed(#[case] text: &str, #[case] expected: &str) {
        let or_dash = |part: Option<String>| part.unwrap_or_else(|| "-".to_owned());
        let outcome = match text.parse::<CopyEndpoint>() {
            Ok(CopyEndpoint::Local(path)) => format!("local {}", path.display()),
            Ok(CopyEndpoint::Remote(ContainerPath { cluster, namespace, pod, path })) => {
                format!("{} {} {pod} {path}", or_dash(cluster), or_dash(namespace))
            }
            Err(error) => error,
        };
        assert!(outcome.contains(expected), "{outcome}");
    }

    #[rstest::rstest]
    #[case("/etc/app", false, "/etc/app")]
    #[case("/etc/app", true, "/etc/app/conf")]
    #[case("/etc/", false, "/etc/conf")]
    #[case("/", false, "/conf")]
    #[case("app", false, "app")]
    fn destinations_are_resolved(#[case] path: &str, #[case] into_folder: bool, #[case] expected: &str) {
        let remote = ContainerPath { cluster: None, namespace: None, pod: "web".to_owned(), path: path.to_owned() };
        assert_eq!(remote.destination("conf", into_folder).unwrap(), expected);
    }

    #[rstest::rstest]
    #[case("/etc/app", ("/etc", "app"))]
    #[case("/etc", ("/", "etc"))]
    #[case("/", ("/", "."))]
    #[case("app", (".", "app"))]
    fn paths_are_split(#[case] path: &str, #[case] expected: (&str, &str)) {
        assert_eq!(split(path), expected);
    }
}
