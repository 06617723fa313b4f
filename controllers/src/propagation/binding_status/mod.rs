//! Binding status controller: aggregates the status of Works into their binding, and from there into the template.
//!
//! The Works of a binding report one after another. A reconciliation waits briefly for the remaining ones, so that the
//! binding's status is written once. While the control plane is under write load, or many statuses change, the write is
//! deferred.

mod refused;

use std::sync::Arc;
use std::time::Duration;

use crowsnest_api::constants::{condition, event};
use crowsnest_api::keys::BindingKey;
use crowsnest_api::names::cluster_of_execution_namespace;
use crowsnest_api::permanent_id;
use crowsnest_api::work::{AggregatedStatusItem, ResourceBinding, Work};
use crowsnest_apimachinery::unstructured;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use crate::Error;
use crate::cache::{CachedObject, Change, PreviousObject};
use crate::runtime::config::Config;
use crate::runtime::context::{Context, decode};
use crate::runtime::event_recorder::Severity;
use crate::runtime::workqueue::Outcome;
use crate::runtime::write_priority::{DeferredWrites, Progress};
use crate::runtime::{Controller, Requests, Setup, Source, Switch, Watch, WellKnownKinds};
use crate::shared::templates::template_of;
use crowsnest_interpreter::default::job_status;
use crowsnest_plan::work::construct;
use crowsnest_plan::work::owner::binding_of_work;
use crowsnest_plan::{conditions, status};
use refused::{RETRY_AFTER, RefusedStatuses};

/// Consecutive waits for Works that have not reported yet. After them, the status is written without these Works.
const REPORT_WAITS: [Duration; 3] = [Duration::from_millis(20), Duration::from_millis(40), Duration::from_millis(80)];

pub struct BindingStatusController {
    context: Arc<Context>,
    /// Bindings whose status is deferred while the control plane is under write load or their objects are changing.
    deferred: DeferredWrites<BindingKey>,
    refused: RefusedStatuses,
}

/// A binding with the aggregated status of its Works.
struct AggregatedStatus {
    binding: Arc<Value>,
    items: Vec<AggregatedStatusItem>,
    conditions: Vec<Condition>,
    progress: Progress,
    /// True if it differs from the binding's status.
    is_changed: bool,
    /// True if all target clusters have reported the result of applying.
    is_complete: bool,
}

impl AggregatedStatus {
    /// Aggregates the statuses of the Works by cluster. `None` if there is nothing to report.
    fn aggregate(
        binding: Arc<Value>,
        typed: &ResourceBinding,
        works: &[(String, Work)],
        now: Timestamp,
    ) -> Option<Self> {
        let views: Vec<(&str, &Work)> = works.iter().map(|(cluster, work)| (cluster.as_str(), work)).collect();
        let items = status::aggregate(&views, &typed.spec.resource)?;
        let is_first_report = conditions::find(&typed.status.conditions, condition::FULLY_APPLIED).is_none();
        if items.is_empty() && works.is_empty() && is_first_report {
            return None;
        }
        let mut conditions = typed.status.conditions.clone();
        let changed = conditions::set(&mut conditions, status::fully_applied_condition(&typed.spec, &items, now));
        let has_applied_condition =
            |(_, work): &&(&str, &Work)| conditions::find(&work.status.conditions, condition::APPLIED).is_some();
        let reported: Vec<&str> = views.iter().filter(has_applied_condition).map(|(cluster, _)| *cluster).collect();
        let is_complete = construct::targets(&typed.spec).iter().all(|target| {
            let is_suspended = construct::is_suspended(typed.spec.suspension.as_ref(), &target.name);
            is_suspended || reported.contains(&target.name.as_str())
        });
        let is_changed = changed || items != typed.status.aggregated_status;
        let progress = progress(&typed.status.aggregated_status, &items, is_complete);
        Some(AggregatedStatus { binding, items, conditions, progress, is_changed, is_complete })
    }
}

/// Progress of a binding: changing until all clusters have reported and no object is expected to become healthy.
fn progress(written: &[AggregatedStatusItem], items: &[AggregatedStatusItem], is_complete: bool) -> Progress {
    let is_becoming_healthy = |item: &AggregatedStatusItem| {
        let previous = written.iter().find(|previous| previous.cluster_name == item.cluster_name);
        Progress::is_becoming_healthy(previous.and_then(|previous| previous.health.as_ref()), item.health.as_ref())
    };
    Progress::from_changing(!is_complete || items.iter().any(is_becoming_healthy))
}

/// True if a write changed the object.
fn is_written(before: &Value, written: &Value) -> bool {
    unstructured::resource_version(before) != unstructured::resource_version(written)
}

impl BindingStatusController {
    fn on_work(&self, change: &Change) -> Requests<BindingKey> {
        let [old, new] = [change.old(), change.current()].map(|work| work.and_then(|work| work.get("status")));
        let terminating = |header: &PreviousObject| header.header.terminating;
        let is_deletion_changed =
            change.old.as_ref().is_some_and(terminating) != change.current().is_some_and(unstructured::is_terminating);
        let is_reported = change.is_previous_unknown() || old != new || is_deletion_changed;
        binding_of_work(change.object()).filter(|_| is_reported).into()
    }

    /// Aggregates a changed binding again, because its Works may have reported or been deleted before the change. A new
    /// binding is enqueued when its Works report.
    fn on_binding(&self, change: &Change) -> Requests<BindingKey> {
        let is_existing = (change.old.is_some() || change.initial) && !change.deleted;
        Requests::one_if(is_existing && change.is_generation_changed(), || BindingKey::from_object(change.object()))
    }
}

impl Controller for BindingStatusController {
    type Key = BindingKey;
    const NAME: &'static str = "resource-binding-status-controller";
    const SWITCH: Switch = Switch::OnByDefault(&["bindingStatus"]);

    fn new(setup: &Setup) -> Self {
        BindingStatusController {
            context: setup.context(),
            deferred: DeferredWrites::default(),
            refused: RefusedStatuses::default(),
        }
    }

    fn watches(kinds: &WellKnownKinds) -> Vec<Watch<Self>> {
        vec![Source::control_plane([&kinds.work]).map(Self::on_work), Source::bindings(kinds).map(Self::on_binding)]
    }

    async fn keys(&self) -> Result<Vec<BindingKey>, Error> {
        self.context.binding_keys().await
    }

    fn workers(config: &Config) -> usize {
        config.workers.bindings
    }

    fn has_deferred_writes(&self) -> bool {
        !self.deferred.is_empty()
    }

    async fn reconcile(self: Arc<Self>, key: BindingKey) -> Result<Outcome, Error> {
        let context = &self.context;
        let deferral = self.deferred.begin(&key);
        let Some(aggregated) = self.wait_for_reports(&key).await? else {
            self.refused.remove(&key);
            return Ok(Outcome::Done);
        };
        let AggregatedStatus { binding, items, conditions, progress, is_changed, .. } = aggregated;
        let resource = context.kinds.binding(key.scope());
        if is_changed {
            if let Some(wait) = self.deferred.defer(context.write_load(), &key, deferral, progress) {
                return Ok(Outcome::RequeueAfter(wait));
            }
            let reported = (!items.is_empty()).then_some(&items);
            let patch = json!({"status": {"conditions": conditions, "aggregatedStatus": reported}});
            let written = context.merge_status(resource, &binding, patch).await.inspect_err(|error| {
                if !error.is_conflict() {
                    let message = error.message();
                    context.events.record(&binding, Severity::Warning, event::AGGREGATE_STATUS_FAILED, message);
                }
            })?;
            if is_written(&binding, &written) {
                let name = match key.namespace.as_str() {
                    "" => format!("ClusterResourceBinding({})", key.name),
                    namespace => format!("ResourceBinding({namespace}/{})", key.name),
                };
                let message = format!("Update {name} with AggregatedStatus successfully.");
                context.events.record(&binding, Severity::Normal, event::AGGREGATE_STATUS_SUCCEED, message);
            }
        }
        self.write_template_status(&key, &binding, &items).await
    }
}

impl BindingStatusController {
    /// The aggregated status, once all Works have reported or all [`REPORT_WAITS`] have passed.
    async fn wait_for_reports(&self, key: &BindingKey) -> Result<Option<AggregatedStatus>, Error> {
        let mut waits = REPORT_WAITS.into_iter();
        loop {
            let Some((binding, typed)) = self.context.binding(key).await? else {
                return Ok(None);
            };
            if unstructured::is_terminating(&binding) {
                return Ok(None);
            }
            let works = self.list_works(&binding, key).await?;
            let Some(reported) = AggregatedStatus::aggregate(binding, &typed, &works, self.context.now()) else {
                return Ok(None);
            };
            // Under write load, the write is deferred anyway.
            if !reported.is_changed || reported.is_complete || self.context.write_load().is_busy() {
                return Ok(Some(reported));
            }
            match waits.next() {
                Some(wait) => tokio::time::sleep(wait).await,
                None => return Ok(Some(reported)),
            }
        }
    }

    async fn list_works(&self, binding: &Value, key: &BindingKey) -> Result<Vec<(String, Work)>, Error> {
        let (label, id) = (permanent_id::binding_label(key.scope()), permanent_id::binding_id(binding));
        let works = self.context.list_with_id(&self.context.kinds.work, label, id).await?;
        let views = works.iter().map(CachedObject::view).filter(|work| binding_of_work(work).as_ref() == Some(key));
        let with_clusters = views
            .filter_map(|work| Some((cluster_of_execution_namespace(unstructured::namespace(work))?.to_owned(), work)));
        with_clusters.map(|(cluster, work)| Ok((cluster, decode(work)?))).collect()
    }

    /// Writes the template's status in the format of its kind. A status that the API server refuses is reported, and
    /// not written again until it, the template's spec or its stored status has changed, or for [`RETRY_AFTER`].
    async fn write_template_status(
        &self,
        key: &BindingKey,
        binding: &Value,
        items: &[AggregatedStatusItem],
    ) -> Result<Outcome, Error> {
        let Some((resource, template)) = template_of(&self.context, binding).await? else {
            return Ok(Outcome::Done);
        };
        let is_same_object = unstructured::text(binding, &["spec", "resource", "uid"]) == unstructured::uid(&template);
        if !is_same_object || unstructured::is_terminating(&template) {
            return Ok(Outcome::Done);
        }
        let now = self.context.now();
        let Some(new) = self.changed_template_status(&template, items, &now.to_string()).await? else {
            return Ok(Outcome::Done);
        };
        if let Some(delay) = self.refused.retry_delay(key, &template, &new, now) {
            return Ok(Outcome::RequeueAfter(delay));
        }
        let mut updated = template.as_ref().clone();
        unstructured::set(&mut updated, &["status"], new.clone());
        let events = &self.context.events;
        match self.context.replace_status(&resource, &updated).await {
            // Kinds without a status subresource keep their status.
            Err(error) if error.is_not_found() => Ok(Outcome::Done),
            Err(error) => {
                if !error.is_conflict() {
                    events.record(&updated, Severity::Warning, event::AGGREGATE_STATUS_FAILED, error.message());
                }
                if error.is_invalid() {
                    self.refused.insert(key, &template, &new, now);
                    return Ok(Outcome::RequeueAfter(RETRY_AFTER));
                }
                Err(error)
            }
            Ok(written) => {
                self.refused.remove(key);
                if is_written(&template, &written) {
                    let message = "Update Resource with AggregatedStatus successfully.";
                    events.record(&updated, Severity::Normal, event::AGGREGATE_STATUS_SUCCEED, message);
                }
                Ok(Outcome::Done)
            }
        }
    }

    /// The template's status, aggregated from the members. `None` if it is unchanged.
    async fn changed_template_status(
        &self,
        template: &Value,
        items: &[AggregatedStatusItem],
        now: &str,
    ) -> Result<Option<Value>, Error> {
        let context = &self.context;
        let aggregated = context.interpreter.aggregate(template, items, now).await.inspect_err(|error| {
            context.events.record(template, Severity::Warning, event::AGGREGATE_STATUS_FAILED, error.to_string());
        })?;
        let stored = template.get("status").unwrap_or(&Value::Null);
        let Some(mut status) = aggregated.filter(|status| !unstructured::semantically_equal(stored, status)) else {
            return Ok(None);
        };
        if job_status::depends_on_server_version(template, &status) {
            let version = context.objects.read("/version").await?;
            job_status::adapt_to_server(&mut status, unstructured::text(&version, &["minor"]));
        }
        Ok(Some(status))
    }
}
