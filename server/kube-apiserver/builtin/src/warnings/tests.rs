//! Objects that kube-apiserver accepts with warnings, as a table recorded from kube-apiserver 1.36.

use crowsnest_registry::authz::bootstrap::loopback;
use crowsnest_registry::strategy::Strategy;
use serde::Deserialize;
use serde_json::Value;

use crate::BuiltinStrategy;

#[derive(Deserialize)]
struct Case {
    name: String,
    api: String,
    kind: String,
    #[serde(default)]
    old: Option<Value>,
    object: Value,
    warnings: Vec<String>,
}

#[test]
fn warnings_match_kube_apiserver() {
    let cases: Vec<Case> = serde_saphyr::from_str(include_str!("fixtures/warnings.yaml")).unwrap();
    for case in cases {
        let (group, version) = case.api.rsplit_once('/').unwrap_or(("", &case.api));
        let [group, version, kind] =
            [group, version, &case.kind].map(|word| -> &'static str { Box::leak(word.into()) });
        let strategy = BuiltinStrategy::new(group, version, kind);
        let prepare = |object: &Value| {
            let mut object = object.clone();
            strategy.default(&mut object);
            strategy.prepare_create(&loopback("default"), &mut object);
            object
        };
        let old = case.old.as_ref().map(prepare);
        let warnings = strategy.warnings(&loopback("default"), old.as_ref(), &prepare(&case.object));
        assert_eq!(warnings, case.warnings, "{}", case.name);
    }
}
