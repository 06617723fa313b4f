//! A member in pull mode with three replicas: its agent, which knows their common address, opens a tunnel to each, so
//! that each of them reads, watches, follows logs and runs commands there independently of the others.

use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use crowsnest_tests::ground::uses_real_clusters;
use crowsnest_tests::{Kubectl, Member, Process, binary, find_kubectl, wait_for};

use crate::serve::readers::get_text;
use crate::serve::replica::Replica;
use crate::serve::test_env::{FLEET_CONFIG_MAPS, TestEnv};

const WEB: &str = include_str!("../agent/web.yaml");

fn agent(env: &TestEnv, member: &Path, log: &Path) -> Result<Process> {
    let mut command = Command::new(binary()?);
    command
        .args(["-v", "agent", "--cluster-name", "m1"])
        // The name resolves only in pods.
        .args(["--cluster-api-endpoint", "https://kubernetes.default.svc"])
        .arg("--karmada-kubeconfig")
        .arg(&env.control_plane.kubeconfig)
        .arg("--kubeconfig")
        .arg(member)
        .stdout(Stdio::null())
        .stderr(File::create(log)?);
    Ok(Process::spawn(&mut command)?)
}

/// The member through one replica.
fn via_replica(kubectl: &Kubectl, replica: &Replica) -> Kubectl {
    let path = "/apis/cluster.karmada.io/v1alpha1/clusters/m1/proxy";
    let server = format!("https://127.0.0.1:{}{path}", replica.backend().port);
    kubectl.with_flags(&["--server", &server, "--insecure-skip-tls-verify"])
}

/// A shell command that prints its input and where it runs, and its output if the input is `typed`.
fn echo_command() -> (&'static str, &'static str) {
    if uses_real_clusters() {
        // The command must not wait for the end of its input, which kwok does not close.
        ("head -n 1; echo $CLUSTER", "typed\neast\n")
    } else {
        ("cat; echo $HOSTNAME", "typed\nweb\n")
    }
}

/// A shell command that writes a line to the log of the pod in which it runs.
fn log_command(line: &str) -> String {
    if uses_real_clusters() {
        format!("echo 2026-01-01T00:00:00Z stdout F {line} >> \"$CONTAINER_LOG\"")
    } else {
        format!("echo {line} > /proc/1/fd/1")
    }
}

/// Uses the member in all ways: exec, logs, watch.
fn check_member_access(member: &Kubectl, east: &Kubectl, name: &str) -> Result<()> {
    member.run_until(&["get", "pod", "web"], |out| out.contains("Running"))?;
    let (echo, echo_output) = echo_command();
    let output = member.run_ok(&["exec", "-i", "web", "--", "sh", "-c", echo], "typed\n")?;
    ensure!(output == echo_output, "{output:?}");
    let mut follower = member.stream(&["logs", "-f", "web", "--tail", "1"])?;
    follower.expect("\n")?;
    let line = format!("line of {name}");
    member.run_ok(&["exec", "web", "--", "sh", "-c", &log_command(&line)], "")?;
    follower.expect(&line)?;
    let mut watcher = member.stream(&["get", "configmaps", "--watch", "-o", "name"])?;
    watcher.expect("kube-root-ca.crt")?;
    let map = format!("made-for-{name}");
    east.run_ok(&["create", "configmap", &map], "")?;
    watcher.expect(&map)?;
    Ok(())
}

#[test]
fn each_replica_reaches_a_pull_mode_member() -> Result<()> {
    let Some(env) = TestEnv::start()? else { return Ok(()) };
    let folder = env.create_folder("theirs")?;
    let Some(program) = find_kubectl("")? else { return Ok(()) };
    let mut member = Member::start_with_exec("east", &folder.join("east"))?;
    let kubectl = Kubectl::new("any", program, &env.control_plane.kubeconfig, &folder)?;
    let east = kubectl.with_kubeconfig(&member.kubeconfig);
    east.run_ok(&["apply", "-f", "-"], WEB)?;
    ensure!(env.install()?.ok, "the installation failed");
    let (mut replicas, _balancer) = env.serve(&["a", "b", "c"])?;
    let log = folder.join("agent.log");
    let mut agent = agent(&env, &member.kubeconfig, &log)?;
    let logs = |replicas: &[Replica]| {
        let agent_log = std::fs::read_to_string(&log).unwrap_or_default();
        format!("{agent_log}\n{}", replicas.iter().map(Replica::log).collect::<String>())
    };

    for replica in &replicas {
        check_member_access(&via_replica(&kubectl, replica), &east, &replica.name).with_context(|| logs(&replicas))?;
    }
    env.register()?;
    wait_for("a policy to be accepted", || Ok(env.propagate("first").is_ok())).with_context(|| logs(&replicas))?;
    east.run_until(&["get", "configmap", "first", "-o", "jsonpath={.data.a}"], |out| out == "1")
        .with_context(|| logs(&replicas))?;
    wait_for("the propagated object to be found", || {
        Ok(env
            .runtime
            .block_on(get_text(&env.cp_client, FLEET_CONFIG_MAPS))
            .is_ok_and(|list| list.contains("\"first\"")))
    })
    .with_context(|| logs(&replicas))?;

    // Requests to the other replicas do not wait for the stopped one.
    replicas[0].kill()?;
    for replica in &replicas[1..] {
        via_replica(&kubectl, replica).run_ok(&["get", "pod", "web"], "").with_context(|| logs(&replicas))?;
    }
    replicas[0].restart()?;
    wait_for("the restarted replica to be ready", || replicas[0].is_ready()).with_context(|| replicas[0].log())?;
    // The replica has no tunnel yet. Requests wait for one, but the pause between the attempts of the agent may be longer.
    via_replica(&kubectl, &replicas[0])
        .run_until(&["get", "pod", "web"], |out| out.contains("Running"))
        .with_context(|| logs(&replicas))?;
    for replica in &replicas {
        check_member_access(&via_replica(&kubectl, replica), &east, &format!("{}-again", replica.name))
            .with_context(|| logs(&replicas))?;
    }
    // Uninstalling removes the propagated objects if requested; the agent belongs to the member.
    let uninstalled = env.crowsnest(&["uninstall", "--members"])?;
    ensure!(uninstalled.ok && uninstalled.out.contains("cluster(m1) removed. "), "{uninstalled:?}{}", logs(&replicas));
    east.expect_output(&["get", "configmap", "first"], "", 1, "not found")?;
    for preserved in ["made-for-a", "made-for-b"] {
        east.run_ok(&["get", "configmap", preserved], "")?;
    }
    ensure!(agent.stop()?.success(), "{}", logs(&replicas));
    ensure!(member.stop()?.success());
    Ok(())
}
