//! The APIService kind: parsing, defaults and validation.

use base64::Engine;
use crowsnest_apimachinery::field::FieldError;
use crowsnest_apimachinery::names::format::{
    validate_dns1035_label, validate_dns1123_subdomain, validate_path_segment,
};
use crowsnest_apimachinery::status::ApiResult;
use crowsnest_apiserver::outbound::{ServerAddress, ServiceRef, Target};
use crowsnest_registry::resource::ResourceInfo;
use crowsnest_registry::strategy::{RequestContext, Strategy, UpdateErrors, convert_identity, status_reset_fields};
use crowsnest_schema::SchemaRef;
use crowsnest_schema::apply::VersionSchemas;
use crowsnest_schema::schema_set::SchemaSet;
use futures::future::BoxFuture;
use serde_json::{Value, json};

use crate::crd::status::Condition;

pub const GROUP: &str = "apiregistration.k8s.io";
pub const PLURAL: &str = "apiservices";

/// An API group version that another server serves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteService {
    /// Name of the APIService.
    pub name: String,
    pub group: String,
    pub version: String,
    /// `groupPriorityMinimum`
    pub group_priority: i64,
    pub version_priority: i64,
    pub target: Target,
}

impl RemoteService {
    /// Parses an APIService; `None` for local ones.
    pub fn from_api_service(object: &Value) -> Option<Self> {
        let spec = object.get("spec")?;
        let service = spec.get("service").filter(|s| s.is_object())?;
        let text = |key: &str| spec[key].as_str().unwrap_or("").to_owned();
        let ca_bundle = base64::engine::general_purpose::STANDARD.decode(text("caBundle")).unwrap_or_default();
        Some(Self {
            name: object.pointer("/metadata/name")?.as_str()?.to_owned(),
            group: text("group"),
            version: text("version"),
            group_priority: spec["groupPriorityMinimum"].as_i64().unwrap_or(0),
            version_priority: spec["versionPriority"].as_i64().unwrap_or(0),
            target: Target {
                address: ServerAddress::Service(ServiceRef::parse(service)),
                ca_bundle,
                insecure: spec["insecureSkipTLSVerify"].as_bool().unwrap_or(false),
            },
        })
    }
}

/// The resource of APIServices, which replaces the generic built-in one.
pub fn resource(builtin: &ResourceInfo) -> ResourceInfo {
    ResourceInfo { strategy: std::sync::Arc::new(ApiServiceStrategy), ..builtin.clone() }
}

/// The condition of a local APIService.
pub fn local_condition() -> Condition {
    Condition::new("Available", "True", "Local", "Local APIServices are always available")
}

/// Strategy of APIServices.
#[derive(Debug, Default)]
pub struct ApiServiceStrategy;

impl VersionSchemas for ApiServiceStrategy {}

impl Strategy for ApiServiceStrategy {
    fn default(&self, object: &mut Value) {
        if let Some(service) = object.pointer_mut("/spec/service").and_then(Value::as_object_mut) {
            service.entry("port").or_insert_with(|| json!(443));
        }
    }

    fn prepare_create(&self, ctx: &RequestContext, object: &mut Value) {
        object["status"] = json!({});
        if object.pointer("/spec/service").is_none_or(Value::is_null) {
            local_condition().set(object, ctx.now);
        }
    }

    fn prepare_update(&self, ctx: &RequestContext, old: &Value, new: &mut Value) {
        let retained_field = if ctx.subresource == "status" { "spec" } else { "status" };
        match old.get(retained_field) {
            Some(retained) => new[retained_field] = retained.clone(),
            None => {
                new.as_object_mut().map(|o| o.remove(retained_field));
            }
        }
    }

    fn validate_create(&self, _ctx: &RequestContext, object: &Value) -> Vec<FieldError> {
        validate(object)
    }

    fn validate_update(&self, ctx: &RequestContext, _old: &Value, new: &Value) -> UpdateErrors {
        if ctx.subresource == "status" { UpdateErrors::default() } else { validate(new).into() }
    }

    fn validate_name(&self, _name: &str, _prefix: bool) -> Vec<String> {
        // The name is `version.group`, which `validate` compares with the spec.
        Vec::new()
    }

    fn schema(&self) -> Option<SchemaRef> {
        SchemaSet::builtin().kind(GROUP, "v1", "APIService")
    }

    fn reset_fields(&self, subresource: &str) -> &'static [&'static [&'static str]] {
        status_reset_fields(subresource)
    }

    fn convert(&self, objects: Vec<Value>, _to_api_version: &str) -> BoxFuture<'_, ApiResult<Vec<Value>>> {
        convert_identity(objects)
    }
}

fn validate(object: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let spec = &object["spec"];
    let text = |key: &str| spec[key].as_str().unwrap_or("");
    let (group, version) = (text("group"), text("version"));
    let name = object.pointer("/metadata/name").and_then(Value::as_str).unwrap_or("");
    let expected_name = format!("{version}.{group}");
    let name_errors = validate_path_segment(name, false);
    if let Some(detail) = name_errors.into_iter().next() {
        errors.push(FieldError::invalid("metadata.name", &Value::from(name), detail));
    } else if !name.is_empty() && name != expected_name {
        let detail = format!("must be `spec.version+\".\"+spec.group`: {expected_name:?}");
        errors.push(FieldError::invalid("metadata.name", &Value::from(name), detail));
    }
    if group.is_empty() {
        if version != "v1" {
            let detail = "only v1 may have an empty group and it better be legacy kube";
            errors.push(FieldError::required("spec.group", detail));
        }
    } else {
        let problems = validate_dns1123_subdomain(group);
        errors.extend(problems.into_iter().map(|p| FieldError::invalid("spec.group", &Value::from(group), p)));
    }
    let problems = validate_dns1035_label(version);
    errors.extend(problems.into_iter().map(|p| FieldError::invalid("spec.version", &Value::from(version), p)));
    for (key, max) in [("groupPriorityMinimum", 20000), ("versionPriority", 1000)] {
        let value = spec[key].as_i64().unwrap_or(0);
        if value <= 0 || value > max {
            let detail = format!("must be positive and less than {max}");
            errors.push(FieldError::invalid(format!("spec.{key}"), &Value::from(value), detail));
        }
    }
    let insecure = spec["insecureSkipTLSVerify"].as_bool().unwrap_or(false);
    let bundle = text("caBundle");
    match spec.get("service").filter(|s| s.is_object()) {
        None => {
            if !bundle.is_empty() {
                let size = base64::engine::general_purpose::STANDARD.decode(bundle).map_or(0, |b| b.len());
                let displayed = Value::from(format!("{size} bytes"));
                errors.push(FieldError::invalid(
                    "spec.caBundle",
                    &displayed,
                    "local APIServices may not have a caBundle",
                ));
            }
            if insecure {
                let detail = "local APIServices may not have insecureSkipTLSVerify";
                errors.push(FieldError::invalid("spec.insecureSkipTLSVerify", &Value::from(true), detail));
            }
        }
        Some(service) => {
            for key in ["namespace", "name"] {
                if service[key].as_str().unwrap_or("").is_empty() {
                    errors.push(FieldError::required(format!("spec.service.{key}"), ""));
                }
            }
            let port = service["port"].as_i64().unwrap_or(443);
            if !(1..=65535).contains(&port) {
                let detail = "port is not valid: must be between 1 and 65535, inclusive";
                errors.push(FieldError::invalid("spec.service.port", &Value::from(port), detail));
            }
            if insecure && !bundle.is_empty() {
                let detail = "may not be true if caBundle is present";
                errors.push(FieldError::invalid("spec.insecureSkipTLSVerify", &Value::from(true), detail));
            }
        }
    }
    errors
}
