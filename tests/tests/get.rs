//! `crowsnest get` with two members, as one cluster and per member, and the other commands that accept `TYPE/NAME`:
//! `exec` and `logs`.

use anyhow::{Context, Result, ensure};
use crowsnest_tests::{CommandOutput, Fleet, Kubectl, expect_output, wait_for_output, words};
use serde_json::Value;

const REGISTRY: &str = include_str!("get/fleet.yaml");
const WEB: &str = include_str!("get/web.yaml");
const POD: &str = include_str!("proxies/web.yaml");
const WIDGETS: &str = include_str!("get/widgets.yaml");
const WIDGET: &str = "apiVersion: example.io/v1\nkind: Widget\nmetadata: {name: big}\nspec: {size: 7}\n";
const MEMBERS: [&str; 2] = ["member1", "member2"];
const CACHED_FROM: &str = "resource.karmada.io/cached-from-cluster";

#[test]
fn objects_of_the_fleet_are_shown() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let fleet = Fleet::start(&dir.path().join("data"), &["--members", "2"])?;
    let Some(kubectl) = fleet.any_kubectl()? else { return Ok(()) };
    let members = MEMBERS.map(|member| kubectl.with_kubeconfig(&fleet.kubeconfig(member)));
    for member in &members {
        member.run_ok(&["apply", "-f", "-"], &POD.replace("NAME", "both"))?;
        member.run_ok(&["apply", "-f", "-"], &WEB.replace("NAME", "web"))?;
    }
    members[1].run_ok(&["apply", "-f", "-"], &POD.replace("NAME", "lone"))?;
    members[1].run_ok(&["apply", "-f", "-"], &WEB.replace("NAME", "shop"))?;
    // Without a ResourceRegistry.
    check_list_of_pods(&fleet).with_context(|| fleet.log())?;
    kubectl.run_ok(&["apply", "-f", "-"], REGISTRY)?;
    check_ambiguous_names(&fleet).with_context(|| fleet.log())?;
    check_output_formats(&fleet).with_context(|| fleet.log())?;
    check_other_kinds(&fleet, &members[1]).with_context(|| fleet.log())?;
    check_workloads(&fleet).with_context(|| fleet.log())?;
    check_watch(&fleet, &members[0]).with_context(|| fleet.log())?;
    check_unavailable_member(&fleet).with_context(|| fleet.log())?;
    ensure!(fleet.stop()?.success());
    Ok(())
}

/// Name and cluster of each row.
fn rows(out: &str) -> Vec<(&str, &str)> {
    let words = out.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>());
    words.filter_map(|words| Some((*words.first()?, *words.get(1)?))).collect()
}

fn check_list_of_pods(fleet: &Fleet) -> Result<()> {
    let all = [("both", "member1"), ("both", "member2"), ("lone", "member2")];
    let has = |output: &CommandOutput| all.iter().all(|row| rows(&output.out).contains(row));
    // Requests fail until the RBAC objects for impersonation exist in the members.
    let output = wait_for_output(fleet, &words("get pods"), |output| {
        output.code == Some(0) && has(output) && !output.out.contains("Pending")
    })?;
    let head: Vec<&str> = output.out.lines().next().unwrap_or_default().split_whitespace().collect();
    ensure!(head == ["NAME", "CLUSTER", "READY", "STATUS", "RESTARTS", "AGE"] && output.err.is_empty(), "{output:?}");
    let is_lone = |output: &CommandOutput| output.out.starts_with("default   lone   member2   1/1   ");
    wait_for_output(fleet, &words("get po -A --clusters member2 --no-headers -l app=lone"), is_lone)?;
    expect_output(fleet, &words("get pods -o wide --cluster member1"), 0, "member1-node-")?;
    expect_output(fleet, &words("get pods --cluster nosuch"), 1, "clusters.cluster.karmada.io \"nosuch\" not found")?;
    expect_output(fleet, &words("get nosuch"), 1, "no server has a resource type \"nosuch\"")?;
    let output = expect_output(fleet, &words("get pods -n empty"), 0, "No resources found in empty namespace.")?;
    ensure!(output.out.is_empty(), "{output:?}");
    Ok(())
}

/// A name that exists in several clusters requires `--cluster` or `--clusters`.
fn check_ambiguous_names(fleet: &Fleet) -> Result<()> {
    // Both sources have the object: the members at first, the cache as soon as it contains the resource.
    let choose = "choose one with --cluster, or all of them with --clusters all";
    let output = wait_for_output(fleet, &words("get pod both"), |output| {
        output.err.contains("ambiguous objects in clusters [member1, member2]")
    })?;
    ensure!(output.code == Some(1) && output.err.contains(choose), "{output:?}");
    expect_output(
        fleet,
        &words("get deploy web"),
        1,
        "deployments.apps \"web\" is in clusters [member1, member2]; choose one",
    )?;
    let output = expect_output(fleet, &words("get pod both --cluster member2"), 0, "Running")?;
    ensure!(rows(&output.out) == [("both", "member2")], "{output:?}");
    let output = expect_output(fleet, &words("get pod both --clusters all"), 0, "Running")?;
    ensure!(rows(&output.out) == [("both", "member1"), ("both", "member2")], "{output:?}");
    let output = expect_output(fleet, &words("get pod/lone"), 0, "Running")?;
    ensure!(rows(&output.out) == [("lone", "member2")], "{output:?}");
    expect_output(
        fleet,
        &words("get pod nosuch"),
        1,
        "pods \"nosuch\" not found; `crowsnest search 'name:=nosuch'` finds the clusters that have it\n",
    )?;
    let output = expect_output(fleet, &words("get pod nosuch --ignore-not-found"), 0, "")?;
    ensure!(output.out.is_empty() && output.err.is_empty(), "{output:?}");
    Ok(())
}

fn check_output_formats(fleet: &Fleet) -> Result<()> {
    for scope in ["", " --clusters all"] {
        let output = expect_output(fleet, &words(&format!("get pods -l app=both -o json{scope}")), 0, "")?;
        let list: Value = serde_json::from_str(&output.out)?;
        let clusters: Vec<&str> = list["items"]
            .as_array()
            .context("the list has no items")?
            .iter()
            .filter_map(|item| item["metadata"]["annotations"][CACHED_FROM].as_str())
            .collect();
        ensure!(list["kind"] == "List" && clusters == MEMBERS, "{output:?}");
        ensure!(list["items"][0]["kind"] == "Pod" && list["items"][0]["apiVersion"] == "v1", "{output:?}");
        let output = expect_output(fleet, &words(&format!("get pods -l app=both -o name{scope}")), 0, "")?;
        ensure!(output.out == "member1/default/pods/both\nmember2/default/pods/both\n", "{output:?}");
        let output = expect_output(fleet, &words(&format!("get pod lone -o yaml{scope}")), 0, "kind: Pod\n")?;
        ensure!(output.out.contains(&format!("{CACHED_FROM}: member2\n")), "{output:?}");
    }
    Ok(())
}

/// Printed columns of the members, and a kind that only one of them serves.
fn check_other_kinds(fleet: &Fleet, member2: &Kubectl) -> Result<()> {
    let output = expect_output(fleet, &words("get deployments.apps"), 0, "AVAILABLE")?;
    ensure!(rows(&output.out) == [("web", "member1"), ("shop", "member2"), ("web", "member2")], "{output:?}");
    member2.run_ok(&["apply", "-f", "-"], WIDGETS)?;
    member2.run_until(&["get", "widgets"], |_| true)?;
    member2.run_ok(&["apply", "-f", "-"], WIDGET)?;
    let output = wait_for_output(fleet, &words("get wd"), |output| output.code == Some(0))?;
    let cells = words(&output.out);
    ensure!(cells == ["NAME", "CLUSTER", "SIZE", "big", "member2", "7"] && output.err.is_empty(), "{output:?}");
    expect_output(fleet, &words("get nodes"), 0, "member2-node-1")?;
    Ok(())
}

fn check_workloads(fleet: &Fleet) -> Result<()> {
    let ready = |output: &CommandOutput| output.out.contains(" 1/1 ");
    wait_for_output(fleet, &words("get deploy shop"), ready)?;
    for workload in ["deploy/shop", "svc/shop", "deployments.apps/shop"] {
        let output = wait_for_output(fleet, &words(&format!("exec {workload} -- sh -c hostname")), |output| {
            output.code == Some(0)
        })?;
        ensure!(output.out.starts_with("shop-"), "{output:?}");
    }
    let output = expect_output(
        fleet,
        &words("exec deploy/web -- ls"),
        1,
        "deployment default/web is in several clusters; choose one",
    )?;
    ensure!(output.err.contains("(member1, member2)"), "{output:?}");
    wait_for_output(fleet, &words("exec --cluster member1 deploy/web -c side -- true"), |output| {
        output.code == Some(0)
    })?;
    expect_output(fleet, &words("exec cm/web -- ls"), 1, "cannot find the pods of a \"cm\"")?;
    expect_output(
        fleet,
        &words("exec deploy/nosuch -- ls"),
        1,
        "no cluster has deployment default/nosuch that you can read",
    )?;
    for (workload, clusters) in [("deploy/web", &MEMBERS[..]), ("svc/shop", &MEMBERS[1..])] {
        let line = format!("logs {workload} -n default -c nginx --tail 1");
        let is_complete = |output: &CommandOutput| {
            let mut listed: Vec<&str> = output.out.lines().filter_map(|line| line.split(' ').next()).collect();
            listed.sort_unstable();
            output.code == Some(0) && listed == clusters
        };
        wait_for_output(fleet, &words(&line), is_complete)?;
    }
    Ok(())
}

fn check_watch(fleet: &Fleet, member1: &Kubectl) -> Result<()> {
    for scope in [&["--clusters", "all"][..], &[]] {
        let args = [&["get", "pods", "-w"][..], scope].concat();
        let mut watch = fleet.crowsnest_stream(&args)?;
        watch.expect("NAME ")?;
        watch.expect("lone")?;
        let name = if scope.is_empty() { "late-1" } else { "late-2" };
        member1.run_ok(&["apply", "-f", "-"], &POD.replace("NAME", name))?;
        watch.expect(&format!("\n{name}"))?;
        watch.expect("member1")?;
        watch.expect("Running")?;
    }
    Ok(())
}

fn check_unavailable_member(fleet: &Fleet) -> Result<()> {
    expect_output(fleet, &words("sim member1 stop"), 0, "")?;
    let output = wait_for_output(fleet, &words("get pods --clusters all"), |output| output.code == Some(5))?;
    ensure!(
        output.err.contains("warning: member1: ") && rows(&output.out).iter().all(|(_, of)| *of == "member2"),
        "{output:?}"
    );
    expect_output(fleet, &words("get pods --clusters all --allow-partial"), 0, "lone")?;
    expect_output(fleet, &words("get pods --cluster member1"), 1, "error: ")?;
    expect_output(
        fleet,
        &words("get pod nosuch --clusters all"),
        1,
        "finds the clusters that have it; results from member1",
    )?;
    // Without --clusters, the cached objects of the stopped member are shown with their age.
    let output = wait_for_output(fleet, &words("get pods"), |output| output.code == Some(5))?;
    ensure!(output.err.contains("warning: cluster member1 is shown as of "), "{output:?}");
    ensure!(rows(&output.out).contains(&("both", "member1")), "{output:?}");
    expect_output(fleet, &words("sim member1 start"), 0, "")?;
    Ok(())
}
