//! Migration from client-side apply by kubectl's last-applied annotation.

use serde_json::Value;

use super::path::FieldSet;
use super::typed;
use crate::Schema;

const ANNOTATION: &str = "kubectl.kubernetes.io/last-applied-configuration";

fn last_applied_configuration(object: &Value) -> Option<&str> {
    object.get("metadata")?.get("annotations")?.get(ANNOTATION)?.as_str().filter(|text| !text.is_empty())
}

/// Fields of the last client-side apply whose values are unchanged in `live`. `None` without a valid annotation.
pub fn unchanged_fields(schema: Option<&Schema>, live: &Value) -> Option<FieldSet> {
    let applied: Value = serde_json::from_str(last_applied_configuration(live)?).ok()?;
    let mut set = typed::field_set(schema, &applied);
    let comparison = typed::compare(schema, Some(&applied), Some(live));
    set.subtract(&comparison.modified);
    Some(set)
}

/// Updates an existing annotation with the applied configuration, so that client-side apply can be used again.
pub fn update_annotation(object: &mut Value, config: &Value) {
    if last_applied_configuration(object).is_none() {
        return;
    }
    let mut applied = config.clone();
    if let Some(annotations) = applied.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut) {
        annotations.remove(ANNOTATION);
    }
    if let Some(annotations) = object.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut) {
        annotations.insert(ANNOTATION.into(), Value::String(format!("{applied}\n")));
    }
}
