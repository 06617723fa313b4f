//! Reads the state of a fleet: objects in the members, bindings and Works in the control plane, each as one comparable
//! text.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use http::Request;
use serde_json::Value;

use crate::crash::model::{MEMBERS, NAMESPACE, PREFIX};
use crate::crash::write::client;

/// Text of a Work that is applied in its member.
pub const APPLIED: &str = "applied";

/// State at the time of one read.
#[derive(Debug, Default)]
pub struct ObservedState {
    /// Texts of bindings, Works and members' objects, by a unique key.
    facts: BTreeMap<String, String>,
    /// Name and UID of each object in a member.
    objects: BTreeMap<String, (String, String)>,
}

impl ObservedState {
    /// Differences from the desired state.
    pub fn differences(&self, desired: &BTreeMap<String, String>) -> Vec<String> {
        let keys: BTreeSet<&String> = self.facts.keys().chain(desired.keys()).collect();
        let differ = keys.into_iter().filter(|key| self.facts.get(*key) != desired.get(*key));
        differ.map(|key| format!("{key}: {:?} (expected {:?})", self.facts.get(key), desired.get(key))).collect()
    }

    /// Members' objects that were recreated since `before`, except those whose name satisfies `is_allowed`.
    pub fn recreated_objects(&self, before: &ObservedState, is_allowed: impl Fn(&str) -> bool) -> Vec<&String> {
        let is_recreated = |(key, (name, uid)): &(&String, &(String, String))| {
            before.objects.get(*key).is_some_and(|(_, old)| old != uid) && !is_allowed(name)
        };
        self.objects.iter().filter(is_recreated).map(|(key, _)| key).collect()
    }

    fn insert(&mut self, key: String, facts: String) {
        if let Some(other) = self.facts.get_mut(&key) {
            *other = format!("duplicate: {other}; {facts}");
        } else {
            self.facts.insert(key, facts);
        }
    }
}

/// Reads the state of the control plane and of all members.
pub struct StateReader {
    control_plane: PathBuf,
    members: Vec<(&'static str, kube::Client)>,
}

fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

fn list<'a>(object: &'a Value, pointer: &str) -> impl Iterator<Item = &'a Value> {
    object.pointer(pointer).and_then(Value::as_array).into_iter().flatten()
}

fn is_true(object: &Value, condition_type: &str) -> bool {
    let mut conditions = list(object, "/status/conditions");
    conditions.any(|condition| condition["type"] == condition_type && condition["status"] == "True")
}

async fn list_all(client: &kube::Client, path: &str) -> Result<Vec<Value>> {
    let request = Request::get(path).body(Vec::new())?;
    let mut response: Value = client.request(request).await.with_context(|| format!("cannot list {path}"))?;
    serde_json::from_value(response["items"].take()).with_context(|| format!("cannot decode the list of {path}"))
}

impl StateReader {
    pub async fn new(control_plane: &Path, members: &Path) -> Result<Self> {
        let mut clients = Vec::new();
        for name in MEMBERS {
            clients.push((name, client(members, Some(name)).await?));
        }
        Ok(StateReader { control_plane: control_plane.to_owned(), members: clients })
    }

    pub async fn read(&self) -> Result<ObservedState> {
        let mut state = ObservedState::default();
        let control_plane = client(&self.control_plane, None).await?;
        let bindings = format!("/apis/work.karmada.io/v1alpha2/namespaces/{NAMESPACE}/resourcebindings");
        for path in [bindings.as_str(), "/apis/work.karmada.io/v1alpha2/clusterresourcebindings"] {
            list_all(&control_plane, path).await?.iter().for_each(|binding| state.add_binding(binding));
        }
        let works = list_all(&control_plane, "/apis/work.karmada.io/v1alpha1/works").await?;
        works.iter().for_each(|work| state.add_work(work));
        for (member, client) in &self.members {
            for (kind, path) in [
                ("ConfigMap", format!("/api/v1/namespaces/{NAMESPACE}/configmaps")),
                ("Deployment", format!("/apis/apps/v1/namespaces/{NAMESPACE}/deployments")),
                ("ClusterRole", "/apis/rbac.authorization.k8s.io/v1/clusterroles".to_owned()),
            ] {
                list_all(client, &path).await?.iter().for_each(|object| state.add_object(member, kind, object));
            }
        }
        Ok(state)
    }
}

/// Text of a binding: target clusters with replicas, conditions, and the clusters that reported status.
pub fn describe_binding(targets: &[String], scheduled: bool, applied: bool, reported: &[&str]) -> String {
    let (targets, reported) = (targets.join(" "), reported.join(" "));
    format!("to {targets}, scheduled: {scheduled}, applied: {applied}, reported by {reported}")
}

impl ObservedState {
    fn add_binding(&mut self, binding: &Value) {
        let has_policy = binding.pointer("/spec/placement").is_some();
        let required = list(binding, "/spec/requiredBy").flat_map(|parent| list(parent, "/clusters"));
        let targets: BTreeSet<String> = list(binding, "/spec/clusters")
            .chain(required)
            .map(|target| format!("{}:{}", text(target, "/name"), target["replicas"].as_u64().unwrap_or_default()))
            .collect();
        if targets.is_empty() && !has_policy {
            // The binding of a dependency that no other binding requires at the moment.
            return;
        }
        let observed =
            binding.pointer("/status/schedulerObservedGeneration") == binding.pointer("/metadata/generation");
        let scheduled = !has_policy || (observed && is_true(binding, "Scheduled"));
        let reported: Vec<&str> =
            list(binding, "/status/aggregatedStatus").map(|item| text(item, "/clusterName")).collect();
        let targets: Vec<String> = targets.into_iter().collect();
        let facts = describe_binding(&targets, scheduled, is_true(binding, "FullyApplied"), &reported);
        let key = format!("binding {}/{}", text(binding, "/metadata/namespace"), text(binding, "/metadata/name"));
        self.insert(key, mark_deletion(binding, facts));
    }

    fn add_work(&mut self, work: &Value) {
        let annotation = |key: &str| work["metadata"]["annotations"][key].as_str();
        let binding = match annotation("resourcebinding.karmada.io/name") {
            Some(name) => format!("{}/{name}", annotation("resourcebinding.karmada.io/namespace").unwrap_or_default()),
            None => match annotation("clusterresourcebinding.karmada.io/name") {
                Some(name) => format!("/{name}"),
                // The Work of a namespace, or of RBAC objects in the member.
                None => return,
            },
        };
        let applied = if is_true(work, "Applied") { APPLIED.to_owned() } else { work["status"].to_string() };
        self.insert(format!("{} Work of {binding}", text(work, "/metadata/namespace")), mark_deletion(work, applied));
    }

    fn add_object(&mut self, member: &str, kind: &str, object: &Value) {
        let name = text(object, "/metadata/name");
        if !name.starts_with(PREFIX) {
            return;
        }
        let facts = match kind {
            "Deployment" => {
                format!("{} of {}", object["spec"]["replicas"], text(object, "/metadata/annotations/value"))
            }
            "ClusterRole" => text(object, "/rules/0/resourceNames/0").to_owned(),
            _ => object["data"].to_string(),
        };
        let key = format!("{member} {kind} {name}");
        self.objects.insert(key.clone(), (name.to_owned(), text(object, "/metadata/uid").to_owned()));
        self.insert(key, mark_deletion(object, facts));
    }
}

/// Marks the text of an object that is being deleted.
fn mark_deletion(object: &Value, facts: String) -> String {
    match object.pointer("/metadata/deletionTimestamp") {
        Some(_) => format!("being deleted: {facts}"),
        None => facts,
    }
}
