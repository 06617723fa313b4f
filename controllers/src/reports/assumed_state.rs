//! State that a plan assumes in addition to its templates: changed clusters, rebalancers, and quotas with their usage.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crowsnest_api::apps::{ObjectReference, WorkloadRebalancer};
use crowsnest_api::cluster::Cluster;
use crowsnest_api::constants::eviction::{PRODUCER_TAINT_MANAGER, REASON_TAINT_UNTOLERATED};
use crowsnest_api::policy::FederatedResourceQuota;
use crowsnest_api::work::{GracefulEvictionTask, ResourceBinding, ResourceBindingSpec};
use crowsnest_apimachinery::quantity::Quantity;
use crowsnest_apimachinery::taints;
use crowsnest_apimachinery::unstructured;
use futures::TryStreamExt;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

use super::{Proposal, ProposedOperation, Reports, Role, SimulatedScheduling};
use crate::Error;
use crate::cache::CachedObject;
use crate::runtime::context::decode;
use crate::shared::bindings::binding_key_of;
use crowsnest_admission::{Refusal, quota};
use crowsnest_plan::eviction::{self, TaintDecision};
use crowsnest_plan::quota::{self as plan, Usage};
use crowsnest_plan::rebalance;

/// Assumed state of the clusters, rebalancers and quotas.
pub(super) struct AssumedState {
    pub simulation: SimulatedScheduling,
    /// Clusters that are changed or deleted.
    clusters: BTreeMap<String, Arc<Cluster>>,
    /// Names of the clusters that are assumed to become unreachable and to stay so.
    lost_clusters: BTreeSet<String>,
    /// Proposed rebalancers, with the time at which they trigger rescheduling.
    rebalancers: Vec<(WorkloadRebalancer, Time)>,
    /// Quotas with their current usage, by namespace. Read on first use.
    quotas: BTreeMap<String, Vec<FederatedResourceQuota>>,
    now: Timestamp,
}

/// Eviction of a target by its taints.
pub(super) enum TaintEviction {
    /// The target is evicted immediately.
    Now(String),
    /// The target is evicted when its tolerations expire.
    Later(String, Timestamp),
}

impl Reports {
    pub(super) fn assume_state(&self, proposal: &Proposal) -> Result<AssumedState, Error> {
        let now = self.context.now();
        let mut clusters = BTreeMap::new();
        for object in proposal.with_role(Role::Cluster) {
            let mut cluster: Cluster = decode(object.object())?;
            if object.after.is_none() {
                cluster.metadata.deletion_timestamp.get_or_insert(Time(now));
            }
            clusters.insert(unstructured::name(object.object()).to_owned(), Arc::new(cluster));
        }
        let lost = proposal.with_role(Role::Cluster).filter(|object| object.operation == ProposedOperation::Lose);
        let lost_clusters = lost.map(|object| unstructured::name(object.object()).to_owned()).collect();
        let mut rebalancers = Vec::new();
        for after in proposal.with_role(Role::Rebalancer).filter_map(|object| object.after.as_ref()) {
            let typed: WorkloadRebalancer = decode(after)?;
            let created = typed.metadata.creation_timestamp.clone().unwrap_or(Time(now));
            rebalancers.push((typed, created));
        }
        let simulation = self.scheduler.simulate(clusters.values().map(|cluster| cluster.as_ref().clone()));
        Ok(AssumedState { simulation, clusters, lost_clusters, rebalancers, quotas: BTreeMap::new(), now })
    }

    /// The cluster in its assumed state.
    pub(super) async fn assumed_cluster(
        &self,
        assumed: &AssumedState,
        name: &str,
    ) -> Result<Option<Arc<Cluster>>, Error> {
        match assumed.clusters.get(name) {
            Some(cluster) => Ok(Some(Arc::clone(cluster))),
            None => self.context.cluster(name).await,
        }
    }

    /// Removes the targets with untolerated taints from the spec, adds an eviction task for each, and returns them.
    /// Targets with taints that are tolerated for a limited time are returned as well, but not removed, except in lost
    /// clusters, where that time ends.
    pub(super) async fn evict(
        &self,
        assumed: &AssumedState,
        spec: &mut ResourceBindingSpec,
    ) -> Result<Vec<TaintEviction>, Error> {
        let config = &self.context.config;
        let tolerations = spec.placement.as_ref().map(|placement| placement.cluster_tolerations.clone());
        let Some(tolerations) = tolerations.filter(|_| self.evicts_by_taint()) else { return Ok(Vec::new()) };
        let mode = eviction::purge_mode(spec.failover.as_ref(), config.no_execute_purge_mode.clone());
        let mut evicted = Vec::new();
        for target in spec.clusters.clone() {
            let Some(cluster) = self.assumed_cluster(assumed, &target.name).await? else { continue };
            if !has_no_execute_taint(&cluster) {
                continue;
            }
            match eviction::evaluate_taints(&cluster, &tolerations, assumed.now) {
                TaintDecision::Stay => {}
                TaintDecision::EvictAt(at) if at > assumed.now && !assumed.lost_clusters.contains(&target.name) => {
                    evicted.push(TaintEviction::Later(target.name, at));
                }
                TaintDecision::EvictAt(_) => {
                    let task = GracefulEvictionTask {
                        purge_mode: Some(mode.clone()),
                        reason: REASON_TAINT_UNTOLERATED.to_owned(),
                        producer: PRODUCER_TAINT_MANAGER.to_owned(),
                        creation_timestamp: Some(Time(assumed.now)),
                        ..GracefulEvictionTask::default()
                    };
                    if let Some(updated) = eviction::evict(spec, &target.name, task) {
                        *spec = updated;
                        evicted.push(TaintEviction::Now(target.name));
                    }
                }
            }
        }
        Ok(evicted)
    }

    pub(super) fn evicts_by_taint(&self) -> bool {
        self.context.config.evicts_by_taint()
    }

    /// Reads the quotas of a namespace with the usage of its bindings, if quotas are enforced.
    pub(super) async fn read_quotas(
        &self,
        assumed: &mut AssumedState,
        proposal: &Proposal,
        namespace: &str,
    ) -> Result<(), Error> {
        let is_enforced = self.context.config.gates.federated_quota_enforcement && !namespace.is_empty();
        if !is_enforced || assumed.quotas.contains_key(namespace) {
            return Ok(());
        }
        let kinds = &self.context.kinds;
        let proposed = self.list_proposed(&kinds.federated_resource_quota, Some(namespace), proposal).await?;
        let mut quotas = Vec::new();
        if !proposed.is_empty() {
            let bindings = self.context.stream(&kinds.resource_binding, Some(namespace));
            let sum = |mut sum: Usage, binding: CachedObject| async move {
                plan::add(&mut sum, plan::usage(&decode::<ResourceBinding>(binding.view())?.spec));
                Ok(sum)
            };
            let used = bindings.try_fold(Usage::new(), sum).await?;
            for object in proposed.iter().filter(|quota| !unstructured::is_terminating(quota)) {
                let mut typed: FederatedResourceQuota = decode(object)?;
                typed.status = plan::status(&typed.spec, Vec::new(), Some(used.clone()));
                quotas.push(typed);
            }
        }
        assumed.quotas.insert(namespace.to_owned(), quotas);
        Ok(())
    }

    /// Notices for the user: exceeded quotas, taints without effect, lost clusters that keep their workloads, and
    /// workloads without a binding.
    pub(super) async fn notices(&self, assumed: &mut AssumedState, proposal: &Proposal) -> Result<Vec<String>, Error> {
        let mut notices = Vec::new();
        for object in proposal.with_role(Role::Quota).filter(|object| object.after.is_some()) {
            let (namespace, name) = (unstructured::namespace(object.object()), unstructured::name(object.object()));
            self.read_quotas(assumed, proposal, namespace).await?;
            notices.extend(assumed.exceeded_quota_notices(namespace, name));
        }
        let is_enforced = self.context.config.gates.federated_quota_enforcement;
        if !is_enforced && proposal.with_role(Role::Quota).next().is_some() {
            let text = "quotas are not enforced: the feature gate FederatedQuotaEnforcement is disabled";
            notices.push(text.to_owned());
        }
        let is_tainted = |cluster: &Arc<Cluster>| has_no_execute_taint(cluster);
        if assumed.clusters.values().any(is_tainted) && !self.evicts_by_taint() {
            let text = "NoExecute taints do not evict: the feature gate Failover or --enable-no-execute-taint-eviction is disabled";
            notices.push(text.to_owned());
        }
        notices.extend(assumed.lost_cluster_notices(self.context.config.gates.failover));
        for (rebalancer, _) in &assumed.rebalancers {
            for workload in &rebalancer.spec.workloads {
                let found = match rebalance::template_of(workload) {
                    Some(template) => {
                        let key = binding_key_of(&self.context, &template).await?;
                        self.context.binding(&key).await?.is_some()
                    }
                    None => false,
                };
                if !found {
                    let ObjectReference { kind, namespace, name, .. } = workload;
                    notices.push(format!("{kind} {namespace}/{name} has no binding that could be rescheduled"));
                }
            }
        }
        Ok(notices)
    }
}

fn has_no_execute_taint(cluster: &Cluster) -> bool {
    cluster.spec.taints.iter().any(|taint| taint.effect == taints::NO_EXECUTE)
}

impl AssumedState {
    /// True if the cluster would be deleted.
    pub(super) fn is_deleted(&self, cluster: &str) -> bool {
        self.clusters.get(cluster).is_some_and(|cluster| cluster.metadata.deletion_timestamp.is_some())
    }

    /// Time at which a rebalancer would trigger rescheduling of a template's binding, if any would.
    pub(super) fn rebalance_time(&self, template: &Value, spec: &ResourceBindingSpec) -> Option<Time> {
        let workload = ObjectReference {
            api_version: unstructured::api_version(template).to_owned(),
            kind: unstructured::kind(template).to_owned(),
            namespace: unstructured::namespace(template).to_owned(),
            name: unstructured::name(template).to_owned(),
        };
        let matching =
            self.rebalancers.iter().filter(|(rebalancer, _)| rebalance::contains_workload(&rebalancer.spec, &workload));
        let requested = matching.map(|(_, created)| created);
        let triggers = requested.filter(|at| rebalance::needs_trigger(at, spec.reschedule_triggered_at.as_ref()));
        triggers.max_by_key(|at| at.0).cloned()
    }

    /// Adds the requests of a binding to the usage, unless a quota rejects that.
    pub(super) fn admit(&mut self, old: Option<&ResourceBinding>, new: &ResourceBinding) -> Result<(), Refusal> {
        let namespace = new.metadata.namespace.as_deref().unwrap_or_default();
        let Some(quotas) = self.quotas.get_mut(namespace) else { return Ok(()) };
        for changed in quota::check_quotas(quotas, old, new)? {
            if let Some(quota) = quotas.iter_mut().find(|quota| quota.metadata.name == changed.metadata.name) {
                *quota = changed;
            }
        }
        // Lower usage takes effect immediately: unlike in the control plane, no concurrent update can be lost.
        let mut decrease = old.map(|old| plan::usage(&old.spec)).unwrap_or_default();
        for (name, amount) in plan::usage(&new.spec) {
            *decrease.entry(name).or_default() -= amount;
        }
        decrease.retain(|_, amount| *amount > Quantity::ZERO);
        self.subtract_usage(namespace, &decrease);
        Ok(())
    }

    /// Subtracts the usage of a deleted binding.
    pub(super) fn release_usage(&mut self, binding: &ResourceBinding) {
        let namespace = binding.metadata.namespace.as_deref().unwrap_or_default();
        self.subtract_usage(namespace, &plan::usage(&binding.spec));
    }

    fn subtract_usage(&mut self, namespace: &str, decrease: &Usage) {
        for quota in self.quotas.get_mut(namespace).into_iter().flatten() {
            let mut used = plan::amounts(&quota.status.overall_used);
            for (name, amount) in decrease {
                if let Some(used) = used.get_mut(name) {
                    *used -= *amount;
                }
            }
            quota.status.overall_used = plan::to_list(plan::in_status_formats(used));
        }
    }

    /// Notices about lost clusters without a NoExecute taint. Only ClusterTaintPolicies add one to a cluster
    /// that is not ready.
    fn lost_cluster_notices(&self, is_failover_enabled: bool) -> impl Iterator<Item = String> {
        let reason = match is_failover_enabled {
            true => "no ClusterTaintPolicy adds a NoExecute taint to it in this state",
            false => "the feature gate Failover is disabled",
        };
        let keeps_workloads =
            move |name: &&String| self.clusters.get(*name).is_some_and(|cluster| !has_no_execute_taint(cluster));
        let names = self.lost_clusters.iter().filter(keeps_workloads);
        names.map(move |name| format!("cluster {name} would keep its workloads: {reason}"))
    }

    /// Notices about limits that are below the current usage.
    fn exceeded_quota_notices(&self, namespace: &str, name: &str) -> Vec<String> {
        let has_name = |quota: &&FederatedResourceQuota| quota.metadata.name.as_deref() == Some(name);
        let Some(quota) = self.quotas.get(namespace).and_then(|quotas| quotas.iter().find(has_name)) else {
            return Vec::new();
        };
        let used = plan::amounts(&quota.status.overall_used);
        let over = used.into_iter().filter_map(|(resource, used)| {
            let limit = quota.spec.overall.get(&resource).map(plan::amount)?;
            (used > limit).then(|| {
                format!(
                    "FederatedResourceQuota({namespace}/{name}) allows {limit} of {resource}, and {used} are used: \
                     existing objects are kept, and only changes that reduce the usage are admitted"
                )
            })
        });
        over.collect()
    }
}
