//! AppArmor profiles of containers: annotations from before Kubernetes 1.30 are converted to fields. Used by the
//! strategy and for warnings; pure.

use serde_json::{Value, json};

use super::object::{at, each, fields, inside, is_set, is_unset, items, put, same, text};

const ANNOTATION: &str = "container.apparmor.security.beta.kubernetes.io/";
const CONTAINERS: [&str; 3] = ["initContainers", "containers", "ephemeralContainers"];
const DEPRECATED: &str = "deprecated since v1.30; use the \"appArmorProfile\" field instead";

/// The field value equivalent to an annotation; `None` if there is no equivalent.
fn profile(annotation: &str) -> Option<Value> {
    match annotation {
        "runtime/default" => Some(json!({"type": "RuntimeDefault"})),
        "unconfined" => Some(json!({"type": "Unconfined"})),
        other => {
            let name = other.strip_prefix("localhost/").filter(|name| !name.is_empty() && name.trim() == *name)?;
            Some(json!({"type": "Localhost", "localhostProfile": name}))
        }
    }
}

fn annotated<'a>(pod: &'a Value, container: &str) -> Option<&'a str> {
    fields(pod, "metadata.annotations").get(&format!("{ANNOTATION}{container}")).and_then(Value::as_str)
}

/// Sets the profiles that annotations specify, unless they equal the pod's profile.
pub(super) fn settle(pod: &mut Value) {
    if text(pod, "spec.os.name") == "windows" || fields(pod, "metadata.annotations").is_empty() {
        return;
    }
    let whole = pod.clone();
    let of_pod = at(&whole, "spec.securityContext.appArmorProfile");
    let Some(spec) = inside(pod, "spec") else { return };
    for list in CONTAINERS {
        each(spec, list, |container| {
            let annotation = annotated(&whole, text(container, "name"));
            let Some(profile) = annotation.and_then(profile) else { return };
            if is_unset(container, "securityContext.appArmorProfile") && !same(&profile, of_pod) {
                if !is_set(container, "securityContext") {
                    put(container, "securityContext", json!({}));
                }
                put(&mut container["securityContext"], "appArmorProfile", profile);
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
        let applies = match profile(annotated(pod, name)?) {
            Some(profile) => same(&profile, field),
            None => field.is_null(),
        };
        applies.then(|| format!("metadata.annotations[{ANNOTATION}{name}]: {DEPRECATED}"))
    });
    warnings.collect()
}

/// Warning for an annotation in a pod template, which is not converted; `of_pod` is the profile of the pod.
pub(super) fn template_warning(
    annotations: &serde_json::Map<String, Value>,
    container: &Value,
    of_pod: &Value,
) -> Option<(String, &'static str)> {
    let key = format!("{ANNOTATION}{}", text(container, "name"));
    let annotation = annotations.get(&key).and_then(Value::as_str)?;
    let warns = is_unset(container, "securityContext.appArmorProfile")
        && profile(annotation).is_none_or(|profile| !same(&profile, of_pod));
    warns.then_some((key, DEPRECATED))
}
