//! A MultiClusterService on the real binary: endpoints of one cluster are propagated to another under the Service's
//! name, follow changes, and are deleted with the MultiClusterService. A MultiClusterIngress reports the locations of
//! its services.

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
fn propagated_addresses(out: &str) -> Vec<String> {
    let lines = out.lines().filter(|line| line.starts_with("m1-"));
    lines.flat_map(|line| line.split_whitespace().skip(1)).map(str::to_owned).collect()
}

#[test]
fn endpoints_of_one_cluster_are_used_in_another() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let fleet = Fleet::start(&dir.path().join("data"), &["--profile", "conformance"])?;
    let Some(kubectl) = fleet.any_kubectl()? else { return Ok(()) };
    kubectl.run_ok(&["apply", "-f", "-"], SPANNING)?;
    let (provider, consumer) =
        (kubectl.with_kubeconfig(&fleet.kubeconfig("m1")), kubectl.with_kubeconfig(&fleet.kubeconfig("m2")));
    consumer.run_until(&SLICES, |out| propagated_addresses(out).len() == 2)?;
    let conditions = ["get", "mcs", "web", "-n", "shop", "-o=jsonpath={.status.conditions[*].reason}"];
    kubectl.run_until(&conditions, |out| out == "ServiceAppliedSucceed EndpointSliceDispatchedSucceed")?;

    // New endpoints are propagated.
    kubectl.run_ok(&["scale", "deployment", "web", "-n", "shop", "--replicas=3"], "")?;
    let consumer_slices = consumer.run_until(&SLICES, |out| propagated_addresses(out).len() == 3)?;
    let provider_slices = provider.run_ok(&SLICES, "")?;
    ensure!(
        propagated_addresses(&consumer_slices).iter().all(|address| provider_slices.contains(address)),
        "{consumer_slices} are not in {provider_slices}"
    );

    // A load balancer reads the serving and the unavailable clusters.
    kubectl.run_ok(&["apply", "-f", "-"], INGRESS)?;
    let status = ["get", "multiclusteringress", "shop", "-n", "shop", "-o=jsonpath={.status}"];
    let locations = r#""serviceLocations":[{"clusters":["m1"],"name":"web"}]"#;
    kubectl.run_until(&status, |out| out.contains(locations) && out.contains(r#""trafficBlockClusters":["m1"]"#))?;
    kubectl.run_ok(&["delete", "remedy", "no-traffic"], "")?;
    kubectl.run_until(&status, |out| out.contains(locations) && !out.contains("trafficBlockClusters"))?;

    kubectl.run_ok(&["delete", "mcs", "web", "-n", "shop", "--timeout=240s"], "")?;
    consumer.run_until(&SLICES, |out| propagated_addresses(out).is_empty())?;
    let works = ["get", "works", "-A", "-l", "multiclusterservice.karmada.io/name=web", "-o", "name"];
    kubectl.run_until(&works, str::is_empty)?;
    let labels = kubectl.run_ok(&["get", "service", "web", "-n", "shop", "-o=jsonpath={.metadata.labels}"], "")?;
    ensure!(labels.is_empty(), "the Service still has the labels {labels}");
    ensure!(fleet.stop()?.success());
    Ok(())
}
