//! Operation of the cache: status, detection of damaged files, and rebuilding.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};
use crowsnest_tests::{CommandOutput, Fleet, binary, wait_for};

const CONFIG: &str = include_str!("cache/config.yaml");

/// Runs a command with `--data-dir`, without a connection to a fleet.
fn run_on_data_dir(data_dir: &Path, args: &[&str]) -> Result<CommandOutput> {
    CommandOutput::parse(&Command::new(binary()?).args(args).arg("--data-dir").arg(data_dir).output()?)
}

fn wait_until_object_is_found(fleet: &Fleet) -> Result<()> {
    wait_for("the object to be found in the member", || {
        let output = fleet.crowsnest(&["search", "name:kept-apart", "-o", "name"])?;
        Ok(output.out.contains("member1/default/configmaps/kept-apart"))
    })
}

#[test]
fn a_damaged_cache_is_refused_and_rebuilt() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let data_dir = dir.path().join("data");
    let fleet = Fleet::start(&data_dir, &["--members", "1"])?;
    let Some(kubectl) = fleet.any_kubectl()? else { return Ok(()) };
    kubectl.with_kubeconfig(&fleet.kubeconfig("member1")).run_ok(&["apply", "-f", "-"], CONFIG)?;
    wait_until_object_is_found(&fleet)?;

    wait_for("the cache status to list the member's ConfigMaps as followed", || {
        let output = fleet.crowsnest(&["cache", "status", "--resources"])?;
        let line = output.out.lines().find(|line| line.starts_with("member1 ") && line.contains(" configmaps "));
        Ok(output.code == Some(0) && line.is_some_and(|line| line.contains("1/1") && line.ends_with("<none>")))
    })?;
    wait_for("the text index to contain the same objects as the cache", || {
        let output = fleet.crowsnest(&["index", "verify"])?;
        Ok(output.code == Some(0) && output.out.starts_with("tantivy: ") && output.out.ends_with("equal\n"))
    })?;
    let output = fleet.crowsnest(&["index", "rebuild"])?;
    ensure!(output.code != Some(0) && output.err.contains("crowsnest cache rebuild --text"), "{output:?}");
    let metrics = kubectl.run_ok(&["get", "--raw", "/apis/search.crowsnest.io/v1alpha1/metrics"], "")?;
    let followed = "crowsnest_cache_followed{cluster=\"member1\",group=\"\",version=\"v1\",resource=\"configmaps\"} 1";
    ensure!(metrics.contains(followed) && metrics.contains("\ncrowsnest_cache_ready 1\n"), "{metrics}");
    let nobody = kubectl.with_flags(&["--as", "nobody"]);
    nobody.expect_output(&["get", "--raw", "/apis/search.crowsnest.io/v1alpha1/cache"], "", 1, "forbidden")?;
    let output = run_on_data_dir(&data_dir, &["cache", "rebuild"])?;
    ensure!(output.code == Some(1) && output.err.contains("is in use by another crowsnest"), "{output:?}");
    let output = run_on_data_dir(&data_dir, &["cache", "check"])?;
    ensure!(
        output.code == Some(0) && output.out.ends_with("no damage found\n"),
        "check of the cache of a running fleet: {output:?}"
    );
    ensure!(fleet.stop()?.success());

    let database = data_dir.join("cache/cache.sqlite");
    let mut bytes = fs::read(&database)?;
    bytes[..16].copy_from_slice(b"no such database");
    fs::write(&database, bytes)?;
    let output = run_on_data_dir(&data_dir, &["cache", "check"])?;
    ensure!(output.code == Some(1) && output.out.contains("damaged: "), "{output:?}");
    let output =
        run_on_data_dir(&data_dir, &["up", "--listen", "127.0.0.1:0", "--ui-listen", "127.0.0.1:0", "--members", "1"])?;
    let error = output.err.lines().filter(|line| line.starts_with("error: ")).collect::<Vec<_>>();
    ensure!(output.code == Some(1) && error.len() == 1 && error[0].contains("crowsnest cache rebuild"), "{output:?}");
    let output = run_on_data_dir(&data_dir, &["cache", "rebuild"])?;
    ensure!(output.code == Some(0), "{output:?}");

    let fleet = Fleet::start(&data_dir, &["--members", "1"])?;
    wait_until_object_is_found(&fleet)?;
    ensure!(fleet.stop()?.success());
    let output = run_on_data_dir(&data_dir, &["cache", "check"])?;
    ensure!(output.code == Some(0) && output.out.ends_with("no damage found\n"), "{output:?}");
    Ok(())
}
