//! Objects of a cluster that a user may read, derived from the user's rules.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{PolicyRule, Rbac};
use crate::user::UserInfo;

/// Verbs that allow reading an object with a known name.
const GET_OR_LIST: &[&str] = &["get", "list"];
/// Verbs that allow reading all objects.
const LIST: &[&str] = &["list"];

/// How objects are read. RBAC distinguishes the two: `get` shows an object to callers who know its name, `list` reveals
/// the names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReadKind {
    /// A read of one object by a known name: `get` is sufficient.
    ByName,
    /// A read that reveals names: a list, a watch, a search, a count or a suggestion. Needs `list`; `get` shows only
    /// the objects that a rule names (`resourceNames`).
    Listing,
}

impl ReadKind {
    /// Verbs whose rules show all objects, not only those with a known name.
    fn verbs(self) -> &'static [&'static str] {
        match self {
            Self::ByName => GET_OR_LIST,
            Self::Listing => LIST,
        }
    }
}

/// Rules of a user, cluster-wide or in a namespace.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Grant {
    namespace: Option<String>,
    rules: Arc<[PolicyRule]>,
}

/// Names of the readable objects of a resource in a namespace.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ReadableNames {
    All,
    /// Only objects with these names.
    Named(BTreeSet<String>),
    Nothing,
}

/// Readable objects of a resource in all namespaces.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ReadableObjects {
    /// For cluster-scoped objects, and for namespaces without a separate entry.
    everywhere: ReadableNames,
    namespaces: BTreeMap<String, ReadableNames>,
}

impl ReadableObjects {
    /// The same readable objects in all namespaces.
    pub fn uniform(everywhere: ReadableNames) -> Self {
        Self { everywhere, namespaces: BTreeMap::new() }
    }

    /// Derives the readable objects from the grants of a user, in each namespace by [`ReadableNames::from_grants`].
    pub fn from_grants(grants: &[Grant], read_kind: ReadKind, group: &str, resource: &str) -> Self {
        let everywhere = ReadableNames::from_grants(grants, read_kind, group, resource, "");
        if everywhere == ReadableNames::All {
            return Self::uniform(everywhere);
        }
        let namespaces: BTreeSet<&str> = grants.iter().filter_map(|grant| grant.namespace.as_deref()).collect();
        let entry = |namespace: &str| {
            (namespace.to_owned(), ReadableNames::from_grants(grants, read_kind, group, resource, namespace))
        };
        Self { everywhere, namespaces: namespaces.into_iter().map(entry).collect() }
    }

    /// The [`ReadableObjects::namespace_limit`] of a user with these grants. Does not compute the readable objects, which would
    /// be slow for queries about many resources.
    pub fn namespace_limit_from_grants(
        grants: &[Grant],
        read_kind: ReadKind,
        group: &str,
        resource: &str,
    ) -> Option<BTreeSet<String>> {
        let is_readable = |rule: &PolicyRule| {
            rule.allows_any_verb(read_kind.verbs(), group, resource)
                || !rule.resource_names.is_empty() && rule.allows_any_verb(GET_OR_LIST, group, resource)
        };
        let mut limit = BTreeSet::new();
        for grant in grants.iter().filter(|grant| grant.rules.iter().any(is_readable)) {
            match &grant.namespace {
                // A `get` of a Namespace object is authorized in the namespace of its name, although the object is
                // cluster-scoped.
                Some(_) if (group, resource) == ("", "namespaces") => return None,
                Some(namespace) => {
                    limit.insert(namespace.clone());
                }
                None => return None,
            }
        }
        Some(limit)
    }

    /// All objects in some namespaces.
    pub fn from_namespaces(namespaces: impl IntoIterator<Item = String>) -> Self {
        let namespaces = namespaces.into_iter().map(|namespace| (namespace, ReadableNames::All)).collect();
        Self { everywhere: ReadableNames::Nothing, namespaces }
    }

    /// True if every object may be read.
    pub fn is_everything(&self) -> bool {
        self.everywhere == ReadableNames::All
            && self.namespaces.values().all(|readable| *readable == ReadableNames::All)
    }

    /// True if an object may be read; the namespace of a cluster-scoped object is empty.
    pub fn allows(&self, namespace: &str, name: &str) -> bool {
        self.in_namespace(namespace).contains(name)
    }

    /// Readable objects in a namespace.
    pub fn in_namespace(&self, namespace: &str) -> &ReadableNames {
        self.namespaces.get(namespace).unwrap_or(&self.everywhere)
    }

    /// Readable cluster-scoped objects, and objects in namespaces without a separate entry.
    pub fn everywhere(&self) -> &ReadableNames {
        &self.everywhere
    }

    /// Readable objects in namespaces with a separate entry.
    pub fn namespaces(&self) -> impl Iterator<Item = (&str, &ReadableNames)> {
        self.namespaces.iter().map(|(namespace, readable)| (namespace.as_str(), readable))
    }

    /// The only namespaces in which objects may be read; None if there is no such limit.
    pub fn namespace_limit(&self) -> Option<BTreeSet<String>> {
        let readable_namespaces = self.namespaces.iter().filter(|(_, readable)| **readable != ReadableNames::Nothing);
        (self.everywhere == ReadableNames::Nothing)
            .then(|| readable_namespaces.map(|(namespace, _)| namespace.clone()).collect())
    }
}

impl Rbac {
    /// All grants of a user. Missing roles grant nothing.
    pub fn grants(&self, user: &UserInfo) -> Vec<Grant> {
        let mut grants = Vec::new();
        for (namespace, bindings) in &self.bindings {
            for binding in bindings.values() {
                if !binding.subjects.iter().any(|subject| subject.matches_user(user, namespace)) {
                    continue;
                }
                if let Ok(rules) = self.role_rules(&binding.role, namespace) {
                    let namespace = (!namespace.is_empty()).then(|| namespace.clone());
                    grants.push(Grant { namespace, rules: Arc::clone(rules) });
                }
            }
        }
        grants
    }
}

impl ReadableNames {
    /// The objects that a user with these grants may read in this way: all, or some by name (`metadata.name=`). The
    /// namespace of cluster-scoped objects is empty.
    pub fn from_grants(grants: &[Grant], read_kind: ReadKind, group: &str, resource: &str, namespace: &str) -> Self {
        let mut named = BTreeSet::new();
        for grant in grants {
            let rules = grant.rules.iter();
            match grant.namespace.as_deref() {
                // The rules of a RoleBinding apply in its namespace and not to cluster-scoped objects.
                Some(grant_namespace) if grant_namespace != namespace => {
                    // The exception is the Namespace object: a `get` of it is authorized in the namespace of its name.
                    if (group, resource, namespace) == ("", "namespaces", "")
                        && rules.clone().any(|rule| {
                            rule.allows_any_verb(&["get"], group, resource) && rule.allows_name(grant_namespace)
                        })
                    {
                        named.insert(grant_namespace.to_owned());
                    }
                }
                _ => {
                    for rule in rules.filter(|rule| rule.allows_any_verb(GET_OR_LIST, group, resource)) {
                        // A list is a request with the empty name, which `resourceNames` may contain.
                        let verbs = if rule.resource_names.is_empty() { read_kind.verbs() } else { LIST };
                        if rule.allows_name("") && rule.allows_any_verb(verbs, group, resource) {
                            return Self::All;
                        }
                        named.extend(rule.resource_names.iter().cloned());
                    }
                }
            }
        }
        if named.is_empty() { Self::Nothing } else { Self::Named(named) }
    }

    /// The cluster-scoped objects for which a user with these grants may `get` a subresource.
    pub fn for_subresource(grants: &[Grant], group: &str, resource: &str, subresource: &str) -> Self {
        let mut named = BTreeSet::new();
        let everywhere = grants.iter().filter(|grant| grant.namespace.is_none());
        for rule in everywhere.flat_map(|grant| grant.rules.iter()) {
            if !rule.allows_get_of_subresource(group, resource, subresource) {
                continue;
            }
            if rule.resource_names.is_empty() {
                return Self::All;
            }
            named.extend(rule.resource_names.iter().cloned());
        }
        if named.is_empty() { Self::Nothing } else { Self::Named(named) }
    }

    /// True if the set contains an object of this name.
    pub fn contains(&self, name: &str) -> bool {
        match self {
            Self::All => true,
            Self::Named(names) => names.contains(name),
            Self::Nothing => false,
        }
    }
}

impl Grant {
    /// True if a rule of the grant covers objects of at least one resource.
    pub fn covers_objects(&self) -> bool {
        self.rules.iter().any(PolicyRule::covers_objects)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::json;

    fn rbac() -> Rbac {
        let mut rbac = Rbac::default();
        let mut role = |namespace, name, rules| {
            rbac.put_role(namespace, name, serde_json::from_value(json!({"rules": rules})).expect("a role"));
        };
        let view = json!([{"verbs": ["get", "list"], "apiGroups": ["", "apps"], "resources": ["pods", "deployments"]}]);
        role("", "view", view);
        role("", "admin", json!([{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}]));
        let named_config_map =
            json!([{"verbs": ["get"], "apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["app"]}]);
        role("shop", "one", named_config_map);
        role("shop", "writer", json!([{"verbs": ["create"], "apiGroups": [""], "resources": ["secrets"]}]));
        let get_namespace = json!([{"verbs": ["get"], "apiGroups": [""], "resources": ["namespaces"]}]);
        role("shop", "own", get_namespace);
        let blank =
            json!([{"verbs": ["list"], "apiGroups": [""], "resources": ["services"], "resourceNames": ["", "a"]}]);
        role("shop", "blank", blank);
        role("shop", "proxy", json!([{"verbs": ["get"], "apiGroups": [""], "resources": ["services/proxy"]}]));
        let mut bind = |namespace, name, kind, role, subjects| {
            let binding = json!({"roleRef": {"kind": kind, "name": role}, "subjects": subjects});
            rbac.put_binding(namespace, name, serde_json::from_value(binding).expect("a binding"));
        };
        let ann = json!([{"kind": "User", "name": "ann"}]);
        bind("shop", "ann-views", "ClusterRole", "view", ann.clone());
        bind("shop", "ann-one", "Role", "one", ann.clone());
        bind("shop", "ann-writes", "Role", "writer", ann.clone());
        bind("shop", "ann-own", "Role", "own", ann.clone());
        bind("shop", "bea-blank", "Role", "blank", json!([{"kind": "User", "name": "bea"}]));
        bind("shop", "ann-proxy", "Role", "proxy", ann.clone());
        bind("ops", "robot", "ClusterRole", "view", json!([{"kind": "ServiceAccount", "name": "robot"}]));
        bind("", "admins", "ClusterRole", "admin", json!([{"kind": "Group", "name": "admins"}]));
        bind("", "dangling", "ClusterRole", "gone", ann);
        bind("open", "all", "ClusterRole", "view", json!([{"kind": "Group", "name": "system:authenticated"}]));
        rbac
    }

    #[rstest]
    #[case::in_the_namespace_of_the_binding("ann", "", "", "pods", "shop", ReadableNames::All)]
    #[case::in_another_namespace("ann", "", "", "pods", "ops", ReadableNames::Nothing)]
    #[case::cluster_scoped("ann", "", "", "nodes", "", ReadableNames::Nothing)]
    #[case::named("ann", "", "", "configmaps", "shop", ReadableNames::Named(BTreeSet::from(["app".to_owned()])))]
    #[case::the_namespace_object("ann", "", "", "namespaces", "", ReadableNames::Named(BTreeSet::from(["shop".to_owned()])))]
    #[case::empty_resource_name("bea", "", "", "services", "shop", ReadableNames::All)]
    #[case::write_only("ann", "", "", "secrets", "shop", ReadableNames::Nothing)]
    #[case::subresource_only("ann", "", "", "services", "shop", ReadableNames::Nothing)]
    #[case::other_group("ann", "", "batch", "pods", "shop", ReadableNames::Nothing)]
    #[case::by_group("bob", "admins", "batch", "jobs", "ops", ReadableNames::All)]
    #[case::service_account("system:serviceaccount:ops:robot", "", "", "pods", "ops", ReadableNames::All)]
    #[case::service_account_of_another_namespace(
        "system:serviceaccount:shop:robot",
        "",
        "",
        "pods",
        "ops",
        ReadableNames::Nothing
    )]
    #[case::authenticated("eve", "", "", "pods", "open", ReadableNames::All)]
    #[case::anonymous("system:anonymous", "", "", "pods", "open", ReadableNames::Nothing)]
    fn readable_objects_follow_from_the_bindings(
        #[case] user: &str,
        #[case] group: &str,
        #[case] api_group: &str,
        #[case] resource: &str,
        #[case] namespace: &str,
        #[case] expected: ReadableNames,
    ) {
        let grants = rbac().grants(&UserInfo::new(user, [group]).with_implied_groups());
        assert_eq!(ReadableNames::from_grants(&grants, ReadKind::Listing, api_group, resource, namespace), expected);
    }

    #[rstest]
    #[case::unnamed(json!([{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}]), ReadableNames::All, ReadableNames::Nothing)]
    #[case::listed(json!([{"verbs": ["list"], "apiGroups": [""], "resources": ["pods"]}]), ReadableNames::All, ReadableNames::All)]
    #[case::watched(json!([{"verbs": ["watch"], "apiGroups": [""], "resources": ["pods"]}]), ReadableNames::Nothing, ReadableNames::Nothing)]
    #[case::named(
        json!([{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"], "resourceNames": ["a"]}]),
        ReadableNames::Named(BTreeSet::from(["a".to_owned()])),
        ReadableNames::Named(BTreeSet::from(["a".to_owned()]))
    )]
    #[case::named_and_unnamed(
        json!([{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]},
            {"verbs": ["get"], "apiGroups": [""], "resources": ["pods"], "resourceNames": ["a"]}]),
        ReadableNames::All,
        ReadableNames::Named(BTreeSet::from(["a".to_owned()]))
    )]
    #[case::both_by_different_rules(
        json!([{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]},
            {"verbs": ["list"], "apiGroups": ["*"], "resources": ["*"]}]),
        ReadableNames::All,
        ReadableNames::All
    )]
    fn get_permission_does_not_allow_lists(
        #[case] rules: serde_json::Value,
        #[case] by_name: ReadableNames,
        #[case] listing: ReadableNames,
    ) {
        let mut rbac = Rbac::default();
        rbac.put_role("shop", "role", serde_json::from_value(json!({"rules": rules})).expect("a role"));
        let binding =
            json!({"roleRef": {"kind": "Role", "name": "role"}, "subjects": [{"kind": "User", "name": "ann"}]});
        rbac.put_binding("shop", "binding", serde_json::from_value(binding).expect("a binding"));
        let grants = rbac.grants(&UserInfo::new("ann", [""]));
        for (read_kind, expected) in [(ReadKind::ByName, by_name), (ReadKind::Listing, listing)] {
            assert_eq!(ReadableNames::from_grants(&grants, read_kind, "", "pods", "shop"), expected, "{read_kind:?}");
            let readable_objects = ReadableObjects::from_grants(&grants, read_kind, "", "pods");
            assert_eq!(
                ReadableObjects::namespace_limit_from_grants(&grants, read_kind, "", "pods"),
                readable_objects.namespace_limit(),
                "{read_kind:?}"
            );
            assert_eq!(readable_objects.allows("shop", "a"), expected.contains("a"), "{read_kind:?}");
        }
    }

    #[rstest]
    #[case::all(json!([{"verbs": ["*"], "apiGroups": ["cluster.karmada.io"], "resources": ["clusters/proxy"]}]), ReadableNames::All)]
    #[case::named(
        json!([{"verbs": ["get"], "apiGroups": ["cluster.karmada.io"], "resources": ["clusters/proxy"], "resourceNames": ["m1"]}]),
        ReadableNames::Named(BTreeSet::from(["m1".to_owned()]))
    )]
    #[case::the_cluster_itself(
        json!([{"verbs": ["*"], "apiGroups": ["cluster.karmada.io"], "resources": ["clusters"]}]),
        ReadableNames::Nothing
    )]
    #[case::write_only(
        json!([{"verbs": ["create"], "apiGroups": ["cluster.karmada.io"], "resources": ["clusters/proxy"]}]),
        ReadableNames::Nothing
    )]
    #[case::everything(json!([{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}]), ReadableNames::All)]
    fn subresources_need_rules_of_their_own(#[case] rules: serde_json::Value, #[case] expected: ReadableNames) {
        for (namespace, kind) in [("", "ClusterRole"), ("shop", "Role")] {
            let mut rbac = Rbac::default();
            rbac.put_role(namespace, "role", serde_json::from_value(json!({"rules": rules.clone()})).expect("a role"));
            let subjects = json!([{"kind": "User", "name": "ann"}]);
            let binding = json!({"roleRef": {"kind": kind, "name": "role"}, "subjects": subjects});
            rbac.put_binding(namespace, "binding", serde_json::from_value(binding).expect("a binding"));
            let grants = rbac.grants(&UserInfo::new("ann", [""]));
            // Clusters are cluster-scoped.
            let expected = if namespace.is_empty() { expected.clone() } else { ReadableNames::Nothing };
            let readable = ReadableNames::for_subresource(&grants, "cluster.karmada.io", "clusters", "proxy");
            assert_eq!(readable, expected, "{kind}");
        }
    }

    #[test]
    fn readable_objects_equal_those_of_each_namespace() {
        let rbac = rbac();
        let robot = "system:serviceaccount:ops:robot";
        for (user, groups) in
            [("ann", ""), ("bea", ""), ("ann", "admins"), (robot, ""), ("eve", "system:authenticated")]
        {
            let grants = rbac.grants(&UserInfo::new(user, [groups]));
            for (group, resource) in
                [("", "pods"), ("apps", "deployments"), ("", "configmaps"), ("", "services"), ("", "namespaces")]
            {
                let readable_objects = ReadableObjects::from_grants(&grants, ReadKind::ByName, group, resource);
                if resource != "namespaces" {
                    assert_eq!(
                        ReadableObjects::namespace_limit_from_grants(&grants, ReadKind::ByName, group, resource),
                        readable_objects.namespace_limit(),
                        "{user} {group}/{resource}"
                    );
                }
                for namespace in ["", "shop", "ops", "open", "else"] {
                    for name in ["app", "a", "shop", "other"] {
                        let expected =
                            match ReadableNames::from_grants(&grants, ReadKind::ByName, group, resource, namespace) {
                                ReadableNames::All => true,
                                ReadableNames::Named(names) => names.contains(name),
                                ReadableNames::Nothing => false,
                            };
                        let context = format!("{user} {groups} {group}/{resource} {namespace}/{name}");
                        // Namespace objects are cluster-scoped.
                        if resource != "namespaces" || namespace.is_empty() {
                            assert_eq!(readable_objects.allows(namespace, name), expected, "{context}");
                            assert!(
                                !expected
                                    || readable_objects.namespace_limit().is_none_or(|limit| limit.contains(namespace)),
                                "{context}"
                            );
                        }
                    }
                }
            }
        }
        assert_eq!(
            ReadableObjects::from_grants(&rbac.grants(&UserInfo::new("ann", [""])), ReadKind::ByName, "", "pods")
                .namespace_limit(),
            Some(["shop".to_owned()].into())
        );
    }
}
