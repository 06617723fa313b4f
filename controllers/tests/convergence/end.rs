//! Final state of one namespace, without values that differ between namespaces: ids, versions, times, and its name.

use std::collections::{BTreeMap, BTreeSet};

use crowsnest_apimachinery::names::Gvr;
use crowsnest_controllers::runtime::dynamic_client::Objects;
use http::Request;
use serde::Serialize;
use serde_json::{Value, json};

use super::text;
use crate::test_env::TestEnv;

/// Objects by cluster, resource and name.
#[derive(Debug, PartialEq, Serialize)]
pub struct End(BTreeMap<String, Value>);

impl End {
    pub async fn of(env: &TestEnv, namespace: &str) -> Self {
        let mut found = BTreeMap::new();
        for (member, _) in &env.members {
            for gvr in COPIES {
                for object in of_namespace(&env.member(member), &gvr(), namespace).await {
                    let key = format!("{member} {} {}", gvr().resource, text(&object, "/metadata/name"));
                    found.insert(key, copy(&object));
                }
            }
        }
        let control_plane = env.objects();
        let group = "work.karmada.io";
        for resource in ["resourcebindings", "clusterresourcebindings"] {
            let bindings = of_namespace(&control_plane, &Gvr::new(group, "v1alpha2", resource), namespace).await;
            for binding in bindings.iter().filter(|binding| is_needed(binding)) {
                found.insert(format!("{resource} {}", text(binding, "/metadata/name")), binding_facts(binding));
            }
        }
        for work in all(&control_plane, &Gvr::new(group, "v1alpha1", "works")).await {
            if let Some(of) = binding_of(&work).filter(|of| of.contains(namespace)) {
                let key = format!("{} {of}", text(&work, "/metadata/namespace"));
                assert!(found.insert(key, work_facts(&work)).is_none(), "two Works of {of}");
            }
        }
        let whole = serde_json::to_string(&found).expect("JSON").replace(namespace, "NS");
        End(serde_json::from_str(&whole).expect("JSON"))
    }

    /// Differences to another final state.
    pub fn differences(&self, other: &End, name: &str) -> Vec<String> {
        let keys: BTreeSet<&String> = self.0.keys().chain(other.0.keys()).collect();
        let differ = keys.into_iter().filter(|key| self.0.get(*key) != other.0.get(*key));
        let shown = |end: &End, key: &String| end.0.get(key).map(Value::to_string).unwrap_or_default();
        differ.map(|key| format!("{name} {key}: {} != {}", shown(self, key), shown(other, key))).collect()
    }
}

const COPIES: [fn() -> Gvr; 5] = [
    || Gvr::new("", "v1", "configmaps"),
    || Gvr::new("", "v1", "secrets"),
    || Gvr::new("", "v1", "services"),
    || Gvr::new("apps", "v1", "deployments"),
    || Gvr::new("rbac.authorization.k8s.io", "v1", "clusterroles"),
];

async fn all(objects: &Objects, gvr: &Gvr) -> Vec<Value> {
    let request = Request::get(gvr.path(None)).body(Vec::new()).expect("a request");
    let mut list: Value = objects.client().request(request).await.expect("a list");
    serde_json::from_value(list["items"].take()).expect("items")
}

/// Objects of the namespace. Of cluster-scoped resources, those with the namespace as a prefix of their name.
async fn of_namespace(objects: &Objects, gvr: &Gvr, namespace: &str) -> Vec<Value> {
    let mut found = all(objects, gvr).await;
    found.retain(|object| match text(object, "/metadata/namespace") {
        "" => text(object, "/metadata/name").starts_with(namespace),
        own => own == namespace,
    });
    found
}

/// A dependency's binding that nothing requires is kept for the next one that does.
fn is_needed(binding: &Value) -> bool {
    ["/spec/placement", "/spec/requiredBy"].iter().any(|part| binding.pointer(part).is_some())
}

fn binding_of(work: &Value) -> Option<String> {
    let note = |key: &str| work["metadata"]["annotations"][key].as_str();
    let namespaced = note("resourcebinding.karmada.io/name");
    let namespace = note("resourcebinding.karmada.io/namespace").unwrap_or_default();
    namespaced
        .map(|name| format!("Work of {namespace}/{name}"))
        .or_else(|| note("clusterresourcebinding.karmada.io/name").map(|name| format!("Work of {name}")))
}

fn without_ids(map: &Value) -> Value {
    let kept = map.as_object().into_iter().flatten().filter(|(key, _)| !key.ends_with("permanent-id"));
    kept.map(|(key, value)| (key.clone(), value.clone())).collect::<serde_json::Map<_, _>>().into()
}

fn copy(object: &Value) -> Value {
    let spec = &object["spec"];
    let facts = match object["kind"].as_str().or_else(|| spec.get("template").map(|_| "Deployment")) {
        Some("Deployment") => {
            let container = &spec["template"]["spec"]["containers"][0];
            json!({"replicas": spec["replicas"], "image": container["image"], "envFrom": container["envFrom"]})
        }
        _ => json!({"data": object["data"], "ports": spec["ports"], "rules": object["rules"]}),
    };
    json!({"labels": without_ids(&object["metadata"]["labels"]), "facts": facts})
}

/// Type and status of each condition.
fn conditions(object: &Value) -> BTreeMap<&str, &str> {
    let conditions = object["status"]["conditions"].as_array();
    conditions.into_iter().flatten().map(|one| (text(one, "/type"), text(one, "/status"))).collect()
}

fn binding_facts(binding: &Value) -> Value {
    let mut spec = binding["spec"].clone();
    for own in ["uid", "resourceVersion"] {
        spec["resource"].as_object_mut().expect("a reference").remove(own);
    }
    let annotations = &binding["metadata"]["annotations"];
    let notes: BTreeMap<&String, &Value> =
        annotations.as_object().into_iter().flatten().filter(|(key, _)| !key.contains("applied-placement")).collect();
    let reported = binding["status"]["aggregatedStatus"].as_array().cloned().unwrap_or_default();
    let reported: Vec<Value> = reported.iter().map(|item| json!([item["clusterName"], item["applied"]])).collect();
    let observed = binding["status"]["schedulerObservedGeneration"] == binding["metadata"]["generation"];
    json!({
        "spec": spec, "annotations": notes, "conditions": conditions(binding), "reported": reported,
        "observed": observed || binding["spec"].get("placement").is_none(),
    })
}

/// The annotation of applied overrides stays when the last one is removed, as in Karmada.
fn work_facts(work: &Value) -> Value {
    let annotations = work["metadata"]["annotations"].as_object().into_iter().flatten();
    let notes: BTreeMap<&String, &Value> =
        annotations.filter(|(key, _)| !key.starts_with("policy.karmada.io/applied-")).collect();
    json!({
        "suspended": work["spec"]["suspendDispatching"], "annotations": notes,
        "conditions": conditions(work),
    })
}
