//! One object: what it was, how it differs from what it was or from another cluster's, and what it is related to.

use axum::response::Response;
use crowsnest_apimachinery::user::UserInfo;
use crowsnest_index::search::{Graph, Past};
use crowsnest_index::{Index, Object, RecordKey, Seq};
use http::StatusCode;
use serde_json::{Map, Value, json};

use super::API_VERSION;
use super::hits::{identity, summary, time};
use super::parameters::Parameters;
use crate::aggregated::reply::{Failure, json as reply};

/// Steps of a graph when nothing is said, and at most.
const DEPTH: usize = 2;
const MOST_DEPTH: usize = 5;

fn unknown(key: &RecordKey) -> Failure {
    let (resource, cluster) = (&key.resource().resource, key.cluster());
    Failure::not_found(format!("{resource} {:?} not found in {cluster}, or it may not be read there", &*key.name))
        .with_details(&key.resource().group, resource, &key.name)
}

async fn past(index: &Index, caller: &UserInfo, key: &RecordKey) -> Result<Past, Failure> {
    index.past(caller, key).await.map_err(Failure::internal)?.ok_or_else(|| unknown(key))
}

/// The versions that are kept, newest first; with `seq` the manifest of one.
pub(super) async fn history(index: &Index, caller: &UserInfo, parameters: &Parameters) -> Result<Response, Failure> {
    let key = parameters.object()?;
    let past = past(index, caller, &key).await?;
    if let Some(seq) = parameters.number("seq")? {
        let object = version(&past, &seq.to_string(), &key)?;
        return Ok(reply(StatusCode::OK, &object.parse().map_err(Failure::internal)?));
    }
    let line = |object: &Object, until: Option<i64>, deleted: bool| {
        let record = &object.record;
        let mut line = Map::new();
        line.insert("seq".into(), json!(record.seq));
        line.insert("resourceVersion".into(), json!(record.resource_version));
        line.insert("generation".into(), json!(record.generation));
        line.insert("from".into(), time(Some(record.changed_at / 1000)));
        if let Some(until) = until {
            line.insert("until".into(), time(Some(until / 1000)));
        }
        if deleted {
            line.insert("deleted".into(), json!(true));
        }
        Value::Object(line)
    };
    let now = past.now.iter().map(|object| line(object, None, false));
    let before = past.versions.iter().map(|version| line(&version.object, Some(version.ended_at), version.deleted));
    let kept = index.options().history.kept_for.as_secs();
    Ok(reply(
        StatusCode::OK,
        &json!({"kind": "ObjectHistory", "apiVersion": API_VERSION, "versions": now.chain(before).collect::<Vec<_>>(),
            "keptForSeconds": kept}),
    ))
}

/// A version by the seq that began it, or `now`.
fn version<'p>(past: &'p Past, wanted: &str, key: &RecordKey) -> Result<&'p Object, Failure> {
    let now = past.now.iter();
    let found = match wanted {
        "now" => past.now.as_ref(),
        seq => {
            let seq =
                seq.parse().map(Seq).map_err(|_| Failure::bad_request(format!("{seq:?} is no seq of a version")))?;
            let all = now.chain(past.versions.iter().map(|version| &version.object));
            all.into_iter().find(|object| object.record.seq == seq)
        }
    };
    found.ok_or_else(|| Failure::not_found(format!("no version {wanted} of {:?} is kept", &*key.name)))
}

/// Between two versions (`from`, `to`: a seq or `now`; without them what changed last), or with the object of that name
/// in another cluster (`with`).
pub(super) async fn diff(index: &Index, caller: &UserInfo, parameters: &Parameters) -> Result<Response, Failure> {
    let key = parameters.object()?;
    let past_of_it = past(index, caller, &key).await?;
    let (from, to) = match parameters.get("with") {
        Some(_) => {
            let mut other = key.clone();
            other.collection.cluster = parameters.cluster("with")?;
            let there = past(index, caller, &other).await?;
            (version(&past_of_it, "now", &key)?.clone(), version(&there, "now", &other)?.clone())
        }
        None => {
            let last = past_of_it.versions.first().map(|version| version.object.record.seq.to_string());
            let from = parameters.get("from").map(str::to_owned).or(last).unwrap_or_else(|| "now".to_owned());
            let to = parameters.get("to").unwrap_or("now");
            (version(&past_of_it, &from, &key)?.clone(), version(&past_of_it, to, &key)?.clone())
        }
    };
    let diff = Index::compare(&from, &to).map_err(Failure::internal)?;
    let side = |object: &Object| {
        let mut side = identity(object);
        side.insert("seq".into(), json!(object.record.seq));
        side.insert("resourceVersion".into(), json!(object.record.resource_version));
        Value::Object(side)
    };
    Ok(reply(
        StatusCode::OK,
        &json!({"kind": "ObjectDiff", "apiVersion": API_VERSION, "from": side(&from), "to": side(&to),
            "differences": diff.differences, "more": diff.more}),
    ))
}

/// What an object is related to, over `depth` steps.
pub(super) async fn graph(index: &Index, caller: &UserInfo, parameters: &Parameters) -> Result<Response, Failure> {
    let key = parameters.object()?;
    let depth = parameters.number("depth")?.unwrap_or(DEPTH).clamp(1, MOST_DEPTH);
    let graph = index.graph(caller, &key, depth as u8).await.map_err(Failure::internal)?;
    let Graph { nodes, edges, more } = graph.ok_or_else(|| unknown(&key))?;
    let nodes = nodes.iter().map(summary).collect::<Result<Vec<_>, _>>().map_err(Failure::internal)?;
    Ok(reply(
        StatusCode::OK,
        &json!({"kind": "ObjectGraph", "apiVersion": API_VERSION, "nodes": nodes, "edges": edges, "more": more}),
    ))
}
