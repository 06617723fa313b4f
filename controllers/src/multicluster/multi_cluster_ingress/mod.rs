//! MultiClusterIngress controller: reports the clusters of the backend services, and those with blocked traffic, in
//! the status. A load balancer controller reads them and writes the address to the status.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crowsnest_api::networking::{MultiClusterIngress, MultiClusterService};
use crowsnest_api::object_identity::ObjectIdentity;
use crowsnest_api::remedy::RemedyAction;
use crowsnest_apimachinery::names::{ClusterName, NamespacedName};
use crowsnest_apimachinery::unstructured;
use parking_lot::Mutex;
use serde_json::Value;

use crate::Error;
use crate::cache::Change;
use crate::runtime::context::{Context, decode};
use crate::runtime::workqueue::Outcome;
use crate::runtime::{Controller, Requests, Setup, Source, Switch, Watch, WellKnownKinds};
use crate::shared::bindings::binding_key_of;
use crowsnest_plan::{multicluster_ingresses as plan, multicluster_services};

pub struct MultiClusterIngressController {
    context: Arc<Context>,
    /// Backend services by MultiClusterIngress.
    backends: Mutex<BTreeMap<NamespacedName, BTreeSet<String>>>,
}

impl MultiClusterIngressController {
    fn on_ingress(&self, change: &Change) -> Requests<NamespacedName> {
        match change.current().map(decode::<MultiClusterIngress>).transpose() {
            Ok(Some(ingress)) => {
                self.backends.lock().insert(change.key(), plan::backends(&ingress.spec));
                change.key().into()
            }
            Ok(None) => {
                self.backends.lock().remove(&change.key());
                Requests::none()
            }
            Err(error) => {
                tracing::warn!(ingress = ?change.key(), %error, "cannot decode a MultiClusterIngress; its status is not updated");
                Requests::none()
            }
        }
    }

    fn on_binding(&self, change: &Change) -> Requests<NamespacedName> {
        let clusters = |binding: &Value| unstructured::at(binding, &["spec", "clusters"]).cloned();
        let binding = change.object();
        let is_changed = change.deleted || change.old().is_none_or(|old| clusters(old) != clusters(binding));
        match is_changed && unstructured::text(binding, &["spec", "resource", "kind"]) == "Service" {
            true => self.find_by_backend(
                unstructured::namespace(binding),
                unstructured::text(binding, &["spec", "resource", "name"]),
            ),
            false => Requests::none(),
        }
    }

    fn on_cluster(&self, change: &Change) -> Requests<NamespacedName> {
        let actions = |cluster: &Value| unstructured::at(cluster, &["status", "remedyActions"]).cloned();
        Requests::all_if(change.deleted || change.old().is_none_or(|old| actions(old) != actions(change.object())))
    }

    /// MultiClusterIngresses with a backend service.
    fn find_by_backend(&self, namespace: &str, service: &str) -> Requests<NamespacedName> {
        let by_ingress = self.backends.lock();
        let matching =
            by_ingress.iter().filter(|(key, backends)| key.namespace == namespace && backends.contains(service));
        matching.map(|(key, _)| key.clone()).collect()
    }
}

impl Controller for MultiClusterIngressController {
    type Key = NamespacedName;
    const NAME: &'static str = "multicluster-ingresses";
    const SWITCH: Switch = super::MULTI_CLUSTER_SERVICE_SWITCH;

    fn new(setup: &Setup) -> Self {
        MultiClusterIngressController { context: setup.context(), backends: Mutex::default() }
    }

    fn watches(kinds: &WellKnownKinds) -> Vec<Watch<Self>> {
        let services = Source::control_plane([&kinds.multi_cluster_service]);
        vec![
            Source::control_plane([&kinds.multi_cluster_ingress]).map(Self::on_ingress),
            services.map(|controller: &Self, change| {
                controller
                    .find_by_backend(unstructured::namespace(change.object()), unstructured::name(change.object()))
            }),
            Source::control_plane([&kinds.resource_binding]).map(Self::on_binding),
            Source::clusters(kinds).map(Self::on_cluster),
        ]
    }

    async fn keys(&self) -> Result<Vec<NamespacedName>, Error> {
        Ok(self.backends.lock().keys().cloned().collect())
    }

    async fn reconcile(self: Arc<Self>, NamespacedName { namespace, name }: NamespacedName) -> Result<Outcome, Error> {
        let context = &self.context;
        let resource = &context.kinds.multi_cluster_ingress;
        let Some(ingress) = context.get_full(resource, &namespace, &name).await? else { return Ok(Outcome::Done) };
        if unstructured::is_terminating(&ingress) {
            return Ok(Outcome::Done);
        }
        let typed: MultiClusterIngress = decode(&ingress)?;
        let all = context.active_cluster_names().await?;
        let mut services = Vec::new();
        for service in plan::backends(&typed.spec) {
            let clusters = self.service_clusters(&namespace, &service, &all).await?;
            services.push((service, clusters));
        }
        let mut blocked = BTreeSet::new();
        for cluster in services.iter().flat_map(|(_, clusters)| clusters) {
            let status = context.cluster(cluster).await?;
            let blocks_traffic = |action: &String| action == RemedyAction::TrafficControl.as_str();
            if status.is_some_and(|cluster| cluster.status.remedy_actions.iter().any(blocks_traffic)) {
                blocked.insert(cluster.clone());
            }
        }
        let desired = plan::status(services, |cluster| blocked.contains(cluster));
        if let Some(patch) = plan::patch(&typed.status, &desired) {
            context.merge_status(resource, &ingress, patch).await?;
        }
        Ok(Outcome::Done)
    }
}

impl MultiClusterIngressController {
    /// Clusters of a service: the providers of its MultiClusterService, otherwise the targets of its binding.
    async fn service_clusters(
        &self,
        namespace: &str,
        service: &str,
        all: &[ClusterName],
    ) -> Result<BTreeSet<String>, Error> {
        let context = &self.context;
        let multi_cluster_service = context.get_full(&context.kinds.multi_cluster_service, namespace, service).await?;
        let names: BTreeSet<String> = match multi_cluster_service
            .filter(|multi_cluster_service| !unstructured::is_terminating(multi_cluster_service))
        {
            Some(multi_cluster_service) => {
                let typed: MultiClusterService = decode(&multi_cluster_service)?;
                multicluster_services::selected_clusters(&typed.spec.provider_clusters, all)
            }
            None => {
                let key = binding_key_of(context, &ObjectIdentity::new("v1", "Service", namespace, service)).await?;
                let binding = context.get_full(&context.kinds.resource_binding, namespace, &key.name).await?;
                let targets = binding.as_deref().and_then(|binding| unstructured::at(binding, &["spec", "clusters"]));
                let targets = targets.and_then(Value::as_array).into_iter().flatten();
                targets.map(|target| unstructured::text(target, &["name"]).to_owned()).collect()
            }
        };
        Ok(names.into_iter().filter(|name| all.iter().any(|cluster| cluster.as_str() == name)).collect())
    }
}
