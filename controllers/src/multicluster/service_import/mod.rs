//! ServiceImport controller: maintains a Service `derived-NAME` in the control plane with the ports of each import of
//! type ClusterSetIP. Only this controller writes those Services.

use std::sync::Arc;

use crowsnest_api::constants::event;
use crowsnest_api::names::derived_service_name;
use crowsnest_apimachinery::names::NamespacedName;
use crowsnest_apimachinery::unstructured;
use futures::FutureExt;
use serde_json::{Value, json};

use crate::Error;
use crate::cache::Change;
use crate::runtime::context::Context;
use crate::runtime::event_recorder::Severity;
use crate::runtime::workqueue::Outcome;
use crate::runtime::{Controller, Requests, Setup, Source, Switch, Watch, WellKnownKinds};
use crowsnest_plan::services as plan;

pub struct ServiceImportController {
    context: Arc<Context>,
}

impl ServiceImportController {
    /// The import of a derived Service that another client changed or deleted. A Service without an import belongs to
    /// a user.
    async fn on_derived_service(&self, change: &Change) -> Result<Requests<NamespacedName>, Error> {
        let import = unstructured::name(change.object()).strip_prefix("derived-").filter(|_| !change.initial);
        let Some(import) = import else { return Ok(Requests::none()) };
        let namespace = unstructured::namespace(change.object());
        let exists = self.context.exists(&self.context.kinds.service_import, namespace, import).await?;
        Ok(Requests::one_if(exists, || NamespacedName::new(namespace, import)))
    }
}

impl Controller for ServiceImportController {
    type Key = NamespacedName;
    const NAME: &'static str = "service-import-controller";
    const SWITCH: Switch = Switch::OnByDefault(&["serviceImport"]);

    fn new(setup: &Setup) -> Self {
        ServiceImportController { context: setup.context() }
    }

    fn watches(kinds: &WellKnownKinds) -> Vec<Watch<Self>> {
        vec![
            Source::templates([&kinds.service_import]).map(|_, change| change.key().into()),
            Source::control_plane([&kinds.service])
                .find(|controller, change| controller.on_derived_service(change).boxed()),
        ]
    }

    async fn keys(&self) -> Result<Vec<NamespacedName>, Error> {
        self.context.keys(&self.context.kinds.service_import).await
    }

    async fn reconcile(self: Arc<Self>, key: NamespacedName) -> Result<Outcome, Error> {
        let context = &self.context;
        let NamespacedName { namespace, name } = &key;
        let import = context.get_full(&context.kinds.service_import, namespace, name).await?;
        let Some(import) = import.filter(|import| !unstructured::is_terminating(import)) else {
            let service = derived_service_name(name);
            if context.exists(&context.kinds.service, namespace, &service).await? {
                context.delete(&context.kinds.service, namespace, &service).await?;
            }
            return Ok(Outcome::Done);
        };
        if !plan::has_derived_service(&import) {
            return Ok(Outcome::Done);
        }
        match self.write_derived_service(&import).await {
            Ok(is_written) => {
                if is_written {
                    let text = format!("Sync derived service for serviceImport({name}) succeed.");
                    context.events.record(&import, Severity::Normal, event::SYNC_DERIVED_SERVICE_SUCCEED, text);
                }
                Ok(Outcome::Done)
            }
            Err(error) => {
                if error.needs_event() {
                    let failed = event::SYNC_DERIVED_SERVICE_FAILED;
                    context.events.record(&import, Severity::Warning, failed, error.to_string());
                }
                Err(error)
            }
        }
    }
}

impl ServiceImportController {
    /// Writes the derived Service and its load balancer status. Returns true if anything was written.
    async fn write_derived_service(&self, import: &Value) -> Result<bool, Error> {
        let context = &self.context;
        let resource = &context.kinds.service;
        let name = derived_service_name(unstructured::name(import));
        let existing = context.get_full(resource, unstructured::namespace(import), &name).await?;
        let desired = plan::derived_service(import, existing.as_deref());
        let (mut service, mut is_written) = match existing {
            None => (context.create(resource, &desired).await?, true),
            Some(existing) if plan::is_service_same(&existing, &desired) => (existing.as_ref().clone(), false),
            Some(_) => (context.replace(resource, &desired).await?, true),
        };
        let ingress = plan::ingress(import);
        let reported = unstructured::at(&service, &["status", "loadBalancer", "ingress"]).and_then(Value::as_array);
        if reported.map_or(0, Vec::len) != ingress.len() || reported.is_some_and(|reported| *reported != ingress) {
            unstructured::set(&mut service, &["status", "loadBalancer", "ingress"], json!(ingress));
            context.replace_status(resource, &service).await?;
            is_written = true;
        }
        Ok(is_written)
    }
}
