//! Webhook configurations of the internal group, in which the aggregated APIs store their objects.

use crowsnest_api::storage::{CLUSTERS, GROUP, RESOURCE_REGISTRIES, StoredKind};
use serde_json::{Value, json};

/// Kinds of the internal group with admission webhooks.
pub const ADMITTED_KINDS: [&StoredKind; 2] = [&CLUSTERS, &RESOURCE_REGISTRIES];

/// Webhook configurations for the internal group. `base_url` has no trailing slash; `ca_bundle` is PEM in base64.
pub fn webhook_configurations(ca_bundle: &str, base_url: &str) -> [Value; 2] {
    let configuration = |kind: &str, prefix: &str| {
        let hooks: Vec<Value> = ADMITTED_KINDS
            .iter()
            .map(|StoredKind { plural, stored_plural, .. }| {
                json!({
                    "name": format!("{prefix}-{plural}.{GROUP}"),
                    "clientConfig": {"url": format!("{base_url}/stored/{plural}"), "caBundle": ca_bundle},
                    "rules": [{"apiGroups": [GROUP], "apiVersions": ["v1alpha1"], "operations": ["CREATE", "UPDATE"],
                               "resources": [stored_plural, format!("{stored_plural}/status")], "scope": "*"}],
                    "failurePolicy": "Fail", "sideEffects": "None", "admissionReviewVersions": ["v1"], "timeoutSeconds": 5,
                })
            })
            .collect();
        json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": {"name": GROUP}, "webhooks": hooks})
    };
    [
        configuration("MutatingWebhookConfiguration", "default"),
        configuration("ValidatingWebhookConfiguration", "validate"),
    ]
}
