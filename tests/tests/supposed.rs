//! `crowsnest plan` of objects other than templates: clusters with taints and labels, deleted clusters and policies, quotas, rebalancers,
//! dependencies; and of several templates that compete for capacity. Nothing is written.

use anyhow::{Context, Result, ensure};
use crowsnest_tests::{CommandOutput, Fleet, Kubectl};
use serde_json::Value;

const FLEET: &str = include_str!("supposed/fleet.yaml");
const UP: [&str; 5] = [
    "--members",
    "2",
    "--feature-gates=Failover=true,FederatedQuotaEnforcement=true",
    "--enable-no-execute-taint-eviction",
    "--plugins=*,-ClusterLocality",
];

#[test]
fn plans_have_no_effect() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let fleet = Fleet::start(&dir.path().join("data"), &UP)?;
    let Some(kubectl) = fleet.any_kubectl()? else { return Ok(()) };
    settle(&kubectl).with_context(|| fleet.log())?;
    let before = stored(&kubectl)?;
    clusters(&fleet).with_context(|| fleet.log())?;
    deletions(&fleet, &kubectl).with_context(|| fleet.log())?;
    rivals(&fleet).with_context(|| fleet.log())?;
    others(&fleet).with_context(|| fleet.log())?;
    ensure!(stored(&kubectl)? == before, "a plan has changed something");
    ensure!(fleet.stop()?.success());
    Ok(())
}

fn settle(kubectl: &Kubectl) -> Result<()> {
    kubectl.until(&["get", "clusters"], |out| out.matches(" True ").count() == 2)?;
    kubectl.ok(&["apply", "-f", "-"], FLEET)?;
    kubectl.until(&["get", "work", "-n", "karmada-es-member1"], |out| out.contains("notice-"))?;
    let ready = ["get", "deploy", "web", "-n", "shop", "-o", "jsonpath={.status.readyReplicas}"];
    kubectl.until(&ready, |out| out == "2").map(drop)
}

/// Objects that plans concern, without fields that change continuously.
fn stored(kubectl: &Kubectl) -> Result<String> {
    let spec = "jsonpath={range .items[*]}{.kind}{.metadata.name}{.metadata.labels}{.spec}{end}";
    let mut all = kubectl.ok(&["get", "deploy,cm,pp,rb,federatedresourcequotas", "-n", "shop", "-o", spec], "")?;
    let taints = "jsonpath={range .items[*]}{.metadata.name}{.metadata.labels}{.spec.taints}{end}";
    all += &kubectl.ok(&["get", "clusters", "-o", taints], "")?;
    Ok(all + &kubectl.ok(&["get", "workloadrebalancers"], "")?)
}

/// `plan` of a fixture, with additional flags.
fn planned(fleet: &Fleet, file: &str, more: &[&str], code: i32) -> Result<CommandOutput> {
    let path = format!("{}/../tests/tests/supposed/{file}", env!("CARGO_MANIFEST_DIR"));
    let output = fleet.crowsnest(&[&["plan", "-f", &path], more].concat())?;
    ensure!(output.code == Some(code), "plan of {file} should exit with {code}: {output:?}");
    Ok(output)
}

fn expect_texts(output: &CommandOutput, texts: &[&str]) -> Result<()> {
    let all = format!("{}{}", output.out, output.err);
    let words: Vec<String> = all.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    for text in texts {
        ensure!(words.iter().any(|line| line.contains(text)), "{text:?} is not in {all}");
    }
    Ok(())
}

fn template<'v>(response: &'v Value, kind: &str, name: &str) -> Result<&'v Value> {
    let templates = response["status"]["templates"].as_array().into_iter().flatten();
    let mut found = templates.filter(|one| one["template"]["kind"] == kind && one["template"]["name"] == name);
    found.next().with_context(|| format!("no {kind} {name} in {response:#}"))
}

fn clusters(fleet: &Fleet) -> Result<()> {
    let output = planned(fleet, "taint.yaml", &["--brief"], 0)?;
    expect_texts(
        &output,
        &[
            "Cluster member1 would be changed",
            "member1 removed 1 -> 0 its taints are not tolerated; the copy is kept until it is replaced",
            "member2 changed 1 -> 2",
        ],
    )?;
    let output = planned(fleet, "label.yaml", &["--brief"], 0)?;
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
    let output = planned(fleet, "label.yaml", &["--brief", "--delete"], 0)?;
    expect_texts(
        &output,
        &["Cluster member1 would be deleted", "member1 removed 1 -> 0 cluster member1 is being removed"],
    )?;
    let output = planned(fleet, "unknown.yaml", &[], 1)?;
    expect_texts(&output, &["the APIs and capacity of a cluster are unknown before it has joined"])
}

fn deletions(fleet: &Fleet, kubectl: &Kubectl) -> Result<()> {
    let output = planned(fleet, "policy.yaml", &["--delete"], 0)?;
    expect_texts(
        &output,
        &[
            "PropagationPolicy shop/workloads would be deleted",
            "follows no policy, previously PropagationPolicy shop/workloads",
            "member1 changed 1",
            "NoPolicy - no policy selects the template",
        ],
    )?;
    let output = planned(fleet, "web.yaml", &["--delete", "--fail-on-change"], 4)?;
    expect_texts(
        &output,
        &["Deployment shop/web would be deleted", "member1 removed 1 -> 0", "member2 removed 1 -> 0"],
    )?;
    let output = planned(fleet, "rebalancer.yaml", &["--delete"], 1)?;
    expect_texts(&output, &["workloadrebalancers.apps.karmada.io \"again\" not found"])?;
    // Deletion protection is checked.
    kubectl.ok(&["create", "namespace", "precious"], "")?;
    kubectl.ok(&["label", "namespace", "precious", "resourcetemplate.karmada.io/deletion-protected=Always"], "")?;
    let output = planned(fleet, "protected.yaml", &["--delete"], 1)?;
    expect_texts(&output, &["This resource is protected"])?;
    kubectl.ok(&["get", "namespace", "precious"], "").map(drop)
}

/// Capacity assigned to the first is not available to the second.
fn rivals(fleet: &Fleet) -> Result<()> {
    let output = planned(fleet, "rivals.yaml", &["-o", "json"], 1)?;
    let response: Value = serde_json::from_str(&output.out)?;
    let (first, second) = (template(&response, "StatefulSet", "first")?, template(&response, "StatefulSet", "second")?);
    ensure!(first["clusters"][0]["replicas"] == 2, "{first:#}");
    ensure!(second["scheduling"]["decision"] == "Fail" && second["clusters"] == serde_json::json!([]), "{second:#}");
    let cluster = second["scheduling"]["terms"][0]["clusters"].as_array().into_iter().flatten();
    let estimates: Vec<&Value> = cluster.filter(|one| one["name"] == "member2").map(|one| &one["estimate"]).collect();
    ensure!(estimates.iter().all(|one| one["replicas"] == 1), "{second:#}");
    Ok(())
}

fn others(fleet: &Fleet) -> Result<()> {
    let output = planned(fleet, "quota.yaml", &["--brief"], 0)?;
    expect_texts(
        &output,
        &[
            "FederatedResourceQuota shop/cpus would be created",
            "QuotaExceeded - FederatedResourceQuota(shop/cpus) exceeded for resource cpu: requested sum 400m, limit 150m.",
            "note: FederatedResourceQuota(shop/cpus) allows 150m of cpu, and 200m are used",
            "member1 changed 1",
        ],
    )?;
    let output = planned(fleet, "rebalancer.yaml", &["-o", "json"], 0)?;
    let response: Value = serde_json::from_str(&output.out)?;
    let web = template(&response, "Deployment", "web")?;
    ensure!(web["scheduling"]["trigger"] == "RescheduleRequested", "{web:#}");
    ensure!(
        response["status"]["notices"].to_string().contains("Deployment shop/nosuch has no binding"),
        "{response:#}"
    );
    // Dependencies are planned as well, with their owner.
    let output = planned(fleet, "along.yaml", &["-o", "json"], 0)?;
    let response: Value = serde_json::from_str(&output.out)?;
    let settings = template(&response, "ConfigMap", "web-settings")?;
    ensure!(settings["requiredBy"][0]["name"] == "web-deployment" && settings["change"] == "Added", "{settings:#}");
    let clusters = settings["clusters"].as_array().context("clusters")?;
    ensure!(clusters.len() == 2 && clusters.iter().all(|one| one["replicas"].is_null()), "{settings:#}");
    expect_texts(
        &planned(fleet, "along.yaml", &["--brief"], 0)?,
        &["dependency of ResourceBinding shop/web-deployment"],
    )
}
