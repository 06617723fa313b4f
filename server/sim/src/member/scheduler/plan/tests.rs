//! Tests of placements and preemption.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::member::interner::Interner;

fn pod(name: &str, spec: Value) -> Arc<PodState> {
    let mut spec = spec;
    if spec.get("containers").is_none() {
        let cpu = spec["cpu"].as_str().unwrap_or("0").to_owned();
        spec["containers"] = json!([{"name": "c", "image": "i", "resources": {"requests": {"cpu": cpu}}}]);
    }
    let pod =
        json!({"metadata": {"name": name, "namespace": "ns", "uid": name, "labels": {"app": "web"}}, "spec": spec});
    Arc::new(Interner::default().intern_pod(serde_json::from_value(pod).unwrap()))
}

fn node(name: &str, cpu: &str, pods: &str, extra: Value) -> NodeView {
    let node = json!({"metadata": {"name": name, "labels": {"zone": extra["zone"].as_str().unwrap_or(name)}},
        "spec": {"taints": extra["taints"], "unschedulable": extra["cordoned"]},
        "status": {"allocatable": {"cpu": cpu, "memory": "1Gi", "pods": pods}}});
    NodeView::new(&serde_json::from_value(node).unwrap())
}

fn planner(nodes: Vec<NodeView>) -> Planner {
    let mut planner = Planner::default();
    for node in nodes {
        planner.set_node(node);
    }
    planner
}

/// Name of the selected node, or the message of an unschedulable pod.
fn schedule(planner: &mut Planner, pod: &Arc<PodState>) -> String {
    match planner.schedule(pod, Vec::new) {
        Decision::Node(name) => name.to_string(),
        Decision::Unschedulable { message, .. } => message,
    }
}

#[test]
fn messages_match_kube_scheduler() {
    let tainted = json!({"taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}]});
    let mut planner = planner(vec![
        node("a", "1", "110", json!({})),
        node("b", "1", "0", json!({})),
        node("c", "8", "110", tainted),
        node("d", "8", "110", json!({"cordoned": true})),
    ]);
    assert_eq!(
        schedule(&mut planner, &pod("p", json!({"cpu": "2"}))),
        "0/4 nodes are available: 1 Too many pods, 1 node(s) had untolerated taint {k: v}, 1 node(s) were unschedulable, \
         2 Insufficient cpu. no new claims to deallocate, preemption: 0/4 nodes are available: \
         2 No preemption victims found for incoming pod, 2 Preemption is not helpful for scheduling."
    );
    assert_eq!(schedule(&mut Planner::default(), &pod("p", json!({}))), "no nodes available to schedule pods");
}

#[test]
fn spread_and_affinity_are_respected() {
    let nodes =
        || vec![node("a", "8", "110", json!({})), node("b", "8", "110", json!({})), node("c", "8", "110", json!({}))];
    let mut free = planner(nodes());
    let mut names: Vec<_> = (0..3).map(|i| schedule(&mut free, &pod(&format!("p{i}"), json!({"cpu": "1"})))).collect();
    names.sort();
    assert_eq!(names, ["a", "b", "c"]);

    let anti_affinity = json!({"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
        {"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "web"}}}]}}});
    let mut strict = planner(nodes());
    for i in 0..3 {
        assert!(schedule(&mut strict, &pod(&format!("p{i}"), anti_affinity.clone())).len() == 1);
    }
    assert!(
        schedule(&mut strict, &pod("p3", anti_affinity)).contains("3 node(s) didn't match pod anti-affinity rules")
    );
    assert!(
        schedule(&mut strict, &pod("p4", json!({})))
            .contains("3 node(s) didn't satisfy existing pods anti-affinity rules")
    );

    let node_b_only = json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["b"]}]}]}}}});
    assert_eq!(schedule(&mut planner(nodes()), &pod("d", node_b_only)), "b");
    let message = schedule(&mut planner(nodes()), &pod("d", json!({"nodeSelector": {"gpu": "yes"}})));
    assert!(
        message.starts_with("0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector."),
        "{message}"
    );
}

#[test]
fn the_pod_with_the_lowest_priority_is_preempted() {
    let mut planner = planner(vec![node("a", "2", "110", json!({}))]);
    for (name, priority) in [("low", 1), ("mid", 5)] {
        assert_eq!(schedule(&mut planner, &pod(name, json!({"cpu": "1", "priority": priority}))), "a");
    }
    let Decision::Unschedulable { preemption: Some((node, victims)), .. } =
        planner.schedule(&pod("vip", json!({"cpu": "1", "priority": 9})), Vec::new)
    else {
        panic!("no preemption")
    };
    assert_eq!((&*node, victims.len(), &*victims[0].key.name), ("a", 1, "low"));
}

#[rstest::rstest]
// The pod with the lowest priority is preempted, unless its budget forbids this and no budget protects the other pod.
#[case(&[], "a low")]
#[case(&[("low", 0)], "b mid")]
#[case(&[("low", 1)], "a low")]
#[case(&[("low", 0), ("mid", 0)], "a low")]
fn preemption_avoids_violations_of_budgets(#[case] budgets: &[(&str, i32)], #[case] expected: &str) {
    let mut planner = planner(vec![node("a", "1", "110", json!({})), node("b", "1", "110", json!({}))]);
    for (name, node, priority) in [("low", "a", 1), ("mid", "b", 5)] {
        let mut pod = PodState::clone(&pod(name, json!({"cpu": "1", "priority": priority})));
        pod.labels = Arc::new([("name".to_owned(), name.to_owned())].into());
        planner.assign(&node.into(), &Arc::new(pod));
    }
    let disruption_budgets = || {
        let budget = |(name, allowed): &(&str, i32)| Budget {
            namespace: "ns".into(),
            selector: Selector::from_json(Some(&json!({"matchLabels": {"name": name}}))).unwrap(),
            allowed_disruptions: *allowed,
        };
        budgets.iter().map(budget).collect()
    };
    let Decision::Unschedulable { preemption: Some((node, victims)), .. } =
        planner.schedule(&pod("vip", json!({"cpu": "1", "priority": 9})), disruption_budgets)
    else {
        panic!("no preemption")
    };
    let names: Vec<&str> = victims.iter().map(|victim| &*victim.key.name).collect();
    assert_eq!(format!("{node} {}", names.join(" ")), expected);
}

proptest! {
    /// Nodes are never overcommitted, and removal of pods frees all resources.
    #[test]
    fn nodes_are_never_overcommitted(cpus in proptest::collection::vec(1i64..2000, 1..60)) {
        let mut planner = planner(vec![node("a", "4", "20", json!({})), node("b", "2", "20", json!({}))]);
        let pods: Vec<_> = cpus.iter().enumerate().map(|(i, cpu)| pod(&format!("p{i}"), json!({"cpu": format!("{cpu}m")}))).collect();
        for pod in &pods {
            planner.schedule(pod, Vec::new);
        }
        for node in planner.nodes.values() {
            prop_assert!(node.used.cpu_milli <= node.allocatable.cpu_milli && node.pods.len() <= 20);
        }
        for pod in &pods {
            planner.unassign(&pod.uid);
        }
        prop_assert!(planner.nodes.values().all(|node| node.used.entries().is_empty() && node.pods.is_empty()));
        prop_assert!(planner.pods_by_owner.is_empty());
    }
}
