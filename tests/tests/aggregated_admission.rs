//! Policies and webhooks on the kinds of the aggregated API server, and deletion protection of a Cluster.

use anyhow::{Context, Result, ensure};
use crowsnest_tests::{Fleet, Kubectl, until};

const NOTICE: &str = include_str!("aggregated_admission/notice.yaml");
const DELETIONS: &str = include_str!("aggregated_admission/deletions.yaml");
const POLICIES: &str = include_str!("aggregated_admission/policies.yaml");
const WEBHOOK: &str = include_str!("aggregated_admission/webhook.yaml");
const CLUSTER: &str = include_str!("aggregated_admission/cluster.yaml");
const REGISTRY: &str = include_str!("aggregated_admission/registry.yaml");

const CLUSTERS: &str = "/apis/cluster.karmada.io/v1alpha1/clusters";
const PROTECTED: &str = "resourcetemplate.karmada.io/deletion-protected";

#[test]
fn clusters_are_admitted() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let fleet = Fleet::start(&dir.path().join("data"), &["--members", "3"])?;
    let Some(kubectl) = fleet.any_kubectl()? else { return Ok(()) };
    kubectl.until(&["get", "clusters"], |out| out.matches(" True ").count() == 3).with_context(|| fleet.log())?;
    kubectl.ok(&["apply", "-f", "-"], NOTICE)?;
    has_arrived(&fleet, &kubectl).with_context(|| fleet.log())?;
    protected(&fleet, &kubectl).with_context(|| fleet.log())?;
    deletions(&fleet, &kubectl).with_context(|| fleet.log())?;
    has_arrived(&fleet, &kubectl)?;
    other_writes(&kubectl).with_context(|| fleet.log())?;
    connections(&fleet, &kubectl).with_context(|| fleet.log())?;
    webhooks(&kubectl).with_context(|| fleet.log())?;
    ensure!(fleet.stop()?.success());
    Ok(())
}

/// Waits until the members have the propagated object.
fn has_arrived(fleet: &Fleet, kubectl: &Kubectl) -> Result<()> {
    for member in ["member2", "member3"] {
        let member = kubectl.on(&fleet.kubeconfig(member));
        member.until(&["get", "configmap", "notice", "-o", "jsonpath={.data.text}"], |out| out == "stays")?;
    }
    Ok(())
}

/// Waits until a call is refused with this text: policies take effect shortly after they are created.
fn refused(kubectl: &Kubectl, args: &[&str], text: &str) -> Result<()> {
    let mut last = None;
    let waited = until(text, || {
        let output = kubectl.run(args, "")?;
        let done = output.code == Some(1) && output.err.contains(text);
        last = Some(output);
        Ok(done)
    });
    waited.with_context(|| format!("kubectl {args:?}: {last:?}"))
}

fn stays(kubectl: &Kubectl, cluster: &str) -> Result<()> {
    let deleted = kubectl.ok(&["get", "cluster", cluster, "-o", "jsonpath={.metadata.deletionTimestamp}"], "")?;
    ensure!(deleted.is_empty(), "{cluster} is being deleted since {deleted}");
    let works = kubectl.ok(&["get", "works", "-n", &format!("karmada-es-{cluster}"), "-o", "name"], "")?;
    ensure!(works.contains("notice"), "{works}");
    Ok(())
}

/// The command line refuses to remove a cluster, with the reason.
fn unjoin(fleet: &Fleet, cluster: &str, text: &str) -> Result<()> {
    let output = fleet.crowsnest(&["unjoin", cluster])?;
    ensure!(output.code != Some(0) && output.err.contains(text), "{output:?}");
    Ok(())
}

fn protected(fleet: &Fleet, kubectl: &Kubectl) -> Result<()> {
    kubectl.ok(&["label", "cluster", "member3", &format!("{PROTECTED}=Always")], "")?;
    let text = format!("please make sure to remove the label: {PROTECTED}");
    kubectl.expect_output(&["delete", "cluster", "member3"], "", 1, &text)?;
    kubectl.expect_output(&["delete", "clusters", "-l", PROTECTED, "--dry-run=server"], "", 1, &text)?;
    unjoin(fleet, "member3", &text)?;
    stays(kubectl, "member3")
}

fn deletions(fleet: &Fleet, kubectl: &Kubectl) -> Result<()> {
    const TEXT: &str =
        "ValidatingAdmissionPolicy 'keep-member2' with binding 'keep-member2' denied request: member2 stays";
    kubectl.ok(&["apply", "-f", "-"], DELETIONS)?;
    refused(kubectl, &["delete", "cluster", "member2", "--dry-run=server"], TEXT)?;
    kubectl.expect_output(&["delete", "cluster", "member2"], "", 1, TEXT)?;
    kubectl.expect_output(
        &["delete", "clusters", "-l", "!no-such-label", "--dry-run=server"],
        "",
        1,
        "member2 stays",
    )?;
    kubectl.expect_output(
        &["delete", "--raw", &format!("{CLUSTERS}?labelSelector=!no-such-label")],
        "",
        1,
        "member2 stays",
    )?;
    unjoin(fleet, "member2", "member2 stays")?;
    ["member2", "member3"].into_iter().try_for_each(|cluster| stays(kubectl, cluster))?;
    // The policy concerns member2 only.
    kubectl.ok(&["delete", "cluster", "member1", "--dry-run=server"], "").map(drop)
}

fn other_writes(kubectl: &Kubectl) -> Result<()> {
    kubectl.ok(&["apply", "-f", "-"], POLICIES)?;
    refused(kubectl, &["label", "cluster", "member1", "forbidden=yes"], "no such label")?;
    kubectl.ok(&["label", "cluster", "member1", "allowed=yes"], "")?;
    let status = ["patch", "cluster", "member1", "--subresource=status", "--type=merge", "-p"];
    let version = r#"{"status":{"kubernetesVersion":"forbidden"}}"#;
    refused(kubectl, &[&status[..], &[version]].concat(), "no such version")?;
    status_replacements(kubectl)?;
    let created = ["create", "-f", "-", "-o", "jsonpath={.metadata.labels.marked}"];
    until("a created registry to be marked", || {
        Ok(kubectl.ok(&[&created[..], &["--dry-run=server"]].concat(), REGISTRY)? == "system.admin")
    })?;
    let marked = kubectl.ok(&created, REGISTRY)?;
    ensure!(marked == "system.admin", "{marked}");
    refused(kubectl, &["delete", "resourceregistry", "all", "--dry-run=server"], "registries stay")?;
    kubectl.expect_output(&["delete", "resourceregistry", "all"], "", 1, "registries stay").map(drop)
}

/// A replacement of the status has the spec too. It is accepted as a whole or not at all.
fn status_replacements(kubectl: &Kubectl) -> Result<()> {
    let read = || kubectl.ok(&["get", "cluster", "member1", "-o", "json"], "");
    let replace = ["replace", "--subresource=status", "-f", "-"];
    // The controllers write the status, too.
    until("the status of member1 to be replaced", || Ok(kubectl.run(&replace, &read()?)?.code == Some(0)))?;
    let mut changed: serde_json::Value = serde_json::from_str(&read()?)?;
    changed["spec"]["zones"] = serde_json::json!(["refused"]);
    changed["status"]["kubernetesVersion"] = "forbidden".into();
    if let Some(metadata) = changed["metadata"].as_object_mut() {
        metadata.remove("resourceVersion");
    }
    until("a status of member1 to be refused", || {
        let output = kubectl.run(&replace, &changed.to_string())?;
        Ok(output.code == Some(1) && output.err.contains("no such version"))
    })?;
    let cluster = read()?;
    ensure!(!cluster.contains("refused"), "{cluster}");
    Ok(())
}

/// Connections are admitted for the member that they reach, whether the path names it or not.
fn connections(fleet: &Fleet, kubectl: &Kubectl) -> Result<()> {
    const FLEET: &str = "/apis/search.karmada.io/v1alpha1/proxying/karmada/proxy/api/v1";
    let proxy = |member: &str, path: &str| format!("{CLUSTERS}/{member}/proxy/api/v1/{path}");
    refused(kubectl, &["get", "--raw", &proxy("member1", "secrets")], "no secrets of member1")?;
    for (member, path) in [("member1", "configmaps"), ("member2", "secrets"), ("*", "secrets")] {
        kubectl.ok(&["get", "--raw", &proxy(member, path)], "")?;
    }
    let member = kubectl.on(&fleet.kubeconfig("member1"));
    member.ok(&["create", "configmap", "guarded"], "")?;
    let guarded = "namespaces/default/configmaps/guarded";
    for (verb, uri) in [
        ("get", proxy("member1", guarded)),
        ("get", proxy("*", guarded)),
        ("delete", proxy("*", guarded)),
        ("get", format!("{FLEET}/{guarded}?cluster=member1")),
    ] {
        kubectl.expect_output(&[verb, "--raw", &uri], "", 1, "guarded in member1")?;
    }
    member.ok(&["get", "configmap", "guarded"], "").map(drop)
}

fn webhooks(kubectl: &Kubectl) -> Result<()> {
    kubectl.ok(&["apply", "-f", "-"], WEBHOOK)?;
    let text = "failed calling webhook \"gone.example.io\"";
    let path = format!("{CLUSTERS}/member1/proxy/api/v1/configmaps");
    refused(kubectl, &["get", "--raw", &path], text)?;
    kubectl.expect_output(&["create", "-f", "-"], CLUSTER, 1, text)?;
    kubectl.ok(&["delete", "-f", "-"], WEBHOOK)?;
    kubectl.until(&["get", "--raw", &path], |out| out.contains("ConfigMapList")).map(drop)
}
