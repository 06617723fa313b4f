//! Lifecycle of a Cluster: execution namespace, taints and removal. A Cluster being removed reports which objects its
//! removal waits for (condition `Removing`), and which remain in the member.

use std::pin::pin;
use std::time::Duration;

use crowsnest_api::cluster::{Cluster, ClusterSpec, ClusterSyncMode};
use crowsnest_api::constants::{condition, event, finalizer, label};
use crowsnest_api::names::execution_namespace;
use crowsnest_apimachinery::names::ClusterName;
use crowsnest_apimachinery::unstructured;
use crowsnest_members::MemberRoute;
use futures::TryStreamExt;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use serde_json::{Value, json};

use super::{ClusterController, PRECONDITION_RETRY, has_target};
use crate::Error;
use crate::failover::graceful_eviction::exclusive;
use crate::runtime::context::decode;
use crate::runtime::event_recorder::Severity;
use crate::runtime::workqueue::Outcome;
use crate::shared::clusters::is_ready;
use crowsnest_plan::{clusters, conditions, taint_policies};

/// Progress of a cluster's removal.
#[derive(Default)]
pub(in crate::cluster) struct RemovalProgress {
    /// Monotonic time of the start.
    started_at: Option<Duration>,
    /// Monotonic time of the last report.
    reported_at: Option<Duration>,
    /// True once the removal of the execution namespace has been recorded as an event.
    is_namespace_removal_recorded: bool,
    /// True once the objects that remain in the member have been reported.
    is_remainder_reported: bool,
}

/// Delay of the first progress report, and interval of the others. Most clusters are removed before the first one.
const REPORT_INTERVAL: Duration = Duration::from_secs(5);

impl ClusterController {
    pub(super) async fn reconcile_lifecycle(&self, name: ClusterName) -> Result<Outcome, Error> {
        let context = &self.context;
        let Some(cluster) = context.get_full(&context.kinds.cluster, "", name.as_str()).await? else {
            return Ok(Outcome::Done);
        };
        let name = name.as_str();
        if unstructured::is_terminating(&cluster) {
            return self.finalize(name, &cluster).await;
        }
        let typed: Cluster = decode(&cluster)?;
        let taints = clusters::taints(&typed, context.moment().wall);
        let mut patch = json!({});
        if taints != typed.spec.taints {
            unstructured::set(&mut patch, &["spec", "taints"], json!(taints));
        }
        if !unstructured::has_finalizer(&cluster, finalizer::CLUSTER_CONTROLLER) {
            let mut finalizers: Vec<&str> = unstructured::finalizers(&cluster).collect();
            finalizers.push(finalizer::CLUSTER_CONTROLLER);
            unstructured::set(&mut patch, &["metadata", "finalizers"], json!(finalizers));
        }
        if patch != json!({}) {
            let sets_taints = unstructured::at(&patch, &["spec", "taints"]).is_some();
            let written = context.merge(&context.kinds.cluster, &cluster, patch).await;
            match &written {
                Ok(_) if sets_taints => {
                    let message = format!("Taint cluster succeed: {}.", taint_policies::message(&taints));
                    context.events.record(&cluster, Severity::Normal, event::TAINT_CLUSTER_SUCCEED, message);
                }
                Err(error) if sets_taints && !error.is_conflict() => {
                    context.events.record(&cluster, Severity::Warning, event::TAINT_CLUSTER_FAILED, error.message());
                }
                _ => {}
            }
            written?;
        }
        self.record_changes(name, Cluster { spec: ClusterSpec { taints, ..typed.spec }, ..typed }).await?;
        // The execution namespace is only deleted with a Cluster that has the finalizer.
        self.create_execution_namespace(name, &cluster).await?;
        Ok(Outcome::Done)
    }

    async fn create_execution_namespace(&self, name: &str, cluster: &Value) -> Result<(), Error> {
        let context = &self.context;
        let namespace = execution_namespace(name);
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
                context.events.record(cluster, Severity::Normal, event::CREATE_EXECUTION_SPACE_SUCCEED, message);
                Ok(())
            }
            Err(error) if error.is_conflict() => Ok(()),
            Err(error) => {
                let message = error.message();
                context.events.record(cluster, Severity::Warning, event::CREATE_EXECUTION_SPACE_FAILED, message);
                Err(error)
            }
        }
    }

    /// Removes the finalizer once there is no execution namespace and no binding with this cluster.
    async fn finalize(&self, name: &str, cluster: &Value) -> Result<Outcome, Error> {
        let context = &self.context;
        if !unstructured::has_finalizer(cluster, finalizer::CLUSTER_CONTROLLER) {
            return Ok(Outcome::Done);
        }
        let namespace = execution_namespace(name);
        if let Some(namespace_object) = context.get_redacted(&context.kinds.namespace, "", &namespace).await? {
            let typed: Cluster = decode(cluster)?;
            self.report_remaining_objects(name, cluster, &typed, &namespace).await?;
            self.remove_work_finalizers(&typed, &namespace).await?;
            if !unstructured::is_terminating(namespace_object.view()) {
                self.delete_execution_namespace(name, cluster, &namespace).await?;
            }
            let condition = async {
                let works = self.remaining_works(&typed, &namespace).await?;
                let (plural, blockers) = match works.is_empty() {
                    true => {
                        let blocker = clusters::namespace_blocker(namespace_object.view());
                        ("namespaces", vec![(namespace.clone(), blocker)])
                    }
                    false => ("Works", works),
                };
                let reason = condition::REMOVING_EXECUTION_SPACE;
                Ok(clusters::removing_condition(reason, plural, blockers, context.moment().wall))
            };
            return self.wait_and_report(name, cluster, condition).await;
        }
        let is_new = self.with_observations(name, |observations| {
            !std::mem::replace(&mut observations.removal.is_namespace_removal_recorded, true)
        });
        if is_new.unwrap_or_default() {
            let message = format!("Removed execution space for cluster({name}).");
            context.events.record(cluster, Severity::Normal, event::REMOVE_EXECUTION_SPACE_SUCCEED, message);
        }
        let bindings = self.remaining_bindings(name).await?;
        if !bindings.is_empty() {
            let condition = async {
                Ok(clusters::removing_condition(
                    condition::REMOVING_BINDINGS,
                    "bindings",
                    bindings,
                    context.moment().wall,
                ))
            };
            return self.wait_and_report(name, cluster, condition).await;
        }
        context.remove_finalizer(&context.kinds.cluster, cluster, finalizer::CLUSTER_CONTROLLER).await?;
        Ok(Outcome::Done)
    }

    async fn delete_execution_namespace(&self, name: &str, cluster: &Value, namespace: &str) -> Result<(), Error> {
        let context = &self.context;
        match context.delete(&context.kinds.namespace, "", namespace).await {
            Err(error) if error.needs_event() => {
                let message = format!("Failed to remove execution space for cluster({name}): {}", error.message());
                context.events.record(cluster, Severity::Warning, event::REMOVE_EXECUTION_SPACE_FAILED, message);
                Err(error)
            }
            other => other,
        }
    }

    /// Requeues a cluster being removed. At most once per [`REPORT_INTERVAL`], writes the condition that names what the
    /// removal waits for.
    async fn wait_and_report(
        &self,
        name: &str,
        cluster: &Value,
        condition: impl Future<Output = Result<Condition, Error>>,
    ) -> Result<Outcome, Error> {
        let now = self.context.moment().mono;
        let take_report_slot = |removal: &mut RemovalProgress| {
            let since = removal.reported_at.unwrap_or(*removal.started_at.get_or_insert(now));
            let is_report_due = now.saturating_sub(since) >= REPORT_INTERVAL;
            removal.reported_at = if is_report_due { Some(now) } else { removal.reported_at };
            is_report_due
        };
        if self.with_observations(name, |observations| take_report_slot(&mut observations.removal)).unwrap_or_default()
        {
            let typed: Cluster = decode(cluster)?;
            let mut all = typed.status.conditions;
            if conditions::set(&mut all, condition.await?) {
                let kind = &self.context.kinds.cluster;
                let written = self.context.merge_status(kind, cluster, json!({"status": {"conditions": all}})).await;
                // On a conflict, it is reported next time.
                if let Err(error) = written.map(drop)
                    && !error.is_conflict()
                    && !error.is_not_found()
                {
                    return Err(error);
                }
            }
        }
        Ok(Outcome::RequeueAfter(PRECONDITION_RETRY))
    }

    /// Works of a cluster being removed, with the reasons why they still exist.
    async fn remaining_works(&self, cluster: &Cluster, namespace: &str) -> Result<Vec<(String, String)>, Error> {
        let is_agent_managed = MemberRoute::from_cluster(cluster) == MemberRoute::AgentIfConnected;
        let blocker_of =
            |work: &Value| Some((unstructured::name(work).to_owned(), clusters::work_blocker(work, is_agent_managed)));
        self.context.filter_map(&self.context.kinds.work, Some(namespace), blocker_of).await
    }

    /// Bindings with the cluster as target, with the reasons why they still have it.
    async fn remaining_bindings(&self, name: &str) -> Result<Vec<(String, String)>, Error> {
        let context = &self.context;
        let mut remaining = Vec::new();
        for key in context.placements.bindings_in(name) {
            let found = context.get_redacted(context.kinds.binding(key.scope()), &key.namespace, &key.name).await?;
            let Some(found) = found.filter(|found| has_target(found.view(), name)) else { continue };
            remaining.push((key.to_string(), clusters::binding_blocker(found.view(), &context.config.scheduler_name)));
        }
        Ok(remaining)
    }

    /// Reports once which objects remain in a member that is not ready, because they cannot be deleted.
    async fn report_remaining_objects(
        &self,
        name: &str,
        cluster: &Value,
        typed: &Cluster,
        namespace: &str,
    ) -> Result<(), Error> {
        let is_reported =
            self.with_observations(name, |observations| observations.removal.is_remainder_reported).unwrap_or_default();
        if is_reported || is_ready(typed) {
            return Ok(());
        }
        let mut objects = Vec::new();
        let mut works = pin!(self.context.stream(&self.context.kinds.work, Some(namespace)));
        while let Some(work) = works.try_next().await? {
            let manifests = unstructured::at(work.view(), &["spec", "workload", "manifests"]).and_then(Value::as_array);
            for manifest in manifests.into_iter().flatten() {
                let path =
                    [unstructured::kind(manifest), unstructured::namespace(manifest), unstructured::name(manifest)];
                let path: Vec<&str> = path.into_iter().filter(|part| !part.is_empty()).collect();
                objects.push((path.join("/"), String::new()));
            }
        }
        self.with_observations(name, |observations| observations.removal.is_remainder_reported = true);
        if !objects.is_empty() {
            let objects = clusters::list_names("objects", &mut objects);
            let message = format!("cluster({name}) is not ready, so these objects remain in it: {objects}");
            self.context.events.record(cluster, Severity::Warning, event::RESOURCES_LEFT_BEHIND, message);
        }
        Ok(())
    }

    /// Removes the finalizers of the Works of an unreachable pull-mode cluster, since its agent cannot.
    async fn remove_work_finalizers(&self, cluster: &Cluster, namespace: &str) -> Result<(), Error> {
        if cluster.spec.sync_mode != ClusterSyncMode::Pull || is_ready(cluster) {
            return Ok(());
        }
        let name = cluster.metadata.name.as_deref().unwrap_or_default();
        let mut works = pin!(self.context.stream(&self.context.kinds.work, Some(namespace)));
        while let Some(work) = works.try_next().await? {
            let finalizer = finalizer::EXECUTION_CONTROLLER;
            if exclusive::has_exclusive_annotation(work.view()) {
                exclusive::mark_unconfirmed(&self.context, work.view(), name).await?;
            }
            self.context.remove_finalizer(&self.context.kinds.work, work.view(), finalizer).await?;
        }
        Ok(())
    }
}
