//! The recorded scenarios, as their own runner judges them.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use crowsnest_tests::in_ci;

const OPEN: &str = include_str!("../../../.ci/fleet-serve-open");
/// Scenarios at once: what all of it runs on is busy with the replicas, too.
const JOBS: &str = "4";

pub struct Suite {
    runner: PathBuf,
    only: String,
    tier: u64,
}

/// What became of each scenario; of one that ran twice what became of it the second time.
#[derive(Debug, Default)]
pub struct Verdicts(BTreeMap<String, bool>);

impl Verdicts {
    pub fn passed(&self) -> usize {
        self.0.values().filter(|passed| **passed).count()
    }

    /// Those that are not known not to pass.
    pub fn failed(&self) -> Vec<String> {
        let open: BTreeSet<&str> = OPEN.lines().filter_map(|line| line.split('#').next()).map(str::trim).collect();
        let failed = self.0.iter().filter(|(name, passed)| !**passed && !open.contains(name.as_str()));
        failed.map(|(name, _)| name.clone()).collect()
    }

    pub fn extend(&mut self, later: Self) {
        self.0.extend(later.0);
    }
}

impl Suite {
    /// Beside the clone, or where `CROWSNEST_CONFORMANCE` says. None where it is not, and this is not CI.
    pub fn find(only: &str, tier: u64) -> Result<Option<Self>> {
        let beside = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/conformance");
        let runner = env::var_os("CROWSNEST_CONFORMANCE").map_or_else(beside, PathBuf::from).join("fleet.py");
        if runner.is_file() {
            return Ok(Some(Self { runner, only: only.to_owned(), tier }));
        }
        if in_ci() {
            bail!("the scenarios are not at {} (set CROWSNEST_CONFORMANCE)", runner.display());
        }
        eprintln!("skipped: the scenarios are not at {}", runner.display());
        Ok(None)
    }

    /// Runs those that are wanted, or one of them, and prints what the runner says.
    pub fn check(&self, kubeconfigs: &Path, one: Option<&str>) -> Result<Verdicts> {
        let (only, jobs) = one.map_or((self.only.as_str(), JOBS), |one| (one, "1"));
        let mut runner = Command::new("python3")
            .arg(&self.runner)
            .args(["check", "--only", only, "--jobs", jobs, "--tier", &self.tier.to_string(), "--kubeconfigs"])
            .arg(kubeconfigs)
            .stdout(Stdio::piped())
            .spawn()
            .context("starting the runner of the scenarios")?;
        let out = runner.stdout.take().context("no standard output")?;
        let mut verdicts = Verdicts::default();
        for line in BufReader::new(out).lines() {
            let line = line?;
            eprintln!("{line}");
            if let Some((name, passed)) = verdict(&line) {
                verdicts.0.insert(name.to_owned(), passed);
            }
        }
        match runner.wait()?.code() {
            // Something failed, or nothing.
            Some(0 | 1) => Ok(verdicts),
            _ => bail!("the runner of the scenarios could not go on"),
        }
    }
}

/// `PASS name (1.2s)`, or FAIL and why.
fn verdict(line: &str) -> Option<(&str, bool)> {
    let passed = match line.get(..4)? {
        "PASS" => true,
        "FAIL" => false,
        _ => return None,
    };
    Some((line.get(4..)?.split_whitespace().next()?, passed))
}
