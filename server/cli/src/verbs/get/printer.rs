//! The printer of `get`: rows of tables below one header, or documents. Has no side effects except for the writer.

use std::collections::BTreeMap;
use std::io::Write;

use serde_json::{Value, json};

use super::GetArgs;
use super::extra_columns::{ExtraColumns, SortKey};
use super::requests::{GetRequest, GetResponse};
use super::table::{Layout, Table};
use crate::columns::Widths;
use crate::output::{Format, items};

/// Watch event type that listed objects are printed with.
const ADDED: &str = "ADDED";

/// Prints responses and watch events in the requested format. The first table determines the columns.
pub(super) struct Printer {
    output: Option<Format>,
    resource: String,
    /// Resource name by kind, if several kinds are printed.
    pub(super) resources: BTreeMap<String, String>,
    has_headers: bool,
    /// Print the column NAMESPACE.
    shows_namespaces: bool,
    /// Singular resource name, printed before names if several kinds are printed.
    pub(super) kind: Option<String>,
    pub(super) extra_columns: ExtraColumns,
    /// Print the event type with each object.
    shows_events: bool,
    shows_managed_fields: bool,
    pub(super) now: jiff::Timestamp,
    layout: Option<Layout>,
    widths: Widths,
    header: Option<Vec<String>>,
    /// Rows to be sorted and printed by the next flush.
    pending_rows: Vec<(SortKey, Vec<String>)>,
    documents: Vec<Value>,
    /// Number of rows added so far.
    pub(super) rows: usize,
    /// True until the first document is printed.
    is_first: bool,
    is_colored: bool,
}

impl Printer {
    pub(super) fn new(args: &GetArgs, request: &GetRequest, now: jiff::Timestamp) -> Self {
        Self {
            output: args.output.clone(),
            resource: request.kind.gvr.resource.to_string(),
            resources: BTreeMap::new(),
            has_headers: !args.no_headers,
            shows_namespaces: request.kind.namespaced && args.all_namespaces,
            kind: None,
            extra_columns: args.extra_columns(),
            shows_events: args.output_watch_events,
            shows_managed_fields: args.show_managed_fields,
            now,
            layout: None,
            widths: Widths::default(),
            header: None,
            pending_rows: Vec::new(),
            documents: Vec::new(),
            rows: 0,
            is_first: true,
            is_colored: args.color.is_enabled(),
        }
    }

    /// Adds the objects of a list response, with the event type ADDED.
    pub(super) fn add(&mut self, cluster: Option<&str>, response: &GetResponse) {
        match self.output {
            None | Some(Format::Wide) => {
                let mut columns = Vec::new();
                for page in &response.pages {
                    let table = Table::parse(page, cluster, &columns, &self.extra_columns, self.now);
                    self.add_table(&table, ADDED);
                    columns = table.columns;
                }
            }
            _ => response.objects(cluster).into_iter().for_each(|object| self.add_document(ADDED, object)),
        }
    }

    /// Adds the rows of a table; the first rows print the header.
    pub(super) fn add_table(&mut self, table: &Table, event: &str) {
        if table.rows.is_empty() {
            return;
        }
        self.rows += table.rows.len();
        let is_first = self.layout.is_none();
        let layout = self.layout.get_or_insert_with(|| {
            let layout = Layout {
                has_event: self.shows_events,
                has_namespace: self.shows_namespaces,
                is_wide: matches!(self.output, Some(Format::Wide)),
                kind: self.kind.clone(),
                extra_columns: self.extra_columns.headers(),
                ..Layout::default()
            };
            layout.with_columns(&table.columns)
        });
        if is_first && self.is_colored {
            self.widths.set_color_headers(&layout.header());
        }
        if is_first && self.has_headers {
            self.header = Some(layout.header());
        }
        let rows = table.rows.iter().map(|row| (row.key.clone(), layout.row(&table.columns, row, event)));
        self.pending_rows.extend(rows);
    }

    /// Adds an object to be printed as a document by the next flush.
    pub(super) fn add_document(&mut self, event: &str, object: Value) {
        let object = self.without_managed_fields(object);
        self.documents.push(match self.shows_events {
            true => json!({"type": event, "object": object}),
            false => object,
        });
    }

    /// Removes managedFields for JSON and YAML, unless they are requested.
    fn without_managed_fields(&self, mut object: Value) -> Value {
        let is_document = matches!(self.output, Some(Format::Json | Format::Yaml | Format::Kyaml));
        if is_document
            && !self.shows_managed_fields
            && let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut)
        {
            metadata.remove("managedFields");
        }
        object
    }

    /// Prints the collected rows and documents. Objects of a watch are printed as separate documents.
    pub(super) fn flush(&mut self, out: &mut impl Write) -> anyhow::Result<()> {
        let mut rows = std::mem::take(&mut self.pending_rows);
        rows.sort_by(|(one, _), (other, _)| one.cmp_values(other));
        let rows: Vec<Vec<String>> =
            self.header.take().into_iter().chain(rows.into_iter().map(|(_, row)| row)).collect();
        self.widths.write(out, &rows)?;
        for document in std::mem::take(&mut self.documents) {
            let is_first = std::mem::take(&mut self.is_first);
            self.format().print_next(out, &document, is_first && self.has_headers, |object| self.name(object))?;
        }
        Ok(())
    }

    /// Prints objects as one document: the named object or a List.
    pub(super) fn print_all(&self, out: &mut impl Write, objects: Vec<Value>, named: bool) -> anyhow::Result<()> {
        let mut objects: Vec<Value> = objects.into_iter().map(|object| self.without_managed_fields(object)).collect();
        objects
            .sort_by(|left, right| self.extra_columns.sort_key(left).cmp_values(&self.extra_columns.sort_key(right)));
        let document = match (named, objects.len()) {
            (true, 0) => return Ok(()),
            (true, 1) => objects.remove(0),
            _ => json!({"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": ""}, "items": objects}),
        };
        match &self.output {
            Some(Format::CustomColumns(columns)) => Ok(columns.write(out, items(&document), self.has_headers)?),
            _ => self.format().print(out, &document, |object| self.name(object)),
        }
    }

    fn format(&self) -> &Format {
        self.output.as_ref().unwrap_or(&Format::Json)
    }

    /// `cluster/namespace/resource/name`, as in search results.
    fn name(&self, object: &Value) -> String {
        let object = object.get("object").filter(|_| self.shows_events).unwrap_or(object);
        let text_at = |path: &str| object.pointer(path).and_then(Value::as_str).filter(|text| !text.is_empty());
        let cluster = text_at("/metadata/annotations/resource.karmada.io~1cached-from-cluster");
        let resource = text_at("/kind").and_then(|kind| self.resources.get(kind)).unwrap_or(&self.resource);
        let parts = [cluster, text_at("/metadata/namespace"), Some(resource.as_str()), text_at("/metadata/name")];
        parts.into_iter().flatten().collect::<Vec<_>>().join("/")
    }
}
