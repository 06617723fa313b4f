//! Precedence of interpreters: customizations, webhooks, third-party kinds, built-in kinds.

use serde_json::json;

use super::*;

fn interpreter(customizations: &[(&str, Value)]) -> Interpreter {
    let interpreter = Interpreter::new(Gates::all());
    for (name, rules) in customizations {
        let customization = json!({"metadata": {"name": name},
            "spec": {"target": {"apiVersion": "apps/v1", "kind": "Deployment"}, "customizations": rules}});
        let customization: ResourceInterpreterCustomization =
            serde_json::from_value(customization).expect("a customization");
        interpreter.set_customization(name, Some(&customization));
    }
    interpreter
}

fn deployment() -> Value {
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d", "namespace": "ns"},
        "spec": {"replicas": 2, "template": {"spec": {"containers": [
            {"name": "c", "envFrom": [{"secretRef": {"name": "s"}}], "resources": {"requests": {"cpu": "1"}}}]}}}})
}

#[tokio::test]
async fn scripts_take_precedence_over_built_in_rules() {
    let count = |n| json!({"replicaResource": {"luaScript": format!("function GetReplicas() return {n} end")}});
    let interpreter = interpreter(&[("b", count(7)), ("a", count(5)), ("0", json!({"retention": {"luaScript": ""}}))]);
    assert_eq!(interpreter.replicas(&deployment()).await.expect("replicas").replicas, 5);
    interpreter.set_customization("a", None);
    assert_eq!(interpreter.replicas(&deployment()).await.expect("replicas").replicas, 7);
    interpreter.set_customization("b", None);
    let native = interpreter.replicas(&deployment()).await.expect("replicas");
    assert_eq!(native.replicas, 2);
    assert_eq!(json!(native.requirements), json!({"namespace": "ns", "resourceRequest": {"cpu": "1"}}));
    let mut revised = deployment();
    interpreter.revise_replicas(&mut revised, 9).await.expect("revised");
    assert_eq!(revised["spec"]["replicas"], 9);
}

#[tokio::test]
async fn dependencies_of_all_customizations_are_merged() {
    let needs = |name: &str| {
        let script =
            format!("function GetDependencies() return {{{{apiVersion='v1', kind='Secret', name='{name}'}}}} end");
        json!({"dependencyInterpretation": {"luaScript": script}})
    };
    let interpreter = interpreter(&[("a", needs("two")), ("b", needs("one")), ("c", needs("two"))]);
    let dependencies = interpreter.dependencies(&deployment()).await.expect("a list").expect("some");
    assert_eq!(
        dependencies.list().iter().map(|dependency| dependency.name.as_str()).collect::<Vec<_>>(),
        ["one", "two"]
    );
}

fn of_kind(api_version: &str, kind: &str, fields: Value) -> Value {
    let mut object = json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": "o", "namespace": "ns"}});
    for field in ["spec", "status"] {
        unstructured::set(&mut object, &[field], fields[field].clone());
    }
    object
}

#[tokio::test]
async fn scripts_replace_single_rules_of_third_party_kinds() {
    let template = json!({"spec": {"nodeSelector": {"a": "b"}, "volumes": [{"secret": {"secretName": "s"}}]}});
    let fields = json!({"spec": {"replicas": 2, "template": template}, "status": {"replicas": 2, "other": 1}});
    let mut set = of_kind("apps.kruise.io/v1alpha1", "CloneSet", fields);
    let interpreter = interpreter(&[]);
    let read = interpreter.replicas(&set).await.expect("replicas");
    assert_eq!(
        (read.replicas, json!(read.requirements)),
        (2, json!({"namespace": "ns", "nodeClaim": {"nodeSelector": {"a": "b"}}}))
    );
    assert_eq!(interpreter.dependencies(&set).await.expect("a list").expect("some").list().len(), 1);
    assert_eq!(interpreter.reflect(&set).await.expect("a status"), Some(json!({"replicas": 2})));
    let items = serde_json::from_value::<Vec<AggregatedStatusItem>>(json!([{"clusterName": "m1"}])).expect("items");
    let total = interpreter.aggregate(&set, &items, "now").await.expect("a status").expect("some");
    assert_eq!((&total["replicas"], &total["other"]), (&json!(0), &json!(1)));
    let unknown = interpreter.is_healthy(&of_kind("apps.kruise.io/v1alpha1", "CloneSet", json!({}))).await;
    let error = unknown.expect_err("no result").to_string();
    assert_eq!(error, "apps.kruise.io/v1alpha1 CloneSet: status is missing");

    let customization = json!({"metadata": {"name": "c"}, "spec": {
        "target": {"apiVersion": "apps.kruise.io/v1alpha1", "kind": "CloneSet"},
        "customizations": {"healthInterpretation": {"luaScript": "function InterpretHealth() return true end"}}}});
    interpreter.set_customization("c", Some(&serde_json::from_value(customization).expect("a customization")));
    assert!(interpreter.is_healthy(&set).await.expect("a result"));
    interpreter.revise_replicas(&mut set, 1).await.expect("revised");
    assert_eq!(set["spec"]["replicas"], 1);
}

#[tokio::test]
async fn components_are_counted_if_enabled() {
    let spec = json!({"headGroupSpec": {"template": {}}, "workerGroupSpecs": [{"replicas": 2}]});
    let cluster = of_kind("ray.io/v1", "RayCluster", json!({"spec": spec}));
    let read = async |gates| Interpreter::new(gates).replicas(&cluster).await.expect("replicas");
    let names = |read: ReplicaFacts| read.components.into_iter().map(|component| component.name).collect::<Vec<_>>();
    assert_eq!(names(read(Gates::all()).await), ["ray-head", "worker-1"]);
    assert_eq!(read(Gates::default()).await, ReplicaFacts::default());
}

#[tokio::test]
async fn error_names_the_customization() {
    let broken = json!({"healthInterpretation": {"luaScript": "function InterpretHealth() error('no idea', 0) end"}});
    let interpreter = interpreter(&[("broken", broken)]);
    let error = interpreter.is_healthy(&deployment()).await.expect_err("no result").to_string();
    assert_eq!(error, "ResourceInterpreterCustomization broken: no idea");
}

#[tokio::test]
async fn webhooks_take_precedence_over_built_in_rules_and_failures_are_final() {
    drop(rustls::crypto::ring::default_provider().install_default());
    let count = json!({"replicaResource": {"luaScript": "function GetReplicas() return 7 end"}});
    let interpreter = interpreter(&[("c", count)]);
    let configuration = json!({"webhooks": [{"name": "a.b", "clientConfig": {}, "interpreterContextVersions": ["v1alpha1"],
        "rules": [{"operations": ["InterpretReplica"], "apiGroups": ["apps"], "apiVersions": ["*"], "kinds": ["*"]}]}]});
    let configuration = serde_json::from_value(configuration).expect("a configuration");
    interpreter.set_webhooks("w", Some(&configuration));
    assert_eq!(interpreter.replicas(&deployment()).await.expect("replicas").replicas, 7);
    interpreter.set_customization("c", None);
    let Err(error) = interpreter.replicas(&deployment()).await else { panic!("the webhook has no address") };
    assert_eq!(
        error.to_string(),
        "Internal error occurred: failed calling webhook \"w/a.b\": could not get REST client: webhook configuration must \
         have either service or URL"
    );
    assert!(interpreter.is_interpreted(&deployment(), &Operation::InterpretReplica));
    // The webhook has no rules for other operations.
    assert!(!interpreter.is_healthy(&deployment()).await.expect("health"));
    interpreter.retain_webhooks(|_| false);
    assert_eq!(interpreter.replicas(&deployment()).await.expect("replicas").replicas, 2);
}
