//! Describes Clusters of the fleet. Pure.

use serde_json::Value;

use super::nodes::taints;
use super::{CONDITIONS, conditions, created, since};
use crate::verbs::describe::render::marks;
use crate::verbs::describe::sheet::{Sheet, joined, list, number, or_none, plain, sorted};

pub(super) fn cluster(sheet: &mut Sheet, cluster: &Value, now: jiff::Timestamp) {
    let (spec, status) = (&cluster["spec"], &cluster["status"]);
    marks(sheet, cluster);
    created(sheet, cluster);
    sheet.say(0, "ID", or_none(&spec["id"]));
    sheet.say(0, "Sync Mode", or_none(&spec["syncMode"]));
    sheet.say(0, "API Endpoint", or_none(&spec["apiEndpoint"]));
    sheet.maybe(0, "Proxy URL", &spec["proxyURL"]);
    sheet.say(0, "Provider", or_none(&spec["provider"]));
    sheet.say(0, "Region", or_none(&spec["region"]));
    sheet.say(0, "Zones", joined(&spec["zones"], ","));
    taints(sheet, spec);
    let deleted = &cluster["metadata"]["deletionTimestamp"];
    if deleted.is_string() {
        sheet.say(0, "Leaving", format!("for {} (since {})", since(deleted, now), plain(deleted)));
    }
    sheet.say(0, "Kubernetes Version", or_none(&status["kubernetesVersion"]));
    let nodes = &status["nodeSummary"];
    sheet.say(0, "Nodes", format!("{} ready / {} total", number(&nodes["readyNum"]), number(&nodes["totalNum"])));
    resources(sheet, &status["resourceSummary"]);
    let enabled = list(&status["apiEnablements"]);
    let kinds: usize = enabled.iter().map(|group| list(&group["resources"]).len()).sum();
    sheet.say(0, "API Enablements", format!("{} group versions, {kinds} kinds", enabled.len()));
    sheet.say(0, "Remedy Actions", joined(&status["remedyActions"], ","));
    conditions(sheet, cluster, &CONDITIONS);
}

/// Adds the cluster's allocatable, allocated and allocating resources.
fn resources(sheet: &mut Sheet, summary: &Value) {
    let allocatable = sorted(&summary["allocatable"]);
    if allocatable.is_empty() {
        return;
    }
    let amount = |of: &str, name: &str| summary[of][name].as_str().map_or_else(|| "0".to_owned(), str::to_owned);
    let row = |(name, has): (&String, &Value)| {
        vec![name.clone(), plain(has), amount("allocated", name), amount("allocating", name)]
    };
    sheet.head(0, "Resources");
    let rows: Vec<Vec<String>> = allocatable.into_iter().map(row).collect();
    sheet.table(2, &["Resource", "Allocatable", "Allocated", "Allocating"], &rows);
}
