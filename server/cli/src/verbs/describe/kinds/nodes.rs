//! Describes Nodes and the pods that run there. Pure.

use crowsnest_apimachinery::printers::print;
use crowsnest_apimachinery::quantity::{Format, Quantity};
use serde_json::Value;

use super::{LEASES, PODS, Related, conditions, created, since, unknown};
use crate::verbs::describe::render::marks;
use crate::verbs::describe::sheet::{NONE, Sheet, list, or_none, plain, sorted, time};

const ROLE: &str = "node-role.kubernetes.io/";

pub(super) fn node(sheet: &mut Sheet, node: &Value, related: &Related, now: jiff::Timestamp) {
    let (spec, status) = (&node["spec"], &node["status"]);
    let labels = node["metadata"]["labels"].as_object().into_iter().flatten();
    let mut roles: Vec<&str> = labels.filter_map(|(label, _)| label.strip_prefix(ROLE)).collect();
    roles.sort_unstable();
    sheet.say(0, "Roles", if roles.is_empty() { NONE.to_owned() } else { roles.join(",") });
    marks(sheet, node);
    created(sheet, node);
    taints(sheet, spec);
    sheet.say(0, "Unschedulable", (spec["unschedulable"] == true).to_string());
    lease(sheet, related);
    let columns = [
        ("Type", "type"),
        ("Status", "status"),
        ("LastHeartbeatTime", "lastHeartbeatTime"),
        ("LastTransitionTime", "lastTransitionTime"),
        ("Reason", "reason"),
        ("Message", "message"),
    ];
    conditions(sheet, node, &columns);
    sheet.head(0, "Addresses");
    for address in list(&status["addresses"]) {
        sheet.say(2, &plain(&address["type"]), plain(&address["address"]));
    }
    for (label, field) in [("Capacity", "capacity"), ("Allocatable", "allocatable")] {
        let amounts = sorted(&status[field]);
        if !amounts.is_empty() {
            sheet.head(0, label);
            amounts.into_iter().for_each(|(name, amount)| sheet.say(2, name, plain(amount)));
        }
    }
    system(sheet, &status["nodeInfo"]);
    sheet.maybe(0, "PodCIDR", &spec["podCIDR"]);
    let ranges: Vec<String> = list(&spec["podCIDRs"]).iter().map(plain).collect();
    if !ranges.is_empty() {
        sheet.say(0, "PodCIDRs", ranges.join(","));
    }
    sheet.maybe(0, "ProviderID", &spec["providerID"]);
    match related.get(PODS) {
        Some(Ok(pods)) => allocated(sheet, node, pods, now),
        Some(Err(why)) => sheet.say(0, "Non-terminated Pods", unknown(why)),
        None => {}
    }
}

/// Adds taints as `key=value:Effect`, one per line.
pub(super) fn taints(sheet: &mut Sheet, spec: &Value) {
    let one = |taint: &Value| {
        let value = taint["value"].as_str().filter(|value| !value.is_empty());
        let value = value.map(|value| format!("={value}")).unwrap_or_default();
        format!("{}{value}:{}", plain(&taint["key"]), plain(&taint["effect"]))
    };
    let all: Vec<String> = list(&spec["taints"]).iter().map(one).collect();
    sheet.list(0, "Taints", &all);
}

fn lease(sheet: &mut Sheet, related: &Related) {
    match related.get(LEASES) {
        Some(Ok(leases)) => {
            let spec = leases.first().map(|lease| &lease["spec"]);
            let of = |field: &str| spec.map_or_else(|| "<unset>".to_owned(), |spec| or_none(&spec[field]));
            let when = |field: &str| spec.map_or_else(|| "<unset>".to_owned(), |spec| time(&spec[field]));
            sheet.head(0, "Lease");
            sheet.say(2, "HolderIdentity", of("holderIdentity"));
            sheet.say(2, "AcquireTime", when("acquireTime"));
            sheet.say(2, "RenewTime", when("renewTime"));
        }
        Some(Err(why)) => sheet.say(0, "Lease", unknown(why)),
        None => {}
    }
}

fn system(sheet: &mut Sheet, info: &Value) {
    sheet.head(0, "System Info");
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
        sheet.say(2, label, info[field].as_str().unwrap_or_default());
    }
}

/// Requests and limits: CPU in millicores, memory in bytes.
#[derive(Debug, Clone, Copy, Default)]
struct Use {
    cpu: [i64; 2],
    memory: [i64; 2],
}

impl Use {
    fn of(pod: &Value) -> Self {
        let printed = print("", "Pod", pod);
        let of = |amount: Option<i64>| amount.unwrap_or_default();
        Self {
            cpu: [of(printed.cpu_request), of(printed.cpu_limit)],
            memory: [of(printed.memory_request), of(printed.memory_limit)],
        }
    }

    fn and(self, other: Self) -> Self {
        let sum = |one: [i64; 2], other: [i64; 2]| [one[0].saturating_add(other[0]), one[1].saturating_add(other[1])];
        Self { cpu: sum(self.cpu, other.cpu), memory: sum(self.memory, other.memory) }
    }
}

fn part(of: i64, whole: i64) -> String {
    match whole {
        0 => "0%".to_owned(),
        whole => format!("{}%", i128::from(of) * 100 / i128::from(whole)),
    }
}

fn cpu(milli: i64, whole: i64) -> String {
    format!("{} ({})", Quantity::from_milli(milli, Format::DecimalSI), part(milli, whole))
}

fn memory(bytes: i64, whole: i64) -> String {
    format!("{} ({})", Quantity::new(bytes, Format::BinarySI), part(bytes, whole))
}

/// Adds the node's pods with their requests and limits, and the sums as shares of the node's allocatable resources.
fn allocated(sheet: &mut Sheet, node: &Value, pods: &[Value], now: jiff::Timestamp) {
    let whole = |name: &str| {
        let amount = node["status"]["allocatable"][name].as_str().or_else(|| node["status"]["capacity"][name].as_str());
        amount.and_then(|amount| Quantity::parse(amount).ok()).unwrap_or(Quantity::ZERO)
    };
    let (cores, bytes) = (whole("cpu").milli_value(), whole("memory").value());
    let mut total = Use::default();
    let mut row = |pod: &Value| {
        let (metadata, used) = (&pod["metadata"], Use::of(pod));
        total = total.and(used);
        vec![
            plain(&metadata["namespace"]),
            plain(&metadata["name"]),
            cpu(used.cpu[0], cores),
            cpu(used.cpu[1], cores),
            memory(used.memory[0], bytes),
            memory(used.memory[1], bytes),
            since(&metadata["creationTimestamp"], now),
        ]
    };
    let mut rows: Vec<Vec<String>> = pods.iter().map(&mut row).collect();
    rows.sort();
    sheet.say(0, "Non-terminated Pods", format!("({} in total)", rows.len()));
    let heads = ["Namespace", "Name", "CPU Requests", "CPU Limits", "Memory Requests", "Memory Limits", "Age"];
    sheet.table(2, &heads, &rows);
    sheet.head(0, "Allocated resources");
    sheet.line(2, "(Total limits may be over 100 percent, i.e., overcommitted.)");
    let rows = [
        vec!["cpu".to_owned(), cpu(total.cpu[0], cores), cpu(total.cpu[1], cores)],
        vec!["memory".to_owned(), memory(total.memory[0], bytes), memory(total.memory[1], bytes)],
    ];
    sheet.table(2, &["Resource", "Requests", "Limits"], &rows);
}
