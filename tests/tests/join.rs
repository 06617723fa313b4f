//! `crowsnest up --kubeconfig --contexts`: clusters of another owner, here of another `crowsnest up`, are joined,
//! managed and searched; problems are reported in one line; the clusters outlive the fleet that joined them.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use crowsnest_tests::{CommandOutput, Fleet, Kubectl, Member, binary, wait_for};

const WEB: &str = include_str!("join/web.yaml");
const REGISTRY: &str = include_str!("quickstart/registry.yaml");

#[test]
fn real_clusters_are_joined() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let remote = Fleet::start(&dir.path().join("theirs"), &["--members", "east,west"])?;
    let Some(kubectl) = remote.any_kubectl()? else { return Ok(()) };
    let file = remote.kubeconfig("fleet").display().to_string();
    check_refusals(dir.path(), &file)?;

    let data = dir.path().join("ours");
    let join_args = ["--no-members", "--kubeconfig", &file, "--contexts", "east,west"];
    let fleet = Fleet::start(&data, &join_args)?;
    let kubectl = kubectl.with_kubeconfig(&fleet.kubeconfig("cp"));
    check_propagation_and_search(&fleet, &remote, &kubectl).with_context(|| fleet.log())?;

    // The clusters keep the propagated objects when the fleet stops, and are joined again as they are.
    ensure!(fleet.stop()?.success());
    let east = kubectl.with_kubeconfig(&remote.kubeconfig("east"));
    let is_running = |out: &str| out.matches("Running").count() == 2;
    east.run_until(&["get", "pods", "-l", "app=web"], is_running)?;
    ensure!(remote.crowsnest(&["sim", "west", "stop"])?.code == Some(0));
    let fleet = Fleet::start(&data, &join_args)?;
    ensure!(fleet.log().contains("cluster west stays joined but is unreachable"), "{}", fleet.log());
    wait_for_readiness(&kubectl, "True False")?;
    east.run_until(&["get", "pods", "-l", "app=web"], is_running)?;
    ensure!(remote.crowsnest(&["sim", "west", "start"])?.code == Some(0));
    wait_for_readiness(&kubectl, "True True")?;

    // Deleting the registration deletes the propagated objects, and leaves the cluster.
    kubectl.run_ok(&["delete", "cluster", "west", "--timeout=240s"], "")?;
    let west = kubectl.with_kubeconfig(&remote.kubeconfig("west"));
    west.run_until(&["get", "deploy,pods", "-o", "name"], |out| !out.contains("web"))?;
    west.run_ok(&["get", "nodes"], "")?;
    wait_for_readiness(&kubectl, "True")?;
    ensure!(fleet.stop()?.success() && remote.stop()?.success());
    Ok(())
}

/// With read-only permissions a cluster is visible, and nothing is propagated to it.
#[test]
fn nothing_is_propagated_to_an_observed_cluster() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let mut remote = Member::start("east", &dir.path().join("theirs"), &[])?;
    let fleet = Fleet::start(&dir.path().join("ours"), &["--no-members"])?;
    let Some(kubectl) = fleet.any_kubectl()? else { return Ok(()) };
    let file = remote.kubeconfig.display().to_string();
    let join_args = ["join", "east", "--cluster-kubeconfig", &file, "--cluster-context", "east", "--rights"];
    let output = fleet.crowsnest(&[&join_args[..], &["observe"]].concat())?;
    ensure!(output.out == "cluster(east) is joined successfully\n", "{output:?}");
    let output = fleet.crowsnest(&[&join_args[..], &["observe"]].concat())?;
    ensure!(output.code == Some(1) && output.err.contains("east"), "{output:?}");

    let east = kubectl.with_kubeconfig(&remote.kubeconfig);
    let account = "system:serviceaccount:karmada-cluster:karmada-east";
    let expect_permission = |verb: &str, resource: &str, expected: bool| -> Result<()> {
        let (code, expected_output) = if expected { (0, "yes") } else { (1, "no") };
        east.expect_output(&["auth", "can-i", verb, resource, "-A", "--as", account], "", code, expected_output)
            .map(drop)
    };
    expect_permission("list", "pods", true)?;
    expect_permission("watch", "deployments.apps", true)?;
    expect_permission("list", "secrets", false)?;
    expect_permission("create", "deployments.apps", false)?;

    wait_for_readiness(&kubectl, "True")?;
    let server = format!("{}/apis/cluster.karmada.io/v1alpha1/clusters/east/proxy", fleet.server()?);
    let nodes = kubectl.run_ok(&["--server", &server, "get", "nodes", "-o", "name"], "")?;
    ensure!(nodes.contains("node/east-node-1"), "{nodes}");
    wait_for("search to find its nodes", || {
        Ok(fleet.crowsnest(&["search", "kind:node", "-o", "name"])?.out.contains("east/"))
    })?;

    kubectl.run_ok(&["apply", "-f", "-"], WEB)?;
    let works = ["get", "works", "-n", "karmada-es-east", "-o", "jsonpath={.items[*].status.conditions[*].message}"];
    let refused = format!("is forbidden: User \\\"{account}\\\" cannot");
    let refused = [refused.clone(), refused.replace('\\', "")];
    kubectl.run_until(&works, |out| out.contains("deployments") && refused.iter().any(|text| out.contains(text)))?;
    ensure!(!east.run_ok(&["get", "deployments", "-A", "-o", "name"], "")?.contains("web"));

    // Joined again with more permissions, objects are propagated to it.
    let output = fleet.crowsnest(&[&join_args[..], &["steer:core,apps", "--refresh"]].concat())?;
    ensure!(output.out == "cluster(east) is rejoined successfully\n", "{output:?}");
    east.run_until(&["get", "pods", "-l", "app=web"], |out| out.contains("Running"))?;
    expect_permission("list", "secrets", false)?;
    check_unjoin(&fleet, &kubectl, &east, &file)?;
    ensure!(fleet.stop()?.success() && remote.stop()?.success());
    Ok(())
}

/// Unjoins the cluster, and checks that it contains no objects of Crowsnest and no propagated objects.
fn check_unjoin(fleet: &Fleet, kubectl: &Kubectl, east: &Kubectl, file: &str) -> Result<()> {
    let output = fleet.crowsnest(&["unregister", "east"])?;
    ensure!(output.code == Some(1) && output.err.contains("remove it with `crowsnest unjoin east`"), "{output:?}");
    let unjoin = ["unjoin", "east", "--cluster-kubeconfig", file, "--cluster-context", "east"];
    let output = fleet.crowsnest(&unjoin)?;
    ensure!(output.out == "cluster(east) is unjoined successfully\n" && output.err.is_empty(), "{output:?}");
    kubectl.expect_output(&["get", "cluster", "east"], "", 1, "not found")?;
    east.run_until(&["get", "deploy", "-o", "name"], |out| !out.contains("web"))?;
    for name in ["karmada-controller-manager:karmada-east", "crowsnest-joined-impersonator"] {
        east.expect_output(&["get", "clusterrole", name], "", 1, "not found")?;
        east.expect_output(&["get", "clusterrolebinding", name], "", 1, "not found")?;
    }
    east.run_until(&["get", "namespaces", "-o", "name"], |out| !out.contains("namespace/karmada-cluster\n"))?;
    let output = fleet.crowsnest(&unjoin)?;
    ensure!(output.code == Some(1) && output.err == "error: cluster east is not registered\n", "{output:?}");
    Ok(())
}

/// Waits until the Ready conditions of all clusters are these.
fn wait_for_readiness(kubectl: &Kubectl, expected: &str) -> Result<()> {
    let path = "jsonpath={range .items[*]}{.status.conditions[?(@.type==\"Ready\")].status} {end}";
    kubectl.run_until(&["get", "clusters", "-o", path], |out| out.trim() == expected).map(drop)
}

fn check_propagation_and_search(fleet: &Fleet, remote: &Fleet, kubectl: &Kubectl) -> Result<()> {
    wait_for_readiness(kubectl, "True True")?;
    kubectl.run_ok(&["apply", "-f", "-"], WEB)?;
    kubectl.run_ok(&["apply", "-f", "-"], REGISTRY)?;
    for member in ["east", "west"] {
        let member = kubectl.with_kubeconfig(&remote.kubeconfig(member));
        member.run_until(&["get", "pods", "-l", "app=web"], |out| out.matches("Running").count() == 2)?;
    }
    kubectl.run_until(&["get", "deploy", "web", "-o", "jsonpath={.status.readyReplicas}"], |out| out == "4")?;
    let mut found = None;
    wait_for("search to find their pods", || {
        let output = fleet.crowsnest(&["search", "kind:pod label:app=web status:Running", "-o", "name"])?;
        let is_complete =
            ["east/", "west/"].iter().all(|m| output.out.lines().filter(|l| l.starts_with(m)).count() == 2);
        found = Some(output);
        Ok(is_complete)
    })
    .with_context(|| format!("{found:?}"))?;
    let server = format!("{}/apis/cluster.karmada.io/v1alpha1/clusters/west/proxy", fleet.server()?);
    let nodes = kubectl.run_ok(&["--server", &server, "get", "nodes", "-o", "name"], "")?;
    ensure!(nodes.contains("node/west-node-1"), "{nodes}");
    // The clusters belong to another owner and stay unchanged.
    let output = fleet.crowsnest(&["sim", "west", "stop"])?;
    ensure!(output.err == "error: no member of this fleet is simulated\n", "{output:?}");
    Ok(())
}

fn run_up(folder: &Path, args: &[&str]) -> Result<CommandOutput> {
    let data = folder.join("refused");
    let mut command = Command::new(binary()?);
    command.args(["up", "--listen", "127.0.0.1:0", "--ui-listen", "127.0.0.1:0", "--data-dir"]).arg(&data).args(args);
    let output = CommandOutput::parse(&command.output()?)?;
    if data.exists() {
        fs::remove_dir_all(&data)?;
    }
    Ok(output)
}

/// Invalid kubeconfigs and contexts are reported in one line with the cause or the remedy; the exit code is 1.
fn check_refusals(folder: &Path, file: &str) -> Result<()> {
    let write = |name: &str, text: &str| -> Result<String> {
        let path = folder.join(name);
        fs::write(&path, text)?;
        Ok(path.display().to_string())
    };
    let text = fs::read_to_string(file)?;
    let invalid = "apiVersion: v1\nkind: Config\nclusters: [{name: far, cluster: {server: 'https://127.0.0.1:9'}}]\n\
        users: [{name: far, user: {token: x}}]\ncontexts: [{name: far, context: {cluster: far, user: far}}, \
        {name: Not_A_Name, context: {cluster: far, user: far}}, {name: torn, context: {cluster: nosuch, user: far}}]\n";
    let invalid = write("invalid", invalid)?;
    let nonsense = write("nonsense", "clusters: [\nnot: yaml: at all")?;
    // The same cluster with a second name.
    let twin = text.replace("contexts:\n", "contexts:\n- name: twin\n  context:\n    cluster: east\n    user: east\n");
    let twin = write("twin", &twin)?;
    let without_key = text.replace("client-key-data", "client-key-data-of-old");
    let without_key = write("without-key", &without_key)?;
    let refusals: [(&str, &str, &str); 10] = [
        ("/nowhere/config", "east", "cannot read the kubeconfig \"/nowhere/config\": no such file;"),
        ("/", "east", "cannot read the kubeconfig \"/\": it is a directory;"),
        (&nonsense, "east", "cannot parse the kubeconfig "),
        (file, "north", "has no context \"north\"; its contexts are cp, east, west"),
        (file, "east,east", "context east is listed twice"),
        (&invalid, "Not_A_Name", "context Not_A_Name is not a valid cluster name; rename it"),
        (&invalid, "torn", "cannot use context \"torn\" of"),
        (&invalid, "far", "cannot join cluster far: https://127.0.0.1:9/: Connection refused"),
        (&twin, "east,twin", "contexts east and twin lead to the same cluster"),
        (&without_key, "east", "cannot join cluster east: "),
    ];
    for (file, contexts, text) in refusals {
        let output = run_up(folder, &["--no-members", "--kubeconfig", file, "--contexts", contexts])?;
        let errors: Vec<&str> = output.err.lines().filter(|l| !l.starts_with("  ")).collect();
        ensure!(output.code == Some(1) && errors.len() == 1 && errors[0].contains(text), "{contexts}: {output:?}");
    }
    for (args, text) in [
        (&["--kubeconfig", file] as &[&str], "--contexts"),
        (&["--contexts", "east"], "--kubeconfig"),
        (&["--members", "2", "--kubeconfig", file, "--contexts", "east"], "cannot be used with"),
    ] {
        let output = run_up(folder, args)?;
        ensure!(output.code == Some(2) && output.err.contains(text), "{args:?}: {output:?}");
    }
    Ok(())
}
