//! Owners of one namespace or one member cannot use the controllers' permissions against others. Each step is an
//! attack on the running binary.

use anyhow::{Context, Result, ensure};
use crowsnest_tests::{Fleet, Kubectl};
use serde_json::{Value, json};

const EXPORTS: &str = include_str!("tenants/exports.yaml");
const SHOP: &str = include_str!("tenants/shop.yaml");
const HOSTILE_MEMBER: &str = include_str!("tenants/hostile-member.yaml");
const QUOTA: &str = include_str!("tenants/quota.yaml");
const NEIGHBOUR: &str =
    concat!(include_str!("tenants/neighbour.yaml"), "---\n", include_str!("tenants/deployment.yaml"));
const NEIGHBOUR_DEPLOYMENT: &str = include_str!("tenants/deployment.yaml");
const NUMBERS: &str = include_str!("tenants/numbers.yaml");
const MANY: &str = include_str!("tenants/many.yaml");
const PERMANENT_ID: &str = "resourcebinding.karmada.io/permanent-id";
/// Names of all objects in Works for a cluster.
const COPIED: [&str; 6] =
    ["get", "works", "-n", "karmada-es-m1", "-o", "jsonpath={.items[*].spec.workload.manifests[*].metadata.name}"];

#[test]
fn owners_of_a_namespace_or_a_member_cannot_affect_others() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let fleet = Fleet::start(&dir.path().join("data"), &["--profile", "conformance"])?;
    let Some(kubectl) = fleet.any_kubectl()? else { return Ok(()) };
    let checks = || -> Result<()> {
        kubectl.run_ok(&["create", "namespace", "tenant"], "")?;
        let role = ["create", "rolebinding", "tina", "-n", "tenant", "--clusterrole", "admin", "--user", "tina"];
        kubectl.run_ok(&role, "")?;
        let tina = kubectl.with_flags(&["--as", "tina", "-n", "tenant"]);
        check_copied_objects(&kubectl, &tina)?;
        check_works_of_others(&kubectl, &tina)?;
        check_single_owner(&kubectl, &tina)?;
        check_overrides(&kubectl, &tina)?;
        check_quota(&kubectl)?;
        check_exported_services(&fleet, &kubectl)?;
        check_extreme_numbers(&kubectl, &tina)?;
        kubectl.run_ok(&["delete", "namespace", "tenant", "--timeout=240s"], "")?;
        Ok(())
    };
    checks().with_context(|| fleet.log())?;
    ensure!(fleet.stop()?.success());
    Ok(())
}

/// A member writes endpoints only for Services that it exports.
fn check_exported_services(fleet: &Fleet, kubectl: &Kubectl) -> Result<()> {
    let member = kubectl.with_kubeconfig(&fleet.kubeconfig("m1"));
    member.run_ok(&["apply", "-f", "-"], EXPORTS)?;
    kubectl.run_ok(&["apply", "-f", "-"], SHOP)?;
    member.run_until(&["get", "serviceexport", "web", "-n", "shop"], |_| true)?;
    let own_slice = kubectl.run_ok(&["get", "endpointslice", "imported-m1-by-hand", "-n", "shop", "-o", "json"], "")?;
    member.run_ok(&["apply", "-f", "-"], HOSTILE_MEMBER)?;
    // Written last, so that the others have been seen when it arrives.
    member.run_ok(&["apply", "-f", "-"], &endpoint_slice("asked-for").to_string())?;
    let imported = ["get", "endpointslices", "-n", "shop", "-o", "jsonpath={.items[*].metadata.name}"];
    kubectl.run_until(&imported, |out| out.contains("imported-m1-asked-for"))?;
    let collected_works =
        ["get", "works", "-n", "karmada-es-m1", "-l", "endpointslice.karmada.io/namespace=bank", "-o", "name"];
    kubectl.run_until(&collected_works, |out| !out.is_empty())?;
    let bank = kubectl.run_ok(&["get", "endpointslices", "-n", "bank", "-o", "name"], "")?;
    ensure!(bank.is_empty(), "slices of a namespace without an export: {bank}");
    let now = kubectl.run_ok(&["get", "endpointslice", "imported-m1-by-hand", "-n", "shop", "-o", "json"], "")?;
    ensure!(now == own_slice, "a user's slice was replaced: {now}");
    // An object that is no longer exported is deleted, regardless of the member's exports.
    kubectl.run_ok(&["delete", "propagationpolicy", "web", "-n", "shop"], "")?;
    kubectl.run_ok(&["delete", "serviceexport", "web", "-n", "shop"], "")?;
    kubectl.run_until(&imported, |out| !out.contains("imported-m1-asked-for")).map(drop)
}

fn endpoint_slice(name: &str) -> Value {
    let labels = json!({"kubernetes.io/service-name": "web"});
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {"name": name, "namespace": "shop", "labels": labels},
        "addressType": "IPv4", "endpoints": [{"addresses": ["10.1.0.1"]}], "ports": [{"port": 80}],
    })
}

fn binding(name: &str, resource: Value, labels: Value) -> String {
    // Like a binding that the controllers create, it has the finalizer with which its Works are deleted.
    let finalizers = ["karmada.io/binding-controller"];
    let metadata = json!({"name": name, "namespace": "tenant", "labels": labels, "finalizers": finalizers});
    let spec = json!({"resource": resource, "clusters": [{"name": "m1"}]});
    json!({"apiVersion": "work.karmada.io/v1alpha2", "kind": "ResourceBinding", "metadata": metadata, "spec": spec})
        .to_string()
}

fn config_map(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "namespace": "tenant", "name": name})
}

fn check_copied_objects(kubectl: &Kubectl, tina: &Kubectl) -> Result<()> {
    let role = |namespace: &str| {
        let group = "rbac.authorization.k8s.io/v1";
        json!({"apiVersion": group, "kind": "ClusterRole", "namespace": namespace, "name": "cluster-admin"})
    };
    let token = json!({"apiVersion": "v1", "kind": "Secret", "namespace": "karmada-cluster", "name": "m1"});
    let refused = "must be the binding's namespace, tenant";
    tina.expect_output(&["create", "-f", "-"], &binding("copy", token, json!({})), 1, refused)?;
    for (name, namespace) in [("copy", "tenant"), ("copy-of-none", "")] {
        tina.run_ok(&["create", "-f", "-"], &binding(name, role(namespace), json!({})))?;
    }
    tina.run_ok(&["create", "configmap", "own"], "")?;
    tina.run_ok(&["create", "-f", "-"], &binding("own", config_map("own"), json!({})))?;
    let copied = kubectl.run_until(&COPIED, |out| out.contains("own"))?;
    ensure!(!copied.contains("cluster-admin"), "{copied}");
    Ok(())
}

/// The label by which Works are found can be written by the author of a binding.
fn check_works_of_others(kubectl: &Kubectl, tina: &Kubectl) -> Result<()> {
    let works = ["get", "works", "-n", "karmada-es-m1", "-o", "jsonpath={.items[*].metadata.uid}"];
    let before = kubectl.run_ok(&works, "")?;
    let path = format!("jsonpath={{.metadata.labels.{}}}", PERMANENT_ID.replace('.', "\\."));
    let id = tina.run_ok(&["get", "rb", "own", "-o", &path], "")?;
    ensure!(!id.is_empty(), "the binding has no ID");
    tina.run_ok(&["create", "configmap", "other"], "")?;
    tina.run_ok(&["create", "-f", "-"], &binding("other", config_map("other"), json!({PERMANENT_ID: id})))?;
    kubectl.run_until(&COPIED, |out| out.contains("other"))?;
    tina.run_ok(&["delete", "rb", "other", "--timeout=240s"], "")?;
    let now = kubectl.run_until(&COPIED, |out| !out.contains("other"))?;
    ensure!(now.contains("own") && kubectl.run_ok(&works, "")? == before, "{now}");

    let label = format!("{PERMANENT_ID}=another");
    tina.expect_output(&["label", "rb", "own", "--overwrite", &label], "", 1, "field is immutable")?;
    let negative = r#"{"spec":{"clusters":[{"name":"m1","replicas":-9}]}}"#;
    let refused = "must be greater than or equal to 0";
    tina.expect_output(&["patch", "rb", "own", "--type=merge", "-p", negative], "", 1, refused)?;
    Ok(())
}

fn check_single_owner(kubectl: &Kubectl, tina: &Kubectl) -> Result<()> {
    tina.run_ok(&["create", "-f", "-"], &binding("again", config_map("own"), json!({})))?;
    let events = ["get", "events", "-n", "tenant", "-o", "jsonpath={..message}"];
    kubectl.run_until(&events, |out| out.contains("it belongs to ResourceBinding tenant/own"))?;
    tina.run_ok(&["delete", "rb", "again", "--timeout=240s"], "")?;
    let copied = kubectl.run_ok(&COPIED, "")?;
    ensure!(copied.contains("own"), "{copied}");
    Ok(())
}

fn check_overrides(kubectl: &Kubectl, tina: &Kubectl) -> Result<()> {
    let policy = |path: &str, value: Value| {
        let plaintext = json!([{"path": path, "operator": "replace", "value": value}]);
        let selector = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "moved"});
        json!({
            "apiVersion": "policy.karmada.io/v1alpha1", "kind": "OverridePolicy",
            "metadata": {"name": "moved", "namespace": "tenant"},
            "spec": {"resourceSelectors": [selector], "overrideRules": [{"overriders": {"plaintext": plaintext}}]},
        })
        .to_string()
    };
    let refused = "only a ClusterOverridePolicy may change the identity of an object";
    tina.expect_output(&["create", "-f", "-"], &policy("/metadata/namespace", json!("bank")), 1, refused)?;
    let metadata = json!({"name": "stolen", "namespace": "kube-system"});
    tina.run_ok(&["create", "-f", "-"], &policy("/metadata", metadata))?;
    tina.run_ok(&["create", "configmap", "moved"], "")?;
    tina.run_ok(&["create", "-f", "-"], &binding("moved", config_map("moved"), json!({})))?;
    let events = ["get", "events", "-n", "tenant", "-o", "jsonpath={..message}"];
    kubectl.run_until(&events, |out| out.contains("Apply override policy(tenant/moved) for cluster(m1) failed"))?;
    let copied = kubectl.run_ok(&COPIED, "")?;
    ensure!(!copied.contains("stolen") && !copied.contains("moved"), "{copied}");
    Ok(())
}

/// A binding that declares fewer resources than its template needs does not bypass the quota.
fn check_quota(kubectl: &Kubectl) -> Result<()> {
    kubectl.run_ok(&["apply", "-f", "-"], QUOTA)?;
    let tina = kubectl.with_flags(&["--as", "tina", "-n", "bounded"]);
    let binding_for = |resource: Value| {
        let mut binding: Value = serde_json::from_str(&binding("by-hand", resource, json!({})))?;
        binding["metadata"]["namespace"] = json!("bounded");
        binding["spec"]["clusters"][0]["replicas"] = json!(1);
        anyhow::Ok(binding)
    };
    let big = json!({"apiVersion": "apps/v1", "kind": "Deployment", "namespace": "bounded", "name": "big"});
    let small = json!({"apiVersion": "v1", "kind": "ConfigMap", "namespace": "bounded", "name": "small"});
    tina.run_ok(&["create", "-f", "-"], &binding_for(big)?.to_string())?;
    tina.run_ok(&["create", "configmap", "small"], "")?;
    let mut second = binding_for(small)?;
    second["metadata"]["name"] = json!("small");
    tina.run_ok(&["create", "-f", "-"], &second.to_string())?;
    let copied = kubectl.run_until(&COPIED, |out| out.contains("small"))?;
    ensure!(!copied.contains("big"), "{copied}");

    // Requirements of other bindings are applied, so they count.
    let requirements = json!({"resourceRequest": {"cpu": "4"}});
    let required = json!([{"namespace": "bounded", "name": "other", "clusters": [{"name": "m1", "replicas": 100}]}]);
    let spec = json!({"clusters": [], "replicaRequirements": requirements, "requiredBy": required});
    let patch = json!({"spec": spec}).to_string();
    let refused = "exceeded for resource cpu: requested sum 400, limit 100m";
    tina.expect_output(&["patch", "rb", "by-hand", "--type=merge", "-p", &patch], "", 1, refused)?;
    Ok(())
}

/// Numbers written by a tenant must neither slow down the controllers, reserve other tenants' capacity, nor stop the
/// scheduler.
fn check_extreme_numbers(kubectl: &Kubectl, tina: &Kubectl) -> Result<()> {
    kubectl.run_ok(&["apply", "-f", "-"], NEIGHBOUR)?;
    let wait_until_scheduled = |name: &str| {
        let path = ["get", "rb", name, "-n", "neighbour", "-o", "jsonpath={.spec.clusters[*].name}"];
        kubectl.run_until(&path, |out| !out.is_empty()).map(drop)
    };
    wait_until_scheduled("first-deployment")?;
    tina.run_ok(&["apply", "-f", "-"], NUMBERS)?;
    for name in ["ghost", "overflow"] {
        let condition = ["get", "rb", name, "-o", "jsonpath={.status.conditions[0].type}"];
        tina.run_until(&condition, |out| !out.is_empty())?;
    }
    kubectl.run_ok(&["create", "-f", "-"], &NEIGHBOUR_DEPLOYMENT.replace("first", "second"))?;
    wait_until_scheduled("second-deployment")?;

    tina.run_ok(&["apply", "-f", "-"], MANY)?;
    let replicas = ["get", "rb", "many-deployment", "-o", "jsonpath={.spec.clusters[*].replicas}"];
    let has_all_replicas =
        |out: &str| out.split(' ').filter_map(|count| count.parse::<i64>().ok()).sum::<i64>() == 2_147_483_647;
    tina.run_until(&replicas, has_all_replicas)?;
    // Two replicas, each in its own cluster.
    let completions = ["get", "works", "-A", "-o", "jsonpath={..completions}"];
    kubectl.run_until(&completions, |out| out.contains("1073741824") && out.contains("1073741823")).map(drop)
}
