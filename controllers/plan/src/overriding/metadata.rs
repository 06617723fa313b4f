//! labelsOverrider and annotationsOverrider: change labels and annotations of the object.

use crowsnest_api::policy::{LabelAnnotationOverrider, OverriderOperator};
use serde_json::Value;

use crowsnest_apimachinery::unstructured::{at, remove, set};

pub fn apply(manifest: &mut Value, field: &str, overrider: &LabelAnnotationOverrider) {
    for (key, value) in &overrider.value {
        let path = ["metadata", field, key];
        let exists = at(manifest, &path).is_some();
        match overrider.operator {
            OverriderOperator::Add => set(manifest, &path, Value::String(value.clone())),
            OverriderOperator::Replace if exists => set(manifest, &path, Value::String(value.clone())),
            OverriderOperator::Remove if exists => {
                remove(manifest, &path);
            }
            _ => {}
        }
    }
}
