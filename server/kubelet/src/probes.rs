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
use super::shell::{Shell, StartOutcome, Stdio, is_program};
use super::stream::{CollectingSink, Input, Output};

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
    /// Always succeeds, because the simulation cannot determine the outcome.
    AssumedSuccess,
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
    /// Reads a probe from a container's spec; `None` if the container has no probe of this kind.
    pub fn from_container(container: &Value, kind: ProbeKind) -> Option<Self> {
        let probe = container.get(kind.field()).filter(|probe| probe.is_object())?;
        let number = |field: &str, default: u64| probe.get(field).and_then(Value::as_u64).unwrap_or(default);
        let threshold = |field: &str, default: u64| u32::try_from(number(field, default).max(1)).unwrap_or(u32::MAX);
        Some(Self {
            kind,
            action: parse_action(probe, text(container, "/image")),
            initial_delay: Duration::from_secs(number("initialDelaySeconds", 0)),
            period: Duration::from_secs(number("periodSeconds", 10).max(1)),
            timeout: Duration::from_secs(number("timeoutSeconds", 1).max(1)),
            success_threshold: threshold("successThreshold", 1),
            failure_threshold: threshold("failureThreshold", 3),
        })
    }

    /// Returns true if the simulation can determine the outcome.
    pub fn is_simulated(&self) -> bool {
        self.action != Action::AssumedSuccess
    }

    /// Runs the probe once.
    pub async fn run(&self, shell: Shell) -> ProbeOutcome {
        match &self.action {
            Action::AssumedSuccess => Ok(()),
            Action::Page(path) => match page_exists(&shell.fs, path) {
                true => Ok(()),
                false => Err("HTTP probe failed with statuscode: 404".into()),
            },
            Action::Exec(command) => match tokio::time::timeout(self.timeout, run_command(shell, command)).await {
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

fn parse_action(probe: &Value, image: &str) -> Action {
    let words =
        |list: &Value| list.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect();
    if let Some(command) = probe.pointer("/exec/command") {
        let command: Vec<String> = words(command);
        return if command.first().is_some_and(|program| is_program(program)) {
            Action::Exec(command)
        } else {
            Action::AssumedSuccess
        };
    }
    match (probe.get("httpGet"), document_root(image)) {
        (Some(request), Some(root)) => match served_file(root, text(request, "/path")) {
            Some(path) => Action::Page(path),
            None => Action::AssumedSuccess,
        },
        _ => Action::AssumedSuccess,
    }
}

/// Returns the file that a web server serves for a path. Only the default page is simulated; `None` for any other
/// path.
pub fn served_file(root: &str, path: &str) -> Option<String> {
    let path = path.split('?').next().unwrap_or_default().trim_matches('/');
    (path.is_empty() || path == DEFAULT_PAGE).then(|| format!("{root}/{DEFAULT_PAGE}"))
}

fn page_exists(fs: &FileSystem, path: &str) -> bool {
    fs.read(path).is_ok()
}

async fn run_command(shell: Shell, command: &[String]) -> ProbeOutcome {
    let unknown_commands = shell.unknown_commands();
    let output = Arc::new(CollectingSink::default());
    let both: Output = output.clone();
    let outcome = shell.start(command, Stdio::new(Input::empty(), both.clone(), both)).await;
    match outcome {
        StartOutcome::Code(0) => Ok(()),
        // The result of a script with unsupported programs is ignored.
        _ if unknown_commands.was_used() => Ok(()),
        _ => Err(String::from_utf8_lossy(&output.take()).into_owned()),
    }
}

/// Result of a probe. It changes after a number of consecutive outcomes, the success or failure threshold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProbeResult {
    pub is_success: bool,
    consecutive_outcomes: u32,
}

impl ProbeResult {
    pub fn new(is_success: bool) -> Self {
        Self { is_success, consecutive_outcomes: 0 }
    }

    /// Returns the result after another outcome.
    pub fn after(self, succeeded: bool, probe: &Probe) -> Self {
        if succeeded == self.is_success {
            return Self::new(self.is_success);
        }
        let threshold = if succeeded { probe.success_threshold } else { probe.failure_threshold };
        let consecutive_outcomes = self.consecutive_outcomes + 1;
        if consecutive_outcomes >= threshold {
            Self::new(succeeded)
        } else {
            Self { is_success: self.is_success, consecutive_outcomes }
        }
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
    fn only_supported_probes_are_simulated(#[case] probe: Value, #[case] image: &str, #[case] is_simulated: bool) {
        let probe =
            Probe::from_container(&json!({"image": image, "readinessProbe": probe}), ProbeKind::Readiness).unwrap();
        assert_eq!(probe.is_simulated(), is_simulated);
    }

    #[rstest::rstest]
    #[case(false, "s", "+")]
    #[case(true, "f f f", "+ + -")]
    #[case(true, "f f s f f s", "+ + + + + +")]
    #[case(false, "f s f", "- + +")]
    fn a_result_changes_after_a_threshold_of_consecutive_outcomes(
        #[case] first: bool,
        #[case] outcomes: &str,
        #[case] expected: &str,
    ) {
        let probe =
            Probe::from_container(&json!({"livenessProbe": {"tcpSocket": {"port": 1}}}), ProbeKind::Liveness).unwrap();
        let mut result = ProbeResult::new(first);
        let results: Vec<&str> = outcomes
            .split_whitespace()
            .map(|outcome| {
                result = result.after(outcome == "s", &probe);
                if result.is_success { "+" } else { "-" }
            })
            .collect();
        assert_eq!(results.join(" "), expected);
    }
}
