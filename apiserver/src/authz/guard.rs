//! Nobody grants what they do not have: writes of roles and bindings are checked against the writer's own rules. Nobody lets a
//! policy read what they may not read themselves: so are the parameters of policies and of their bindings.

use std::sync::Arc;

use async_trait::async_trait;
use crowsnest_api::field::FieldError;
use crowsnest_api::rbac::{Action, PolicyRule, RoleRef};
use serde_json::Value;

use crate::admission::{Admission, Attributes, Operation, policy};
use crate::authz::{Authorizer, GROUP, escalation};
use crate::registry::Registry;
use crate::registry::object::Object;
use crate::status::{ApiError, ApiResult};
use crate::storage::{ObjectKey, ResourceKey};

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

    /// A policy reads its parameters for whoever writes, and tells of them.
    fn check_parameters(&self, a: &Attributes<'_>, object: &Value) -> ApiResult<()> {
        let (user, spec) = (&a.ctx.user, &object["spec"]);
        let unchanged = |keys: &[&str]| a.old.is_some_and(|old| keys.iter().all(|key| old["spec"][*key] == spec[*key]));
        let registry = self.authorizer.registry();
        let (key, why) = if spec["paramKind"].is_object() && !unchanged(&["paramKind"]) {
            if self.authorizer.allows(user, &parameters(registry, &spec["paramKind"])) {
                return Ok(());
            }
            let text = |key: &str| spec["paramKind"][key].as_str().unwrap_or_default();
            let why = format!(
                "user {} must have \"get\" permission on all objects of the referenced paramKind (kind={}, apiVersion={})",
                user.name,
                text("kind"),
                text("apiVersion")
            );
            ("paramKind", why)
        } else if spec["paramRef"].is_object() && !unchanged(&["paramRef", "policyName"]) {
            let text = |key: &str| spec["paramRef"][key].as_str().unwrap_or_default().to_owned();
            let policies = a.resource.gvr.resource.replace("policybindings", "policies");
            let key = ObjectKey::new("", spec["policyName"].as_str().unwrap_or_default());
            let policy = registry.store.get(&ResourceKey::new(policy::GROUP, &policies), &key);
            let policy = policy.and_then(|record| record.body.value(record.revision).ok()).unwrap_or_default();
            let mut wanted = parameters(registry, &policy["spec"]["paramKind"]);
            let Action::Resource { verb, namespace, name, .. } = &mut wanted else { return Ok(()) };
            (*namespace, *name) = (text("namespace"), text("name"));
            if name.is_empty() {
                "list".clone_into(verb);
            }
            let why =
                format!("user {} does not have {verb:?} permission on the object referenced by paramRef", user.name);
            if self.authorizer.allows(user, &wanted) {
                return Ok(());
            }
            ("paramRef", why)
        } else {
            return Ok(());
        };
        let errors = vec![FieldError::forbidden(format!("spec.{key}"), why)];
        Err(ApiError::invalid(policy::GROUP, &a.resource.kind, object.name(), errors))
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

/// `paramKind` as a resource to be read; whatever can't be found out is everything.
fn parameters(registry: &Registry, kind: &Value) -> Action {
    let text = |key: &str| kind[key].as_str().unwrap_or_default();
    let (api_version, kind) = (text("apiVersion"), text("kind"));
    let all = || "*".to_owned();
    let group = match api_version {
        "" => all(),
        of => of.split_once('/').map_or("", |(group, _)| group).to_owned(),
    };
    let served = registry.catalog.served();
    let resource = served.by_kind(api_version, kind).map_or_else(all, |resource| resource.gvr.resource.clone());
    let (subresource, namespace, name) = Default::default();
    Action::Resource { verb: "get".into(), group, resource, subresource, namespace, name }
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
        let Some(object) = object.filter(|_| a.operation != Operation::Delete) else { return Ok(()) };
        match a.resource.gvr.group.as_str() {
            GROUP => {}
            policy::GROUP => return self.check_parameters(a, object),
            _ => return Ok(()),
        }
        let Some(rules) = self.granted(a, object)? else { return Ok(()) };
        escalation::confirm(&self.authorizer.rbac(), &a.ctx.user, &a.ctx.namespace, &rules)
            .map_err(|why| ApiError::forbidden(GROUP, &a.resource.gvr.resource, object.name(), why))
    }
}
