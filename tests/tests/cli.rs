//! The CLI with a fleet of two members, with its output in a pipe and in a terminal: formats, descriptions, copying files
//! from and to pods, port forwarding, writes, tokens, completion and the kubectl plugin.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use crowsnest_tests::{CommandOutput, Fleet, Kubectl, binary, expect_output, find_kubectl, wait_for, wait_for_output};
use serde_json::Value;

mod golden;

const POD: &str = include_str!("proxies/web.yaml");
const WEB: &str = include_str!("cli/web.yaml");
const SETTINGS: &str = include_str!("cli/settings.yaml");

#[test]
fn the_cli_reads_and_changes_the_fleet() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let fleet = Fleet::start(&dir.path().join("data"), &["--members", "2"])?;
    let Some(kubectl) = fleet.any_kubectl()? else { return Ok(()) };
    let members = ["member1", "member2"].map(|member| kubectl.with_kubeconfig(&fleet.kubeconfig(member)));
    for member in &members {
        member.run_ok(&["apply", "-f", "-"], &POD.replace("NAME", "both"))?;
    }
    kubectl.run_ok(&["apply", "-f", "-"], WEB)?;
    let checks = || -> Result<()> {
        check_formats(&fleet)?;
        check_colours(&fleet)?;
        golden::check_output(&fleet)?;
        check_describe(&fleet)?;
        check_history(&fleet, &members[0])?;
        check_diff(&fleet)?;
        check_events(&fleet, &members[0])?;
        check_top(&fleet)?;
        check_cp(&fleet, dir.path())?;
        check_attach_and_port_forward(&fleet)?;
        check_apply_and_promote(&fleet, &kubectl, &members, dir.path())?;
        check_tokens(&fleet)?;
        check_completion(&fleet, dir.path())
    };
    checks().with_context(|| fleet.log())?;
    ensure!(fleet.stop()?.success());
    Ok(())
}

fn check_formats(fleet: &Fleet) -> Result<()> {
    let query = "kind:pod label:app=both status:Running sort:cluster";
    let names = "member1/default/pods/both\nmember2/default/pods/both\n";
    wait_for_output(fleet, &["search", query, "-o", "name"], |output| output.out == names)?;
    for (format, expected) in [
        ("custom-columns=POD:.name,WHERE:.cluster", "POD    WHERE\nboth   member1\nboth   member2\n"),
        ("jsonpath={.hits[*].cluster}", "member1 member2"),
        ("go-template={{range .hits}}{{.cluster}}/{{.name}}{{\"\\n\"}}{{end}}", "member1/both\nmember2/both\n"),
    ] {
        let output = expect_output(fleet, &["search", query, "-o", format], 0, "")?;
        ensure!(output.out == expected && output.err.is_empty(), "{format}: {output:?}");
    }
    let output = expect_output(fleet, &["search", query, "-o", "csv"], 0, "")?;
    ensure!(output.out.starts_with("cluster,apiVersion,kind,") && output.out.lines().count() == 3, "{output:?}");
    let output =
        expect_output(fleet, &["search", query, "--objects", "-o", "jsonpath={.items[*].spec.nodeName}"], 0, "")?;
    ensure!(output.out == "member1-node-1 member2-node-1" || output.out.starts_with("member1-node-"), "{output:?}");
    expect_output(fleet, &["search", query, "-o", "xml"], 2, "allowed formats are: csv, custom-columns, ")?;
    expect_output(fleet, &["search", "--fail-on-empty", "name:nosuch"], 3, "nothing found for")?;
    let output = expect_output(fleet, &["search", "--web", "kind:pod x"], 0, "")?;
    ensure!(output.out == "http://127.0.0.1:7080/search?q=kind%3Apod%20x\n", "{output:?}");

    let columns = "custom-columns=NAME:.metadata.name,IMAGE:.spec.containers[*].image";
    let args = ["get", "pods", "-l", "app=both", "-C", "member1", "-o", columns];
    let output = wait_for_output(fleet, &args, |output| output.code == Some(0))?;
    ensure!(output.out == "NAME   IMAGE\nboth   nginx:1.25\n", "{output:?}");
    let output = expect_output(fleet, &["get", "deploy", "-s", "karmada"], 0, "")?;
    ensure!(output.out.lines().nth(1).is_some_and(|row| row.starts_with("web    Karmada")), "{output:?}");

    let sorted =
        ["get", "pods", "-l", "app=both", "-C", "all", "--sort-by", ".spec.nodeName", "-L", "app", "--no-headers"];
    let output = expect_output(fleet, &sorted, 0, "both")?;
    let last: Vec<&str> = output.out.lines().filter_map(|row| row.split_whitespace().last()).collect();
    ensure!(last == ["both", "both"], "{output:?}");
    let output = expect_output(fleet, &["get", "deploy,namespaces", "-s", "karmada"], 0, "deployment.apps/web")?;
    ensure!(output.out.contains("\n\nNAME ") && output.out.contains("\nnamespace/default "), "{output:?}");
    let mut watch = fleet.crowsnest_stream(&["get", "pods", "-C", "member1", "-w", "--output-watch-events"])?;
    watch.expect("EVENT ")?;
    watch.expect("ADDED ")?;
    drop(watch);
    let served = ["api-resources", "--cluster", "member1", "--api-group", "apps", "--namespaced", "-o", "name"];
    expect_output(fleet, &served, 0, "deployments.apps\n")?;
    expect_output(fleet, &["api-versions"], 0, "policy.karmada.io/v1alpha1\n")?;
    expect_output(fleet, &["version"], 0, "\nServer Version: v")?;
    expect_output(fleet, &["options"], 0, "--request-timeout")?;
    let output = expect_output(fleet, &["get", "pods", "-C", "member1", "--as", "nobody"], 1, "nobody")?;
    ensure!(output.out.is_empty(), "{output:?}");

    let output = expect_output(fleet, &["get", "all", "-l", "app=both", "-C", "member1", "-o", "name"], 0, "")?;
    ensure!(output.out == "member1/default/pods/both\n", "{output:?}");
    let raw = ["get", "--raw", "/api/v1/namespaces/default/pods/both", "--cluster", "member2"];
    let output = expect_output(fleet, &raw, 0, "")?;
    ensure!(serde_json::from_str::<Value>(&output.out)?["metadata"]["name"] == "both", "{output:?}");
    let output = expect_output(
        fleet,
        &["get", "pod/both", "-C", "member1", "--template={{.metadata.name}}", "--watch=false"],
        0,
        "",
    )?;
    ensure!(output.out == "both", "{output:?}");
    let recursive = ["explain", "deployments.spec.strategy", "--recursive", "--cluster", "member1"];
    expect_output(fleet, &recursive, 0, "FIELD: strategy <DeploymentStrategy>\n")?;
    expect_output(fleet, &["explain", "propagationpolicies.spec.placement"], 0, "  clusterAffinity\t<Object>\n")?;
    expect_output(
        fleet,
        &["explain", "pods.nosuch"],
        1,
        "field \"nosuch\" does not exist: pods has apiVersion, kind, ",
    )?;
    let mut watch = fleet.crowsnest_stream(&["search", "-w", "kind:pod label:app=both"])?;
    watch.expect("CLUSTER ")?;
    watch.expect("member2")?;
    Ok(())
}

/// Colours are for terminals only.
fn check_colours(fleet: &Fleet) -> Result<()> {
    let args = ["search", "kind:pod", "label:app=both", "status:Running"];
    let output = expect_output(fleet, &args, 0, "Running")?;
    ensure!(!output.out.contains('\x1b'), "{output:?}");
    let (code, shown) = fleet.crowsnest_terminal(&args)?.close_input()?;
    ensure!(code == Some(0) && shown.contains("\x1b[32mRunning\x1b[0m"), "{shown:?}");
    let (_, shown) = fleet.crowsnest_terminal(&[&args[..], &["--color", "never"]].concat())?.close_input()?;
    ensure!(shown.contains("Running") && !shown.contains('\x1b'), "{shown:?}");
    Ok(())
}

fn check_describe(fleet: &Fleet) -> Result<()> {
    let lines = |output: &CommandOutput, label: &str, text: &str| {
        output
            .out
            .lines()
            .filter(|line| line.split_once(':').is_some_and(|(l, t)| l == label && t.trim() == text))
            .count()
    };
    let output = expect_output(fleet, &["describe", "pod", "both"], 0, "\nContainers:\n")?;
    for (label, text, count) in
        [("Name", "both", 2), ("Cluster", "member1", 1), ("Cluster", "member2", 1), ("Status", "Running", 2)]
    {
        ensure!(lines(&output, label, text) == count, "{label}: {text} is missing: {output:?}");
    }
    ensure!(output.out.contains("    State:") && output.out.contains("\nEvents:"), "{output:?}");
    let output = expect_output(fleet, &["describe", "deploy/web", "-s", "karmada", "--show-events=false"], 0, "")?;
    ensure!(
        output.out.contains("<control plane>\n")
            && output.out.contains("\nNewReplicaSet:")
            && !output.out.contains("Events:"),
        "{output:?}"
    );
    expect_output(fleet, &["describe", "pod/nosuch"], 1, "no cluster has pods default/nosuch that you can read")?;
    expect_output(fleet, &["describe", "pod/nosuch", "-C", "member1"], 1, "member1 has no pods default/nosuch")?;
    let output = expect_output(fleet, &["describe", "pods", "-l", "app=both"], 0, "")?;
    ensure!(lines(&output, "Name", "both") == 2, "{output:?}");
    expect_output(fleet, &["describe", "pods", "-n", "empty"], 0, "No resources found in empty namespace.")?;
    let output = expect_output(fleet, &["describe", "pod/bot", "--show-events=false", "-C", "member2"], 0, "")?;
    ensure!(lines(&output, "Name", "both") == 1 && lines(&output, "Cluster", "member2") == 1, "{output:?}");
    expect_output(
        fleet,
        &["describe", "pods", "-C", "nosuch"],
        1,
        "`crowsnest get clusters -s karmada` lists the clusters",
    )?;
    expect_output(fleet, &["describe", "pod/both", "-A"], 1, "-l and -A require a KIND without NAME")?;
    Ok(())
}

fn check_history(fleet: &Fleet, member1: &Kubectl) -> Result<()> {
    member1.run_ok(&["label", "pod", "both", "step=two"], "")?;
    let args = ["history", "pod/both", "--cluster", "member1"];
    let output = wait_for_output(fleet, &args, |output| output.out.contains("metadata.labels.step"))?;
    ensure!(output.out.starts_with("SEQ "), "{output:?}");
    let row = output
        .out
        .lines()
        .find(|row| row.contains("metadata.labels.step"))
        .context("the change is not in the history")?;
    let rows: Vec<&str> = output.out.lines().collect();
    let at = rows.iter().position(|one| *one == row).context("the change is not in the history")?;
    let older = rows.get(at + 1).and_then(|row| row.split_whitespace().next()).context("no earlier revision")?;
    let newer = row.split_whitespace().next().context("no revision")?;
    let output =
        expect_output(fleet, &[&args[..], &["--seq", older, "-o", "jsonpath={.metadata.labels}"]].concat(), 0, "")?;
    ensure!(output.out == "{\"app\":\"both\"}", "{output:?}");
    let diff = ["diff", "pod/both", "--cluster", "member1", "--from", older, "--to", newer];
    let output = expect_output(fleet, &diff, 1, "")?;
    ensure!(output.out.contains("\n+    step: two\n") && !output.out.contains("\n-"), "{output:?}");
    Ok(())
}

fn check_diff(fleet: &Fleet) -> Result<()> {
    let between = ["diff", "pod/both", "--cluster", "member1", "--with", "member2"];
    let output = expect_output(fleet, &between, 1, "")?;
    ensure!(output.out.contains("--- member1/pods default/both\n+++ member2/pods default/both\n"), "{output:?}");
    expect_output(fleet, &["diff", "pod/both", "--cluster", "member1", "--with", "member1"], 0, "")?;
    expect_output(fleet, &["diff", "pod/both"], 2, "the control plane has no pods default/both")?;
    // Propagated objects have no differences.
    let output = wait_for_output(fleet, &["diff", "deploy/web"], |output| output.code == Some(0))?;
    ensure!(output.out.is_empty() && output.err.is_empty(), "{output:?}");
    expect_output(fleet, &["diff", "deploy/web", "-C", "nosuch"], 2, "is not propagated to nosuch")?;
    Ok(())
}

fn check_events(fleet: &Fleet, member1: &Kubectl) -> Result<()> {
    let has_both_members =
        |output: &CommandOutput| ["member1", "member2"].iter().all(|member| output.out.contains(member));
    let output = wait_for_output(fleet, &["events", "pod/both"], has_both_members)?;
    let head: Vec<&str> = output.out.lines().next().unwrap_or_default().split_whitespace().collect();
    ensure!(head == ["LAST-SEEN", "TYPE", "REASON", "CLUSTER", "OBJECT", "MESSAGE"], "{output:?}");
    ensure!(output.out.contains("pod/both"), "{output:?}");
    let output = expect_output(fleet, &["events", "-C", "member1", "pod/both", "-o", "jsonl"], 0, "")?;
    let first: Value = serde_json::from_str(output.out.lines().next().context("no event is printed")?)?;
    ensure!(first["kind"] == "Event" && first["involvedObject"]["name"] == "both", "{first}");
    expect_output(fleet, &["events", "pod/nosuch"], 0, "No events found")?;
    let mut watch = fleet.crowsnest_stream(&["events", "-w", "pod/late"])?;
    member1.run_ok(&["apply", "-f", "-"], &POD.replace("NAME", "late"))?;
    watch.expect("LAST-SEEN")?;
    watch.expect("pod/late")?;
    Ok(())
}

fn check_top(fleet: &Fleet) -> Result<()> {
    let has_usage = |output: &CommandOutput| output.code == Some(0) && output.out.matches("both").count() == 2;
    let output = wait_for_output(fleet, &["top", "pods", "-l", "app=both"], has_usage)?;
    ensure!(output.out.starts_with("NAME   CLUSTER   CPU(cores)   MEMORY(bytes)\n"), "{output:?}");
    let output = expect_output(fleet, &["top", "pod", "both", "-C", "member2", "--containers", "--no-headers"], 0, "")?;
    let words: Vec<&str> = output.out.split_whitespace().collect();
    ensure!(words.starts_with(&["both", "member2", "nginx"]) && words.len() == 5, "{output:?}");
    let output =
        wait_for_output(fleet, &["top", "nodes", "--sort-by", "cpu"], |output| output.out.contains("member2-node-"))?;
    ensure!(output.out.contains('%') && !output.out.contains("<unknown>"), "{output:?}");
    expect_output(fleet, &["top", "pods", "nosuch"], 1, "no cluster has metrics of nosuch")?;
    Ok(())
}

fn check_cp(fleet: &Fleet, folder: &Path) -> Result<()> {
    let conf = folder.join("conf");
    fs::create_dir_all(conf.join("deep"))?;
    fs::write(conf.join("deep/a.txt"), "there and back\n")?;
    let (from, back) = (conf.display().to_string(), folder.join("back").display().to_string());
    let output = expect_output(fleet, &["cp", &from, "both:/tmp/conf", "--cluster", "member1"], 0, "")?;
    ensure!(output.out.is_empty() && output.err.is_empty(), "{output:?}");
    let manifest = folder.join("both.yaml");
    fs::write(&manifest, POD.replace("NAME", "both"))?;
    let manifest = manifest.display().to_string();
    let cat = ["--pod-running-timeout", "30s", "--", "cat", "/tmp/conf/deep/a.txt"];
    expect_output(
        fleet,
        &[&["exec", "--cluster", "member1", "-f", &manifest], &cat[..]].concat(),
        0,
        "there and back",
    )?;
    expect_output(fleet, &["cp", "member1/default/both:/tmp/conf", &back], 0, "")?;
    ensure!(fs::read_to_string(Path::new(&back).join("deep/a.txt"))? == "there and back\n");
    // Copying into an existing folder.
    let file = conf.join("deep/a.txt").display().to_string();
    expect_output(fleet, &["cp", &file, "both:/tmp", "-C", "member1"], 0, "")?;
    expect_output(fleet, &["exec", "-C", "member1", "both", "--", "cat", "/tmp/a.txt"], 0, "there and back")?;
    expect_output(
        fleet,
        &["cp", "both:/nosuch", &back, "-C", "member1"],
        1,
        "tar failed in pod default/both of cluster member1: ",
    )?;
    expect_output(fleet, &["cp", &file, "both:/tmp"], 1, "pod default/both is in several clusters")?;
    expect_output(fleet, &["cp", &file, &back], 1, "one of source and destination must be in a container")?;
    Ok(())
}

fn check_attach_and_port_forward(fleet: &Fleet) -> Result<()> {
    let mut attached = fleet.crowsnest_stream(&["attach", "--cluster", "member1", "both"])?;
    let script = "while true; do echo attached > /proc/1/fd/1; sleep 1; done";
    let writer = fleet.crowsnest_stream(&["exec", "--cluster", "member1", "both", "--", "sh", "-c", script])?;
    attached.expect("attached\n")?;
    drop((attached, writer));

    let mut forward = fleet.crowsnest_stream(&["port-forward", "--cluster", "member2", "both", ":80"])?;
    forward.expect("Forwarding from 127.0.0.1:")?;
    let port = forward.expect(" -> 80\n")?;
    for _ in 0..2 {
        let mut web = TcpStream::connect(("127.0.0.1", port.parse()?))?;
        web.write_all(b"GET / HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n")?;
        let mut response = String::new();
        web.read_to_string(&mut response)?;
        ensure!(response.contains("Hello from pod default/both"), "{response}");
    }
    expect_output(
        fleet,
        &["port-forward", "--cluster", "member2", "both", "8080:nosuch"],
        1,
        "pod both has no port \"nosuch\"",
    )?;
    Ok(())
}

fn check_apply_and_promote(fleet: &Fleet, kubectl: &Kubectl, members: &[Kubectl; 2], folder: &Path) -> Result<()> {
    let file = folder.join("settings.yaml");
    fs::write(&file, SETTINGS)?;
    let file = file.display().to_string();
    let apply = |extra_args: &[&str]| fleet.crowsnest(&[&["apply", "-f", file.as_str()], extra_args].concat());
    let output = apply(&["--dry-run=server"])?;
    ensure!(output.out == "configmap/settings created (server dry run)\n", "{output:?}");
    kubectl.expect_output(&["get", "configmap", "settings"], "", 1, "not found")?;
    let output = apply(&["-C", "member1,nosuch"])?;
    ensure!(
        output.code == Some(1)
            && output.err.contains("cluster nosuch does not exist; the clusters are member1, member2"),
        "{output:?}"
    );
    let output = apply(&["-C", "member1"])?;
    let policy = output
        .out
        .lines()
        .nth(1)
        .and_then(|line| line.strip_suffix(" created"))
        .context("no policy is created")?
        .to_owned();
    ensure!(output.out.starts_with("configmap/settings created\n"), "{output:?}");
    ensure!(policy.starts_with("propagationpolicy.policy.karmada.io/settings-"), "{policy}");
    members[0].run_until(&["get", "configmap", "settings", "-o", "jsonpath={.data.level}"], |out| out == "one")?;
    members[1].expect_output(&["get", "configmap", "settings"], "", 1, "not found")?;
    let output = wait_for_output(fleet, &["apply", "-f", &file, "--all-clusters"], |output| output.code == Some(0))?;
    ensure!(output.out == format!("configmap/settings unchanged\n{policy} configured\n"), "{output:?}");
    members[1].run_until(&["get", "configmap", "settings", "-o", "jsonpath={.data.level}"], |out| out == "one")?;
    let output = expect_output(fleet, &["get", "-f", &file, "-s", "karmada", "-o", "jsonpath={.data.level}"], 0, "")?;
    ensure!(output.out == "one", "{output:?}");
    expect_output(fleet, &["describe", "-f", &file, "-s", "karmada", "--show-events=false"], 0, "level:\n----\none\n")?;
    check_prune(fleet, kubectl, &members[1], folder)?;

    members[1].run_ok(&["create", "configmap", "own", "--from-literal", "a=b"], "")?;
    let output = expect_output(fleet, &["promote", "configmap", "own", "-C", "member2", "-o", "yaml"], 0, "")?;
    for expected in ["work.karmada.io/conflict-resolution: overwrite\n", "kind: PropagationPolicy\n", "- member2\n"] {
        ensure!(output.out.contains(expected), "{expected:?} is missing: {output:?}");
    }
    kubectl.expect_output(&["get", "configmap", "own"], "", 1, "not found")?;
    let output = expect_output(fleet, &["promote", "configmap/own", "-C", "member2"], 0, "configmap/own promoted\n")?;
    ensure!(output.out.contains("propagationpolicy.policy.karmada.io/own-"), "{output:?}");
    let managed = ["get", "configmap", "own", "-o", "jsonpath={.metadata.labels.karmada\\.io/managed}"];
    members[1].run_until(&managed, |out| out == "true")?;
    expect_output(fleet, &["promote", "configmap/own", "-C", "member2"], 0, "already exists in the control plane")?;
    expect_output(
        fleet,
        &["promote", "configmap/nosuch", "-C", "member2"],
        1,
        "cluster member2 has no configmaps default/nosuch",
    )?;
    Ok(())
}

/// Previously applied objects are pruned, also in the members; objects that others applied stay.
fn check_prune(fleet: &Fleet, kubectl: &Kubectl, member: &Kubectl, folder: &Path) -> Result<()> {
    let labelled = |name: &str| SETTINGS.replace("name: settings", &format!("name: {name}, labels: {{set: pruned}}"));
    let file = folder.join("set.yaml");
    fs::write(&file, [labelled("stays"), labelled("goes")].join("---\n"))?;
    let path = file.display().to_string();
    let apply =
        |extra_args: &[&str]| fleet.crowsnest(&[&["apply", "-f", path.as_str(), "-C", "member2"], extra_args].concat());
    ensure!(apply(&[])?.code == Some(0));
    member.run_until(&["get", "configmap", "goes", "-o", "name"], |out| out == "configmap/goes\n")?;
    kubectl.run_ok(&["apply", "-f", "-"], &labelled("others"))?;
    fs::write(&file, labelled("stays"))?;
    let output = apply(&["--prune"])?;
    ensure!(
        output.code == Some(1) && output.err.contains("--prune requires a label selector (-l KEY=VALUE) or --all"),
        "{output:?}"
    );
    let rows = |output: &CommandOutput| {
        output.out.lines().filter(|row| row.contains(" pruned")).map(str::to_owned).collect::<Vec<_>>()
    };
    let output = apply(&["--prune", "-l", "set=pruned", "--dry-run=server"])?;
    let pruned_rows = rows(&output);
    ensure!(pruned_rows.len() == 2 && pruned_rows[1] == "configmap/goes pruned (server dry run)", "{output:?}");
    ensure!(pruned_rows[0].starts_with("propagationpolicy.policy.karmada.io/goes-"), "{output:?}");
    kubectl.run_ok(&["get", "configmap", "goes"], "")?;
    let output = apply(&["--prune", "-l", "set=pruned", "--wait"])?;
    ensure!(output.code == Some(0) && rows(&output).len() == 2, "{output:?}");
    kubectl.expect_output(&["get", "configmap", "goes"], "", 1, "not found")?;
    kubectl.run_ok(&["get", "configmap", "others"], "")?;
    member.run_until(&["get", "configmap", "-l", "set=pruned", "-o", "name"], |out| out == "configmap/stays\n")?;
    fs::write(&file, labelled("stays").replace("\ndata:", "\ndatum:"))?;
    let output = apply(&[])?;
    ensure!(output.code == Some(1) && output.err.contains("datum"), "{output:?}");
    Ok(())
}

fn check_tokens(fleet: &Fleet) -> Result<()> {
    let output = expect_output(fleet, &["token", "create", "--description", "a test"], 0, "")?;
    let (id, secret) = output.out.trim().split_once('.').context("the output is not a token")?;
    ensure!(id.len() == 6 && secret.len() == 16, "{output:?}");
    let output = expect_output(fleet, &["token", "list"], 0, id)?;
    ensure!(
        output.out.starts_with("TOKEN ") && output.out.contains("a test") && !output.out.contains(secret),
        "{output:?}"
    );
    expect_output(fleet, &["token", "list", "--show-secrets"], 0, secret)?;
    expect_output(fleet, &["token", "delete", id], 0, &format!("bootstrap token {id:?} deleted"))?;
    expect_output(fleet, &["token", "delete", id], 1, "not found; `crowsnest token list`")?;
    // An expired token is deleted automatically.
    expect_output(fleet, &["token", "create", "--ttl", "1s"], 0, "")?;
    wait_for_output(fleet, &["token", "list"], |output| {
        output.out.is_empty() && output.err.starts_with("No tokens found")
    })?;
    let output = expect_output(fleet, &["token", "create", "--print-register-command"], 0, "")?;
    ensure!(
        output.out.starts_with("crowsnest register 127.0.0.1:")
            && output.out.contains(" --discovery-token-ca-cert-hash sha256:"),
        "{output:?}"
    );
    Ok(())
}

fn check_completion(fleet: &Fleet, folder: &Path) -> Result<()> {
    expect_output(fleet, &["completion", "bash"], 0, "complete -o nospace")?;
    expect_output(fleet, &["completion", "zsh"], 0, "#compdef crowsnest")?;
    let output = expect_output(fleet, &["man", "search"], 0, "")?;
    ensure!(
        output.out.contains(".TH crowsnest-search 1") && output.out.contains("crowsnest search image:nginx"),
        "{output:?}"
    );
    let bin = folder.join("bin");
    let output = expect_output(
        fleet,
        &["completion", "--plugin", &bin.display().to_string()],
        0,
        "/kubectl_complete-karmada\n",
    )?;
    ensure!(output.out.lines().count() == 4, "{output:?}");
    let complete = |words: &[&str]| -> Result<Vec<String>> {
        let mut command = Command::new(bin.join("kubectl_complete-crowsnest"));
        let output = CommandOutput::parse(&command.args(words).env("KUBECONFIG", fleet.kubeconfig("cp")).output()?)?;
        ensure!(output.code == Some(0), "{output:?}");
        Ok(output.out.lines().map(|line| line.split('\t').next().unwrap_or_default().to_owned()).collect())
    };
    ensure!(complete(&["get", "pods", "--cluster", "mem"])? == ["member1", "member2", ":4"]);
    ensure!(complete(&["get", "pods", "-C", "member1,"])? == ["member1,member2", ":4"]);
    ensure!(complete(&["describe", "deploy/w"])? == ["deploy/web", ":4"]);
    ensure!(complete(&["get", "configmapset"])? == [":4"]);
    ensure!(complete(&["get", "deploym"])?.contains(&"deployments.apps".to_owned()));
    ensure!(complete(&["search", "kind:dep"])?.contains(&"kind:Deployment".to_owned()));
    ensure!(complete(&["history", "deploy/web", "--out"])? == ["--output", ":4"]);
    let Some(program) = find_kubectl("")? else { return Ok(()) };
    let path = std::env::var("PATH").unwrap_or_default();
    let plugin = |args: &[&str]| -> Result<CommandOutput> {
        let mut command = Command::new(&program);
        command.arg("crowsnest").args(args).env("PATH", format!("{}:{path}", bin.display()));
        CommandOutput::parse(&command.env("KUBECONFIG", fleet.kubeconfig("cp")).output()?)
    };
    let output = plugin(&["get", "pod", "both", "-C", "member1", "-o", "name"])?;
    ensure!(output.code == Some(0) && output.out == "member1/default/pods/both\n", "{output:?}");
    std::os::unix::fs::symlink(&program, bin.join("kubectl"))?;
    let with_kubectl = |args: &[&str]| -> Result<CommandOutput> {
        let mut command = Command::new(binary()?);
        command.args(args).env("PATH", format!("{}:{path}", bin.display()));
        CommandOutput::parse(&command.env("KUBECONFIG", fleet.kubeconfig("cp")).output()?)
    };
    let output = with_kubectl(&["label", "configmap", "settings", "seen=yes", "--overwrite"])?;
    ensure!(output.code == Some(0) && output.out == "configmap/settings labeled\n", "{output:?}");
    let output = with_kubectl(&["delete", "configmap", "nosuch"])?;
    ensure!(output.code == Some(1) && output.err.contains("configmaps \"nosuch\" not found"), "{output:?}");
    let complete_with_kubectl = |words: &[&str]| -> Result<Vec<String>> {
        let mut command = Command::new(bin.join("kubectl_complete-crowsnest"));
        command.args(words).env("PATH", format!("{}:{path}", bin.display()));
        let output = CommandOutput::parse(&command.env("KUBECONFIG", fleet.kubeconfig("cp")).output()?)?;
        Ok(output.out.lines().map(str::to_owned).collect())
    };
    // kubectl may take longer to start than the completion timeout.
    wait_for("kubectl to complete a resource", || {
        Ok(complete_with_kubectl(&["create", "configm"])? == ["configmap", ":4"])
    })?;
    ensure!(complete_with_kubectl(&["taint", "clusters", "mem"])? == ["member1", "member2", ":4"]);
    let overlay = folder.join("overlay");
    fs::create_dir(&overlay)?;
    fs::write(overlay.join("settings.yaml"), SETTINGS)?;
    fs::write(overlay.join("kustomization.yaml"), "resources: [settings.yaml]\nnamePrefix: more-\n")?;
    let output = with_kubectl(&["apply", "-k", &overlay.display().to_string(), "--dry-run=server"])?;
    ensure!(output.out == "configmap/more-settings created (server dry run)\n", "{output:?}");
    let output = plugin(&["search", "--help"])?;
    ensure!(
        output.out.contains("Usage: kubectl crowsnest search")
            && output.out.contains("  kubectl crowsnest search image:nginx"),
        "{output:?}"
    );
    Ok(())
}
