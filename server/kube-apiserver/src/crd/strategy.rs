//! Strategy of custom resources: pruning, defaults, validation, conversion.

use std::collections::BTreeSet;
use std::sync::Arc;

use crowsnest_apimachinery::field::{FieldError, FieldErrorKind};
use crowsnest_apimachinery::names::format::{dns1123_subdomain, qualified_name};
use crowsnest_apimachinery::status::ApiResult;
use crowsnest_apimachinery::yaml::convert_integral_floats;
use crowsnest_registry::storage::Revision;
use crowsnest_registry::strategy::{RequestContext, Strategy};
use crowsnest_schema::apply::{VersionSchemas, VersionState};
use crowsnest_schema::defaulting;
use crowsnest_schema::{Schema, SchemaRef, prune};
use futures::future::BoxFuture;
use serde_json::Value;

use super::cel::Rules;
use super::conversion::Converter;
use super::{embedded, replicas, values};

/// Strategy of one version of a custom resource, compiled from its CRD.
#[derive(Debug)]
pub struct CustomStrategy {
    pub(super) kind: String,
    pub(super) schema: Arc<Value>,
    pub(super) typed_schema: SchemaRef,
    pub(super) rules: Option<Rules>,
    /// True if the schema contains embedded resources.
    has_embedded_resources: bool,
    pub(super) has_status: bool,
    /// Paths of the replicas in spec and status, of the scale subresource.
    pub(super) replica_paths: Vec<String>,
    /// Paths of the selectable fields, without a leading dot.
    pub(super) selectable_fields: Vec<String>,
    pub(super) deprecation_warning: Option<String>,
    pub(super) converter: Arc<Converter>,
    /// True if the CRD is being deleted: creates are rejected.
    pub(super) is_terminating: bool,
    /// Revision of the CRD from which this strategy was compiled.
    pub(super) crd_revision: Revision,
}

impl CustomStrategy {
    pub(super) fn new(kind: String, api_version: &str, schema: Value, converter: Arc<Converter>) -> Self {
        Self {
            kind,
            typed_schema: converter.schema(api_version).unwrap_or_else(|| Schema::for_custom_resource(&schema)),
            rules: Rules::compile(&schema),
            has_embedded_resources: embedded::contains_embedded_resources(&schema),
            schema: Arc::new(schema),
            has_status: false,
            replica_paths: Vec::new(),
            selectable_fields: Vec::new(),
            deprecation_warning: None,
            converter,
            is_terminating: false,
            crd_revision: 0,
        }
    }

    /// Validates schema, list types and rules. With `old`, unchanged invalid values are accepted. A write of the status
    /// subresource is validated by the schema of the status alone.
    fn validate(&self, subresource: &str, old: Option<&Value>, new: &Value) -> Vec<FieldError> {
        let mut errors = Vec::new();
        let kind = new.get("kind").and_then(Value::as_str).unwrap_or("");
        if kind != self.kind {
            errors.push(FieldError::invalid("kind", &Value::from(kind), format!("must be {}", self.kind)));
            return errors;
        }
        errors.extend(if subresource == "status" {
            self.status_errors(new)
        } else {
            values::validate(&self.schema, new, "")
        });
        if let Some(old) = old {
            errors.retain(|error| !is_unchanged(&self.schema, old, new, &error.field));
        }
        errors.extend(self.replica_paths.iter().filter_map(|path| replicas::validate(path, new)));
        if self.has_embedded_resources {
            let mut embedded_errors = embedded::validate(&self.schema, new);
            embedded_errors.retain(|error| old.is_none_or(|old| !is_unchanged(&self.schema, old, new, &error.field)));
            errors.extend(embedded_errors);
        }
        // Duplicates are tolerated if the old object has some.
        if old.is_none_or(|old| values::validate_list_uniqueness(&self.schema, old, "").is_empty()) {
            errors.extend(values::validate_list_uniqueness(&self.schema, new, ""));
        }
        if let Some(rules) = &self.rules {
            if errors.iter().any(blocks_rules) {
                errors.push(FieldError::new(
                    FieldErrorKind::Invalid,
                    "<nil>",
                    Some("null".into()),
                    "some validation rules were not checked because the object was invalid; correct the existing errors to complete validation",
                ));
            } else {
                errors.extend(rules.check(&self.schema, new, old, "").0);
            }
        }
        errors
    }

    /// Errors of the status by its own schema. Their messages name paths in the status, as in kube-apiserver.
    fn status_errors(&self, new: &Value) -> Vec<FieldError> {
        let Some((schema, status)) = self.schema.pointer("/properties/status").zip(new.get("status")) else {
            return Vec::new();
        };
        let mut errors = values::validate(schema, status, "");
        for error in &mut errors {
            error.field = match error.field.as_str() {
                "" | values::NO_FIELD => "status".to_owned(),
                field => format!("status.{field}"),
            };
        }
        errors
    }

    /// True if the changes of an update have no schema errors that prevent the evaluation of rules.
    fn allows_rules(&self, old: &Value, new: &Value) -> bool {
        let mut errors = values::validate(&self.schema, new, "");
        errors.retain(|error| !is_unchanged(&self.schema, old, new, &error.field));
        !errors.iter().any(blocks_rules)
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

/// True if the value at `field`, or a value that contains it, is unchanged. List items are correlated by their keys.
fn is_unchanged(schema: &Value, old: &Value, new: &Value, field: &str) -> bool {
    let (mut schema, mut old, mut new) = (schema, old, new);
    for step in path_steps(field) {
        let next = match (&step, new) {
            (PathStep::Key(key), Value::Object(_)) => old.get(key).zip(new.get(key)),
            (PathStep::Index(index), Value::Array(items)) => {
                items.get(*index).and_then(|item| find_correlated_item(schema, item, old).map(|old| (old, item)))
            }
            _ => None,
        };
        let Some((before, after)) = next else { return false };
        if before == after {
            return true;
        }
        schema = match &step {
            PathStep::Key(key) => schema
                .pointer("/properties")
                .and_then(|p| p.get(key))
                .or_else(|| schema.get("additionalProperties"))
                .unwrap_or(&Value::Null),
            PathStep::Index(_) => schema.get("items").unwrap_or(&Value::Null),
        };
        (old, new) = (before, after);
    }
    false
}

/// The old item with the same keys.
fn find_correlated_item<'a>(schema: &Value, item: &Value, old: &'a Value) -> Option<&'a Value> {
    let keys = schema.get("x-kubernetes-list-map-keys").and_then(Value::as_array);
    let keys: Vec<&str> = keys?.iter().filter_map(Value::as_str).collect();
    old.as_array()?.iter().find(|candidate| keys.iter().all(|key| candidate.get(key) == item.get(key)))
}

enum PathStep {
    Key(String),
    Index(usize),
}

/// Splits a path: `spec.list[0].k` → spec, list, 0, k; `spec.any[a.b]` → spec, any, a.b.
fn path_steps(field: &str) -> Vec<PathStep> {
    let mut steps = Vec::new();
    let mut rest = field;
    while !rest.is_empty() {
        if let Some(inner) = rest.strip_prefix('[') {
            let (inside, tail) = inner.split_once(']').unwrap_or((inner, ""));
            steps.push(inside.parse().map_or_else(|_| PathStep::Key(inside.to_owned()), PathStep::Index));
            rest = tail;
        } else {
            rest = rest.strip_prefix('.').unwrap_or(rest);
            let end = rest.find(['.', '[']).unwrap_or(rest.len());
            if end == 0 {
                break;
            }
            steps.push(PathStep::Key(rest[..end].to_owned()));
            rest = &rest[end..];
        }
    }
    steps
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
    let known = old.map(finalizers).unwrap_or_default();
    let mut warnings = Vec::new();
    for name in finalizers(new).difference(&known) {
        let mut warn = |why: &str| warnings.push(format!("metadata.finalizers: {name:?}: {why}"));
        qualified_name(name).iter().for_each(|why| warn(why));
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
            Some(schema) => VersionState::Served(schema),
            None => {
                VersionState::Inconvertible(format!("request to convert CR to an invalid group/version: {api_version}"))
            }
        }
    }
}

impl Strategy for CustomStrategy {
    fn create_refusal(&self) -> Option<&'static str> {
        self.is_terminating.then_some("create not allowed while custom resource definition is terminating")
    }

    fn default(&self, object: &mut Value) {
        convert_integral_floats(object);
        prune(&self.typed_schema, object);
        defaulting::drop_nulls(&self.schema, object);
        defaulting::apply_defaults(&self.schema, object);
    }

    /// Conversion has already set the defaults of the storage version.
    fn default_converted(&self, _object: &mut Value) {}

    /// Nulls are dropped by decoding only: a null written by a webhook has the wrong type.
    fn default_admitted(&self, object: &mut Value) {
        prune(&self.typed_schema, object);
        convert_integral_floats(object);
        defaulting::apply_defaults(&self.schema, object);
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
            after.extend(status.map(|status| ("status".to_owned(), status)));
            if let Some(metadata) = after.get_mut("metadata").and_then(Value::as_object_mut) {
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
        self.validate("", None, object)
    }

    fn validate_update(&self, ctx: &RequestContext, old: &Value, new: &Value) -> Vec<FieldError> {
        self.validate(&ctx.subresource, Some(old), new)
    }

    /// Adds warnings for rules that unchanged stored values violate.
    fn warnings(&self, _ctx: &RequestContext, old: Option<&Value>, new: &Value) -> Vec<String> {
        let mut warnings = finalizer_warnings(old, new);
        if let Some((rules, old)) = self.rules.as_ref().zip(old)
            && self.allows_rules(old, new)
        {
            warnings.extend(rules.check(&self.schema, new, Some(old), "").1.iter().map(ToString::to_string));
        }
        warnings
    }

    fn history_floor(&self) -> Revision {
        self.crd_revision
    }

    fn deprecation_warning(&self) -> Option<&str> {
        self.deprecation_warning.as_deref()
    }

    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        match name.strip_suffix('-').filter(|_| prefix) {
            Some(base) => dns1123_subdomain(&format!("{base}a")),
            None => dns1123_subdomain(name),
        }
    }

    fn published_schema(&self) -> Option<Arc<Value>> {
        Some(self.schema.clone())
    }

    fn schema(&self) -> Option<SchemaRef> {
        Some(self.typed_schema.clone())
    }

    fn reset_fields(&self, subresource: &str) -> &'static [&'static [&'static str]] {
        match subresource {
            "" if self.has_status => &[&["status"]],
            "status" => &[
                &["spec"],
                &["metadata", "labels"],
                &["metadata", "annotations"],
                &["metadata", "finalizers"],
                &["metadata", "ownerReferences"],
            ],
            _ => &[],
        }
    }

    fn allow_unconditional_update(&self) -> bool {
        false
    }

    fn decode_error(&self, object: &Value) -> Option<String> {
        let error = if self.has_embedded_resources { embedded::find_decode_error(&self.schema, object) } else { None };
        error.map(|error| error.to_string())
    }

    fn prune(&self, object: &mut Value) {
        prune(&self.typed_schema, object);
    }

    fn selectable_fields(&self, object: &Value) -> Vec<(String, String)> {
        let text = |path: &String| match object.pointer(&format!("/{}", path.replace('.', "/"))) {
            Some(Value::String(text)) => text.clone(),
            Some(Value::Null) | None => String::new(),
            Some(other) => other.to_string(),
        };
        self.selectable_fields.iter().map(|path| (path.clone(), text(path))).collect()
    }

    fn serves_stored(&self) -> bool {
        // The schema may have changed since an object was written, so reads prune it and set defaults.
        false
    }

    fn convert_partial(&self, objects: Vec<Value>, to_api_version: &str) -> BoxFuture<'_, ApiResult<Vec<Value>>> {
        let to = to_api_version.to_owned();
        Box::pin(async move { self.converter.convert_partial(objects, &to).await })
    }

    fn convert(&self, objects: Vec<Value>, to_api_version: &str) -> BoxFuture<'_, ApiResult<Vec<Value>>> {
        let to = to_api_version.to_owned();
        Box::pin(async move { self.converter.convert(objects, &to).await })
    }
}
