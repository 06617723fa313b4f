//! Behaviour of pods as set by their annotations and owners.

use jiff::SignedDuration;

use crate::member::Labels;
use crate::member::pod::{ContainerView, PodState};
use crate::member::resources;

use super::PREFIX;

/// Run time of unknown commands that complete.
pub const MOMENT: SignedDuration = SignedDuration::from_secs(1);

/// A state forced by `fleet.test/phase`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Forced {
    NotReady,
    Failed,
    Pending,
}

/// Behaviour of a pod as set by its annotations and owner.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Behaviour {
    pub forced: Option<Forced>,
    pub start_after: SignedDuration,
    pub ready_after: SignedDuration,
    pub run_for: Option<SignedDuration>,
    pub exit_code: i32,
    pub oom: bool,
    /// Number of restarts after which containers keep running.
    pub at_most: Option<i32>,
    pub pull_error: Option<String>,
    pub stop_after: SignedDuration,
    /// The affected container; `None` means all.
    pub container: Option<String>,
    /// True if unknown commands succeed after a moment, as for pods of Jobs.
    pub completes: bool,
}

impl Behaviour {
    /// Reads a pod's annotations. Invalid values are ignored.
    pub fn of(pod: &PodState) -> Self {
        let annotations = &*pod.annotations;
        let get = |name: &str| annotations.get(&format!("{PREFIX}{name}")).map(String::as_str);
        let mut behaviour = Self {
            forced: match annotations.get("fleet.test/phase").map(String::as_str) {
                Some("NotReady") => Some(Forced::NotReady),
                Some("Failed") => Some(Forced::Failed),
                Some("Pending") => Some(Forced::Pending),
                _ => None,
            },
            start_after: get("start-after").and_then(duration).unwrap_or_default(),
            ready_after: get("ready-after").and_then(duration).unwrap_or_default(),
            run_for: get("run-for").and_then(duration),
            exit_code: get("exit-code").and_then(|code| code.parse().ok()).unwrap_or_default(),
            oom: false,
            at_most: None,
            pull_error: get("pull-error").map(str::to_owned),
            stop_after: get("stop-after").and_then(duration).unwrap_or_default(),
            container: get("container").map(str::to_owned),
            completes: pod.owner.as_ref().is_some_and(|owner| &*owner.kind == "Job"),
        };
        for (name, exit_code) in [("crash", 1), ("oom", 137)] {
            let Some(times) = get(name).filter(|value| *value != "false") else { continue };
            behaviour.exit_code = exit_code;
            behaviour.oom = name == "oom";
            behaviour.at_most = times.parse().ok();
            behaviour.run_for = Some(behaviour.run_for.unwrap_or(MOMENT));
        }
        behaviour
    }

    /// True if the annotations apply to this container.
    pub fn concerns(&self, container: &str) -> bool {
        self.container.as_deref().is_none_or(|name| name == container)
    }

    /// Run time that annotations set for a container.
    pub fn run_for(&self, view: &ContainerView) -> Option<SignedDuration> {
        let ends = self.concerns(&view.name) && self.at_most.is_none_or(|times| view.restarts < times);
        self.run_for.filter(|_| ends)
    }
}

/// Usage set by annotations: millicores, bytes.
pub fn usage(annotations: &Labels) -> (Option<i64>, Option<i64>) {
    let quantity = |name: &str| {
        annotations
            .get(&format!("{PREFIX}{name}"))
            .map(|text| k8s_openapi::apimachinery::pkg::api::resource::Quantity(text.clone()))
    };
    (quantity("cpu").map(|cpu| resources::milli(&cpu)), quantity("memory").map(|memory| resources::whole(&memory)))
}

/// Parses `500ms`, `5s`, `2m`, `1h`, or a number of seconds.
fn duration(text: &str) -> Option<SignedDuration> {
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
