//! Servers behind this one, asked for API groups it does not serve itself. Implemented by `aggregation/`.

use async_trait::async_trait;
use axum::body::Body;
use serde_json::Value;

use crate::registry::strategy::UserInfo;

/// See the module. Requests arrive authenticated and authorised.
#[async_trait]
pub trait Delegate: Send + Sync {
    /// True when requests for this group and version belong to the delegate.
    fn claims(&self, group: &str, version: &str) -> bool;

    /// Answers a request for a claimed group, upgrades included.
    async fn serve(&self, user: &UserInfo, request: http::Request<Body>) -> http::Response<Body>;

    /// The claimed groups as `APIGroupDiscovery` objects (`apidiscovery.k8s.io/v2`), for merged discovery.
    fn discovery(&self) -> Vec<Value>;
}
