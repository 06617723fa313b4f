//! Names as types, parsed once at the edge: a [`ClusterName`] or [`Gvr`] that exists is well formed.

use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// Longest name a Cluster may have (Karmada's rule: namespaces `karmada-es-<name>` must stay names).
pub const CLUSTER_NAME_MAX: usize = 48;

/// The control plane's own place among the clusters. Not a DNS label, so that no Cluster can be called so.
pub const CONTROL_PLANE: &str = "@control-plane";

/// Why a text is not a name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    #[error("{0:?} is not a cluster name: a DNS-1123 label of at most {CLUSTER_NAME_MAX} characters")]
    Cluster(String),
    #[error("{0:?} is not a resource: want resource.version.group or resource.version for the core group")]
    Gvr(String),
}

/// Name of a member cluster, or of the control plane ([`ClusterName::control_plane`]). Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClusterName(Arc<str>);

impl ClusterName {
    pub fn new(name: &str) -> Result<Self, NameError> {
        if name == CONTROL_PLANE || is_dns_label(name) && name.len() <= CLUSTER_NAME_MAX {
            Ok(Self(name.into()))
        } else {
            Err(NameError::Cluster(name.to_owned()))
        }
    }

    /// The control plane as one more place objects come from.
    pub fn control_plane() -> Self {
        Self(CONTROL_PLANE.into())
    }

    pub fn is_control_plane(&self) -> bool {
        &*self.0 == CONTROL_PLANE
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

fn is_dns_label(name: &str) -> bool {
    let edge = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let bytes = name.as_bytes();
    match (bytes.first(), bytes.last()) {
        (Some(&first), Some(&last)) => {
            bytes.len() <= 63 && edge(first) && edge(last) && bytes.iter().all(|&b| edge(b) || b == b'-')
        }
        _ => false,
    }
}

impl fmt::Display for ClusterName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for ClusterName {
    type Err = NameError;

    fn from_str(name: &str) -> Result<Self, NameError> {
        Self::new(name)
    }
}

impl Serialize for ClusterName {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for ClusterName {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = <Cow<'de, str>>::deserialize(deserializer)?;
        Self::new(&name).map_err(serde::de::Error::custom)
    }
}

/// Group, version and resource (plural, lower case), as a URL names them. Cheap to clone; ordered by group, resource,
/// version.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Gvr(Arc<GvrParts>);

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct GvrParts {
    group: String,
    resource: String,
    version: String,
}

impl Gvr {
    /// `group` is empty for the core group.
    pub fn new(group: &str, version: &str, resource: &str) -> Self {
        Self(Arc::new(GvrParts { group: group.into(), resource: resource.into(), version: version.into() }))
    }

    /// Of a typed kind.
    pub fn of<K: k8s_openapi::Resource>() -> Self {
        Self::new(K::GROUP, K::VERSION, K::URL_PATH_SEGMENT)
    }

    pub fn group(&self) -> &str {
        &self.0.group
    }

    pub fn version(&self) -> &str {
        &self.0.version
    }

    pub fn resource(&self) -> &str {
        &self.0.resource
    }

    /// `apps/v1`, or `v1` for the core group.
    pub fn api_version(&self) -> String {
        if self.0.group.is_empty() { self.0.version.clone() } else { format!("{}/{}", self.0.group, self.0.version) }
    }

    /// `deployments.apps`, or `pods` for the core group: the version-free name RBAC and CRDs use.
    pub fn group_resource(&self) -> String {
        if self.0.group.is_empty() { self.0.resource.clone() } else { format!("{}.{}", self.0.resource, self.0.group) }
    }

    /// URL path of the collection: `/api/v1/pods`, `/apis/apps/v1/namespaces/shop/deployments`.
    pub fn path(&self, namespace: Option<&str>) -> String {
        let mut path = if self.0.group.is_empty() { "/api/".to_owned() } else { format!("/apis/{}/", self.0.group) };
        path.push_str(&self.0.version);
        if let Some(namespace) = namespace.filter(|namespace| !namespace.is_empty()) {
            path.push_str("/namespaces/");
            path.push_str(namespace);
        }
        path.push('/');
        path.push_str(&self.0.resource);
        path
    }
}

impl fmt::Display for Gvr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0.resource, self.0.version)?;
        if self.0.group.is_empty() { Ok(()) } else { write!(f, ".{}", self.0.group) }
    }
}

impl fmt::Debug for Gvr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// `resource.version.group`, kubectl's own form.
impl FromStr for Gvr {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let mut parts = text.splitn(3, '.');
        match (parts.next(), parts.next(), parts.next().unwrap_or_default()) {
            (Some(resource), Some(version), group) if !resource.is_empty() && !version.is_empty() => {
                Ok(Self::new(group, version, resource))
            }
            _ => Err(NameError::Gvr(text.to_owned())),
        }
    }
}

impl Serialize for Gvr {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Gvr {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        <Cow<'de, str>>::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_cluster_can_take_the_control_planes_name() {
        assert!(ClusterName::control_plane().is_control_plane());
        assert!(!is_dns_label(CONTROL_PLANE));
        for bad in ["", "-a", "a-", "A", "a.b", &"a".repeat(49)] {
            assert_eq!(ClusterName::new(bad), Err(NameError::Cluster(bad.to_owned())), "{bad}");
        }
        assert_eq!(ClusterName::new("member1").map(|name| name.to_string()), Ok("member1".to_owned()));
    }

    #[test]
    fn a_resource_is_written_as_kubectl_writes_it() {
        for text in ["pods.v1", "deployments.v1.apps", "clusters.v1alpha1.cluster.karmada.io"] {
            assert_eq!(text.parse::<Gvr>().unwrap().to_string(), text);
        }
        let gvr = Gvr::new("apps", "v1", "deployments");
        assert_eq!(gvr.path(Some("shop")), "/apis/apps/v1/namespaces/shop/deployments");
        assert_eq!(Gvr::new("", "v1", "pods").path(None), "/api/v1/pods");
        assert_eq!((gvr.api_version(), gvr.group_resource()), ("apps/v1".into(), "deployments.apps".into()));
    }
}
