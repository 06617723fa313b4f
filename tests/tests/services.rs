//! A MultiClusterService on the real binary: endpoints of one cluster are propagated to another under the Service's name, follow
//! changes, and are deleted with the MultiClusterService. A MultiClusterIngress reports the locations of its services.

use anyhow::{Result, ensure};
use crowsnest_tests::Fleet;

const SPANNING: &str = include_str!("services/spanning.yaml");
const INGRESS: &str = include_str!("services/ingress.yaml");
const SLICES: [&str; 7] = [
    "get",
    "endpointslices",
    "-n",
    "shop",
    "-l",
    "kubernetes.io/service-name=web",
    "-o=jsonpath={range .items[*]}{.metadata.name} {.endpoints[*].addresses[0]}{\"\\n\"}{end}",
];

/// Addresses of the propagated EndpointSlices.
fn brought(out: &str) -> Vec<String> {
    let lines = out.lines().filter(|line| line.starts_with("m1-"));
    lines.flat_map(|line| line.split_whitespace().skip(1)).map(str::to_owned).collect()
}

#[test]
fn endpoints_of_one_cluster_are_used_in_another() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let fleet = Fleet::start(&dir.path().join("data"), &["--profile", "conformance"])?;
    let Some(kubectl) = fleet.any_kubectl()? else { return Ok(()) };
    kubectl.ok(&["apply", "-f", "-"], SPANNING)?;
    let (provider, consumer) = (kubectl.on(&fleet.kubeconfig("m1")), kubectl.on(&fleet.kubeconfig("m2")));
    consumer.until(&SLICES, |out| brought(out).len() == 2)?;
    let conditions = ["get", "mcs", "web", "-n", "shop", "-o=jsonpath={.status.conditions[*].reason}"];
    kubectl.until(&conditions, |out| out == "ServiceAppliedSucceed EndpointSliceDispatchedSucceed")?;

    // New endpoints are propagated.
    kubectl.ok(&["scale", "deployment", "web", "-n", "shop", "--replicas=3"], "")?;
    let there = consumer.until(&SLICES, |out| brought(out).len() == 3)?;
    let home = provider.ok(&SLICES, "")?;
    ensure!(brought(&there).iter().all(|address| home.contains(address)), "{there} is not {home}");

    // A load balancer reads the serving and the unavailable clusters.
    kubectl.ok(&["apply", "-f", "-"], INGRESS)?;
    let status = ["get", "multiclusteringress", "shop", "-n", "shop", "-o=jsonpath={.status}"];
    let located = r#""serviceLocations":[{"clusters":["m1"],"name":"web"}]"#;
    kubectl.until(&status, |out| out.contains(located) && out.contains(r#""trafficBlockClusters":["m1"]"#))?;
    kubectl.ok(&["delete", "remedy", "no-traffic"], "")?;
    kubectl.until(&status, |out| out.contains(located) && !out.contains("trafficBlockClusters"))?;

    kubectl.ok(&["delete", "mcs", "web", "-n", "shop", "--timeout=30s"], "")?;
    consumer.until(&SLICES, |out| brought(out).is_empty())?;
    let works = ["get", "works", "-A", "-l", "multiclusterservice.karmada.io/name=web", "-o", "name"];
    kubectl.until(&works, str::is_empty)?;
    let labels = kubectl.ok(&["get", "service", "web", "-n", "shop", "-o=jsonpath={.metadata.labels}"], "")?;
    ensure!(labels.is_empty(), "the Service is claimed still: {labels}");
    ensure!(fleet.stop()?.success());
    Ok(())
}
