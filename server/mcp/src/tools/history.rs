//! `history`: what changed in an object.

use crowsnest_apimachinery::unstructured::{list, text};
use futures::future::BoxFuture;
use futures::{StreamExt, TryStreamExt};
use serde_json::{Value, json};

use super::object::{self, Object};
use super::shape::plain;
use super::{Call, Next, Page, Tool, ToolError};
use crate::api::get;
use crate::output::redact::redact_field;
use crate::output::{Answer, Row, row};

/// Default and maximum number of revisions that are compared.
const REVISIONS: usize = 10;
const MAX_REVISIONS: usize = 100;
/// Number of comparisons that are requested at once.
const CONCURRENT: usize = 4;

/// Fields that change with each write.
const NOISE: [&str; 3] = ["metadata.resourceVersion", "metadata.managedFields", "metadata.generation"];

pub(super) const TOOL: Tool = Tool {
    name: "history",
    title: "Show what changed",
    description: "Retained revisions of an object, newest first, with each changed field before and after; also of deleted \
objects. `compare_with` shows the differences from the object of the same name in another cluster instead.",
    properties: || {
        let mut properties = object::properties();
        properties["revisions"] =
            json!({"type": "integer", "minimum": 1, "maximum": MAX_REVISIONS, "default": REVISIONS});
        properties["compare_with"] = json!({"type": "string", "description": "Another cluster."});
        properties
    },
    required: &["kind", "name"],
    run,
};

fn run<'c>(call: &'c Call<'c>) -> BoxFuture<'c, Result<Page, ToolError>> {
    Box::pin(history(call))
}

async fn history(call: &Call<'_>) -> Result<Page, ToolError> {
    let most = call.arguments.number("revisions", 1, MAX_REVISIONS)?.unwrap_or(REVISIONS);
    let other = call.arguments.text_or_empty("compare_with")?;
    let object = object::find(call).await?;
    let answer = match other.is_empty() {
        true => revisions(call, &object, most).await?,
        false => comparison(call, &object, other).await?,
    };
    Ok(Page { answer, next: Next::Offset })
}

async fn comparison(call: &Call<'_>, object: &Object, other: &str) -> Result<Answer, ToolError> {
    let diff = get(call.api, object.uri("diff", &[("with", other)])).await?;
    let rows = differences(object, &diff).map(|[path, before, after]| vec![path, before, after]).collect();
    let table = Answer::table(["path", object.text("cluster"), other], rows);
    Ok(Answer { facts: vec![object.fact()], notes: cut(&diff), ..table })
}

async fn revisions(call: &Call<'_>, object: &Object, most: usize) -> Result<Answer, ToolError> {
    let history = get(call.api, object.uri("history", &[])).await?;
    let versions = list(&history, "versions");
    let pairs: Vec<(String, String)> =
        versions.windows(2).take(most).map(|pair| (plain(&pair[1]["seq"]), plain(&pair[0]["seq"]))).collect();
    let compare = |(from, to): (String, String)| {
        let uri = object.uri("diff", &[("from", &from), ("to", &to)]);
        get(call.api, uri)
    };
    let diffs: Vec<Value> = futures::stream::iter(pairs).map(compare).buffered(CONCURRENT).try_collect().await?;
    let mut rows: Vec<Row> = Vec::new();
    for (nth, version) in versions.iter().take(most).enumerate() {
        let end =
            if version["deleted"] == true { format!("deleted {}", text(version, "until")) } else { String::new() };
        let head = [text(version, "from"), &plain(&version["generation"])].map(str::to_owned);
        let row = |[path, before, after]: [String; 3]| [head.to_vec(), vec![path, before, after, end.clone()]].concat();
        match diffs.get(nth) {
            Some(diff) => rows.extend(differences(object, diff).map(row)),
            None => rows.push(row(["(first retained revision)".to_owned(), String::new(), String::new()])),
        }
    }
    let facts = vec![
        object.fact(),
        row(["revisions", &versions.len().to_string(), &format!("kept for {} s", plain(&history["keptForSeconds"]))]),
    ];
    let notes = diffs.iter().flat_map(cut).take(1).collect();
    Ok(Answer { facts, notes, ..Answer::table(["since", "generation", "path", "before", "after", "end"], rows) })
}

/// Path, before and after of each difference, without secrets and fields that change with each write.
fn differences<'d>(object: &'d Object, diff: &'d Value) -> impl Iterator<Item = [String; 3]> + 'd {
    let changed = list(diff, "differences").iter().filter(|one| {
        let path = text(one, "path").trim_start_matches(['.', '/']).replace('/', ".");
        !NOISE.iter().any(|noise| path.starts_with(noise)) && !path.contains("last-applied-configuration")
    });
    changed.map(move |one| {
        let path = text(one, "path");
        let value = |side: &str| match one.get(side) {
            None | Some(Value::Null) => String::new(),
            Some(value) => redact_field(object.text("kind"), path, value),
        };
        [path.to_owned(), value("before"), value("after")]
    })
}

fn cut(diff: &Value) -> Vec<Row> {
    match diff["more"] == true {
        true => vec![row(["notice", "there are more differences than the API returns"])],
        false => Vec::new(),
    }
}
