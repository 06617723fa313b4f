use super::*;
use crate::batch::{Batch, NodeChange, Removal};
use crowsnest_apimachinery::names::CONTROL_PLANE;
use crowsnest_store::fixtures::{cluster, resource_of, stored};
use proptest::prelude::*;
use rstest::rstest;
use std::sync::Arc;

fn served(objects: &[(&str, &Value)]) -> ServedKinds {
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
    let kinds = served(&[("m1", object)]);
    RowReader { kinds: &kinds, rules: &[], selectors }.row(&stored("m1", 7, object)).unwrap()
}

fn row(object: &Value) -> NodeRow {
    row_with(&PodSelectors::default(), object)
}

/// Edges as patterns, from the view of the object.
fn edges(row: &NodeRow) -> Vec<String> {
    let shown = |edge: &EdgeRow| {
        let (before, after) = if edge.forward { ("-", "->") } else { ("<-", "-") };
        let uid = if edge.uid.is_empty() { String::new() } else { format!("#{}", edge.uid) };
        format!("{before}{}{after} {}{uid}", edge.edge.name(), edge.other.key)
    };
    row.edges.iter().map(shown).collect()
}

#[rstest]
#[case("Pod", true)]
#[case("VirtualMachine2", true)]
#[case("pod", true)]
#[case("Resource", false)]
#[case("CrowsnestSync", false)]
#[case("CrowsnestSink", false)]
#[case("Pod`) DETACH DELETE n //", false)]
#[case("Pod:Secret", false)]
#[case("2Pods", false)]
#[case("Pöd", false)]
#[case("", false)]
#[case(&"A".repeat(64), false)]
fn labels_are_words(#[case] kind: &str, #[case] expected: bool) {
    assert_eq!(Label::from_kind(kind).is_some(), expected);
}

#[test]
fn an_object_cannot_choose_its_label() {
    let object = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}});
    let collection = CollectionKey::new(cluster("m1"), resource_of(&object));
    let kinds = served(&[("m1", &object)]);
    assert_eq!(kinds.label(&collection, "Pod"), Label::from_kind("Pod"));
    assert_eq!(kinds.label(&collection, "Secret"), None);
    let other = CollectionKey::new(cluster("m2"), resource_of(&object));
    assert_eq!(kinds.label(&other, "Pod"), None, "of a resource that is not served");
}

#[rstest]
#[case::namespaced("Pod", Some("shop"), "m1//Pod/shop/a")]
#[case::cluster_scoped("Node", None, "m1//Node//a")]
fn keys_name_each_object_once(#[case] kind: &str, #[case] namespace: Option<&str>, #[case] expected: &str) {
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
fn objects_state_edges(#[case] object: Value, #[case] expected: &[&str]) {
    assert_eq!(edges(&row(&object)), expected);
}

#[test]
fn pods_are_selected_by_what_selects_them() {
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
fn values_of_secrets_are_in_no_row() {
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "db", "namespace": "shop", "uid": "u",
        "labels": {"team": "a"}, "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "aHVudGVyMg=="}},
        "type": "Opaque", "data": {"password": "aHVudGVyMg=="}, "stringData": {"password": "hunter2"}});
    let row = row(&secret);
    let text = format!("{row:?}");
    assert!(!text.contains("aHVudGVyMg") && !text.contains("hunter2"), "{text}");
    assert_eq!(row.properties["labels"], json!(["team=a"]));
}

#[test]
fn edges_that_stay_have_the_same_digest() {
    let pod = |status: &str, node: &str| {
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "namespace": "b"},
        "spec": {"nodeName": node}, "status": {"phase": status}})
    };
    assert_eq!(row(&pod("Pending", "n1")).links, row(&pod("Running", "n1")).links);
    assert_ne!(row(&pod("Running", "n1")).links, row(&pod("Running", "n2")).links);
}

fn change() -> impl Strategy<Value = (u8, u64, bool)> {
    (0..6u8, 0..50u64, any::<bool>())
}

proptest! {
    /// Each node is written once, by its last change, and rows are sorted.
    #[test]
    fn batches_have_the_last_change_of_each_node(changes in proptest::collection::vec(change(), 0..40)) {
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
            last.iter().filter(|(_, (_, of))| *of == put).map(|(key, (seq, _))| (key.clone(), *seq)).collect()
        };
        prop_assert_eq!(puts, expected(true));
        prop_assert_eq!(removals, expected(false));
        prop_assert_eq!(batch.collections.values().max().copied(), changes.iter().map(|(_, seq, _)| *seq).max());
    }

    /// No kind makes a statement anything but a label.
    #[test]
    fn labels_are_letters_and_digits(kind in ".{0,80}") {
        if let Some(label) = Label::from_kind(&kind) {
            prop_assert!(label.as_str().chars().all(|c| c.is_ascii_alphanumeric()) && !label.as_str().is_empty());
        }
    }
}
