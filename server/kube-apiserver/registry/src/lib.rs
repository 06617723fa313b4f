//! Generic create, get, list, update, patch, delete and watch of any resource.
//!
//! [`Registry`] implements the rules that apply to all objects. Rules of a kind are in its [`strategy::Strategy`],
//! those of the server's configuration in [`admission`]. Objects are kept in [`storage`]; [`authentication`] and
//! [`authz`] make their decisions from stored objects. Only the kinds that they need (RBAC, service accounts, tokens, Namespaces)
//! are named here; all others are registered by `crowsnest-builtin` and by the CRDs of `server/kube-apiserver`.
//! Called by `http/` of that server and by in-process components.

pub mod admission;
pub mod authentication;
pub mod authz;
pub mod catalog;
mod change;
pub mod connect;
pub mod create;
pub mod delete;
pub mod error;
pub mod lifecycle;
mod list;
pub mod object;
pub mod patch;
pub mod reconcile;
pub mod resource;
mod scale;
pub mod storage;
pub mod strategy;
mod update;
pub mod validation;
mod watch;
mod watch_group;

use std::collections::HashMap;
use std::sync::{Arc, OnceLock, Weak};

use arc_swap::ArcSwap;
use crowsnest_apimachinery::status::{ApiError, ApiResult, Reason, qualified_resource};
use parking_lot::RwLock;
use serde_json::Value;

use crate::admission::{Admission, Attributes};
use crate::catalog::Catalog;
use crate::connect::Connect;
use crate::error::Error;
use crate::list::ConversionLog;
use crate::object::Object;
use crate::resource::ResourceRef;
use crate::storage::{EventCache, ObjectKey, Record, ResourceKey, Store};
use crate::strategy::Allocators;
use crate::watch_group::WatchGroups;
use crowsnest_apimachinery::names::Gvr;

pub use change::{Change, Edit};
pub use delete::DeleteOutcome;
pub use list::parse_resource_version;
pub use list::{List, Page};
pub use update::CreateAuthorizer;
pub use watch::{EventEncoder, Watch};

/// Group and plural of a resource.
type GroupResource = (String, String);

/// CRUD and watch of all served resources.
pub struct Registry {
    pub store: Store,
    pub catalog: Catalog,
    admission: ArcSwap<Vec<Arc<dyn Admission>>>,
    allocators: RwLock<HashMap<GroupResource, Arc<dyn Allocators>>>,
    connects: RwLock<HashMap<(GroupResource, String), Arc<dyn Connect>>>,
    /// A weak reference, because the authorizer reads its rules from this registry.
    pub(crate) create_authorizer: OnceLock<Weak<dyn CreateAuthorizer>>,
    /// Encoded events that watches share.
    pub event_cache: EventCache,
    watch_groups: Arc<WatchGroups>,
    conversion_log: ConversionLog,
}

impl std::fmt::Debug for Registry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Registry").field("store", &self.store).finish_non_exhaustive()
    }
}

impl Registry {
    pub fn new(store: Store, catalog: Catalog) -> Self {
        Self {
            store,
            catalog,
            admission: ArcSwap::default(),
            allocators: RwLock::default(),
            connects: RwLock::default(),
            create_authorizer: OnceLock::new(),
            event_cache: EventCache::default(),
            watch_groups: Arc::default(),
            conversion_log: ConversionLog::default(),
        }
    }

    /// Sets the admission chain: all steps mutate in order, then all validate in order.
    pub fn set_admission(&self, chain: Vec<Arc<dyn Admission>>) {
        self.admission.store(Arc::new(chain));
    }

    /// Sets the authorizer of updates and patches that create an object. Further calls have no effect.
    pub fn set_create_authorizer(&self, authorizer: Weak<dyn CreateAuthorizer>) {
        let _ = self.create_authorizer.set(authorizer);
    }

    pub fn set_allocators(&self, group: &str, resource: &str, allocators: Arc<dyn Allocators>) {
        self.allocators.write().insert((group.into(), resource.into()), allocators);
    }

    /// Registers the handler of a connect subresource such as `log`, `exec` or `proxy`.
    pub fn register_connect(&self, group: &str, resource: &str, subresource: &str, connect: Arc<dyn Connect>) {
        self.connects.write().insert(((group.into(), resource.into()), subresource.into()), connect);
    }

    pub fn connect_handler(&self, group: &str, resource: &str, subresource: &str) -> Option<Arc<dyn Connect>> {
        self.connects.read().get(&((group.into(), resource.into()), subresource.into())).cloned()
    }

    /// The served resource, or an error with status 404.
    pub fn resource(&self, gvr: &Gvr) -> ApiResult<ResourceRef> {
        self.catalog.get(gvr).ok_or_else(ApiError::unknown_resource)
    }

    /// Reads one object in the version of the resource.
    pub async fn get(&self, resource: &ResourceRef, namespace: &str, name: &str) -> ApiResult<Value> {
        let record = self.record(resource, namespace, name)?;
        self.decode(resource, record).await
    }

    pub(crate) fn record(&self, resource: &ResourceRef, namespace: &str, name: &str) -> ApiResult<Record> {
        self.store
            .get(&table(resource), &ObjectKey::new(namespace, name))
            .ok_or_else(|| ApiError::not_found(&resource.gvr.group, &resource.gvr.resource, name))
    }

    /// Converts a stored object to the version of the resource.
    pub async fn decode(&self, resource: &ResourceRef, record: Record) -> ApiResult<Value> {
        let mut objects = self.decode_all(resource, vec![record]).await?;
        objects.pop().ok_or_else(|| ApiError::internal("conversion lost the object"))
    }

    /// Parses records, converts them to the version of the resource and applies defaults.
    pub(crate) async fn decode_all(&self, resource: &ResourceRef, records: Vec<Record>) -> ApiResult<Vec<Value>> {
        let api_version = resource.gvr.api_version();
        let mut objects = Vec::with_capacity(records.len());
        let mut other_versions = Vec::new();
        let serves_stored_unchanged = resource.strategy.serves_stored_unchanged();
        for record in &records {
            let object = record.body.decode(record.revision).map_err(storage_error)?;
            if record.body.api_version() != api_version {
                other_versions.push(objects.len());
            }
            objects.push(object);
        }
        if serves_stored_unchanged && other_versions.is_empty() {
            return Ok(objects);
        }
        if !other_versions.is_empty() {
            let convert = other_versions.iter().map(|i| std::mem::take(&mut objects[*i])).collect();
            let converted = resource.strategy.convert(convert, &api_version).await?;
            for (i, mut object) in other_versions.iter().zip(converted) {
                resource.strategy.default_converted(&mut object);
                objects[*i] = object;
            }
        }
        // The positions are in ascending order.
        for (i, object) in objects.iter_mut().enumerate() {
            if other_versions.binary_search(&i).is_err() {
                resource.strategy.default(object);
            }
        }
        Ok(objects)
    }

    /// Encodes an object in its storage version.
    pub(crate) async fn encode(&self, resource: &ResourceRef, object: &Value) -> ApiResult<crate::storage::Body> {
        let stored = Gvr { version: resource.storage.version.as_str().into(), ..resource.gvr.clone() }.api_version();
        if object["apiVersion"] == stored.as_str() {
            return crate::storage::Body::encode(object).map_err(storage_error);
        }
        let converted = resource.strategy.convert(vec![object.clone()], &stored).await?;
        let object = converted.first().ok_or_else(|| ApiError::internal("conversion lost the object"))?;
        crate::storage::Body::encode(object).map_err(storage_error)
    }

    /// The object as a read after this write returns it: converted to the storage version and back.
    pub(crate) async fn read_back(
        &self,
        resource: &ResourceRef,
        key: ObjectKey,
        mut object: Value,
        body: crate::storage::Body,
        revision: crate::storage::Revision,
    ) -> ApiResult<Value> {
        if body.api_version() != resource.gvr.api_version() {
            return self.decode(resource, Record { key, revision, body }).await;
        }
        object["metadata"]["resourceVersion"] = revision.to_string().into();
        Ok(apply_read_defaults(resource, object))
    }

    /// Like `read_back` for an object that is not written; its resourceVersion is kept.
    pub(crate) async fn read_back_unwritten(&self, resource: &ResourceRef, object: Value) -> ApiResult<Value> {
        if *resource.storage.version == *resource.gvr.version {
            return Ok(apply_read_defaults(resource, object));
        }
        let body = self.encode(resource, &object).await?;
        let key = ObjectKey::new(object.namespace(), object.name());
        let mut read = self.decode(resource, Record { key, revision: 0, body }).await?;
        match object.resource_version() {
            "" => drop(read.metadata_mut().remove("resourceVersion")),
            version => drop(read.metadata_mut().insert("resourceVersion".into(), version.into())),
        }
        Ok(read)
    }

    pub(crate) async fn mutate(
        &self,
        attributes: &Attributes<'_>,
        mut object: Option<&mut Value>,
        warnings: &mut Vec<String>,
    ) -> ApiResult<()> {
        let chain = self.admission.load_full();
        admission::mutate(&chain, attributes, object.as_deref_mut(), warnings).await?;
        let Some(object) = object else { return Ok(()) };
        for step in chain.iter() {
            step.guard(attributes, object).await?;
        }
        Ok(())
    }

    pub(crate) async fn validate(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&Value>,
        warnings: &mut Vec<String>,
    ) -> ApiResult<()> {
        admission::validate(&self.admission.load_full(), attributes, object, warnings).await
    }

    /// Runs admission for objects that are not stored: reviews, bindings, evictions, connect options.
    pub async fn admit(
        &self,
        attributes: &Attributes<'_>,
        object: &mut Value,
        warnings: &mut Vec<String>,
    ) -> ApiResult<()> {
        self.mutate(attributes, Some(object), warnings).await?;
        self.validate(attributes, Some(object), warnings).await
    }

    pub(crate) fn allocators(&self, resource: &ResourceRef) -> Option<Arc<dyn Allocators>> {
        self.allocators.read().get(&(resource.gvr.group.to_string(), resource.gvr.resource.to_string())).cloned()
    }
}

pub(crate) fn table(resource: &ResourceRef) -> ResourceKey {
    resource.table()
}

/// The Scale of an object; 404 if its resource has no scale subresource.
pub fn get_scale(resource: &ResourceRef, object: &Value) -> ApiResult<Value> {
    let paths = resource.scale.as_ref().ok_or_else(ApiError::unknown_resource)?;
    if !scale::has_replicas(paths, object) {
        return Err(ApiError::internal(format!("the spec replicas field {:?} does not exist", paths.spec_replicas)));
    }
    Ok(scale::from_parent(paths, object))
}

/// Applies the defaults that a read applies to an object in its storage version.
fn apply_read_defaults(resource: &ResourceRef, mut object: Value) -> Value {
    if !resource.strategy.serves_stored_unchanged() {
        resource.strategy.default(&mut object);
    }
    object
}

/// An error that kube-apiserver reports with status 500 and without a reason.
pub fn error_without_reason(message: impl Into<String>) -> ApiError {
    ApiError::without_reason(500, message)
}

/// Converts errors of the store that do not concern a single object.
pub fn storage_error(error: Error) -> ApiError {
    match error {
        Error::Expired { requested, oldest } => {
            ApiError::new(Reason::Expired, format!("too old resource version: {requested} ({oldest})"))
        }
        Error::Status(status) => status,
        error @ Error::TooLarge { .. } => {
            ApiError::new(Reason::RequestEntityTooLarge, format!("Request entity too large: {error}"))
        }
        error @ Error::TooDeep => ApiError::bad_request(error.to_string()),
        Error::Closed => ApiError::new(Reason::ServiceUnavailable, "the server is shutting down"),
        other => ApiError::internal(other),
    }
}

pub(crate) const MODIFIED_MESSAGE: &str =
    "the object has been modified; please apply your changes to the latest version and try again";

/// Converts the store's error for the write of one object.
pub(crate) fn write_error(resource: &ResourceRef, name: &str, error: Error) -> ApiError {
    let Gvr { group, resource, .. } = &resource.gvr;
    match error {
        Error::AlreadyExists => ApiError::already_exists(group, resource, name),
        Error::NotFound => ApiError::not_found(group, resource, name),
        Error::Conflict { .. } => ApiError::conflict(group, resource, name, MODIFIED_MESSAGE),
        other => storage_error(other),
    }
}

/// Returns a 422 error for an invalid object, unless `errors` is empty.
pub(crate) fn reject_invalid(
    resource: &ResourceRef,
    name: &str,
    errors: Vec<crowsnest_apimachinery::field::FieldError>,
) -> ApiResult<()> {
    reject_invalid_kind((&resource.gvr.group, &resource.kind), name, errors)
}

/// Like [`reject_invalid`], with the group and the kind in the object, which may be wrong in a custom object.
pub(crate) fn reject_invalid_object(
    resource: &ResourceRef,
    object: &Value,
    errors: Vec<crowsnest_apimachinery::field::FieldError>,
) -> ApiResult<()> {
    let kind = object["kind"].as_str().filter(|kind| !kind.is_empty()).unwrap_or(&resource.kind);
    let name = object.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
    let api_version = object["apiVersion"].as_str().filter(|version| resource.is_custom() && !version.is_empty());
    let group = api_version.map(|version| version.split_once('/').map_or("", |(group, _)| group));
    reject_invalid_kind((group.unwrap_or(&resource.gvr.group), kind), name, errors)
}

fn reject_invalid_kind(
    (group, kind): (&str, &str),
    name: &str,
    errors: Vec<crowsnest_apimachinery::field::FieldError>,
) -> ApiResult<()> {
    if errors.is_empty() {
        return Ok(());
    }
    tracing::debug!(kind = qualified_resource(group, kind), name, "invalid object");
    // kube-apiserver has one internal kind for the events of both groups.
    let group = if kind == "Event" && group == "events.k8s.io" { "" } else { group };
    Err(ApiError::invalid(group, kind, name, errors))
}
