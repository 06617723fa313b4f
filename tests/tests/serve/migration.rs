//! In-place migration from Karmada and back, with the recorded objects of a control plane and a member.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, bail, ensure};
use crowsnest_tests::{Apiserver, wait_for};
use kube::api::{DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::GroupVersionKind;
use kube::discovery::{Discovery, Scope};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::serve::member_writes::member_writes;
use crate::serve::network::Balancer;
use crate::serve::replica::{Replica, ReplicaConfig, client, crowsnest, free_port};
use crate::serve::test_env::{object, objects, versions};

const CONTROL_PLANE: &str = include_str!("karmada/control-plane.yaml");
const MEMBER: &str = include_str!("karmada/member.yaml");
/// Objects that a kube-apiserver writes by itself: its lease, and the Secret in which it records the last use of a token.
/// Writes by others are in the audit log.
const WRITTEN_BY_API_SERVER: [&str; 2] = ["leases/kube-system/apiserver-", "secrets/karmada-cluster/karmada-m1"];

/// Serves Clusters as Karmada's aggregated API server does: creates the kind and its APIService.
async fn serve_clusters(client: &Client) -> Result<()> {
    let open = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let schema = json!({"type": "object", "properties": {"spec": open, "status": open}});
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "clusters.cluster.karmada.io"},
        "spec": {"group": "cluster.karmada.io", "scope": "Cluster", "names": {"plural": "clusters", "kind": "Cluster"},
            "versions": [{"name": "v1alpha1", "served": true, "storage": true, "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": schema}}]},
    });
    let service = json!({
        "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
        "metadata": {"name": "v1alpha1.cluster.karmada.io"},
        "spec": {"group": "cluster.karmada.io", "version": "v1alpha1", "groupPriorityMinimum": 2000, "versionPriority": 10},
    });
    // Registered first, so that the control plane does not serve the definition itself.
    let services = objects(client, "apiregistration.k8s.io", "v1", "APIService", None);
    services.create(&PostParams::default(), &object(service)?).await.context("cannot create the APIService")?;
    let definitions = objects(client, "apiextensions.k8s.io", "v1", "CustomResourceDefinition", None);
    definitions.create(&PostParams::default(), &object(definition)?).await.context("cannot define clusters")?;
    Ok(())
}

#[test]
fn clusters_are_migrated_to_crowsnest_and_back() -> Result<()> {
    let runtime = Runtime::new()?;
    let dir = tempfile::tempdir()?;
    let control_plane = Apiserver::start(&dir.path().join("cp"))?;
    let cp = control_plane.kubeconfig.as_path();
    let client = runtime.block_on(client(cp))?;
    runtime.block_on(serve_clusters(&client))?;
    let clusters = objects(&client, "cluster.karmada.io", "v1alpha1", "Cluster", None);
    let stored_clusters = objects(&client, "storage.crowsnest.io", "v1alpha1", "StoredCluster", None);
    let cluster = object(json!({
        "apiVersion": "cluster.karmada.io/v1alpha1", "kind": "Cluster",
        "metadata": {"name": "m1", "labels": {"tier": "gold"}, "finalizers": ["karmada.io/cluster-controller"]},
        "spec": {"syncMode": "Push", "id": "7", "apiEndpoint": "https://m1"},
    }))?;
    wait_for("clusters to be served", || {
        Ok(runtime.block_on(clusters.create(&PostParams::default(), &cluster)).is_ok())
    })?;
    let mut stored = runtime.block_on(clusters.get("m1"))?;
    stored.data["status"] = json!({"kubernetesVersion": "v1.36.0"});
    runtime.block_on(clusters.replace_status("m1", &PostParams::default(), &stored))?;

    let early = crowsnest(cp, &["install", "--host", "127.0.0.1", "--port", "1"])?;
    ensure!(!early.ok && early.err.contains("run `crowsnest migrate` first"), "{early:?}");
    let dry_run = crowsnest(cp, &["migrate", "--dry-run"])?;
    ensure!(dry_run.ok && dry_run.out.contains("clusters/m1 would be created"), "{dry_run:?}");
    let migrated = crowsnest(cp, &["migrate"])?;
    ensure!(migrated.ok && migrated.out.contains("clusters/m1 created"), "{migrated:?}");
    let copy = runtime.block_on(stored_clusters.get("m1"))?;
    ensure!(copy.data["spec"] == cluster.data["spec"] && copy.metadata.labels == cluster.metadata.labels, "{copy:?}");
    ensure!(copy.data["status"]["kubernetesVersion"] == "v1.36.0", "{copy:?}");
    let again = crowsnest(cp, &["migrate"])?;
    ensure!(again.ok && again.out.contains("0 of 1 clusters written"), "{again:?}");

    let installed = crowsnest(cp, &["install", "--take-over", "--host", "127.0.0.1", "--port", "1"])?;
    ensure!(installed.ok, "{installed:?}");
    let services = objects(&client, "apiregistration.k8s.io", "v1", "APIService", None);
    let service = || runtime.block_on(services.get("v1alpha1.cluster.karmada.io"));
    ensure!(service()?.data["spec"]["service"]["name"] == "crowsnest", "{:?}", service()?);

    let back = crowsnest(cp, &["migrate", "--back"])?;
    ensure!(back.ok && back.out.contains("0 of 1 clusters written"), "{back:?}");
    ensure!(service()?.data["spec"].get("service").is_none_or(Value::is_null), "{:?}", service()?);
    // A cluster that was deleted while Crowsnest served clusters is also deleted for Karmada.
    let without_finalizers = kube::api::Patch::Merge(json!({"metadata": {"finalizers": null}}));
    runtime.block_on(stored_clusters.patch("m1", &kube::api::PatchParams::default(), &without_finalizers))?;
    runtime.block_on(stored_clusters.delete("m1", &kube::api::DeleteParams::default()))?;
    let back = crowsnest(cp, &["migrate", "--back"])?;
    ensure!(back.ok && back.out.contains("clusters/m1 deleted"), "{back:?}");
    ensure!(runtime.block_on(clusters.get_opt("m1"))?.is_none(), "the cluster still exists");
    Ok(())
}

/// Creates Karmada's definitions: Crowsnest's, without conversion webhooks and its additional fields.
async fn create_definitions(control_plane: &Client) -> Result<()> {
    let definitions = objects(control_plane, "apiextensions.k8s.io", "v1", "CustomResourceDefinition", None);
    for definition in crowsnest_api::crd::crds(None) {
        if definition["spec"]["group"].as_str().is_some_and(|group| group.ends_with("karmada.io")) {
            definitions
                .create(&PostParams::default(), &object(definition)?)
                .await
                .context("cannot create a definition")?;
        }
    }
    Ok(())
}

/// Service accounts with access to the proxies of all clusters, which Karmada is permitted to impersonate in the members:
/// accounts of controllers whose roles cover all resources. They differ between versions of Kubernetes.
async fn accounts_with_proxy_access(control_plane: &Client) -> Result<BTreeSet<String>> {
    const RBAC: &str = "rbac.authorization.k8s.io";
    let has_wildcard =
        |names: &Value| names.as_array().is_some_and(|names| names.iter().any(|name| name.as_str() == Some("*")));
    let covers_all = |role: &&DynamicObject| {
        let mut rules = role.data["rules"].as_array().into_iter().flatten();
        rules.any(|rule| has_wildcard(&rule["apiGroups"]) && has_wildcard(&rule["resources"]))
    };
    let roles = objects(control_plane, RBAC, "v1", "ClusterRole", None).list(&ListParams::default()).await?;
    let roles: BTreeSet<String> = roles.iter().filter(covers_all).map(ResourceExt::name_any).collect();
    let bindings = objects(control_plane, RBAC, "v1", "ClusterRoleBinding", None);
    let mut accounts = BTreeSet::new();
    for binding in bindings.list(&ListParams::default()).await? {
        if binding.data["roleRef"]["name"].as_str().is_some_and(|role| roles.contains(role)) {
            let subjects = binding.data["subjects"].as_array().into_iter().flatten();
            let names = subjects.filter(|subject| subject["kind"] == "ServiceAccount");
            accounts.extend(names.filter_map(|subject| subject["name"].as_str().map(str::to_owned)));
        }
    }
    for recorded in ["generic-garbage-collector", "namespace-controller", "resourcequota-controller"] {
        ensure!(accounts.contains(recorded), "{recorded} has no access: {accounts:?}");
    }
    Ok(accounts)
}

/// A control plane and a member that Karmada managed, with no controllers running.
struct KarmadaInstallation {
    runtime: Runtime,
    cp: Client,
    m1: Client,
    control_plane: Apiserver,
    member: Apiserver,
    dir: tempfile::TempDir,
}

impl KarmadaInstallation {
    fn start() -> Result<Self> {
        let runtime = Runtime::new()?;
        let dir = tempfile::tempdir()?;
        let (control_plane, member) =
            (Apiserver::start(&dir.path().join("cp"))?, Apiserver::start(&dir.path().join("m1"))?);
        let cp = runtime.block_on(client(&control_plane.kubeconfig))?;
        let m1 = runtime.block_on(client(&member.kubeconfig))?;
        runtime.block_on(serve_clusters(&cp))?;
        runtime.block_on(create_definitions(&cp))?;
        let karmada = Self { runtime, cp, m1, control_plane, member, dir };
        let kubeconfig = karmada.member.kubeconfig.display().to_string();
        let mut last = String::new();
        wait_for("the member to be joined to the simulated Karmada", || {
            let output =
                crowsnest(&karmada.control_plane.kubeconfig, &["join", "m1", "--cluster-kubeconfig", &kubeconfig])?;
            last = format!("{output:?}");
            Ok(output.ok)
        })
        .context(last)?;
        karmada.runtime.block_on(karmada.create_objects())?;
        Ok(karmada)
    }

    /// Creates the recorded objects.
    async fn create_objects(&self) -> Result<()> {
        // Karmada's cluster controller sets this finalizer.
        let clusters = objects(&self.cp, "cluster.karmada.io", "v1alpha1", "Cluster", None);
        let finalizer =
            Patch::Merge(json!({"metadata": {"finalizers": ["karmada.io/cluster-controller"], "annotations": null}}));
        let cluster = clusters.patch("m1", &PatchParams::default(), &finalizer).await?;
        let cluster_uid = cluster.uid().context("the cluster has no UID")?;
        let accounts = serde_json::to_string(&accounts_with_proxy_access(&self.cp).await?)?;
        let mut values =
            BTreeMap::from([("Cluster/m1".to_owned(), cluster_uid), ("ServiceAccounts".to_owned(), accounts)]);
        let namespaces = objects(&self.cp, "", "v1", "Namespace", None);
        for name in ["karmada-es-m1", "karmada-system"] {
            let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
            namespaces.create(&PostParams::default(), &object(namespace)?).await?;
        }
        load(&self.cp, CONTROL_PLANE, &mut values).await.context("cannot create the control plane's objects")?;
        load(&self.m1, MEMBER, &mut values).await.context("cannot create the member's objects")
    }

    fn crowsnest(&self, args: &[&str]) -> Result<String> {
        let output = crowsnest(&self.control_plane.kubeconfig, args)?;
        ensure!(output.ok, "{args:?}: {output:?}");
        Ok(output.out)
    }

    /// Writes that the member has received so far.
    fn writes(&self) -> Result<Vec<String>> {
        member_writes(&self.runtime, &self.member, &self.m1)
    }

    /// resourceVersions of all objects in the member, of all kinds, except those that its API server writes.
    fn member_versions(&self) -> Result<BTreeMap<String, String>> {
        self.runtime.block_on(async {
            let discovery = Discovery::new(self.m1.clone()).run().await?;
            let mut versions = BTreeMap::new();
            for group in discovery.groups() {
                for (resource, capabilities) in group.recommended_resources() {
                    if !capabilities.supports_operation("list") {
                        continue;
                    }
                    let all: Api<DynamicObject> = Api::all_with(self.m1.clone(), &resource);
                    for found in all.list(&ListParams::default()).await? {
                        let name = format!(
                            "{}/{}/{}",
                            resource.plural,
                            found.namespace().unwrap_or_default(),
                            found.name_any()
                        );
                        versions.insert(name, found.resource_version().unwrap_or_default());
                    }
                }
            }
            versions.retain(|name, _| !WRITTEN_BY_API_SERVER.iter().any(|prefix| name.starts_with(prefix)));
            Ok(versions)
        })
    }

    /// Works, bindings and policies, which a migration must not change. The status of the
    /// Deployment's objects is removed, because the recording does not contain it, and so is the metadata that status
    /// updates change.
    fn propagation_objects(&self) -> Result<BTreeMap<String, Value>> {
        let kinds = [
            ("work.karmada.io", "v1alpha1", "Work"),
            ("work.karmada.io", "v1alpha2", "ResourceBinding"),
            ("work.karmada.io", "v1alpha2", "ClusterResourceBinding"),
            ("policy.karmada.io", "v1alpha1", "PropagationPolicy"),
            ("policy.karmada.io", "v1alpha1", "ClusterPropagationPolicy"),
        ];
        let mut objects_by_name = BTreeMap::new();
        for (group, version, kind) in kinds {
            let all = objects(&self.cp, group, version, kind, None);
            for found in self.runtime.block_on(all.list(&ListParams::default()))? {
                let name = format!("{kind}/{}/{}", found.namespace().unwrap_or_default(), found.name_any());
                let mut object = serde_json::to_value(&found)?;
                if found.name_any().starts_with("web-") {
                    object["status"] = Value::Null;
                    object["metadata"]["resourceVersion"] = Value::Null;
                    object["metadata"]["managedFields"] = Value::Null;
                }
                objects_by_name.insert(name, object);
            }
        }
        Ok(objects_by_name)
    }

    fn is_cluster_ready(&self) -> Result<bool> {
        let clusters = objects(&self.cp, "cluster.karmada.io", "v1alpha1", "Cluster", None);
        let Ok(cluster) = self.runtime.block_on(clusters.get("m1")) else { return Ok(false) };
        let conditions = cluster.data["status"]["conditions"].as_array().cloned().unwrap_or_default();
        Ok(conditions.iter().any(|condition| condition["type"] == "Ready" && condition["status"] == "True"))
    }

    /// Propagates a new object; after its arrival all existing objects have been reconciled.
    fn propagate(&self) -> Result<()> {
        let policy = object(json!({
            "apiVersion": "policy.karmada.io/v1alpha1", "kind": "PropagationPolicy", "metadata": {"name": "new"},
            "spec": {"placement": {"clusterAffinity": {"clusterNames": ["m1"]}},
                "resourceSelectors": [{"apiVersion": "v1", "kind": "ConfigMap", "name": "new"}]},
        }))?;
        let map = object(json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "new"}}))?;
        let policies = objects(&self.cp, "policy.karmada.io", "v1alpha1", "PropagationPolicy", Some("fl-cm-basic"));
        let maps = objects(&self.cp, "", "v1", "ConfigMap", Some("fl-cm-basic"));
        self.runtime.block_on(policies.create(&PostParams::default(), &policy))?;
        self.runtime.block_on(maps.create(&PostParams::default(), &map))?;
        let member_maps = objects(&self.m1, "", "v1", "ConfigMap", Some("fl-cm-basic"));
        wait_for("the new object to be propagated", || Ok(self.runtime.block_on(member_maps.get_opt("new"))?.is_some()))
    }
}

/// Creates the objects of a file in the order in which users and Karmada wrote them: first the objects, then Karmada's
/// labels and annotations, then the status. `values` maps placeholders of the file to their values; the UIDs of created
/// objects are added.
async fn load(client: &Client, file: &str, values: &mut BTreeMap<String, String>) -> Result<()> {
    let discovery = Discovery::new(client.clone()).run().await?;
    for text in file.split("\n---\n") {
        let mut text = text.to_owned();
        for (name, value) in values.iter() {
            text = text.replace(&format!("${{{name}}}"), value);
        }
        let recorded: DynamicObject = object(serde_saphyr::from_str(&text)?)?;
        ensure!(!text.contains("${"), "a placeholder has no value: {text}");
        let types = recorded.types.as_ref().context("the object has no kind")?;
        let kind = GroupVersionKind::try_from(types)?;
        let Some((resource, capabilities)) = discovery.resolve_gvk(&kind) else { bail!("{kind:?} is not served") };
        let all: Api<DynamicObject> = match (capabilities.scope, recorded.namespace()) {
            (Scope::Namespaced, Some(namespace)) => Api::namespaced_with(client.clone(), &namespace, &resource),
            _ => Api::all_with(client.clone(), &resource),
        };
        let name = recorded.name_any();
        let what = || format!("{} {name}", resource.kind);
        let is_template = recorded.annotations().keys().any(|key| key.contains("propagationpolicy.karmada.io/"))
            && recorded.owner_references().is_empty()
            && !recorded.annotations().contains_key("work.karmada.io/name");
        let mut plain = recorded.clone();
        if is_template {
            plain.metadata.annotations = None;
            plain.metadata.labels = None;
        }
        let mut created = all.create(&PostParams::default(), &plain).await.with_context(what)?;
        if is_template {
            created.metadata.annotations = recorded.metadata.annotations.clone();
            created.metadata.labels = recorded.metadata.labels.clone();
            created = all.replace(&name, &PostParams::default(), &created).await.with_context(what)?;
        }
        if let Some(status) = recorded.data.get("status") {
            created.data["status"] = status.clone();
            created = all.replace_status(&name, &PostParams::default(), &created).await.with_context(what)?;
        }
        let prefix = recorded.namespace().map_or_else(String::new, |namespace| format!("{namespace}/"));
        values.insert(format!("{}/{prefix}{name}", resource.kind), created.uid().context("the object has no UID")?);
    }
    Ok(())
}

#[test]
fn migration_writes_nothing_to_members() -> Result<()> {
    let karmada = KarmadaInstallation::start()?;
    let (writes_before, versions_before) = (karmada.writes()?, karmada.member_versions()?);
    let objects_before = karmada.propagation_objects()?;
    ensure!(versions_before.contains_key("deployments/fl-deploy-duplicated/web"), "{versions_before:?}");
    ensure!(objects_before.len() == 13, "{} objects: {:?}", objects_before.len(), objects_before.keys());
    karmada.crowsnest(&["migrate"])?;
    let port = free_port()?;
    let take_over = ["install", "--take-over", "--host", "127.0.0.1", "--port", &port.to_string()];
    let output = karmada.crowsnest(&take_over)?;
    // Also with Karmada's definitions, a second installation writes nothing.
    let read_versions =
        || versions(&karmada.runtime, &karmada.cp, &karmada.control_plane.kubeconfig, &["--take-over"], Vec::new());
    let installed = read_versions()?;
    ensure!(installed.keys().any(|name| name.ends_with(" works.work.karmada.io")), "{installed:?}");
    ensure!(karmada.crowsnest(&take_over)? == output, "the second installation has a different result");
    let again = read_versions()?;
    ensure!(again == installed, "before: {installed:?}\nafter: {again:?}");
    let config = ReplicaConfig {
        control_plane: karmada.control_plane.kubeconfig.clone(),
        database: "sqlite:".to_owned(),
        folder: karmada.dir.path().to_owned(),
        flags: vec!["--cluster-status-update-frequency=2s".to_owned(), "--cluster-success-threshold=1s".to_owned()],
    };
    let mut replica = Replica::start("ours", &config)?;
    let balancer = Balancer::start(port, [replica.backend()])?;
    wait_for("the replica to be the leader and the cluster to be ready", || {
        Ok(replica.is_ready()? && replica.is_leader()? && karmada.is_cluster_ready()?)
    })
    .with_context(|| replica.log())?;
    karmada.propagate().with_context(|| replica.log())?;

    let now = karmada.propagation_objects()?;
    for (name, before) in &objects_before {
        let after = now.get(name).with_context(|| format!("{name} was deleted"))?;
        ensure!(after == before, "{name} was {before:#}\nand is {after:#}");
    }
    let new_writes = karmada.writes()?.split_off(writes_before.len());
    let expected = "create \"/api/v1/namespaces/fl-cm-basic/configmaps";
    let unexpected: Vec<&String> = new_writes.iter().filter(|write| !write.starts_with(expected)).collect();
    ensure!(unexpected.is_empty(), "unexpected writes in the member: {unexpected:#?}\n{}", replica.log());
    ensure!(new_writes.len() == 1, "the new object was written more than once: {new_writes:?}");

    let (stopped, log) = replica.stop()?;
    ensure!(stopped.success(), "the replica stopped with {stopped}: {log}");
    drop(balancer);
    let back = karmada.crowsnest(&["migrate", "--back"])?;
    ensure!(back.contains("of 1 clusters written"), "{back}");
    let writes = karmada.writes()?.split_off(writes_before.len());
    ensure!(writes.len() == new_writes.len(), "{writes:?}");
    let after = karmada.member_versions()?;
    for (name, version) in &versions_before {
        ensure!(
            after.get(name) == Some(version),
            "{name} has the resourceVersion {:?} (expected {version})",
            after.get(name)
        );
    }
    let added: Vec<&String> = after.keys().filter(|name| !versions_before.contains_key(*name)).collect();
    ensure!(added == ["configmaps/fl-cm-basic/new"], "{added:?}");
    Ok(())
}
