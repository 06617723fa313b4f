//! Nodes and pods of members, kept as facts for estimates: changed nodes and pods mark their cluster, and what is free
//! is added up again when somebody asks.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use crowsnest_api::names::ClusterName;
use parking_lot::Mutex;

use super::context::Context;
use super::objects::Resource;
use super::world::{Cached, Change};
use crate::Error;
use crate::plan::estimation::capacity::{FreeNode, NodeFacts, PodFacts, free_nodes};
use crate::plan::object;

#[derive(Default)]
struct Facts {
    nodes: BTreeMap<String, NodeFacts>,
    pods: BTreeMap<(String, String), PodFacts>,
    free: Option<Arc<Vec<FreeNode>>>,
}

/// A member's nodes and pods as facts, and the nodes as they are.
pub type ClusterCapacity = (Vec<NodeFacts>, Vec<PodFacts>, Vec<Cached>);

/// Facts per cluster.
pub struct Capacity {
    context: Arc<Context>,
    facts: Mutex<HashMap<ClusterName, Facts>>,
}

impl Capacity {
    pub fn new(context: Arc<Context>) -> Arc<Self> {
        Arc::new(Capacity { context, facts: Mutex::default() })
    }

    /// Starts collecting a member's nodes and pods.
    pub fn follow(&self, cluster: &ClusterName) {
        self.context.world.collect(cluster, &self.context.kinds.node);
        self.context.world.collect(cluster, &self.context.kinds.pod);
    }

    pub fn forget(&self, cluster: &ClusterName) {
        self.facts.lock().remove(cluster);
    }

    pub fn on_change(&self, change: &Change) {
        let kinds = &self.context.kinds;
        let name = object::name(change.object()).to_owned();
        if change.resource.gvr == kinds.node.gvr {
            let mut facts = self.facts.lock();
            let facts = facts.entry(change.cluster.clone()).or_default();
            match change.current() {
                Some(node) => facts.nodes.insert(name, NodeFacts::of(node)),
                None => facts.nodes.remove(&name),
            };
            facts.free = None;
        } else if change.resource.gvr == kinds.pod.gvr {
            let key = change.key();
            let mut facts = self.facts.lock();
            let facts = facts.entry(change.cluster.clone()).or_default();
            let new = change.current().map(PodFacts::of);
            if facts.pods.get(&key) == new.as_ref() {
                return;
            }
            match new {
                Some(pod) => facts.pods.insert(key, pod),
                None => facts.pods.remove(&key),
            };
            facts.free = None;
        }
    }

    /// A member's nodes or pods are only these.
    pub fn told_again(&self, cluster: &ClusterName, resource: &Resource, keys: &HashSet<(String, String)>) {
        let kinds = &self.context.kinds;
        let mut all = self.facts.lock();
        let Some(facts) = all.get_mut(cluster) else { return };
        if *resource == kinds.node {
            facts.nodes.retain(|name, _| keys.contains(&(String::new(), name.clone())));
        } else if *resource == kinds.pod {
            facts.pods.retain(|key, _| keys.contains(key));
        }
        facts.free = None;
    }

    fn is_known(&self, cluster: &ClusterName) -> bool {
        let kinds = &self.context.kinds;
        [&kinds.node, &kinds.pod].iter().all(|kind| self.context.world.is_synced(cluster, &kind.gvr))
    }

    /// What every node of a cluster has left; `None` until its nodes and pods have been listed.
    pub fn free(&self, cluster: &ClusterName) -> Option<Arc<Vec<FreeNode>>> {
        if !self.is_known(cluster) {
            return None;
        }
        let mut facts = self.facts.lock();
        let facts = facts.entry(cluster.clone()).or_default();
        if let Some(free) = &facts.free {
            return Some(Arc::clone(free));
        }
        let nodes: Vec<NodeFacts> = facts.nodes.values().cloned().collect();
        let pods: Vec<PodFacts> = facts.pods.values().cloned().collect();
        let free = Arc::new(free_nodes(&nodes, &pods));
        facts.free = Some(Arc::clone(&free));
        Some(free)
    }

    /// The facts a cluster's status is made of, with the nodes themselves for their lists as written.
    pub async fn facts(&self, cluster: &ClusterName) -> Result<Option<ClusterCapacity>, Error> {
        if !self.is_known(cluster) {
            return Ok(None);
        }
        let objects = self.context.world.list(cluster, &self.context.kinds.node.gvr, None).await?;
        let facts = self.facts.lock();
        let Some(facts) = facts.get(cluster) else { return Ok(Some((Vec::new(), Vec::new(), objects))) };
        Ok(Some((facts.nodes.values().cloned().collect(), facts.pods.values().cloned().collect(), objects)))
    }
}
