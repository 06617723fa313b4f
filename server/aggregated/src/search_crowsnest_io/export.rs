//! `export`: all hits of a query at one moment, as JSON lines (whole objects) or CSV (columns).

use axum::response::Response;
use bytes::Bytes;
use crowsnest_apimachinery::status::ApiError;
use crowsnest_index::Error;
use crowsnest_search::Hit;
use futures::StreamExt;
use futures::future::ready;
use futures::stream::once;
use http::{HeaderValue, header};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::call::SearchCall;
use super::columns::{Column, Columns};
use super::definition;
use super::hits::{hit, time};
use super::openapi::{LIMIT, Parameter, Q, ResponseSchemas};
use super::operation::SearchOperation;
use super::parameters::invalid_parameter;
use crate::resource::Definition;
use crowsnest_process::reply::Body;

/// Karmada's annotation for the cluster of an object.
const CACHED_FROM_ANNOTATION: &str = "resource.karmada.io/cached-from-cluster";
const DEFAULT_COLUMNS: &str = "cluster,namespace,kind,name,status,ready,restarts,node,created";

/// Format of the export.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Format {
    JsonLines,
    /// CSV with these columns.
    Csv(Vec<String>),
}

pub(super) struct Export;

impl SearchOperation for Export {
    const DEFINITION: Definition = definition("export", "SearchExport");
    const SUMMARY: &str = "All hits of one snapshot: whole objects as JSON lines, or columns as CSV.";
    const PARAMETERS: &[Parameter] = &[
        Q,
        LIMIT,
        Parameter::string("format", "jsonl or csv."),
        Parameter::string(
            "columns",
            "Columns of CSV, separated by commas: fields of a hit, changed, label:KEY, print:NAME, or .PATH.",
        ),
    ];
    const RESPONSES: ResponseSchemas = &[("application/jsonl", &["Object"]), ("text/csv", &["Text"])];

    async fn respond(call: SearchCall<'_>) -> Result<Response, ApiError> {
        export(call).await
    }
}

/// Parameters: `format=jsonl|csv`, `columns=` of CSV, and `limit` (default: all hits). The search runs before the
/// response begins, so that its errors are returned as a `Status`.
async fn export(SearchCall { running, user, parameters, .. }: SearchCall<'_>) -> Result<Response, ApiError> {
    let columns = || parameters.get("columns").unwrap_or(DEFAULT_COLUMNS).split(',').map(str::to_owned).collect();
    let (format, content_type) = match parameters.get("format").unwrap_or("jsonl") {
        "jsonl" => (Format::JsonLines, "application/jsonl"),
        "csv" => (Format::Csv(columns()), "text/csv; charset=utf-8"),
        other => return Err(invalid_parameter("format", other, "expected jsonl or csv")),
    };
    let mut request = parameters.search(user)?;
    // A file cannot contain notices; without them, an unanswerable query would look like a query without hits.
    if let Some(reason) = request.query_error() {
        return Err(ApiError::bad_request(reason));
    }
    request.page.limit = parameters.number("limit")?;
    request.include_manifests = format.reads_manifests();
    let hits = running.cache.searcher().export(request).await.map_err(|error| match error {
        Error::Incomplete => ApiError::bad_request(error.to_string()),
        other => ApiError::internal(other),
    })?;
    let head = once(ready(Ok(Bytes::from(format.header()))));
    let chunks = head.chain(hits.map(move |hits| format.encode(&hits?, Timestamp::now())));
    let has_text = |chunk: &Result<Bytes, Error>| ready(!chunk.as_ref().is_ok_and(Bytes::is_empty));
    let mut response = Response::new(Body::from_stream(chunks.filter(has_text)));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    Ok(response)
}

impl Format {
    fn reads_manifests(&self) -> bool {
        match self {
            Self::JsonLines => true,
            Self::Csv(columns) => {
                columns.iter().filter_map(|name| Column::parse(name)).any(|column| column.reads_manifests())
            }
        }
    }

    fn header(&self) -> Vec<u8> {
        let mut text = Vec::new();
        if let Self::Csv(columns) = self {
            write_csv_row(&mut text, columns.iter().map(String::as_str));
        }
        text
    }

    fn encode(&self, hits: &[Hit], now: Timestamp) -> Result<Bytes, Error> {
        let mut text = Vec::new();
        for hit in hits {
            match self {
                Self::JsonLines => write_json_line(&mut text, hit)?,
                Self::Csv(columns) => write_csv_hit(&mut text, hit, columns, now)?,
            }
        }
        Ok(text.into())
    }
}

fn write_csv_hit(text: &mut Vec<u8>, found: &Hit, columns: &[String], now: Timestamp) -> Result<(), Error> {
    let fields = hit(found, &Columns::default(), now)?;
    let cell = |column: &String| match Column::parse(column) {
        Some(column) => column.cell(&found.object, now),
        None => Ok(match &fields[column.as_str()] {
            Value::Null => String::new(),
            Value::String(text) => text.clone(),
            Value::Array(items) => items.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" "),
            other => other.to_string(),
        }),
    };
    let cells = columns.iter().map(cell).collect::<Result<Vec<_>, Error>>()?;
    write_csv_row(text, cells.iter().map(String::as_str));
    Ok(())
}

/// Writes the object as a line of JSON, with annotations for its cluster and the time of its deletion, if it is
/// deleted.
fn write_json_line(text: &mut Vec<u8>, hit: &Hit) -> Result<(), Error> {
    let mut object: Value = hit.object.parse()?;
    if let Some(metadata) = object["metadata"].as_object_mut() {
        let annotations = metadata.entry("annotations").or_insert_with(|| json!({}));
        if annotations.is_null() {
            *annotations = json!({});
        }
        annotations[CACHED_FROM_ANNOTATION] = json!(hit.object.record.key.cluster());
        if let Some(end) = hit.version_end.filter(|end| end.deleted) {
            annotations["search.crowsnest.io/deleted-at"] = time(Some(end.until / 1000));
        }
    }
    text.extend_from_slice(object.to_string().as_bytes());
    text.push(b'\n');
    Ok(())
}

/// Writes a row of CSV (RFC 4180). Cells that a spreadsheet would interpret as a formula are marked as text.
fn write_csv_row<'c>(text: &mut Vec<u8>, cells: impl Iterator<Item = &'c str>) {
    for (nth, cell) in cells.enumerate() {
        if nth > 0 {
            text.push(b',');
        }
        let is_formula = cell.starts_with(['=', '+', '-', '@', '\t', '\r']);
        if is_formula || cell.contains(['"', ',', '\n', '\r']) {
            text.push(b'"');
            text.extend(is_formula.then_some(b'\''));
            text.extend_from_slice(cell.replace('"', "\"\"").as_bytes());
            text.push(b'"');
        } else {
            text.extend_from_slice(cell.as_bytes());
        }
    }
    text.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_csv() {
        let mut text = Vec::new();
        write_csv_row(&mut text, ["web-0", "a \"b\", c", "", "=1+1", "line\nline"].into_iter());
        assert_eq!(String::from_utf8(text).unwrap(), "web-0,\"a \"\"b\"\", c\",,\"'=1+1\",\"line\nline\"\r\n");
    }
}
