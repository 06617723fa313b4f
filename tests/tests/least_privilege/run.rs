//! Uses every function for which Crowsnest's accounts have permissions, as far as one machine allows.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use crowsnest_tests::{CommandOutput, Process, binary, free_port, wait_for};

use crate::least_privilege::pods::{
    Charts, agent_arguments, container_arguments, estimator_arguments, find_deployment, object_list,
};
use crate::least_privilege::test_env::{MEMBERS, TestEnv};

const PROPAGATED: &str = include_str!("propagated.yaml");
const KUBECONFIG: &str = "karmada-kubeconfig";
/// Namespace in which the charts are installed.
const CHART_NAMESPACE: &str = "crowsnest";

/// Joins, registers and uses all members; returns the agent, which is still running.
pub fn use_members(env: &TestEnv, charts: &Charts) -> Result<Process> {
    join(env, "east", "observe")?;
    join(env, "south", "steer:core,apps")?;
    let agent = register(env)?;
    let ready = ["wait", "--for=condition=Ready", "cluster", "--all", "--timeout=240s"];
    env.server("cp").kubectl.run_ok(&ready, "").with_context(|| env.log_of("registered"))?;
    run_chart_agents(env, charts)?;
    run_estimator(env, charts)?;
    propagate(env)?;
    access_members(env)?;
    search(env)?;
    create_credentials(env, charts)?;
    Ok(agent)
}

/// Removes all members.
pub fn remove_members(env: &TestEnv, mut agent: Process) -> Result<()> {
    for (verb, member) in [("unregister", "west"), ("unjoin", "east"), ("unjoin", "south")] {
        let kubeconfig = env.server(member).kubeconfig();
        let output = env.crowsnest(&[verb, member, "--cluster-kubeconfig", &kubeconfig])?;
        ensure!(output.code == Some(0), "{output:?}");
    }
    agent.stop().map(drop)
}

fn join(env: &TestEnv, member: &str, permissions: &str) -> Result<()> {
    let kubeconfig = env.server(member).kubeconfig();
    let mut last = None;
    // The server registers its APIs shortly after it starts.
    wait_for("the member to be joined", || {
        let output = env.crowsnest(&["join", member, "--cluster-kubeconfig", &kubeconfig, "--rights", permissions])?;
        let joined = output.code == Some(0);
        last = Some(output);
        Ok(joined)
    })
    .with_context(|| format!("{last:?}"))
}

/// Runs the agent that `register` installs in the member locally, with its account; its certificate is renewed
/// immediately.
fn register(env: &TestEnv) -> Result<Process> {
    let west = env.server("west");
    let output = env.crowsnest(&["token", "create", "--print-register-command"])?;
    let mut command = Command::new(binary()?);
    command.args(output.out.split_whitespace().skip(1)).args([
        "--cluster-name",
        "west",
        "--agent-image",
        "crowsnest:any",
    ]);
    command.arg("--kubeconfig").arg(west.kubeconfig()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let registration = command.spawn()?;
    let deployment = west
        .kubectl
        .run_until(&["get", "deployment", "karmada-agent", "-n", "karmada-system", "-o", "json"], |_| true)?;
    let args = container_arguments(&serde_json::from_str(&deployment)?)?;
    let first = agent_kubeconfig(env, "karmada-system")?;
    let control_plane = mount(env, "registered", &first)?;
    let member = west.account_kubeconfig(env.folder(), "karmada-system", "karmada-agent-sa")?;
    let agent = env.spawn(&agent_arguments(&args, &control_plane, &member), "registered")?;
    let available = r#"{"status":{"replicas":1,"updatedReplicas":1,"readyReplicas":1,"availableReplicas":1}}"#;
    let patch =
        ["patch", "deployment", "karmada-agent", "-n", "karmada-system", "--subresource=status", "--type=merge", "-p"];
    west.kubectl.run_ok(&[&patch[..], &[available]].concat(), "")?;
    let output = CommandOutput::parse(&registration.wait_with_output()?)?;
    ensure!(output.code == Some(0), "{output:?}");
    wait_for("another client certificate", || Ok(agent_kubeconfig(env, "karmada-system")? != first))
        .with_context(|| env.log_of("registered"))?;
    Ok(agent)
}

/// The agent's kubeconfig for the control plane, from its Secret.
fn agent_kubeconfig(env: &TestEnv, namespace: &str) -> Result<String> {
    let kubeconfig = ["get", "secret", KUBECONFIG, "-n", namespace, "-o", "jsonpath={.data.karmada-kubeconfig}"];
    Ok(String::from_utf8(STANDARD.decode(env.server("west").kubectl.run_ok(&kubeconfig, "")?)?)?)
}

/// Writes a kubeconfig to a file, as it is mounted in a pod.
fn mount(env: &TestEnv, name: &str, kubeconfig: &str) -> Result<PathBuf> {
    let folder = env.folder().join(format!("{name}-mounted"));
    fs::create_dir_all(&folder)?;
    let file = folder.join(KUBECONFIG);
    fs::write(&file, kubeconfig)?;
    Ok(file)
}

/// Runs one agent that reports a change of its cluster and renews its certificate, and one that reports no tokens.
fn run_chart_agents(env: &TestEnv, charts: &Charts) -> Result<()> {
    let west = env.server("west");
    west.kubectl.run_ok(&["create", "namespace", CHART_NAMESPACE], "")?;
    let control_plane = mount(env, "chart", &agent_kubeconfig(env, "karmada-system")?)?;
    let from = format!("--from-file={}", control_plane.display());
    west.kubectl.run_ok(&["create", "secret", "generic", KUBECONFIG, "-n", CHART_NAMESPACE, &from], "")?;
    let before = agent_kubeconfig(env, CHART_NAMESPACE)?;
    for (name, objects) in [("crowsnest-agent", &charts.agent), ("quiet", &charts.agent_without_tokens)] {
        west.kubectl.run_ok(&["apply", "-n", CHART_NAMESPACE, "-f", "-"], &object_list(objects))?;
        let member = west.account_kubeconfig(env.folder(), CHART_NAMESPACE, name)?;
        let args = agent_arguments(&container_arguments(find_deployment(objects, name)?)?, &control_plane, &member);
        let mut agent = env.spawn(&args, name)?;
        let is_registered = || Ok(env.log_of(name).contains("registered"));
        wait_for("the chart's agent to be registered", is_registered).with_context(|| env.log_of(name))?;
        if name != "quiet" {
            wait_for("another client certificate of the chart's agent", || {
                Ok(agent_kubeconfig(env, CHART_NAMESPACE)? != before)
            })
            .with_context(|| env.log_of(name))?;
        }
        agent.stop()?;
    }
    Ok(())
}

/// Runs the estimator until it has read its cluster.
fn run_estimator(env: &TestEnv, charts: &Charts) -> Result<()> {
    const NAME: &str = "crowsnest-agent-estimator";
    let west = env.server("west");
    let member = west.account_kubeconfig(env.folder(), CHART_NAMESPACE, NAME)?;
    let args = estimator_arguments(&container_arguments(find_deployment(&charts.agent, NAME)?)?, &member, free_port()?);
    let mut estimator = env.spawn(&args, NAME)?;
    let user = format!("system:serviceaccount:{CHART_NAMESPACE}:{NAME}");
    let is_watching = || Ok(west.records()?.get(&user).is_some_and(|record| record.watches() >= 3));
    wait_for("the estimator to watch its cluster", is_watching).with_context(|| env.log_of(NAME))?;
    estimator.stop().map(drop)
}

/// Creates, changes and deletes objects in members.
fn propagate(env: &TestEnv) -> Result<()> {
    let cp = &env.server("cp").kubectl;
    for colour in ["red", "blue"] {
        cp.run_ok(&["apply", "-f", "-"], &PROPAGATED.replace("VALUE", colour))?;
        for member in ["south", "west"] {
            let settings = ["get", "configmap", "settings", "-n", "shop", "-o", "jsonpath={.data.colour}"];
            env.server(member).kubectl.run_until(&settings, |out| out == colour)?;
            env.server(member).kubectl.run_until(&["get", "deployment", "web", "-n", "shop"], |_| true)?;
        }
    }
    cp.run_ok(&["delete", "deployment", "web", "-n", "shop"], "")?;
    for member in ["south", "west"] {
        let deployments = ["get", "deployments", "-n", "shop", "-o", "name"];
        env.server(member).kubectl.run_until(&deployments, |out| !out.contains("web"))?;
    }
    Ok(())
}

/// Users, groups and service accounts access each member with their own identities.
fn access_members(env: &TestEnv) -> Result<()> {
    let cp = env.server("cp");
    let robot = cp.account_kubeconfig(env.folder(), "default", "robot")?;
    for member in MEMBERS {
        let proxy_url = format!("{}/apis/cluster.karmada.io/v1alpha1/clusters/{member}/proxy", cp.url()?);
        let admin = cp.kubectl.with_flags(&["--server", &proxy_url]);
        let dev = admin.with_flags(&["--as", "alice", "--as-group", "dev"]);
        let alice = admin.with_flags(&["--as", "alice"]);
        for user in [&admin, &alice, &dev, &admin.with_kubeconfig(&robot)] {
            // The impersonation permissions are written to a member some time after the user gets the permission here.
            user.run_until(&["get", "pod", "lonely", "-o", "name"], |out| out.contains("lonely"))?;
        }
        // No kubelet runs here: only the authorization and the identity of the request matter.
        alice.run(&["logs", "lonely"], "")?;
        alice.run(&["exec", "lonely", "--", "true"], "")?;
    }
    Ok(())
}

fn search(env: &TestEnv) -> Result<()> {
    for (query, members) in [("kind:pod name:lonely", &MEMBERS[..]), ("kind:configmap name:settings", &MEMBERS[1..])] {
        let mut last = None;
        wait_for("search to find the objects", || {
            let output = env.crowsnest(&["search", query, "-o", "name"])?;
            let is_complete =
                members.iter().all(|member| output.out.lines().any(|line| line.starts_with(&format!("{member}/"))));
            last = Some(output);
            Ok(is_complete)
        })
        .with_context(|| format!("{query}: {last:?}"))?;
    }
    Ok(())
}

/// The chart's Job creates credentials, and renews those that expire.
fn create_credentials(env: &TestEnv, charts: &Charts) -> Result<()> {
    let cp = env.server("cp");
    cp.kubectl.run_ok(&["create", "namespace", CHART_NAMESPACE], "")?;
    cp.kubectl.run_ok(&["apply", "-n", CHART_NAMESPACE, "-f", "-"], &object_list(&charts.credentials))?;
    let list_of_credentials =
        charts.credentials.iter().find_map(|object| object.pointer("/data/credentials.yaml")?.as_str());
    let file = env.folder().join("credentials.yaml");
    fs::write(&file, list_of_credentials.context("no list of credentials")?)?;
    let account = cp.account_kubeconfig(env.folder(), CHART_NAMESPACE, "crowsnest-credentials")?;
    for extra_args in [&[][..], &["--renew-before", "8761h"]] {
        let mut command = Command::new(binary()?);
        command.args(["credentials", "--namespace", CHART_NAMESPACE, "--file"]).arg(&file);
        let output = CommandOutput::parse(&command.arg("--kubeconfig").arg(&account).args(extra_args).output()?)?;
        ensure!(output.code == Some(0), "{output:?}");
    }
    Ok(())
}
