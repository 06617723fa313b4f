//! Clusters that an affinity selects, and the precision with which a selector matches a template.

use crowsnest_api::cluster::Cluster;
use crowsnest_api::policy::{ClusterAffinity, ResourceSelector};
use crowsnest_plan::selector::{best_precision, cluster_matches};
use serde::Deserialize;
use serde_json::{Value, json};

use super::cases;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AffinityCase {
    affinity: ClusterAffinity,
    /// Replaces the default cluster.
    #[serde(default)]
    cluster: Option<Cluster>,
    matches: bool,
}

#[test]
fn clusters() {
    let default_cluster: Cluster = serde_json::from_value(json!({
        "metadata": {"name": "m1", "labels": {"foo": "bar"}},
        "spec": {"syncMode": "Push", "zones": ["z1", "z2", "z3"], "region": "r1", "provider": "p1"},
    }))
    .expect("a cluster");
    let mut failures = Vec::new();
    for (name, case) in cases::<AffinityCase>(include_str!("fixtures/affinities.yaml")) {
        if cluster_matches(case.cluster.as_ref().unwrap_or(&default_cluster), &case.affinity) != case.matches {
            failures.push(name);
        }
    }
    assert!(failures.is_empty(), "unexpected results: {failures:#?}");
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SelectorsCase {
    selectors: Vec<ResourceSelector>,
    /// `null` if no selector matches.
    precision: Value,
}

#[test]
fn templates() {
    let template = json!({"apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "web", "namespace": "shop", "labels": {"app": "nginx"}}});
    for (name, case) in cases::<SelectorsCase>(include_str!("fixtures/selectors.yaml")) {
        assert_eq!(json!(best_precision(&case.selectors, &template)), case.precision, "{name}");
    }
}
