//! What a request wants, in the terms of RBAC and of audit policies. Pure.

use crowsnest_apimachinery::rbac::Action;
use crowsnest_apimachinery::request::RequestInfo;

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Attributes {
    pub verb: String,
    pub group: String,
    pub version: String,
    pub resource: String,
    pub subresource: String,
    /// Empty for cluster-scoped requests, and those over all namespaces.
    pub namespace: String,
    pub name: String,
    /// Set for paths that name no resource.
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

impl From<RequestInfo> for Attributes {
    fn from(info: RequestInfo) -> Self {
        let RequestInfo { is_resource, path, verb, group, version, namespace, resource, subresource, name, .. } = info;
        let path = (!is_resource).then_some(path);
        Self { verb, group, version, resource, subresource, namespace, name, path }
    }
}
