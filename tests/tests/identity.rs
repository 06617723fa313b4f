//! Objects that differ only by group, case or a colon: each is propagated with its own content, is explained
//! separately, and can be deleted without affecting the others.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use crowsnest_tests::{Fleet, Kubectl, wait_for};
use serde_json::Value;

const SAME_NAMES: &str = include_str!("identity/same-names.yaml");
const CUSTOM_SERVICE: &str = include_str!("identity/custom-service.yaml");
const DEFINITION: &str = "crd/services.serving.example.dev";
const CUSTOM: &str = "services.serving.example.dev/web";
const OBJECTS: [&str; 5] = [
    "service/web",
    CUSTOM,
    "clusterrole/same-names:view",
    "clusterrole/same-names.view",
    "clusterrole/Same-Names.View",
];

#[test]
fn objects_with_equal_binding_names_are_propagated_separately() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let fleet = Fleet::start(&dir.path().join("data"), &["--members", "1"])?;
    let Some(kubectl) = fleet.any_kubectl()? else { return Ok(()) };
    let member = kubectl.with_kubeconfig(&fleet.kubeconfig("member1"));
    check_propagation(&kubectl, &member).with_context(|| fleet.log())?;
    check_explanations(&fleet).with_context(|| fleet.log())?;
    check_deletion(&kubectl, &member).with_context(|| fleet.log())?;
    ensure!(fleet.stop()?.success());
    Ok(())
}

fn check_propagation(kubectl: &Kubectl, member: &Kubectl) -> Result<()> {
    kubectl.run_until(&["get", "clusters"], |out| out.contains(" True "))?;
    kubectl.run_ok(&["apply", "-f", "-"], SAME_NAMES)?;
    for cluster in [kubectl, member] {
        cluster.run_until(&["get", DEFINITION, "-o", "jsonpath={.status.conditions}"], |out| {
            out.contains(r#""status":"True","type":"Established""#)
        })?;
    }
    kubectl.run_ok(&["apply", "-f", "-"], CUSTOM_SERVICE)?;
    const RULE: &str = "{.rules[0].resources[0]}";
    let contents = [
        ("{.spec.selector.app}", "web"),
        ("{.spec.image}", "nginx"),
        (RULE, "pods"),
        (RULE, "services"),
        (RULE, "secrets"),
    ];
    for (object, (path, content)) in OBJECTS.into_iter().zip(contents) {
        member
            .run_until(&["get", object, "-n", "same-names", "-o", &format!("jsonpath={path}")], |out| out == content)?;
    }
    member.run_until(&["get", "cm", "-n", "same-names", "-o", "name"], |out| out.contains("configmap/n123456789-"))?;
    Ok(())
}

/// Each object is explained by its own binding and its own Work.
fn check_explanations(fleet: &Fleet) -> Result<()> {
    let (mut bindings, mut works) = (BTreeSet::new(), BTreeSet::new());
    for object in OBJECTS {
        let mut explanation = Value::Null;
        wait_for(&format!("{object} to be applied"), || {
            let output = fleet.crowsnest(&["explain", object, "-n", "same-names", "-o", "json"])?;
            explanation = serde_json::from_str(&output.out).with_context(|| format!("{output:?}"))?;
            Ok(explanation["targets"][0]["applied"] == true)
        })
        .with_context(|| format!("last: {explanation:#}"))?;
        ensure!(explanation["waiting"].as_array().is_none_or(Vec::is_empty), "{explanation:#}");
        let name = |reference: &Value| reference["name"].as_str().map(str::to_owned);
        bindings.extend(name(&explanation["binding"]));
        works.extend(name(&explanation["targets"][0]["work"]));
    }
    ensure!((bindings.len(), works.len()) == (OBJECTS.len(), OBJECTS.len()), "{bindings:?} {works:?}");
    ensure!(bindings.contains("web-service") && bindings.contains("same-names.view-clusterrole"), "{bindings:?}");
    Ok(())
}

/// Deleting the Service does not affect the custom resource with the same binding name.
fn check_deletion(kubectl: &Kubectl, member: &Kubectl) -> Result<()> {
    let uid = ["get", CUSTOM, "-n", "same-names", "-o", "jsonpath={.metadata.uid}"];
    let before = member.run_ok(&uid, "")?;
    kubectl.run_ok(&["delete", "service", "web", "-n", "same-names"], "")?;
    member.run_until(&["get", "service", "-n", "same-names", "-o", "name"], |out| !out.contains("service/web"))?;
    let patch = r#"{"spec":{"image":"nginx:2"}}"#;
    kubectl.run_ok(&["patch", CUSTOM, "-n", "same-names", "--type=merge", "-p", patch], "")?;
    member.run_until(&["get", CUSTOM, "-n", "same-names", "-o", "jsonpath={.spec.image}"], |out| out == "nginx:2")?;
    ensure!(member.run_ok(&uid, "")? == before, "the object was recreated");
    Ok(())
}
