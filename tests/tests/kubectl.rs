//! Operations of a user with kubectl on the control plane of `crowsnest up`, with each supported version of kubectl.

use anyhow::{Result, ensure};
use crowsnest_tests::{Fleet, Kubectl, with_each_kubectl};
use serde_json::json;

const WEB: &str = include_str!("kubectl/web.yaml");
const OVERRIDE: &str = include_str!("kubectl/override.yaml");

#[test]
fn a_fleet_is_managed_with_every_kubectl() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let fleet = Fleet::start(&dir.path().join("data"), &["--members", "2"])?;
    with_each_kubectl(&fleet, |kubectl| {
        let namespace = format!("with-{}", kubectl.version.replace('.', "-"));
        kubectl.run_ok(&["create", "namespace", &namespace], "")?;
        kubectl.run_ok(&["wait", "--for=condition=Ready", "cluster", "--all", "--timeout=240s"], "")?;
        let namespaced = kubectl.with_flags(&["--namespace", &namespace]);
        let members = ["member1", "member2"].map(|member| namespaced.with_kubeconfig(&fleet.kubeconfig(member)));
        check_propagation(&namespaced, &members)?;
        check_printed_columns(kubectl)?;
        check_discovery_of_search(kubectl)?;
        check_explain_and_describe(&namespaced)?;
        check_overrides_and_scaling(&namespaced, &members)?;
        check_apply(&namespaced)?;
        check_deletion(&namespaced, &members, &namespace)
    })?;
    ensure!(fleet.stop()?.success());
    Ok(())
}

/// A template and a policy create pods in the members, whose status is aggregated.
fn check_propagation(namespaced: &Kubectl, members: &[Kubectl]) -> Result<()> {
    namespaced.run_ok(&["apply", "-f", "-"], WEB)?;
    for member in members {
        member.run_until(&["get", "pods", "-l", "app=web"], |out| out.matches("Running").count() == 2)?;
    }
    namespaced.run_until(&["get", "rb", "web-deployment"], |out| out.matches("True").count() == 2)?;
    namespaced.run_until(&["get", "deploy", "web", "-o", "jsonpath={.status.readyReplicas}"], |out| out == "4")?;
    let rolled_out = namespaced.run_ok(&["rollout", "status", "deployment/web", "--timeout=240s"], "")?;
    ensure!(rolled_out.contains("\"web\" successfully rolled out"), "{rolled_out}");
    Ok(())
}

fn header(table: &str) -> Vec<&str> {
    table.lines().next().unwrap_or_default().split_whitespace().collect()
}

fn check_printed_columns(kubectl: &Kubectl) -> Result<()> {
    let tables: [(&[&str], &[&str]); 8] = [
        (&["get", "clusters"], &["NAME", "VERSION", "MODE", "READY", "AGE"]),
        (
            &["get", "clusters", "-o", "wide"],
            &["NAME", "VERSION", "MODE", "READY", "AGE", "ZONES", "REGION", "PROVIDER", "API-ENDPOINT", "PROXY-URL"],
        ),
        (&["get", "rb", "-A"], &["NAMESPACE", "NAME", "SCHEDULED", "FULLYAPPLIED", "AGE"]),
        (&["get", "work", "-A"], &["NAMESPACE", "NAME", "WORKLOAD-KIND", "APPLIED", "AGE"]),
        (&["get", "pp", "-A"], &["NAMESPACE", "NAME", "CONFLICT-RESOLUTION", "PRIORITY", "AGE"]),
        (&["get", "crd", "works.work.karmada.io"], &["NAME", "CREATED", "AT"]),
        (&["get", "apiservice", "v1alpha1.cluster.karmada.io"], &["NAME", "SERVICE", "AVAILABLE", "AGE"]),
        (&["get", "deployments", "-A"], &["NAMESPACE", "NAME", "READY", "UP-TO-DATE", "AVAILABLE", "AGE"]),
    ];
    for (args, columns) in tables {
        let table = kubectl.run_ok(args, "")?;
        ensure!(header(&table) == columns, "{args:?}: {table}");
    }
    let both = kubectl.run_ok(&["get", "rb,work", "-A"], "")?;
    for text in ["resourcebinding.work.karmada.io/web-deployment", "work.work.karmada.io/web-", "WORKLOAD-KIND"] {
        ensure!(both.contains(text), "no {text}: {both}");
    }
    for (group, name) in [
        ("cluster.karmada.io", "clusters.cluster.karmada.io"),
        ("search.karmada.io", "resourceregistries.search.karmada.io"),
        ("work.karmada.io", "works.work.karmada.io"),
    ] {
        kubectl.expect_output(&["api-resources", "--api-group", group, "-o", "name"], "", 0, name)?;
    }
    Ok(())
}

/// Checks the verbs in the discovery document, on which clients and RBAC roles depend.
fn check_discovery_of_search(kubectl: &Kubectl) -> Result<()> {
    let resource_list = kubectl.run_ok(&["get", "--raw", "/apis/search.karmada.io/v1alpha1"], "")?;
    let resource_list: serde_json::Value = serde_json::from_str(&resource_list)?;
    let resources = resource_list["resources"].as_array().map(Vec::as_slice).unwrap_or_default();
    for (name, verbs) in [
        ("proxying", json!(["create", "delete", "get", "patch", "update"])),
        ("proxying/proxy", json!(["create", "delete", "get", "patch", "update"])),
        ("search", json!(["get"])),
    ] {
        let found = resources.iter().find(|resource| resource["name"] == name);
        ensure!(found.is_some_and(|resource| resource["verbs"] == verbs), "{name}: {resource_list}");
    }
    // The response is empty, as in Karmada.
    let search = ["get", "--raw", "/apis/search.karmada.io/v1alpha1/search/opensearch/api/v1/pods"];
    ensure!(kubectl.run_ok(&search, "")?.trim().is_empty());
    Ok(())
}

fn check_explain_and_describe(namespaced: &Kubectl) -> Result<()> {
    let expected_texts: [(&[&str], &[&str]); 8] = [
        (&["explain", "deployment.spec.replicas"], &["Number of desired pods"]),
        (&["explain", "propagationpolicy.spec.placement.clusterAffinity"], &["clusterNames", "[]string"]),
        (&["explain", "clusters.spec"], &["apiEndpoint", "syncMode"]),
        (&["explain", "resourceregistries.spec", "--recursive"], &["targetCluster", "clusterNames"]),
        (&["describe", "deployment", "web"], &["Replicas:", "nginx:1.25", "StrategyType:"]),
        (&["describe", "rb", "web-deployment"], &["FullyApplied", "Scheduled", "member2"]),
        (&["describe", "cluster", "member1"], &["Endpoint:", "cluster is healthy", "Kubernetes Version:"]),
        (&["describe", "pp", "web"], &["Cluster Names:", "Resource Selectors:"]),
    ];
    for (args, texts) in expected_texts {
        let output = namespaced.run_ok(args, "")?;
        for text in texts {
            ensure!(output.contains(text), "{args:?}: no {text}: {output}");
        }
    }
    Ok(())
}

/// An override changes its member only; a scale changes all.
fn check_overrides_and_scaling(namespaced: &Kubectl, members: &[Kubectl]) -> Result<()> {
    let image = ["get", "deploy", "web", "-o", "jsonpath={.spec.template.spec.containers[0].image}"];
    namespaced.run_ok(&["apply", "-f", "-"], OVERRIDE)?;
    members[1].run_until(&image, |out| out == "nginx:1.27")?;
    members[0].run_until(&image, |out| out == "nginx:1.25")?;
    namespaced.run_ok(&["scale", "deployment/web", "--replicas=3"], "")?;
    for member in members {
        member.run_until(&["get", "deploy", "web", "-o", "jsonpath={.status.readyReplicas}"], |out| out == "3")?;
    }
    namespaced.run_until(&["get", "deploy", "web", "-o", "jsonpath={.status.readyReplicas}"], |out| out == "6")?;
    namespaced.run_ok(&["rollout", "status", "deployment/web", "--timeout=240s"], "")?;
    Ok(())
}

const SETTINGS: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: settings}\ndata: {colour: blue}\n";
const REGISTRY: &str = "apiVersion: search.karmada.io/v1alpha1\nkind: ResourceRegistry\nmetadata: {name: none}\n\
    spec: {targetCluster: {}, resourceSelectors: [{apiVersion: v1, kind: Secret}]}\n";

/// Checks diff, dry runs, rejected manifests, and server-side apply with its conflicts.
fn check_apply(namespaced: &Kubectl) -> Result<()> {
    let apply = |extra_args: &[&'static str]| [&["apply", "-f", "-"], extra_args].concat();
    let wrong = WEB.replacen("replicas: 2", "replicaz: 2", 1);
    let red = SETTINGS.replace("blue", "red");
    let three = WEB.replacen("replicas: 2", "replicas: 3", 1);
    let steps: [(Vec<&str>, &str, i32, &str); 13] = [
        (vec!["diff", "-f", "-"], &three, 0, ""),
        (vec!["diff", "-f", "-"], WEB, 1, "+  replicas: 2"),
        (apply(&["--dry-run=server"]), WEB, 0, "deployment.apps/web configured (server dry run)"),
        (apply(&["--dry-run=server"]), REGISTRY, 0, "resourceregistry.search.karmada.io/none created (server dry run)"),
        (apply(&["--dry-run=client"]), WEB, 0, "(dry run)"),
        (apply(&[]), &wrong, 1, "replicaz"),
        (apply(&["--server-side"]), SETTINGS, 0, "configmap/settings serverside-applied"),
        (apply(&["--server-side", "--field-manager=other"]), &red, 1, "conflict with \"kubectl\""),
        (apply(&["--server-side", "--field-manager=other", "--force-conflicts"]), &red, 0, "serverside-applied"),
        (vec!["get", "configmap", "settings", "-o", "jsonpath={.data.colour}"], "", 0, "red"),
        (vec!["diff", "--server-side", "--force-conflicts", "-f", "-"], SETTINGS, 1, "+  colour: blue"),
        (vec!["annotate", "configmap", "settings", "a=b"], "", 0, "annotate"),
        (vec!["patch", "configmap", "settings", "-p", "{\"data\":{\"colour\":null}}"], "", 0, "patched"),
    ];
    for (args, input, code, text) in &steps {
        namespaced.expect_output(args, input, *code, text)?;
    }
    let replicas = namespaced.run_ok(&["get", "deploy", "web", "-o", "jsonpath={.spec.replicas}"], "")?;
    ensure!(replicas == "3", "a dry run changed the replicas to {replicas}");
    Ok(())
}

/// Propagated objects are deleted with the template.
fn check_deletion(namespaced: &Kubectl, members: &[Kubectl], namespace: &str) -> Result<()> {
    namespaced.run_ok(&["delete", "-f", "-"], WEB)?;
    for member in members {
        member.run_until(&["get", "deploy,pods", "-o", "name"], |out| !out.contains("web"))?;
    }
    namespaced.run_until(&["get", "rb", "-o", "name"], |out| out.is_empty())?;
    namespaced.run_until(
        &["get", "work", "-A", "-o", "jsonpath={.items[*].spec.workload.manifests[*].metadata.namespace}"],
        |out| !out.split_whitespace().any(|n| n == namespace),
    )?;
    namespaced.run_ok(&["delete", "namespace", namespace, "--timeout=240s"], "")?;
    for member in members {
        member.run_until(&["get", "namespaces", "-o", "name"], |out| !out.contains(namespace))?;
    }
    Ok(())
}

/// Manifests have no namespace, because each kubectl version applies them in a namespace of its own.
#[test]
fn fixtures_name_no_namespace() {
    assert!(!WEB.contains("namespace:") && !OVERRIDE.contains("namespace:"));
}
