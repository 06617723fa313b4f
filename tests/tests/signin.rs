//! Browser tests of signing in with a client certificate or with a token in the address, of an expired session, and of
//! pages connecting to no other host.

use anyhow::{Context, Result, ensure};
use crowsnest_tests::{Fleet, pictures, walk};

#[test]
fn a_certificate_signs_in_and_pages_keep_their_state() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let fleet = Fleet::start(&dir.path().join("data"), &["--no-members"])?;
    let (address, token) = fleet.ui_url.split_once("/#token=").context("an address with a token")?;
    let (kubeconfig, pictures) = (fleet.kubeconfig("cp"), pictures()?);
    let given = [address.as_ref(), kubeconfig.as_ref(), pictures.as_ref(), token.as_ref()];
    let walked = walk("signin", &given, &[]);
    walked.with_context(|| fleet.log())?;
    ensure!(fleet.stop()?.success());
    Ok(())
}
