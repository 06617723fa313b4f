//! Interface to the objects that policies and webhooks read, and conversion of the objects of a write.

use async_trait::async_trait;
use crowsnest_apimachinery::names::Gvr;
use crowsnest_apimachinery::status::{ApiError, ApiResult};
use crowsnest_registry::admission::Attributes;
use crowsnest_registry::storage::Revision;
use crowsnest_schema::SchemaRef;
use serde_json::Value;

/// The resource of a policy's parameters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParamResource {
    pub gvr: Gvr,
    pub namespaced: bool,
}

/// Access of the plugins to the objects and schemas of the server that runs them.
#[async_trait]
pub trait Environment: Send + Sync {
    /// Revision of all objects of a resource in the [group](crowsnest_registry::admission::GROUP) of policies and webhook
    /// configurations. Each change of an object changes it.
    fn revision(&self, resource: &'static str) -> Revision;

    /// Objects of a resource of that group, sorted by name.
    fn configurations(&self, resource: &'static str) -> Vec<Value>;

    /// Other groups and versions in which the resource of a write is served.
    fn equivalents(&self, a: &Attributes<'_>) -> Vec<Gvr>;

    /// Schema of a resource in this version; `None` if it has none.
    fn schema(&self, gvr: &Gvr) -> Option<SchemaRef>;

    /// The Namespace with this name; `None` if it does not exist.
    async fn namespace(&self, name: &str) -> Result<Option<Value>, String>;

    /// The resource that serves a kind; `None` if none does.
    async fn param_resource(&self, api_version: &str, kind: &str) -> Result<Option<ParamResource>, String>;

    /// One object of a resource; `None` if it does not exist.
    async fn param(&self, resource: &ParamResource, namespace: &str, name: &str) -> Result<Option<Value>, String>;

    /// All objects of a resource in a namespace, or of a cluster-scoped resource.
    async fn params(&self, resource: &ParamResource, namespace: &str) -> Result<Vec<Value>, String>;
}

/// The namespace of a namespaced write. Refuses the write if the namespace cannot be read, since its labels decide
/// which policies and webhooks apply.
pub(crate) async fn namespace_of(environment: &dyn Environment, a: &Attributes<'_>) -> ApiResult<Option<Value>> {
    let name = a.ctx.namespace.as_str();
    if !a.resource.namespaced || name.is_empty() {
        return Ok(None);
    }
    let found = environment.namespace(name).await;
    found.map_err(|why| ApiError::internal(format!("cannot read the namespace {name:?} for admission: {why}")))
}

/// Converts an object of the write to another version.
pub(crate) async fn convert_to_version(
    gvr: &Gvr,
    a: &Attributes<'_>,
    object: Option<&Value>,
) -> Result<Option<Value>, String> {
    let Some(object) = object else { return Ok(None) };
    if *gvr == a.resource.gvr || a.subresource_of_other_kind().is_some() {
        return Ok(Some(object.clone()));
    }
    let converted: ApiResult<Vec<Value>> = a.resource.strategy.convert(vec![object.clone()], &gvr.api_version()).await;
    let mut converted = converted.map_err(|e| e.message)?;
    Ok(converted.pop())
}

/// Converts an object that a policy or webhook has changed back to the version of the request, and sets defaults. `gvr`
/// is the version in which it was changed. Bodies of subresources with a kind of their own, such as a `Binding`, have one
/// version and no defaults.
pub(crate) async fn convert_to_request_version(gvr: &Gvr, a: &Attributes<'_>, object: Value) -> ApiResult<Value> {
    if a.subresource_of_other_kind().is_some() {
        return Ok(object);
    }
    let mut object = object;
    if *gvr != a.resource.gvr {
        let converted = a.resource.strategy.convert(vec![object], &a.resource.gvr.api_version()).await?;
        object = converted.into_iter().next().unwrap_or_default();
    }
    a.resource.strategy.default_admitted(&mut object);
    Ok(object)
}
