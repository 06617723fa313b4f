//! Rules as they would be without some RBAC objects.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::access::VisibleRbac;
use super::{Aggregation, PolicyRule, Rbac, StoredRole};
use crate::selector::label_selector_matches;

/// Kinds of RBAC objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ObjectKind {
    Role,
    ClusterRole,
    RoleBinding,
    ClusterRoleBinding,
}

/// Kind, namespace and name of an RBAC object.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectName {
    pub kind: ObjectKind,
    /// Empty for cluster-scoped kinds.
    pub namespace: String,
    pub name: String,
}

impl ObjectKind {
    pub const ALL: [Self; 4] = [Self::Role, Self::ClusterRole, Self::RoleBinding, Self::ClusterRoleBinding];

    /// The kind with this name, plural or singular, in lower case.
    pub fn from_resource(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| name == kind.resource() || name == kind.singular())
    }

    fn singular(self) -> &'static str {
        match self {
            Self::Role => "role",
            Self::ClusterRole => "clusterrole",
            Self::RoleBinding => "rolebinding",
            Self::ClusterRoleBinding => "clusterrolebinding",
        }
    }

    /// Plural of the kind.
    pub fn resource(self) -> &'static str {
        match self {
            Self::Role => "roles",
            Self::ClusterRole => "clusterroles",
            Self::RoleBinding => "rolebindings",
            Self::ClusterRoleBinding => "clusterrolebindings",
        }
    }

    pub fn is_namespaced(self) -> bool {
        matches!(self, Self::Role | Self::RoleBinding)
    }
}

impl fmt::Display for ObjectKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Role => "Role",
            Self::ClusterRole => "ClusterRole",
            Self::RoleBinding => "RoleBinding",
            Self::ClusterRoleBinding => "ClusterRoleBinding",
        })
    }
}

/// `RoleBinding shop/web`
impl fmt::Display for ObjectName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.namespace.as_str() {
            "" => write!(formatter, "{} {}", self.kind, self.name),
            namespace => write!(formatter, "{} {namespace}/{}", self.kind, self.name),
        }
    }
}

impl Rbac {
    /// True if the object exists.
    pub fn contains(&self, object: &ObjectName) -> bool {
        match object.kind {
            ObjectKind::Role | ObjectKind::ClusterRole => {
                self.roles.get(&object.namespace).is_some_and(|roles| roles.contains_key(&object.name))
            }
            ObjectKind::RoleBinding | ObjectKind::ClusterRoleBinding => {
                self.bindings.get(&object.namespace).is_some_and(|bindings| bindings.contains_key(object.name.as_str()))
            }
        }
    }

    fn aggregation(&self, name: &str) -> Option<&Arc<Aggregation>> {
        self.roles.get("")?.get(name)?.aggregation.as_ref()
    }

    /// The ClusterRoles that an aggregated ClusterRole selects, in the order of their names.
    fn aggregated_sources<'r>(&'r self, name: &str, aggregation: &Aggregation) -> Vec<(&'r str, &'r StoredRole)> {
        let roles = self.roles.get("").into_iter().flatten();
        let is_source = |(other, role): &(&String, &StoredRole)| {
            *other != name && aggregation.selects(role.aggregation.as_deref().unwrap_or(&Aggregation::default()))
        };
        let mut sources: Vec<_> = roles.filter(is_source).map(|(name, role)| (name.as_str(), role)).collect();
        sources.sort_unstable_by_key(|(name, _)| *name);
        sources
    }

    /// Names of the selected ClusterRoles that contain a rule of an aggregated ClusterRole; empty for other roles.
    pub(super) fn sources(&self, name: &str, rule: &PolicyRule) -> Vec<&str> {
        let Some(aggregation) = self.aggregation(name).filter(|aggregation| !aggregation.selectors.is_empty()) else {
            return Vec::new();
        };
        let sources = self.aggregated_sources(name, aggregation).into_iter();
        sources.filter(|(_, source)| source.rules.contains(rule)).map(|(name, _)| name).collect()
    }
}

impl VisibleRbac<'_> {
    /// The rules without these objects. An aggregated ClusterRole loses the rules whose only sources are removed. Only
    /// roles that the caller may list are changed or read, so that the result does not reveal rules of other roles.
    pub fn without_objects(&self, removed: &[ObjectName]) -> Rbac {
        let mut remaining = self.rbac.clone();
        let mut changed_roles = BTreeMap::new();
        for object in removed {
            match object.kind {
                ObjectKind::Role => remaining.remove_role(&object.namespace, &object.name),
                ObjectKind::ClusterRole => {
                    let aggregation = self.rbac.aggregation(&object.name).cloned().unwrap_or_default();
                    changed_roles.insert(object.name.clone(), aggregation);
                    remaining.remove_role("", &object.name);
                }
                ObjectKind::RoleBinding | ObjectKind::ClusterRoleBinding => {
                    remaining.remove_binding(&object.namespace, &object.name);
                }
            }
        }
        self.remove_rules_without_source(&mut remaining, changed_roles);
        remaining
    }

    /// Removes from aggregated roles the rules whose sources have all been removed, until no role changes. `changed_roles`
    /// contains the ClusterRoles that were removed or have lost rules. Each change removes a rule, so the loop ends.
    fn remove_rules_without_source(&self, remaining: &mut Rbac, mut changed_roles: BTreeMap<String, Arc<Aggregation>>) {
        while let Some((_, changed_role)) = changed_roles.pop_first() {
            let cluster_roles = remaining.roles.get("").into_iter().flatten();
            let aggregating_roles: Vec<(String, Arc<Aggregation>)> = cluster_roles
                .filter_map(|(name, role)| Some((name, role.aggregation.as_ref()?)))
                .filter(|(name, aggregation)| aggregation.selects(&changed_role) && self.is_cluster_role_visible(name))
                .map(|(name, aggregation)| (name.clone(), Arc::clone(aggregation)))
                .collect();
            for (name, aggregation) in aggregating_roles {
                let rules = self.remaining_rules(remaining, &name, &aggregation);
                let role = remaining.roles.get_mut("").and_then(|roles| roles.get_mut(&name));
                let Some(role) = role.filter(|role| role.rules.len() != rules.len()) else { continue };
                role.rules = rules.into();
                changed_roles.insert(name, aggregation);
            }
        }
    }

    /// The rules of an aggregated role, except for those whose visible sources are all removed. Rules that never had a
    /// visible source are kept.
    fn remaining_rules(&self, remaining: &Rbac, name: &str, aggregation: &Aggregation) -> Vec<PolicyRule> {
        let before = self.visible_sources(self.rbac, name, aggregation);
        let after = self.visible_sources(remaining, name, aggregation);
        let role = remaining.roles.get("").and_then(|roles| roles.get(name));
        let rules = role.map(|role| &*role.rules).unwrap_or_default();
        rules.iter().filter(|rule| is_rule_of(rule, &after) || !is_rule_of(rule, &before)).cloned().collect()
    }

    fn visible_sources<'a>(&self, rbac: &'a Rbac, name: &str, aggregation: &Aggregation) -> Vec<&'a StoredRole> {
        let sources = rbac.aggregated_sources(name, aggregation).into_iter();
        sources.filter(|(source, _)| self.is_cluster_role_visible(source)).map(|(_, role)| role).collect()
    }

    fn is_cluster_role_visible(&self, name: &str) -> bool {
        (self.is_visible)(ObjectKind::ClusterRole, "", name)
    }
}

fn is_rule_of(rule: &PolicyRule, sources: &[&StoredRole]) -> bool {
    sources.iter().any(|source| source.rules.contains(rule))
}

impl Aggregation {
    /// True if a ClusterRole with this aggregation has the rules of a ClusterRole with the aggregation `other`.
    fn selects(&self, other: &Self) -> bool {
        self.selectors.iter().any(|selector| label_selector_matches(selector, &other.labels))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rbac::Action;
    use crate::user::UserInfo;
    use serde_json::{Value, json};

    fn rule(resource: &str) -> Value {
        json!({"apiGroups": [""], "resources": [resource], "verbs": ["get"]})
    }

    fn aggregation_rule(label: &str) -> Value {
        json!({"clusterRoleSelectors": [{"matchLabels": {label: "true"}}]})
    }

    /// `edit` aggregates `view` and `writers`, `view` aggregates `pods` and `more`, as the default roles do.
    fn snapshot() -> Rbac {
        let mut rbac = Rbac::default();
        let mut role = |name: &str, label: &str, rules: Value, aggregation: Value| {
            let role = json!({"metadata": {"labels": {label: "true"}}, "rules": rules, "aggregationRule": aggregation});
            rbac.put_role("", name, serde_json::from_value(role).unwrap());
        };
        role("pods", "to-view", json!([rule("pods")]), Value::Null);
        role("more", "to-view", json!([rule("pods"), rule("services")]), Value::Null);
        role("view", "to-edit", json!([rule("pods"), rule("services")]), aggregation_rule("to-view"));
        role("writers", "to-edit", json!([rule("secrets")]), Value::Null);
        role("edit", "none", json!([rule("pods"), rule("services"), rule("secrets")]), aggregation_rule("to-edit"));
        let binding =
            json!({"roleRef": {"kind": "ClusterRole", "name": "edit"}, "subjects": [{"kind": "User", "name": "ann"}]});
        rbac.put_binding("", "ann", serde_json::from_value(binding).unwrap());
        rbac
    }

    #[rstest::rstest]
    #[case::nothing(&[], "pods services secrets")]
    #[case::a_source(&[(ObjectKind::ClusterRole, "more")], "pods secrets")]
    #[case::a_rule_of_two_sources(&[(ObjectKind::ClusterRole, "pods")], "pods services secrets")]
    #[case::both_sources(&[(ObjectKind::ClusterRole, "pods"), (ObjectKind::ClusterRole, "more")], "secrets")]
    #[case::an_aggregated_source(&[(ObjectKind::ClusterRole, "view")], "secrets")]
    #[case::the_role(&[(ObjectKind::ClusterRole, "edit")], "")]
    #[case::the_binding(&[(ObjectKind::ClusterRoleBinding, "ann")], "")]
    #[case::another_kind(&[(ObjectKind::ClusterRole, "ann")], "pods services secrets")]
    fn removed_objects_grant_nothing(#[case] removed: &[(ObjectKind, &str)], #[case] expected: &str) {
        let removed: Vec<ObjectName> = removed.iter().map(|(kind, name)| cluster_scoped(*kind, name)).collect();
        assert_eq!(allowed_without(&snapshot(), &|_, _, _| true, &removed), expected);
    }

    /// Hidden roles are ignored: a rule that only a hidden role has stays in the aggregated role, and a rule that a
    /// removed role and a hidden one have is removed.
    #[rstest::rstest]
    #[case::another_source_of_a_rule("pods", "more", "secrets")]
    #[case::the_only_source_of_a_rule("more", "pods", "services secrets")]
    #[case::an_aggregated_role("view", "pods", "pods services secrets")]
    fn hidden_roles_are_ignored(#[case] hidden: &str, #[case] removed: &str, #[case] expected: &str) {
        let mut rbac = snapshot();
        let is_visible = |kind: ObjectKind, _: &str, name: &str| (kind, name) != (ObjectKind::ClusterRole, hidden);
        let removed = [cluster_scoped(ObjectKind::ClusterRole, removed)];
        assert_eq!(allowed_without(&rbac, &is_visible, &removed), expected);
        rbac.remove_role("", hidden);
        assert_eq!(allowed_without(&rbac, &is_visible, &removed), expected, "the result reveals the hidden role");
    }

    fn cluster_scoped(kind: ObjectKind, name: &str) -> ObjectName {
        ObjectName { kind, namespace: String::new(), name: name.to_owned() }
    }

    /// The resources that ann may still get.
    fn allowed_without(
        rbac: &Rbac,
        is_visible: &(dyn Fn(ObjectKind, &str, &str) -> bool + Sync),
        removed: &[ObjectName],
    ) -> String {
        let remaining = VisibleRbac { rbac, is_visible }.without_objects(removed);
        let ann = UserInfo::new("ann", ["staff"]);
        let is_allowed = |resource: &&str| {
            let action = Action::Resource {
                verb: "get".into(),
                group: String::new(),
                resource: (*resource).into(),
                subresource: String::new(),
                namespace: String::new(),
                name: String::new(),
            };
            matches!(remaining.authorize(&ann, &action), crate::rbac::Decision::Allowed { .. })
        };
        let allowed: Vec<&str> = ["pods", "services", "secrets"].into_iter().filter(is_allowed).collect();
        allowed.join(" ")
    }

    #[rstest::rstest]
    #[case("rolebindings", Some(ObjectKind::RoleBinding))]
    #[case("clusterrole", Some(ObjectKind::ClusterRole))]
    #[case("pods", None)]
    fn kinds_have_names(#[case] name: &str, #[case] expected: Option<ObjectKind>) {
        assert_eq!(ObjectKind::from_resource(name), expected);
    }

    #[rstest::rstest]
    #[case(ObjectKind::RoleBinding, "shop", "RoleBinding shop/web")]
    #[case(ObjectKind::ClusterRole, "", "ClusterRole web")]
    fn names_are_shown(#[case] kind: ObjectKind, #[case] namespace: &str, #[case] expected: &str) {
        let object = ObjectName { kind, namespace: namespace.into(), name: "web".into() };
        assert_eq!(object.to_string(), expected);
    }

    #[test]
    fn rules_have_sources() {
        let rbac = snapshot();
        let pods: PolicyRule = serde_json::from_value(rule("pods")).unwrap();
        assert_eq!(rbac.sources("view", &pods), ["more", "pods"]);
        assert_eq!(rbac.sources("edit", &pods), ["view"]);
        assert!(rbac.sources("pods", &pods).is_empty() && rbac.sources("nosuch", &pods).is_empty());
    }
}
