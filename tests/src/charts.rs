//! Runs the scripts that render charts and build releases.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::{CommandOutput, find_on_path, find_python, require_tool, tools_folder};

/// Root folder of the repository.
pub fn repository_root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Path of a Python interpreter that can import Helm. Outside CI, returns `None` if it is not installed.
fn find_helm_python() -> Result<Option<PathBuf>> {
    let Some(program) = find_python()? else { return Ok(None) };
    let imported = Command::new(&program).args(["-c", "import helm_python"]).stderr(Stdio::null()).status()?;
    require_tool(imported.success().then_some(program), "helm-python-sdk", ".ci/tools")
}

/// Renders charts and returns the script's output: JSON with the manifests or the error of each case. A case has a
/// `chart`, a `release` and `values`. Outside CI, returns `None` if Helm is not installed.
pub fn render_charts(cases: &[Value]) -> Result<Option<Vec<u8>>> {
    let Some(program) = find_helm_python()? else { return Ok(None) };
    let mut command = Command::new(program);
    command.arg(repository_root().join(".ci/charts.py"));
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    child.stdin.take().context("no standard input")?.write_all(&serde_json::to_vec(cases)?)?;
    let output = child.wait_with_output()?;
    ensure!(output.status.success(), "charts.py ended with {}", output.status);
    Ok(Some(output.stdout))
}

/// Runs a subcommand of the release script, which writes its results to `folder`. Outside CI, returns false if a
/// required tool is not installed.
pub fn run_release_script(verb: &str, folder: &Path, args: &[&str]) -> Result<bool> {
    let Some(program) = find_helm_python()? else { return Ok(false) };
    let installed = tools_folder().map(|tools| tools.join("cargo/bin/cargo-cyclonedx")).filter(|path| path.is_file());
    let cyclonedx = installed.or_else(|| find_on_path("cargo-cyclonedx"));
    if require_tool(cyclonedx, "cargo-cyclonedx", ".ci/tools")?.is_none() {
        return Ok(false);
    }
    let mut command = Command::new(program);
    let output =
        command.arg(repository_root().join(".ci/release")).args([verb, "--out"]).arg(folder).args(args).output()?;
    let output = CommandOutput::parse(&output)?;
    ensure!(output.code == Some(0), "release {verb}: {output:?}");
    Ok(true)
}
