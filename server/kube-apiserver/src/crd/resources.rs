//! Resources served for a CRD, and the strategy of CRDs themselves.

use std::sync::Arc;

use crowsnest_apimachinery::field::FieldError;
use crowsnest_apimachinery::names::format::validate_dns1123_subdomain;
use crowsnest_apimachinery::names::{Gvk, Gvr};
use crowsnest_apimachinery::status::ApiResult;
use crowsnest_apimachinery::yaml::convert_integral_floats;
use crowsnest_registry::resource::{ResourceInfo, ResourceRef, ScalePaths, StorageVersion, Subresource};
use crowsnest_registry::strategy::{RequestContext, Strategy, UpdateErrors, convert_identity, status_reset_fields};
use crowsnest_schema::SchemaRef;
use crowsnest_schema::apply::VersionSchemas;
use crowsnest_schema::schema_set::SchemaSet;
use crowsnest_schema::table::{CustomPrinter, Printer};
use futures::future::BoxFuture;
use serde_json::{Value, json};

use super::conversion::Converter;
use super::custom_schema::CustomSchema;
use super::definition::{self, Definition, GROUP, KIND, Version, text};
use super::status::{Condition, stored_versions};
use super::strategy::CustomStrategy;
use super::{formats, validation};
use crate::admission::WebhookClient;

/// Verbs of custom resources, in the order in which kube-apiserver lists them.
const VERBS: &[&str] = &["delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"];
/// Verbs in discovery while the CRD is being deleted. Updates are accepted as well, so that finalizers can be removed.
const TERMINATING_VERBS: &[&str] = &["delete", "deletecollection", "get", "list", "watch"];
const SUBRESOURCE_VERBS: &[&str] = &["get", "patch", "update"];

/// The resources of an established CRD, one per served version; empty before it is established.
pub fn served_resources(object: &Value, client: &Arc<WebhookClient>) -> Vec<ResourceInfo> {
    if !Definition(object).is_condition_true("Established") {
        return Vec::new();
    }
    // Stored schemas may contain integral floats, which would become defaults of objects.
    let mut normalized = object.clone();
    convert_integral_floats(&mut normalized);
    let crd = Definition(&normalized);
    let Some(storage) = crd.storage_version() else { return Vec::new() };
    let converter = Arc::new(Converter::from_definition(crd, client));
    let names = crd.accepted_names();
    let spec_names = crd.names();
    let versions = crd.versions().filter(|v| v.is_served());
    versions
        .map(|version| {
            let (group, name) = (crd.group(), version.name());
            let kind = Gvk::new(group, name, &spec_names.kind);
            let schema = converter.schema(&kind.api_version()).cloned();
            let schema = schema.unwrap_or_else(|| CustomSchema::intern(&json!({"type": "object"})));
            let mut strategy = CustomStrategy::new(&kind, schema, converter.clone());
            strategy.has_status = version.has_status();
            strategy.scale = version.scale().map(scale_paths);
            strategy.selectable_fields = version.selectable_fields();
            strategy.crd_revision = text(object, "/metadata/resourceVersion").parse().unwrap_or(0);
            strategy.deprecation_warning = version.deprecation_warning(crd);
            strategy.is_terminating = crd.is_deleting();
            let verbs = if crd.is_deleting() { TERMINATING_VERBS } else { VERBS };
            ResourceInfo {
                gvr: Gvr::new(group, name, crd.plural()),
                kind: spec_names.kind.clone(),
                list_kind: spec_names.list_kind.clone(),
                singular: names.singular.clone(),
                namespaced: crd.is_namespaced(),
                short_names: names.short_names.clone(),
                categories: names.categories.clone(),
                verbs: verbs.to_vec(),
                subresources: subresources(crd, version),
                scale: version.scale().map(scale_paths),
                storage: StorageVersion { group: group.to_owned(), version: storage.name().to_owned() },
                printer: Printer::Custom(Arc::new(CustomPrinter::new(version.printer_columns()))),
                strategy: Arc::new(strategy),
            }
        })
        .collect()
}

/// The resource of an established CRD's storage version, which need not be served.
pub fn storage_resource(crd: Definition<'_>, client: &Arc<WebhookClient>) -> Option<ResourceRef> {
    let mut definition = crd.0.clone();
    for version in definition.pointer_mut("/spec/versions").and_then(Value::as_array_mut)? {
        version["served"] = version["storage"].clone();
    }
    served_resources(&definition, client).pop().map(ResourceRef::new)
}

fn subresources(crd: Definition<'_>, version: definition::Version<'_>) -> Vec<Subresource> {
    let mut subresources = Vec::new();
    if version.has_status() {
        subresources.push(Subresource {
            name: "status",
            kind: text(crd.0, "/spec/names/kind").to_owned(),
            group: crd.group().to_owned(),
            version: version.name().to_owned(),
            verbs: SUBRESOURCE_VERBS.to_vec(),
        });
    }
    if version.scale().is_some() {
        subresources.push(Subresource {
            name: "scale",
            kind: "Scale".into(),
            group: "autoscaling".into(),
            version: "v1".into(),
            verbs: SUBRESOURCE_VERBS.to_vec(),
        });
    }
    subresources
}

fn scale_paths(scale: &Value) -> ScalePaths {
    let selector = text(scale, "/labelSelectorPath");
    ScalePaths {
        spec_replicas: text(scale, "/specReplicasPath").to_owned(),
        status_replicas: text(scale, "/statusReplicasPath").to_owned(),
        selector: (!selector.is_empty()).then(|| selector.to_owned()),
    }
}

/// The strategy of CustomResourceDefinitions.
#[derive(Debug, Default)]
pub struct DefinitionStrategy;

/// Unrecognized formats in the schemas of a CRD.
fn unrecognized_formats(definition: &Value) -> Vec<String> {
    let mut found = Vec::new();
    for schema in Definition(definition).versions().filter_map(Version::schema) {
        formats::collect_unrecognized(schema, &mut found);
    }
    found
}

impl VersionSchemas for DefinitionStrategy {}

impl Strategy for DefinitionStrategy {
    fn default(&self, object: &mut Value) {
        definition::set_defaults(object);
    }

    fn warnings(&self, _ctx: &RequestContext, old: Option<&Value>, new: &Value) -> Vec<String> {
        let old_formats = old.map(unrecognized_formats).unwrap_or_default();
        let new = unrecognized_formats(new).into_iter().filter(|format| !old_formats.contains(format));
        new.map(|format| format!("unrecognized format {format:?}")).collect()
    }

    fn prepare_create(&self, _ctx: &RequestContext, object: &mut Value) {
        object["metadata"]["generation"] = 1.into();
        // A status that the client sends is dropped, with its stored versions.
        object["status"] =
            json!({"conditions": null, "acceptedNames": {"plural": "", "kind": ""}, "storedVersions": []});
        let stored = stored_versions(Definition(object));
        object["status"]["storedVersions"] = stored.into();
    }

    fn prepare_update(&self, ctx: &RequestContext, old: &Value, new: &mut Value) {
        if ctx.subresource == "status" {
            let status = new.get("status").cloned();
            new["spec"] = old["spec"].clone();
            // Finalizers can change: the controller of kube-apiserver removes its own through the status subresource.
            for key in ["labels", "annotations", "generation", "ownerReferences"] {
                match old.pointer(&format!("/metadata/{key}")) {
                    Some(value) => new["metadata"][key] = value.clone(),
                    None => {
                        new["metadata"].as_object_mut().map(|m| m.remove(key));
                    }
                }
            }
            if let Some(status) = status {
                new["status"] = status;
            }
            return;
        }
        match old.get("status") {
            Some(status) => new["status"] = status.clone(),
            None => {
                new.as_object_mut().map(|o| o.remove("status"));
            }
        }
        let stored = stored_versions(Definition(new));
        if !stored.is_empty() {
            new["status"]["storedVersions"] = Value::Array(stored);
        }
        if old.get("spec") != new.get("spec") {
            let generation = Definition(old).generation() + 1;
            new["metadata"]["generation"] = generation.into();
        }
    }

    fn prepare_delete(&self, ctx: &RequestContext, object: &mut Value) {
        Condition::new(
            "Terminating",
            "True",
            "InstanceDeletionPending",
            "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon",
        )
        .set(object, ctx.now);
        let finalizers = &mut object["metadata"]["finalizers"];
        if !finalizers.is_array() {
            *finalizers = json!([]);
        }
        if let Some(finalizers) = finalizers.as_array_mut()
            && !finalizers.iter().any(|f| f == definition::CLEANUP_FINALIZER)
        {
            finalizers.push(definition::CLEANUP_FINALIZER.into());
        }
    }

    fn validate_create(&self, _ctx: &RequestContext, object: &Value) -> Vec<FieldError> {
        validation::validate_create(object)
    }

    fn validate_update(&self, ctx: &RequestContext, old: &Value, new: &Value) -> UpdateErrors {
        if ctx.subresource == "status" {
            return UpdateErrors::default();
        }
        validation::validate_update(old, new).into()
    }

    fn validate_name(&self, name: &str, _prefix: bool) -> Vec<String> {
        // A name with a dot is compared with `plural.group`, which gives a better message.
        if name.contains('.') { Vec::new() } else { validate_dns1123_subdomain(name) }
    }

    fn schema(&self) -> Option<SchemaRef> {
        SchemaSet::builtin().kind(GROUP, "v1", KIND)
    }

    fn reset_fields(&self, subresource: &str) -> &'static [&'static [&'static str]] {
        status_reset_fields(subresource)
    }

    fn convert(&self, objects: Vec<Value>, _to_api_version: &str) -> BoxFuture<'_, ApiResult<Vec<Value>>> {
        convert_identity(objects)
    }
}
