//! `/sim/{member}/…`: faults and state of simulated members, for `system:masters` of the server that offers it. That server
//! is not a member, so that a stopped one can be started again.
//!
//! | request | body | effect |
//! |---|---|---|
//! | `GET state` | | returns counts, delay, nodes and reachability |
//! | `POST delay` | `{"milliseconds": 500, "path": "/apis"}` | delays all requests, or those below a path; 0 removes the delay |
//! | `POST watches/drop` | | closes open watches |
//! | `POST stop` | `{"seconds": 30}` | closes the listener for that time; without `seconds` until started |
//! | `POST silence` | as for `stop` | accepts requests without responding; watches stay open |
//! | `POST partition` | as for `stop` | drops traffic in both directions without closing connections |
//! | `POST flap` | `{"seconds": 10}` | stops and starts alternately at this interval |
//! | `POST start` | | ends any outage |
//! | `POST readyz` | `{"status": 500}` | overrides the response of health checks; without `status` removes the override |
//! | `POST errors` | `{"percent": 20}` | fails this percentage of requests |
//! | `POST nodes/{name}/fail`, `/recover` | | fails or recovers a node |
//! | `POST load` | `{"pods": 1000, "churn": 5.0, "seed": 1}` | adds missing synthetic workloads, with `churn` changes per second; returns the objects |

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::extract::{FromRequestParts, Path, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use crowsnest_registry::authentication::Authenticator;
use http::StatusCode;
use http::request::Parts;
use serde::Deserialize;
use serde_json::{Value, json};

use super::faults::failure;
use super::store::Stored;
use super::{Member, Outage};
use crate::error::Error;
use crate::load::Load;

/// The members by name; set once they run, after their routes are served.
pub type Members = Arc<OnceLock<BTreeMap<String, Arc<Member>>>>;

/// The routes; `authenticator` authenticates their users.
pub fn routes(members: Members, authenticator: Arc<Authenticator>) -> Router {
    Router::new()
        .route("/sim/{member}/state", get(state))
        .route("/sim/{member}/delay", post(delay))
        .route("/sim/{member}/watches/drop", post(drop_watches))
        .route("/sim/{member}/stop", post(stop))
        .route("/sim/{member}/silence", post(silence))
        .route("/sim/{member}/partition", post(partition))
        .route("/sim/{member}/flap", post(flap))
        .route("/sim/{member}/start", post(start))
        .route("/sim/{member}/readyz", post(readyz))
        .route("/sim/{member}/errors", post(errors))
        .route("/sim/{member}/nodes/{node}/{verb}", post(node))
        .route("/sim/{member}/load", post(load))
        .route_layer(axum::middleware::from_fn_with_state(authenticator, masters_only))
        .with_state(members)
}

/// The member in a path.
struct Target(Arc<Member>);

impl FromRequestParts<Members> for Target {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, members: &Members) -> Result<Self, Response> {
        let path = Path::<BTreeMap<String, String>>::from_request_parts(parts, members).await;
        let Path(path) = path.map_err(IntoResponse::into_response)?;
        let name = path.get("member").map_or("", String::as_str);
        let Some(members) = members.get() else {
            return Err(failure(StatusCode::SERVICE_UNAVAILABLE, "the members are starting"));
        };
        match members.get(name) {
            Some(member) => Ok(Self(member.clone())),
            None if members.is_empty() => Err(failure(StatusCode::NOT_FOUND, "no member of this fleet is simulated")),
            None => {
                let known: Vec<&str> = members.keys().map(String::as_str).collect();
                let text = format!("{name} is not a simulated member; simulated members: {}", known.join(", "));
                Err(failure(StatusCode::NOT_FOUND, &text))
            }
        }
    }
}

fn outcome(result: Result<(), Error>) -> Response {
    match result {
        Ok(()) => Json(json!({"kind": "Status", "apiVersion": "v1", "status": "Success"})).into_response(),
        Err(error) => refused(&error),
    }
}

fn refused(error: &Error) -> Response {
    let code = match error {
        Error::Invalid(_) => StatusCode::BAD_REQUEST,
        error if error.is_not_found() => StatusCode::NOT_FOUND,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    };
    failure(code, &error.to_string())
}

async fn masters_only(State(authenticator): State<Arc<Authenticator>>, request: Request, next: Next) -> Response {
    match authenticator.authenticate(request.headers(), request.extensions()).await {
        Ok(user) if user.groups.iter().any(|group| group == "system:masters") => next.run(request).await,
        Ok(user) => {
            failure(StatusCode::FORBIDDEN, &format!("User \"{}\" is not allowed to control the simulation", user.name))
        }
        Err(error) => failure(StatusCode::UNAUTHORIZED, &error.to_string()),
    }
}

async fn state(Target(member): Target) -> Response {
    let world = member.world();
    let nodes: Vec<Value> = world
        .nodes
        .all()
        .iter()
        .map(|node| json!({"name": &*node.key().name, "failed": super::node::is_failed(node)}))
        .collect();
    Json(json!({
        "name": &*world.name,
        "reachable": member.is_reachable().await,
        "pods": world.pods.len(),
        "readyPods": world.pods.all().iter().filter(|pod| pod.is_active() && pod.is_ready()).count(),
        "changes": member.changes(),
        "nodes": nodes,
        "delayMilliseconds": member.faults().delay().as_millis() as u64,
        "readyz": member.faults().readyz().map(|status| status.as_u16()),
        "errorPercent": member.faults().errors(),
        "droppedEvents": world.recorder.dropped(),
    }))
    .into_response()
}

#[derive(Deserialize)]
struct Delay {
    milliseconds: u64,
    /// `None` means all requests.
    path: Option<String>,
}

async fn delay(Target(member): Target, Json(delay): Json<Delay>) -> Response {
    let time = Duration::from_millis(delay.milliseconds);
    match delay.path {
        Some(path) => member.faults().set_delay_of(&path, time),
        None => member.faults().set_delay(time),
    }
    outcome(Ok(()))
}

async fn drop_watches(Target(member): Target) -> Response {
    member.faults().drop_watches();
    outcome(Ok(()))
}

#[derive(Deserialize)]
struct Time {
    seconds: Option<u64>,
}

async fn cut_off(member: &Arc<Member>, outage: Outage, time: Time) -> Response {
    outcome(match time.seconds {
        Some(seconds) => member.cut_off_for(outage, Duration::from_secs(seconds)).await,
        None => member.cut_off(outage).await,
    })
}

async fn stop(Target(member): Target, Json(time): Json<Time>) -> Response {
    cut_off(&member, Outage::Stopped, time).await
}

async fn silence(Target(member): Target, Json(time): Json<Time>) -> Response {
    cut_off(&member, Outage::Silent, time).await
}

async fn partition(Target(member): Target, Json(time): Json<Time>) -> Response {
    cut_off(&member, Outage::Partitioned, time).await
}

async fn flap(Target(member): Target, Json(time): Json<Time>) -> Response {
    match time.seconds {
        None | Some(0) => failure(StatusCode::BAD_REQUEST, "seconds must be at least 1: the duration of each phase"),
        Some(seconds) => outcome(member.flap(Duration::from_secs(seconds)).await),
    }
}

async fn start(Target(member): Target) -> Response {
    outcome(member.resume().await)
}

#[derive(Deserialize)]
struct Readyz {
    status: Option<u16>,
}

async fn readyz(Target(member): Target, Json(readyz): Json<Readyz>) -> Response {
    match readyz.status.map(StatusCode::from_u16).transpose() {
        Ok(status) => {
            member.faults().set_readyz(status);
            outcome(Ok(()))
        }
        Err(error) => failure(StatusCode::BAD_REQUEST, &error.to_string()),
    }
}

#[derive(Deserialize)]
struct Percent {
    percent: u8,
}

async fn errors(Target(member): Target, Json(Percent { percent }): Json<Percent>) -> Response {
    if percent > 100 {
        return failure(StatusCode::BAD_REQUEST, "percent must be at most 100");
    }
    member.faults().set_errors(percent);
    outcome(Ok(()))
}

async fn node(Target(member): Target, Path((_, name, verb)): Path<(String, String, String)>) -> Response {
    match verb.as_str() {
        "fail" => outcome(member.fail_node(&name).await),
        "recover" => outcome(member.recover_node(&name).await),
        _ => failure(StatusCode::NOT_FOUND, &format!("unknown node action {verb}; use fail or recover")),
    }
}

async fn load(Target(member): Target, Json(load): Json<Load>) -> Response {
    match member.start_load(load).await {
        Ok(report) => Json(report).into_response(),
        Err(error) => refused(&error),
    }
}
