//! `get`: one object, from the cache.

use crowsnest_apimachinery::unstructured::{list, text};
use serde_json::{Value, json};

use super::format::{push_leaves, value_text};
use super::object::{self, Object};
use super::{Call, Continuation, Page, Tool, ToolError};
use crate::api::{SEARCH_API, get, uri};
use crate::output::redact::redact_manifest;
use crate::output::{Row, ToolOutput, row};

const MAX_PATHS: usize = 50;
/// Maximum number of events in a summary.
const MAX_EVENTS: &str = "10";
const VIEWS: [&str; 3] = ["summary", "status", "manifest"];

/// Paths of a summary, in addition to the status.
const SUMMARY_PATHS: [&[&str]; 12] = [
    &["metadata", "creationTimestamp"],
    &["metadata", "deletionTimestamp"],
    &["metadata", "finalizers"],
    &["metadata", "generation"],
    &["metadata", "labels"],
    &["metadata", "ownerReferences"],
    &["spec", "replicas"],
    &["spec", "nodeName"],
    &["spec", "clusterIP"],
    &["spec", "ports"],
    &["spec", "taints"],
    &["spec", "suspend"],
];

pub(super) const TOOL: Tool = Tool {
    name: "get",
    title: "Read one object",
    description: "Read one object of a member or of the control plane from the cache, as lines of PATH and value. `view`: \
`summary` (default) has labels, owners, images, conditions, status and the latest events about it; `status`; `manifest` is \
the whole object. `paths` selects parts, such as `.spec.template.spec.containers[0].resources`. Values of Secrets are never \
shown, only their keys.",
    properties: || {
        object::properties_with(json!({
            "view": {"type": "string", "enum": VIEWS},
            "paths": {"type": "array", "items": {"type": "string"}, "maxItems": MAX_PATHS},
        }))
    },
    required: &["kind", "name"],
    layout: None,
    run: |call| Box::pin(read(call)),
};

async fn read(call: &Call<'_>) -> Result<Page, ToolError> {
    let view = call.arguments.choice("view")?;
    let paths = call.arguments.texts("paths")?;
    let object = object::find(call).await?;
    let manifest = manifest(call, &object).await?;
    let mut leaves = Vec::new();
    push_leaves("", &manifest, &mut leaves);
    let mut output =
        ToolOutput { facts: vec![object.identity_row()], ..ToolOutput::table(["path", "value"], Vec::new()) };
    output.rows = match (paths.as_slice(), view) {
        ([], "summary") => {
            let (events, notes) = latest_events(call, &object).await?;
            output.notes = notes;
            summary(&manifest, &leaves).into_iter().chain(events).collect()
        }
        ([], "status") => rows_below(&leaves, ".status"),
        ([], _) => leaves,
        (paths, _) => {
            let missing = paths.iter().filter(|path| rows_below(&leaves, path).is_empty());
            output.notes = missing.map(|path| row(["notice", &format!("the object has no {path}")])).collect();
            paths.iter().flat_map(|path| rows_below(&leaves, path)).collect()
        }
    };
    Ok(Page { output, next: Continuation::Offset })
}

/// The newest revision, without secrets.
async fn manifest(call: &Call<'_>, object: &Object) -> Result<Value, ToolError> {
    let history = get(call.api, object.uri("history", &[])).await?;
    let newest = list(&history, "versions").first();
    let seq = newest.map(|version| value_text(&version["seq"])).unwrap_or_default();
    let mut manifest = get(call.api, object.uri("history", &[("seq", &seq)])).await?;
    redact_manifest(object.text("kind"), &mut manifest);
    Ok(manifest)
}

/// Rows at and below a path. The first dot of the path is optional.
fn rows_below(leaves: &[Row], path: &str) -> Vec<Row> {
    let path = format!(".{}", path.trim_start_matches('.'));
    let is_below = |line: &&Row| {
        let rest = line.first().and_then(|row_path| row_path.strip_prefix(&path));
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
    };
    leaves.iter().filter(is_below).cloned().collect()
}

/// Rows of the summary of a manifest; `leaves` are the rows of all its leaves.
fn summary(manifest: &Value, leaves: &[Row]) -> Vec<Row> {
    let mut rows = Vec::new();
    for path in SUMMARY_PATHS {
        if let Some(value) = path.iter().try_fold(manifest, |value, key| value.get(key)) {
            push_leaves(&format!(".{}", path.join(".")), value, &mut rows);
        }
    }
    let is_container_row = |line: &&Row| {
        let path = line.first().map(String::as_str).unwrap_or_default();
        let is_of_interest = path.ends_with(".image") || path.contains(".resources");
        // Containers, init containers and ephemeral containers.
        path.starts_with(".spec") && path.contains("ontainers[") && is_of_interest
    };
    rows.extend(leaves.iter().filter(is_container_row).cloned());
    rows.extend(rows_below(leaves, ".status"));
    rows.extend(["data", "binaryData"].into_iter().filter_map(|field| {
        let keys: Vec<&str> = manifest[field].as_object()?.keys().map(String::as_str).collect();
        Some(row([&format!(".{field} keys"), &keys.join(", ")]))
    }));
    rows
}

/// Rows for the latest events about the object, and notes of the search for them.
async fn latest_events(call: &Call<'_>, object: &Object) -> Result<(Vec<Row>, Vec<Row>), ToolError> {
    let cluster = object::quote(object.text("cluster"));
    let query = format!("kind:event about:{} cluster:={cluster} sort:-last", object.query_reference());
    let columns = ".type,.reason,.message,.count,.lastTimestamp,.eventTime";
    let parameters = [("q", query.as_str()), ("limit", MAX_EVENTS), ("columns", columns), ("facets", "kind")];
    let response = get(call.api, uri(&format!("{SEARCH_API}/query"), &parameters)).await?;
    let event = |hit: &Value| {
        let column = |name: &str| text(&hit["columns"], &[name]).to_owned();
        let time =
            Some(column(".lastTimestamp")).filter(|time| !time.is_empty()).unwrap_or_else(|| column(".eventTime"));
        let count = Some(column(".count")).filter(|count| !count.is_empty()).map(|count| format!(" ({count} times)"));
        let event_text =
            format!("{} {}: {}{}", column(".type"), column(".reason"), column(".message"), count.unwrap_or_default());
        row([&format!("event {time}"), &event_text])
    };
    Ok((
        list(&response, "hits").iter().map(event).collect(),
        super::format::note_rows(&json!({"skipped": response["skipped"]})),
    ))
}
