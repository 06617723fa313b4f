//! Webhook configurations of the internal group, which holds what the aggregated APIs serve.

use crowsnest_api::storage::GROUP;
use serde_json::{Value, json};

/// The kinds that the internal group holds: their plurals, and their groups and kinds as the aggregated APIs serve them.
pub const SERVED_KINDS: [(&str, &str, &str); 2] =
    [("clusters", "cluster.karmada.io", "Cluster"), ("resourceregistries", "search.karmada.io", "ResourceRegistry")];

/// Webhook configurations for the internal group. `base_url` has no trailing slash; `ca_bundle` is PEM in base64.
pub fn webhook_configurations(ca_bundle: &str, base_url: &str) -> [Value; 2] {
    let configuration = |kind: &str, prefix: &str| {
        let hooks: Vec<Value> = SERVED_KINDS
            .iter()
            .map(|(resource, _, _)| {
                json!({
                    "name": format!("{prefix}-{resource}.{GROUP}"),
                    "clientConfig": {"url": format!("{base_url}/stored/{resource}"), "caBundle": ca_bundle},
                    "rules": [{"apiGroups": [GROUP], "apiVersions": ["v1alpha1"], "operations": ["CREATE", "UPDATE"],
                               "resources": [resource, format!("{resource}/status")], "scope": "*"}],
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
