//! Drops pod fields whose feature gates are off by default, unless the stored object has them already. From
//! `dropDisabledFields` in `pkg/api/pod`.

use serde_json::Value;

use super::object::{at, at_mut, for_each_item, is_set, items, remove_field};

const CONTAINERS: [&str; 3] = ["containers", "initContainers", "ephemeralContainers"];
/// Volume projections behind the gates `ClusterTrustBundleProjection` and `PodCertificateRequest`.
const PROJECTIONS: [&str; 2] = ["clusterTrustBundle", "podCertificate"];

/// Path of the pod spec in a kind.
fn pod_spec_path(kind: &str) -> Option<&'static str> {
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
pub(super) fn drop_disabled_fields(kind: &str, old: &Value, new: &mut Value) {
    let Some(path) = pod_spec_path(kind) else { return };
    let old = at(old, path);
    let Some(spec) = at_mut(new, path) else { return };
    if !is_set(old, "schedulingGroup") {
        remove_field(spec, "schedulingGroup");
    }
    let has_stop_signal =
        |list: &&str| items(old, list).iter().any(|container| is_set(container, "lifecycle.stopSignal"));
    if !CONTAINERS.iter().any(has_stop_signal) {
        CONTAINERS.iter().for_each(|list| for_each_item(spec, list, remove_stop_signal));
    }
    for projection in PROJECTIONS.into_iter().filter(|projection| !has_projection(old, projection)) {
        for_each_item(spec, "volumes", |volume| {
            for_each_item(volume, "projected.sources", |source| drop(remove_field(source, projection)))
        });
    }
}

fn has_projection(spec: &Value, projection: &str) -> bool {
    let mut sources = items(spec, "volumes").iter().flat_map(|volume| items(volume, "projected.sources"));
    sources.any(|source| is_set(source, projection))
}

/// Removes the stop signal, and `lifecycle` if it becomes empty.
fn remove_stop_signal(container: &mut Value) {
    let Some(lifecycle) = at_mut(container, "lifecycle") else { return };
    let empty =
        remove_field(lifecycle, "stopSignal").is_some() && lifecycle.as_object().is_some_and(serde_json::Map::is_empty);
    if empty {
        remove_field(container, "lifecycle");
    }
}
