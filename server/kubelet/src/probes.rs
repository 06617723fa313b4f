//! Probes of containers whose outcome the simulation can determine: commands of its shell, and default pages of web
//! servers.
//!
//! All other probes are assumed to succeed without running; `server/sim` waits for their initial delay.

use std::sync::Arc;
use std::time::Duration;

use crowsnest_apimachinery::unstructured::text;
use serde_json::Value;

use super::filesystem::FileSystem;
use super::image::{DEFAULT_PAGE, document_root};
use super::shell::{Shell, Started, Stdio, is_program};
use super::stream::{Collect, Input, Output};

/// Kind of a container probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ProbeKind {
    Startup,
    Readiness,
    Liveness,
}

impl ProbeKind {
    /// Field of a container.
    pub fn field(self) -> &'static str {
        match self {
            Self::Startup => "startupProbe",
            Self::Readiness => "readinessProbe",
            Self::Liveness => "livenessProbe",
        }
    }

    /// Name used in event messages.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Startup => "Startup",
            Self::Readiness => "Readiness",
            Self::Liveness => "Liveness",
        }
    }
}

/// Simulated action of a probe.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Action {
    Exec(Vec<String>),
    /// Reads a page of a web server, by file path.
    Page(String),
    /// Always succeeds, as the simulation cannot determine the outcome.
    Assumed,
}

/// A probe of a container, with defaults applied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Probe {
    pub kind: ProbeKind,
    action: Action,
    pub initial_delay: Duration,
    pub period: Duration,
    timeout: Duration,
    pub success_threshold: u32,
    pub failure_threshold: u32,
}

/// Outcome of a probe; `Err` is the reason of the failure.
pub type ProbeOutcome = Result<(), String>;

impl Probe {
    /// The probe of a kind in a container's spec.
    pub fn of(container: &Value, kind: ProbeKind) -> Option<Self> {
        let probe = container.get(kind.field()).filter(|probe| probe.is_object())?;
        let number = |field: &str, default: u64| probe.get(field).and_then(Value::as_u64).unwrap_or(default);
        let threshold = |field: &str, default: u64| u32::try_from(number(field, default).max(1)).unwrap_or(u32::MAX);
        Some(Self {
            kind,
            action: action(probe, text(container, "/image")),
            initial_delay: Duration::from_secs(number("initialDelaySeconds", 0)),
            period: Duration::from_secs(number("periodSeconds", 10).max(1)),
            timeout: Duration::from_secs(number("timeoutSeconds", 1).max(1)),
            success_threshold: threshold("successThreshold", 1),
            failure_threshold: threshold("failureThreshold", 3),
        })
    }

    /// Returns true if the simulation can determine the outcome.
    pub fn is_known(&self) -> bool {
        self.action != Action::Assumed
    }

    /// Runs the probe once.
    pub async fn run(&self, shell: Shell) -> ProbeOutcome {
        match &self.action {
            Action::Assumed => Ok(()),
            Action::Page(path) => match page(&shell.fs, path) {
                true => Ok(()),
                false => Err("HTTP probe failed with statuscode: 404".into()),
            },
            Action::Exec(command) => match tokio::time::timeout(self.timeout, exec(shell, command)).await {
                Ok(outcome) => outcome,
                Err(_) => Err(format!(
                    "command timed out: {:?} timed out after {}s",
                    command.join(" "),
                    self.timeout.as_secs()
                )),
            },
        }
    }
}

fn action(probe: &Value, image: &str) -> Action {
    let words =
        |list: &Value| list.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect();
    if let Some(command) = probe.pointer("/exec/command") {
        let command: Vec<String> = words(command);
        return if command.first().is_some_and(|program| is_program(program)) {
            Action::Exec(command)
        } else {
            Action::Assumed
        };
    }
    match (probe.get("httpGet"), document_root(image)) {
        (Some(request), Some(root)) => match file_of(root, text(request, "/path")) {
            Some(path) => Action::Page(path),
            None => Action::Assumed,
        },
        _ => Action::Assumed,
    }
}

/// Returns the file that a web server serves for a path. Only the default page is simulated; `None` for any other
/// path.
pub fn file_of(root: &str, path: &str) -> Option<String> {
    let path = path.split('?').next().unwrap_or_default().trim_matches('/');
    (path.is_empty() || path == DEFAULT_PAGE).then(|| format!("{root}/{DEFAULT_PAGE}"))
}

fn page(fs: &FileSystem, path: &str) -> bool {
    fs.read(path).is_ok()
}

async fn exec(shell: Shell, command: &[String]) -> ProbeOutcome {
    let unknown = shell.unknown();
    let output = Arc::new(Collect::default());
    let both: Output = output.clone();
    let started = shell.start(command, Stdio::new(Input::empty(), both.clone(), both)).await;
    match started {
        Started::Code(0) => Ok(()),
        // The result of a script with unsupported programs is ignored.
        _ if unknown.was_met() => Ok(()),
        _ => Err(String::from_utf8_lossy(&output.take()).into_owned()),
    }
}

/// Result of a probe, which changes after a threshold of consecutive outcomes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verdict {
    pub holds: bool,
    in_a_row: u32,
}

impl Verdict {
    pub fn new(holds: bool) -> Self {
        Self { holds, in_a_row: 0 }
    }

    /// Returns the verdict after another outcome.
    pub fn after(self, succeeded: bool, probe: &Probe) -> Self {
        if succeeded == self.holds {
            return Self::new(self.holds);
        }
        let threshold = if succeeded { probe.success_threshold } else { probe.failure_threshold };
        let in_a_row = self.in_a_row + 1;
        if in_a_row >= threshold { Self::new(succeeded) } else { Self { holds: self.holds, in_a_row } }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[rstest::rstest]
    #[case(json!({"exec": {"command": ["cat", "/f"]}}), "app", true)]
    #[case(json!({"exec": {"command": ["/app/healthy"]}}), "app", false)]
    #[case(json!({"httpGet": {"path": "/index.html", "port": 80}}), "httpd:2.4", true)]
    #[case(json!({"httpGet": {"path": "/", "port": 80}}), "nginx", true)]
    #[case(json!({"httpGet": {"path": "/healthz", "port": 80}}), "nginx", false)]
    #[case(json!({"httpGet": {"path": "/", "port": 80}}), "app", false)]
    #[case(json!({"tcpSocket": {"port": 80}}), "nginx", false)]
    fn only_supported_probes_are_run(#[case] probe: Value, #[case] image: &str, #[case] known: bool) {
        let probe = Probe::of(&json!({"image": image, "readinessProbe": probe}), ProbeKind::Readiness).unwrap();
        assert_eq!(probe.is_known(), known);
    }

    #[rstest::rstest]
    #[case(false, "s", "+")]
    #[case(true, "f f f", "+ + -")]
    #[case(true, "f f s f f s", "+ + + + + +")]
    #[case(false, "f s f", "- + +")]
    fn thresholds_count_consecutive_outcomes(#[case] first: bool, #[case] outcomes: &str, #[case] expected: &str) {
        let probe = Probe::of(&json!({"livenessProbe": {"tcpSocket": {"port": 1}}}), ProbeKind::Liveness).unwrap();
        let mut verdict = Verdict::new(first);
        let verdicts: Vec<&str> = outcomes
            .split_whitespace()
            .map(|outcome| {
                verdict = verdict.after(outcome == "s", &probe);
                if verdict.holds { "+" } else { "-" }
            })
            .collect();
        assert_eq!(verdicts.join(" "), expected);
    }
}
