//! The fleet at a glance: what the overview of the UI shows. Counts are searches, so they hold what the caller may read.

use std::collections::BTreeMap;

use crowsnest_api::user::UserInfo;
use crowsnest_fleet::Fleet;
use crowsnest_index::search::SearchRequest;
use crowsnest_index::{Error, Index};
use serde_json::{Value, json};

use super::reply::Failure;
use crate::roles::Running;

/// What is counted: label and query. Each is a link to its objects.
const COUNTS: &[(&str, &str)] = &[
    ("pods", "kind:pod"),
    ("pods running", "kind:pod status:Running"),
    ("pods in trouble", "kind:pod -status:Running,Completed,Succeeded"),
    ("deployments", "kind:deployment"),
    ("services", "kind:service"),
    ("nodes", "kind:node"),
    ("warning events", "kind:event type:Warning"),
    ("policies", "kind:propagationpolicy,clusterpropagationpolicy"),
    ("bindings", "kind:resourcebinding,clusterresourcebinding"),
];

pub(super) async fn fleet_status(running: &Running, reader: &UserInfo) -> Result<Value, Failure> {
    of(&running.index, &running.fleet, reader).await.map_err(Failure::internal)
}

pub(super) async fn of(index: &Index, fleet: &Fleet, reader: &UserInfo) -> Result<Value, Error> {
    let objects = per_cluster(index, reader, "").await?.1;
    let mut pods = BTreeMap::new();
    let mut counts = Vec::new();
    for (label, query) in COUNTS {
        let (total, clusters) = per_cluster(index, reader, query).await?;
        if *query == "kind:pod" {
            pods = clusters;
        }
        counts.push(json!({"label": label, "query": query, "count": total}));
    }
    let heard = heard(index);
    let now = jiff::Timestamp::now().as_millisecond();
    let clusters: Vec<Value> = fleet
        .members()
        .iter()
        .map(|member| {
            let name = member.name().as_str();
            let (spec, status) = (member.spec(), member.status());
            let conditions = status.conditions.iter();
            let ready = conditions.clone().find(|c| c.type_ == "Ready");
            let mut value = json!({
                "name": name,
                "ready": ready.map_or("Unknown", |c| c.status.as_str()),
                "version": status.kubernetes_version,
                "mode": spec.sync_mode,
                "provider": spec.provider,
                "region": spec.region,
                "zones": spec.zones,
                "objects": objects.get(name).copied().unwrap_or(0),
                "pods": pods.get(name).copied().unwrap_or(0),
            });
            if let Some(ready) = ready.filter(|c| c.status != "True") {
                value["message"] = json!(ready.message);
            }
            if let Some(nodes) = &status.node_summary {
                value["nodes"] = json!({"total": nodes.total_num, "ready": nodes.ready_num});
            }
            if let Some(heard) = heard.get(name) {
                value["ageSeconds"] = json!((now - heard).max(0) / 1000);
            }
            value
        })
        .collect();
    Ok(
        json!({"kind": "FleetStatus", "apiVersion": "search.crowsnest.io/v1alpha1", "clusters": clusters, "counts": counts, "seq": index.seq()}),
    )
}

/// Objects in all, and by cluster.
async fn per_cluster(index: &Index, reader: &UserInfo, query: &str) -> Result<(u64, BTreeMap<String, u64>), Error> {
    let mut request = SearchRequest::new(query, reader.clone());
    request.limit = Some(0);
    request.facets = vec![crowsnest_index::text::columns::Facet::Cluster];
    let answer = index.search_all(request).await?;
    let total = answer.summary.map_or(0, |s| s.total);
    Ok((total, answer.facets.into_iter().flat_map(|f| f.values).collect()))
}

/// When each cluster was last heard of, Unix milliseconds.
fn heard(index: &Index) -> BTreeMap<String, i64> {
    let mut newest = BTreeMap::new();
    for (key, state) in index.states() {
        let at: &mut i64 = newest.entry(key.cluster.to_string()).or_default();
        *at = (*at).max(state.heard_at);
    }
    newest
}
