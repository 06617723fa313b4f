//! `search`: objects and events of all clusters by a query, with counts.

use crowsnest_apimachinery::unstructured::{list, text, texts};
use serde_json::{Value, json};
use xxhash_rust::xxh3::xxh3_64;

use super::cursor::{PagePosition, Position};
use super::format::{facet_rows, field_texts, note_rows, total_row, value_text};
use super::{Call, Continuation, Page, Tool, ToolError};
use crate::api::{SEARCH_API, get, uri};
use crate::message::RpcError;
use crate::output::redact::{REDACTED, redact_field, redact_printed_column};
use crate::output::{Row, ToolOutput, row};

/// Default and maximum number of hits of an output.
const DEFAULT_HITS: usize = 20;
const MAX_HITS: usize = 500;
const MAX_COLUMNS: usize = 20;
/// Maximum number of values of each facet in an output.
const MAX_FACET_VALUES: usize = 8;
/// Maximum number of matched parts of a hit in an output.
const MAX_MATCHED_PARTS: usize = 2;
/// Column with the kinds of a Work's manifests.
const WORK_KINDS_COLUMN: &str = ".spec.workload.manifests.kind";
/// Maximum size of a column value that is certainly complete. The search API may truncate longer values.
pub const MAX_COMPLETE_COLUMN_BYTES: usize = 200;

/// Fields of each hit that are shown as columns.
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
            "limit": {"type": "integer", "minimum": 1, "maximum": MAX_HITS, "default": DEFAULT_HITS},
            "columns": {"type": "array", "items": {"type": "string"}, "maxItems": MAX_COLUMNS,
                "description": "More columns: label:KEY, print:NAME (a column of kubectl), .PATH (.spec.replicas)."},
            "group": {"type": "string", "description": "Count by this field instead of listing: cluster, region, kind, namespace, status, node, image, reason, label:KEY."},
            "count_only": {"type": "boolean", "description": "Only total and counts."},
        })
    },
    required: &[],
    layout: None,
    run: |call| Box::pin(search(call)),
};

async fn search(call: &Call<'_>) -> Result<Page, ToolError> {
    let arguments = &call.arguments;
    let mut query = arguments.text_or_empty("query")?.to_owned();
    let columns = requested_columns(&query, arguments.texts("columns")?);
    let limit = arguments.number("limit")?;
    let group = arguments.text_or_empty("group")?;
    if !group.is_empty() {
        query.push_str(&format!(" group:{group}"));
    }
    if arguments.flag("count_only")? || !group.is_empty() {
        let response = request_hits(call, &query, 0, &columns).await?;
        return Ok(Page { output: counts_output(&response), next: Continuation::Offset });
    }
    let response = request_hits(call, &query, limit, &columns).await?;
    let hits = list(&response, "hits");
    let shown_hits = count_shown_hits(call.position.as_ref(), hits);
    let hits = hits.get(shown_hits..).unwrap_or_default();
    let remaining = RemainingHits {
        token: call.token().to_owned(),
        shown_hits,
        hashes: hits.iter().map(hit_hash).collect(),
        next_token: text(&response, "cursor").to_owned(),
    };
    let output = hits_output(&response, hits, &columns);
    Ok(Page { output, next: Continuation::AfterRows(Box::new(move |shown| remaining.position_after(shown))) })
}

/// Hits of a page of the API that no earlier call has shown.
struct RemainingHits {
    /// Continuation token of the page; empty for the first one.
    token: String,
    /// Number of hits of the page before these.
    shown_hits: usize,
    /// Hashes of these hits.
    hashes: Vec<u64>,
    /// Continuation token of the next page; empty for the last one.
    next_token: String,
}

impl RemainingHits {
    /// Position of the next call, if `shown` of these hits fit. The next call requests the same page of the API again, so
    /// that each call searches only once.
    fn position_after(self, shown: usize) -> Option<Position> {
        let Some(next) = self.hashes.get(shown).copied() else {
            return Some(self.next_token).filter(|token| !token.is_empty()).map(Position::Token);
        };
        // If no row fits, the next call would start at the same row again.
        let last = self.hashes.get(shown.checked_sub(1)?).copied()?;
        Some(Position::Within(PagePosition { token: self.token, rows: self.shown_hits + shown, last, next }))
    }
}

/// Number of hits of the API's page that earlier calls have shown. The place between the last shown hit and the next one
/// is found by the hashes of these two hits. If one of them moved because its sort value changed, the place nearest to
/// the expected one counts. If both were removed, the following hits have moved up by one.
fn count_shown_hits(position: Option<&Position>, hits: &[Value]) -> usize {
    let Some(Position::Within(page)) = position else { return 0 };
    let index_of = |hash: u64| hits.iter().position(|hit| hit_hash(hit) == hash);
    let counts = [index_of(page.last).map(|at| at + 1), index_of(page.next)];
    let nearest = counts.into_iter().flatten().min_by_key(|count| (count.abs_diff(page.rows), *count));
    nearest.unwrap_or(page.rows.saturating_sub(1)).min(hits.len())
}

/// Hash of the fields that identify a hit: its object and, for an earlier revision, when that revision ended.
fn hit_hash(hit: &Value) -> u64 {
    let fields = ["cluster", "apiVersion", "kind", "namespace", "name", "uid", "deleted", "until"];
    xxh3_64(field_texts(hit, fields).join("\t").as_bytes())
}

/// Searches. If a Work matched in its content, the search is repeated with the kinds of its manifests, so that the
/// matched text and the kinds belong to the same state of the Work. If other columns are read from the manifests anyway,
/// the kinds cost little, so the first search already includes them.
async fn request_hits(call: &Call<'_>, query: &str, limit: usize, columns: &[String]) -> Result<Value, ToolError> {
    let with_kinds = || [columns, &[WORK_KINDS_COLUMN.to_owned()]].concat();
    if columns.iter().any(|column| column == WORK_KINDS_COLUMN) {
        return request_columns(call, query, limit, columns).await;
    }
    if columns.iter().any(|column| column.starts_with('.')) {
        return request_columns(call, query, limit, &with_kinds()).await;
    }
    let response = request_columns(call, query, limit, columns).await?;
    match list(&response, "hits").iter().any(is_content_match_of_work) {
        true => request_columns(call, query, limit, &with_kinds()).await,
        false => Ok(response),
    }
}

async fn request_columns(call: &Call<'_>, query: &str, limit: usize, columns: &[String]) -> Result<Value, ToolError> {
    let (limit, columns) = (limit.to_string(), columns.join(","));
    let parameters = [
        ("q", query),
        ("limit", &limit),
        ("cursor", call.token()),
        ("columns", &columns),
        ("facets", "kind,status,cluster,namespace"),
    ];
    let response = get(call.api, uri(&format!("{SEARCH_API}/query"), &parameters)).await;
    response.map_err(|error| {
        let is_cursor_error = !call.token().is_empty() && error.code == 400 && error.message.contains("cursor");
        match is_cursor_error {
            true => RpcError::invalid_params(error.message).into(),
            false => error.into(),
        }
    })
}

/// The columns of the call. Without any, a query about events has those of events.
fn requested_columns(query: &str, requested: Vec<&str>) -> Vec<String> {
    let is_about_events = query.split_whitespace().any(|word| word == "kind:event" || word == "kind:events");
    match requested.is_empty() && is_about_events {
        true => EVENT_COLUMNS.map(str::to_owned).to_vec(),
        false => requested.into_iter().map(str::to_owned).collect(),
    }
}

/// Output with the total and counts. Its rows are the groups, if the query has any.
fn counts_output(response: &Value) -> ToolOutput {
    let mut facts = vec![total_row(response)];
    facts.extend(facet_rows(response, MAX_FACET_VALUES));
    let mut output =
        ToolOutput { facts, notes: note_rows(response), is_error: is_refused_query(response), ..ToolOutput::default() };
    if let Some(groups) = response.get("groups").filter(|groups| groups.is_object()) {
        output.columns = row([text(groups, "field"), "count"]);
        output.rows = list(groups, "values").iter().map(|group| field_texts(group, ["value", "count"])).collect();
        if groups["more"].as_u64().unwrap_or_default() > 0 {
            output.notes.push(row(["notice", &format!("{} more groups", value_text(&groups["more"]))]));
        }
    }
    output
}

/// Output with a row for each of these hits of the response.
fn hits_output(response: &Value, hits: &[Value], columns: &[String]) -> ToolOutput {
    // Columns without a value are omitted.
    let shown_fields: Vec<&str> =
        COLUMNS.into_iter().filter(|column| hits.iter().any(|hit| hit.get(column).is_some())).collect();
    let end_column = ["deleted", "until"].into_iter().find(|end| hits.iter().any(|hit| hit.get(end).is_some()));
    let rows: Vec<Row> = hits
        .iter()
        .map(|hit| {
            let fields = shown_fields.iter().copied().chain(end_column).map(|column| value_text(&hit[column]));
            let extra_cells = columns.iter().map(|column| column_value(hit, column));
            fields.chain(extra_cells).chain([matched_cell(hit)]).collect()
        })
        .collect();
    let mut facts = vec![total_row(response)];
    if response["total"].as_u64().unwrap_or_default() > hits.len() as u64 {
        facts.extend(facet_rows(response, MAX_FACET_VALUES));
    }
    let mut notes = note_rows(response);
    if hits.is_empty() {
        notes.extend(texts(response, "didYouMean").map(|query| row(["did you mean", query])));
        notes.extend(
            list(response, "wider")
                .iter()
                .map(|suggestion| row(["wider query", text(suggestion, "query"), &value_text(&suggestion["total"])])),
        );
    }
    let fields = shown_fields.into_iter().chain(end_column).map(str::to_owned);
    let headers = fields.chain(columns.iter().cloned()).chain(["matched".to_owned()]);
    let columns = if rows.is_empty() { Row::new() } else { headers.collect() };
    ToolOutput { facts, columns, rows, notes, is_error: is_refused_query(response), ..ToolOutput::default() }
}

/// Value of a requested column of a hit, without secrets.
fn column_value(hit: &Value, column: &str) -> String {
    let value = value_text(&hit["columns"][column]);
    match column.strip_prefix("print:") {
        Some(name) => redact_printed_column(name, value),
        None if column.starts_with('.') => redact_value_at(hit, column, value),
        // Labels are not secret.
        None => value,
    }
}

/// Removes secrets from the value at a path of a hit's manifest; an empty value remains empty.
fn redact_value_at(hit: &Value, path: &str, value: String) -> String {
    if value.is_empty() { value } else { redact_field(text(hit, "kind"), path, &Value::String(value)) }
}

fn is_content_match_of_work(hit: &Value) -> bool {
    text(hit, "kind") == "Work" && list(hit, "matched").iter().any(|matched| text(matched, "field") == "content")
}

/// True if the manifest of a hit may contain values of Secrets: it is a Secret, or a Work unless the kinds of its
/// manifests are known and none is a Secret, a kind named after Secrets, or a kind that contains other objects.
fn may_contain_secret(hit: &Value) -> bool {
    match text(hit, "kind") {
        "Secret" => true,
        "Work" => {
            let kinds = text(&hit["columns"], &[WORK_KINDS_COLUMN]);
            let may_be_secret = |kind: &str| {
                let kind = kind.trim().to_ascii_lowercase();
                let contains_objects = kind.ends_with("list") || kind.ends_with("work") || kind == "template";
                kind.is_empty() || kind.contains("secret") || contains_objects
            };
            kinds.len() > MAX_COMPLETE_COLUMN_BYTES || kinds.split(',').any(may_be_secret)
        }
        _ => false,
    }
}

/// A part of a hit that matched, without secrets.
fn matched_part_text(hit: &Value, matched: &Value) -> String {
    let (field, value) = (text(matched, "field"), text(matched, "text"));
    let value = match field {
        // The match may be anywhere in the manifest, including the values of a Secret.
        "content" if may_contain_secret(hit) => REDACTED.to_owned(),
        path if path.starts_with('.') => redact_value_at(hit, path, value.to_owned()),
        _ => value.to_owned(),
    };
    format!("{field}: {value}")
}

/// Cell with the parts of the object that matched, except those in other columns.
fn matched_cell(hit: &Value) -> String {
    let parts = list(hit, "matched").iter().filter(|part| !COLUMNS.contains(&text(part, "field")));
    let shown: Vec<String> = parts.take(MAX_MATCHED_PARTS).map(|part| matched_part_text(hit, part)).collect();
    shown.join("; ")
}

/// True if there are no hits because a part of the query is invalid or was refused.
fn is_refused_query(response: &Value) -> bool {
    let has_position = |notice: &Value| notice["end"].as_u64() > notice["start"].as_u64();
    response["total"] == 0 && list(response, "notices").iter().any(has_position)
}
