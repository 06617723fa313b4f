//! `plan`: what a change would do to the fleet.

use crowsnest_apimachinery::unstructured::{list, text};
use serde_json::{Value, json};

use super::explain::{override_rows, policy_rows, waiting_rows};
use super::format::{field_texts, reference_text, value_text};
use super::{Call, Continuation, Page, Tool, ToolError};
use crate::api::{PROPAGATION_API, post};
use crate::output::redact::redact_field;
use crate::output::{Row, ToolOutput, row};

const MAX_OBJECTS: usize = 100;
/// Maximum size of all objects as JSON.
const MAX_OBJECTS_BYTES: usize = 256 << 10;

pub(super) const TOOL: Tool = Tool {
    name: "plan",
    title: "Preview a change",
    description: "What would change in the fleet if these objects were applied to the control plane, or deleted: placement and \
replicas of each affected workload, changed fields, overrides, conflicts. Objects are manifests: workloads to propagate, \
PropagationPolicies, OverridePolicies, Clusters (labels, taints), FederatedResourceQuotas. A dry run: nothing is written.",
    properties: || {
        let objects = |description: &str| json!({"type": "array", "items": {"type": "object"}, "maxItems": MAX_OBJECTS, "description": description});
        json!({
            "apply": objects("Whole manifests, with apiVersion, kind and metadata."),
            "delete": objects("Objects to delete; apiVersion, kind and metadata suffice."),
        })
    },
    required: &[],
    layout: None,
    run: |call| Box::pin(plan(call)),
};

async fn plan(call: &Call<'_>) -> Result<Page, ToolError> {
    let (apply, delete) = (call.arguments.objects("apply")?, call.arguments.objects("delete")?);
    if apply.is_empty() && delete.is_empty() {
        return Err(ToolError::Input("set apply or delete to a list of manifests".to_owned()));
    }
    if json!([apply, delete]).to_string().len() > MAX_OBJECTS_BYTES {
        return Err(ToolError::Input(format!("the manifests may have at most {MAX_OBJECTS_BYTES} bytes")));
    }
    let body = json!({"apiVersion": "propagation.crowsnest.io/v1alpha1", "kind": "Plan",
        "spec": {"objects": apply, "deletions": delete, "manifests": false}});
    let response = post(call.api, format!("{PROPAGATION_API}/plans"), body).await?;
    Ok(Page { output: plan_output(&response["status"]), next: Continuation::Offset })
}

fn plan_output(status: &Value) -> ToolOutput {
    let mut rows: Vec<Row> = Vec::new();
    for object in list(status, "objects") {
        let name = reference_text(object);
        rows.push(row(["object", &name, text(object, "change")]));
        rows.extend(list(object, "differences").iter().map(|difference| {
            let path = text(difference, "path");
            let value = |side: &str| difference.get(side).map(|value| redact_field(text(object, "kind"), path, value));
            let [before, after] = ["before", "after"].map(|side| value(side).unwrap_or_default());
            row(["field", &name, path, &before, &after])
        }));
    }
    for template in list(status, "templates") {
        rows.extend(template_rows(template));
    }
    let count_notice = |field: &str, message: &str| {
        let count = status[field].as_u64().filter(|count| *count > 0);
        count.map(|count| row(["notice", &format!("{count} {message}")]))
    };
    let notices = list(status, "notices").iter().map(|notice| row(["notice", &value_text(notice)]));
    let notes = notices
        .chain(count_notice("more", "more workloads are affected and were not planned"))
        .chain(count_notice("withheld", "affected workloads are left out because you cannot read them"))
        .collect();
    let facts = vec![row(["affected workloads", &list(status, "templates").len().to_string()])];
    ToolOutput { facts, rows, notes, ..ToolOutput::default() }
}

fn template_rows(template: &Value) -> Vec<Row> {
    let name = reference_text(&template["template"]);
    let policy = |field: &str| template.get(field).map_or_else(|| "none".to_owned(), reference_text);
    let (before, after) = (policy("policyBefore"), policy("policy"));
    let policy = if before == after { format!("policy {after}") } else { format!("policy {before} -> {after}") };
    let mut rows = vec![row(["workload", &name, text(template, "change"), &policy, text(template, "message")])];
    if list(template, "policies").len() > 1 {
        rows.extend(policy_rows(template));
    }
    rows.extend(list(template, "clusters").iter().map(|cluster| {
        let [before, after] = ["replicasBefore", "replicas"].map(|field| value_text(&cluster[field]));
        let replicas = if before == after { after } else { format!("{before} -> {after}") };
        row(["cluster", text(cluster, "name"), text(cluster, "change"), &replicas, text(cluster, "message")])
    }));
    rows.extend(super::explain::scheduling_rows(&template["scheduling"]).into_iter().filter(is_rejection));
    rows.extend(override_rows(list(template, "clusters"), "name", text(&template["template"], "kind")));
    rows.extend(waiting_rows(template));
    for field in ["dependencies", "requiredBy"] {
        rows.extend(list(template, field).iter().map(|reference| row([field, &reference_text(reference)])));
    }
    rows.extend(
        list(template, "conflicts")
            .iter()
            .map(|conflict| [row(["conflict"]), field_texts(conflict, ["cluster", "message"])].concat()),
    );
    rows
}

/// True for rows about clusters that the scheduler did not select. The plan's list of clusters has the selected ones.
fn is_rejection(row: &Row) -> bool {
    row.get(2).is_none_or(|decision| decision != "selected")
}
