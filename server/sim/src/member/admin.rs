//! `/sim/{member}/…`: faults and state of simulated members, for group `system:masters`. The routes are served by the
//! control plane, not by the members, so that a stopped member can be started again.
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

use super::faults::status_failure;
use super::store::StoreObject;
use super::{Member, Outage};
use crate::error::Error;
use crate::load::Load;

/// Members by name. Set when the members run, which is after their routes are served.
pub type Members = Arc<OnceLock<BTreeMap<String, Arc<Member>>>>;

/// Creates the routes; `authenticator` authenticates their users.
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
        .route("/sim/{member}/nodes/{node}/{action}", post(node))
        .route("/sim/{member}/load", post(load))
        .route_layer(axum::middleware::from_fn_with_state(authenticator, require_masters))
        .with_state(members)
}

/// The member that a request's path names.
struct TargetMember(Arc<Member>);

impl FromRequestParts<Members> for TargetMember {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, members: &Members) -> Result<Self, Response> {
        let path = Path::<BTreeMap<String, String>>::from_request_parts(parts, members).await;
        let Path(path) = path.map_err(IntoResponse::into_response)?;
        let name = path.get("member").map_or("", String::as_str);
        let Some(members) = members.get() else {
            return Err(status_failure(StatusCode::SERVICE_UNAVAILABLE, "the members are starting"));
        };
        match members.get(name) {
            Some(member) => Ok(Self(member.clone())),
            None if members.is_empty() => {
                Err(status_failure(StatusCode::NOT_FOUND, "no member of this fleet is simulated"))
            }
            None => {
                let names: Vec<&str> = members.keys().map(String::as_str).collect();
                let text = format!("{name} is not a simulated member; simulated members: {}", names.join(", "));
                Err(status_failure(StatusCode::NOT_FOUND, &text))
            }
        }
    }
}

fn to_response(result: Result<(), Error>) -> Response {
    match result {
        Ok(()) => Json(json!({"kind": "Status", "apiVersion": "v1", "status": "Success"})).into_response(),
        Err(error) => error_response(&error),
    }
}

fn error_response(error: &Error) -> Response {
    let code = match error {
        Error::Invalid(_) => StatusCode::BAD_REQUEST,
        error if error.is_not_found() => StatusCode::NOT_FOUND,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    };
    status_failure(code, &error.to_string())
}

async fn require_masters(State(authenticator): State<Arc<Authenticator>>, request: Request, next: Next) -> Response {
    match authenticator.authenticate(request.headers(), request.extensions()).await {
        Ok(user) if user.groups.iter().any(|group| group == "system:masters") => next.run(request).await,
        Ok(user) => status_failure(
            StatusCode::FORBIDDEN,
            &format!("User \"{}\" is not allowed to control the simulation", user.name),
        ),
        Err(error) => status_failure(StatusCode::UNAUTHORIZED, &error.to_string()),
    }
}

async fn state(TargetMember(member): TargetMember) -> Response {
    let context = member.context();
    let nodes: Vec<Value> = context
        .nodes
        .all()
        .iter()
        .map(|node| json!({"name": &*node.key().name, "failed": super::node::is_failed(node)}))
        .collect();
    Json(json!({
        "name": &*context.name,
        "reachable": member.is_reachable().await,
        "pods": context.pods.len(),
        "readyPods": context.pods.all().iter().filter(|pod| pod.is_active() && pod.is_ready()).count(),
        "changes": member.churn_changes(),
        "nodes": nodes,
        "delayMilliseconds": member.faults().delay().as_millis() as u64,
        "readyz": member.faults().readyz().map(|status| status.as_u16()),
        "errorPercent": member.faults().error_percent(),
        "droppedEvents": context.recorder.dropped_events(),
    }))
    .into_response()
}

#[derive(Deserialize)]
struct DelayBody {
    milliseconds: u64,
    /// `None` means all requests.
    path: Option<String>,
}

async fn delay(TargetMember(member): TargetMember, Json(delay): Json<DelayBody>) -> Response {
    let duration = Duration::from_millis(delay.milliseconds);
    match delay.path {
        Some(path) => member.faults().set_path_delay(&path, duration),
        None => member.faults().set_delay(duration),
    }
    to_response(Ok(()))
}

async fn drop_watches(TargetMember(member): TargetMember) -> Response {
    member.faults().drop_watches();
    to_response(Ok(()))
}

#[derive(Deserialize)]
struct OutageBody {
    /// `None` means until started.
    seconds: Option<u64>,
}

async fn start_outage(member: &Arc<Member>, outage: Outage, body: OutageBody) -> Response {
    to_response(match body.seconds {
        Some(seconds) => member.start_outage_for(outage, Duration::from_secs(seconds)).await,
        None => member.start_outage(outage).await,
    })
}

async fn stop(TargetMember(member): TargetMember, Json(body): Json<OutageBody>) -> Response {
    start_outage(&member, Outage::Stopped, body).await
}

async fn silence(TargetMember(member): TargetMember, Json(body): Json<OutageBody>) -> Response {
    start_outage(&member, Outage::Silent, body).await
}

async fn partition(TargetMember(member): TargetMember, Json(body): Json<OutageBody>) -> Response {
    start_outage(&member, Outage::Partitioned, body).await
}

async fn flap(TargetMember(member): TargetMember, Json(body): Json<OutageBody>) -> Response {
    match body.seconds {
        None | Some(0) => {
            status_failure(StatusCode::BAD_REQUEST, "seconds must be at least 1: the duration of each phase")
        }
        Some(seconds) => to_response(member.flap(Duration::from_secs(seconds)).await),
    }
}

async fn start(TargetMember(member): TargetMember) -> Response {
    to_response(member.resume().await)
}

#[derive(Deserialize)]
struct ReadyzBody {
    status: Option<u16>,
}

async fn readyz(TargetMember(member): TargetMember, Json(readyz): Json<ReadyzBody>) -> Response {
    match readyz.status.map(StatusCode::from_u16).transpose() {
        Ok(status) => {
            member.faults().set_readyz(status);
            to_response(Ok(()))
        }
        Err(error) => status_failure(StatusCode::BAD_REQUEST, &error.to_string()),
    }
}

#[derive(Deserialize)]
struct ErrorsBody {
    percent: u8,
}

async fn errors(TargetMember(member): TargetMember, Json(ErrorsBody { percent }): Json<ErrorsBody>) -> Response {
    if percent > 100 {
        return status_failure(StatusCode::BAD_REQUEST, "percent must be at most 100");
    }
    member.faults().set_error_percent(percent);
    to_response(Ok(()))
}

async fn node(TargetMember(member): TargetMember, Path((_, name, action)): Path<(String, String, String)>) -> Response {
    match action.as_str() {
        "fail" => to_response(member.fail_node(&name).await),
        "recover" => to_response(member.recover_node(&name).await),
        _ => status_failure(StatusCode::NOT_FOUND, &format!("unknown node action {action}; use fail or recover")),
    }
}

async fn load(TargetMember(member): TargetMember, Json(load): Json<Load>) -> Response {
    match member.start_load(load).await {
        Ok(report) => Json(report).into_response(),
        Err(error) => error_response(&error),
    }
}
