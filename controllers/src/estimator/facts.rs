//! Facts about the member of a scheduler estimator: nodes, pods and ResourceQuotas, from watches of the member's API
//! server. Estimates with the code of the controllers, without a control plane.

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
use crate::cache::capacity::Facts;
use crate::estimator::unschedulable::newest_replica_set;
use crowsnest_plan::descheduling::Unscheduled;
use crowsnest_plan::estimation::accurate::Assumed;
use crowsnest_plan::estimation::capacity::PodFacts;
use crowsnest_plan::estimation::estimator;
use crowsnest_plan::estimation::ledger::Promise;
use crowsnest_plan::estimation::quotas::QuotaFacts;
use crowsnest_plan::gates::Gates;

/// A watched resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Followed {
    Nodes,
    Pods,
    Quotas,
}

impl Followed {
    fn resource(self) -> ApiResource {
        let (kind, plural) = match self {
            Followed::Nodes => ("Node", "nodes"),
            Followed::Pods => ("Pod", "pods"),
            Followed::Quotas => ("ResourceQuota", "resourcequotas"),
        };
        ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk("", "v1", kind), plural)
    }

    /// Options of the watch. Finished pods are excluded, since they need no resources.
    fn config(self) -> watcher::Config {
        match self {
            Followed::Pods => watcher::Config::default().fields("status.phase!=Succeeded,status.phase!=Failed"),
            Followed::Nodes | Followed::Quotas => watcher::Config::default(),
        }
    }
}

/// State of the member. Only [`Member::run`] writes it.
pub struct Member {
    client: Client,
    gates: Gates,
    followed: Vec<Followed>,
    facts: Mutex<Facts>,
    /// Resources that have not been listed yet.
    missing: watch::Sender<HashSet<Followed>>,
}

impl Member {
    /// Creates the state without starting watches.
    pub fn new(client: Client, gates: Gates) -> Arc<Self> {
        let mut followed = vec![Followed::Nodes, Followed::Pods];
        if gates.resource_quota_estimate {
            followed.push(Followed::Quotas);
        }
        let missing = watch::Sender::new(followed.iter().copied().collect());
        Arc::new(Member { client, gates, followed, facts: Mutex::default(), missing })
    }

    /// Watches the member until stopped.
    pub async fn run(&self, stop: CancellationToken) {
        let following = join_all(self.followed.iter().map(|followed| self.follow(*followed)));
        drop(stop.run_until_cancelled(following).await);
    }

    /// True if all resources have been listed.
    pub fn is_listed(&self) -> bool {
        self.missing.borrow().is_empty()
    }

    /// Waits until all resources have been listed.
    pub async fn listed(&self) {
        // The sender is never dropped before `self`.
        drop(self.missing.subscribe().wait_for(HashSet::is_empty).await);
    }

    async fn follow(&self, followed: Followed) {
        let api: Api<DynamicObject> = Api::all_with(self.client.clone(), &followed.resource());
        let mut events = pin!(watcher(api, followed.config()).default_backoff());
        let mut seen: HashSet<NamespacedName> = HashSet::new();
        while let Some(event) = events.next().await {
            match event {
                Ok(Event::Init) => seen.clear(),
                Ok(Event::InitApply(listed)) => seen.extend(self.learn(followed, &listed, true)),
                Ok(Event::InitDone) => {
                    self.keep(followed, &seen);
                    self.missing.send_modify(|missing| {
                        missing.remove(&followed);
                    });
                }
                Ok(Event::Apply(changed)) => drop(self.learn(followed, &changed, true)),
                Ok(Event::Delete(gone)) => drop(self.learn(followed, &gone, false)),
                Err(error) => tracing::warn!(?followed, %error, "the watch of a member failed"),
            }
        }
    }

    fn learn(&self, followed: Followed, changed: &DynamicObject, is_there: bool) -> Option<NamespacedName> {
        let changed = match serde_json::to_value(changed) {
            Ok(changed) => changed,
            Err(error) => {
                tracing::warn!(?followed, %error, "cannot decode an object of the member");
                return None;
            }
        };
        let key = unstructured::key(&changed);
        let current: Option<&Value> = is_there.then_some(&changed);
        let mut facts = self.facts.lock();
        match followed {
            Followed::Nodes => drop(facts.set_node(key.name.clone(), current)),
            Followed::Pods => {
                facts.set_unscheduled(&key, current.and_then(Unscheduled::of));
                facts.set_pod(key.clone(), current.map(PodFacts::of));
            }
            Followed::Quotas => drop(facts.set_quota(key.clone(), current.map(QuotaFacts::of))),
        }
        Some(key)
    }

    fn keep(&self, followed: Followed, seen: &HashSet<NamespacedName>) {
        let mut facts = self.facts.lock();
        match followed {
            Followed::Nodes => facts.keep_nodes(|name| seen.contains(&NamespacedName::cluster_scoped(name))),
            Followed::Pods => facts.keep_pods(|key| seen.contains(key)),
            Followed::Quotas => facts.keep_quotas(|key| seen.contains(key)),
        }
    }

    /// Number of replicas that fit in addition to assumed workloads.
    pub fn replicas(&self, requirements: Option<&ReplicaRequirements>, assumed: &[Assumed]) -> i32 {
        let known = self.facts.lock().known();
        estimator::replicas(&known, requirements, &self.promises(assumed))
    }

    /// Number of whole component sets that fit.
    pub fn component_sets(&self, components: &[Component], namespace: &str, assumed: &[Assumed]) -> i32 {
        let known = self.facts.lock().known();
        estimator::component_sets(&known, components, namespace, &self.promises(assumed))
    }

    fn promises(&self, assumed: &[Assumed]) -> Vec<Promise> {
        match self.gates.scheduling_overcommit_protection {
            true => assumed.iter().map(|one| Promise::assumed(&one.namespace, &one.components)).collect(),
            false => Vec::new(),
        }
    }

    /// Number of replicas of a workload that are unschedulable for longer than a threshold.
    pub async fn unschedulable(&self, workload: &ObjectReference, threshold: SignedDuration) -> Result<i32, Error> {
        let ObjectReference { kind, namespace, name, .. } = workload;
        if kind != "Deployment" {
            return Err(Error::Apply(format!("kind({kind}) of workload({namespace}/{name}) is not supported")));
        }
        let newest = newest_replica_set(self.client.clone(), namespace, name).await?;
        let Some(newest) = newest else { return Ok(0) };
        Ok(self.facts.lock().unscheduled(&newest, threshold, Timestamp::now()))
    }
}
