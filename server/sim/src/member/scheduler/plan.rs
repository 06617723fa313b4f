//! Scheduling decisions, without clock or client.
//!
//! The planner holds the nodes and their pods. [`Planner::place`] decides for one pod and reserves its resources, so
//! that a batch of decisions is consistent before any of them is written.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crowsnest_apimachinery::selector::{Selector, label_selector_matches};
use crowsnest_apimachinery::taints::tolerates;
use k8s_openapi::api::core::v1::{PodAffinityTerm, TopologySpreadConstraint};

use crate::member::Labels;
use crate::member::pod::PodState;

use super::fit::{NodeView, Unfit, fits, placeable, term_matches};

/// Node for a pod, or the reason why there is none.
#[derive(Debug, Clone)]
pub enum Decision {
    Node(Arc<str>),
    Nowhere {
        /// As in the `PodScheduled` condition and the FailedScheduling event.
        message: String,
        /// A node on which the pod would fit without these pods of lower priority.
        preempt: Option<Victims>,
    },
}

/// A node, and the pods to preempt on it.
type Victims = (Arc<str>, Vec<Arc<PodState>>);

/// A disruption budget, which preemption respects.
#[derive(Debug, Clone)]
pub struct Guard {
    pub namespace: Arc<str>,
    pub selector: Selector,
    /// Number of disruptions that it currently allows.
    pub allowed: i32,
}

impl Guard {
    fn covers(&self, pod: &PodState) -> bool {
        self.namespace == pod.key.namespace && self.selector.matches(&pod.labels)
    }
}

/// Nodes and the pods assigned to them.
#[derive(Debug, Default)]
pub struct Planner {
    nodes: BTreeMap<Arc<str>, NodeView>,
    /// Node of each assigned pod by UID.
    placed: HashMap<Arc<str>, Arc<str>>,
    /// Pods on unknown nodes, by node name.
    waiting: HashMap<Arc<str>, Vec<Arc<PodState>>>,
    /// Number of pods with the same owner per node.
    siblings: HashMap<(Arc<str>, Arc<str>), u32>,
    /// Assigned pods with required anti-affinity.
    exclusive: HashMap<Arc<str>, Arc<PodState>>,
}

impl Planner {
    /// Adds or updates a node.
    pub fn set_node(&mut self, mut node: NodeView) {
        let name = node.name.clone();
        if let Some(known) = self.nodes.remove(&name) {
            node.used = known.used;
            node.pods = known.pods;
        }
        self.nodes.insert(name.clone(), node);
        for pod in self.waiting.remove(&name).unwrap_or_default() {
            self.occupy(&name, &pod);
        }
    }

    pub fn remove_node(&mut self, name: &str) {
        let Some(node) = self.nodes.remove(name) else { return };
        for (uid, pod) in node.pods {
            self.placed.remove(&uid);
            self.exclusive.remove(&uid);
            self.siblings.remove(&(owner(&pod), node.name.clone()));
            self.waiting.entry(node.name.clone()).or_default().push(pod);
        }
    }

    /// Assigns a pod to a node.
    pub fn occupy(&mut self, name: &Arc<str>, pod: &Arc<PodState>) {
        match self.placed.get(&pod.uid) {
            Some(node) if node == name => return,
            Some(_) => self.vacate(&pod.uid),
            None => {}
        }
        let Some(node) = self.nodes.get_mut(name) else {
            let waiting = self.waiting.entry(name.clone()).or_default();
            if !waiting.iter().any(|known| known.uid == pod.uid) {
                waiting.push(pod.clone());
            }
            return;
        };
        node.used.add(&pod.spec.requests);
        node.pods.insert(pod.uid.clone(), pod.clone());
        self.placed.insert(pod.uid.clone(), name.clone());
        *self.siblings.entry((owner(pod), name.clone())).or_default() += 1;
        if !anti_affinity(pod).is_empty() {
            self.exclusive.insert(pod.uid.clone(), pod.clone());
        }
    }

    /// Removes the assignment of a pod.
    pub fn vacate(&mut self, uid: &str) {
        let Some(name) = self.placed.remove(uid) else {
            self.waiting.retain(|_, pods| {
                pods.retain(|pod| &*pod.uid != uid);
                !pods.is_empty()
            });
            return;
        };
        self.exclusive.remove(uid);
        let Some(node) = self.nodes.get_mut(&name) else { return };
        let Some(pod) = node.pods.remove(uid) else { return };
        node.used.subtract(&pod.spec.requests);
        let key = (owner(&pod), name);
        if let Some(count) = self.siblings.get_mut(&key) {
            *count -= 1;
            if *count == 0 {
                self.siblings.remove(&key);
            }
        }
    }

    /// Decides on a node and assigns the pod. `guards` are the budgets to respect if preemption is necessary.
    pub fn place(&mut self, pod: &Arc<PodState>, guards: impl FnOnce() -> Vec<Guard>) -> Decision {
        let mut unfit = Vec::new();
        let mut best: Option<(i64, Arc<str>)> = None;
        for (name, node) in &self.nodes {
            match fits(&pod.spec, node).and_then(|()| self.neighbours(pod, node)) {
                Ok(()) => {
                    let score = self.score(pod, node);
                    if best.as_ref().is_none_or(|(known, _)| score > *known) {
                        best = Some((score, name.clone()));
                    }
                }
                Err(why) => unfit.push((name.clone(), why)),
            }
        }
        if let Some((_, name)) = best {
            self.occupy(&name, pod);
            return Decision::Node(name);
        }
        let preempt = if pod.spec.never_preempts { None } else { self.victims(pod, &unfit, &guards()) };
        Decision::Nowhere { message: explain(self.nodes.len(), &unfit), preempt }
    }

    /// Score of a node; higher is better: free resources, few pods of the same owner, preferences.
    fn score(&self, pod: &PodState, node: &NodeView) -> i64 {
        let free = |have: i64, used: i64| if have <= 0 { 0 } else { (have - used).max(0) * 100 / have };
        let pods = i64::try_from(node.pods.len()).unwrap_or(i64::MAX);
        let room = free(node.allocatable.cpu_milli, node.used.cpu_milli)
            + free(node.allocatable.memory >> 20, node.used.memory >> 20)
            + free(node.max_pods, pods);
        let siblings = self.siblings.get(&(owner(pod), node.name.clone())).copied().unwrap_or_default();
        let avoided = node.taints.iter().filter(|taint| {
            taint.effect == "PreferNoSchedule"
                && !pod.spec.tolerations.iter().any(|toleration| tolerates(toleration, taint))
        });
        let preferred_weight: i64 = pod
            .spec
            .affinity
            .iter()
            .filter_map(|affinity| affinity.node_affinity.as_ref())
            .flat_map(|affinity| affinity.preferred_during_scheduling_ignored_during_execution.iter().flatten())
            .filter(|preferred| term_matches(&preferred.preference, node))
            .map(|preferred| i64::from(preferred.weight))
            .sum();
        room / 3 + preferred_weight * 2
            - i64::from(siblings) * 100
            - i64::try_from(avoided.count()).unwrap_or_default() * 300
    }

    /// Filters that depend on other pods: topology spread, affinity and anti-affinity.
    fn neighbours(&self, pod: &PodState, node: &NodeView) -> Result<(), Unfit> {
        for constraint in pod.spec.spread.iter().filter(|constraint| constraint.when_unsatisfiable == "DoNotSchedule") {
            self.spread(pod, node, constraint)?;
        }
        for term in affinity(pod) {
            if !self.near(pod, node, term) {
                return Err(Unfit::never("node(s) didn't match pod affinity rules"));
            }
        }
        for term in anti_affinity(pod) {
            if self.domain_has(pod, node, term) {
                return Err(Unfit::now(vec!["node(s) didn't match pod anti-affinity rules".into()]));
            }
        }
        let kept_away = self.exclusive.values().any(|other| {
            let there = self.placed.get(&other.uid).and_then(|name| self.nodes.get(name));
            anti_affinity(other).iter().any(|term| {
                let here = node.labels.get(&term.topology_key);
                here.is_some()
                    && here == there.and_then(|there| there.labels.get(&term.topology_key))
                    && selects(term, other, pod)
            })
        });
        if kept_away {
            return Err(Unfit::now(vec!["node(s) didn't satisfy existing pods anti-affinity rules".into()]));
        }
        Ok(())
    }

    fn spread(&self, pod: &PodState, node: &NodeView, constraint: &TopologySpreadConstraint) -> Result<(), Unfit> {
        let Some(here) = node.labels.get(&constraint.topology_key) else {
            return Err(Unfit::never("node(s) didn't match pod topology spread constraints (missing required label)"));
        };
        let selector = constraint.label_selector.as_ref().map(Selector::valid_or_nothing);
        let selected = |labels: &Labels| selector.as_ref().is_some_and(|selector| selector.matches(labels));
        let mut domains: HashMap<&str, i32> = HashMap::new();
        for other in self.nodes.values().filter(|other| super::fit::wants_node(&pod.spec, other)) {
            let Some(domain) = other.labels.get(&constraint.topology_key) else { continue };
            let count = other
                .pods
                .values()
                .filter(|pod_there| pod_there.key.namespace == pod.key.namespace && selected(&pod_there.labels));
            *domains.entry(domain).or_default() += i32::try_from(count.count()).unwrap_or(i32::MAX);
        }
        let fewest = domains.values().min().copied().unwrap_or_default();
        let with_pod = domains.get(here.as_str()).copied().unwrap_or_default() + i32::from(selected(&pod.labels));
        if with_pod - fewest > constraint.max_skew {
            return Err(Unfit::now(vec!["node(s) didn't match pod topology spread constraints".into()]));
        }
        Ok(())
    }

    /// Required affinity: a selected pod is in the domain, or the pod is the first of its own group.
    fn near(&self, pod: &PodState, node: &NodeView, term: &PodAffinityTerm) -> bool {
        if !node.labels.contains_key(&term.topology_key) {
            return false;
        }
        self.domain_has(pod, node, term) || (selects(term, pod, pod) && !self.anywhere(pod, term))
    }

    fn anywhere(&self, pod: &PodState, term: &PodAffinityTerm) -> bool {
        self.nodes.values().flat_map(|node| node.pods.values()).any(|other| selects(term, pod, other))
    }

    fn domain_has(&self, pod: &PodState, node: &NodeView, term: &PodAffinityTerm) -> bool {
        let Some(here) = node.labels.get(&term.topology_key) else { return false };
        let in_domain = self.nodes.values().filter(|other| other.labels.get(&term.topology_key) == Some(here));
        in_domain.flat_map(|node| node.pods.values()).any(|other| selects(term, pod, other))
    }

    /// The node with the least important victims: by violated budgets, priorities, then number of victims.
    fn victims(&self, pod: &PodState, unfit: &[(Arc<str>, Unfit)], guards: &[Guard]) -> Option<Victims> {
        let candidates = unfit.iter().filter(|(_, why)| why.preemptible).filter_map(|(name, _)| {
            let node = self.nodes.get(name)?;
            placeable(&pod.spec, node).ok()?;
            let (violations, victims) = self.victims_on(pod, node, guards)?;
            let highest = victims.iter().map(|victim| victim.spec.priority).max()?;
            let sum: i64 = victims.iter().map(|victim| i64::from(victim.spec.priority)).sum();
            Some(((violations, highest, sum, victims.len(), name.clone()), victims))
        });
        candidates.min_by(|a, b| a.0.cmp(&b.0)).map(|(rank, victims)| (rank.4, victims))
    }

    /// Pods of lower priority to preempt on a node, and how many of them violate a budget. All are removed, then as
    /// many as fit are restored, protected and important ones first.
    fn victims_on(&self, pod: &PodState, node: &NodeView, guards: &[Guard]) -> Option<(usize, Vec<Arc<PodState>>)> {
        let mut lower: Vec<&Arc<PodState>> = node
            .pods
            .values()
            .filter(|other| other.spec.priority < pod.spec.priority && other.deletion.is_none())
            .collect();
        lower.sort_by(|a, b| (b.spec.priority, a.created, &a.key).cmp(&(a.spec.priority, b.created, &b.key)));
        let mut emptied = node.clone();
        let remove = |from: &mut NodeView, victim: &PodState| {
            from.used.subtract(&victim.spec.requests);
            from.pods.remove(&victim.uid);
        };
        lower.iter().for_each(|victim| remove(&mut emptied, victim));
        let fits_on = |node: &NodeView| fits(&pod.spec, node).is_ok() && self.neighbours(pod, node).is_ok();
        if !fits_on(&emptied) {
            return None;
        }
        let mut left: Vec<i32> = guards.iter().map(|guard| guard.allowed).collect();
        let mut is_protected = |victim: &PodState| {
            let mut broken = false;
            for (_, left) in guards.iter().zip(&mut left).filter(|(guard, _)| guard.covers(victim)) {
                *left -= 1;
                broken |= *left < 0;
            }
            broken
        };
        let (protected, others): (Vec<_>, Vec<_>) = lower.into_iter().partition(|victim| is_protected(victim));
        let mut put_back = |victim: &Arc<PodState>| {
            emptied.used.add(&victim.spec.requests);
            emptied.pods.insert(victim.uid.clone(), victim.clone());
            let stays = fits_on(&emptied);
            if !stays {
                remove(&mut emptied, victim);
            }
            stays
        };
        let mut victims: Vec<Arc<PodState>> = protected.into_iter().filter(|pod| !put_back(pod)).cloned().collect();
        let violations = victims.len();
        victims.extend(others.into_iter().filter(|pod| !put_back(pod)).cloned());
        (!victims.is_empty()).then_some((violations, victims))
    }
}

fn owner(pod: &PodState) -> Arc<str> {
    pod.owner.as_ref().map_or_else(|| pod.uid.clone(), |owner| owner.uid.clone())
}

fn affinity(pod: &PodState) -> &[PodAffinityTerm] {
    let affinity = pod.spec.affinity.as_ref().and_then(|affinity| affinity.pod_affinity.as_ref());
    affinity
        .and_then(|affinity| affinity.required_during_scheduling_ignored_during_execution.as_deref())
        .unwrap_or_default()
}

fn anti_affinity(pod: &PodState) -> &[PodAffinityTerm] {
    let affinity = pod.spec.affinity.as_ref().and_then(|affinity| affinity.pod_anti_affinity.as_ref());
    affinity
        .and_then(|affinity| affinity.required_during_scheduling_ignored_during_execution.as_deref())
        .unwrap_or_default()
}

/// True if a term of `holder` selects `other`. A namespace selector is treated as selecting all namespaces.
fn selects(term: &PodAffinityTerm, holder: &PodState, other: &PodState) -> bool {
    let named = term.namespaces.as_deref().unwrap_or_default();
    let in_namespace = term.namespace_selector.is_some()
        || named.iter().any(|name| **name == *other.key.namespace)
        || (named.is_empty() && holder.key.namespace == other.key.namespace);
    in_namespace && term.label_selector.as_ref().is_some_and(|selector| label_selector_matches(selector, &other.labels))
}

/// kube-scheduler's message for a pod that fits on no node.
fn explain(nodes: usize, unfit: &[(Arc<str>, Unfit)]) -> String {
    if nodes == 0 {
        return "no nodes available to schedule pods".into();
    }
    let mut reasons: BTreeMap<&str, usize> = BTreeMap::new();
    for reason in unfit.iter().flat_map(|(_, why)| &why.reasons) {
        *reasons.entry(reason).or_default() += 1;
    }
    let helpless = unfit.iter().filter(|(_, why)| !why.preemptible).count();
    let mut preemption = Vec::new();
    if unfit.len() > helpless {
        preemption.push(format!("{} No preemption victims found for incoming pod", unfit.len() - helpless));
    }
    if helpless > 0 {
        preemption.push(format!("{helpless} Preemption is not helpful for scheduling"));
    }
    format!(
        "0/{nodes} nodes are available: {}. no new claims to deallocate, preemption: 0/{nodes} nodes are available: {}.",
        counted(reasons),
        sorted(preemption)
    )
}

fn counted(reasons: BTreeMap<&str, usize>) -> String {
    sorted(reasons.into_iter().map(|(reason, count)| format!("{count} {reason}")).collect())
}

fn sorted(mut parts: Vec<String>) -> String {
    parts.sort();
    parts.join(", ")
}

#[cfg(test)]
mod tests {
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
        Arc::new(Interner::default().pod(serde_json::from_value(pod).unwrap()))
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

    fn outcome(planner: &mut Planner, pod: &Arc<PodState>) -> String {
        match planner.place(pod, Vec::new) {
            Decision::Node(name) => name.to_string(),
            Decision::Nowhere { message, .. } => message,
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
            outcome(&mut planner, &pod("p", json!({"cpu": "2"}))),
            "0/4 nodes are available: 1 Too many pods, 1 node(s) had untolerated taint {k: v}, 1 node(s) were unschedulable, \
             2 Insufficient cpu. no new claims to deallocate, preemption: 0/4 nodes are available: \
             2 No preemption victims found for incoming pod, 2 Preemption is not helpful for scheduling."
        );
        assert_eq!(outcome(&mut Planner::default(), &pod("p", json!({}))), "no nodes available to schedule pods");
    }

    #[test]
    fn spread_and_affinity_are_respected() {
        let nodes = || {
            vec![node("a", "8", "110", json!({})), node("b", "8", "110", json!({})), node("c", "8", "110", json!({}))]
        };
        let mut free = planner(nodes());
        let mut names: Vec<_> =
            (0..3).map(|i| outcome(&mut free, &pod(&format!("p{i}"), json!({"cpu": "1"})))).collect();
        names.sort();
        assert_eq!(names, ["a", "b", "c"]);

        let alone = json!({"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
            {"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "web"}}}]}}});
        let mut strict = planner(nodes());
        for i in 0..3 {
            assert!(outcome(&mut strict, &pod(&format!("p{i}"), alone.clone())).len() == 1);
        }
        assert!(outcome(&mut strict, &pod("p3", alone)).contains("3 node(s) didn't match pod anti-affinity rules"));
        assert!(
            outcome(&mut strict, &pod("p4", json!({})))
                .contains("3 node(s) didn't satisfy existing pods anti-affinity rules")
        );

        let picked = json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
            {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["b"]}]}]}}}});
        assert_eq!(outcome(&mut planner(nodes()), &pod("d", picked)), "b");
        let elsewhere = outcome(&mut planner(nodes()), &pod("d", json!({"nodeSelector": {"gpu": "yes"}})));
        assert!(
            elsewhere.starts_with("0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector."),
            "{elsewhere}"
        );
    }

    #[test]
    fn least_important_pods_are_preempted() {
        let mut planner = planner(vec![node("a", "2", "110", json!({}))]);
        for (name, priority) in [("low", 1), ("mid", 5)] {
            assert_eq!(outcome(&mut planner, &pod(name, json!({"cpu": "1", "priority": priority}))), "a");
        }
        let Decision::Nowhere { preempt: Some((node, victims)), .. } =
            planner.place(&pod("vip", json!({"cpu": "1", "priority": 9})), Vec::new)
        else {
            panic!("no preemption")
        };
        assert_eq!((&*node, victims.len(), &*victims[0].key.name), ("a", 1, "low"));
    }

    #[rstest::rstest]
    // Without a budget, the least important pod is preempted; with one, the pod of the node without a protected pod.
    #[case(&[], "a low")]
    #[case(&[("low", 0)], "b mid")]
    #[case(&[("low", 1)], "a low")]
    #[case(&[("low", 0), ("mid", 0)], "a low")]
    fn preemption_respects_budgets(#[case] budgets: &[(&str, i32)], #[case] expected: &str) {
        let mut planner = planner(vec![node("a", "1", "110", json!({})), node("b", "1", "110", json!({}))]);
        for (name, node, priority) in [("low", "a", 1), ("mid", "b", 5)] {
            let mut pod = PodState::clone(&pod(name, json!({"cpu": "1", "priority": priority})));
            pod.labels = Arc::new([("name".to_owned(), name.to_owned())].into());
            planner.occupy(&node.into(), &Arc::new(pod));
        }
        let guards = || {
            let guard = |(name, allowed): &(&str, i32)| Guard {
                namespace: "ns".into(),
                selector: Selector::from_json(Some(&json!({"matchLabels": {"name": name}}))).unwrap(),
                allowed: *allowed,
            };
            budgets.iter().map(guard).collect()
        };
        let Decision::Nowhere { preempt: Some((node, victims)), .. } =
            planner.place(&pod("vip", json!({"cpu": "1", "priority": 9})), guards)
        else {
            panic!("no preemption")
        };
        let names: Vec<&str> = victims.iter().map(|victim| &*victim.key.name).collect();
        assert_eq!(format!("{node} {}", names.join(" ")), expected);
    }

    proptest! {
        /// Nodes are never overcommitted, and removal of pods frees all resources.
        #[test]
        fn never_overcommits(cpus in proptest::collection::vec(1i64..2000, 1..60)) {
            let mut planner = planner(vec![node("a", "4", "20", json!({})), node("b", "2", "20", json!({}))]);
            let pods: Vec<_> = cpus.iter().enumerate().map(|(i, cpu)| pod(&format!("p{i}"), json!({"cpu": format!("{cpu}m")}))).collect();
            for pod in &pods {
                planner.place(pod, Vec::new);
            }
            for node in planner.nodes.values() {
                prop_assert!(node.used.cpu_milli <= node.allocatable.cpu_milli && node.pods.len() <= 20);
            }
            for pod in &pods {
                planner.vacate(&pod.uid);
            }
            prop_assert!(planner.nodes.values().all(|node| node.used.entries().is_empty() && node.pods.is_empty()));
            prop_assert!(planner.siblings.is_empty());
        }
    }
}
