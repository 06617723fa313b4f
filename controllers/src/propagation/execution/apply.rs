//! Applies the manifests of a Work to its member.

use std::sync::Arc;

use crowsnest_api::constants::{annotation, event};
use crowsnest_api::keys::WorkKey;
use crowsnest_api::work::Work;
use crowsnest_apimachinery::names::ClusterName;
use crowsnest_apimachinery::unstructured;
use crowsnest_index::RecordKey;
use crowsnest_plan::work::apply::{self, ApplyPlan, ManifestComparison};
use crowsnest_plan::work::managed;
use serde_json::{Value, json};

use super::ExecutionController;
use super::operation_metrics::update_result;
use crate::Error;
use crate::cache::CachedObject;
use crate::cache::applied_state::{AppliedState, Fingerprint};
use crate::metrics::operations::{Operation, Update};
use crate::runtime::context::Context;
use crate::runtime::dynamic_client::{DynamicClient, Target};
use crate::runtime::event_recorder::Severity;

/// HTTP status of a response that rejects an object as invalid.
const UNPROCESSABLE_ENTITY: u16 = 422;
/// Message of an API server for a resource that it does not serve.
const NOT_SERVED: &str = "the server could not find the requested resource";

impl ExecutionController {
    /// Applies all manifests. Returns the errors of those that failed. Writes and reported errors are recorded as
    /// events on the templates.
    pub(super) async fn apply_all(&self, cluster: &ClusterName, key: &WorkKey, work: &Work) -> Vec<Error> {
        let mut errors = Vec::new();
        let mut has_unserved = false;
        for manifest in &work.spec.workload.manifests {
            let error = match self.apply(cluster, key, &manifest.0).await {
                Ok(written) => {
                    if written {
                        let (namespace, name) = (unstructured::namespace(&manifest.0), unstructured::name(&manifest.0));
                        let message = format!("Successfully applied resource({namespace}/{name}) to cluster {cluster}");
                        self.record_template_event(&manifest.0, Severity::Normal, event::SYNC_SUCCEED, message);
                    }
                    continue;
                }
                Err(error) => error,
            };
            let is_unknown_kind = matches!(error, Error::UnknownKind { .. });
            has_unserved |= is_unknown_kind;
            let error = match is_unknown_kind && self.is_served_by_control_plane(&manifest.0) {
                true => Error::Other(NOT_SERVED.to_owned()),
                false => error,
            };
            if error.needs_event() {
                let (object, error) = (object_name(&manifest.0), error.message());
                let message =
                    format!("Failed to create or update resource({object}) in member cluster({cluster}): {error}");
                self.record_template_event(&manifest.0, Severity::Warning, event::SYNC_FAILED, message);
            }
            errors.push(error);
        }
        let mut unserved = self.unserved.lock();
        if has_unserved {
            unserved.insert(key.clone());
        } else {
            unserved.remove(key);
        }
        errors
    }

    /// Records an event on the template of a manifest.
    fn record_template_event(&self, manifest: &Value, severity: Severity, reason: &'static str, message: String) {
        let template = json!({
            "apiVersion": unstructured::api_version(manifest), "kind": unstructured::kind(manifest),
            "metadata": {
                "namespace": unstructured::namespace(manifest), "name": unstructured::name(manifest),
                "uid": unstructured::annotation(manifest, annotation::RESOURCE_TEMPLATE_UID).unwrap_or_default(),
            },
        });
        self.context.events.record(&template, severity, reason, message);
    }

    /// True if the control plane serves the manifest's kind.
    fn is_served_by_control_plane(&self, manifest: &Value) -> bool {
        let Context { rest_mapper, control_plane, .. } = self.context.as_ref();
        rest_mapper
            .find_cached(control_plane, unstructured::api_version(manifest), unstructured::kind(manifest))
            .is_some()
    }

    /// Applies one manifest in the member. Returns true if it was written. After a conflict, the object is read again
    /// and the apply is retried. After a write without a response, the next attempt reads the object from the member.
    async fn apply(&self, cluster: &ClusterName, work: &WorkKey, manifest: &Value) -> Result<bool, Error> {
        let resource = self
            .context
            .rest_mapper
            .find(cluster, unstructured::api_version(manifest), unstructured::kind(manifest))
            .await?;
        self.context.cache.collect(cluster, &resource);
        self.context.cache.wait_for_first_list(cluster, &resource.gvr).await;
        let target = Target::new(&resource, unstructured::namespace(manifest), unstructured::name(manifest));
        let member = self.member_client(cluster)?;
        let key = RecordKey::new(cluster.clone(), resource.gvr.clone(), target.namespace, target.name);
        let is_unconfirmed = self.unconfirmed.lock().contains_key(&key);
        let cached = match is_unconfirmed {
            true => {
                let live = self.read_live(&member, cluster, target).await?;
                self.unconfirmed.lock().remove(&key);
                live.map(CachedObject::from_response)
            }
            false => self.get_member_object(cluster, target).await?,
        };
        let fingerprint = Fingerprint::from_manifest(manifest);
        // The applied state is only valid for the Work and manifest that it was recorded for.
        let applied_state =
            self.applied_states.get(&key).filter(|state| state.work == *work && state.manifest == fingerprint);
        if is_unchanged(applied_state.as_ref(), cached.as_ref().map(CachedObject::view)) {
            self.count_operation(cluster, manifest, Operation::Update(Update::None), true);
            return Ok(false);
        }
        let was_applied = applied_state.is_some();
        let difference = applied_state.and_then(|state| state.difference);
        let mut observed = match cached {
            None => None,
            Some(cached) => match cached.full() {
                // The cached object has redacted values, so the live object is read.
                None => member.get(target).await?.map(Arc::new),
                full => full,
            },
        };
        const MAX_ATTEMPTS: usize = 5;
        for attempt in 1.. {
            let plan = self.plan(cluster, manifest, observed.as_deref(), difference.as_deref()).await?;
            tracing::debug!(%cluster, resource = %resource.gvr, name = target.name, plan = plan.name(), "planned the write of a manifest");
            let written = match &plan {
                ApplyPlan::Keep => {
                    let resource_version =
                        observed.as_deref().map(unstructured::resource_version).unwrap_or_default().to_owned();
                    let state =
                        AppliedState { work: work.clone(), manifest: fingerprint, resource_version, difference };
                    self.applied_states.put(key, state).await;
                    self.count_operation(cluster, manifest, Operation::Update(Update::None), true);
                    return Ok(false);
                }
                ApplyPlan::Create(object) => {
                    let created = member.create(&resource, target.namespace, object).await;
                    self.count_operation(cluster, manifest, Operation::Create, created.is_ok());
                    created
                }
                ApplyPlan::Update(object) => {
                    let updated = member.replace(target, object).await;
                    let update = update_result(observed.as_deref(), &updated);
                    self.count_operation(cluster, manifest, Operation::Update(update), updated.is_ok());
                    updated
                }
                ApplyPlan::Conflict(message) => {
                    self.count_operation(cluster, manifest, Operation::Update(Update::None), false);
                    return Err(Error::Other(message.clone()));
                }
            };
            if written.as_ref().is_err_and(Error::has_unknown_outcome) {
                self.unconfirmed.lock().insert(key.clone(), work.clone());
            }
            match (written, plan) {
                (Ok(live), ApplyPlan::Create(sent) | ApplyPlan::Update(sent)) => {
                    let difference = apply::difference(&sent, &live).map(Arc::new);
                    let resource_version = unstructured::resource_version(&live).to_owned();
                    let state =
                        AppliedState { work: work.clone(), manifest: fingerprint, resource_version, difference };
                    self.applied_states.put(key, state).await;
                    self.context.cache.observe(cluster, &resource.gvr, live);
                    return Ok(true);
                }
                // Members can set fields that are immutable afterwards, such as the storage class of a
                // PersistentVolumeClaim. The rejected update would only remove such fields.
                (Err(error), ApplyPlan::Update(sent))
                    if error.code() == Some(UNPROCESSABLE_ENTITY)
                        && was_applied
                        && observed.as_deref().is_some_and(|live| apply::contains_all_fields(&sent, live)) =>
                {
                    let difference = observed.as_deref().and_then(|live| apply::difference(&sent, live)).map(Arc::new);
                    let resource_version =
                        observed.as_deref().map(unstructured::resource_version).unwrap_or_default().to_owned();
                    let state =
                        AppliedState { work: work.clone(), manifest: fingerprint, resource_version, difference };
                    self.applied_states.put(key, state).await;
                    return Ok(false);
                }
                (Err(error), _) if (error.is_conflict() || error.is_not_found()) && attempt < MAX_ATTEMPTS => {
                    let live = self.read_live(&member, cluster, target).await?;
                    if live.is_none() && error.is_not_found() && observed.is_none() {
                        return Err(error);
                    }
                    observed = live.map(Arc::new);
                }
                (Err(error), _) => return Err(error),
                (Ok(_), ApplyPlan::Keep | ApplyPlan::Conflict(_)) => break,
            }
        }
        Ok(false)
    }

    /// Reads an object from the member. The cache may have an older version, on which the next write must not be based.
    async fn read_live(
        &self,
        member: &DynamicClient,
        cluster: &ClusterName,
        target: Target<'_>,
    ) -> Result<Option<Value>, Error> {
        let live = member.get(target).await?;
        if let Some(live) = &live {
            self.context.cache.observe(cluster, &target.resource.gvr, live.clone());
        }
        Ok(live)
    }

    /// Plans the write for a manifest, after the kind's interpreter has retained the member's fields.
    pub(super) async fn plan(
        &self,
        cluster: &ClusterName,
        manifest: &Value,
        observed: Option<&Value>,
        difference: Option<&Value>,
    ) -> Result<ApplyPlan, Error> {
        match apply::compare_with_member(cluster.as_str(), manifest, observed) {
            ManifestComparison::Planned(plan) => Ok(plan),
            ManifestComparison::NeedsRetention { mut desired, observed } => {
                self.context.interpreter.retain(&mut desired, observed).await?;
                Ok(apply::finish(desired, observed, difference))
            }
        }
    }
}

/// True if the member's object is unchanged since the manifest was last applied. An object without the managed label
/// counts as changed, even if this controller created it.
fn is_unchanged(applied_state: Option<&AppliedState>, observed: Option<&Value>) -> bool {
    let (Some(applied_state), Some(observed)) = (applied_state, observed) else { return false };
    managed::is_managed(observed)
        && !applied_state.resource_version.is_empty()
        && applied_state.resource_version == unstructured::resource_version(observed)
}

/// Namespace and name in klog's format of an object reference (`klog.KObj`).
fn object_name(object: &Value) -> String {
    match (unstructured::namespace(object), unstructured::name(object)) {
        ("", name) => name.to_owned(),
        (namespace, name) => format!("{namespace}/{name}"),
    }
}
