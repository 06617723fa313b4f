//! Attributes of a request, as RBAC and audit policies match them. Has no side effects.

use crowsnest_apimachinery::rbac::Action;
use crowsnest_apimachinery::request::RequestInfo;

/// Attributes of a resource request or, with `path`, of a non-resource request.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Attributes {
    pub verb: String,
    pub group: String,
    pub version: String,
    pub resource: String,
    pub subresource: String,
    /// Empty for cluster-scoped requests and requests across all namespaces.
    pub namespace: String,
    pub name: String,
    /// Set for non-resource paths.
    pub path: Option<String>,
}

impl From<Action> for Attributes {
    fn from(action: Action) -> Self {
        match action {
            Action::Resource { verb, group, resource, subresource, namespace, name } => {
                Self { verb, group, resource, subresource, namespace, name, ..Self::default() }
            }
            Action::Path { verb, path } => Self { verb, path: Some(path), ..Self::default() },
        }
    }
}

impl From<Attributes> for Action {
    fn from(attributes: Attributes) -> Self {
        let Attributes { verb, group, resource, subresource, namespace, name, path, .. } = attributes;
        match path {
            Some(path) => Self::Path { verb, path },
            None => Self::Resource { verb, group, resource, subresource, namespace, name },
        }
    }
}

impl From<RequestInfo> for Attributes {
    fn from(info: RequestInfo) -> Self {
        let RequestInfo { is_resource, path, verb, group, version, namespace, resource, subresource, name, .. } = info;
        let path = (!is_resource).then_some(path);
        Self { verb, group, version, resource, subresource, namespace, name, path }
    }
}
