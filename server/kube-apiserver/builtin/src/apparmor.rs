//! AppArmor profiles of containers: annotations from before Kubernetes 1.30 are converted to fields. Has no side
//! effects.

use serde_json::{Value, json};

use super::object::{are_equal, at, at_mut, fields, for_each_item, is_set, is_unset, items, set_field, text};

const ANNOTATION_PREFIX: &str = "container.apparmor.security.beta.kubernetes.io/";
const CONTAINERS: [&str; 3] = ["initContainers", "containers", "ephemeralContainers"];
const DEPRECATION_MESSAGE: &str = "deprecated since v1.30; use the \"appArmorProfile\" field instead";

/// The field value equivalent to an annotation; `None` if there is no equivalent.
fn parse_profile(annotation: &str) -> Option<Value> {
    match annotation {
        "runtime/default" => Some(json!({"type": "RuntimeDefault"})),
        "unconfined" => Some(json!({"type": "Unconfined"})),
        other => {
            let name = other.strip_prefix("localhost/").filter(|name| !name.is_empty() && name.trim() == *name)?;
            Some(json!({"type": "Localhost", "localhostProfile": name}))
        }
    }
}

fn container_annotation<'a>(pod: &'a Value, container: &str) -> Option<&'a str> {
    fields(pod, "metadata.annotations").get(&format!("{ANNOTATION_PREFIX}{container}")).and_then(Value::as_str)
}

/// Sets the profiles of containers that annotations specify, unless they equal the pod's profile.
pub(super) fn convert_annotations(pod: &mut Value) {
    if text(pod, "spec.os.name") == "windows" || fields(pod, "metadata.annotations").is_empty() {
        return;
    }
    let original = pod.clone();
    let pod_profile = at(&original, "spec.securityContext.appArmorProfile");
    let Some(spec) = at_mut(pod, "spec") else { return };
    for list in CONTAINERS {
        for_each_item(spec, list, |container| {
            let annotation = container_annotation(&original, text(container, "name"));
            let Some(profile) = annotation.and_then(parse_profile) else { return };
            if is_unset(container, "securityContext.appArmorProfile") && !are_equal(&profile, pod_profile) {
                if !is_set(container, "securityContext") {
                    set_field(container, "securityContext", json!({}));
                }
                set_field(&mut container["securityContext"], "appArmorProfile", profile);
            }
        });
    }
}

/// Warnings for annotations that were converted to fields or cannot be converted.
pub(super) fn warnings(pod: &Value) -> Vec<String> {
    if text(pod, "spec.os.name") == "windows" {
        return Vec::new();
    }
    let containers = CONTAINERS.iter().flat_map(|list| items(pod, &format!("spec.{list}")));
    let warnings = containers.filter_map(|container| {
        let name = text(container, "name");
        let field = at(container, "securityContext.appArmorProfile");
        let applies = match parse_profile(container_annotation(pod, name)?) {
            Some(profile) => are_equal(&profile, field),
            None => field.is_null(),
        };
        applies.then(|| format!("metadata.annotations[{ANNOTATION_PREFIX}{name}]: {DEPRECATION_MESSAGE}"))
    });
    warnings.collect()
}

/// Warning for an annotation in a pod template, which is not converted; `pod_profile` is the profile of the pod.
pub(super) fn template_warning(
    annotations: &serde_json::Map<String, Value>,
    container: &Value,
    pod_profile: &Value,
) -> Option<(String, &'static str)> {
    let key = format!("{ANNOTATION_PREFIX}{}", text(container, "name"));
    let annotation = annotations.get(&key).and_then(Value::as_str)?;
    let is_warning_needed = is_unset(container, "securityContext.appArmorProfile")
        && parse_profile(annotation).is_none_or(|profile| !are_equal(&profile, pod_profile));
    is_warning_needed.then_some((key, DEPRECATION_MESSAGE))
}
