//! Behaviour of pods, which their annotations and owners determine.

use jiff::SignedDuration;

use crate::member::Labels;
use crate::member::pod::{ContainerView, PodState};
use crate::member::resources;

use super::ANNOTATION_PREFIX;

/// Run time of crashing containers, and of unknown commands that complete.
pub const SHORT_RUN_TIME: SignedDuration = SignedDuration::from_secs(1);

/// A state that the annotation `fleet.test/phase` forces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ForcedState {
    NotReady,
    Failed,
    Pending,
}

/// Behaviour of a pod.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Behaviour {
    pub forced_state: Option<ForcedState>,
    /// Time before the containers start.
    pub start_after: SignedDuration,
    /// Run time before the containers are ready.
    pub ready_after: SignedDuration,
    /// Run time after which the containers end; `None`: they keep running.
    pub run_for: Option<SignedDuration>,
    pub exit_code: i32,
    pub is_oom_killed: bool,
    /// Number of restarts after which the containers keep running.
    pub max_restarts: Option<i32>,
    pub pull_error: Option<String>,
    /// Duration of the termination, at most the grace period.
    pub stop_after: SignedDuration,
    /// The affected container; `None` means all.
    pub container: Option<String>,
    /// True if unknown commands succeed after [`SHORT_RUN_TIME`], as in pods of Jobs.
    pub commands_complete: bool,
}

impl Behaviour {
    /// Reads a pod's annotations. Invalid values are ignored.
    pub fn from_pod(pod: &PodState) -> Self {
        let annotations = &*pod.annotations;
        let get = |name: &str| annotations.get(&format!("{ANNOTATION_PREFIX}{name}")).map(String::as_str);
        let mut behaviour = Self {
            forced_state: match annotations.get("fleet.test/phase").map(String::as_str) {
                Some("NotReady") => Some(ForcedState::NotReady),
                Some("Failed") => Some(ForcedState::Failed),
                Some("Pending") => Some(ForcedState::Pending),
                _ => None,
            },
            start_after: get("start-after").and_then(parse_duration).unwrap_or_default(),
            ready_after: get("ready-after").and_then(parse_duration).unwrap_or_default(),
            run_for: get("run-for").and_then(parse_duration),
            exit_code: get("exit-code").and_then(|code| code.parse().ok()).unwrap_or_default(),
            is_oom_killed: false,
            max_restarts: None,
            pull_error: get("pull-error").map(str::to_owned),
            stop_after: get("stop-after").and_then(parse_duration).unwrap_or_default(),
            container: get("container").map(str::to_owned),
            commands_complete: pod.owner.as_ref().is_some_and(|owner| &*owner.kind == "Job"),
        };
        for (name, exit_code) in [("crash", 1), ("oom", 137)] {
            let Some(times) = get(name).filter(|value| *value != "false") else { continue };
            behaviour.exit_code = exit_code;
            behaviour.is_oom_killed = name == "oom";
            behaviour.max_restarts = times.parse().ok();
            behaviour.run_for = Some(behaviour.run_for.unwrap_or(SHORT_RUN_TIME));
        }
        behaviour
    }

    /// True if the annotations apply to this container.
    pub fn applies_to(&self, container: &str) -> bool {
        self.container.as_deref().is_none_or(|name| name == container)
    }

    /// Run time of a container, if annotations limit it.
    pub fn run_for(&self, view: &ContainerView) -> Option<SignedDuration> {
        let ends = self.applies_to(&view.name) && self.max_restarts.is_none_or(|times| view.restarts < times);
        self.run_for.filter(|_| ends)
    }
}

/// CPU usage in millicores and memory usage in bytes that annotations set.
pub fn annotated_usage(annotations: &Labels) -> (Option<i64>, Option<i64>) {
    let quantity = |name: &str| {
        annotations
            .get(&format!("{ANNOTATION_PREFIX}{name}"))
            .map(|text| k8s_openapi::apimachinery::pkg::api::resource::Quantity(text.clone()))
    };
    (
        quantity("cpu").map(|cpu| resources::milli_value(&cpu)),
        quantity("memory").map(|memory| resources::whole_value(&memory)),
    )
}

/// Parses `500ms`, `5s`, `2m`, `1h`, or a number of seconds.
fn parse_duration(text: &str) -> Option<SignedDuration> {
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let number: i64 = text[..split].parse().ok()?;
    match &text[split..] {
        "ms" => Some(SignedDuration::from_millis(number)),
        "" | "s" => Some(SignedDuration::from_secs(number)),
        "m" => Some(SignedDuration::from_mins(number)),
        "h" => Some(SignedDuration::from_hours(number)),
        _ => None,
    }
}
