//! Condition `EvictionsHalted` of clusters, which the eviction rate of the taint manager determines.

use std::sync::Arc;

use crowsnest_api::cluster::Cluster;
use crowsnest_api::constants::condition;
use crowsnest_apimachinery::names::ClusterName;
use serde_json::json;

use super::TaintManager;
use crate::Error;
use crate::runtime::context::decode;
use crate::runtime::workqueue::Outcome;
use crate::runtime::{Controller, Setup, Switch};
use crowsnest_plan::conditions;
use crowsnest_plan::eviction::rate::{ClusterEvictionState, EvictionRate};
use crowsnest_plan::journal::clusters::halted_entry;

/// Maintains the condition `EvictionsHalted` of clusters. The taint manager enqueues clusters when the eviction rate changes.
pub struct HaltReporter {
    taint_manager: Arc<TaintManager>,
}

impl Controller for HaltReporter {
    type Key = ClusterName;
    const NAME: &'static str = "halted-evictions";
    const SWITCH: Switch = Switch::Always;

    fn new(setup: &Setup) -> Self {
        HaltReporter { taint_manager: setup.controller() }
    }

    async fn keys(&self) -> Result<Vec<ClusterName>, Error> {
        self.taint_manager.context.active_cluster_names().await
    }

    async fn reconcile(self: Arc<Self>, name: ClusterName) -> Result<Outcome, Error> {
        let context = &self.taint_manager.context;
        let resource = &context.kinds.cluster;
        let Some(cluster) = context.get_full(resource, "", name.as_str()).await? else { return Ok(Outcome::Done) };
        let typed: Cluster = decode(&cluster)?;
        let state = ClusterEvictionState::from_cluster(&cluster)
            .map_err(|source| Error::Decode { object: name.to_string(), source })?;
        let eviction_rate = self.taint_manager.gate.eviction_rate();
        let halted = state.is_halted(&eviction_rate);
        if halted == state.has_halt_condition {
            return Ok(Outcome::Done);
        }
        let mut conditions = typed.status.conditions.clone();
        let kind = condition::EVICTIONS_HALTED;
        conditions.retain(|existing| existing.type_ != kind);
        let now = context.config.clock.wall();
        let message = match &eviction_rate {
            EvictionRate::Halted(halt) if halted => {
                let message = halt.message();
                conditions.push(conditions::condition(kind, true, halt.reason(), message.clone(), context.now()));
                message
            }
            _ => "evictions are resumed".to_owned(),
        };
        context.merge_status(resource, &cluster, json!({"status": {"conditions": conditions}})).await?;
        let before = conditions::find(&typed.status.conditions, kind);
        context.journal.add(halted_entry(&typed, halted, &message, before, now)).await;
        Ok(Outcome::Done)
    }
}
