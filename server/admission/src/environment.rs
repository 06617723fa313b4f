//! Interface to the objects that policies and webhooks read, and conversion of the objects of a write.

use async_trait::async_trait;
use crowsnest_apimachinery::names::Gvr;
use crowsnest_apimachinery::status::ApiResult;
use crowsnest_registry::admission::Attributes;
use crowsnest_registry::storage::Revision;
use crowsnest_schema::SchemaRef;
use serde_json::Value;

/// API group of webhook configurations and admission policies.
pub const GROUP: &str = "admissionregistration.k8s.io";

/// The resource of a policy's parameters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParamResource {
    pub gvr: Gvr,
    pub namespaced: bool,
}

/// Objects around a write, as the server that runs the plugins knows them.
#[async_trait]
pub trait Environment: Send + Sync {
    /// Revision of the objects of a resource of [`GROUP`]; it differs after each change.
    fn revision(&self, resource: &'static str) -> Revision;

    /// Objects of a resource of [`GROUP`], sorted by name.
    fn configurations(&self, resource: &'static str) -> Vec<Value>;

    /// Other groups and versions in which the resource of a write is served.
    fn equivalents(&self, a: &Attributes<'_>) -> Vec<Gvr>;

    /// Schema of the resource of a write in another version.
    fn schema(&self, gvr: &Gvr) -> Option<SchemaRef>;

    /// The Namespace with this name.
    async fn namespace(&self, name: &str) -> Option<Value>;

    /// The resource that serves a kind; `None` if none does.
    async fn param_resource(&self, api_version: &str, kind: &str) -> Result<Option<ParamResource>, String>;

    /// One object of a resource; `None` if it does not exist.
    async fn param(&self, resource: &ParamResource, namespace: &str, name: &str) -> Result<Option<Value>, String>;

    /// All objects of a resource in a namespace, or of a cluster-scoped resource.
    async fn params(&self, resource: &ParamResource, namespace: &str) -> Result<Vec<Value>, String>;
}

/// The namespace of a namespaced write.
pub(crate) async fn namespace_of(environment: &dyn Environment, a: &Attributes<'_>) -> Option<Value> {
    if !a.resource.namespaced || a.ctx.namespace.is_empty() {
        return None;
    }
    environment.namespace(&a.ctx.namespace).await
}

/// Converts an object of the write to another version.
pub(crate) async fn in_version(gvr: &Gvr, a: &Attributes<'_>, object: Option<&Value>) -> Result<Option<Value>, String> {
    let Some(object) = object else { return Ok(None) };
    if *gvr == a.resource.gvr || a.of_own_kind().is_some() {
        return Ok(Some(object.clone()));
    }
    let converted: ApiResult<Vec<Value>> = a.resource.strategy.convert(vec![object.clone()], &gvr.api_version()).await;
    let mut converted = converted.map_err(|e| e.message)?;
    Ok(converted.pop())
}
