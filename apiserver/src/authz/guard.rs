//! Nobody grants what they do not have: writes of roles and bindings are checked against the writer's own rules.

use std::sync::Arc;

use async_trait::async_trait;
use crowsnest_api::rbac::{Action, PolicyRule, RoleRef};
use serde_json::Value;

use crate::admission::{Admission, Attributes, Operation};
use crate::authz::{Authorizer, GROUP, escalation};
use crate::registry::object::Object;
use crate::status::{ApiError, ApiResult};

/// The admission step; see the module.
pub struct EscalationGuard {
    authorizer: Arc<Authorizer>,
}

impl EscalationGuard {
    pub fn new(authorizer: Arc<Authorizer>) -> Self {
        Self { authorizer }
    }

    fn may(&self, a: &Attributes<'_>, verb: &str, resource: &str, name: &str) -> bool {
        let action = Action::Resource {
            verb: verb.into(),
            group: GROUP.into(),
            resource: resource.into(),
            subresource: String::new(),
            namespace: a.ctx.namespace.clone(),
            name: name.into(),
        };
        self.authorizer.allows(&a.ctx.user, &action)
    }

    /// The rules a write hands out, `None` when it needs no check.
    fn granted(&self, a: &Attributes<'_>, object: &Value) -> ApiResult<Option<Vec<PolicyRule>>> {
        let plural = a.resource.gvr.resource.as_str();
        let unchanged = |keys: &[&str]| a.old.is_some_and(|old| keys.iter().all(|k| old[*k] == object[*k]));
        match plural {
            "roles" | "clusterroles" => {
                if unchanged(&["rules", "aggregationRule"]) || self.may(a, "escalate", plural, object.name()) {
                    return Ok(None);
                }
                if object["aggregationRule"].is_object() {
                    return Ok(Some(everything()));
                }
                Ok(Some(serde_json::from_value(object["rules"].clone()).unwrap_or_default()))
            }
            "rolebindings" | "clusterrolebindings" => {
                let role: RoleRef = serde_json::from_value(object["roleRef"].clone()).unwrap_or_default();
                let kind = if role.kind == "ClusterRole" { "clusterroles" } else { "roles" };
                if unchanged(&["roleRef", "subjects"]) || self.may(a, "bind", kind, &role.name) {
                    return Ok(None);
                }
                match self.authorizer.rbac().role_rules(&role, &a.ctx.namespace) {
                    Ok(rules) => Ok(Some(rules.to_vec())),
                    Err(_) => Err(ApiError::not_found(GROUP, kind, &role.name)),
                }
            }
            _ => Ok(None),
        }
    }
}

fn everything() -> Vec<PolicyRule> {
    let all = || vec!["*".to_owned()];
    vec![
        PolicyRule { verbs: all(), api_groups: all(), resources: all(), ..PolicyRule::default() },
        PolicyRule { verbs: all(), non_resource_urls: all(), ..PolicyRule::default() },
    ]
}

#[async_trait]
impl Admission for EscalationGuard {
    async fn validate(&self, a: &Attributes<'_>, object: Option<&Value>, _: &mut Vec<String>) -> ApiResult<()> {
        let (Some(object), true) = (object, a.resource.gvr.group == GROUP) else { return Ok(()) };
        if a.operation == Operation::Delete {
            return Ok(());
        }
        let Some(rules) = self.granted(a, object)? else { return Ok(()) };
        escalation::confirm(&self.authorizer.rbac(), &a.ctx.user, &a.ctx.namespace, &rules)
            .map_err(|why| ApiError::forbidden(GROUP, &a.resource.gvr.resource, object.name(), why))
    }
}
