//! `crowsnest up --kubeconfig --contexts`: clusters of another owner, here of another `crowsnest up`, are joined, managed and
//! searched; problems are reported in one line; the clusters outlive the fleet that joined them.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use crowsnest_tests::{CommandOutput, Fleet, Kubectl, binary, until};

const WEB: &str = include_str!("join/web.yaml");
const REGISTRY: &str = include_str!("quickstart/registry.yaml");

#[test]
fn real_clusters_are_joined() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let theirs = Fleet::start(&dir.path().join("theirs"), &["--members", "east,west"])?;
    let Some(kubectl) = theirs.any_kubectl()? else { return Ok(()) };
    let file = theirs.kubeconfig("fleet").display().to_string();
    refuses_what_cannot_be_joined(dir.path(), &file)?;

    let data = dir.path().join("ours");
    let joining = ["--no-members", "--kubeconfig", &file, "--contexts", "east,west"];
    let ours = Fleet::start(&data, &joining)?;
    let kubectl = kubectl.on(&ours.kubeconfig("cp"));
    steers_and_searches(&ours, &theirs, &kubectl).with_context(|| ours.log())?;

    // The clusters keep the propagated objects when the fleet stops, and are joined again as they are.
    ensure!(ours.stop()?.success());
    let east = kubectl.on(&theirs.kubeconfig("east"));
    let running = |out: &str| out.matches("Running").count() == 2;
    east.until(&["get", "pods", "-l", "app=web"], running)?;
    ensure!(theirs.crowsnest(&["sim", "west", "stop"])?.code == Some(0));
    let ours = Fleet::start(&data, &joining)?;
    ensure!(ours.log().contains("cluster west stays joined but is unreachable"), "{}", ours.log());
    ready(&kubectl, "True False")?;
    east.until(&["get", "pods", "-l", "app=web"], running)?;
    ensure!(theirs.crowsnest(&["sim", "west", "start"])?.code == Some(0));
    ready(&kubectl, "True True")?;

    // Deleting the registration deletes the propagated objects, and leaves the cluster.
    kubectl.ok(&["delete", "cluster", "west", "--timeout=60s"], "")?;
    let west = kubectl.on(&theirs.kubeconfig("west"));
    west.until(&["get", "deploy,pods", "-o", "name"], |out| !out.contains("web"))?;
    west.ok(&["get", "nodes"], "")?;
    ready(&kubectl, "True")?;
    ensure!(ours.stop()?.success() && theirs.stop()?.success());
    Ok(())
}

/// With read-only permissions a cluster is visible, and nothing is propagated to it.
#[test]
fn a_cluster_is_observed() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let theirs = Fleet::start(&dir.path().join("theirs"), &["--members", "east"])?;
    let Some(kubectl) = theirs.any_kubectl()? else { return Ok(()) };
    let ours = Fleet::start(&dir.path().join("ours"), &["--no-members"])?;
    let file = theirs.kubeconfig("fleet").display().to_string();
    let joining = ["join", "east", "--cluster-kubeconfig", &file, "--cluster-context", "east", "--rights"];
    let output = ours.crowsnest(&[&joining[..], &["observe"]].concat())?;
    ensure!(output.out == "cluster(east) is joined successfully\n", "{output:?}");
    let output = ours.crowsnest(&[&joining[..], &["observe"]].concat())?;
    ensure!(output.code == Some(1) && output.err.contains("east"), "{output:?}");

    let east = kubectl.on(&theirs.kubeconfig("east"));
    let account = "system:serviceaccount:karmada-cluster:karmada-east";
    let may = |verb: &str, resource: &str, expected: bool| -> Result<()> {
        let (code, expected_output) = if expected { (0, "yes") } else { (1, "no") };
        east.expect_output(&["auth", "can-i", verb, resource, "-A", "--as", account], "", code, expected_output)
            .map(drop)
    };
    may("list", "pods", true)?;
    may("watch", "deployments.apps", true)?;
    may("list", "secrets", false)?;
    may("create", "deployments.apps", false)?;

    let kubectl = kubectl.on(&ours.kubeconfig("cp"));
    ready(&kubectl, "True")?;
    let server = format!("{}/apis/cluster.karmada.io/v1alpha1/clusters/east/proxy", ours.server()?);
    let there = kubectl.ok(&["--server", &server, "get", "nodes", "-o", "name"], "")?;
    ensure!(there.contains("node/east-node-1"), "{there}");
    until("search to find its nodes", || {
        Ok(ours.crowsnest(&["search", "kind:node", "-o", "name"])?.out.contains("east/"))
    })?;

    kubectl.ok(&["apply", "-f", "-"], WEB)?;
    let works = ["get", "works", "-n", "karmada-es-east", "-o", "jsonpath={.items[*].status.conditions[*].message}"];
    let refused = format!("is forbidden: User \\\"{account}\\\" cannot");
    let refused = [refused.clone(), refused.replace('\\', "")];
    kubectl.until(&works, |out| out.contains("deployments") && refused.iter().any(|text| out.contains(text)))?;
    ensure!(!east.ok(&["get", "deployments", "-A", "-o", "name"], "")?.contains("web"));

    // Joined again with more permissions, objects are propagated to it.
    let output = ours.crowsnest(&[&joining[..], &["steer:core,apps", "--refresh"]].concat())?;
    ensure!(output.out == "cluster(east) is rejoined successfully\n", "{output:?}");
    east.until(&["get", "pods", "-l", "app=web"], |out| out.contains("Running"))?;
    may("list", "secrets", false)?;
    is_unjoined(&ours, &kubectl, &east, &file)?;
    ensure!(ours.stop()?.success() && theirs.stop()?.success());
    Ok(())
}

/// No object of Crowsnest is left in it, nor a propagated one.
fn is_unjoined(ours: &Fleet, kubectl: &Kubectl, east: &Kubectl, file: &str) -> Result<()> {
    let output = ours.crowsnest(&["unregister", "east"])?;
    ensure!(output.code == Some(1) && output.err.contains("remove it with `crowsnest unjoin east`"), "{output:?}");
    let leaving = ["unjoin", "east", "--cluster-kubeconfig", file, "--cluster-context", "east"];
    let output = ours.crowsnest(&leaving)?;
    ensure!(output.out == "cluster(east) is unjoined successfully\n" && output.err.is_empty(), "{output:?}");
    kubectl.expect_output(&["get", "cluster", "east"], "", 1, "not found")?;
    east.until(&["get", "deploy", "-o", "name"], |out| !out.contains("web"))?;
    for name in ["karmada-controller-manager:karmada-east", "crowsnest-joined-impersonator"] {
        east.expect_output(&["get", "clusterrole", name], "", 1, "not found")?;
        east.expect_output(&["get", "clusterrolebinding", name], "", 1, "not found")?;
    }
    east.until(&["get", "namespaces", "-o", "name"], |out| !out.contains("namespace/karmada-cluster\n"))?;
    let output = ours.crowsnest(&leaving)?;
    ensure!(output.code == Some(1) && output.err == "error: cluster east is not registered\n", "{output:?}");
    Ok(())
}

fn ready(kubectl: &Kubectl, wanted: &str) -> Result<()> {
    let path = "jsonpath={range .items[*]}{.status.conditions[?(@.type==\"Ready\")].status} {end}";
    kubectl.until(&["get", "clusters", "-o", path], |out| out.trim() == wanted).map(drop)
}

fn steers_and_searches(ours: &Fleet, theirs: &Fleet, kubectl: &Kubectl) -> Result<()> {
    ready(kubectl, "True True")?;
    kubectl.ok(&["apply", "-f", "-"], WEB)?;
    kubectl.ok(&["apply", "-f", "-"], REGISTRY)?;
    for member in ["east", "west"] {
        let member = kubectl.on(&theirs.kubeconfig(member));
        member.until(&["get", "pods", "-l", "app=web"], |out| out.matches("Running").count() == 2)?;
    }
    kubectl.until(&["get", "deploy", "web", "-o", "jsonpath={.status.readyReplicas}"], |out| out == "4")?;
    let mut found = None;
    until("search to find their pods", || {
        let output = ours.crowsnest(&["search", "kind:pod label:app=web status:Running", "-o", "name"])?;
        let whole = ["east/", "west/"].iter().all(|m| output.out.lines().filter(|l| l.starts_with(m)).count() == 2);
        found = Some(output);
        Ok(whole)
    })
    .with_context(|| format!("{found:?}"))?;
    let server = format!("{}/apis/cluster.karmada.io/v1alpha1/clusters/west/proxy", ours.server()?);
    let there = kubectl.ok(&["--server", &server, "get", "nodes", "-o", "name"], "")?;
    ensure!(there.contains("node/west-node-1"), "{there}");
    // The clusters belong to another owner and stay unchanged.
    let output = ours.crowsnest(&["sim", "west", "stop"])?;
    ensure!(output.err == "error: no member of this fleet is simulated\n", "{output:?}");
    Ok(())
}

fn up(folder: &Path, args: &[&str]) -> Result<CommandOutput> {
    let data = folder.join("refused");
    let mut command = Command::new(binary()?);
    command.args(["up", "--listen", "127.0.0.1:0", "--ui-listen", "127.0.0.1:0", "--data-dir"]).arg(&data).args(args);
    let output = CommandOutput::of(&command.output()?)?;
    if data.exists() {
        fs::remove_dir_all(&data)?;
    }
    Ok(output)
}

/// One line, exit code 1, with the cause or the remedy.
fn refuses_what_cannot_be_joined(folder: &Path, file: &str) -> Result<()> {
    let write = |name: &str, text: &str| -> Result<String> {
        let path = folder.join(name);
        fs::write(&path, text)?;
        Ok(path.display().to_string())
    };
    let whole = fs::read_to_string(file)?;
    let nobody = "apiVersion: v1\nkind: Config\nclusters: [{name: far, cluster: {server: 'https://127.0.0.1:9'}}]\n\
        users: [{name: far, user: {token: x}}]\ncontexts: [{name: far, context: {cluster: far, user: far}}, \
        {name: Not_A_Name, context: {cluster: far, user: far}}, {name: torn, context: {cluster: nosuch, user: far}}]\n";
    let nobody = write("nobody", nobody)?;
    let nonsense = write("nonsense", "clusters: [\nnot: yaml: at all")?;
    // The same cluster with a second name.
    let twin = whole.replace("contexts:\n", "contexts:\n- name: twin\n  context:\n    cluster: east\n    user: east\n");
    let twin = write("twin", &twin)?;
    let stranger = whole.replace("client-key-data", "client-key-data-of-old");
    let stranger = write("stranger", &stranger)?;
    let refusals: [(&str, &str, &str); 10] = [
        ("/nowhere/config", "east", "cannot read the kubeconfig \"/nowhere/config\": no such file;"),
        ("/", "east", "cannot read the kubeconfig \"/\": it is a directory;"),
        (&nonsense, "east", "cannot parse the kubeconfig "),
        (file, "north", "has no context \"north\"; its contexts are cp, east, west"),
        (file, "east,east", "context east is given twice"),
        (&nobody, "Not_A_Name", "context Not_A_Name is not a valid cluster name; rename it"),
        (&nobody, "torn", "cannot use context \"torn\" of"),
        (&nobody, "far", "cannot join cluster far: https://127.0.0.1:9/: Connection refused"),
        (&twin, "east,twin", "contexts east and twin lead to the same cluster"),
        (&stranger, "east", "cannot join cluster east: "),
    ];
    for (file, contexts, text) in refusals {
        let output = up(folder, &["--no-members", "--kubeconfig", file, "--contexts", contexts])?;
        let errors: Vec<&str> = output.err.lines().filter(|l| !l.starts_with("  ")).collect();
        ensure!(output.code == Some(1) && errors.len() == 1 && errors[0].contains(text), "{contexts}: {output:?}");
    }
    for (args, text) in [
        (&["--kubeconfig", file] as &[&str], "--contexts"),
        (&["--contexts", "east"], "--kubeconfig"),
        (&["--members", "2", "--kubeconfig", file, "--contexts", "east"], "cannot be used with"),
    ] {
        let output = up(folder, args)?;
        ensure!(output.code == Some(2) && output.err.contains(text), "{args:?}: {output:?}");
    }
    Ok(())
}
