//! Five tasks of a user within a number of steps and by keyboard only, and twenty details of the UI, in a browser on a fleet with
//! problems. The tasks and the details also take the pictures of docs/UI.md.

use anyhow::{Context, Result, ensure};
use crowsnest_tests::{Fleet, run_browser_script, screenshot_folder};

const FLEET: &str = include_str!("tasks/fleet.yaml");
/// Objects of the member west that are not propagated.
const WEST: &str = include_str!("tasks/west.yaml");
const MEMBERS: &str = "east,north,west:nodes=2";
const TAINTS: &str = r#"{"spec":{"taints":[{"key":"dedicated","value":"batch","effect":"NoSchedule"}]}}"#;
/// Image, updated and ready replicas of the Deployment `api` in a member.
const ROLLOUT: &str =
    "jsonpath={.spec.template.spec.containers[0].image} {.status.updatedReplicas} {.status.readyReplicas}";

/// Update the pictures: `UPDATE_SCREENSHOTS=1 cargo test -p crowsnest --test system tasks::`.
#[test]
fn tasks_and_details_are_as_documented() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let fleet = Fleet::start(&dir.path().join("data"), &["--members", MEMBERS])?;
    let Some(kubectl) = fleet.any_kubectl()? else { return Ok(()) };
    let west = kubectl.with_kubeconfig(&fleet.kubeconfig("west"));
    kubectl.run_ok(&["patch", "cluster", "north", "--type=merge", "-p", TAINTS], "")?;
    kubectl.run_ok(&["create", "-f", "-"], FLEET)?;
    let ready = ["get", "deploy", "api", "-n", "shop", "-o", "jsonpath={.status.readyReplicas}"];
    kubectl.run_until(&ready, |out| out == "4")?;
    west.run_ok(&["create", "-f", "-"], WEST)?;
    kubectl.run_ok(&["set", "image", "deploy/api", "-n", "shop", "api=registry.example/api:1.5"], "")?;
    for member in ["east", "west"] {
        let member = kubectl.with_kubeconfig(&fleet.kubeconfig(member));
        member.run_until(&["get", "deploy", "api", "-n", "shop", "-o", ROLLOUT], |out| {
            out == "registry.example/api:1.5 2 2"
        })?;
    }
    west.run_until(&["get", "pods", "-n", "shop", "-l", "app=payments"], |out| out.contains("CrashLoopBackOff"))?;

    let screenshots = screenshot_folder()?;
    for script in ["tasks", "keyboard", "scorecard"] {
        run_browser_script(script, &[fleet.ui_url.as_ref(), screenshots.as_ref()], &[]).with_context(|| fleet.log())?;
    }
    ensure!(fleet.stop()?.success());
    Ok(())
}
