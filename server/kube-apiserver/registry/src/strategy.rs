//! What one kind adds to the generic create/update/delete machinery.
//!
//! The registry calls these; `crowsnest-builtin` implements them for the built-in kinds, `server/kube-apiserver` for custom resources. All are
//! synchronous and pure: time, ids and the caller are in [`RequestContext`], allocation of cluster IPs and the like goes through
//! [`Allocators`].

use std::sync::Arc;

use crowsnest_apimachinery::field::FieldError;
use crowsnest_apimachinery::status::ApiResult;
use crowsnest_apimachinery::user::UserInfo;
use crowsnest_apiserver::audit::Record;
use crowsnest_schema::apply::VersionSchemas;
use crowsnest_schema::{SchemaRef, prune};
use futures::future::BoxFuture;
use serde_json::Value;

/// What a strategy may know of the request it serves.
#[derive(Debug, Clone)]
pub struct RequestContext {
    pub user: UserInfo,
    pub now: jiff::Timestamp,
    pub dry_run: bool,
    /// `status`, `scale`, `finalize`, `approval`, …; empty for the main resource.
    pub subresource: String,
    /// The namespace of the path, empty for cluster-scoped requests.
    pub namespace: String,
    /// What is written down of the request, if it is.
    pub record: Option<Arc<Record>>,
}

/// Finite things that creating an object takes from the cluster (service addresses, node ports).
pub trait Allocators: Send + Sync {
    /// Completes and reserves; called inside the write, before validation.
    fn allocate(&self, ctx: &RequestContext, old: Option<&Value>, new: &mut Value) -> Result<(), Vec<FieldError>>;
    /// Gives back what an object held; called after a delete or a failed write.
    fn release(&self, object: &Value);
    /// Gives back what `from` holds and `to` does not: the old object after an update, the new one when the update failed.
    fn replaced(&self, _from: &Value, _to: &Value) {}
}

/// Per-kind behaviour. Objects are whole, with `apiVersion`, `kind` and `metadata`, in the version of the request.
pub trait Strategy: VersionSchemas {
    /// Fills defaults (idempotent). Runs on every decoded object: request bodies, patch results, and objects read from storage.
    fn default(&self, object: &mut Value);

    /// Fills defaults again after admission changed a decoded object. What decoding would have dropped quietly stays for
    /// validation to see.
    fn default_admitted(&self, object: &mut Value) {
        self.default(object);
    }

    /// Normalises before a create: drops status when the kind has a status subresource, sets generation, secret `stringData`, …
    fn prepare_create(&self, ctx: &RequestContext, object: &mut Value);

    /// Normalises before an update through `ctx.subresource`: resets what that subresource must not touch, bumps generation.
    fn prepare_update(&self, ctx: &RequestContext, old: &Value, new: &mut Value);

    /// Everything wrong with a new object besides its generic metadata.
    fn validate_create(&self, ctx: &RequestContext, object: &Value) -> Vec<FieldError>;

    /// Everything wrong with a change (immutable fields included) besides its generic metadata.
    fn validate_update(&self, ctx: &RequestContext, old: &Value, new: &Value) -> Vec<FieldError>;

    /// Why there shall be no new objects, whoever wants them.
    fn refuses_create(&self) -> Option<&'static str> {
        None
    }

    /// `Warning` header texts for an accepted write.
    fn warnings(&self, _ctx: &RequestContext, _old: Option<&Value>, _new: &Value) -> Vec<String> {
        Vec::new()
    }

    /// Whether the kind's own rules look at metadata as well.
    fn validates_metadata(&self) -> bool {
        true
    }

    /// `Warning` text of every request to a deprecated version.
    fn deprecation(&self) -> Option<&str> {
        None
    }

    /// Marks an object whose deletion begins (conditions, finalizers), before its finalizers decide whether it stays.
    fn prepare_delete(&self, _ctx: &RequestContext, _object: &mut Value) {}

    /// Changes before this revision cannot be watched: the resource was not served like this then.
    fn history_floor(&self) -> crate::storage::Revision {
        0
    }

    /// What is wrong with `metadata.name` (or its generated form); texts as `validation.NameIsDNSSubdomain` gives them.
    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String>;

    /// Typed schema for server-side apply, strategic merge, unknown-field checks. `None`: schemaless (preserve everything).
    fn schema(&self) -> Option<SchemaRef>;

    /// The schema to publish when it is not that of a built-in kind: `openAPIV3Schema` of a custom resource.
    fn open_api(&self) -> Option<Arc<Value>> {
        None
    }

    /// Fields that a write through `subresource` (empty: the main resource) can neither change nor own: `[["status"]]`. None by
    /// default; kinds with a status subresource return [`reset_by_status`].
    fn reset_fields(&self, _subresource: &str) -> &'static [&'static [&'static str]] {
        &[]
    }

    /// True when PUT may omit `metadata.resourceVersion`.
    fn allow_unconditional_update(&self) -> bool {
        true
    }

    /// True when PUT on an absent object creates it.
    fn allow_create_on_update(&self) -> bool {
        false
    }

    /// Why an object cannot be read as one of these, though its own metadata can.
    fn unreadable(&self, _object: &Value) -> Option<String> {
        None
    }

    /// Drops what the schema does not know (custom resources); built-ins drop unknown fields too.
    fn prune(&self, object: &mut Value) {
        if let Some(schema) = self.schema() {
            prune(&schema, object);
        }
    }

    /// Selectable fields beside metadata.name and metadata.namespace: (`spec.nodeName`, value as text).
    fn selectable_fields(&self, _object: &Value) -> Vec<(String, String)> {
        Vec::new()
    }

    /// The same of an object that was just converted from the version it is stored in.
    fn default_converted(&self, object: &mut Value) {
        self.default(object);
    }

    /// Converts what may be a part of an object: nothing is filled in, some of it may be missing, and what the other version does
    /// not know stays.
    fn convert_part(&self, objects: Vec<Value>, to_api_version: &str) -> BoxFuture<'_, ApiResult<Vec<Value>>> {
        self.convert(objects, to_api_version)
    }

    /// True when stored objects can be served as they are: written with today's defaults and pruned by today's schema.
    fn serves_stored(&self) -> bool {
        true
    }

    /// Converts between served versions of one resource; [`unconverted`] when there is one version or strategy `None`.
    fn convert(&self, objects: Vec<Value>, to_api_version: &str) -> BoxFuture<'_, ApiResult<Vec<Value>>>;
}

/// [`Strategy::reset_fields`] of a kind with a status subresource.
pub fn reset_by_status(subresource: &str) -> &'static [&'static [&'static str]] {
    match subresource {
        "" => &[&["status"]],
        _ => &[&["spec"], &["metadata"]],
    }
}

/// [`Strategy::convert`] of a kind with one version.
pub fn unconverted(objects: Vec<Value>) -> BoxFuture<'static, ApiResult<Vec<Value>>> {
    Box::pin(async move { Ok(objects) })
}

/// Shared handle to a strategy.
pub type StrategyRef = Arc<dyn Strategy>;
