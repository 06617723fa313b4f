//! The aggregated API server as a Service of a control plane in the same process, without a socket and TLS between the
//! two. `crowsnest up` registers it; the control plane's aggregation layer calls it.

use std::convert::Infallible;

use async_trait::async_trait;
use axum::Router;
use axum::body::Body;
use crowsnest_apiserver::outbound::InProcessServer;
use crowsnest_process::client_certificate::Peer;
use http::{Request, Response};
use tower::ServiceExt;

/// Serves requests of the control plane with the router of the aggregated server.
pub struct InProcessAggregated(pub Router);

#[async_trait]
impl InProcessServer for InProcessAggregated {
    async fn serve(&self, mut request: Request<Body>) -> Response<Body> {
        // The control plane has replaced the client's identity headers with the authenticated identity.
        request.extensions_mut().insert(Peer { is_front_proxy: true, ..Peer::default() });
        self.0.clone().oneshot(request).await.unwrap_or_else(|never: Infallible| match never {})
    }
}
