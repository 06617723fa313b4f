//! The strategy of every built-in kind: the rules they share, dispatching to the modules that hold a kind's own.

use serde_json::{Value, json};

use crate::registry::strategy::{RequestContext, Strategy};
use crate::schema::{SchemaRef, prune, set::SchemaSet};
use crate::status::{ApiResult, FieldError};

/// Behaviour of one built-in (group, version, resource).
#[derive(Debug)]
pub struct BuiltinStrategy {
    pub(super) group: &'static str,
    pub(super) version: &'static str,
    pub(super) resource: &'static str,
    pub(super) kind: &'static str,
}

impl BuiltinStrategy {
    pub fn new(group: &'static str, version: &'static str, resource: &'static str, kind: &'static str) -> Self {
        Self { group, version, resource, kind }
    }

    /// Kinds whose `status` is written through the status subresource only.
    fn has_status(&self) -> bool {
        !matches!(self.kind, "Lease" | "Event") && self.schema().is_some_and(|s| s.field("status").is_some())
    }

    /// Kinds whose `metadata.generation` counts changes of the spec.
    fn has_generation(&self) -> bool {
        matches!(
            (self.group, self.kind),
            ("apps", "Deployment" | "DaemonSet" | "ReplicaSet" | "StatefulSet")
                | ("batch", "Job" | "CronJob")
                | ("", "ReplicationController" | "Pod")
                | ("networking.k8s.io", "Ingress" | "NetworkPolicy" | "IngressClass" | "ServiceCIDR")
                | ("policy", "PodDisruptionBudget")
                | ("apiextensions.k8s.io" | "admissionregistration.k8s.io" | "flowcontrol.apiserver.k8s.io", _)
                | ("discovery.k8s.io", "EndpointSlice")
                | ("scheduling.k8s.io", "PriorityClass")
        )
    }
}

impl Strategy for BuiltinStrategy {
    fn default(&self, _object: &mut Value) {}

    fn prepare_create(&self, _ctx: &RequestContext, object: &mut Value) {
        if self.has_status()
            && let Some(fields) = object.as_object_mut()
        {
            fields.remove("status");
        }
        if self.has_generation() {
            object["metadata"]["generation"] = json!(1);
        }
    }

    fn prepare_update(&self, ctx: &RequestContext, old: &Value, new: &mut Value) {
        if !self.has_status() {
            return;
        }
        let (Some(before), Some(after)) = (old.as_object(), new.as_object_mut()) else { return };
        if ctx.subresource == "status" {
            let status = after.remove("status");
            let metadata = after.remove("metadata");
            *after = before.clone();
            after.extend(status.map(|status| (String::from("status"), status)));
            after.extend(metadata.map(|metadata| (String::from("metadata"), metadata)));
        } else {
            match before.get("status") {
                Some(status) => after.insert("status".into(), status.clone()),
                None => after.remove("status"),
            };
            if self.has_generation() && before.get("spec") != after.get("spec") {
                let generation = before["metadata"]["generation"].as_i64().unwrap_or(0) + 1;
                new["metadata"]["generation"] = json!(generation);
            }
        }
    }

    fn validate_create(&self, _ctx: &RequestContext, _object: &Value) -> Vec<FieldError> {
        Vec::new()
    }

    fn validate_update(&self, _ctx: &RequestContext, _old: &Value, _new: &Value) -> Vec<FieldError> {
        Vec::new()
    }

    fn validate_name(&self, _name: &str, _prefix: bool) -> Vec<String> {
        Vec::new()
    }

    fn schema(&self) -> Option<SchemaRef> {
        SchemaSet::builtin().kind(self.group, self.version, self.kind)
    }

    fn prune(&self, object: &mut Value) {
        if let Some(schema) = self.schema() {
            prune(&schema, object);
        }
    }

    fn selectable_fields(&self, _object: &Value) -> Vec<(String, String)> {
        Vec::new()
    }

    fn convert(
        &self,
        objects: Vec<Value>,
        to_api_version: &str,
    ) -> futures::future::BoxFuture<'_, ApiResult<Vec<Value>>> {
        let to = to_api_version.to_owned();
        Box::pin(async move {
            Ok(objects
                .into_iter()
                .map(|mut object| {
                    object["apiVersion"] = json!(to);
                    object
                })
                .collect())
        })
    }
}
