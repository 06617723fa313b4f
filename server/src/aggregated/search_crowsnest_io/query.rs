//! Routes of the search API, and its queries.

use std::convert::Infallible;
use std::time::Duration;

use axum::extract::Request;
use axum::response::{IntoResponse, Response, sse};
use crowsnest_apimachinery::user::UserInfo;
use crowsnest_index::search::{LiveEvent, SearchEvent, SuggestRequest};
use futures::{Stream, StreamExt};
use http::{Method, StatusCode, header};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::columns::Columns;
use super::hits::{done, facets, groups, hit, hits, identity, skipped};
use super::parameters::Parameters;
use super::{API_VERSION, cache, export, index, journal, logs, object, saved_searches, status};
use crate::aggregated::reply::{Failure, json as reply};
use crate::aggregated::search_karmada_io::proxying::running;
use crate::aggregated::server::Aggregated;
use crate::roles::Running;

/// Suggestions when nothing is said.
const SUGGESTIONS: usize = 20;

pub(crate) async fn serve(
    state: &Aggregated,
    caller: &UserInfo,
    resource: &str,
    request: Request,
) -> Result<Response, Failure> {
    let running = running(&state.roles)?;
    if resource == "index" {
        let parameters = Parameters::read(request.uri().query().unwrap_or_default());
        return index::serve(&running.index, request.method(), parameters.get("verify")).await;
    }
    if request.method() != Method::GET {
        return Err(Failure::method_not_allowed());
    }
    let mut parameters = Parameters::read(request.uri().query().unwrap_or_default());
    if parameters.names_scope() {
        parameters.scopes = saved_searches::scopes(&state.control_plane, caller).await?;
    }
    let streamed = accepts_events(&request);
    match resource {
        "query" if parameters.flag("watch") => Ok(live(running, caller, &parameters)?.into_response()),
        "query" if streamed => Ok(events(running, caller, &parameters)?.into_response()),
        "query" => whole(running, caller, &parameters).await,
        "count" => count(running, caller, &parameters).await,
        "explain" => explain(running, caller, &parameters).await,
        "suggest" => suggest(running, caller, &parameters).await,
        "export" => export::export(&running.index, caller, &parameters).await,
        "logs" => logs::logs(running, caller, request.uri().query(), &parameters, streamed).await,
        "history" => object::history(&running.index, caller, &parameters).await,
        "diff" => object::diff(&running.index, caller, &parameters).await,
        "graph" => object::graph(&running.index, caller, &parameters).await,
        "journal" => journal::journal(&running.index, caller, &parameters).await,
        "status" if streamed || parameters.flag("watch") => Ok(followed(running, caller).into_response()),
        "status" => Ok(reply(StatusCode::OK, &status::now(running, caller).await?)),
        "cache" => cache::status(running).await,
        "metrics" => cache::metrics(running, state.edge.series(), &state.edge.figures).await,
        other => Err(Failure::not_found(format!("search.crowsnest.io has no resource {other:?}"))),
    }
}

fn accepts_events(request: &Request) -> bool {
    let accept = request.headers().get(header::ACCEPT).and_then(|v| v.to_str().ok()).unwrap_or_default();
    accept.split(',').any(|kind| kind.trim().starts_with("text/event-stream"))
}

async fn whole(running: &Running, caller: &UserInfo, parameters: &Parameters) -> Result<Response, Failure> {
    let columns = parameters.columns()?;
    let request = parameters.question_with(caller, &columns)?;
    let answer = running.index.search_all(request).await.map_err(Failure::internal)?;
    let summary = answer.summary.map(|s| done(&s)).unwrap_or_default();
    let mut body = json!({
        "kind": "SearchResult", "apiVersion": API_VERSION,
        "hits": hits(&answer.hits, &columns, Timestamp::now()).map_err(Failure::internal)?,
        "facets": facets(&answer.facets),
        "skipped": skipped(&answer.skipped),
        "notices": answer.remarks,
    });
    if let Some(counts) = &answer.groups {
        body["groups"] = groups(counts);
    }
    if let (Some(body), Some(summary)) = (body.as_object_mut(), summary.as_object()) {
        body.extend(summary.clone());
    }
    Ok(reply(StatusCode::OK, &body))
}

pub(super) type Events =
    sse::Sse<sse::KeepAliveStream<futures::stream::BoxStream<'static, Result<sse::Event, Infallible>>>>;

pub(super) fn event(name: &str, data: &Value) -> Result<sse::Event, Infallible> {
    Ok(sse::Event::default().event(name).data(data.to_string()))
}

pub(super) fn sent(stream: impl Stream<Item = Result<sse::Event, Infallible>> + Send + 'static) -> Events {
    sse::Sse::new(stream.boxed()).keep_alive(sse::KeepAlive::new().interval(Duration::from_secs(15)))
}

fn failed(error: &crowsnest_index::Error) -> Result<sse::Event, Infallible> {
    event("error", &json!({"message": error.to_string()}))
}

/// A piece of an answer as an event.
fn piece(piece: Result<SearchEvent, crowsnest_index::Error>, columns: &Columns) -> Result<sse::Event, Infallible> {
    match piece {
        Ok(SearchEvent::Remarks(remarks)) => event("notices", &json!(remarks)),
        Ok(SearchEvent::Skipped(clusters)) => event("skipped", &skipped(&clusters)),
        Ok(SearchEvent::Facets(counts)) => event("facets", &facets(&counts)),
        Ok(SearchEvent::Groups(counts)) => event("groups", &groups(&counts)),
        Ok(SearchEvent::Hits(found)) => match hits(&found, columns, Timestamp::now()) {
            Ok(hits) => event("matches", &Value::Array(hits)),
            Err(error) => failed(&error),
        },
        Ok(SearchEvent::Done(summary)) => event("done", &done(&summary)),
        Err(error) => failed(&error),
    }
}

fn events(running: &Running, caller: &UserInfo, parameters: &Parameters) -> Result<Events, Failure> {
    let columns = parameters.columns()?;
    let request = parameters.question_with(caller, &columns)?;
    Ok(sent(running.index.search(request).map(move |next| piece(next, &columns))))
}

/// The answer, and behind its `done` what changes: `changed` hits, `left` ones, `counts`, and `behind` when too much did.
fn live(running: &Running, caller: &UserInfo, parameters: &Parameters) -> Result<Events, Failure> {
    let columns = parameters.columns()?;
    let request = parameters.question_with(caller, &columns)?;
    let stream = running.index.live(request).map(move |next| match next {
        Ok(LiveEvent::Answer(answer)) => piece(Ok(answer), &columns),
        Ok(LiveEvent::Changed(found)) => match hit(&found, &columns, Timestamp::now()) {
            Ok(hit) => event("changed", &hit),
            Err(error) => failed(&error),
        },
        Ok(LiveEvent::Left(object)) => event("left", &Value::Object(identity(&object))),
        Ok(LiveEvent::Counts { total, facets: counts, groups: grouped }) => {
            let mut counts = json!({"total": total, "facets": facets(&counts)});
            if let Some(grouped) = &grouped {
                counts["groups"] = groups(grouped);
            }
            event("counts", &counts)
        }
        Ok(LiveEvent::FellBehind) => event("behind", &json!({})),
        Err(error) => failed(&error),
    });
    Ok(sent(stream))
}

async fn count(running: &Running, caller: &UserInfo, parameters: &Parameters) -> Result<Response, Failure> {
    let count = running.index.count(&parameters.question(caller)?).await.map_err(Failure::internal)?;
    let relation = if count.incomplete { "gte" } else { "eq" };
    let body = json!({"kind": "SearchCount", "apiVersion": API_VERSION, "total": count.total, "totalRelation": relation,
        "skipped": skipped(&count.skipped), "notices": count.remarks});
    Ok(reply(StatusCode::OK, &body))
}

/// A body of ours with its kind.
fn typed(kind: &str, body: &impl serde::Serialize) -> Result<Response, Failure> {
    let mut value = serde_json::to_value(body).map_err(Failure::internal)?;
    value["kind"] = kind.into();
    value["apiVersion"] = API_VERSION.into();
    Ok(reply(StatusCode::OK, &value))
}

async fn explain(running: &Running, caller: &UserInfo, parameters: &Parameters) -> Result<Response, Failure> {
    let explained = running.index.explain(&parameters.question(caller)?).await.map_err(Failure::internal)?;
    typed("SearchExplanation", &explained)
}

async fn suggest(running: &Running, caller: &UserInfo, parameters: &Parameters) -> Result<Response, Failure> {
    let request = SuggestRequest {
        query: parameters.get("q").unwrap_or_default().to_owned(),
        cursor: parameters.number("cursor")?.unwrap_or(usize::MAX),
        caller: caller.clone(),
        limit: parameters.number("limit")?.unwrap_or(SUGGESTIONS),
    };
    typed("SearchSuggestions", &running.index.suggest(&request).await.map_err(Failure::internal)?)
}

/// The fleet's status now and whenever the cache has moved on.
fn followed(running: &Running, reader: &UserInfo) -> Events {
    sent(status::follow(running, reader).map(|next| match next {
        Ok(now) => event("status", &now),
        Err(message) => event("error", &json!({"message": message})),
    }))
}
