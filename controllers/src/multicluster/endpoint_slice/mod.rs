//! EndpointSlice controller: creates an EndpointSlice of the derived Service in the control plane for each Work that
//! contains an EndpointSlice collected from a member. Only this controller writes these slices. After deleting the
//! slices of a Work, it removes the Work's finalizer.

use std::sync::Arc;

use crowsnest_api::constants::{annotation, finalizer, label};
use crowsnest_api::keys::WorkKey;
use crowsnest_api::object_identity::ObjectIdentity;
use crowsnest_apimachinery::unstructured;
use futures::FutureExt;
use serde_json::Value;

use crate::Error;
use crate::cache::Change;
use crate::runtime::context::Context;
use crate::runtime::workqueue::Outcome;
use crate::runtime::{Controller, Requests, Setup, Source, Switch, Watch, WellKnownKinds};
use crate::shared::bindings::binding_key_of;
use crowsnest_plan::services as plan;
use crowsnest_plan::work::managed::WORK_PERMANENT_ID;

pub struct EndpointSliceController {
    context: Arc<Context>,
}

impl EndpointSliceController {
    fn on_work(&self, change: &Change) -> Requests<WorkKey> {
        let work = change.object();
        let has_slice = unstructured::label(work, label::ENDPOINT_SLICE_NAME).is_some()
            || unstructured::has_finalizer(work, finalizer::ENDPOINT_SLICE_CONTROLLER);
        Requests::one_if(!change.deleted && has_slice && change.is_generation_or_labels_changed(), || {
            WorkKey::from_object(change.object())
        })
    }

    /// Work of an imported slice, to restore the slice after another client changed or deleted it.
    fn on_slice(&self, change: &Change) -> Requests<WorkKey> {
        let slice = change.object();
        if unstructured::label(slice, plan::SLICE_MANAGED_BY) != Some(label::ENDPOINT_SLICE_CONTROLLER) {
            return Requests::none();
        }
        let annotation_value = |key: &str| unstructured::annotation(slice, key).unwrap_or_default();
        let work = WorkKey::new(annotation_value(annotation::WORK_NAMESPACE), annotation_value(annotation::WORK_NAME));
        Requests::one_if(!work.name.is_empty(), || work)
    }

    /// Works with slices of a Service, if a change of its binding can permit or forbid the export.
    async fn on_binding(&self, change: &Change) -> Result<Requests<WorkKey>, Error> {
        let binding = change.object();
        let resource = unstructured::at(binding, &["spec", "resource"]).unwrap_or(&Value::Null);
        if unstructured::kind(resource) != plan::SERVICE_EXPORT
            || change.initial
            || !change.is_generation_or_labels_changed()
        {
            return Ok(Requests::none());
        }
        let (kinds, service) = (&self.context.kinds, unstructured::text(resource, &["name"]));
        let works = self.context.list_with_label(&kinds.work, label::ENDPOINT_SLICE_NAME, service).await?;
        let is_of_namespace = |work: &&Value| {
            unstructured::label(work, label::ENDPOINT_SLICE_NAMESPACE) == Some(unstructured::namespace(binding))
        };
        Ok(works.iter().map(|work| work.view()).filter(is_of_namespace).map(WorkKey::from_object).collect())
    }
}

impl Controller for EndpointSliceController {
    type Key = WorkKey;
    const NAME: &'static str = "endpointslice-controller";
    const SWITCH: Switch = Switch::OnByDefault(&["endpointSlice"]);

    fn new(setup: &Setup) -> Self {
        EndpointSliceController { context: setup.context() }
    }

    fn watches(kinds: &WellKnownKinds) -> Vec<Watch<Self>> {
        vec![
            Source::control_plane([&kinds.work]).map(Self::on_work),
            Source::control_plane([&kinds.resource_binding])
                .find(|controller, change| controller.on_binding(change).boxed()),
            Source::templates([&kinds.endpoint_slice]).map(Self::on_slice),
        ]
    }

    async fn keys(&self) -> Result<Vec<WorkKey>, Error> {
        let works = self.context.list_by_label(&self.context.kinds.work, label::ENDPOINT_SLICE_NAME).await?;
        Ok(works.iter().map(|work| WorkKey::from_object(work.view())).collect())
    }

    async fn reconcile(self: Arc<Self>, key: WorkKey) -> Result<Outcome, Error> {
        let context = &self.context;
        let Some(work) = context.get_full(&context.kinds.work, &key.namespace, &key.name).await? else {
            return Ok(Outcome::Done);
        };
        let label_value = |key: &str| unstructured::label(&work, key);
        let service_labels =
            (key.cluster(), label_value(label::ENDPOINT_SLICE_NAMESPACE), label_value(label::ENDPOINT_SLICE_NAME));
        let (Some(cluster), Some(namespace), Some(service)) = service_labels else { return self.clean_up(&work).await };
        if unstructured::is_terminating(&work) {
            return self.clean_up(&work).await;
        }
        if !self.is_exported(cluster, namespace, service).await? {
            self.delete_imported(&work).await?;
            return Ok(Outcome::Done);
        }
        let manifests = unstructured::at(&work, &["spec", "workload", "manifests"]).and_then(Value::as_array);
        let slices = manifests.into_iter().flatten().filter(|slice| unstructured::namespace(slice) == namespace);
        for slice in slices {
            self.write_imported_slice(&work, &plan::imported_slice(cluster, &work, slice, service)).await?;
        }
        Ok(Outcome::Done)
    }
}

impl EndpointSliceController {
    /// True if a binding exports a Service in a cluster.
    async fn is_exported(&self, cluster: &str, namespace: &str, service: &str) -> Result<bool, Error> {
        let export =
            ObjectIdentity { group: plan::SERVICE_EXPORT_GROUP, kind: plan::SERVICE_EXPORT, namespace, name: service };
        let found = self.context.binding(&binding_key_of(&self.context, &export).await?).await?;
        Ok(found.is_some_and(|(_, typed)| plan::is_exported_to(namespace, &typed.spec, service, cluster)))
    }

    async fn write_imported_slice(&self, work: &Value, desired: &Value) -> Result<(), Error> {
        let context = &self.context;
        let resource = &context.kinds.endpoint_slice;
        let existing =
            context.get_full(resource, unstructured::namespace(desired), unstructured::name(desired)).await?;
        match existing {
            None => context.create(resource, desired).await.map(drop),
            Some(existing) if !plan::is_imported_from(&existing, work) => {
                let (namespace, name) = (unstructured::namespace(desired), unstructured::name(desired));
                Err(Error::Other(format!("EndpointSlice {namespace}/{name} exists and is not imported from this Work")))
            }
            Some(existing) if plan::is_slice_same(&existing, desired) => Ok(()),
            Some(existing) => {
                let mut updated = desired.clone();
                unstructured::set(
                    &mut updated,
                    &["metadata", "resourceVersion"],
                    unstructured::resource_version(&existing).to_owned().into(),
                );
                context.replace(resource, &updated).await.map(drop)
            }
        }
    }

    /// Deletes imported slices of a Work that is no longer collected for a Service.
    async fn clean_up(&self, work: &Value) -> Result<Outcome, Error> {
        if unstructured::has_finalizer(work, finalizer::ENDPOINT_SLICE_CONTROLLER) {
            self.delete_imported(work).await?;
            self.context.remove_finalizer(&self.context.kinds.work, work, finalizer::ENDPOINT_SLICE_CONTROLLER).await?;
        }
        Ok(Outcome::Done)
    }

    async fn delete_imported(&self, work: &Value) -> Result<(), Error> {
        let context = &self.context;
        let id = unstructured::label(work, WORK_PERMANENT_ID).unwrap_or_default();
        let slices = context.list_with_id(&context.kinds.endpoint_slice, WORK_PERMANENT_ID, id).await?;
        for slice in slices.iter().map(|slice| slice.view()).filter(|slice| plan::is_imported_from(slice, work)) {
            context
                .delete(&context.kinds.endpoint_slice, unstructured::namespace(slice), unstructured::name(slice))
                .await?;
        }
        Ok(())
    }
}
