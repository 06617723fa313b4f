//! State of the fleet: consistent snapshots of the copies in the members' own stores, violations of the invariants, and
//! the control plane's objects.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use anyhow::{Context, Result, anyhow};
use crowsnest_apimachinery::names::Gvr;
use crowsnest_registry::storage::ResourceKey;
use crowsnest_sim::member::Member;
use http::Request;
use serde_json::Value;

use crate::failover::workload::{NAMESPACE, Workload};
use crate::failover::{Feature, is_implemented};

pub type Members = BTreeMap<&'static str, Arc<Member>>;

/// A workload in one member.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Copy {
    /// Empty if only pods are left.
    pub uid: String,
    pub replicas: i64,
    pub ready: i64,
    pub is_deleting: bool,
    /// Number of pods that have not completed, including terminating ones.
    pub pods: i64,
}

/// Copies by workload and member.
pub type Copies = BTreeMap<(String, &'static str), Copy>;

fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

fn number(object: &Value, pointer: &str) -> i64 {
    object.pointer(pointer).and_then(Value::as_i64).unwrap_or_default()
}

fn list<'a>(object: &'a Value, pointer: &str) -> impl Iterator<Item = &'a Value> {
    object.pointer(pointer).and_then(Value::as_array).into_iter().flatten()
}

fn is_being_deleted(object: &Value) -> bool {
    object.pointer("/metadata/deletionTimestamp").is_some()
}

fn condition<'a>(object: &'a Value, kind: &str) -> Option<&'a Value> {
    list(object, "/status/conditions").find(|one| one["type"] == kind)
}

fn is_true(object: &Value, kind: &str) -> bool {
    condition(object, kind).is_some_and(|one| one["status"] == "True")
}

/// Resource versions of the last change of Deployments and of pods in each member.
fn versions(members: &Members) -> Vec<u64> {
    let tables = [ResourceKey::new("apps", "deployments"), ResourceKey::new("", "pods")];
    let of = |member: &Arc<Member>| tables.each_ref().map(|table| member.server().registry().store.last_change(table));
    members.values().flat_map(of).collect()
}

async fn list_objects(member: &Member, group: &str, plural: &str) -> Result<Vec<Value>> {
    let registry = member.server().registry();
    let failed = |error| anyhow!("{plural} of {}: {error:?}", member.name());
    let resource = registry.resource(&Gvr::new(group, "v1", plural)).map_err(failed)?;
    let mut objects = registry.list_all(&resource).await.map_err(failed)?;
    objects.retain(|object| text(object, "/metadata/namespace") == NAMESPACE);
    Ok(objects)
}

/// Reads copies repeatedly, and lists objects only if one has changed since the last read.
#[derive(Default)]
pub struct CopyReader {
    versions: Vec<u64>,
    copies: Copies,
}

impl CopyReader {
    pub async fn read(&mut self, members: &Members) -> Result<&Copies> {
        if versions(members) != self.versions {
            (self.versions, self.copies) = read_versions_and_copies(members).await?;
        }
        Ok(&self.copies)
    }
}

/// Reads the copies of all workloads at one time.
pub async fn read_copies(members: &Members) -> Result<Copies> {
    Ok(read_versions_and_copies(members).await?.1)
}

/// Reads copies with the versions at that time. Reads again if an object changes during the read.
async fn read_versions_and_copies(members: &Members) -> Result<(Vec<u64>, Copies)> {
    loop {
        let before = versions(members);
        let mut copies = Copies::new();
        for (name, member) in members {
            for deployment in list_objects(member, "apps", "deployments").await? {
                let copy = copies.entry((text(&deployment, "/metadata/name").to_owned(), *name)).or_default();
                copy.uid = text(&deployment, "/metadata/uid").to_owned();
                copy.replicas = number(&deployment, "/spec/replicas");
                copy.ready = number(&deployment, "/status/readyReplicas");
                copy.is_deleting = is_being_deleted(&deployment);
            }
            for pod in list_objects(member, "", "pods").await? {
                let is_completed = ["Succeeded", "Failed"].contains(&text(&pod, "/status/phase"));
                let copy = copies.entry((text(&pod, "/metadata/labels/app").to_owned(), *name)).or_default();
                copy.pods += i64::from(!is_completed);
            }
        }
        if versions(members) == before {
            return Ok((before, copies));
        }
    }
}

/// True if all replicas of a workload are ready in a member.
pub fn is_ready_in(copies: &Copies, workload: &Workload, member: &'static str) -> bool {
    let copy = copies.get(&(workload.name.clone(), member));
    copy.is_some_and(|copy| !copy.is_deleting && copy.ready >= workload.replicas)
}

/// Violations of the invariants: exclusive workloads have no more replicas and pods than specified in all members
/// together, and every other workload has a ready copy in one member.
pub fn violations(copies: &Copies, workloads: &[Workload]) -> Vec<String> {
    let mut violations = Vec::new();
    for workload in workloads {
        let (name, replicas) = (workload.name.as_str(), workload.replicas);
        let own_copies = || copies.iter().filter(|((workload, _), _)| workload == name);
        if workload.is_exclusive() {
            let actual: i64 = own_copies().map(|(_, copy)| copy.replicas).sum();
            let pods: i64 = own_copies().map(|(_, copy)| copy.pods).sum();
            if actual > replicas || (is_implemented(Feature::ExclusiveWorkloads) && pods > replicas) {
                violations.push(format!("{name} has too many replicas: {:?}", own_copies().collect::<Vec<_>>()));
            }
        } else if !own_copies()
            .any(|(_, copy)| !copy.is_deleting && copy.replicas >= replicas && copy.ready >= replicas)
        {
            violations.push(format!("{name} has no ready copy: {:?}", own_copies().collect::<Vec<_>>()));
        }
    }
    violations
}

/// UID of each workload in each member.
pub fn uids(copies: &Copies) -> BTreeMap<(String, &'static str), String> {
    copies.iter().filter(|(_, copy)| !copy.uid.is_empty()).map(|(key, copy)| (key.clone(), copy.uid.clone())).collect()
}

/// Clusters, bindings and Works of the control plane.
pub struct ControlPlaneState {
    pub clusters: Vec<Value>,
    pub bindings: Vec<Value>,
    works: Vec<Value>,
}

async fn list_items(client: &kube::Client, path: &str) -> Result<Vec<Value>> {
    let request = Request::get(path).body(Vec::new())?;
    let mut response: Value = client.request(request).await.with_context(|| format!("cannot list {path}"))?;
    serde_json::from_value(response["items"].take()).with_context(|| format!("cannot decode the list of {path}"))
}

impl ControlPlaneState {
    pub async fn read(client: &kube::Client) -> Result<Self> {
        let bindings = format!("/apis/work.karmada.io/v1alpha2/namespaces/{NAMESPACE}/resourcebindings");
        Ok(ControlPlaneState {
            clusters: list_items(client, "/apis/cluster.karmada.io/v1alpha1/clusters").await?,
            bindings: list_items(client, &bindings).await?,
            works: list_items(client, "/apis/work.karmada.io/v1alpha1/works").await?,
        })
    }

    /// True if any workload is being evicted.
    pub fn has_evictions(&self) -> bool {
        self.bindings.iter().any(|binding| list(binding, "/spec/gracefulEvictionTasks").next().is_some())
    }

    /// The reason of a condition of each cluster.
    pub fn condition_reasons(&self, kind: &str) -> BTreeMap<&str, &str> {
        let reason = |cluster| condition(cluster, kind).map(|one| text(one, "/reason")).unwrap_or_default();
        self.clusters.iter().map(|cluster| (text(cluster, "/metadata/name"), reason(cluster))).collect()
    }

    /// Health conditions and taints of each cluster, for error messages.
    pub fn describe_clusters(&self) -> Vec<String> {
        let describe =
            |cluster: &Value, kind| condition(cluster, kind).map(|one| format!("{} {}", one["reason"], one["message"]));
        let describe_cluster = |cluster: &Value| {
            let (ready, signals) = (describe(cluster, "Ready"), describe(cluster, "HealthSignals"));
            let name = text(cluster, "/metadata/name");
            format!("{name}: {ready:?}, {signals:?}, taints {}", cluster["spec"]["taints"])
        };
        self.clusters.iter().map(describe_cluster).collect()
    }

    /// Differences from the settled state: all clusters are ready, no change is pending, and the members' objects are
    /// as planned.
    pub fn differences(&self, copies: &Copies, workloads: &[Workload]) -> Vec<String> {
        let mut differences = Vec::new();
        for cluster in &self.clusters {
            if !is_true(cluster, "Ready") || list(cluster, "/spec/taints").next().is_some() {
                let (ready, taints) = (condition(cluster, "Ready"), &cluster["spec"]["taints"]);
                differences.push(format!("cluster {}: {ready:?}, taints {taints}", text(cluster, "/metadata/name")));
            }
        }
        for workload in workloads {
            match self.bindings.iter().find(|binding| text(binding, "/spec/resource/name") == workload.name) {
                Some(binding) => differences.extend(self.pending_changes(binding, copies, workload)),
                None => differences.push(format!("{} has no binding", workload.name)),
            }
        }
        let workload_names: BTreeSet<&str> = workloads.iter().map(|workload| workload.name.as_str()).collect();
        differences.extend(
            copies
                .keys()
                .filter(|(name, _)| !workload_names.contains(name.as_str()))
                .map(|key| format!("unknown workload {key:?}")),
        );
        differences
    }

    fn pending_changes(&self, binding: &Value, copies: &Copies, workload: &Workload) -> Vec<String> {
        let name = workload.name.as_str();
        let mut differences = Vec::new();
        let observed =
            binding.pointer("/status/schedulerObservedGeneration") == binding.pointer("/metadata/generation");
        if !observed || !is_true(binding, "Scheduled") || !is_true(binding, "FullyApplied") || is_being_deleted(binding)
        {
            differences.push(format!("{name}: {} {}", binding["metadata"]["generation"], binding["status"]));
        }
        if list(binding, "/spec/gracefulEvictionTasks").next().is_some() {
            differences.push(format!("{name} is being evicted: {}", binding["spec"]["gracefulEvictionTasks"]));
        }
        let targets: BTreeSet<&str> = list(binding, "/spec/clusters").map(|target| text(target, "/name")).collect();
        if !workload.accepts_placement(&targets) {
            differences.push(format!("{name} is scheduled to {targets:?}, which its policy does not allow"));
        }
        let is_own = |work: &&Value| {
            work["metadata"]["annotations"]["resourcebinding.karmada.io/name"] == binding["metadata"]["name"]
        };
        let mut works: BTreeSet<&str> = BTreeSet::new();
        for work in self.works.iter().filter(is_own) {
            let member = text(work, "/metadata/namespace").strip_prefix("karmada-es-").unwrap_or_default();
            if !works.insert(member) || is_being_deleted(work) || !is_true(work, "Applied") {
                differences.push(format!("the Work of {name} in {member}: {} {}", work["metadata"], work["status"]));
            }
        }
        let present: BTreeSet<&str> =
            copies.keys().filter(|(workload, _)| workload == name).map(|(_, member)| *member).collect();
        if works != targets || present != targets {
            differences
                .push(format!("{name} is scheduled to {targets:?}, has Works for {works:?} and is in {present:?}"));
        }
        let has_scheduled_replicas = |copy: &Copy| {
            !copy.is_deleting && [copy.replicas, copy.ready, copy.pods].iter().all(|count| *count == workload.replicas)
        };
        let others = copies.iter().filter(|((workload, _), copy)| workload == name && !has_scheduled_replicas(copy));
        differences.extend(others.map(|(key, copy)| format!("{key:?} does not have the scheduled replicas: {copy:?}")));
        differences
    }
}
