//! Consistent snapshots of the copies in the members' own stores, and their violations of the invariants.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use anyhow::{Context, Result, anyhow};
use crowsnest_apimachinery::names::Gvr;
use crowsnest_registry::storage::ResourceKey;
use crowsnest_sim::member::Member;
use http::Request;
use serde_json::Value;

use crate::failover::workload::{NAMESPACE, Workload};
use crate::failover::{Needs, has};

pub type Members = BTreeMap<&'static str, Arc<Member>>;

/// A workload in one member.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Copy {
    /// Empty if only pods are left.
    pub uid: String,
    pub replicas: i64,
    pub ready: i64,
    pub leaving: bool,
    /// Running pods, including terminating ones.
    pub pods: i64,
}

/// By workload and member.
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

fn is_leaving(object: &Value) -> bool {
    object.pointer("/metadata/deletionTimestamp").is_some()
}

fn condition<'a>(object: &'a Value, kind: &str) -> Option<&'a Value> {
    list(object, "/status/conditions").find(|one| one["type"] == kind)
}

fn is_true(object: &Value, kind: &str) -> bool {
    condition(object, kind).is_some_and(|one| one["status"] == "True")
}

/// Latest versions of Deployments and pods in each member.
fn versions(members: &Members) -> Vec<u64> {
    let tables = [ResourceKey::new("apps", "deployments"), ResourceKey::new("", "pods")];
    let of = |member: &Arc<Member>| tables.each_ref().map(|table| member.server().registry().store.last_change(table));
    members.values().flat_map(of).collect()
}

async fn all(member: &Member, group: &str, plural: &str) -> Result<Vec<Value>> {
    let registry = member.server().registry();
    let failed = |error| anyhow!("{plural} of {}: {error:?}", member.name());
    let resource = registry.resource(&Gvr::new(group, "v1", plural)).map_err(failed)?;
    let mut objects = registry.list_all(&resource).await.map_err(failed)?;
    objects.retain(|object| text(object, "/metadata/namespace") == NAMESPACE);
    Ok(objects)
}

/// All copies at one time: repeated if anything changed meanwhile.
pub async fn copies(members: &Members) -> Result<Copies> {
    loop {
        let before = versions(members);
        let mut copies = Copies::new();
        for (name, member) in members {
            for deployment in all(member, "apps", "deployments").await? {
                let copy = copies.entry((text(&deployment, "/metadata/name").to_owned(), *name)).or_default();
                copy.uid = text(&deployment, "/metadata/uid").to_owned();
                copy.replicas = number(&deployment, "/spec/replicas");
                copy.ready = number(&deployment, "/status/readyReplicas");
                copy.leaving = is_leaving(&deployment);
            }
            for pod in all(member, "", "pods").await? {
                let ended = ["Succeeded", "Failed"].contains(&text(&pod, "/status/phase"));
                let copy = copies.entry((text(&pod, "/metadata/labels/app").to_owned(), *name)).or_default();
                copy.pods += i64::from(!ended);
            }
        }
        if versions(members) == before {
            return Ok(copies);
        }
    }
}

/// True if all replicas of a workload are ready in a member.
pub fn is_well_in(copies: &Copies, workload: &Workload, member: &'static str) -> bool {
    let copy = copies.get(&(workload.name.clone(), member));
    copy.is_some_and(|copy| !copy.leaving && copy.ready >= workload.replicas)
}

/// Violated invariants.
pub fn violations(copies: &Copies, workloads: &[Workload]) -> Vec<String> {
    let mut found = Vec::new();
    for workload in workloads {
        let (name, wanted) = (workload.name.as_str(), workload.replicas);
        let mine = || copies.iter().filter(|((of, _), _)| of == name);
        if workload.is_exclusive() {
            let replicas: i64 = mine().map(|(_, copy)| copy.replicas).sum();
            let pods: i64 = mine().map(|(_, copy)| copy.pods).sum();
            if replicas > wanted || (has(Needs::Exclusive) && pods > wanted) {
                found.push(format!("{name} has too many replicas: {:?}", mine().collect::<Vec<_>>()));
            }
        } else if !mine().any(|(_, copy)| !copy.leaving && copy.replicas >= wanted && copy.ready >= wanted) {
            found.push(format!("{name} has no ready copy: {:?}", mine().collect::<Vec<_>>()));
        }
    }
    found
}

/// Uid of each workload in each member.
pub fn identities(copies: &Copies) -> BTreeMap<(String, &'static str), String> {
    copies.iter().filter(|(_, copy)| !copy.uid.is_empty()).map(|(key, copy)| (key.clone(), copy.uid.clone())).collect()
}

/// State of the control plane at one time.
pub struct Plans {
    pub clusters: Vec<Value>,
    pub bindings: Vec<Value>,
    works: Vec<Value>,
}

async fn list_items(client: &kube::Client, path: &str) -> Result<Vec<Value>> {
    let request = Request::get(path).body(Vec::new())?;
    let mut response: Value = client.request(request).await.with_context(|| format!("cannot list {path}"))?;
    serde_json::from_value(response["items"].take()).with_context(|| format!("cannot decode the list of {path}"))
}

impl Plans {
    pub async fn read(client: &kube::Client) -> Result<Self> {
        let bindings = format!("/apis/work.karmada.io/v1alpha2/namespaces/{NAMESPACE}/resourcebindings");
        Ok(Plans {
            clusters: list_items(client, "/apis/cluster.karmada.io/v1alpha1/clusters").await?,
            bindings: list_items(client, &bindings).await?,
            works: list_items(client, "/apis/work.karmada.io/v1alpha1/works").await?,
        })
    }

    /// True if any workload is being evicted.
    pub fn evict(&self) -> bool {
        self.bindings.iter().any(|binding| list(binding, "/spec/gracefulEvictionTasks").next().is_some())
    }

    /// The reason of a condition of each cluster.
    pub fn reasons(&self, kind: &str) -> BTreeMap<&str, &str> {
        let reason = |cluster| condition(cluster, kind).map(|one| text(one, "/reason")).unwrap_or_default();
        self.clusters.iter().map(|cluster| (text(cluster, "/metadata/name"), reason(cluster))).collect()
    }

    /// Explanations of all clusters, for timeouts.
    pub fn judged(&self) -> Vec<String> {
        let describe =
            |cluster: &Value, kind| condition(cluster, kind).map(|one| format!("{} {}", one["reason"], one["message"]));
        let one = |cluster: &Value| {
            let (ready, signals) = (describe(cluster, "Ready"), describe(cluster, "HealthSignals"));
            let name = text(cluster, "/metadata/name");
            format!("{name}: {ready:?}, {signals:?}, taints {}", cluster["spec"]["taints"])
        };
        self.clusters.iter().map(one).collect()
    }

    /// Differences from the idle state: all ready, nothing pending, and members equal to the plan.
    pub fn differences(&self, copies: &Copies, workloads: &[Workload]) -> Vec<String> {
        let mut found = Vec::new();
        for cluster in &self.clusters {
            if !is_true(cluster, "Ready") || list(cluster, "/spec/taints").next().is_some() {
                let (ready, taints) = (condition(cluster, "Ready"), &cluster["spec"]["taints"]);
                found.push(format!("cluster {}: {ready:?}, taints {taints}", text(cluster, "/metadata/name")));
            }
        }
        for workload in workloads {
            match self.bindings.iter().find(|binding| text(binding, "/spec/resource/name") == workload.name) {
                Some(binding) => found.extend(self.pending_changes(binding, copies, workload)),
                None => found.push(format!("{} has no binding", workload.name)),
            }
        }
        let known: BTreeSet<&str> = workloads.iter().map(|workload| workload.name.as_str()).collect();
        found.extend(
            copies
                .keys()
                .filter(|(name, _)| !known.contains(name.as_str()))
                .map(|key| format!("unknown workload {key:?}")),
        );
        found
    }

    fn pending_changes(&self, binding: &Value, copies: &Copies, workload: &Workload) -> Vec<String> {
        let name = workload.name.as_str();
        let mut found = Vec::new();
        let observed =
            binding.pointer("/status/schedulerObservedGeneration") == binding.pointer("/metadata/generation");
        if !observed || !is_true(binding, "Scheduled") || !is_true(binding, "FullyApplied") || is_leaving(binding) {
            found.push(format!("{name}: {} {}", binding["metadata"]["generation"], binding["status"]));
        }
        if list(binding, "/spec/gracefulEvictionTasks").next().is_some() {
            found.push(format!("{name} is being evicted: {}", binding["spec"]["gracefulEvictionTasks"]));
        }
        let planned: BTreeSet<&str> = list(binding, "/spec/clusters").map(|target| text(target, "/name")).collect();
        if !workload.may_be_in(&planned) {
            found.push(format!("{name} must not be in {planned:?}"));
        }
        let mine = |work: &&Value| {
            work["metadata"]["annotations"]["resourcebinding.karmada.io/name"] == binding["metadata"]["name"]
        };
        let mut works: BTreeSet<&str> = BTreeSet::new();
        for work in self.works.iter().filter(mine) {
            let member = text(work, "/metadata/namespace").strip_prefix("karmada-es-").unwrap_or_default();
            if !works.insert(member) || is_leaving(work) || !is_true(work, "Applied") {
                found.push(format!("the Work of {name} in {member}: {} {}", work["metadata"], work["status"]));
            }
        }
        let present: BTreeSet<&str> = copies.keys().filter(|(of, _)| of == name).map(|(_, member)| *member).collect();
        if works != planned || present != planned {
            found.push(format!("{name} is planned for {planned:?}, has Works for {works:?} and is in {present:?}"));
        }
        let is_as_planned = |copy: &Copy| {
            !copy.leaving && [copy.replicas, copy.ready, copy.pods].iter().all(|count| *count == workload.replicas)
        };
        let others = copies.iter().filter(|((of, _), copy)| of == name && !is_as_planned(copy));
        found.extend(others.map(|(key, copy)| format!("{key:?} does not have the planned replicas: {copy:?}")));
        found
    }
}
