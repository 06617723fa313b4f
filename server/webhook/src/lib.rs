//! Admission and conversion webhooks over HTTPS: decode a review, load the objects that the decision needs, decide,
//! respond.
//!
//! `crowsnest_admission` implements the rules. Besides Karmada's webhooks, one path admits the objects that the
//! aggregated server stores in its internal group, and another one the Secrets that members' agents write.
//!
//! A review writes nothing. Its only effect is a quota reservation in memory, for an authenticated API server
//! ([`quota`]). Controllers act on an admitted object once it is stored.

use crowsnest_apimachinery::status::{ApiError, Reason};
use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, MatchedPath, Path, Request, State};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::Response;
use axum::routing::post;
use axum::{Extension, Router};
use crowsnest_admission::{AdmissionContext, Gates, Refusal, Review};
use crowsnest_api::config::ResourceInterpreterCustomization;
use crowsnest_api::policy::FederatedResourceQuota;
use crowsnest_apimachinery::user::UserInfo;
use crowsnest_interpreter::customized::declarative;
use crowsnest_interpreter::customized::declarative::pool::{self, ScriptPermits};
use http::StatusCode;
use kube::api::{Api, ListParams};
use serde_json::{Value, json};
use tracing::{Instrument, Span};

mod agents;
pub mod clients;
mod envelope;
pub mod metrics;
mod quota;
mod stored;

use clients::{Caller, Clients};
use crowsnest_aggregated::request::authentication::DelegatedAuth;
use crowsnest_aggregated::request::trace::{record_status, webhook_span};
use crowsnest_process::reply::{HandlerError, json as reply};
use crowsnest_runtime::metrics::AdmissionMetrics;

/// Client of the control plane, and settings of the admission webhooks; feature gates are those of the controllers.
#[derive(Clone)]
pub struct WebhookConfig {
    pub control_plane: kube::Client,
    pub gates: Gates,
    pub allow_no_execute_taint_policy: bool,
    /// Allow Clusters with endpoints on this host.
    pub allow_local_endpoints: bool,
}

/// State shared by all requests.
struct SharedState {
    config: WebhookConfig,
    delegated: DelegatedAuth,
    quota_state: quota::QuotaState,
    /// Limit of concurrent script compilations.
    compile_permits: ScriptPermits,
}

/// Routes of a control plane's webhooks for `clients`. Feature gates are taken from the configuration of the
/// controllers; `allow_local_endpoints` allows Clusters with endpoints on this host.
pub fn routes(
    control_plane: kube::Client,
    controllers: &crowsnest_controllers::runtime::Config,
    allow_local_endpoints: bool,
    admissions: &AdmissionMetrics,
    clients: Clients,
) -> Router {
    let config = WebhookConfig {
        control_plane,
        gates: controllers.gates,
        allow_no_execute_taint_policy: controllers.allow_no_execute_taint_policy,
        allow_local_endpoints,
    };
    let count_reviews = from_fn_with_state(admissions.clone(), metrics::count);
    let delegated = DelegatedAuth::new(config.control_plane.clone());
    let (quota_state, compile_permits) = (quota::QuotaState::default(), ScriptPermits::default());
    let shared = SharedState { config, delegated, quota_state, compile_permits };
    let limit_reviews = from_fn_with_state(envelope::ReviewLimits::default(), envelope::limit);
    let reviews = Router::new()
        .route("/stored/{resource}", post(stored_object))
        .route(crowsnest_admission::agents::PATH, post(agent_secret))
        .route("/{path}", post(review).layer(count_reviews))
        .layer(limit_reviews.clone())
        // No body is read for clients that are not admitted.
        .layer(from_fn_with_state(clients, clients::admit));
    // API servers present no client certificate for conversions, and a conversion depends only on its request.
    let conversions = Router::new().route("/convert", post(convert)).layer(limit_reviews);
    reviews
        .merge(conversions)
        .layer(DefaultBodyLimit::max(envelope::MAX_REQUEST_BYTES))
        .layer(from_fn(trace))
        .layer(tower_http::catch_panic::CatchPanicLayer::new())
        .with_state(Arc::new(shared))
}

async fn trace(request: Request, next: Next) -> Response {
    let route = request.extensions().get::<MatchedPath>().map_or("webhook", MatchedPath::as_str);
    let span = webhook_span(request.method(), route, request.headers());
    let response = next.run(request).instrument(span.clone()).await;
    record_status(&span, response.status());
    response
}

/// The user whose request is reviewed.
fn parse_user(request: &Value) -> UserInfo {
    let user = &request["userInfo"];
    let read_text = |field: &str| user[field].as_str().unwrap_or_default().to_owned();
    let read_list =
        |values: &Value| values.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect();
    let extra = user["extra"].as_object().into_iter().flatten();
    UserInfo {
        name: read_text("username"),
        uid: read_text("uid"),
        groups: read_list(&user["groups"]),
        extra: extra.map(|(key, values)| (key.clone(), read_list(values))).collect(),
    }
}

async fn convert(body: Bytes) -> Result<Response, HandlerError> {
    let review = envelope::parse_conversion_review(&body)?;
    Ok(reply(StatusCode::OK, &crowsnest_admission::convert_review(&review)))
}

async fn agent_secret(State(shared): State<Arc<SharedState>>, body: Bytes) -> Result<Response, HandlerError> {
    let (review, _) = envelope::parse_admission_review(&body)?;
    Ok(agents::review(&shared.config.control_plane, &review["request"]).await?)
}

async fn stored_object(
    State(shared): State<Arc<SharedState>>,
    Path(resource): Path<String>,
    body: Bytes,
) -> Result<Response, HandlerError> {
    let (review, _) = envelope::parse_admission_review(&body)?;
    let authorization = stored::authorize_writer(&shared.delegated, &resource, &review["request"]).await;
    if let Err(error) = authorization {
        return Ok(reply(StatusCode::OK, &refuse(&review["request"]["uid"], &error.to_status())));
    }
    let settings = stored::AdmissionSettings {
        adds_default_models: shared.config.gates.customized_cluster_resource_modeling,
        allow_local_endpoints: shared.config.allow_local_endpoints,
    };
    Ok(reply(StatusCode::OK, &stored::review(&resource, &review, settings, jiff::Timestamp::now())))
}

async fn review(
    State(shared): State<Arc<SharedState>>,
    Path(path): Path<String>,
    Extension(caller): Extension<Caller>,
    body: Bytes,
) -> Result<Response, HandlerError> {
    let path = format!("/{path}");
    let (_, request) = envelope::parse_admission_review(&body)?;
    let review = match decide(&shared, &path, &request, caller).await {
        Ok(Some(review)) => {
            // The path is that of a known webhook.
            Span::current().record("crowsnest.webhook", path.as_str());
            review
        }
        Ok(None) => return Err(ApiError::new(Reason::NotFound, format!("no webhook at {path}")).into()),
        // Respond with a refusal that names the cause, not with an HTTP error that reports a failed webhook call.
        Err(error) => Review::from(Err(Refusal::internal(error.to_string()))),
    };
    Ok(reply(StatusCode::OK, &review.to_wire(&request)))
}

/// Loads the objects that the webhook at `path` needs and decides; `None` if no webhook has this path.
async fn decide(
    shared: &SharedState,
    path: &str,
    request: &crowsnest_admission::Request,
    caller: Caller,
) -> Result<Option<crowsnest_admission::Review>, kube::Error> {
    let config = &shared.config;
    let required = crowsnest_admission::required_state(path);
    if required.quotas && config.gates.federated_quota_enforcement {
        return quota::QuotaReview { config, state: &shared.quota_state, path, request, caller }.decide().await;
    }
    if !required.customizations {
        return Ok(evaluate(config, path, request, &[], &[]));
    }
    let customizations = list_all(Api::<ResourceInterpreterCustomization>::all(config.control_plane.clone())).await?;
    // Compiling a user's scripts may take a long time.
    let (config, path, request) = (config.clone(), path.to_owned(), request.clone());
    let evaluation =
        pool::run(&shared.compile_permits, move || Ok(evaluate(&config, &path, &request, &customizations, &[])));
    Ok(evaluation.await.unwrap_or_else(|error| Some(Review::from(Err(Refusal::internal(error.to_string()))))))
}

fn evaluate(
    config: &WebhookConfig,
    path: &str,
    request: &crowsnest_admission::Request,
    customizations: &[ResourceInterpreterCustomization],
    quotas: &[FederatedResourceQuota],
) -> Option<crowsnest_admission::Review> {
    let permanent_id = uuid::Uuid::new_v4().to_string();
    let context = AdmissionContext {
        permanent_id: &permanent_id,
        gates: config.gates,
        allow_no_execute_taint_policy: config.allow_no_execute_taint_policy,
        customizations,
        quotas,
        compile_lua: &|script| declarative::compile(script).map_err(|problem| problem.to_string()),
    };
    crowsnest_admission::review(path, request, &context)
}

async fn list_all<K>(api: Api<K>) -> Result<Vec<K>, kube::Error>
where
    K: kube::Resource + Clone + serde::de::DeserializeOwned + std::fmt::Debug,
{
    Ok(api.list(&ListParams::default()).await?.items)
}

/// Response to an AdmissionReview that refuses it with a Status.
fn refuse(uid: &Value, status: &Value) -> Value {
    let response = json!({"uid": uid, "allowed": false, "status": status});
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response})
}

/// Response to an AdmissionReview that allows it, with a JSON patch if there are changes.
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
