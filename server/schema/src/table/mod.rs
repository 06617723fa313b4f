//! Tables as `kubectl get` prints them.
//!
//! A server prints with a [`Printer`] if a client accepts `as=Table`. Columns and cells of built-in kinds are those
//! of [`crowsnest_apimachinery::printers::columns`], which the cache also stores with each record; columns of custom
//! resources are declared in the CRD's `additionalPrinterColumns`.

pub mod age;
mod custom;
mod descriptions;
mod render;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use crowsnest_apimachinery::printers::columns::{CREATED_AT, Column, ColumnDescription, KindPrinter, NAME};
use crowsnest_apimachinery::unstructured::text;
use serde_json::{Value, json};

pub use custom::CustomPrinter;
pub use descriptions::field_description;
pub use render::{
    IncludeObject, ListMeta, Rows, ToInternal, partial_object_metadata, partial_object_metadata_list, to_v1beta1,
};

/// The time from which ages are computed.
pub type Now = jiff::Timestamp;

const GENERIC_COLUMNS: &[Column] = &[NAME, CREATED_AT];

/// Prints the objects of a resource as rows.
#[derive(Debug, Clone, Default)]
pub enum Printer {
    BuiltIn(&'static KindPrinter),
    Custom(Arc<CustomPrinter>),
    /// Name and creation time, for kinds without columns.
    #[default]
    Generic,
}

impl Printer {
    /// The printer of a built-in kind, or the generic one.
    pub fn built_in(group: &str, kind: &str) -> Self {
        KindPrinter::for_kind(group, kind).map_or(Printer::Generic, Printer::BuiltIn)
    }

    /// `columnDefinitions` of the table. `describe_field` returns the OpenAPI description of a field by schema
    /// name and field.
    pub fn columns(&self, describe_field: &dyn Fn(&str, &str) -> Option<String>) -> Vec<Value> {
        match self {
            Printer::BuiltIn(kind) => kind.columns.iter().map(|c| column_definition(c, describe_field)).collect(),
            Printer::Generic => GENERIC_COLUMNS.iter().map(|c| column_definition(c, describe_field)).collect(),
            Printer::Custom(custom) => {
                let mut columns = vec![column_definition(&NAME, describe_field)];
                columns.extend(custom.columns(describe_field));
                columns
            }
        }
    }

    /// Column names in order, including those of the wide format, with their priority.
    pub fn headers(&self) -> Vec<(String, i32)> {
        let headers_of = |columns: &[Column]| columns.iter().map(|c| (c.name.to_owned(), c.priority)).collect();
        match self {
            Printer::BuiltIn(kind) => headers_of(kind.columns),
            Printer::Generic => headers_of(GENERIC_COLUMNS),
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
            Printer::BuiltIn(kind) => kind.cells(object).iter().map(|cell| cell.render(now.as_second())).collect(),
            Printer::Generic => vec![name(object), json!(text(object, "/metadata/creationTimestamp"))],
            Printer::Custom(custom) => {
                let mut cells = vec![name(object)];
                cells.extend(custom.cells(object, now));
                cells
            }
        }
    }

    /// Conditions of a row. Only the row of a finished pod has one, so that clients can hide it.
    fn conditions(&self, object: &Value) -> Vec<Value> {
        let is_pod = matches!(self, Printer::BuiltIn(kind) if (kind.group, kind.kind) == ("", "Pod"));
        let (reason, message) = match text(object, "/status/phase") {
            "Succeeded" if is_pod => ("Succeeded", "The pod has completed successfully."),
            "Failed" if is_pod => ("Failed", "The pod failed."),
            _ => return Vec::new(),
        };
        vec![json!({"type": "Completed", "status": "True", "reason": reason, "message": message})]
    }
}

fn name(object: &Value) -> Value {
    json!(text(object, "/metadata/name"))
}

fn column_definition(column: &Column, describe_field: &dyn Fn(&str, &str) -> Option<String>) -> Value {
    let description = match column.description {
        ColumnDescription::Text(text) => text.to_owned(),
        ColumnDescription::Field(schema, field) => {
            describe_field(&format!("io.k8s.{schema}"), field).unwrap_or_default()
        }
    };
    json!({
        "name": column.name, "type": column.value_type, "format": column.format,
        "description": description, "priority": column.priority,
    })
}
