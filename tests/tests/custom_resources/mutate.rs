//! Faults of generated objects.

use serde_json::{Map, Value, json};

use super::generate::{any_value, value};
use super::literals::{number, type_name};
use super::random::Random;

const NUMBERS: [&str; 20] = [
    "0",
    "-1",
    "-0",
    "-0.0",
    "1.0",
    "1e3",
    "1.5",
    "1e-7",
    "2147483647",
    "2147483648",
    "-2147483649",
    "4294967296",
    "9007199254740993",
    "9223372036854775807",
    "9223372036854775808",
    "-9223372036854775809",
    "12345678901234567890123",
    "1e21",
    "3.4028236e38",
    "123456.789",
];
const TEXTS: [&str; 13] = [
    "",
    " ",
    "ä€😀",
    "a\u{0}b",
    "\u{7f}",
    "<&>",
    "\u{2028}",
    "1",
    "true",
    "null",
    "a.b/c",
    "-",
    "2026-01-02T03:04:05Z",
];

/// Tokens of a JSON pointer.
pub type Path = Vec<String>;

/// Paths of all values except the object's type and metadata.
pub fn paths(object: &Value) -> Vec<Path> {
    let mut paths = Vec::new();
    for (name, value) in object.as_object().into_iter().flatten() {
        if !matches!(name.as_str(), "apiVersion" | "kind" | "metadata") {
            collect(value, vec![name.clone()], &mut paths);
        }
    }
    paths
}

fn collect(value: &Value, path: Path, paths: &mut Vec<Path>) {
    let child = |token: String| [path.as_slice(), &[token]].concat();
    match value {
        Value::Object(map) => map.iter().for_each(|(name, value)| collect(value, child(name.clone()), paths)),
        Value::Array(items) => {
            items.iter().enumerate().for_each(|(at, value)| collect(value, child(at.to_string()), paths));
        }
        _ => {}
    }
    paths.push(path);
}

/// A JSON pointer.
pub fn pointer(path: &[String]) -> String {
    path.iter().map(|token| format!("/{}", token.replace('~', "~0").replace('/', "~1"))).collect()
}

/// The schema of a path; null where there is none.
fn schema_at<'a>(schema: &'a Value, path: &[String]) -> &'a Value {
    path.iter().fold(schema, |schema, token| {
        let below = if schema["items"].is_object() { &schema["items"] } else { &schema["additionalProperties"] };
        schema["properties"].get(token.as_str()).unwrap_or(below)
    })
}

/// Changes the object in one place.
pub fn mutate(random: &mut Random, schema: &Value, object: &mut Value) {
    let paths = paths(object);
    let roll = random.below(100);
    if paths.is_empty() || roll >= 86 {
        return if roll < 97 { damage_metadata(random, object) } else { damage_type(random, object) };
    }
    let path = random.pick(&paths);
    let (value_schema, place) = (schema_at(schema, &path), pointer(&path));
    if (50..60).contains(&roll) {
        return duplicate_item(random, object, &paths);
    }
    if (27..37).contains(&roll) {
        return remove(object, &path);
    }
    let Some(target) = object.pointer_mut(&place) else { return };
    match roll {
        0..15 => *target = other_type(random, target),
        15..20 => *target = any_value(random, 3),
        20..27 => *target = Value::Null,
        37..50 => add_unknown(random, target),
        60..72 => *target = boundary_value(random, value_schema),
        72..78 => *target = random.pick(&TEXTS).into(),
        78..84 => *target = random.pick(&[json!({}), json!([]), json!(""), json!([{}]), json!({"a": {}})]),
        _ => *target = value(random, value_schema, 2),
    }
}

/// A value of another type. An integer is also a number, but a number is not always an integer.
pub fn other_type(random: &mut Random, value: &Value) -> Value {
    let candidates =
        [json!("text"), json!(7), json!(true), json!({"a": 1}), json!([1]), json!([{"name": "a"}]), number("1.5")];
    let own = type_name(value);
    let is_other = |candidate: &&Value| match type_name(candidate) {
        "integer" => !matches!(own, "integer" | "number"),
        other => other != own,
    };
    let others: Vec<&Value> = candidates.iter().filter(is_other).collect();
    random.pick(&others).clone()
}

fn boundary_value(random: &mut Random, schema: &Value) -> Value {
    let limits = ["minimum", "maximum", "multipleOf"].map(|keyword| schema[keyword].as_i64());
    let limits: Vec<i64> = limits.into_iter().flatten().collect();
    if limits.is_empty() || random.chance(50) {
        return number(random.pick(&NUMBERS));
    }
    (random.pick(&limits) + random.pick(&[-1, 0, 1])).into()
}

fn add_unknown(random: &mut Random, target: &mut Value) {
    let extra = any_value(random, 3);
    match target {
        Value::Object(map) => drop(map.insert(random.pick(&["bogus", "Spec", "näme"]).into(), extra)),
        Value::Array(items) => items.push(json!({"bogus": extra})),
        other => *other = json!({"bogus": extra}),
    }
}

fn duplicate_item(random: &mut Random, object: &mut Value, paths: &[Path]) {
    let lists: Vec<String> = paths.iter().map(|path| pointer(path)).collect();
    let is_list =
        |place: &&String| object.pointer(place).and_then(Value::as_array).is_some_and(|list| !list.is_empty());
    let lists: Vec<&String> = lists.iter().filter(is_list).collect();
    let Some(place) = (!lists.is_empty()).then(|| random.pick(&lists)) else { return };
    let Some(items) = object.pointer_mut(place).and_then(Value::as_array_mut) else { return };
    let mut copy = random.pick(items);
    if let Some(map) = copy.as_object_mut().filter(|map| !map.is_empty() && random.chance(30)) {
        let names: Vec<String> = map.keys().cloned().collect();
        map.remove(&random.pick(&names));
    }
    items.push(copy);
}

/// Removes the value of a path.
pub fn remove(object: &mut Value, path: &[String]) {
    let Some((last, parent)) = path.split_last() else { return };
    match object.pointer_mut(&pointer(parent)) {
        Some(Value::Object(map)) => drop(map.remove(last)),
        Some(Value::Array(items)) => {
            if let Some(at) = last.parse().ok().filter(|at| *at < items.len()) {
                items.remove(at);
            }
        }
        _ => {}
    }
}

fn damage_metadata(random: &mut Random, object: &mut Value) {
    // A missing owner of a known kind would have the object deleted by garbage collection.
    let owner = json!({"apiVersion": "example.com/v1", "kind": "Owner", "name": "owner", "uid": "u-1"});
    let controller =
        json!({"apiVersion": "example.com/v1", "kind": "Owner", "name": "owner", "uid": "u-2", "controller": true});
    let faults = [
        ("labels", json!({"a b": "c"})),
        ("labels", json!({"a": "-"})),
        ("labels", json!({"a": 1})),
        ("labels", json!("a")),
        ("labels", json!({"a": null})),
        ("annotations", json!({"a b": "c"})),
        ("annotations", json!({"A/b": {"c": 1}})),
        ("annotations", Value::Null),
        ("finalizers", json!(["x"])),
        ("finalizers", json!(["example.com/x", "example.com/x"])),
        ("finalizers", json!([1])),
        ("ownerReferences", json!([owner])),
        ("ownerReferences", json!([owner, owner])),
        ("ownerReferences", json!([controller, controller])),
        ("ownerReferences", json!([{"kind": "ConfigMap", "name": "owner"}])),
        ("ownerReferences", json!([{"apiVersion": "a/b/c", "kind": "ConfigMap", "name": "", "uid": ""}])),
        ("name", json!("Upper_Case")),
        ("name", json!("")),
        ("name", json!("a/b")),
        ("name", json!(5)),
        ("generateName", json!("Gen-")),
        ("generateName", json!(5)),
        ("namespace", json!("other")),
        ("namespace", json!("")),
        ("uid", json!("not-its-own")),
        ("resourceVersion", json!("x")),
        ("resourceVersion", json!("1")),
        ("creationTimestamp", json!("yesterday")),
        ("creationTimestamp", Value::Null),
        ("deletionTimestamp", json!("2026-01-02T03:04:05Z")),
        ("deletionGracePeriodSeconds", json!(30)),
        ("generation", json!(77)),
        ("generation", json!(-1)),
        ("generation", json!("1")),
        ("selfLink", json!("/a")),
        ("bogus", json!(1)),
        ("managedFields", json!([{"manager": "x"}])),
        ("managedFields", json!([{}])),
        ("managedFields", json!([])),
    ];
    let (field, fault) = random.pick(&faults);
    if !object["metadata"].is_object() {
        object["metadata"] = Value::Object(Map::new());
    }
    object["metadata"][field] = fault;
}

fn damage_type(random: &mut Random, object: &mut Value) {
    match random.below(6) {
        0 => object["apiVersion"] = "v1".into(),
        1 => object["apiVersion"] = "a/b/c".into(),
        2 => object["kind"] = "Other".into(),
        3 => object["metadata"] = json!("text"),
        4 => remove(object, &["kind".to_owned()]),
        _ => remove(object, &["apiVersion".to_owned()]),
    }
}
