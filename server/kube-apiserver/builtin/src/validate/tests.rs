//! Objects that kube-apiserver rejects and the errors it returns, as tables in fixtures.

use crowsnest_registry::authz::bootstrap::loopback;
use crowsnest_registry::strategy::Strategy;
use rstest::rstest;
use serde_json::Value;

use crate::BuiltinStrategy;

fn error_messages(case: &Value) -> Vec<String> {
    let word = |field: &str| -> &'static str { Box::leak(case[field].as_str().unwrap_or_default().into()) };
    let (group, version) = word("api").rsplit_once('/').unwrap_or(("", word("api")));
    let strategy = BuiltinStrategy::new(group, version, word("kind"));
    let prepare = |object: &Value| {
        let mut object = object.clone();
        if object.get("metadata").is_none() {
            object["metadata"] = serde_json::json!({"name": "x", "namespace": "default"});
        }
        strategy.default(&mut object);
        object
    };
    let new = prepare(&case["object"]);
    let mut ctx = loopback("default");
    ctx.subresource = word("subresource").to_owned();
    let errors = match case.get("old") {
        Some(old) => strategy.validate_update(&ctx, &prepare(old), &new).errors,
        None => strategy.validate_create(&ctx, &new),
    };
    errors.iter().map(ToString::to_string).collect()
}

#[rstest]
#[case::pods(include_str!("fixtures/pods.json"))]
#[case::network(include_str!("fixtures/network.json"))]
#[case::workloads(include_str!("fixtures/workloads.json"))]
#[case::cluster(include_str!("fixtures/cluster.json"))]
#[case::status(include_str!("fixtures/status.json"))]
#[case::contexts(include_str!("fixtures/contexts.json"))]
fn invalid_objects_are_rejected(#[case] table: &str) {
    let cases: Vec<Value> = serde_json::from_str(table).unwrap();
    for case in &cases {
        let expected: Vec<&str> =
            case["errors"].as_array().unwrap().iter().map(|text| text.as_str().unwrap()).collect();
        assert_eq!(error_messages(case), expected, "{}", case["name"]);
    }
}
