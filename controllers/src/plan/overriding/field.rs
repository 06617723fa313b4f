//! fieldOverrider: a patch inside a string field that holds JSON or YAML.

use crowsnest_api::policy::{FieldOverrider, FieldPatchOperation};
use serde_json::Value;

use super::OverrideError;
use super::patch::{self, Operation};

pub fn apply(manifest: &mut Value, overrider: &FieldOverrider) -> Result<(), OverrideError> {
    let path = &overrider.field_path;
    let field = manifest.pointer_mut(path).ok_or_else(|| OverrideError::Patch {
        operator: "field".to_owned(),
        path: path.clone(),
        reason: "path does not exist".to_owned(),
    })?;
    let Some(text) = field.as_str() else { return Err(OverrideError::NotText(path.clone())) };
    let edited = if overrider.yaml.is_empty() {
        edit_json(path, text, &overrider.json)?
    } else {
        edit_yaml(path, text, &overrider.yaml)?
    };
    *field = Value::String(edited);
    Ok(())
}

fn operations(entries: &[FieldPatchOperation]) -> impl Iterator<Item = Operation<'_>> {
    entries.iter().map(|entry| Operation {
        operator: &entry.operator,
        path: &entry.sub_path,
        value: entry.value.as_ref().map(|value| &value.0),
    })
}

fn edit_json(path: &str, text: &str, entries: &[FieldPatchOperation]) -> Result<String, OverrideError> {
    let failed = |error: serde_json::Error| content(path, "JSON", &error);
    let mut document: Value = serde_json::from_str(text).map_err(failed)?;
    patch::apply(&mut document, operations(entries))?;
    serde_json::to_string(&document).map_err(failed)
}

fn edit_yaml(path: &str, text: &str, entries: &[FieldPatchOperation]) -> Result<String, OverrideError> {
    let mut document: Value = serde_saphyr::from_str(text).map_err(|error| content(path, "YAML", &error))?;
    patch::apply(&mut document, operations(entries))?;
    serde_saphyr::to_string(&document).map_err(|error| content(path, "YAML", &error))
}

fn content(path: &str, format: &'static str, error: &dyn std::error::Error) -> OverrideError {
    OverrideError::Content { path: path.to_owned(), format, reason: error.to_string() }
}
