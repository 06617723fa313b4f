//! Admission step against privilege escalation. Writers of roles and bindings must have the granted permissions
//! themselves; writers of admission policies and their bindings must be able to read the parameters.

use std::sync::Arc;

use async_trait::async_trait;
use crowsnest_apimachinery::field::FieldError;
use crowsnest_apimachinery::rbac::{Action, PolicyRule, RoleRef};
use crowsnest_apimachinery::status::{ApiError, ApiResult};
use serde_json::{Map, Value};

use crate::admission::{self, Admission, Attributes, Operation, Validation};
use crate::authz::{Authorizer, GROUP, escalation};
use crate::object::Object;
use crate::storage::{ObjectKey, ResourceKey};
use crate::{Registry, error_without_reason};

/// The admission step.
pub struct EscalationGuard {
    authorizer: Arc<Authorizer>,
}

impl EscalationGuard {
    pub fn new(authorizer: Arc<Authorizer>) -> Self {
        Self { authorizer }
    }

    fn is_allowed(&self, a: &Attributes<'_>, verb: &str, group: &str, resource: &str, name: &str) -> bool {
        let action = Action::Resource {
            verb: verb.into(),
            group: group.into(),
            resource: resource.into(),
            subresource: String::new(),
            namespace: a.ctx.namespace.clone(),
            name: name.into(),
        };
        self.authorizer.allows(&a.ctx.user, &action)
    }

    /// A policy evaluates its parameters for all writers and can disclose them, so its author must have the permission to
    /// read them.
    fn check_parameters(&self, a: &Attributes<'_>, object: &Value) -> ApiResult<()> {
        let (user, spec) = (&a.ctx.user, &object["spec"]);
        let unchanged = |keys: &[&str]| a.old.is_some_and(|old| keys.iter().all(|key| old["spec"][*key] == spec[*key]));
        let registry = self.authorizer.registry();
        let (key, reason) = if spec["paramKind"].is_object() && !unchanged(&["paramKind"]) {
            if self.authorizer.allows(user, &read_action(registry, &spec["paramKind"])) {
                return Ok(());
            }
            let text = |key: &str| spec["paramKind"][key].as_str().unwrap_or_default();
            let reason = format!(
                "user {} must have \"get\" permission on all objects of the referenced paramKind (kind={}, apiVersion={})",
                user.name,
                text("kind"),
                text("apiVersion")
            );
            ("paramKind", reason)
        } else if spec["paramRef"].is_object() && !unchanged(&["paramRef", "policyName"]) {
            let text = |key: &str| spec["paramRef"][key].as_str().unwrap_or_default().to_owned();
            let policies = a.resource.gvr.resource.replace("policybindings", "policies");
            let key = ObjectKey::new("", spec["policyName"].as_str().unwrap_or_default());
            let policy = registry.store.object(&ResourceKey::new(admission::GROUP, &policies), &key);
            let policy = policy.unwrap_or_default();
            let mut action = read_action(registry, &policy["spec"]["paramKind"]);
            let Action::Resource { verb, namespace, name, .. } = &mut action else { return Ok(()) };
            (*namespace, *name) = (text("namespace"), text("name"));
            if name.is_empty() {
                "list".clone_into(verb);
            }
            let reason =
                format!("user {} does not have {verb:?} permission on the object referenced by paramRef", user.name);
            if self.authorizer.allows(user, &action) {
                return Ok(());
            }
            ("paramRef", reason)
        } else {
            return Ok(());
        };
        let errors = vec![FieldError::forbidden(format!("spec.{key}"), reason)];
        Err(ApiError::invalid(admission::GROUP, &a.resource.kind, object.name(), errors))
    }

    /// Checks the rules of a role, and the permission to create aggregated roles, which can acquire any rule.
    fn check_role(&self, a: &Attributes<'_>, object: &Value) -> ApiResult<()> {
        let plural = &*a.resource.gvr.resource;
        // The name in the path; empty for a create by POST.
        let name = if is_post(a) { "" } else { a.name };
        if self.is_allowed(a, "escalate", GROUP, plural, name)
            || a.old.is_some_and(|old| changes_only_gc_fields(old, object))
        {
            return Ok(());
        }
        let rules: Vec<PolicyRule> = serde_json::from_value(object["rules"].clone()).unwrap_or_default();
        self.check_grant(a, object, &rules)?;
        let aggregates = |role: &Value| {
            role["aggregationRule"]["clusterRoleSelectors"].as_array().is_some_and(|list| !list.is_empty())
        };
        if plural == "clusterroles" && (aggregates(object) || a.old.is_some_and(aggregates)) {
            let reason = "must have cluster-admin privileges to use the aggregationRule";
            self.check_grant(a, object, &all_permissions()).map_err(|_| forbidden_error(a, object, reason))?;
        }
        Ok(())
    }

    fn check_binding(&self, a: &Attributes<'_>, object: &Value) -> ApiResult<()> {
        if a.ctx.user.is_master() || a.old.is_some_and(|old| changes_only_gc_fields(old, object)) {
            return Ok(());
        }
        let role: RoleRef = serde_json::from_value(object["roleRef"].clone()).unwrap_or_default();
        let plural = match role.kind.as_str() {
            "ClusterRole" => "clusterroles",
            "Role" => "roles",
            other => return Err(error_without_reason(format!("unsupported role reference kind: {other:?}"))),
        };
        let group = object["roleRef"]["apiGroup"].as_str().unwrap_or_default();
        if self.is_allowed(a, "bind", group, plural, &role.name) {
            return Ok(());
        }
        if plural == "roles" && a.ctx.namespace.is_empty() {
            return Err(ApiError::bad_request("Namespace parameter required."));
        }
        if role.name.is_empty() {
            return Err(ApiError::bad_request("Name parameter required."));
        }
        match self.authorizer.rbac().role_rules(&role, &a.ctx.namespace) {
            Ok(rules) => self.check_grant(a, object, rules),
            // kube-apiserver resolves the role as part of this request and reports the requested resource as not
            // found.
            Err(_) => Err(ApiError::not_found(GROUP, &a.resource.gvr.resource, &role.name)),
        }
    }

    fn check_grant(&self, a: &Attributes<'_>, object: &Value, rules: &[PolicyRule]) -> ApiResult<()> {
        escalation::check_grant(&self.authorizer.rbac(), &a.ctx.user, &a.ctx.namespace, rules)
            .map_err(|reason| forbidden_error(a, object, &reason))
    }
}

fn is_post(a: &Attributes<'_>) -> bool {
    a.operation == Operation::Create && a.options["kind"] == "CreateOptions"
}

fn forbidden_error(a: &Attributes<'_>, object: &Value, reason: &str) -> ApiError {
    let base = object.meta_text("generateName");
    // kube-apiserver generates names after this check.
    let has_generated_name = is_post(a) && !base.is_empty() && object.name().starts_with(base);
    let name = if has_generated_name { "" } else { object.name() };
    ApiError::forbidden(GROUP, &a.resource.gvr.resource, name, reason)
}

/// `IsOnlyMutatingGCFields`: true if only fields that concern the garbage collector change.
fn changes_only_gc_fields(old: &Value, new: &Value) -> bool {
    let without_gc_fields = |object: &Value| {
        let mut remaining = object.clone();
        if let Some(fields) = remaining.as_object_mut() {
            fields.retain(|key, _| !matches!(key.as_str(), "apiVersion" | "kind"));
        }
        let gc_fields = ["ownerReferences", "finalizers", "selfLink", "managedFields"];
        remaining.metadata_mut().retain(|key, _| !gc_fields.contains(&key.as_str()));
        remaining
    };
    is_equal_or_empty(&without_gc_fields(old), &without_gc_fields(new))
}

/// Equality in which empty values equal absent ones.
fn is_equal_or_empty(old: &Value, new: &Value) -> bool {
    let is_empty = |value: &Value| match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        _ => false,
    };
    match (old, new) {
        (Value::Object(old), Value::Object(new)) => {
            let within = |a: &Map<String, Value>, b: &Map<String, Value>| {
                a.iter().all(|(key, value)| is_equal_or_empty(value, b.get(key).unwrap_or(&Value::Null)))
            };
            within(old, new) && within(new, old)
        }
        (Value::Array(old), Value::Array(new)) => {
            old.len() == new.len() && old.iter().zip(new).all(|(old, new)| is_equal_or_empty(old, new))
        }
        (old, new) => old == new || is_empty(old) && is_empty(new),
    }
}

/// The permission to read objects of `paramKind`; unknown parts become `*`.
fn read_action(registry: &Registry, kind: &Value) -> Action {
    let text = |key: &str| kind[key].as_str().unwrap_or_default();
    let (api_version, kind) = (text("apiVersion"), text("kind"));
    let all = || "*".to_owned();
    let group = match api_version {
        "" => all(),
        version => version.split_once('/').map_or("", |(group, _)| group).to_owned(),
    };
    let served = registry.catalog.snapshot();
    let resource = served.by_kind(api_version, kind).map_or_else(all, |resource| resource.gvr.resource.to_string());
    let (subresource, namespace, name) = Default::default();
    Action::Resource { verb: "get".into(), group, resource, subresource, namespace, name }
}

fn all_permissions() -> Vec<PolicyRule> {
    let all = || vec!["*".to_owned()];
    vec![
        PolicyRule { verbs: all(), api_groups: all(), resources: all(), ..PolicyRule::default() },
        PolicyRule { verbs: all(), non_resource_urls: all(), ..PolicyRule::default() },
    ]
}

#[async_trait]
impl Admission for EscalationGuard {
    async fn guard(&self, a: &Attributes<'_>, object: &Value) -> ApiResult<()> {
        if *a.resource.gvr.group != *GROUP {
            return Ok(());
        }
        match &*a.resource.gvr.resource {
            "roles" | "clusterroles" => self.check_role(a, object),
            "rolebindings" | "clusterrolebindings" => self.check_binding(a, object),
            _ => Ok(()),
        }
    }

    async fn validate(&self, Validation { attributes: a, object, .. }: Validation<'_>) -> ApiResult<()> {
        match object.filter(|_| a.operation != Operation::Delete && *a.resource.gvr.group == *admission::GROUP) {
            Some(object) => self.check_parameters(a, object),
            None => Ok(()),
        }
    }
}
