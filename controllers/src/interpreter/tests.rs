//! Who is asked: the first customization with a script, then the built-in rules.

use serde_json::json;

use super::*;

fn interpreter(customizations: &[(&str, Value)]) -> Interpreter {
    let interpreter = Interpreter::new(Gates::all());
    for (name, rules) in customizations {
        let customization = json!({"metadata": {"name": name},
            "spec": {"target": {"apiVersion": "apps/v1", "kind": "Deployment"}, "customizations": rules}});
        let customization: ResourceInterpreterCustomization =
            serde_json::from_value(customization).expect("a customization");
        interpreter.learn(name, Some(&customization));
    }
    interpreter
}

fn deployment() -> Value {
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d", "namespace": "ns"},
        "spec": {"replicas": 2, "template": {"spec": {"containers": [
            {"name": "c", "envFrom": [{"secretRef": {"name": "s"}}], "resources": {"requests": {"cpu": "1"}}}]}}}})
}

#[test]
fn scripts_come_before_the_built_in_rules() {
    let count = |n| json!({"replicaResource": {"luaScript": format!("function GetReplicas() return {n} end")}});
    let interpreter = interpreter(&[("b", count(7)), ("a", count(5)), ("0", json!({"retention": {"luaScript": ""}}))]);
    assert_eq!(interpreter.replicas(&deployment()).expect("replicas").replicas, 5);
    interpreter.learn("a", None);
    assert_eq!(interpreter.replicas(&deployment()).expect("replicas").replicas, 7);
    interpreter.learn("b", None);
    let native = interpreter.replicas(&deployment()).expect("replicas");
    assert_eq!(native.replicas, 2);
    assert_eq!(json!(native.requirements), json!({"namespace": "ns", "resourceRequest": {"cpu": "1"}}));
    let mut revised = deployment();
    interpreter.revise_replicas(&mut revised, 9).expect("revised");
    assert_eq!(revised["spec"]["replicas"], 9);
}

#[test]
fn dependencies_of_all_customizations_are_joined_once_each_and_in_order() {
    let needs = |name: &str| {
        let script =
            format!("function GetDependencies() return {{{{apiVersion='v1', kind='Secret', name='{name}'}}}} end");
        json!({"dependencyInterpretation": {"luaScript": script}})
    };
    let interpreter = interpreter(&[("a", needs("two")), ("b", needs("one")), ("c", needs("two"))]);
    let needed = interpreter.dependencies(&deployment()).expect("a list").expect("some");
    assert_eq!(needed.list().iter().map(|needed| needed.name.as_str()).collect::<Vec<_>>(), ["one", "two"]);
}

#[test]
fn a_failing_script_is_named() {
    let broken = json!({"healthInterpretation": {"luaScript": "function InterpretHealth() error('no idea', 0) end"}});
    let interpreter = interpreter(&[("broken", broken)]);
    let error = interpreter.is_healthy(&deployment()).expect_err("no answer").to_string();
    assert_eq!(error, "ResourceInterpreterCustomization broken: no idea");
}
