//! Drops pod fields whose feature gates are off by default, unless the stored object has them already. From
//! `dropDisabledFields` in `pkg/api/pod`.

use serde_json::Value;

use super::object::{at, each, inside, is_set, items, take};

const CONTAINERS: [&str; 3] = ["containers", "initContainers", "ephemeralContainers"];
/// Volume projections behind the gates `ClusterTrustBundleProjection` and `PodCertificateRequest`.
const PROJECTIONS: [&str; 2] = ["clusterTrustBundle", "podCertificate"];

/// Path of the pod spec in a kind.
fn spec_of(kind: &str) -> Option<&'static str> {
    match kind {
        "Pod" => Some("spec"),
        "PodTemplate" => Some("template.spec"),
        "Deployment" | "ReplicaSet" | "ReplicationController" | "StatefulSet" | "DaemonSet" | "Job" => {
            Some("spec.template.spec")
        }
        "CronJob" => Some("spec.jobTemplate.spec.template.spec"),
        _ => None,
    }
}

/// Drops disabled fields; `old` is null on create.
pub(super) fn drop_fields(kind: &str, old: &Value, new: &mut Value) {
    let Some(path) = spec_of(kind) else { return };
    let old = at(old, path);
    let Some(spec) = inside(new, path) else { return };
    if !is_set(old, "schedulingGroup") {
        take(spec, "schedulingGroup");
    }
    let signals = |list: &&str| items(old, list).iter().any(|container| is_set(container, "lifecycle.stopSignal"));
    if !CONTAINERS.iter().any(signals) {
        CONTAINERS.iter().for_each(|list| each(spec, list, without_signal));
    }
    for projection in PROJECTIONS.into_iter().filter(|projection| !projects(old, projection)) {
        each(spec, "volumes", |volume| each(volume, "projected.sources", |source| drop(take(source, projection))));
    }
}

fn projects(spec: &Value, projection: &str) -> bool {
    let mut sources = items(spec, "volumes").iter().flat_map(|volume| items(volume, "projected.sources"));
    sources.any(|source| is_set(source, projection))
}

/// Removes the stop signal, and `lifecycle` if it becomes empty.
fn without_signal(container: &mut Value) {
    let Some(lifecycle) = inside(container, "lifecycle") else { return };
    let empty = take(lifecycle, "stopSignal").is_some() && lifecycle.as_object().is_some_and(serde_json::Map::is_empty);
    if empty {
        take(container, "lifecycle");
    }
}
