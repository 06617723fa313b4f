//! `crowsnest sim`: the effects of a member that is stopped, slow, without watches, or without a node.

use anyhow::{Context, Result, ensure};
use crowsnest_tests::{Fleet, Kubectl, until};

const PODS: &str = include_str!("sim/web.yaml");
const REGISTRY: &str = include_str!("quickstart/registry.yaml");

#[test]
fn members_fail_and_recover() -> Result<()> {
    let dir = tempfile::tempdir()?;
    // Health windows are seconds instead of half a minute.
    let fleet = Fleet::start(&dir.path().join("data"), &["--profile", "conformance"])?;
    let Some(kubectl) = fleet.any_kubectl()? else { return Ok(()) };
    kubectl.ok(&["wait", "--for=condition=Ready", "cluster", "--all", "--timeout=60s"], "")?;
    kubectl.ok(&["apply", "-f", "-"], REGISTRY)?;
    kubectl.ok(&["apply", "-f", "-"], PODS)?;
    let everywhere = format!("{}/apis/search.karmada.io/v1alpha1/proxying/karmada/proxy", fleet.server()?);
    let everywhere = kubectl.with(&["--server", &everywhere]);
    everywhere.until(&["get", "pods", "-l", "app=web"], |out| out.matches("Running").count() == 9)?;

    refuses_unknown_members(&fleet)?;
    a_stopped_member(&fleet, &kubectl, &everywhere).with_context(|| fleet.log())?;
    a_slow_member(&fleet, &kubectl).with_context(|| fleet.log())?;
    other_outages(&fleet)?;
    dropped_watches(&fleet, &kubectl, &everywhere).with_context(|| fleet.log())?;
    a_lost_node(&fleet, &kubectl).with_context(|| fleet.log())?;
    ensure!(fleet.stop()?.success());
    Ok(())
}

fn sim(fleet: &Fleet, args: &[&str]) -> Result<String> {
    let output = fleet.crowsnest(&[&["sim"], args].concat())?;
    ensure!(output.code == Some(0), "sim {args:?}: {output:?}");
    Ok(output.out)
}

fn refuses_unknown_members(fleet: &Fleet) -> Result<()> {
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

fn ready(kubectl: &Kubectl, wanted: &str) -> Result<()> {
    let path = "jsonpath={range .items[*]}{.status.conditions[?(@.type==\"Ready\")].status} {end}";
    kubectl.until(&["get", "clusters", "-o", path], |out| out.trim() == wanted).map(drop)
}

/// Its cluster is not ready, its cached objects are returned and marked, other members are unaffected; then it recovers.
fn a_stopped_member(fleet: &Fleet, kubectl: &Kubectl, everywhere: &Kubectl) -> Result<()> {
    let m2 =
        kubectl.with(&["--server", &format!("{}/apis/cluster.karmada.io/v1alpha1/clusters/m2/proxy", fleet.server()?)]);
    let pod = m2.ok(&["get", "pods", "-l", "app=web", "-o", "jsonpath={.items[0].metadata.name}"], "")?;
    let follower = m2.stream(&["logs", "-f", &pod])?;
    let mut session = m2.stream(&["exec", "-i", &pod, "--", "sh", "-c", "echo there; cat"])?;
    session.expect("there\n")?;

    sim(fleet, &["m2", "stop"])?;
    follower.end().context("the log of a stopped member continues")?;
    session.cut_off().context("a session in a stopped member continues")?;
    m2.expect_output(
        &["get", "--raw", "/apis/cluster.karmada.io/v1alpha1/clusters/m2/proxy/version"],
        "",
        1,
        "error trying to reach cluster m2",
    )?;
    ready(kubectl, "True False True")?;
    let described = kubectl.ok(&["describe", "cluster", "m2"], "")?;
    ensure!(described.contains("cluster is not reachable"), "{described}");
    ensure!(sim(fleet, &["m2", "state"])?.contains("\"reachable\": false"));

    let output = everywhere.run(&["get", "pods", "-l", "app=web"], "")?;
    ensure!(output.out.matches("Running").count() == 9, "{output:?}");
    ensure!(output.err.contains("m2"), "the age of m2 is not reported: {output:?}");
    let mut found = None;
    until("search to report that m2 is left out", || {
        let output = fleet.crowsnest(&["search", "kind:pod label:app=web"])?;
        let is_reported = output.code == Some(5) && output.err.contains("warning: m2: ");
        let whole = output.out.matches("Running").count() == 9;
        found = Some(output);
        Ok(is_reported && whole)
    })
    .with_context(|| format!("{found:?}"))?;
    // A change in another member still arrives.
    kubectl.ok(&["scale", "deployment/web", "--replicas=4"], "")?;
    for member in ["m1", "m3"] {
        let member = kubectl.on(&fleet.kubeconfig(member));
        member.until(&["get", "deploy", "web", "-o", "jsonpath={.status.readyReplicas}"], |out| out == "4")?;
    }
    sim(fleet, &["m2", "start"])?;
    ready(kubectl, "True True True")?;
    // Missed changes are delivered.
    everywhere.until(&["get", "pods", "-l", "app=web"], |out| out.matches("Running").count() == 12)?;
    until("search to be whole", || Ok(fleet.crowsnest(&["search", "kind:pod label:app=web"])?.code == Some(0)))?;
    // Also after the time.
    sim(fleet, &["m2", "stop", "1"])?;
    until("m2 to recover", || Ok(sim(fleet, &["m2", "state"])?.contains("\"reachable\": true")))
}

/// Requests to it are slow; those to others and to the cache are not.
fn a_slow_member(fleet: &Fleet, kubectl: &Kubectl) -> Result<()> {
    sim(fleet, &["m1", "delay", "20000"])?;
    let version = |member: &str, timeout: &str| {
        let path = format!("/apis/cluster.karmada.io/v1alpha1/clusters/{member}/proxy/version");
        kubectl.run(&["get", "--raw", &path, timeout], "")
    };
    let (slow, quick) = (version("m1", "--request-timeout=1s")?, version("m3", "--request-timeout=20s")?);
    ensure!(slow.code == Some(1) && quick.code == Some(0), "{slow:?} {quick:?}");
    ensure!(sim(fleet, &["m1", "state"])?.contains("\"delayMilliseconds\": 20000"));
    sim(fleet, &["m1", "delay", "0"])?;
    let mended = version("m1", "--request-timeout=20s")?;
    ensure!(mended.code == Some(0), "{mended:?}");
    ready(kubectl, "True True True")
}

/// Active faults are reported, and end with a start. Their effect on clients is tested with the members.
fn other_outages(fleet: &Fleet) -> Result<()> {
    for outage in [["partition", "600"], ["silence", "600"], ["flap", "1"]] {
        sim(fleet, &[&["m1"], outage.as_slice()].concat())?;
        until(outage[0], || Ok(sim(fleet, &["m1", "state"])?.contains("\"reachable\": false")))?;
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
fn dropped_watches(fleet: &Fleet, kubectl: &Kubectl, everywhere: &Kubectl) -> Result<()> {
    let m3 = kubectl.on(&fleet.kubeconfig("m3"));
    let mut watch = m3.stream(&["get", "pods", "-l", "app=web", "-w"])?;
    watch.expect("Running")?;
    sim(fleet, &["m3", "drop-watches"])?;
    watch.end().context("the watch continues")?;
    m3.ok(&["create", "deployment", "late", "--image=nginx:1.27"], "")?;
    everywhere.until(&["get", "pods", "-l", "app=late"], |out| out.contains("Running")).map(drop)
}

/// The node is not ready and its pods are rescheduled; after recovery, it is as before.
fn a_lost_node(fleet: &Fleet, kubectl: &Kubectl) -> Result<()> {
    let m1 = kubectl.on(&fleet.kubeconfig("m1"));
    let node = m1.ok(&["get", "pods", "-l", "app=web", "-o", "jsonpath={.items[0].spec.nodeName}"], "")?;
    let running =
        "jsonpath={range .items[?(@.status.phase==\"Running\")]}{.spec.nodeName} {.metadata.deletionTimestamp}|{end}";
    sim(fleet, &["m1", "fail-node", &node])?;
    m1.until(&["get", "node", &node], |out| out.contains("NotReady"))?;
    m1.until(&["get", "pods", "-l", "app=web", "-o", running], |out| {
        out.split('|').filter(|pod| pod.ends_with(' ') && !pod.starts_with(&node)).count() == 4
    })?;
    ensure!(sim(fleet, &["m1", "state"])?.contains("\"failed\": true"));
    // The control plane counts the remaining ones.
    let ready = "jsonpath={.status.nodeSummary.readyNum}";
    let nodes = m1.ok(&["get", "nodes", "-o", "name"], "")?.lines().count();
    kubectl.until(&["get", "cluster", "m1", "-o", ready], |out| out == (nodes - 1).to_string())?;
    sim(fleet, &["m1", "recover-node", &node])?;
    m1.until(&["get", "node", &node], |out| out.contains(" Ready"))?;
    m1.until(&["get", "pods", "-l", "app=web", "-o", "name"], |out| out.lines().count() == 4)?;
    kubectl.until(&["get", "cluster", "m1", "-o", ready], |out| out == nodes.to_string()).map(drop)
}
