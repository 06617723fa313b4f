//! Patch requests: the four formats of a PATCH body, applied to a live object.

use crowsnest_apimachinery::content_negotiation::unsupported_media_type;
use crowsnest_apimachinery::field::FieldError;
use crowsnest_apimachinery::status::{ApiError, ApiResult};
use crowsnest_schema::Schema;
use crowsnest_schema::apply::{self, Apply, ApplyError, Versions};
use crowsnest_schema::decode::ExpectedKind;
use crowsnest_schema::patch::{PatchBody, PatchDecoding, json_patch, merge_patch, strategic_merge};
use serde_json::Value;

use crate::create::field_manager;
use crate::object::Object;
use crate::resource::ResourceRef;
use crate::strategy::{RequestContext, StrategyRef};
use crowsnest_apimachinery::request::options::{FieldValidation, WriteOptions};

/// A parsed PATCH body.
#[derive(Debug, Clone)]
pub enum Patch {
    Json(PatchBody),
    Merge(PatchBody),
    Strategic(PatchBody),
    Apply(PatchBody),
}

impl Patch {
    /// True for server-side apply, which creates missing objects.
    pub fn creates_missing(&self) -> bool {
        matches!(self, Patch::Apply(_))
    }

    /// True if the patch contains a resourceVersion.
    pub fn has_resource_version(&self) -> bool {
        match self {
            Patch::Merge(patch) | Patch::Strategic(patch) | Patch::Apply(patch) => {
                !patch.value.resource_version().is_empty()
            }
            Patch::Json(patch) => patch.value.as_array().into_iter().flatten().any(|op| {
                op["path"] == "/metadata/resourceVersion" && op["op"].as_str().is_some_and(|o| o != "remove")
            }),
        }
    }

    /// Applies the patch. `live` is `None` only for server-side apply.
    pub async fn apply(
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
        let is_strict = options.field_validation == FieldValidation::Strict;
        let (patched, patch_errors) = match self {
            Patch::Json(patch) => (json_patch(base, &patch.value)?, &patch.strict_errors),
            Patch::Merge(patch) => (merge_patch(base, &patch.value)?, &patch.strict_errors),
            Patch::Strategic(patch) => match &schema {
                Some(schema) => {
                    let mut remaining_patch = patch.value.clone();
                    let mut patched = strategic_merge(schema, base, &mut remaining_patch)?;
                    if schema.name.is_some() {
                        crowsnest_schema::patch::convert_strategic(schema, &mut patched, &remaining_patch)?;
                        let displayed = crowsnest_schema::patch::go_value(&remaining_patch);
                        let decoding = PatchDecoding {
                            displayed_object: Some(&displayed),
                            is_strict,
                            patch_errors: &patch.strict_errors,
                        };
                        return decode_patched_object(resource, Some(schema), patched, decoding, options, warnings);
                    }
                    (patched, &patch.strict_errors)
                }
                None => {
                    return Err(unsupported_media_type(&[
                        "application/json-patch+json",
                        "application/merge-patch+json",
                        "application/apply-patch+yaml",
                    ]));
                }
            },
            Patch::Apply(config) => {
                let api_version = resource.gvr.api_version();
                check_config_type(&api_version, &resource.kind, &config.value)?;
                let manager = field_manager(resource, ctx, options, &api_version);
                let applied = run_with_conversions(strategy, |versions| {
                    Apply {
                        versions,
                        schema: schema.as_deref(),
                        live,
                        config: &config.value,
                        manager: &manager,
                        force: options.force,
                    }
                    .run()
                });
                let applied = applied.await?;
                check_duplicate_keys(config, options)?;
                return match schema.as_deref().filter(|schema| schema.name.is_some()) {
                    Some(schema) => decode_typed(schema, applied),
                    None => Ok(applied),
                };
            }
        };
        let decoding = PatchDecoding { displayed_object: None, is_strict, patch_errors };
        if let Some(schema) = schema.as_deref().filter(|schema| schema.name.is_some()) {
            let expected = ExpectedKind {
                group: &resource.gvr.group,
                version: &resource.gvr.version,
                kind: &resource.kind,
                schema: Some(schema),
            };
            crowsnest_schema::patch::check_patched_kind(&patched, &expected)?;
        } else {
            crowsnest_schema::patch::check_custom_type(&patched)?;
            // The kind and the version of a custom resource are validated with the object.
            if !resource.is_custom() {
                check_type(resource, &patched, base.name())?;
            }
        }
        decode_patched_object(resource, schema.as_deref(), patched, decoding, options, warnings)
    }
}

impl Patch {
    /// Applies the patch to a Scale and decodes the result.
    pub(crate) fn apply_to_scale(
        &self,
        scale: &Value,
        options: &WriteOptions,
        warnings: &mut Vec<String>,
    ) -> ApiResult<Value> {
        let expected = crowsnest_schema::schema_set::SchemaSet::builtin().kind("autoscaling", "v1", "Scale");
        let Some(schema) = expected.as_deref() else {
            return Err(ApiError::internal("Scale is not a known kind"));
        };
        let expected = ExpectedKind { group: "autoscaling", version: "v1", kind: "Scale", schema: Some(schema) };
        let (patched, body) = match self {
            Patch::Json(patch) => (json_patch(scale, &patch.value)?, patch),
            Patch::Merge(patch) => (merge_patch(scale, &patch.value)?, patch),
            Patch::Strategic(patch) => {
                let mut remaining_patch = patch.value.clone();
                let mut patched = strategic_merge(schema, scale, &mut remaining_patch)?;
                crowsnest_schema::patch::convert_strategic(schema, &mut patched, &remaining_patch)?;
                (patched, patch)
            }
            Patch::Apply(config) => {
                check_config_type("autoscaling/v1", "Scale", &config.value)?;
                apply::validate_config(Some(schema), &config.value)?;
                (merge_patch(scale, &config.value)?, config)
            }
        };
        crowsnest_schema::patch::check_patched_kind(&patched, &expected)?;
        let is_strict = options.field_validation == FieldValidation::Strict;
        let decoding = PatchDecoding { displayed_object: None, is_strict, patch_errors: &body.strict_errors };
        let (scale, mut strict_errors) = crowsnest_schema::patch::decode_patched(schema, patched, decoding)?;
        if options.field_validation == FieldValidation::Warn {
            warnings.append(&mut strict_errors);
        }
        Ok(scale)
    }
}

/// Runs `attempt` repeatedly until it needs no further conversion between versions.
pub(crate) async fn run_with_conversions<T>(
    strategy: &StrategyRef,
    mut attempt: impl FnMut(&Versions<'_>) -> Result<T, ApplyError>,
) -> ApiResult<T> {
    let mut versions = Versions::new(&**strategy);
    loop {
        let conversion = match attempt(&versions) {
            Ok(result) => return Ok(result),
            Err(ApplyError::Failed(error)) => return Err(error),
            Err(ApplyError::ConversionRequired(conversion)) => conversion,
        };
        let converted = strategy.convert_partial(vec![conversion.object.clone()], &conversion.to).await;
        let object = converted.and_then(|converted| {
            converted.into_iter().next().ok_or_else(|| ApiError::internal("conversion returned no object"))
        });
        versions.add_conversion(conversion, object);
    }
}

/// Decodes an applied configuration by its schema, which normalizes quantities and validates base64.
fn decode_typed(schema: &Schema, applied: Value) -> ApiResult<Value> {
    let decoded = crowsnest_schema::decode::decode_value(applied, schema);
    let Some(wrong) = decoded.type_error else { return Ok(decoded.object) };
    let object = &decoded.object;
    let api_version = object["apiVersion"].as_str().unwrap_or_default();
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let kind = format!("{group}/{version}, Kind={}", object["kind"].as_str().unwrap_or_default());
    let (namespace, name) = (object.namespace(), object.name());
    Err(ApiError::without_reason(
        500,
        format!(
            "failed to convert new object ({namespace}/{name}; {kind}) to proper version: unable to convert unstructured object to {kind}: error decoding from json: {wrong}"
        ),
    ))
}

/// Rejects patches that change the kind or version of an object without a schema.
fn check_type(resource: &ResourceRef, patched: &Value, name: &str) -> ApiResult<()> {
    let expected = resource.gvr.api_version();
    let kind = patched.get("kind").and_then(Value::as_str).unwrap_or(&resource.kind);
    let api_version = patched.get("apiVersion").and_then(Value::as_str).unwrap_or(&expected);
    let mut errors = Vec::new();
    if kind != resource.kind {
        errors.push(FieldError::invalid("kind", kind, format!("must be {}", resource.kind)));
    }
    if api_version != expected {
        errors.push(FieldError::invalid("apiVersion", api_version, format!("must be {expected}")));
    }
    if errors.is_empty() {
        return Ok(());
    }
    let group = api_version.split_once('/').map_or("", |(group, _)| group);
    Err(ApiError::invalid(group, kind, name, errors))
}

/// Rejects duplicate keys in an applied configuration when field validation is strict.
fn check_duplicate_keys(config: &PatchBody, options: &WriteOptions) -> ApiResult<()> {
    if options.field_validation == FieldValidation::Strict && !config.strict_errors.is_empty() {
        let reason = format!("yaml: unmarshal errors:\n  {}", config.strict_errors.join("\n  "));
        return Err(ApiError::bad_request(format!(
            "error strict decoding YAML: error converting YAML to JSON: {reason}"
        )));
    }
    Ok(())
}

/// Requires the expected kind and version in an applied configuration, and then that `metadata.managedFields` is not set.
fn check_config_type(expected_api_version: &str, expected_kind: &str, config: &Value) -> ApiResult<()> {
    let text = |key: &str| config.get(key).and_then(Value::as_str).unwrap_or_default();
    let (api_version, kind) = (text("apiVersion"), text("kind"));
    if api_version == expected_api_version && kind == expected_kind {
        let managed = config.get("metadata").and_then(|m| m.get("managedFields"));
        if managed.is_some_and(Value::is_array) {
            return Err(ApiError::bad_request("metadata.managedFields must be nil"));
        }
        return Ok(());
    }
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    if version.contains('/') {
        // Go's parser of a version with two slashes returns an empty kind.
        return Err(ApiError::bad_request("invalid object type: /, Kind="));
    }
    Err(ApiError::bad_request(format!("invalid object type: {group}/{version}, Kind={kind}")))
}

/// Decodes the patched object like a request body.
fn decode_patched_object(
    resource: &ResourceRef,
    schema: Option<&Schema>,
    mut patched: Value,
    decoding: PatchDecoding<'_>,
    options: &WriteOptions,
    warnings: &mut Vec<String>,
) -> ApiResult<Value> {
    let has_other_kind = resource.is_custom() && !resource.has_kind_of(&patched);
    if !has_other_kind && let Some(reason) = resource.strategy.decode_error(&patched) {
        return Err(crowsnest_schema::patch::invalid_custom_patch(&patched, reason));
    }
    let metadata_schema = has_other_kind.then(Schema::for_any_custom_resource);
    if let Some(schema) = metadata_schema.as_deref().or(schema) {
        let (object, mut strict_errors) = crowsnest_schema::patch::decode_patched(schema, patched, decoding)?;
        patched = object;
        if options.field_validation == FieldValidation::Warn {
            warnings.append(&mut strict_errors);
        }
    }
    if !patched.is_object() {
        return Err(ApiError::bad_request("the patched object is not an object"));
    }
    if !resource.is_custom() || !patched["kind"].is_string() {
        patched["kind"] = resource.kind.clone().into();
    }
    if !resource.is_custom() || !patched["apiVersion"].is_string() {
        patched["apiVersion"] = resource.gvr.api_version().into();
    }
    // With a schema, the object has been pruned by decoding, or is pruned when its defaults are applied.
    if schema.is_none() {
        resource.strategy.prune(&mut patched);
    }
    resource.strategy.default(&mut patched);
    Ok(patched)
}
