//! Collected EndpointSlices: for each Work that keeps one, a slice of the control plane under the name of the derived Service.
//! Only this loop writes those slices, and takes the Works' finalizer off once they are gone.

use std::sync::Arc;

use crowsnest_api::constants::{annotation, finalizer, label};
use crowsnest_api::names::binding_name;
use serde_json::Value;

use crate::Error;
use crate::act::bindings::cluster_of;
use crate::act::context::Context;
use crate::act::queue::{Outcome, Queue};
use crate::act::world::Change;
use crowsnest_plan::work::managed::WORK_PERMANENT_ID;
use crowsnest_plan::{object, services as plan};

/// Namespace and name of a Work.
type Key = (String, String);

pub struct Slices {
    context: Arc<Context>,
    pub works: Queue<Key>,
}

impl Slices {
    pub fn new(context: Arc<Context>) -> Arc<Self> {
        Arc::new(Slices { context, works: Queue::new("collected-slices") })
    }

    pub async fn on_change(&self, change: &Change) -> Result<(), Error> {
        let (kinds, object) = (&self.context.kinds, change.object());
        if change.resource.gvr == kinds.work.gvr {
            let keeps = |work: &Value| {
                object::label(work, label::ENDPOINT_SLICE_NAME).is_some()
                    || object::has_finalizer(work, finalizer::ENDPOINT_SLICE_CONTROLLER)
            };
            if !change.deleted && keeps(object) && change.is_marked() {
                self.works.add(change.key());
            }
        } else if change.resource.gvr == kinds.resource_binding.gvr {
            // It may allow a member's export, or no longer.
            let exported = object::at(object, &["spec", "resource"]).unwrap_or(&Value::Null);
            if object::kind(exported) == plan::SERVICE_EXPORT && !change.initial && change.is_marked() {
                self.ask_exported(object::namespace(object), object::text(exported, &["name"])).await?;
            }
        } else if change.resource.gvr == kinds.endpoint_slice.gvr
            && object::label(object, plan::SLICE_MANAGED_BY) == Some(label::ENDPOINT_SLICE_CONTROLLER)
        {
            // Somebody changed or deleted it.
            let of = |key: &str| object::annotation(object, key).unwrap_or_default().to_owned();
            let work = (of(annotation::WORK_NAMESPACE), of(annotation::WORK_NAME));
            if !work.1.is_empty() {
                self.works.add(work);
            }
        }
        Ok(())
    }

    /// Queues the Works that hold slices of a Service.
    async fn ask_exported(&self, namespace: &str, service: &str) -> Result<(), Error> {
        let works = self.context.with_label(&self.context.kinds.work, label::ENDPOINT_SLICE_NAME, service).await?;
        for work in works.iter().map(|work| work.view()) {
            if object::label(work, label::ENDPOINT_SLICE_NAMESPACE) == Some(namespace) {
                self.works.add((object::namespace(work).to_owned(), object::name(work).to_owned()));
            }
        }
        Ok(())
    }

    pub async fn full_pass(&self) -> Result<(), Error> {
        for work in self.context.labelled(&self.context.kinds.work, label::ENDPOINT_SLICE_NAME).await? {
            let work = work.view();
            self.works.add((object::namespace(work).to_owned(), object::name(work).to_owned()));
        }
        Ok(())
    }

    pub async fn reconcile(self: Arc<Self>, key: Key) -> Result<Outcome, Error> {
        let context = &self.context;
        let Some(work) = context.get(&context.kinds.work, &key.0, &key.1).await? else { return Ok(Outcome::Done) };
        let of = |key: &str| object::label(&work, key);
        let exported = (cluster_of(&key.0), of(label::ENDPOINT_SLICE_NAMESPACE), of(label::ENDPOINT_SLICE_NAME));
        let (Some(cluster), Some(namespace), Some(service)) = exported else { return self.clean_up(&work).await };
        if object::is_terminating(&work) {
            return self.clean_up(&work).await;
        }
        if !self.is_exported(cluster, namespace, service).await? {
            self.delete_imported(&work).await?;
            return Ok(Outcome::Done);
        }
        let manifests = object::at(&work, &["spec", "workload", "manifests"]).and_then(Value::as_array);
        let slices = manifests.into_iter().flatten().filter(|slice| object::namespace(slice) == namespace);
        for slice in slices {
            self.import(&work, &plan::imported(cluster, &work, slice, service)).await?;
        }
        Ok(Outcome::Done)
    }

    /// Whether the control plane takes the export of a Service to a cluster.
    async fn is_exported(&self, cluster: &str, namespace: &str, service: &str) -> Result<bool, Error> {
        let binding = binding_name(plan::SERVICE_EXPORT, service);
        let found = self.context.binding(namespace, &binding).await?;
        Ok(found.is_some_and(|(_, typed)| plan::is_exported_to(namespace, &typed.spec, service, cluster)))
    }

    async fn import(&self, work: &Value, desired: &Value) -> Result<(), Error> {
        let context = &self.context;
        let resource = &context.kinds.endpoint_slice;
        let existing = context.get(resource, object::namespace(desired), object::name(desired)).await?;
        match existing {
            None => context.create(resource, desired).await.map(drop),
            Some(existing) if !plan::is_imported_from(&existing, work) => {
                let (namespace, name) = (object::namespace(desired), object::name(desired));
                Err(Error::Apply(format!("EndpointSlice {namespace}/{name} exists and is not imported from this Work")))
            }
            Some(existing) if plan::is_slice_same(&existing, desired) => Ok(()),
            Some(existing) => {
                let mut updated = desired.clone();
                object::set(
                    &mut updated,
                    &["metadata", "resourceVersion"],
                    object::resource_version(&existing).to_owned().into(),
                );
                context.replace(resource, &updated).await.map(drop)
            }
        }
    }

    /// The slice is not kept for a Service any more.
    async fn clean_up(&self, work: &Value) -> Result<Outcome, Error> {
        if object::has_finalizer(work, finalizer::ENDPOINT_SLICE_CONTROLLER) {
            self.delete_imported(work).await?;
            self.context.remove_finalizer(&self.context.kinds.work, work, finalizer::ENDPOINT_SLICE_CONTROLLER).await?;
        }
        Ok(Outcome::Done)
    }

    async fn delete_imported(&self, work: &Value) -> Result<(), Error> {
        let context = &self.context;
        let id = object::label(work, WORK_PERMANENT_ID).unwrap_or_default();
        let slices = context.with_id(&context.kinds.endpoint_slice, WORK_PERMANENT_ID, id).await?;
        for slice in slices.iter().map(|slice| slice.view()).filter(|slice| plan::is_imported_from(slice, work)) {
            context.delete(&context.kinds.endpoint_slice, object::namespace(slice), object::name(slice)).await?;
        }
        Ok(())
    }
}
