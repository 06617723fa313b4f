//! `explain`: why an object of the control plane is in its clusters, what it waits for, and what moved it.

use crowsnest_apimachinery::names::CONTROL_PLANE;
use crowsnest_apimachinery::request::path_segment;
use crowsnest_apimachinery::unstructured::{list, text};
use serde_json::{Value, json};

use super::format::{field_texts, reference_text, value_text};
use super::object::{self, Object};
use super::{Call, Continuation, Page, Tool, ToolError};
use crate::api::{PROPAGATION_API, SEARCH_API, get, uri};
use crate::output::redact::redact_field;
use crate::output::structured::Field::{Integer, Text};
use crate::output::structured::{Layout, Section};
use crate::output::{Row, ToolOutput, row};

const VIEWS: [&str; 3] = ["all", "placement", "journal"];

/// Section of the clusters that did not respond completely, with the cells of [`note_rows`](super::format::note_rows).
const SKIPPED: Section =
    Section::with_first_cell("skipped", "skipped", &[Text("cluster"), Text("reason"), Text("age"), Text("missing")]);

const LAYOUT: Layout = Layout {
    facts: &[
        Section::with_first_cell("object", "object", &[Text("cluster"), Text("type"), Text("name"), Text("state")]),
        Section::with_first_cell("policy", "chosenPolicy", &[Text("policy")]),
        Section::with_first_cell("binding", "binding", &[Text("binding"), Integer("replicas"), Text("message")]),
        Section::with_first_cell("required by", "requiredBy", &[Text("binding")]),
    ],
    rows: &[
        Section::with_first_cell(
            "policy",
            "policy",
            &[Text("policy"), Text("outcome"), Text("message"), Integer("priority")],
        ),
        Section::with_first_cell("affinity", "affinity", &[Text("affinity")]),
        Section::with_first_cell(
            "cluster",
            "cluster",
            &[Text("cluster"), Text("decision"), Integer("score"), Text("estimate"), Integer("replicas")],
        ),
        Section::with_first_cell("no cluster fits", "noClusterFits", &[Text("message")]),
        Section::with_first_cell(
            "target",
            "target",
            &[Text("cluster"), Text("placed"), Integer("replicas"), Text("state"), Text("health")],
        ),
        Section::with_first_cell("override", "override", &[Text("cluster"), Text("policy"), Text("changes")]),
        Section::with_first_cell("waiting", "waiting", &[Text("cause"), Text("cluster"), Text("message")]),
        Section::with_first_cell(
            "journal",
            "journal",
            &[Text("at"), Text("action"), Text("subject"), Text("message"), Text("cause")],
        ),
    ],
    notes: &[SKIPPED, Section::with_first_cell("notice", "notice", &[Text("message")])],
};

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
    layout: Some(&LAYOUT),
    run: |call| Box::pin(explain(call)),
};

async fn explain(call: &Call<'_>) -> Result<Page, ToolError> {
    let argument = |name| call.arguments.text_or_empty(name);
    let view = call.arguments.choice("view")?;
    let (at, within) = (argument("at")?, argument("within")?);
    let object = object::find_in(call, CONTROL_PLANE).await?;
    let mut output = ToolOutput { facts: vec![object.identity_row()], ..ToolOutput::default() };
    if view != "journal" && object.text("kind") != "Cluster" {
        push_placement(&mut output, object.text("kind"), &get_explanation(call, &object).await?);
    }
    if view != "placement" {
        let about = object.query_reference();
        let parameters = [("about", about.as_str()), ("at", at), ("within", within)];
        let journal = get(call.api, uri(&format!("{SEARCH_API}/journal"), &parameters)).await?;
        output.rows.extend(list(&journal, "entries").iter().map(journal_row));
        output.notes = super::format::note_rows(&journal);
    }
    Ok(Page { output, next: Continuation::Offset })
}

async fn get_explanation(call: &Call<'_>, object: &Object) -> Result<Value, ToolError> {
    let group = object.text("apiVersion").split_once('/').map_or("", |(group, _)| group);
    let dot = if group.is_empty() { "" } else { "." };
    let name = format!("{}{dot}{group}:{}", object.text("resource"), path_segment(object.text("name")));
    let path = match object.text("namespace") {
        "" => format!("{PROPAGATION_API}/clusterexplanations/{name}"),
        namespace => format!("{PROPAGATION_API}/namespaces/{}/explanations/{name}", path_segment(namespace)),
    };
    Ok(get(call.api, path).await?)
}

/// Appends the explanation of a template of this kind. The first cell of a row names its section.
fn push_placement(output: &mut ToolOutput, kind: &str, explanation: &Value) {
    let policy = explanation.get("policy").map_or_else(|| "none".to_owned(), reference_text);
    output.facts.push(row(["policy", &policy]));
    if let Some(binding) = explanation.get("binding") {
        let scheduled = [text(binding, "scheduledAt"), text(binding, "message")].join(" ");
        output.facts.push(row([
            "binding",
            &reference_text(binding),
            &value_text(&binding["replicas"]),
            scheduled.trim(),
        ]));
        let parents = list(binding, "requiredBy").iter();
        output.facts.extend(parents.map(|parent| row(["required by", &reference_text(parent)])));
    }
    let rows = &mut output.rows;
    rows.extend(policy_rows(explanation));
    rows.extend(scheduling_rows(&explanation["scheduling"]));
    rows.extend(list(explanation, "targets").iter().map(|target| {
        let [cluster, placed, health] = ["cluster", "placed", "health"].map(|field| text(target, field));
        let applied = if target["applied"] == true { "applied" } else { "not applied" };
        row(["target", cluster, placed, &replicas_text(target), applied, health])
    }));
    rows.extend(override_rows(list(explanation, "targets"), "cluster", kind));
    rows.extend(waiting_rows(explanation));
}

fn replicas_text(value: &Value) -> String {
    match value_text(&value["replicas"]) {
        number if number.is_empty() => number,
        number => format!("replicas {number}"),
    }
}

pub(super) fn policy_rows(explanation: &Value) -> impl Iterator<Item = Row> {
    list(explanation, "policies").iter().map(|policy| {
        let has_won = matches!(text(policy, "outcome"), "Chosen" | "Claimed");
        let outcome = if has_won { "won" } else { "lost" };
        row([
            "policy",
            &reference_text(policy),
            outcome,
            text(policy, "message"),
            &format!("priority {}", value_text(&policy["priority"])),
        ])
    })
}

/// Rows for the clusters of each evaluated affinity term, with the filter that rejected them.
pub(super) fn scheduling_rows(scheduling: &Value) -> Vec<Row> {
    let cluster = |entry: &Value| {
        let decision = match (text(entry, "/rejected/reason"), entry["selected"] == true) {
            ("", true) => "selected".to_owned(),
            ("", false) => "fits, not selected".to_owned(),
            (reason, _) => format!("rejected by {}: {reason}", text(entry, "/rejected/filter")),
        };
        let estimate = match entry.get("estimate") {
            Some(estimate) => {
                format!("estimate {} ({})", value_text(&estimate["replicas"]), text(estimate, "boundBy").to_lowercase())
            }
            None => String::new(),
        };
        row([
            "cluster",
            text(entry, "name"),
            &decision,
            &format!("score {}", value_text(&entry["score"])),
            &estimate,
            &replicas_text(entry),
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

/// Rows for the changes of a template of this kind by overrides, in each cluster. `name` is the field with the
/// cluster's name.
pub(super) fn override_rows(clusters: &[Value], name: &str, kind: &str) -> Vec<Row> {
    let mut rows = Vec::new();
    for cluster in clusters {
        for rule in list(cluster, "overrides") {
            let changes: Vec<String> =
                list(rule, "differences").iter().map(|difference| change_text(difference, kind)).collect();
            rows.push(row(["override", text(cluster, name), &reference_text(rule), &changes.join("; ")]));
        }
    }
    rows
}

/// Text of a change of a template of this kind, such as `/spec/replicas: 1 -> 2`.
fn change_text(difference: &Value, kind: &str) -> String {
    let path = text(difference, "path");
    let value =
        |side: &str| difference.get(side).map_or_else(|| "(none)".to_owned(), |value| redact_field(kind, path, value));
    format!("{path}: {} -> {}", value("before"), value("after"))
}

pub(super) fn waiting_rows(explanation: &Value) -> Vec<Row> {
    let waiting_row = |entry: &Value| [row(["waiting"]), field_texts(entry, ["cause", "cluster", "message"])].concat();
    list(explanation, "waiting").iter().map(waiting_row).collect()
}

fn journal_row(entry: &Value) -> Row {
    let object = &entry["cause"]["ref"];
    let cause = if object.is_object() { reference_text(object) } else { text(entry, "/cause/text").to_owned() };
    let [at, action, message] = ["at", "action", "message"].map(|field| text(entry, field));
    row(["journal", at, action, &reference_text(&entry["subject"]), message, &cause])
}
