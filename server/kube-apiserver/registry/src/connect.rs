//! Subresources that are conversations, not objects: logs, exec, attach, port-forward, proxy.

use async_trait::async_trait;
use axum::body::Body;

use crate::strategy::RequestContext;

/// A connect request after authorisation and admission.
#[derive(Debug)]
pub struct ConnectRequest {
    pub ctx: RequestContext,
    /// Empty for cluster-scoped parents.
    pub namespace: String,
    pub name: String,
    pub subresource: String,
    /// What follows the subresource in the path, without a leading slash.
    pub rest: String,
    /// The request as it came: an upgrade can be taken from it.
    pub request: http::Request<Body>,
}

/// Serves one (resource, subresource), for all methods.
#[async_trait]
pub trait Connect: Send + Sync {
    async fn connect(&self, request: ConnectRequest) -> http::Response<Body>;
}
