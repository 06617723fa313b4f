//! Controller flags of `crowsnest up` apply to controllers and webhooks, and unknown values are refused.

use std::process::Command;

use anyhow::{Result, ensure};
use crowsnest_tests::{Fleet, binary};

const QUOTA: &str = include_str!("controller_flags/quota.yaml");
const BINDING: &str = include_str!("controller_flags/binding.yaml");

#[test]
fn unknown_gates_and_controllers_are_refused() -> Result<()> {
    for (flag, value, known) in
        [("--feature-gates", "Nope=true", "FederatedQuotaEnforcement"), ("--controllers", "*,-nope", "bindingStatus")]
    {
        let output = Command::new(binary()?).args(["up", flag, value]).output()?;
        let stderr = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.code() == Some(2), "{stderr}");
        ensure!(stderr.contains("nope") || stderr.contains("Nope"), "{stderr}");
        ensure!(stderr.contains(flag) && stderr.contains(known), "{stderr}");
    }
    Ok(())
}

#[test]
fn feature_gates_apply_to_webhooks() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let flags =
        ["--no-members", "--feature-gates", "FederatedQuotaEnforcement=true", "--allow-no-execute-taint-policy"];
    let fleet = Fleet::start(&dir.path().join("data"), &flags)?;
    if let Some(kubectl) = fleet.any_kubectl()? {
        kubectl.run_ok(&["apply", "-f", "-"], QUOTA)?;
        let refused = kubectl.run(&["apply", "-f", "-"], BINDING)?;
        ensure!(refused.code == Some(1), "{refused:?}");
        ensure!(refused.err.contains("FederatedResourceQuota(default/team) exceeded for resource cpu"), "{refused:?}");
    }
    ensure!(fleet.stop()?.success());
    Ok(())
}
