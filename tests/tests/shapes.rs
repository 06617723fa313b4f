//! Simulated fleets of a given shape: the commands of docs/FLEET-SHAPES.md and their output, the placement of workloads,
//! and a restart with another shape. The same fleet is used to check that no internal kind has the name of a public
//! one, and that an administrator with another name is shown the command that grants access.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use crowsnest_tests::{CommandOutput, Fleet, Kubectl, binary, find_kubectl, repository_root};
use serde_json::Value;

const DOCUMENTATION: &str = include_str!("../../docs/FLEET-SHAPES.md");
const FILE: &str = "docs/fleet-shapes/fleet.yaml";

#[test]
fn a_fleet_has_the_documented_shape() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let data = dir.path().join("data");
    let file = repository_root().join(FILE).display().to_string();
    let fleet = Fleet::start(&data, &["--members", &file])?;
    let Some(program) = find_kubectl("")? else { return Ok(()) };
    let Some(cp) = fleet.any_kubectl()? else { return Ok(()) };
    let checks = || -> Result<()> {
        cp.run_ok(&["wait", "--for=condition=Ready", "cluster", "--all", "--timeout=240s"], "")?;
        for command in documented_commands() {
            run_command(&fleet, &program, command)?;
        }
        check_cluster_locations(&cp)?;
        check_nodes(&fleet, &cp)?;
        check_spreading(&fleet, &cp)?;
        check_gpus(&fleet, &cp)?;
        check_unique_names(&cp)?;
        check_hint_for_administrators(&fleet, &cp)
    };
    checks().with_context(|| fleet.log())?;
    ensure!(fleet.stop()?.success());
    check_changed_shape(&data)
}

/// Commands of the page that a reader runs in the fleet, before the sections on other starts.
fn documented_commands() -> impl Iterator<Item = &'static str> {
    let example = DOCUMENTATION.split("\n## ").next().unwrap_or_default();
    example.lines().filter_map(|line| line.strip_prefix("    ")).filter(|line| !line.starts_with("crowsnest up"))
}

fn run_command(fleet: &Fleet, kubectl: &std::path::Path, command: &str) -> Result<CommandOutput> {
    let folder = |program: PathBuf| program.parent().map(|folder| folder.display().to_string()).unwrap_or_default();
    let (binary_folder, path) = (folder(binary()?), std::env::var("PATH").unwrap_or_default());
    let script =
        command.replacen("kubectl", &kubectl.display().to_string(), usize::from(command.starts_with("kubectl")));
    let output = Command::new("sh")
        .args(["-c", &script])
        .current_dir(repository_root())
        .env("PATH", format!("{binary_folder}:{path}"))
        .env("KUBECONFIG", fleet.kubeconfig("fleet"))
        .env("HOME", fleet.data_dir.with_extension("home"))
        .env("CROWSNEST_DATA_DIR", &fleet.data_dir)
        .output()
        .with_context(|| command.to_owned())?;
    let output = CommandOutput::parse(&output)?;
    ensure!(output.code == Some(0), "{command}: {output:?}");
    Ok(output)
}

fn get_json(kubectl: &Kubectl, args: &[&str]) -> Result<Value> {
    Ok(serde_json::from_str(&kubectl.run_ok(&[args, &["-o", "json"]].concat(), "")?)?)
}

fn check_cluster_locations(cp: &Kubectl) -> Result<()> {
    let columns =
        "jsonpath={.spec.provider}/{.spec.region}/{.spec.zones}/{.status.kubernetesVersion}/{.metadata.labels.tier}";
    for (name, expected) in [
        ("east", "acme/eu/[\"eu-1\",\"eu-2\"]/v1.36.2/"),
        ("west", "acme/us/[\"us-1\",\"us-2\"]/v1.35.4/edge"),
        ("gpu", "acme/eu/[\"eu-1\",\"eu-3\"]/v1.36.2/"),
    ] {
        cp.run_until(&["get", "cluster", name, "-o", columns], |out| out == expected)?;
    }
    let gpus = "jsonpath={.status.resourceSummary.allocatable['nvidia\\.com/gpu']}";
    cp.run_until(&["get", "cluster", "gpu", "-o", gpus], |out| out == "8").map(drop)
}

fn check_nodes(fleet: &Fleet, cp: &Kubectl) -> Result<()> {
    let gpu = cp.with_kubeconfig(&fleet.kubeconfig("gpu"));
    let nodes = get_json(&gpu, &["get", "nodes", "-l", "accelerator=a100"])?;
    let nodes = nodes["items"].as_array().context("the list has no items")?;
    ensure!(nodes.len() == 2, "{nodes:?}");
    for node in nodes {
        let labels = &node["metadata"]["labels"];
        ensure!(
            labels["topology.kubernetes.io/zone"] == "eu-3" && labels["topology.kubernetes.io/region"] == "eu",
            "{labels}"
        );
        ensure!(node["status"]["allocatable"]["nvidia.com/gpu"] == "4", "{node}");
        ensure!(node["spec"]["taints"][0]["key"] == "nvidia.com/gpu", "{node}");
        ensure!(node["spec"]["providerID"].as_str().is_some_and(|id| id.starts_with("sim://gpu/")), "{node}");
    }
    let west = cp.with_kubeconfig(&fleet.kubeconfig("west"));
    let version = get_json(&west, &["version"])?;
    ensure!(
        version["serverVersion"]["gitVersion"] == "v1.35.4" && version["serverVersion"]["minor"] == "35",
        "{version}"
    );
    let kubelet = ["get", "nodes", "-o", "jsonpath={.items[*].status.nodeInfo.kubeletVersion}"];
    let kubelet = west.run_ok(&kubelet, "")?;
    ensure!(kubelet == "v1.35.4 v1.35.4", "{kubelet}");
    Ok(())
}

/// Number of running pods of an app in each zone of a member; waits until `pods` pods run.
fn zones_of_pods(fleet: &Fleet, cp: &Kubectl, member: &str, app: &str, pods: usize) -> Result<BTreeMap<String, usize>> {
    let kubectl = cp.with_kubeconfig(&fleet.kubeconfig(member));
    let args = [
        "get",
        "pods",
        "-l",
        &format!("app={app}"),
        "-o",
        "jsonpath={range .items[?(@.status.phase=='Running')]}{.spec.nodeName}{'\\n'}{end}",
    ];
    let placed = kubectl.run_until(&args, |out| out.lines().count() == pods)?;
    let mut zones = BTreeMap::new();
    for node in placed.lines() {
        let zone = "jsonpath={.metadata.labels.topology\\.kubernetes\\.io/zone}";
        *zones.entry(kubectl.run_ok(&["get", "node", node, "-o", zone], "")?).or_default() += 1;
    }
    Ok(zones)
}

fn check_spreading(fleet: &Fleet, cp: &Kubectl) -> Result<()> {
    for (member, expected) in [("east", ["eu-1", "eu-2"]), ("west", ["us-1", "us-2"])] {
        let zones = zones_of_pods(fleet, cp, member, "shop", 2)?;
        ensure!(zones == expected.map(|zone| (zone.to_owned(), 1)).into(), "{member}: {zones:?}");
    }
    Ok(())
}

fn check_gpus(fleet: &Fleet, cp: &Kubectl) -> Result<()> {
    let targets = "jsonpath={.spec.clusters[*].name}={.spec.clusters[*].replicas}";
    cp.run_until(&["get", "rb", "train-deployment", "-o", targets], |out| out == "gpu=6")?;
    let zones = zones_of_pods(fleet, cp, "gpu", "train", 6)?;
    ensure!(zones == BTreeMap::from([("eu-3".to_owned(), 6)]), "{zones:?}");
    let allocated = "jsonpath={.status.resourceSummary.allocated['nvidia\\.com/gpu']}";
    cp.run_until(&["get", "cluster", "gpu", "-o", allocated], |out| out == "6").map(drop)
}

/// Names that Kubernetes itself uses in two groups.
const SHARED_KUBERNETES_NAMES: [&str; 6] = ["event", "events", "ev", "node", "nodes", "pods"];

/// In discovery, no resource name or short name refers to two kinds, and none equals a category.
fn check_unique_names(cp: &Kubectl) -> Result<()> {
    let mut versions = vec!["/api/v1".to_owned()];
    let groups: Value = serde_json::from_str(&cp.run_ok(&["get", "--raw", "/apis"], "")?)?;
    for group in groups["groups"].as_array().context("the discovery document has no groups")? {
        let preferred =
            group["preferredVersion"]["groupVersion"].as_str().context("the group has no preferred version")?;
        versions.push(format!("/apis/{preferred}"));
    }
    let mut names: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut categories: BTreeMap<String, String> = BTreeMap::new();
    for path in &versions {
        let served: Value = serde_json::from_str(&cp.run_ok(&["get", "--raw", path], "")?)?;
        for resource in served["resources"].as_array().context("the discovery document has no resources")? {
            let text = |field: &str| resource[field].as_str().unwrap_or_default().to_owned();
            let resource_path = format!("{path}/{}", text("name"));
            if text("name").contains('/') {
                continue;
            }
            let list = |field: &str| resource[field].as_array().into_iter().flatten().filter_map(Value::as_str);
            let mut resource_names: Vec<String> =
                list("shortNames").map(str::to_owned).chain([text("name"), text("singularName")]).collect();
            resource_names.sort();
            resource_names.dedup();
            for name in resource_names.into_iter().filter(|name| !name.is_empty()) {
                names.entry(name).or_default().push(resource_path.clone());
            }
            categories.extend(list("categories").map(|category| (category.to_owned(), resource_path.clone())));
        }
    }
    ensure!(names.contains_key("storedclusters") && names.contains_key("clusters"), "{names:?}");
    for (name, paths) in &names {
        // Metrics of pods and nodes are named like these in Kubernetes, too.
        let is_kubernetes = SHARED_KUBERNETES_NAMES.contains(&name.as_str())
            || paths.iter().any(|path| path.contains("metrics.k8s.io"));
        ensure!(paths.len() == 1 || is_kubernetes, "{name} refers to {paths:?}");
        ensure!(
            !categories.contains_key(name),
            "{name} is a resource of {paths:?} and a category of {}",
            categories[name]
        );
    }
    Ok(())
}

/// A user of the group `system:masters`, which has all permissions in the control plane but no role for members, is shown the
/// command that grants access to them.
fn check_hint_for_administrators(fleet: &Fleet, cp: &Kubectl) -> Result<()> {
    let proxy = "/apis/cluster.karmada.io/v1alpha1/clusters/east/proxy";
    let server = format!("{}{proxy}", fleet.server()?);
    let ops = cp.with_flags(&["--as", "ops", "--as-group", "system:masters"]);
    let via_member = ops.with_flags(&["--server", &server]);
    let grant =
        "kubectl create clusterrolebinding cluster-proxy-admin-ops --clusterrole=cluster-proxy-admin --user=ops";
    let warning = format!(
        "Warning: User \"ops\" has no permission for \"clusters/proxy\" of cluster east in the control plane; grant it, for all clusters, with `{grant}`"
    );
    via_member.expect_output(&["get", "nodes"], "", 1, &warning)?;
    // The member's own message is unchanged.
    let nodes = format!("{proxy}/api/v1/nodes");
    let member_message =
        "is forbidden: User \"system:serviceaccount:karmada-cluster:karmada-impersonator\" cannot impersonate";
    let output = ops.expect_output(&["get", "--raw", &nodes], "", 1, member_message)?;
    ensure!(output.err.contains(&warning), "{output:?}");
    let (_, command) = grant.split_once(' ').context("the hint contains no command")?;
    ops.run_ok(&command.split(' ').collect::<Vec<_>>(), "")?;
    via_member.run_until(&["get", "pods", "-A"], |_| true)?;
    // A user without permissions in the control plane is refused there, not by the member.
    let refused = "cannot get resource \"clusters/proxy\" in API group \"cluster.karmada.io\"";
    cp.with_flags(&["--as", "eve"]).expect_output(&["get", "--raw", &nodes], "", 1, refused).map(drop)
}

fn check_changed_shape(data: &std::path::Path) -> Result<()> {
    // Without settings members stay as they are.
    let fleet = Fleet::start(data, &["--members", "gpu"])?;
    let Some(cp) = fleet.any_kubectl()? else { return Ok(()) };
    let gpu = cp.with_kubeconfig(&fleet.kubeconfig("gpu"));
    let labelled = ["get", "nodes", "-l", "accelerator=a100", "-o", "name"];
    ensure!(gpu.run_ok(&labelled, "")?.lines().count() == 2);
    gpu.run_ok(&["label", "node", "gpu-node-1", "mine=yes"], "")?;
    ensure!(fleet.stop()?.success());

    let fleet = Fleet::start(data, &["--members", "gpu:nodes=2,zone=moon,cpu=2"])?;
    let log = std::fs::read_to_string(data.with_extension("log"))?;
    ensure!(log.contains("member gpu: settings changed since the last start; the new ones are applied"), "{log}");
    let nodes = get_json(&gpu, &["get", "nodes"])?;
    let nodes = nodes["items"].as_array().context("the list has no items")?;
    ensure!(nodes.len() == 2, "{nodes:?}");
    for node in nodes {
        let (labels, allocatable) = (&node["metadata"]["labels"], &node["status"]["allocatable"]);
        ensure!(
            labels["topology.kubernetes.io/zone"] == "moon" && labels.get("topology.kubernetes.io/region").is_none(),
            "{labels}"
        );
        ensure!(allocatable["cpu"] == "2" && allocatable.get("nvidia.com/gpu").is_none(), "{allocatable}");
        ensure!((labels["mine"] == "yes") == (node["metadata"]["name"] == "gpu-node-1"), "{labels}");
    }
    let format = "jsonpath={.spec.provider}/{.spec.region}/{.spec.zones}";
    cp.run_until(&["get", "cluster", "gpu", "-o", format], |out| out == "sim//[\"moon\"]")?;
    ensure!(fleet.stop()?.success());
    Ok(())
}
