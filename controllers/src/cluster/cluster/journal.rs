//! Adds journal entries for changes of a Cluster that status checks do not record: taints set by any writer, and
//! readiness reported by Karmada's agents. The first reconciliation of a cluster records nothing, since it only reads
//! the existing state.

use crowsnest_api::cluster::Cluster;
use crowsnest_api::constants::condition;
use crowsnest_members::MemberRoute;
use k8s_openapi::api::core::v1::Taint;

use super::ClusterController;
use crate::Error;
use crate::runtime::context::decode;
use crowsnest_plan::conditions;
use crowsnest_plan::journal::clusters as journal;

/// State of a Cluster at the last reconciliation, to detect changes to record.
#[derive(Clone, PartialEq)]
pub(in crate::cluster) struct JournaledState {
    taints: Vec<Taint>,
    /// Status of Ready, for clusters with a Karmada agent.
    ready: Option<String>,
}

impl JournaledState {
    fn from_cluster(cluster: &Cluster) -> Self {
        let ready = conditions::find(&cluster.status.conditions, condition::READY);
        let ready = ready.filter(|_| MemberRoute::from_cluster(cluster) == MemberRoute::AgentIfConnected);
        JournaledState { taints: cluster.spec.taints.clone(), ready: ready.map(|ready| ready.status.clone()) }
    }
}

impl ClusterController {
    /// Adds journal entries for changes of a Cluster since the last reconciliation.
    pub(super) async fn record_changes(&self, name: &str, cluster: Cluster) -> Result<(), Error> {
        let context = &self.context;
        let current = JournaledState::from_cluster(&cluster);
        let Some(before) = self.with_observations(name, |observations| observations.journaled.clone()).flatten() else {
            self.with_observations(name, |observations| observations.journaled = Some(current));
            return Ok(());
        };
        if before == current {
            return Ok(());
        }
        let at = self.context.config.clock.wall();
        let is_reported_by_agent =
            current.ready.as_deref().is_some_and(|ready| ready != "Unknown") && current.ready != before.ready;
        if let Some(ready) =
            conditions::find(&cluster.status.conditions, condition::READY).filter(|_| is_reported_by_agent)
        {
            let entry = journal::readiness_entry(&cluster, before.ready.as_deref(), &ready.message, at);
            context.journal.add_all(entry).await;
        }
        if current.taints.iter().any(|taint| !before.taints.contains(taint)) {
            let policies = context.list(&context.kinds.cluster_taint_policy, None).await?;
            let policies: Vec<_> = policies.iter().map(|policy| decode(policy.view())).collect::<Result<_, _>>()?;
            context.journal.add_all(journal::taint_entries(&cluster, &before.taints, &policies, at)).await;
        }
        self.with_observations(name, |observations| observations.journaled = Some(current));
        Ok(())
    }
}
