//! `history`: what changed in an object.

use crowsnest_apimachinery::unstructured::{list, text};
use futures::{StreamExt, TryStreamExt};
use serde_json::{Value, json};

use super::format::value_text;
use super::object::{self, Object};
use super::{Call, Continuation, Page, Tool, ToolError};
use crate::api::get;
use crate::output::redact::redact_field;
use crate::output::{Row, ToolOutput, row};

/// Default and maximum number of revisions that are compared.
const DEFAULT_REVISIONS: usize = 10;
const MAX_REVISIONS: usize = 100;
/// Maximum number of concurrent comparisons.
const MAX_CONCURRENT_COMPARISONS: usize = 4;

/// Fields that change with each write.
const VOLATILE_FIELDS: [&str; 3] = ["metadata.resourceVersion", "metadata.managedFields", "metadata.generation"];

pub(super) const TOOL: Tool = Tool {
    name: "history",
    title: "Show what changed",
    description: "Retained revisions of an object, newest first, with each changed field before and after; also of deleted \
objects. `compare_with` shows the differences from the object of the same name in another cluster instead.",
    properties: || {
        object::properties_with(json!({
            "revisions": {"type": "integer", "minimum": 1, "maximum": MAX_REVISIONS, "default": DEFAULT_REVISIONS},
            "compare_with": {"type": "string", "description": "Another cluster."},
        }))
    },
    required: &["kind", "name"],
    layout: None,
    run: |call| Box::pin(history(call)),
};

async fn history(call: &Call<'_>) -> Result<Page, ToolError> {
    let max_revisions = call.arguments.number("revisions")?;
    let other_cluster = call.arguments.text_or_empty("compare_with")?;
    let object = object::find(call).await?;
    let output = match other_cluster.is_empty() {
        true => list_revisions(call, &object, max_revisions).await?,
        false => compare_clusters(call, &object, other_cluster).await?,
    };
    Ok(Page { output, next: Continuation::Offset })
}

async fn compare_clusters(call: &Call<'_>, object: &Object, other_cluster: &str) -> Result<ToolOutput, ToolError> {
    let diff = get(call.api, object.uri("diff", &[("with", other_cluster)])).await?;
    let rows = visible_differences(object, &diff).map(|[path, before, after]| vec![path, before, after]).collect();
    let table = ToolOutput::table(["path", object.text("cluster"), other_cluster], rows);
    Ok(ToolOutput { facts: vec![object.identity_row()], notes: truncation_note(&diff), ..table })
}

async fn list_revisions(call: &Call<'_>, object: &Object, max_revisions: usize) -> Result<ToolOutput, ToolError> {
    let history = get(call.api, object.uri("history", &[])).await?;
    let versions = list(&history, "versions");
    let pairs: Vec<(String, String)> = versions
        .windows(2)
        .take(max_revisions)
        .map(|pair| (value_text(&pair[1]["seq"]), value_text(&pair[0]["seq"])))
        .collect();
    let compare = |(from, to): (String, String)| {
        let uri = object.uri("diff", &[("from", &from), ("to", &to)]);
        get(call.api, uri)
    };
    let diffs: Vec<Value> =
        futures::stream::iter(pairs).map(compare).buffered(MAX_CONCURRENT_COMPARISONS).try_collect().await?;
    let mut rows: Vec<Row> = Vec::new();
    for (nth, version) in versions.iter().take(max_revisions).enumerate() {
        let end =
            if version["deleted"] == true { format!("deleted {}", text(version, "until")) } else { String::new() };
        let head = [text(version, "from"), &value_text(&version["generation"])].map(str::to_owned);
        let row = |[path, before, after]: [String; 3]| [head.to_vec(), vec![path, before, after, end.clone()]].concat();
        match diffs.get(nth) {
            Some(diff) => rows.extend(visible_differences(object, diff).map(row)),
            None => rows.push(row(["(first retained revision)".to_owned(), String::new(), String::new()])),
        }
    }
    let facts = vec![
        object.identity_row(),
        row([
            "revisions",
            &versions.len().to_string(),
            &format!("kept for {} s", value_text(&history["keptForSeconds"])),
        ]),
    ];
    let notes = diffs.iter().flat_map(truncation_note).take(1).collect();
    Ok(ToolOutput {
        facts,
        notes,
        ..ToolOutput::table(["since", "generation", "path", "before", "after", "end"], rows)
    })
}

/// Path and values before and after of each difference, without secrets and without fields that change with each write.
fn visible_differences<'d>(object: &'d Object, diff: &'d Value) -> impl Iterator<Item = [String; 3]> + 'd {
    let differences = list(diff, "differences").iter().filter(|difference| {
        let path = text(difference, "path").trim_start_matches(['.', '/']).replace('/', ".");
        !VOLATILE_FIELDS.iter().any(|volatile| path.starts_with(volatile))
            && !path.contains("last-applied-configuration")
    });
    differences.map(move |difference| {
        let path = text(difference, "path");
        let value = |side: &str| match difference.get(side) {
            None | Some(Value::Null) => String::new(),
            Some(value) => redact_field(object.text("kind"), path, value),
        };
        [path.to_owned(), value("before"), value("after")]
    })
}

fn truncation_note(diff: &Value) -> Vec<Row> {
    match diff["more"] == true {
        true => vec![row(["notice", "there are more differences than the API returns"])],
        false => Vec::new(),
    }
}
