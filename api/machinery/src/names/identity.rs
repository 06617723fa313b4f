//! Keys of a kind (`Gvk`), a resource (`Gvr`), an object of a kind (`NamespacedName`) and an object of a cluster (`ObjectKey`).

use std::fmt;
use std::sync::Arc;

use crate::names::NameError;
use crate::request::path_segment;
use serde::{Deserialize, Serialize};

/// Splits `group/version`, or the bare `version` of the core group.
fn split_api_version(api_version: &str) -> Result<(&str, &str), NameError> {
    match api_version.split_once('/') {
        None => Ok(("", api_version)),
        Some((_, version)) if version.contains('/') => Err(NameError::GroupVersion(api_version.to_owned())),
        Some(pair) => Ok(pair),
    }
}

fn join_api_version(group: &str, version: &str) -> String {
    if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") }
}

/// Group, version and kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Gvk {
    pub group: Arc<str>,
    pub version: Arc<str>,
    pub kind: Arc<str>,
}

impl Gvk {
    pub fn new(group: &str, version: &str, kind: &str) -> Self {
        Self { group: group.into(), version: version.into(), kind: kind.into() }
    }

    /// Parses the `apiVersion` and `kind` of an object.
    pub fn parse(api_version: &str, kind: &str) -> Result<Self, NameError> {
        let (group, version) = split_api_version(api_version)?;
        Ok(Self::new(group, version, kind))
    }

    /// The kind of a Rust type.
    pub fn for_type<K: k8s_openapi::Resource>() -> Self {
        Self::new(K::GROUP, K::VERSION, K::KIND)
    }

    pub fn api_version(&self) -> String {
        join_api_version(&self.group, &self.version)
    }
}

impl fmt::Display for Gvk {
    /// As Go prints it: `apps/v1, Kind=Deployment`.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}, Kind={}", self.group, self.version, self.kind)
    }
}

/// Group, version and resource. The resource is the plural name in lower case, as in paths.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Gvr {
    pub group: Arc<str>,
    pub version: Arc<str>,
    pub resource: Arc<str>,
}

impl Gvr {
    pub fn new(group: &str, version: &str, resource: &str) -> Self {
        Self { group: group.into(), version: version.into(), resource: resource.into() }
    }

    /// Parses an `apiVersion`; `resource` is a plural name.
    pub fn parse(api_version: &str, resource: &str) -> Result<Self, NameError> {
        let (group, version) = split_api_version(api_version)?;
        Ok(Self::new(group, version, resource))
    }

    /// The resource of a Rust type.
    pub fn for_type<K: k8s_openapi::Resource>() -> Self {
        Self::new(K::GROUP, K::VERSION, K::URL_PATH_SEGMENT)
    }

    pub fn api_version(&self) -> String {
        join_api_version(&self.group, &self.version)
    }

    /// `deployments.apps`, or `pods` for the core group: the name without a version, as in CRDs.
    pub fn group_resource(&self) -> String {
        if self.group.is_empty() { self.resource.to_string() } else { format!("{}.{}", self.resource, self.group) }
    }

    /// Path in the API server: `/api/v1/pods`, `/apis/apps/v1/namespaces/default/deployments`.
    pub fn path(&self, namespace: Option<&str>) -> String {
        let root = if self.group.is_empty() { "/api" } else { "/apis" };
        match namespace {
            Some(namespace) => {
                let namespace = path_segment(namespace);
                format!("{root}/{}/namespaces/{namespace}/{}", self.api_version(), self.resource)
            }
            None => format!("{root}/{}/{}", self.api_version(), self.resource),
        }
    }
}

impl fmt::Display for Gvr {
    /// As Go prints it: `apps/v1, Resource=deployments`.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}, Resource={}", self.group, self.version, self.resource)
    }
}

/// Namespace and name of an object of one kind. The namespace of a cluster-scoped object is empty.
///
/// Ordered by namespace, then by name, so that the keys of a namespace are adjacent. Serialized as a list of the
/// two.
#[derive(Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(from = "(String, String)", into = "(String, String)")]
pub struct NamespacedName {
    pub namespace: String,
    pub name: String,
}

impl NamespacedName {
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }

    /// The key of a cluster-scoped object.
    pub fn cluster_scoped(name: impl Into<String>) -> Self {
        Self::new("", name)
    }

    pub fn is_cluster_scoped(&self) -> bool {
        self.namespace.is_empty()
    }
}

impl From<(String, String)> for NamespacedName {
    fn from((namespace, name): (String, String)) -> Self {
        Self { namespace, name }
    }
}

impl From<NamespacedName> for (String, String) {
    fn from(key: NamespacedName) -> Self {
        (key.namespace, key.name)
    }
}

impl fmt::Display for NamespacedName {
    /// `default/web`, or `web` for a cluster-scoped object.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.namespace.as_str() {
            "" => formatter.write_str(&self.name),
            namespace => write!(formatter, "{namespace}/{}", self.name),
        }
    }
}

impl fmt::Debug for NamespacedName {
    /// As displayed; for keys in logs and traces.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

/// Identity of an object in a cluster, independent of the API version.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ObjectKey {
    pub group: Arc<str>,
    pub kind: Arc<str>,
    /// None for cluster-scoped objects.
    pub namespace: Option<Arc<str>>,
    pub name: Arc<str>,
}

impl ObjectKey {
    /// An empty namespace means a cluster-scoped object.
    pub fn new(group: &str, kind: &str, namespace: &str, name: &str) -> Self {
        let namespace = (!namespace.is_empty()).then(|| namespace.into());
        Self { group: group.into(), kind: kind.into(), namespace, name: name.into() }
    }

    /// Parses the fields of an object reference.
    pub fn parse(api_version: &str, kind: &str, namespace: &str, name: &str) -> Result<Self, NameError> {
        let (group, _) = split_api_version(api_version)?;
        if name.is_empty() {
            return Err(NameError::Object { name: name.to_owned(), reason: "it is empty".to_owned() });
        }
        Ok(Self::new(group, kind, namespace, name))
    }
}

impl fmt::Display for ObjectKey {
    /// `Deployment.apps default/web`.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.kind)?;
        if !self.group.is_empty() {
            write!(formatter, ".{}", self.group)?;
        }
        match &self.namespace {
            Some(namespace) => write!(formatter, " {namespace}/{}", self.name),
            None => write!(formatter, " {}", self.name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_stored_as_lists() {
        let key = NamespacedName::new("a", "web");
        let text = serde_json::to_string(&key).unwrap();
        assert_eq!(text, r#"["a","web"]"#);
        assert_eq!(serde_json::from_str::<NamespacedName>(&text).unwrap(), key);
    }

    #[test]
    fn keys_are_parsed_and_displayed() {
        let deployment = Gvk::parse("apps/v1", "Deployment").unwrap();
        assert_eq!((&*deployment.group, &*deployment.version), ("apps", "v1"));
        assert_eq!(deployment.api_version(), "apps/v1");
        assert_eq!(Gvk::parse("v1", "Pod").unwrap().api_version(), "v1");
        assert_eq!(Gvk::parse("a/b/c", "X"), Err(NameError::GroupVersion("a/b/c".into())));
        assert_eq!(Gvr::new("", "v1", "pods").path(Some("default")), "/api/v1/namespaces/default/pods");
        let path = Gvr::new("", "v1", "pods").path(Some("a/secrets/b?x="));
        assert_eq!(path, "/api/v1/namespaces/a%252Fsecrets%252Fb%3Fx=/pods");
        let deployments = Gvr::for_type::<k8s_openapi::api::apps::v1::Deployment>();
        assert_eq!(deployments.path(None), "/apis/apps/v1/deployments");
        assert_eq!(NamespacedName::new("a", "web").to_string(), "a/web");
        assert_eq!(NamespacedName::new("", "crd").to_string(), "crd");
        assert_eq!(ObjectKey::new("apps", "Deployment", "a", "web").to_string(), "Deployment.apps a/web");
    }
}
