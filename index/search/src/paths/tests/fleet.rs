//! Edges of real objects: paths in a small fleet, within the permissions of callers.

use crate::authorization::RbacRules;
use crate::execute::{Sources, resolve_relations};
use crate::paths::closure::closure;
use crate::paths::fleet::FleetGraph;
use crate::paths::traversal::{MAX_OBJECTS_NOTICE, PathLimits, PathSelection, find};
use crate::plan::relations::DependencyDirection;
use crate::plan::{PlanningContext, plan};
use crate::tests::corpus::Corpus;
use crate::tests::properties::rules_from;
use crowsnest_apimachinery::references::CustomRule;
use crowsnest_query::path::PathPattern;
use crowsnest_query::{Limits, parse};
use crowsnest_store::codec::Codec;
use crowsnest_store::fixtures::{cluster, draft, resource_of};
use crowsnest_store::sqlite::SqliteStore;
use crowsnest_store::{Batch, CacheOptions, CollectionKey, Epoch, Progress, RecordWrite, Store};
use rstest::rstest;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

fn objects() -> Vec<(&'static str, Value)> {
    serde_json::from_str::<Vec<(String, Value)>>(include_str!("fleet.json"))
        .unwrap()
        .into_iter()
        .map(|(cluster, object)| (if cluster == "member1" { "member1" } else { "@control-plane" }, object))
        .collect()
}

/// A store with these objects of clusters.
pub(super) async fn store_of(objects: &[(&str, Value)]) -> (tempfile::TempDir, Arc<SqliteStore>) {
    let home = tempfile::tempdir().unwrap();
    let codec = Arc::new(Codec::default());
    let store = SqliteStore::open(&CacheOptions::new(home.path()), Arc::clone(&codec)).await.unwrap();
    for (name, object) in objects {
        let draft = draft(object);
        let (packed, _) = codec.pack("/any", &draft.body).unwrap();
        let kind = Some((draft.kind.clone(), !draft.namespace.is_empty()));
        let progress = Progress { kind, ..Progress::default() };
        let collection = CollectionKey::new(cluster(name), resource_of(object));
        let writes = vec![RecordWrite::Put(Box::new(draft), packed)];
        store
            .apply(&[Batch { collection, epoch: Epoch::UNSHARED, writes, progress }], 1_790_000_000_000)
            .await
            .unwrap();
    }
    (home, Arc::new(store))
}

async fn fleet() -> Corpus {
    let (home, store) = store_of(&objects()).await;
    Corpus::with_store(home, store).await
}

pub(super) fn graph(sources: Sources) -> FleetGraph {
    FleetGraph::new(sources, Arc::new(PlanningContext::default()))
}

fn name(graph: &FleetGraph, id: u64) -> String {
    graph.object(id).map(|object| format!("{}/{}", object.record.kind, object.record.key.name)).unwrap_or_default()
}

async fn find_paths(sources: Sources, pattern: &str) -> Vec<String> {
    let mut graph = graph(sources);
    let pattern: PathPattern = pattern.parse().unwrap();
    let found = find(&mut graph, &pattern, &PathLimits::default(), PathSelection::All).await.unwrap();
    assert!(
        found.limits_reached.is_empty() && graph.limits_reached.is_empty(),
        "{:?} {:?}",
        found.limits_reached,
        graph.limits_reached
    );
    let nodes = |path: Vec<u64>| path.iter().map(|id| name(&graph, *id)).collect::<Vec<_>>().join(" ");
    let mut paths: Vec<String> = found.paths.into_iter().map(|path| nodes(path.nodes)).collect();
    paths.sort();
    paths
}

#[rstest]
#[case::uses("secret/shop/db <-USES- deployment", &["Secret/db Deployment/web"])]
#[case::owns("secret/shop/db <-USES- deployment -OWNS*..3-> pod", &["Secret/db Deployment/web ReplicaSet/web-1 Pod/web-0"])]
#[case::owner("pod <-OWNS- *", &["Pod/web-0 ReplicaSet/web-1"])]
#[case::selects("service -SELECTS-> pod", &["Service/web Pod/web-0"])]
#[case::selected("pod/web-0 <-SELECTS- *", &["Pod/web-0 NetworkPolicy/all", "Pod/web-0 Service/web"])]
#[case::routes("ingress -ROUTES_TO*-> pod", &["Ingress/web Service/web EndpointSlice/web-x Pod/web-0"])]
#[case::routed("pod/web-0 <-ROUTES_TO*- ingress", &["Pod/web-0 EndpointSlice/web-x Service/web Ingress/web"])]
#[case::gateway("gateway -ROUTES_TO-> httproute -ROUTES_TO-> service", &["Gateway/edge HTTPRoute/web Service/web"])]
#[case::subject("serviceaccount/web <-SUBJECT- rolebinding -ROLE_REF-> *", &["ServiceAccount/web RoleBinding/web Role/web"])]
#[case::node("node/n1 <-RUNS_ON- pod", &["Node/n1 Pod/web-0"])]
#[case::nodes_are_named("node/n1 -- pod", &[])]
#[case::namespace("namespace/shop -CONTAINS-> secret", &["Namespace/shop Secret/db", "Namespace/shop Secret/db"])]
#[case::in_namespace("secret/db <-CONTAINS- *", &["Secret/db Namespace/shop", "Secret/db Namespace/shop"])]
#[case::event("event -ABOUT-> pod", &["Event/web-0.1 Pod/web-0"])]
#[case::copies("(:Deployment {cluster: '@control-plane'})-[:PROPAGATED_TO]->(:Deployment)", &["Deployment/web Deployment/web"])]
#[case::binding_and_work("resourcebinding -PROPAGATED_TO-> work -PROPAGATED_TO-> deployment", &["ResourceBinding/web-deployment Work/web-1 Deployment/web"])]
#[case::template("(:Pod)<-[:OWNS*2]-(:Deployment)<-[:PROPAGATED_TO]-(:Deployment)", &["Pod/web-0 ReplicaSet/web-1 Deployment/web Deployment/web"])]
#[case::missing_targets("pod -USES-> configmap", &[])]
#[case::other_clusters("(:Secret {cluster: '@control-plane'})<-[:USES]-(:Pod)", &[])]
#[case::group("deployments.example.io <-- *", &[])]
#[case::query("(:Pod {q: 'node:n1 -label:app=db'})<-[:SELECTS]-(:Service)", &["Pod/web-0 Service/web"])]
#[case::status("(:Pod {status: 'Running'})-[:USES]->(:Secret)", &["Pod/web-0 Secret/db"])]
#[case::nothing_starts("pod/other --> *", &[])]
#[case::bodies_are_read_later(
    "deployment/web -OWNS-> replicaset -OWNS-> pod -USES-> secret",
    &["Deployment/web ReplicaSet/web-1 Pod/web-0 Secret/db"]
)]
#[case::selectors_are_read_later("pod <-SELECTS- service <-ROUTES_TO- ingress", &["Pod/web-0 Service/web Ingress/web"])]
#[case::steps_end_at_a_kind("secret/db -*..3- ingress", &["Secret/db Pod/web-0 Service/web Ingress/web"])]
#[tokio::test]
async fn paths_follow_edges(#[case] pattern: &str, #[case] expected: &[&str]) {
    let fleet = fleet().await;
    let reversed = pattern.parse::<PathPattern>().unwrap().inverse().to_string();
    assert_eq!(find_paths(fleet.sources.clone(), pattern).await, expected, "{pattern}");
    let reverse = |path: &&str| path.split(' ').rev().collect::<Vec<_>>().join(" ");
    let mut expected: Vec<String> = expected.iter().map(reverse).collect();
    expected.sort();
    assert_eq!(find_paths(fleet.sources.clone(), &reversed).await, expected, "{reversed}");
}

#[rstest]
#[case::by_the_end("replicaset -OWNS-> pod", "metadata.ownerReferences")]
#[case::by_the_beginning("pod -RUNS_ON-> node", "spec.nodeName")]
#[case::against_the_edge("node <-RUNS_ON- pod", "spec.nodeName")]
#[case::by_a_selector("service/web -SELECTS-> pod", "spec.selector")]
#[case::by_annotations(
    "(:Deployment {cluster: '@control-plane'})-[:PROPAGATED_TO]->(:Deployment)",
    "metadata.annotations[resourcetemplate.karmada.io/uid]"
)]
#[tokio::test]
async fn edges_name_the_fields_that_state_them(#[case] pattern: &str, #[case] expected: &str) {
    let fleet = fleet().await;
    let mut graph = graph(fleet.sources.clone());
    let pattern: PathPattern = pattern.parse().unwrap();
    let found = find(&mut graph, &pattern, &PathLimits::default(), PathSelection::All).await.unwrap();
    let fields: Vec<Vec<String>> =
        found.paths.iter().flat_map(|path| &path.edges).map(|edge| graph.edge_fields(*edge)).collect();
    assert_eq!(fields, [[expected]], "{pattern}");
}

async fn find_reachable(sources: Sources, query: &str, direction: DependencyDirection) -> BTreeSet<String> {
    let mut graph = graph(sources.clone());
    let matches = plan(&parse(query, &Limits::default()).unwrap(), &PlanningContext::default()).matches;
    let roots = sources.engine.ids(&sources.context, &matches).await.unwrap().values;
    graph.read(&roots).await.unwrap();
    let found = closure(&mut graph, roots, direction, 8, &PathLimits::default()).await.unwrap();
    found.reached.iter().map(|reached| format!("{}:{}", name(&graph, reached.id), reached.distance)).collect()
}

#[rstest]
#[case::secret(
    "kind:secret cluster:member1",
    DependencyDirection::Dependents,
    "Deployment/web:1 EndpointSlice/web-x:2 Gateway/edge:5 HTTPRoute/web:4 Ingress/web:4 Pod/web-0:1 ReplicaSet/web-1:1 Service/web:3"
)]
#[case::template(
    "kind:deployment cluster:@control-plane",
    DependencyDirection::Dependents,
    "Deployment/web:1 EndpointSlice/web-x:4 Gateway/edge:7 HTTPRoute/web:6 Ingress/web:6 Pod/web-0:3 ReplicaSet/web-1:2 ResourceBinding/web-deployment:1 Service/web:5 Work/web-1:1"
)]
#[case::policy(
    "kind:networkpolicy",
    DependencyDirection::Dependents,
    "EndpointSlice/web-x:2 Gateway/edge:5 HTTPRoute/web:4 Ingress/web:4 Pod/web-0:1 Service/web:3"
)]
#[case::dependencies(
    "kind:replicaset",
    DependencyDirection::Dependencies,
    "Deployment/web:1 Deployment/web:2 Namespace/shop:1 Namespace/shop:3 ResourceBinding/web-deployment:3 Secret/db:1 ServiceAccount/web:1 Work/web-1:2"
)]
#[tokio::test]
async fn closures_follow_dependencies(
    #[case] query: &str,
    #[case] direction: DependencyDirection,
    #[case] expected: &str,
) {
    let fleet = fleet().await;
    let found = find_reachable(fleet.sources.clone(), query, direction).await;
    assert_eq!(found.into_iter().collect::<Vec<_>>().join(" "), expected);
}

/// A caller without permissions on an object finds nothing beyond it, and not the object itself.
#[tokio::test]
async fn permissions_end_paths() {
    let allowed = |resources: &[&'static str]| {
        let allowed = resources.iter().map(|resource| ("member1", *resource, "")).collect();
        Arc::new(rules_from(&allowed))
    };
    let fleet = fleet().await;
    let readable_sources = |rbac_rules: &Arc<RbacRules>| fleet.as_reader(rbac_rules, "ann");
    let pods_and_owners = allowed(&["pods", "replicasets", "deployments"]);
    let owned = "deployment -OWNS*-> pod";
    assert_eq!(
        find_paths(readable_sources(&pods_and_owners), owned).await,
        ["Deployment/web ReplicaSet/web-1 Pod/web-0"]
    );
    assert!(find_paths(readable_sources(&pods_and_owners), "pod -USES-> *").await.is_empty());
    let without_sets = allowed(&["pods", "deployments", "secrets"]);
    assert!(find_paths(readable_sources(&without_sets), owned).await.is_empty());
    assert_eq!(find_paths(readable_sources(&without_sets), "pod -USES-> *").await, ["Pod/web-0 Secret/db"]);
    let dependents =
        find_reachable(readable_sources(&without_sets), "kind:secret", DependencyDirection::Dependents).await;
    assert_eq!(dependents.into_iter().collect::<Vec<_>>(), ["Deployment/web:1", "Pod/web-0:1"]);
    let dependents =
        find_reachable(readable_sources(&pods_and_owners), "kind:secret", DependencyDirection::Dependents).await;
    assert!(dependents.is_empty());
}

#[rstest]
#[case::depends("reaches:secret/shop/db kind:deployment,ingress", "Deployment/web Ingress/web")]
#[case::depth("reaches:secret/shop/db depth:1", "Deployment/web Pod/web-0 ReplicaSet/web-1")]
#[case::dependencies(
    "reachedby:pod/shop/web-0 kind:secret,node,namespace",
    "Namespace/shop Namespace/shop Node/n1 Secret/db"
)]
#[case::not("kind:deployment -reaches:secret/shop/db", "Deployment/web")]
#[case::combined("reaches:secret/shop/db uses:secret/shop/db kind:pod", "Pod/web-0")]
#[tokio::test]
async fn queries_contain_dependencies(#[case] query: &str, #[case] expected: &str) {
    let fleet = fleet().await;
    let sources = fleet.sources.clone();
    let matches = plan(&parse(query, &Limits::default()).unwrap(), &PlanningContext::default()).matches;
    let matches = resolve_relations(&sources, matches).await.unwrap();
    let ids = sources.engine.ids(&sources.context, &matches).await.unwrap().values;
    let mut graph = graph(sources);
    graph.read(&ids).await.unwrap();
    let mut found: Vec<String> = ids.iter().map(|id| name(&graph, *id)).collect();
    found.sort();
    assert_eq!(found.join(" "), expected);
}

/// A search ends at the limits of objects and time, and names them.
#[tokio::test]
async fn limits_are_named() {
    let fleet = fleet().await;
    let pattern: PathPattern = "pod -USES-> secret".parse().unwrap();
    let mut few = graph(fleet.sources.clone());
    few.max_objects = 1;
    let found = find(&mut few, &pattern, &PathLimits::default(), PathSelection::All).await.unwrap();
    assert!(found.paths.is_empty());
    assert_eq!(few.limits_reached, BTreeSet::from([MAX_OBJECTS_NOTICE.to_owned()]));
    let mut late = graph(fleet.sources.with_deadline(fleet.sources.context.requested_at));
    let found = find(&mut late, &pattern, &PathLimits::default(), PathSelection::All).await.unwrap();
    assert!(found.paths.is_empty());
    let expected = "the time limit of 0 s was reached; some objects may be missing".to_owned();
    assert_eq!(late.limits_reached, BTreeSet::from([expected]));
}

/// A search may use most of the time until its deadline, however long ago the request arrived.
#[rstest]
#[case::at_once(0)]
#[case::long_after_the_request(600)]
#[tokio::test]
async fn a_search_leaves_time_for_the_response(#[case] seconds_since_request: u64) {
    let (fleet, now) = (fleet().await, Instant::now());
    let mut sources = fleet.sources.with_deadline(now + Duration::from_secs(60));
    sources.context.requested_at = now - Duration::from_secs(seconds_since_request);
    let graph = graph(sources);
    let (search, response) = (graph.sources().context.deadline, graph.response_context().deadline);
    assert!(now + Duration::from_secs(50) < search && search < response);
}

/// A dropped graph ends the work of its search, but not that of the request.
#[tokio::test]
async fn work_for_a_dropped_graph_ends() {
    let fleet = fleet().await;
    let graph = graph(fleet.sources.clone());
    let context = graph.response_context();
    assert!(!context.is_over() && context.deadline == fleet.sources.context.deadline);
    assert!(graph.sources().context.deadline < context.deadline);
    drop(graph);
    assert!(context.is_over() && !fleet.sources.context.is_over());
}

/// Records that exceed their limit are read for the response.
#[tokio::test]
async fn records_of_a_response_are_read_again() {
    let fleet = fleet().await;
    let pattern: PathPattern = "replicaset -OWNS-> pod -USES-> secret".parse().unwrap();
    let mut few = graph(fleet.sources.clone());
    few.max_records = 0;
    let found = find(&mut few, &pattern, &PathLimits::default(), PathSelection::All).await.unwrap();
    let ids: BTreeSet<u64> = found.paths.into_iter().flat_map(|path| path.nodes).collect();
    assert!(ids.len() == 3 && ids.iter().all(|id| few.object(*id).is_none()));
    // The last one was not found by the search.
    few.read_records(&ids.iter().copied().chain([u64::MAX >> 1]).collect()).await.unwrap();
    for id in ids {
        let (object, (key, kind)) = (few.object(id).unwrap(), few.identity(id).unwrap());
        assert_eq!((&object.record.key, &*object.record.kind, object.record.id), (key, kind, id));
        assert!(object.body.is_empty());
    }
}

#[tokio::test]
async fn users_rules_are_followed_in_both_directions() {
    let rule = json!({"group": "acme.io", "kind": "App", "path": "spec.database", "target": {"group": "acme.io", "kind": "Database"}});
    let rule: CustomRule = serde_json::from_value(rule).unwrap();
    let fleet = fleet().await;
    let sources = Sources { references: Arc::new([rule]), ..fleet.sources.clone() };
    assert_eq!(find_paths(sources.clone(), "app -USES-> database").await, ["App/shop Database/main"]);
    assert_eq!(find_paths(sources.clone(), "database <-USES- app").await, ["Database/main App/shop"]);
    assert!(find_paths(fleet.sources.clone(), "app -USES-> database").await.is_empty());
}
