//! The admission and conversion webhooks over HTTPS: decode, gather what the decision needs, call it, answer.
//!
//! The rules are `crowsnest_controllers::admission`'s. Two more paths admit what the aggregated server keeps in the internal group.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, State};
use axum::response::Response;
use axum::routing::post;
use crowsnest_api::config::ResourceInterpreterCustomization;
use crowsnest_api::policy::FederatedResourceQuota;
use crowsnest_controllers::admission::{self, Gates, World};
use crowsnest_controllers::interpreter::lua;
use http::StatusCode;
use kube::api::{Api, ListParams, PostParams};
use serde_json::{Value, json};

mod stored;

use crate::aggregated::reply::{Failure, json as reply};

/// Settings of admission; the gates are those of the loops.
#[derive(Clone)]
pub(crate) struct Webhooks {
    pub(crate) control_plane: kube::Client,
    pub(crate) gates: Gates,
    pub(crate) allow_no_execute_taint_policy: bool,
}

/// How often a review whose quota writes met a conflict is asked again.
const QUOTA_ATTEMPTS: usize = 5;

pub(crate) fn router(webhooks: Webhooks) -> Router {
    Router::new()
        .route("/convert", post(convert))
        .route("/stored/{resource}", post(stored_object))
        .route("/{path}", post(review))
        .layer(tower_http::catch_panic::CatchPanicLayer::new())
        .with_state(Arc::new(webhooks))
}

/// The configurations of the internal group's admission. `base_url` has no trailing slash; `ca_bundle` is PEM in base64.
pub(crate) fn stored_configurations(ca_bundle: &str, base_url: &str) -> [Value; 2] {
    stored::configurations(ca_bundle, base_url)
}

async fn convert(axum::Json(review): axum::Json<Value>) -> Response {
    reply(StatusCode::OK, &admission::convert_review(&review))
}

async fn stored_object(
    State(webhooks): State<Arc<Webhooks>>,
    Path(resource): Path<String>,
    axum::Json(review): axum::Json<Value>,
) -> Response {
    let modelled = webhooks.gates.customized_cluster_resource_modeling;
    reply(StatusCode::OK, &stored::review(&resource, &review, modelled, jiff::Timestamp::now()))
}

async fn review(
    State(webhooks): State<Arc<Webhooks>>,
    Path(path): Path<String>,
    axum::Json(body): axum::Json<Value>,
) -> Response {
    let path = format!("/{path}");
    let request = match admission::Request::from_review(&body["request"]) {
        Ok(request) => request,
        Err(_) => match admission::Request::from_review(&body) {
            Ok(request) => request,
            Err(error) => return Failure::bad_request(format!("not an AdmissionReview: {error}")).into_response(),
        },
    };
    match decide(&webhooks, &path, &request).await {
        Ok(Some(review)) => reply(StatusCode::OK, &review.to_wire(&request)),
        Ok(None) => Failure::not_found(format!("there is no webhook at {path}")).into_response(),
        Err(error) => Failure::upstream(error).into_response(),
    }
}

async fn decide(
    webhooks: &Webhooks,
    path: &str,
    request: &admission::Request,
) -> Result<Option<admission::Review>, kube::Error> {
    let needs = admission::needs(path);
    for attempt in 1..=QUOTA_ATTEMPTS {
        let customizations = match needs.customizations {
            true => listed(Api::<ResourceInterpreterCustomization>::all(webhooks.control_plane.clone())).await?,
            false => Vec::new(),
        };
        let quotas = match needs.quotas && webhooks.gates.federated_quota_enforcement {
            true => {
                listed(Api::<FederatedResourceQuota>::namespaced(webhooks.control_plane.clone(), &request.namespace))
                    .await?
            }
            false => Vec::new(),
        };
        let id = uuid::Uuid::new_v4().to_string();
        let Some(review) = judge(webhooks, path, request, &id, &customizations, &quotas) else { return Ok(None) };
        if review.quota_usage.is_empty() || request.is_dry_run() || !review.is_allowed() {
            return Ok(Some(review));
        }
        match record(webhooks, &review.quota_usage).await {
            Ok(()) => return Ok(Some(review)),
            Err(kube::Error::Api(status)) if status.code == 409 && attempt < QUOTA_ATTEMPTS => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

fn judge(
    webhooks: &Webhooks,
    path: &str,
    request: &admission::Request,
    permanent_id: &str,
    customizations: &[ResourceInterpreterCustomization],
    quotas: &[FederatedResourceQuota],
) -> Option<admission::Review> {
    let world = World {
        permanent_id,
        gates: webhooks.gates,
        allow_no_execute_taint_policy: webhooks.allow_no_execute_taint_policy,
        customizations,
        quotas,
        compile_lua: &|script| lua::compile(script).map_err(|problem| problem.to_string()),
    };
    admission::review(path, request, &world)
}

async fn record(webhooks: &Webhooks, quotas: &[FederatedResourceQuota]) -> Result<(), kube::Error> {
    for quota in quotas {
        let namespace = quota.metadata.namespace.as_deref().unwrap_or_default();
        let name = quota.metadata.name.as_deref().unwrap_or_default();
        let api: Api<FederatedResourceQuota> = Api::namespaced(webhooks.control_plane.clone(), namespace);
        api.replace_status(name, &PostParams::default(), quota).await?;
    }
    Ok(())
}

async fn listed<K>(api: Api<K>) -> Result<Vec<K>, kube::Error>
where
    K: kube::Resource + Clone + serde::de::DeserializeOwned + std::fmt::Debug,
{
    Ok(api.list(&ListParams::default()).await?.items)
}

/// The answer of an AdmissionReview that allows, with a JSON patch when there is one.
fn allow(uid: &Value, patch: Option<&json_patch::Patch>) -> Value {
    use base64::Engine;
    let mut response = json!({"uid": uid, "allowed": true});
    if let Some(patch) = patch.filter(|p| !p.0.is_empty())
        && let Ok(text) = serde_json::to_vec(patch)
    {
        response["patchType"] = "JSONPatch".into();
        response["patch"] = base64::engine::general_purpose::STANDARD.encode(text).into();
    }
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response})
}
