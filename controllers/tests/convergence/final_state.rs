//! Final state of one namespace, without values that differ between namespaces: ids, versions, times, and its name.

use std::collections::{BTreeMap, BTreeSet};

use crowsnest_apimachinery::names::Gvr;
use crowsnest_controllers::runtime::dynamic_client::DynamicClient;
use http::Request;
use serde::Serialize;
use serde_json::{Value, json};

use super::text;
use crate::test_env::TestEnv;

/// Objects by cluster, resource and name.
#[derive(Debug, PartialEq, Serialize)]
pub struct FinalState(BTreeMap<String, Value>);

impl FinalState {
    pub async fn read(env: &TestEnv, namespace: &str) -> Self {
        let mut found = BTreeMap::new();
        for (member, _) in &env.members {
            for gvr in MEMBER_RESOURCES {
                for object in objects_in_namespace(&env.member(member), &gvr(), namespace).await {
                    let key = format!("{member} {} {}", gvr().resource, text(&object, "/metadata/name"));
                    found.insert(key, copy_facts(&object));
                }
            }
        }
        let control_plane = env.objects();
        let group = "work.karmada.io";
        for resource in ["resourcebindings", "clusterresourcebindings"] {
            let bindings =
                objects_in_namespace(&control_plane, &Gvr::new(group, "v1alpha2", resource), namespace).await;
            for binding in bindings.iter().filter(|binding| is_needed(binding)) {
                found.insert(format!("{resource} {}", text(binding, "/metadata/name")), binding_facts(binding));
            }
        }
        for work in list(&control_plane, &Gvr::new(group, "v1alpha1", "works")).await {
            if let Some(name) = binding_of(&work).filter(|name| name.contains(namespace)) {
                let key = format!("{} {name}", text(&work, "/metadata/namespace"));
                assert!(found.insert(key.clone(), work_facts(&work)).is_none(), "two entries {key}");
            }
        }
        let text = serde_json::to_string(&found).expect("JSON").replace(namespace, "NS");
        FinalState(serde_json::from_str(&text).expect("JSON"))
    }

    /// Differences to another final state.
    pub fn differences(&self, other: &FinalState, name: &str) -> Vec<String> {
        let keys: BTreeSet<&String> = self.0.keys().chain(other.0.keys()).collect();
        let differing = keys.into_iter().filter(|key| self.0.get(*key) != other.0.get(*key));
        let format_value =
            |state: &FinalState, key: &String| state.0.get(key).map(Value::to_string).unwrap_or_default();
        differing
            .map(|key| format!("{name} {key}: {} != {}", format_value(self, key), format_value(other, key)))
            .collect()
    }
}

const MEMBER_RESOURCES: [fn() -> Gvr; 5] = [
    || Gvr::new("", "v1", "configmaps"),
    || Gvr::new("", "v1", "secrets"),
    || Gvr::new("", "v1", "services"),
    || Gvr::new("apps", "v1", "deployments"),
    || Gvr::new("rbac.authorization.k8s.io", "v1", "clusterroles"),
];

async fn list(objects: &DynamicClient, gvr: &Gvr) -> Vec<Value> {
    let request = Request::get(gvr.path(None)).body(Vec::new()).expect("a request");
    let mut list: Value = objects.client().request(request).await.expect("a list");
    serde_json::from_value(list["items"].take()).expect("items")
}

/// Objects of the namespace. Of cluster-scoped resources, those with the namespace as a prefix of their name.
async fn objects_in_namespace(objects: &DynamicClient, gvr: &Gvr, namespace: &str) -> Vec<Value> {
    let mut found = list(objects, gvr).await;
    found.retain(|object| match text(object, "/metadata/namespace") {
        "" => text(object, "/metadata/name").starts_with(namespace),
        object_namespace => object_namespace == namespace,
    });
    found
}

/// A dependency's binding that nothing requires is kept for the next one that does.
fn is_needed(binding: &Value) -> bool {
    ["/spec/placement", "/spec/requiredBy"].iter().any(|part| binding.pointer(part).is_some())
}

fn binding_of(work: &Value) -> Option<String> {
    let annotation = |key: &str| work["metadata"]["annotations"][key].as_str();
    let namespaced = annotation("resourcebinding.karmada.io/name");
    let namespace = annotation("resourcebinding.karmada.io/namespace").unwrap_or_default();
    namespaced
        .map(|name| format!("Work of {namespace}/{name}"))
        .or_else(|| annotation("clusterresourcebinding.karmada.io/name").map(|name| format!("Work of {name}")))
}

fn without_ids(map: &Value) -> Value {
    let kept = map.as_object().into_iter().flatten().filter(|(key, _)| !key.ends_with("permanent-id"));
    kept.map(|(key, value)| (key.clone(), value.clone())).collect::<serde_json::Map<_, _>>().into()
}

fn copy_facts(object: &Value) -> Value {
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
    let type_and_status = |condition| (text(condition, "/type"), text(condition, "/status"));
    conditions.into_iter().flatten().map(type_and_status).collect()
}

fn binding_facts(binding: &Value) -> Value {
    let mut spec = binding["spec"].clone();
    for field in ["uid", "resourceVersion"] {
        spec["resource"].as_object_mut().expect("a reference").remove(field);
    }
    let annotations = &binding["metadata"]["annotations"];
    let kept_annotations: BTreeMap<&String, &Value> =
        annotations.as_object().into_iter().flatten().filter(|(key, _)| !key.contains("applied-placement")).collect();
    let reported = binding["status"]["aggregatedStatus"].as_array().cloned().unwrap_or_default();
    let reported: Vec<Value> = reported.iter().map(|item| json!([item["clusterName"], item["applied"]])).collect();
    let observed = binding["status"]["schedulerObservedGeneration"] == binding["metadata"]["generation"];
    json!({
        "spec": spec, "annotations": kept_annotations, "conditions": conditions(binding), "reported": reported,
        "observed": observed || binding["spec"].get("placement").is_none(),
    })
}

/// The annotation of applied overrides stays when the last one is removed, as in Karmada.
fn work_facts(work: &Value) -> Value {
    let annotations = work["metadata"]["annotations"].as_object().into_iter().flatten();
    let kept_annotations: BTreeMap<&String, &Value> =
        annotations.filter(|(key, _)| !key.starts_with("policy.karmada.io/applied-")).collect();
    json!({
        "suspended": work["spec"]["suspendDispatching"], "annotations": kept_annotations,
        "conditions": conditions(work),
    })
}
