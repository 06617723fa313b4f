//! `related`: what an object belongs to, uses and is used by.

use crowsnest_apimachinery::unstructured::{list, text};
use futures::future::BoxFuture;
use serde_json::{Value, json};

use super::format::reference_text;
use super::object;
use super::{Call, Next, Page, Tool, ToolError};
use crate::api::get;
use crate::output::{ToolOutput, row};

const MAX_DEPTH: usize = 5;

pub(super) const TOOL: Tool = Tool {
    name: "related",
    title: "Show related objects",
    description: "Objects that an object owns, is owned by, uses and is used by, and events about it, within `depth` steps of \
the same cluster, with the status of each. Use it for \"what depends on this?\" and \"what does this need?\".",
    properties: || {
        let mut properties = object::properties();
        properties["depth"] = json!({"type": "integer", "minimum": 1, "maximum": MAX_DEPTH, "default": 2});
        properties
    },
    required: &["kind", "name"],
    run,
};

fn run<'c>(call: &'c Call<'c>) -> BoxFuture<'c, Result<Page, ToolError>> {
    Box::pin(related(call))
}

async fn related(call: &Call<'_>) -> Result<Page, ToolError> {
    let depth = call.arguments.number("depth", 1, MAX_DEPTH)?.unwrap_or(2).to_string();
    let object = object::find(call).await?;
    let graph = get(call.api, object.uri("graph", &[("depth", &depth)])).await?;
    let nodes = list(&graph, "nodes");
    let node = |at: &Value| at.as_u64().and_then(|at| nodes.get(usize::try_from(at).ok()?)).unwrap_or(&Value::Null);
    let rows = list(&graph, "edges").iter().map(|edge| {
        let (from, to) = (node(&edge["from"]), node(&edge["to"]));
        row([
            &reference_text(from),
            text(from, "status"),
            text(edge, "relation"),
            &reference_text(to),
            text(to, "status"),
        ])
    });
    let facts = vec![object.identity_row(), row(["objects", &nodes.len().saturating_sub(1).to_string()])];
    let more =
        (graph["more"] == true).then(|| row(["notice", "more objects are related; reduce depth or use `search`"]));
    let table = ToolOutput::table(["from", "status", "relation", "to", "status"], rows.collect());
    Ok(Page { output: ToolOutput { facts, notes: more.into_iter().collect(), ..table }, next: Next::Offset })
}
