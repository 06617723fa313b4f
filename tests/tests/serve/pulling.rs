//! An unreachable member with three replicas: its agent, which knows their common address, opens a tunnel to each, so that each
//! of them reads, watches, follows logs and runs commands there independently of the others.

use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use crowsnest_tests::{Kubectl, Member, Process, binary, kubectl, until};

use crate::serve::reading::ask;
use crate::serve::site::Replica;
use crate::serve::world::{MAPS_EVERYWHERE, World};

const WEB: &str = include_str!("../agent/web.yaml");

fn agent(world: &World, member: &Path, log: &Path) -> Result<Process> {
    let mut command = Command::new(binary()?);
    command
        .args(["-v", "agent", "--cluster-name", "m1"])
        // The name resolves only in pods.
        .args(["--cluster-api-endpoint", "https://kubernetes.default.svc"])
        .arg("--karmada-kubeconfig")
        .arg(&world.control_plane.kubeconfig)
        .arg("--kubeconfig")
        .arg(member)
        .stdout(Stdio::null())
        .stderr(File::create(log)?);
    Ok(Process::spawn(&mut command)?)
}

/// The member through one replica.
fn at(kubectl: &Kubectl, replica: &Replica) -> Kubectl {
    let there = "/apis/cluster.karmada.io/v1alpha1/clusters/m1/proxy";
    let server = format!("https://127.0.0.1:{}{there}", replica.backend().port);
    kubectl.with(&["--server", &server, "--insecure-skip-tls-verify"])
}

fn all_works(member: &Kubectl, east: &Kubectl, name: &str) -> Result<()> {
    member.until(&["get", "pod", "web"], |out| out.contains("Running"))?;
    let output = member.ok(&["exec", "-i", "web", "--", "sh", "-c", "cat; echo $HOSTNAME"], "typed\n")?;
    ensure!(output == "typed\nweb\n", "{output:?}");
    let mut follower = member.stream(&["logs", "-f", "web", "--tail", "1"])?;
    follower.expect("\n")?;
    let line = format!("said to {name}");
    member.ok(&["exec", "web", "--", "sh", "-c", &format!("echo {line} > /proc/1/fd/1")], "")?;
    follower.expect(&line)?;
    let mut watcher = member.stream(&["get", "configmaps", "--watch", "-o", "name"])?;
    watcher.expect("kube-root-ca.crt")?;
    let map = format!("made-for-{name}");
    east.ok(&["create", "configmap", &map], "")?;
    watcher.expect(&map)?;
    Ok(())
}

#[test]
fn each_replica_reaches_an_unreachable_member() -> Result<()> {
    let Some(world) = World::start()? else { return Ok(()) };
    let there = world.scratch("theirs")?;
    let Some(program) = kubectl("")? else { return Ok(()) };
    let mut theirs = Member::start("east", &there.join("east"), &[])?;
    let kubectl = Kubectl::new("any", program, &world.control_plane.kubeconfig, &there)?;
    let east = kubectl.on(&theirs.kubeconfig);
    east.ok(&["apply", "-f", "-"], WEB)?;
    ensure!(world.install()?.ok, "not installed");
    let (mut replicas, _balancer) = world.serve()?;
    let log = there.join("agent.log");
    let mut agent = agent(&world, &theirs.kubeconfig, &log)?;
    let logs = |replicas: &[Replica]| {
        let agent_log = std::fs::read_to_string(&log).unwrap_or_default();
        format!("{agent_log}\n{}", replicas.iter().map(Replica::log).collect::<String>())
    };

    for replica in &replicas {
        all_works(&at(&kubectl, replica), &east, &replica.name).with_context(|| logs(&replicas))?;
    }
    world.register()?;
    until("a policy to be taken", || Ok(world.propagate("first").is_ok())).with_context(|| logs(&replicas))?;
    east.until(&["get", "configmap", "first", "-o", "jsonpath={.data.a}"], |out| out == "1")
        .with_context(|| logs(&replicas))?;
    until("what was propagated to be found", || {
        Ok(world.runtime.block_on(ask(&world.to_cp, MAPS_EVERYWHERE)).is_ok_and(|list| list.contains("\"first\"")))
    })
    .with_context(|| logs(&replicas))?;

    // No client waits for the tunnel of a stopped replica, and its successor has a tunnel soon.
    replicas[0].kill()?;
    for replica in &replicas[1..] {
        at(&kubectl, replica).ok(&["get", "pod", "web"], "").with_context(|| logs(&replicas))?;
    }
    replicas[0].start_again()?;
    until("the next one to be ready", || replicas[0].is_ready()).with_context(|| replicas[0].log())?;
    // It has no tunnel yet; requests wait for it.
    at(&kubectl, &replicas[0]).ok(&["get", "pod", "web"], "").with_context(|| logs(&replicas))?;
    for replica in &replicas {
        all_works(&at(&kubectl, replica), &east, &format!("{}-again", replica.name))
            .with_context(|| logs(&replicas))?;
    }
    // Uninstalling removes the propagated objects if requested; the agent belongs to the member.
    let gone = world.crowsnest(&["uninstall", "--members"])?;
    ensure!(gone.ok && gone.out.contains("cluster(m1) removed, "), "{gone:?}{}", logs(&replicas));
    east.expect_output(&["get", "configmap", "first"], "", 1, "not found")?;
    for kept in ["made-for-a", "made-for-b"] {
        east.ok(&["get", "configmap", kept], "")?;
    }
    ensure!(agent.stop()?.success(), "{}", logs(&replicas));
    ensure!(theirs.stop()?.success());
    Ok(())
}
