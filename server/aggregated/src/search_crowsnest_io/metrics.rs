//! `metrics`: metrics of the process as OpenMetrics text, for operators. They contain nothing of an object.

use async_trait::async_trait;
use axum::extract::Request;
use axum::response::Response;
use crowsnest_apimachinery::status::ApiError;

use super::cache::metrics;
use super::definition;

use crate::request::context::RequestContext;
use crate::resource::{Definition, Resource};
use crate::server::Aggregated;

pub(super) struct Metrics;

#[async_trait]
impl Resource for Metrics {
    fn definition(&self) -> &Definition {
        const DEFINITION: Definition = definition("metrics", "CacheMetrics");
        &DEFINITION
    }

    async fn serve(
        &self,
        server: &Aggregated,
        _context: &RequestContext,
        _request: Request,
    ) -> Result<Response, ApiError> {
        metrics(server.running()?, server.edge.series(), &server.edge.metrics).await
    }
}
