//! RBAC as far as reading goes. Pure.
//!
//! Kubernetes' rules: a binding grants a role's rules to its subjects, a RoleBinding only in its namespace; `*` matches
//! anything; `resourceNames` narrow a rule to single objects, which then may be read but not listed by others.

use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Who asks, as the front end authenticated them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Caller {
    pub name: String,
    pub groups: Vec<String>,
}

const MASTERS: &str = "system:masters";
const AUTHENTICATED: &str = "system:authenticated";
const UNAUTHENTICATED: &str = "system:unauthenticated";
const ANONYMOUS: &str = "system:anonymous";

impl Caller {
    pub fn new(name: impl Into<String>, groups: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self { name: name.into(), groups: groups.into_iter().map(Into::into).collect() }
    }

    /// The process itself: sees everything.
    pub fn system() -> Self {
        Self::new("system:crowsnest", [MASTERS])
    }

    pub fn is_master(&self) -> bool {
        self.groups.iter().any(|group| group == MASTERS)
    }

    /// Members add these groups themselves to whoever is impersonated.
    fn has_group(&self, group: &str) -> bool {
        match group {
            AUTHENTICATED => self.name != ANONYMOUS,
            UNAUTHENTICATED => self.name == ANONYMOUS,
            _ => self.groups.iter().any(|own| own == group),
        }
    }
}

/// What may be read of a resource in a namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    All,
    /// Only these names.
    Named(BTreeSet<String>),
    Nothing,
}

#[derive(Debug, Clone, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
#[derive(Default)]
pub(super) struct PolicyRule {
    pub verbs: Vec<String>,
    pub api_groups: Option<Vec<String>>,
    pub resources: Option<Vec<String>>,
    pub resource_names: Option<Vec<String>>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Role {
    #[serde(default)]
    pub rules: Option<Vec<PolicyRule>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Binding {
    role_ref: RoleRef,
    #[serde(default)]
    subjects: Option<Vec<Subject>>,
}

#[derive(Debug, Deserialize)]
struct RoleRef {
    kind: String,
    name: String,
}

#[derive(Debug, Deserialize)]
struct Subject {
    kind: String,
    name: String,
    #[serde(default)]
    namespace: Option<String>,
}

impl Subject {
    /// `home` is the binding's namespace.
    fn is(&self, caller: &Caller, home: &str) -> bool {
        match self.kind.as_str() {
            "User" => self.name == caller.name,
            "Group" => caller.has_group(&self.name),
            "ServiceAccount" => {
                let namespace = self.namespace.as_deref().filter(|n| !n.is_empty()).unwrap_or(home);
                caller.name.strip_prefix("system:serviceaccount:")
                    == Some(format!("{namespace}:{}", self.name).as_str())
            }
            _ => false,
        }
    }
}

/// (namespace, name); the namespace is empty for cluster-wide ones.
type Key = (String, String);

/// The RBAC objects of one cluster.
#[derive(Debug, Default)]
pub(super) struct ClusterRules {
    pub roles: BTreeMap<Key, Arc<Vec<PolicyRule>>>,
    pub bindings: BTreeMap<Key, Binding>,
}

/// Rules one caller has, everywhere or in a namespace.
#[derive(Debug, Clone)]
pub struct Grant {
    namespace: Option<String>,
    rules: Arc<Vec<PolicyRule>>,
}

impl ClusterRules {
    pub fn grants(&self, caller: &Caller) -> Vec<Grant> {
        let mut grants = Vec::new();
        for ((namespace, _), binding) in &self.bindings {
            if !binding.subjects.iter().flatten().any(|subject| subject.is(caller, namespace)) {
                continue;
            }
            let role_namespace = if binding.role_ref.kind == "Role" { namespace.clone() } else { String::new() };
            if let Some(rules) = self.roles.get(&(role_namespace, binding.role_ref.name.clone())) {
                let namespace = (!namespace.is_empty()).then(|| namespace.clone());
                grants.push(Grant { namespace, rules: Arc::clone(rules) });
            }
        }
        grants
    }
}

fn has(list: &Option<Vec<String>>, wanted: &str) -> bool {
    list.iter().flatten().any(|entry| entry == "*" || entry == wanted)
}

/// `list` shows everything; `get` without names does, too, one by one; with names only those.
pub(super) fn verdict(grants: &[Grant], group: &str, resource: &str, namespace: &str) -> Verdict {
    let mut named = BTreeSet::new();
    for grant in grants {
        // A RoleBinding's rules hold in its namespace only, and never for cluster-scoped objects.
        if grant.namespace.as_deref().is_some_and(|own| own != namespace) {
            continue;
        }
        for rule in grant.rules.iter() {
            let reads = rule.verbs.iter().any(|verb| matches!(verb.as_str(), "*" | "get" | "list"));
            if !reads || !has(&rule.api_groups, group) || !has(&rule.resources, resource) {
                continue;
            }
            match rule.resource_names.as_deref() {
                None | Some([]) => return Verdict::All,
                Some(names) => named.extend(names.iter().cloned()),
            }
        }
    }
    if named.is_empty() { Verdict::Nothing } else { Verdict::Named(named) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::json;

    fn rules() -> ClusterRules {
        let role = |value| Arc::new(serde_json::from_value::<Role>(json!({"rules": value})).unwrap().rules.unwrap());
        let key = |namespace: &str, name: &str| (namespace.to_owned(), name.to_owned());
        let binding = |kind: &str, role: &str, subjects| {
            let value = json!({"roleRef": {"kind": kind, "name": role}, "subjects": subjects});
            serde_json::from_value::<Binding>(value).unwrap()
        };
        let mut rules = ClusterRules::default();
        let view = json!([{"verbs": ["get", "list"], "apiGroups": ["", "apps"], "resources": ["pods", "deployments"]}]);
        rules.roles.insert(key("", "view"), role(view));
        rules.roles.insert(key("", "admin"), role(json!([{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}])));
        let one = json!([{"verbs": ["get"], "apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["app"]}]);
        rules.roles.insert(key("shop", "one"), role(one));
        let writer = json!([{"verbs": ["create"], "apiGroups": [""], "resources": ["secrets"]}]);
        rules.roles.insert(key("shop", "writer"), role(writer));
        let ann = json!([{"kind": "User", "name": "ann"}]);
        rules.bindings.insert(key("shop", "ann-views"), binding("ClusterRole", "view", ann.clone()));
        rules.bindings.insert(key("shop", "ann-one"), binding("Role", "one", ann.clone()));
        rules.bindings.insert(key("shop", "ann-writes"), binding("Role", "writer", ann));
        let robot = json!([{"kind": "ServiceAccount", "name": "robot"}]);
        rules.bindings.insert(key("ops", "robot"), binding("ClusterRole", "view", robot));
        let group = json!([{"kind": "Group", "name": "admins"}]);
        rules.bindings.insert(key("", "admins"), binding("ClusterRole", "admin", group));
        rules
            .bindings
            .insert(key("", "dangling"), binding("ClusterRole", "gone", json!([{"kind": "User", "name": "ann"}])));
        rules
    }

    #[rstest]
    #[case::in_her_namespace("ann", "", "", "pods", "shop", Verdict::All)]
    #[case::elsewhere("ann", "", "", "pods", "ops", Verdict::Nothing)]
    #[case::cluster_scoped("ann", "", "", "nodes", "", Verdict::Nothing)]
    #[case::named("ann", "", "", "configmaps", "shop", Verdict::Named(BTreeSet::from(["app".to_owned()])))]
    #[case::write_only("ann", "", "", "secrets", "shop", Verdict::Nothing)]
    #[case::other_group("ann", "", "batch", "pods", "shop", Verdict::Nothing)]
    #[case::by_group("bob", "admins", "batch", "jobs", "ops", Verdict::All)]
    #[case::service_account("system:serviceaccount:ops:robot", "", "", "pods", "ops", Verdict::All)]
    #[case::namesake("system:serviceaccount:shop:robot", "", "", "pods", "ops", Verdict::Nothing)]
    fn readers_see_what_their_bindings_say(
        #[case] user: &str,
        #[case] group: &str,
        #[case] api_group: &str,
        #[case] resource: &str,
        #[case] namespace: &str,
        #[case] expected: Verdict,
    ) {
        let grants = rules().grants(&Caller::new(user, [group]));
        assert_eq!(verdict(&grants, api_group, resource, namespace), expected);
    }
}
