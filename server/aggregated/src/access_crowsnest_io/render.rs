//! JSON of grants, paths and clusters.

use std::collections::BTreeMap;

use crowsnest_apimachinery::names::CONTROL_PLANE;
use crowsnest_apimachinery::rbac::access::{BoundRole, Proof, RoleBinding, Scope, VisibleRbac};
use crowsnest_apimachinery::rbac::indirect::{Path, Permission, RuleSource, Step};
use crowsnest_apimachinery::rbac::{Action, Subject};
use crowsnest_apimachinery::user::MASTERS;
use crowsnest_search::authorization::{ClusterRules, RulesState};
use serde_json::{Value, json};

/// Maximum number of missing roles that are named per cluster.
const MAX_NAMED_MISSING_ROLES: usize = 5;

/// The rules of `system:masters`, which no binding grants: all resources, and all non-resource URLs.
fn rules_of_masters() -> [Value; 2] {
    [json!({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}), json!({"verbs": ["*"], "nonResourceURLs": ["*"]})]
}

fn masters_entry(cluster: &str) -> Value {
    json!({"cluster": cluster, "subject": Subject::group(MASTERS), "scope": "Cluster", "implicit": true})
}

/// The grant of an action to `system:masters`.
pub(super) fn grant_of_masters(cluster: &str, action: &Action) -> Value {
    let [resources, urls] = rules_of_masters();
    let mut grant = masters_entry(cluster);
    grant["rule"] = if matches!(action, Action::Path { .. }) { urls } else { resources };
    grant
}

/// The role of `system:masters`.
pub(super) fn role_of_masters(cluster: &str) -> Value {
    let mut role = masters_entry(cluster);
    role["rules"] = json!(rules_of_masters());
    role
}

/// A grant, with the ClusterRoles from which an aggregated role has the rule.
pub(super) fn grant(cluster: &str, view: VisibleRbac<'_>, proof: &Proof<'_>) -> Value {
    let mut grant = json!({"cluster": cluster, "subject": proof.subject});
    add_binding(&mut grant, proof.binding);
    grant["rule"] = json!(proof.rule);
    let sources = view.sources(proof.binding.role, proof.rule);
    if !sources.is_empty() {
        grant["aggregatedFrom"] = json!(sources);
    }
    grant
}

/// A role that a subject has, with all rules.
pub(super) fn bound_role(cluster: &str, role: &BoundRole<'_>) -> Value {
    let mut rendered = json!({"cluster": cluster, "subject": role.subject});
    add_binding(&mut rendered, role.binding);
    rendered["rules"] = json!(role.rules);
    rendered
}

/// Adds scope, binding and role.
fn add_binding(grant: &mut Value, RoleBinding { namespace, name, role }: RoleBinding<'_>) {
    let reference = |kind: &str, namespace: &str, name: &str| {
        if namespace.is_empty() {
            json!({"kind": kind, "name": name})
        } else {
            json!({"kind": kind, "namespace": namespace, "name": name})
        }
    };
    let role_namespace = if role.kind == "ClusterRole" { "" } else { namespace };
    grant["role"] = reference(&role.kind, role_namespace, &role.name);
    if namespace.is_empty() {
        grant["scope"] = "Cluster".into();
        grant["binding"] = reference("ClusterRoleBinding", "", name);
    } else {
        grant["scope"] = "Namespace".into();
        grant["namespace"] = namespace.into();
        grant["binding"] = reference("RoleBinding", namespace, name);
    }
}

/// Renders paths, whose steps may be in the control plane.
pub(super) struct PathRenderer<'r> {
    pub cluster: &'r str,
    pub cluster_view: VisibleRbac<'r>,
    pub control_plane: Option<VisibleRbac<'r>>,
}

impl<'r> PathRenderer<'r> {
    fn location(&self, source: RuleSource) -> (&'r str, VisibleRbac<'r>) {
        match (source, self.control_plane) {
            (RuleSource::ControlPlane, Some(view)) => (CONTROL_PLANE, view),
            _ => (self.cluster, self.cluster_view),
        }
    }

    pub fn path(&self, path: &Path<'_>) -> Value {
        let steps: Vec<Value> = path.steps.iter().map(|step| self.step(step)).collect();
        let (from, _) = self.location(path.source);
        let mut rendered = json!({"cluster": self.cluster, "subject": path.subject, "steps": steps});
        if from != self.cluster {
            rendered["subjectCluster"] = from.into();
        }
        if let Some(proof) = &path.proof {
            rendered["grant"] = grant(self.cluster, self.cluster_view, proof);
        }
        rendered
    }

    fn step(&self, step: &Step<'_>) -> Value {
        let permission = |(permission, proof): &(Permission, Proof<'_>)| {
            let (cluster, view) = self.location(permission.source);
            let mut rendered = action_fields(&permission.action);
            rendered["grant"] = grant(cluster, view, proof);
            rendered
        };
        let mut rendered =
            json!({"type": step.kind, "rights": step.permissions.iter().map(permission).collect::<Vec<_>>()});
        if let Some(reached) = &step.reaches {
            rendered["reaches"] = json!(reached);
            let (cluster, _) = self.location(step.reached_source());
            if cluster != self.cluster {
                rendered["reachesCluster"] = cluster.into();
            }
        }
        rendered
    }
}

/// An action in the fields of a SubjectAccessReview.
fn action_fields(action: &Action) -> Value {
    let fields = match action {
        Action::Resource { verb, group, resource, subresource, namespace, name } => vec![
            ("verb", verb),
            ("group", group),
            ("resource", resource),
            ("subresource", subresource),
            ("namespace", namespace),
            ("name", name),
        ],
        Action::Path { verb, path } => vec![("verb", verb), ("path", path)],
    };
    let set_fields = fields.into_iter().filter(|(name, value)| *name == "group" || !value.is_empty());
    json!(set_fields.collect::<BTreeMap<_, _>>())
}

/// The state of a reviewed cluster. Its completeness depends on the caller's permissions and the cache alone; missing
/// roles are named only if the caller may list them.
pub(super) fn cluster_state(rules: &ClusterRules, scope: &Scope, missing: &[RoleBinding<'_>]) -> Value {
    let mut errors = Vec::new();
    let mut rendered = json!({"name": rules.cluster.as_str()});
    let hidden = rules.unlistable_resources(scope);
    let state = match &rules.state {
        RulesState::Unknown { reason } => {
            errors.push(reason.clone());
            "Unknown"
        }
        RulesState::Stale { reason, age_seconds } => {
            errors.push(reason.clone());
            if let Some(age) = age_seconds {
                rendered["ageSeconds"] = (*age).into();
            }
            if hidden.is_empty() { "Stale" } else { "Unknown" }
        }
        RulesState::Current if hidden.is_empty() => "Complete",
        RulesState::Current => "Unknown",
    };
    if !hidden.is_empty() && !matches!(rules.state, RulesState::Unknown { .. }) {
        errors.push(format!("you cannot list all {}", hidden.join(", ")));
    }
    let role_texts = missing.iter().take(MAX_NAMED_MISSING_ROLES).map(missing_role_text);
    errors.extend(role_texts);
    if let Some(remaining_count) = missing.len().checked_sub(MAX_NAMED_MISSING_ROLES).filter(|count| *count > 0) {
        errors.push(format!("{remaining_count} more bindings reference missing roles"));
    }
    rendered["state"] = state.into();
    if !errors.is_empty() {
        rendered["evaluationError"] = errors.join("; ").into();
    }
    rendered
}

/// The state of the control plane for paths into members, which may start in any of its namespaces. `None` if the caller
/// cannot see it.
pub(super) fn control_plane_state(rules: Option<&ClusterRules>) -> Value {
    let hidden =
        || json!({"name": CONTROL_PLANE, "state": "Unknown", "evaluationError": "you cannot list its RBAC objects"});
    rules.map_or_else(hidden, |rules| cluster_state(rules, &Scope::All, &[]))
}

fn missing_role_text(RoleBinding { namespace, name, role }: &RoleBinding<'_>) -> String {
    let binding = match *namespace {
        "" => format!("ClusterRoleBinding {name}"),
        namespace => format!("RoleBinding {namespace}/{name}"),
    };
    format!("{binding} references {} {:?}, which does not exist", role.kind, role.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[rstest::rstest]
    #[case::a_resource(
        Action::Resource {
            verb: "get".into(),
            group: String::new(),
            resource: "secrets".into(),
            subresource: String::new(),
            namespace: String::new(),
            name: String::new(),
        },
        json!({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]})
    )]
    #[case::a_url(
        Action::Path { verb: "get".into(), path: "/metrics".into() },
        json!({"verbs": ["*"], "nonResourceURLs": ["*"]})
    )]
    fn masters_are_allowed_everything(#[case] action: Action, #[case] rule: Value) {
        assert_eq!(grant_of_masters("m1", &action)["rule"], rule);
    }
}
