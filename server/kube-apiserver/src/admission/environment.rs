//! Access of policies and webhooks to the objects in the registry.

use std::sync::{Arc, Weak};

use async_trait::async_trait;
use crowsnest_admission_plugins::environment::{Environment, ParamResource};
use crowsnest_apimachinery::names::Gvr;
use crowsnest_apimachinery::status::Reason;
use crowsnest_registry::Registry;
use crowsnest_registry::admission::{Attributes, GROUP};
use crowsnest_registry::object::Object;
use crowsnest_registry::resource::ResourceRef;
use crowsnest_registry::storage::{ObjectKey, ResourceKey, Revision};
use crowsnest_schema::SchemaRef;
use serde_json::Value;

/// The registry as [`Environment`] of the plugins. The registry owns the plugins, so the reference is weak. After the
/// server has stopped, there are no objects.
pub(super) struct RegistryEnvironment(Weak<Registry>);

impl RegistryEnvironment {
    pub(super) fn new(registry: &Arc<Registry>) -> Self {
        Self(Arc::downgrade(registry))
    }

    fn served_resource(&self, resource: &ParamResource) -> Option<(Arc<Registry>, ResourceRef)> {
        let registry = self.0.upgrade()?;
        let resource = registry.catalog.get(&resource.gvr)?;
        Some((registry, resource))
    }
}

#[async_trait]
impl Environment for RegistryEnvironment {
    fn revision(&self, resource: &'static str) -> Revision {
        self.0.upgrade().map_or(0, |registry| registry.store.last_change(&ResourceKey::new(GROUP, resource)))
    }

    fn configurations(&self, resource: &'static str) -> Vec<Value> {
        let registry = self.0.upgrade();
        registry.map_or_else(Vec::new, |registry| registry.store.objects(&ResourceKey::new(GROUP, resource), ""))
    }

    fn equivalents(&self, a: &Attributes<'_>) -> Vec<Gvr> {
        let Some(registry) = self.0.upgrade() else { return Vec::new() };
        let (gvr, served) = (&a.resource.gvr, registry.catalog.snapshot());
        // The storage group is compared, because Events are served in two groups.
        let is_equivalent = |candidate: &&ResourceRef| {
            *candidate.gvr.resource == *gvr.resource
                && candidate.storage.group == a.resource.storage.group
                && candidate.gvr != *gvr
        };
        served.iter().filter(is_equivalent).map(|candidate| candidate.gvr.clone()).collect()
    }

    fn schema(&self, gvr: &Gvr) -> Option<SchemaRef> {
        self.0.upgrade()?.catalog.get(gvr)?.strategy.schema()
    }

    async fn namespace(&self, name: &str) -> Result<Option<Value>, String> {
        let Some(registry) = self.0.upgrade() else { return Ok(None) };
        Ok(registry.store.object(&ResourceKey::new("", "namespaces"), &ObjectKey::new("", name)))
    }

    async fn param_resource(&self, api_version: &str, kind: &str) -> Result<Option<ParamResource>, String> {
        let served = self.0.upgrade().map(|registry| registry.catalog.snapshot());
        let resource = served.as_ref().and_then(|served| served.by_kind(api_version, kind));
        let param_resource =
            |resource: &ResourceRef| ParamResource { gvr: resource.gvr.clone(), namespaced: resource.namespaced };
        Ok(resource.map(param_resource))
    }

    async fn param(&self, resource: &ParamResource, namespace: &str, name: &str) -> Result<Option<Value>, String> {
        let Some((registry, resource)) = self.served_resource(resource) else { return Ok(None) };
        match registry.get(&resource, namespace, name).await {
            Ok(param) => Ok(Some(param)),
            Err(error) if error.is(Reason::NotFound) => Ok(None),
            Err(error) => Err(error.message),
        }
    }

    async fn params(&self, resource: &ParamResource, namespace: &str) -> Result<Vec<Value>, String> {
        let Some((registry, resource)) = self.served_resource(resource) else { return Ok(Vec::new()) };
        let mut params = registry.list_all(&resource).await.map_err(|error| error.message)?;
        params.retain(|param| param.namespace() == namespace);
        Ok(params)
    }
}
