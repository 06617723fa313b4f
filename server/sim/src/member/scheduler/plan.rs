//! Scheduling decisions, without clock or client.
//!
//! The planner contains the nodes and their pods. [`Planner::schedule`] decides for one pod and reserves its resources, so
//! that a batch of decisions is consistent before any of them is written.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crowsnest_apimachinery::selector::{Selector, label_selector_matches};
use crowsnest_apimachinery::taints::tolerates;
use k8s_openapi::api::core::v1::{PodAffinityTerm, TopologySpreadConstraint};

use crate::member::Labels;
use crate::member::pod::PodState;

use super::fit::{FilterFailure, NodeView, check_fit, check_static_filters, term_matches};

/// Decision for a pod: its node, or the reason why there is none.
#[derive(Debug, Clone)]
pub enum Decision {
    Node(Arc<str>),
    Unschedulable {
        /// Message of the PodScheduled condition and the FailedScheduling event.
        message: String,
        /// A node on which the pod would fit without these pods of lower priority.
        preemption: Option<Victims>,
    },
}

/// A node, and the pods to preempt on it.
type Victims = (Arc<str>, Vec<Arc<PodState>>);

/// A PodDisruptionBudget, which preemption respects if possible.
#[derive(Debug, Clone)]
pub struct Budget {
    pub namespace: Arc<str>,
    pub selector: Selector,
    /// Number of disruptions that it currently allows.
    pub allowed_disruptions: i32,
}

impl Budget {
    fn covers(&self, pod: &PodState) -> bool {
        self.namespace == pod.key.namespace && self.selector.matches(&pod.labels)
    }
}

/// Nodes and the pods assigned to them.
#[derive(Debug, Default)]
pub struct Planner {
    nodes: BTreeMap<Arc<str>, NodeView>,
    /// Node of each assigned pod by UID.
    node_by_pod: HashMap<Arc<str>, Arc<str>>,
    /// Pods on unknown nodes, by node name.
    pods_on_unknown_nodes: HashMap<Arc<str>, Vec<Arc<PodState>>>,
    /// Number of pods by UID of the owner and name of the node.
    pods_by_owner: HashMap<(Arc<str>, Arc<str>), u32>,
    /// Assigned pods with required anti-affinity, by UID.
    anti_affinity_pods: HashMap<Arc<str>, Arc<PodState>>,
}

impl Planner {
    /// Adds or updates a node.
    pub fn set_node(&mut self, mut node: NodeView) {
        let name = node.name.clone();
        if let Some(previous) = self.nodes.remove(&name) {
            node.used = previous.used;
            node.pods = previous.pods;
        }
        self.nodes.insert(name.clone(), node);
        for pod in self.pods_on_unknown_nodes.remove(&name).unwrap_or_default() {
            self.assign(&name, &pod);
        }
    }

    /// Removes a node. Its pods are assigned again if it is added again.
    pub fn remove_node(&mut self, name: &str) {
        let Some(node) = self.nodes.remove(name) else { return };
        for (uid, pod) in node.pods {
            self.node_by_pod.remove(&uid);
            self.anti_affinity_pods.remove(&uid);
            self.pods_by_owner.remove(&(owner_uid(&pod), node.name.clone()));
            self.pods_on_unknown_nodes.entry(node.name.clone()).or_default().push(pod);
        }
    }

    /// Assigns a pod to a node.
    pub fn assign(&mut self, name: &Arc<str>, pod: &Arc<PodState>) {
        match self.node_by_pod.get(&pod.uid) {
            Some(node) if node == name => return,
            Some(_) => self.unassign(&pod.uid),
            None => {}
        }
        let Some(node) = self.nodes.get_mut(name) else {
            let pods = self.pods_on_unknown_nodes.entry(name.clone()).or_default();
            if !pods.iter().any(|unplaced| unplaced.uid == pod.uid) {
                pods.push(pod.clone());
            }
            return;
        };
        node.used.add(&pod.spec.requests);
        node.pods.insert(pod.uid.clone(), pod.clone());
        self.node_by_pod.insert(pod.uid.clone(), name.clone());
        *self.pods_by_owner.entry((owner_uid(pod), name.clone())).or_default() += 1;
        if !anti_affinity(pod).is_empty() {
            self.anti_affinity_pods.insert(pod.uid.clone(), pod.clone());
        }
    }

    /// Removes the assignment of a pod.
    pub fn unassign(&mut self, uid: &str) {
        let Some(name) = self.node_by_pod.remove(uid) else {
            self.pods_on_unknown_nodes.retain(|_, pods| {
                pods.retain(|pod| &*pod.uid != uid);
                !pods.is_empty()
            });
            return;
        };
        self.anti_affinity_pods.remove(uid);
        let Some(node) = self.nodes.get_mut(&name) else { return };
        let Some(pod) = node.pods.remove(uid) else { return };
        node.used.subtract(&pod.spec.requests);
        let key = (owner_uid(&pod), name);
        if let Some(count) = self.pods_by_owner.get_mut(&key) {
            *count -= 1;
            if *count == 0 {
                self.pods_by_owner.remove(&key);
            }
        }
    }

    /// Selects a node and assigns the pod to it. `budgets` is called if preemption is necessary.
    pub fn schedule(&mut self, pod: &Arc<PodState>, budgets: impl FnOnce() -> Vec<Budget>) -> Decision {
        let mut failures = Vec::new();
        let mut best: Option<(i64, Arc<str>)> = None;
        for (name, node) in &self.nodes {
            match check_fit(&pod.spec, node).and_then(|()| self.check_topology(pod, node)) {
                Ok(()) => {
                    let score = self.score(pod, node);
                    if best.as_ref().is_none_or(|(best_score, _)| score > *best_score) {
                        best = Some((score, name.clone()));
                    }
                }
                Err(failure) => failures.push((name.clone(), failure)),
            }
        }
        if let Some((_, name)) = best {
            self.assign(&name, pod);
            return Decision::Node(name);
        }
        let preemption = if pod.spec.never_preempts { None } else { self.select_victims(pod, &failures, &budgets()) };
        Decision::Unschedulable { message: unschedulable_message(self.nodes.len(), &failures), preemption }
    }

    /// Score of a node; higher is better: free resources, few pods of the same owner, preferences.
    fn score(&self, pod: &PodState, node: &NodeView) -> i64 {
        let free_percent = |total: i64, used: i64| if total <= 0 { 0 } else { (total - used).max(0) * 100 / total };
        let pods = i64::try_from(node.pods.len()).unwrap_or(i64::MAX);
        let free_percent_sum = free_percent(node.allocatable.cpu_milli, node.used.cpu_milli)
            + free_percent(node.allocatable.memory_bytes >> 20, node.used.memory_bytes >> 20)
            + free_percent(node.max_pods, pods);
        let siblings = self.pods_by_owner.get(&(owner_uid(pod), node.name.clone())).copied().unwrap_or_default();
        let untolerated_taints = node.taints.iter().filter(|taint| {
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
        free_percent_sum / 3 + preferred_weight * 2
            - i64::from(siblings) * 100
            - i64::try_from(untolerated_taints.count()).unwrap_or_default() * 300
    }

    /// Runs the filters that depend on pods of other nodes: topology spread, affinity and anti-affinity.
    fn check_topology(&self, pod: &PodState, node: &NodeView) -> Result<(), FilterFailure> {
        for constraint in
            pod.spec.topology_spread.iter().filter(|constraint| constraint.when_unsatisfiable == "DoNotSchedule")
        {
            self.check_topology_spread(pod, node, constraint)?;
        }
        for term in affinity(pod) {
            if !self.satisfies_affinity(pod, node, term) {
                return Err(FilterFailure::unresolvable("node(s) didn't match pod affinity rules"));
            }
        }
        for term in anti_affinity(pod) {
            if self.domain_has(pod, node, term) {
                return Err(FilterFailure::resolvable(vec!["node(s) didn't match pod anti-affinity rules".into()]));
            }
        }
        let is_excluded = self.anti_affinity_pods.values().any(|existing_pod| {
            let existing_node = self.node_by_pod.get(&existing_pod.uid).and_then(|name| self.nodes.get(name));
            anti_affinity(existing_pod).iter().any(|term| {
                let domain = node.labels.get(&term.topology_key);
                domain.is_some()
                    && domain == existing_node.and_then(|existing_node| existing_node.labels.get(&term.topology_key))
                    && selects(term, existing_pod, pod)
            })
        });
        if is_excluded {
            return Err(FilterFailure::resolvable(vec![
                "node(s) didn't satisfy existing pods anti-affinity rules".into(),
            ]));
        }
        Ok(())
    }

    fn check_topology_spread(
        &self,
        pod: &PodState,
        node: &NodeView,
        constraint: &TopologySpreadConstraint,
    ) -> Result<(), FilterFailure> {
        let Some(node_domain) = node.labels.get(&constraint.topology_key) else {
            return Err(FilterFailure::unresolvable(
                "node(s) didn't match pod topology spread constraints (missing required label)",
            ));
        };
        let selector = constraint.label_selector.as_ref().map(Selector::from_label_selector_or_nothing);
        let is_selected = |labels: &Labels| selector.as_ref().is_some_and(|selector| selector.matches(labels));
        let mut domains: HashMap<&str, i32> = HashMap::new();
        for candidate in self.nodes.values().filter(|candidate| super::fit::matches_node_affinity(&pod.spec, candidate))
        {
            let Some(domain) = candidate.labels.get(&constraint.topology_key) else { continue };
            let count = candidate.pods.values().filter(|candidate_pod| {
                candidate_pod.key.namespace == pod.key.namespace && is_selected(&candidate_pod.labels)
            });
            *domains.entry(domain).or_default() += i32::try_from(count.count()).unwrap_or(i32::MAX);
        }
        let min_count = domains.values().min().copied().unwrap_or_default();
        let count_with_pod =
            domains.get(node_domain.as_str()).copied().unwrap_or_default() + i32::from(is_selected(&pod.labels));
        if count_with_pod - min_count > constraint.max_skew {
            return Err(FilterFailure::resolvable(vec!["node(s) didn't match pod topology spread constraints".into()]));
        }
        Ok(())
    }

    /// True if a required affinity term is satisfied: a selected pod is in the topology domain, or the term selects the
    /// pod itself and no other pod.
    fn satisfies_affinity(&self, pod: &PodState, node: &NodeView, term: &PodAffinityTerm) -> bool {
        if !node.labels.contains_key(&term.topology_key) {
            return false;
        }
        self.domain_has(pod, node, term) || (selects(term, pod, pod) && !self.cluster_has(pod, term))
    }

    fn cluster_has(&self, pod: &PodState, term: &PodAffinityTerm) -> bool {
        self.nodes.values().flat_map(|node| node.pods.values()).any(|existing_pod| selects(term, pod, existing_pod))
    }

    fn domain_has(&self, pod: &PodState, node: &NodeView, term: &PodAffinityTerm) -> bool {
        let Some(domain) = node.labels.get(&term.topology_key) else { return false };
        let domain_nodes =
            self.nodes.values().filter(|domain_node| domain_node.labels.get(&term.topology_key) == Some(domain));
        domain_nodes.flat_map(|node| node.pods.values()).any(|existing_pod| selects(term, pod, existing_pod))
    }

    /// Selects the node with the least important victims: by violated budgets, priorities, then number of victims.
    fn select_victims(
        &self,
        pod: &PodState,
        failures: &[(Arc<str>, FilterFailure)],
        budgets: &[Budget],
    ) -> Option<Victims> {
        let candidates = failures.iter().filter(|(_, failure)| failure.is_resolvable).filter_map(|(name, _)| {
            let node = self.nodes.get(name)?;
            check_static_filters(&pod.spec, node).ok()?;
            let (violations, victims) = self.select_victims_on(pod, node, budgets)?;
            let highest = victims.iter().map(|victim| victim.spec.priority).max()?;
            let sum: i64 = victims.iter().map(|victim| i64::from(victim.spec.priority)).sum();
            Some(((violations, highest, sum, victims.len(), name.clone()), victims))
        });
        candidates.min_by(|a, b| a.0.cmp(&b.0)).map(|(rank, victims)| (rank.4, victims))
    }

    /// Selects pods of lower priority to preempt on a node, and returns how many of them violate a budget. All are
    /// removed, then as many as fit are restored: first those that would violate a budget, then by priority.
    fn select_victims_on(
        &self,
        pod: &PodState,
        node: &NodeView,
        budgets: &[Budget],
    ) -> Option<(usize, Vec<Arc<PodState>>)> {
        let mut candidates: Vec<&Arc<PodState>> = node
            .pods
            .values()
            .filter(|node_pod| node_pod.spec.priority < pod.spec.priority && node_pod.deletion.is_none())
            .collect();
        candidates.sort_by(|a, b| (b.spec.priority, a.created, &a.key).cmp(&(a.spec.priority, b.created, &b.key)));
        let mut node_after_eviction = node.clone();
        let remove = |from: &mut NodeView, victim: &PodState| {
            from.used.subtract(&victim.spec.requests);
            from.pods.remove(&victim.uid);
        };
        candidates.iter().for_each(|victim| remove(&mut node_after_eviction, victim));
        let fits_on = |node: &NodeView| check_fit(&pod.spec, node).is_ok() && self.check_topology(pod, node).is_ok();
        if !fits_on(&node_after_eviction) {
            return None;
        }
        let mut remaining_disruptions: Vec<i32> = budgets.iter().map(|budget| budget.allowed_disruptions).collect();
        let mut violates_budgets = |victim: &PodState| {
            let mut violates_budget = false;
            for (_, disruptions) in
                budgets.iter().zip(&mut remaining_disruptions).filter(|(budget, _)| budget.covers(victim))
            {
                *disruptions -= 1;
                violates_budget |= *disruptions < 0;
            }
            violates_budget
        };
        let (violating_victims, allowed_victims): (Vec<_>, Vec<_>) =
            candidates.into_iter().partition(|victim| violates_budgets(victim));
        let mut restore = |victim: &Arc<PodState>| {
            node_after_eviction.used.add(&victim.spec.requests);
            node_after_eviction.pods.insert(victim.uid.clone(), victim.clone());
            let fits = fits_on(&node_after_eviction);
            if !fits {
                remove(&mut node_after_eviction, victim);
            }
            fits
        };
        let mut victims: Vec<Arc<PodState>> =
            violating_victims.into_iter().filter(|pod| !restore(pod)).cloned().collect();
        let violations = victims.len();
        victims.extend(allowed_victims.into_iter().filter(|pod| !restore(pod)).cloned());
        (!victims.is_empty()).then_some((violations, victims))
    }
}

/// UID of the owner of a pod, or of the pod itself if it has none.
fn owner_uid(pod: &PodState) -> Arc<str> {
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

/// True if an affinity term of `pod` selects `candidate`. A namespace selector is treated as selecting all namespaces.
fn selects(term: &PodAffinityTerm, pod: &PodState, candidate: &PodState) -> bool {
    let namespaces = term.namespaces.as_deref().unwrap_or_default();
    let in_namespace = term.namespace_selector.is_some()
        || namespaces.iter().any(|name| **name == *candidate.key.namespace)
        || (namespaces.is_empty() && pod.key.namespace == candidate.key.namespace);
    in_namespace
        && term.label_selector.as_ref().is_some_and(|selector| label_selector_matches(selector, &candidate.labels))
}

/// kube-scheduler's message for a pod that fits on no node.
fn unschedulable_message(nodes: usize, failures: &[(Arc<str>, FilterFailure)]) -> String {
    if nodes == 0 {
        return "no nodes available to schedule pods".into();
    }
    let mut reasons: BTreeMap<&str, usize> = BTreeMap::new();
    for reason in failures.iter().flat_map(|(_, failure)| &failure.reasons) {
        *reasons.entry(reason).or_default() += 1;
    }
    let unresolvable = failures.iter().filter(|(_, failure)| !failure.is_resolvable).count();
    let mut preemption = Vec::new();
    if failures.len() > unresolvable {
        preemption.push(format!("{} No preemption victims found for incoming pod", failures.len() - unresolvable));
    }
    if unresolvable > 0 {
        preemption.push(format!("{unresolvable} Preemption is not helpful for scheduling"));
    }
    format!(
        "0/{nodes} nodes are available: {}. no new claims to deallocate, preemption: 0/{nodes} nodes are available: {}.",
        join_counts(reasons),
        join_sorted(preemption)
    )
}

fn join_counts(reasons: BTreeMap<&str, usize>) -> String {
    join_sorted(reasons.into_iter().map(|(reason, count)| format!("{count} {reason}")).collect())
}

fn join_sorted(mut parts: Vec<String>) -> String {
    parts.sort();
    parts.join(", ")
}

#[cfg(test)]
mod tests;
