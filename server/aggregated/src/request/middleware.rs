//! Middleware from the socket to the handler, in this order: assign an ID → trace → authenticate → audit → impersonate
//! → limit concurrency → authorize → limit the time → handle. A panic is audited and passed on to the layer that responds to it.
//!
//! A request forwarded by a control plane in this process already has an audit record, which is found and extended.

use crowsnest_apimachinery::status::ApiError;
use crowsnest_process::reply::StatusResponse;
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::{Extension, Request, State};
use axum::response::Response;
use crowsnest_apimachinery::request::{has_valid_host, is_supported_method};
use crowsnest_apimachinery::user::AUTHENTICATED;
use crowsnest_apiserver::audit::tracked_body::{BodyCapture, TrackedBody};
use crowsnest_apiserver::audit::{self, AUDIT_ID, Auditor, FORWARDED_RECORD, Record};
use crowsnest_apiserver::authn::bearer::strip_bearer;
use crowsnest_apiserver::authn::{impersonation, request_header};
use crowsnest_component_base::metrics::Series;
use crowsnest_component_base::spans::SpanGuard;
use crowsnest_process::client_certificate::Peer;
use crowsnest_process::reload::ReloadCounters;
use futures::FutureExt;
use http::HeaderValue;
use jiff::Timestamp;
use tracing::Instrument;

use crate::request::audit::AuditObserver;
use crate::request::authentication::DelegatedAuth;
use crate::request::context::{RequestAttributes, RequestContext};
use crate::request::limits::{InFlight, Limits};
use crate::request::trace;
use crate::resource::registry::Route;
use crate::server::{AggregatedServer, dispatch, health};
use crowsnest_process::reply::{Body, ResponseStatus};
use crowsnest_runtime::metrics::ProcessMetrics;

/// Middleware in front of the handlers.
#[derive(Clone)]
pub struct ApiMiddleware {
    pub auditor: Auditor,
    pub limits: Limits,
    pub reloads: Arc<ReloadCounters>,
    pub metrics: Arc<ProcessMetrics>,
    /// Time limit for the start of this server's own responses. The proxy sets the limit for members.
    pub timeout: Duration,
}

impl ApiMiddleware {
    /// Problems of the middleware, one per line.
    pub fn problems(&self) -> Option<String> {
        self.auditor.log().and_then(|log| log.failure()).map(|problem| format!("audit: {problem}"))
    }

    pub fn series(&self) -> impl Iterator<Item = Series> {
        let event_counts = self.auditor.log().map(|log| log.event_counts());
        let audit_series = event_counts.into_iter().flat_map(|event_counts| {
            let count = |name, help, value| Series { name, help, is_counter: true, labels: Vec::new(), value };
            [
                count("crowsnest_audit_events_total", "Audit events written.", event_counts.written),
                count(
                    "crowsnest_audit_events_dropped_total",
                    "Audit events lost to a full queue.",
                    event_counts.dropped,
                ),
                count(
                    "crowsnest_audit_events_failed_total",
                    "Audit events that could not be written.",
                    event_counts.failed,
                ),
            ]
        });
        audit_series.chain(self.reloads.series())
    }
}

pub async fn serve(
    State(state): State<AggregatedServer>,
    Extension(peer): Extension<Peer>,
    request: Request,
) -> Response {
    let received_at = Timestamp::now();
    // In-process requests have no connection and no host.
    if peer.address.is_some() && !has_valid_host(request.version(), request.headers()) {
        return ApiError::bad_request("the request must have exactly one Host header").into_response();
    }
    let attributes = RequestAttributes::parse(state.registry, request.method(), request.uri(), request.headers());
    if matches!(attributes.route, Route::Health) {
        return health(&state);
    }
    let id = audit::audit_id(request.headers(), || uuid::Uuid::new_v4().to_string());
    let span = trace::request_span((&attributes, &id), request.method(), request.headers(), &peer);
    let is_long_running = attributes.is_long_running;
    let response = respond(state, peer, request, attributes, (received_at, id)).instrument(span.clone()).await;
    trace::record_status(&span, response.status());
    // For watches and tunnels, the span covers the beginning only.
    match is_long_running || span.is_disabled() {
        true => response,
        false => response.map(|body| Body::new(TrackedBody::new(body, SpanGuard(span)))),
    }
}

async fn respond(
    state: AggregatedServer,
    peer: Peer,
    mut request: Request,
    attributes: RequestAttributes,
    (received_at, id): (Timestamp, String),
) -> Response {
    let caller = state.delegated.authenticate(&peer, request.headers()).await;
    // The caller's credentials must not reach any later handler.
    strip_bearer(request.headers_mut());
    request_header::strip_remote_headers(request.headers_mut());
    let record = match take_forwarded_record(&state.middleware.auditor, &peer, &mut request) {
        Some(record) => record,
        None => {
            let forwarded = attributes.forwarded_request();
            let audit_request = audit::Request {
                audit_id: &id,
                received_at,
                uri: request.uri(),
                headers: request.headers(),
                peer: peer.address,
                attributes: &attributes.authz,
                forwarded: Some(&forwarded),
            };
            state.middleware.auditor.begin(&audit_request, caller.as_ref().ok(), attributes.is_long_running).await
        }
    };
    // Bodies of requests to members are not audited here.
    let is_stored = attributes.route.resource_route().is_some_and(|found| found.resource.stored_group().is_some());
    let stored_record = record.clone().filter(|_| is_stored);
    if let Some(record) = &record {
        let observer: Arc<dyn crowsnest_proxy::ClusterObserver> = Arc::new(AuditObserver(Arc::clone(record)));
        request.extensions_mut().insert(observer);
    }
    if let Some(capture) =
        stored_record.as_ref().and_then(|stored_record| BodyCapture::request(stored_record, request.headers()))
    {
        request = request.map(|body| Body::new(TrackedBody::new(body, ()).with_capture(Some(capture))));
    }
    let context = caller.map(|user| RequestContext { user, peer, attributes, audit: record.clone() });
    let handled = AssertUnwindSafe(handle(&state, context, request));
    let (mut response, in_flight) = match handled.catch_unwind().await {
        Ok(Ok((response, in_flight))) => {
            if let Some(record) = &record {
                let response_status = response.extensions().get::<ResponseStatus>().cloned();
                record
                    .record_response_start(
                        response.status(),
                        response_status.as_ref().map(|ResponseStatus(status)| status),
                    )
                    .await;
            }
            (response, Some(in_flight))
        }
        Ok(Err(failure)) => {
            let status = failure.to_status();
            let response = failure.into_response();
            if let Some(record) = &record {
                record.record_response_start(response.status(), Some(&status)).await;
            }
            (response, None)
        }
        Err(panic) => {
            if let Some(record) = &record {
                record.record_panic();
            }
            resume_unwind(panic)
        }
    };
    if let Ok(id) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(AUDIT_ID, id);
    }
    let capture = stored_record
        .as_ref()
        .and_then(|stored_record| BodyCapture::response(stored_record, response.status(), response.headers()));
    response.map(|body| {
        let in_flight = in_flight
            .and_then(|in_flight| in_flight.start_response(http_body::Body::size_hint(&body).exact(), Instant::now()));
        Body::new(TrackedBody::new(body, (record, in_flight)).with_capture(capture))
    })
}

/// The audit record that the control plane passed on with a request, if it did. An inner `None` means that the request
/// is not audited.
fn take_forwarded_record(auditor: &Auditor, peer: &Peer, request: &mut Request) -> Option<Option<Arc<Record>>> {
    let name = request.headers_mut().remove(FORWARDED_RECORD).filter(|_| peer.is_front_proxy)?;
    auditor.take_forwarded(name.to_str().ok()?)
}

async fn handle(
    state: &AggregatedServer,
    context: Result<RequestContext, ApiError>,
    mut request: Request,
) -> Result<(Response, InFlight), ApiError> {
    let mut context = context?;
    if !is_supported_method(request.method()) {
        return Err(ApiError::method_not_allowed());
    }
    if let Some(error) = &context.attributes.path_error {
        return Err(ApiError::bad_request(error.to_string()));
    }
    if let Some(requested) = impersonation::requested_user(request.headers())? {
        let attributes = &context.attributes.authz;
        let (user, constraint) = state.delegated.impersonate(&context.user, &requested, attributes).await?;
        context.user = user;
        if let Some(record) = &context.audit {
            record.record_impersonation(&context.user, constraint);
        }
        impersonation::strip(request.headers_mut());
    }
    let in_flight = state.middleware.limits.admit(&context.user, &context.attributes, Instant::now())?;
    authorize(&state.delegated, &context).await?;
    let handling = dispatch(state, &context, request);
    let response = match context.attributes.is_long_running || context.attributes.member.is_some() {
        true => handling.await?,
        false => tokio::time::timeout(state.middleware.timeout, handling).await.map_err(|_| ApiError::timeout())??,
    };
    Ok((response, in_flight))
}

/// Authorizes and handles a request that a handler sends on behalf of its caller.
pub async fn handle_for(
    server: &AggregatedServer,
    outer: &RequestContext,
    request: Request,
) -> Result<Response, ApiError> {
    let attributes = RequestAttributes::parse(server.registry, request.method(), request.uri(), request.headers());
    if let Some(error) = &attributes.path_error {
        return Err(ApiError::bad_request(error.to_string()));
    }
    let context = RequestContext { user: outer.user.clone(), peer: outer.peer.clone(), attributes, audit: None };
    authorize(&server.delegated, &context).await?;
    dispatch(server, &context, request).await
}

/// Refuses a request that the caller must not make. As with kube-apiserver's ClusterRole `system:discovery`, all
/// authenticated users may use discovery.
async fn authorize(delegated: &DelegatedAuth, context: &RequestContext) -> Result<(), ApiError> {
    let RequestContext { user, attributes, audit, .. } = context;
    if attributes.route.is_discovery() && user.groups.iter().any(|group| group == AUTHENTICATED) {
        return Ok(());
    }
    let decision = delegated.review(user, &attributes.authz).await?;
    if let Some(record) = audit {
        record.record_authorization(decision.allowed, &decision.reason);
    }
    decision.check(user, &attributes.authz)
}
