//! `TaintNodesByCondition` admission: new nodes are tainted as not ready.

use async_trait::async_trait;
use crowsnest_apimachinery::status::ApiResult;
use crowsnest_registry::admission::{Admission, Mutation, Operation};
use serde_json::{Value, json};

const NOT_READY_TAINT: &str = "node.kubernetes.io/not-ready";
const EFFECT: &str = "NoSchedule";

/// The admission plugin.
#[derive(Debug)]
pub struct TaintNodesByCondition;

#[async_trait]
impl Admission for TaintNodesByCondition {
    async fn mutate(&self, Mutation { attributes: a, object, .. }: Mutation<'_>) -> ApiResult<()> {
        if let Some(node) = object
            && a.operation == Operation::Create
            && a.is_for("", "nodes")
        {
            add_not_ready_taint(node);
        }
        Ok(())
    }
}

fn add_not_ready_taint(node: &mut Value) {
    if node["spec"].is_null() {
        node["spec"] = json!({});
    }
    let Some(spec) = node["spec"].as_object_mut() else { return };
    let taints = spec.entry("taints").or_insert_with(|| json!([]));
    if taints.is_null() {
        *taints = json!([]);
    }
    let Some(taints) = taints.as_array_mut() else { return };
    if !taints.iter().any(|taint| taint["key"] == NOT_READY_TAINT && taint["effect"] == EFFECT) {
        taints.push(json!({"key": NOT_READY_TAINT, "effect": EFFECT}));
    }
}
