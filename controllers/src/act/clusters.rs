//! A cluster's life in the control plane: its execution namespace, its taints, its departure; and its status, collected
//! in turn from every member the control plane can reach.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use crowsnest_api::cluster::{Cluster, ClusterStatus, ClusterSyncMode};
use crowsnest_api::constants::{condition, event, finalizer, label};
use crowsnest_api::names::{ClusterName, EXECUTION_NAMESPACE_PREFIX};
use crowsnest_fleet::Through;
use futures::TryStreamExt;
use http::Request;
use k8s_openapi::jiff::SignedDuration;
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::capacity::Capacity;
use super::context::{Context, decode, now};
use super::events::Severity;
use super::queue::{Outcome, Queue};
use super::world::Change;
use crate::Error;
use crate::plan::clusters::{self, Health, Observed, Thresholds};
use crate::plan::estimation::capacity;
use crate::plan::{conditions, object, taint_policies};

pub struct Clusters {
    context: Arc<Context>,
    capacity: Arc<Capacity>,
    pub lives: Queue<String>,
    pub statuses: Queue<String>,
    observed: Mutex<HashMap<String, Observed>>,
}

/// While something else has to happen first.
const SOON: Duration = Duration::from_millis(500);

impl Clusters {
    pub fn new(context: Arc<Context>, capacity: Arc<Capacity>) -> Arc<Self> {
        Arc::new(Clusters {
            context,
            capacity,
            lives: Queue::new("clusters"),
            statuses: Queue::new("cluster-status"),
            observed: Mutex::default(),
        })
    }

    pub fn on_change(&self, change: &Change) {
        if change.resource.gvr != self.context.kinds.cluster.gvr {
            return;
        }
        let name = object::name(change.object()).to_owned();
        if change.deleted {
            self.observed.lock().remove(&name);
            return;
        }
        if change.old.is_none() {
            self.statuses.add(name.clone());
        }
        self.lives.add(name);
    }

    pub async fn full_pass(&self) -> Result<(), Error> {
        let clusters = self.context.keys(&self.context.kinds.cluster).await?;
        clusters.into_iter().for_each(|(_, name)| self.lives.add(name));
        Ok(())
    }

    pub async fn reconcile_life(self: Arc<Self>, name: String) -> Result<Outcome, Error> {
        let context = &self.context;
        let Some(cluster) = context.get(&context.kinds.cluster, "", &name).await? else { return Ok(Outcome::Done) };
        if object::is_terminating(&cluster) {
            return self.leave(&name, &cluster).await;
        }
        let typed: Cluster = decode(&cluster)?;
        let taints = clusters::taints(&typed, now());
        let mut patch = json!({});
        if taints != typed.spec.taints {
            object::set(&mut patch, &["spec", "taints"], json!(taints));
        }
        if !object::has_finalizer(&cluster, finalizer::CLUSTER_CONTROLLER) {
            let mut finalizers: Vec<&str> = object::finalizers(&cluster).collect();
            finalizers.push(finalizer::CLUSTER_CONTROLLER);
            object::set(&mut patch, &["metadata", "finalizers"], json!(finalizers));
        }
        if patch != json!({}) {
            let tainted = object::at(&patch, &["spec", "taints"]).is_some();
            context.merge(&context.kinds.cluster, &cluster, patch).await?;
            if tainted {
                let message = format!("Taint cluster succeed: {}.", taint_policies::message(&taints));
                context.events.note(&cluster, Severity::Normal, event::TAINT_CLUSTER_SUCCEED, message);
            }
        }
        // Only once the finalizer is there does a Cluster take its namespace along, whenever it goes.
        self.make_execution_namespace(&name, &cluster).await?;
        Ok(Outcome::Done)
    }

    async fn make_execution_namespace(&self, name: &str, cluster: &Value) -> Result<(), Error> {
        let context = &self.context;
        let namespace = format!("{EXECUTION_NAMESPACE_PREFIX}{name}");
        if context.exists(&context.kinds.namespace, "", &namespace).await? {
            return Ok(());
        }
        let object = json!({
            "apiVersion": "v1", "kind": "Namespace",
            "metadata": {"name": namespace, "labels": {label::SYSTEM: label::SYSTEM_VALUE}},
        });
        match context.create(&context.kinds.namespace, &object).await {
            Ok(_) => {
                let message = format!("Created execution space({namespace}) for cluster({name}).");
                context.events.note(cluster, Severity::Normal, event::CREATE_EXECUTION_SPACE_SUCCEED, message);
                Ok(())
            }
            Err(error) if error.is_conflict() => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Lets a cluster go once nothing of it is left: no execution namespace, and no binding that targets it.
    async fn leave(&self, name: &str, cluster: &Value) -> Result<Outcome, Error> {
        let context = &self.context;
        if !object::has_finalizer(cluster, finalizer::CLUSTER_CONTROLLER) {
            return Ok(Outcome::Done);
        }
        let namespace = format!("{EXECUTION_NAMESPACE_PREFIX}{name}");
        if let Some(execution) = context.glance(&context.kinds.namespace, "", &namespace).await? {
            self.release_pulled_works(cluster, &namespace).await?;
            if !object::is_terminating(execution.view()) {
                context.delete(&context.kinds.namespace, "", &namespace).await?;
            }
            return Ok(Outcome::Again(SOON));
        }
        let kinds = &context.kinds;
        for resource in [&kinds.resource_binding, &kinds.cluster_resource_binding] {
            let mut bindings = pin!(context.stream(resource, None));
            while let Some(binding) = bindings.try_next().await? {
                if targets(binding.view(), name) {
                    return Ok(Outcome::Again(SOON));
                }
            }
        }
        context.remove_finalizer(&kinds.cluster, cluster, finalizer::CLUSTER_CONTROLLER).await?;
        Ok(Outcome::Done)
    }

    /// The agent of an unreachable pull-mode member will never let its Works go, so they are let go here.
    async fn release_pulled_works(&self, cluster: &Value, namespace: &str) -> Result<(), Error> {
        let typed: Cluster = decode(cluster)?;
        if typed.spec.sync_mode != ClusterSyncMode::Pull || super::works::is_ready(&typed) {
            return Ok(());
        }
        let mut works = pin!(self.context.stream(&self.context.kinds.work, Some(namespace)));
        while let Some(work) = works.try_next().await? {
            let finalizer = finalizer::EXECUTION_CONTROLLER;
            self.context.remove_finalizer(&self.context.kinds.work, work.view(), finalizer).await?;
        }
        Ok(())
    }

    pub async fn reconcile_status(self: Arc<Self>, name: String) -> Result<Outcome, Error> {
        let context = &self.context;
        let period = context.config.periods.cluster_status;
        let Some(cluster) = context.get(&context.kinds.cluster, "", &name).await? else { return Ok(Outcome::Done) };
        let typed: Cluster = decode(&cluster)?;
        // Karmada's agent reports of its cluster; ours only carries us there.
        if object::is_terminating(&cluster) || Through::of(&typed) == Through::AgentIfThere {
            return Ok(Outcome::Again(period));
        }
        if !object::has_finalizer(&cluster, finalizer::CLUSTER_CONTROLLER) {
            return Ok(Outcome::Again(SOON));
        }
        let Ok(member) = ClusterName::parse(&name) else { return Ok(Outcome::Done) };
        let status = self.collect(&member, &typed).await;
        if status != typed.status {
            // Replaced, not merged: a resource nobody uses any more has to leave the summary.
            let mut updated = cluster.as_ref().clone();
            object::set(&mut updated, &["status"], json!(status));
            match context.replace_status(&context.kinds.cluster, &updated).await {
                Err(error) if error.is_conflict() => return Ok(Outcome::Again(SOON)),
                result => result?,
            };
        }
        Ok(Outcome::Again(period))
    }

    /// The status as it should be after one look at the member. An unwell member keeps what was last known of it.
    async fn collect(&self, name: &ClusterName, cluster: &Cluster) -> ClusterStatus {
        let health = match self.context.fleet.member(name) {
            None => Health::Unreachable,
            Some(member) => {
                let probe = member.probe().await;
                match (probe.online, probe.healthy) {
                    (true, true) => Health::Healthy,
                    (true, false) => Health::Unhealthy,
                    (false, _) => Health::Unreachable,
                }
            }
        };
        let mut status = cluster.status.clone();
        let ready = self.settle(name.as_str(), cluster, health);
        conditions::set(&mut status.conditions, ready);
        if let Some(unknown) = clusters::annotations_condition(cluster, now()) {
            conditions::set(&mut status.conditions, unknown);
        } else {
            status.conditions.retain(|one| one.type_ != condition::ANNOTATIONS_KNOWN);
        }
        if health == Health::Healthy
            && let Err(error) = self.collect_details(name, cluster, &mut status).await
        {
            tracing::warn!(cluster = %name, %error, "status not collected");
        }
        status
    }

    fn settle(
        &self,
        name: &str,
        cluster: &Cluster,
        health: Health,
    ) -> k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition {
        let periods = &self.context.config.periods;
        let duration = |period: Duration| SignedDuration::try_from(period).unwrap_or(SignedDuration::MAX);
        let thresholds = Thresholds {
            success: duration(periods.cluster_success_threshold),
            failure: duration(periods.cluster_failure_threshold),
        };
        let now = now();
        let shown = conditions::find(&cluster.status.conditions, condition::READY);
        let mut observed = self.observed.lock();
        let (ready, remember) = clusters::with_thresholds(
            clusters::ready_condition(health, now),
            shown,
            observed.get(name),
            thresholds,
            now,
        );
        observed.insert(name.to_owned(), remember);
        ready
    }

    async fn collect_details(
        &self,
        name: &ClusterName,
        cluster: &Cluster,
        status: &mut ClusterStatus,
    ) -> Result<(), Error> {
        let client = self.context.fleet.client(name)?;
        let request = Request::get("/version")
            .body(Vec::new())
            .map_err(|error| Error::request("GET /version", kube::Error::HttpError(error)))?;
        let version: Value = client.request(request).await.map_err(|error| Error::request("GET /version", error))?;
        status.kubernetes_version = object::text(&version, &["gitVersion"]).to_owned();
        let served = self.context.catalog.refresh(name).await?;
        // What only has something below it (custom metrics) is of no kind.
        let resources = served
            .resources
            .iter()
            .filter(|resource| !resource.kind.is_empty())
            .map(|resource| (resource.gvr.api_version(), resource.gvr.resource.to_string(), resource.kind.clone()));
        status.api_enablements = clusters::api_enablements(resources);
        let complete = served.stale.is_empty();
        conditions::set(&mut status.conditions, clusters::api_condition(&status.api_enablements, complete, now()));
        self.capacity.follow(name);
        for kind in [&self.context.kinds.node, &self.context.kinds.pod] {
            self.context.world.wait_synced(name, &kind.gvr, Duration::from_secs(5)).await;
        }
        if let Some((nodes, pods, objects)) = self.capacity.facts(name).await? {
            let lists: Vec<&Value> =
                objects.iter().filter_map(|node| object::at(node.view(), &["status", "allocatable"])).collect();
            let modelled = self.context.config.gates.customized_cluster_resource_modeling;
            let models = if modelled { cluster.spec.resource_models.as_slice() } else { &[] };
            status.node_summary = Some(capacity::node_summary(&nodes));
            status.resource_summary = Some(capacity::resource_summary(&lists, &nodes, &pods, models));
        }
        Ok(())
    }
}

/// Whether a binding is for a cluster.
pub fn targets(binding: &Value, cluster: &str) -> bool {
    let clusters = object::at(binding, &["spec", "clusters"]).and_then(Value::as_array);
    clusters.into_iter().flatten().any(|target| object::text(target, &["name"]) == cluster)
}
