//! `/sim/…` on a member's address: faults and state, for members of `system:masters` only.
//!
//! | request | body | does |
//! |---|---|---|
//! | `GET /sim/state` | | counts, delay, nodes |
//! | `POST /sim/delay` | `{"milliseconds": 500}` | every request takes that much longer; 0 for none |
//! | `POST /sim/watches/drop` | | cuts off open watches |
//! | `POST /sim/stop` | `{"seconds": 30}` | unreachable for that long |
//! | `POST /sim/nodes/{name}/fail`, `/recover` | | the node is lost, or back |
//! | `POST /sim/load` | `{"pods": 1000, "churn": 5.0, "seed": 1}` | tops up synthetic workloads; `churn` changes a second; answers what is there |

use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use axum::extract::{Path, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::error::Error;
use crate::load::Load;

use super::Member;
use super::store::Stored;

/// The member, which is made after its routes.
pub type Slot = Arc<OnceLock<Weak<Member>>>;

type Reached = State<Slot>;

fn find(slot: &Slot) -> Option<Arc<Member>> {
    slot.get()?.upgrade()
}

/// The routes, behind authentication.
pub fn routes(slot: Slot) -> Router {
    Router::new()
        .route("/sim/state", get(state))
        .route("/sim/delay", post(delay))
        .route("/sim/watches/drop", post(drop_watches))
        .route("/sim/stop", post(stop))
        .route("/sim/nodes/{name}/{verb}", post(node))
        .route("/sim/load", post(load))
        .layer(axum::middleware::from_fn_with_state(slot.clone(), masters_only))
        .with_state(slot)
}

fn refuse(code: StatusCode, message: impl Into<String>) -> Response {
    let message = message.into();
    let reason = code.canonical_reason().unwrap_or_default().replace(' ', "");
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message,
        "reason": reason, "code": code.as_u16()});
    (code, Json(status)).into_response()
}

fn gone() -> Response {
    refuse(StatusCode::SERVICE_UNAVAILABLE, "the member is stopping")
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
    refuse(code, error.to_string())
}

async fn masters_only(State(slot): Reached, request: Request, next: Next) -> Response {
    let Some(member) = find(&slot) else { return gone() };
    let authenticator = member.server().api().authenticator.clone();
    drop(member);
    match authenticator.authenticate(request.headers(), request.extensions()).await {
        Ok(user) if user.groups.iter().any(|group| group == "system:masters") => next.run(request).await,
        Ok(user) => refuse(StatusCode::FORBIDDEN, format!("User \"{}\" may not steer the simulation", user.name)),
        Err(error) => refuse(StatusCode::UNAUTHORIZED, error.to_string()),
    }
}

async fn state(State(slot): Reached) -> Response {
    let Some(member) = find(&slot) else { return gone() };
    let world = member.world();
    let nodes: Vec<Value> = world
        .nodes
        .all()
        .iter()
        .map(|node| json!({"name": &*node.key().name, "failed": super::node::is_failed(node)}))
        .collect();
    Json(json!({
        "name": &*world.name,
        "pods": world.pods.len(),
        "readyPods": world.pods.all().iter().filter(|pod| pod.is_active() && pod.is_ready()).count(),
        "changes": member.changes(),
        "nodes": nodes,
        "delayMilliseconds": member.faults().delay().as_millis() as u64,
        "droppedEvents": world.recorder.dropped(),
    }))
    .into_response()
}

#[derive(Deserialize)]
struct Delay {
    milliseconds: u64,
}

async fn delay(State(slot): Reached, Json(delay): Json<Delay>) -> Response {
    let Some(member) = find(&slot) else { return gone() };
    member.faults().set_delay(Duration::from_millis(delay.milliseconds));
    outcome(Ok(()))
}

async fn drop_watches(State(slot): Reached) -> Response {
    let Some(member) = find(&slot) else { return gone() };
    member.faults().drop_watches();
    outcome(Ok(()))
}

#[derive(Deserialize)]
struct Stop {
    seconds: u64,
}

async fn stop(State(slot): Reached, Json(stop): Json<Stop>) -> Response {
    let Some(member) = find(&slot) else { return gone() };
    member.stop_for(Duration::from_secs(stop.seconds));
    outcome(Ok(()))
}

async fn node(State(slot): Reached, Path((name, verb)): Path<(String, String)>) -> Response {
    let Some(member) = find(&slot) else { return gone() };
    match verb.as_str() {
        "fail" => outcome(member.fail_node(&name).await),
        "recover" => outcome(member.recover_node(&name).await),
        _ => refuse(StatusCode::NOT_FOUND, format!("nodes can fail and recover, not {verb}")),
    }
}

async fn load(State(slot): Reached, Json(load): Json<Load>) -> Response {
    let Some(member) = find(&slot) else { return gone() };
    match member.start_load(load).await {
        Ok(report) => Json(report).into_response(),
        Err(error) => refused(&error),
    }
}
