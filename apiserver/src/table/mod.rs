//! Tables as `kubectl get` prints them: one declarative column list per kind, with pure cell functions over JSON.
//!
//! Owned by `apiserver/`. `http/` asks for a [`Printer`] when a client accepts `as=Table`; `index/` uses the same printers for the
//! cells it keeps beside each record. Columns and their order follow kube-apiserver's printers; columns of custom resources come
//! from the definition's `additionalPrinterColumns`.

pub mod age;
mod cluster;
mod config;
mod custom;
mod docs;
mod network;
mod pod;
mod read;
mod render;
mod storage;
#[cfg(test)]
mod tests;
mod workloads;

use std::sync::Arc;

use serde_json::{Value, json};

pub use custom::CustomPrinter;
pub use docs::published;
pub use render::{IncludeObject, ListMeta, partial_object_metadata, partial_object_metadata_list, table, to_v1beta1};

/// The moment ages are counted from.
pub type Now = jiff::Timestamp;

/// Where a column's description comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Doc {
    Text(&'static str),
    /// The published description of a field: (schema name below `io.k8s.`, field).
    Field(&'static str, &'static str),
}

/// One column of a built-in kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Column {
    pub name: &'static str,
    /// OpenAPI type: `string`, `integer`, `number`, `boolean`, `date`.
    pub kind: &'static str,
    pub format: &'static str,
    /// 0 is always shown, 1 only in wide output.
    pub priority: i32,
    pub doc: Doc,
}

impl Column {
    const fn new(name: &'static str, kind: &'static str, doc: Doc) -> Self {
        Self { name, kind, format: "", priority: 0, doc }
    }

    pub const fn text(name: &'static str, doc: Doc) -> Self {
        Self::new(name, "string", doc)
    }

    const fn number(name: &'static str, doc: Doc) -> Self {
        Self::new(name, "integer", doc)
    }

    /// Shown only by `kubectl get -o wide`.
    pub const fn wide(self) -> Self {
        Self { priority: 1, ..self }
    }
}

/// `metadata.name`, first column of every table.
pub const NAME: Column = Column {
    name: "Name",
    kind: "string",
    format: "name",
    priority: 0,
    doc: Doc::Field("apimachinery.pkg.apis.meta.v1.ObjectMeta", "name"),
};
const CREATION: Doc = Doc::Field("apimachinery.pkg.apis.meta.v1.ObjectMeta", "creationTimestamp");
/// Time since `metadata.creationTimestamp`.
pub const AGE: Column = Column::text("Age", CREATION);
const CREATED_AT: Column = Column::new("Created At", "date", CREATION);
const CONTAINERS: Column = Column::text("Containers", Doc::Text("Names of each container in the template.")).wide();
const IMAGES: Column = Column::text("Images", Doc::Text("Images referenced by each container in the template.")).wide();

/// How one built-in kind is printed.
pub struct KindPrinter {
    /// Empty for core.
    pub group: &'static str,
    pub kind: &'static str,
    pub columns: &'static [Column],
    cells: fn(&Value, Now) -> Vec<Value>,
    /// Row conditions, for kinds that have them (completed pods and jobs).
    conditions: fn(&Value) -> Vec<Value>,
}

impl std::fmt::Debug for KindPrinter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "KindPrinter({}/{})", self.group, self.kind)
    }
}

fn no_conditions(_: &Value) -> Vec<Value> {
    Vec::new()
}

/// A printer whose rows carry no conditions.
pub const fn printer(
    group: &'static str,
    kind: &'static str,
    columns: &'static [Column],
    cells: fn(&Value, Now) -> Vec<Value>,
) -> KindPrinter {
    KindPrinter { group, kind, columns, cells, conditions: no_conditions }
}

/// Every built-in kind with columns of its own.
static KINDS: &[&[KindPrinter]] = &[workloads::KINDS, config::KINDS, network::KINDS, storage::KINDS, cluster::KINDS];

const GENERIC_COLUMNS: &[Column] = &[NAME, CREATED_AT];

/// How objects of one resource become rows.
#[derive(Debug, Clone, Default)]
pub enum Printer {
    BuiltIn(&'static KindPrinter),
    Custom(Arc<CustomPrinter>),
    /// Name and creation time, for kinds nobody described.
    #[default]
    Generic,
}

impl Printer {
    /// The printer of a built-in kind, or the generic one.
    pub fn built_in(group: &str, kind: &str) -> Self {
        let found = KINDS.iter().flat_map(|kinds| kinds.iter()).find(|p| p.kind == kind && p.group == group);
        // Events are served by two groups; the printer reads both shapes.
        let found = found.or_else(|| match (group, kind) {
            ("events.k8s.io", "Event") => config::KINDS.iter().find(|p| p.kind == "Event"),
            _ => None,
        });
        found.map_or(Printer::Generic, Printer::BuiltIn)
    }

    /// `columnDefinitions` of the table. `docs` resolves published field descriptions: (schema name, field) → text.
    pub fn columns(&self, docs: &dyn Fn(&str, &str) -> Option<String>) -> Vec<Value> {
        match self {
            Printer::BuiltIn(kind) => kind.columns.iter().map(|c| definition(c, docs)).collect(),
            Printer::Generic => GENERIC_COLUMNS.iter().map(|c| definition(c, docs)).collect(),
            Printer::Custom(custom) => {
                let mut columns = vec![definition(&NAME, docs)];
                columns.extend(custom.columns(docs));
                columns
            }
        }
    }

    /// Column names in order, wide ones included, with their priority.
    pub fn headers(&self) -> Vec<(String, i32)> {
        let own = |columns: &[Column]| columns.iter().map(|c| (c.name.to_owned(), c.priority)).collect();
        match self {
            Printer::BuiltIn(kind) => own(kind.columns),
            Printer::Generic => own(GENERIC_COLUMNS),
            Printer::Custom(custom) => {
                let mut headers = vec![(NAME.name.to_owned(), 0)];
                headers.extend(custom.headers());
                headers
            }
        }
    }

    /// The cells of one object, one per column.
    pub fn cells(&self, object: &Value, now: Now) -> Vec<Value> {
        match self {
            Printer::BuiltIn(kind) => {
                let (cells, columns) = ((kind.cells)(object, now), kind.columns.len());
                if cells.len() == columns {
                    return cells;
                }
                // What has not its kind's shape has a name all the same, and a cell in each column.
                let others = columns.saturating_sub(1);
                std::iter::once(read::name(object)).chain(std::iter::repeat_n(Value::Null, others)).collect()
            }
            Printer::Generic => vec![read::name(object), json!(read::text(object, "/metadata/creationTimestamp"))],
            Printer::Custom(custom) => {
                let mut cells = vec![read::name(object)];
                cells.extend(custom.cells(object, now));
                cells
            }
        }
    }

    fn conditions(&self, object: &Value) -> Vec<Value> {
        match self {
            Printer::BuiltIn(kind) => (kind.conditions)(object),
            _ => Vec::new(),
        }
    }
}

fn definition(column: &Column, docs: &dyn Fn(&str, &str) -> Option<String>) -> Value {
    let description = match column.doc {
        Doc::Text(text) => text.to_owned(),
        Doc::Field(schema, field) => docs(&format!("io.k8s.{schema}"), field).unwrap_or_default(),
    };
    json!({
        "name": column.name, "type": column.kind, "format": column.format,
        "description": description, "priority": column.priority,
    })
}
