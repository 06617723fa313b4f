//! Paths between generated objects of two clusters, with cycles of owners and missing targets, compared with a naive
//! evaluation of what the objects declare: with all permissions, and with those of a caller.

use super::fleet::{graph, store_of};
use super::model::{Model, PathSet, shortest_of};
use crate::execute::Sources;
use crate::paths::traversal::{EdgeKey, PathLimits, PathSelection, traverse};
use crate::plan::predicate::Match;
use crate::tests::corpus::Corpus;
use crate::tests::properties::{ListGrants, rules_from};
use crowsnest_query::path::{Direction, EdgeType, HopPattern, NodePattern, PathPattern};
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

const CLUSTERS: [&str; 2] = ["member1", "member2"];
const NAMESPACES: [&str; 2] = ["shop", "team"];
const KINDS: [&str; 5] = ["Deployment", "Pod", "ReplicaSet", "Secret", "Service"];
/// Label in patterns and resource of each kind.
const LABELS: [(&str, &str); 5] = [
    ("deployment", "deployments"),
    ("pod", "pods"),
    ("replicaset", "replicasets"),
    ("secret", "secrets"),
    ("service", "services"),
];
const TYPES: [EdgeType; 3] = [EdgeType::Owns, EdgeType::Selects, EdgeType::Uses];

/// Cluster, kind, namespace and number of an object.
type Identity = (&'static str, &'static str, &'static str, u8);

/// References and label of a generated object. The referenced objects may be missing.
#[derive(Debug, Clone)]
struct ObjectContent {
    owner: Option<(&'static str, u8)>,
    secrets: BTreeSet<u8>,
    app: &'static str,
}

type Objects = BTreeMap<Identity, ObjectContent>;

fn objects() -> impl Strategy<Value = Objects> {
    let identity = (select(CLUSTERS.to_vec()), select(KINDS.to_vec()), select(NAMESPACES.to_vec()), 0..2u8);
    let owner = prop::option::of((select(vec!["Deployment", "ReplicaSet"]), 0..3u8));
    let content = (owner, prop::collection::btree_set(0..3u8, 0..3), select(vec!["a", "b"]));
    let content = content.prop_map(|(owner, secrets, app)| ObjectContent { owner, secrets, app });
    prop::collection::btree_map(identity, content, 4..24)
}

fn pattern() -> impl Strategy<Value = PathPattern> {
    let label = || prop::option::of(select(LABELS.map(|label| label.0).to_vec()));
    let node =
        move || label().prop_map(|label| NodePattern { label: label.map(str::to_owned), ..NodePattern::default() });
    let types = prop::collection::btree_set(select(TYPES.to_vec()), 0..3);
    let direction = select(vec![Direction::Out, Direction::In, Direction::Both]);
    let hop = (types, direction, 0..2u8, 1..3u8).prop_map(|(types, direction, min_steps, max_steps)| HopPattern {
        variable: None,
        types,
        direction,
        min_steps,
        max_steps,
    });
    (node(), prop::collection::vec((hop, node()), 1..3)).prop_map(|(first, hops)| PathPattern { first, hops })
}

fn grants() -> impl Strategy<Value = ListGrants> {
    let resource = select(LABELS.map(|label| label.1).to_vec());
    let namespace = select(vec!["shop", "team", ""]);
    prop::collection::btree_set((select(CLUSTERS.to_vec()), resource, namespace), 0..12)
}

fn name(number: u8) -> String {
    format!("o{number}")
}

fn uid((cluster, kind, namespace, number): Identity) -> String {
    format!("{cluster}-{kind}-{namespace}-{number}")
}

fn manifest(identity: Identity, content: &ObjectContent) -> Value {
    let (cluster, kind, namespace, number) = identity;
    let owner = |(kind, number): &(&'static str, u8)| {
        let uid = uid((cluster, *kind, namespace, *number));
        json!({"apiVersion": "apps/v1", "kind": kind, "name": name(*number), "uid": uid})
    };
    let owners: Vec<Value> = content.owner.iter().map(owner).collect();
    let volume = |number: &u8| json!({"name": format!("v{number}"), "secret": {"secretName": name(*number)}});
    let volumes: Vec<Value> = content.secrets.iter().map(volume).collect();
    let pod = json!({"containers": [{"name": "c", "image": "web:1"}], "volumes": volumes});
    let (api_version, spec) = match kind {
        "Pod" => ("v1", pod),
        "Service" => ("v1", json!({"selector": {"app": content.app}})),
        "Secret" => ("v1", json!({})),
        _ => ("apps/v1", json!({"template": {"spec": pod}})),
    };
    json!({"apiVersion": api_version, "kind": kind, "spec": spec,
        "metadata": {"name": name(number), "namespace": namespace, "uid": uid(identity), "resourceVersion": "1",
            "labels": {"app": content.app}, "ownerReferences": owners}})
}

/// Edges between the objects, from their content alone.
fn edges(objects: &Objects, ids: &BTreeMap<Identity, u64>) -> BTreeSet<EdgeKey> {
    let mut edges = BTreeSet::new();
    for (identity, content) in objects {
        let (cluster, kind, namespace, _) = *identity;
        let id = ids[identity];
        let owner = content.owner.and_then(|(kind, number)| ids.get(&(cluster, kind, namespace, number)));
        edges.extend(owner.map(|owner| (*owner, id, EdgeType::Owns)));
        if matches!(kind, "Deployment" | "Pod" | "ReplicaSet") {
            let secrets = content.secrets.iter().filter_map(|number| ids.get(&(cluster, "Secret", namespace, *number)));
            edges.extend(secrets.map(|secret| (id, *secret, EdgeType::Uses)));
        }
        if kind == "Service" {
            let is_selected = |(pod, other): &(&Identity, &ObjectContent)| {
                (pod.0, pod.1, pod.2, other.app) == (cluster, "Pod", namespace, content.app)
            };
            let pods = objects.iter().filter(is_selected);
            edges.extend(pods.map(|(pod, _)| (id, ids[pod], EdgeType::Selects)));
        }
    }
    edges
}

/// Label and resource of a kind.
fn label_of(kind: &str) -> (&'static str, &'static str) {
    LABELS.into_iter().find(|(label, _)| kind.eq_ignore_ascii_case(label)).unwrap()
}

/// Ids of the objects in the store.
async fn stored_ids(sources: &Sources, objects: &Objects) -> BTreeMap<Identity, u64> {
    let all = sources.engine.ids(&sources.context, &Match::All).await.unwrap().values;
    let mut graph = graph(sources.clone());
    graph.read(&all).await.unwrap();
    let by_uid: BTreeMap<String, u64> =
        all.iter().filter_map(|id| Some((graph.object(*id)?.record.uid.to_string(), *id))).collect();
    objects.keys().map(|identity| (*identity, by_uid[&uid(*identity)])).collect()
}

async fn find_paths(sources: Sources, pattern: &PathPattern, selection: PathSelection) -> PathSet {
    let (mut graph, mut with_all_links, limits) = (graph(sources.clone()), graph(sources), PathLimits::default());
    graph.max_records = 2;
    let found = traverse(&mut graph, pattern, &limits).await.unwrap().into_paths(&limits, selection, &|| false);
    assert!(found.limits_reached.is_empty() && graph.limits_reached.is_empty(), "{:?}", graph.limits_reached);
    let count = found.paths.len();
    let paths: PathSet = found.paths.into_iter().map(|path| (path.nodes, path.edges)).collect();
    assert_eq!(paths.len(), count, "a path was found twice");
    let nodes: BTreeSet<u64> = paths.iter().flat_map(|path| &path.0).copied().collect();
    with_all_links.read(&nodes).await.unwrap();
    for edge in paths.iter().flat_map(|path| &path.1) {
        let fields = graph.edge_fields(*edge);
        assert!(!fields.is_empty(), "no field declares {edge:?}");
        assert_eq!(fields, with_all_links.edge_fields(*edge), "{edge:?}");
    }
    graph.read_records(&nodes).await.unwrap();
    assert!(nodes.iter().all(|id| graph.object(*id).is_some()), "records of {nodes:?}");
    paths
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn paths_of_objects_equal_those_of_a_naive_evaluation(
        objects in objects(),
        patterns in prop::collection::vec(pattern(), 6),
        grants in grants(),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let manifests: Vec<(&str, Value)> =
                objects.iter().map(|(identity, content)| (identity.0, manifest(*identity, content))).collect();
            let (home, store) = store_of(&manifests).await;
            let corpus = Corpus::with_store(home, store).await;
            let ids = stored_ids(&corpus.sources, &objects).await;
            let labels = ids.iter().map(|(identity, id)| (*id, label_of(identity.1).0)).collect();
            let everything = Model { readable: ids.values().copied().collect(), edges: edges(&objects, &ids), labels };
            let is_granted = |(cluster, kind, namespace, _): &Identity| {
                let of_object = |grant: &&(&str, &str, &str)| {
                    grant.0 == *cluster && grant.1 == label_of(kind).1 && ["", *namespace].contains(&grant.2)
                };
                grants.iter().any(|grant| of_object(&grant))
            };
            let readable = ids.iter().filter(|(identity, _)| is_granted(identity)).map(|(_, id)| *id).collect();
            let granted = Model { readable, ..everything.clone() };
            let rbac_rules = Arc::new(rules_from(&grants));
            for pattern in &patterns {
                for (model, sources) in
                    [(&everything, corpus.sources.clone()), (&granted, corpus.as_reader(&rbac_rules, "ann"))]
                {
                    let expected = model.enumerate_paths(pattern);
                    // Larger responses reach the limits of a search.
                    if expected.len() < 2_000 {
                        let all = find_paths(sources.clone(), pattern, PathSelection::All).await;
                        prop_assert_eq!(&all, &expected, "{}", pattern);
                        let shortest = find_paths(sources, pattern, PathSelection::Shortest).await;
                        prop_assert_eq!(shortest, shortest_of(expected), "{}, shortest", pattern);
                    }
                }
            }
            Ok(())
        })?;
    }
}
