//! Converts the desired status of a pod to `Pod.status`.

use std::fmt::Write;

use crowsnest_kubelet::image::pull_error;
use jiff::Timestamp;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::member::pod::{ContainerPhase, ContainerSpec, ContainerView, Phase, PodState};

use super::step::DesiredStatus;

/// Creates the merge patch that writes the status of a pod.
pub fn status_patch(pod: &PodState, desired: &DesiredStatus, host_ip: &str, ip: Option<&str>, now: Timestamp) -> Value {
    let started = pod.started.unwrap_or(now);
    let spec_of =
        |name: &str| pod.spec.containers.iter().chain(&pod.spec.init_containers).find(|spec| &*spec.name == name);
    let statuses = |views: &[ContainerView]| -> Vec<Value> {
        views.iter().map(|view| container_status(pod, spec_of(&view.name), view)).collect()
    };
    let mut status = json!({
        "phase": desired.phase.as_str(),
        "conditions": conditions(pod, desired, ip.is_some(), now),
        "hostIP": host_ip,
        "hostIPs": [{"ip": host_ip}],
        "startTime": format_time(started),
        "containerStatuses": statuses(&desired.containers),
        "qosClass": pod.spec.qos.as_str(),
        "observedGeneration": pod.generation,
    });
    if let Some(ip) = if pod.spec.host_network { Some(host_ip) } else { ip } {
        status["podIP"] = json!(ip);
        status["podIPs"] = json!([{"ip": ip}]);
    }
    if !pod.spec.init_containers.is_empty() {
        status["initContainerStatuses"] = json!(statuses(&desired.init_containers));
    }
    json!({ "status": status })
}

fn conditions(pod: &PodState, desired: &DesiredStatus, has_ip: bool, now: Timestamp) -> Vec<Value> {
    let is_terminal = desired.phase.is_terminal();
    let ready = desired.is_ready();
    let format_or_now = |at: Option<Timestamp>| format_time(at.unwrap_or(now));
    let started = pod.started.or(Some(now));
    let ready_changed_at = match (ready, pod.ready_since, pod.unready_since) {
        (true, Some(since), _) | (false, None, Some(since)) => since,
        _ => now,
    };
    let incomplete = incomplete_init_containers(pod, desired);
    let initialized = incomplete.is_empty();
    let init_finish_times = desired.init_containers.iter().filter_map(|view| match &view.state {
        ContainerPhase::Terminated { finished, .. } => Some(*finished),
        _ => None,
    });
    let initialized_since = init_finish_times.max().filter(|_| initialized).or(started);
    let unready: Vec<&str> = desired.containers.iter().filter(|view| !view.ready).map(|view| &*view.name).collect();
    let reason_and_message = if ready {
        (Value::Null, Value::Null)
    } else if desired.phase == Phase::Succeeded {
        (json!("PodCompleted"), Value::Null)
    } else if desired.phase == Phase::Failed {
        (json!("PodFailed"), Value::Null)
    } else {
        (json!("ContainersNotReady"), json!(format!("containers with unready status: [{}]", unready.join(" "))))
    };
    let condition = |kind: &str, is_true: bool, at: String| {
        let mut condition = json!({
            "type": kind,
            "status": if is_true { "True" } else { "False" },
            "lastProbeTime": null,
            "lastTransitionTime": at,
            "observedGeneration": pod.generation,
        });
        if !is_true && matches!(kind, "Ready" | "ContainersReady") {
            condition["reason"] = reason_and_message.0.clone();
            if !reason_and_message.1.is_null() {
                condition["message"] = reason_and_message.1.clone();
            }
        }
        if !is_true && kind == "Initialized" {
            condition["reason"] = json!("ContainersNotInitialized");
            condition["message"] = json!(format!("containers with incomplete status: [{}]", incomplete.join(" ")));
        }
        condition
    };
    let mut conditions = vec![
        condition("PodReadyToStartContainers", has_ip && !is_terminal, format_or_now(started)),
        condition("Initialized", initialized, format_or_now(initialized_since)),
        condition("Ready", ready, format_time(ready_changed_at)),
        condition("ContainersReady", ready, format_time(ready_changed_at)),
        condition("PodScheduled", true, format_or_now(pod.scheduled.or(started))),
    ];
    conditions.extend(pod.foreign_conditions.iter().filter_map(|condition| serde_json::to_value(condition).ok()));
    conditions
}

/// Init containers that have not completed.
fn incomplete_init_containers<'a>(pod: &PodState, desired: &'a DesiredStatus) -> Vec<&'a str> {
    let is_complete = |index: usize, view: &ContainerView| match &view.state {
        ContainerPhase::Terminated { exit_code, .. } => *exit_code == 0 || desired.phase == Phase::Succeeded,
        ContainerPhase::Running { .. } => pod.spec.sidecars.contains(&index),
        ContainerPhase::Waiting { .. } => pod.spec.sidecars.contains(&index) && view.last_run.is_some(),
    };
    desired
        .init_containers
        .iter()
        .enumerate()
        .filter(|(index, view)| !is_complete(*index, view))
        .map(|(_, view)| &*view.name)
        .collect()
}

fn container_status(pod: &PodState, spec: Option<&ContainerSpec>, view: &ContainerView) -> Value {
    let image = spec.map(|spec| &*spec.image).unwrap_or_default();
    let id = |restart: i32| container_id(&pod.uid, &view.name, restart);
    let terminated = |exit_code: i32, reason: &str, started: Timestamp, finished: Timestamp, restart: i32| {
        json!({"terminated": {
            "exitCode": exit_code, "reason": reason, "startedAt": format_time(started), "finishedAt": format_time(finished),
            "containerID": id(restart),
        }})
    };
    let (state, started) = match &view.state {
        ContainerPhase::Running { since } => (json!({"running": {"startedAt": format_time(*since)}}), true),
        ContainerPhase::Waiting { reason } => {
            let mut state = json!({"waiting": {"reason": &**reason}});
            if let Some(message) = waiting_message(pod, view, reason, image) {
                state["waiting"]["message"] = json!(message);
            }
            (state, false)
        }
        ContainerPhase::Terminated { exit_code, reason, started, finished } => {
            (terminated(*exit_code, reason, *started, *finished, view.restarts), false)
        }
    };
    let has_run = view.last_run.is_some() || !matches!(view.state, ContainerPhase::Waiting { .. });
    let last = view.last_run.as_ref();
    let last = last.map(|run| terminated(run.exit_code, &run.reason, run.started, run.finished, view.restarts - 1));
    let mut status = json!({
        "name": &*view.name,
        "image": if has_run { image_name(image) } else { image.to_owned() },
        "imageID": if has_run { image_id(image) } else { String::new() },
        "ready": view.ready,
        "started": started,
        "restartCount": view.restarts,
        "state": state,
        "lastState": last.unwrap_or_else(|| json!({})),
    });
    if has_run {
        status["containerID"] = json!(id(view.restarts));
    }
    status
}

fn waiting_message(pod: &PodState, view: &ContainerView, reason: &str, image: &str) -> Option<String> {
    match reason {
        "CrashLoopBackOff" => {
            let seconds = (10i64 << u32::try_from(view.restarts - 1).unwrap_or_default().min(10)).min(300);
            let delay =
                if seconds >= 60 { format!("{}m{}s", seconds / 60, seconds % 60) } else { format!("{seconds}s") };
            Some(format!(
                "back-off {delay} restarting failed container={} pod={}_{}({})",
                view.name, pod.key.name, pod.key.namespace, pod.uid
            ))
        }
        "ErrImagePull" => pod.annotations.get("sim.crowsnest.io/pull-error").cloned().or_else(|| pull_error(image)),
        "ImagePullBackOff" => Some(format!("Back-off pulling image \"{image}\"")),
        _ => None,
    }
}

/// A deterministic `containerd://` ID with 64 digits.
pub fn container_id(uid: &str, container: &str, restart: i32) -> String {
    format!("containerd://{}", digest(&format!("{uid}/{container}/{restart}")))
}

/// A deterministic digest of an image.
pub fn image_id(image: &str) -> String {
    let name = image_name(image);
    match name.split_once('@') {
        Some(_) => name,
        None => {
            let repository = name
                .rsplit_once(':')
                .filter(|(_, tag)| !tag.contains('/'))
                .map_or(name.as_str(), |(repository, _)| repository);
            format!("{repository}@sha256:{}", digest(&name))
        }
    }
}

/// The full name of an image as in containerd: registry, repository, tag.
pub fn image_name(image: &str) -> String {
    let registry = image.split_once('/').map(|(first, _)| first);
    let has_registry = registry.is_some_and(|first| first.contains(['.', ':']) || first == "localhost");
    let mut name = match (has_registry, registry) {
        (true, _) => image.to_owned(),
        (false, Some(_)) => format!("docker.io/{image}"),
        (false, None) => format!("docker.io/library/{image}"),
    };
    let last = name.rsplit('/').next().unwrap_or_default();
    if !last.contains([':', '@']) {
        name.push_str(":latest");
    }
    name
}

fn digest(text: &str) -> String {
    Sha256::digest(text.as_bytes()).iter().fold(String::with_capacity(64), |mut hex, byte| {
        // Writing to a String cannot fail.
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

/// Formats a time like Kubernetes, in whole seconds and UTC: `2026-01-01T00:00:00Z`.
pub fn format_time(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[rstest::rstest]
    #[case("nginx", "docker.io/library/nginx:latest")]
    #[case("grafana/grafana:11", "docker.io/grafana/grafana:11")]
    #[case("ghcr.io/a/b:1", "ghcr.io/a/b:1")]
    #[case("localhost:5000/b", "localhost:5000/b:latest")]
    fn image_names_get_the_default_registry_and_tag(#[case] image: &str, #[case] expected: &str) {
        assert_eq!(image_name(image), expected);
        assert!(image_id(image).contains("@sha256:"));
    }
}
