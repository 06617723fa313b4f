//! Cache of nodes, pods and ResourceQuotas for the scheduler estimator of a member, filled by watches of the member's
//! API server. Estimates are computed with the code of the controllers, without a control plane.

use std::collections::HashSet;
use std::pin::pin;
use std::sync::Arc;

use crowsnest_api::work::{Component, ObjectReference, ReplicaRequirements};
use crowsnest_apimachinery::names::NamespacedName;
use crowsnest_apimachinery::unstructured;
use futures::StreamExt;
use futures::future::join_all;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::api::{ApiResource, DynamicObject, GroupVersionKind};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::Error;
use crate::cache::capacity::MemberFacts;
use crate::estimator::unschedulable::{REPLICA_SET_TIMEOUT, newest_replica_set};
use crate::runtime::dynamic_client::DynamicClient;
use crowsnest_plan::descheduling::UnschedulablePod;
use crowsnest_plan::estimation::accurate::AssumedWorkload;
use crowsnest_plan::estimation::capacity::PodFacts;
use crowsnest_plan::estimation::estimator;
use crowsnest_plan::estimation::ledger::Reservation;
use crowsnest_plan::estimation::quotas::QuotaFacts;
use crowsnest_plan::gates::Gates;

/// A watched resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum WatchedResource {
    Nodes,
    Pods,
    Quotas,
}

impl WatchedResource {
    fn api_resource(self) -> ApiResource {
        let (kind, plural) = match self {
            WatchedResource::Nodes => ("Node", "nodes"),
            WatchedResource::Pods => ("Pod", "pods"),
            WatchedResource::Quotas => ("ResourceQuota", "resourcequotas"),
        };
        ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk("", "v1", kind), plural)
    }

    /// Options of the watch. Finished pods are excluded, since they need no resources.
    fn watch_config(self) -> watcher::Config {
        match self {
            WatchedResource::Pods => watcher::Config::default().fields("status.phase!=Succeeded,status.phase!=Failed"),
            WatchedResource::Nodes | WatchedResource::Quotas => watcher::Config::default(),
        }
    }
}

/// Cached nodes, pods and quotas of the member. Only [`MemberCache::run`] writes them.
pub struct MemberCache {
    client: Client,
    gates: Gates,
    resources: Vec<WatchedResource>,
    facts: Mutex<MemberFacts>,
    /// Resources that have not been listed yet.
    unlisted: watch::Sender<HashSet<WatchedResource>>,
}

impl MemberCache {
    /// Creates an empty cache. [`MemberCache::run`] starts the watches.
    pub fn new(client: Client, gates: Gates) -> Arc<Self> {
        let mut resources = vec![WatchedResource::Nodes, WatchedResource::Pods];
        if gates.resource_quota_estimate {
            resources.push(WatchedResource::Quotas);
        }
        let unlisted = watch::Sender::new(resources.iter().copied().collect());
        Arc::new(MemberCache { client, gates, resources, facts: Mutex::default(), unlisted })
    }

    /// Watches the member until stopped.
    pub async fn run(&self, stop: CancellationToken) {
        let watches = join_all(self.resources.iter().map(|resource| self.watch_resource(*resource)));
        drop(stop.run_until_cancelled(watches).await);
    }

    /// True if all resources have been listed.
    pub fn is_listed(&self) -> bool {
        self.unlisted.borrow().is_empty()
    }

    /// Waits until all resources have been listed.
    pub async fn wait_until_listed(&self) {
        // The sender is never dropped before `self`.
        drop(self.unlisted.subscribe().wait_for(HashSet::is_empty).await);
    }

    async fn watch_resource(&self, resource: WatchedResource) {
        let api: Api<DynamicObject> = Api::all_with(self.client.clone(), &resource.api_resource());
        let mut events = pin!(watcher(api, resource.watch_config()).default_backoff());
        let mut keys: HashSet<NamespacedName> = HashSet::new();
        while let Some(event) = events.next().await {
            match event {
                Ok(Event::Init) => keys.clear(),
                Ok(Event::InitApply(listed)) => keys.extend(self.update(resource, &listed, true)),
                Ok(Event::InitDone) => {
                    self.retain(resource, &keys);
                    self.unlisted.send_modify(|unlisted| {
                        unlisted.remove(&resource);
                    });
                }
                Ok(Event::Apply(changed)) => drop(self.update(resource, &changed, true)),
                Ok(Event::Delete(deleted)) => drop(self.update(resource, &deleted, false)),
                Err(error) => tracing::warn!(?resource, %error, "the watch of a member failed"),
            }
        }
    }

    /// Updates an object, or removes it unless it exists. Returns its key.
    fn update(&self, resource: WatchedResource, changed: &DynamicObject, exists: bool) -> Option<NamespacedName> {
        let changed = match serde_json::to_value(changed) {
            Ok(changed) => changed,
            Err(error) => {
                tracing::warn!(?resource, %error, "cannot decode an object of the member");
                return None;
            }
        };
        let key = unstructured::key(&changed);
        let current: Option<&Value> = exists.then_some(&changed);
        let mut facts = self.facts.lock();
        match resource {
            WatchedResource::Nodes => drop(facts.set_node(key.name.clone(), current)),
            WatchedResource::Pods => {
                facts.set_unschedulable(&key, current.and_then(UnschedulablePod::from_json));
                facts.set_pod(key.clone(), current.map(PodFacts::from_json));
            }
            WatchedResource::Quotas => drop(facts.set_quota(key.clone(), current.map(QuotaFacts::from_json))),
        }
        Some(key)
    }

    /// Removes objects of a resource that are not in `keys`.
    fn retain(&self, resource: WatchedResource, keys: &HashSet<NamespacedName>) {
        let mut facts = self.facts.lock();
        match resource {
            WatchedResource::Nodes => facts.retain_nodes(|name| keys.contains(&NamespacedName::cluster_scoped(name))),
            WatchedResource::Pods => facts.retain_pods(|key| keys.contains(key)),
            WatchedResource::Quotas => facts.retain_quotas(|key| keys.contains(key)),
        }
    }

    /// Number of replicas that fit in addition to assumed workloads.
    pub fn max_available_replicas(
        &self,
        requirements: Option<&ReplicaRequirements>,
        assumed: &[AssumedWorkload],
    ) -> i32 {
        let capacity = self.facts.lock().capacity();
        estimator::replicas(&capacity, requirements, &self.reservations(assumed))
    }

    /// Number of complete component sets that fit in addition to assumed workloads.
    pub fn max_available_component_sets(
        &self,
        components: &[Component],
        namespace: &str,
        assumed: &[AssumedWorkload],
    ) -> i32 {
        let capacity = self.facts.lock().capacity();
        estimator::component_sets(&capacity, components, namespace, &self.reservations(assumed))
    }

    fn reservations(&self, assumed: &[AssumedWorkload]) -> Vec<Reservation> {
        match self.gates.scheduling_overcommit_protection {
            true => assumed
                .iter()
                .map(|workload| Reservation::from_components(&workload.namespace, &workload.components))
                .collect(),
            false => Vec::new(),
        }
    }

    /// Number of replicas of a workload that have been unschedulable for longer than a threshold.
    pub async fn unschedulable_replicas(
        &self,
        workload: &ObjectReference,
        threshold: SignedDuration,
    ) -> Result<i32, Error> {
        let ObjectReference { kind, namespace, name, .. } = workload;
        if kind != "Deployment" {
            return Err(Error::Other(format!("kind({kind}) of workload({namespace}/{name}) is not supported")));
        }
        let member = DynamicClient::new(self.client.clone());
        let newest = newest_replica_set(&member, namespace, name, REPLICA_SET_TIMEOUT).await?;
        let Some(newest) = newest else { return Ok(0) };
        Ok(self.facts.lock().count_unschedulable(&newest, threshold, Timestamp::now()))
    }
}
