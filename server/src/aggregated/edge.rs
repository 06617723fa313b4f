//! The way of a request from the socket to its handler and back, in this order: name it → authenticate → audit → impersonate →
//! count → authorise → limit in time → handle. A panic is audited and passed on to the layer that answers it.

use std::panic::{AssertUnwindSafe, resume_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::extract::{Extension, Request, State};
use axum::response::Response;
use bytes::Bytes;
use crowsnest_api::user::UserInfo;
use crowsnest_apiserver::authn::impersonation;
use crowsnest_index::metrics::Series;
use futures::FutureExt;
use http::{HeaderMap, HeaderName, HeaderValue};
use http_body::{Frame, SizeHint};
use jiff::Timestamp;

use super::asked::Asked;
use super::audit::{Auditor, Record, event};
use super::identity::{Delegated, Wanted};
use super::limits::{InFlight, Limits};
use super::reply::{Body, Failure};
use super::route::Route;
use super::server::{Aggregated, dispatch, health};
use crate::peers::Peer;

const AUDIT_ID: HeaderName = HeaderName::from_static("audit-id");
/// As long as kube-apiserver takes one from a request.
const LONGEST_ID: usize = 64;

/// What stands before the handlers.
#[derive(Clone)]
pub(crate) struct Edge {
    pub(crate) auditor: Auditor,
    pub(crate) limits: Limits,
    /// The longest an answer of our own may take to begin. Members are given theirs by the proxy.
    pub(crate) timeout: Duration,
}

impl Edge {
    /// What is wrong with it, a line each.
    pub(crate) fn problems(&self) -> Option<String> {
        self.auditor.log().and_then(|log| log.problem()).map(|problem| format!("audit: {problem}"))
    }

    pub(crate) fn series(&self) -> impl Iterator<Item = Series> {
        self.auditor.log().map(|log| log.series()).into_iter().flatten()
    }
}

pub(super) async fn serve(
    State(state): State<Aggregated>,
    Extension(peer): Extension<Peer>,
    mut request: Request,
) -> Response {
    let received = Timestamp::now();
    let path = request.uri().path().to_owned();
    let route = Route::parse(&path);
    if route == Route::Health {
        return health(&state);
    }
    let id = audit_id(request.headers(), || uuid::Uuid::new_v4().to_string());
    let asked = Asked::of(&route, request.method(), &path, request.uri().query(), request.headers());
    let caller = state.delegated.authenticate(&peer, request.headers()).await;
    let facts = event::Request {
        audit_id: &id,
        received,
        uri: request.uri(),
        headers: request.headers(),
        peer: peer.address,
        wanted: &asked.ours,
        of_member: asked.theirs.as_ref(),
        cluster: asked.cluster.as_deref(),
    };
    let record = state.edge.auditor.begin(&facts, caller.as_ref().ok(), asked.lasts).await;
    if let Some(record) = &record {
        let witness: Arc<dyn crowsnest_proxy::Witness> = Arc::clone(record) as _;
        request.extensions_mut().insert(witness);
    }
    let handled = AssertUnwindSafe(handle(&state, caller, &asked, route, record.as_deref(), request));
    let (mut response, in_flight) = match handled.catch_unwind().await {
        Ok(Ok((response, in_flight))) => {
            if let Some(record) = &record {
                record.answered(response.status(), None).await;
            }
            (response, Some(in_flight))
        }
        Ok(Err(failure)) => {
            let status = failure.status().clone();
            let response = failure.into_response();
            if let Some(record) = &record {
                record.answered(response.status(), Some(&status)).await;
            }
            (response, None)
        }
        Err(panic) => {
            if let Some(record) = &record {
                record.panicked();
            }
            resume_unwind(panic)
        }
    };
    if let Ok(id) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(AUDIT_ID, id);
    }
    response.map(|inner| Body::new(Held { inner, _record: record, _in_flight: in_flight }))
}

async fn handle(
    state: &Aggregated,
    caller: Result<UserInfo, Failure>,
    asked: &Asked,
    route: Route<'_>,
    record: Option<&Record>,
    mut request: Request,
) -> Result<(Response, InFlight), Failure> {
    let mut caller = caller?;
    if let Some(wanted) = impersonation::wanted(request.headers())? {
        caller = impersonate(&state.delegated, &caller, wanted).await?;
        if let Some(record) = record {
            record.impersonated(&caller);
        }
        impersonation::strip(request.headers_mut());
    }
    let in_flight = state.edge.limits.admit(&caller, asked)?;
    if !asked.discovery {
        let verdict = state.delegated.review(&caller, &asked.ours).await?;
        if let Some(record) = record {
            record.decided(&verdict);
        }
        verdict.check(&caller, &asked.ours)?;
    }
    let handling = dispatch(state, route, &caller, request);
    let response = match asked.lasts || asked.theirs.is_some() {
        true => handling.await?,
        false => tokio::time::timeout(state.edge.timeout, handling).await.map_err(|_| Failure::timeout())??,
    };
    Ok((response, in_flight))
}

/// Who the caller is when they may be whom they want to be.
async fn impersonate(delegated: &Delegated, caller: &UserInfo, wanted: UserInfo) -> Result<UserInfo, Failure> {
    for right in impersonation::rights(&wanted) {
        let right = Wanted::from(right);
        delegated.review(caller, &right).await?.check(caller, &right)?;
    }
    Ok(impersonation::complete(wanted))
}

/// The one the request came with, else a new one.
fn audit_id(headers: &HeaderMap, new: impl FnOnce() -> String) -> String {
    let given = headers.get(AUDIT_ID).and_then(|id| id.to_str().ok());
    given.filter(|id| (1..=LONGEST_ID).contains(&id.len())).map_or_else(new, str::to_owned)
}

/// A body that is over when its last byte was taken, or nobody takes it any more.
struct Held {
    inner: Body,
    _record: Option<Arc<Record>>,
    _in_flight: Option<InFlight>,
}

impl http_body::Body for Held {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let frame = ready!(Pin::new(&mut self.inner).poll_frame(context));
        if frame.is_none() {
            self._record = None;
            self._in_flight = None;
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_keeps_the_id_it_came_with() {
        let named = |id: &str| HeaderMap::from_iter([(AUDIT_ID, id.parse().unwrap())]);
        let cases =
            [(named("abc"), "abc"), (named(""), "new"), (named(&"x".repeat(65)), "new"), (HeaderMap::new(), "new")];
        for (headers, expected) in cases {
            assert_eq!(audit_id(&headers, || "new".to_owned()), expected, "{headers:?}");
        }
    }
}
