//! Describes Clusters of the fleet. Has no side effects.

use serde_json::Value;

use super::nodes::add_taints;
use super::{CONDITIONS, add_conditions, add_creation_timestamp, age_since};
use crate::verbs::describe::render::add_labels_and_annotations;
use crate::verbs::describe::sheet::{Sheet, join_or_none, list, number, or_none, sorted_fields, to_text};

pub(super) fn describe_cluster(sheet: &mut Sheet, cluster: &Value, now: jiff::Timestamp) {
    let (spec, status) = (&cluster["spec"], &cluster["status"]);
    add_labels_and_annotations(sheet, cluster);
    add_creation_timestamp(sheet, cluster);
    sheet.add_field(0, "ID", or_none(&spec["id"]));
    sheet.add_field(0, "Sync Mode", or_none(&spec["syncMode"]));
    sheet.add_field(0, "API Endpoint", or_none(&spec["apiEndpoint"]));
    sheet.add_field_if_set(0, "Proxy URL", &spec["proxyURL"]);
    sheet.add_field(0, "Provider", or_none(&spec["provider"]));
    sheet.add_field(0, "Region", or_none(&spec["region"]));
    sheet.add_field(0, "Zones", join_or_none(&spec["zones"], ","));
    add_taints(sheet, spec);
    let deleted = &cluster["metadata"]["deletionTimestamp"];
    if deleted.is_string() {
        sheet.add_field(0, "Terminating", format!("for {} (since {})", age_since(deleted, now), to_text(deleted)));
    }
    sheet.add_field(0, "Kubernetes Version", or_none(&status["kubernetesVersion"]));
    let nodes = &status["nodeSummary"];
    sheet.add_field(0, "Nodes", format!("{} ready / {} total", number(&nodes["readyNum"]), number(&nodes["totalNum"])));
    add_resources(sheet, &status["resourceSummary"]);
    let enabled = list(&status["apiEnablements"]);
    let kinds: usize = enabled.iter().map(|group| list(&group["resources"]).len()).sum();
    sheet.add_field(0, "API Enablements", format!("{} group versions, {kinds} kinds", enabled.len()));
    sheet.add_field(0, "Remedy Actions", join_or_none(&status["remedyActions"], ","));
    add_conditions(sheet, cluster, &CONDITIONS);
}

/// Adds the cluster's allocatable, allocated and allocating resources.
fn add_resources(sheet: &mut Sheet, summary: &Value) {
    let allocatable = sorted_fields(&summary["allocatable"]);
    if allocatable.is_empty() {
        return;
    }
    let amount = |field: &str, name: &str| summary[field][name].as_str().map_or_else(|| "0".to_owned(), str::to_owned);
    let row = |(name, value): (&String, &Value)| {
        vec![name.clone(), to_text(value), amount("allocated", name), amount("allocating", name)]
    };
    sheet.add_heading(0, "Resources");
    let rows: Vec<Vec<String>> = allocatable.into_iter().map(row).collect();
    sheet.add_table(2, &["Resource", "Allocatable", "Allocated", "Allocating"], &rows);
}
