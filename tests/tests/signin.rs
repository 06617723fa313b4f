//! Browser tests: signing in with a client certificate or with a token in the address, an expired session, and that
//! pages connect to no other host.

use anyhow::{Context, Result, ensure};
use crowsnest_tests::{Fleet, run_browser_script, screenshot_folder};

#[test]
fn a_certificate_signs_in_and_pages_keep_their_state() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let fleet = Fleet::start(&dir.path().join("data"), &["--no-members"])?;
    let (address, token) = fleet.ui_url.split_once("/#token=").context("the UI's address has no token")?;
    let (kubeconfig, pictures) = (fleet.kubeconfig("cp"), screenshot_folder()?);
    let args = [address.as_ref(), kubeconfig.as_ref(), pictures.as_ref(), token.as_ref()];
    let result = run_browser_script("signin", &args, &[]);
    result.with_context(|| fleet.log())?;
    ensure!(fleet.stop()?.success());
    Ok(())
}
