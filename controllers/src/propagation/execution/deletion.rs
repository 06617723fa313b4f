//! Deletion of a Work: deletes its objects in the member, or releases them.

use std::time::Duration;

use crowsnest_api::cluster::Cluster;
use crowsnest_api::constants::finalizer;
use crowsnest_api::keys::WorkKey;
use crowsnest_api::work::Work;
use crowsnest_apimachinery::names::ClusterName;
use crowsnest_apimachinery::unstructured;
use crowsnest_index::RecordKey;
use serde_json::Value;

use super::ExecutionController;
use crate::Error;
use crate::failover::graceful_eviction::exclusive;
use crate::metrics::operations::Operation;
use crate::propagation::execution::operation_metrics::update_result;
use crate::runtime::dynamic_client::Target;
use crate::runtime::workqueue::Outcome;
use crate::shared::clusters::is_ready;
use crowsnest_plan::work::apply::ApplyPlan;
use crowsnest_plan::work::exclusive::is_pod_of;
use crowsnest_plan::work::managed;

/// Requeue delay until an exclusive copy has stopped.
const STOP_RETRY_DELAY: Duration = Duration::from_secs(1);

impl ExecutionController {
    /// Deletes or releases the Work's objects in the member, then removes the Work's finalizer. An exclusive Work
    /// keeps its finalizer until its objects and their pods are deleted; if the member cannot be read, the binding
    /// records that the stop is unconfirmed.
    pub(super) async fn remove(
        &self,
        cluster: &ClusterName,
        member: Option<&Cluster>,
        work: &Value,
        typed: &Work,
    ) -> Result<Outcome, Error> {
        if !unstructured::has_finalizer(work, finalizer::EXECUTION_CONTROLLER) {
            return Ok(Outcome::Done);
        }
        let is_cluster_removed = member.is_none_or(|member| member.metadata.deletion_timestamp.is_some());
        let preserve = typed.spec.preserve_resources_on_deletion.unwrap_or_default();
        let is_exclusive = exclusive::has_exclusive_annotation(work) && !preserve;
        if member.is_some_and(is_ready) {
            let mut are_all_stopped = true;
            for manifest in &typed.spec.workload.manifests {
                match is_exclusive {
                    true => are_all_stopped &= self.delete_and_check_stopped(cluster, &manifest.0).await?,
                    false => self.delete_or_release(cluster, &manifest.0, preserve).await?,
                }
            }
            if !are_all_stopped {
                return Ok(Outcome::RequeueAfter(STOP_RETRY_DELAY));
            }
        } else if !is_cluster_removed {
            return Err(Error::Waiting(format!("cluster({cluster}) not ready")));
        } else if is_exclusive {
            exclusive::mark_unconfirmed(&self.context, work, cluster.as_str()).await?;
        }
        let key = WorkKey::from_object(work);
        for manifest in &typed.spec.workload.manifests {
            self.remove_applied_state(cluster, &key, &manifest.0).await;
        }
        self.forget_work(&key);
        self.context.remove_finalizer(&self.context.kinds.work, work, finalizer::EXECUTION_CONTROLLER).await?;
        Ok(Outcome::Done)
    }

    /// Removes the applied state that this Work recorded for the manifest's object.
    async fn remove_applied_state(&self, cluster: &ClusterName, work: &WorkKey, manifest: &Value) {
        let (api_version, kind) = (unstructured::api_version(manifest), unstructured::kind(manifest));
        if let Some(resource) = self.context.rest_mapper.find_cached(cluster, api_version, kind) {
            let (namespace, name) = (unstructured::namespace(manifest), unstructured::name(manifest));
            let key = RecordKey::new(cluster.clone(), resource.gvr.clone(), namespace, name);
            if self.applied_states.get(&key).is_some_and(|state| state.work == *work) {
                self.applied_states.remove(&key).await;
            }
        }
    }

    /// Deletes an object with foreground propagation. Returns true if it is deleted and none of its pods runs.
    async fn delete_and_check_stopped(&self, cluster: &ClusterName, manifest: &Value) -> Result<bool, Error> {
        let (api_version, kind) = (unstructured::api_version(manifest), unstructured::kind(manifest));
        let resource = match self.context.rest_mapper.find(cluster, api_version, kind).await {
            Ok(resource) => resource,
            Err(Error::UnknownKind { .. }) => return Ok(true),
            Err(error) => return Err(error),
        };
        let target = Target::new(&resource, unstructured::namespace(manifest), unstructured::name(manifest));
        let member = self.member_client(cluster)?;
        match member.get(target).await? {
            Some(live) if managed::is_managed(&live) => {
                if !unstructured::is_terminating(&live) {
                    let deleted = member.delete_after_dependents(target).await;
                    self.count_operation(cluster, manifest, Operation::Delete, deleted.is_ok());
                    deleted?;
                }
                Ok(false)
            }
            Some(_) => Ok(true),
            None => Ok(!self.has_pods(cluster, manifest).await?),
        }
    }

    /// True if pods of a manifest's object may still be running.
    async fn has_pods(&self, cluster: &ClusterName, manifest: &Value) -> Result<bool, Error> {
        let (cache, pods) = (&self.context.cache, &self.context.kinds.pod);
        cache.collect(cluster, pods);
        if !cache.wait_until_synced(cluster, &pods.gvr, STOP_RETRY_DELAY).await {
            return Err(Error::Waiting(format!("pods of cluster({cluster}) are not listed yet")));
        }
        let found = cache.list(cluster, &pods.gvr, Some(unstructured::namespace(manifest))).await?;
        Ok(found.iter().any(|pod| is_pod_of(pod.view(), manifest)))
    }

    /// Releases an object if it is preserved, otherwise deletes it. Every deletion is counted in the metrics, even if
    /// the object does not exist.
    async fn delete_or_release(&self, cluster: &ClusterName, manifest: &Value, preserve: bool) -> Result<(), Error> {
        let removed = self.try_delete_or_release(cluster, manifest, preserve).await;
        if !preserve {
            self.count_operation(cluster, manifest, Operation::Delete, removed.is_ok());
        }
        removed
    }

    async fn try_delete_or_release(
        &self,
        cluster: &ClusterName,
        manifest: &Value,
        preserve: bool,
    ) -> Result<(), Error> {
        let (api_version, kind) = (unstructured::api_version(manifest), unstructured::kind(manifest));
        let resource = match self.context.rest_mapper.find(cluster, api_version, kind).await {
            Ok(resource) => resource,
            // A kind that is no longer served has no objects.
            Err(Error::UnknownKind { .. }) => return Ok(()),
            Err(error) => return Err(error),
        };
        let target = Target::new(&resource, unstructured::namespace(manifest), unstructured::name(manifest));
        let member = self.member_client(cluster)?;
        let Some(live) = member.get(target).await? else { return Ok(()) };
        if !managed::is_managed(&live) {
            return Ok(());
        }
        if !preserve {
            return member.delete(target).await;
        }
        let mut released = manifest.clone();
        managed::remove_ownership_metadata(&mut released);
        if let ApplyPlan::Update(object) = self.plan(cluster, &released, Some(&live), None).await? {
            let updated = member.replace(target, &object).await;
            let update = update_result(Some(&live), &updated);
            self.count_operation(cluster, manifest, Operation::Update(update), updated.is_ok());
            updated?;
        }
        Ok(())
    }
}
