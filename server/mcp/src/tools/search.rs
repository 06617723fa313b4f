//! `search`: objects and events of all clusters by a query, with counts.

use crowsnest_apimachinery::unstructured::{list, text, texts};
use futures::future::BoxFuture;
use serde_json::{Value, json};

use super::cursor::Position;
use super::shape::{facets, notes, plain, total};
use super::{Call, Next, Page, Tool, ToolError};
use crate::api::{SEARCH, get, uri};
use crate::message::RpcError;
use crate::output::redact::{REDACTED, redact_field};
use crate::output::{Answer, Row, row};

/// Default and maximum number of hits of an answer.
const HITS: usize = 20;
const MAX_HITS: usize = 500;
const MAX_COLUMNS: usize = 20;
/// Number of values of each facet in an answer.
const FACET_VALUES: usize = 8;
/// Number of reasons of a hit in an answer.
const REASONS: usize = 2;

/// Columns of each hit.
const COLUMNS: [&str; 9] = ["cluster", "kind", "namespace", "name", "status", "ready", "restarts", "node", "created"];
/// Additional columns of events.
const EVENT_COLUMNS: [&str; 5] = [".type", ".reason", ".message", ".involvedObject.kind", ".involvedObject.name"];

pub(super) const TOOL: Tool = Tool {
    name: "search",
    title: "Search the fleet",
    description: "Find objects and events in all clusters, best first, with exact totals and counts by kind, status, \
cluster and namespace. Examples: `kind:pod status:CrashLoopBackOff`, `kind:deploy ns:shop ready:<1`, `is:unhealthy`, \
`image:nginx*`, `label:app=web`, `restarts:>5`, `kind:event type:Warning last:<1h`, `uses:secret/shop/db`, \
`.spec.replicas:>3`, `changed:<15m`, `is:deleted kind:pod`, `checkout at:now-2h`, `sort:-restarts`. `-x` negates, `a,b` is \
either, words are full text. The resource crowsnest://query-language has the whole language.",
    properties: || {
        json!({
            "query": {"type": "string", "description": "Query; empty for all objects."},
            "limit": {"type": "integer", "minimum": 1, "maximum": MAX_HITS, "default": HITS},
            "columns": {"type": "array", "items": {"type": "string"}, "maxItems": MAX_COLUMNS,
                "description": "More columns: label:KEY, print:NAME (a column of kubectl), .PATH (.spec.replicas)."},
            "group": {"type": "string", "description": "Count by this field instead of listing: cluster, region, kind, namespace, status, node, image, reason, label:KEY."},
            "count_only": {"type": "boolean", "description": "Only total and counts."},
        })
    },
    required: &[],
    run,
};

fn run<'c>(call: &'c Call<'c>) -> BoxFuture<'c, Result<Page, ToolError>> {
    Box::pin(search(call))
}

async fn search(call: &Call<'_>) -> Result<Page, ToolError> {
    let arguments = &call.arguments;
    let mut query = arguments.text_or_empty("query")?.to_owned();
    let columns = columns(&query, arguments.texts("columns", MAX_COLUMNS)?);
    let limit = arguments.number("limit", 1, MAX_HITS)?.unwrap_or(HITS);
    let group = arguments.text_or_empty("group")?;
    if !group.is_empty() {
        query.push_str(&format!(" group:{group}"));
    }
    if arguments.flag("count_only")? || !group.is_empty() {
        let answer = find(call, &query, 0, &columns).await?;
        return Ok(Page { answer: counts(&answer), next: Next::Offset });
    }
    let mut answer = find(call, &query, limit, &columns).await?;
    let mut page = hits(&answer, &columns);
    // A cursor identifies the last hit of a page, so a page that is too large is requested again with the hits that fit.
    let shown = page.render(0, call.budget, |_| Some("c".repeat(200))).shown;
    if shown < page.rows.len() && shown > 0 {
        answer = find(call, &query, shown, &columns).await?;
        page = hits(&answer, &columns);
    }
    let cursor = Some(text(&answer, "cursor")).filter(|cursor| !cursor.is_empty());
    let next = cursor.map(|cursor| Position::Token(cursor.to_owned()));
    Ok(Page { answer: page, next: Next::Position(next) })
}

async fn find(call: &Call<'_>, query: &str, limit: usize, columns: &[String]) -> Result<Value, ToolError> {
    let (limit, columns) = (limit.to_string(), columns.join(","));
    let parameters = [
        ("q", query),
        ("limit", &limit),
        ("cursor", call.token()),
        ("columns", &columns),
        ("facets", "kind,status,cluster,namespace"),
    ];
    let answer = get(call.api, uri(&format!("{SEARCH}/query"), &parameters)).await;
    answer.map_err(|error| {
        let is_about_cursor = !call.token().is_empty() && error.code == 400 && error.message.contains("cursor");
        match is_about_cursor {
            true => RpcError::invalid_params(error.message).into(),
            false => error.into(),
        }
    })
}

/// Requested columns, or those of events for queries about events.
fn columns(query: &str, requested: Vec<&str>) -> Vec<String> {
    let is_about_events = query.split_whitespace().any(|word| word == "kind:event" || word == "kind:events");
    match requested.is_empty() && is_about_events {
        true => EVENT_COLUMNS.map(str::to_owned).to_vec(),
        false => requested.into_iter().map(str::to_owned).collect(),
    }
}

/// Totals and counts; rows are the groups, if there are any.
fn counts(answer: &Value) -> Answer {
    let mut facts = vec![total(answer)];
    facts.extend(facets(answer, FACET_VALUES));
    let mut counted = Answer { facts, notes: notes(answer), is_error: is_bad_query(answer), ..Answer::default() };
    if let Some(groups) = answer.get("groups").filter(|groups| groups.is_object()) {
        counted.columns = row([text(groups, "field"), "count"]);
        counted.rows = list(groups, "values").iter().map(|one| super::shape::cells(one, ["value", "count"])).collect();
        if groups["more"].as_u64().unwrap_or_default() > 0 {
            counted.notes.push(row(["notice", &format!("{} more groups", plain(&groups["more"]))]));
        }
    }
    counted
}

fn hits(answer: &Value, columns: &[String]) -> Answer {
    let hits = list(answer, "hits");
    // Columns that no hit has would cost bytes only.
    let used: Vec<&str> =
        COLUMNS.into_iter().filter(|column| hits.iter().any(|hit| hit.get(column).is_some())).collect();
    let has_end = ["deleted", "until"].into_iter().find(|end| hits.iter().any(|hit| hit.get(end).is_some()));
    let rows: Vec<Row> = hits
        .iter()
        .map(|hit| {
            let own = used.iter().copied().chain(has_end).map(|column| plain(&hit[column]));
            let more = columns.iter().map(|column| column_value(hit, column));
            own.chain(more).chain([reasons(hit)]).collect()
        })
        .collect();
    let mut facts = vec![total(answer)];
    if answer["total"].as_u64().unwrap_or_default() > hits.len() as u64 {
        facts.extend(facets(answer, FACET_VALUES));
    }
    let mut notes = notes(answer);
    if hits.is_empty() {
        notes.extend(texts(answer, "didYouMean").map(|query| row(["did you mean", query])));
        notes.extend(
            list(answer, "wider").iter().map(|one| row(["wider query", text(one, "query"), &plain(&one["total"])])),
        );
    }
    let own = used.into_iter().chain(has_end).map(str::to_owned);
    let heads = own.chain(columns.iter().cloned()).chain(["matched".to_owned()]);
    let columns = if rows.is_empty() { Row::new() } else { heads.collect() };
    Answer { facts, columns, rows, notes, is_error: is_bad_query(answer) }
}

/// Value of a requested column, without secrets.
fn column_value(hit: &Value, column: &str) -> String {
    let value = plain(&hit["columns"][column]);
    // Other columns are labels and the columns that kubectl prints.
    match column.starts_with('.') {
        true => value_at(hit, column, value),
        false => value,
    }
}

/// A value at a path of a hit's manifest, without secrets; empty if there is none.
fn value_at(hit: &Value, path: &str, value: String) -> String {
    if value.is_empty() { value } else { redact_field(text(hit, "kind"), path, &Value::String(value)) }
}

/// A part of a hit that matched, without secrets.
fn reason(hit: &Value, matched: &Value) -> String {
    let (field, value) = (text(matched, "field"), text(matched, "text"));
    let value = match field {
        // A word anywhere in the manifest; Works contain Secrets.
        "content" if matches!(text(hit, "kind"), "Secret" | "Work") => REDACTED.to_owned(),
        path if path.starts_with('.') => value_at(hit, path, value.to_owned()),
        _ => value.to_owned(),
    };
    format!("{field}: {value}")
}

/// Parts of the object that matched, except those in other columns.
fn reasons(hit: &Value) -> String {
    let others = list(hit, "matched").iter().filter(|one| !COLUMNS.contains(&text(one, "field")));
    let shown: Vec<String> = others.take(REASONS).map(|one| reason(hit, one)).collect();
    shown.join("; ")
}

/// True if nothing was found because a part of the query could not be parsed, or the query was refused.
fn is_bad_query(answer: &Value) -> bool {
    let is_about_text = |notice: &Value| notice["end"].as_u64() > notice["start"].as_u64();
    answer["total"] == 0 && list(answer, "notices").iter().any(is_about_text)
}
