//! Argo Workflows.

use serde_json::{Value, json};

use super::super::dependencies::from_pod_spec;
use super::accessors::{list, replicas_or_one, value_at};
use super::{NO_RULES, ReplicasAndRequirements, RuleError, ThirdPartyKind, flux, pods};
use crowsnest_apimachinery::unstructured::{namespace, remove, set, text};
use crowsnest_plan::dependencies::Dependency;
use crowsnest_plan::gates::Gates;

pub(super) static KINDS: [ThirdPartyKind; 1] = [ThirdPartyKind {
    api_version: "argoproj.io/v1alpha1",
    kind: "Workflow",
    replicas: Some(replicas),
    revise: Some(pods::set_spec_parallelism),
    retain: Some(retain),
    health: Some(|member| Ok(!matches!(text(member, &["status", "phase"]), "" | "Error" | "Failed"))),
    dependencies: Some(dependencies),
    ..NO_RULES
}];

/// The number of replicas is the workflow's parallelism. There are no resource requests, because the steps define them.
fn replicas(template: &Value, gates: Gates) -> Result<ReplicasAndRequirements, RuleError> {
    let field = |name: &str| template.get("spec").and_then(|spec| spec.get(name));
    let pod = json!({"spec": {
        "affinity": field("affinity"), "nodeSelector": field("nodeSelector"), "tolerations": field("tolerations"),
    }});
    Ok((replicas_or_one(template, &["spec", "parallelism"])?, pods::requirements(&pod, gates)))
}

/// A workflow's status is its controller's state, so it is retained.
fn retain(desired: &mut Value, observed: &Value) {
    flux::retain_suspension(desired, observed);
    if let Some(status) = value_at(observed, &["status"]) {
        set(desired, &["status"], status.clone());
    }
}

/// Volumes, pull secrets and service accounts of the workflow. As in Karmada, claims from its templates are included,
/// and the Secret of a volume is read from the field `name` instead of `secretName`.
fn dependencies(template: &Value) -> Vec<Dependency> {
    let mut volumes: Vec<Value> = list(template, &["spec", "volumes"]).cloned().collect();
    for volume in &mut volumes {
        if let Some(secret) = volume.get_mut("secret") {
            let name = remove(secret, &["name"]).unwrap_or(Value::Null);
            set(secret, &["secretName"], name);
        }
    }
    let claims = list(template, &["spec", "volumeClaimTemplates"])
        .map(|claim| json!({"persistentVolumeClaim": {"claimName": text(claim, &["metadata", "name"])}}));
    volumes.extend(claims);
    let pod_spec = json!({
        "volumes": volumes,
        "imagePullSecrets": value_at(template, &["spec", "imagePullSecrets"]),
        "serviceAccountName": value_at(template, &["spec", "serviceAccountName"]),
    });
    let mut found = from_pod_spec(Some(&pod_spec), namespace(template));
    let executor = text(template, &["spec", "executor", "serviceAccountName"]);
    if !executor.is_empty() {
        found.push(Dependency::core("ServiceAccount", namespace(template), executor));
    }
    found
}
