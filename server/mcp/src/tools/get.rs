//! `get`: one object, from the cache.

use crowsnest_apimachinery::unstructured::{list, text};
use futures::future::BoxFuture;
use serde_json::{Value, json};

use super::object::{self, Object};
use super::shape::{leaves, plain};
use super::{Call, Next, Page, Tool, ToolError};
use crate::api::{SEARCH, get, uri};
use crate::output::redact::redact_manifest;
use crate::output::{Answer, Row, row};

const MAX_PATHS: usize = 50;
/// Number of events in a summary.
const EVENTS: &str = "10";
const VIEWS: [&str; 3] = ["summary", "status", "manifest"];

/// Fields of a summary, beside the status.
const SUMMARY: [&[&str]; 12] = [
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
        let mut properties = object::properties();
        properties["view"] = json!({"type": "string", "enum": VIEWS});
        properties["paths"] = json!({"type": "array", "items": {"type": "string"}, "maxItems": MAX_PATHS});
        properties
    },
    required: &["kind", "name"],
    run,
};

fn run<'c>(call: &'c Call<'c>) -> BoxFuture<'c, Result<Page, ToolError>> {
    Box::pin(read(call))
}

async fn read(call: &Call<'_>) -> Result<Page, ToolError> {
    let view = call.arguments.choice("view", &VIEWS)?;
    let paths = call.arguments.texts("paths", MAX_PATHS)?;
    let object = object::find(call).await?;
    let manifest = manifest(call, &object).await?;
    let mut all = Vec::new();
    leaves("", &manifest, &mut all);
    let mut answer = Answer { facts: vec![object.fact()], ..Answer::table(["path", "value"], Vec::new()) };
    answer.rows = match (paths.as_slice(), view) {
        ([], "summary") => {
            let events = events(call, &object).await?;
            answer.notes = events.1;
            summary(&manifest, &all).into_iter().chain(events.0).collect()
        }
        ([], "status") => below(&all, ".status"),
        ([], _) => all,
        (paths, _) => {
            let missing = paths.iter().filter(|path| below(&all, path).is_empty());
            answer.notes = missing.map(|path| row(["notice", &format!("the object has no {path}")])).collect();
            paths.iter().flat_map(|path| below(&all, path)).collect()
        }
    };
    Ok(Page { answer, next: Next::Offset })
}

/// The newest revision, without secrets.
async fn manifest(call: &Call<'_>, object: &Object) -> Result<Value, ToolError> {
    let history = get(call.api, object.uri("history", &[])).await?;
    let newest = list(&history, "versions").first();
    let seq = newest.map(|version| plain(&version["seq"])).unwrap_or_default();
    let mut manifest = get(call.api, object.uri("history", &[("seq", &seq)])).await?;
    redact_manifest(object.text("kind"), &mut manifest);
    Ok(manifest)
}

/// Lines of a path and below it. A path may begin without its dot.
fn below(all: &[Row], path: &str) -> Vec<Row> {
    let path = format!(".{}", path.trim_start_matches('.'));
    let is_below = |line: &&Row| {
        let rest = line.first().and_then(|of| of.strip_prefix(&path));
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
    };
    all.iter().filter(is_below).cloned().collect()
}

fn summary(manifest: &Value, all: &[Row]) -> Vec<Row> {
    let mut rows = Vec::new();
    for path in SUMMARY {
        if let Some(value) = path.iter().try_fold(manifest, |value, key| value.get(key)) {
            leaves(&format!(".{}", path.join(".")), value, &mut rows);
        }
    }
    let is_of_container = |line: &&Row| {
        let of = line.first().map(String::as_str).unwrap_or_default();
        of.contains("ontainers[") && (of.ends_with(".image") || of.contains(".resources")) && of.starts_with(".spec")
    };
    rows.extend(all.iter().filter(is_of_container).cloned());
    rows.extend(below(all, ".status"));
    rows.extend(["data", "binaryData"].into_iter().filter_map(|field| {
        let keys: Vec<&str> = manifest[field].as_object()?.keys().map(String::as_str).collect();
        Some(row([&format!(".{field} keys"), &keys.join(", ")]))
    }));
    rows
}

/// The latest events about the object, and notes of their search.
async fn events(call: &Call<'_>, object: &Object) -> Result<(Vec<Row>, Vec<Row>), ToolError> {
    let cluster = object::quoted(object.text("cluster"));
    let query = format!("kind:event about:{} cluster:={cluster} sort:-last", object.query_reference());
    let columns = ".type,.reason,.message,.count,.lastTimestamp,.eventTime";
    let parameters = [("q", query.as_str()), ("limit", EVENTS), ("columns", columns), ("facets", "kind")];
    let answer = get(call.api, uri(&format!("{SEARCH}/query"), &parameters)).await?;
    let event = |hit: &Value| {
        let column = |name: &str| text(&hit["columns"], &[name]).to_owned();
        let time =
            Some(column(".lastTimestamp")).filter(|time| !time.is_empty()).unwrap_or_else(|| column(".eventTime"));
        let count = Some(column(".count")).filter(|count| !count.is_empty()).map(|count| format!(" ({count} times)"));
        let what =
            format!("{} {}: {}{}", column(".type"), column(".reason"), column(".message"), count.unwrap_or_default());
        row([&format!("event {time}"), &what])
    };
    Ok((list(&answer, "hits").iter().map(event).collect(), super::shape::notes(&json!({"skipped": answer["skipped"]}))))
}
