//! Decoding and normalization of objects, unknown fields, and merge patches.

use serde_json::{Value, json};

use super::decode::{ExpectedKind, decode_body, decode_value, has_valid_types, parse_json};
use super::schema_set::SchemaSet;
use super::{Schema, canonical_micro_time, canonical_time, find_decoding_errors, normalize};

fn decode(group: &str, kind: &str, body: &str) -> Result<(Value, Vec<String>), String> {
    let schema = SchemaSet::builtin().kind(group, "v1", kind);
    let expected = ExpectedKind { group, version: "v1", kind, schema: schema.as_deref() };
    decode_body(body.as_bytes(), &expected)
        .map(|decoded| (decoded.object, decoded.strict_errors))
        .map_err(|error| error.message)
}

#[test]
fn decode_errors_match_go() {
    const CANNOT: &str = "in version \"v1\" cannot be handled as a";
    for (group, kind, body, message) in [
        ("", "ConfigMap", r#"{"data":{"a":5}}"#, format!("ConfigMap {CANNOT} ConfigMap: json: cannot unmarshal number into Go struct field ConfigMap.data of type string")),
        ("apps", "Deployment", r#"{"spec":{"replicas":"two"}}"#, format!("Deployment {CANNOT} Deployment: json: cannot unmarshal string into Go struct field DeploymentSpec.spec.replicas of type int32")),
        ("apps", "Deployment", r#"{"spec":{"replicas":5000000000}}"#, format!("Deployment {CANNOT} Deployment: json: cannot unmarshal number 5000000000 into Go struct field DeploymentSpec.spec.replicas of type int32")),
        ("", "Pod", r#"{"spec":{"containers":[{"image":5}]}}"#, format!("Pod {CANNOT} Pod: json: cannot unmarshal number into Go struct field Container.spec.containers.image of type string")),
        ("", "Pod", r#"{"spec":{"containers":"x"}}"#, format!("Pod {CANNOT} Pod: json: cannot unmarshal string into Go struct field PodSpec.spec.containers of type []v1.Container")),
        ("", "Pod", r#"{"spec":{"restartPolicy":5}}"#, format!("Pod {CANNOT} Pod: json: cannot unmarshal number into Go struct field PodSpec.spec.restartPolicy of type v1.RestartPolicy")),
        ("", "Secret", r#"{"data":{"a":"***"}}"#, format!("Secret {CANNOT} Secret: illegal base64 data at input byte 0")),
        ("", "ConfigMap", r#"{"kind":"Secret","apiVersion":"v1"}"#, format!("Secret {CANNOT} ConfigMap: converting (v1.Secret) to (core.ConfigMap): unknown conversion")),
        ("", "ConfigMap", "{nope", "the object provided is unrecognized (must be of type ConfigMap): couldn't get version/kind; json parse error: invalid character 'n' looking for beginning of object key string ({nope)".into()),
        ("", "ConfigMap", "", "the object provided is unrecognized (must be of type ConfigMap): couldn't get version/kind; json parse error: unexpected end of JSON input (<empty>)".into()),
    ] {
        assert_eq!(decode(group, kind, body), Err(message), "{body}");
    }
}

/// Go reads a number without fraction and exponent as an integer, also `-0`.
#[test]
fn numbers_are_read_as_in_go() {
    for (body, is_integer, printed) in [
        ("-0", true, "0"),
        ("0", true, "0"),
        ("-1", true, "-1"),
        ("-0.0", false, "-0.0"),
        ("-0e1", false, "-0.0"),
        ("1.0", false, "1.0"),
    ] {
        let number = parse_json(body.as_bytes()).unwrap();
        assert_eq!((number.is_i64(), number.to_string().as_str()), (is_integer, printed), "{body}");
    }
    assert_eq!(parse_json(br#"{"a":[-0,{"b":-0}]}"#), Ok(json!({"a": [0, {"b": 0}]})));
}

#[test]
fn strict_errors_are_in_document_order() {
    let body = r#"{"metadata":{"name":"c","name":"d","bogus":1},"dada":{},"data":{"x":"1","x":"2"}}"#;
    let (object, strict) = decode("", "ConfigMap", body).unwrap();
    let expected = [
        "duplicate field \"metadata.name\"",
        "unknown field \"metadata.bogus\"",
        "unknown field \"dada\"",
        "duplicate field \"data.x\"",
    ];
    assert_eq!(strict, expected);
    assert_eq!(object["data"], json!({"x": "2"}));
    assert_eq!(object.get("dada"), None);
}

#[test]
fn normalization_matches_go() {
    for (group, kind, body, path, expected) in [
        ("", "Pod", json!({"spec": {"containers": [{}]}}), "/spec/containers/0", json!({"name": "", "resources": {}})),
        ("", "Pod", json!({"spec": {"volumes": null}}), "/spec", json!({"containers": null})),
        ("", "Pod", json!({}), "/status", json!({})),
        ("apps", "StatefulSet", json!({}), "/status", json!({"replicas": 0, "availableReplicas": 0})),
        ("rbac.authorization.k8s.io", "Role", json!({"rules": []}), "/rules", Value::Null),
        ("", "ConfigMap", json!({"data": {"a": null}}), "/data", json!({"a": ""})),
        ("", "Event", json!({}), "/firstTimestamp", Value::Null),
        (
            "",
            "Pod",
            json!({"spec": {"containers": [{"resources": {"limits": {"cpu": 1, "memory": "1024Mi"}}}]}}),
            "/spec/containers/0/resources/limits",
            json!({"cpu": "1", "memory": "1Gi"}),
        ),
    ] {
        let schema = SchemaSet::builtin().kind(group, "v1", kind).unwrap();
        let object = decode_value(body.clone(), &schema).object;
        assert_eq!(object.pointer(path), Some(&expected), "{kind} {body}");
        let mut again = object.clone();
        normalize(&schema, &mut again);
        assert_eq!(again, object, "{kind} {body}");
    }
}

#[test]
fn times_are_normalized_to_utc() {
    assert_eq!(canonical_time("2001-01-01T02:00:00.9+02:00").as_deref(), Ok("2001-01-01T00:00:00Z"));
    assert_eq!(canonical_micro_time("2001-01-01T00:00:00.000001Z").as_deref(), Ok("2001-01-01T00:00:00.000001Z"));
    for (is_micro, text, message) in [
        (false, "soon", "parsing time \"soon\" as \"2006-01-02T15:04:05Z07:00\": cannot parse \"soon\" as \"2006\""),
        (false, "2001-13-01T00:00:00Z", "parsing time \"2001-13-01T00:00:00Z\": month out of range"),
        (
            true,
            "2001-01-01T00:00:00Z",
            "parsing time \"2001-01-01T00:00:00Z\" as \"2006-01-02T15:04:05.000000Z07:00\": cannot parse \"Z\" as \".000000\"",
        ),
    ] {
        let found = if is_micro { canonical_micro_time(text) } else { canonical_time(text) };
        assert_eq!(found, Err(message.to_owned()));
    }
}

#[test]
fn custom_resources_are_pruned_by_their_schema() {
    let schema = Schema::for_custom_resource(&json!({"type": "object", "properties": {
        "spec": {"type": "object", "properties": {"size": {"type": "integer"}, "open": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}},
    }}));
    let object = json!({"metadata": {"name": "x"}, "spec": {"size": 1, "open": {"any": 1}, "bogus": 1}});
    assert_eq!(find_decoding_errors(&schema, &object).unknown_fields, ["unknown field \"spec.bogus\""]);
}

#[test]
fn valid_types_are_those_that_decode() {
    let metadata = SchemaSet::builtin().definition("io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta").unwrap();
    for (value, is_valid) in [
        (json!({}), true),
        (json!({"name": "a", "labels": {"a": "b"}, "annotations": null, "generation": 3, "unknown": [1]}), true),
        (json!({"creationTimestamp": "2026-01-02T03:04:05Z", "finalizers": ["a"]}), true),
        (json!({"managedFields": [{"manager": "a", "fieldsV1": {"f:spec": {}}, "time": null}]}), true),
        (json!({"ownerReferences": [{"uid": "a", "controller": true}]}), true),
        (json!({"name": 5}), false),
        (json!({"labels": {"a": true}}), false),
        (json!({"labels": ["a"]}), false),
        (json!({"finalizers": "a"}), false),
        (json!({"generation": 1.5}), false),
        (json!({"creationTimestamp": "yesterday"}), false),
        (json!({"managedFields": [{"time": 1}]}), false),
        (json!({"ownerReferences": [{"controller": "yes"}]}), false),
        (json!([]), false),
    ] {
        assert_eq!(has_valid_types(&metadata, &value), is_valid, "{value}");
        assert_eq!(decode_value(value.clone(), &metadata).type_error.is_none(), is_valid, "{value}");
    }
    // Types with their own decoder are not checked, and count as invalid.
    let quantities = json!({"spec": {"hard": {"pods": "5"}}});
    let quota = SchemaSet::builtin().kind("", "v1", "ResourceQuota").unwrap();
    assert!(!has_valid_types(&quota, &quantities) && decode_value(quantities, &quota).type_error.is_none());
}

#[test]
fn unknown_fields_are_those_that_pruning_removes() {
    let schema = Schema::for_custom_resource(&json!({"type": "object", "properties": {
        "spec": {"type": "object", "properties": {
            "known": {"type": "string"},
            "open": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
            "list": {"type": "array", "items": {"type": "object", "properties": {"a": {"type": "string"}}}},
        }},
    }}));
    let mut object = json!({"apiVersion": "a/v1", "kind": "A", "metadata": {"name": "a"}, "other": 1,
        "spec": {"known": "a", "bogus": {"below": 1}, "open": {"any": 1}, "list": [{"a": "b"}, {"c": "d"}]}});
    let found = super::unknown_fields(&schema, &object);
    assert_eq!(found, super::prune(&schema, &mut object));
    assert_eq!(found, ["other", "spec.bogus", "spec.list[1].c"]);
}

#[test]
fn schemas_below_items_and_additional_properties_are_decoded() {
    let definition = |schema: Value| {
        let version =
            json!({"name": "v1", "schema": {"openAPIV3Schema": {"type": "object", "properties": {"a": schema}}}});
        let body = json!({"metadata": {"name": "a"}, "spec": {"versions": [version]}}).to_string();
        decode("apiextensions.k8s.io", "CustomResourceDefinition", &body)
    };
    for (schema, expected) in [
        (
            json!({"items": {"minimum": "x"}}),
            "json: cannot unmarshal string into Go struct field JSONSchemaProps.minimum of type float64",
        ),
        (
            json!({"additionalProperties": {"properties": {"b": {"type": 5}}}}),
            "json: cannot unmarshal number into Go struct field JSONSchemaProps.properties.type of type string",
        ),
    ] {
        let error = definition(schema).unwrap_err();
        assert!(error.ends_with(expected), "{error}");
    }
    let node = SchemaSet::builtin().kind("apiextensions.k8s.io", "v1", "CustomResourceDefinition").unwrap();
    let path = "/spec/versions/0/schema/openAPIV3Schema/properties/a";
    for (schema, kept) in [
        (
            json!({"items": {"required": [], "enum": [], "default": null, "x-kubernetes-list-map-keys": [], "unknown": 1}}),
            json!({"items": {}}),
        ),
        (json!({"additionalProperties": false}), json!({"additionalProperties": false})),
        (json!({"additionalProperties": {"enum": []}}), json!({"additionalProperties": {}})),
        (json!({"items": [{"enum": []}]}), json!({"items": [{}]})),
    ] {
        let (mut object, strict) = definition(schema).unwrap();
        normalize(&node, &mut object);
        assert_eq!((object.pointer(path), strict), (Some(&kept), vec![]));
    }
}

/// Like `MergePatch` of the library evanphx/json-patch.
#[test]
fn nulls_in_merge_patches_are_treated_as_in_go() {
    for (doc, patch, expected) in [
        (json!({"a": 1, "b": 2}), json!({"a": null, "c": null}), json!({"b": 2})),
        (json!({}), json!({"list": [{"a": null, "b": 2}]}), json!({"list": [{"b": 2}]})),
        (json!({"list": [1]}), json!({"list": [{"a": [{"b": null}]}, null]}), json!({"list": [{"a": [{}]}, null]})),
        (json!({"list": {"a": 1}}), json!({"list": [{"a": null}]}), json!({"list": [{"a": null}]})),
        (json!({"map": "text"}), json!({"map": {"a": null, "b": {"c": null}}}), json!({"map": {"b": {}}})),
        (json!({"map": null}), json!({"map": {"a": null}}), json!({"map": {}})),
        (json!({"map": {"a": 1}}), json!({"map": {"a": null, "b": {"c": null}}}), json!({"map": {"b": {}}})),
    ] {
        assert_eq!(super::patch::merge_patch(&doc, &patch).unwrap(), expected, "{patch}");
    }
}
