//! The four kinds of PATCH body, applied to a live object.

use serde_json::Value;

use crate::apply;
use crate::patch::{json_patch, merge_patch, strategic_merge};
use crate::registry::create::manager;
use crate::registry::object::Object;
use crate::registry::options::{FieldValidation, WriteOptions};
use crate::registry::resource::ResourceRef;
use crate::registry::strategy::RequestContext;
use crate::schema;
use crate::status::{ApiError, ApiResult, Reason};

/// A parsed PATCH body.
#[derive(Debug, Clone)]
pub enum Patch {
    Json(Value),
    Merge(Value),
    Strategic(Value),
    Apply(Value),
}

impl Patch {
    /// True for server-side apply, which makes objects that do not exist.
    pub fn creates(&self) -> bool {
        matches!(self, Patch::Apply(_))
    }

    /// True when the patch itself carries a resourceVersion other than the live one.
    pub fn names_version(&self, _live: &Value) -> bool {
        match self {
            Patch::Merge(patch) | Patch::Strategic(patch) | Patch::Apply(patch) => !patch.resource_version().is_empty(),
            Patch::Json(patch) => patch.as_array().into_iter().flatten().any(|op| {
                op["path"] == "/metadata/resourceVersion" && op["op"].as_str().is_some_and(|o| o != "remove")
            }),
        }
    }

    /// The patched object. `live` is absent only for apply.
    pub fn apply(
        &self,
        resource: &ResourceRef,
        ctx: &RequestContext,
        live: Option<&Value>,
        options: &WriteOptions,
        warnings: &mut Vec<String>,
    ) -> ApiResult<Value> {
        let strategy = &resource.strategy;
        let schema = strategy.schema();
        let absent = Value::Null;
        let base = live.unwrap_or(&absent);
        let patched = match self {
            Patch::Json(patch) => json_patch(base, patch)?,
            Patch::Merge(patch) => merge_patch(base, patch)?,
            Patch::Strategic(patch) => match &schema {
                Some(schema) => strategic_merge(schema, base, patch)?,
                None => {
                    return Err(ApiError::new(
                        Reason::UnsupportedMediaType,
                        "the body of the request was in an unknown format - accepted media types include: application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml",
                    ));
                }
            },
            Patch::Apply(config) => {
                let api_version = resource.gvr.api_version();
                check_applied(resource, config)?;
                let manager = manager(resource, ctx, options, &api_version);
                return apply::apply(schema.as_deref(), live, config, &manager, options.force);
            }
        };
        check_patched(resource, schema.as_deref(), patched, options, warnings)
    }
}

impl Patch {
    /// The patch applied to something that is not a stored object, such as a Scale.
    pub(crate) fn apply_untyped(&self, base: &Value) -> ApiResult<Value> {
        match self {
            Patch::Json(patch) => json_patch(base, patch),
            Patch::Merge(patch) | Patch::Strategic(patch) | Patch::Apply(patch) => merge_patch(base, patch),
        }
    }
}

/// An applied configuration says what it is.
fn check_applied(resource: &ResourceRef, config: &Value) -> ApiResult<()> {
    let managed = config.get("metadata").and_then(|m| m.get("managedFields"));
    if managed.is_some_and(|fields| !fields.is_null()) {
        return Err(ApiError::bad_request("metadata.managedFields must be nil"));
    }
    let text = |key: &str| config.get(key).and_then(Value::as_str).unwrap_or_default();
    let (api_version, kind) = (text("apiVersion"), text("kind"));
    if api_version == resource.gvr.api_version() && kind == resource.kind {
        return Ok(());
    }
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    Err(ApiError::bad_request(format!("invalid object type: {group}/{version}, Kind={kind}")))
}

/// Decodes the patched object as a request body would be.
fn check_patched(
    resource: &ResourceRef,
    schema: Option<&schema::Schema>,
    mut patched: Value,
    options: &WriteOptions,
    warnings: &mut Vec<String>,
) -> ApiResult<Value> {
    let strict = options.field_validation == FieldValidation::Strict;
    if let Some(schema) = schema {
        let (object, mut findings) = crate::patch::decode_patched(schema, patched, strict)?;
        patched = object;
        if options.field_validation == FieldValidation::Warn {
            warnings.append(&mut findings);
        }
    }
    if !patched.is_object() {
        return Err(ApiError::bad_request("the patched object is not an object"));
    }
    if patched["kind"] != resource.kind.as_str() || patched["apiVersion"] != resource.gvr.api_version().as_str() {
        patched["kind"] = resource.kind.clone().into();
        patched["apiVersion"] = resource.gvr.api_version().into();
    }
    resource.strategy.prune(&mut patched);
    resource.strategy.default(&mut patched);
    Ok(patched)
}
