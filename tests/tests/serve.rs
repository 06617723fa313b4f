//! `crowsnest serve` with a control plane in its own process: installed twice, served by three replicas on one Postgres behind one
//! address. The leader is killed, the next one paused, the third cut off: each time another replica takes over, and a client that
//! reads continuously and retries once always gets a response.

#![expect(clippy::unwrap_used, clippy::print_stderr, reason = "Postgres is started by what the cache's tests share")]

mod apart;
mod figures;
mod member_writes;
mod migrating;
mod parting;
#[allow(dead_code, reason = "the cache's tests use more of it")]
#[path = "../../index/tests/support/postgres.rs"]
pub mod postgres;
mod pulling;
mod reading;
pub mod relay;
mod renewed;
pub mod site;
mod upgrading;
mod watching;
mod world;

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};

use crowsnest_tests::{Kubectl, kubectl, until};
use reading::Readers;
use site::Replica;
use world::World;

/// Removes the leader from the list.
fn leader(replicas: &mut Vec<Replica>) -> Result<Replica> {
    let leads = replicas.iter().map(Replica::leads).collect::<Result<Vec<bool>>>()?;
    ensure!(leads.iter().filter(|leads| **leads).count() == 1, "leaders: {leads:?}");
    Ok(replicas.remove(leads.iter().position(|leads| *leads).context("nobody leads")?))
}

fn logs(replicas: &[Replica]) -> String {
    replicas.iter().map(Replica::log).collect()
}

/// Waits until one of the remaining replicas leads; none of them is out of service meanwhile.
fn moved(replicas: &[Replica]) -> Result<()> {
    until("another to lead", || {
        for replica in replicas {
            ensure!(replica.is_ready()?, "{} is not ready", replica.name);
        }
        Ok(replicas.iter().map(Replica::leads).collect::<Result<Vec<bool>>>()?.contains(&true))
    })
    .with_context(|| logs(replicas))
}

/// Go clients such as kube-apiserver use HTTP/2, which the tests' other clients do not.
fn serves_http2(world: &World) -> Result<()> {
    let Some(program) = kubectl("1.36")? else { return Ok(()) };
    let there = world.scratch("kubectl")?;
    let kubectl = Kubectl::new("1.36", program, &world.control_plane.kubeconfig, &there)?;
    let own = format!("https://127.0.0.1:{}", world.port);
    let kubectl = kubectl.with(&["--server", &own, "--insecure-skip-tls-verify"]);
    let everywhere = "/apis/search.karmada.io/v1alpha1/proxying/karmada/proxy/api/v1/namespaces/karmada-cluster";
    let member = "/apis/cluster.karmada.io/v1alpha1/clusters/m1/proxy/api/v1/namespaces/default";
    for (path, named) in [(everywhere, "karmada-cluster"), (member, "default")] {
        kubectl.expect_output(&["get", "--raw", path], "", 0, &format!("\"name\":\"{named}\""))?;
    }
    Ok(())
}

#[test]
fn replicas_may_be_killed_suspended_and_cut_off() -> Result<()> {
    let Some(world) = World::start()? else { return Ok(()) };
    let output = world.install()?;
    ensure!(output.ok && output.out.contains("apiservice/v1alpha1.cluster.karmada.io applied"), "{output:?}");
    let sick = world.crowsnest(&["doctor"])?;
    ensure!(!sick.ok && sick.out.contains("check that `crowsnest serve` runs with the role aggregated"), "{sick:?}");

    let (mut replicas, _balancer) = world.serve()?;
    world.join()?;
    world.propagate("first")?;
    until("the first object to arrive", || world.has_arrived("first")).with_context(|| logs(&replicas))?;
    let first = world.in_member("first")?;
    until("all to be well", || Ok(world.crowsnest(&["doctor"])?.ok))
        .with_context(|| format!("{:?}", world.crowsnest(&["doctor"])))?;
    let mut wrong = String::new();
    until("all metrics to be served", || {
        let metrics = replicas.iter().map(Replica::metrics).collect::<Result<Vec<_>>>()?;
        wrong = figures::wrong(&metrics)?;
        Ok(wrong.is_empty())
    })
    .context(wrong)?;
    // A second installation applies the same objects and writes nothing.
    let before = world.versions()?;
    let again = world.crowsnest(&["install"])?;
    ensure!(again.ok && again.out == output.out, "{again:?}");
    let after = world.versions()?;
    ensure!(before == after, "before {before:?}, after {after:?}");

    world.register()?;
    serves_http2(&world)?;
    let readers = Readers::start(&world)?;
    leader(&mut replicas)?.kill()?;
    moved(&replicas)?;
    world.propagate("second")?;
    until("the second object to arrive", || world.has_arrived("second")).with_context(|| logs(&replicas))?;

    // The leader is suspended during its work. When it resumes, another one leads, and it writes nothing.
    let asleep = leader(&mut replicas)?;
    world.propagate("meanwhile")?;
    asleep.signal("STOP")?;
    moved(&replicas)?;
    until("what it was at to arrive", || world.has_arrived("meanwhile")).with_context(|| logs(&replicas))?;
    let written = world.writes_in_member()?;
    asleep.signal("CONT")?;
    until("the one that slept to follow", || Ok(!asleep.leads()? && asleep.is_ready()?))
        .with_context(|| asleep.log())?;
    let late = world.writes_in_member()?.split_off(written.len());
    ensure!(late.is_empty(), "written after another led: {late:#?}\n{}{}", asleep.log(), logs(&replicas));
    replicas.push(asleep);
    let cut_off = leader(&mut replicas)?;
    ensure!(world.holders()? == BTreeSet::from([Some(cut_off.name.clone())]), "{:?}", world.holders()?);
    world.propagate("third")?;
    until("the third object to arrive", || world.has_arrived("third")).with_context(|| cut_off.log())?;

    // The same for a running leader that is cut off: it stops before another one starts.
    cut_off.cable.cut();
    moved(&replicas)?;
    ensure!(!cut_off.leads()?, "two lead: {}{}", cut_off.log(), logs(&replicas));
    cut_off.cable.mend();
    let leads = replicas.pop().context("no replica is left")?;
    world.propagate("fourth")?;
    until("the fourth object to arrive", || world.has_arrived("fourth")).with_context(|| leads.log())?;
    ensure!(world.holders()? == BTreeSet::from([Some(leads.name.clone())]), "{:?}", world.holders()?);
    ensure!(!cut_off.leads()? && leads.leads()?, "{}{}", cut_off.log(), leads.log());

    until("the one that was cut off to be of use", || cut_off.is_ready()).with_context(|| cut_off.log())?;
    readers.stop(&world).with_context(|| format!("{}{}", cut_off.log(), leads.log()))?;

    for mut replica in [cut_off, leads] {
        let (stopped, log) = replica.stop()?;
        ensure!(stopped.success(), "it stopped with {stopped}: {log}");
    }
    ensure!(world.holders()? == BTreeSet::from([None]), "leases are not given back: {:?}", world.holders()?);
    // The new leader found a consistent state.
    ensure!(world.in_member("first")? == first, "{first:?} has been written again: {:?}", world.in_member("first")?);
    world.logs_tell_no_secret()?;
    let gone = world.crowsnest(&["uninstall"])?;
    ensure!(gone.ok && gone.out.contains("all objects in member clusters are kept"), "{gone:?}");
    for name in ["first", "second", "meanwhile", "third", "fourth"] {
        ensure!(world.has_arrived(name)?, "the member has lost {name}");
    }
    Ok(())
}

#[test]
fn settings_are_read_from_a_file_and_unknown_ones_refused() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let settings = dir.path().join("serve.yaml");
    std::fs::write(&settings, "kubeconfig: /nowhere/kubeconfig\nroles: [webhook]\nlisten: 127.0.0.1:0\n")?;
    let file = settings.display().to_string();
    let serve = |more: &[&str]| site::run(&[&["serve", "--config", &file][..], more].concat());
    let output = serve(&[])?;
    ensure!(!output.ok && output.err.contains("cannot read the kubeconfig \"/nowhere/kubeconfig\""), "{output:?}");
    let output = serve(&["--kubeconfig", "/elsewhere"])?;
    ensure!(!output.ok && output.err.contains("cannot read the kubeconfig \"/elsewhere\""), "{output:?}");
    // A misspelled environment variable is reported, without its value.
    let slip = std::process::Command::new(crowsnest_tests::binary()?)
        .args(["serve", "--config", &file])
        .env("CROWSNEST_LISTN", "open-sesame")
        .output()?;
    let stderr = String::from_utf8(slip.stderr)?;
    let expected = "unknown environment variable CROWSNEST_LISTN: did you mean CROWSNEST_LISTEN?\n";
    ensure!(slip.status.code() == Some(2) && stderr.contains(expected) && !stderr.contains("sesame"), "{stderr}");
    std::fs::write(&settings, "role: [webhook]\n")?;
    let output = serve(&[])?;
    ensure!(!output.ok && output.err.contains("unknown key \"role\""), "{output:?}");
    Ok(())
}
