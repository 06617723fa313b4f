use super::*;
use crate::opensearch::client::{ClientError, ErrorResponse};
use bytes::Bytes;
use proptest::prelude::*;
use serde::Deserialize;
use serde_json::{Value, json};

const RECORDED: &str = include_str!("../../../tests/fixtures/opensearch/bulk.yaml");

#[derive(Deserialize)]
struct Recorded {
    engine: String,
    case: String,
    status: u16,
    changes: Vec<RecordedChange>,
    #[serde(default)]
    outcomes: Vec<String>,
    /// Classification of a failed request with one change.
    #[serde(rename = "whole")]
    request_failure: Option<String>,
    #[serde(default)]
    replaced: bool,
    #[serde(rename = "answer")]
    response: String,
}

#[derive(Deserialize)]
struct RecordedChange {
    id: String,
    seq: u64,
    document: bool,
}

fn marker() -> Marker {
    Marker::Document("m".to_owned())
}

fn change(id: &str, seq: u64, document: bool) -> DocumentChange {
    DocumentChange { seq, id: id.to_owned(), document: document.then(|| Bytes::from_static(b"{}")) }
}

fn name(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Written => "written",
        Outcome::Superseded => "superseded",
        Outcome::Poisoned(_) => "poisoned",
        Outcome::Retry(_) => "retry",
        Outcome::Unavailable(_) => "unavailable",
        Outcome::Missing => "missing",
    }
}

fn refused_error(status: u16, body: &[u8]) -> ClientError {
    ClientError::Refused { host: "http://one".to_owned(), error_response: ErrorResponse::parse(status, body) }
}

#[test]
fn responses_of_the_engines_are_parsed() {
    let recorded: Vec<Recorded> = serde_saphyr::from_str(RECORDED).unwrap();
    assert_eq!(recorded.len(), 39);
    for Recorded { engine, case, status, changes, outcomes, request_failure, replaced, response } in recorded {
        let changes: Vec<_> = changes.iter().map(|c| change(&c.id, c.seq, c.document)).collect();
        if let Some(request_failure) = request_failure {
            let error = refused_error(status, response.as_bytes());
            assert_eq!(
                format!("{:?}", classify_failure(&error, 1)).to_lowercase(),
                request_failure,
                "{case} on {engine}"
            );
            assert_eq!(classify_failure(&error, 2), RequestFailure::Halve, "{case} on {engine}");
            continue;
        }
        let read = parse_response(response.as_bytes(), &marker(), &changes).unwrap();
        let names: Vec<_> = read.outcomes.iter().map(name).collect();
        assert_eq!(
            (names, read.replaced),
            (outcomes.iter().map(String::as_str).collect(), replaced),
            "{case} on {engine}"
        );
    }
}

#[test]
fn reasons_of_poisoned_documents_are_kept() {
    let recorded: Vec<Recorded> = serde_saphyr::from_str(RECORDED).unwrap();
    let poisoned_response = recorded
        .iter()
        .find(|poisoned_response| {
            poisoned_response.case == "poisoned" && poisoned_response.engine.starts_with("OpenSearch 2")
        })
        .unwrap();
    let changes: Vec<_> = poisoned_response.changes.iter().map(|c| change(&c.id, c.seq, c.document)).collect();
    let read = parse_response(poisoned_response.response.as_bytes(), &marker(), &changes).unwrap();
    let Outcome::Poisoned(error_response) = &read.outcomes[0] else { panic!("{:?}", read.outcomes) };
    insta::assert_snapshot!(
        error_response,
        @r#"400 mapper_parsing_exception: failed to parse field [n] of type [long] in document with id 'c'. Preview of field's value: 'word': For input string: "word""#
    );
}

#[rstest::rstest]
#[case::overload(429, "", 5, RequestFailure::Retry)]
#[case::unavailable(
    503,
    r#"{"error":{"type":"cluster_block_exception","reason":"no master"}}"#,
    5,
    RequestFailure::Retry
)]
#[case::gateway(502, "<html>", 1, RequestFailure::Retry)]
#[case::node_away(500, r#"{"error":{"type":"node_not_connected_exception","reason":""}}"#, 5, RequestFailure::Retry)]
#[case::large(413, "", 5, RequestFailure::Halve)]
#[case::large_alone(413, "", 1, RequestFailure::Poisoned)]
#[case::internal(500, "", 5, RequestFailure::Halve)]
#[case::internal_alone(500, "", 1, RequestFailure::Retry)]
#[case::password(401, "", 5, RequestFailure::Unavailable)]
#[case::permissions(
    403,
    r#"{"error":{"type":"security_exception","reason":"no permissions"}}"#,
    1,
    RequestFailure::Unavailable
)]
#[case::index(404, r#"{"error":{"type":"index_not_found_exception","reason":""}}"#, 5, RequestFailure::Unavailable)]
fn request_failures_are_classified(
    #[case] status: u16,
    #[case] body: &str,
    #[case] items: usize,
    #[case] expected: RequestFailure,
) {
    assert_eq!(classify_failure(&refused_error(status, body.as_bytes()), items), expected);
}

#[test]
fn bulk_requests_have_a_line_for_each_action_and_document() {
    let changes = [change("a\"\n", 3, true), change("b", 9, false)];
    let built = build(&marker(), &changes, BulkLimits { bytes: 1000, items: 10 });
    insta::assert_snapshot!(String::from_utf8(built.body).unwrap(), @r#"
    {"index":{"_id":"m","version":1,"version_type":"external"}}
    {}
    {"index":{"_id":"a\"\n","version":3,"version_type":"external"}}
    {}
    {"delete":{"_id":"b","version":9,"version_type":"external"}}
    "#);
    assert_eq!(built.items, 2);
}

#[rstest::rstest]
#[case::good("a", 1, "{}", None)]
#[case::no_id("", 1, "{}", Some(InvalidChange::Id))]
#[case::no_version("a", 0, "{}", Some(InvalidChange::Version))]
#[case::large_version("a", 1 << 63, "{}", Some(InvalidChange::Version))]
#[case::line_break("a", 1, "{\n}", Some(InvalidChange::LineBreak))]
fn changes_that_would_fail_a_request_are_refused(
    #[case] id: &str,
    #[case] seq: u64,
    #[case] document: &'static str,
    #[case] refused: Option<InvalidChange>,
) {
    let change = DocumentChange { seq, id: id.to_owned(), document: Some(Bytes::from_static(document.as_bytes())) };
    assert_eq!(check(&change).err(), refused);
    let long = DocumentChange { id: "ä".repeat(257), ..change };
    assert_eq!(check(&long), Err(InvalidChange::Id));
}

/// An item of a response and its outcome.
fn item() -> impl Strategy<Value = (Value, &'static str)> {
    let error = |kind: &str| json!({"type": kind, "reason": "because"});
    prop_oneof![
        Just((json!({"status": 200}), "written")),
        Just((json!({"status": 201}), "written")),
        Just((json!({"status": 409, "error": error("version_conflict_engine_exception")}), "superseded")),
        Just((json!({"status": 400, "error": error("mapper_parsing_exception")}), "poisoned")),
        Just((json!({"status": 429, "error": error("rejected_execution_exception")}), "retry")),
        Just((json!({"status": 429, "error": error("cluster_block_exception")}), "retry")),
        Just((json!({"status": 500, "error": error("node_not_connected_exception")}), "retry")),
        Just((json!({"status": 503, "error": error("unavailable_shards_exception")}), "retry")),
        Just((json!({"status": 404, "error": error("index_not_found_exception")}), "unavailable")),
        Just((json!({"status": 403, "error": error("security_exception")}), "unavailable")),
    ]
}

fn changes() -> impl Strategy<Value = Vec<DocumentChange>> {
    proptest::collection::vec(("[a-z\u{e4}\"]{1,40}", 1_u64..1 << 62, proptest::option::of(0_usize..400)), 1..30)
        .prop_map(|changes| {
            let document = |bytes: usize| Bytes::from(json!({ "text": "x".repeat(bytes) }).to_string());
            let change = |(id, seq, bytes): (String, u64, Option<usize>)| DocumentChange {
                seq,
                id,
                document: bytes.map(document),
            };
            changes.into_iter().map(change).collect()
        })
}

proptest! {
    /// The requests contain all changes in order. Each request is within the limits or has one change.
    #[test]
    fn requests_keep_their_bounds_and_lose_nothing(changes in changes(), bytes in 1_usize..3000, items in 1_usize..12) {
        let limits = BulkLimits { bytes, items };
        let mut rest = changes.as_slice();
        let mut actions = Vec::new();
        while !rest.is_empty() {
            let built = build(&marker(), rest, limits);
            prop_assert!(built.items >= 1 && built.items <= items);
            prop_assert!(built.items == 1 || built.body.len() <= bytes);
            let text = String::from_utf8(built.body).unwrap();
            let mut lines = text.lines();
            prop_assert_eq!(lines.by_ref().take(2).last(), Some("{}"));
            while let Some(line) = lines.next() {
                let action: Value = serde_json::from_str(line).unwrap();
                let (key, target) = action.as_object().unwrap().iter().next().unwrap();
                let document = (key == "index").then(|| Bytes::from(lines.next().unwrap().to_owned()));
                let (id, seq) = (target["_id"].as_str().unwrap().to_owned(), target["version"].as_u64().unwrap());
                actions.push(DocumentChange { seq, id, document });
            }
            rest = &rest[built.items..];
        }
        prop_assert_eq!(actions, changes);
    }

    /// Each item has its own outcome; items that the response omits are missing.
    #[test]
    fn items_are_read_one_by_one(
        changes in changes(),
        items in proptest::collection::vec(item(), 30),
        omitted in 0_usize..5,
    ) {
        let responded = changes.len().saturating_sub(omitted);
        let mut response = vec![json!({"index": {"_id": "m", "status": 409}})];
        let mut expected = Vec::new();
        for (change, (item, outcome)) in changes.iter().zip(items) {
            if response.len() > responded {
                expected.push("missing");
                continue;
            }
            let mut item = item;
            item["_id"] = json!(change.id);
            let action = if change.document.is_some() { "index" } else { "delete" };
            response.push(json!({ action: item }));
            expected.push(outcome);
        }
        let read = parse_response(json!({ "items": response }).to_string().as_bytes(), &marker(), &changes).unwrap();
        prop_assert_eq!(read.outcomes.iter().map(name).collect::<Vec<_>>(), expected);
    }

    /// Only changes that the response names count as written, for any response.
    #[test]
    fn any_response_is_parsed(body in "(\\{\"items\":\\[(\\{\"index\":\\{\"_id\":\"m\",\"status\":[0-9]{1,3}\\}\\},?)*\\]\\})|.{0,40}") {
        let changes = [change("a", 1, true)];
        if let Ok(response) = parse_response(body.as_bytes(), &marker(), &changes) {
            prop_assert!(!response.outcomes.contains(&Outcome::Written));
            prop_assert_eq!(response.outcomes.len(), 1);
        }
    }
}

#[test]
fn a_guard_takes_the_place_of_a_marker_document() {
    let changes = [change("a", 5, false)];
    let built = build(&Marker::Guard, &changes, BulkLimits { bytes: 1_000, items: 10 });
    assert_eq!(
        String::from_utf8(built.body).unwrap(),
        "{\"index\":{\"_id\":\"crowsnest-guard\",\"if_seq_no\":4611686018427387904,\"if_primary_term\":1}}\n{}\n\
         {\"delete\":{\"_id\":\"a\",\"version\":5,\"version_type\":\"external\"}}\n"
    );
    // Response of OpenSearch 2.19 and 3.9, and of Elasticsearch 7.17.
    let conflict = json!({"items": [
        {"index": {"_id": "crowsnest-guard", "status": 409, "error": {"type": "version_conflict_engine_exception",
            "reason": "[crowsnest-guard]: version conflict, required seqNo [4611686018427387904], primary term [1]. but no document was found"}}},
        {"delete": {"_id": "a", "status": 404}}]});
    let response = parse_response(conflict.to_string().as_bytes(), &Marker::Guard, &changes).unwrap();
    assert_eq!((response.replaced, response.outcomes), (false, vec![Outcome::Written]));
    let missing = json!({"items": [
        {"index": {"_id": "crowsnest-guard", "status": 404, "error": {"type": "index_not_found_exception", "reason": "no such index"}}},
        {"delete": {"_id": "a", "status": 404, "error": {"type": "index_not_found_exception", "reason": "no such index"}}}]});
    let response = parse_response(missing.to_string().as_bytes(), &Marker::Guard, &changes).unwrap();
    assert_eq!(response.outcomes.iter().map(name).collect::<Vec<_>>(), ["unavailable"]);
}
