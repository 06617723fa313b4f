//! Printer columns of custom resources: `additionalPrinterColumns`, compiled once per CRD.

use crowsnest_apimachinery::jsonpath::JsonPath;
use crowsnest_apimachinery::printers::columns::{CREATION_DESCRIPTION, ColumnDescription};
use serde_json::{Value, json};

use super::{Now, age};
use crate::ordered_json::Json;
use crate::print::encode_compact;

/// An entry of `additionalPrinterColumns`.
#[derive(Debug, Clone)]
struct CustomColumn {
    name: String,
    kind: String,
    format: String,
    description: String,
    priority: i64,
    path: JsonPath,
}

/// Columns of a custom resource's version, or the age column by default.
#[derive(Debug, Clone, Default)]
pub struct CustomPrinter {
    columns: Vec<CustomColumn>,
    /// True if no columns are declared: then the age is the only one.
    has_only_age: bool,
}

impl CustomPrinter {
    /// Compiles `additionalPrinterColumns`. Skips columns with an invalid path, which validation of the CRD rejects.
    pub fn new(declared: &[Value]) -> Self {
        let text = |column: &Value, field: &str| column.get(field).and_then(Value::as_str).unwrap_or("").to_owned();
        let columns = declared
            .iter()
            .filter_map(|column| {
                let source = text(column, "jsonPath");
                let path = JsonPath::parse(&source).ok()?;
                let description = match text(column, "description") {
                    empty if empty.is_empty() => {
                        format!("Custom resource definition column (in JSONPath format): {source}")
                    }
                    description => description,
                };
                let priority = column.get("priority").and_then(Value::as_i64).unwrap_or(0);
                let (name, kind, format) = (text(column, "name"), text(column, "type"), text(column, "format"));
                Some(CustomColumn { name, kind, format, description, priority, path })
            })
            .collect();
        Self { columns, has_only_age: declared.is_empty() }
    }

    pub(super) fn columns(&self, describe_field: &dyn Fn(&str, &str) -> Option<String>) -> Vec<Value> {
        if self.has_only_age {
            let ColumnDescription::Field(schema, field) = CREATION_DESCRIPTION else { return Vec::new() };
            let description = describe_field(&format!("io.k8s.{schema}"), field).unwrap_or_default();
            return vec![
                json!({"name": "Age", "type": "date", "format": "", "description": description, "priority": 0}),
            ];
        }
        let definition = |c: &CustomColumn| {
            json!({
                "name": c.name, "type": c.kind, "format": c.format,
                "description": c.description, "priority": c.priority,
            })
        };
        self.columns.iter().map(definition).collect()
    }

    pub(super) fn headers(&self) -> Vec<(String, i32)> {
        if self.has_only_age {
            return vec![("Age".to_owned(), 0)];
        }
        self.columns.iter().map(|c| (c.name.clone(), i32::try_from(c.priority).unwrap_or(i32::MAX))).collect()
    }

    pub(super) fn cells(&self, object: &Value, now: Now) -> Vec<Value> {
        if self.has_only_age {
            return vec![date(object.pointer("/metadata/creationTimestamp").unwrap_or(&Value::Null), now)];
        }
        self.columns.iter().map(|column| cell(column, object, now)).collect()
    }
}

/// The cell of a column: the first result of its path. A value that does not match the column's type becomes null.
fn cell(column: &CustomColumn, object: &Value, now: Now) -> Value {
    let found = column.path.find(object);
    let Some(value) = found.first().copied() else { return Value::Null };
    match (column.kind.as_str(), value) {
        ("string", Value::Null) => Value::Null,
        ("string", Value::String(text)) => json!(text),
        ("string", value) => json!(encode_compact(&Json::from_value(value.clone()))),
        ("integer", Value::Number(n)) => {
            n.as_i64().or_else(|| n.as_f64().map(|f| f as i64)).map_or(Value::Null, |n| json!(n))
        }
        ("number", Value::Number(_)) | ("boolean", Value::Bool(_)) => value.clone(),
        ("date", value) => date(value, now),
        _ => Value::Null,
    }
}

fn date(value: &Value, now: Now) -> Value {
    match value.as_str() {
        Some(text) => json!(age::format_age(text, now).unwrap_or_else(|| "<invalid>".to_owned())),
        None => Value::Null,
    }
}
