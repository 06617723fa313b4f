//! Describes Pods. Has no side effects.

use serde_json::Value;

use super::containers::{add_containers, add_tolerations, add_topology_spread, add_volumes};
use super::{add_conditions, age_since, controller};
use crate::verbs::describe::render::add_labels_and_annotations;
use crate::verbs::describe::sheet::{NONE, Sheet, list, number, or_none, time, to_text};

pub(super) fn describe_pod(sheet: &mut Sheet, pod: &Value, now: jiff::Timestamp) {
    let (spec, status) = (&pod["spec"], &pod["status"]);
    sheet.add_field_if_set(0, "Priority", &spec["priority"]);
    sheet.add_field_if_set(0, "Priority Class Name", &spec["priorityClassName"]);
    sheet.add_field_if_set(0, "Runtime Class Name", &spec["runtimeClassName"]);
    sheet.add_field_if_set(0, "Service Account", &spec["serviceAccountName"]);
    match spec["nodeName"].as_str().filter(|node| !node.is_empty()) {
        Some(node) => sheet.add_field(0, "Node", format!("{node}/{}", status["hostIP"].as_str().unwrap_or_default())),
        None => sheet.add_field(0, "Node", NONE),
    }
    if status["startTime"].is_string() {
        sheet.add_field(0, "Start Time", time(&status["startTime"]));
    }
    add_labels_and_annotations(sheet, pod);
    add_status(sheet, pod, now);
    sheet.add_field_if_set(0, "SeccompProfile", &spec["securityContext"]["seccompProfile"]["type"]);
    sheet.add_field(0, "IP", status["podIP"].as_str().unwrap_or_default());
    match list(&status["podIPs"]) {
        [] => sheet.add_field(0, "IPs", NONE),
        all => {
            sheet.add_heading(0, "IPs");
            all.iter().for_each(|address| sheet.add_field(2, "IP", to_text(&address["ip"])));
        }
    }
    if let Some(controller) = controller(pod) {
        sheet.add_field(0, "Controlled By", controller);
    }
    sheet.add_field_if_set(0, "NominatedNodeName", &status["nominatedNodeName"]);
    for (label, field, statuses) in [
        ("Init Containers", "initContainers", "initContainerStatuses"),
        ("Containers", "containers", "containerStatuses"),
        ("Ephemeral Containers", "ephemeralContainers", "ephemeralContainerStatuses"),
    ] {
        add_containers(sheet, 0, label, &spec[field], Some(&status[statuses]));
    }
    add_readiness_gates(sheet, pod);
    add_conditions(sheet, pod, &[("Type", "type"), ("Status", "status")]);
    add_volumes(sheet, 0, &spec["volumes"]);
    sheet.add_field(0, "QoS Class", or_none(&status["qosClass"]));
    sheet.add_pairs(0, "Node-Selectors", &spec["nodeSelector"], "=");
    add_tolerations(sheet, 0, spec);
    add_topology_spread(sheet, 0, spec);
}

fn add_status(sheet: &mut Sheet, pod: &Value, now: jiff::Timestamp) {
    let (metadata, status) = (&pod["metadata"], &pod["status"]);
    let has_ended = matches!(status["phase"].as_str(), Some("Failed" | "Succeeded"));
    if metadata["deletionTimestamp"].is_string() && !has_ended {
        sheet.add_field(0, "Status", format!("Terminating (lasts {})", age_since(&metadata["deletionTimestamp"], now)));
        let grace = number(&metadata["deletionGracePeriodSeconds"]);
        sheet.add_field(0, "Termination Grace Period", format!("{grace}s"));
    } else {
        sheet.add_field(0, "Status", status["phase"].as_str().unwrap_or_default());
    }
    sheet.add_field_if_set(0, "Reason", &status["reason"]);
    sheet.add_field_if_set(0, "Message", &status["message"]);
}

fn add_readiness_gates(sheet: &mut Sheet, pod: &Value) {
    let gates = list(&pod["spec"]["readinessGates"]);
    if gates.is_empty() {
        return;
    }
    let row = |gate: &Value| {
        let kind = &gate["conditionType"];
        let found = list(&pod["status"]["conditions"]).iter().find(|condition| condition["type"] == *kind);
        vec![to_text(kind), found.map_or_else(|| NONE.to_owned(), |condition| to_text(&condition["status"]))]
    };
    sheet.add_heading(0, "Readiness Gates");
    sheet.add_table(2, &["Type", "Status"], &gates.iter().map(row).collect::<Vec<_>>());
}
