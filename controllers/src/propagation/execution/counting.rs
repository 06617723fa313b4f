//! Counts the operations on objects in members.

use crowsnest_apimachinery::names::ClusterName;
use serde_json::Value;

use super::ExecutionController;
use crate::Error;
use crate::metrics::operations::{Operation, Update};
use crowsnest_plan::object;

impl ExecutionController {
    pub(super) fn count(&self, cluster: &ClusterName, manifest: &Value, operation: Operation, is_well: bool) {
        let kind = (object::api_version(manifest), object::kind(manifest));
        self.context.metrics.operations.note(cluster.as_str(), kind, operation, is_well);
    }
}

/// What an update did to the member's object.
pub(super) fn written(before: Option<&Value>, updated: &Result<Value, Error>) -> Update {
    match updated {
        Err(_) => Update::None,
        Ok(live) if before.map(object::resource_version) == Some(object::resource_version(live)) => Update::Unchanged,
        Ok(_) => Update::Updated,
    }
}
