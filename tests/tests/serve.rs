//! `crowsnest serve` with a control plane in its own process: installed twice, served by three replicas on one Postgres
//! behind one address. The leader is killed, the next one paused, the third cut off: each time another replica takes
//! over, and a client that reads continuously and retries once always gets a response.

#![expect(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "the module of the cache's tests that starts Postgres does both"
)]

mod burst;
mod certificate_reload;
mod karmada_metrics;
mod member_writes;
mod migration;
pub mod network;
#[allow(dead_code, reason = "the cache's tests use more of it")]
#[path = "../../index/tests/support/postgres.rs"]
pub mod postgres;
mod pull_mode;
mod readers;
pub mod replica;
mod separate_roles;
mod test_env;
mod uninstallation;
mod upgrade;
mod watches;

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};

use crowsnest_tests::{Kubectl, find_kubectl, wait_for};
use readers::Readers;
use replica::Replica;
use test_env::TestEnv;

/// Removes the leader from the list and returns it; fails unless there is exactly one.
fn take_leader(replicas: &mut Vec<Replica>) -> Result<Replica> {
    let are_leaders = replicas.iter().map(Replica::is_leader).collect::<Result<Vec<bool>>>()?;
    ensure!(are_leaders.iter().filter(|is_leader| **is_leader).count() == 1, "leaders: {are_leaders:?}");
    Ok(replicas.remove(are_leaders.iter().position(|is_leader| *is_leader).context("no replica is the leader")?))
}

fn logs(replicas: &[Replica]) -> String {
    replicas.iter().map(Replica::log).collect()
}

/// Waits until one of the remaining replicas is the leader. All of them must stay ready during the wait.
fn wait_for_leader(replicas: &[Replica]) -> Result<()> {
    wait_for("another replica to become the leader", || {
        for replica in replicas {
            ensure!(replica.is_ready()?, "{} is not ready", replica.name);
        }
        Ok(replicas.iter().map(Replica::is_leader).collect::<Result<Vec<bool>>>()?.contains(&true))
    })
    .with_context(|| logs(replicas))
}

/// Sends requests with kubectl. Go clients, such as kube-apiserver, use HTTP/2; the other clients of these tests do
/// not.
fn check_http2(env: &TestEnv) -> Result<()> {
    let Some(program) = find_kubectl("1.36")? else { return Ok(()) };
    let folder = env.create_folder("kubectl")?;
    let kubectl = Kubectl::new("1.36", program, &env.control_plane.kubeconfig, &folder)?;
    let server = format!("https://127.0.0.1:{}", env.port);
    let kubectl = kubectl.with_flags(&["--server", &server, "--insecure-skip-tls-verify"]);
    let fleet_path = "/apis/search.karmada.io/v1alpha1/proxying/karmada/proxy/api/v1/namespaces/karmada-cluster";
    let member_path = "/apis/cluster.karmada.io/v1alpha1/clusters/m1/proxy/api/v1/namespaces/default";
    for (path, name) in [(fleet_path, "karmada-cluster"), (member_path, "default")] {
        kubectl.expect_output(&["get", "--raw", path], "", 0, &format!("\"name\":\"{name}\""))?;
    }
    Ok(())
}

#[test]
fn a_standby_takes_over_when_the_leader_is_killed_suspended_or_cut_off() -> Result<()> {
    let Some(env) = TestEnv::start()? else { return Ok(()) };
    let output = env.install()?;
    ensure!(output.ok && output.out.contains("apiservice/v1alpha1.cluster.karmada.io applied"), "{output:?}");
    let diagnosis = env.crowsnest(&["doctor"])?;
    ensure!(
        !diagnosis.ok && diagnosis.out.contains("check that `crowsnest serve` runs with the role aggregated"),
        "{diagnosis:?}"
    );

    let (mut replicas, _balancer) = env.serve(&["a", "b", "c"])?;
    env.join()?;
    env.propagate("first")?;
    wait_for("the first object to be propagated", || env.has_in_member("first")).with_context(|| logs(&replicas))?;
    let first = env.get_in_member("first")?;
    wait_for("doctor to report no problems", || Ok(env.crowsnest(&["doctor"])?.ok))
        .with_context(|| format!("{:?}", env.crowsnest(&["doctor"])))?;
    let mut errors = String::new();
    wait_for("all metrics to be served", || {
        let metrics = replicas.iter().map(Replica::metrics).collect::<Result<Vec<_>>>()?;
        errors = karmada_metrics::find_errors(&metrics)?;
        Ok(errors.is_empty())
    })
    .context(errors)?;
    // A second installation applies the same objects and writes nothing.
    let before = env.installed_versions()?;
    let again = env.crowsnest(&["install"])?;
    ensure!(again.ok && again.out == output.out, "{again:?}");
    let after = env.installed_versions()?;
    ensure!(before == after, "before {before:?}, after {after:?}");

    env.register()?;
    check_http2(&env)?;
    let readers = Readers::start(&env)?;
    take_leader(&mut replicas)?.kill()?;
    wait_for_leader(&replicas)?;
    env.propagate("second")?;
    wait_for("the second object to be propagated", || env.has_in_member("second")).with_context(|| logs(&replicas))?;

    // The leader is suspended while it propagates an object. When it resumes, another replica is the leader, and it
    // writes nothing.
    let suspended = take_leader(&mut replicas)?;
    env.propagate("meanwhile")?;
    suspended.signal("STOP")?;
    wait_for_leader(&replicas)?;
    // The new leader writes nothing more once it has reported the object as applied.
    wait_for("the object of the suspended leader to be propagated", || {
        Ok(env.has_in_member("meanwhile")? && env.is_fully_applied("meanwhile")?)
    })
    .with_context(|| logs(&replicas))?;
    let writes_before = env.member_writes()?;
    suspended.signal("CONT")?;
    wait_for("the resumed replica to be a ready standby", || Ok(!suspended.is_leader()? && suspended.is_ready()?))
        .with_context(|| suspended.log())?;
    let late_writes = env.member_writes()?.split_off(writes_before.len());
    ensure!(
        late_writes.is_empty(),
        "written after another replica became the leader: {late_writes:#?}\n{}{}",
        suspended.log(),
        logs(&replicas)
    );
    replicas.push(suspended);
    let cut_off = take_leader(&mut replicas)?;
    ensure!(env.lease_holders()? == BTreeSet::from([Some(cut_off.name.clone())]), "{:?}", env.lease_holders()?);
    env.propagate("third")?;
    wait_for("the third object to be propagated", || env.has_in_member("third")).with_context(|| cut_off.log())?;

    // The leader runs but cannot reach the control plane: it stops leading before another replica starts.
    cut_off.link.cut();
    wait_for_leader(&replicas)?;
    ensure!(!cut_off.is_leader()?, "two replicas are leaders: {}{}", cut_off.log(), logs(&replicas));
    cut_off.link.restore();
    let leader = replicas.pop().context("no replica is left")?;
    env.propagate("fourth")?;
    wait_for("the fourth object to be propagated", || env.has_in_member("fourth")).with_context(|| leader.log())?;
    ensure!(env.lease_holders()? == BTreeSet::from([Some(leader.name.clone())]), "{:?}", env.lease_holders()?);
    ensure!(!cut_off.is_leader()? && leader.is_leader()?, "{}{}", cut_off.log(), leader.log());

    wait_for("the disconnected replica to be ready", || cut_off.is_ready()).with_context(|| cut_off.log())?;
    readers.stop(&env).with_context(|| format!("{}{}", cut_off.log(), leader.log()))?;

    for mut replica in [cut_off, leader] {
        let (stopped, log) = replica.stop()?;
        ensure!(stopped.success(), "the replica stopped with {stopped}: {log}");
    }
    ensure!(env.lease_holders()? == BTreeSet::from([None]), "leases were not released: {:?}", env.lease_holders()?);
    // The new leader did not write the first object again.
    ensure!(
        env.get_in_member("first")? == first,
        "{first:?} has been written again: {:?}",
        env.get_in_member("first")?
    );
    env.ensure_logs_contain_no_secrets()?;
    let uninstalled = env.crowsnest(&["uninstall"])?;
    ensure!(uninstalled.ok && uninstalled.out.contains("all objects in member clusters are kept"), "{uninstalled:?}");
    for name in ["first", "second", "meanwhile", "third", "fourth"] {
        ensure!(env.has_in_member(name)?, "{name} is missing in the member");
    }
    Ok(())
}

#[test]
fn settings_are_read_from_a_file_and_unknown_ones_refused() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let settings = dir.path().join("serve.yaml");
    std::fs::write(&settings, "kubeconfig: /nowhere/kubeconfig\nroles: [webhook]\nlisten: 127.0.0.1:0\n")?;
    let file = settings.display().to_string();
    let run_serve = |extra_args: &[&str]| replica::run(&[&["serve", "--config", &file][..], extra_args].concat());
    let output = run_serve(&[])?;
    ensure!(!output.ok && output.err.contains("cannot read the kubeconfig \"/nowhere/kubeconfig\""), "{output:?}");
    let output = run_serve(&["--kubeconfig", "/elsewhere"])?;
    ensure!(!output.ok && output.err.contains("cannot read the kubeconfig \"/elsewhere\""), "{output:?}");
    // A misspelled environment variable is reported, without its value.
    let misspelled = std::process::Command::new(crowsnest_tests::binary()?)
        .args(["serve", "--config", &file])
        .env("CROWSNEST_LISTN", "open-sesame")
        .output()?;
    let stderr = String::from_utf8(misspelled.stderr)?;
    let expected = "unknown environment variable CROWSNEST_LISTN: did you mean CROWSNEST_LISTEN?\n";
    ensure!(misspelled.status.code() == Some(2) && stderr.contains(expected) && !stderr.contains("sesame"), "{stderr}");
    std::fs::write(&settings, "role: [webhook]\n")?;
    let output = run_serve(&[])?;
    ensure!(!output.ok && output.err.contains("unknown key \"role\""), "{output:?}");
    Ok(())
}
