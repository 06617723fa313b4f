//! `metrics`: metrics of the process as OpenMetrics text, for operators. They contain nothing of an object.

use async_trait::async_trait;
use axum::response::Response;
use crowsnest_apimachinery::status::ApiError;

use super::cache::metrics;
use super::definition;

use crate::resource::{Call, Definition, Resource};

pub(super) struct Metrics;

#[async_trait]
impl Resource for Metrics {
    fn definition(&self) -> &Definition {
        const DEFINITION: Definition = definition("metrics", "CacheMetrics");
        &DEFINITION
    }

    async fn serve(&self, call: Call<'_>) -> Result<Response, ApiError> {
        let server = call.server;
        metrics(server.running()?, server.edge.series(), &server.edge.metrics).await
    }
}
