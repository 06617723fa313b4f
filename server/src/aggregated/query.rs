//! `search.crowsnest.io/v1alpha1`: `query` (JSON, or server-sent events), `status` (the fleet at a glance, followed with
//! `watch=true`), `cache`, `metrics`. Handlers read parameters, call the cache's search as the caller, and print.

use std::convert::Infallible;
use std::time::Duration;

use axum::extract::Request;
use axum::response::{IntoResponse, Response, sse};
use crowsnest_api::user::UserInfo;
use crowsnest_index::search::{Cursor, FacetCounts, Hit, SearchEvent, SearchRequest, Summary};
use futures::{Stream, StreamExt};
use http::{Method, StatusCode, header};
use serde_json::{Value, json};

use super::fleetwide::running;
use super::reply::{Failure, json as reply};
use super::{cache, fleet_status};
use crate::roles::{Roles, Running};

/// Hits of one page when nothing is said, and at most.
const PAGE: usize = 50;
const LARGEST_PAGE: usize = 5_000;

pub(super) async fn serve(
    roles: &Roles,
    caller: &UserInfo,
    resource: &str,
    request: Request,
) -> Result<Response, Failure> {
    if request.method() != Method::GET {
        return Err(Failure::method_not_allowed());
    }
    let running = running(roles)?;
    let parameters = Parameters::read(request.uri().query().unwrap_or_default());
    let streamed = accepts_events(&request);
    match resource {
        "query" if streamed => Ok(events(running, caller, &parameters)?.into_response()),
        "query" => whole(running, caller, &parameters).await,
        "status" if streamed || parameters.flag("watch") => Ok(followed(running, caller).into_response()),
        "status" => Ok(reply(StatusCode::OK, &fleet_status::now(running, caller).await?)),
        "cache" => cache::status(running).await,
        "metrics" => cache::metrics(running).await,
        other => Err(Failure::not_found(format!("search.crowsnest.io has no resource {other:?}"))),
    }
}

fn accepts_events(request: &Request) -> bool {
    let accept = request.headers().get(header::ACCEPT).and_then(|v| v.to_str().ok()).unwrap_or_default();
    accept.split(',').any(|kind| kind.trim().starts_with("text/event-stream"))
}

/// Decoded query parameters.
struct Parameters(Vec<(String, String)>);

impl Parameters {
    fn read(query: &str) -> Self {
        let decode = |text: &str| {
            let spaced = text.replace('+', " ");
            percent_encoding::percent_decode_str(&spaced).decode_utf8_lossy().into_owned()
        };
        let pairs = query.split('&').filter(|p| !p.is_empty()).map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decode(name), decode(value))
        });
        Self(pairs.collect())
    }

    fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str())
    }

    fn flag(&self, name: &str) -> bool {
        matches!(self.get(name), Some("true" | "1" | ""))
    }

    fn number(&self, name: &str) -> Result<Option<usize>, Failure> {
        let Some(text) = self.get(name) else { return Ok(None) };
        let number = text.parse().map_err(|_| Failure::bad_request(format!("{name}={text:?} is no number")))?;
        Ok(Some(number))
    }
}

/// The question, with the page it asks for.
fn question(caller: &UserInfo, parameters: &Parameters) -> Result<SearchRequest, Failure> {
    let limit = parameters.number("limit")?.unwrap_or(PAGE).min(LARGEST_PAGE);
    let mut request = SearchRequest::new(parameters.get("q").unwrap_or_default(), caller.clone());
    request.limit = Some(limit);
    let cursor = parameters.get("cursor").filter(|cursor| !cursor.is_empty()).map(str::parse::<Cursor>).transpose();
    request.after = cursor.map_err(|error| Failure::bad_request(error.to_string()))?.map(|cursor| cursor.0);
    Ok(request)
}

async fn whole(running: &Running, caller: &UserInfo, parameters: &Parameters) -> Result<Response, Failure> {
    let request = question(caller, parameters)?;
    let answer = running.index.search_all(request).await.map_err(Failure::internal)?;
    let summary = answer.summary.map(|s| done(&s)).unwrap_or_default();
    let mut body = json!({
        "kind": "SearchResult", "apiVersion": "search.crowsnest.io/v1alpha1",
        "hits": hits(&answer.hits).map_err(Failure::internal)?,
        "facets": facets(&answer.facets),
        "skipped": skipped(&answer.skipped),
        "notices": answer.remarks,
    });
    if let (Some(body), Some(summary)) = (body.as_object_mut(), summary.as_object()) {
        body.extend(summary.clone());
    }
    Ok(reply(StatusCode::OK, &body))
}

type Events = sse::Sse<sse::KeepAliveStream<futures::stream::BoxStream<'static, Result<sse::Event, Infallible>>>>;

fn event(name: &str, data: &Value) -> Result<sse::Event, Infallible> {
    Ok(sse::Event::default().event(name).data(data.to_string()))
}

fn sent(stream: impl Stream<Item = Result<sse::Event, Infallible>> + Send + 'static) -> Events {
    sse::Sse::new(stream.boxed()).keep_alive(sse::KeepAlive::new().interval(Duration::from_secs(15)))
}

fn events(running: &Running, caller: &UserInfo, parameters: &Parameters) -> Result<Events, Failure> {
    let request = question(caller, parameters)?;
    let stream = running.index.search(request).map(move |piece| match piece {
        Ok(SearchEvent::Remarks(remarks)) => event("notices", &json!(remarks)),
        Ok(SearchEvent::Skipped(clusters)) => event("skipped", &skipped(&clusters)),
        Ok(SearchEvent::Facets(counts)) => event("facets", &facets(&counts)),
        Ok(SearchEvent::Hits(hits)) => match self::hits(&hits) {
            Ok(hits) => event("matches", &Value::Array(hits)),
            Err(error) => event("error", &json!({"message": error.to_string()})),
        },
        Ok(SearchEvent::Done(summary)) => event("done", &done(&summary)),
        Err(error) => event("error", &json!({"message": error.to_string()})),
    });
    Ok(sent(stream))
}

/// The fleet's status now and whenever the cache has moved on.
fn followed(running: &Running, reader: &UserInfo) -> Events {
    sent(fleet_status::follow(running, reader).map(|status| match status {
        Ok(status) => event("status", &status),
        Err(message) => event("error", &json!({"message": message})),
    }))
}

fn done(summary: &Summary) -> Value {
    let mut value = json!({
        "total": summary.total,
        "totalRelation": if summary.incomplete { "gte" } else { "eq" },
        "tookMs": (summary.took_ms * 10.0).round() / 10.0,
        "seq": summary.seq,
        "behind": summary.behind,
        "didYouMean": summary.did_you_mean,
    });
    if let Some(next) = &summary.next {
        value["cursor"] = next.to_string().into();
    }
    value
}

fn facets(counts: &[FacetCounts]) -> Value {
    let of = |facet: &FacetCounts| {
        let values = facet.values.iter().map(|(value, count)| json!({"value": value, "count": count}));
        (facet.field.clone(), Value::Array(values.collect()))
    };
    Value::Object(counts.iter().map(of).collect())
}

fn skipped(clusters: &[crowsnest_index::search::Skipped]) -> Value {
    let of = |skipped: &crowsnest_index::search::Skipped| {
        let mut value = json!({"cluster": skipped.cluster, "reason": skipped.reason, "resources": skipped.resources, "missing": skipped.missing});
        if let Some(age) = skipped.age_seconds {
            value["ageSeconds"] = age.into();
        }
        value
    };
    Value::Array(clusters.iter().map(of).collect())
}

fn hits(hits: &[Hit]) -> Result<Vec<Value>, crowsnest_index::Error> {
    hits.iter().map(hit).collect()
}

fn hit(hit: &Hit) -> Result<Value, crowsnest_index::Error> {
    let record = &hit.object.record;
    let printed = record.printed()?;
    let mut value = json!({
        "cluster": record.key.cluster(),
        "apiVersion": record.key.resource().api_version(),
        "kind": &*record.kind,
        "resource": &*record.key.resource().resource,
        "name": &*record.key.name,
        "uid": record.uid,
        "score": hit.score,
        "matched": hit.reasons.iter().map(|r| json!({"field": r.field, "text": r.value})).collect::<Vec<_>>(),
    });
    let mut set = |name: &str, field: Value| {
        if !field.is_null() && field != "" {
            value[name] = field;
        }
    };
    set("namespace", json!(&*record.key.namespace));
    set("status", json!(printed.status));
    set("restarts", json!(printed.restarts));
    set("node", json!(printed.node));
    if let (Some(ready), Some(desired)) = (printed.ready, printed.desired) {
        set("ready", json!(format!("{ready}/{desired}")));
    }
    if !printed.images.is_empty() {
        set("images", json!(printed.images));
    }
    if let Some(was) = &hit.was {
        set("until", time(Some(was.until / 1000)));
        set("deleted", if was.deleted { json!(true) } else { Value::Null });
    }
    set("created", time(record.created));
    set("deleting", time(record.deleting));
    Ok(value)
}

fn time(seconds: Option<i64>) -> Value {
    seconds.and_then(|s| jiff::Timestamp::from_second(s).ok()).map_or(Value::Null, |t| json!(t.to_string()))
}
