//! Strategy of custom resources: pruning, defaults, validation, conversion.

use std::collections::BTreeSet;
use std::sync::Arc;

use crowsnest_apimachinery::field::{FieldError, FieldErrorKind};
use crowsnest_apimachinery::names::Gvk;
use crowsnest_apimachinery::names::format::{validate_dns1123_subdomain, validate_qualified_name};
use crowsnest_apimachinery::status::ApiResult;
use crowsnest_registry::resource::ScalePaths;
use crowsnest_registry::storage::Revision;
use crowsnest_registry::strategy::{RequestContext, Strategy, UpdateErrors};
use crowsnest_registry::validation::{validate_object_meta, validate_object_meta_update};
use crowsnest_schema::apply::{ReplicasPath, VersionSchemas, VersionState};
use crowsnest_schema::compressed::CompressedSchema;
use crowsnest_schema::defaulting;
use crowsnest_schema::{SchemaRef, prune};
use futures::future::BoxFuture;
use serde_json::Value;

use super::conversion::Converter;
use super::custom_schema::CustomSchema;
use super::list_uniqueness::validate_list_uniqueness;
use super::{embedded, numbers, scale, values};

/// Strategy of one version of a custom resource, created from its CRD.
#[derive(Debug)]
pub struct CustomStrategy {
    /// Group and version, such as `example.com/v1`.
    pub(super) api_version: String,
    pub(super) kind: String,
    pub(super) schema: Arc<CustomSchema>,
    pub(super) has_status: bool,
    /// Paths of the scale subresource.
    pub(super) scale: Option<ScalePaths>,
    /// Paths of the selectable fields, without a leading dot.
    pub(super) selectable_fields: Vec<String>,
    pub(super) deprecation_warning: Option<String>,
    pub(super) converter: Arc<Converter>,
    /// True if the CRD is being deleted: creates are rejected.
    pub(super) is_terminating: bool,
    /// Revision of the CRD from which this strategy was created.
    pub(super) crd_revision: Revision,
}

impl CustomStrategy {
    pub(super) fn new(kind: &Gvk, schema: Arc<CustomSchema>, converter: Arc<Converter>) -> Self {
        Self {
            api_version: kind.api_version(),
            kind: kind.kind.to_string(),
            schema,
            has_status: false,
            scale: None,
            selectable_fields: Vec::new(),
            deprecation_warning: None,
            converter,
            is_terminating: false,
            crd_revision: 0,
        }
    }

    /// Errors of kind and version (`ValidateTypeMeta`).
    fn type_errors(&self, object: &Value) -> Vec<FieldError> {
        let mut errors = Vec::new();
        let kind = object.get("kind").and_then(Value::as_str).unwrap_or("");
        if kind != self.kind {
            errors.push(FieldError::invalid("kind", kind, format!("must be {}", self.kind)));
        }
        let api_version = object.get("apiVersion").and_then(Value::as_str);
        if let Some(given) = api_version.filter(|given| *given != self.api_version) {
            errors.push(FieldError::invalid("apiVersion", given, format!("must be {}", self.api_version)));
        }
        errors
    }

    /// Errors of the metadata, which the registry reports. In kube-apiserver, the kind's own validation finds them, so that
    /// they can prevent the evaluation of rules.
    fn metadata_errors(&self, old: Option<&Value>, new: &Value) -> Vec<FieldError> {
        let Some(metadata) = new["metadata"].as_object() else { return Vec::new() };
        match old {
            Some(old) => {
                old["metadata"].as_object().map_or_else(Vec::new, |old| validate_object_meta_update(metadata, old))
            }
            None => {
                let is_namespaced = metadata.get("namespace").is_some_and(|namespace| namespace != "");
                validate_object_meta(metadata, is_namespaced, &|name, prefix| self.validate_name(name, prefix))
            }
        }
    }

    /// Validates schema, list types and rules. With `old`, unchanged invalid values are accepted. A write of the status
    /// subresource is validated by the schema of the status alone, and an object of another kind or version by none.
    /// Violations of rules by unchanged values are tolerated.
    fn validate(&self, subresource: &str, old: Option<&Value>, new: &Value) -> UpdateErrors {
        let mut errors = self.type_errors(new);
        let compiled = self.schema.compile();
        let schema = &compiled.structural;
        let is_status = subresource == "status";
        let is_own_type = errors.is_empty();
        if is_own_type {
            errors.extend(schema_errors(subresource, schema, old, new));
            errors.extend(self.scale.iter().flat_map(|paths| scale::validate_scale(paths, subresource, new)));
        }
        // Embedded resources are validated completely, even if they are unchanged, but not in a write of the status.
        if compiled.has_embedded_resources && !is_status {
            errors.extend(embedded::validate(schema, new));
        }
        // Duplicates are tolerated if the old object has some.
        if old.is_none_or(|old| validate_list_uniqueness(schema, old, "").is_empty()) {
            errors.extend(validate_list_uniqueness(schema, new, ""));
        }
        let mut tolerated = Vec::new();
        if let Some(rules) = &compiled.rules {
            let has_blocking_metadata = || is_own_type && self.metadata_errors(old, new).iter().any(blocks_rules);
            if errors.iter().any(blocks_rules) || has_blocking_metadata() {
                errors.push(FieldError::new(
                    FieldErrorKind::Invalid,
                    "<nil>",
                    Some("null".into()),
                    "some validation rules were not checked because the object was invalid; correct the existing errors to complete validation",
                ));
            } else {
                let (found, unchanged) = rules.check(schema, new, old, "");
                errors.extend(found);
                tolerated = unchanged.iter().map(ToString::to_string).collect();
            }
        }
        UpdateErrors { errors, tolerated }
    }
}

/// Errors of the status by its own schema. Their messages name paths in the status, as in kube-apiserver.
fn status_errors(schema: &Value, old: Option<&Value>, new: &Value) -> Vec<FieldError> {
    let Some((schema, status)) = schema.pointer("/properties/status").zip(new.get("status")) else {
        return Vec::new();
    };
    let mut errors = values::validate_update(schema, old.and_then(|old| old.get("status")), status);
    for error in &mut errors {
        error.field = match error.field.as_str() {
            "" | values::NO_FIELD => "status".to_owned(),
            field => format!("status.{field}"),
        };
    }
    errors
}

/// Schema errors of a write to this subresource.
fn schema_errors(subresource: &str, schema: &Value, old: Option<&Value>, new: &Value) -> Vec<FieldError> {
    match subresource {
        "status" => status_errors(schema, old, new),
        _ => values::validate_update(schema, old, new),
    }
}

/// Rules assume valid types, so these errors prevent their evaluation.
fn blocks_rules(error: &FieldError) -> bool {
    matches!(
        error.kind,
        FieldErrorKind::NotSupported
            | FieldErrorKind::Required
            | FieldErrorKind::TooLong
            | FieldErrorKind::TooMany
            | FieldErrorKind::TypeInvalid
    )
}

/// The fields whose changes increment the generation: all except metadata, and status if it is a subresource.
fn generation_fields(object: &Value, has_status: bool) -> Vec<(&String, &Value)> {
    let members = object.as_object().into_iter().flatten();
    members.filter(|(key, _)| *key != "metadata" && !(has_status && *key == "status")).collect()
}

/// Warnings for new finalizers whose names are not domain-qualified (`generateWarningsFromObj`).
fn finalizer_warnings(old: Option<&Value>, new: &Value) -> Vec<String> {
    const STANDARD: [&str; 3] = ["orphan", "foregroundDeletion", "kubernetes"];
    let finalizers = |object: &Value| -> BTreeSet<String> {
        let list = object["metadata"]["finalizers"].as_array().into_iter().flatten();
        list.filter_map(Value::as_str).map(str::to_owned).collect()
    };
    let old_finalizers = old.map(finalizers).unwrap_or_default();
    let mut warnings = Vec::new();
    for name in finalizers(new).difference(&old_finalizers) {
        let mut warn = |reason: &str| warnings.push(format!("metadata.finalizers: {name:?}: {reason}"));
        validate_qualified_name(name).iter().for_each(|reason| warn(reason));
        if !name.contains('/') && !STANDARD.contains(&name.as_str()) {
            let path = if name.contains('.') { " including a path (/)" } else { "" };
            warn(&format!(
                "prefer a domain-qualified finalizer name{path} to avoid accidental conflicts with other finalizer writers"
            ));
        }
    }
    warnings
}

impl VersionSchemas for CustomStrategy {
    fn version(&self, api_version: &str) -> VersionState {
        match self.converter.schema(api_version) {
            Some(schema) => VersionState::Served(schema.compile().typed.clone()),
            None => {
                VersionState::Inconvertible(format!("request to convert CR to an invalid group/version: {api_version}"))
            }
        }
    }

    fn replicas_path(&self, api_version: &str) -> ReplicasPath<'_> {
        self.converter.replicas_path(api_version)
    }
}

impl Strategy for CustomStrategy {
    fn create_refusal(&self) -> Option<&'static str> {
        self.is_terminating.then_some("create not allowed while custom resource definition is terminating")
    }

    fn default(&self, object: &mut Value) {
        let compiled = self.schema.compile();
        numbers::convert(&compiled.structural, object);
        prune(&compiled.typed, object);
        defaulting::drop_nulls(&compiled.structural, object);
        compiled.normalize_embedded_resources(object);
        defaulting::apply_defaults(&compiled.structural, object);
    }

    /// Conversion has already set the defaults of the storage version.
    fn default_converted(&self, _object: &mut Value) {}

    /// Only decoding drops unknown fields and nulls and normalizes embedded resources, as in kube-apiserver: an unknown
    /// field of an applied configuration increments the generation, and a null written by a webhook has the wrong type.
    fn default_admitted(&self, object: &mut Value) {
        let compiled = self.schema.compile();
        numbers::convert(&compiled.structural, object);
        defaulting::apply_defaults(&compiled.structural, object);
    }

    fn prepare_create(&self, _ctx: &RequestContext, object: &mut Value) {
        if self.has_status
            && let Some(members) = object.as_object_mut()
        {
            members.remove("status");
        }
        object["metadata"]["generation"] = 1.into();
    }

    fn prepare_update(&self, ctx: &RequestContext, old: &Value, new: &mut Value) {
        let (Some(before), Some(after)) = (old.as_object(), new.as_object_mut()) else { return };
        if ctx.subresource == "status" {
            let (status, managed) =
                (after.remove("status"), after.get("metadata").and_then(|m| m.get("managedFields")).cloned());
            let version = after.get("metadata").and_then(|m| m.get("resourceVersion")).cloned();
            *after = before.clone();
            // An update without a status removes it.
            after.remove("status");
            after.extend(status.map(|status| ("status".to_owned(), status)));
            if let Some(metadata) = after.get_mut("metadata").and_then(Value::as_object_mut) {
                // Dropped managers stay dropped.
                metadata.remove("managedFields");
                metadata.extend(managed.map(|m| ("managedFields".to_owned(), m)));
                metadata.extend(version.map(|v| ("resourceVersion".to_owned(), v)));
            }
            return;
        }
        if self.has_status {
            match before.get("status") {
                Some(status) => after.insert("status".into(), status.clone()),
                None => after.remove("status"),
            };
        }
        if generation_fields(old, self.has_status) != generation_fields(new, self.has_status) {
            let generation = old.pointer("/metadata/generation").and_then(Value::as_i64).unwrap_or(0) + 1;
            new["metadata"]["generation"] = generation.into();
        }
    }

    fn validate_create(&self, _ctx: &RequestContext, object: &Value) -> Vec<FieldError> {
        self.validate("", None, object).errors
    }

    fn validate_update(&self, ctx: &RequestContext, old: &Value, new: &Value) -> UpdateErrors {
        self.validate(&ctx.subresource, Some(old), new)
    }

    fn warnings(&self, _ctx: &RequestContext, old: Option<&Value>, new: &Value) -> Vec<String> {
        finalizer_warnings(old, new)
    }

    fn history_floor(&self) -> Revision {
        self.crd_revision
    }

    fn deprecation_warning(&self) -> Option<&str> {
        self.deprecation_warning.as_deref()
    }

    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        match name.strip_suffix('-').filter(|_| prefix) {
            Some(base) => validate_dns1123_subdomain(&format!("{base}a")),
            None => validate_dns1123_subdomain(name),
        }
    }

    fn is_custom(&self) -> bool {
        true
    }

    fn published_schema(&self) -> Option<&CompressedSchema> {
        Some(self.schema.source())
    }

    fn schema(&self) -> Option<SchemaRef> {
        Some(self.schema.compile().typed.clone())
    }

    fn reset_fields(&self, subresource: &str) -> &'static [&'static [&'static str]] {
        match subresource {
            "" if self.has_status => &[&["status"]],
            "status" => &[&["metadata"], &["spec"]],
            _ => &[],
        }
    }

    fn allow_unconditional_update(&self) -> bool {
        false
    }

    fn decode_error(&self, object: &Value) -> Option<String> {
        let compiled = self.schema.compile();
        if !compiled.has_embedded_resources {
            return None;
        }
        // Nulls are dropped first, which can only remove errors. An object without errors is not copied for it.
        embedded::find_decode_error(&compiled.structural, object)?;
        let mut object = object.clone();
        defaulting::drop_nulls(&compiled.structural, &mut object);
        embedded::find_decode_error(&compiled.structural, &object).map(|error| error.to_string())
    }

    fn prune(&self, object: &mut Value) {
        prune(&self.schema.compile().typed, object);
    }

    fn selectable_fields(&self, object: &Value) -> Vec<(String, String)> {
        let text = |path: &String| match object.pointer(&format!("/{}", path.replace('.', "/"))) {
            Some(Value::String(text)) => text.clone(),
            Some(Value::Null) | None => String::new(),
            Some(other) => other.to_string(),
        };
        self.selectable_fields.iter().map(|path| (path.clone(), text(path))).collect()
    }

    fn serves_stored_unchanged(&self) -> bool {
        // The schema may have changed since an object was written, so reads prune it and set defaults.
        false
    }

    fn convert_partial(&self, objects: Vec<Value>, to_api_version: &str) -> BoxFuture<'_, ApiResult<Vec<Value>>> {
        let to = to_api_version.to_owned();
        Box::pin(async move { self.converter.convert_partial(objects, &to).await })
    }

    fn has_converted(&self, from: &str, to: &str) -> bool {
        self.converter.has_converted(from, to)
    }

    fn convert(&self, objects: Vec<Value>, to_api_version: &str) -> BoxFuture<'_, ApiResult<Vec<Value>>> {
        let to = to_api_version.to_owned();
        Box::pin(async move { self.converter.convert(objects, &to).await })
    }
}
