//! Secret values: keys stay, values go.

use super::Keep;
use super::split::{Fields, Joined, metadata};
use super::withheld::{Withheld, without};
use serde_json::value::RawValue;

/// Objects that may carry values that are not kept: Secrets, and Works whose manifests hold such objects.
pub(super) fn needed(group: &str, kind: &str, raw: &str, keep: &Keep) -> bool {
    match (group, kind) {
        ("", "Secret") => !keep.secret_values,
        ("work.karmada.io", "Work") => {
            !keep.secret_values && raw.contains("\"Secret\"") || keep.withheld.iter().any(|path| path.is_in(raw))
        }
        _ => false,
    }
}

/// One top-level field of such an object.
pub(super) fn field(kind: &str, name: &str, value: &RawValue, keep: &Keep) -> Result<String, serde_json::Error> {
    match (kind, name) {
        ("Secret", "data" | "stringData") => blank_values(value.get()),
        ("Work", "spec") => within(value.get(), "workload", &|workload| {
            within(workload, "manifests", &|manifests| {
                let items: Vec<&RawValue> = serde_json::from_str(manifests)?;
                let items: Result<Vec<String>, _> = items.into_iter().map(|item| manifest(item.get(), keep)).collect();
                Ok(format!("[{}]", items?.join(",")))
            })
        }),
        _ => Ok(value.get().to_owned()),
    }
}

fn manifest(raw: &str, keep: &Keep) -> Result<String, serde_json::Error> {
    let fields: Fields<'_> = serde_json::from_str(raw)?;
    let (kind, api_version) = (fields.text("kind"), fields.text("apiVersion"));
    let (kind, api_version) = (kind.as_deref().unwrap_or_default(), api_version.as_deref().unwrap_or_default());
    let group = api_version.split_once('/').map_or("", |(group, _)| group);
    let secret = kind == "Secret" && !keep.secret_values;
    let withheld: Vec<&Withheld> = keep.withheld.iter().filter(|path| path.is_of_kind(group, kind)).collect();
    if !secret && withheld.is_empty() {
        return Ok(raw.to_owned());
    }
    let mut text = String::new();
    let mut out = Joined::new(&mut text);
    for (name, value) in fields.iter() {
        match name {
            "data" | "stringData" if secret => out.push(name, &blank_values(value.get())?),
            "metadata" => metadata(&serde_json::from_str(value.get())?, false, true, out.value(name))?,
            _ => out.push(name, &without(&withheld, name, value.get().to_owned())?),
        }
    }
    out.finish();
    Ok(text)
}

/// Applies `change` to one field of an object; anything else stays.
fn within(
    raw: &str,
    field: &str,
    change: &dyn Fn(&str) -> Result<String, serde_json::Error>,
) -> Result<String, serde_json::Error> {
    let fields: Fields<'_> = serde_json::from_str(raw)?;
    let mut text = String::with_capacity(raw.len());
    let mut out = Joined::new(&mut text);
    for (name, value) in fields.iter() {
        if name == field { out.push(name, &change(value.get())?) } else { out.push(name, value.get()) }
    }
    out.finish();
    Ok(text)
}

fn blank_values(raw: &str) -> Result<String, serde_json::Error> {
    if !raw.starts_with('{') {
        return Ok("null".to_owned());
    }
    let fields: Fields<'_> = serde_json::from_str(raw)?;
    let mut text = String::new();
    let mut out = Joined::new(&mut text);
    fields.iter().for_each(|(name, _)| out.push(name, "\"\""));
    out.finish();
    Ok(text)
}
