//! Audit record of a request, from authentication to the last byte of the response.
//!
//! Requests of in-process clients are not logged: they implement requests of users, which are logged.

use std::panic::{AssertUnwindSafe, resume_unwind};
use std::sync::Arc;

use axum::body::Body;
use crowsnest_apimachinery::user::UserInfo;
use crowsnest_apiserver::audit::tracked_body::{BodyCapture, TrackedBody};
use crowsnest_apiserver::audit::{self, Auditor, Record};
use crowsnest_apiserver::authn::InProcessUser;
use crowsnest_apiserver::serve::PeerAddress;
use futures::FutureExt;
use serde_json::Value;

use crate::http::{ApiState, Response, layers};

/// Request extension with the auditor, if there is an audit log.
#[derive(Clone)]
pub(crate) struct RequestAudit {
    pub auditor: Auditor,
    /// `None` if the request is not logged.
    pub record: Option<Arc<Record>>,
}

/// Response extension with the `Status` in the body.
#[derive(Clone)]
pub(super) struct ReturnedStatus(pub Arc<Value>);

/// The audit record of a request, if there is one.
pub(crate) fn record(extensions: &http::Extensions) -> Option<&Arc<Record>> {
    extensions.get::<RequestAudit>().and_then(|audit| audit.record.as_ref())
}

/// Starts the audit record of a request. `user` is `None` if authentication failed.
pub(super) async fn begin(api: &ApiState, request: &mut http::Request<Body>, user: Option<&UserInfo>) {
    let auditor = &api.auditor;
    if auditor.log().is_none() {
        return;
    }
    let record = match request.extensions().get::<InProcessUser>() {
        Some(_) => None,
        None => {
            let info = layers::info(request);
            let attributes = audit::Attributes::from((*info).clone());
            let forwarded = auditor.forwarded_request(request.method(), request.uri(), request.headers());
            let is_long_running =
                forwarded.as_ref().map_or(info.is_long_running(), |forwarded| forwarded.is_long_running);
            let id = audit::audit_id(request.headers(), String::new);
            let audit_request = audit::Request {
                audit_id: &id,
                received_at: jiff::Timestamp::now(),
                uri: request.uri(),
                headers: request.headers(),
                peer: request.extensions().get::<PeerAddress>().map(|PeerAddress(address)| *address),
                attributes: &attributes,
                forwarded: forwarded.as_ref(),
            };
            auditor.begin(&audit_request, user, is_long_running).await
        }
    };
    request.extensions_mut().insert(RequestAudit { auditor: auditor.clone(), record });
}

/// Runs a handler and keeps the audit record until the last byte of the response. `copies_bodies` is true if the record
/// includes the response body; it is false for proxied requests.
pub(super) async fn run_audited(
    record: Option<Arc<Record>>,
    copies_bodies: bool,
    handler: impl Future<Output = Response> + Send,
) -> Response {
    let Some(record) = record else { return handler.await };
    let response = match AssertUnwindSafe(handler).catch_unwind().await {
        Ok(response) => response,
        Err(panic) => {
            record.record_panic();
            resume_unwind(panic)
        }
    };
    let status = response.extensions().get::<ReturnedStatus>().cloned();
    record.record_response_start(response.status(), status.as_ref().map(|ReturnedStatus(status)| &**status)).await;
    let capture =
        copies_bodies.then(|| BodyCapture::response(&record, response.status(), response.headers())).flatten();
    response.map(|body| Body::new(TrackedBody::new(body, record).with_capture(capture)))
}
