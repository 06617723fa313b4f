//! Plans of objects other than templates: clusters with taints and labels, lost and deleted clusters, deleted policies,
//! quotas, rebalancers, dependencies; and of several templates that compete for capacity. Nothing is written.

use anyhow::{Context, Result, ensure};
use crowsnest_tests::{CommandOutput, Fleet, Kubectl};
use serde_json::Value;

const FLEET: &str = include_str!("plan/fleet.yaml");
const FLAGS: [&str; 6] = [
    "--members",
    "2",
    "--feature-gates=Failover=true,FederatedQuotaEnforcement=true",
    "--enable-no-execute-taint-eviction",
    "--allow-no-execute-taint-policy",
    "--plugins=*,-ClusterLocality",
];

#[test]
fn plans_have_no_effect() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let fleet = Fleet::start(&dir.path().join("data"), &FLAGS)?;
    let Some(kubectl) = fleet.any_kubectl()? else { return Ok(()) };
    wait_until_settled(&kubectl).with_context(|| fleet.log())?;
    let before = read_state(&kubectl)?;
    check_clusters(&fleet).with_context(|| fleet.log())?;
    check_lost_cluster(&kubectl).with_context(|| fleet.log())?;
    check_deletions(&fleet, &kubectl).with_context(|| fleet.log())?;
    check_competing_templates(&fleet).with_context(|| fleet.log())?;
    check_other_objects(&fleet).with_context(|| fleet.log())?;
    ensure!(read_state(&kubectl)? == before, "a plan has changed objects");
    ensure!(fleet.stop()?.success());
    Ok(())
}

fn wait_until_settled(kubectl: &Kubectl) -> Result<()> {
    kubectl.run_until(&["get", "clusters"], |out| out.matches(" True ").count() == 2)?;
    kubectl.run_ok(&["apply", "-f", "-"], FLEET)?;
    kubectl.run_until(&["get", "work", "-n", "karmada-es-member1"], |out| out.contains("notice-"))?;
    let ready = ["get", "deploy", "web", "-n", "shop", "-o", "jsonpath={.status.readyReplicas}"];
    kubectl.run_until(&ready, |out| out == "2").map(drop)
}

/// Objects that plans concern, without fields that change continuously.
fn read_state(kubectl: &Kubectl) -> Result<String> {
    let spec = "jsonpath={range .items[*]}{.kind}{.metadata.name}{.metadata.labels}{.spec}{end}";
    let mut all = kubectl.run_ok(&["get", "deploy,cm,pp,rb,federatedresourcequotas", "-n", "shop", "-o", spec], "")?;
    let taints = "jsonpath={range .items[*]}{.metadata.name}{.metadata.labels}{.spec.taints}{end}";
    all += &kubectl.run_ok(&["get", "clusters", "-o", taints], "")?;
    Ok(all + &kubectl.run_ok(&["get", "workloadrebalancers"], "")?)
}

fn fixture_path(file: &str) -> String {
    format!("{}/../tests/tests/plan/{file}", env!("CARGO_MANIFEST_DIR"))
}

/// Runs `crowsnest plan` for a fixture; it must exit with `code`.
fn run_plan(fleet: &Fleet, file: &str, extra_args: &[&str], code: i32) -> Result<CommandOutput> {
    let output = fleet.crowsnest(&[&["plan", "-f", &fixture_path(file)], extra_args].concat())?;
    ensure!(output.code == Some(code), "plan of {file} should exit with {code}: {output:?}");
    Ok(output)
}

fn expect_texts(output: &CommandOutput, texts: &[&str]) -> Result<()> {
    let all = format!("{}{}", output.out, output.err);
    let lines: Vec<String> = all.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    for text in texts {
        ensure!(lines.iter().any(|line| line.contains(text)), "{text:?} is not in {all}");
    }
    Ok(())
}

fn template<'v>(response: &'v Value, kind: &str, name: &str) -> Result<&'v Value> {
    let templates = response["status"]["templates"].as_array().into_iter().flatten();
    let mut found = templates.filter(|one| one["template"]["kind"] == kind && one["template"]["name"] == name);
    found.next().with_context(|| format!("no {kind} {name} in {response:#}"))
}

fn check_clusters(fleet: &Fleet) -> Result<()> {
    let output = run_plan(fleet, "taint.yaml", &["--brief"], 0)?;
    expect_texts(
        &output,
        &[
            "Cluster member1 would be changed",
            "member1 removed 1 -> 0 its taints are not tolerated; the copy is kept until it is replaced",
            "member2 changed 1 -> 2",
        ],
    )?;
    let output = run_plan(fleet, "label.yaml", &["--brief"], 0)?;
    expect_texts(
        &output,
        &[
            "# ConfigMap shop/notice",
            "member1 removed - cluster(s) did not match the placement cluster affinity constraint",
            // Replicas that are divided stay in place.
            "# Deployment shop/web",
            "member1 unchanged 1",
        ],
    )?;
    let output = run_plan(fleet, "label.yaml", &["--brief", "--delete"], 0)?;
    expect_texts(
        &output,
        &["Cluster member1 would be deleted", "member1 removed 1 -> 0 cluster member1 is being removed"],
    )?;
    let output = run_plan(fleet, "unknown.yaml", &[], 1)?;
    expect_texts(&output, &["the APIs and capacity of a cluster are unknown before it has joined"])
}

/// A lost cluster keeps its workloads, unless a ClusterTaintPolicy evicts from clusters that are not ready.
fn check_lost_cluster(kubectl: &Kubectl) -> Result<()> {
    let (lost, policy) = (fixture_path("lost.json"), fixture_path("taint-policy.yaml"));
    let plan = ["create", "--raw", "/apis/propagation.crowsnest.io/v1alpha1/plans", "-f", &lost];
    let cluster = |response: &str, name: &str| -> Result<Value> {
        let response: Value = serde_json::from_str(response)?;
        let clusters = template(&response, "Deployment", "web")?["clusters"].as_array().into_iter().flatten();
        let mut found = clusters.filter(|one| one["name"] == name);
        found.next().cloned().with_context(|| format!("no cluster {name} in {response:#}"))
    };
    let response = kubectl.run_ok(&plan, "")?;
    ensure!(response.contains("no ClusterTaintPolicy adds a NoExecute taint"), "{response}");
    ensure!(response.contains("cluster.karmada.io/not-ready"), "{response}");
    ensure!(cluster(&response, "member1")?["change"] == "Unchanged", "{response}");
    kubectl.run_ok(&["apply", "-f", &policy], "")?;
    let response = kubectl.run_until(&plan, |out| !out.contains("no ClusterTaintPolicy adds a NoExecute taint"))?;
    let (left, replaced) = (cluster(&response, "member1")?, cluster(&response, "member2")?);
    ensure!(left["change"] == "Removed" && left["replicasBefore"] == 1, "{left:#}");
    ensure!(replaced["change"] == "Changed" && replaced["replicas"] == 2, "{replaced:#}");
    kubectl.run_ok(&["delete", "-f", &policy], "").map(drop)
}

fn check_deletions(fleet: &Fleet, kubectl: &Kubectl) -> Result<()> {
    let output = run_plan(fleet, "policy.yaml", &["--delete"], 0)?;
    expect_texts(
        &output,
        &[
            "PropagationPolicy shop/workloads would be deleted",
            "follows no policy, previously PropagationPolicy shop/workloads",
            "member1 changed 1",
            "NoPolicy - no policy selects the template",
        ],
    )?;
    let output = run_plan(fleet, "web.yaml", &["--delete", "--fail-on-change"], 4)?;
    expect_texts(
        &output,
        &["Deployment shop/web would be deleted", "member1 removed 1 -> 0", "member2 removed 1 -> 0"],
    )?;
    let output = run_plan(fleet, "rebalancer.yaml", &["--delete"], 1)?;
    expect_texts(&output, &["workloadrebalancers.apps.karmada.io \"again\" not found"])?;
    // Deletion protection is checked.
    kubectl.run_ok(&["create", "namespace", "precious"], "")?;
    kubectl.run_ok(&["label", "namespace", "precious", "resourcetemplate.karmada.io/deletion-protected=Always"], "")?;
    let output = run_plan(fleet, "protected.yaml", &["--delete"], 1)?;
    expect_texts(&output, &["This resource is protected"])?;
    kubectl.run_ok(&["get", "namespace", "precious"], "").map(drop)
}

/// Capacity that the plan assigns to the first template is not available to the second.
fn check_competing_templates(fleet: &Fleet) -> Result<()> {
    let output = run_plan(fleet, "rivals.yaml", &["-o", "json"], 1)?;
    let response: Value = serde_json::from_str(&output.out)?;
    let (first, second) = (template(&response, "StatefulSet", "first")?, template(&response, "StatefulSet", "second")?);
    ensure!(first["clusters"][0]["replicas"] == 2, "{first:#}");
    ensure!(second["scheduling"]["decision"] == "Fail" && second["clusters"] == serde_json::json!([]), "{second:#}");
    let cluster = second["scheduling"]["terms"][0]["clusters"].as_array().into_iter().flatten();
    let estimates: Vec<&Value> = cluster.filter(|one| one["name"] == "member2").map(|one| &one["estimate"]).collect();
    ensure!(estimates.iter().all(|one| one["replicas"] == 1), "{second:#}");
    Ok(())
}

fn check_other_objects(fleet: &Fleet) -> Result<()> {
    let output = run_plan(fleet, "quota.yaml", &["--brief"], 0)?;
    expect_texts(
        &output,
        &[
            "FederatedResourceQuota shop/cpus would be created",
            "QuotaExceeded - FederatedResourceQuota(shop/cpus) exceeded for resource cpu: requested sum 400m, limit 150m.",
            "note: FederatedResourceQuota(shop/cpus) allows 150m of cpu, and 200m are used",
            "member1 changed 1",
        ],
    )?;
    let output = run_plan(fleet, "rebalancer.yaml", &["-o", "json"], 0)?;
    let response: Value = serde_json::from_str(&output.out)?;
    let web = template(&response, "Deployment", "web")?;
    ensure!(web["scheduling"]["trigger"] == "RescheduleRequested", "{web:#}");
    ensure!(
        response["status"]["notices"].to_string().contains("Deployment shop/nosuch has no binding"),
        "{response:#}"
    );
    // Dependencies are also planned, with the object that requires them.
    let output = run_plan(fleet, "along.yaml", &["-o", "json"], 0)?;
    let response: Value = serde_json::from_str(&output.out)?;
    let settings = template(&response, "ConfigMap", "web-settings")?;
    ensure!(settings["requiredBy"][0]["name"] == "web-deployment" && settings["change"] == "Added", "{settings:#}");
    let clusters = settings["clusters"].as_array().context("the settings have no clusters")?;
    ensure!(clusters.len() == 2 && clusters.iter().all(|one| one["replicas"].is_null()), "{settings:#}");
    expect_texts(
        &run_plan(fleet, "along.yaml", &["--brief"], 0)?,
        &["dependency of ResourceBinding shop/web-deployment"],
    )
}
