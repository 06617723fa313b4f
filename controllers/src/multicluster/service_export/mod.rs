//! ServiceExport controller: maintains a Work for each EndpointSlice of a Service that a member exports. The
//! EndpointSlice controller reads those Works.

use std::sync::Arc;

use crowsnest_api::constants::label;
use crowsnest_api::names::cluster_of_execution_namespace;
use crowsnest_api::names::{execution_namespace, work_name};
use crowsnest_apimachinery::names::ClusterName;
use crowsnest_apimachinery::unstructured;
use serde_json::Value;

use super::{ENDPOINT_SLICE, collect_member_resource};
use crate::Error;
use crate::cache::Change;
use crate::runtime::context::Context;
use crate::runtime::workqueue::Outcome;
use crate::runtime::{Controller, Requests, Setup, Source, Switch, Watch, WellKnownKinds};
use crate::shared::works::{member_of, write_works};
use crowsnest_plan::services as plan;
use crowsnest_plan::work::construct::DesiredWork;

/// A Service in a member that is or was exported.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ExportedService {
    cluster: ClusterName,
    namespace: String,
    name: String,
}

/// The Service of this name in the namespace of a changed member object.
fn exported_service(change: &Change, name: &str) -> Option<ExportedService> {
    let namespace = unstructured::namespace(change.object()).to_owned();
    (!name.is_empty()).then(|| ExportedService { cluster: change.cluster.clone(), namespace, name: name.to_owned() })
}

const SERVICE_EXPORT: (&str, &str) = ("multicluster.x-k8s.io/v1alpha1", "ServiceExport");

pub struct ServiceExportController {
    context: Arc<Context>,
}

impl ServiceExportController {
    fn on_export(&self, change: &Change) -> Requests<ExportedService> {
        exported_service(change, unstructured::name(change.object())).into()
    }

    /// A slice that moved to another Service affects both.
    fn on_slice(&self, change: &Change) -> Requests<ExportedService> {
        let service = |slice: &Value| unstructured::label(slice, plan::SERVICE_NAME).unwrap_or_default().to_owned();
        if plan::is_imported(change.object()) {
            return Requests::none();
        }
        let names = [Some(service(change.object())), change.old().map(service)];
        names.into_iter().flatten().filter_map(|name| exported_service(change, &name)).collect()
    }
}

impl Controller for ServiceExportController {
    type Key = ExportedService;
    const NAME: &'static str = "service-export-controller";
    const SWITCH: Switch = Switch::OnByDefault(&["serviceExport"]);

    fn new(setup: &Setup) -> Self {
        ServiceExportController { context: setup.context() }
    }

    fn watches(kinds: &WellKnownKinds) -> Vec<Watch<Self>> {
        vec![
            Source::Members("multicluster.x-k8s.io", "serviceexports").map(Self::on_export),
            Source::Members("discovery.k8s.io", "endpointslices").map(Self::on_slice),
            // Works that contain a ServiceExport or store a collected slice.
            Source::control_plane([&kinds.work])
                .map(|_, change| referenced_services(change.object()).into_iter().collect()),
        ]
    }

    async fn keys(&self) -> Result<Vec<ExportedService>, Error> {
        let works = self.context.list_by_label(&self.context.kinds.work, label::ENDPOINT_SLICE_NAME).await?;
        Ok(works.iter().flat_map(|work| referenced_services(work.view())).collect())
    }

    async fn reconcile(self: Arc<Self>, key: ExportedService) -> Result<Outcome, Error> {
        if self.context.is_applied_by_agent(&key.cluster).await? {
            return Ok(Outcome::Done);
        }
        let desired = self.desired_works(&key).await?;
        write_works(&self.context, &desired).await?;
        let is_desired = |work: &Value| desired.iter().any(|desired| desired.name == unstructured::name(work));
        for work in self.list_works(&key).await?.iter().filter(|work| !is_desired(work)) {
            self.remove_export(work).await?;
        }
        Ok(Outcome::Done)
    }
}

impl ServiceExportController {
    async fn desired_works(&self, key: &ExportedService) -> Result<Vec<DesiredWork>, Error> {
        let Some(exports) = collect_member_resource(&self.context, &key.cluster, SERVICE_EXPORT).await? else {
            return Ok(Vec::new());
        };
        let cache = &self.context.cache;
        let export = cache.get(&key.cluster, &exports.gvr, &key.namespace, &key.name).await?;
        if export.is_none_or(|export| unstructured::is_terminating(export.view())) {
            return Ok(Vec::new());
        }
        let Some(slices) = collect_member_resource(&self.context, &key.cluster, ENDPOINT_SLICE).await? else {
            return Ok(Vec::new());
        };
        let mut desired = Vec::new();
        for slice in cache.list(&key.cluster, &slices.gvr, Some(&key.namespace)).await? {
            let slice = slice.view();
            if !plan::belongs_to_service(slice, &key.name) {
                continue;
            }
            let work_namespace = execution_namespace(&key.cluster);
            let name = work_name(unstructured::kind(slice), unstructured::name(slice), unstructured::namespace(slice));
            let existing = self.context.get_full(&self.context.kinds.work, &work_namespace, &name).await?;
            desired.push(plan::collected_work(key.cluster.as_str(), &key.name, slice, existing.as_deref()));
        }
        Ok(desired)
    }

    async fn list_works(&self, key: &ExportedService) -> Result<Vec<Value>, Error> {
        let resource = &self.context.kinds.work;
        let works = self.context.list_with_label(resource, label::ENDPOINT_SLICE_NAME, &key.name).await?;
        let belongs_to_service = |work: &&Value| stored_service(work).as_ref() == Some(key);
        Ok(works.iter().map(|work| work.view()).filter(belongs_to_service).cloned().collect())
    }

    /// Removes the ServiceExport as an owner from the Work of a slice that is no longer exported. A Work without
    /// another owner is deleted.
    async fn remove_export(&self, work: &Value) -> Result<(), Error> {
        let resource = &self.context.kinds.work;
        if unstructured::is_terminating(work) || !plan::managers(work).contains(plan::SERVICE_EXPORT) {
            return Ok(());
        }
        match plan::release_export(work) {
            Some(patch) => self.context.merge(resource, work, patch).await.map(drop),
            None => self.context.delete(resource, unstructured::namespace(work), unstructured::name(work)).await,
        }
    }
}

/// Services that a Work refers to: those of ServiceExports in it, and that of the slice it stores.
fn referenced_services(work: &Value) -> Vec<ExportedService> {
    let manifests = unstructured::at(work, &["spec", "workload", "manifests"]).and_then(Value::as_array);
    let is_export =
        |manifest: &&Value| (unstructured::api_version(manifest), unstructured::kind(manifest)) == SERVICE_EXPORT;
    let exports = manifests.into_iter().flatten().filter(is_export);
    let exported = exports.filter_map(|export| {
        let cluster = member_of(unstructured::namespace(work))?;
        Some(ExportedService {
            cluster,
            namespace: unstructured::namespace(export).to_owned(),
            name: unstructured::name(export).to_owned(),
        })
    });
    exported.chain(stored_service(work)).collect()
}

fn stored_service(work: &Value) -> Option<ExportedService> {
    let cluster = ClusterName::parse(cluster_of_execution_namespace(unstructured::namespace(work))?).ok()?;
    let namespace = unstructured::label(work, label::ENDPOINT_SLICE_NAMESPACE)?.to_owned();
    let name = unstructured::label(work, label::ENDPOINT_SLICE_NAME)?.to_owned();
    Some(ExportedService { cluster, namespace, name })
}
