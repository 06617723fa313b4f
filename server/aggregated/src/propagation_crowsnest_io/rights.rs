//! The caller's rights to the objects of a report.

use crowsnest_apimachinery::status::ApiError;
use crowsnest_apimachinery::user::UserInfo;
use crowsnest_apiserver::audit::Attributes;
use crowsnest_controllers::runtime::dynamic_client::Resource;

use crate::request::authentication::DelegatedAuth;

/// A caller whose rights are reviewed in the control plane.
#[derive(Clone, Copy)]
pub(super) struct Reader<'r> {
    pub(super) delegated: &'r DelegatedAuth,
    pub(super) user: &'r UserInfo,
}

/// Attributes of the request for an object.
pub(super) fn get(resource: &Resource, namespace: &str, name: &str) -> Attributes {
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
    async fn may(&self, attributes: &Attributes) -> Result<bool, ApiError> {
        Ok(self.delegated.review(self.user, attributes).await?.allowed)
    }

    pub(super) async fn must(&self, attributes: &Attributes) -> Result<(), ApiError> {
        self.delegated.review(self.user, attributes).await?.check(self.user, attributes)
    }

    /// Rights are usually granted for whole namespaces, so these are reviewed first and cached.
    pub(super) async fn may_get(&self, resource: &Resource, namespace: &str, name: &str) -> Result<bool, ApiError> {
        for (namespace, name) in [("", ""), (namespace, ""), (namespace, name)] {
            if self.may(&get(resource, namespace, name)).await? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Checks that the caller may get an object it proposes to change. A Secret may also be
    /// proposed with the right to write it. Returns false if its values must be hidden.
    pub(super) async fn may_see_proposed(
        &self,
        resource: &Resource,
        namespace: &str,
        name: &str,
    ) -> Result<bool, ApiError> {
        let attributes = get(resource, namespace, name);
        if self.may(&attributes).await? {
            return Ok(true);
        }
        if is_secret(resource) {
            for verb in ["update", "patch", "create"] {
                if self.may(&Attributes { verb: verb.to_owned(), ..attributes.clone() }).await? {
                    return Ok(false);
                }
            }
        }
        self.must(&attributes).await.map(|()| true)
    }

    /// Requires the right to create the resource: this process runs the scripts of a proposed customization.
    pub(super) async fn must_create(&self, resource: &Resource) -> Result<(), ApiError> {
        self.must(&Attributes { verb: "create".to_owned(), ..get(resource, "", "") }).await
    }
}

fn is_secret(resource: &Resource) -> bool {
    resource.gvr.group.is_empty() && &*resource.gvr.resource == "secrets"
}
