//! Authorization: RBAC from the server's own roles and bindings, and access reviews.
//!
//! [`Authorizer`] caches a compiled snapshot of the four RBAC tables for `http/`, the reviews and the escalation
//! guard. [`bootstrap`] writes the default roles at start, [`aggregate`] fills aggregated ClusterRoles. The other
//! modules are pure.

pub mod aggregate;
pub mod bootstrap;
pub mod default_roles;
pub mod escalation;
mod guard;
pub mod review;

use std::sync::Arc;

use crowsnest_apimachinery::rbac::{Action, Decision, Rbac, Role, RoleBinding};
use crowsnest_apimachinery::request::RequestInfo;
use crowsnest_apimachinery::status::ApiResult;
use crowsnest_apimachinery::user::UserInfo;
use crowsnest_apiserver::authz::{AccessReviewer, forbidden};
use crowsnest_cel::authorizer::AccessChecker;
use parking_lot::RwLock;
use serde::Deserialize;
use serde_json::Value;

use crate::resource::ResourceRef;
use crate::storage::{ResourceKey, Revision};
use crate::strategy::RequestContext;
use crate::{CreateAuthorizer, Registry};

pub use guard::EscalationGuard;

pub(crate) const GROUP: &str = "rbac.authorization.k8s.io";
const TABLES: [&str; 4] = ["clusterroles", "roles", "clusterrolebindings", "rolebindings"];

/// The authorization check of a request.
pub fn action(info: &RequestInfo) -> Action {
    if !info.is_resource {
        return Action::Path { verb: info.verb.clone(), path: info.path.clone() };
    }
    Action::Resource {
        verb: info.verb.clone(),
        group: info.group.clone(),
        resource: info.resource.clone(),
        subresource: info.subresource.clone(),
        namespace: info.namespace.clone(),
        name: info.name.clone(),
    }
}

/// Authorizes requests by RBAC.
pub struct Authorizer {
    registry: Arc<Registry>,
    /// Last changes of the four tables, and the rules compiled from them.
    snapshot: RwLock<([Revision; 4], Arc<Rbac>)>,
}

impl Authorizer {
    pub fn new(registry: Arc<Registry>) -> Self {
        Self { registry, snapshot: RwLock::new(([Revision::MAX; 4], Arc::default())) }
    }

    pub(crate) fn registry(&self) -> &Registry {
        &self.registry
    }

    /// The current RBAC rules; recompiled when one of the tables has changed.
    pub fn rbac(&self) -> Arc<Rbac> {
        let tables = TABLES.map(|resource| ResourceKey::new(GROUP, resource));
        let current = tables.each_ref().map(|table| self.registry.store.last_change(table));
        {
            let snapshot = self.snapshot.read();
            if snapshot.0 == current {
                return snapshot.1.clone();
            }
        }
        let rbac = Arc::new(compile(tables.each_ref().map(|table| self.objects(table))));
        *self.snapshot.write() = (current, rbac.clone());
        rbac
    }

    fn objects(&self, table: &ResourceKey) -> Vec<Value> {
        self.registry.store.objects(table, "")
    }

    pub fn decide(&self, user: &UserInfo, action: &Action) -> Decision {
        if user.is_master() {
            return Decision::Allowed { reason: String::new() };
        }
        self.rbac().authorize(user, action)
    }

    pub fn allows(&self, user: &UserInfo, action: &Action) -> bool {
        matches!(self.decide(user, action), Decision::Allowed { .. })
    }

    /// Returns an error with status 403 if the user lacks the right.
    pub fn check(&self, user: &UserInfo, action: &Action) -> ApiResult<()> {
        require_allowed(user, action, self.decide(user, action))
    }
}

impl AccessChecker for Authorizer {
    fn decide(&self, user: &UserInfo, action: &Action) -> Decision {
        self.decide(user, action)
    }
}

impl AccessReviewer for Authorizer {
    fn review_action(&self, user: &UserInfo, action: &Action) -> impl Future<Output = ApiResult<Decision>> + Send {
        std::future::ready(Ok(self.decide(user, action)))
    }
}

impl CreateAuthorizer for Authorizer {
    fn authorize_create(&self, resource: &ResourceRef, ctx: &RequestContext, name: &str) -> ApiResult<()> {
        let action = Action::Resource {
            verb: "create".into(),
            group: resource.gvr.group.to_string(),
            resource: resource.gvr.resource.to_string(),
            subresource: ctx.subresource.clone(),
            namespace: ctx.namespace.clone(),
            name: name.to_owned(),
        };
        self.check(&ctx.user, &action)
    }
}

/// Converts a decision into a result; the 403 error names user, verb and resource.
pub fn require_allowed(user: &UserInfo, action: &Action, decision: Decision) -> ApiResult<()> {
    match decision {
        Decision::Allowed { .. } => Ok(()),
        Decision::NoOpinion { reason } => Err(forbidden(&user.name, action, &reason)),
    }
}

/// Compiles the objects of [`TABLES`], in that order. Unreadable objects grant nothing.
fn compile([cluster_roles, roles, cluster_bindings, bindings]: [Vec<Value>; 4]) -> Rbac {
    fn metadata_text<'a>(object: &'a Value, field: &str) -> &'a str {
        object["metadata"][field].as_str().unwrap_or_default()
    }
    let log_unreadable = |object: &Value, error: serde_json::Error| {
        tracing::warn!(kind = %object["kind"], name = metadata_text(object, "name"), %error, "ignoring an RBAC object that cannot be read");
    };
    let mut rbac = Rbac::default();
    for object in cluster_roles.iter().chain(&roles) {
        match Role::deserialize(object) {
            Ok(role) => rbac.put_role(metadata_text(object, "namespace"), metadata_text(object, "name"), role),
            Err(error) => log_unreadable(object, error),
        }
    }
    for object in cluster_bindings.iter().chain(&bindings) {
        match RoleBinding::deserialize(object) {
            Ok(binding) => rbac.put_binding(metadata_text(object, "namespace"), metadata_text(object, "name"), binding),
            Err(error) => log_unreadable(object, error),
        }
    }
    rbac
}
