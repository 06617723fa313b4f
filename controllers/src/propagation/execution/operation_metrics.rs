//! Counts operations on member objects, for metrics.

use crowsnest_apimachinery::names::ClusterName;
use crowsnest_apimachinery::unstructured;
use serde_json::Value;

use super::ExecutionController;
use crate::Error;
use crate::metrics::operations::{Operation, Update};

impl ExecutionController {
    pub(super) fn count_operation(
        &self,
        cluster: &ClusterName,
        manifest: &Value,
        operation: Operation,
        is_success: bool,
    ) {
        let kind = (unstructured::api_version(manifest), unstructured::kind(manifest));
        self.context.metrics.operations.record(cluster.as_str(), kind, operation, is_success);
    }
}

/// Result of an update of a member object.
pub(super) fn update_result(before: Option<&Value>, updated: &Result<Value, Error>) -> Update {
    match updated {
        Err(_) => Update::None,
        Ok(live) if before.map(unstructured::resource_version) == Some(unstructured::resource_version(live)) => {
            Update::Unchanged
        }
        Ok(_) => Update::Updated,
    }
}
