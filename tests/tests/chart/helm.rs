//! Runs Helm as a Python library, for the tests that render the charts.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use crowsnest_tests::{in_ci, python};
use serde_json::Value;

/// The repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Command of the script that renders charts; `None` outside CI if Python with Helm is not installed.
pub fn helm() -> Result<Option<Command>> {
    let Some(program) = python()? else { return Ok(None) };
    let has = Command::new(&program).args(["-c", "import helm_python"]).stderr(Stdio::null()).status()?;
    if !has.success() {
        ensure!(!in_ci(), "{} has no helm-python-sdk: .ci/tools brings it", program.display());
        writeln!(
            std::io::stderr(),
            "skipped: helm-python-sdk is missing here (.ci/tools brings it); CI runs this test"
        )?;
        return Ok(None);
    }
    let mut command = Command::new(program);
    command.arg(root().join("tests/tests/chart/render.py"));
    Ok(Some(command))
}

/// Result of each case (`chart`, `release`, `values`) as printed by the script; `None` without Helm.
pub fn render(cases: &[Value]) -> Result<Option<Vec<u8>>> {
    let Some(mut command) = helm()? else { return Ok(None) };
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    child.stdin.take().context("no standard input")?.write_all(&serde_json::to_vec(cases)?)?;
    let output = child.wait_with_output()?;
    ensure!(output.status.success(), "render.py ended with {}", output.status);
    Ok(Some(output.stdout))
}
