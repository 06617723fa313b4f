//! Describes Nodes and the pods that run there. Has no side effects.

use crowsnest_apimachinery::printers::print;
use crowsnest_apimachinery::quantity::Quantity;
use serde_json::Value;

use super::{LEASES, PODS, RelatedObjects, add_conditions, add_creation_timestamp, age_since, format_unknown};
use crate::amounts::{format_cpu, format_memory};
use crate::verbs::describe::render::add_labels_and_annotations;
use crate::verbs::describe::sheet::{NONE, Sheet, list, or_none, sorted_fields, time, to_text};

const ROLE: &str = "node-role.kubernetes.io/";

pub(super) fn describe_node(sheet: &mut Sheet, node: &Value, related: &RelatedObjects, now: jiff::Timestamp) {
    let (spec, status) = (&node["spec"], &node["status"]);
    let labels = node["metadata"]["labels"].as_object().into_iter().flatten();
    let mut roles: Vec<&str> = labels.filter_map(|(label, _)| label.strip_prefix(ROLE)).collect();
    roles.sort_unstable();
    sheet.add_field(0, "Roles", if roles.is_empty() { NONE.to_owned() } else { roles.join(",") });
    add_labels_and_annotations(sheet, node);
    add_creation_timestamp(sheet, node);
    add_taints(sheet, spec);
    sheet.add_field(0, "Unschedulable", (spec["unschedulable"] == true).to_string());
    add_lease(sheet, related);
    let columns = [
        ("Type", "type"),
        ("Status", "status"),
        ("LastHeartbeatTime", "lastHeartbeatTime"),
        ("LastTransitionTime", "lastTransitionTime"),
        ("Reason", "reason"),
        ("Message", "message"),
    ];
    add_conditions(sheet, node, &columns);
    sheet.add_heading(0, "Addresses");
    for address in list(&status["addresses"]) {
        sheet.add_field(2, &to_text(&address["type"]), to_text(&address["address"]));
    }
    for (label, field) in [("Capacity", "capacity"), ("Allocatable", "allocatable")] {
        let amounts = sorted_fields(&status[field]);
        if !amounts.is_empty() {
            sheet.add_heading(0, label);
            amounts.into_iter().for_each(|(name, amount)| sheet.add_field(2, name, to_text(amount)));
        }
    }
    add_system_info(sheet, &status["nodeInfo"]);
    sheet.add_field_if_set(0, "PodCIDR", &spec["podCIDR"]);
    let ranges: Vec<String> = list(&spec["podCIDRs"]).iter().map(to_text).collect();
    if !ranges.is_empty() {
        sheet.add_field(0, "PodCIDRs", ranges.join(","));
    }
    sheet.add_field_if_set(0, "ProviderID", &spec["providerID"]);
    match related.get(PODS) {
        Some(Ok(pods)) => add_allocated_resources(sheet, node, pods, now),
        Some(Err(reason)) => sheet.add_field(0, "Non-terminated Pods", format_unknown(reason)),
        None => {}
    }
}

/// Adds taints as `key=value:Effect`, one per line.
pub(super) fn add_taints(sheet: &mut Sheet, spec: &Value) {
    let format_taint = |taint: &Value| {
        let value = taint["value"].as_str().filter(|value| !value.is_empty());
        let value = value.map(|value| format!("={value}")).unwrap_or_default();
        format!("{}{value}:{}", to_text(&taint["key"]), to_text(&taint["effect"]))
    };
    let taints: Vec<String> = list(&spec["taints"]).iter().map(format_taint).collect();
    sheet.add_list(0, "Taints", &taints);
}

fn add_lease(sheet: &mut Sheet, related: &RelatedObjects) {
    match related.get(LEASES) {
        Some(Ok(leases)) => {
            let spec = leases.first().map(|lease| &lease["spec"]);
            let field_or_unset = |field: &str| spec.map_or_else(|| "<unset>".to_owned(), |spec| or_none(&spec[field]));
            let time_or_unset = |field: &str| spec.map_or_else(|| "<unset>".to_owned(), |spec| time(&spec[field]));
            sheet.add_heading(0, "Lease");
            sheet.add_field(2, "HolderIdentity", field_or_unset("holderIdentity"));
            sheet.add_field(2, "AcquireTime", time_or_unset("acquireTime"));
            sheet.add_field(2, "RenewTime", time_or_unset("renewTime"));
        }
        Some(Err(reason)) => sheet.add_field(0, "Lease", format_unknown(reason)),
        None => {}
    }
}

fn add_system_info(sheet: &mut Sheet, info: &Value) {
    sheet.add_heading(0, "System Info");
    for (label, field) in [
        ("Machine ID", "machineID"),
        ("System UUID", "systemUUID"),
        ("Boot ID", "bootID"),
        ("Kernel Version", "kernelVersion"),
        ("OS Image", "osImage"),
        ("Operating System", "operatingSystem"),
        ("Architecture", "architecture"),
        ("Container Runtime Version", "containerRuntimeVersion"),
        ("Kubelet Version", "kubeletVersion"),
    ] {
        sheet.add_field(2, label, info[field].as_str().unwrap_or_default());
    }
}

/// Requests and limits: CPU in millicores, memory in bytes.
#[derive(Debug, Clone, Copy, Default)]
struct ResourceUsage {
    cpu_millicores: [i64; 2],
    memory_bytes: [i64; 2],
}

impl ResourceUsage {
    fn from_pod(pod: &Value) -> Self {
        let printed = print("", "Pod", pod);
        let or_zero = |amount: Option<i64>| amount.unwrap_or_default();
        Self {
            cpu_millicores: [or_zero(printed.cpu_request), or_zero(printed.cpu_limit)],
            memory_bytes: [or_zero(printed.memory_request), or_zero(printed.memory_limit)],
        }
    }

    fn add(self, other: Self) -> Self {
        let sum =
            |left: [i64; 2], right: [i64; 2]| [left[0].saturating_add(right[0]), left[1].saturating_add(right[1])];
        Self {
            cpu_millicores: sum(self.cpu_millicores, other.cpu_millicores),
            memory_bytes: sum(self.memory_bytes, other.memory_bytes),
        }
    }
}

fn percentage(part: i64, total: i64) -> String {
    match total {
        0 => "0%".to_owned(),
        total => format!("{}%", i128::from(part) * 100 / i128::from(total)),
    }
}

fn cpu_share(millicores: i64, total: i64) -> String {
    format!("{} ({})", format_cpu(millicores), percentage(millicores, total))
}

fn memory_share(bytes: i64, total: i64) -> String {
    format!("{} ({})", format_memory(bytes), percentage(bytes, total))
}

/// Adds the node's pods with their requests and limits, and the sums as shares of the node's allocatable resources.
fn add_allocated_resources(sheet: &mut Sheet, node: &Value, pods: &[Value], now: jiff::Timestamp) {
    let allocatable = |name: &str| {
        let amount = node["status"]["allocatable"][name].as_str().or_else(|| node["status"]["capacity"][name].as_str());
        amount.and_then(|amount| Quantity::parse(amount).ok()).unwrap_or(Quantity::ZERO)
    };
    let (cpu, memory) = (allocatable("cpu").milli_value(), allocatable("memory").value());
    let mut total = ResourceUsage::default();
    let mut row = |pod: &Value| {
        let (metadata, used) = (&pod["metadata"], ResourceUsage::from_pod(pod));
        total = total.add(used);
        vec![
            to_text(&metadata["namespace"]),
            to_text(&metadata["name"]),
            cpu_share(used.cpu_millicores[0], cpu),
            cpu_share(used.cpu_millicores[1], cpu),
            memory_share(used.memory_bytes[0], memory),
            memory_share(used.memory_bytes[1], memory),
            age_since(&metadata["creationTimestamp"], now),
        ]
    };
    let mut rows: Vec<Vec<String>> = pods.iter().map(&mut row).collect();
    rows.sort();
    sheet.add_field(0, "Non-terminated Pods", format!("({} in total)", rows.len()));
    let heads = ["Namespace", "Name", "CPU Requests", "CPU Limits", "Memory Requests", "Memory Limits", "Age"];
    sheet.add_table(2, &heads, &rows);
    sheet.add_heading(0, "Allocated resources");
    sheet.add_line(2, "(Total limits may be over 100 percent, i.e., overcommitted.)");
    let rows = [
        vec!["cpu".to_owned(), cpu_share(total.cpu_millicores[0], cpu), cpu_share(total.cpu_millicores[1], cpu)],
        vec![
            "memory".to_owned(),
            memory_share(total.memory_bytes[0], memory),
            memory_share(total.memory_bytes[1], memory),
        ],
    ];
    sheet.add_table(2, &["Resource", "Requests", "Limits"], &rows);
}
