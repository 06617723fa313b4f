//! Accessors for parts of a CustomResourceDefinition in JSON: names, versions, conditions. Sets the API's defaults.

use crowsnest_apimachinery::unstructured;
pub(super) use crowsnest_apimachinery::unstructured::{flag, list, text};
use crowsnest_apimachinery::yaml::convert_integral_floats;
use serde_json::{Value, json};

pub const GROUP: &str = "apiextensions.k8s.io";
pub const KIND: &str = "CustomResourceDefinition";
pub const PLURAL: &str = "customresourcedefinitions";
/// Finalizer of all CRDs, which makes the controller delete their custom resources first.
pub const CLEANUP_FINALIZER: &str = "customresourcecleanup.apiextensions.k8s.io";

/// The strings of a list at a JSON pointer.
pub(super) fn texts(value: &Value, pointer: &str) -> Vec<String> {
    unstructured::texts(value, pointer).map(str::to_owned).collect()
}

/// A CRD with accessors for its parts.
#[derive(Debug, Clone, Copy)]
pub struct Definition<'a>(pub &'a Value);

/// An entry of `spec.versions`.
#[derive(Debug, Clone, Copy)]
pub struct Version<'a>(pub &'a Value);

/// Names in `spec.names` or `status.acceptedNames`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Names {
    pub plural: String,
    pub singular: String,
    pub kind: String,
    pub list_kind: String,
    pub short_names: Vec<String>,
    pub categories: Vec<String>,
}

impl Names {
    /// Parses `spec.names` or `status.acceptedNames`.
    pub fn from_json(names: Option<&Value>) -> Self {
        let names = names.unwrap_or(&Value::Null);
        let text_at = |pointer: &str| text(names, pointer).to_owned();
        Self {
            plural: text_at("/plural"),
            singular: text_at("/singular"),
            kind: text_at("/kind"),
            list_kind: text_at("/listKind"),
            short_names: texts(names, "/shortNames"),
            categories: texts(names, "/categories"),
        }
    }

    /// JSON form: kind and plural always, the other names if they are set.
    pub fn to_json(&self) -> Value {
        let mut names = json!({"kind": self.kind, "plural": self.plural});
        let mut put = |key: &str, value: Value, is_set: bool| {
            if is_set {
                names[key] = value;
            }
        };
        put("singular", json!(self.singular), !self.singular.is_empty());
        put("listKind", json!(self.list_kind), !self.list_kind.is_empty());
        put("shortNames", json!(self.short_names), !self.short_names.is_empty());
        put("categories", json!(self.categories), !self.categories.is_empty());
        names
    }
}

impl<'a> Definition<'a> {
    pub fn name(self) -> &'a str {
        text(self.0, "/metadata/name")
    }

    pub fn group(self) -> &'a str {
        text(self.0, "/spec/group")
    }

    pub fn plural(self) -> &'a str {
        text(self.0, "/spec/names/plural")
    }

    pub fn is_namespaced(self) -> bool {
        text(self.0, "/spec/scope") == "Namespaced"
    }

    pub fn names(self) -> Names {
        Names::from_json(self.0.pointer("/spec/names"))
    }

    pub fn accepted_names(self) -> Names {
        Names::from_json(self.0.pointer("/status/acceptedNames"))
    }

    pub fn versions(self) -> impl Iterator<Item = Version<'a>> {
        list(self.0, "/spec/versions").iter().map(Version)
    }

    pub fn version(self, name: &str) -> Option<Version<'a>> {
        self.versions().find(|v| v.name() == name)
    }

    pub fn storage_version(self) -> Option<Version<'a>> {
        self.versions().find(|v| flag(v.0, "/storage"))
    }

    pub fn is_deleting(self) -> bool {
        self.0.pointer("/metadata/deletionTimestamp").is_some_and(|t| !t.is_null())
    }

    pub fn generation(self) -> i64 {
        self.0.pointer("/metadata/generation").and_then(Value::as_i64).unwrap_or(0)
    }

    /// True if the condition of this type has the status `True`.
    pub fn is_condition_true(self, kind: &str) -> bool {
        list(self.0, "/status/conditions").iter().any(|c| text(c, "/type") == kind && text(c, "/status") == "True")
    }

    /// `spec.conversion.webhook` if the strategy is `Webhook`.
    pub fn conversion_webhook(self) -> Option<&'a Value> {
        if text(self.0, "/spec/conversion/strategy") != "Webhook" {
            return None;
        }
        self.0.pointer("/spec/conversion/webhook")
    }
}

impl<'a> Version<'a> {
    pub fn name(self) -> &'a str {
        text(self.0, "/name")
    }

    pub fn is_served(self) -> bool {
        flag(self.0, "/served")
    }

    /// `schema.openAPIV3Schema`
    pub fn schema(self) -> Option<&'a Value> {
        self.0.pointer("/schema/openAPIV3Schema").filter(|s| s.is_object())
    }

    pub fn has_status(self) -> bool {
        self.0.pointer("/subresources/status").is_some_and(Value::is_object)
    }

    pub fn scale(self) -> Option<&'a Value> {
        self.0.pointer("/subresources/scale").filter(|s| s.is_object())
    }

    pub fn printer_columns(self) -> &'a [Value] {
        list(self.0, "/additionalPrinterColumns")
    }

    /// Selectable fields without the leading dot: `spec.color` for `.spec.color`.
    pub fn selectable_fields(self) -> Vec<String> {
        let paths = list(self.0, "/selectableFields").iter().map(|f| text(f, "/jsonPath"));
        paths.map(|p| p.trim_start_matches('.').to_owned()).collect()
    }

    /// Text of the `Warning` header for requests to this version; `None` if it is not deprecated.
    pub fn deprecation_warning(self, definition: Definition<'_>) -> Option<String> {
        if !flag(self.0, "/deprecated") {
            return None;
        }
        let custom_warning = text(self.0, "/deprecationWarning");
        if !custom_warning.is_empty() {
            return Some(custom_warning.to_owned());
        }
        let api_version = format!("{}/{}", definition.group(), self.name());
        let kind = text(definition.0, "/spec/names/kind");
        let newer = definition
            .versions()
            .filter(|v| v.is_served() && !flag(v.0, "/deprecated"))
            .map(Version::name)
            .max_by(|a, b| super::versions::compare(a, b));
        Some(match newer.filter(|n| super::versions::compare(n, self.name()).is_gt()) {
            Some(newer) => format!("{api_version} {kind} is deprecated; use {}/{newer} {kind}", definition.group()),
            None => format!("{api_version} {kind} is deprecated"),
        })
    }
}

/// Sets the API's defaults: singular, list kind, conversion strategy, webhook service port, stored versions. Normalizes
/// numbers in schemas, such as a default of 1.0, as Go's JSON encoder does. Decoding rejects such numbers in integer fields.
pub fn set_defaults(definition: &mut Value) {
    let Some(spec) = definition.get_mut("spec").and_then(Value::as_object_mut) else { return };
    if let Some(names) = spec.get_mut("names").and_then(Value::as_object_mut) {
        let kind = names.get("kind").and_then(Value::as_str).unwrap_or("").to_owned();
        let is_unset = |names: &serde_json::Map<String, Value>, key: &str| {
            names.get(key).and_then(Value::as_str).unwrap_or("").is_empty()
        };
        if is_unset(names, "singular") {
            names.insert("singular".into(), json!(kind.to_lowercase()));
        }
        if is_unset(names, "listKind") && !kind.is_empty() {
            names.insert("listKind".into(), json!(format!("{kind}List")));
        }
    }
    if let Some(versions) = spec.get_mut("versions") {
        convert_integral_floats(versions);
    }
    let is_storage_version = |version: &&Value| version.get("storage").is_some_and(|storage| storage == true);
    let versions = spec.get("versions").and_then(Value::as_array).into_iter().flatten();
    let stored: Vec<Value> =
        versions.filter(is_storage_version).filter_map(|version| version.get("name").cloned()).collect();
    let conversion = spec.entry("conversion").or_insert(Value::Null);
    if conversion.is_null() {
        *conversion = json!({"strategy": "None"});
    }
    if let Some(service) = conversion.pointer_mut("/webhook/clientConfig/service").and_then(Value::as_object_mut) {
        service.entry("port").or_insert_with(|| json!(443));
    }
    // Stored versions include at least the storage version.
    let stored_versions = definition.pointer("/status/storedVersions").and_then(Value::as_array);
    if stored_versions.is_none_or(Vec::is_empty) && definition.get("status").is_some_and(Value::is_object) {
        definition["status"]["storedVersions"] = stored.into();
    }
}
