//! Capacity of members: facts of nodes, pods and ResourceQuotas, for estimates and the Cluster status. A change
//! invalidates its node, whose free resources are recomputed on the next read. Unschedulable pods are indexed by
//! their controller, for the descheduler.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use crowsnest_api::cluster::{NodeSummary, ResourceModel, ResourceSummary};
use crowsnest_apimachinery::names::{ClusterName, NamespacedName};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use serde_json::Value;

use super::Change;
use crate::runtime::Setup;
use crate::runtime::context::Context;
use crate::runtime::dynamic_client::Resource;
use crowsnest_plan::descheduling::{UnschedulablePod, exceeds_threshold};
use crowsnest_plan::estimation::capacity::{self, FormattedAllocatable, NodeFacts, PodFacts};
use crowsnest_plan::estimation::free_capacity::CapacityFacts;
use crowsnest_plan::estimation::nodes::Nodes;
use crowsnest_plan::estimation::quotas::{QuotaFacts, Quotas};
use crowsnest_plan::estimation::resources::Resources;

struct Node {
    facts: Arc<NodeFacts>,
    /// Allocatable resources, formatted as in the node's status.
    formatted: FormattedAllocatable,
    /// Requests of its pods. `None` if they must be recomputed.
    used: Option<Resources>,
}

impl Node {
    /// Free resources. Its requests must have been computed before.
    fn free(&self) -> Resources {
        let mut free = self.facts.allocatable.clone();
        if let Some(used) = &self.used {
            free.subtract(used);
        }
        free
    }
}

/// Nodes and pods in the status of a Cluster.
#[derive(Debug, PartialEq)]
pub struct MemberSummary {
    pub nodes: NodeSummary,
    pub resources: ResourceSummary,
}

/// Facts of one member.
#[derive(Default)]
pub(crate) struct MemberFacts {
    nodes: BTreeMap<String, Node>,
    pods: HashMap<Arc<NamespacedName>, PodFacts>,
    /// Pods whose requests count, by node.
    pods_by_node: HashMap<String, HashSet<Arc<NamespacedName>>>,
    /// Unschedulable pods with the time at which each became unschedulable, by the UID of their controller.
    unschedulable: HashMap<String, HashMap<NamespacedName, Timestamp>>,
    /// UIDs of the controllers of unschedulable pods.
    owners: HashMap<NamespacedName, String>,
    quotas: Quotas,
    /// True if nodes and pods have been listed.
    listed: bool,
    /// The last result of [`MemberFacts::free`], until nodes or pods change.
    free: Option<Arc<Nodes>>,
    /// A shared copy of `quotas`, until they change.
    shared_quotas: Option<Arc<Quotas>>,
    /// The last summary, with its resource models.
    summary: Option<(Vec<ResourceModel>, Arc<MemberSummary>)>,
}

/// Facts per cluster.
pub struct Capacity {
    context: Arc<Context>,
    facts: Mutex<HashMap<String, MemberFacts>>,
}

impl MemberFacts {
    /// Updates a node. Returns true if capacity may have increased.
    pub(crate) fn set_node(&mut self, name: String, node: Option<&Value>) -> bool {
        let read = node.map(|node| (NodeFacts::from_json(node), FormattedAllocatable::from_node(node)));
        let old = self.nodes.get_mut(&name);
        let is_same = old.as_ref().map(|old| old.facts.as_ref()) == read.as_ref().map(|(facts, _)| facts);
        if is_same {
            if let (Some(old), Some((_, formatted))) = (old, read)
                && old.formatted != formatted
            {
                old.formatted = formatted;
                self.summary = None;
            }
            return false;
        }
        self.invalidate();
        let used = self.nodes.remove(&name).and_then(|old| old.used);
        let Some((facts, formatted)) = read else { return false };
        self.nodes.insert(name, Node { facts: Arc::new(facts), formatted, used });
        true
    }

    /// Invalidates results that depend on nodes and pods.
    fn invalidate(&mut self) {
        self.free = None;
        self.summary = None;
    }

    /// Updates a pod. Returns true if capacity may have increased.
    pub(crate) fn set_pod(&mut self, key: NamespacedName, pod: Option<PodFacts>) -> bool {
        let existing = self.pods.get_key_value(&key);
        if existing.map(|(_, pod)| pod) == pod.as_ref() {
            return false;
        }
        let key = existing.map_or_else(|| Arc::new(key), |(key, _)| Arc::clone(key));
        self.invalidate();
        let old = self.pods.remove(&key).filter(PodFacts::counts_against_node);
        if let Some(old) = &old {
            self.invalidate_node(&old.node);
            if let Some(keys) = self.pods_by_node.get_mut(&old.node) {
                keys.remove(&key);
                if keys.is_empty() {
                    self.pods_by_node.remove(&old.node);
                }
            }
        }
        let Some(pod) = pod else { return old.is_some() };
        let counts = pod.counts_against_node();
        if counts {
            self.invalidate_node(&pod.node);
            self.pods_by_node.entry(pod.node.clone()).or_default().insert(Arc::clone(&key));
        }
        self.pods.insert(key, pod);
        old.is_some() && !counts
    }

    pub(crate) fn set_unschedulable(&mut self, key: &NamespacedName, pod: Option<UnschedulablePod>) {
        if let Some(owner) = self.owners.remove(key)
            && let Some(pods) = self.unschedulable.get_mut(&owner)
        {
            pods.remove(key);
            if pods.is_empty() {
                self.unschedulable.remove(&owner);
            }
        }
        if let Some(UnschedulablePod { owner, since }) = pod {
            self.unschedulable.entry(owner.clone()).or_default().insert(key.clone(), since);
            self.owners.insert(key.clone(), owner);
        }
    }

    /// Number of pods of an owner that have been unschedulable for longer than a threshold.
    pub(crate) fn count_unschedulable(&self, owner: &str, threshold: SignedDuration, now: Timestamp) -> i32 {
        let pods = self.unschedulable.get(owner).into_iter().flat_map(HashMap::values);
        i32::try_from(pods.filter(|since| exceeds_threshold(**since, threshold, now)).count()).unwrap_or(i32::MAX)
    }

    fn invalidate_node(&mut self, node: &str) {
        if let Some(node) = self.nodes.get_mut(node) {
            node.used = None;
        }
    }

    /// Updates a ResourceQuota. Returns true if it may allow more than before.
    pub(crate) fn set_quota(&mut self, key: NamespacedName, quota: Option<QuotaFacts>) -> bool {
        let NamespacedName { namespace, name } = key;
        let quotas = &mut self.quotas.namespaces;
        let old = quotas.get(&namespace).and_then(|quotas| quotas.get(&name));
        if old == quota.as_ref() {
            return false;
        }
        self.shared_quotas = None;
        let is_known = old.is_some();
        match quota {
            Some(quota) => {
                quotas.entry(namespace).or_default().insert(name, quota);
            }
            None => {
                if let Some(rest) = quotas.get_mut(&namespace) {
                    rest.remove(&name);
                    if rest.is_empty() {
                        quotas.remove(&namespace);
                    }
                }
            }
        }
        is_known
    }

    /// Nodes with their free resources. Only changed nodes are recomputed.
    fn free(&mut self) -> Arc<Nodes> {
        if let Some(free) = &self.free {
            return Arc::clone(free);
        }
        let (pods, pods_by_node) = (&self.pods, &self.pods_by_node);
        let sum_requests = |name: &str| {
            let mut used = Resources::default();
            let keys = pods_by_node.get(name).into_iter().flatten();
            keys.filter_map(|key| pods.get(key)).for_each(|pod| used.add(&pod.request));
            used
        };
        let with_free_resources = |(name, node): (&String, &mut Node)| {
            node.used.get_or_insert_with(|| sum_requests(name));
            (Arc::clone(&node.facts), node.free())
        };
        let free: Arc<Nodes> = Arc::new(self.nodes.iter_mut().map(with_free_resources).collect());
        self.free = Some(Arc::clone(&free));
        free
    }

    /// The summary, which stays the same until nodes or pods change.
    fn summary(&mut self, models: &[ResourceModel]) -> Arc<MemberSummary> {
        if let Some((_, summary)) = self.summary.as_ref().filter(|(last_models, _)| last_models == models) {
            return Arc::clone(summary);
        }
        self.free();
        let nodes = self.nodes.values();
        let free: Vec<Resources> = nodes.clone().map(Node::free).collect();
        let summary = Arc::new(MemberSummary {
            nodes: capacity::node_summary(nodes.clone().map(|node| node.facts.as_ref())),
            resources: capacity::resource_summary(
                nodes.map(|node| &node.formatted),
                self.pods.values(),
                free.iter(),
                models,
            ),
        });
        self.summary = Some((models.to_vec(), Arc::clone(&summary)));
        summary
    }

    /// The ResourceQuotas. `None` if there are none.
    fn shared_quotas(&mut self) -> Option<Arc<Quotas>> {
        if self.quotas.namespaces.is_empty() {
            return None;
        }
        Some(Arc::clone(self.shared_quotas.get_or_insert_with(|| Arc::new(self.quotas.clone()))))
    }

    /// Facts for estimates.
    pub(crate) fn capacity(&mut self) -> CapacityFacts {
        CapacityFacts { nodes: Some(self.free()), quotas: self.shared_quotas() }
    }

    pub(crate) fn retain_nodes(&mut self, keep: impl Fn(&str) -> bool) {
        self.nodes.retain(|name, _| keep(name));
        self.invalidate();
    }

    pub(crate) fn retain_pods(&mut self, keep: impl Fn(&NamespacedName) -> bool) {
        let deleted: Vec<NamespacedName> =
            self.pods.keys().filter(|key| !keep(key)).map(|key| key.as_ref().clone()).collect();
        for key in deleted {
            self.set_unschedulable(&key, None);
            self.set_pod(key, None);
        }
    }

    pub(crate) fn retain_quotas(&mut self, keep: impl Fn(&NamespacedName) -> bool) {
        let namespaces = self.quotas.namespaces.iter();
        let all = namespaces
            .flat_map(|(namespace, quotas)| quotas.keys().map(move |name| NamespacedName::new(namespace, name)));
        let deleted: Vec<NamespacedName> = all.filter(|key| !keep(key)).collect();
        for key in deleted {
            self.set_quota(key, None);
        }
    }
}

impl Capacity {
    /// The instance shared by all controllers.
    pub fn shared(setup: &Setup) -> Arc<Self> {
        setup.get_or_create_shared(|setup| Arc::new(Capacity { context: setup.context(), facts: Mutex::default() }))
    }

    /// Starts collecting nodes, pods and quotas of a member.
    pub fn collect(&self, cluster: &ClusterName) {
        let kinds = &self.context.kinds;
        self.context.cache.collect(cluster, &kinds.node);
        self.context.cache.collect(cluster, &kinds.pod);
        if self.context.config.gates.resource_quota_estimate {
            self.context.cache.collect(cluster, &kinds.resource_quota);
        }
    }

    pub fn forget(&self, cluster: &ClusterName) {
        self.facts.lock().remove(cluster.as_str());
    }

    /// Updates the facts of a member. Returns true if its capacity may have increased.
    pub fn on_change(&self, change: &Change) -> bool {
        let kinds = &self.context.kinds;
        let gvr = &change.resource.gvr;
        if *gvr != kinds.node.gvr && *gvr != kinds.pod.gvr && *gvr != kinds.resource_quota.gvr {
            return false;
        }
        let key = change.key();
        let pod = (*gvr == kinds.pod.gvr).then(|| {
            let pod = change.current();
            (pod.map(PodFacts::from_json), pod.and_then(UnschedulablePod::from_json))
        });
        let mut facts = self.facts.lock();
        let facts = match facts.get_mut(change.cluster.as_str()) {
            Some(facts) => facts,
            None => facts.entry(change.cluster.as_str().to_owned()).or_default(),
        };
        match pod {
            Some((pod, unschedulable)) => {
                facts.set_unschedulable(&key, unschedulable);
                facts.set_pod(key, pod)
            }
            None if *gvr == kinds.node.gvr => facts.set_node(key.name, change.current()),
            None => facts.set_quota(key, change.current().map(QuotaFacts::from_json)),
        }
    }

    /// Removes nodes, pods or quotas of a member that are not in `keys`.
    pub fn retain(&self, cluster: &ClusterName, resource: &Resource, keys: &HashSet<NamespacedName>) {
        let kinds = &self.context.kinds;
        let mut all = self.facts.lock();
        let Some(facts) = all.get_mut(cluster.as_str()) else { return };
        if *resource == kinds.node {
            facts.retain_nodes(|name| keys.contains(&NamespacedName::cluster_scoped(name)));
        } else if *resource == kinds.pod {
            facts.retain_pods(|key| keys.contains(key));
        } else if *resource == kinds.resource_quota {
            facts.retain_quotas(|key| keys.contains(key));
        }
    }

    /// True if a member's nodes and pods have been listed. This remains true until the cluster is forgotten.
    fn is_listed(&self, cluster: &ClusterName) -> bool {
        let kinds = &self.context.kinds;
        [&kinds.node, &kinds.pod].iter().all(|kind| self.context.cache.is_synced(cluster, &kind.gvr))
    }

    /// Facts of clusters, in the given order.
    pub fn facts_of_clusters<'c>(&self, clusters: impl Iterator<Item = &'c str>) -> Vec<CapacityFacts> {
        let mut all = self.facts.lock();
        let mut capacity_of = |cluster: &str| {
            if !all.get(cluster).is_some_and(|facts| facts.listed) {
                if !self.is_listed(&ClusterName::parse(cluster).ok()?) {
                    return None;
                }
                all.entry(cluster.to_owned()).or_default().listed = true;
            }
            let facts = all.get_mut(cluster)?;
            Some(facts.capacity())
        };
        clusters.map(|cluster| capacity_of(cluster).unwrap_or_default()).collect()
    }

    /// Number of an owner's pods that have been unschedulable in a member for longer than a threshold. `None` until
    /// the member's pods have been listed.
    pub fn count_unschedulable(
        &self,
        cluster: &ClusterName,
        owner: &str,
        threshold: SignedDuration,
        now: Timestamp,
    ) -> Option<i32> {
        if !self.is_listed(cluster) {
            return None;
        }
        let facts = self.facts.lock();
        Some(facts.get(cluster.as_str()).map_or(0, |facts| facts.count_unschedulable(owner, threshold, now)))
    }

    /// Summary of a cluster's nodes and pods for its status. `None` until they have been listed.
    pub fn summary(&self, cluster: &ClusterName, models: &[ResourceModel]) -> Option<Arc<MemberSummary>> {
        if !self.is_listed(cluster) {
            return None;
        }
        let mut facts = self.facts.lock();
        Some(match facts.get_mut(cluster.as_str()) {
            Some(facts) => facts.summary(models),
            None => MemberFacts::default().summary(models),
        })
    }
}
