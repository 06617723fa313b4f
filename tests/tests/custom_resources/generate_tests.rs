//! Tests of the generators, without servers.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use rstest::rstest;
use serde_json::{Value, json};

use super::compare::Known;
use super::definition::{Definition, read_definitions};
use super::literals::{number, to_text};
use super::sequence::{Request, requests};
use super::{KNOWN, SEEDS, own_folder};

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
/// Kinds of requests that the fixed seeds must have: method, part of the path or content type, part of the body.
const REQUESTS: [(&str, &str, &str); 25] = [
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
    ("POST", "", "generateName"),
    ("POST", "", "ownerReferences"),
    ("POST", "", "\"kind\":\"Other\""),
    ("DELETE", "", "preconditions"),
];

fn collect_keywords(schema: &Value, found: &mut BTreeSet<String>) {
    match schema {
        Value::Object(map) => map.iter().for_each(|(name, value)| {
            found.insert(name.clone());
            collect_keywords(value, found);
        }),
        Value::Array(items) => items.iter().for_each(|item| collect_keywords(item, found)),
        _ => {}
    }
}

/// The requests of all fixed seeds.
fn all_requests(definitions: &[Definition]) -> Result<Vec<Request>> {
    let mut all = Vec::new();
    for seed in 0..SEEDS {
        all.extend(requests(seed, &definitions[usize::try_from(seed)? % definitions.len()]));
    }
    Ok(all)
}

#[test]
fn definitions_have_each_keyword() -> Result<()> {
    let definitions = read_definitions(&own_folder())?;
    let mut found = BTreeSet::new();
    for version in definitions.iter().flat_map(|definition| &definition.versions) {
        collect_keywords(&version.schema, &mut found);
    }
    let missing: Vec<_> = KEYWORDS.iter().filter(|keyword| !found.contains(**keyword)).collect();
    ensure!(missing.is_empty() && definitions.len() >= 12, "{} definitions, without {missing:?}", definitions.len());
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
        let mut requests = all.iter().filter(|request| request.method == method).filter(has_part);
        ensure!(requests.any(|request| request.body.contains(body)), "no {method} has {part:?} and {body:?}");
    }
    Ok(())
}

/// Each property of the definitions is in the body of a request.
#[test]
fn fixed_seeds_contain_each_property() -> Result<()> {
    let definitions = read_definitions(&own_folder())?;
    let all = all_requests(&definitions)?;
    for definition in &definitions {
        let part = format!("/{}", definition.plural);
        let bodies: String =
            all.iter().filter(|request| request.path.contains(&part)).map(|request| request.body.as_str()).collect();
        for version in &definition.versions {
            let properties = version.schema["properties"]["spec"]["properties"].as_object();
            for name in properties.into_iter().flatten().map(|(name, _)| name) {
                ensure!(bodies.contains(&format!("\"{name}\"")), "no object of {part} has {name}");
            }
        }
    }
    Ok(())
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
    let known: Known = serde_saphyr::from_str(KNOWN).context("differences.yaml")?;
    let all = known.differences.iter().chain(&known.server_errors);
    ensure!(all.clone().all(|known| !known.text.is_empty() && known.reason.len() > 20), "{known:?}");
    Ok(())
}
