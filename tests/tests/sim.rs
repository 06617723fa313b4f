//! `crowsnest sim`: the effects of a member that is stopped, slow, without watches, or without a node.

use anyhow::{Context, Result, ensure};
use crowsnest_tests::{Fleet, Kubectl, wait_for};

const DEPLOYMENT: &str = include_str!("sim/web.yaml");
const REGISTRY: &str = include_str!("quickstart/registry.yaml");

#[test]
fn members_fail_and_recover() -> Result<()> {
    let dir = tempfile::tempdir()?;
    // Health windows are seconds instead of half a minute.
    let fleet = Fleet::start(&dir.path().join("data"), &["--profile", "conformance"])?;
    let Some(kubectl) = fleet.any_kubectl()? else { return Ok(()) };
    kubectl.run_ok(&["wait", "--for=condition=Ready", "cluster", "--all", "--timeout=240s"], "")?;
    kubectl.run_ok(&["apply", "-f", "-"], REGISTRY)?;
    kubectl.run_ok(&["apply", "-f", "-"], DEPLOYMENT)?;
    let via_fleet = format!("{}/apis/search.karmada.io/v1alpha1/proxying/karmada/proxy", fleet.server()?);
    let via_fleet = kubectl.with_flags(&["--server", &via_fleet]);
    via_fleet.run_until(&["get", "pods", "-l", "app=web"], |out| out.matches("Running").count() == 9)?;

    check_invalid_arguments(&fleet)?;
    check_stopped_member(&fleet, &kubectl, &via_fleet).with_context(|| fleet.log())?;
    check_slow_member(&fleet, &kubectl).with_context(|| fleet.log())?;
    check_other_faults(&fleet)?;
    check_dropped_watches(&fleet, &kubectl, &via_fleet).with_context(|| fleet.log())?;
    check_failed_node(&fleet, &kubectl).with_context(|| fleet.log())?;
    ensure!(fleet.stop()?.success());
    Ok(())
}

fn sim(fleet: &Fleet, args: &[&str]) -> Result<String> {
    let output = fleet.crowsnest(&[&["sim"], args].concat())?;
    ensure!(output.code == Some(0), "sim {args:?}: {output:?}");
    Ok(output.out)
}

fn check_invalid_arguments(fleet: &Fleet) -> Result<()> {
    let refusals: [(&[&str], &str); 6] = [
        (&["m9", "state"], "error: m9 is not a simulated member; simulated members: m1, m2, m3\n"),
        (&["m1", "fail-node", "nosuch"], "nosuch"),
        (&["m1", "stop", "soon"], "invalid value 'soon'"),
        (&["m1", "flap", "0"], "invalid value '0'"),
        (&["m1", "errors", "101"], "invalid value '101'"),
        (&["m1", "state", "--data-dir", "/nowhere"], "error: no data of `crowsnest up` found in /nowhere"),
    ];
    for (args, text) in refusals {
        let output = fleet.crowsnest(&[&["sim"], args].concat())?;
        ensure!(output.code != Some(0) && output.err.contains(text), "{args:?}: {output:?}");
    }
    Ok(())
}

fn wait_for_readiness(kubectl: &Kubectl, expected: &str) -> Result<()> {
    let path = "jsonpath={range .items[*]}{.status.conditions[?(@.type==\"Ready\")].status} {end}";
    kubectl.run_until(&["get", "clusters", "-o", path], |out| out.trim() == expected).map(drop)
}

/// The cluster of a stopped member is not ready, its cached objects are returned with a warning, and other members are
/// unaffected; then it recovers.
fn check_stopped_member(fleet: &Fleet, kubectl: &Kubectl, via_fleet: &Kubectl) -> Result<()> {
    let m2 = kubectl
        .with_flags(&["--server", &format!("{}/apis/cluster.karmada.io/v1alpha1/clusters/m2/proxy", fleet.server()?)]);
    let pod = m2.run_ok(&["get", "pods", "-l", "app=web", "-o", "jsonpath={.items[0].metadata.name}"], "")?;
    let follower = m2.stream(&["logs", "-f", &pod])?;
    let mut session = m2.stream(&["exec", "-i", &pod, "--", "sh", "-c", "echo there; cat"])?;
    session.expect("there\n")?;

    sim(fleet, &["m2", "stop"])?;
    follower.close_input().context("the log of a stopped member continues")?;
    session.wait_for_exit().context("a session in a stopped member continues")?;
    m2.expect_output(
        &["get", "--raw", "/apis/cluster.karmada.io/v1alpha1/clusters/m2/proxy/version"],
        "",
        1,
        "error trying to reach cluster m2",
    )?;
    wait_for_readiness(kubectl, "True False True")?;
    let described = kubectl.run_ok(&["describe", "cluster", "m2"], "")?;
    ensure!(described.contains("cluster is not reachable"), "{described}");
    ensure!(sim(fleet, &["m2", "state"])?.contains("\"reachable\": false"));

    let output = via_fleet.run(&["get", "pods", "-l", "app=web"], "")?;
    ensure!(output.out.matches("Running").count() == 9, "{output:?}");
    ensure!(output.err.contains("m2"), "the age of m2's objects is not reported: {output:?}");
    let mut found = None;
    wait_for("search to report that m2 is skipped", || {
        let output = fleet.crowsnest(&["search", "kind:pod label:app=web"])?;
        let is_reported = output.code == Some(5) && output.err.contains("warning: m2: ");
        let is_complete = output.out.matches("Running").count() == 9;
        found = Some(output);
        Ok(is_reported && is_complete)
    })
    .with_context(|| format!("{found:?}"))?;
    // A change in another member still arrives.
    kubectl.run_ok(&["scale", "deployment/web", "--replicas=4"], "")?;
    for member in ["m1", "m3"] {
        let member = kubectl.with_kubeconfig(&fleet.kubeconfig(member));
        member.run_until(&["get", "deploy", "web", "-o", "jsonpath={.status.readyReplicas}"], |out| out == "4")?;
    }
    sim(fleet, &["m2", "start"])?;
    wait_for_readiness(kubectl, "True True True")?;
    // Missed changes are delivered.
    via_fleet.run_until(&["get", "pods", "-l", "app=web"], |out| out.matches("Running").count() == 12)?;
    wait_for("search results to be complete", || {
        Ok(fleet.crowsnest(&["search", "kind:pod label:app=web"])?.code == Some(0))
    })?;
    // A stop with a duration ends by itself.
    sim(fleet, &["m2", "stop", "1"])?;
    wait_for("m2 to recover", || Ok(sim(fleet, &["m2", "state"])?.contains("\"reachable\": true")))
}

/// Requests to a slow member time out; requests to other members do not.
fn check_slow_member(fleet: &Fleet, kubectl: &Kubectl) -> Result<()> {
    sim(fleet, &["m1", "delay", "20000"])?;
    let version = |member: &str, timeout: &str| {
        let path = format!("/apis/cluster.karmada.io/v1alpha1/clusters/{member}/proxy/version");
        kubectl.run(&["get", "--raw", &path, timeout], "")
    };
    let (slow, fast) = (version("m1", "--request-timeout=1s")?, version("m3", "--request-timeout=20s")?);
    ensure!(slow.code == Some(1) && fast.code == Some(0), "{slow:?} {fast:?}");
    ensure!(sim(fleet, &["m1", "state"])?.contains("\"delayMilliseconds\": 20000"));
    sim(fleet, &["m1", "delay", "0"])?;
    let recovered = version("m1", "--request-timeout=20s")?;
    ensure!(recovered.code == Some(0), "{recovered:?}");
    wait_for_readiness(kubectl, "True True True")
}

/// Active faults are reported, and `sim start` ends them. Their effect on clients is tested with the members.
fn check_other_faults(fleet: &Fleet) -> Result<()> {
    for outage in [["partition", "600"], ["silence", "600"], ["flap", "1"]] {
        sim(fleet, &[&["m1"], outage.as_slice()].concat())?;
        wait_for(&format!("the outage {}", outage[0]), || {
            Ok(sim(fleet, &["m1", "state"])?.contains("\"reachable\": false"))
        })?;
    }
    sim(fleet, &["m1", "start"])?;
    ensure!(sim(fleet, &["m1", "state"])?.contains("\"reachable\": true"));
    sim(fleet, &["m1", "errors", "10"])?;
    sim(fleet, &["m1", "readyz", "503"])?;
    let state = sim(fleet, &["m1", "state"])?;
    ensure!(state.contains("\"errorPercent\": 10") && state.contains("\"readyz\": 503"), "{state}");
    sim(fleet, &["m1", "errors", "0"])?;
    sim(fleet, &["m1", "readyz"])?;
    ensure!(sim(fleet, &["m1", "state"])?.contains("\"readyz\": null"));
    Ok(())
}

/// A client's watch ends; the fleet-wide watches continue without loss.
fn check_dropped_watches(fleet: &Fleet, kubectl: &Kubectl, via_fleet: &Kubectl) -> Result<()> {
    let m3 = kubectl.with_kubeconfig(&fleet.kubeconfig("m3"));
    let mut watch = m3.stream(&["get", "pods", "-l", "app=web", "-w"])?;
    watch.expect("Running")?;
    sim(fleet, &["m3", "drop-watches"])?;
    watch.close_input().context("the watch continues")?;
    m3.run_ok(&["create", "deployment", "late", "--image=nginx:1.27"], "")?;
    via_fleet.run_until(&["get", "pods", "-l", "app=late"], |out| out.contains("Running")).map(drop)
}

/// The node is not ready and its pods are rescheduled; after recovery, it is as before.
fn check_failed_node(fleet: &Fleet, kubectl: &Kubectl) -> Result<()> {
    let m1 = kubectl.with_kubeconfig(&fleet.kubeconfig("m1"));
    let node = m1.run_ok(&["get", "pods", "-l", "app=web", "-o", "jsonpath={.items[0].spec.nodeName}"], "")?;
    let running =
        "jsonpath={range .items[?(@.status.phase==\"Running\")]}{.spec.nodeName} {.metadata.deletionTimestamp}|{end}";
    sim(fleet, &["m1", "fail-node", &node])?;
    m1.run_until(&["get", "node", &node], |out| out.contains("NotReady"))?;
    m1.run_until(&["get", "pods", "-l", "app=web", "-o", running], |out| {
        out.split('|').filter(|pod| pod.ends_with(' ') && !pod.starts_with(&node)).count() == 4
    })?;
    ensure!(sim(fleet, &["m1", "state"])?.contains("\"failed\": true"));
    // The control plane counts the remaining ones.
    let ready = "jsonpath={.status.nodeSummary.readyNum}";
    let nodes = m1.run_ok(&["get", "nodes", "-o", "name"], "")?.lines().count();
    kubectl.run_until(&["get", "cluster", "m1", "-o", ready], |out| out == (nodes - 1).to_string())?;
    sim(fleet, &["m1", "recover-node", &node])?;
    m1.run_until(&["get", "node", &node], |out| out.contains(" Ready"))?;
    m1.run_until(&["get", "pods", "-l", "app=web", "-o", "name"], |out| out.lines().count() == 4)?;
    kubectl.run_until(&["get", "cluster", "m1", "-o", ready], |out| out == nodes.to_string()).map(drop)
}
