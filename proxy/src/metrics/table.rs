//! Tables of metrics objects.

use std::collections::BTreeMap;

use crowsnest_apimachinery::quantity::Quantity;
use serde::Deserialize;
use serde_json::{Value, json};

use super::resource::Item;
use crate::table::TableForm;

/// The fields of a metrics object that a table shows.
#[derive(Deserialize)]
struct Usage {
    #[serde(default)]
    usage: BTreeMap<String, Quantity>,
    #[serde(default)]
    containers: Vec<Container>,
    #[serde(default)]
    window: String,
}

#[derive(Deserialize)]
struct Container {
    #[serde(default)]
    usage: BTreeMap<String, Quantity>,
}

/// A table with the columns of metrics-server, and the cluster in wide output.
pub fn table(items: &[Item], form: TableForm) -> Result<Value, serde_json::Error> {
    let column = |name: &str, format: &str, description: &str, priority: i32| json!({"name": name, "type": "string", "format": format, "description": description, "priority": priority});
    let columns = [
        column("Name", "name", "Name of the resource", 0),
        column("cpu", "quantity", "", 0),
        column("memory", "quantity", "", 0),
        column("Window", "duration", "", 0),
        column("Cluster", "", "The member cluster the usage was read from.", 1),
    ];
    let rows: Result<Vec<Value>, serde_json::Error> = items.iter().map(|item| row(item, form)).collect();
    let mut table = form.head(json!({}), Some(json!(columns)));
    table["rows"] = rows?.into();
    Ok(table)
}

fn row(item: &Item, form: TableForm) -> Result<Value, serde_json::Error> {
    let usage: Usage = serde_json::from_str(item.json.get())?;
    let mut total = usage.usage;
    for (resource, used) in usage.containers.into_iter().flat_map(|container| container.usage) {
        *total.entry(resource).or_default() += used;
    }
    let used = |resource: &str| total.get(resource).copied().unwrap_or_default().to_string();
    let (cpu, memory) = (used("cpu"), used("memory"));
    let object: Value = match form.object_form() {
        None => Value::Null,
        Some(form) => serde_json::from_str(&item.encode(form)?)?,
    };
    Ok(json!({"cells": [item.name, cpu, memory, usage.window, item.cluster], "object": object}))
}
