//! labelsOverrider and annotationsOverrider: change labels and annotations of the object.

use crowsnest_api::policy::{LabelAnnotationOverrider, OverriderOperator};
use serde_json::Value;

use crowsnest_apimachinery::unstructured::{at, remove, set};

/// Applies an overrider to the metadata's `field`: `labels` or `annotations`. As in Karmada, only existing keys are
/// replaced or removed.
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
