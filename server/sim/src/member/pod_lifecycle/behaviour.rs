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
    pub(super) forced_state: Option<ForcedState>,
    pub(super) delays: Delays,
    pub(super) exit: ContainerExit,
    pub(super) pull_error: Option<String>,
    /// The affected container; `None` means all.
    pub(super) container: Option<String>,
    /// True if unknown commands succeed after [`SHORT_RUN_TIME`], as in pods of Jobs.
    pub(super) commands_complete: bool,
}

/// Delays of the containers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Delays {
    /// Time before the containers start.
    pub(super) start: SignedDuration,
    /// Run time before the containers are ready.
    pub(super) ready: SignedDuration,
    /// Duration of the termination, at most the grace period.
    pub(super) stop: SignedDuration,
}

/// When and how the containers end.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ContainerExit {
    /// Run time; `None` lets the containers keep running.
    after: Option<SignedDuration>,
    pub(super) code: i32,
    pub(super) is_oom_kill: bool,
    /// Number of restarts after which the containers keep running.
    max_restarts: Option<i32>,
}

impl ContainerExit {
    /// Reads the annotations for which `get` returns the values.
    fn from_annotations<'a>(get: impl Fn(&str) -> Option<&'a str>) -> Self {
        let mut exit = Self {
            after: get("run-for").and_then(parse_duration),
            code: get("exit-code").and_then(|code| code.parse().ok()).unwrap_or_default(),
            ..Self::default()
        };
        for (name, code) in [("crash", 1), ("oom", 137)] {
            let Some(times) = get(name).filter(|value| *value != "false") else { continue };
            exit = Self {
                after: Some(exit.after.unwrap_or(SHORT_RUN_TIME)),
                code,
                is_oom_kill: name == "oom",
                max_restarts: times.parse().ok(),
            };
        }
        exit
    }
}

impl Behaviour {
    /// Reads a pod's annotations. Invalid values are ignored.
    pub fn from_pod(pod: &PodState) -> Self {
        let annotations = &*pod.annotations;
        let get = |name: &str| annotations.get(&format!("{ANNOTATION_PREFIX}{name}")).map(String::as_str);
        let delay = |name: &str| get(name).and_then(parse_duration).unwrap_or_default();
        Self {
            forced_state: match annotations.get("fleet.test/phase").map(String::as_str) {
                Some("NotReady") => Some(ForcedState::NotReady),
                Some("Failed") => Some(ForcedState::Failed),
                Some("Pending") => Some(ForcedState::Pending),
                _ => None,
            },
            delays: Delays { start: delay("start-after"), ready: delay("ready-after"), stop: delay("stop-after") },
            exit: ContainerExit::from_annotations(get),
            pull_error: get("pull-error").map(str::to_owned),
            container: get("container").map(str::to_owned),
            commands_complete: pod.owner.as_ref().is_some_and(|owner| &*owner.kind == "Job"),
        }
    }

    /// True if the annotations apply to this container.
    pub fn applies_to(&self, container: &str) -> bool {
        self.container.as_deref().is_none_or(|name| name == container)
    }

    /// Run time of a container, if annotations limit it.
    pub fn run_duration(&self, view: &ContainerView) -> Option<SignedDuration> {
        let ends = self.applies_to(&view.name) && self.exit.max_restarts.is_none_or(|times| view.restarts < times);
        self.exit.after.filter(|_| ends)
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
