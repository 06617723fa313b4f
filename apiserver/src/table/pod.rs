//! A pod's row: the cells the cache shows, too, and the condition of finished pods.

use crowsnest_api::print::print;
use serde_json::{Value, json};

use super::Now;
use super::read::text;

pub(super) fn cells(pod: &Value, now: Now) -> Vec<Value> {
    print("", "Pod", pod).cells.iter().map(|cell| cell.render(now.as_second())).collect()
}

/// Finished pods carry a row condition, so that clients can hide them.
pub(super) fn row_conditions(pod: &Value) -> Vec<Value> {
    match text(pod, "/status/phase") {
        "Succeeded" => vec![json!({
            "type": "Completed", "status": "True", "reason": "Succeeded", "message": "The pod has completed successfully.",
        })],
        "Failed" => {
            vec![json!({"type": "Completed", "status": "True", "reason": "Failed", "message": "The pod failed."})]
        }
        _ => Vec::new(),
    }
}
