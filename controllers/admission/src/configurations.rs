//! Webhook configurations with Karmada's names, rules and paths.

use crowsnest_api::constants::label;
use serde_json::{Value, json};

/// A webhook and the one rule that selects its requests.
struct Webhook {
    name: &'static str,
    path: &'static str,
    group: &'static str,
    resource: &'static str,
    scope: &'static str,
    operations: &'static [&'static str],
}

const CREATE_AND_UPDATE: &[&str] = &["CREATE", "UPDATE"];

const fn namespaced_webhook(
    name: &'static str,
    path: &'static str,
    group: &'static str,
    resource: &'static str,
) -> Webhook {
    Webhook { name, path, group, resource, scope: "Namespaced", operations: CREATE_AND_UPDATE }
}

const fn cluster_webhook(
    name: &'static str,
    path: &'static str,
    group: &'static str,
    resource: &'static str,
) -> Webhook {
    Webhook { name, path, group, resource, scope: "Cluster", operations: CREATE_AND_UPDATE }
}

const POLICY: &str = "policy.karmada.io";
const WORK: &str = "work.karmada.io";
const CONFIG: &str = "config.karmada.io";
const AUTOSCALING: &str = "autoscaling.karmada.io";
const NETWORKING: &str = "networking.karmada.io";
const CREATE: &[&str] = &["CREATE"];

#[rustfmt::skip]
const MUTATING: [Webhook; 8] = [
    namespaced_webhook("propagationpolicy.karmada.io", "/mutate-propagationpolicy", POLICY, "propagationpolicies"),
    cluster_webhook("clusterpropagationpolicy.karmada.io", "/mutate-clusterpropagationpolicy", POLICY, "clusterpropagationpolicies"),
    namespaced_webhook("overridepolicy.karmada.io", "/mutate-overridepolicy", POLICY, "overridepolicies"),
    Webhook { operations: CREATE, ..namespaced_webhook("resourcebinding.karmada.io", "/mutate-resourcebinding", WORK, "resourcebindings") },
    Webhook { operations: CREATE, ..cluster_webhook("clusterresourcebinding.karmada.io", "/mutate-clusterresourcebinding", WORK, "clusterresourcebindings") },
    namespaced_webhook("work.karmada.io", "/mutate-work", WORK, "works"),
    namespaced_webhook("autoscaling.karmada.io", "/mutate-federatedhpa", AUTOSCALING, "federatedhpas"),
    namespaced_webhook("multiclusterservice.karmada.io", "/mutate-multiclusterservice", NETWORKING, "multiclusterservices"),
];

#[rustfmt::skip]
const VALIDATING: [Webhook; 14] = [
    namespaced_webhook("propagationpolicy.karmada.io", "/validate-propagationpolicy", POLICY, "propagationpolicies"),
    cluster_webhook("clusterpropagationpolicy.karmada.io", "/validate-clusterpropagationpolicy", POLICY, "clusterpropagationpolicies"),
    namespaced_webhook("overridepolicy.karmada.io", "/validate-overridepolicy", POLICY, "overridepolicies"),
    cluster_webhook("clusteroverridepolicy.karmada.io", "/validate-clusteroverridepolicy", POLICY, "clusteroverridepolicies"),
    cluster_webhook("config.karmada.io", "/validate-resourceinterpreterwebhookconfiguration", CONFIG, "resourceinterpreterwebhookconfigurations"),
    cluster_webhook("resourceinterpretercustomization.karmada.io", "/validate-resourceinterpretercustomization", CONFIG, "resourceinterpretercustomizations"),
    namespaced_webhook("federatedresourcequota.karmada.io", "/validate-federatedresourcequota", POLICY, "federatedresourcequotas"),
    namespaced_webhook("multiclusteringress.karmada.io", "/validate-multiclusteringress", NETWORKING, "multiclusteringresses"),
    namespaced_webhook("federatedhpa.karmada.io", "/validate-federatedhpa", AUTOSCALING, "federatedhpas"),
    namespaced_webhook("cronfederatedhpa.karmada.io", "/validate-cronfederatedhpa", AUTOSCALING, "cronfederatedhpas"),
    namespaced_webhook("multiclusterservice.karmada.io", "/validate-multiclusterservice", NETWORKING, "multiclusterservices"),
    Webhook { scope: "*", operations: &["DELETE"], ..cluster_webhook("resourcedeletionprotection.karmada.io", DELETION_PROTECTION, "*", "*") },
    namespaced_webhook("resourcebinding.karmada.io", "/validate-resourcebinding", WORK, "resourcebindings"),
    cluster_webhook("clustertaintpolicy.karmada.io", "/validate-clustertaintpolicy", POLICY, "clustertaintpolicies"),
];

/// Path of the webhook that protects objects of all kinds from deletion.
pub const DELETION_PROTECTION: &str = "/validate-resourcedeletionprotection";

const TIMEOUT_SECONDS: u32 = 3;
/// Timeout of the webhook for ResourceInterpreterCustomizations, which compiles Lua scripts and reads all other
/// customizations.
const LONG_TIMEOUT_SECONDS: u32 = 10;

impl Webhook {
    fn manifest(&self, ca_bundle: &str, base_url: &str) -> Value {
        let mut hook = json!({
            "name": self.name,
            "rules": [{
                "operations": self.operations,
                "apiGroups": [self.group],
                "apiVersions": ["*"],
                "resources": [self.resource],
                "scope": self.scope,
            }],
            "clientConfig": { "url": format!("{base_url}{}", self.path), "caBundle": ca_bundle },
            "failurePolicy": "Fail",
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
            "timeoutSeconds": TIMEOUT_SECONDS,
        });
        match self.path {
            "/validate-resourceinterpretercustomization" => hook["timeoutSeconds"] = LONG_TIMEOUT_SECONDS.into(),
            // This webhook records usage in quotas.
            "/validate-resourcebinding" => hook["sideEffects"] = "NoneOnDryRun".into(),
            DELETION_PROTECTION => {
                hook["objectSelector"] =
                    json!({ "matchExpressions": [{ "key": label::DELETION_PROTECTED, "operator": "Exists" }] });
            }
            _ => {}
        }
        hook
    }
}

/// The mutating and the validating webhook configuration. `ca_bundle` is PEM in base64, `base_url` has no trailing
/// slash.
pub fn webhook_configurations(ca_bundle: &str, base_url: &str) -> [Value; 2] {
    let configuration = |kind: &str, name: &str, hooks: &[Webhook]| {
        json!({
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": kind,
            "metadata": { "name": name, "labels": { "app": "karmada-webhook" } },
            "webhooks": hooks.iter().map(|hook| hook.manifest(ca_bundle, base_url)).collect::<Vec<_>>(),
        })
    };
    [
        configuration("MutatingWebhookConfiguration", "mutating-config", &MUTATING),
        configuration("ValidatingWebhookConfiguration", "validating-config", &VALIDATING),
    ]
}

/// The name of a webhook by its path, as it appears in error messages.
pub fn webhook_name(path: &str) -> Option<&'static str> {
    MUTATING.iter().chain(&VALIDATING).find(|hook| hook.path == path).map(|hook| hook.name)
}
