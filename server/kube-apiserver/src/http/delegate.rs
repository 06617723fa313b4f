//! Servers behind this one, asked for API groups it does not serve itself. Implemented by `aggregation/`.

use async_trait::async_trait;
use axum::body::Body;
use crowsnest_apimachinery::user::UserInfo;
use crowsnest_schema::openapi::Published;
use serde_json::Value;

/// A group in merged discovery.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct RankedGroup {
    /// `groupPriorityMinimum` of its APIService: clients resolve a bare resource name to the first group that has it.
    pub priority: i64,
    /// `APIGroupDiscovery` (`apidiscovery.k8s.io/v2`).
    pub group: Value,
}

/// See the module. Requests arrive authenticated and authorised.
#[async_trait]
pub trait Delegate: Send + Sync {
    /// True when requests for this group and version belong to the delegate.
    fn claims(&self, group: &str, version: &str) -> bool;

    /// Answers a request for a claimed group, upgrades included.
    async fn serve(&self, user: &UserInfo, request: http::Request<Body>) -> http::Response<Body>;

    /// The claimed groups, for merged discovery.
    fn discovery(&self) -> Vec<RankedGroup>;

    /// The OpenAPI documents of the claimed groups, as far as there are any.
    fn openapi(&self) -> Vec<Published> {
        Vec::new()
    }
}
