//! `query`: hits with counts, as JSON or as server-sent events, which continue with changes if `watch` is set.

use axum::response::{IntoResponse, Response};
use crowsnest_apimachinery::status::ApiError;
use crowsnest_index::Error;
use crowsnest_search::{LiveCounts, LiveEvent, SearchEvent};
use futures::StreamExt;
use http::StatusCode;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::call::SearchCall;
use super::columns::Columns;
use super::events::{Event, Events, error, event, stream};
use super::hits::{facets, groups, hit, hits, identity, skipped, summary_fields, total_relation};
use super::openapi::{
    COLUMNS, CURSOR, EVENTS, FACETS, LIMIT, Parameter, Q, ResponseSchemas, SUMS, name_of, ref_to, relation,
};
use super::operation::SearchOperation;
use super::{API_VERSION, definition};
use crate::resource::openapi::Document;
use crate::resource::schema::{JSON, body, integer, list, object, string};
use crate::resource::{Definition, RequestFeatures};
use crowsnest_process::reply::json as json_response;

pub(super) struct Query;

impl SearchOperation for Query {
    const DEFINITION: Definition =
        Definition { route: "search.crowsnest.io/query", ..definition("query", "SearchResult") };
    const SUMMARY: &str = "Matching objects, best first, with counts; as server-sent events (notices, skipped, matches, summary, facets, groups, done, error) if Accept has text/event-stream. With watch=true changes follow: changed, left, counts, behind.";
    const PARAMETERS: &[Parameter] =
        &[Q, LIMIT, CURSOR, FACETS, SUMS, COLUMNS, Parameter::boolean("watch", "Send changes after the result.")];
    const RESPONSES: ResponseSchemas = &[(JSON, &["SearchResult"]), (EVENTS, &["SearchEvents"])];

    fn is_long_running(requested: RequestFeatures) -> bool {
        requested.watch || requested.events
    }

    fn add_schemas(document: &mut Document) {
        add_schemas(document);
    }

    async fn respond(call: SearchCall<'_>) -> Result<Response, ApiError> {
        if call.parameters.flag("watch")? {
            return Ok(live(&call)?.into_response());
        }
        match call.accepts_events {
            true => Ok(events(&call)?.into_response()),
            false => complete(&call).await,
        }
    }
}

/// The complete result as JSON.
async fn complete(call: &SearchCall<'_>) -> Result<Response, ApiError> {
    let columns = call.parameters.columns()?;
    let request = call.parameters.search_with(call.user, &columns)?;
    let answer = call.running.cache.searcher().search_all(request).await.map_err(ApiError::internal)?;
    let summary = answer.summary.map(|s| summary_fields(&s)).unwrap_or_default();
    let mut body = json!({
        "kind": "SearchResult", "apiVersion": API_VERSION,
        "hits": hits(&answer.hits, &columns, Timestamp::now()).map_err(ApiError::internal)?,
        "facets": facets(&answer.facets),
        "skipped": skipped(&answer.skipped),
        "notices": answer.notices,
    });
    if let Some(counts) = &answer.groups {
        body["groups"] = groups(counts);
    }
    if let (Some(body), Some(summary)) = (body.as_object_mut(), summary.as_object()) {
        body.extend(summary.clone());
    }
    Ok(json_response(StatusCode::OK, &body))
}

fn error_event(cause: &Error) -> Event {
    error(&cause.to_string())
}

/// A part of a result as an event.
fn to_event(part: Result<SearchEvent, Error>, columns: &Columns) -> Event {
    match part {
        Ok(SearchEvent::Notices(notices)) => event("notices", &json!(notices)),
        Ok(SearchEvent::Skipped(clusters)) => event("skipped", &skipped(&clusters)),
        Ok(SearchEvent::Facets(counts)) => event("facets", &facets(&counts)),
        Ok(SearchEvent::Groups(counts)) => event("groups", &groups(&counts)),
        Ok(SearchEvent::Hits(found)) => match hits(&found, columns, Timestamp::now()) {
            Ok(hits) => event("matches", &Value::Array(hits)),
            Err(error) => error_event(&error),
        },
        Ok(SearchEvent::Summary(summary)) => event("summary", &summary_fields(&summary)),
        Ok(SearchEvent::Done(summary)) => event("done", &summary_fields(&summary)),
        Err(error) => error_event(&error),
    }
}

fn events(call: &SearchCall<'_>) -> Result<Events, ApiError> {
    let columns = call.parameters.columns()?;
    let request = call.parameters.search_with(call.user, &columns)?;
    Ok(stream(call.running.cache.searcher().search(request).map(move |next| to_event(next, &columns))))
}

/// The result, and after its `done` the changes: hits that have `changed` or `left`, `counts`, and `behind` if changes
/// were lost.
fn live(call: &SearchCall<'_>) -> Result<Events, ApiError> {
    let columns = call.parameters.columns()?;
    let request = call.parameters.search_with(call.user, &columns)?;
    let changes = call.running.cache.searcher().live(request).map(move |next| match next {
        Ok(LiveEvent::Initial(event)) => to_event(Ok(event), &columns),
        Ok(LiveEvent::Changed(found)) => match hit(&found, &columns, Timestamp::now()) {
            Ok(hit) => event("changed", &hit),
            Err(error) => error_event(&error),
        },
        Ok(LiveEvent::Removed(object)) => event("left", &Value::Object(identity(&object))),
        Ok(LiveEvent::Counts(counts)) => event("counts", &live_counts(&counts)),
        Ok(LiveEvent::Lagged) => event("behind", &json!({})),
        Err(error) => error_event(&error),
    });
    Ok(stream(changes))
}

/// Data of the event `counts`.
fn live_counts(counts: &LiveCounts) -> Value {
    let mut data = json!({"total": counts.total, "totalRelation": total_relation(counts.incomplete),
        "facets": facets(&counts.facets), "notices": counts.notices});
    if let Some(grouped) = &counts.groups {
        data["groups"] = groups(grouped);
    }
    data
}

fn add_schemas(document: &mut Document) {
    let facets = || json!({"type": "object", "additionalProperties": list(ref_to("FacetValue"))});
    let summary = json!({"total": integer(), "totalRelation": relation(), "tookMs": {"type": "number"}, "seq": integer(),
        "behind": integer(), "cursor": string(), "didYouMean": list(string()),
        "wider": list(object(json!({"query": string(), "total": integer()}), &[]))});
    let mut result = summary.clone();
    let parts = json!({"hits": list(ref_to("Hit")), "facets": facets(), "groups": ref_to("Groups"), "skipped": list(ref_to("Skipped")),
        "notices": list(ref_to("Notice"))});
    if let (Some(result), Value::Object(parts)) = (result.as_object_mut(), parts) {
        result.extend(parts);
    }
    let counts = json!({"total": integer(), "totalRelation": relation(), "facets": facets(), "groups": ref_to("Groups"),
        "notices": list(ref_to("Notice"))});
    let counts = object(counts, &["groups"]);
    let events = json!({"notices": list(ref_to("Notice")), "skipped": list(ref_to("Skipped")), "facets": facets(),
        "groups": ref_to("Groups"), "matches": list(ref_to("Hit")), "summary": ref_to("Summary"), "done": ref_to("Summary"),
        "changed": ref_to("Hit"), "left": ref_to("Hit"),
        "counts": counts, "behind": {"type": "object"}, "error": object(json!({"message": string()}), &[])});
    let events = json!({"type": "string", "description": "Server-sent events with JSON data; x-events has its schemas.",
        "x-events": events});
    document.add_schema(name_of("SearchResult"), body("SearchResult", result, &["cursor", "groups"]));
    document.add_schema(name_of("Summary"), object(summary, &["cursor"]));
    document.add_schema(name_of("SearchEvents"), events);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crowsnest_search::{FacetCounts, Notice};
    use rstest::rstest;

    #[rstest]
    #[case::complete(false, &[], "eq")]
    #[case::rounded(false, &["sums of cpu.req are rounded"], "eq")]
    #[case::incomplete(true, &["a limit was reached"], "gte")]
    fn live_counts_state_their_accuracy(#[case] incomplete: bool, #[case] notices: &[&str], #[case] relation: &str) {
        let counted = |field: &str| {
            let values = vec![("Pod".to_owned(), 3)];
            FacetCounts { field: field.to_owned(), values, more: 2, sums: Vec::new() }
        };
        let notice = |message: &&str| Notice { start: 0, end: 0, message: (*message).to_owned() };
        let mut counts = LiveCounts {
            total: 3,
            incomplete,
            facets: vec![counted("kind")],
            groups: Some(counted("kind")),
            notices: notices.iter().map(notice).collect(),
        };
        let values = json!([{"value": "Pod", "count": 3}]);
        let notices: Vec<Value> =
            notices.iter().map(|message| json!({"start": 0, "end": 0, "message": message})).collect();
        let mut expected = json!({"total": 3, "totalRelation": relation, "facets": {"kind": values}, "notices": notices,
            "groups": {"field": "kind", "values": values, "more": 2}});
        assert_eq!(live_counts(&counts), expected);
        counts.groups = None;
        expected.as_object_mut().unwrap().remove("groups");
        assert_eq!(live_counts(&counts), expected);
    }
}
