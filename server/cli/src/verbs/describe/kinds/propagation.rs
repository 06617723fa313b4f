//! Describes policies, bindings and Works. Has no side effects.

use serde_json::Value;

use super::containers::format_toleration;
use super::{CONDITIONS, add_conditions, add_creation_timestamp};
use crate::verbs::describe::render::{add_labels_and_annotations, add_nested_fields};
use crate::verbs::describe::sheet::{NONE, Sheet, join_or_none, list, number, or_none, selector, time, to_text};

pub(super) fn describe_policy(sheet: &mut Sheet, policy: &Value) {
    let spec = &policy["spec"];
    add_labels_and_annotations(sheet, policy);
    add_creation_timestamp(sheet, policy);
    let row = |resource_selector: &Value| {
        let labels = selector(&resource_selector["labelSelector"]);
        let name = resource_selector["name"].as_str().filter(|name| !name.is_empty()).map(str::to_owned);
        let name_or_labels = name.unwrap_or_else(|| if labels.is_empty() { "<all>".to_owned() } else { labels });
        vec![
            to_text(&resource_selector["apiVersion"]),
            to_text(&resource_selector["kind"]),
            or_none(&resource_selector["namespace"]),
            name_or_labels,
        ]
    };
    sheet.add_heading(0, "Resource Selectors");
    let rows: Vec<Vec<String>> = list(&spec["resourceSelectors"]).iter().map(row).collect();
    sheet.add_table(2, &["API Version", "Kind", "Namespace", "Name or Labels"], &rows);
    add_placement(sheet, &spec["placement"]);
    sheet.add_field(0, "Propagate Dependencies", (spec["propagateDeps"] == true).to_string());
    sheet.add_field(0, "Priority", number(&spec["priority"]).to_string());
    sheet.add_field_if_set(0, "Preemption", &spec["preemption"]);
    sheet.add_field_if_set(0, "Conflict Resolution", &spec["conflictResolution"]);
    sheet.add_field_if_set(0, "Activation Preference", &spec["activationPreference"]);
    sheet.add_field_if_set(0, "Scheduler Name", &spec["schedulerName"]);
    if !list(&spec["dependentOverrides"]).is_empty() {
        sheet.add_field(0, "Dependent Overrides", join_or_none(&spec["dependentOverrides"], ","));
    }
    sheet.add_field_if_set(0, "Preserve Resources On Deletion", &spec["preserveResourcesOnDeletion"]);
    add_blocks(
        sheet,
        spec,
        &[("Failover", "failover"), ("Suspension", "suspension"), ("Schedule Priority", "schedulePriority")],
    );
}

/// Adds rarely used fields as nested key-value pairs.
fn add_blocks(sheet: &mut Sheet, spec: &Value, fields: &[(&str, &str)]) {
    for (label, field) in fields {
        if let Some(inner) = spec[*field].as_object().filter(|inner| !inner.is_empty()) {
            sheet.add_heading(0, label);
            add_nested_fields(sheet, 2, inner);
        }
    }
}

fn add_placement(sheet: &mut Sheet, placement: &Value) {
    sheet.add_heading(0, "Placement");
    match list(&placement["clusterAffinities"]) {
        [] => sheet.add_field(2, "Clusters", format_affinity(&placement["clusterAffinity"])),
        terms => {
            sheet.add_heading(2, "Clusters, by the first term that fits");
            terms.iter().for_each(|term| sheet.add_field(4, &to_text(&term["affinityName"]), format_affinity(term)));
        }
    }
    let tolerations: Vec<String> = list(&placement["clusterTolerations"]).iter().map(format_toleration).collect();
    sheet.add_list(2, "Tolerations", &tolerations);
    let spread: Vec<String> = list(&placement["spreadConstraints"]).iter().map(format_spread_constraint).collect();
    sheet.add_list(2, "Spread Constraints", &spread);
    sheet.add_field(2, "Replica Scheduling", format_replica_scheduling(&placement["replicaScheduling"]));
}

/// Text for a cluster affinity.
pub(super) fn format_affinity(affinity: &Value) -> String {
    let labels = selector(&affinity["labelSelector"]);
    let fields = selector(&affinity["fieldSelector"]);
    let names = |field: &str| list(&affinity[field]).iter().map(to_text).collect::<Vec<_>>().join(",");
    let (only, without) = (names("clusterNames"), names("exclude"));
    let mut parts: Vec<String> = Vec::new();
    parts.extend((!only.is_empty()).then_some(only));
    parts.extend((!labels.is_empty()).then(|| format!("with labels {labels}")));
    parts.extend((!fields.is_empty()).then(|| format!("with {fields}")));
    parts.extend((!without.is_empty()).then(|| format!("without {without}")));
    if parts.is_empty() { "<all>".to_owned() } else { parts.join("; ") }
}

fn format_spread_constraint(constraint: &Value) -> String {
    let by = constraint["spreadByField"].as_str().or_else(|| constraint["spreadByLabel"].as_str()).unwrap_or("cluster");
    let maximum = number(&constraint["maxGroups"]);
    let maximum = if maximum == 0 { String::new() } else { format!(", {maximum} at most") };
    format!("{by}: {} at least{maximum}", number(&constraint["minGroups"]).max(1))
}

fn format_replica_scheduling(scheduling: &Value) -> String {
    if scheduling["replicaSchedulingType"] != "Divided" {
        return "Duplicated".to_owned();
    }
    let weights = &scheduling["weightPreference"];
    let format_weight = |weight: &Value| {
        let target = format_affinity(&weight["targetCluster"]);
        let those = if target.starts_with("with") { "those " } else { "" };
        format!("{} for {those}{target}", to_text(&weight["weight"]))
    };
    let division = match scheduling["replicaDivisionPreference"].as_str() {
        Some("Aggregated") => "Aggregated".to_owned(),
        _ if weights["dynamicWeight"].is_string() => format!("Weighted by {}", to_text(&weights["dynamicWeight"])),
        _ if list(&weights["staticWeightList"]).is_empty() => "Weighted".to_owned(),
        _ => {
            format!(
                "Weighted: {}",
                list(&weights["staticWeightList"]).iter().map(format_weight).collect::<Vec<_>>().join(", ")
            )
        }
    };
    format!("Divided, {division}")
}

pub(super) fn describe_binding(sheet: &mut Sheet, binding: &Value) {
    let (spec, status) = (&binding["spec"], &binding["status"]);
    add_labels_and_annotations(sheet, binding);
    add_creation_timestamp(sheet, binding);
    let resource = &spec["resource"];
    let namespace = resource["namespace"].as_str().filter(|namespace| !namespace.is_empty());
    let namespace = namespace.map(|namespace| format!("{namespace}/")).unwrap_or_default();
    sheet.add_field(
        0,
        "Resource",
        format!(
            "{} {} {namespace}{}",
            to_text(&resource["apiVersion"]),
            to_text(&resource["kind"]),
            to_text(&resource["name"])
        ),
    );
    sheet.add_field(0, "Replicas", number(&spec["replicas"]).to_string());
    add_placement(sheet, &spec["placement"]);
    if status["lastScheduledTime"].is_string() {
        sheet.add_field(0, "Last Scheduled", time(&status["lastScheduledTime"]));
    }
    sheet.add_field_if_set(0, "Affinity Term", &status["schedulerObservingAffinityName"]);
    add_clusters(sheet, binding);
    add_evictions(sheet, spec);
    let format_parent = |parent_binding: &Value| {
        format!(
            "{}/{} in {} clusters",
            or_none(&parent_binding["namespace"]),
            to_text(&parent_binding["name"]),
            list(&parent_binding["clusters"]).len()
        )
    };
    let parents: Vec<String> = list(&spec["requiredBy"]).iter().map(format_parent).collect();
    if !parents.is_empty() {
        sheet.add_list(0, "Required By", &parents);
    }
    add_blocks(sheet, spec, &[("Suspension", "suspension"), ("Failover", "failover")]);
    add_conditions(sheet, binding, &CONDITIONS);
}

/// Adds a table of the target clusters with their status.
fn add_clusters(sheet: &mut Sheet, binding: &Value) {
    let statuses = list(&binding["status"]["aggregatedStatus"]);
    let targets = list(&binding["spec"]["clusters"]);
    let row = |name: &Value, replicas: String| {
        let status = statuses.iter().find(|item| item["clusterName"] == *name);
        let status_field = |field: &str| status.map_or_else(|| NONE.to_owned(), |status| or_none(&status[field]));
        let applied = status.map_or_else(|| NONE.to_owned(), |status| (status["applied"] == true).to_string());
        vec![
            to_text(name),
            replicas,
            applied,
            status_field("health"),
            status_field("appliedMessage").replace('\n', " "),
        ]
    };
    let mut rows: Vec<Vec<String>> =
        targets.iter().map(|item| row(&item["name"], number(&item["replicas"]).to_string())).collect();
    // Clusters without a target still have a status until the object is removed from them.
    let former_clusters =
        statuses.iter().filter(|item| !targets.iter().any(|target| target["name"] == item["clusterName"]));
    rows.extend(former_clusters.map(|item| row(&item["clusterName"], "-".to_owned())));
    if rows.is_empty() {
        return sheet.add_field(0, "Clusters", NONE);
    }
    sheet.add_heading(0, "Clusters");
    sheet.add_table(2, &["Cluster", "Replicas", "Applied", "Health", "Message"], &rows);
}

fn add_evictions(sheet: &mut Sheet, spec: &Value) {
    let row = |task: &Value| {
        ["fromCluster", "replicas", "reason", "producer", "purgeMode", "message"]
            .map(|field| or_none(&task[field]).replace('\n', " "))
            .to_vec()
    };
    let rows: Vec<Vec<String>> = list(&spec["gracefulEvictionTasks"]).iter().map(row).collect();
    if !rows.is_empty() {
        sheet.add_heading(0, "Graceful Evictions");
        sheet.add_table(2, &["From", "Replicas", "Reason", "Producer", "Purge Mode", "Message"], &rows);
    }
}

pub(super) fn describe_work(sheet: &mut Sheet, work: &Value) {
    let (spec, status) = (&work["spec"], &work["status"]);
    add_labels_and_annotations(sheet, work);
    add_creation_timestamp(sheet, work);
    let namespace = work["metadata"]["namespace"].as_str().unwrap_or_default();
    sheet.add_field(0, "Cluster", crowsnest_api::names::cluster_of_execution_namespace(namespace).unwrap_or(NONE));
    sheet.add_field_if_set(0, "Suspend Dispatching", &spec["suspendDispatching"]);
    sheet.add_field_if_set(0, "Preserve Resources On Deletion", &spec["preserveResourcesOnDeletion"]);
    let row = |(at, manifest): (usize, &Value)| {
        let statuses = list(&status["manifestStatuses"]);
        let manifest_status = statuses
            .iter()
            .find(|item| number(&item["identifier"]["ordinal"]) == i64::try_from(at).unwrap_or_default());
        let metadata = &manifest["metadata"];
        let health =
            manifest_status.map_or_else(|| NONE.to_owned(), |manifest_status| or_none(&manifest_status["health"]));
        vec![
            to_text(&manifest["apiVersion"]),
            to_text(&manifest["kind"]),
            or_none(&metadata["namespace"]),
            to_text(&metadata["name"]),
            health,
        ]
    };
    sheet.add_heading(0, "Manifests");
    let rows: Vec<Vec<String>> = list(&spec["workload"]["manifests"]).iter().enumerate().map(row).collect();
    sheet.add_table(2, &["API Version", "Kind", "Namespace", "Name", "Health"], &rows);
    add_conditions(sheet, work, &CONDITIONS);
}
