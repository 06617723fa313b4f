//! Signing in with a client certificate, what a page does when its session ends, and that a page talks to nobody else: in a real browser.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use crowsnest_tests::{Fleet, chromium};

#[test]
fn a_certificate_signs_in_and_pages_stay_where_they_are() -> Result<()> {
    let Some(chromium) = chromium()? else { return Ok(()) };
    let dir = tempfile::tempdir()?;
    let fleet = Fleet::start(&dir.path().join("data"), &["--no-members"])?;
    let address = fleet.ui_url.split("/#").next().context("an address")?;
    let pictures = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("pictures");
    std::fs::create_dir_all(&pictures)?;
    let output = Command::new("node")
        .args(["e2e/signin.mjs", address])
        .arg(fleet.kubeconfig("cp"))
        .arg(&pictures)
        .env("CROWSNEST_CHROMIUM", chromium)
        .current_dir(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../web"))
        .output()
        .context("running node")?;
    if !output.status.success() {
        let said = [output.stdout, output.stderr].concat();
        bail!("the browser test failed: {}{}", String::from_utf8_lossy(&said), fleet.log());
    }
    ensure!(fleet.stop()?.success());
    Ok(())
}
