//! Describes PersistentVolumeClaims and the pods that use them. Has no side effects.

use serde_json::Value;

use super::{CONDITIONS, PODS, RelatedObjects, add_conditions, format_unknown};
use crate::verbs::describe::render::add_labels_and_annotations;
use crate::verbs::describe::sheet::{Sheet, join_or_none, list, or_none, to_text};

pub(super) fn describe_claim(sheet: &mut Sheet, claim: &Value, related: &RelatedObjects) {
    let (metadata, spec, status) = (&claim["metadata"], &claim["spec"], &claim["status"]);
    sheet.add_field(0, "StorageClass", spec["storageClassName"].as_str().unwrap_or_default());
    match metadata["deletionTimestamp"].as_str() {
        Some(since) => sheet.add_field(0, "Status", format!("Terminating (since {since})")),
        None => sheet.add_field(0, "Status", or_none(&status["phase"])),
    }
    sheet.add_field(0, "Volume", spec["volumeName"].as_str().unwrap_or_default());
    add_labels_and_annotations(sheet, claim);
    sheet.add_field(
        0,
        "Finalizers",
        format!("[{}]", list(&metadata["finalizers"]).iter().map(to_text).collect::<Vec<_>>().join(" ")),
    );
    let (capacity, modes) = match spec["volumeName"].as_str() {
        Some(_) => (
            status["capacity"]["storage"].as_str().unwrap_or_default().to_owned(),
            join_or_none(&status["accessModes"], ","),
        ),
        None => (String::new(), String::new()),
    };
    sheet.add_field(0, "Capacity", capacity);
    sheet.add_field(0, "Access Modes", modes);
    sheet.add_field_if_set(0, "VolumeMode", &spec["volumeMode"]);
    if spec["dataSource"].is_object() {
        let source = &spec["dataSource"];
        sheet.add_heading(0, "DataSource");
        sheet.add_field_if_set(2, "APIGroup", &source["apiGroup"]);
        sheet.add_field(2, "Kind", to_text(&source["kind"]));
        sheet.add_field(2, "Name", to_text(&source["name"]));
    }
    match related.get(PODS) {
        Some(Ok(pods)) => {
            let users: Vec<String> = pods
                .iter()
                .filter(|pod| uses(pod, &metadata["name"]))
                .map(|pod| to_text(&pod["metadata"]["name"]))
                .collect();
            sheet.add_list(0, "Used By", &users);
        }
        Some(Err(reason)) => sheet.add_field(0, "Used By", format_unknown(reason)),
        None => {}
    }
    add_conditions(sheet, claim, &CONDITIONS);
}

/// True if the pod mounts the claim, by name or as an ephemeral volume.
fn uses(pod: &Value, claim: &Value) -> bool {
    let is_ephemeral_claim = |volume: &Value| {
        let (pod, volume) = (pod["metadata"]["name"].as_str(), volume["name"].as_str());
        pod.zip(volume).is_some_and(|(pod, volume)| *claim == format!("{pod}-{volume}").as_str())
    };
    list(&pod["spec"]["volumes"]).iter().any(|volume| {
        volume["persistentVolumeClaim"]["claimName"] == *claim && claim.is_string()
            || volume["ephemeral"].is_object() && is_ephemeral_claim(volume)
    })
}
