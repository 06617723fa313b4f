//! The quickstart: one command, then search, reading and propagation with kubectl, the CLI and the browser.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use crowsnest_tests::{Fleet, binary, find_kubectl, run_browser_script, screenshot_folder, wait_for};

const DEPLOYMENT: &str = include_str!("quickstart/web.yaml");
const OVERRIDE: &str = include_str!("quickstart/override.yaml");

#[test]
fn the_quickstart_works() -> Result<()> {
    let Some(kubectl) = find_kubectl("")? else { return Ok(()) };
    let dir = tempfile::tempdir()?;
    let data = dir.path().join("data");
    let fleet = Fleet::start(&data, &["--members", "3"])?;
    check_propagation(&fleet, &kubectl)?;
    check_search(&fleet, &kubectl)?;
    check_cluster_proxy(&fleet, &kubectl)?;
    check_ui(&fleet, &data)?;
    check_restart(fleet, &kubectl, &data)
}

/// A Deployment and a policy create running pods in the members, and their status is aggregated.
fn check_propagation(fleet: &Fleet, kubectl: &Path) -> Result<()> {
    let clusters =
        fleet.kubectl_until(kubectl, "cp", &["get", "clusters"], |out| out.matches(" True ").count() == 3)?;
    assert!(clusters.starts_with("NAME"), "{clusters}");
    assert_eq!(
        clusters.lines().next().unwrap_or_default().split_whitespace().collect::<Vec<_>>(),
        ["NAME", "VERSION", "MODE", "READY", "AGE"]
    );

    fleet.kubectl_ok(kubectl, "cp", &["apply", "-f", "-"], DEPLOYMENT)?;
    fleet.kubectl_until(kubectl, "cp", &["get", "rb", "-o", "wide"], |out| {
        out.contains("web-deployment") && out.matches("True").count() >= 2
    })?;
    for member in ["member1", "member2", "member3"] {
        let namespace = format!("karmada-es-{member}");
        fleet.kubectl_until(kubectl, "cp", &["get", "work", "-n", &namespace], |out| {
            out.contains("Deployment") && out.contains("True")
        })?;
        fleet.kubectl_until(kubectl, member, &["get", "pods", "-l", "app=web"], |out| {
            out.matches("Running").count() == 2
        })?;
    }
    fleet.kubectl_until(kubectl, "cp", &["get", "deploy", "web", "-o", "jsonpath={.status.readyReplicas}"], |out| {
        out == "6"
    })?;

    fleet.kubectl_ok(kubectl, "cp", &["apply", "-f", "-"], OVERRIDE)?;
    let image = ["get", "deploy", "web", "-o", "jsonpath={.spec.template.spec.containers[0].image}"];
    fleet.kubectl_until(kubectl, "member2", &image, |out| out == "nginx:1.27")?;
    fleet.kubectl_until(kubectl, "member1", &image, |out| out == "nginx:1.25")?;
    Ok(())
}

/// The cache is served through Karmada's paths, through kubectl, and through the query language.
fn check_search(fleet: &Fleet, kubectl: &Path) -> Result<()> {
    fleet.kubectl_ok(kubectl, "cp", &["apply", "-f", "-"], include_str!("quickstart/registry.yaml"))?;
    let cached = "/apis/search.karmada.io/v1alpha1/search/cache/api/v1/pods";
    fleet.kubectl_until(kubectl, "cp", &["get", "--raw", cached], |out| {
        out.contains("resource.karmada.io/cached-from-cluster") && out.contains("\"kind\":\"PodList\"")
    })?;
    let server = fleet.kubectl_ok(
        kubectl,
        "cp",
        &["config", "view", "--minify", "-o", "jsonpath={.clusters[0].cluster.server}"],
        "",
    )?;
    let fleet_url = format!("{server}/apis/search.karmada.io/v1alpha1/proxying/karmada/proxy");
    let pods =
        fleet.kubectl_until(kubectl, "cp", &["get", "pods", "-A", "--server", &fleet_url, "-o", "yaml"], |out| {
            ["member1", "member2", "member3"].iter().all(|m| out.contains(&format!("cached-from-cluster: {m}")))
        })?;
    assert!(pods.contains("web-"), "{pods}");

    let mut found = String::new();
    wait_for("crowsnest search to find the pods", || {
        let output = Command::new(binary()?)
            .args(["search", "kind:pod label:app=web status:Running", "--kubeconfig"])
            .arg(fleet.kubeconfig("cp"))
            .output()?;
        found = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        Ok(output.status.success() && found.matches("Running").count() == 6)
    })
    .with_context(|| found.clone())
}

/// kubectl uses one member through the control plane's address, as the calling user.
fn check_cluster_proxy(fleet: &Fleet, kubectl: &Path) -> Result<()> {
    let server = fleet.kubectl_ok(
        kubectl,
        "cp",
        &["config", "view", "--minify", "-o", "jsonpath={.clusters[0].cluster.server}"],
        "",
    )?;
    let member = format!("{server}/apis/cluster.karmada.io/v1alpha1/clusters/member1/proxy");
    let pod = fleet.kubectl_ok(
        kubectl,
        "cp",
        &["--server", &member, "get", "pods", "-l", "app=web", "-o", "jsonpath={.items[0].metadata.name}"],
        "",
    )?;
    let logs = fleet.kubectl_ok(kubectl, "cp", &["--server", &member, "logs", &pod, "--tail", "2"], "")?;
    assert_eq!(logs.lines().count(), 2, "{logs}");
    let output = fleet.kubectl_ok(
        kubectl,
        "cp",
        &["--server", &member, "exec", "-i", &pod, "--", "sh", "-c", "cat; echo $HOSTNAME"],
        "hello\n",
    )?;
    assert_eq!(output, format!("hello\n{pod}\n"));
    Ok(())
}

/// The UI in a real browser: overview, search, the object with its tabs, fleet and propagation. Takes screenshots.
fn check_ui(fleet: &Fleet, data: &Path) -> Result<()> {
    let screenshots = screenshot_folder()?;
    // The script makes one member hang with `crowsnest sim`.
    let environment = [("CROWSNEST_BINARY", binary()?.into_os_string()), ("CROWSNEST_DATA_DIR", data.into())];
    run_browser_script("quickstart", &[fleet.ui_url.as_ref(), screenshots.as_ref()], &environment).map(drop)
}

/// SIGTERM drains and exits 0; the second start has all data; deleting the template deletes its objects.
fn check_restart(fleet: Fleet, kubectl: &Path, data: &Path) -> Result<()> {
    let status = fleet.stop()?;
    assert!(status.success(), "stopped with {status}");
    let fleet = Fleet::start(data, &["--members", "3"])?;
    fleet.kubectl_until(kubectl, "member3", &["get", "pods", "-l", "app=web"], |out| {
        out.matches("Running").count() == 2
    })?;
    fleet.kubectl_ok(kubectl, "cp", &["delete", "deploy", "web"], "")?;
    fleet.kubectl_until(kubectl, "cp", &["get", "work", "-A", "-o", "name"], |out| !out.contains("web-"))?;
    for member in ["member1", "member2", "member3"] {
        fleet.kubectl_until(kubectl, member, &["get", "deploy,pods", "-o", "name"], |out| !out.contains("web"))?;
    }
    assert!(fleet.stop()?.success());
    Ok(())
}
