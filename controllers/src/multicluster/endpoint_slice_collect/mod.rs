//! EndpointSlice collect controller: maintains a Work for each EndpointSlice of a provider cluster of a
//! MultiClusterService. [`super::MultiClusterServiceController`] dispatches them. Requires the feature gate
//! `MultiClusterService`.

use std::sync::Arc;

use crowsnest_api::constants::label;
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
use crowsnest_plan::work::construct::DesiredWork;
use crowsnest_plan::{multicluster_services as plan, services};

/// A Service in a provider cluster.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ProvidedService {
    cluster: ClusterName,
    namespace: String,
    name: String,
}

pub struct EndpointSliceCollectController {
    context: Arc<Context>,
}

impl EndpointSliceCollectController {
    /// A slice that moved to another Service affects both.
    fn on_slice(&self, change: &Change) -> Requests<ProvidedService> {
        if !self.is_enabled() || services::is_imported(change.object()) {
            return Requests::none();
        }
        let service_name = |slice: &Value| unstructured::label(slice, services::SERVICE_NAME).map(str::to_owned);
        let names = [service_name(change.object()), change.old().and_then(service_name)].into_iter().flatten();
        let namespace = unstructured::namespace(change.object());
        names
            .map(|name| ProvidedService { cluster: change.cluster.clone(), namespace: namespace.to_owned(), name })
            .collect()
    }

    /// The Service whose EndpointSlices a Work requests or stores.
    fn provided_service(work: &Value) -> Option<ProvidedService> {
        let cluster = member_of(unstructured::namespace(work))?;
        let service = plan::service_of_work(work).filter(|_| plan::provider_cluster(work).is_none())?;
        Some(ProvidedService { cluster, namespace: service.namespace, name: service.name })
    }

    fn is_enabled(&self) -> bool {
        self.context.config.gates.multi_cluster_service
    }
}

impl Controller for EndpointSliceCollectController {
    type Key = ProvidedService;
    const NAME: &'static str = "endpointslice-collect-controller";
    const SWITCH: Switch = Switch::OnByDefault(&["endpointsliceCollect"]);

    fn new(setup: &Setup) -> Self {
        EndpointSliceCollectController { context: setup.context() }
    }

    fn watches(kinds: &WellKnownKinds) -> Vec<Watch<Self>> {
        vec![
            Source::Members("discovery.k8s.io", "endpointslices").map(Self::on_slice),
            Source::control_plane([&kinds.work]).map(|controller: &Self, change| {
                Self::provided_service(change.object()).filter(|_| controller.is_enabled()).into()
            }),
        ]
    }

    async fn keys(&self) -> Result<Vec<ProvidedService>, Error> {
        if !self.is_enabled() {
            return Ok(Vec::new());
        }
        let works = self.context.list_by_label(&self.context.kinds.work, label::MULTI_CLUSTER_SERVICE_NAME).await?;
        Ok(works.iter().filter_map(|work| Self::provided_service(work.view())).collect())
    }

    async fn reconcile(self: Arc<Self>, key: ProvidedService) -> Result<Outcome, Error> {
        if self.context.is_applied_by_agent(&key.cluster).await? {
            return Ok(Outcome::Done);
        }
        let desired = self.desired_works(&key).await?;
        write_works(&self.context, &desired).await?;
        let context = &self.context;
        let resource = &context.kinds.work;
        let works = context.list_with_label(resource, label::MULTI_CLUSTER_SERVICE_NAME, &key.name).await?;
        let work_namespace = execution_namespace(&key.cluster);
        for work in works.iter().map(|work| work.view()) {
            let is_of_service_work = unstructured::namespace(work) == work_namespace
                && plan::service_of_work(work).is_some_and(|service| service.namespace == key.namespace);
            let is_desired = desired.iter().any(|desired| desired.name == unstructured::name(work));
            if !is_of_service_work || is_desired || !plan::is_collected_work(work) || unstructured::is_terminating(work)
            {
                continue;
            }
            match plan::release_service(work) {
                Some(patch) => context.merge(resource, work, patch).await.map(drop)?,
                None => context.delete(resource, unstructured::namespace(work), unstructured::name(work)).await?,
            }
        }
        Ok(Outcome::Done)
    }
}

impl EndpointSliceCollectController {
    async fn desired_works(&self, key: &ProvidedService) -> Result<Vec<DesiredWork>, Error> {
        let context = &self.context;
        let work_namespace = execution_namespace(&key.cluster);
        let name = work_name(plan::MULTI_CLUSTER_SERVICE, &key.name, &key.namespace);
        let request = context.get_full(&context.kinds.work, &work_namespace, &name).await?;
        if request.is_none_or(|work| unstructured::is_terminating(&work)) {
            return Ok(Vec::new());
        }
        let Some(slices) = collect_member_resource(context, &key.cluster, ENDPOINT_SLICE).await? else {
            return Ok(Vec::new());
        };
        let mut desired = Vec::new();
        for slice in context.cache.list(&key.cluster, &slices.gvr, Some(&key.namespace)).await? {
            let slice = slice.view();
            if !services::belongs_to_service(slice, &key.name) {
                continue;
            }
            let name = work_name(unstructured::kind(slice), unstructured::name(slice), unstructured::namespace(slice));
            let existing = context.get_full(&context.kinds.work, &work_namespace, &name).await?;
            if existing.as_ref().is_some_and(|existing| plan::provider_cluster(existing).is_some()) {
                return Err(Error::Waiting(format!(
                    "Work {work_namespace}/{name} contains the slice of another provider"
                )));
            }
            desired.push(plan::collected_work(key.cluster.as_str(), &key.name, slice, existing.as_deref()));
        }
        Ok(desired)
    }
}
