//! What kubectl shows of a pod: its STATUS word, ready containers and restarts.

use serde_json::{Value, json};

use super::read::{flag, int, list, text};
use super::{Now, age, read};

/// The computed part of a pod's row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodSummary {
    /// `Running`, `CrashLoopBackOff`, `Init:1/2`, `Terminating`, …
    pub status: String,
    pub ready: usize,
    pub containers: usize,
    pub restarts: i64,
    /// When a container last ended before being restarted.
    pub last_restart: Option<jiff::Timestamp>,
}

#[derive(Default)]
struct Restarts {
    count: i64,
    last: Option<jiff::Timestamp>,
}

impl Restarts {
    fn add(&mut self, status: &Value) {
        self.count += int(status, "/restartCount");
        let ended: Option<jiff::Timestamp> = text(status, "/lastState/terminated/finishedAt").parse().ok();
        self.last = self.last.max(ended);
    }
}

/// How a container ended: its reason, or the signal or exit code when it gave none.
fn ended(terminated: &Value) -> String {
    match (text(terminated, "/reason"), int(terminated, "/signal")) {
        ("", 0) => format!("ExitCode:{}", int(terminated, "/exitCode")),
        ("", signal) => format!("Signal:{signal}"),
        (reason, _) => reason.to_owned(),
    }
}

fn restartable(pod: &Value, init_container: &str) -> bool {
    list(pod, "/spec/initContainers")
        .iter()
        .any(|c| text(c, "/name") == init_container && text(c, "/restartPolicy") == "Always")
}

/// Why the pod is still initialising; `None` when every init container is through (or a running sidecar).
fn initialising(pod: &Value, ready: &mut usize, all: &mut Restarts, sidecars: &mut Restarts) -> Option<String> {
    let total = list(pod, "/spec/initContainers").len();
    for (index, status) in list(pod, "/status/initContainerStatuses").iter().enumerate() {
        let sidecar = restartable(pod, text(status, "/name"));
        all.add(status);
        if sidecar {
            sidecars.add(status);
        }
        let terminated = status.pointer("/state/terminated");
        if terminated.is_some_and(|t| int(t, "/exitCode") == 0) {
            continue;
        }
        if sidecar && flag(status, "/started") {
            *ready += usize::from(flag(status, "/ready"));
            continue;
        }
        let waiting = text(status, "/state/waiting/reason");
        return Some(match terminated {
            Some(terminated) => format!("Init:{}", ended(terminated)),
            None if !waiting.is_empty() && waiting != "PodInitializing" => format!("Init:{waiting}"),
            None => format!("Init:{index}/{total}"),
        });
    }
    None
}

/// Computes the row as kubectl does: init containers first, then the last container with something to say, then deletion.
pub fn summarise(pod: &Value) -> PodSummary {
    let phase = text(pod, "/status/phase");
    let own_reason = text(pod, "/status/reason");
    let mut status = if own_reason.is_empty() { phase } else { own_reason }.to_owned();
    let conditions = list(pod, "/status/conditions");
    if conditions.iter().any(|c| text(c, "/type") == "PodScheduled" && text(c, "/reason") == "SchedulingGated") {
        status = "SchedulingGated".to_owned();
    }
    let sidecar_count =
        list(pod, "/spec/initContainers").iter().filter(|c| text(c, "/restartPolicy") == "Always").count();
    let (mut ready, mut restarts, mut sidecars) = (0, Restarts::default(), Restarts::default());
    let waiting_for = initialising(pod, &mut ready, &mut restarts, &mut sidecars);
    let busy = waiting_for.is_some();
    if let Some(reason) = waiting_for {
        status = reason;
    }
    if !busy || read::condition(pod, "Initialized") == "True" {
        restarts = sidecars;
        let mut running = false;
        for container in list(pod, "/status/containerStatuses").iter().rev() {
            restarts.add(container);
            let waiting = text(container, "/state/waiting/reason");
            if !waiting.is_empty() {
                status = waiting.to_owned();
            } else if let Some(terminated) = container.pointer("/state/terminated") {
                status = ended(terminated);
            } else if flag(container, "/ready") && container.pointer("/state/running").is_some() {
                running = true;
                ready += 1;
            }
        }
        if status == "Completed" && running {
            status = if read::condition(pod, "Ready") == "True" { "Running" } else { "NotReady" }.to_owned();
        }
    }
    if pod.pointer("/metadata/deletionTimestamp").is_some() {
        if own_reason == "NodeLost" {
            status = "Unknown".to_owned();
        } else if !matches!(phase, "Succeeded" | "Failed") {
            status = "Terminating".to_owned();
        }
    }
    PodSummary {
        status,
        ready,
        containers: list(pod, "/spec/containers").len() + sidecar_count,
        restarts: restarts.count,
        last_restart: restarts.last,
    }
}

pub(super) fn cells(pod: &Value, now: Now) -> Vec<Value> {
    let summary = summarise(pod);
    let restarts = match summary.last_restart {
        Some(last) if summary.restarts != 0 => {
            format!("{} ({} ago)", summary.restarts, age::human_duration(age::seconds_between(last, now)))
        }
        _ => summary.restarts.to_string(),
    };
    let gates = list(pod, "/spec/readinessGates");
    let gate_text = if gates.is_empty() {
        read::NONE.to_owned()
    } else {
        let passed = gates.iter().filter(|g| read::condition(pod, text(g, "/conditionType")) == "True").count();
        format!("{passed}/{}", gates.len())
    };
    let ip = list(pod, "/status/podIPs").first().map_or("", |ip| text(ip, "/ip"));
    let ip = if ip.is_empty() { text(pod, "/status/podIP") } else { ip };
    vec![
        read::name(pod),
        json!(format!("{}/{}", summary.ready, summary.containers)),
        json!(summary.status),
        json!(restarts),
        read::age(pod, now),
        json!(if ip.is_empty() { read::NONE } else { ip }),
        read::text_or(pod, "/spec/nodeName", read::NONE),
        read::text_or(pod, "/status/nominatedNodeName", read::NONE),
        json!(gate_text),
    ]
}

/// Finished pods carry a row condition, so that clients can hide them.
pub(super) fn row_conditions(pod: &Value) -> Vec<Value> {
    match text(pod, "/status/phase") {
        "Succeeded" => vec![json!({
            "type": "Completed", "status": "True", "reason": "Succeeded", "message": "The pod has completed successfully.",
        })],
        "Failed" => {
            vec![json!({"type": "Completed", "status": "True", "reason": "Failed", "message": "The pod failed."})]
        }
        _ => Vec::new(),
    }
}
