//! Context of a write for webhooks and policies: its namespace, equivalent resources, and conversion of its objects.

use crowsnest_apimachinery::names::Gvr;
use crowsnest_registry::Registry;
use crowsnest_registry::admission::Attributes;
use crowsnest_registry::resource::ResourceRef;
use crowsnest_registry::storage::{ObjectKey, ResourceKey};
use serde_json::Value;

/// The namespace of a namespaced write.
pub fn namespace(registry: &Registry, a: &Attributes<'_>) -> Option<Value> {
    if !a.resource.namespaced || a.ctx.namespace.is_empty() {
        return None;
    }
    registry.store.object(&ResourceKey::new("", "namespaces"), &ObjectKey::new("", &a.ctx.namespace))
}

/// Other groups and versions in which the same resource is served.
pub fn equivalents(registry: &Registry, a: &Attributes<'_>) -> Vec<Gvr> {
    let own = &a.resource.gvr;
    let served = registry.catalog.served();
    // Events are served in two groups.
    let same = |r: &&ResourceRef| {
        *r.gvr.resource == *own.resource && r.storage_group == a.resource.storage_group && r.gvr != *own
    };
    served.iter().filter(same).map(|r| r.gvr.clone()).collect()
}

/// Converts an object of the write to another version.
pub async fn in_version(gvr: &Gvr, a: &Attributes<'_>, object: Option<&Value>) -> Result<Option<Value>, String> {
    let Some(object) = object else { return Ok(None) };
    if *gvr == a.resource.gvr || a.of_own_kind().is_some() {
        return Ok(Some(object.clone()));
    }
    let converted = a.resource.strategy.convert(vec![object.clone()], &gvr.api_version()).await;
    let mut converted = converted.map_err(|e| e.message)?;
    Ok(converted.pop())
}
