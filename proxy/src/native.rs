//! Parses native Kubernetes paths into the resource that is requested from a member.

use crowsnest_apimachinery::names::{ClusterName, Gvr};
use crowsnest_apimachinery::request::{Query, ResourcePath};
use http::Method;

use crate::Error;

/// Operation that a request performs on a resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    Get,
    List,
    Watch,
    Create,
    Update,
    Patch,
    Delete,
    DeleteCollection,
}

/// A path below `/api/v1` or `/apis/{group}/{version}` that names a resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NativePath {
    pub resource: Gvr,
    /// Empty for a cluster-scoped resource, and for all namespaces.
    pub namespace: String,
    /// Empty for the collection.
    pub name: String,
    /// Empty for the object itself. The rest of the path after the subresource is dropped.
    pub subresource: String,
    /// The deprecated prefix `watch` or `proxy`; empty without one.
    pub prefix: String,
}

impl NativePath {
    /// `None` for paths that name no resource (`/version`, `/apis/apps/v1`, …).
    pub fn parse(path: &str) -> Option<Self> {
        let path = ResourcePath::parse(path)?;
        Some(Self {
            resource: Gvr::new(&path.group, &path.version, &path.resource),
            // A Namespace is cluster-scoped.
            namespace: if path.resource == "namespaces" { String::new() } else { path.namespace },
            name: path.name,
            subresource: path.subresource,
            prefix: path.prefix,
        })
    }

    /// Returns the only element of `candidates`, which are the objects with this name in several members, or the members that
    /// have one. Fails if there is none or more than one.
    pub fn require_only_one<T>(
        &self,
        mut candidates: Vec<T>,
        cluster_of: impl Fn(&T) -> &ClusterName,
    ) -> Result<T, Error> {
        let (resource, name) = (self.resource.clone(), self.name.clone());
        if candidates.len() > 1 {
            let clusters = candidates.iter().map(|candidate| cluster_of(candidate).to_string()).collect();
            return Err(Error::Ambiguous { resource, name, clusters });
        }
        candidates.pop().ok_or(Error::NotFound { resource, name })
    }

    /// The requested resource in RBAC notation: `pods/log`, `deployments.apps`.
    pub fn rbac_resource(&self) -> String {
        let slash = if self.subresource.is_empty() { "" } else { "/" };
        format!("{}{slash}{}", self.resource.group_resource(), self.subresource)
    }

    /// The verb to authorize. Requests that are not served have already been rejected by [`crate::transport::check_path`].
    pub fn verb(&self, method: &Method, query: &Query) -> Verb {
        let path = ResourcePath {
            name: self.name.clone(),
            subresource: self.subresource.clone(),
            prefix: self.prefix.clone(),
            ..ResourcePath::default()
        };
        match path.operation(method, query).verb {
            "create" => Verb::Create,
            "update" => Verb::Update,
            "patch" => Verb::Patch,
            "deletecollection" => Verb::DeleteCollection,
            "delete" => Verb::Delete,
            "watch" => Verb::Watch,
            "list" => Verb::List,
            // Methods that no Kubernetes verb corresponds to, such as HEAD, only read.
            _ if self.name.is_empty() => Verb::List,
            _ => Verb::Get,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[rstest::rstest]
    #[case("/api/v1/pods", "/v1/pods", "", "", "")]
    #[case("/api/v1/namespaces/ns/pods/p", "/v1/pods", "ns", "p", "")]
    #[case("/api/v1/namespaces/ns/pods/p/exec", "/v1/pods", "ns", "p", "exec")]
    #[case("/apis/apps/v1/namespaces/ns/deployments", "apps/v1/deployments", "ns", "", "")]
    #[case("/api/v1/namespaces", "/v1/namespaces", "", "", "")]
    #[case("/api/v1/namespaces/ns", "/v1/namespaces", "", "ns", "")]
    #[case("/api/v1/namespaces/ns/finalize", "/v1/namespaces", "", "ns", "finalize")]
    #[case("/api/v1/nodes/n%2E1/status", "/v1/nodes", "", "n.1", "status")]
    #[case("/apis/g/v1/widgets/w", "g/v1/widgets", "", "w", "")]
    fn paths_are_parsed(
        #[case] path: &str,
        #[case] resource: &str,
        #[case] namespace: &str,
        #[case] name: &str,
        #[case] subresource: &str,
    ) {
        let native = NativePath::parse(path).unwrap();
        let gvr = &native.resource;
        assert_eq!(format!("{}/{}/{}", gvr.group, gvr.version, gvr.resource), resource);
        assert_eq!(
            (native.namespace.as_str(), native.name.as_str(), native.subresource.as_str()),
            (namespace, name, subresource)
        );
    }

    #[rstest::rstest]
    #[case("/version")]
    #[case("/api")]
    #[case("/api/v1")]
    #[case("/apis/apps/v1/")]
    #[case("/openapi/v3/apis/apps/v1")]
    fn paths_without_a_resource_are_not_parsed(#[case] path: &str) {
        assert_eq!(NativePath::parse(path), None);
    }

    #[rstest::rstest]
    #[case("GET", "/api/v1/pods", "", Verb::List)]
    #[case("GET", "/api/v1/pods", "watch=true", Verb::Watch)]
    #[case("GET", "/api/v1/watch/pods", "", Verb::Watch)]
    #[case("GET", "/api/v1/pods", "watch=0", Verb::List)]
    #[case("GET", "/api/v1/nodes/n", "", Verb::Get)]
    #[case("GET", "/api/v1/nodes/n", "watch=true", Verb::Get)]
    #[case("GET", "/api/v1/watch/nodes/n", "", Verb::Watch)]
    #[case("PATCH", "/api/v1/watch/nodes/n", "", Verb::Watch)]
    #[case("DELETE", "/api/v1/pods", "", Verb::DeleteCollection)]
    #[case("POST", "/api/v1/namespaces/n/pods/p/exec", "", Verb::Create)]
    fn the_verb_depends_on_method_path_and_query(
        #[case] method: &str,
        #[case] path: &str,
        #[case] query: &str,
        #[case] expected: Verb,
    ) {
        let verb = NativePath::parse(path).unwrap().verb(&method.parse().unwrap(), &Query::parse(Some(query)));
        assert_eq!(verb, expected);
    }

    #[rstest::rstest]
    #[case::none(&[], Err("deployments.apps \"web\" not found"))]
    #[case::one(&["m1"], Ok("m1"))]
    #[case::several(&["m1", "m2"], Err(
        "Operation cannot be fulfilled on deployments.apps \"web\": ambiguous objects in clusters [m1, m2]"
    ))]
    fn an_object_must_be_in_exactly_one_cluster(#[case] clusters: &[&str], #[case] expected: Result<&str, &str>) {
        let native = NativePath::parse("/apis/apps/v1/namespaces/shop/deployments/web").unwrap();
        let clusters = clusters.iter().map(|name| ClusterName::parse(name).unwrap()).collect();
        let result = native.require_only_one(clusters, |cluster| cluster);
        let result = result.map(|cluster| cluster.to_string()).map_err(|error| error.to_string());
        assert_eq!(result, expected.map(str::to_owned).map_err(str::to_owned));
    }
}
