//! Connect subresources, which serve streams instead of objects: logs, exec, attach, port-forward, proxy.

use async_trait::async_trait;
use axum::body::Body;

use crate::strategy::RequestContext;

/// A connect request after authorization and admission.
#[derive(Debug)]
pub struct ConnectRequest {
    pub ctx: RequestContext,
    /// Empty for cluster-scoped parents.
    pub namespace: String,
    pub name: String,
    pub subresource: String,
    /// Path after the subresource, without a leading slash.
    pub rest: String,
    /// The original request, from which an upgrade can be taken.
    pub request: http::Request<Body>,
}

/// Serves a connect subresource, for all HTTP methods.
#[async_trait]
pub trait Connect: Send + Sync {
    async fn connect(&self, request: ConnectRequest) -> http::Response<Body>;
}
