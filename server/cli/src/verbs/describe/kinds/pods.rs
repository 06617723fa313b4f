//! Describes Pods. Pure.

use serde_json::Value;

use super::containers::{containers, spread, tolerations, volumes};
use super::{conditions, controller, since};
use crate::verbs::describe::render::marks;
use crate::verbs::describe::sheet::{NONE, Sheet, list, number, or_none, plain, time};

pub(super) fn pod(sheet: &mut Sheet, pod: &Value, now: jiff::Timestamp) {
    let (spec, status) = (&pod["spec"], &pod["status"]);
    sheet.maybe(0, "Priority", &spec["priority"]);
    sheet.maybe(0, "Priority Class Name", &spec["priorityClassName"]);
    sheet.maybe(0, "Runtime Class Name", &spec["runtimeClassName"]);
    sheet.maybe(0, "Service Account", &spec["serviceAccountName"]);
    match spec["nodeName"].as_str().filter(|node| !node.is_empty()) {
        Some(node) => sheet.say(0, "Node", format!("{node}/{}", status["hostIP"].as_str().unwrap_or_default())),
        None => sheet.say(0, "Node", NONE),
    }
    if status["startTime"].is_string() {
        sheet.say(0, "Start Time", time(&status["startTime"]));
    }
    marks(sheet, pod);
    state(sheet, pod, now);
    sheet.maybe(0, "SeccompProfile", &spec["securityContext"]["seccompProfile"]["type"]);
    sheet.say(0, "IP", status["podIP"].as_str().unwrap_or_default());
    match list(&status["podIPs"]) {
        [] => sheet.say(0, "IPs", NONE),
        all => {
            sheet.head(0, "IPs");
            all.iter().for_each(|one| sheet.say(2, "IP", plain(&one["ip"])));
        }
    }
    if let Some(controller) = controller(pod) {
        sheet.say(0, "Controlled By", controller);
    }
    sheet.maybe(0, "NominatedNodeName", &status["nominatedNodeName"]);
    for (label, field, statuses) in [
        ("Init Containers", "initContainers", "initContainerStatuses"),
        ("Containers", "containers", "containerStatuses"),
        ("Ephemeral Containers", "ephemeralContainers", "ephemeralContainerStatuses"),
    ] {
        containers(sheet, 0, label, &spec[field], Some(&status[statuses]));
    }
    gates(sheet, pod);
    conditions(sheet, pod, &[("Type", "type"), ("Status", "status")]);
    volumes(sheet, 0, &spec["volumes"]);
    sheet.say(0, "QoS Class", or_none(&status["qosClass"]));
    sheet.pairs(0, "Node-Selectors", &spec["nodeSelector"], "=");
    tolerations(sheet, 0, spec);
    spread(sheet, 0, spec);
}

fn state(sheet: &mut Sheet, pod: &Value, now: jiff::Timestamp) {
    let (metadata, status) = (&pod["metadata"], &pod["status"]);
    let ended = matches!(status["phase"].as_str(), Some("Failed" | "Succeeded"));
    if metadata["deletionTimestamp"].is_string() && !ended {
        sheet.say(0, "Status", format!("Terminating (lasts {})", since(&metadata["deletionTimestamp"], now)));
        let grace = number(&metadata["deletionGracePeriodSeconds"]);
        sheet.say(0, "Termination Grace Period", format!("{grace}s"));
    } else {
        sheet.say(0, "Status", status["phase"].as_str().unwrap_or_default());
    }
    sheet.maybe(0, "Reason", &status["reason"]);
    sheet.maybe(0, "Message", &status["message"]);
}

fn gates(sheet: &mut Sheet, pod: &Value) {
    let gates = list(&pod["spec"]["readinessGates"]);
    if gates.is_empty() {
        return;
    }
    let row = |gate: &Value| {
        let kind = &gate["conditionType"];
        let found = list(&pod["status"]["conditions"]).iter().find(|condition| condition["type"] == *kind);
        vec![plain(kind), found.map_or_else(|| NONE.to_owned(), |condition| plain(&condition["status"]))]
    };
    sheet.head(0, "Readiness Gates");
    sheet.table(2, &["Type", "Status"], &gates.iter().map(row).collect::<Vec<_>>());
}
