//! `status`: clusters and numbers of objects, as in the overview of the UI. Counts are searches, so they cover what the
//! caller may read.
//!
//! Watchers with the same permissions share one computation, which counts again after the cache has changed.

use crowsnest_apimachinery::status::ApiError;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::response::{IntoResponse, Response};
use crowsnest_apimachinery::user::UserInfo;
use crowsnest_index::{Error, GlobalCache};
use crowsnest_members::Member;
use crowsnest_search::document::columns::Facet;
use crowsnest_search::{FacetField, SearchRequest};
use futures::StreamExt;
use futures::stream::BoxStream;
use http::StatusCode;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::call::SearchCall;
use super::definition;
use super::events::{error, event, stream};
use super::openapi::{EVENTS, Parameter, ResponseSchemas, name_of, ref_to};
use super::operation::SearchOperation;
use crate::resource::openapi::Document;
use crate::resource::schema::JSON;
use crate::resource::{Definition, RequestFeatures};
use crowsnest_process::reply::json as json_response;
use crowsnest_runtime::roles::RunningRoles;

/// Minimum interval between two statuses that a watcher receives.
const MIN_INTERVAL: Duration = Duration::from_secs(2);
/// Maximum interval: ages change even if nothing else does.
const MAX_INTERVAL: Duration = Duration::from_secs(6);

/// Labels and queries of the counts. The UI links each count to the search for its objects.
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

pub(super) struct Status;

impl SearchOperation for Status {
    const DEFINITION: Definition = definition("status", "FleetStatus");
    const SUMMARY: &str = "Status of the fleet; with watch=true also its changes.";
    const PARAMETERS: &[Parameter] = &[Parameter::boolean("watch", "Send changes as server-sent events.")];
    const RESPONSES: ResponseSchemas = &[(JSON, &["FleetStatus"]), (EVENTS, &["FleetStatusEvents"])];

    fn is_long_running(requested: RequestFeatures) -> bool {
        requested.watch || requested.events
    }

    fn add_schemas(document: &mut Document) {
        let events = json!({"type": "string", "description": "Server-sent events with a FleetStatus each."});
        document.add_schema(name_of("FleetStatus"), ref_to("Object"));
        document.add_schema(name_of("FleetStatusEvents"), events);
    }

    async fn respond(call: SearchCall<'_>) -> Result<Response, ApiError> {
        let SearchCall { running, user, parameters, accepts_events, .. } = call;
        if parameters.flag("watch")? || accepts_events {
            let events = stream_statuses(running, user).map(|next| match next {
                Ok(status) => event("status", &status),
                Err(message) => error(&message),
            });
            return Ok(stream(events).into_response());
        }
        let counts = Counts::load(&running.cache, user).await.map_err(ApiError::internal)?;
        Ok(json_response(StatusCode::OK, &fleet_status(&running.cache, &counts)))
    }
}

/// The current status, and the next one after each change.
fn stream_statuses(running: &RunningRoles, reader: &UserInfo) -> BoxStream<'static, Result<Arc<Value>, String>> {
    let (cache, reader) = (running.cache.clone(), authorization_key(reader));
    running.status_streams.subscribe(reader.clone(), move |sender| publish_statuses(cache, reader, sender))
}

/// The user reduced to what authorization depends on, without the UID, extras and the order of groups. Users with an
/// equal key share a computation.
fn authorization_key(reader: &UserInfo) -> UserInfo {
    if reader.is_master() {
        return UserInfo::system();
    }
    let mut groups = reader.groups.clone();
    groups.sort_unstable();
    groups.dedup();
    UserInfo::new(reader.name.clone(), groups)
}

async fn publish_statuses(
    cache: GlobalCache,
    reader: UserInfo,
    sender: watch::Sender<Option<Result<Arc<Value>, String>>>,
) {
    let mut searchable = cache.searcher().searchable();
    let mut current_counts: Option<Counts> = None;
    loop {
        let counts = match current_counts.take() {
            Some(counts) => Ok(counts),
            None => Counts::load(&cache, &reader).await,
        };
        let status = match counts {
            Ok(counts) => Ok(Arc::new(fleet_status(&cache, current_counts.insert(counts)))),
            Err(error) => Err(error.to_string()),
        };
        sender.send_replace(Some(status));
        tokio::time::sleep(MIN_INTERVAL).await;
        match tokio::time::timeout(MAX_INTERVAL - MIN_INTERVAL, searchable.changed()).await {
            Ok(Ok(())) => current_counts = None,
            // The cache has stopped.
            Ok(Err(_)) => return,
            Err(_) => {}
        }
    }
}

/// Numbers of objects that one reader may see, and the clusters that the reader may see.
struct Counts {
    members: Vec<Arc<Member>>,
    objects: BTreeMap<String, u64>,
    pods: BTreeMap<String, u64>,
    /// The counts of [`COUNTS`], with their labels and queries.
    linked_counts: Vec<Value>,
}

impl Counts {
    async fn load(cache: &GlobalCache, reader: &UserInfo) -> Result<Self, Error> {
        let (_, objects) = count_by_cluster(cache, reader, "").await?;
        let members = cache.searcher().visible_members(reader).await;
        let mut counts = Counts { members, objects, pods: BTreeMap::new(), linked_counts: Vec::new() };
        for (label, query) in COUNTS {
            let (total, clusters) = count_by_cluster(cache, reader, query).await?;
            if *query == "kind:pod" {
                counts.pods = clusters;
            }
            counts.linked_counts.push(json!({"label": label, "query": query, "count": total}));
        }
        Ok(counts)
    }
}

fn fleet_status(cache: &GlobalCache, counts: &Counts) -> Value {
    let contacts = last_contacts(cache);
    let now = jiff::Timestamp::now().as_millisecond();
    let clusters: Vec<Value> = counts
        .members
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
                "objects": counts.objects.get(name).copied().unwrap_or(0),
                "pods": counts.pods.get(name).copied().unwrap_or(0),
            });
            if let Some(ready) = ready.filter(|c| c.status != "True") {
                value["message"] = json!(ready.message);
            }
            if let Some(nodes) = &status.node_summary {
                value["nodes"] = json!({"total": nodes.total_num, "ready": nodes.ready_num});
            }
            if let Some(contact) = contacts.get(name) {
                value["ageSeconds"] = json!((now - contact).max(0) / 1000);
            }
            value
        })
        .collect();
    json!({
        "kind": "FleetStatus", "apiVersion": "search.crowsnest.io/v1alpha1",
        "clusters": clusters, "counts": counts.linked_counts, "seq": cache.seq(),
        "search": {"backend": cache.options().index_backend, "behind": cache.searcher().lag()},
    })
}

/// Number of objects in total and by cluster.
async fn count_by_cluster(
    cache: &GlobalCache,
    reader: &UserInfo,
    query: &str,
) -> Result<(u64, BTreeMap<String, u64>), Error> {
    let mut request = SearchRequest::new(query, reader.clone()).with_limit(0);
    request.counts.facets = vec![FacetField::Column(Facet::Cluster)];
    let result = cache.searcher().search_all(request).await?;
    let total = result.summary.map_or(0, |s| s.total);
    Ok((total, result.facets.into_iter().flat_map(|f| f.values).collect()))
}

/// Time of the last contact with each cluster, in Unix milliseconds.
fn last_contacts(cache: &GlobalCache) -> BTreeMap<String, i64> {
    let mut newest = BTreeMap::new();
    for (key, state) in cache.states() {
        let at: &mut i64 = newest.entry(key.cluster.to_string()).or_default();
        *at = (*at).max(state.last_contact_ms);
    }
    newest
}
