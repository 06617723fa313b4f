//! Collected EndpointSlices: for each Work that keeps one, a slice of the control plane under the name of the derived Service.
//! Only this loop writes those slices, and takes the Works' finalizer off once they are gone.

use std::sync::Arc;

use crowsnest_api::constants::{annotation, finalizer, label};
use serde_json::Value;

use crate::Error;
use crate::act::bindings::cluster_of;
use crate::act::context::Context;
use crate::act::queue::{Outcome, Queue};
use crate::act::world::Change;
use crate::plan::work::managed::WORK_PERMANENT_ID;
use crate::plan::{object, services as plan};

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

    pub fn on_change(&self, change: &Change) {
        let (kinds, object) = (&self.context.kinds, change.object());
        if change.resource.gvr == kinds.work.gvr {
            let keeps = |work: &Value| {
                object::label(work, label::ENDPOINT_SLICE_NAME).is_some()
                    || object::has_finalizer(work, finalizer::ENDPOINT_SLICE_CONTROLLER)
            };
            if !change.deleted && keeps(object) && change.is_marked() {
                self.works.add(change.key());
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
        let service = object::label(&work, label::ENDPOINT_SLICE_NAME);
        let (Some(service), Some(cluster), false) = (service, cluster_of(&key.0), object::is_terminating(&work)) else {
            return self.clean_up(&work).await;
        };
        let manifests = object::at(&work, &["spec", "workload", "manifests"]).and_then(Value::as_array);
        for slice in manifests.into_iter().flatten() {
            self.import(&plan::imported(cluster, &work, slice, service)).await?;
        }
        Ok(Outcome::Done)
    }

    async fn import(&self, desired: &Value) -> Result<(), Error> {
        let context = &self.context;
        let resource = &context.kinds.endpoint_slice;
        let existing = context.get(resource, object::namespace(desired), object::name(desired)).await?;
        match existing {
            None => context.create(resource, desired).await.map(drop),
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
        let context = &self.context;
        if !object::has_finalizer(work, finalizer::ENDPOINT_SLICE_CONTROLLER) {
            return Ok(Outcome::Done);
        }
        let id = object::label(work, WORK_PERMANENT_ID).unwrap_or_default();
        let slices = context.with_id(&context.kinds.endpoint_slice, WORK_PERMANENT_ID, id).await?;
        for slice in slices.iter().map(|slice| slice.view()).filter(|slice| plan::is_brought(slice)) {
            context.delete(&context.kinds.endpoint_slice, object::namespace(slice), object::name(slice)).await?;
        }
        context.remove_finalizer(&context.kinds.work, work, finalizer::ENDPOINT_SLICE_CONTROLLER).await?;
        Ok(Outcome::Done)
    }
}
