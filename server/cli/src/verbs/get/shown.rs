//! The printer of `get`: rows of tables below one header, or documents. Pure except for the writer.

use std::collections::BTreeMap;
use std::io::Write;

use serde_json::{Value, json};

use super::GetArgs;
use super::ask::{Answer, Question};
use super::beside::{Beside, Key};
use super::table::{Layout, Table};
use crate::columns::Widths;
use crate::output::{Format, items};

/// Event type of listed objects.
const ADDED: &str = "ADDED";

/// Printer state; the format and columns stay the same for the whole output.
pub(super) struct Shown {
    output: Option<Format>,
    resource: String,
    /// Resource name by kind, if several kinds are printed.
    pub(super) resources: BTreeMap<String, String>,
    headers: bool,
    namespaces: bool,
    /// Prefix of names: the singular resource name.
    pub(super) kind: Option<String>,
    pub(super) beside: Beside,
    /// Print the event type.
    events: bool,
    managed_fields: bool,
    pub(super) now: jiff::Timestamp,
    layout: Option<Layout>,
    widths: Widths,
    head: Option<Vec<String>>,
    /// Rows to be sorted and printed by the next flush.
    waiting: Vec<(Key, Vec<String>)>,
    documents: Vec<Value>,
    pub(super) rows: usize,
    /// True until the first document is printed.
    first: bool,
    painted: bool,
}

impl Shown {
    pub(super) fn new(args: &GetArgs, question: &Question, now: jiff::Timestamp) -> Self {
        Self {
            output: args.output.clone(),
            resource: question.kind.gvr.resource.to_string(),
            resources: BTreeMap::new(),
            headers: !args.no_headers,
            namespaces: question.kind.namespaced && args.all_namespaces,
            kind: None,
            beside: args.beside(),
            events: args.output_watch_events,
            managed_fields: args.show_managed_fields,
            now,
            layout: None,
            widths: Widths::default(),
            head: None,
            waiting: Vec::new(),
            documents: Vec::new(),
            rows: 0,
            first: true,
            painted: args.color.painted(),
        }
    }

    /// Adds a response, as if its objects were added now.
    pub(super) fn add(&mut self, cluster: Option<&str>, response: &Answer) {
        match self.output {
            None | Some(Format::Wide) => {
                let mut columns = Vec::new();
                for page in &response.pages {
                    let table = Table::read(page, cluster, &columns, &self.beside, self.now);
                    self.table(&table, ADDED);
                    columns = table.columns;
                }
            }
            _ => response.objects(cluster).into_iter().for_each(|object| self.document(ADDED, object)),
        }
    }

    /// Adds the rows of a table; the first rows print the header.
    pub(super) fn table(&mut self, table: &Table, event: &str) {
        if table.rows.is_empty() {
            return;
        }
        self.rows += table.rows.len();
        let first = self.layout.is_none();
        let layout = self.layout.get_or_insert_with(|| {
            let layout = Layout {
                events: self.events,
                namespaces: self.namespaces,
                wide: matches!(self.output, Some(Format::Wide)),
                kind: self.kind.clone(),
                beside: self.beside.heads(),
                ..Layout::default()
            };
            layout.of(&table.columns)
        });
        if first && self.painted {
            self.widths.paint(&layout.head());
        }
        if first && self.headers {
            self.head = Some(layout.head());
        }
        let rows = table.rows.iter().map(|row| (row.key.clone(), layout.row(&table.columns, row, event)));
        self.waiting.extend(rows);
    }

    /// Adds an object of a watch.
    pub(super) fn document(&mut self, event: &str, object: Value) {
        let object = self.without_managed_fields(object);
        self.documents.push(match self.events {
            true => json!({"type": event, "object": object}),
            false => object,
        });
    }

    /// JSON and YAML omit managedFields unless requested.
    fn without_managed_fields(&self, mut object: Value) -> Value {
        let is_document = matches!(self.output, Some(Format::Json | Format::Yaml | Format::Kyaml));
        if is_document
            && !self.managed_fields
            && let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut)
        {
            metadata.remove("managedFields");
        }
        object
    }

    /// Prints the collected rows and documents. Objects of a watch are printed as separate documents.
    pub(super) fn flush(&mut self, out: &mut impl Write) -> anyhow::Result<()> {
        let mut rows = std::mem::take(&mut self.waiting);
        rows.sort_by(|(one, _), (other, _)| one.order(other));
        let rows: Vec<Vec<String>> = self.head.take().into_iter().chain(rows.into_iter().map(|(_, row)| row)).collect();
        self.widths.write(out, &rows)?;
        for document in std::mem::take(&mut self.documents) {
            let first = std::mem::take(&mut self.first);
            self.format().next(out, &document, first && self.headers, |object| self.named(object))?;
        }
        Ok(())
    }

    /// Prints objects as one document: the named object or a List.
    pub(super) fn whole(&self, out: &mut impl Write, objects: Vec<Value>, named: bool) -> anyhow::Result<()> {
        let mut objects: Vec<Value> = objects.into_iter().map(|object| self.without_managed_fields(object)).collect();
        objects.sort_by(|one, other| self.beside.key(one).order(&self.beside.key(other)));
        let document = match (named, objects.len()) {
            (true, 0) => return Ok(()),
            (true, 1) => objects.remove(0),
            _ => json!({"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": ""}, "items": objects}),
        };
        match &self.output {
            Some(Format::CustomColumns(columns)) => Ok(columns.write(out, items(&document), self.headers)?),
            _ => self.format().print(out, &document, |object| self.named(object)),
        }
    }

    fn format(&self) -> &Format {
        self.output.as_ref().unwrap_or(&Format::Json)
    }

    /// `cluster/namespace/resource/name`, as in search results.
    fn named(&self, object: &Value) -> String {
        let object = object.get("object").filter(|_| self.events).unwrap_or(object);
        let of = |path: &str| object.pointer(path).and_then(Value::as_str).filter(|text| !text.is_empty());
        let cluster = of("/metadata/annotations/resource.karmada.io~1cached-from-cluster");
        let resource = of("/kind").and_then(|kind| self.resources.get(kind)).unwrap_or(&self.resource);
        let parts = [cluster, of("/metadata/namespace"), Some(resource.as_str()), of("/metadata/name")];
        parts.into_iter().flatten().collect::<Vec<_>>().join("/")
    }
}
