//! Interface for the behaviour of a kind in create, update and delete.
//!
//! Called by the registry; implemented by `crowsnest-builtin` for built-in kinds and by `server/kube-apiserver` for
//! custom resources. Strategies are synchronous and pure: time, ids and the user are in [`RequestContext`]; cluster
//! IPs and node ports are allocated by [`Allocators`].

use std::sync::Arc;

use crowsnest_apimachinery::field::FieldError;
use crowsnest_apimachinery::status::ApiResult;
use crowsnest_apimachinery::user::UserInfo;
use crowsnest_apiserver::audit::Record;
use crowsnest_schema::apply::VersionSchemas;
use crowsnest_schema::compressed::CompressedSchema;
use crowsnest_schema::{SchemaRef, prune};
use futures::future::BoxFuture;
use serde_json::Value;

/// The parts of a request that strategies need.
#[derive(Debug, Clone)]
pub struct RequestContext {
    pub user: UserInfo,
    pub now: jiff::Timestamp,
    pub dry_run: bool,
    /// `status`, `scale`, `finalize`, `approval`, …; empty for the main resource.
    pub subresource: String,
    /// The namespace of the path, empty for cluster-scoped requests.
    pub namespace: String,
    /// Audit record of the request, if it is logged.
    pub record: Option<Arc<Record>>,
}

/// Allocators of finite resources of a cluster (cluster IPs, node ports).
pub trait Allocators: Send + Sync {
    /// Allocates and fills in values; called within the write, before validation.
    fn allocate(&self, ctx: &RequestContext, old: Option<&Value>, new: &mut Value) -> Result<(), Vec<FieldError>>;
    /// Releases an object's allocations; called after a delete or a failed write.
    fn release(&self, object: &Value);
    /// Releases the allocations of `from` that `to` does not have: `from` is the old object after an update, the new
    /// one if it failed.
    fn release_replaced(&self, _from: &Value, _to: &Value) {}
}

/// Errors of an update.
#[derive(Debug, Default)]
pub struct UpdateErrors {
    /// Errors for which the update is refused.
    pub errors: Vec<FieldError>,
    /// Texts of `Warning` headers for errors of unchanged values, for which the update is not refused. They are returned
    /// even if the update is refused because of other errors.
    pub tolerated: Vec<String>,
}

impl From<Vec<FieldError>> for UpdateErrors {
    fn from(errors: Vec<FieldError>) -> Self {
        Self { errors, tolerated: Vec::new() }
    }
}

/// Behaviour of a kind. Objects are complete, with `apiVersion`, `kind` and `metadata`, in the version of the
/// request. The provided methods do not change objects, as is right for a kind whose defaults another server sets.
pub trait Strategy: VersionSchemas {
    /// Sets defaults (idempotent). Runs on request bodies, patch results, and stored objects that are not served
    /// unchanged.
    fn default(&self, _object: &mut Value) {}

    /// Sets defaults again after admission has changed an object. Fields that decoding would drop silently are kept
    /// for validation.
    fn default_admitted(&self, object: &mut Value) {
        self.default(object);
    }

    /// A copy of the object with the defaults that [`Self::prepare_create`] sets and whose fields the creator owns in
    /// `managedFields`. `None` if there are none.
    fn with_owned_defaults(&self, _object: &Value) -> Option<Value> {
        None
    }

    /// Normalizes an object before a create: drops the status if there is a status subresource, sets the generation,
    /// and so on.
    fn prepare_create(&self, _ctx: &RequestContext, _object: &mut Value) {}

    /// Normalizes an object before an update through `ctx.subresource`: restores fields that it must not change,
    /// increments the generation.
    fn prepare_update(&self, _ctx: &RequestContext, _old: &Value, _new: &mut Value) {}

    /// Validates a new object, except its generic metadata.
    fn validate_create(&self, ctx: &RequestContext, object: &Value) -> Vec<FieldError>;

    /// Validates an update including immutable fields, except generic metadata.
    fn validate_update(&self, ctx: &RequestContext, old: &Value, new: &Value) -> UpdateErrors;

    /// Reason for which creates are rejected for all users.
    fn create_refusal(&self) -> Option<&'static str> {
        None
    }

    /// Texts of `Warning` headers for an accepted write.
    fn warnings(&self, _ctx: &RequestContext, _old: Option<&Value>, _new: &Value) -> Vec<String> {
        Vec::new()
    }

    /// True if the kind's own validation includes metadata.
    fn validates_metadata(&self) -> bool {
        true
    }

    /// Text of the `Warning` header for all requests to a deprecated version.
    fn deprecation_warning(&self) -> Option<&str> {
        None
    }

    /// Sets conditions or finalizers when deletion starts, before the finalizers decide whether the object stays.
    fn prepare_delete(&self, _ctx: &RequestContext, _object: &mut Value) {}

    /// Changes before this revision cannot be watched, because the resource was not served in its current form.
    fn history_floor(&self) -> crate::storage::Revision {
        0
    }

    /// Validates `metadata.name` or `generateName` (`prefix`), with messages as in `validation.NameIsDNSSubdomain`.
    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String>;

    /// Typed schema for server-side apply, strategic merge patch and unknown-field checks. `None` preserves all
    /// fields.
    fn schema(&self) -> Option<SchemaRef>;

    /// True for custom resources. Cheaper than [`Self::schema`] for them, which may have to compile it.
    fn is_custom(&self) -> bool {
        self.schema().is_some_and(|schema| schema.is_of_custom_resource())
    }

    /// The published schema, if it is not that of a built-in kind: `openAPIV3Schema` of a custom resource.
    fn published_schema(&self) -> Option<&CompressedSchema> {
        None
    }

    /// Fields that a write through `subresource` (empty: the main resource) can neither change nor own, such as
    /// `[["status"]]`. None by default; kinds with a status subresource return [`status_reset_fields`].
    fn reset_fields(&self, _subresource: &str) -> &'static [&'static [&'static str]] {
        &[]
    }

    /// True if PUT may omit `metadata.resourceVersion`.
    fn allow_unconditional_update(&self) -> bool {
        true
    }

    /// True if PUT creates a missing object.
    fn allow_create_on_update(&self) -> bool {
        false
    }

    /// Error if an object cannot be decoded as this kind, even though its metadata can.
    fn decode_error(&self, _object: &Value) -> Option<String> {
        None
    }

    /// Drops fields that the schema does not define.
    fn prune(&self, object: &mut Value) {
        if let Some(schema) = self.schema() {
            prune(&schema, object);
        }
    }

    /// Selectable fields in addition to `metadata.name` and `metadata.namespace`, such as `spec.nodeName`, with
    /// their values.
    fn selectable_fields(&self, _object: &Value) -> Vec<(String, String)> {
        Vec::new()
    }

    /// Like `default`, for an object that was converted from its storage version.
    fn default_converted(&self, object: &mut Value) {
        self.default(object);
    }

    /// Converts a partial object: no defaults are set, required fields may be missing, and fields unknown to the
    /// other version are kept.
    fn convert_partial(&self, objects: Vec<Value>, to_api_version: &str) -> BoxFuture<'_, ApiResult<Vec<Value>>> {
        self.convert(objects, to_api_version)
    }

    /// True if stored objects can be served unchanged: they have the current defaults and are pruned by the current
    /// schema.
    fn serves_stored_unchanged(&self) -> bool {
        true
    }

    /// True if objects have been converted from one version to another before.
    fn has_converted(&self, _from: &str, _to: &str) -> bool {
        false
    }

    /// Converts between served versions of a resource; [`convert_identity`] if there is one version or the CRD's
    /// conversion strategy is `None`.
    fn convert(&self, objects: Vec<Value>, to_api_version: &str) -> BoxFuture<'_, ApiResult<Vec<Value>>>;
}

/// [`Strategy::reset_fields`] of a kind with a status subresource.
pub fn status_reset_fields(subresource: &str) -> &'static [&'static [&'static str]] {
    match subresource {
        "" => &[&["status"]],
        _ => &[&["spec"], &["metadata"]],
    }
}

/// [`Strategy::convert`] of a kind with one version.
pub fn convert_identity(objects: Vec<Value>) -> BoxFuture<'static, ApiResult<Vec<Value>>> {
    Box::pin(async move { Ok(objects) })
}

/// Shared handle to a strategy.
pub type StrategyRef = Arc<dyn Strategy>;
