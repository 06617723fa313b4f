//! STATUS and other columns of a pod by the rules of kube-apiserver (`printPod` in pkg/printers/internalversion): the
//! state of a container has precedence over the phase.

use super::view::{Condition, Container, ContainerState, ContainerStatus, Pod, ResourceList, ResourceRequirements};
use super::{Cell, PrintedObject};

pub(super) fn print(pod: Pod<'_>) -> PrintedObject {
    let Row { status, ready, containers, restarts, last_restart } = Row::new(&pod);
    let mut printed = PrintedObject {
        phase: pod.status.phase.as_deref().map(str::to_owned),
        conditions: pod.status.conditions.iter().map(|c| (c.type_.to_string(), c.status.to_string())).collect(),
        ready: Some(ready),
        desired: Some(containers),
        restarts: Some(restarts),
        node: pod.spec.node_name.as_deref().filter(|node| !node.is_empty()).map(str::to_owned),
        message: pod.status.message.as_deref().map(str::to_owned),
        ..PrintedObject::default()
    };
    add_reasons_and_exit_codes(&pod, &mut printed);
    printed.images = pod.spec.all_containers().filter_map(|c| c.image.as_deref()).map(str::to_owned).collect();
    printed.ips = pod.status.pod_ips.iter().map(|ip| ip.ip.to_string()).collect();
    if printed.ips.is_empty() {
        printed.ips.extend(pod.status.pod_ip.as_deref().map(str::to_owned));
    }
    add_resources(&pod, &mut printed);
    printed.fields = fields(&pod);
    let or_none = |text: Option<&str>| Cell::text(text.filter(|text| !text.is_empty()).unwrap_or("<none>"));
    let restarted = last_restart.filter(|_| restarts != 0);
    printed.cells = vec![
        Cell::text(pod.metadata.name.as_ref()),
        Cell::text(format!("{ready}/{containers}")),
        Cell::text(status.clone()),
        restarted.map_or_else(
            || Cell::text(restarts.to_string()),
            |last_occurrence| Cell::Ago { count: restarts, last_occurrence },
        ),
        Cell::since(pod.metadata.creation_seconds()),
        or_none(printed.ips.first().map(String::as_str)),
        or_none(pod.spec.node_name.as_deref()),
        or_none(pod.status.nominated_node_name.as_deref()),
        readiness_gates(&pod),
    ];
    printed.status = (!status.is_empty()).then_some(status);
    printed
}

fn has_condition(pod: &Pod<'_>, condition_type: &str) -> bool {
    pod.status.conditions.iter().any(|condition| condition.type_ == condition_type && condition.status == "True")
}

fn readiness_gates(pod: &Pod<'_>) -> Cell {
    let gates = &pod.spec.readiness_gates;
    if gates.is_empty() {
        return Cell::text("<none>");
    }
    let passed = gates.iter().filter(|gate| has_condition(pod, &gate.condition_type)).count();
    Cell::text(format!("{passed}/{}", gates.len()))
}

/// Values of a pod's row that are computed from several fields.
struct Row {
    /// `Running`, `CrashLoopBackOff`, `Init:1/2`, `Terminating`, …
    status: String,
    /// Ready containers, including sidecars.
    ready: i64,
    /// Containers, including sidecars.
    containers: i64,
    restarts: i64,
    /// Latest time at which a container ended before it was restarted, Unix seconds.
    last_restart: Option<i64>,
}

#[derive(Default)]
struct Restarts {
    count: i64,
    last: Option<i64>,
}

impl Restarts {
    fn add(&mut self, status: &ContainerStatus<'_>) {
        self.count += status.restart_count;
        let ended = status.last_state.terminated.as_ref().and_then(|end| end.finished_at.as_deref());
        self.last = self.last.max(ended.and_then(super::unix_seconds));
    }
}

fn waiting_reason<'s>(state: &'s ContainerState<'_>) -> Option<&'s str> {
    state.waiting.as_ref()?.reason.as_deref().filter(|reason| !reason.is_empty())
}

/// STATUS during initialization, such as `Init:1/2`; `None` once every init container has completed or is a started
/// sidecar. Also counts ready sidecars and the restarts of all init containers and of sidecars.
fn init_status(pod: &Pod<'_>, ready: &mut i64, all: &mut Restarts, sidecars: &mut Restarts) -> Option<String> {
    let total = pod.spec.init_containers.len();
    for (nth, status) in pod.status.init_container_statuses.iter().enumerate() {
        let is_sidecar = pod.spec.is_sidecar(&status.name);
        all.add(status);
        if is_sidecar {
            sidecars.add(status);
        }
        let terminated = status.state.terminated.as_ref();
        if terminated.is_some_and(|end| end.exit_code == 0) {
            continue;
        }
        if is_sidecar && status.started == Some(true) {
            *ready += i64::from(status.ready);
            continue;
        }
        let waiting = waiting_reason(&status.state).filter(|reason| *reason != "PodInitializing");
        return Some(match (terminated, waiting) {
            (Some(end), _) => format!("Init:{}", end.status_text()),
            (None, Some(reason)) => format!("Init:{reason}"),
            (None, None) => format!("Init:{nth}/{total}"),
        });
    }
    None
}

impl Row {
    /// Determines the status in the order of `printPod`: the pod's reason or phase, scheduling gates, init
    /// containers, containers, deletion. Each of them replaces the status before it.
    fn new(pod: &Pod<'_>) -> Self {
        let phase = pod.status.phase.as_deref().unwrap_or_default();
        let pod_reason = pod.status.reason.as_deref().filter(|reason| !reason.is_empty());
        let mut status = pod_reason.unwrap_or(phase).to_owned();
        let is_gated = |c: &Condition<'_>| c.type_ == "PodScheduled" && c.reason.as_deref() == Some("SchedulingGated");
        if pod.status.conditions.iter().any(is_gated) {
            status = "SchedulingGated".to_owned();
        }
        let (mut ready, mut restarts, mut sidecars) = (0, Restarts::default(), Restarts::default());
        let init_status = init_status(pod, &mut ready, &mut restarts, &mut sidecars);
        let is_initializing = init_status.is_some();
        status = init_status.unwrap_or(status);
        if !is_initializing || has_condition(pod, "Initialized") {
            restarts = sidecars;
            status = main_status(pod, status, &mut ready, &mut restarts);
        }
        if pod.metadata.deletion_timestamp.is_some() {
            if pod_reason == Some("NodeLost") {
                status = "Unknown".to_owned();
            } else if !matches!(phase, "Succeeded" | "Failed") {
                status = "Terminating".to_owned();
            }
        }
        let is_sidecar = |container: &&Container<'_>| container.restart_policy.as_deref() == Some("Always");
        let containers = pod.spec.containers.len() + pod.spec.init_containers.iter().filter(is_sidecar).count();
        Row { status, ready, containers: containers as i64, restarts: restarts.count, last_restart: restarts.last }
    }
}

/// STATUS according to the containers that are not init containers; `status` if none of them determines it. Also counts ready
/// containers and restarts.
fn main_status(pod: &Pod<'_>, mut status: String, ready: &mut i64, restarts: &mut Restarts) -> String {
    let mut running = false;
    for container in pod.status.container_statuses.iter().rev() {
        restarts.add(container);
        if let Some(reason) = waiting_reason(&container.state) {
            status = reason.to_owned();
        } else if let Some(end) = &container.state.terminated {
            status = end.status_text();
        } else if container.ready && container.state.running.is_some() {
            running = true;
            *ready += 1;
        }
    }
    if status == "Completed" && running {
        status = if has_condition(pod, "Ready") { "Running" } else { "NotReady" }.to_owned();
    }
    status
}

fn add_reasons_and_exit_codes(pod: &Pod<'_>, printed: &mut PrintedObject) {
    printed.reasons.extend(pod.status.reason.as_deref().map(str::to_owned));
    printed.reasons.extend(pod.status.conditions.iter().filter_map(|c| c.reason.as_deref()).map(str::to_owned));
    for container in pod.status.container_statuses.iter().chain(&pod.status.init_container_statuses) {
        for state in [&container.state, &container.last_state] {
            if let Some(wait) = &state.waiting {
                printed.reasons.extend(wait.reason.as_deref().map(str::to_owned));
                if printed.message.is_none() {
                    printed.message = wait.message.as_deref().map(str::to_owned);
                }
            }
            if let Some(end) = &state.terminated {
                printed.reasons.extend(end.reason.as_deref().map(str::to_owned));
                printed.exit_codes.push(end.exit_code);
            }
        }
    }
    printed.reasons.retain(|reason| !reason.is_empty());
    printed.exit_codes.sort_unstable();
    printed.exit_codes.dedup();
}

/// Adds the effective requests and limits by the rules of kubectl (`PodRequests` and `PodLimits` in component-helpers):
/// those of the containers or, if there are any, of the pod level (KEP-2837), plus the overhead, which is added to a
/// limit only if there is one.
fn add_resources(pod: &Pod<'_>, printed: &mut PrintedObject) {
    let amount_and_overhead = |requests_or_limits: RequestsOrLimits, amount: ReadAmount| {
        let at_pod_level = amount(requests_or_limits(&pod.spec.resources));
        let total = at_pod_level.or_else(|| sum_of_containers(pod, requests_or_limits, amount));
        (total, amount(&pod.spec.overhead))
    };
    let request = |amount: ReadAmount| match amount_and_overhead(|resources| &resources.requests, amount) {
        (None, None) => None,
        (total, overhead) => Some(total.unwrap_or(0).saturating_add(overhead.unwrap_or(0))),
    };
    let limit = |amount: ReadAmount| {
        let (total, overhead) = amount_and_overhead(|resources| &resources.limits, amount);
        total.map(|total| total.saturating_add(overhead.unwrap_or(0)))
    };
    printed.cpu_request = request(|amounts| amounts.cpu_milli());
    printed.cpu_limit = limit(|amounts| amounts.cpu_milli());
    printed.memory_request = request(|amounts| amounts.memory_bytes());
    printed.memory_limit = limit(|amounts| amounts.memory_bytes());
}

/// Selects the requests or the limits.
type RequestsOrLimits = for<'r, 'a> fn(&'r ResourceRequirements<'a>) -> &'r ResourceList<'a>;
/// Reads the amount of one resource.
type ReadAmount = fn(&ResourceList<'_>) -> Option<i64>;

/// The total of the containers' requests or limits; None if no container has any. Init containers run
/// sequentially, so only the largest counts; sidecars keep running beside all later containers (KEP-753).
fn sum_of_containers(pod: &Pod<'_>, requests_or_limits: RequestsOrLimits, amount: ReadAmount) -> Option<i64> {
    let amount_of = |container: &Container<'_>| amount(requests_or_limits(&container.resources));
    let mut total: Option<i64> = None;
    for amount in pod.spec.containers.iter().filter_map(amount_of) {
        total = Some(total.unwrap_or(0).saturating_add(amount));
    }
    let mut sidecars: i64 = 0;
    // Highest amount while init containers run.
    let mut peak: i64 = 0;
    for container in &pod.spec.init_containers {
        let concurrent = sidecars.saturating_add(amount_of(container).unwrap_or(0));
        if container.restart_policy.as_deref() == Some("Always") {
            sidecars = concurrent;
        }
        peak = peak.max(concurrent);
    }
    let running = total.map(|total| total.saturating_add(sidecars)).or((sidecars > 0).then_some(sidecars));
    match (running, peak) {
        (None, 0) => None,
        (running, peak) => Some(running.unwrap_or(0).max(peak)),
    }
}

/// Values for the field selectors that kube-apiserver supports for pods.
fn fields(pod: &Pod<'_>) -> Vec<(String, String)> {
    let mut fields = Vec::new();
    let mut add =
        |name: &str, value: Option<&str>| fields.push((name.to_owned(), value.unwrap_or_default().to_owned()));
    add("spec.nodeName", pod.spec.node_name.as_deref());
    add("spec.restartPolicy", pod.spec.restart_policy.as_deref());
    add("spec.schedulerName", pod.spec.scheduler_name.as_deref());
    add("spec.serviceAccountName", pod.spec.service_account_name.as_deref());
    add("spec.hostNetwork", Some(if pod.spec.host_network { "true" } else { "false" }));
    add("status.phase", pod.status.phase.as_deref());
    add("status.podIP", pod.status.pod_ip.as_deref());
    add("status.nominatedNodeName", pod.status.nominated_node_name.as_deref());
    fields
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde::Deserialize;
    use serde_json::{Value, json};

    use super::*;

    #[rstest]
    #[case::pending(json!({"status": {"phase": "Pending"}}), "Pending", 0, 0)]
    #[case::evicted(json!({"status": {"phase": "Failed", "reason": "Evicted"}}), "Evicted", 0, 0)]
    #[case::gated(json!({"status": {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}]}}), "SchedulingGated", 0, 0)]
    #[case::crash_loop(json!({"status": {"phase": "Running", "containerStatuses": [
    {"name": "a", "ready": true, "restartCount": 1, "state": {"running": {}}},
    {"name": "b", "ready": false, "restartCount": 4, "state": {"waiting": {"reason": "CrashLoopBackOff"}}}]}}), "CrashLoopBackOff", 1, 5)]
    #[case::exit_code(json!({"status": {"phase": "Failed", "containerStatuses": [{"name": "a", "restartCount": 0, "state": {"terminated": {"exitCode": 3}}}]}}), "ExitCode:3", 0, 0)]
    #[case::signal(json!({"status": {"phase": "Failed", "containerStatuses": [{"name": "a", "restartCount": 0, "state": {"terminated": {"exitCode": 137, "signal": 9}}}]}}), "Signal:9", 0, 0)]
    #[case::init_progress(json!({"spec": {"initContainers": [{"name": "i"}, {"name": "j"}]}, "status": {"phase": "Pending", "initContainerStatuses": [
    {"name": "i", "state": {"terminated": {"exitCode": 0}}}, {"name": "j", "state": {"running": {}}}]}}), "Init:1/2", 0, 0)]
    #[case::init_error(json!({"spec": {"initContainers": [{"name": "i"}]}, "status": {"phase": "Pending", "initContainerStatuses": [
    {"name": "i", "restartCount": 2, "state": {"terminated": {"exitCode": 1, "reason": "Error"}}}]}}), "Init:Error", 0, 2)]
    #[case::sidecar(json!({"spec": {"initContainers": [{"name": "i", "restartPolicy": "Always"}], "containers": [{"name": "a"}]}, "status": {"phase": "Running",
    "initContainerStatuses": [{"name": "i", "started": true, "ready": true, "restartCount": 2, "state": {"running": {}}}],
    "containerStatuses": [{"name": "a", "ready": true, "restartCount": 0, "state": {"running": {}}}]}}), "Running", 2, 2)]
    #[case::completed_but_running(json!({"status": {"phase": "Running", "containerStatuses": [
    {"name": "a", "restartCount": 0, "state": {"terminated": {"exitCode": 0, "reason": "Completed"}}},
    {"name": "b", "ready": true, "restartCount": 0, "state": {"running": {}}}]}}), "NotReady", 1, 0)]
    #[case::terminating(json!({"metadata": {"deletionTimestamp": "2024-01-01T00:00:00Z"}, "status": {"phase": "Running"}}), "Terminating", 0, 0)]
    #[case::node_lost(json!({"metadata": {"deletionTimestamp": "2024-01-01T00:00:00Z"}, "status": {"phase": "Running", "reason": "NodeLost"}}), "Unknown", 0, 0)]
    fn rows_match_kubectl(#[case] pod: Value, #[case] status: &str, #[case] ready: i64, #[case] restarts: i64) {
        let row = Row::new(&Pod::deserialize(&pod).expect("a pod"));
        assert_eq!((row.status.as_str(), row.ready, row.restarts), (status, ready, restarts));
    }

    /// CPU request and limit in millicores, memory request and limit in bytes.
    #[rstest]
    #[case::none(json!({"containers": [{"name": "a"}]}), [None, None, None, None])]
    #[case::exact_millicores(json!({"containers": [
    {"name": "a", "resources": {"requests": {"cpu": "9m", "memory": "1"}}},
    {"name": "b", "resources": {"requests": {"cpu": "2.007", "memory": "1Ki"}}}]}), [Some(2016), None, Some(1025), None])]
    #[case::numbers(json!({"containers": [{"name": "a", "resources": {"requests": {"cpu": 0.013, "memory": 100_000_000}}}]}),
        [Some(13), None, Some(100_000_000), None])]
    #[case::init_container(json!({"containers": [{"name": "a", "resources": {"requests": {"cpu": "1"}}}],
    "initContainers": [{"name": "i", "resources": {"requests": {"cpu": "1200m"}}}]}), [Some(1200), None, None, None])]
    #[case::sidecar(json!({"containers": [{"name": "a", "resources": {"limits": {"cpu": "1"}}}],
    "initContainers": [{"name": "i", "restartPolicy": "Always", "resources": {"limits": {"cpu": "100m"}}}]}), [None, Some(1100), None, None])]
    #[case::pod_level(json!({"containers": [{"name": "a", "resources": {"requests": {"cpu": "1", "memory": "1"}}}],
    "resources": {"requests": {"cpu": "3"}, "limits": {"cpu": "4"}}}), [Some(3000), Some(4000), Some(1), None])]
    #[case::overhead(json!({"containers": [{"name": "a", "resources": {"requests": {"cpu": "1"}, "limits": {"memory": "10"}}}],
    "overhead": {"cpu": "250m", "memory": "7"}}), [Some(1250), None, Some(7), Some(17)])]
    #[case::huge(json!({"containers": [
    {"name": "a", "resources": {"requests": {"memory": "9E"}}}, {"name": "b", "resources": {"requests": {"memory": "9E"}}}]}),
        [None, None, Some(i64::MAX), None])]
    fn resources_match_kubectl(#[case] spec: Value, #[case] expected: [Option<i64>; 4]) {
        let pod = json!({"spec": spec});
        let printed = print(Pod::deserialize(&pod).expect("a pod"));
        assert_eq!([printed.cpu_request, printed.cpu_limit, printed.memory_request, printed.memory_limit], expected);
    }
}
