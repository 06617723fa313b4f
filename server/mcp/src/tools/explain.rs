//! `explain`: why an object of the control plane is in its clusters, what it waits for, and what moved it.

use crowsnest_apimachinery::names::CONTROL_PLANE;
use crowsnest_apimachinery::request::path_segment;
use crowsnest_apimachinery::unstructured::{list, text};
use futures::future::BoxFuture;
use serde_json::{Value, json};

use super::object::{self, Object};
use super::shape::{cells, plain, reference};
use super::{Call, Next, Page, Tool, ToolError};
use crate::api::{PROPAGATION, SEARCH, get, uri};
use crate::output::redact::redact_field;
use crate::output::{Answer, Row, row};

const VIEWS: [&str; 3] = ["all", "placement", "journal"];

pub(super) const TOOL: Tool = Tool {
    name: "explain",
    title: "Explain placement and moves",
    description: "Why a workload of the control plane is in its clusters, or not: its policy and the policies that lost, each \
cluster with the filter that rejected it or its score and replicas, overrides, and what it waits for; then the journal: \
evictions, rescheduling, changes of clusters, each with its cause. `view` limits it to `placement` or `journal`. For a \
Cluster only the journal exists.",
    properties: || {
        let mut properties = object::properties();
        if let Some(properties) = properties.as_object_mut() {
            properties.remove("cluster");
        }
        properties["view"] = json!({"type": "string", "enum": VIEWS});
        properties["at"] =
            json!({"type": "string", "description": "Journal around this time: 10:05, now-2h, 2026-08-01T10:05."});
        properties["within"] =
            json!({"type": "string", "description": "Period around `at`, such as 15m (default 5m)."});
        properties
    },
    required: &["kind", "name"],
    run,
};

fn run<'c>(call: &'c Call<'c>) -> BoxFuture<'c, Result<Page, ToolError>> {
    Box::pin(explain(call))
}

async fn explain(call: &Call<'_>) -> Result<Page, ToolError> {
    let argument = |name| call.arguments.text_or_empty(name);
    let view = call.arguments.choice("view", &VIEWS)?;
    let (at, within) = (argument("at")?, argument("within")?);
    let object = object::find_in(call, CONTROL_PLANE).await?;
    let mut answer = Answer { facts: vec![object.fact()], ..Answer::default() };
    if view != "journal" && object.text("kind") != "Cluster" {
        placement(&mut answer, object.text("kind"), &explanation(call, &object).await?);
    }
    if view != "placement" {
        let about = object.query_reference();
        let parameters = [("about", about.as_str()), ("at", at), ("within", within)];
        let journal = get(call.api, uri(&format!("{SEARCH}/journal"), &parameters)).await?;
        answer.rows.extend(list(&journal, "entries").iter().map(entry));
        answer.notes = super::shape::notes(&journal);
    }
    Ok(Page { answer, next: Next::Offset })
}

async fn explanation(call: &Call<'_>, object: &Object) -> Result<Value, ToolError> {
    let group = object.text("apiVersion").split_once('/').map_or("", |(group, _)| group);
    let dot = if group.is_empty() { "" } else { "." };
    let name = format!("{}{dot}{group}:{}", object.text("resource"), path_segment(object.text("name")));
    let path = match object.text("namespace") {
        "" => format!("{PROPAGATION}/clusterexplanations/{name}"),
        namespace => format!("{PROPAGATION}/namespaces/{}/explanations/{name}", path_segment(namespace)),
    };
    Ok(get(call.api, path).await?)
}

/// Rows of the explanation of a template of this kind; the first cell names their section.
fn placement(answer: &mut Answer, kind: &str, explained: &Value) {
    let policy = explained.get("policy").map_or_else(|| "none".to_owned(), reference);
    answer.facts.push(row(["policy", &policy]));
    if let Some(binding) = explained.get("binding") {
        let scheduled = [text(binding, "scheduledAt"), text(binding, "message")].join(" ");
        answer.facts.push(row(["binding", &reference(binding), &plain(&binding["replicas"]), scheduled.trim()]));
        let parents = list(binding, "requiredBy").iter();
        answer.facts.extend(parents.map(|parent| row(["required by", &reference(parent)])));
    }
    let rows = &mut answer.rows;
    rows.extend(policies(explained));
    rows.extend(scheduling(&explained["scheduling"]));
    rows.extend(list(explained, "targets").iter().map(|target| {
        let [cluster, placed, health] = ["cluster", "placed", "health"].map(|field| text(target, field));
        let applied = if target["applied"] == true { "applied" } else { "not applied" };
        row(["target", cluster, placed, &replicas(target), applied, health])
    }));
    rows.extend(overrides(list(explained, "targets"), "cluster", kind));
    rows.extend(waiting(explained));
}

fn replicas(value: &Value) -> String {
    match plain(&value["replicas"]) {
        number if number.is_empty() => number,
        number => format!("replicas {number}"),
    }
}

pub(super) fn policies(explained: &Value) -> impl Iterator<Item = Row> {
    list(explained, "policies").iter().map(|one| {
        let won = matches!(text(one, "outcome"), "Chosen" | "Claimed");
        let outcome = if won { "won" } else { "lost" };
        row([
            "policy",
            &reference(one),
            outcome,
            text(one, "message"),
            &format!("priority {}", plain(&one["priority"])),
        ])
    })
}

/// Clusters of each affinity term that was evaluated, with the filter that rejected them.
pub(super) fn scheduling(scheduling: &Value) -> Vec<Row> {
    let cluster = |one: &Value| {
        let fits = match (text(one, "/rejected/reason"), one["selected"] == true) {
            ("", true) => "selected".to_owned(),
            ("", false) => "fits, not selected".to_owned(),
            (reason, _) => format!("rejected by {}: {reason}", text(one, "/rejected/filter")),
        };
        let estimate = match one.get("estimate") {
            Some(estimate) => {
                format!("room {} ({})", plain(&estimate["replicas"]), text(estimate, "boundBy").to_lowercase())
            }
            None => String::new(),
        };
        row([
            "cluster",
            text(one, "name"),
            &fits,
            &format!("score {}", plain(&one["score"])),
            &estimate,
            &replicas(one),
        ])
    };
    let mut rows: Vec<Row> = Vec::new();
    for term in list(scheduling, "terms") {
        let affinity = text(term, "affinity");
        if !affinity.is_empty() {
            rows.push(row(["affinity", affinity]));
        }
        rows.extend(list(term, "clusters").iter().map(cluster));
    }
    if matches!(text(scheduling, "decision"), "Clear" | "Fail") {
        rows.push(row(["no cluster fits", text(scheduling, "message")]));
    }
    rows
}

/// Changes of a template of this kind by overrides of each cluster, whose name is in the field `name`.
pub(super) fn overrides(clusters: &[Value], name: &str, kind: &str) -> Vec<Row> {
    let mut rows = Vec::new();
    for cluster in clusters {
        for rule in list(cluster, "overrides") {
            let changes: Vec<String> = list(rule, "differences").iter().map(|one| change(one, kind)).collect();
            rows.push(row(["override", text(cluster, name), &reference(rule), &changes.join("; ")]));
        }
    }
    rows
}

/// `/spec/replicas: 1 -> 2`, a change of a template of this kind.
fn change(one: &Value, kind: &str) -> String {
    let path = text(one, "path");
    let value = |side: &str| one.get(side).map_or_else(|| "(none)".to_owned(), |value| redact_field(kind, path, value));
    format!("{path}: {} -> {}", value("before"), value("after"))
}

pub(super) fn waiting(explained: &Value) -> Vec<Row> {
    let row_of = |one: &Value| [row(["waiting"]), cells(one, ["cause", "cluster", "message"])].concat();
    list(explained, "waiting").iter().map(row_of).collect()
}

fn entry(entry: &Value) -> Row {
    let object = &entry["cause"]["ref"];
    let cause = if object.is_object() { reference(object) } else { text(entry, "/cause/text").to_owned() };
    let [at, action, message] = ["at", "action", "message"].map(|field| text(entry, field));
    row(["journal", at, action, &reference(&entry["subject"]), message, &cause])
}
