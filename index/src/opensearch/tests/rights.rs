//! Rights as terms, held against the check of single objects.

use crate::fixtures::{cluster, stored};
use crate::opensearch::scope::{Collected, Scopes};
use crate::record::Happened;
use crate::rights::Rights;
use crate::search::permitted::permits;
use crate::text::columns::SCOPE_SEPARATOR;
use crowsnest_api::rbac::Reading;
use crowsnest_api::user::UserInfo;
use proptest::prelude::*;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::Arc;

const CLUSTERS: [&str; 2] = ["member1", "member2"];
const NAMESPACES: [&str; 3] = ["", "shop", "team"];
const RESOURCES: [(&str, &str); 5] =
    [("", "pods"), ("", "namespaces"), ("apps", "deployments"), ("x.io", "pods"), ("", "nodes")];

/// A grant: cluster, namespace (empty: everywhere), and the rule.
type Grant = (&'static str, &'static str, Value);

fn rule() -> impl Strategy<Value = Value> {
    let some = |all: &'static [&'static str]| prop::collection::vec(prop::sample::select(all.to_vec()), 1..3);
    let groups = some(&["", "apps", "*", "x.io"]);
    let resources = some(&["pods", "namespaces", "deployments", "*", "nodes", "pods/log"]);
    let verbs = some(&["get", "list", "*", "watch"]);
    let names = prop_oneof![3 => Just(Vec::new()), 2 => some(&["a", "shop", "", "B"])];
    (groups, resources, verbs, names).prop_map(|(groups, resources, verbs, names)| {
        json!({"apiGroups": groups, "resources": resources, "verbs": verbs, "resourceNames": names})
    })
}

fn grants() -> impl Strategy<Value = Vec<Grant>> {
    let (cluster, namespace) = (prop::sample::select(CLUSTERS.to_vec()), prop::sample::select(NAMESPACES.to_vec()));
    prop::collection::vec((cluster, namespace, rule()), 0..6)
}

fn rights(grants: &[Grant]) -> Arc<Rights> {
    let (rights, group) = (Arc::new(Rights::default()), "rbac.authorization.k8s.io");
    for (nth, (cluster, namespace, rule)) in grants.iter().enumerate() {
        let prefix = if namespace.is_empty() { "Cluster" } else { "" };
        let mut metadata = json!({"name": format!("r{nth}")});
        if !namespace.is_empty() {
            metadata["namespace"] = (*namespace).into();
        }
        let role = json!({"apiVersion": format!("{group}/v1"), "kind": format!("{prefix}Role"), "metadata": metadata, "rules": [rule]});
        let binding = json!({"apiVersion": format!("{group}/v1"), "kind": format!("{prefix}RoleBinding"), "metadata": metadata,
            "roleRef": {"kind": format!("{prefix}Role"), "name": format!("r{nth}")}, "subjects": [{"kind": "User", "name": "ann"}]});
        for object in [role, binding] {
            let object = stored(cluster, 1, &object);
            rights.apply(&object.record, &object.body, Happened::Added);
        }
    }
    rights
}

fn collected() -> BTreeSet<Collected> {
    let of = |name: &'static str| {
        RESOURCES.map(|(group, resource)| Collected {
            cluster: cluster(name),
            group: group.into(),
            resource: resource.into(),
        })
    };
    CLUSTERS.into_iter().flat_map(of).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    /// The terms of a caller admit what the check of each object permits, and nothing else.
    #[test]
    fn terms_admit_what_may_be_listed(grants in grants()) {
        let mut caller = rights(&grants).of(&UserInfo::new("ann", ["staff"]));
        let scopes = Scopes::of(&mut caller, &collected()).unwrap();
        for cluster in CLUSTERS {
            for (group, resource) in RESOURCES.into_iter().chain([("other.io", "things")]) {
                for namespace in NAMESPACES {
                    for name in ["a", "b", "shop", "B"] {
                        let scope = [cluster, &format!("{group}/{resource}"), namespace].join(&SCOPE_SEPARATOR.to_string());
                        let permitted = permits(&mut caller, Reading::Listing, &scope, name);
                        let admitted = scopes.admits(&scope, name);
                        // Resources that are not collected are shown by rules for all resources only.
                        let hidden = group == "other.io" && !admitted;
                        // No namespace is in a namespace.
                        let nowhere = (group, resource) == ("", "namespaces") && !namespace.is_empty();
                        prop_assert!(admitted == permitted || hidden || nowhere && !admitted, "{:?} {} of {:?}: {:?}", scope, name, grants, scopes);
                    }
                }
            }
        }
    }
}

#[test]
fn general_rights_are_few_terms() {
    let all = json!({"apiGroups": ["*"], "resources": ["*"], "verbs": ["list"]});
    let pods = json!({"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]});
    let named =
        json!({"apiGroups": ["apps"], "resources": ["deployments"], "verbs": ["get"], "resourceNames": ["web"]});
    let grants = [
        ("member1", "", all.clone()),
        ("member1", "shop", pods.clone()),
        ("member2", "team", all),
        ("member2", "team", named.clone()),
        ("member2", "", pods),
        ("member2", "shop", named.clone()),
        (
            "member2",
            "",
            json!({"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"], "resourceNames": ["n1", "n2"]}),
        ),
    ];
    let mut caller = rights(&grants).of(&UserInfo::new("ann", ["staff"]));
    let scopes = Scopes::of(&mut caller, &collected()).unwrap();
    let readable = serde_json::to_string(&scopes.query().unwrap().filter()).unwrap().replace("\\u001f", "␟");
    insta::assert_snapshot!("rights", readable);
}

#[test]
fn administrators_are_not_limited() {
    let mut caller = rights(&[]).of(&UserInfo::new("root", ["system:masters"]));
    assert_eq!(Scopes::of(&mut caller, &collected()), None);
    let mut nobody = rights(&[]).of(&UserInfo::new("ann", ["staff"]));
    let scopes = Scopes::of(&mut nobody, &collected()).unwrap();
    assert_eq!(scopes.query().unwrap().filter(), json!({"match_none": {}}));
}
