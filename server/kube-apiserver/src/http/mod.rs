//! HTTP interface of the server: routing, negotiation, bodies, responses.
//!
//! [`build_service`] builds the middleware stack; `server` serves it on sockets and to in-process clients. Handlers parse
//! the request, call `registry/` (or `discovery/`, `authz/`) and convert the result.

#[cfg(test)]
mod apply_tests;
pub mod body;
pub mod client;
mod concurrency;
mod connect_options;
mod custom;
#[cfg(test)]
mod deadlines_tests;
pub mod delegate;
#[cfg(test)]
mod escalation_tests;
mod eviction;
pub mod handler;
#[cfg(test)]
mod impersonation_tests;
#[cfg(test)]
mod invalid_requests_tests;
mod layers;
#[cfg(test)]
mod lifecycle_tests;
mod pages;
#[cfg(test)]
mod pages_tests;
mod protobuf;
pub(crate) mod request_audit;
pub mod respond;
mod subresource;
mod unreachable;
#[cfg(test)]
mod verbs_tests;
mod watch;
#[cfg(test)]
mod watch_tests;

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use crowsnest_apiserver::audit::Auditor;
use crowsnest_apiserver::authn::impersonation::Impersonator;
use crowsnest_registry::authentication::Authenticator;
use crowsnest_registry::authz::Authorizer;
use parking_lot::RwLock;
use tokio_util::sync::CancellationToken;
use tower_http::CompressionLevel;
use tower_http::compression::CompressionLayer;

use crate::discovery::Discovery;
pub use crate::http::concurrency::InFlightLimits;
use crate::http::concurrency::RequestPermits;
use crate::http::delegate::Delegate;
pub(crate) use crate::http::layers::MIN_COMPRESSED_BYTES;
use crowsnest_registry::Registry;

/// State shared by the middleware and the handlers.
pub struct ApiState {
    pub registry: Arc<Registry>,
    pub authenticator: Arc<Authenticator>,
    pub authorizer: Arc<Authorizer>,
    pub discovery: Discovery,
    pub auditor: Auditor,
    delegates: RwLock<Vec<Arc<dyn Delegate>>>,
    read_permits: Arc<RequestPermits>,
    write_permits: Arc<RequestPermits>,
    impersonator: Impersonator,
    /// Cancelled when the server drains, which ends watches.
    pub draining: CancellationToken,
}

impl ApiState {
    pub fn new(
        discovery: Discovery,
        authenticator: Arc<Authenticator>,
        authorizer: Arc<Authorizer>,
        auditor: Auditor,
        in_flight: InFlightLimits,
        draining: CancellationToken,
    ) -> Self {
        Self {
            registry: discovery.registry().clone(),
            discovery,
            authenticator,
            authorizer,
            auditor,
            delegates: RwLock::default(),
            read_permits: Arc::new(RequestPermits::new(in_flight.reads)),
            write_permits: Arc::new(RequestPermits::new(in_flight.writes)),
            impersonator: Impersonator::default(),
            draining,
        }
    }

    /// Adds a server of API groups that this server does not have.
    pub fn add_delegate(&self, delegate: Arc<dyn Delegate>) {
        self.delegates.write().push(delegate);
    }

    pub(crate) fn delegates(&self) -> Vec<Arc<dyn Delegate>> {
        self.delegates.read().clone()
    }

    /// The delegate that serves a group and version.
    pub(crate) fn delegate_for(&self, group: &str, version: &str) -> Option<Arc<dyn Delegate>> {
        self.delegates.read().iter().find(|d| d.claims(group, version)).cloned()
    }
}

/// Builds the middleware stack, outermost first: panic → request info and audit ID → compression → authentication and
/// audit → timeout → impersonation → in-flight limits → authorization → handler.
pub fn build_service(api: Arc<ApiState>) -> Router {
    use axum::middleware::from_fn_with_state as layer;
    Router::new()
        .fallback(handler::dispatch)
        .with_state(api.clone())
        .layer(layer(api.clone(), layers::authorize))
        .layer(layer(api.clone(), layers::limit_concurrency))
        .layer(layer(api.clone(), layers::impersonate))
        .layer(axum::middleware::from_fn(layers::limit_duration))
        .layer(layer(api.clone(), layers::authenticate))
        .layer(CompressionLayer::new().quality(CompressionLevel::Fastest).compress_when(layers::LargeResponses))
        .layer(axum::middleware::from_fn(layers::attach_request_info))
        .layer(tower_http::catch_panic::CatchPanicLayer::custom(layers::panic_response))
}

/// An HTTP response.
pub type Response = http::Response<Body>;
