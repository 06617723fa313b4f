//! Objects that mostly satisfy a structural schema, generated from a seed.

use regex_syntax::hir::{Class, Hir, HirKind};
use serde_json::{Map, Value, json};

use super::literals::number;
use super::random::Random;

/// Values by format: the first one is valid, the others may be invalid.
const FORMATS: [(&str, &[&str]); 22] = [
    (
        "date-time",
        &["2026-01-02T03:04:05Z", "2026-01-02T03:04:05.123456789+02:00", "2026-01-02t03:04:05z", "2026-01-02"],
    ),
    ("date", &["2026-01-02", "2024-02-29", "2026-02-30"]),
    ("duration", &["1h2m", "3s", "1d", "2 days", "1w", "1ms", "P1D", "-5m", "0", "x"]),
    ("byte", &["YWJj", "", "YQ==", "no base64!"]),
    ("uuid", &["123e4567-e89b-12d3-a456-426614174000", "123E4567E89B12D3A456426614174000", "123e4567"]),
    ("uuid3", &["6fa459ea-ee8a-3ca4-894e-db77e160355e", "123e4567-e89b-12d3-a456-426614174000"]),
    ("uuid4", &["16fd2706-8baf-433b-82eb-8c7fada847da", "123e4567-e89b-12d3-a456-426614174000"]),
    ("uuid5", &["886313e1-3b8a-5372-9b90-0c9aee199e5d", "x"]),
    ("ipv4", &["10.0.0.1", "010.0.0.1", "::1", "10.0.0"]),
    ("ipv6", &["::1", "2001:DB8::1", "::ffff:10.0.0.1", "10.0.0.1"]),
    ("cidr", &["10.0.0.0/8", "10.0.0.1/8", "2001:db8::/32", "10.0.0.0/33"]),
    ("mac", &["01:23:45:67:89:ab", "01-23-45-67-89-ab", "01:23"]),
    ("email", &["a@b.example", "Ann <a@b.example>", "a@b", "a"]),
    ("hostname", &["a.example", "A_b.example", "-a.example", "a..b"]),
    ("uri", &["https://a.example/b?c", "urn:a", "/a", "a b"]),
    ("password", &["secret", ""]),
    ("isbn", &["978-0-306-40615-7", "0306406152", "1"]),
    ("creditcard", &["4111111111111111", "1"]),
    ("ssn", &["123-45-6789", "1"]),
    ("hexcolor", &["#ffffff", "#FFF", "ffffff", "#ff"]),
    ("rgbcolor", &["rgb(1,2,3)", "rgb(256,2,3)"]),
    ("bsonobjectid", &["507f1f77bcf86cd799439011", "507f"]),
];
const TEXTS: [&str; 7] = ["a", "b", "web-1", "", "ä€😀", "a\u{301}", "<b>&\"\\\u{2028}"];
const KEYS: [&str; 9] = ["a", "b", "app.kubernetes.io/name", "x-y", "ä", "a<b", "apiVersion", "kind", "metadata"];

/// The object of a kind whose schema is given. `version` is `group/version`.
pub fn object(random: &mut Random, schema: &Value, version: &str, kind: &str, name: &str) -> Value {
    let mut object = match value(random, schema, 0) {
        Value::Object(object) => object,
        _ => Map::new(),
    };
    object.insert("apiVersion".into(), version.into());
    object.insert("kind".into(), kind.into());
    let mut metadata = json!({"name": name});
    if random.chance(30) {
        metadata["labels"] = json!({"tier": random.pick(&["web", "data"])});
    }
    if random.chance(20) {
        metadata["annotations"] = json!({"note": random.pick(&TEXTS)});
    }
    object.insert("metadata".into(), metadata);
    Value::Object(object)
}

/// A value of a schema, which is the whole schema of an object at depth 0.
pub fn value(random: &mut Random, schema: &Value, depth: usize) -> Value {
    if schema["nullable"] == true && random.chance(15) {
        return Value::Null;
    }
    if let Some(values) = schema["enum"].as_array().filter(|values| !values.is_empty()) {
        return random.pick(values);
    }
    if schema["x-kubernetes-int-or-string"] == true {
        return random.pick(&[json!(5), json!("25%"), json!("http"), json!(0)]);
    }
    match schema["type"].as_str() {
        Some("object") => Value::Object(map(random, schema, depth)),
        Some("array") => array(random, schema, depth),
        Some("boolean") => random.chance(50).into(),
        Some("integer") => integer(random, schema).into(),
        Some("number") => decimal(random, schema),
        Some("string") => string(random, schema).into(),
        _ if schema["properties"].is_object() => Value::Object(map(random, schema, depth)),
        _ => any_value(random, depth),
    }
}

fn map(random: &mut Random, schema: &Value, depth: usize) -> Map<String, Value> {
    let mut map = Map::new();
    // `object` sets type and metadata of the object itself, at depth 0; those of an embedded resource are set below. In
    // other objects, fields with their names are ordinary ones.
    let is_embedded = schema["x-kubernetes-embedded-resource"] == true;
    let is_resource = depth == 0 || is_embedded;
    let is_required = |name: &str| schema["required"].as_array().is_some_and(|names| names.iter().any(|n| n == name));
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        let is_set_apart = is_resource && matches!(name.as_str(), "apiVersion" | "kind" | "metadata");
        let share = if depth > 6 { 5 } else { 60 };
        if !is_set_apart && (is_required(name) || random.chance(share)) {
            map.insert(name.clone(), value(random, property, depth + 1));
        }
    }
    if schema["additionalProperties"].is_object() {
        let min_properties = schema["minProperties"].as_u64().and_then(|n| usize::try_from(n).ok()).unwrap_or(0);
        for _ in 0..min_properties + random.below(3) {
            map.insert(random.pick(&KEYS).into(), value(random, &schema["additionalProperties"], depth + 1));
        }
    }
    if is_embedded {
        map.insert("apiVersion".into(), "v1".into());
        map.insert("kind".into(), random.pick(&["ConfigMap", "Secret"]).into());
        map.insert("metadata".into(), json!({"name": "inner", "labels": {"a": "b"}}));
    }
    if schema["x-kubernetes-preserve-unknown-fields"] == true && random.chance(60) {
        map.insert(random.pick(&["extra", "other"]).into(), any_value(random, depth + 1));
    }
    map
}

fn array(random: &mut Random, schema: &Value, depth: usize) -> Value {
    let min_items = schema["minItems"].as_u64().and_then(|n| usize::try_from(n).ok()).unwrap_or(0);
    let mut items = Vec::new();
    for _ in 0..min_items + random.below(if depth > 6 { 1 } else { 4 }) {
        items.push(value(random, &schema["items"], depth + 1));
    }
    match schema["x-kubernetes-list-type"].as_str() {
        Some("set") => remove_duplicates(&mut items, Value::clone),
        Some("map") => {
            let keys = schema["x-kubernetes-list-map-keys"].as_array().cloned().unwrap_or_default();
            remove_duplicates(&mut items, |item| {
                keys.iter().filter_map(Value::as_str).map(|key| key_or_default(&schema["items"], item, key)).collect()
            });
        }
        _ => {}
    }
    items.into()
}

fn key_or_default(schema: &Value, item: &Value, key: &str) -> Value {
    item.get(key).unwrap_or(&schema["properties"][key]["default"]).clone()
}

fn remove_duplicates(items: &mut Vec<Value>, key: impl Fn(&Value) -> Value) {
    let mut keys = Vec::new();
    items.retain(|item| {
        let key = key(item);
        let is_new = !keys.contains(&key);
        keys.push(key);
        is_new
    });
}

fn integer(random: &mut Random, schema: &Value) -> i64 {
    let minimum = schema["minimum"].as_i64().unwrap_or(0);
    let maximum = schema["maximum"].as_i64().unwrap_or(minimum.saturating_add(9)).max(minimum);
    let step = schema["multipleOf"].as_i64().unwrap_or(1).max(1);
    let drawn = i64::try_from(random.below(usize::try_from((maximum - minimum).clamp(0, 50)).unwrap_or(0) + 1));
    let drawn = minimum + drawn.unwrap_or_default();
    drawn - drawn.rem_euclid(step)
}

fn decimal(random: &mut Random, schema: &Value) -> Value {
    match random.below(4) {
        0 => integer(random, schema).into(),
        1 => number(random.pick(&["0.5", "1.0", "2.50", "1e1", "1E-2"])),
        _ => (schema["minimum"].as_f64().unwrap_or(0.0) + 0.25).into(),
    }
}

fn string(random: &mut Random, schema: &Value) -> String {
    let known = schema["format"].as_str().and_then(|format| FORMATS.iter().find(|(name, _)| *name == format));
    if let Some((_, samples)) = known {
        // The valid value is chosen most often.
        return samples[if random.chance(80) { 0 } else { random.below(samples.len()) }].into();
    }
    if let Some(hir) = schema["pattern"].as_str().and_then(|pattern| parse_pattern(random, pattern)) {
        let mut text = String::new();
        append_match(random, &hir, &mut text);
        return text;
    }
    let min_length = schema["minLength"].as_u64().and_then(|n| usize::try_from(n).ok()).unwrap_or(0);
    let text = if random.chance(85) { random.pick(&TEXTS[..3]) } else { random.pick(&TEXTS) };
    format!("{text}{}", "z".repeat(min_length.saturating_sub(text.chars().count())))
}

/// Parses a pattern, mostly with ASCII classes as in Go, where few other characters of Unicode classes match.
fn parse_pattern(random: &mut Random, pattern: &str) -> Option<Hir> {
    let is_unicode = random.chance(10);
    let mut parser = regex_syntax::ParserBuilder::new().unicode(is_unicode).utf8(is_unicode).build();
    parser.parse(pattern).ok().or_else(|| regex_syntax::parse(pattern).ok())
}

/// Appends a text that a pattern matches. Anchors and other look-around assertions are ignored.
fn append_match(random: &mut Random, hir: &Hir, text: &mut String) {
    match hir.kind() {
        HirKind::Empty | HirKind::Look(_) => {}
        HirKind::Literal(literal) => text.push_str(&String::from_utf8_lossy(&literal.0)),
        HirKind::Class(Class::Unicode(class)) => {
            let range = random.pick(class.ranges());
            let (first, last) = (u32::from(range.start()), u32::from(range.end()));
            let drawn = u32::try_from(random.below(usize::try_from((last - first).min(25)).unwrap_or(0) + 1));
            text.extend(char::from_u32(first + drawn.unwrap_or_default()));
        }
        HirKind::Class(Class::Bytes(class)) => {
            let range = random.pick(class.ranges());
            let (first, last) = (range.start().clamp(b' ', b'~'), range.end().clamp(b' ', b'~'));
            let drawn = random.below(usize::from(last - first).min(25) + 1);
            text.push(char::from(first + u8::try_from(drawn).unwrap_or_default()));
        }
        HirKind::Repetition(repetition) => {
            let extra = repetition.max.map_or(3, |max| max.saturating_sub(repetition.min)).min(3);
            let times = repetition.min + u32::try_from(random.below(extra as usize + 1)).unwrap_or_default();
            (0..times).for_each(|_| append_match(random, &repetition.sub, text));
        }
        HirKind::Capture(capture) => append_match(random, &capture.sub, text),
        HirKind::Concat(parts) => parts.iter().for_each(|part| append_match(random, part, text)),
        HirKind::Alternation(parts) => {
            let part = random.pick(parts);
            append_match(random, &part, text);
        }
    }
}

/// Any JSON value.
pub fn any_value(random: &mut Random, depth: usize) -> Value {
    match random.below(if depth > 4 { 7 } else { 11 }) {
        0 => Value::Null,
        1 => random.chance(50).into(),
        2 => json!(random.below(9)),
        3 => number(random.pick(&["1.5", "1.0", "1e3", "-0.0", "9007199254740993", "12345678901234567890"])),
        4..7 => random.pick(&TEXTS).into(),
        7..9 => (0..random.below(3)).map(|_| any_value(random, depth + 1)).collect(),
        _ => {
            let entries = (0..random.below(4)).map(|_| (random.pick(&KEYS).to_owned(), any_value(random, depth + 1)));
            Value::Object(entries.collect())
        }
    }
}
