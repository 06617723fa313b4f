//! ServiceImports: each that is reached by one address has a Service of the control plane, `derived-NAME`, with its ports. Only
//! this loop writes those Services.

use std::sync::Arc;

use crowsnest_api::constants::event;
use crowsnest_api::names::derived_service_name;
use serde_json::{Value, json};

use crate::Error;
use crate::act::context::Context;
use crate::act::events::Severity;
use crate::act::queue::{Outcome, Queue};
use crate::act::world::Change;
use crowsnest_plan::{object, services as plan};

/// Namespace and name of an import.
type Key = (String, String);

pub struct Imports {
    context: Arc<Context>,
    pub imports: Queue<Key>,
}

impl Imports {
    pub fn new(context: Arc<Context>) -> Arc<Self> {
        Arc::new(Imports { context, imports: Queue::new("service-imports") })
    }

    pub async fn on_change(&self, change: &Change) -> Result<(), Error> {
        let kinds = &self.context.kinds;
        if change.resource.gvr == kinds.service_import.gvr {
            self.imports.add(change.key());
        } else if change.resource.gvr == kinds.service.gvr
            && !change.initial
            && let Some(import) = object::name(change.object()).strip_prefix("derived-")
        {
            // Somebody changed or deleted it. One that stands for no import is its user's.
            let namespace = object::namespace(change.object());
            if self.context.exists(&kinds.service_import, namespace, import).await? {
                self.imports.add((namespace.to_owned(), import.to_owned()));
            }
        }
        Ok(())
    }

    pub async fn full_pass(&self) -> Result<(), Error> {
        let imports = self.context.keys(&self.context.kinds.service_import).await?;
        imports.into_iter().for_each(|key| self.imports.add(key));
        Ok(())
    }

    pub async fn reconcile(self: Arc<Self>, key: Key) -> Result<Outcome, Error> {
        let context = &self.context;
        let (namespace, name) = &key;
        let import = context.get(&context.kinds.service_import, namespace, name).await?;
        let Some(import) = import.filter(|import| !object::is_terminating(import)) else {
            let service = derived_service_name(name);
            if context.exists(&context.kinds.service, namespace, &service).await? {
                context.delete(&context.kinds.service, namespace, &service).await?;
            }
            return Ok(Outcome::Done);
        };
        if !plan::has_derived_service(&import) {
            return Ok(Outcome::Done);
        }
        match self.derive(&import).await {
            Ok(wrote) => {
                if wrote {
                    let text = format!("Sync derived service for serviceImport({name}) succeed.");
                    context.events.note(&import, Severity::Normal, event::SYNC_DERIVED_SERVICE_SUCCEED, text);
                }
                Ok(Outcome::Done)
            }
            Err(error) => {
                if error.is_told() {
                    let failed = event::SYNC_DERIVED_SERVICE_FAILED;
                    context.events.note(&import, Severity::Warning, failed, error.to_string());
                }
                Err(error)
            }
        }
    }

    /// Whether anything was written.
    async fn derive(&self, import: &Value) -> Result<bool, Error> {
        let context = &self.context;
        let resource = &context.kinds.service;
        let name = derived_service_name(object::name(import));
        let existing = context.get(resource, object::namespace(import), &name).await?;
        let desired = plan::derived_service(import, existing.as_deref());
        let (mut service, mut wrote) = match existing {
            None => (context.create(resource, &desired).await?, true),
            Some(existing) if plan::is_service_same(&existing, &desired) => (existing.as_ref().clone(), false),
            Some(_) => (context.replace(resource, &desired).await?, true),
        };
        let ingress = plan::ingress(import);
        let told = object::at(&service, &["status", "loadBalancer", "ingress"]).and_then(Value::as_array);
        if told.map_or(0, Vec::len) != ingress.len() || told.is_some_and(|told| *told != ingress) {
            object::set(&mut service, &["status", "loadBalancer", "ingress"], json!(ingress));
            context.replace_status(resource, &service).await?;
            wrote = true;
        }
        Ok(wrote)
    }
}
