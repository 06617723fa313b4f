//! The caller's permissions for the objects of a report.

use crowsnest_apimachinery::status::ApiError;
use crowsnest_apimachinery::user::UserInfo;
use crowsnest_apiserver::audit::Attributes;
use crowsnest_controllers::runtime::dynamic_client::Resource;

use crate::request::authentication::DelegatedAuth;

/// A caller whose permissions are reviewed in the control plane.
#[derive(Clone, Copy)]
pub(super) struct Reader<'r> {
    pub(super) delegated: &'r DelegatedAuth,
    pub(super) user: &'r UserInfo,
}

/// Attributes of a `get` request for an object.
pub(super) fn get_attributes(resource: &Resource, namespace: &str, name: &str) -> Attributes {
    Attributes {
        verb: "get".to_owned(),
        group: resource.gvr.group.to_string(),
        version: resource.gvr.version.to_string(),
        resource: resource.gvr.resource.to_string(),
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        ..Attributes::default()
    }
}

impl Reader<'_> {
    async fn is_allowed(&self, attributes: &Attributes) -> Result<bool, ApiError> {
        Ok(self.delegated.review(self.user, attributes).await?.allowed)
    }

    /// Fails with 403 if the request is not allowed.
    pub(super) async fn require(&self, attributes: &Attributes) -> Result<(), ApiError> {
        self.delegated.review(self.user, attributes).await?.check(self.user, attributes)
    }

    /// True if the caller may get the object. Reviews the permissions for all objects and for the namespace first: most
    /// callers have these, and reviews are cached.
    pub(super) async fn may_get(&self, resource: &Resource, namespace: &str, name: &str) -> Result<bool, ApiError> {
        for (namespace, name) in [("", ""), (namespace, ""), (namespace, name)] {
            if self.is_allowed(&get_attributes(resource, namespace, name)).await? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Fails unless the caller may get an object that it proposes to change. For a Secret, permission to write it is
    /// sufficient. Returns false if the values of the Secret must be hidden.
    pub(super) async fn check_proposed(
        &self,
        resource: &Resource,
        namespace: &str,
        name: &str,
    ) -> Result<bool, ApiError> {
        let attributes = get_attributes(resource, namespace, name);
        if self.is_allowed(&attributes).await? {
            return Ok(true);
        }
        if is_secret(resource) {
            for verb in ["update", "patch", "create"] {
                if self.is_allowed(&Attributes { verb: verb.to_owned(), ..attributes.clone() }).await? {
                    return Ok(false);
                }
            }
        }
        self.require(&attributes).await.map(|()| true)
    }

    /// Requires permission to create the resource: this process runs the scripts of a proposed customization.
    pub(super) async fn require_create(&self, resource: &Resource) -> Result<(), ApiError> {
        self.require(&Attributes { verb: "create".to_owned(), ..get_attributes(resource, "", "") }).await
    }
}

fn is_secret(resource: &Resource) -> bool {
    resource.gvr.group.is_empty() && &*resource.gvr.resource == "secrets"
}
