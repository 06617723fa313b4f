//! The STATUS word of a pod: the most telling container state wins over the phase. Rules as kubectl shows them.

use super::view::{ContainerState, ContainerStatus, Pod, ResourceSpec};
use super::{Cell, Printed};

pub(super) fn print(pod: Pod<'_>) -> Printed {
    let (init_restarts, initializing) = init_status(&pod);
    let mut words = Words::default();
    let status = match &initializing {
        Some(status) => status.clone(),
        None => main_status(&pod, &mut words),
    };
    let restarts = if initializing.is_some() { init_restarts } else { words.restarts + sidecar_restarts(&pod) };
    let status = overriding_status(&pod).unwrap_or(status);
    let sidecars = pod.spec.init_containers.iter().filter(|c| c.restart_policy.as_deref() == Some("Always")).count();
    let desired = (pod.spec.containers.len() + sidecars) as i64;
    let ready = words.ready + ready_sidecars(&pod);

    let mut printed = Printed {
        phase: pod.status.phase.as_deref().map(str::to_owned),
        conditions: pod.status.conditions.iter().map(|c| (c.type_.to_string(), c.status.to_string())).collect(),
        ready: Some(ready),
        desired: Some(desired),
        restarts: Some(restarts),
        node: pod.spec.node_name.as_deref().filter(|node| !node.is_empty()).map(str::to_owned),
        message: pod.status.message.as_deref().map(str::to_owned),
        ..Printed::default()
    };
    reasons_and_codes(&pod, &mut printed);
    printed.images = pod.spec.all_containers().filter_map(|c| c.image.as_deref()).map(str::to_owned).collect();
    printed.ips = pod.status.pod_ips.iter().map(|ip| ip.ip.to_string()).collect();
    if printed.ips.is_empty() {
        printed.ips.extend(pod.status.pod_ip.as_deref().map(str::to_owned));
    }
    requests(&pod, &mut printed);
    printed.uses = pod.spec.uses();
    printed.fields = fields(&pod);
    let or_none = |text: Option<&str>| Cell::text(text.filter(|text| !text.is_empty()).unwrap_or("<none>"));
    let restarted = last_restart(&pod).filter(|_| restarts > 0);
    printed.cells = vec![
        Cell::text(pod.metadata.name.as_ref()),
        Cell::text(format!("{ready}/{desired}")),
        Cell::text(status.clone()),
        restarted.map_or_else(|| Cell::text(restarts.to_string()), |ago| Cell::Ago { count: restarts, ago }),
        Cell::since(pod.metadata.created()),
        or_none(printed.ips.first().map(String::as_str)),
        or_none(pod.spec.node_name.as_deref()),
        or_none(pod.status.nominated_node_name.as_deref()),
        Cell::text("<none>"),
    ];
    printed.status = Some(status);
    printed
}

#[derive(Default)]
struct Words {
    ready: i64,
    restarts: i64,
}

fn sidecar_restarts(pod: &Pod<'_>) -> i64 {
    let sidecar = |status: &&ContainerStatus<'_>| pod.spec.is_sidecar(&status.name);
    pod.status.init_container_statuses.iter().filter(sidecar).map(|status| status.restart_count).sum()
}

fn ready_sidecars(pod: &Pod<'_>) -> i64 {
    let ready = |status: &&ContainerStatus<'_>| pod.spec.is_sidecar(&status.name) && status.ready;
    pod.status.init_container_statuses.iter().filter(ready).count() as i64
}

/// (restarts, status while init containers are at work).
fn init_status(pod: &Pod<'_>) -> (i64, Option<String>) {
    let total = pod.spec.init_containers.len();
    let mut restarts = 0;
    for (nth, status) in pod.status.init_container_statuses.iter().enumerate() {
        restarts += status.restart_count;
        let sidecar = pod.spec.is_sidecar(&status.name);
        match &status.state {
            ContainerState { terminated: Some(end), .. } if end.exit_code == 0 => continue,
            _ if sidecar && status.started == Some(true) => continue,
            ContainerState { terminated: Some(end), .. } => {
                return (restarts, Some(format!("Init:{}", end.word())));
            }
            ContainerState { waiting: Some(wait), .. }
                if wait.reason.as_deref().is_some_and(|r| !r.is_empty() && r != "PodInitializing") =>
            {
                return (restarts, Some(format!("Init:{}", wait.reason.as_deref().unwrap_or_default())));
            }
            _ => return (restarts, Some(format!("Init:{nth}/{total}"))),
        }
    }
    (restarts, None)
}

fn main_status(pod: &Pod<'_>, words: &mut Words) -> String {
    let mut status = match pod.status.reason.as_deref() {
        Some(reason) if !reason.is_empty() => reason.to_owned(),
        _ => pod.status.phase.as_deref().unwrap_or("Unknown").to_owned(),
    };
    let gated = pod
        .status
        .conditions
        .iter()
        .any(|c| c.type_ == "PodScheduled" && c.reason.as_deref() == Some("SchedulingGated"));
    if gated {
        status = "SchedulingGated".to_owned();
    }
    let mut running = false;
    for container in pod.status.container_statuses.iter().rev() {
        words.restarts += container.restart_count;
        match &container.state {
            ContainerState { waiting: Some(wait), .. } if wait.reason.as_deref().is_some_and(|r| !r.is_empty()) => {
                status = wait.reason.as_deref().unwrap_or_default().to_owned();
            }
            ContainerState { terminated: Some(end), .. } => status = end.word(),
            ContainerState { running: Some(_), .. } if container.ready => {
                running = true;
                words.ready += 1;
            }
            _ => {}
        }
    }
    if status == "Completed" && running {
        let is_ready = pod.status.conditions.iter().any(|c| c.type_ == "Ready" && c.status == "True");
        status = if is_ready { "Running" } else { "NotReady" }.to_owned();
    }
    status
}

/// Deletion hides everything else.
fn overriding_status(pod: &Pod<'_>) -> Option<String> {
    pod.metadata.deletion_timestamp.as_ref()?;
    let ended = matches!(pod.status.phase.as_deref(), Some("Succeeded" | "Failed"));
    match pod.status.reason.as_deref() {
        Some("NodeLost") => Some("Unknown".to_owned()),
        _ if ended => None,
        _ => Some("Terminating".to_owned()),
    }
}

fn reasons_and_codes(pod: &Pod<'_>, printed: &mut Printed) {
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

/// Init containers run one by one, so they count with their maximum; sidecars run beside the rest.
fn requests(pod: &Pod<'_>, printed: &mut Printed) {
    type Pick = for<'x> fn(&'x ResourceSpec<'_>) -> Option<i64>;
    let sum = |pick: Pick| {
        let mut total: Option<i64> = None;
        for container in &pod.spec.containers {
            if let Some(amount) = pick(&container.resources) {
                total = Some(total.unwrap_or(0) + amount);
            }
        }
        let mut sidecars = 0;
        let mut most = 0;
        for container in &pod.spec.init_containers {
            let amount = pick(&container.resources).unwrap_or(0);
            if container.restart_policy.as_deref() == Some("Always") {
                sidecars += amount;
                most = most.max(sidecars);
            } else {
                most = most.max(sidecars + amount);
            }
        }
        let running = total.map(|total| total + sidecars).or((sidecars > 0).then_some(sidecars));
        match (running, most) {
            (None, 0) => None,
            (running, most) => Some(running.unwrap_or(0).max(most)),
        }
    };
    printed.cpu_request = sum(|resources| resources.requests.cpu_milli());
    printed.cpu_limit = sum(|resources| resources.limits.cpu_milli());
    printed.memory_request = sum(|resources| resources.requests.memory_bytes());
    printed.memory_limit = sum(|resources| resources.limits.memory_bytes());
}

fn last_restart(pod: &Pod<'_>) -> Option<i64> {
    let ends = pod.status.container_statuses.iter().filter_map(|status| status.last_state.terminated.as_ref());
    ends.filter_map(|end| end.finished_at.as_deref().and_then(super::unix_seconds)).max()
}

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
