//! Descriptions of columns that show a field of the API, loaded once from the committed schemas.

use std::collections::HashMap;
use std::sync::LazyLock;

use crowsnest_apimachinery::printers::columns::{CREATION_DESCRIPTION, ColumnDescription, KindPrinter};
use serde_json::Value;

use crate::schema_set::SchemaSet;

static DESCRIPTIONS: LazyLock<HashMap<(String, String), String>> = LazyLock::new(|| {
    let mut definitions: HashMap<String, Option<Value>> = HashMap::new();
    let columns = KindPrinter::all().flat_map(|kind| kind.columns);
    let fields = columns.map(|column| column.description).chain([CREATION_DESCRIPTION]).filter_map(|description| {
        match description {
            ColumnDescription::Field(schema, field) => Some((format!("io.k8s.{schema}"), field.to_owned())),
            ColumnDescription::Text(_) => None,
        }
    });
    fields
        .filter_map(|(schema, field)| {
            let definition = definitions
                .entry(schema.clone())
                .or_insert_with_key(|name| SchemaSet::raw_definition(name))
                .as_ref()?;
            let text = definition.pointer("/properties")?.get(&field)?.get("description")?;
            // Columns omit the list of possible values.
            let text = Value::as_str(text)?.split("\n\nPossible enum values:").next()?.to_owned();
            Some(((schema, field), text))
        })
        .collect()
});

/// The OpenAPI description of a field; `None` for fields that no column shows.
pub fn field_description(schema: &str, field: &str) -> Option<String> {
    DESCRIPTIONS.get(&(schema.to_owned(), field.to_owned())).cloned()
}
