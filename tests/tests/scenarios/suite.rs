//! Runs the recorded scenarios with their own runner, `fleet.py`.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::Sender;

use anyhow::{Context, Result, bail};
use crowsnest_tests::in_ci;

use super::recordings::Recordings;

/// Scenarios that are evaluated only while no replica is killed.
const UNDISTURBED: &str = include_str!("../../../.ci/fleet-serve-undisturbed");
/// Concurrent scenarios: the machine also runs the replicas.
const JOBS: &str = "4";

/// The runner and the selection of scenarios.
pub struct Suite {
    runner: PathBuf,
    recordings: Recordings,
    /// Patterns of names, separated by commas.
    pub only: String,
    tier: u64,
}

/// Results by scenario name; true if the scenario passed.
#[derive(Debug, Default)]
pub struct Verdicts(BTreeMap<String, bool>);

impl Verdicts {
    pub fn passed_count(&self) -> usize {
        self.0.values().filter(|passed| **passed).count()
    }

    pub fn failed_names(&self) -> Vec<&str> {
        self.0.iter().filter(|(_, passed)| !**passed).map(|(name, _)| name.as_str()).collect()
    }

    /// Names of the scenarios that need all replicas.
    pub fn undisturbed_names(&self) -> Vec<String> {
        let names: BTreeSet<&str> =
            UNDISTURBED.lines().filter_map(|line| line.split('#').next()).map(str::trim).collect();
        self.0.keys().filter(|name| names.contains(name.as_str())).cloned().collect()
    }

    /// Adds results, which replace earlier ones of the same scenarios.
    pub fn extend(&mut self, later: Self) {
        self.0.extend(later.0);
    }
}

impl Suite {
    /// The suite beside the clone or in the folder `CROWSNEST_CONFORMANCE`. `None` if that is `none`, and outside CI if
    /// it is missing.
    pub fn find(only: &str, tier: u64) -> Result<Option<Self>> {
        if env::var_os("CROWSNEST_CONFORMANCE").is_some_and(|folder| folder == "none") {
            eprintln!("skipped: CROWSNEST_CONFORMANCE=none");
            return Ok(None);
        }
        let default_folder = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/conformance");
        let runner = env::var_os("CROWSNEST_CONFORMANCE").map_or_else(default_folder, PathBuf::from).join("fleet.py");
        if runner.is_file() {
            let recordings = Recordings::copy(&runner.with_file_name("fleet"))?;
            return Ok(Some(Self { runner, recordings, only: only.to_owned(), tier }));
        }
        if in_ci() {
            bail!("the recorded scenarios are not at {} (set CROWSNEST_CONFORMANCE)", runner.display());
        }
        eprintln!("skipped: the recorded scenarios are not at {}", runner.display());
        Ok(None)
    }

    /// Runs the scenarios whose names match `only` and prints the runner's output. Sends a message when the first one has
    /// ended, and drops the sender at the end.
    pub fn check(&self, kubeconfigs: &Path, only: &str, running: Option<Sender<()>>) -> Result<Verdicts> {
        let mut runner = Command::new("python3")
            .arg(&self.runner)
            .args(["check", "--only", only, "--jobs", JOBS, "--tier", &self.tier.to_string(), "--kubeconfigs"])
            .arg(kubeconfigs)
            .arg("--root")
            .arg(self.recordings.folder())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start the runner of the scenarios")?;
        let out = runner.stdout.take().context("no standard output")?;
        let mut verdicts = Verdicts::default();
        for line in BufReader::new(out).lines() {
            let line = line?;
            eprintln!("{line}");
            if let Some((name, passed)) = parse_verdict(&line) {
                if let (true, Some(running)) = (verdicts.0.is_empty(), &running) {
                    running.send(()).context("the receiver of the first verdict has ended")?;
                }
                verdicts.0.insert(name.to_owned(), passed);
            }
        }
        match runner.wait()?.code() {
            // A scenario failed, or none ran.
            Some(0 | 1) => Ok(verdicts),
            _ => bail!("the runner of the scenarios failed"),
        }
    }
}

/// Parses `PASS name (1.2s)`, or FAIL with the reason.
fn parse_verdict(line: &str) -> Option<(&str, bool)> {
    let passed = match line.get(..4)? {
        "PASS" => true,
        "FAIL" => false,
        _ => return None,
    };
    Some((line.get(4..)?.split_whitespace().next()?, passed))
}
