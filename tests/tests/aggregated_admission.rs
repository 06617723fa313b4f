//! Policies and webhooks on the kinds of the aggregated API server, and deletion protection of a Cluster.

use anyhow::{Context, Result, ensure};
use crowsnest_tests::{Fleet, Kubectl, wait_for};

const NOTICE: &str = include_str!("aggregated_admission/notice.yaml");
const DELETIONS: &str = include_str!("aggregated_admission/deletions.yaml");
const POLICIES: &str = include_str!("aggregated_admission/policies.yaml");
const WEBHOOK: &str = include_str!("aggregated_admission/webhook.yaml");
const CLUSTER: &str = include_str!("aggregated_admission/cluster.yaml");
const REGISTRY: &str = include_str!("aggregated_admission/registry.yaml");

const CLUSTERS: &str = "/apis/cluster.karmada.io/v1alpha1/clusters";
const PROTECTION_LABEL: &str = "resourcetemplate.karmada.io/deletion-protected";

#[test]
fn admission_applies_to_aggregated_kinds() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let fleet = Fleet::start(&dir.path().join("data"), &["--members", "3"])?;
    let Some(kubectl) = fleet.any_kubectl()? else { return Ok(()) };
    kubectl.run_until(&["get", "clusters"], |out| out.matches(" True ").count() == 3).with_context(|| fleet.log())?;
    kubectl.run_ok(&["apply", "-f", "-"], NOTICE)?;
    wait_for_notice(&fleet, &kubectl).with_context(|| fleet.log())?;
    check_deletion_protection(&fleet, &kubectl).with_context(|| fleet.log())?;
    check_deletion_policy(&fleet, &kubectl).with_context(|| fleet.log())?;
    wait_for_notice(&fleet, &kubectl)?;
    check_other_writes(&kubectl).with_context(|| fleet.log())?;
    check_connections(&fleet, &kubectl).with_context(|| fleet.log())?;
    check_webhooks(&kubectl).with_context(|| fleet.log())?;
    ensure!(fleet.stop()?.success());
    Ok(())
}

/// Waits until the members have the propagated object.
fn wait_for_notice(fleet: &Fleet, kubectl: &Kubectl) -> Result<()> {
    for member in ["member2", "member3"] {
        let member = kubectl.with_kubeconfig(&fleet.kubeconfig(member));
        member.run_until(&["get", "configmap", "notice", "-o", "jsonpath={.data.text}"], |out| out == "stays")?;
    }
    Ok(())
}

/// Waits until a call is refused with this text: policies take effect shortly after they are created.
fn wait_until_refused(kubectl: &Kubectl, args: &[&str], text: &str) -> Result<()> {
    let mut last = None;
    let waited = wait_for(&format!("the refusal {text:?}"), || {
        let output = kubectl.run(args, "")?;
        let done = output.code == Some(1) && output.err.contains(text);
        last = Some(output);
        Ok(done)
    });
    waited.with_context(|| format!("kubectl {args:?}: {last:?}"))
}

/// Checks that a cluster and its Works are not being deleted.
fn ensure_not_deleted(kubectl: &Kubectl, cluster: &str) -> Result<()> {
    let deleted = kubectl.run_ok(&["get", "cluster", cluster, "-o", "jsonpath={.metadata.deletionTimestamp}"], "")?;
    ensure!(deleted.is_empty(), "{cluster} is being deleted: {deleted}");
    let works = kubectl.run_ok(&["get", "works", "-n", &format!("karmada-es-{cluster}"), "-o", "name"], "")?;
    ensure!(works.contains("notice"), "{works}");
    Ok(())
}

/// Checks that `crowsnest unjoin` fails with this message.
fn expect_unjoin_error(fleet: &Fleet, cluster: &str, text: &str) -> Result<()> {
    let output = fleet.crowsnest(&["unjoin", cluster])?;
    ensure!(output.code != Some(0) && output.err.contains(text), "{output:?}");
    Ok(())
}

fn check_deletion_protection(fleet: &Fleet, kubectl: &Kubectl) -> Result<()> {
    kubectl.run_ok(&["label", "cluster", "member3", &format!("{PROTECTION_LABEL}=Always")], "")?;
    let text = format!("please make sure to remove the label: {PROTECTION_LABEL}");
    kubectl.expect_output(&["delete", "cluster", "member3"], "", 1, &text)?;
    kubectl.expect_output(&["delete", "clusters", "-l", PROTECTION_LABEL, "--dry-run=server"], "", 1, &text)?;
    expect_unjoin_error(fleet, "member3", &text)?;
    ensure_not_deleted(kubectl, "member3")
}

fn check_deletion_policy(fleet: &Fleet, kubectl: &Kubectl) -> Result<()> {
    const TEXT: &str =
        "ValidatingAdmissionPolicy 'keep-member2' with binding 'keep-member2' denied request: member2 stays";
    kubectl.run_ok(&["apply", "-f", "-"], DELETIONS)?;
    wait_until_refused(kubectl, &["delete", "cluster", "member2", "--dry-run=server"], TEXT)?;
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
    expect_unjoin_error(fleet, "member2", "member2 stays")?;
    ["member2", "member3"].into_iter().try_for_each(|cluster| ensure_not_deleted(kubectl, cluster))?;
    // The policy concerns member2 only.
    kubectl.run_ok(&["delete", "cluster", "member1", "--dry-run=server"], "").map(drop)
}

fn check_other_writes(kubectl: &Kubectl) -> Result<()> {
    kubectl.run_ok(&["apply", "-f", "-"], POLICIES)?;
    wait_until_refused(kubectl, &["label", "cluster", "member1", "forbidden=yes"], "no such label")?;
    kubectl.run_ok(&["label", "cluster", "member1", "allowed=yes"], "")?;
    let status = ["patch", "cluster", "member1", "--subresource=status", "--type=merge", "-p"];
    let version = r#"{"status":{"kubernetesVersion":"forbidden"}}"#;
    wait_until_refused(kubectl, &[&status[..], &[version]].concat(), "no such version")?;
    check_status_replacements(kubectl)?;
    let created = ["create", "-f", "-", "-o", "jsonpath={.metadata.labels.marked}"];
    wait_for("a created registry to be marked", || {
        Ok(kubectl.run_ok(&[&created[..], &["--dry-run=server"]].concat(), REGISTRY)? == "system.admin")
    })?;
    let mark = kubectl.run_ok(&created, REGISTRY)?;
    ensure!(mark == "system.admin", "{mark}");
    wait_until_refused(kubectl, &["delete", "resourceregistry", "all", "--dry-run=server"], "registries stay")?;
    kubectl.expect_output(&["delete", "resourceregistry", "all"], "", 1, "registries stay").map(drop)
}

/// A replacement of the status also contains the spec. It is accepted or refused as a whole.
fn check_status_replacements(kubectl: &Kubectl) -> Result<()> {
    let read = || kubectl.run_ok(&["get", "cluster", "member1", "-o", "json"], "");
    let replace = ["replace", "--subresource=status", "-f", "-"];
    // The controllers write the status, too.
    wait_for("the status of member1 to be replaced", || Ok(kubectl.run(&replace, &read()?)?.code == Some(0)))?;
    let mut changed: serde_json::Value = serde_json::from_str(&read()?)?;
    changed["spec"]["zones"] = serde_json::json!(["refused"]);
    changed["status"]["kubernetesVersion"] = "forbidden".into();
    if let Some(metadata) = changed["metadata"].as_object_mut() {
        metadata.remove("resourceVersion");
    }
    wait_for("a status of member1 to be refused", || {
        let output = kubectl.run(&replace, &changed.to_string())?;
        Ok(output.code == Some(1) && output.err.contains("no such version"))
    })?;
    let cluster = read()?;
    ensure!(!cluster.contains("refused"), "{cluster}");
    Ok(())
}

/// Admission of a connection uses the member to which it is proxied, even if the path does not name the member.
fn check_connections(fleet: &Fleet, kubectl: &Kubectl) -> Result<()> {
    const FLEET: &str = "/apis/search.karmada.io/v1alpha1/proxying/karmada/proxy/api/v1";
    let proxy = |member: &str, path: &str| format!("{CLUSTERS}/{member}/proxy/api/v1/{path}");
    wait_until_refused(kubectl, &["get", "--raw", &proxy("member1", "secrets")], "no secrets of member1")?;
    for (member, path) in [("member1", "configmaps"), ("member2", "secrets"), ("*", "secrets")] {
        kubectl.run_ok(&["get", "--raw", &proxy(member, path)], "")?;
    }
    let member = kubectl.with_kubeconfig(&fleet.kubeconfig("member1"));
    member.run_ok(&["create", "configmap", "guarded"], "")?;
    let guarded = "namespaces/default/configmaps/guarded";
    for (verb, uri) in [
        ("get", proxy("member1", guarded)),
        ("get", proxy("*", guarded)),
        ("delete", proxy("*", guarded)),
        ("get", format!("{FLEET}/{guarded}?cluster=member1")),
    ] {
        kubectl.expect_output(&[verb, "--raw", &uri], "", 1, "guarded in member1")?;
    }
    member.run_ok(&["get", "configmap", "guarded"], "").map(drop)
}

fn check_webhooks(kubectl: &Kubectl) -> Result<()> {
    kubectl.run_ok(&["apply", "-f", "-"], WEBHOOK)?;
    let text = "failed calling webhook \"gone.example.io\"";
    let path = format!("{CLUSTERS}/member1/proxy/api/v1/configmaps");
    wait_until_refused(kubectl, &["get", "--raw", &path], text)?;
    kubectl.expect_output(&["create", "-f", "-"], CLUSTER, 1, text)?;
    kubectl.run_ok(&["delete", "-f", "-"], WEBHOOK)?;
    kubectl.run_until(&["get", "--raw", &path], |out| out.contains("ConfigMapList")).map(drop)
}
