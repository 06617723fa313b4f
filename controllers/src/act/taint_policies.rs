//! ClusterTaintPolicies: puts on clusters the taints their conditions bring, and takes off those they take away. A policy
//! that goes leaves its taints. Only with the gate `Failover`.

use std::sync::Arc;

use crowsnest_api::cluster::Cluster;
use crowsnest_api::constants::event;
use crowsnest_api::policy::ClusterTaintPolicy;
use crowsnest_apimachinery::taints::NO_EXECUTE;
use serde_json::{Value, json};

use super::context::{Context, decode};
use super::events::Severity;
use super::queue::{Outcome, Queue};
use super::world::Change;
use crate::Error;
use crowsnest_plan::health::doubt;
use crowsnest_plan::{object, taint_policies as plan};

pub struct TaintPolicies {
    context: Arc<Context>,
    pub clusters: Queue<String>,
}

impl TaintPolicies {
    pub fn new(context: Arc<Context>) -> Arc<Self> {
        Arc::new(TaintPolicies { context, clusters: Queue::new("taint-policies") })
    }

    pub async fn on_change(&self, change: &Change) -> Result<(), Error> {
        if !self.context.config.gates.failover || change.deleted {
            return Ok(());
        }
        let kinds = &self.context.kinds;
        if change.resource.gvr == kinds.cluster.gvr {
            let conditions = |cluster: &Value| object::at(cluster, &["status", "conditions"]).cloned();
            if change.old().is_none_or(|old| conditions(old) != conditions(change.object())) {
                self.clusters.add(object::name(change.object()).to_owned());
            }
        } else if change.resource.gvr == kinds.cluster_taint_policy.gvr && !change.initial && change.is_moved() {
            self.full_pass().await?;
        }
        Ok(())
    }

    pub async fn full_pass(&self) -> Result<(), Error> {
        if self.context.config.gates.failover {
            self.context.clusters().await?.into_iter().for_each(|name| self.clusters.add(name));
        }
        Ok(())
    }

    /// Whether any cluster says that its readiness is doubted.
    async fn is_doubted(&self) -> Result<bool, Error> {
        for name in self.context.clusters().await? {
            if self.context.cluster(&name).await?.is_some_and(|cluster| doubt::is_doubted(&cluster)) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    pub async fn reconcile(self: Arc<Self>, name: String) -> Result<Outcome, Error> {
        let context = &self.context;
        let Some(cluster) = context.get(&context.kinds.cluster, "", &name).await? else { return Ok(Outcome::Done) };
        let typed: Cluster = decode(&cluster)?;
        let policies = context.list(&context.kinds.cluster_taint_policy, None).await?;
        let policies: Vec<ClusterTaintPolicy> =
            policies.iter().map(|policy| decode(policy.view())).collect::<Result<_, _>>()?;
        let evicts = policies.iter().flat_map(|policy| &policy.spec.taints).any(|taint| taint.effect == NO_EXECUTE);
        let is_doubted = evicts && self.is_doubted().await?;
        let taints = plan::taints(&typed, &policies, is_doubted, context.now());
        let outcome = match is_doubted && plan::taints(&typed, &policies, false, context.now()) != taints {
            true => Outcome::Again(self.context.config.periods.cluster_status),
            false => Outcome::Done,
        };
        if taints == typed.spec.taints {
            return Ok(outcome);
        }
        match context.merge(&context.kinds.cluster, &cluster, json!({"spec": {"taints": taints}})).await {
            Ok(_) => {
                let text = format!("Update Cluster({name}) with taints({}) succeed", plan::message(&taints));
                context.events.note(&cluster, Severity::Normal, event::TAINT_CLUSTER_SUCCEED, text);
                Ok(outcome)
            }
            Err(error) => {
                // Somebody else was faster: it is looked at again as it is then.
                if !error.is_conflict() {
                    context.events.note(&cluster, Severity::Warning, event::TAINT_CLUSTER_FAILED, error.to_string());
                }
                Err(error)
            }
        }
    }
}
