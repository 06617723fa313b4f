//! Execution controller: applies the manifests of a Work to its member cluster, and reflects their status into the
//! Work.
//!
//! Both are done by one controller, since both read the same member object. It applies every manifest, records the
//! resulting resourceVersion, and writes conditions and manifest statuses in one patch. A changed member object
//! enqueues its Work, so that drift is reverted and status is reflected.

mod apply;
mod deletion;
mod operation_metrics;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use crowsnest_api::cluster::Cluster;
use crowsnest_api::config::InterpreterOperation;
use crowsnest_api::constants::{annotation, condition, event};
use crowsnest_api::keys::WorkKey;
use crowsnest_api::work::{ManifestStatus, ResourceHealth, ResourceIdentifier, Work, WorkStatus};
use crowsnest_apimachinery::names::{ClusterName, Gvr};
use crowsnest_apimachinery::unstructured;
use crowsnest_index::RecordKey;
use crowsnest_members::MemberRoute;
use futures::FutureExt;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use k8s_openapi::jiff::Timestamp;
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::Error;
use crate::cache::applied_state::AppliedStates;
use crate::cache::{CachedObject, Change};
use crate::error::aggregate_messages;
use crate::metrics::Durations;
use crate::runtime::config::Config;
use crate::runtime::context::{Context, decode};
use crate::runtime::dynamic_client::{DynamicClient, Target};
use crate::runtime::event_recorder::Severity;
use crate::runtime::workqueue::Outcome;
use crate::runtime::write_priority::{DeferredWrites, Progress};
use crate::runtime::{Controller, Requests, Setup, Source, Switch, Trigger, Watch, WellKnownKinds};
use crate::shared::clusters::is_ready;
use crate::shared::works::member_of;
use crowsnest_plan::work::managed;
use crowsnest_plan::{conditions, status};

/// Time within which a member must respond to a request. Longer than the 34 seconds after which an API server itself
/// aborts a write with slow webhooks (`requestTimeoutUpperBound` in k8s.io/apiserver/pkg/endpoints/handlers).
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(35);

/// Applies Works in their member clusters and reflects the status of the objects.
pub struct ExecutionController {
    context: Arc<Context>,
    works: Trigger<WorkKey>,
    applied_states: AppliedStates,
    /// Works whose success status is deferred while the control plane is under write load or their objects are
    /// changing.
    deferred: DeferredWrites<WorkKey>,
    /// Works with an object of a kind that their member does not serve.
    unserved: Mutex<HashSet<WorkKey>>,
    /// Member objects whose last write may have been applied without a response, with the Work of the write. They are
    /// read from the member before the next write, since the cache might still lack the previous one.
    unconfirmed: Mutex<HashMap<RecordKey, WorkKey>>,
}

impl ExecutionController {
    fn on_work(&self, change: &Change) -> Requests<WorkKey> {
        Requests::one_if(!change.deleted && change.is_generation_or_deletion_changed(), || {
            WorkKey::from_object(change.object())
        })
    }

    fn on_member_object(&self, change: &Change) -> Requests<WorkKey> {
        let object = change.object();
        let key = change.key();
        let key = RecordKey::new(change.cluster.clone(), change.resource.gvr.clone(), &key.namespace, &key.name);
        if let Some(applied_state) = self.applied_states.get(&key) {
            let is_own_write =
                change.current().map(unstructured::resource_version) == Some(applied_state.resource_version.as_str());
            return Requests::one_if(!is_own_write, || applied_state.work);
        }
        let namespace = unstructured::annotation(object, annotation::WORK_NAMESPACE).unwrap_or_default();
        let name = unstructured::annotation(object, annotation::WORK_NAME).unwrap_or_default();
        let is_of_work = !name.is_empty() && member_of(namespace).as_ref() == Some(&change.cluster);
        Requests::one_if(is_of_work, || WorkKey::new(namespace, name))
    }

    /// Works of a member whose readiness or deletion changed. If only its API enablements changed: Works with a kind
    /// that the member did not serve.
    async fn on_cluster(&self, change: &Change) -> Result<Requests<WorkKey>, Error> {
        let state = |cluster: &Value| {
            let typed = decode::<Cluster>(cluster).ok();
            (typed.is_some_and(|cluster| is_ready(&cluster)), unstructured::is_terminating(cluster))
        };
        let Some(new) = change.current() else {
            if let Ok(cluster) = ClusterName::parse(unstructured::name(change.object())) {
                self.applied_states.remove_cluster(&cluster).await;
                self.unserved.lock().retain(|key| key.cluster() != Some(cluster.as_str()));
                self.unconfirmed.lock().retain(|key, _| *key.cluster() != cluster);
            }
            return Ok(Requests::none());
        };
        if change.old().map(state) != Some(state(new)) {
            let namespace = crowsnest_api::names::execution_namespace(unstructured::name(new));
            let works = self.context.headers(&self.context.kinds.work, &namespace).await?;
            return Ok(works.into_iter().map(|work| WorkKey::new(work.namespace, work.name)).collect());
        }
        if api_enablements(change.old()) == api_enablements(Some(new)) {
            return Ok(Requests::none());
        }
        let waiting = self.unserved.lock();
        Ok(waiting.iter().filter(|key| key.cluster() == Some(unstructured::name(new))).cloned().collect())
    }

    /// Removes what is remembered about a Work that is deleted, except its applied states.
    fn forget_work(&self, key: &WorkKey) {
        self.unserved.lock().remove(key);
        self.unconfirmed.lock().retain(|_, work| *work != *key);
    }

    /// Enqueues Works with applied objects of a kind whose interpretation changed.
    pub fn enqueue_kind(&self, api_version: &str, kind: &str) {
        let mut resources: HashMap<ClusterName, Option<Gvr>> = HashMap::new();
        let is_of_kind = |object: &RecordKey| {
            let find_resource =
                |cluster: &ClusterName| self.context.rest_mapper.find_cached(cluster, api_version, kind);
            let resource = resources
                .entry(object.cluster().clone())
                .or_insert_with_key(|cluster| find_resource(cluster).map(|resource| resource.gvr));
            resource.as_ref() == Some(&object.collection.resource)
        };
        self.applied_states.find_works(is_of_kind).into_iter().for_each(|work| self.works.add(work));
    }
}

impl Controller for ExecutionController {
    type Key = WorkKey;
    const NAME: &'static str = "execution-controller";
    /// Includes the work status controller, which is separate in Karmada.
    const SWITCH: Switch = Switch::OnByDefault(&["execution", "workStatus"]);

    fn new(setup: &Setup) -> Self {
        let context = setup.context();
        ExecutionController {
            works: setup.trigger::<Self>(),
            applied_states: AppliedStates::new(context.cache.clone()),
            deferred: DeferredWrites::default(),
            unserved: Mutex::default(),
            unconfirmed: Mutex::default(),
            context,
        }
    }

    fn watches(kinds: &WellKnownKinds) -> Vec<Watch<Self>> {
        vec![
            Source::control_plane([&kinds.work]).map(Self::on_work),
            Source::clusters(kinds).find(|controller, change| controller.on_cluster(change).boxed()),
            Source::AllOfMembers.map(Self::on_member_object),
        ]
    }

    /// All Works. Removes the applied state of Works that do not exist.
    async fn keys(&self) -> Result<Vec<WorkKey>, Error> {
        let keys: HashSet<WorkKey> =
            self.context.keys(&self.context.kinds.work).await?.into_iter().map(WorkKey::from).collect();
        self.applied_states.retain_works(&keys).await;
        Ok(keys.into_iter().collect())
    }

    fn workers(config: &Config) -> usize {
        config.workers.works
    }

    fn group(key: &WorkKey) -> Option<ClusterName> {
        member_of(&key.namespace)
    }

    fn durations(context: &Context) -> Option<Durations> {
        Some(context.metrics.sync_workload.clone())
    }

    /// Loads the applied states of a previous process.
    async fn prepare(&self) {
        if let Err(error) = self.applied_states.load().await {
            tracing::warn!(%error, "cannot load the applied states; objects that members have changed are written once more");
        }
    }

    fn has_deferred_writes(&self) -> bool {
        !self.deferred.is_empty()
    }

    async fn reconcile(self: Arc<Self>, key: WorkKey) -> Result<Outcome, Error> {
        let deferral = self.deferred.begin(&key);
        let Some(cluster) = member_of(&key.namespace) else { return Ok(Outcome::Done) };
        let Some(work) = self.context.get_full(&self.context.kinds.work, &key.namespace, &key.name).await? else {
            self.forget_work(&key);
            return Ok(Outcome::Done);
        };
        let typed: Work = decode(&work)?;
        let member = self.context.cluster(cluster.as_str()).await?;
        // Karmada's agent applies these Works. The cluster controller releases Works that an agent does not remove.
        if member.as_ref().is_some_and(|member| MemberRoute::from_cluster(member) == MemberRoute::AgentIfConnected) {
            return Ok(Outcome::Done);
        }
        if unstructured::is_terminating(&work) {
            return self.remove(&cluster, member.as_deref(), &work, &typed).await;
        }
        let Some(member) = member else {
            return Err(Error::Waiting(format!("cluster {cluster} does not exist")));
        };
        let mut status = typed.status.clone();
        let is_suspended = typed.spec.suspend_dispatching.unwrap_or_default();
        let dispatching = dispatching_condition(is_suspended, self.context.now());
        let is_dispatching_changed = conditions::find(&status.conditions, condition::DISPATCHING)
            .is_none_or(|existing| existing.status != dispatching.status);
        if is_dispatching_changed {
            conditions::set(&mut status.conditions, dispatching);
        }
        let mut result = Ok(());
        let mut failure = None;
        if !is_suspended {
            if is_ready(&member) {
                let mut errors = self.apply_all(&cluster, &key, &typed).await;
                let has_unknown_kind = errors.iter().any(|error| matches!(error, Error::UnknownKind { .. }));
                // If neither the member nor the control plane serves a kind, the Applied condition is not changed.
                if !has_unknown_kind {
                    conditions::set(&mut status.conditions, applied_condition(&typed, &errors, self.context.now()));
                }
                let messages = errors.iter().filter(|error| error.needs_event()).map(Error::message);
                failure = errors.iter().any(Error::needs_event).then(|| aggregate_messages(messages));
                result = errors.pop().map_or(Ok(()), Err);
            } else {
                result = Err(Error::Waiting(format!("cluster({cluster}) not ready")));
            }
        }
        let reflected = self.reflect(&cluster, &work, &typed).await.map(|statuses| {
            if let Some(statuses) = statuses {
                status.manifest_statuses = statuses;
            }
        });
        let is_only_conflict = result.as_ref().is_err_and(Error::is_conflict);
        if status != typed.status && !is_only_conflict {
            let progress = progress(&typed.status, &status);
            if result.is_ok()
                && let Some(wait) = self.deferred.defer(self.context.write_load(), &key, deferral, progress)
            {
                return reflected.map(|()| Outcome::RequeueAfter(wait));
            }
            self.report(&cluster, &work, &typed.status, &status).await?;
        }
        if let Some(failure) = failure {
            let message = format!("Failed to sync work({key}) to cluster({cluster}), err: {failure}");
            self.context.events.record(&work, Severity::Warning, event::SYNC_FAILED, message);
        }
        result.and(reflected).map(|()| Outcome::Done)
    }
}

impl ExecutionController {
    /// Writes the status, and records events about its changes if the write changed the Work.
    async fn report(
        &self,
        cluster: &ClusterName,
        work: &Value,
        before: &WorkStatus,
        status: &WorkStatus,
    ) -> Result<(), Error> {
        let statuses = (!status.manifest_statuses.is_empty()).then_some(&status.manifest_statuses);
        let patch = json!({"status": {"conditions": status.conditions, "manifestStatuses": statuses}});
        let written = self.context.merge_status(&self.context.kinds.work, work, patch).await?;
        if unstructured::resource_version(&written) == unstructured::resource_version(work) {
            return Ok(());
        }
        let events = &self.context.events;
        let dispatching_condition =
            |status: &WorkStatus| conditions::find(&status.conditions, condition::DISPATCHING).cloned();
        if let Some(dispatching) = dispatching_condition(status)
            && dispatching_condition(before).is_none_or(|before| before.status != dispatching.status)
        {
            events.record(work, Severity::Normal, event::WORK_DISPATCHING, dispatching.message);
        }
        let is_applied = |status: &WorkStatus| conditions::is_true(&status.conditions, condition::APPLIED);
        if is_applied(status) && !is_applied(before) {
            let (namespace, name) = (unstructured::namespace(work), unstructured::name(work));
            let message = format!("Sync work({namespace}/{name}) to cluster({cluster}) successful.");
            events.record(work, Severity::Normal, event::SYNC_SUCCEED, message);
        }
        self.record_status_events(work, before, status);
        Ok(())
    }

    /// Records events about manifests whose status or health was reflected for the first time or changed.
    fn record_status_events(&self, work: &Value, before: &WorkStatus, status: &WorkStatus) {
        let events = &self.context.events;
        for manifest in &status.manifest_statuses {
            let previous = before.manifest_statuses.iter().find(|previous| previous.identifier == manifest.identifier);
            if previous == Some(manifest) {
                continue;
            }
            let ResourceIdentifier { kind, namespace, name, .. } = &manifest.identifier;
            let object = format!("{kind}/{namespace}/{name}");
            let message = format!("Reflect status for object({object}) succeed.");
            events.record(work, Severity::Normal, event::REFLECT_STATUS_SUCCEED, message);
            let health = match &manifest.health {
                health if previous.is_some_and(|previous| previous.health == *health) => continue,
                Some(ResourceHealth::Healthy) => "healthy",
                Some(ResourceHealth::Unhealthy) => "unhealthy",
                Some(ResourceHealth::Unknown | ResourceHealth::Other(_)) | None => continue,
            };
            if self.has_health_rule(&manifest.identifier) {
                let message = format!("Interpret health of object({object}) as {health}.");
                events.record(work, Severity::Normal, event::INTERPRET_HEALTH_SUCCEED, message);
            }
        }
    }

    /// True if the health of objects of this kind is interpreted. Other kinds are always healthy.
    fn has_health_rule(&self, identifier: &ResourceIdentifier) -> bool {
        let ResourceIdentifier { group, version, kind, .. } = identifier;
        let api_version = if group.is_empty() { version.clone() } else { format!("{group}/{version}") };
        let object = json!({"apiVersion": api_version, "kind": kind});
        self.context.interpreter.is_interpreted(&object, &InterpreterOperation::InterpretHealth)
    }

    fn member_client(&self, cluster: &ClusterName) -> Result<DynamicClient, Error> {
        self.context.member_client(cluster, RESPONSE_TIMEOUT)
    }

    /// The member object: from the cache if it is synced, otherwise from the member.
    async fn get_member_object(
        &self,
        cluster: &ClusterName,
        target: Target<'_>,
    ) -> Result<Option<CachedObject>, Error> {
        if self.context.cache.is_synced(cluster, &target.resource.gvr) {
            return self.context.cache.get(cluster, &target.resource.gvr, target.namespace, target.name).await;
        }
        Ok(self.member_client(cluster)?.get(target).await?.map(CachedObject::from_response))
    }

    /// Status of all manifests. `None` if the member cannot be read, or if there is nothing to report.
    async fn reflect(
        &self,
        cluster: &ClusterName,
        work: &Value,
        typed: &Work,
    ) -> Result<Option<Vec<ManifestStatus>>, Error> {
        let mut statuses = Vec::new();
        for (ordinal, manifest) in typed.spec.workload.manifests.iter().enumerate() {
            let manifest = &manifest.0;
            if unstructured::annotation(manifest, annotation::WORK_NAME).is_none() {
                continue;
            }
            let (api_version, kind) = (unstructured::api_version(manifest), unstructured::kind(manifest));
            let Some(resource) = self.context.rest_mapper.find_cached(cluster, api_version, kind) else {
                return Ok(None);
            };
            let target = Target::new(&resource, unstructured::namespace(manifest), unstructured::name(manifest));
            // If a member does not respond, its last status is kept.
            let seen = match self.get_member_object(cluster, target).await {
                Err(error @ Error::Cache(_)) => return Err(error),
                Err(_) => return Ok(None),
                Ok(seen) => seen,
            };
            let Some(seen) = seen.filter(|seen| managed::is_managed(seen.view())) else { continue };
            let seen = seen.view();
            let interpreter = &self.context.interpreter;
            let record_failure = |reason, operation: &str, error: &crowsnest_interpreter::Error| {
                let object = format!(
                    "{}/{}/{}",
                    unstructured::kind(seen),
                    unstructured::namespace(seen),
                    unstructured::name(seen)
                );
                let message = format!("{operation} object({object}) failed, err: {}.", error);
                self.context.events.record(work, Severity::Warning, reason, message);
            };
            let reflected = interpreter
                .reflect(seen)
                .await
                .inspect_err(|error| record_failure(event::REFLECT_STATUS_FAILED, "Reflect status for", error))?;
            // If the health interpretation fails, health is unknown and the status is still reflected.
            let healthy = interpreter
                .is_healthy(seen)
                .await
                .inspect_err(|error| record_failure(event::INTERPRET_HEALTH_FAILED, "Interpret health of", error));
            statuses.push(status::manifest_status(ordinal, manifest, reflected, healthy.ok()));
        }
        let has_no_status = statuses.is_empty() && typed.status.manifest_statuses.is_empty();
        Ok((!has_no_status).then_some(statuses))
    }
}

/// Progress of a Work from its last written status to a new one. It is `Changing` while an object is expected to become
/// healthy, and `Settled` if a condition changed after the first write of the status, so that the change is written
/// immediately.
fn progress(written: &WorkStatus, status: &WorkStatus) -> Progress {
    let has_new_condition = !written.conditions.is_empty() && written.conditions != status.conditions;
    let is_becoming_healthy = |manifest: &ManifestStatus| {
        let previous = written.manifest_statuses.iter().find(|previous| previous.identifier == manifest.identifier);
        Progress::is_becoming_healthy(previous.and_then(|previous| previous.health.as_ref()), manifest.health.as_ref())
    };
    Progress::from_changing(!has_new_condition && status.manifest_statuses.iter().any(is_becoming_healthy))
}

/// API enablements of a cluster.
fn api_enablements(cluster: Option<&Value>) -> Option<&Value> {
    unstructured::at(cluster?, &["status", "apiEnablements"])
}

fn dispatching_condition(suspended: bool, now: Timestamp) -> Condition {
    let (reason, message) = match suspended {
        true => (condition::DISPATCHING_SUSPENDED, "Work dispatching is in a suspended state."),
        false => (condition::DISPATCHING_DISPATCHING, "Work is being dispatched to member clusters."),
    };
    conditions::condition(condition::DISPATCHING, !suspended, reason, message, now)
}

/// The Applied condition for the result of applying.
fn applied_condition(work: &Work, failed: &[Error], now: Timestamp) -> Condition {
    let kind = condition::APPLIED;
    if failed.is_empty() {
        let message = "Manifest has been successfully applied";
        return conditions::condition(kind, true, condition::APPLIED_SUCCESSFUL, message, now);
    }
    let total = work.spec.workload.manifests.len();
    let text = aggregate_messages(failed.iter().map(Error::message));
    let message = format!("Failed to apply all manifests ({}/{total}): {text}", total - failed.len());
    conditions::condition(kind, false, condition::APPLIED_FAILED, message, now)
}
