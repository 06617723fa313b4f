//! `related`: what an object belongs to, uses and is used by, and paths between objects.

use crowsnest_apimachinery::unstructured::{list, text, texts};
use serde_json::{Value, json};

use super::format::{note_rows, reference_text, total_row};
use super::object;
use super::{Call, Continuation, Page, Tool, ToolError};
use crate::api::{SEARCH_API, get, uri};
use crate::output::{ToolOutput, row};

const MAX_DEPTH: usize = 5;
/// Number of paths that are requested, as the parameter `limit`.
const PATH_LIMIT: &str = "500";

pub(super) const TOOL: Tool = Tool {
    name: "related",
    title: "Show related objects",
    description: "Objects that an object owns, is owned by, uses and is used by, and events about it, within `depth` steps of \
the same cluster, with the status of each. Use it for \"what depends on this?\" and \"what does this need?\". With `path` \
instead of an object: paths of all clusters that match a pattern.",
    properties: || {
        object::properties_with(json!({
            "depth": {"type": "integer", "minimum": 1, "maximum": MAX_DEPTH, "default": 2},
            "path": {"type": "string", "description": "Objects and edges, such as `secret/shop/db <-USES- deploy -OWNS*..3-> pod` or `ingress -ROUTES_TO*-> pod`; edges are OWNS, USES, SELECTS, ROUTES_TO, RUNS_ON, PROPAGATED_TO."},
        }))
    },
    required: &[],
    layout: None,
    run: |call| Box::pin(related(call)),
};

async fn related(call: &Call<'_>) -> Result<Page, ToolError> {
    let argument = |name| call.arguments.text_or_empty(name);
    let (pattern, kind, name) = (argument("path")?, argument("kind")?, argument("name")?);
    let has_object = [kind, name, argument("cluster")?, argument("namespace")?].iter().any(|text| !text.is_empty())
        || call.arguments.has("depth");
    match pattern.is_empty() {
        true if !kind.is_empty() && !name.is_empty() => related_objects(call).await,
        false if !has_object => paths(call, pattern).await,
        _ => Err(ToolError::Input("set kind and name, or path alone".to_owned())),
    }
}

async fn related_objects(call: &Call<'_>) -> Result<Page, ToolError> {
    let depth = call.arguments.number("depth")?.to_string();
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
    Ok(Page { output: ToolOutput { facts, notes: more.into_iter().collect(), ..table }, next: Continuation::Offset })
}

/// Output with a row for each path that matches the pattern.
async fn paths(call: &Call<'_>, pattern: &str) -> Result<Page, ToolError> {
    let response = get(call.api, uri(&format!("{SEARCH_API}/paths"), &[("p", pattern), ("limit", PATH_LIMIT)])).await?;
    let rows = list(&response, "paths").iter().map(|path| {
        let first = list(path, "nodes").first().map_or(&Value::Null, |at| item(&response, "nodes", at));
        row([text(first, "cluster"), &path_text(&response, path)])
    });
    let notices = texts(&response, "notices").map(|notice| row(["notice", notice]));
    let notes = note_rows(&json!({"skipped": response["skipped"]})).into_iter().chain(notices).collect();
    let table = ToolOutput::table(["cluster", "path"], rows.collect());
    Ok(Page { output: ToolOutput { facts: vec![total_row(&response)], notes, ..table }, next: Continuation::Offset })
}

/// The object or edge with this number; null if there is none.
fn item<'r>(response: &'r Value, field: &str, number: &Value) -> &'r Value {
    let number = number.as_u64().and_then(|number| usize::try_from(number).ok());
    number.and_then(|number| list(response, field).get(number)).unwrap_or(&Value::Null)
}

/// Text of a path, such as `Secret shop/db <-USES- Deployment shop/web [Running]`. An object whose cluster differs from
/// that of the previous one is prefixed with its cluster.
fn path_text(response: &Value, path: &Value) -> String {
    let numbers = list(path, "nodes");
    let mut edges = list(path, "edges").iter().zip(numbers).map(|(edge, before)| {
        let edge = item(response, "edges", edge);
        let name = text(edge, "type");
        if edge["from"] == *before { format!(" -{name}-> ") } else { format!(" <-{name}- ") }
    });
    let (mut path_text, mut cluster) = (String::new(), None);
    for number in numbers {
        let node = item(response, "nodes", number);
        let node_cluster = text(node, "cluster");
        // The cluster of the first object has a column.
        if cluster.is_some_and(|cluster| cluster != node_cluster) {
            path_text.push_str(&format!("{node_cluster}: "));
        }
        cluster = Some(node_cluster);
        path_text.push_str(&reference_text(node));
        let status = text(node, "status");
        if !status.is_empty() {
            path_text.push_str(&format!(" [{status}]"));
        }
        path_text.push_str(&edges.next().unwrap_or_default());
    }
    path_text
}
