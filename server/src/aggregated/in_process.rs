//! The aggregated API server as a Service of the control plane it shares a process with: no socket and no TLS between the two.
//! Mounted by `up`, called by the control plane's aggregation layer.

use std::convert::Infallible;

use async_trait::async_trait;
use axum::Router;
use axum::body::Body;
use crowsnest_apiserver::outbound::InProcess;
use http::{Request, Response};
use tower::ServiceExt;

use crate::peers::Peer;

pub(crate) struct Local(pub(crate) Router);

#[async_trait]
impl InProcess for Local {
    async fn serve(&self, mut request: Request<Body>) -> Response<Body> {
        // Whatever identity the client claimed has been replaced by the one the control plane found.
        request.extensions_mut().insert(Peer { front_proxy: true, ..Peer::default() });
        self.0.clone().oneshot(request).await.unwrap_or_else(|never: Infallible| match never {})
    }
}
