//! Complete decisions of the scheduler: triggers, filters, affinities, selection and assignment.

use std::collections::BTreeMap;

use crowsnest_api::policy::Placement;
use crowsnest_api::work::{Component, ResourceBindingSpec, ResourceBindingStatus};
use crowsnest_plan::gates::Gates;
use crowsnest_plan::scheduling::{Peer, Plan, Report, TieBreak, divide};
use serde::Deserialize;
use serde_json::{Value, json};

use super::cases;
use super::scenario::{Member, SchedulingScenario};

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct SchedulingCase {
    clusters: BTreeMap<String, Member>,
    #[serde(default)]
    replicas: i32,
    /// Currently assigned replicas by cluster.
    #[serde(default)]
    assigned: BTreeMap<String, i32>,
    #[serde(default)]
    evicted: Vec<String>,
    #[serde(default)]
    placement: Placement,
    /// The placement of the previous decision, if any.
    #[serde(default)]
    applied: Option<Placement>,
    #[serde(default)]
    affinity: String,
    /// True if a reschedule was triggered.
    #[serde(default)]
    fresh: bool,
    #[serde(default)]
    components: Vec<Component>,
    #[serde(default)]
    groups: Value,
    #[serde(default)]
    peers: Vec<TestPeer>,
    #[serde(default)]
    propagate_empty: bool,
    #[serde(default)]
    uid: String,
    expected: String,
    /// Reasons for rejected clusters, by cluster.
    #[serde(default)]
    rejected: BTreeMap<String, String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[derive(Default)]
struct TestPeer {
    affinity: String,
    anti_affinity: String,
    clusters: Vec<String>,
}

impl SchedulingCase {
    fn spec(&self) -> ResourceBindingSpec {
        let target = |(name, replicas): (&String, &i32)| json!({"name": name, "replicas": replicas});
        let task = |cluster: &String| json!({"fromCluster": cluster, "reason": "r", "producer": "p"});
        let mut spec = json!({
            "resource": {"apiVersion": "apps/v1", "kind": "Deployment", "namespace": "n", "name": "d", "uid": self.uid},
            "replicas": self.replicas,
            "clusters": self.assigned.iter().map(target).collect::<Vec<_>>(),
            "gracefulEvictionTasks": self.evicted.iter().map(task).collect::<Vec<_>>(),
            "components": self.components,
            "placement": self.placement,
        });
        if self.fresh {
            spec["rescheduleTriggeredAt"] = json!("2026-01-02T00:00:00Z");
        }
        if !self.groups.is_null() {
            spec["workloadAffinityGroups"] = self.groups.clone();
        }
        serde_json::from_value(spec).expect("a spec")
    }

    fn decide(&self) -> (Plan, Report) {
        let to_peer = |peer: &TestPeer| Peer {
            affinity_group: peer.affinity.clone(),
            anti_affinity_group: peer.anti_affinity.clone(),
            clusters: peer.clusters.clone(),
        };
        let peers: Vec<Peer> = self.peers.iter().map(to_peer).collect();
        let status: ResourceBindingStatus = serde_json::from_value(json!({
            "schedulerObservingAffinityName": self.affinity, "lastScheduledTime": "2026-01-01T00:00:00Z",
        }))
        .expect("a status");
        let applied = self.applied.as_ref().map(|placement| json!(placement).to_string());
        let spec = self.spec();
        let members = self.clusters.iter().map(|(name, member)| (name.as_str(), member)).collect();
        let (peers, gates, propagate_empty) = (&*peers, Gates::all(), self.propagate_empty);
        let applied = applied.as_deref();
        SchedulingScenario { members, spec: &spec, status: &status, applied, peers, gates, propagate_empty }.decide()
    }
}

/// Assigned replicas as `m1=2 m2=4`, ordered by name, with the affinity name as a prefix.
pub fn format_plan(plan: &Plan) -> String {
    match plan {
        Plan::Keep => "keep".to_owned(),
        Plan::Clear { error } => format!("clear: {error}"),
        Plan::Fail { error } => format!("fail: {error}"),
        Plan::Schedule { clusters, affinity } => {
            let mut targets: Vec<String> =
                clusters.iter().map(|target| format!("{}={}", target.name, target.replicas)).collect();
            targets.sort();
            affinity.iter().map(|affinity| format!("{affinity}:")).chain(targets).collect::<Vec<_>>().join(" ")
        }
    }
}

fn check_fixture(fixture: &str) {
    let mut failures = Vec::new();
    for (name, case) in cases::<SchedulingCase>(fixture) {
        let (plan, report) = case.decide();
        if format_plan(&plan) != case.expected {
            failures.push(format!("{name}: is {:?}, should be {:?}", format_plan(&plan), case.expected));
        }
        let rejected: BTreeMap<String, String> = report
            .terms
            .iter()
            .flat_map(|term| &term.clusters)
            .filter_map(|cluster| {
                let rejection = cluster.rejected.as_ref()?;
                Some((cluster.name.clone(), format!("{}: {}", rejection.filter, rejection.reason)))
            })
            .collect();
        if !case.rejected.is_empty() && rejected != case.rejected {
            failures.push(format!("{name}: rejects {rejected:?}"));
        }
    }
    assert!(failures.is_empty(), "\n{}", failures.join("\n"));
}

#[test]
fn assignment() {
    check_fixture(include_str!("fixtures/assignment.yaml"));
}

#[test]
fn filters_and_affinities() {
    check_fixture(include_str!("fixtures/filters.yaml"));
}

#[test]
fn triggers() {
    check_fixture(include_str!("fixtures/triggers.yaml"));
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DivisionCase {
    seats: i32,
    votes: BTreeMap<String, i64>,
    #[serde(default)]
    descending: bool,
    expected: BTreeMap<String, i32>,
}

#[test]
fn division() {
    for (name, case) in cases::<DivisionCase>(include_str!("fixtures/division.yaml")) {
        let tie_break = if case.descending { TieBreak::NameDescending } else { TieBreak::NameAscending };
        let votes = case.votes.iter().map(|(name, votes)| (name.as_str(), *votes));
        let divided: BTreeMap<String, i32> =
            divide(case.seats, votes, tie_break).into_iter().map(|(name, seats)| (name.to_owned(), seats)).collect();
        assert_eq!(divided, case.expected, "{name}");
    }
}
