//! commandOverrider and argsOverrider: add or remove words of a container's command line.

use crowsnest_api::policy::{CommandArgsOverrider, OverriderOperator};
use serde_json::{Value, json};

use crowsnest_apimachinery::unstructured::text;

/// Applies an overrider to the container's `field`: `command` or `args`.
pub fn apply(manifest: &mut Value, field: &str, overrider: &CommandArgsOverrider) {
    let Some(containers) = super::containers(manifest) else { return };
    for container in containers.iter_mut().filter(|container| text(container, &["name"]) == overrider.container_name) {
        let mut words: Vec<String> = container
            .get(field)
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .filter_map(|word| word.as_str().map(str::to_owned))
            .collect();
        match overrider.operator {
            OverriderOperator::Add => words.extend(overrider.value.iter().cloned()),
            OverriderOperator::Remove => words.retain(|word| !overrider.value.contains(word)),
            _ => {}
        }
        if let Some(container) = container.as_object_mut() {
            container.insert(field.to_owned(), json!(words));
        }
    }
}
