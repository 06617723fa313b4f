//! A caller's permissions as terms: the caller may list an object if the object has one of them.
//!
//! Used by engines that filter by a query instead of deciding scope by scope. Within the given collections the terms allow
//! exactly what [`CallerPermissions::readable_names`] allows. A general term replaces those it covers: a caller who may list a whole
//! cluster has one term for it.

use super::CallerPermissions;
use crate::document::columns::scope_term;
use crowsnest_apimachinery::names::ClusterName;
use crowsnest_apimachinery::rbac::{ReadKind, ReadableNames};
use crowsnest_store::CollectionKey;
use std::collections::{BTreeMap, BTreeSet};

/// A group and resource that no rule can name, so that only rules with `*` for both cover it.
const UNNAMED: &str = "\u{1f}";

/// The objects that a caller may list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ScopeTerms {
    /// Every object.
    All,
    /// Objects with one of these terms ([`crate::document::columns::scope_terms`]).
    Some(BTreeSet<String>),
}

impl CallerPermissions {
    /// The terms of the objects of these collections that the caller may list. Objects of other collections are found only by
    /// terms of their cluster or namespace, not by terms of their resource.
    pub fn scope_terms<'k>(&mut self, collections: impl IntoIterator<Item = &'k CollectionKey>) -> ScopeTerms {
        if self.is_unlimited() {
            return ScopeTerms::All;
        }
        let mut resources: BTreeMap<&ClusterName, BTreeSet<(&str, &str)>> = BTreeMap::new();
        for CollectionKey { cluster, resource } in collections {
            resources.entry(cluster).or_default().insert((&resource.group, &resource.resource));
        }
        let mut terms = BTreeSet::new();
        for (cluster, resources) in resources {
            self.add_terms(cluster, resources, &mut terms);
        }
        ScopeTerms::Some(terms)
    }

    fn add_terms(&mut self, cluster: &ClusterName, resources: BTreeSet<(&str, &str)>, terms: &mut BTreeSet<String>) {
        let everything = self.readable_objects(ReadKind::Listing, cluster, UNNAMED, UNNAMED);
        let cluster_name = cluster.as_str();
        if *everything.everywhere() == ReadableNames::All {
            terms.insert(cluster_name.to_owned());
            return;
        }
        let fully_readable = everything.namespaces().filter(|(_, readable)| **readable == ReadableNames::All);
        let fully_readable: BTreeSet<&str> = fully_readable.map(|(namespace, _)| namespace).collect();
        terms.extend(fully_readable.iter().map(|namespace| scope_term(&[cluster_name, "", namespace])));
        for (group, resource) in resources {
            let readable_objects = self.readable_objects(ReadKind::Listing, cluster, group, resource);
            let resource = format!("{group}/{resource}");
            let mut add = |parts: &[&str]| {
                terms.insert(scope_term(&[&[cluster_name, &resource], parts].concat()));
            };
            match readable_objects.everywhere() {
                ReadableNames::All => {
                    add(&[]);
                    continue;
                }
                ReadableNames::Named(names) => names.iter().for_each(|name| add(&["", name])),
                ReadableNames::Nothing => {}
            }
            for (namespace, readable) in
                readable_objects.namespaces().filter(|(namespace, _)| !fully_readable.contains(namespace))
            {
                match readable {
                    ReadableNames::All => add(&[namespace]),
                    // Names that are readable in every namespace have a term already.
                    ReadableNames::Named(names) => {
                        let additional_names =
                            names.iter().filter(|name| !readable_objects.everywhere().contains(name));
                        additional_names.for_each(|name| add(&[namespace, name]));
                    }
                    ReadableNames::Nothing => {}
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::authorization::RbacRules;
    use crate::authorization::decision::allows_read;
    use crate::document::columns::{scope_of, scope_terms};
    use crowsnest_apimachinery::user::UserInfo;
    use crowsnest_store::fixtures::stored;
    use crowsnest_store::record::{ChangeKind, Object};
    use proptest::prelude::*;
    use rstest::rstest;
    use serde_json::{Value, json};
    use std::sync::Arc;

    const CLUSTERS: [&str; 2] = ["m1", "m2"];
    const NAMESPACES: [&str; 3] = ["", "shop", "team"];

    /// Objects of four resources, in two clusters and two namespaces.
    fn objects() -> Vec<Object> {
        let mut objects = Vec::new();
        for cluster in CLUSTERS {
            for (api_version, kind, namespaces) in [
                ("v1", "Pod", &NAMESPACES[1..]),
                ("apps/v1", "Deployment", &NAMESPACES[1..]),
                ("v1", "Node", &NAMESPACES[..1]),
                ("v1", "Namespace", &NAMESPACES[..1]),
            ] {
                for namespace in namespaces {
                    for name in ["a", "shop"] {
                        let mut object = json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": name}});
                        if !namespace.is_empty() {
                            object["metadata"]["namespace"] = (*namespace).into();
                        }
                        objects.push(stored(cluster, 1, &object));
                    }
                }
            }
        }
        objects
    }

    fn collections(objects: &[Object]) -> BTreeSet<CollectionKey> {
        objects
            .iter()
            .map(|object| CollectionKey::new(object.record.key.cluster().clone(), object.record.key.resource().clone()))
            .collect()
    }

    /// Binds ann to a rule in a cluster: in a namespace, or in all if it is empty.
    fn grant(rbac_rules: &RbacRules, cluster: &str, namespace: &str, name: &str, rule: &Value) {
        let prefix = if namespace.is_empty() { "Cluster" } else { "" };
        let mut metadata = json!({"name": name});
        if !namespace.is_empty() {
            metadata["namespace"] = namespace.into();
        }
        let group = "rbac.authorization.k8s.io/v1";
        for object in [
            json!({"apiVersion": group, "kind": format!("{prefix}Role"), "metadata": metadata, "rules": [rule]}),
            json!({"apiVersion": group, "kind": format!("{prefix}RoleBinding"), "metadata": metadata,
                "roleRef": {"kind": format!("{prefix}Role"), "name": name}, "subjects": [{"kind": "User", "name": "ann"}]}),
        ] {
            let object = stored(cluster, 1, &object);
            rbac_rules.apply(&object.record, &object.body, ChangeKind::Added);
        }
    }

    fn terms(rbac_rules: &Arc<RbacRules>, objects: &[Object]) -> BTreeSet<String> {
        match rbac_rules.for_caller(&UserInfo::new("ann", ["staff"])).scope_terms(&collections(objects)) {
            ScopeTerms::Some(terms) => terms,
            ScopeTerms::All => panic!("ann is limited"),
        }
    }

    #[rstest]
    #[case::a_cluster("", json!(["*"]), json!(["*"]), json!([]), &["m1"])]
    #[case::a_namespace("shop", json!(["*"]), json!(["*"]), json!([]), &["m1||shop"])]
    #[case::a_resource("", json!([""]), json!(["pods"]), json!([]), &["m1|/pods"])]
    #[case::all_of_a_group("", json!(["apps"]), json!(["*"]), json!([]), &["m1|apps/deployments"])]
    #[case::a_resource_in_a_namespace("shop", json!([""]), json!(["pods"]), json!([]), &["m1|/pods|shop"])]
    #[case::an_object("shop", json!([""]), json!(["pods"]), json!(["a", "b"]), &["m1|/pods|shop|a", "m1|/pods|shop|b"])]
    #[case::a_name_in_every_namespace("", json!([""]), json!(["pods"]), json!(["a"]), &["m1|/pods||a"])]
    #[case::nothing("shop", json!(["batch"]), json!(["jobs"]), json!([]), &[])]
    fn the_most_general_term_replaces_the_others(
        #[case] namespace: &str,
        #[case] groups: Value,
        #[case] resources: Value,
        #[case] names: Value,
        #[case] expected: &[&str],
    ) {
        let rbac_rules = Arc::new(RbacRules::default());
        let rule = json!({"verbs": ["list"], "apiGroups": groups, "resources": resources, "resourceNames": names});
        grant(&rbac_rules, "m1", namespace, "r", &rule);
        let terms: Vec<String> =
            terms(&rbac_rules, &objects()).iter().map(|term| term.replace('\u{1f}', "|")).collect();
        assert_eq!(terms, expected);
        assert_eq!(rbac_rules.for_caller(&UserInfo::system()).scope_terms([]), ScopeTerms::All);
    }

    fn rule() -> impl Strategy<Value = (&'static str, &'static str, Value)> {
        let verbs = prop::sample::select(vec![json!(["list"]), json!(["get"]), json!(["*"]), json!(["create"])]);
        let groups = prop::sample::select(vec![json!([""]), json!(["apps"]), json!(["*"]), json!(["", "apps"])]);
        let resources = prop::sample::select(vec![
            json!(["pods"]),
            json!(["deployments", "nodes"]),
            json!(["namespaces"]),
            json!(["*"]),
        ]);
        let names = prop::sample::select(vec![json!([]), json!([]), json!(["a"]), json!(["shop", "b"]), json!([""])]);
        let (cluster, namespace) = (prop::sample::select(CLUSTERS.to_vec()), prop::sample::select(NAMESPACES.to_vec()));
        (cluster, namespace, verbs, groups, resources, names).prop_map(
            |(cluster, namespace, verbs, groups, resources, names)| {
                let rule = json!({"verbs": verbs, "apiGroups": groups, "resources": resources, "resourceNames": names});
                (cluster, namespace, rule)
            },
        )
    }

    proptest! {
        /// For all rules, an object has one of the caller's terms exactly if the caller may list it.
        #[test]
        fn terms_equal_decisions(rules in prop::collection::vec(rule(), 0..6)) {
            let rbac_rules = Arc::new(RbacRules::default());
            for (nth, (cluster, namespace, rule)) in rules.iter().enumerate() {
                grant(&rbac_rules, cluster, namespace, &format!("r{nth}"), rule);
            }
            let objects = objects();
            let terms = terms(&rbac_rules, &objects);
            let mut caller = rbac_rules.for_caller(&UserInfo::new("ann", ["staff"]));
            for object in &objects {
                let key = &object.record.key;
                let expected = allows_read(&mut caller, ReadKind::Listing, &scope_of(key), &key.name);
                let is_found = scope_terms(&scope_of(key), &key.name).iter().any(|term| terms.contains(term));
                prop_assert_eq!(is_found, expected, "{:?} by {:?} of {:?}", key, terms, rules);
            }
        }
    }
}
