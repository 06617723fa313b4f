//! Validation of CRDs and custom resources, defaults, rules, and accepted names.

use crowsnest_schema::defaulting;
use crowsnest_schema::{Schema, prune};
use proptest::prelude::*;
use rstest::rstest;
use serde_json::{Value, json};

use super::cel::Rules;
use super::definition::Definition;
use super::{definition, list_uniqueness, status, validation, values, versions};

fn crd(schema: Value) -> Value {
    let mut crd = json!({
        "metadata": {"name": "things.example.com"},
        "spec": {"group": "example.com", "scope": "Namespaced", "names": {"plural": "things", "kind": "Thing"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}]},
        "status": {"storedVersions": ["v1"]},
    });
    definition::set_defaults(&mut crd);
    crd
}

fn errors(crd: &Value) -> Vec<String> {
    validation::validate_create(crd).iter().map(ToString::to_string).collect()
}

/// Schemas, and the errors that kubectl shows for each, one per line.
#[rstest]
#[case::sound(json!({"type": "object", "properties": {"a": {"type": "string", "default": "x"}}}))]
#[case::no_types(json!({"type": "object", "properties": {"a": {"properties": {}}, "b": {"type": "array"}}}))]
#[case::bad_default(json!({"type": "object", "properties": {"a": {"type": "integer", "default": "x"}, "b": {"type": "object", "default": {"x": 1}}}}))]
#[case::list_map(json!({"type": "object", "properties": {"l": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k", "z"],
    "items": {"type": "object", "properties": {"k": {"type": "string"}}}}}}))]
#[case::set_of_objects(json!({"type": "object", "properties": {"l": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "object"}}}}))]
#[case::junction(json!({"type": "object", "properties": {"a": {"type": "string"}}, "anyOf": [{"properties": {"b": {"type": "string"}}}]}))]
#[case::int_or_string(json!({"type": "object", "properties": {"a": {"x-kubernetes-int-or-string": true, "anyOf": [{"type": "integer"}, {"type": "string"}]}}}))]
#[case::metadata(json!({"type": "object", "properties": {"metadata": {"type": "object", "properties": {"labels": {"type": "object"}}}}}))]
#[case::unsupported(json!({"type": "object", "$ref": "#/x", "properties": {"a": {"type": "string", "uniqueItems": true, "pattern": "["}}}))]
#[case::rules(json!({"type": "object", "properties": {
    "a": {"type": "integer", "x-kubernetes-validations": [{"rule": "self > 'x'"}, {"rule": ""}, {"rule": "self", "message": "m"}, {"rule": "self > 0", "reason": "Odd"}]},
    "l": {"type": "array", "items": {"type": "string", "x-kubernetes-validations": [{"rule": "self == oldSelf"}]}}},
    "x-kubernetes-validations": [{"rule": "self.nope > 1"}, {"rule": "self.a > other"}, {"rule": "self.metadata.name.startsWith('x')"}, {"rule": "self.metadata.labels.size() > 0"}]}))]
fn schema_errors_match_kubernetes(#[case] schema: Value) {
    let name = std::thread::current().name().unwrap_or("").rsplit("::").next().unwrap_or("").to_owned();
    insta::assert_snapshot!(name, errors(&crd(schema)).join("\n"));
}

/// A CRD, and the errors with which kube-apiserver rejects it.
#[derive(serde::Deserialize)]
struct Case {
    name: String,
    schema: Option<Value>,
    definition: Option<Value>,
    #[serde(default)]
    refused: Vec<String>,
}

#[test]
fn definition_errors_match_kubernetes() {
    let cases: Vec<Case> = serde_saphyr::from_str(include_str!("fixtures/definitions.yaml")).unwrap();
    let definition_with_schema = |schema: Value| {
        json!({
            "metadata": {"name": "things.ex.com"},
            "spec": {"group": "ex.com", "scope": "Namespaced",
                "names": {"plural": "things", "singular": "thing", "kind": "Thing", "listKind": "ThingList"},
                "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}]},
        })
    };
    let mut mismatches = Vec::new();
    for Case { name, schema, definition, refused } in cases {
        let mut definition = definition.unwrap_or_else(|| definition_with_schema(schema.unwrap_or_default()));
        definition::set_defaults(&mut definition);
        definition["status"] = json!({"storedVersions": status::stored_versions(Definition(&definition))});
        let mut found = errors(&definition);
        found.sort();
        found.dedup();
        if found != refused {
            mismatches.push(format!("{name}\n  found  {found:#?}\n  expected {refused:#?}"));
        }
    }
    assert!(mismatches.is_empty(), "{} mismatches:\n{}", mismatches.len(), mismatches.join("\n"));
}

#[test]
fn invalid_definitions_are_rejected() {
    let mut bad = crd(json!({"type": "object"}));
    bad["spec"]["names"]["shortNames"] = json!(["Bad"]);
    bad["spec"]["versions"][0]["subresources"] =
        json!({"scale": {"specReplicasPath": "spec.replicas", "statusReplicasPath": ".spec.x"}});
    bad["spec"]["versions"][0]["additionalPrinterColumns"] = json!([{"name": "", "type": "text", "jsonPath": ".a["}]);
    bad["spec"]["versions"][0]["selectableFields"] = json!([{"jsonPath": ".spec.nope"}, {"jsonPath": ".metadata.x"}]);
    bad["spec"]["conversion"] = json!({"strategy": "Webhook", "webhook": {"clientConfig": {"url": "http://x"}, "conversionReviewVersions": ["v7"]}});
    insta::assert_snapshot!(errors(&bad).join("\n"));
}

const OBJECT: &str = include_str!("fixtures/widget-schema.json");

#[test]
fn object_errors_match_kubernetes() {
    let schema: Value = serde_json::from_str(OBJECT).unwrap();
    let object = json!({"spec": {
        "size": 11, "even": 3, "mode": "medium", "name": "Toolong", "port": true, "when": "yesterday", "ip": "300.1.1.1",
        "list": [{"v": 1}, {"k": "a"}, {"k": "a"}], "tags": ["x", "x"], "any": {"q": "s"}, "note": null, "must": null,
        "either": {}, "short": [],
    }});
    let mut errors = values::validate(&schema, &object, "");
    errors.extend(list_uniqueness::validate_list_uniqueness(&schema, &object, ""));
    let lines: Vec<String> = errors.iter().map(ToString::to_string).collect();
    insta::assert_snapshot!(lines.join("\n"));
}

#[rstest]
#[case::fraction(json!({"type": "integer", "format": "int32"}), json!(1.5), &[
    "v: Invalid value: \"float64\": v in body must be of type int32: \"float64\"",
    "<nil>: Invalid value: \"\": Checked value must be of type integer with format int32 in v",
])]
#[case::long_integer(json!({"type": "integer"}), json!(9_223_372_036_854_775_808_u64), &[
    "v: Invalid value: \"number\": v in body must be of type integer: \"number\"",
    "<nil>: Invalid value: \"\": Checked value must be of type integer (default format) in v",
])]
#[case::long_integer_in_a_format(json!({"type": "integer", "format": "int32"}), json!(9_223_372_036_854_775_808_u64), &[
    "v: Invalid value: \"float64\": v in body must be of type int32: \"float64\"",
    "<nil>: Invalid value: \"\": Checked value must be of type integer with format int32 in v",
])]
#[case::list_in_a_format(json!({"type": "string", "format": "uri"}), json!([]), &[])]
#[case::list_in_an_unknown_format(json!({"type": "string", "format": "odd"}), json!([]), &[
    "v: Invalid value: \"array\": v in body must be of type string: \"array\"",
])]
#[case::integer_beside_a_fraction(json!({"type": "number", "minimum": 0.1, "maximum": 0.9}), json!(1), &[
    "v: Invalid value: 1: v in body should be less than or equal to 0",
])]
#[case::integer_above_the_integral_part(json!({"type": "number", "minimum": 0.1}), json!(0), &[])]
#[case::multiple_of_a_fraction(json!({"type": "number", "multipleOf": 0.1}), json!(3), &[
    "v: Invalid value: 0: factor MultipleOf declared for v must be positive: 0",
])]
#[case::multiple_beyond_exact_integers(json!({"multipleOf": 2}), json!(1e22), &[
    "v: Invalid value: 1e+22: v in body should be a multiple of 2",
])]
#[case::multiple_of_a_long_integer(json!({"type": "integer", "multipleOf": 2}), json!(1_i64 << 60), &[])]
#[case::no_multiple_of_a_long_integer(json!({"type": "integer", "multipleOf": 2}), json!((1_i64 << 60) + 1), &[
    "v: Invalid value: 1152921504606846977: v in body should be a multiple of 2",
])]
#[case::multiple_with_a_rounding_error(json!({"type": "number", "multipleOf": 0.01}), json!(0.07), &[])]
#[case::multiple_below_an_integer(json!({"type": "number", "multipleOf": 0.01}), json!(0.29), &[
    "v: Invalid value: 0.29: v in body should be a multiple of 0.01",
])]
#[case::integer_without_type(json!({"x-kubernetes-int-or-string": true, "maximum": 10.5}), json!(11), &[
    "v: Invalid value: 11: v in body should be less than or equal to 10",
])]
#[case::fractional_limit_of_an_integer(json!({"type": "integer", "maximum": 0.5}), json!(1), &[
    "v: Invalid value: 1: v in body should be less than or equal to 0.5",
    "<nil>: Invalid value: \"\": Maximum boundary value must be of type integer (default format) in v",
])]
#[case::limit_beyond_the_format(json!({"type": "integer", "format": "int32", "minimum": -3_000_000_000_i64}), json!(1), &[
    "<nil>: Invalid value: \"\": Minimum boundary value must be of type integer with format int32 in v",
])]
#[case::unprintable(json!({"type": "string", "maxLength": 9, "pattern": "^x$"}), json!("a\u{0}\u{7f}\u{2028}\u{e4}\n<"), &[
    "v: Invalid value: \"a\\x00\\x7f\\u2028\u{e4}\\n<\": v in body should match '^x$'",
])]
#[case::fraction_without_format(json!({"type": "integer"}), json!(1.5), &[
    "v: Invalid value: \"number\": v in body must be of type integer: \"number\"",
    "<nil>: Invalid value: \"\": Checked value must be of type integer (default format) in v",
])]
#[case::whole_float(json!({"type": "integer", "format": "int32"}), json!(1.0), &[])]
#[case::text_as_number(json!({"type": "integer", "format": "int64"}), json!("1"), &[
    "v: Invalid value: \"string\": v in body must be of type integer: \"string\"",
])]
#[case::flag_as_number(json!({"type": "integer", "format": "int64"}), json!(true), &[
    "v: Invalid value: \"\": v in body must be of type int64: \"\"",
])]
#[case::number_as_duration(json!({"type": "string", "format": "duration"}), json!(5), &[
    "v: Invalid value: \"int64\": v in body must be of type duration: \"int64\"",
])]
#[case::unrecognized_format(json!({"type": "string", "format": "phone"}), json!(5), &[
    "v: Invalid value: \"integer\": v in body must be of type string: \"integer\"",
])]
#[case::map_as_int_or_string(json!({"x-kubernetes-int-or-string": true, "anyOf": [{"type": "integer"}, {"type": "string"}]}), json!({}), &[
    "v: Invalid value: \"object\": v in body must be of type integer,string: \"object\"",
    "<nil>: Invalid value: \"\": \"v\" must validate at least one schema (anyOf)",
    "v: Invalid value: \"object\": v in body must be of type integer: \"object\"",
])]
#[case::null_as_int_or_string(json!({"x-kubernetes-int-or-string": true, "anyOf": [{"type": "integer"}, {"type": "string"}]}), json!(null), &[
    "v: Invalid value: \"null\": v in body must be of type integer,string: \"null\"",
])]
#[case::null_of_a_junctor(json!({"type": "object", "oneOf": [{"required": ["a"]}]}), json!(null), &[
    "v: Invalid value: \"null\": v in body must be of type object: \"null\"",
])]
fn wrong_types_have_messages_of_kubernetes(#[case] schema: Value, #[case] value: Value, #[case] expected: &[&str]) {
    let errors = values::validate(&schema, &value, "v");
    assert_eq!(errors.iter().map(ToString::to_string).collect::<Vec<_>>(), expected);
}

#[rstest]
#[case::keys(json!("map"), json!([{"k": "a"}, {"k": "a"}, {"k": "a"}, {"k": "b"}]), &["v[1]: Duplicate value: {\"k\":\"a\"}"])]
#[case::values(json!("set"), json!(["a", "b", "b", "a", "b"]), &["v[2]: Duplicate value: \"b\"", "v[3]: Duplicate value: \"a\""])]
#[case::not_objects(json!("map"), json!([{"k": "a"}, {"k": "a"}, "x"]), &["v[2]: Invalid value: \"x\": must be an object for an array of list-type map"])]
#[case::null(json!("map"), json!([{"k": "a"}, null]), &[])]
fn duplicates_have_messages_of_kubernetes(#[case] kind: Value, #[case] list: Value, #[case] expected: &[&str]) {
    let schema = json!({"type": "array", "x-kubernetes-list-type": kind, "x-kubernetes-list-map-keys": ["k"]});
    let errors = list_uniqueness::validate_list_uniqueness(&schema, &list, "v");
    assert_eq!(errors.iter().map(ToString::to_string).collect::<Vec<_>>(), expected);
}

/// Ratcheting: an update may keep what the schema does not allow.
#[rstest]
#[case::value(json!({"mode": "x", "size": 1}), json!({"mode": "x", "size": 2}), &[])]
#[case::other_value(json!({"mode": "x"}), json!({"mode": "y"}), &["mode: Unsupported value: \"y\": supported values: \"a\", \"b\""])]
#[case::alternative(json!({"either": {"c": 1}}), json!({"either": {"c": 1}, "size": 2}), &[])]
#[case::other_alternative(json!({"either": {"c": 1}}), json!({"either": {"c": 2}}), &[
    "<nil>: Invalid value: \"\": \"either\" must validate at least one schema (anyOf)", "either.a: Required value"])]
#[case::list(json!({"list": ["long"]}), json!({"list": ["long"], "size": 2}), &[])]
#[case::item_of_a_changed_list(json!({"list": ["long"]}), json!({"list": ["long", "b"]}), &["list[0]: Too long: may not be more than 1 byte"])]
#[case::item_of_a_list_map(json!({"map": [{"name": "a", "mode": "x"}]}), json!({"map": [{"name": "b"}, {"name": "a", "mode": "x"}]}), &[])]
#[case::member_of_a_changed_item(json!({"map": [{"name": "a", "mode": "x"}]}), json!({"map": [{"name": "a", "mode": "x", "size": 1}]}), &[])]
#[case::renamed_item(json!({"map": [{"name": "a", "mode": "x"}]}), json!({"map": [{"name": "b", "mode": "x"}]}), &[
    "map[0].mode: Unsupported value: \"x\": supported values: \"a\", \"b\""])]
#[case::missing_field(json!({"strict": {"b": 1}}), json!({"strict": {"b": 1}, "size": 2}), &[])]
#[case::moved_items(
    json!({"many": {"map": [{"name": "a"}, {"name": "b"}]}}), json!({"many": {"map": [{"name": "b"}, {"name": "a"}]}}), &[])]
#[case::field_without_a_schema(json!({"strict": {"c": 1}}), json!({"strict": {"c": 1}, "size": 2}), &["strict.a: Required value"])]
#[case::not(json!({"other": {"mode": "b"}}), json!({"other": {"mode": "b", "size": 2}}), &[])]
#[case::kind(json!({"kind": "x"}), json!({"kind": "x", "size": 2}), &["kind: Unsupported value: \"x\": supported values: \"a\", \"b\""])]
#[case::kind_below_the_root(json!({"strict": {"a": 1, "kind": "x"}}), json!({"strict": {"a": 2, "kind": "x"}}), &[])]
#[case::missing_field_of_a_changed_object(json!({"strict": {"b": 1}}), json!({"strict": {"b": 2}}), &["strict.a: Required value"])]
fn unchanged_values_may_be_invalid(#[case] old: Value, #[case] new: Value, #[case] expected: &[&str]) {
    let (mode, number) = (json!({"type": "string", "enum": ["a", "b"]}), json!({"type": "integer"}));
    let list_map = json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
        "maxItems": 1, "items": {"type": "object", "properties": {"name": {"type": "string"}}}});
    let schema = json!({"type": "object", "properties": {"mode": mode, "size": number, "kind": mode,
        "strict": {"type": "object", "required": ["a"], "properties": {"a": number, "b": number, "kind": mode}},
        "many": {"type": "object", "properties": {"map": list_map}},
        "other": {"type": "object", "properties": {"mode": {"type": "string"}, "size": number},
            "not": {"properties": {"mode": {"enum": ["a"]}}}},
        "either": {"type": "object", "properties": {"a": number, "b": number, "c": number},
            "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
        "list": {"type": "array", "items": {"type": "string", "maxLength": 1}},
        "map": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
            "items": {"type": "object", "properties": {"name": {"type": "string"}, "mode": mode, "size": number}}},
    }});
    let errors = values::validate_update(&schema, Some(&old), &new);
    assert_eq!(errors.iter().map(ToString::to_string).collect::<Vec<_>>(), expected);
}

#[test]
fn defaults_replace_nulls_that_are_not_allowed() {
    let schema: Value = serde_json::from_str(OBJECT).unwrap();
    let mut object = json!({"spec": {"size": 3, "mode": null, "note": null, "name": null, "list": [{"k": "a"}]}});
    defaulting::drop_nulls(&schema, &mut object);
    defaulting::apply_defaults(&schema, &mut object);
    insta::assert_json_snapshot!(object);
}

#[rstest]
#[case::fine(json!({"min": 1, "max": 2, "items": ["x1"]}), None, "")]
#[case::message(json!({"min": 3, "max": 2}), None, "spec.min: Forbidden: min must not exceed max")]
#[case::expression(json!({"items": ["ok"]}), None, "spec: Invalid value: items must start with x, got ok")]
#[case::plain(json!({"when": "2h"}), None, "spec.when: Invalid value: \"2h\": failed rule: self < duration('1h')")]
#[case::days(json!({"when": "1d"}), None, "spec.when: Invalid value: \"1d\": failed rule: self < duration('1h')")]
#[case::space_before_the_unit(json!({"when": "1 s"}), None, "")]
#[case::transition(json!({"frozen": "b"}), Some(json!({"frozen": "a"})), "spec.frozen: Invalid value: \"b\": frozen")]
#[case::transition_needs_old(json!({"frozen": "b"}), None, "")]
#[case::unchanged_violation_is_accepted(json!({"when": "2h", "min": 0}), Some(json!({"when": "2h"})), "")]
#[case::list_map(json!({"ports": [{"name": "a", "n": 2}]}), Some(json!({"ports": [{"name": "b", "n": 9}, {"name": "a", "n": 1}]})), "spec.ports[0].n: Invalid value: 2: n is fixed")]
fn rules_are_evaluated(#[case] spec: Value, #[case] old: Option<Value>, #[case] expected: &str) {
    let schema = json!({"type": "object", "properties": {"spec": {"type": "object",
        "x-kubernetes-validations": [
            {"rule": "!has(self.min) || !has(self.max) || self.min <= self.max", "message": "min must not exceed max", "reason": "FieldValueForbidden", "fieldPath": ".min"},
            {"rule": "!has(self.items) || self.items.all(i, i.startsWith('x'))", "messageExpression": "'items must start with x, got ' + self.items[0]"}],
        "properties": {
            "min": {"type": "integer"}, "max": {"type": "integer"}, "items": {"type": "array", "items": {"type": "string"}},
            "when": {"type": "string", "format": "duration", "x-kubernetes-validations": [{"rule": "self < duration('1h')"}]},
            "frozen": {"type": "string", "x-kubernetes-validations": [{"rule": "self == oldSelf", "message": "frozen"}]},
            "ports": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"], "items": {"type": "object", "properties": {
                "name": {"type": "string"}, "n": {"type": "integer", "x-kubernetes-validations": [{"rule": "self == oldSelf", "message": "n is fixed"}]}}}}}}}});
    let rules = Rules::compile(&schema).unwrap();
    let wrap = |spec: Value| json!({"spec": spec});
    let old = old.map(wrap);
    let (errors, _) = rules.check(&schema, &wrap(spec), old.as_ref(), "");
    let lines: Vec<String> = errors.iter().map(ToString::to_string).collect();
    assert_eq!(lines.join("\n"), expected);
}

/// Objects of another kind are not validated by the schema, but their rules are evaluated.
#[rstest]
#[case::text(json!({"type": "string"}), json!({"a": 1}), "spec: Invalid value: \"string\": invalid data, expected string, got map[string]interface {} evaluating rule: self == self")]
#[case::integer(json!({"type": "integer"}), json!("-"), "spec: Invalid value: \"integer\": invalid data, expected int, got string evaluating rule: self == self")]
#[case::valid(json!({"type": "integer"}), json!(1), "")]
fn rules_over_other_types_fail(#[case] schema: Value, #[case] value: Value, #[case] expected: &str) {
    let mut schema = schema;
    schema["x-kubernetes-validations"] = json!([{"rule": "self == self"}]);
    let (errors, _) = Rules::compile(&schema).unwrap().check(&schema, &value, None, "spec");
    let lines: Vec<String> = errors.iter().map(ToString::to_string).collect();
    assert_eq!(lines.join("\n"), expected);
}

#[test]
fn conflicting_names_are_not_accepted() {
    let definition_a = crd(json!({"type": "object"}));
    let first =
        status::apply(&definition_a, &status::decide(Definition(&definition_a), &[]), jiff::Timestamp::UNIX_EPOCH)
            .unwrap();
    assert!(Definition(&first).is_condition_true("Established"));
    assert!(status::apply(&first, &status::decide(Definition(&first), &[]), jiff::Timestamp::UNIX_EPOCH).is_none());
    let mut definition_b = crd(json!({"type": "object"}));
    definition_b["metadata"]["name"] = "others.example.com".into();
    definition_b["spec"]["names"]["plural"] = "others".into();
    let decision = status::decide(Definition(&definition_b), &[&first]);
    insta::assert_debug_snapshot!(decision);
}

#[test]
fn versions_are_ordered_by_stability_and_number() {
    let mut all =
        vec!["v1beta1", "v10", "v2", "foo", "v0", "v1", "v1beta", "v2beta1", "v1alpha3", "v1beta2", "v1beta+3", "bar"];
    all.sort_by(|a, b| versions::compare(b, a));
    let expected =
        ["v10", "v2", "v1", "v0", "v2beta1", "v1beta2", "v1beta1", "v1alpha3", "bar", "foo", "v1beta", "v1beta+3"];
    assert_eq!(all, expected);
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        "[a-z]{0,3}".prop_map(Value::from)
    ];
    leaf.prop_recursive(4, 32, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map("spec|list|tags|any|free|k|v|note|mode|[a-c]", inner, 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn pruning_and_defaulting_are_idempotent(spec in any_json()) {
        let schema: Value = serde_json::from_str(OBJECT).unwrap();
        let typed = Schema::for_custom_resource(&schema);
        let mut once = json!({"spec": spec});
        let normalize = |object: &mut Value| {
            prune(&typed, object);
            defaulting::drop_nulls(&schema, object);
            defaulting::apply_defaults(&schema, object);
        };
        normalize(&mut once);
        let mut twice = once.clone();
        normalize(&mut twice);
        prop_assert_eq!(once, twice);
    }
}

/// The CRDs that this project ships must be valid for an API server.
#[test]
fn shipped_definitions_are_valid() {
    for definition in crowsnest_api::crd::crds(None) {
        let mut definition = serde_json::to_value(definition).unwrap();
        definition::set_defaults(&mut definition);
        definition["status"] = json!({"storedVersions": status::stored_versions(Definition(&definition))});
        assert_eq!(errors(&definition), Vec::<String>::new(), "{}", Definition(&definition).name());
    }
}

/// As in Karmada, whose server validates no status of a Cluster: other tools write conditions without a reason or time.
#[test]
fn conditions_of_clusters_may_be_empty() {
    let crds = crowsnest_api::crd::crds(None).into_iter().map(|crd| serde_json::to_value(crd).unwrap());
    let stored = crds.into_iter().find(|crd| Definition(crd).plural() == "storedclusters").unwrap();
    let schema = Definition(&stored).storage_version().and_then(definition::Version::schema).unwrap();
    let condition = json!({"type": "Ready", "status": "True", "reason": "", "message": "", "lastTransitionTime": null});
    let cluster = json!({"spec": {"syncMode": "Push"}, "status": {"conditions": [condition, {"type": "Other"}]}});
    let errors = values::validate(schema, &cluster, "");
    assert!(errors.is_empty(), "{errors:?}");
}
