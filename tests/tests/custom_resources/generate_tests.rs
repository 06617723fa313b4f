//! Tests of the generators, without servers.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use rstest::rstest;
use serde_json::{Value, json};

use super::compare::{Deviation, KnownDeviations, SERVER_ERROR, differences};
use super::definition::{Definition, read_definitions};
use super::literals::{number, to_text, type_name};
use super::mutate::other_type;
use super::random::Random;
use super::sequence::{JSON, Request, Sequence, stored_object};
use super::server::Response;
use super::{KNOWN, SEEDS, min_accepted_percent, own_folder};

/// Keywords of schemas that the definitions must have.
const KEYWORDS: [&str; 33] = [
    "additionalProperties",
    "allOf",
    "anyOf",
    "default",
    "enum",
    "exclusiveMaximum",
    "exclusiveMinimum",
    "format",
    "items",
    "maxItems",
    "maxLength",
    "maxProperties",
    "maximum",
    "minItems",
    "minLength",
    "minProperties",
    "minimum",
    "multipleOf",
    "not",
    "nullable",
    "oneOf",
    "pattern",
    "properties",
    "required",
    "type",
    "uniqueItems",
    "x-kubernetes-embedded-resource",
    "x-kubernetes-int-or-string",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-list-type",
    "x-kubernetes-map-type",
    "x-kubernetes-preserve-unknown-fields",
    "x-kubernetes-validations",
];
/// Kinds of requests that the fixed seeds must have: method (empty for any), part of the path or content type, part of
/// the body.
const REQUESTS: [(&str, &str, &str); 26] = [
    ("POST", "fieldValidation=Strict", ""),
    ("POST", "fieldValidation=Warn", ""),
    ("POST", "fieldValidation=Ignore", ""),
    ("POST", "dryRun=All", ""),
    ("GET", "as=Table", ""),
    ("GET", "as=PartialObjectMetadata", ""),
    ("GET", "labelSelector", ""),
    ("GET", "fieldSelector=spec.color", ""),
    ("GET", "/scale", ""),
    ("PUT", "/scale", ""),
    ("PUT", "/status", ""),
    ("PUT", "fieldManager=updater", "@resourceVersion"),
    ("PATCH", "merge-patch", "null"),
    ("PATCH", "json-patch", "\"op\":\"test\""),
    ("PATCH", "json-patch", "\"op\":\"move\""),
    ("PATCH", "strategic-merge-patch", ""),
    ("PATCH", "apply-patch", "\"spec\""),
    ("PATCH", "force=true", ""),
    ("PATCH", "/status?fieldManager=a", ""),
    ("POST", "", "bogus"),
    ("POST", "", "1e3"),
    ("", "", "generateName"),
    ("", "", "ownerReferences"),
    ("", "", "\"kind\":\"Other\""),
    ("POST", "/references", "\"target\":{\"apiVersion\":"),
    ("DELETE", "", "preconditions"),
];

/// The schemas directly below a schema, of which some may be booleans.
fn subschemas(schema: &Value) -> Vec<&Value> {
    let named = schema["properties"].as_object().into_iter().flat_map(serde_json::Map::values);
    let single = ["items", "additionalProperties", "not"].map(|keyword| &schema[keyword]);
    let listed = ["allOf", "anyOf", "oneOf"].map(|keyword| schema[keyword].as_array().into_iter().flatten());
    named.chain(single).chain(listed.into_iter().flatten()).filter(|below| !below.is_null()).collect()
}

/// The keywords of a schema and of its subschemas. Names of properties and the content of defaults are not keywords.
fn collect_keywords(schema: &Value, found: &mut BTreeSet<String>) {
    found.extend(schema.as_object().into_iter().flat_map(serde_json::Map::keys).cloned());
    subschemas(schema).into_iter().for_each(|below| collect_keywords(below, found));
}

/// Paths of a schema's properties. Items of lists and values of maps have the path of their list or map with `[]`.
fn collect_properties(schema: &Value, path: &str, found: &mut BTreeSet<String>) {
    for (name, below) in schema["properties"].as_object().into_iter().flatten() {
        let path = format!("{path}.{name}");
        collect_properties(below, &path, found);
        found.insert(path);
    }
    for below in ["items", "additionalProperties"].into_iter().filter_map(|keyword| schema.get(keyword)) {
        collect_properties(below, &format!("{path}[]"), found);
    }
}

/// Paths of a schema's properties that an object has, as by [`collect_properties`].
fn collect_present(schema: &Value, object: &Value, path: &str, found: &mut BTreeSet<String>) {
    for (name, below) in schema["properties"].as_object().into_iter().flatten() {
        if let Some(value) = object.get(name) {
            let path = format!("{path}.{name}");
            collect_present(below, value, &path, found);
            found.insert(path);
        }
    }
    let path = format!("{path}[]");
    for item in object.as_array().into_iter().flatten() {
        collect_present(&schema["items"], item, &path, found);
    }
    for value in object.as_object().into_iter().flat_map(serde_json::Map::values) {
        collect_present(&schema["additionalProperties"], value, &path, found);
    }
}

fn response(code: u16, body: Value) -> Response {
    Response { code, content_type: JSON.to_owned(), warnings: Vec::new(), body }
}

/// The requests of a seed to a server that responds with `respond`.
fn requests(seed: u64, definition: &Definition, respond: impl Fn(&Request) -> Response) -> Vec<Request> {
    let mut sequence = Sequence::new(seed, definition);
    let mut requests = Vec::new();
    while let Some(request) = sequence.next_request() {
        sequence.record_response(&request, &respond(&request));
        requests.push(request);
    }
    requests
}

/// Stores each object that is created or replaced as it is.
fn store(request: &Request) -> Response {
    match request.method {
        "POST" | "PUT" => response(200, serde_json::from_str(&request.body).unwrap_or_default()),
        _ => response(404, json!({"kind": "Status"})),
    }
}

/// The definition with this plural name.
fn definition<'a>(definitions: &'a [Definition], plural: &str) -> Result<&'a Definition> {
    definitions.iter().find(|definition| definition.plural == plural).with_context(|| format!("no {plural}"))
}

/// The requests of all fixed seeds.
fn all_requests(definitions: &[Definition]) -> Result<Vec<Request>> {
    let mut all_requests = Vec::new();
    for seed in 0..SEEDS {
        all_requests.extend(requests(seed, &definitions[usize::try_from(seed)? % definitions.len()], store));
    }
    Ok(all_requests)
}

#[test]
fn definitions_have_each_keyword() -> Result<()> {
    let definitions = read_definitions(&own_folder())?;
    let mut found = BTreeSet::new();
    for version in definitions.iter().flat_map(|definition| &definition.versions) {
        collect_keywords(&version.schema, &mut found);
    }
    let missing: Vec<_> = KEYWORDS.iter().filter(|keyword| !found.contains(**keyword)).collect();
    ensure!(missing.is_empty() && definitions.len() >= 13, "{} definitions, without {missing:?}", definitions.len());
    Ok(())
}

#[test]
fn seeds_generate_the_same_requests_each_time() -> Result<()> {
    let definitions = read_definitions(&own_folder())?;
    let texts = |all: Vec<Request>| all.iter().map(|request| format!("{request:?}")).collect::<Vec<_>>();
    let (first, second) = (texts(all_requests(&definitions)?), texts(all_requests(&definitions)?));
    ensure!(first == second && first.len() > 3_000, "{} requests", first.len());
    let distinct: BTreeSet<&String> = first.iter().collect();
    ensure!(distinct.len() * 10 > first.len() * 9, "{} of {} requests differ", distinct.len(), first.len());
    Ok(())
}

#[test]
fn fixed_seeds_contain_each_kind_of_request() -> Result<()> {
    let all = all_requests(&read_definitions(&own_folder())?)?;
    for (method, part, body) in REQUESTS {
        let has_part = |request: &&Request| {
            [request.path.as_str(), request.content_type, request.accept].iter().any(|text| text.contains(part))
        };
        let has_method = |request: &&Request| method.is_empty() || request.method == method;
        let mut requests = all.iter().filter(has_method).filter(has_part);
        ensure!(requests.any(|request| request.body.contains(body)), "no {method} has {part:?} and {body:?}");
    }
    Ok(())
}

/// Each property of each version occurs in an object of a request, at its path.
#[test]
fn fixed_seeds_contain_each_property() -> Result<()> {
    let definitions = read_definitions(&own_folder())?;
    let all = all_requests(&definitions)?;
    for definition in &definitions {
        for version in &definition.versions {
            let (mut expected, mut found) = (BTreeSet::new(), BTreeSet::new());
            collect_properties(&version.schema, "", &mut expected);
            let collection = definition.collection(version);
            for request in all.iter().filter(|request| request.path.starts_with(&collection)) {
                let object: Value = serde_json::from_str(&request.body).unwrap_or_default();
                collect_present(&version.schema, &object, "", &mut found);
            }
            let missing: Vec<_> = expected.difference(&found).collect();
            ensure!(missing.is_empty(), "no object of {collection} has {missing:?}");
        }
    }
    Ok(())
}

/// Requests after the creation contain values of the object that the server stored, and of no other.
#[rstest]
#[case::stored(201, true)]
#[case::refused(409, false)]
fn changes_derive_from_the_stored_object(#[case] code: u16, #[case] expected: bool) -> Result<()> {
    let definitions = read_definitions(&own_folder())?;
    let fleets = definition(&definitions, "fleets")?;
    let mut bodies = String::new();
    for seed in 0..20 {
        let body = json!({
            "apiVersion": "lab.crowsnest.io/v1", "kind": "Fleet", "spec": {"mode": "as-stored"},
            "metadata": {"name": format!("seed-{seed}"), "uid": "uid-of-a-server"},
        });
        let all = requests(seed, fleets, |_| response(code, body.clone()));
        bodies.extend(all.into_iter().map(|request| request.body));
    }
    ensure!(bodies.contains("\"as-stored\"") == expected && !bodies.contains("uid-of-a-server"), "{bodies}");
    Ok(())
}

#[rstest]
#[case::created("POST", "?fieldManager=a", 201, "Fleet", "seed-1", true)]
#[case::read("GET", "/seed-1", 200, "Fleet", "seed-1", true)]
#[case::dry_run("PUT", "/seed-1?fieldManager=a&dryRun=All", 200, "Fleet", "seed-1", false)]
#[case::refused("PUT", "/seed-1", 422, "Fleet", "seed-1", false)]
#[case::deleted("DELETE", "/seed-1", 200, "Fleet", "seed-1", false)]
#[case::scale("PUT", "/seed-1/scale", 200, "Scale", "seed-1", false)]
#[case::other_name("POST", "?fieldManager=a", 201, "Fleet", "seed-2", false)]
fn accepted_writes_and_reads_show_the_stored_object(
    #[case] method: &'static str,
    #[case] suffix: &str,
    #[case] code: u16,
    #[case] kind: &str,
    #[case] name: &str,
    #[case] expected: bool,
) -> Result<()> {
    let definitions = read_definitions(&own_folder())?;
    let fleets = definition(&definitions, "fleets")?;
    let path = format!("{}{suffix}", fleets.collection(&fleets.versions[0]));
    let request = Request { method, path, content_type: JSON, accept: JSON, body: String::new() };
    let metadata = json!({"name": name, "uid": "u", "resourceVersion": "1", "generation": 1, "labels": {"a": "b"}});
    let found = response(code, json!({"kind": kind, "metadata": metadata, "spec": {"mode": "fast"}}));
    let object = json!({"kind": kind, "metadata": {"name": name, "labels": {"a": "b"}}, "spec": {"mode": "fast"}});
    assert_eq!(stored_object(fleets, "seed-1", &request, &found), expected.then_some(object));
    Ok(())
}

#[rstest]
#[case::literal(number("2.50"), "number", &["array", "boolean", "object", "string"])]
#[case::float(json!(0.25), "number", &["array", "boolean", "object", "string"])]
#[case::integer(json!(4), "integer", &["array", "boolean", "number", "object", "string"])]
#[case::long(number("12345678901234567890123"), "integer", &["array", "boolean", "number", "object", "string"])]
#[case::text(json!("1.5"), "string", &["array", "boolean", "integer", "number", "object"])]
#[case::null(json!(null), "null", &["array", "boolean", "integer", "number", "object", "string"])]
#[case::list(json!([2]), "array", &["boolean", "integer", "number", "object", "string"])]
fn other_types_are_those_that_a_value_does_not_have(#[case] value: Value, #[case] own: &str, #[case] others: &[&str]) {
    let mut random = Random::new(1);
    let found: BTreeSet<&str> = (0..500).map(|_| type_name(&other_type(&mut random, &value))).collect();
    let expected: BTreeSet<&str> = others.iter().copied().collect();
    assert_eq!((type_name(&value), found), (own, expected));
}

#[rstest]
#[case::one(1, 0)]
#[case::two(2, 0)]
#[case::few(4, 12)]
#[case::some(25, 28)]
#[case::all(SEEDS, 30)]
#[case::many(5_000, 30)]
fn few_sequences_may_be_refused_more_often(#[case] sequences: u64, #[case] expected: u64) {
    assert_eq!(min_accepted_percent(sequences), expected);
}

/// A server error of kube-apiserver is a difference, also if the other server refuses the request.
#[rstest]
#[case::named("cannot do", "422 is wrong", true)]
#[case::other_message("cannot say", "422 is wrong", false)]
#[case::other_code("cannot do", "409 is wrong", false)]
fn server_errors_need_an_entry(#[case] message: &str, #[case] refusal: &str, #[case] expected: bool) -> Result<()> {
    let entry = |text: &str| Deviation { text: text.to_owned(), bodies: Vec::new(), reason: "a test".to_owned() };
    let accepted = vec![entry("code: 500 cannot do | 422"), entry("wrong")];
    let known = KnownDeviations { differences: accepted, server_errors: Vec::new() };
    let (code, text) = refusal.split_once(' ').context("the refusal has no message")?;
    let real = response(500, json!({"kind": "Status", "message": message}));
    let ours = response(code.parse()?, json!({"kind": "Status", "message": text}));
    let found = differences(&real, &ours);
    ensure!(found == [format!("code: 500 {message} | {refusal}")], "{found:?}");
    assert_eq!(known.accepts(&found[0], ""), expected);
    Ok(())
}

/// If several embedded resources have errors, the servers may report different ones.
#[rstest]
#[case::other_field("Open", "spec.a.kind: Invalid value: 5: must be a string", true)]
#[case::same_field("Open", "spec.b.metadata: Invalid value: 5: must be a string", false)]
#[case::other_kind("Shut", "spec.a.kind: Invalid value: 5: must be a string", false)]
#[case::no_field("Open", "strict decoding error: unknown field \"a\"", false)]
#[case::other_field_of_the_resource("Open", "spec.b.apiVersion: Invalid value: 5: must be a string", true)]
#[case::item("Open", "spec.list[0].metadata: Invalid value: {}: parsing time \"x\"", true)]
#[case::other_error("Open", "spec.a.kind: Invalid value: \"\": must not be empty", false)]
#[case::other_metadata_error("Open", "spec.a.metadata: Invalid value: 5: must be a string", false)]
#[case::no_embedded_resource("Open", "kind: Invalid value: 5: must be a string", false)]
#[case::field_of_no_resource("Open", "spec.a.size: Invalid value: \"x\": must be a string", false)]
fn errors_of_embedded_resources_have_no_order(#[case] kind: &str, #[case] error: &str, #[case] expected: bool) {
    let status = |kind: &str, error: &str| {
        let message = format!("{kind} in version \"v1\" cannot be handled as a Open: {error}");
        response(400, json!({"kind": "Status", "message": message}))
    };
    let real = status("Open", "spec.b.metadata: Invalid value: {}: json: cannot unmarshal");
    assert_eq!(differences(&real, &status(kind, error)).is_empty(), expected);
}

#[rstest]
#[case::exponent(json!({"a": number("1e3")}), r#"{"a":1e3}"#)]
#[case::long(json!([number("12345678901234567890123"), "1e3"]), r#"[12345678901234567890123,"1e3"]"#)]
#[case::negative_zero(number("-0.0"), "-0.0")]
#[case::quotes(json!({"a": "\"@number", "b": number("1")}), r#"{"a":"\"@number","b":1}"#)]
fn numbers_keep_their_text(#[case] value: Value, #[case] expected: &str) {
    assert_eq!(to_text(&value), expected);
}

#[test]
fn accepted_deviations_have_reasons() -> Result<()> {
    let known: KnownDeviations = serde_saphyr::from_str(KNOWN).context("differences.yaml")?;
    let all = known.differences.iter().chain(&known.server_errors);
    ensure!(all.clone().all(|known| !known.text.is_empty() && known.reason.len() > 20), "{known:?}");
    // An entry for a server error of kube-apiserver names its message and our status code.
    let mut errors = known.differences.iter().filter(|known| known.text.starts_with(SERVER_ERROR));
    ensure!(errors.all(|known| known.text.len() > 30 && known.text.contains(" | ")), "{known:?}");
    Ok(())
}
