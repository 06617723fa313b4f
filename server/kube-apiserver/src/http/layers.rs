//! Middleware functions; `http::build_service` defines their order.

use std::any::Any;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::{Request, State};
use axum::middleware::Next;
use crowsnest_apimachinery::content_negotiation::{self, Encoding, Offer};
use crowsnest_apimachinery::duration;
use crowsnest_apimachinery::rbac::Decision;
use crowsnest_apimachinery::request::{Query, RequestInfo, has_valid_host};
use crowsnest_apimachinery::status::{ApiError, Reason};
use crowsnest_apimachinery::user::UserInfo;
use crowsnest_apiserver::audit::{self, AUDIT_ID, FORWARDED_RECORD};
use crowsnest_apiserver::authn::bearer::{bearer_warning, strip_bearer};
use crowsnest_apiserver::authn::{impersonation, request_header};
use crowsnest_apiserver::serve::PeerAddress;
use crowsnest_apiserver::warnings;
use crowsnest_registry::authz;
use http::header::{ACCEPT, HeaderValue};
use tokio_util::sync::CancellationToken;
use tower_http::compression::Predicate;
use tracing::Instrument;

use crate::http::pages::Chunked;
use crate::http::{ApiState, Response, concurrency, request_audit, respond};

/// Time limit of ordinary requests; clients can request a shorter one with `timeout`.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);
/// Response size in bytes above which gzip compression is used for clients that accept it.
pub(crate) const MIN_COMPRESSED_BYTES: u64 = 128 * 1024;

/// Compresses large responses, but not watches, whose events would be delayed by buffering.
#[derive(Debug, Clone, Copy)]
pub(super) struct LargeResponses;

impl Predicate for LargeResponses {
    fn should_compress<B: http_body::Body>(&self, response: &http::Response<B>) -> bool {
        let is_chunked = response.extensions().get::<Chunked>().is_some();
        is_chunked || response.body().size_hint().exact().is_some_and(|size| size > MIN_COMPRESSED_BYTES)
    }
}

/// Response to a panic in a handler: 500; the server continues.
pub(super) fn panic_response(_: Box<dyn Any + Send + 'static>) -> Response {
    tracing::error!("a request handler panicked");
    respond::error(&ApiError::internal("the server has encountered an internal error"))
}

/// Adds the [`RequestInfo`] and the query as extensions, and the audit ID as a header of request and response.
pub(super) async fn attach_request_info(mut request: Request, next: Next) -> Response {
    // In-process requests have neither connection nor host.
    let from_network = request.extensions().get::<PeerAddress>().is_some();
    if from_network && !has_valid_host(request.version(), request.headers()) {
        return respond::text(400, "400 Bad Request: the request must have exactly one Host header\n");
    }
    let query = Query::parse(request.uri().query());
    let info = RequestInfo::parse(request.method(), request.uri().path(), &query);
    let audit_id = audit::audit_id(request.headers(), || uuid::Uuid::new_v4().to_string());
    let audit_id = HeaderValue::try_from(audit_id).unwrap_or(HeaderValue::from_static("-"));
    request.extensions_mut().insert(Arc::new(info));
    request.extensions_mut().insert(Arc::new(query));
    // Extension servers log the request with the same audit ID.
    request.headers_mut().insert(AUDIT_ID, audit_id.clone());
    request.headers_mut().remove(FORWARDED_RECORD);
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    headers.entry(AUDIT_ID).or_insert(audit_id);
    headers.entry(http::header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-cache, private"));
    response
}

/// Ends a request with 504 when its time limit expires; long-running requests are exempt.
pub(super) async fn limit_duration(request: Request, next: Next) -> Response {
    let is_long_running = info(&request).is_long_running();
    if is_long_running {
        return next.run(request).await;
    }
    let query = request.extensions().get::<Arc<Query>>().cloned().unwrap_or_default();
    let limit = match query.get("timeout").map(duration::parse) {
        Some(Err(error)) => {
            let text = format!("invalid timeout specified in the request URL - {error}");
            return respond::error_in(error_encoding(&request), &ApiError::bad_request(text));
        }
        Some(Ok(requested)) if requested.is_positive() => requested.unsigned_abs().min(REQUEST_TIMEOUT),
        _ => REQUEST_TIMEOUT,
    };
    match tokio::time::timeout(limit, next.run(request)).await {
        Ok(response) => response,
        Err(_) => {
            let text = "Timeout: request did not complete within the allotted timeout";
            respond::error(&ApiError::new(Reason::Timeout, text))
        }
    }
}

/// Authenticates the request and starts its audit record.
pub(super) async fn authenticate(State(api): State<Arc<ApiState>>, mut request: Request, next: Next) -> Response {
    let caller = api.authenticator.authenticate(request.headers(), request.extensions()).await;
    let bearer_warning = bearer_warning(request.headers()).map(str::to_owned);
    request_audit::begin(&api, &mut request, caller.as_ref().ok()).await;
    let record = request_audit::record(request.extensions()).cloned();
    let info = info(&request);
    let is_delegated = || !info.group.is_empty() && api.delegate_for(&info.group, &info.version).is_some();
    let copies_bodies = record.is_some() && info.is_resource && !is_delegated();
    let handler = async move {
        match caller {
            Ok(user) => {
                strip_bearer(request.headers_mut());
                request_header::strip_remote_headers(request.headers_mut());
                request.extensions_mut().insert(user);
                next.run(request).await
            }
            Err(error) => respond::error(&error),
        }
    };
    let mut response = request_audit::run_audited(record, copies_bodies, handler).await;
    warnings::append(response.headers_mut(), bearer_warning.as_slice());
    response
}

/// Replaces the user of the request with the one that the `Impersonate-*` headers request, if the caller may
/// impersonate that user.
pub(super) async fn impersonate(State(api): State<Arc<ApiState>>, mut request: Request, next: Next) -> Response {
    let requested = match impersonation::requested_user(request.headers()) {
        Ok(Some(requested)) => requested,
        Ok(None) => return next.run(request).await,
        Err(error) => return respond::error(&error),
    };
    let (caller, action) = (user(&request), authz::action(&info(&request)));
    let (user, mode) = match api.impersonator.impersonate(&*api.authorizer, &caller, &requested, &action).await {
        Ok(impersonated) => impersonated,
        Err(error) => return respond::error_in(error_encoding(&request), &error),
    };
    impersonation::strip(request.headers_mut());
    if let Some(record) = request_audit::record(request.extensions()) {
        record.record_impersonation(&user, mode.constraint());
    }
    request.extensions_mut().insert(user);
    next.run(request).await
}

/// Limits the number of concurrent requests; long-running ones are exempt.
pub(super) async fn limit_concurrency(State(api): State<Arc<ApiState>>, request: Request, next: Next) -> Response {
    let info = info(&request);
    if info.is_long_running() || !info.is_resource {
        return next.run(request).await;
    }
    let is_read = ["get", "list"].contains(&info.verb.as_str());
    let (permits, user) = (if is_read { &api.read_permits } else { &api.write_permits }, user(&request));
    match permits.acquire(&user, concurrency::PERMIT_TIMEOUT).await {
        Some(permit) => run_blocking_if_large(request, next, permit).await,
        None => respond::error_in(error_encoding(&request), &permits.reject(Instant::now())),
    }
}

/// Body size in bytes above which a request is handled on a blocking thread.
const MAX_ASYNC_BODY_BYTES: u64 = 16 * 1024;

/// Handles a request with a large body on a blocking thread, because decoding and validation would delay other
/// requests on the runtime's threads. If this future is dropped because of a disconnect or timeout, the handler ends at
/// its next await point, such as reading the body, and releases its permit.
async fn run_blocking_if_large(request: Request, next: Next, permit: concurrency::RequestPermit) -> Response {
    if http_body::Body::size_hint(request.body()).exact().is_some_and(|size| size <= MAX_ASYNC_BODY_BYTES) {
        return next.run(request).await;
    }
    let span = tracing::Span::current();
    let runtime = tokio::runtime::Handle::current();
    let cancelled = CancellationToken::new();
    let _cancel_on_drop = cancelled.clone().drop_guard();
    let handled = tokio::task::spawn_blocking(move || {
        let _permit = permit;
        runtime.block_on(cancelled.run_until_cancelled(next.run(request).instrument(span)))
    });
    match handled.await {
        Ok(Some(response)) => response,
        // The client has disconnected.
        Ok(None) => respond::error(&ApiError::new(Reason::Timeout, "the request was abandoned")),
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(error) => respond::error(&ApiError::internal(error)),
        },
    }
}

/// Rejects requests that the user is not authorized for, and records the decision in the audit log.
pub(super) async fn authorize(State(api): State<Arc<ApiState>>, request: Request, next: Next) -> Response {
    let (user, action) = (user(&request), authz::action(&info(&request)));
    let decision = api.authorizer.decide(&user, &action);
    if let Some(record) = request_audit::record(request.extensions()) {
        match &decision {
            Decision::Allowed { reason } => record.record_authorization(true, reason),
            Decision::NoOpinion { reason } => record.record_authorization(false, reason),
        }
    }
    match authz::require_allowed(&user, &action, decision) {
        Ok(()) => next.run(request).await,
        // The error contains user input, which a browser must not interpret as HTML.
        Err(error) => respond::with_nosniff(respond::error_in(error_encoding(&request), &error)),
    }
}

/// Encoding of an error: as the client accepts it, otherwise JSON.
fn error_encoding(request: &http::Request<Body>) -> Encoding {
    let header = request.headers().get(ACCEPT).and_then(|value| value.to_str().ok());
    content_negotiation::choose_representation(header, Offer::Object)
        .map(|representation| representation.encoding)
        .unwrap_or_default()
}

/// The parsed request, set by [`attach_request_info`].
pub(super) fn info(request: &http::Request<Body>) -> Arc<RequestInfo> {
    request.extensions().get::<Arc<RequestInfo>>().cloned().unwrap_or_default()
}

/// The authenticated user, set by [`authenticate`] or [`impersonate`].
pub(super) fn user(request: &http::Request<Body>) -> UserInfo {
    request.extensions().get::<UserInfo>().cloned().unwrap_or_default()
}
