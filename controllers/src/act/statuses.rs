//! Works' statuses become the binding's aggregated status, and that the template's own status.

use std::sync::Arc;

use crowsnest_api::constants::{condition, event, label};
use crowsnest_api::work::{AggregatedStatusItem, ResourceBinding, Work};
use serde_json::{Value, json};

use super::bindings::{binding_of_work, cluster_of};
use super::context::{Context, decode, now};
use super::events::Severity;
use super::queue::{Outcome, Queue};
use super::scheduling::BindingKey;
use super::templates::template_of;
use super::world::{Cached, Change, Old};
use crate::Error;
use crate::plan::{conditions, object, status};

pub struct Statuses {
    context: Arc<Context>,
    pub bindings: Queue<BindingKey>,
}

impl Statuses {
    pub fn new(context: Arc<Context>) -> Arc<Self> {
        Arc::new(Statuses { context, bindings: Queue::new("binding-status") })
    }

    pub fn on_change(&self, change: &Change) {
        let kinds = &self.context.kinds;
        let gvr = &change.resource.gvr;
        if *gvr == kinds.work.gvr {
            let [old, new] = [change.old(), change.current()].map(|work| work.and_then(|work| work.get("status")));
            let terminating = |header: &Old| header.header.terminating;
            let turned =
                change.old.as_ref().is_some_and(terminating) != change.current().is_some_and(object::is_terminating);
            if (change.is_old_forgotten() || old != new || turned)
                && let Some(key) = binding_of_work(change.object())
            {
                self.bindings.add(key);
            }
        } else if (*gvr == kinds.resource_binding.gvr || *gvr == kinds.cluster_resource_binding.gvr)
            // What a new one is told, its Works say; one from before the start may have lost them since.
            && (change.old.is_some() || change.initial)
            && !change.deleted
            && change.is_moved()
        {
            self.bindings.add(change.key());
        }
    }

    pub async fn full_pass(&self) -> Result<(), Error> {
        let kinds = &self.context.kinds;
        for resource in [&kinds.resource_binding, &kinds.cluster_resource_binding] {
            self.context.keys(resource).await?.into_iter().for_each(|key| self.bindings.add(key));
        }
        Ok(())
    }

    pub async fn reconcile(self: Arc<Self>, key: BindingKey) -> Result<Outcome, Error> {
        let context = &self.context;
        let resource = context.kinds.binding(&key.0);
        let Some(binding) = context.get(resource, &key.0, &key.1).await? else { return Ok(Outcome::Done) };
        if object::is_terminating(&binding) {
            return Ok(Outcome::Done);
        }
        let typed: ResourceBinding = decode(&binding)?;
        let works = self.works_of(&binding, &key).await?;
        let views: Vec<(&str, &Work)> = works.iter().map(|(cluster, work)| (cluster.as_str(), work)).collect();
        let items = status::aggregate(&views, &typed.spec.resource);
        let never = conditions::find(&typed.status.conditions, condition::FULLY_APPLIED).is_none();
        if items.is_empty() && works.is_empty() && never {
            return Ok(Outcome::Done);
        }
        let mut shown = typed.status.conditions.clone();
        let changed = conditions::set(&mut shown, status::fully_applied(&typed.spec, &items, now()));
        if changed || items != typed.status.aggregated_status {
            let reported = (!items.is_empty()).then_some(&items);
            let patch = json!({"status": {"conditions": shown, "aggregatedStatus": reported}});
            context.merge_status(resource, &binding, patch).await?;
        }
        self.aggregate(&binding, &items).await?;
        Ok(Outcome::Done)
    }

    async fn works_of(&self, binding: &Value, key: &BindingKey) -> Result<Vec<(String, Work)>, Error> {
        let label = match key.0.as_str() {
            "" => label::CLUSTER_RESOURCE_BINDING_PERMANENT_ID,
            _ => label::RESOURCE_BINDING_PERMANENT_ID,
        };
        let id = object::label(binding, label).unwrap_or_default();
        let works = self.context.with_id(&self.context.kinds.work, label, id).await?;
        let views = works.iter().map(Cached::view);
        let named = views.filter_map(|work| Some((cluster_of(object::namespace(work))?.to_owned(), work)));
        named.map(|(cluster, work)| Ok((cluster, decode(work)?))).collect()
    }

    /// Writes the template's status in the shape of its own kind.
    async fn aggregate(&self, binding: &Value, items: &[AggregatedStatusItem]) -> Result<(), Error> {
        let Some((resource, template)) = template_of(&self.context, binding).await? else { return Ok(()) };
        let same = object::text(binding, &["spec", "resource", "uid"]) == object::uid(&template);
        if !same || object::is_terminating(&template) {
            return Ok(());
        }
        let new = match self.context.interpreter.aggregate(&template, items, &now().to_string()).await {
            Ok(Some(new)) => new,
            Ok(None) => return Ok(()),
            Err(error) => {
                for object in [binding, template.as_ref()] {
                    let events = &self.context.events;
                    events.note(object, Severity::Warning, event::AGGREGATE_STATUS_FAILED, error.message());
                }
                return Err(error);
            }
        };
        if object::semantically_equal(template.get("status").unwrap_or(&Value::Null), &new) {
            return Ok(());
        }
        let mut updated = template.as_ref().clone();
        object::set(&mut updated, &["status"], new);
        match self.context.replace_status(&resource, &updated).await {
            // Kinds without a status subresource keep their status to themselves.
            Err(error) if error.is_not_found() => Ok(()),
            result => result.map(|_| ()),
        }
    }
}
