//! `DefaultTolerationSeconds` admission: pods tolerate unreachable and not-ready nodes for five minutes by default.

use async_trait::async_trait;
use crowsnest_apimachinery::status::ApiResult;
use crowsnest_registry::admission::{Admission, Mutation, Operation};
use serde_json::{Value, json};

const TOLERATION_SECONDS: i64 = 300;
const TAINTS: [&str; 2] = ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"];

/// The admission plugin.
#[derive(Debug)]
pub struct DefaultTolerationSeconds;

#[async_trait]
impl Admission for DefaultTolerationSeconds {
    async fn mutate(&self, Mutation { attributes: a, object, .. }: Mutation<'_>) -> ApiResult<()> {
        if let Some(pod) = object
            && a.is_for("", "pods")
            && matches!(a.operation, Operation::Create | Operation::Update)
        {
            add_default_tolerations(pod);
        }
        Ok(())
    }
}

fn add_default_tolerations(pod: &mut Value) {
    let Some(spec) = pod.get_mut("spec").and_then(Value::as_object_mut) else { return };
    let tolerations = spec.entry("tolerations").or_insert_with(|| json!([]));
    if tolerations.is_null() {
        *tolerations = json!([]);
    }
    let Some(tolerations) = tolerations.as_array_mut() else { return };
    for taint in TAINTS {
        let is_tolerated = tolerations.iter().any(|toleration| {
            let key = toleration["key"].as_str().unwrap_or("");
            let effect = toleration["effect"].as_str().unwrap_or("");
            (key == taint || key.is_empty()) && (effect == "NoExecute" || effect.is_empty())
        });
        if !is_tolerated {
            tolerations
                .push(json!({"key": taint, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": TOLERATION_SECONDS}));
        }
    }
}
