//! Related objects of the synthetic pods, one of each kind for every application: Deployment, ReplicaSet, Service,
//! EndpointSlice, Ingress, and the ConfigMap that the pods use.
//!
//! Has no side effects: the objects are a function of the pods and never change.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::pods::{Pods, namespace};

/// Group, resource and kind of the objects, all in version `v1`.
pub(super) const KINDS: [(&str, &str, &str); 6] = [
    ("", "configmaps", "ConfigMap"),
    ("", "services", "Service"),
    ("apps", "deployments", "Deployment"),
    ("apps", "replicasets", "ReplicaSet"),
    ("discovery.k8s.io", "endpointslices", "EndpointSlice"),
    ("networking.k8s.io", "ingresses", "Ingress"),
];

/// An application in a cluster.
struct Application {
    number: usize,
    /// Its pods by their index in the fleet; the first determines the namespace.
    pods: Vec<usize>,
}

/// Name of the ConfigMap of an application.
pub(super) fn settings_name(app: usize) -> String {
    format!("app-{app}-settings")
}

/// Objects of a kind in a cluster. The cluster has every `clusters`-th pod of the fleet, beginning with `cluster`.
pub(super) fn objects(pods: Pods, cluster: usize, clusters: usize, kind: &str) -> Vec<Value> {
    let mut by_app: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for nth in (cluster..pods.fleet_pods).step_by(clusters.max(1)) {
        by_app.entry(pods.app(nth)).or_default().push(nth);
    }
    let apps = by_app.into_iter().map(|(number, pods)| Application { number, pods });
    apps.filter_map(|app| object(pods, cluster, &app, kind)).collect()
}

/// The object of an application that has this kind.
fn object(pods: Pods, cluster: usize, app: &Application, kind: &str) -> Option<Value> {
    let (number, name) = (app.number, format!("app-{}", app.number));
    let namespace = namespace(*app.pods.first()?);
    let uid = |kind: &str| format!("{kind}-{number}-{cluster}");
    let owned_by = |api_version: &str, kind: &str| {
        let owner = json!({"apiVersion": api_version, "kind": kind, "name": name, "uid": uid(kind)});
        Value::Array(vec![owner])
    };
    let workload = || {
        json!({"spec": {"replicas": app.pods.len(), "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": {"labels": {"app": name}}, "spec": {
                "containers": [{"name": "main", "image": format!("registry.example/team/{name}:1")}],
                "volumes": [{"name": "settings", "configMap": {"name": settings_name(number)}}]}}}})
    };
    let none = json!([]);
    let (api_version, own_name, own_uid, owners, mut object) = match kind {
        "ConfigMap" => ("v1", settings_name(number), uid(kind), none, json!({"data": {"level": "info"}})),
        "Service" => {
            ("v1", name.clone(), uid(kind), none, json!({"spec": {"selector": {"app": name}, "ports": [{"port": 80}]}}))
        }
        "Deployment" => ("apps/v1", name.clone(), uid(kind), none, workload()),
        "ReplicaSet" => {
            let (own_name, own_uid) = pods.replica_set(number);
            ("apps/v1", own_name, own_uid, owned_by("apps/v1", "Deployment"), workload())
        }
        "EndpointSlice" => {
            let target = |nth: &usize| json!({"kind": "Pod", "namespace": namespace, "name": pods.name(*nth)});
            let endpoint = |nth: &usize| json!({"addresses": ["10.0.0.1"], "targetRef": target(nth)});
            let endpoints: Vec<Value> = app.pods.iter().map(endpoint).collect();
            let slice = json!({"addressType": "IPv4", "endpoints": endpoints});
            ("discovery.k8s.io/v1", format!("{name}-slice"), uid(kind), owned_by("v1", "Service"), slice)
        }
        "Ingress" => {
            let backend = json!({"service": {"name": name, "port": {"number": 80}}});
            let paths = json!([{"path": "/", "pathType": "Prefix", "backend": backend}]);
            let ingress =
                json!({"spec": {"rules": [{"host": format!("{name}.example.com"), "http": {"paths": paths}}]}});
            ("networking.k8s.io/v1", name.clone(), uid(kind), none, ingress)
        }
        _ => return None,
    };
    object["apiVersion"] = api_version.into();
    object["kind"] = kind.into();
    object["metadata"] = json!({"name": own_name, "namespace": namespace, "uid": own_uid, "resourceVersion": "1",
        "creationTimestamp": "2026-09-21T10:00:00Z", "labels": {"app": name}, "ownerReferences": owners});
    Some(object)
}

#[cfg(test)]
mod tests {
    use super::super::pods::Revision;
    use super::*;

    const PODS: Pods = Pods { fleet_pods: 2_500, bytes: 0 };

    /// Names and other text of objects at a JSON pointer.
    fn texts(objects: &[Value], pointer: &str) -> Vec<String> {
        objects.iter().map(|object| object.pointer(pointer).and_then(Value::as_str).unwrap().to_owned()).collect()
    }

    #[test]
    fn every_application_has_one_object_of_each_kind() {
        for (_, _, kind) in KINDS {
            let objects = objects(PODS, 0, 1, kind);
            assert_eq!(objects.len(), PODS.apps(), "{kind}");
            assert!(objects.iter().all(|object| object["kind"] == kind));
        }
        assert!(objects(PODS, 0, 1, "Node").is_empty());
    }

    #[test]
    fn objects_refer_to_each_other() {
        let mut text = String::new();
        PODS.write(&mut text, 7, 1, Revision::default());
        let pod: Value = serde_json::from_str(&text).unwrap();
        let app = PODS.app(7);
        let object_of = |kind: &str| objects(PODS, 0, 1, kind).swap_remove(app);
        let (replica_set, deployment, service) =
            (object_of("ReplicaSet"), object_of("Deployment"), object_of("Service"));
        assert_eq!(pod["metadata"]["ownerReferences"][0]["uid"], replica_set["metadata"]["uid"]);
        assert_eq!(pod["metadata"]["ownerReferences"][0]["name"], replica_set["metadata"]["name"]);
        assert_eq!(replica_set["metadata"]["ownerReferences"][0]["uid"], deployment["metadata"]["uid"]);
        assert_eq!(pod["metadata"]["labels"]["app"], service["spec"]["selector"]["app"]);
        assert_eq!(pod["metadata"]["namespace"], service["metadata"]["namespace"]);
        assert_eq!(pod["spec"]["volumes"][1]["configMap"]["name"], object_of("ConfigMap")["metadata"]["name"]);
        let slice = object_of("EndpointSlice");
        let endpoints = slice["endpoints"].as_array().unwrap();
        assert!(texts(endpoints, "/targetRef/name").contains(&PODS.name(7)));
        assert_eq!(slice["metadata"]["ownerReferences"][0]["uid"], service["metadata"]["uid"]);
        let backend =
            object_of("Ingress")["spec"]["rules"][0]["http"]["paths"][0]["backend"]["service"]["name"].clone();
        assert_eq!(backend, service["metadata"]["name"]);
    }
}
