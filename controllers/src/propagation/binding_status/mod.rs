//! Binding status controller: aggregates the status of Works into their binding, and from there into the template.
//!
//! The Works of a binding report one after another. A reconciliation waits shortly for the remaining ones, so that
//! the binding's status is written once. While the control plane is under write load, or many statuses change, the write
//! is deferred.

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
use crate::cache::{Cached, Change, Old};
use crate::runtime::config::Config;
use crate::runtime::context::{Context, decode};
use crate::runtime::event_recorder::Severity;
use crate::runtime::workqueue::Outcome;
use crate::runtime::write_priority::{DeferredWrites, Progress};
use crate::runtime::{Controller, Requests, Setup, Source, Switch, Watch};
use crate::shared::templates::template_of;
use crowsnest_plan::work::construct;
use crowsnest_plan::work::holder::binding_of_work;
use crowsnest_plan::{conditions, status};

/// Waits for Works that have not reported yet. Members that do not respond are not awaited.
const GATHERING: [Duration; 3] = [Duration::from_millis(20), Duration::from_millis(40), Duration::from_millis(80)];

pub struct BindingStatusController {
    context: Arc<Context>,
    /// Bindings whose status is deferred while the control plane is under write load or their objects change.
    deferred: DeferredWrites<BindingKey>,
}

/// A binding with the aggregated status of its Works.
struct Reported {
    binding: Arc<Value>,
    items: Vec<AggregatedStatusItem>,
    conditions: Vec<Condition>,
    progress: Progress,
    /// True if it differs from the binding's status.
    is_news: bool,
    /// True if all target clusters have reported the result of applying.
    is_complete: bool,
}

impl Reported {
    /// `None` if there is nothing to report.
    fn of(binding: Arc<Value>, typed: &ResourceBinding, works: &[(String, Work)], now: Timestamp) -> Option<Self> {
        let views: Vec<(&str, &Work)> = works.iter().map(|(cluster, work)| (cluster.as_str(), work)).collect();
        let items = status::aggregate(&views, &typed.spec.resource)?;
        let never = conditions::find(&typed.status.conditions, condition::FULLY_APPLIED).is_none();
        if items.is_empty() && works.is_empty() && never {
            return None;
        }
        let mut conditions = typed.status.conditions.clone();
        let changed = conditions::set(&mut conditions, status::fully_applied(&typed.spec, &items, now));
        let has_applied_condition =
            |(_, work): &&(&str, &Work)| conditions::find(&work.status.conditions, condition::APPLIED).is_some();
        let reported: Vec<&str> = views.iter().filter(has_applied_condition).map(|(cluster, _)| *cluster).collect();
        let is_complete = construct::targets(&typed.spec).iter().all(|target| {
            let suspended = construct::is_suspended(typed.spec.suspension.as_ref(), &target.name);
            suspended || reported.contains(&target.name.as_str())
        });
        let is_news = changed || items != typed.status.aggregated_status;
        let progress = progress(&typed.status.aggregated_status, &items, is_complete);
        Some(Reported { binding, items, conditions, progress, is_news, is_complete })
    }
}

/// Changing until all clusters have reported and no object is expected to become healthy.
fn progress(written: &[AggregatedStatusItem], items: &[AggregatedStatusItem], is_complete: bool) -> Progress {
    let is_rising = |item: &AggregatedStatusItem| {
        let known = written.iter().find(|known| known.cluster_name == item.cluster_name);
        Progress::is_rising(known.and_then(|known| known.health.as_ref()), item.health.as_ref())
    };
    Progress::changing_if(!is_complete || items.iter().any(is_rising))
}

/// True if a write changed the object.
fn has_changed(before: &Value, written: &Value) -> bool {
    unstructured::resource_version(before) != unstructured::resource_version(written)
}

impl BindingStatusController {
    fn on_work(&self, change: &Change) -> Requests<BindingKey> {
        let [old, new] = [change.old(), change.current()].map(|work| work.and_then(|work| work.get("status")));
        let terminating = |header: &Old| header.header.terminating;
        let turned =
            change.old.as_ref().is_some_and(terminating) != change.current().is_some_and(unstructured::is_terminating);
        let is_reported = change.is_old_forgotten() || old != new || turned;
        binding_of_work(change.object()).filter(|_| is_reported).into()
    }

    /// Aggregates a changed binding again, because its Works may have reported or been lost before. A new binding is
    /// reported by its Works.
    fn on_binding(&self, change: &Change) -> Requests<BindingKey> {
        let existed = (change.old.is_some() || change.initial) && !change.deleted;
        Requests::one_if(existed && change.is_moved(), || BindingKey::of(change.object()))
    }
}

impl Controller for BindingStatusController {
    type Key = BindingKey;
    const NAME: &'static str = "resource-binding-status-controller";
    const SWITCH: Switch = Switch::OnByDefault(&["bindingStatus"]);

    fn new(setup: &Setup) -> Self {
        BindingStatusController { context: Arc::clone(&setup.context), deferred: DeferredWrites::default() }
    }

    fn watches(&self) -> Vec<Watch<Self>> {
        let kinds = &self.context.kinds;
        vec![Source::of([&kinds.work]).map(Self::on_work), Source::of(kinds.bindings()).map(Self::on_binding)]
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
        let Some(reported) = self.reported(&key).await? else { return Ok(Outcome::Done) };
        let Reported { binding, items, conditions, progress, is_news, .. } = reported;
        let resource = context.kinds.binding(key.scope());
        if is_news {
            if let Some(wait) = self.deferred.wait(context.write_load(), &key, deferral, progress) {
                return Ok(Outcome::Again(wait));
            }
            let reported = (!items.is_empty()).then_some(&items);
            let patch = json!({"status": {"conditions": conditions, "aggregatedStatus": reported}});
            let written = context.merge_status(resource, &binding, patch).await.inspect_err(|error| {
                if !error.is_conflict() {
                    let message = error.message();
                    context.events.note(&binding, Severity::Warning, event::AGGREGATE_STATUS_FAILED, message);
                }
            })?;
            if has_changed(&binding, &written) {
                let name = match key.namespace.as_str() {
                    "" => format!("ClusterResourceBinding({})", key.name),
                    namespace => format!("ResourceBinding({namespace}/{})", key.name),
                };
                let message = format!("Update {name} with AggregatedStatus successfully.");
                context.events.note(&binding, Severity::Normal, event::AGGREGATE_STATUS_SUCCEED, message);
            }
        }
        self.aggregate(&binding, &items).await?;
        Ok(Outcome::Done)
    }
}

impl BindingStatusController {
    /// The aggregated status, once all Works have reported or the wait is over.
    async fn reported(&self, key: &BindingKey) -> Result<Option<Reported>, Error> {
        let mut pauses = GATHERING.into_iter();
        loop {
            let Some((binding, typed)) = self.context.binding(key).await? else {
                return Ok(None);
            };
            if unstructured::is_terminating(&binding) {
                return Ok(None);
            }
            let works = self.works_of(&binding, key).await?;
            let Some(reported) = Reported::of(binding, &typed, &works, self.context.now()) else { return Ok(None) };
            // Under write load, the write is deferred anyway.
            if !reported.is_news || reported.is_complete || self.context.write_load().is_busy() {
                return Ok(Some(reported));
            }
            match pauses.next() {
                Some(pause) => tokio::time::sleep(pause).await,
                None => return Ok(Some(reported)),
            }
        }
    }

    async fn works_of(&self, binding: &Value, key: &BindingKey) -> Result<Vec<(String, Work)>, Error> {
        let (label, id) = (permanent_id::binding_label(key.scope()), permanent_id::of_binding(binding));
        let works = self.context.with_id(&self.context.kinds.work, label, id).await?;
        let views = works.iter().map(Cached::view).filter(|work| binding_of_work(work).as_ref() == Some(key));
        let named = views
            .filter_map(|work| Some((cluster_of_execution_namespace(unstructured::namespace(work))?.to_owned(), work)));
        named.map(|(cluster, work)| Ok((cluster, decode(work)?))).collect()
    }

    /// Writes the template's status in the format of its kind.
    async fn aggregate(&self, binding: &Value, items: &[AggregatedStatusItem]) -> Result<(), Error> {
        let Some((resource, template)) = template_of(&self.context, binding).await? else { return Ok(()) };
        let same = unstructured::text(binding, &["spec", "resource", "uid"]) == unstructured::uid(&template);
        if !same || unstructured::is_terminating(&template) {
            return Ok(());
        }
        let new = match self.context.interpreter.aggregate(&template, items, &self.context.now().to_string()).await {
            Ok(Some(new)) => new,
            Ok(None) => return Ok(()),
            Err(error) => {
                let message = error.to_string();
                self.context.events.note(&template, Severity::Warning, event::AGGREGATE_STATUS_FAILED, message);
                return Err(error.into());
            }
        };
        if unstructured::semantically_equal(template.get("status").unwrap_or(&Value::Null), &new) {
            return Ok(());
        }
        let mut updated = template.as_ref().clone();
        unstructured::set(&mut updated, &["status"], new);
        let events = &self.context.events;
        match self.context.replace_status(&resource, &updated).await {
            // Kinds without a status subresource keep their status.
            Err(error) if error.is_not_found() => Ok(()),
            Err(error) => {
                if !error.is_conflict() {
                    events.note(&updated, Severity::Warning, event::AGGREGATE_STATUS_FAILED, error.message());
                }
                // A rejected status is written again after members report another one.
                if error.is_invalid() { Ok(()) } else { Err(error) }
            }
            Ok(written) => {
                if has_changed(&template, &written) {
                    let message = "Update Resource with AggregatedStatus successfully.";
                    events.note(&updated, Severity::Normal, event::AGGREGATE_STATUS_SUCCEED, message);
                }
                Ok(())
            }
        }
    }
}
