use super::*;
use crate::batch::{Batch, NodeChange, Removal, batch_length, place_pods_last};
use crowsnest_apimachinery::names::CONTROL_PLANE;
use crowsnest_index::export::ObjectChange;
use crowsnest_store::fixtures::{cluster, resource_of, stored};
use proptest::prelude::*;
use rstest::rstest;
use std::sync::Arc;

fn served_kinds(objects: &[(&str, &Value)]) -> ServedKinds {
    let states: Vec<(CollectionKey, CollectionState)> = objects
        .iter()
        .map(|(name, object)| {
            let kind: Arc<str> = object["kind"].as_str().unwrap().into();
            let namespaced = object["metadata"]["namespace"].is_string();
            let state = CollectionState { kind, namespaced, ..CollectionState::default() };
            (CollectionKey::new(cluster_of(name), resource_of(object)), state)
        })
        .collect();
    ServedKinds::from_states(states.iter().map(|(key, state)| (key, state)))
}

fn cluster_of(name: &str) -> crowsnest_apimachinery::names::ClusterName {
    if name == CONTROL_PLANE { crowsnest_apimachinery::names::ClusterName::control_plane() } else { cluster(name) }
}

fn row_with(selectors: &PodSelectors, object: &Value) -> NodeRow {
    let kinds = served_kinds(&[("m1", object)]);
    RowBuilder { kinds: &kinds, rules: &[], selectors }.build(&stored("m1", 7, object)).unwrap()
}

fn row(object: &Value) -> NodeRow {
    row_with(&PodSelectors::default(), object)
}

/// Edges as openCypher patterns that begin at the object.
fn edges(row: &NodeRow) -> Vec<String> {
    let pattern = |edge: &EdgeRow| {
        let (before, after) = if edge.is_forward { ("-", "->") } else { ("<-", "-") };
        let uid = if edge.required_uid.is_empty() { String::new() } else { format!("#{}", edge.required_uid) };
        format!("{before}{}{after} {}{uid}", edge.edge_type.name(), edge.other.key)
    };
    row.edges.iter().map(pattern).collect()
}

#[rstest]
#[case("Pod", true)]
#[case("VirtualMachine2", true)]
#[case("pod", true)]
#[case("Resource", false)]
#[case("CrowsnestSync", false)]
#[case("CrowsnestSink", false)]
#[case("CrowsnestLock", false)]
#[case("Pod`) DETACH DELETE n //", false)]
#[case("Pod:Secret", false)]
#[case("2Pods", false)]
#[case("Pöd", false)]
#[case("", false)]
#[case(&"A".repeat(64), false)]
fn a_label_has_ascii_letters_and_digits_and_is_not_reserved(#[case] kind: &str, #[case] expected: bool) {
    assert_eq!(Label::from_kind(kind).is_some(), expected);
}

#[test]
fn an_object_cannot_choose_its_label() {
    let object = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}});
    let collection = CollectionKey::new(cluster("m1"), resource_of(&object));
    let kinds = served_kinds(&[("m1", &object)]);
    assert_eq!(kinds.label(&collection, "Pod"), Label::from_kind("Pod"));
    assert_eq!(kinds.label(&collection, "Secret"), None);
    let other = CollectionKey::new(cluster("m2"), resource_of(&object));
    assert_eq!(kinds.label(&other, "Pod"), None, "the resource is not served");
}

#[rstest]
#[case::namespaced("Pod", Some("shop"), "m1//Pod/shop/a")]
#[case::cluster_scoped("Node", None, "m1//Node//a")]
fn node_keys_contain_cluster_group_kind_namespace_and_name(
    #[case] kind: &str,
    #[case] namespace: Option<&str>,
    #[case] expected: &str,
) {
    let object = json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": "a", "namespace": namespace}});
    assert_eq!(row(&object).key, expected);
}

#[rstest]
#[case::pod(json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "namespace": "shop", "uid": "p",
        "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "r"}]},
        "spec": {"nodeName": "n1", "serviceAccountName": "web", "volumes": [{"name": "v", "secret": {"secretName": "db"}}]}}),
    &["<-OWNS- m1/apps/ReplicaSet/shop/web#r", "-RUNS_ON-> m1//Node//n1", "-USES-> m1//Secret/shop/db",
        "-USES-> m1//ServiceAccount/shop/web"])]
#[case::cluster_scoped_owner(json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "a", "namespace": "shop",
        "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "n"}]}}),
    &["<-OWNS- m1//Node//n1#n"])]
#[case::copy(json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web", "namespace": "shop",
        "annotations": {"resourcetemplate.karmada.io/uid": "t"}}, "spec": {"template": {"spec": {}}}}),
    &["<-PROPAGATED_TO- @control-plane/apps/Deployment/shop/web#t"])]
#[case::role_binding(json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
        "metadata": {"name": "a", "namespace": "shop"}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "view"},
        "subjects": [{"kind": "ServiceAccount", "name": "web", "namespace": "shop"}]}),
    &["-ROLE_REF-> m1/rbac.authorization.k8s.io/Role/shop/view", "-SUBJECT-> m1//ServiceAccount/shop/web"])]
fn references_of_an_object_become_edges(#[case] object: Value, #[case] expected: &[&str]) {
    assert_eq!(edges(&row(&object)), expected);
}

#[test]
fn pods_list_the_objects_whose_selectors_match_them_in_their_namespace() {
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "namespace": "shop"},
        "spec": {"selector": {"app": "web"}}});
    let pod = |namespace: &str, app: &str| {
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a",
        "namespace": namespace, "labels": {"app": app}}})
    };
    let selects = row(&service).selects;
    assert!(selects.is_some());
    let mut selectors = PodSelectors::default();
    selectors.set(&stored("m1", 1, &service).record, selects);
    let selected = |pod: &Value| row_with(&selectors, pod).selected_by;
    let by_service = ("m1//Service/shop/web".to_owned(), "spec.selector".to_owned());
    assert_eq!(selected(&pod("shop", "web")), [by_service]);
    assert_eq!(selected(&pod("shop", "db")), []);
    assert_eq!(selected(&pod("team", "web")), []);
    selectors.set(&stored("m1", 1, &service).record, None);
    assert_eq!(row_with(&selectors, &pod("shop", "web")).selected_by, []);
}

#[test]
fn rows_contain_no_values_of_secrets() {
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "db", "namespace": "shop", "uid": "u",
        "labels": {"team": "a"}, "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "aHVudGVyMg=="}},
        "type": "Opaque", "data": {"password": "aHVudGVyMg=="}, "stringData": {"password": "hunter2"}});
    let row = row(&secret);
    let text = format!("{row:?}");
    assert!(!text.contains("aHVudGVyMg") && !text.contains("hunter2"), "{text}");
    assert_eq!(row.properties["labels"], json!(["team=a"]));
}

#[test]
fn the_digest_changes_only_with_the_edges() {
    let pod = |status: &str, node: &str| {
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "namespace": "b"},
        "spec": {"nodeName": node}, "status": {"phase": status}})
    };
    assert_eq!(row(&pod("Pending", "n1")).edges_digest, row(&pod("Running", "n1")).edges_digest);
    assert_ne!(row(&pod("Running", "n1")).edges_digest, row(&pod("Running", "n2")).edges_digest);
}

/// Selecting objects may have added edges to a Pod since it was written.
#[rstest]
#[case("Pod", true)]
#[case("ConfigMap", false)]
fn the_digest_changes_with_the_labels_of_pods_only(#[case] kind: &str, #[case] expected: bool) {
    let labelled = |app: &str| {
        json!({"apiVersion": "v1", "kind": kind,
            "metadata": {"name": "a", "namespace": "b", "labels": {"app": app}}})
    };
    assert_eq!(row(&labelled("web")).edges_digest != row(&labelled("db")).edges_digest, expected);
}

#[test]
fn a_removal_has_the_label_of_a_kind_that_is_no_longer_served() {
    let object = json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "a", "namespace": "b"}});
    let stored = stored("m1", 7, &object);
    let removal = Removal::new(&stored.record.key, &stored.record.kind, 8);
    assert_eq!((removal.key.as_str(), removal.seq), ("m1/example.com/Widget/b/a", 8));
    assert_eq!(removal.label, Label::from_kind("Widget"));
    assert!(removal.label.is_some());
}

/// A kind `Pod` of another group is not a Pod.
#[test]
fn pods_follow_the_objects_that_select_them() {
    let change = |api_version: &str, kind: &str, name: &str| {
        let object = json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": name, "namespace": "shop"}});
        let record = stored("m1", 1, &object).record;
        let (seq, key, kind) = (record.seq.0, record.key.clone(), Arc::clone(&record.kind));
        ObjectChange { seq, key, kind, uid: record.uid.clone(), object: None }
    };
    let mut changes = [
        ("v1", "Pod", "a"),
        ("v1", "Service", "b"),
        ("v1", "Pod", "c"),
        ("example.com/v1", "Pod", "d"),
        ("v1", "Service", "e"),
    ]
    .map(|(api_version, kind, name)| change(api_version, kind, name));
    place_pods_last(&mut changes);
    let names: Vec<&str> = changes.iter().map(|change| &*change.key.name).collect();
    assert_eq!(names, ["b", "d", "e", "a", "c"]);
}

#[test]
fn kinds_that_select_pods_are_recognized() {
    let object = |api_version: &str, kind: &str| {
        row(&json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": "a", "namespace": "shop"}}))
    };
    let kinds = [("v1", "Service"), ("v1", "Pod"), ("policy/v1", "PodDisruptionBudget"), ("example.com/v1", "Service")];
    let puts: Vec<NodeRow> = kinds.into_iter().map(|(api_version, kind)| object(api_version, kind)).collect();
    let keys: BTreeSet<String> = puts.iter().map(|row| row.key.clone()).collect();
    let batch = Batch { puts, ..Batch::default() };
    // Objects without a selector are included, because the graph may have an earlier selector.
    let expected = ["m1//Service/shop/a", "m1/policy/PodDisruptionBudget/shop/a"].map(str::to_owned);
    assert_eq!(batch.selecting_keys(&keys), BTreeSet::from(expected));
    assert_eq!(batch.selecting_keys(&BTreeSet::new()), BTreeSet::new());
}

const MIB: usize = 1 << 20;

#[rstest]
#[case::none(&[], 10, 0)]
#[case::small(&[1, 1, 1], 10, 3)]
#[case::count(&[1, 1, 1], 2, 2)]
#[case::bytes(&[MIB, 2 * MIB, MIB, 1], 10, 3)]
#[case::one_large_object(&[5 * MIB, 1], 10, 1)]
#[case::large_object_after_small_ones(&[1, 5 * MIB, 1], 10, 1)]
#[case::at_least_one(&[1, 1], 0, 1)]
fn a_batch_has_a_limited_number_of_objects_and_bytes(
    #[case] sizes: &[usize],
    #[case] max_changes: usize,
    #[case] expected: usize,
) {
    assert_eq!(batch_length(sizes.iter().copied(), max_changes), expected);
}

fn change() -> impl Strategy<Value = (u8, u64, bool)> {
    (0..6u8, 0..50u64, any::<bool>())
}

proptest! {
    /// Each node is written once, by its last change, and rows are sorted.
    #[test]
    fn a_batch_has_the_last_change_of_each_node(changes in proptest::collection::vec(change(), 0..40)) {
        let mut changes = changes;
        changes.sort_by_key(|(_, seq, _)| *seq);
        let mut last: BTreeMap<String, (u64, bool)> = BTreeMap::new();
        let rows: Vec<NodeChange> = changes.iter().map(|(name, seq, put)| {
            let object = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": format!("p{name}"), "namespace": "a"}});
            let row = NodeRow { seq: *seq, ..row(&object) };
            last.insert(row.key.clone(), (*seq, *put));
            match put {
                true => NodeChange::Put(Box::new(row)),
                false => NodeChange::Remove(Removal { key: row.key, collection: row.collection, label: row.label, seq: *seq }),
            }
        }).collect();
        let batch = Batch::from_changes(rows);
        let puts: Vec<(String, u64)> = batch.puts.iter().map(|row| (row.key.clone(), row.seq)).collect();
        let removals: Vec<(String, u64)> = batch.removals.iter().map(|row| (row.key.clone(), row.seq)).collect();
        let expected = |put: bool| -> Vec<(String, u64)> {
            last.iter().filter(|(_, (_, is_put))| *is_put == put).map(|(key, (seq, _))| (key.clone(), *seq)).collect()
        };
        prop_assert_eq!(puts, expected(true));
        prop_assert_eq!(removals, expected(false));
        prop_assert_eq!(batch.collections.values().max().copied(), changes.iter().map(|(_, seq, _)| *seq).max());
    }

    /// A label cannot inject Cypher into a statement.
    #[test]
    fn labels_are_letters_and_digits(kind in ".{0,80}") {
        if let Some(label) = Label::from_kind(&kind) {
            prop_assert!(label.as_str().chars().all(|c| c.is_ascii_alphanumeric()) && !label.as_str().is_empty());
        }
    }
}
