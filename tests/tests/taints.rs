//! `crowsnest cordon`, `uncordon` and `taint`: output and writes; and `unjoin` of a cluster whose deletion is blocked.

use anyhow::{Context, Result, ensure};
use crowsnest_tests::{Fleet, Kubectl, wait_for_output};

const MANUAL_BINDING: &str = include_str!("taints/by-hand.yaml");

#[test]
fn clusters_are_tainted_and_unjoined() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let fleet = Fleet::start(&dir.path().join("data"), &["--members", "m1,m2"])?;
    let Some(kubectl) = fleet.any_kubectl()? else { return Ok(()) };
    kubectl.run_ok(&["wait", "--for=condition=Ready", "cluster", "--all", "--timeout=240s"], "")?;
    check_cordon(&fleet, &kubectl).with_context(|| fleet.log())?;
    check_taint(&fleet, &kubectl).with_context(|| fleet.log())?;
    check_unjoin(&fleet, &kubectl).with_context(|| fleet.log())?;
    ensure!(fleet.stop()?.success());
    Ok(())
}

/// Runs a command that must succeed and print exactly this text.
fn expect_exact_output(fleet: &Fleet, args: &[&str], expected: &str) -> Result<()> {
    let output = fleet.crowsnest(args)?;
    ensure!(output.code == Some(0) && output.out == expected, "{args:?}: {output:?}");
    Ok(())
}

/// Runs a command that must fail with this error.
fn expect_error(fleet: &Fleet, args: &[&str], expected: &str) -> Result<()> {
    let output = fleet.crowsnest(args)?;
    ensure!(output.code == Some(1) && output.err.contains(expected), "{args:?}: {output:?}");
    Ok(())
}

fn taints(kubectl: &Kubectl, cluster: &str) -> Result<String> {
    let path = "jsonpath={range .spec.taints[*]}{.key}={.value}:{.effect} {end}";
    kubectl.run_ok(&["get", "cluster", cluster, "-o", path], "")
}

fn check_cordon(fleet: &Fleet, kubectl: &Kubectl) -> Result<()> {
    expect_exact_output(fleet, &["cordon", "m1", "--dry-run"], "m1 cluster cordoned (dry run)\n")?;
    ensure!(taints(kubectl, "m1")?.is_empty());
    expect_exact_output(fleet, &["cordon", "m1"], "m1 cluster cordoned\n")?;
    ensure!(taints(kubectl, "m1")? == "cluster.karmada.io/unschedulable=:NoSchedule ");
    expect_exact_output(fleet, &["cordon", "m1"], "m1 cluster already cordoned\n")?;
    expect_exact_output(fleet, &["uncordon", "m1"], "m1 cluster uncordoned\n")?;
    ensure!(taints(kubectl, "m1")?.is_empty());
    expect_exact_output(fleet, &["uncordon", "m1"], "m1 cluster already uncordoned\n")?;
    expect_error(fleet, &["cordon", "m9"], "error: cluster m9 not found\n")
}

fn check_taint(fleet: &Fleet, kubectl: &Kubectl) -> Result<()> {
    let both = ["taint", "clusters", "m1", "m2", "team=a:NoSchedule", "slow:NoExecute"];
    expect_exact_output(
        fleet,
        &[&both[..], &["--dry-run"]].concat(),
        "cluster/m1 tainted (dry run)\ncluster/m2 tainted (dry run)\n",
    )?;
    expect_exact_output(fleet, &both, "cluster/m1 tainted\ncluster/m2 tainted\n")?;
    for cluster in ["m1", "m2"] {
        ensure!(taints(kubectl, cluster)? == "team=a:NoSchedule slow=:NoExecute ");
    }
    let again = ["taint", "cluster", "m1", "team=b:NoSchedule"];
    expect_error(
        fleet,
        &again,
        "cluster m1 already has team:NoSchedule taint(s) with same effect(s) and --overwrite is false",
    )?;
    expect_exact_output(fleet, &[&again[..], &["--overwrite"]].concat(), "cluster/m1 modified\n")?;
    ensure!(taints(kubectl, "m1")? == "slow=:NoExecute team=b:NoSchedule ");
    expect_exact_output(fleet, &["taint", "clusters", "m1", "team:NoSchedule-", "slow-"], "cluster/m1 untainted\n")?;
    ensure!(taints(kubectl, "m1")?.is_empty());
    expect_error(fleet, &["taint", "clusters", "m1", "team-"], "cluster m1: taint \"team\" not found")?;
    expect_error(fleet, &["taint", "nodes", "m1", "a:NoSchedule"], "invalid resource type nodes")?;
    expect_error(fleet, &["taint", "clusters", "m1", "a:Never"], "invalid taint effect: Never")
}

/// A blocked deletion is reported with its cause; `--force` completes it.
fn check_unjoin(fleet: &Fleet, kubectl: &Kubectl) -> Result<()> {
    kubectl.run_ok(&["apply", "-f", "-"], MANUAL_BINDING)?;
    // The Work of the binding, and four Works with the RBAC objects for impersonation.
    let is_complete = |out: &str| out.contains("/mine-") && out.lines().count() == 5;
    kubectl.run_until(&["get", "works", "-n", "karmada-es-m2", "-o", "name"], is_complete)?;
    expect_exact_output(
        fleet,
        &["unjoin", "m2", "--dry-run"],
        "cluster(m2) would be unjoined, with 5 Works (dry run)\n",
    )?;
    kubectl.run_ok(&["get", "cluster", "m2"], "")?;
    // The first attempts may report another cause.
    let error =
        "error: cluster m2 still exists after 1 s: it waits for 1 bindings: default/mine (it has no placement)\n";
    let blocked = wait_for_output(fleet, &["unjoin", "m2", "--wait", "1s"], |output| output.err.contains(error))?;
    ensure!(blocked.code == Some(1), "{blocked:?}");
    let output = fleet.crowsnest(&["unjoin", "m2", "--wait", "1s", "--force"])?;
    ensure!(output.code == Some(0) && output.out == "cluster(m2) is unjoined successfully\n", "{output:?}");
    kubectl.expect_output(&["get", "cluster", "m2"], "", 1, "not found").map(drop)
}
