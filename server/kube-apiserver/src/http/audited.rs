//! Connects a request with its audit record.
//!
//! Requests of in-process clients are not logged: they implement requests that were logged when users made them.

use std::panic::{AssertUnwindSafe, resume_unwind};
use std::sync::Arc;

use axum::body::Body;
use crowsnest_apimachinery::user::UserInfo;
use crowsnest_apiserver::audit::held::{BodyCapture, TrackedBody};
use crowsnest_apiserver::audit::{self, Auditor, Record};
use crowsnest_apiserver::authn::InProcessUser;
use crowsnest_apiserver::serve::PeerAddress;
use futures::FutureExt;
use serde_json::Value;

use crate::http::{Api, Response, layers};

/// Request extension with the auditor, if there is an audit log.
#[derive(Clone)]
pub(crate) struct Audited {
    pub auditor: Auditor,
    /// `None` if the request is not logged.
    pub record: Option<Arc<Record>>,
}

/// Response extension with the `Status` that was returned.
#[derive(Clone)]
pub(super) struct Told(pub Arc<Value>);

/// The audit record of a request, if there is one.
pub(crate) fn record(extensions: &http::Extensions) -> Option<&Arc<Record>> {
    extensions.get::<Audited>().and_then(|audited| audited.record.as_ref())
}

/// Starts the audit record of a request. `user` is `None` if authentication failed.
pub(super) async fn begin(api: &Api, request: &mut http::Request<Body>, user: Option<&UserInfo>) {
    let auditor = &api.auditor;
    if auditor.log().is_none() {
        return;
    }
    let record = match request.extensions().get::<InProcessUser>() {
        Some(_) => None,
        None => {
            let info = layers::info(request);
            let attributes = audit::Attributes::from((*info).clone());
            let beyond = auditor.beyond(request.method(), request.uri(), request.headers());
            let lasts = beyond.as_ref().map_or(info.is_long_running(), |beyond| beyond.lasts);
            let id = audit::id_of(request.headers(), String::new);
            let facts = audit::Request {
                audit_id: &id,
                received: jiff::Timestamp::now(),
                uri: request.uri(),
                headers: request.headers(),
                peer: request.extensions().get::<PeerAddress>().map(|PeerAddress(address)| *address),
                attributes: &attributes,
                beyond: beyond.as_ref(),
            };
            auditor.begin(&facts, user, lasts).await
        }
    };
    request.extensions_mut().insert(Audited { auditor: auditor.clone(), record });
}

/// Runs a handler and holds the audit record until the last byte of the response. `own` is false for proxied
/// requests, whose bodies are not copied.
pub(super) async fn follow(
    record: Option<Arc<Record>>,
    own: bool,
    handling: impl Future<Output = Response> + Send,
) -> Response {
    let Some(record) = record else { return handling.await };
    let response = match AssertUnwindSafe(handling).catch_unwind().await {
        Ok(response) => response,
        Err(panic) => {
            record.panicked();
            resume_unwind(panic)
        }
    };
    let status = response.extensions().get::<Told>().cloned();
    record.answered(response.status(), status.as_ref().map(|Told(status)| &**status)).await;
    let capture = own.then(|| BodyCapture::response(&record, response.status(), response.headers())).flatten();
    response.map(|body| Body::new(TrackedBody::new(body, record).with_capture(capture)))
}
