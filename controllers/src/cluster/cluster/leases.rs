//! Clusters with a Karmada agent: the agent writes the condition Ready, which becomes Unknown when its Lease expires.
//! Leases are read from the API server, since the cache excludes them.

use crowsnest_api::cluster::Cluster;
use crowsnest_api::constants::condition;
use crowsnest_apimachinery::names::ClusterName;
use crowsnest_apimachinery::unstructured;
use crowsnest_members::MemberRoute;
use k8s_openapi::jiff::Timestamp;
use serde_json::json;

use super::{ClusterController, PRECONDITION_RETRY};
use crate::Error;
use crate::runtime::context::decode;
use crate::runtime::dynamic_client::Target;
use crate::runtime::workqueue::Outcome;
use crowsnest_plan::conditions;
use crowsnest_plan::eviction::Safety;
use crowsnest_plan::health::lease::{self, GracePeriods};
use crowsnest_plan::journal::clusters as journal;

/// Namespace of the agents' Leases, which are named like their clusters.
const LEASE_NAMESPACE: &str = "karmada-cluster";

impl ClusterController {
    pub(super) async fn reconcile_lease(&self, name: ClusterName) -> Result<Outcome, Error> {
        let context = &self.context;
        let Some(cluster) = context.get_full(&context.kinds.cluster, "", name.as_str()).await? else {
            return Ok(Outcome::Done);
        };
        let typed: Cluster = decode(&cluster)?;
        if unstructured::is_terminating(&cluster) || MemberRoute::from_cluster(&typed) != MemberRoute::AgentIfConnected
        {
            return Ok(Outcome::Done);
        }
        let periods = &context.config.periods;
        let lease = context.objects.get(Target::new(&context.kinds.lease, LEASE_NAMESPACE, name.as_str())).await?;
        let renew_time = lease.as_ref().map(|lease| unstructured::text(lease, &["spec", "renewTime"]));
        let reported = conditions::find(&typed.status.conditions, condition::READY);
        let created = typed.metadata.creation_timestamp.as_ref().map_or(Timestamp::UNIX_EPOCH, |time| time.0);
        let grace = GracePeriods { monitor: periods.cluster_monitor_grace, startup: periods.cluster_startup_grace };
        let now = context.moment();
        let last = self.with_observations(name.as_str(), |observations| observations.liveness.clone()).flatten();
        let (new_condition, mut liveness) =
            lease::evaluate_lease(last.as_ref(), renew_time.filter(|at| !at.is_empty()), reported, created, grace, now);
        let doubt = match context.config.failover_safety {
            Safety::Karmada => None,
            Safety::Safe => self.evaluate_doubt(&typed, liveness.lost_since()),
        };
        if let Some(ready) = new_condition.filter(|_| doubt.is_none()) {
            let mut all = typed.status.conditions.clone();
            conditions::set(&mut all, ready.clone());
            match context.merge_status(&context.kinds.cluster, &cluster, json!({"status": {"conditions": all}})).await {
                // The agent wrote concurrently, which is a sign of life.
                Err(error) if error.is_conflict() => return Ok(Outcome::RequeueAfter(PRECONDITION_RETRY)),
                result => result?,
            };
            let mut updated = Cluster::clone(&typed);
            updated.status.conditions.clone_from(&all);
            let before = reported.map(|reported| &*reported.status);
            context
                .journal
                .add_all(journal::readiness_entry(&updated, before, &ready.message, self.context.config.clock.wall()))
                .await;
            if let Some(written) = conditions::find(&all, condition::READY) {
                liveness.record_write(written.clone());
            }
        } else if let Some(doubt) = &doubt {
            tracing::warn!(cluster = %name, %doubt, "the readiness of a cluster with a silent agent is doubted");
        }
        self.with_observations(name.as_str(), |observations| observations.liveness = Some(liveness));
        Ok(Outcome::RequeueAfter(periods.cluster_monitor))
    }
}
