//! Screenshots of twelve views of the UI, compared with the expected ones in `web/e2e/visual`.

use anyhow::{Context, Result, ensure};
use crowsnest_tests::{Fleet, run_browser_script, screenshot_folder};

const FLEET: &str = include_str!("visual/fleet.yaml");
/// One node per member, so that each pod has the same node in each run, and a fixed version.
const MEMBERS: &str = "east,west:nodes=1,version=v1.36.2";
/// CPU requests of the pods in both members, as their Clusters report them.
const ALLOCATED: &str = "200m 200m";

/// Accept the current screenshots: `UPDATE_SCREENSHOTS=1 cargo test -p crowsnest --test system visual::`.
#[test]
fn views_look_as_expected() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let args = ["--members", MEMBERS, "--cluster-status-update-frequency", "1s"];
    let fleet = Fleet::start(&dir.path().join("data"), &args)?;
    let Some(kubectl) = fleet.any_kubectl()? else { return Ok(()) };
    // `apply` would add an annotation that depends on the version of kubectl.
    kubectl.run_ok(&["create", "-f", "-"], FLEET)?;
    let ready = ["get", "deploy", "web", "-n", "shop", "-o", "jsonpath={.status.readyReplicas}"];
    kubectl.run_until(&ready, |out| out == "4")?;
    let allocated = ["get", "clusters", "-o", "jsonpath={.items[*].status.resourceSummary.allocated.cpu}"];
    kubectl.run_until(&allocated, |out| out == ALLOCATED)?;

    let screenshots = screenshot_folder()?;
    run_browser_script("visual", &[fleet.ui_url.as_ref(), screenshots.as_ref()], &[]).with_context(|| fleet.log())?;
    ensure!(fleet.stop()?.success());
    Ok(())
}
