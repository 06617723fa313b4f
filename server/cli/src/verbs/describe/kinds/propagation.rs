//! Describes policies, bindings and Works. Pure.

use serde_json::Value;

use super::containers::toleration;
use super::{CONDITIONS, conditions, created};
use crate::verbs::describe::render::{content, marks};
use crate::verbs::describe::sheet::{NONE, Sheet, joined, list, number, or_none, plain, selector, time};

pub(super) fn policy(sheet: &mut Sheet, policy: &Value) {
    let spec = &policy["spec"];
    marks(sheet, policy);
    created(sheet, policy);
    let row = |one: &Value| {
        let labels = selector(&one["labelSelector"]);
        let named = one["name"].as_str().filter(|name| !name.is_empty()).map(str::to_owned);
        let which = named.unwrap_or_else(|| if labels.is_empty() { "<all>".to_owned() } else { labels });
        vec![plain(&one["apiVersion"]), plain(&one["kind"]), or_none(&one["namespace"]), which]
    };
    sheet.head(0, "Resource Selectors");
    let rows: Vec<Vec<String>> = list(&spec["resourceSelectors"]).iter().map(row).collect();
    sheet.table(2, &["API Version", "Kind", "Namespace", "Name or Labels"], &rows);
    placement(sheet, &spec["placement"]);
    sheet.say(0, "Propagate Dependencies", (spec["propagateDeps"] == true).to_string());
    sheet.say(0, "Priority", number(&spec["priority"]).to_string());
    sheet.maybe(0, "Preemption", &spec["preemption"]);
    sheet.maybe(0, "Conflict Resolution", &spec["conflictResolution"]);
    sheet.maybe(0, "Activation Preference", &spec["activationPreference"]);
    sheet.maybe(0, "Scheduler Name", &spec["schedulerName"]);
    if !list(&spec["dependentOverrides"]).is_empty() {
        sheet.say(0, "Dependent Overrides", joined(&spec["dependentOverrides"], ","));
    }
    sheet.maybe(0, "Preserve Resources On Deletion", &spec["preserveResourcesOnDeletion"]);
    blocks(
        sheet,
        spec,
        &[("Failover", "failover"), ("Suspension", "suspension"), ("Schedule Priority", "schedulePriority")],
    );
}

/// Adds rarely used fields as nested key-value pairs.
fn blocks(sheet: &mut Sheet, spec: &Value, fields: &[(&str, &str)]) {
    for (label, field) in fields {
        if let Some(inner) = spec[*field].as_object().filter(|inner| !inner.is_empty()) {
            sheet.head(0, label);
            content(sheet, 2, inner);
        }
    }
}

fn placement(sheet: &mut Sheet, placement: &Value) {
    sheet.head(0, "Placement");
    match list(&placement["clusterAffinities"]) {
        [] => sheet.say(2, "Clusters", affinity(&placement["clusterAffinity"])),
        terms => {
            sheet.head(2, "Clusters, by the first term that fits");
            terms.iter().for_each(|term| sheet.say(4, &plain(&term["affinityName"]), affinity(term)));
        }
    }
    let tolerations: Vec<String> = list(&placement["clusterTolerations"]).iter().map(toleration).collect();
    sheet.list(2, "Tolerations", &tolerations);
    let spread: Vec<String> = list(&placement["spreadConstraints"]).iter().map(groups).collect();
    sheet.list(2, "Spread Constraints", &spread);
    sheet.say(2, "Replica Scheduling", division(&placement["replicaScheduling"]));
}

/// Text for a cluster affinity.
pub(super) fn affinity(affinity: &Value) -> String {
    let labels = selector(&affinity["labelSelector"]);
    let fields = selector(&affinity["fieldSelector"]);
    let names = |field: &str| list(&affinity[field]).iter().map(plain).collect::<Vec<_>>().join(",");
    let (only, without) = (names("clusterNames"), names("exclude"));
    let mut parts: Vec<String> = Vec::new();
    parts.extend((!only.is_empty()).then_some(only));
    parts.extend((!labels.is_empty()).then(|| format!("with labels {labels}")));
    parts.extend((!fields.is_empty()).then(|| format!("with {fields}")));
    parts.extend((!without.is_empty()).then(|| format!("without {without}")));
    if parts.is_empty() { "<all>".to_owned() } else { parts.join("; ") }
}

fn groups(constraint: &Value) -> String {
    let by = constraint["spreadByField"].as_str().or_else(|| constraint["spreadByLabel"].as_str()).unwrap_or("cluster");
    let most = number(&constraint["maxGroups"]);
    let most = if most == 0 { String::new() } else { format!(", {most} at most") };
    format!("{by}: {} at least{most}", number(&constraint["minGroups"]).max(1))
}

fn division(scheduling: &Value) -> String {
    if scheduling["replicaSchedulingType"] != "Divided" {
        return "Duplicated".to_owned();
    }
    let weights = &scheduling["weightPreference"];
    let fixed = |one: &Value| {
        let target = affinity(&one["targetCluster"]);
        let those = if target.starts_with("with") { "those " } else { "" };
        format!("{} for {those}{target}", plain(&one["weight"]))
    };
    let how = match scheduling["replicaDivisionPreference"].as_str() {
        Some("Aggregated") => "Aggregated".to_owned(),
        _ if weights["dynamicWeight"].is_string() => format!("Weighted by {}", plain(&weights["dynamicWeight"])),
        _ if list(&weights["staticWeightList"]).is_empty() => "Weighted".to_owned(),
        _ => {
            format!("Weighted: {}", list(&weights["staticWeightList"]).iter().map(fixed).collect::<Vec<_>>().join(", "))
        }
    };
    format!("Divided, {how}")
}

pub(super) fn binding(sheet: &mut Sheet, binding: &Value) {
    let (spec, status) = (&binding["spec"], &binding["status"]);
    marks(sheet, binding);
    created(sheet, binding);
    let of = &spec["resource"];
    let namespace = of["namespace"].as_str().filter(|namespace| !namespace.is_empty());
    let namespace = namespace.map(|namespace| format!("{namespace}/")).unwrap_or_default();
    sheet.say(
        0,
        "Resource",
        format!("{} {} {namespace}{}", plain(&of["apiVersion"]), plain(&of["kind"]), plain(&of["name"])),
    );
    sheet.say(0, "Replicas", number(&spec["replicas"]).to_string());
    placement(sheet, &spec["placement"]);
    if status["lastScheduledTime"].is_string() {
        sheet.say(0, "Last Scheduled", time(&status["lastScheduledTime"]));
    }
    sheet.maybe(0, "Affinity Term", &status["schedulerObservingAffinityName"]);
    clusters(sheet, binding);
    evictions(sheet, spec);
    let parent = |one: &Value| {
        format!("{}/{} in {}", or_none(&one["namespace"]), plain(&one["name"]), list(&one["clusters"]).len())
    };
    let parents: Vec<String> = list(&spec["requiredBy"]).iter().map(|one| parent(one) + " clusters").collect();
    if !parents.is_empty() {
        sheet.list(0, "Required By", &parents);
    }
    blocks(sheet, spec, &[("Suspension", "suspension"), ("Failover", "failover")]);
    conditions(sheet, binding, &CONDITIONS);
}

/// Adds a table of the target clusters with their status.
fn clusters(sheet: &mut Sheet, binding: &Value) {
    let statuses = list(&binding["status"]["aggregatedStatus"]);
    let wanted = list(&binding["spec"]["clusters"]);
    let row = |name: &Value, replicas: String| {
        let status = statuses.iter().find(|one| one["clusterName"] == *name);
        let of = |field: &str| status.map_or_else(|| NONE.to_owned(), |status| or_none(&status[field]));
        let applied = status.map_or_else(|| NONE.to_owned(), |status| (status["applied"] == true).to_string());
        vec![plain(name), replicas, applied, of("health"), of("appliedMessage").replace('\n', " ")]
    };
    let mut rows: Vec<Vec<String>> =
        wanted.iter().map(|one| row(&one["name"], number(&one["replicas"]).to_string())).collect();
    // Clusters that the binding is being removed from.
    let left = statuses.iter().filter(|one| !wanted.iter().any(|wanted| wanted["name"] == one["clusterName"]));
    rows.extend(left.map(|one| row(&one["clusterName"], "-".to_owned())));
    if rows.is_empty() {
        return sheet.say(0, "Clusters", NONE);
    }
    sheet.head(0, "Clusters");
    sheet.table(2, &["Cluster", "Replicas", "Applied", "Health", "Message"], &rows);
}

fn evictions(sheet: &mut Sheet, spec: &Value) {
    let row = |task: &Value| {
        ["fromCluster", "replicas", "reason", "producer", "purgeMode", "message"]
            .map(|field| or_none(&task[field]).replace('\n', " "))
            .to_vec()
    };
    let rows: Vec<Vec<String>> = list(&spec["gracefulEvictionTasks"]).iter().map(row).collect();
    if !rows.is_empty() {
        sheet.head(0, "Graceful Evictions");
        sheet.table(2, &["From", "Replicas", "Reason", "Producer", "Purge Mode", "Message"], &rows);
    }
}

pub(super) fn work(sheet: &mut Sheet, work: &Value) {
    let (spec, status) = (&work["spec"], &work["status"]);
    marks(sheet, work);
    created(sheet, work);
    let space = work["metadata"]["namespace"].as_str().unwrap_or_default();
    sheet.say(0, "Goes To", crowsnest_api::names::cluster_of_execution_namespace(space).unwrap_or(NONE));
    sheet.maybe(0, "Suspend Dispatching", &spec["suspendDispatching"]);
    sheet.maybe(0, "Preserve Resources On Deletion", &spec["preserveResourcesOnDeletion"]);
    let row = |(at, manifest): (usize, &Value)| {
        let known = list(&status["manifestStatuses"]);
        let own =
            known.iter().find(|one| number(&one["identifier"]["ordinal"]) == i64::try_from(at).unwrap_or_default());
        let metadata = &manifest["metadata"];
        let health = own.map_or_else(|| NONE.to_owned(), |own| or_none(&own["health"]));
        vec![
            plain(&manifest["apiVersion"]),
            plain(&manifest["kind"]),
            or_none(&metadata["namespace"]),
            plain(&metadata["name"]),
            health,
        ]
    };
    sheet.head(0, "Manifests");
    let rows: Vec<Vec<String>> = list(&spec["workload"]["manifests"]).iter().enumerate().map(row).collect();
    sheet.table(2, &["API Version", "Kind", "Namespace", "Name", "Health"], &rows);
    conditions(sheet, work, &CONDITIONS);
}
