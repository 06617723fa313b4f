//! Actions of the run: all functions for which our accounts have rights, as far as one machine allows.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use crowsnest_tests::{CommandOutput, Process, binary, free_port, until};

use crate::least_rights::pods::{Charts, agent, arguments, deployment, estimator, list};
use crate::least_rights::world::{MEMBERS, World};

const PROPAGATED: &str = include_str!("propagated.yaml");
const KUBECONFIG: &str = "karmada-kubeconfig";
/// Namespace in which the charts are installed.
const INSTALLED_IN: &str = "crowsnest";

/// Joins, registers and uses all members; returns the agent, which is still running.
pub fn live(world: &World, charts: &Charts) -> Result<Process> {
    join(world, "east", "observe")?;
    join(world, "south", "steer:core,apps")?;
    let running = register(world)?;
    let ready = ["wait", "--for=condition=Ready", "cluster", "--all", "--timeout=120s"];
    world.at("cp").kubectl.ok(&ready, "").with_context(|| world.log_of("registered"))?;
    agents_of_the_chart(world, charts)?;
    estimates(world, charts)?;
    propagate(world)?;
    reach_in(world)?;
    search(world)?;
    make_credentials(world, charts)?;
    Ok(running)
}

/// Removes all members.
pub fn leave(world: &World, mut agent: Process) -> Result<()> {
    for (verb, member) in [("unregister", "west"), ("unjoin", "east"), ("unjoin", "south")] {
        let kubeconfig = world.at(member).kubeconfig();
        let output = world.crowsnest(&[verb, member, "--cluster-kubeconfig", &kubeconfig])?;
        ensure!(output.code == Some(0), "{output:?}");
    }
    agent.stop().map(drop)
}

fn join(world: &World, member: &str, rights: &str) -> Result<()> {
    let kubeconfig = world.at(member).kubeconfig();
    let mut last = None;
    // The server registers its APIs shortly after it starts.
    until("the member to be joined", || {
        let output = world.crowsnest(&["join", member, "--cluster-kubeconfig", &kubeconfig, "--rights", rights])?;
        let joined = output.code == Some(0);
        last = Some(output);
        Ok(joined)
    })
    .with_context(|| format!("{last:?}"))
}

/// Runs the agent that `register` installs in the member locally, with its account; its certificate is renewed
/// immediately.
fn register(world: &World) -> Result<Process> {
    let west = world.at("west");
    let output = world.crowsnest(&["token", "create", "--print-register-command"])?;
    let mut command = Command::new(binary()?);
    command.args(output.out.split_whitespace().skip(1)).args([
        "--cluster-name",
        "west",
        "--agent-image",
        "crowsnest:any",
    ]);
    command.arg("--kubeconfig").arg(west.kubeconfig()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let registering = command.spawn()?;
    let found =
        west.kubectl.until(&["get", "deployment", "karmada-agent", "-n", "karmada-system", "-o", "json"], |_| true)?;
    let args = arguments(&serde_json::from_str(&found)?)?;
    let first = kept(world, "karmada-system")?;
    let control_plane = mount(world, "registered", &first)?;
    let member = west.account(world.folder(), "karmada-system", "karmada-agent-sa")?;
    let running = world.spawn(&agent(&args, &control_plane, &member), "registered")?;
    let available = r#"{"status":{"replicas":1,"updatedReplicas":1,"readyReplicas":1,"availableReplicas":1}}"#;
    let patch =
        ["patch", "deployment", "karmada-agent", "-n", "karmada-system", "--subresource=status", "--type=merge", "-p"];
    west.kubectl.ok(&[&patch[..], &[available]].concat(), "")?;
    let output = CommandOutput::of(&registering.wait_with_output()?)?;
    ensure!(output.code == Some(0), "{output:?}");
    until("another certificate", || Ok(kept(world, "karmada-system")? != first))
        .with_context(|| world.log_of("registered"))?;
    Ok(running)
}

/// The agent's kubeconfig for the control plane, from its Secret.
fn kept(world: &World, namespace: &str) -> Result<String> {
    let shown = ["get", "secret", KUBECONFIG, "-n", namespace, "-o", "jsonpath={.data.karmada-kubeconfig}"];
    Ok(String::from_utf8(STANDARD.decode(world.at("west").kubectl.ok(&shown, "")?)?)?)
}

/// Writes a kubeconfig to a file, as it is mounted in a pod.
fn mount(world: &World, whose: &str, kubeconfig: &str) -> Result<PathBuf> {
    let folder = world.folder().join(format!("{whose}-mounted"));
    fs::create_dir_all(&folder)?;
    let file = folder.join(KUBECONFIG);
    fs::write(&file, kubeconfig)?;
    Ok(file)
}

/// Runs one agent that reports a change of its cluster and renews its certificate, and one that reports no tokens.
fn agents_of_the_chart(world: &World, charts: &Charts) -> Result<()> {
    let west = world.at("west");
    west.kubectl.ok(&["create", "namespace", INSTALLED_IN], "")?;
    let control_plane = mount(world, "chart", &kept(world, "karmada-system")?)?;
    let from = format!("--from-file={}", control_plane.display());
    west.kubectl.ok(&["create", "secret", "generic", KUBECONFIG, "-n", INSTALLED_IN, &from], "")?;
    let before = kept(world, INSTALLED_IN)?;
    for (name, objects) in [("crowsnest-agent", &charts.agent), ("quiet", &charts.quiet)] {
        west.kubectl.ok(&["apply", "-n", INSTALLED_IN, "-f", "-"], &list(objects))?;
        let member = west.account(world.folder(), INSTALLED_IN, name)?;
        let args = agent(&arguments(deployment(objects, name)?)?, &control_plane, &member);
        let mut running = world.spawn(&args, name)?;
        let registered = || Ok(world.log_of(name).contains("registered"));
        until("the chart's agent to be registered", registered).with_context(|| world.log_of(name))?;
        if name != "quiet" {
            until("its next certificate", || Ok(kept(world, INSTALLED_IN)? != before))
                .with_context(|| world.log_of(name))?;
        }
        running.stop()?;
    }
    Ok(())
}

/// Runs the estimator until it has read its cluster.
fn estimates(world: &World, charts: &Charts) -> Result<()> {
    const NAME: &str = "crowsnest-agent-estimator";
    let west = world.at("west");
    let member = west.account(world.folder(), INSTALLED_IN, NAME)?;
    let args = estimator(&arguments(deployment(&charts.agent, NAME)?)?, &member, free_port()?);
    let mut running = world.spawn(&args, NAME)?;
    let user = format!("system:serviceaccount:{INSTALLED_IN}:{NAME}");
    let watches = || Ok(west.records()?.get(&user).is_some_and(|record| record.watches() >= 3));
    until("the estimator to watch its cluster", watches).with_context(|| world.log_of(NAME))?;
    running.stop().map(drop)
}

/// Creates, changes and deletes in members.
fn propagate(world: &World) -> Result<()> {
    let cp = &world.at("cp").kubectl;
    for colour in ["red", "blue"] {
        cp.ok(&["apply", "-f", "-"], &PROPAGATED.replace("VALUE", colour))?;
        for member in ["south", "west"] {
            let shown = ["get", "configmap", "settings", "-n", "shop", "-o", "jsonpath={.data.colour}"];
            world.at(member).kubectl.until(&shown, |out| out == colour)?;
            world.at(member).kubectl.until(&["get", "deployment", "web", "-n", "shop"], |_| true)?;
        }
    }
    cp.ok(&["delete", "deployment", "web", "-n", "shop"], "")?;
    for member in ["south", "west"] {
        let left = ["get", "deployments", "-n", "shop", "-o", "name"];
        world.at(member).kubectl.until(&left, |out| !out.contains("web"))?;
    }
    Ok(())
}

/// Users, groups and service accounts access each member with their own identities.
fn reach_in(world: &World) -> Result<()> {
    let cp = world.at("cp");
    let robot = cp.account(world.folder(), "default", "robot")?;
    for member in MEMBERS {
        let proxy_url = format!("{}/apis/cluster.karmada.io/v1alpha1/clusters/{member}/proxy", cp.url()?);
        let there = cp.kubectl.with(&["--server", &proxy_url]);
        let dev = there.with(&["--as", "alice", "--as-group", "dev"]);
        let alice = there.with(&["--as", "alice"]);
        for who in [&there, &alice, &dev, &there.on(&robot)] {
            // The impersonation rights are written to a member some time after the user gets the right here.
            who.until(&["get", "pod", "lonely", "-o", "name"], |out| out.contains("lonely"))?;
        }
        // No kubelet runs here: only the authorization and the identity of the request matter.
        alice.run(&["logs", "lonely"], "")?;
        alice.run(&["exec", "lonely", "--", "true"], "")?;
    }
    Ok(())
}

fn search(world: &World) -> Result<()> {
    for (query, members) in [("kind:pod name:lonely", &MEMBERS[..]), ("kind:configmap name:settings", &MEMBERS[1..])] {
        let mut last = None;
        until("search to find them", || {
            let output = world.crowsnest(&["search", query, "-o", "name"])?;
            let all =
                members.iter().all(|member| output.out.lines().any(|line| line.starts_with(&format!("{member}/"))));
            last = Some(output);
            Ok(all)
        })
        .with_context(|| format!("{query}: {last:?}"))?;
    }
    Ok(())
}

/// The chart's Job creates credentials, and renews those that expire.
fn make_credentials(world: &World, charts: &Charts) -> Result<()> {
    let cp = world.at("cp");
    cp.kubectl.ok(&["create", "namespace", INSTALLED_IN], "")?;
    cp.kubectl.ok(&["apply", "-n", INSTALLED_IN, "-f", "-"], &list(&charts.credentials))?;
    let wanted = charts.credentials.iter().find_map(|object| object.pointer("/data/credentials.yaml")?.as_str());
    let file = world.folder().join("credentials.yaml");
    fs::write(&file, wanted.context("no list of credentials")?)?;
    let account = cp.account(world.folder(), INSTALLED_IN, "crowsnest-credentials")?;
    for more in [&[][..], &["--renew-before", "8761h"]] {
        let mut command = Command::new(binary()?);
        command.args(["credentials", "--namespace", INSTALLED_IN, "--file"]).arg(&file);
        let output = CommandOutput::of(&command.arg("--kubeconfig").arg(&account).args(more).output()?)?;
        ensure!(output.code == Some(0), "{output:?}");
    }
    Ok(())
}
