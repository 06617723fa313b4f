//! Columns and cells that kube-apiserver prints for built-in kinds.
//!
//! Used for the tables of the embedded API server and the proxies, and for the cells that the cache stores with each
//! record. Cells are independent of the current time: ages are computed when they are displayed.

mod cluster;
mod config;
pub mod fields;
mod network;
mod storage;
mod workloads;

use serde_json::Value;

use super::Cell;

/// Source of a column's description.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ColumnDescription {
    Text(&'static str),
    /// Description of a field in the OpenAPI document: (schema name without the prefix `io.k8s.`, field name).
    Field(&'static str, &'static str),
}

/// One column of a built-in kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Column {
    pub name: &'static str,
    /// OpenAPI type: `string`, `integer`, `number`, `boolean`, `date`.
    pub value_type: &'static str,
    /// OpenAPI format; empty without one. kubectl treats a column with the format `name` as the object's name.
    pub format: &'static str,
    /// 0: always displayed; 1: only in wide output.
    pub priority: i32,
    pub description: ColumnDescription,
}

impl Column {
    const fn new(name: &'static str, value_type: &'static str, description: ColumnDescription) -> Self {
        Self { name, value_type, format: "", priority: 0, description }
    }

    pub const fn text(name: &'static str, description: ColumnDescription) -> Self {
        Self::new(name, "string", description)
    }

    const fn boolean(name: &'static str, description: ColumnDescription) -> Self {
        Self::new(name, "boolean", description)
    }

    const fn number(name: &'static str, description: ColumnDescription) -> Self {
        Self::new(name, "integer", description)
    }

    /// The same column, but displayed only by `kubectl get -o wide`.
    pub const fn wide(self) -> Self {
        Self { priority: 1, ..self }
    }
}

/// `metadata.name`, first column of every table.
pub const NAME: Column = Column {
    name: "Name",
    value_type: "string",
    format: "name",
    priority: 0,
    description: ColumnDescription::Field("apimachinery.pkg.apis.meta.v1.ObjectMeta", "name"),
};
/// Description of `metadata.creationTimestamp`.
pub const CREATION_DESCRIPTION: ColumnDescription =
    ColumnDescription::Field("apimachinery.pkg.apis.meta.v1.ObjectMeta", "creationTimestamp");
/// Time since `metadata.creationTimestamp`.
pub const AGE: Column = Column::text("Age", CREATION_DESCRIPTION);
/// `metadata.creationTimestamp` as a date.
pub const CREATED_AT: Column = Column::new("Created At", "date", CREATION_DESCRIPTION);
const CONTAINERS: Column =
    Column::text("Containers", ColumnDescription::Text("Names of each container in the template.")).wide();
const IMAGES: Column =
    Column::text("Images", ColumnDescription::Text("Images referenced by each container in the template.")).wide();

/// Columns of a kind, and the function that returns the cells of an object.
pub struct KindPrinter {
    /// Empty for the core group.
    pub group: &'static str,
    pub kind: &'static str,
    pub columns: &'static [Column],
    cells: fn(&Value) -> Vec<Cell>,
}

impl std::fmt::Debug for KindPrinter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "KindPrinter({}/{})", self.group, self.kind)
    }
}

impl KindPrinter {
    pub const fn new(
        group: &'static str,
        kind: &'static str,
        columns: &'static [Column],
        cells: fn(&Value) -> Vec<Cell>,
    ) -> Self {
        Self { group, kind, columns, cells }
    }

    /// The printer of a built-in kind with columns of its own. Events have the same columns in both of their groups.
    pub fn for_kind(group: &str, kind: &str) -> Option<&'static Self> {
        let group = if (group, kind) == ("events.k8s.io", "Event") { "" } else { group };
        Self::all().find(|printer| printer.kind == kind && printer.group == group)
    }

    pub fn all() -> impl Iterator<Item = &'static Self> {
        KINDS.iter().flat_map(|kinds| kinds.iter())
    }

    /// One cell for each column.
    pub fn cells(&self, object: &Value) -> Vec<Cell> {
        let (cells, columns) = ((self.cells)(object), self.columns.len());
        if cells.len() == columns {
            return cells;
        }
        // A row must have one cell per column. On a mismatch, print only the name.
        std::iter::once(fields::name(object))
            .chain(std::iter::repeat_n(Cell::Empty, columns.saturating_sub(1)))
            .collect()
    }
}

/// Printers of all built-in kinds with columns of their own.
static KINDS: &[&[KindPrinter]] = &[workloads::KINDS, config::KINDS, network::KINDS, storage::KINDS, cluster::KINDS];

/// Printer of the default columns, for custom resources without declared columns.
static DEFAULT_PRINTER: KindPrinter =
    KindPrinter::new("", "", &[NAME, AGE], |object| vec![fields::name(object), fields::age(object)]);

/// The columns of a kind; name and age by default.
pub fn columns(group: &str, kind: &str) -> &'static [Column] {
    KindPrinter::for_kind(group, kind).unwrap_or(&DEFAULT_PRINTER).columns
}

/// The cells of [`columns`].
pub(super) fn cells(group: &str, kind: &str, object: &Value) -> Vec<Cell> {
    KindPrinter::for_kind(group, kind).unwrap_or(&DEFAULT_PRINTER).cells(object)
}
