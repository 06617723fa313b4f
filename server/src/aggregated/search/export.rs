//! Everything a query finds, as JSON lines (whole objects) or CSV (columns), page by page.

use axum::response::Response;
use bytes::Bytes;
use crowsnest_api::user::UserInfo;
use crowsnest_index::search::{Cursor, Hit, SearchRequest};
use crowsnest_index::{Error, Index, query};
use futures::stream::try_unfold;
use http::{HeaderValue, header};
use serde_json::{Value, json};

use super::hits::{hit, time};
use super::parameters::Parameters;
use crate::aggregated::reply::{Body, Failure};

/// Hits read at once.
const PAGE: usize = 500;
/// Where an object of a member says so, as Karmada does.
const CACHED_FROM: &str = "resource.karmada.io/cached-from-cluster";
const COLUMNS: &str = "cluster,namespace,kind,name,status,ready,restarts,node,created";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    JsonLines,
    Csv,
}

struct Export {
    index: Index,
    request: SearchRequest,
    format: Format,
    columns: Vec<String>,
    /// Hits still wanted.
    left: usize,
    begun: bool,
}

/// `format=jsonl|csv`, `columns=` of the latter; `limit` bounds the hits, else all are told.
pub(super) fn export(index: &Index, caller: &UserInfo, parameters: &Parameters) -> Result<Response, Failure> {
    let (format, kind) = match parameters.get("format").unwrap_or("jsonl") {
        "jsonl" => (Format::JsonLines, "application/jsonl"),
        "csv" => (Format::Csv, "text/csv; charset=utf-8"),
        other => return Err(Failure::bad_request(format!("format={other:?} is neither jsonl nor csv"))),
    };
    let mut request = parameters.question(caller)?;
    // A file has no place for remarks: nothing found must not look like nothing there.
    if let Some(why) = request.unanswerable() {
        return Err(Failure::bad_request(why));
    }
    let own = query::parse(&request.query, &query::Limits::default()).ok().and_then(|query| query.output.limit);
    let left = parameters.number("limit")?.unwrap_or(usize::MAX).min(own.unwrap_or(usize::MAX));
    request.facets.clear();
    request.bodies = true;
    let columns = parameters.get("columns").unwrap_or(COLUMNS).split(',').map(str::to_owned).collect();
    let export = Export { index: index.clone(), request, format, columns, left, begun: false };
    let pages = try_unfold(Some(export), |export| async {
        match export {
            Some(export) => export.page().await.map(Some),
            None => Ok(None),
        }
    });
    let mut response = Response::new(Body::from_stream(pages));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    Ok(response)
}

impl Export {
    /// The next part of the body, and what comes behind it.
    async fn page(mut self) -> Result<(Bytes, Option<Self>), Error> {
        self.request.limit = Some(PAGE.min(self.left));
        let answer = self.index.search_all(self.request.clone()).await?;
        let mut text = Vec::new();
        if self.format == Format::Csv && !std::mem::replace(&mut self.begun, true) {
            row(&mut text, self.columns.iter().map(String::as_str));
        }
        for hit in &answer.hits {
            match self.format {
                Format::JsonLines => line(&mut text, hit)?,
                Format::Csv => self.cells(&mut text, hit)?,
            }
        }
        if answer.summary.as_ref().is_some_and(|summary| summary.incomplete) {
            // A part of the file must not look like the whole.
            return Err(Error::Incomplete);
        }
        self.left = self.left.saturating_sub(answer.hits.len());
        let next = answer.summary.and_then(|summary| summary.next).filter(|_| self.left > 0 && !answer.hits.is_empty());
        Ok(match next {
            Some(Cursor(place)) => {
                self.request.after = Some(place);
                (text.into(), Some(self))
            }
            None => (text.into(), None),
        })
    }

    fn cells(&self, text: &mut Vec<u8>, found: &Hit) -> Result<(), Error> {
        let shown = hit(found)?;
        let cell = |column: &String| match column.strip_prefix("label:") {
            Some(label) => found.object.record.labels.get(label).cloned().unwrap_or_default(),
            None => match &shown[column.as_str()] {
                Value::Null => String::new(),
                Value::String(text) => text.clone(),
                Value::Array(items) => items.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" "),
                other => other.to_string(),
            },
        };
        let cells: Vec<String> = self.columns.iter().map(cell).collect();
        row(text, cells.iter().map(String::as_str));
        Ok(())
    }
}

/// The object with its cluster; of a deleted one, when that was.
fn line(text: &mut Vec<u8>, hit: &Hit) -> Result<(), Error> {
    let mut object: Value = hit.object.parse()?;
    if let Some(metadata) = object["metadata"].as_object_mut() {
        let annotations = metadata.entry("annotations").or_insert_with(|| json!({}));
        if annotations.is_null() {
            *annotations = json!({});
        }
        annotations[CACHED_FROM] = json!(hit.object.record.key.cluster());
        if let Some(was) = hit.was.filter(|was| was.deleted) {
            annotations["search.crowsnest.io/deleted-at"] = time(Some(was.until / 1000));
        }
    }
    text.extend_from_slice(object.to_string().as_bytes());
    text.push(b'\n');
    Ok(())
}

/// A row of CSV (RFC 4180). What a spreadsheet would take for a formula is marked as text.
fn row<'c>(text: &mut Vec<u8>, cells: impl Iterator<Item = &'c str>) {
    for (nth, cell) in cells.enumerate() {
        if nth > 0 {
            text.push(b',');
        }
        let formula = cell.starts_with(['=', '+', '-', '@', '\t', '\r']);
        if formula || cell.contains(['"', ',', '\n', '\r']) {
            text.push(b'"');
            text.extend(formula.then_some(b'\''));
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
        row(&mut text, ["web-0", "a \"b\", c", "", "=1+1", "line\nline"].into_iter());
        assert_eq!(String::from_utf8(text).unwrap(), "web-0,\"a \"\"b\"\", c\",,\"'=1+1\",\"line\nline\"\r\n");
    }
}
