//! In-place migration from Karmada and back, with a recorded control plane and member.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail, ensure};
use crowsnest_tests::{Apiserver, until};
use kube::api::{DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::GroupVersionKind;
use kube::discovery::{Discovery, Scope};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::serve::member_writes::member_writes;
use crate::serve::relay::Balancer;
use crate::serve::site::{Replica, Site, client, crowsnest, free_port};
use crate::serve::world::{object, objects, versions};

const CONTROL_PLANE: &str = include_str!("karmada/control-plane.yaml");
const MEMBER: &str = include_str!("karmada/member.yaml");
/// A resource that Karmada's API server stores itself, as a control plane shows it: the kind and its APIService.
async fn karmada(client: &Client) -> Result<()> {
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
    services.create(&PostParams::default(), &object(service)?).await.context("registering clusters")?;
    let definitions = objects(client, "apiextensions.k8s.io", "v1", "CustomResourceDefinition", None);
    definitions.create(&PostParams::default(), &object(definition)?).await.context("defining clusters")?;
    Ok(())
}

#[test]
fn karmadas_clusters_are_migrated_and_back() -> Result<()> {
    let runtime = Runtime::new()?;
    let dir = tempfile::tempdir()?;
    let control_plane = Apiserver::start(&dir.path().join("cp"))?;
    let cp = control_plane.kubeconfig.as_path();
    let client = runtime.block_on(client(cp))?;
    runtime.block_on(karmada(&client))?;
    let theirs = objects(&client, "cluster.karmada.io", "v1alpha1", "Cluster", None);
    let ours = objects(&client, "storage.crowsnest.io", "v1alpha1", "StoredCluster", None);
    let cluster = object(json!({
        "apiVersion": "cluster.karmada.io/v1alpha1", "kind": "Cluster",
        "metadata": {"name": "m1", "labels": {"tier": "gold"}, "finalizers": ["karmada.io/cluster-controller"]},
        "spec": {"syncMode": "Push", "id": "7", "apiEndpoint": "https://m1"},
    }))?;
    until("clusters to be served", || Ok(runtime.block_on(theirs.create(&PostParams::default(), &cluster)).is_ok()))?;
    let mut stored = runtime.block_on(theirs.get("m1"))?;
    stored.data["status"] = json!({"kubernetesVersion": "v1.36.0"});
    runtime.block_on(theirs.replace_status("m1", &PostParams::default(), &stored))?;

    let early = crowsnest(cp, &["install", "--host", "127.0.0.1", "--port", "1"])?;
    ensure!(!early.ok && early.err.contains("run `crowsnest migrate` first"), "{early:?}");
    let would = crowsnest(cp, &["migrate", "--dry-run"])?;
    ensure!(would.ok && would.out.contains("clusters/m1 would be created"), "{would:?}");
    let came = crowsnest(cp, &["migrate"])?;
    ensure!(came.ok && came.out.contains("clusters/m1 created"), "{came:?}");
    let kept = runtime.block_on(ours.get("m1"))?;
    ensure!(kept.data["spec"] == cluster.data["spec"] && kept.metadata.labels == cluster.metadata.labels, "{kept:?}");
    ensure!(kept.data["status"]["kubernetesVersion"] == "v1.36.0", "{kept:?}");
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
    // A cluster that left under Crowsnest is removed for Karmada, too.
    let free = kube::api::Patch::Merge(json!({"metadata": {"finalizers": null}}));
    runtime.block_on(ours.patch("m1", &kube::api::PatchParams::default(), &free))?;
    runtime.block_on(ours.delete("m1", &kube::api::DeleteParams::default()))?;
    let back = crowsnest(cp, &["migrate", "--back"])?;
    ensure!(back.ok && back.out.contains("clusters/m1 deleted"), "{back:?}");
    ensure!(runtime.block_on(theirs.get_opt("m1"))?.is_none(), "it is still there");
    Ok(())
}

/// Karmada's definitions: Crowsnest's, without conversion webhooks and its additional fields.
async fn define(control_plane: &Client) -> Result<()> {
    let definitions = objects(control_plane, "apiextensions.k8s.io", "v1", "CustomResourceDefinition", None);
    for definition in crowsnest_api::crd::crds(None) {
        if definition["spec"]["group"].as_str().is_some_and(|group| group.ends_with("karmada.io")) {
            definitions.create(&PostParams::default(), &object(definition)?).await.context("defining")?;
        }
    }
    Ok(())
}

/// A control plane and a member that Karmada managed, with no controllers running.
struct Left {
    runtime: Runtime,
    cp: Client,
    m1: Client,
    control_plane: Apiserver,
    member: Apiserver,
    dir: tempfile::TempDir,
}

impl Left {
    fn start() -> Result<Self> {
        let runtime = Runtime::new()?;
        let dir = tempfile::tempdir()?;
        let (control_plane, member) =
            (Apiserver::start(&dir.path().join("cp"))?, Apiserver::start(&dir.path().join("m1"))?);
        let cp = runtime.block_on(client(&control_plane.kubeconfig))?;
        let m1 = runtime.block_on(client(&member.kubeconfig))?;
        runtime.block_on(karmada(&cp))?;
        runtime.block_on(define(&cp))?;
        let left = Self { runtime, cp, m1, control_plane, member, dir };
        let kubeconfig = left.member.kubeconfig.display().to_string();
        let mut last = String::new();
        until("the member to be joined to the simulated Karmada", || {
            let output =
                crowsnest(&left.control_plane.kubeconfig, &["join", "m1", "--cluster-kubeconfig", &kubeconfig])?;
            last = format!("{output:?}");
            Ok(output.ok)
        })
        .context(last)?;
        left.runtime.block_on(left.fill())?;
        Ok(left)
    }

    async fn fill(&self) -> Result<()> {
        // As Karmada's cluster controller does it.
        let clusters = objects(&self.cp, "cluster.karmada.io", "v1alpha1", "Cluster", None);
        let held =
            Patch::Merge(json!({"metadata": {"finalizers": ["karmada.io/cluster-controller"], "annotations": null}}));
        let cluster = clusters.patch("m1", &PatchParams::default(), &held).await?;
        let mut uids = BTreeMap::from([("Cluster/m1".to_owned(), cluster.uid().context("a cluster without a uid")?)]);
        let namespaces = objects(&self.cp, "", "v1", "Namespace", None);
        for name in ["karmada-es-m1", "karmada-system"] {
            let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
            namespaces.create(&PostParams::default(), &object(namespace)?).await?;
        }
        load(&self.cp, CONTROL_PLANE, &mut uids).await.context("filling the control plane")?;
        load(&self.m1, MEMBER, &mut uids.clone()).await.context("filling the member")
    }

    fn crowsnest(&self, args: &[&str]) -> Result<String> {
        let output = crowsnest(&self.control_plane.kubeconfig, args)?;
        ensure!(output.ok, "{args:?}: {output:?}");
        Ok(output.out)
    }

    fn writes(&self) -> Result<Vec<String>> {
        member_writes(&self.runtime, &self.member, &self.m1)
    }

    /// Versions of all objects in the member, of all kinds.
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
            Ok(versions)
        })
    }

    /// Versions of Works, bindings, and their templates; without statuses of the Deployment, which the
    /// recording omits.
    fn kept(&self) -> Result<BTreeMap<String, Value>> {
        let kinds = [
            ("work.karmada.io", "v1alpha1", "Work"),
            ("work.karmada.io", "v1alpha2", "ResourceBinding"),
            ("work.karmada.io", "v1alpha2", "ClusterResourceBinding"),
            ("policy.karmada.io", "v1alpha1", "PropagationPolicy"),
            ("policy.karmada.io", "v1alpha1", "ClusterPropagationPolicy"),
        ];
        let mut kept = BTreeMap::new();
        for (group, version, kind) in kinds {
            let all = objects(&self.cp, group, version, kind, None);
            for found in self.runtime.block_on(all.list(&ListParams::default()))? {
                let name = format!("{kind}/{}/{}", found.namespace().unwrap_or_default(), found.name_any());
                let mut whole = serde_json::to_value(&found)?;
                if found.name_any().starts_with("web-") {
                    whole["status"] = Value::Null;
                    whole["metadata"]["resourceVersion"] = Value::Null;
                    whole["metadata"]["managedFields"] = Value::Null;
                }
                kept.insert(name, whole);
            }
        }
        Ok(kept)
    }

    fn is_ready(&self) -> Result<bool> {
        let clusters = objects(&self.cp, "cluster.karmada.io", "v1alpha1", "Cluster", None);
        let Ok(cluster) = self.runtime.block_on(clusters.get("m1")) else { return Ok(false) };
        let conditions = cluster.data["status"]["conditions"].as_array().cloned().unwrap_or_default();
        Ok(conditions.iter().any(|shown| shown["type"] == "Ready" && shown["status"] == "True"))
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
        let there = objects(&self.m1, "", "v1", "ConfigMap", Some("fl-cm-basic"));
        until("something new to arrive", || Ok(self.runtime.block_on(there.get_opt("new"))?.is_some()))
    }
}

/// Creates the objects of a file as users and Karmada created them: first the objects, then Karmada's annotations.
async fn load(client: &Client, file: &str, uids: &mut BTreeMap<String, String>) -> Result<()> {
    let discovery = Discovery::new(client.clone()).run().await?;
    for text in file.split("\n---\n") {
        let mut text = text.to_owned();
        for (name, uid) in uids.iter() {
            text = text.replace(&format!("${{{name}}}"), uid);
        }
        let wanted: DynamicObject = object(serde_saphyr::from_str(&text)?)?;
        ensure!(!text.contains("${"), "something is owned by what is not there: {text}");
        let types = wanted.types.as_ref().context("an object of no kind")?;
        let kind = GroupVersionKind::try_from(types)?;
        let Some((resource, capabilities)) = discovery.resolve_gvk(&kind) else { bail!("{kind:?} is not served") };
        let all: Api<DynamicObject> = match (capabilities.scope, wanted.namespace()) {
            (Scope::Namespaced, Some(namespace)) => Api::namespaced_with(client.clone(), &namespace, &resource),
            _ => Api::all_with(client.clone(), &resource),
        };
        let name = wanted.name_any();
        let what = || format!("{} {name}", resource.kind);
        let template = wanted.annotations().keys().any(|key| key.contains("propagationpolicy.karmada.io/"))
            && wanted.owner_references().is_empty()
            && !wanted.annotations().contains_key("work.karmada.io/name");
        let mut plain = wanted.clone();
        if template {
            plain.metadata.annotations = None;
            plain.metadata.labels = None;
        }
        let mut made = all.create(&PostParams::default(), &plain).await.with_context(what)?;
        if template {
            made.metadata.annotations = wanted.metadata.annotations.clone();
            made.metadata.labels = wanted.metadata.labels.clone();
            made = all.replace(&name, &PostParams::default(), &made).await.with_context(what)?;
        }
        if let Some(status) = wanted.data.get("status") {
            made.data["status"] = status.clone();
            made = all.replace_status(&name, &PostParams::default(), &made).await.with_context(what)?;
        }
        let of = wanted.namespace().map_or_else(String::new, |namespace| format!("{namespace}/"));
        uids.insert(format!("{}/{of}{name}", resource.kind), made.uid().context("an object without a uid")?);
    }
    Ok(())
}

#[test]
fn migration_writes_nothing_to_members() -> Result<()> {
    let left = Left::start()?;
    let (written, there, kept) = (left.writes()?, left.member_versions()?, left.kept()?);
    ensure!(there.contains_key("deployments/fl-deploy-duplicated/web"), "{there:?}");
    ensure!(kept.len() == 13, "{} kept: {:?}", kept.len(), kept.keys());
    left.crowsnest(&["migrate"])?;
    let port = free_port()?;
    let take_over = ["install", "--take-over", "--host", "127.0.0.1", "--port", &port.to_string()];
    let output = left.crowsnest(&take_over)?;
    // With Karmada's definitions, a second installation writes nothing as well.
    let versions_of =
        || versions(&left.runtime, &left.cp, &left.control_plane.kubeconfig, &["--take-over"], Vec::new());
    let installed = versions_of()?;
    ensure!(installed.keys().any(|name| name.ends_with(" works.work.karmada.io")), "{installed:?}");
    ensure!(left.crowsnest(&take_over)? == output, "it does something else the second time");
    let again = versions_of()?;
    ensure!(again == installed, "{installed:?}\nand then {again:?}");
    let site = Site {
        control_plane: left.control_plane.kubeconfig.clone(),
        database: "sqlite:".to_owned(),
        folder: left.dir.path().to_owned(),
        flags: vec!["--cluster-status-update-frequency=2s".to_owned(), "--cluster-success-threshold=1s".to_owned()],
    };
    let mut replica = Replica::start("ours", &site)?;
    let balancer = Balancer::start(port, [replica.backend()])?;
    until("ours to lead", || Ok(replica.is_ready()? && replica.leads()? && left.is_ready()?))
        .with_context(|| replica.log())?;
    left.propagate().with_context(|| replica.log())?;

    let now = left.kept()?;
    for (name, before) in &kept {
        let after = now.get(name).with_context(|| format!("{name} is gone"))?;
        ensure!(after == before, "{name} was {before:#}\nand is {after:#}");
    }
    let wrote = left.writes()?.split_off(written.len());
    let new = "create \"/api/v1/namespaces/fl-cm-basic/configmaps";
    let needless: Vec<&String> = wrote.iter().filter(|write| !write.starts_with(new)).collect();
    ensure!(needless.is_empty(), "written in the member: {needless:#?}\n{}", replica.log());
    ensure!(wrote.len() == 1, "the new one is written by {wrote:?}");

    let (stopped, log) = replica.stop()?;
    ensure!(stopped.success(), "it stopped with {stopped}: {log}");
    drop(balancer);
    let back = left.crowsnest(&["migrate", "--back"])?;
    ensure!(back.contains("of 1 clusters written"), "{back}");
    ensure!(left.writes()?.len() == written.len() + wrote.len(), "{:?}", left.writes()?.split_off(written.len()));
    let after = left.member_versions()?;
    for (name, version) in &there {
        ensure!(after.get(name) == Some(version), "{name} is of version {:?} instead of {version}", after.get(name));
    }
    let added: Vec<&String> = after.keys().filter(|name| !there.contains_key(*name)).collect();
    ensure!(added == ["configmaps/fl-cm-basic/new"], "{added:?}");
    Ok(())
}
