//! `RuntimeClass` admission: sets overhead, node selector and tolerations of a pod from its class, and rejects an
//! overhead that differs from it.

use std::sync::Weak;

use async_trait::async_trait;
use crowsnest_apimachinery::quantity::Quantity;
use crowsnest_apimachinery::status::{ApiError, ApiResult};
use crowsnest_registry::Registry;
use crowsnest_registry::admission::{Admission, Mutation, Operation, Validation};
use crowsnest_registry::storage::{ObjectKey, ResourceKey};
use serde_json::{Map, Value, json};

/// The admission plugin.
pub struct RuntimeClass(pub Weak<Registry>);

impl RuntimeClass {
    /// The class of a pod; `None` if the pod names none.
    fn class_of(&self, pod: &Value) -> Result<Option<Value>, String> {
        let Some(name) = pod["spec"]["runtimeClassName"].as_str() else { return Ok(None) };
        let class = self.0.upgrade().and_then(|registry| {
            let key = ObjectKey::new("", name);
            registry.store.object(&ResourceKey::new("node.k8s.io", "runtimeclasses"), &key)
        });
        class.map(Some).ok_or_else(|| format!("pod rejected: RuntimeClass \"{name}\" not found"))
    }
}

#[async_trait]
impl Admission for RuntimeClass {
    async fn mutate(&self, Mutation { attributes: a, object, .. }: Mutation<'_>) -> ApiResult<()> {
        let Some(pod) = object.filter(|_| a.operation == Operation::Create && a.is_for("", "pods")) else {
            return Ok(());
        };
        let result = self.class_of(pod).and_then(|class| class.map_or(Ok(()), |class| apply_class(pod, &class)));
        result.map_err(|reason| ApiError::forbidden("", "pods", a.name, reason))
    }

    async fn validate(&self, Validation { attributes: a, object, .. }: Validation<'_>) -> ApiResult<()> {
        let Some(pod) = object.filter(|_| a.operation == Operation::Create && a.is_for("", "pods")) else {
            return Ok(());
        };
        let result = self.class_of(pod).and_then(|class| check_overhead(&pod["spec"], class.as_ref()));
        result.map_err(|reason| ApiError::forbidden("", "pods", a.name, reason))
    }
}

/// Sets overhead, node selector and tolerations from the class; fails if the pod conflicts with it.
fn apply_class(pod: &mut Value, class: &Value) -> Result<(), String> {
    let Some(spec) = pod["spec"].as_object_mut() else { return Ok(()) };
    if class["overhead"].is_object() {
        let fixed = &class["overhead"]["podFixed"];
        let has_overhead = spec.get("overhead").and_then(Value::as_object).is_some_and(|overhead| !overhead.is_empty());
        if has_overhead && !are_equal_amounts(&spec["overhead"], fixed) {
            return Err("pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead".into());
        }
        spec.insert("overhead".into(), fixed.clone());
    }
    if class["scheduling"].is_object() {
        merge_node_selector(spec, class["scheduling"]["nodeSelector"].as_object())?;
        let pod_tolerations = spec.get("tolerations").and_then(Value::as_array).cloned().unwrap_or_default();
        let class_tolerations = class["scheduling"]["tolerations"].as_array().cloned().unwrap_or_default();
        let merged = merge_tolerations(&[pod_tolerations, class_tolerations].concat());
        if !merged.is_empty() {
            spec.insert("tolerations".into(), merged.into());
        }
    }
    Ok(())
}

fn merge_node_selector(
    spec: &mut Map<String, Value>,
    class_selector: Option<&Map<String, Value>>,
) -> Result<(), String> {
    let Some(class_selector) = class_selector.filter(|selector| !selector.is_empty()) else { return Ok(()) };
    let pod_selector = spec.entry("nodeSelector").or_insert_with(|| json!({}));
    if pod_selector.is_null() {
        *pod_selector = json!({});
    }
    let Some(pod_selector) = pod_selector.as_object_mut() else { return Ok(()) };
    for (key, value) in class_selector {
        if let Some(pod_value) = pod_selector.get(key).filter(|pod_value| *pod_value != value) {
            let [value, pod_value] = [value, pod_value].map(|value| value.as_str().unwrap_or_default());
            return Err(format!(
                "conflict: runtimeClass.scheduling.nodeSelector[{key}] = {value}; pod.spec.nodeSelector[{key}] = {pod_value}"
            ));
        }
        pod_selector.insert(key.clone(), value.clone());
    }
    Ok(())
}

/// Rejects an overhead that differs from that of the class.
fn check_overhead(spec: &Value, class: Option<&Value>) -> Result<(), String> {
    match class.filter(|class| class["overhead"].is_object()) {
        Some(class) if !are_equal_amounts(&class["overhead"]["podFixed"], &spec["overhead"]) => {
            Err("pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead".into())
        }
        // Either there is no class, or it has no overhead.
        None if !spec["overhead"].is_null() => {
            Err("pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead".into())
        }
        _ => Ok(()),
    }
}

/// Compares quantities by value.
fn are_equal_amounts(left: &Value, right: &Value) -> bool {
    let parse = |amounts: &Value| -> Vec<(String, Option<Quantity>)> {
        let amounts = amounts.as_object().into_iter().flatten();
        amounts
            .map(|(name, amount)| (name.clone(), amount.as_str().and_then(|text| Quantity::parse(text).ok())))
            .collect()
    };
    parse(left) == parse(right)
}

/// Merges tolerations, dropping those that another one includes.
fn merge_tolerations(tolerations: &[Value]) -> Vec<Value> {
    let mut merged: Vec<Value> = Vec::new();
    for (index, toleration) in tolerations.iter().enumerate() {
        let is_redundant = merged.iter().any(|earlier| includes(earlier, toleration))
            || tolerations[index + 1..].iter().any(|later| later != toleration && includes(later, toleration));
        if !is_redundant {
            merged.push(toleration.clone());
        }
    }
    merged
}

/// True if `wide` tolerates all taints that `narrow` tolerates.
fn includes(wide: &Value, narrow: &Value) -> bool {
    let text = |toleration: &Value, field: &str| toleration[field].as_str().unwrap_or_default().to_owned();
    let (operator, effect) = (text(wide, "operator"), text(wide, "effect"));
    if wide == narrow {
        return true;
    }
    let tolerates_any_key = text(wide, "key").is_empty() && operator == "Exists";
    let tolerates_key = tolerates_any_key || text(wide, "key") == text(narrow, "key");
    if !tolerates_key || (!effect.is_empty() && effect != text(narrow, "effect")) {
        return false;
    }
    if effect == "NoExecute"
        && let Some(max_seconds) = wide["tolerationSeconds"].as_i64()
        && narrow["tolerationSeconds"].as_i64().is_none_or(|seconds| seconds > max_seconds)
    {
        return false;
    }
    match operator.as_str() {
        "Equal" | "" => text(narrow, "operator") == "Equal" && text(narrow, "value") == text(wide, "value"),
        operator => operator == "Exists",
    }
}
