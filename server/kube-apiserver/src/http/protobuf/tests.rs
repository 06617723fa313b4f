//! Objects of all served kinds and bodies of Go clients in protobuf.

use std::collections::BTreeSet;

use crowsnest_apimachinery::names::Gvr;

use super::*;

/// Encoder of a message.
#[derive(Default)]
struct Writer(Vec<u8>);

impl Writer {
    fn raw_varint(&mut self, mut n: u64) {
        while n >= 0x80 {
            self.0.push((n & 0x7f) as u8 | 0x80);
            n >>= 7;
        }
        self.0.push(n as u8);
    }

    fn varint(&mut self, number: usize, n: u64) {
        self.raw_varint((number as u64) << 3);
        self.raw_varint(n);
    }

    fn bytes(&mut self, number: usize, bytes: &[u8]) {
        self.raw_varint((number as u64) << 3 | 2);
        self.raw_varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }
}

fn field(number: usize, bytes: &[u8]) -> Vec<u8> {
    let mut out = Writer::default();
    out.bytes(number, bytes);
    out.0
}

fn body(api_version: &str, kind: &str, raw: &[u8]) -> Vec<u8> {
    let meta = [field(1, api_version.as_bytes()), field(2, kind.as_bytes())].concat();
    [MAGIC.to_vec(), field(1, &meta), field(2, raw)].concat()
}

/// Encodes a JSON object as the message of a definition.
fn encode(name: &str, schema: &Schema, object: &Value) -> Vec<u8> {
    let mut out = Writer::default();
    let none = Vec::new();
    for (index, entry) in FIELDS.get(name).unwrap_or(&none).iter().enumerate() {
        if let Some(inline) = entry.strip_prefix('+') {
            let package = name.rsplit_once('.').unwrap().0;
            out.bytes(index + 1, &encode(&format!("{package}.{inline}"), schema, object));
        } else if let (Some(child), Some(value)) = (schema.field(entry), object.get(*entry)) {
            encode_field(&mut out, index + 1, &child.node, value);
        }
    }
    out.0
}

fn encode_field(out: &mut Writer, number: usize, schema: &Schema, value: &Value) {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let name = schema.name.as_deref().unwrap_or_default();
    match (schema.ty, value) {
        (Type::Array, Value::Array(items)) => {
            items.iter().for_each(|item| encode_field(out, number, schema.items.as_ref().unwrap(), item));
        }
        (Type::Object, Value::Object(entries)) if schema.is_map() && !FIELDS.contains_key(name) => {
            let values = schema.additional_properties.as_ref().unwrap();
            for (key, value) in entries {
                let mut entry = Writer(field(1, key.as_bytes()));
                if values.ty == Type::Array {
                    let mut wrapped = Writer::default();
                    encode_field(&mut wrapped, 1, values, value);
                    entry.bytes(2, &wrapped.0);
                } else {
                    encode_field(&mut entry, 2, values, value);
                }
                out.bytes(number, &entry.0);
            }
        }
        (Type::Object, object) => out.bytes(number, &encode(name, schema, object)),
        (Type::String, text) => out.bytes(number, text.as_str().unwrap().as_bytes()),
        (Type::Bytes, text) => out.bytes(number, &STANDARD.decode(text.as_str().unwrap()).unwrap()),
        (Type::Boolean, flag) => out.varint(number, u64::from(flag.as_bool().unwrap())),
        (Type::Integer, n) => out.varint(number, n.as_i64().unwrap() as u64),
        (Type::Number, n) => {
            out.raw_varint((number as u64) << 3 | 1);
            out.0.extend_from_slice(&n.as_f64().unwrap().to_bits().to_le_bytes());
        }
        (Type::Quantity, quantity) => out.bytes(number, &field(1, text(quantity).as_bytes())),
        (Type::Time | Type::MicroTime, at) => {
            let at: jiff::Timestamp = text(at).parse().unwrap();
            let mut message = Writer::default();
            message.varint(1, at.as_second() as u64);
            message.varint(2, at.subsec_nanosecond() as u64);
            out.bytes(number, &message.0);
        }
        (Type::IntOrString, value) => {
            let mut message = Writer::default();
            match value {
                Value::String(text) => {
                    message.varint(1, 1);
                    message.bytes(3, text.as_bytes());
                }
                n => message.varint(2, n.as_i64().unwrap() as u64),
            }
            out.bytes(number, &message.0);
        }
        (Type::Any, value) => {
            let mut message = Writer::default();
            let props = SchemaSet::builtin().definition(&format!("{APIEXTENSIONS_PACKAGE}.JSONSchemaProps")).unwrap();
            let is_flag = name.ends_with("OrBool");
            match value {
                Value::Bool(flag) if is_flag => message.varint(1, u64::from(*flag)),
                value if is_flag => encode_field(&mut message, 2, &props, value),
                Value::Array(items) if name.contains("JSONSchemaPropsOr") => {
                    for item in items {
                        match item {
                            Value::String(text) => message.bytes(2, text.as_bytes()),
                            schema => encode_field(&mut message, 2, &props, schema),
                        }
                    }
                }
                value if name.contains("JSONSchemaPropsOr") => encode_field(&mut message, 1, &props, value),
                value => message.bytes(1, value.to_string().as_bytes()),
            }
            out.bytes(number, &message.0);
        }
        (ty, value) => panic!("{ty:?} {value}"),
    }
}

/// A value with all fields of a schema; recursive schemas end at the second level.
fn value_with_all_fields(schema: &Schema, above: &[&str]) -> Option<Value> {
    let name = schema.name.as_deref().unwrap_or_default();
    let level = above.iter().filter(|ancestor| **ancestor == name && !name.is_empty()).count();
    if level > 1 {
        return None;
    }
    let above = [above, &[name]].concat();
    Some(match schema.ty {
        Type::Array => json!([value_with_all_fields(schema.items.as_ref()?, &above)?]),
        Type::Object if schema.is_map() => {
            json!({"key": value_with_all_fields(schema.additional_properties.as_ref()?, &above)?})
        }
        Type::Object => {
            // Messages do not contain the kind of objects; other fields of that name have numbers.
            let is_type = |field: &str| {
                let numbered = FIELDS.get(name).is_some_and(|fields| fields.contains(&field));
                ["apiVersion", "kind"].contains(&field) && !numbered
            };
            let fields = schema.properties.iter().filter(|(field, _)| !is_type(field));
            fields
                .filter_map(|(name, field)| Some((name.to_string(), value_with_all_fields(&field.node, &above)?)))
                .collect()
        }
        Type::String => json!("text"),
        Type::Bytes => json!(STANDARD.encode([0, 159, 255])),
        Type::Boolean => json!(true),
        Type::Integer => json!(-7),
        Type::Number => json!(0.5),
        Type::Quantity => json!("1500m"),
        Type::IntOrString => json!("50%"),
        Type::Time => json!("2026-01-02T03:04:05Z"),
        Type::MicroTime => json!("2026-01-02T03:04:05.678901Z"),
        Type::Any => match name.rsplit('.').next()? {
            "JSONSchemaPropsOrArray" => json!([{"type": "string"}, {"type": "integer"}]),
            "JSONSchemaPropsOrBool" => json!({"type": "string"}),
            "JSONSchemaPropsOrStringArray" => json!(["one", "two"]),
            _ => json!({"any": [1, "two", {"three": null}]}),
        },
    })
}

/// The kinds of bodies and responses of all served resources and subresources, with options and statuses. Options of
/// connect requests occur in queries only.
fn kinds() -> BTreeSet<(String, String)> {
    let meta = ["DeleteOptions", "Status", "WatchEvent"].map(|kind| ("v1".to_owned(), kind.to_owned()));
    let mut kinds = BTreeSet::from(meta);
    kinds.insert(("apps/v1".into(), "DeleteOptions".into()));
    for resource in crowsnest_builtin::resources() {
        let api_version = resource.gvr.api_version();
        if resource.verbs.contains(&"list") {
            kinds.insert((api_version.clone(), resource.list_kind.clone()));
        }
        kinds.insert((api_version, resource.kind));
        for sub in resource.subresources.into_iter().filter(|sub| !sub.kind.ends_with("Options")) {
            kinds.insert((Gvr::new(&sub.group, &sub.version, sub.name).api_version(), sub.kind));
        }
    }
    kinds
}

#[test]
fn all_served_kinds_can_be_decoded() {
    let set = SchemaSet::builtin();
    for (api_version, kind) in kinds() {
        let (group, version) = api_version.split_once('/').unwrap_or(("", &api_version));
        let schema = set.kind(group, version, &kind).or_else(|| set.definition(&format!("{META_PACKAGE}.{kind}")));
        let schema = schema.unwrap_or_else(|| panic!("{api_version} {kind} has no schema"));
        let mut object = value_with_all_fields(&schema, &[]).unwrap();
        object["apiVersion"] = api_version.as_str().into();
        object["kind"] = kind.as_str().into();
        let raw = encode(schema.name.as_deref().unwrap(), &schema, &object);
        let decoded = decode_object(&body(&api_version, &kind, &raw)).unwrap();
        assert_eq!(decoded, object, "{api_version} {kind}");
    }
}

/// `bodies.txt` alternates Go's serialized form in base64 and the JSON that Go decodes from it.
#[test]
fn bodies_of_go_clients_are_decoded() {
    let lines: Vec<&str> = include_str!("bodies.txt").lines().collect();
    for pair in lines.chunks(2) {
        let mut expected: Value = serde_json::from_str(pair[1]).unwrap();
        let mut decoded = decode_object(&STANDARD.decode(pair[0]).unwrap()).unwrap();
        let [api_version, kind] = ["apiVersion", "kind"].map(|field| expected[field].as_str().unwrap().to_owned());
        let (group, version) = api_version.split_once('/').unwrap_or(("", &api_version));
        let schema = SchemaSet::builtin().kind(group, version, &kind).unwrap();
        for object in [&mut expected, &mut decoded] {
            normalize(&schema, object);
        }
        assert_eq!(decoded, expected);
    }
    assert_eq!(lines.len(), 14);
}

#[test]
fn nested_schemas_match_go() {
    let props = |properties: Value| json!({"spec": {"versions": [{"schema": {"openAPIV3Schema": properties}}]}});
    let cases = [
        json!({"items": {"type": "string"}, "additionalProperties": false, "dependencies": {"a": {"type": "object"}}}),
        json!({"items": [{"type": "string"}], "additionalItems": true, "dependencies": {"a": ["b"]}}),
        json!({"maximum": 10, "minimum": -0.25, "multipleOf": 1e300, "enum": [1, "a", {"b": [true]}], "default": {"c": 1.5}}),
        json!({"$ref": "#/a", "$schema": "s", "x-kubernetes-validations": [{"rule": "true", "optionalOldSelf": false}]}),
    ];
    let kind = SchemaSet::builtin().kind("apiextensions.k8s.io", "v1", "CustomResourceDefinition").unwrap();
    for case in cases {
        let definition = props(case);
        let raw = encode(kind.name.as_deref().unwrap(), &kind, &definition);
        let decoded = decode_object(&body("apiextensions.k8s.io/v1", "CustomResourceDefinition", &raw)).unwrap();
        assert_eq!(decoded["spec"], definition["spec"]);
    }
}

#[test]
fn messages_are_decoded_to_json() {
    let metadata = field(1, &[field(1, b"a"), field(8, &[])].concat());
    let data = field(2, &[field(1, b"k"), field(2, b"v")].concat());
    let config_map = body("v1", "ConfigMap", &[metadata.clone(), data].concat());
    let expected = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"k": "v"}});
    assert_eq!(decode_object(&config_map).unwrap(), expected);

    // A volume has its source inlined; quantities and ports have mixed types.
    let source = field(2, &field(2, &[])); // volumeSource.emptyDir
    let volume = field(1, &[field(1, b"tmp"), source].concat());
    let pod = body("v1", "Pod", &[metadata, field(2, &volume)].concat());
    let spec = decode_object(&pod).unwrap()["spec"].clone();
    assert_eq!(spec, json!({"volumes": [{"name": "tmp", "emptyDir": {}}]}));
}

#[test]
fn malformed_bodies_are_rejected() {
    for bytes in [&b"{}"[..], b"k8s\0\x0a\xff", b"k8s\0\x12\x02"] {
        assert_eq!(decode_object(bytes).unwrap_err().code, 400);
    }
}

#[test]
fn schema_nesting_is_limited() {
    // Nested `additionalProperties.schema` in an `openAPIV3Schema`.
    let nested = |levels: usize| {
        let schema = (0..levels).fold(Vec::new(), |inner, _| field(30, &field(2, &inner)));
        let version = field(4, &field(1, &schema));
        body("apiextensions.k8s.io/v1", "CustomResourceDefinition", &field(2, &field(7, &version)))
    };
    assert!(decode_object(&nested(60)).is_ok());
    for levels in [80, 10_000] {
        assert!(decode_object(&nested(levels)).unwrap_err().message.contains("nested too deeply"), "{levels}");
    }
}
