//! Interface to servers of other API groups; `aggregation/` implements it.

use async_trait::async_trait;
use axum::body::Body;
use crowsnest_apimachinery::user::UserInfo;
use crowsnest_schema::openapi::PublishedDocument;
use serde_json::Value;

/// A group in merged discovery.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct RankedGroup {
    /// `groupPriorityMinimum` of its APIService: clients resolve a bare resource name to the first group that has it.
    pub priority: i64,
    /// `APIGroupDiscovery` (`apidiscovery.k8s.io/v2`).
    pub group: Value,
}

/// Serves API groups that this server does not have. Requests are already authenticated and authorized.
#[async_trait]
pub trait Delegate: Send + Sync {
    /// True if requests for this group and version are served by the delegate.
    fn claims(&self, group: &str, version: &str) -> bool;

    /// Serves a request for a claimed group, upgrades included.
    async fn serve(&self, user: &UserInfo, request: http::Request<Body>) -> http::Response<Body>;

    /// The claimed groups, to be merged into the discovery documents of this server.
    fn discovery(&self) -> Vec<RankedGroup>;

    /// The available OpenAPI documents of the claimed groups.
    fn openapi(&self) -> Vec<PublishedDocument> {
        Vec::new()
    }
}
