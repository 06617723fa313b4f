//! The scale subresource: reads and writes a `Scale` through its parent object. Has no side effects.

use crowsnest_apimachinery::field::FieldError;
use crowsnest_apimachinery::selector::Selector;
use crowsnest_apimachinery::status::{ApiError, ApiResult};
use crowsnest_apimachinery::unstructured;
use serde_json::{Map, Value, json};

use crate::object::Object;
use crate::resource::{ResourceRef, ScalePaths};

fn get_at<'a>(object: &'a Value, path: &str) -> Option<&'a Value> {
    unstructured::at(object, path.trim_start_matches('.'))
}

fn set_at(object: &mut Value, path: &str, value: Value) {
    let mut slot = object;
    for key in path.trim_start_matches('.').split('.') {
        if !slot.is_object() {
            *slot = Value::Object(Map::new());
        }
        slot = &mut slot[key];
    }
    *slot = value;
}

/// True if the object has a number of replicas; built-in kinds always have one.
pub(crate) fn has_replicas(paths: &ScalePaths, object: &Value) -> bool {
    get_at(object, &paths.spec_replicas).is_some_and(Value::is_number)
}

/// Value of `spec.replicas` in a Scale whose parent has none, so that a change can be detected: the minimum of
/// `int32`.
pub(crate) const UNSET_REPLICAS: i64 = i32::MIN as i64;

/// The `autoscaling/v1` Scale of an object.
pub(crate) fn from_parent(paths: &ScalePaths, object: &Value) -> Value {
    let mut metadata = Map::new();
    for key in ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"] {
        if let Some(value) = object["metadata"].get(key) {
            metadata.insert(key.into(), value.clone());
        }
    }
    let replicas = |path: &str| get_at(object, path).and_then(Value::as_i64).unwrap_or(0);
    let mut scale = json!({
        "kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": metadata,
        "spec": {}, "status": {"replicas": replicas(&paths.status_replicas)},
    });
    let spec_replicas = replicas(&paths.spec_replicas);
    if spec_replicas != 0 {
        scale["spec"]["replicas"] = spec_replicas.into();
    }
    let selector = match paths.selector.as_deref().and_then(|path| get_at(object, path)) {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Object(labels)) => {
            let is_selector = labels.contains_key("matchLabels") || labels.contains_key("matchExpressions");
            let selector = Value::Object(labels.clone());
            let selector = if is_selector { selector } else { json!({"matchLabels": selector}) };
            Selector::from_json(Some(&selector)).map(|s| s.to_string()).unwrap_or_default()
        }
        _ => String::new(),
    };
    if !selector.is_empty() {
        scale["status"]["selector"] = selector.into();
    }
    scale
}

/// Copies the replicas from a Scale after admission.
pub(crate) fn set_replicas(paths: &ScalePaths, object: &mut Value, scale: &Value) {
    let replicas = scale["spec"]["replicas"].as_i64().unwrap_or(0);
    if get_at(object, &paths.spec_replicas).and_then(Value::as_i64).unwrap_or(0) != replicas {
        set_at(object, &paths.spec_replicas, replicas.into());
    }
}

/// Converts an applied Scale to an applied configuration of its parent.
pub(crate) fn to_parent_config(resource: &ResourceRef, paths: &ScalePaths, scale: &Value) -> Value {
    let mut config = json!({"apiVersion": resource.gvr.api_version(), "kind": resource.kind, "metadata": {}});
    for key in ["uid", "resourceVersion"] {
        if let Some(value) = scale["metadata"].get(key) {
            config["metadata"][key] = value.clone();
        }
    }
    if let Some(replicas) = scale["spec"].get("replicas") {
        set_at(&mut config, &paths.spec_replicas, replicas.clone());
    }
    config
}

/// Rewrites a conflict on the parent's replicas to the field of the Scale.
pub(crate) fn reword_conflict(mut error: ApiError, paths: &ScalePaths, api_version: &str) -> ApiError {
    let replicas = format!(".{}", paths.spec_replicas.trim_start_matches('.'));
    let reword = |text: &str| {
        let version = text.replace(&format!("using {api_version}"), "using autoscaling/v1");
        version.replace(&replicas, ".spec.replicas")
    };
    error.message = reword(&error.message);
    for cause in error.details.iter_mut().flat_map(|details| details.causes.iter_mut()) {
        cause.message = reword(&cause.message);
        cause.field = reword(&cause.field);
    }
    error
}

/// Returns the parent with the replicas and preconditions of a changed Scale.
pub(crate) fn apply_to_parent(
    resource: &ResourceRef,
    paths: &ScalePaths,
    live: &Value,
    scale: &Value,
) -> ApiResult<Value> {
    let replicas = scale["spec"]["replicas"].as_i64().unwrap_or(0);
    // Custom resources are validated by their own strategy.
    if replicas < 0 && !resource.is_custom() {
        let error = FieldError::invalid("spec.replicas", &json!(replicas), "must be greater than or equal to 0");
        return Err(ApiError::invalid("autoscaling", "Scale", live.name(), vec![error]));
    }
    let uid = scale.uid();
    if !uid.is_empty() && uid != live.uid() {
        let reason = format!("Precondition failed: UID in precondition: {uid}, UID in object meta: {}", live.uid());
        return Err(ApiError::conflict(&resource.gvr.group, &resource.gvr.resource, live.name(), reason));
    }
    let mut new = live.clone();
    set_at(&mut new, &paths.spec_replicas, replicas.into());
    let version = scale.resource_version();
    if !version.is_empty() {
        new.metadata_mut().insert("resourceVersion".into(), version.into());
    }
    Ok(new)
}
