//! Cluster taint policy controller: adds and removes taints of Clusters by their conditions. Taints of a deleted
//! policy remain. Requires the feature gate `Failover`.

use std::sync::Arc;

use crowsnest_api::cluster::Cluster;
use crowsnest_api::constants::event;
use crowsnest_api::policy::ClusterTaintPolicy;
use crowsnest_apimachinery::names::ClusterName;
use crowsnest_apimachinery::taints::NO_EXECUTE;
use crowsnest_apimachinery::unstructured;
use serde_json::{Value, json};

use crate::Error;
use crate::cache::Change;
use crate::runtime::context::{Context, decode};
use crate::runtime::event_recorder::Severity;
use crate::runtime::workqueue::Outcome;
use crate::runtime::{Controller, Requests, Setup, Source, Switch, Watch, WellKnownKinds};
use crowsnest_plan::health::doubt;
use crowsnest_plan::taint_policies as plan;

pub struct ClusterTaintPolicyController {
    context: Arc<Context>,
}

impl ClusterTaintPolicyController {
    fn on_cluster(&self, change: &Change) -> Requests<ClusterName> {
        let conditions = |cluster: &Value| unstructured::at(cluster, &["status", "conditions"]).cloned();
        let differs = change.old().is_none_or(|old| conditions(old) != conditions(change.object()));
        Requests::from(change.cluster_name().filter(|_| self.is_enabled() && !change.deleted && differs))
    }

    fn on_policy(&self, change: &Change) -> Requests<ClusterName> {
        Requests::all_if(self.is_enabled() && !change.deleted && !change.initial && change.is_generation_changed())
    }

    fn is_enabled(&self) -> bool {
        self.context.config.gates.failover
    }

    /// True if the readiness of any cluster is doubted.
    async fn is_any_doubted(&self) -> Result<bool, Error> {
        for name in self.context.active_cluster_names().await? {
            if self.context.cluster(name.as_str()).await?.is_some_and(|cluster| doubt::is_doubted(&cluster)) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

impl Controller for ClusterTaintPolicyController {
    type Key = ClusterName;
    const NAME: &'static str = "cluster-taint-policy-controller";
    const SWITCH: Switch = Switch::OnByDefault(&["clustertaintpolicy"]);

    fn new(setup: &Setup) -> Self {
        ClusterTaintPolicyController { context: setup.context() }
    }

    fn watches(kinds: &WellKnownKinds) -> Vec<Watch<Self>> {
        vec![
            Source::clusters(kinds).map(Self::on_cluster),
            Source::control_plane([&kinds.cluster_taint_policy]).map(Self::on_policy),
        ]
    }

    async fn keys(&self) -> Result<Vec<ClusterName>, Error> {
        if self.is_enabled() { self.context.active_cluster_names().await } else { Ok(Vec::new()) }
    }

    async fn reconcile(self: Arc<Self>, name: ClusterName) -> Result<Outcome, Error> {
        let context = &self.context;
        let Some(cluster) = context.get_full(&context.kinds.cluster, "", name.as_str()).await? else {
            return Ok(Outcome::Done);
        };
        let typed: Cluster = decode(&cluster)?;
        let policies = context.list(&context.kinds.cluster_taint_policy, None).await?;
        let policies: Vec<ClusterTaintPolicy> =
            policies.iter().map(|policy| decode(policy.view())).collect::<Result<_, _>>()?;
        let evicts = policies.iter().flat_map(|policy| &policy.spec.taints).any(|taint| taint.effect == NO_EXECUTE);
        let is_doubted = evicts && self.is_any_doubted().await?;
        let taints = plan::taints(&typed, &policies, is_doubted, context.now());
        let outcome = match is_doubted && plan::taints(&typed, &policies, false, context.now()) != taints {
            true => Outcome::RequeueAfter(self.context.config.periods.cluster_status),
            false => Outcome::Done,
        };
        if taints == typed.spec.taints {
            return Ok(outcome);
        }
        match context.merge(&context.kinds.cluster, &cluster, json!({"spec": {"taints": taints}})).await {
            Ok(_) => {
                let text = format!("Update Cluster({name}) with taints({}) succeed", plan::message(&taints));
                context.events.record(&cluster, Severity::Normal, event::TAINT_CLUSTER_SUCCEED, text);
                Ok(outcome)
            }
            Err(error) => {
                // Another client wrote first; the policy is evaluated again.
                if !error.is_conflict() {
                    context.events.record(&cluster, Severity::Warning, event::TAINT_CLUSTER_FAILED, error.to_string());
                }
                Err(error)
            }
        }
    }
}
