//! The scripts that render charts and build releases.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::{CommandOutput, cache, missing, on_path, python};

/// The repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Python with Helm as a library; `None` outside CI if it is not installed.
fn helm() -> Result<Option<PathBuf>> {
    let Some(program) = python()? else { return Ok(None) };
    let has = Command::new(&program).args(["-c", "import helm_python"]).stderr(Stdio::null()).status()?;
    missing(has.success().then_some(program), "helm-python-sdk", ".ci/tools")
}

/// Result of each case (`chart`, `release`, `values`) as printed by the script; `None` without Helm.
pub fn render(cases: &[Value]) -> Result<Option<Vec<u8>>> {
    let Some(program) = helm()? else { return Ok(None) };
    let mut command = Command::new(program);
    command.arg(root().join(".ci/charts.py"));
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    child.stdin.take().context("no standard input")?.write_all(&serde_json::to_vec(cases)?)?;
    let output = child.wait_with_output()?;
    ensure!(output.status.success(), "charts.py ended with {}", output.status);
    Ok(Some(output.stdout))
}

/// Runs a verb of the release script, which writes into a folder. Returns false outside CI if one of its tools is not installed.
pub fn release(verb: &str, folder: &Path, args: &[&str]) -> Result<bool> {
    let Some(program) = helm()? else { return Ok(false) };
    let lists = cache().map(|cache| cache.join("cargo/bin/cargo-cyclonedx")).filter(|path| path.is_file());
    let lists = lists.or_else(|| on_path("cargo-cyclonedx"));
    if missing(lists, "cargo-cyclonedx", ".ci/tools")?.is_none() {
        return Ok(false);
    }
    let mut command = Command::new(program);
    let output = command.arg(root().join(".ci/release")).args([verb, "--out"]).arg(folder).args(args).output()?;
    let output = CommandOutput::of(&output)?;
    ensure!(output.code == Some(0), "release {verb}: {output:?}");
    Ok(true)
}
