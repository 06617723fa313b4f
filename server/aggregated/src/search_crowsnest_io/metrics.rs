//! `metrics`: metrics of the process as OpenMetrics text, for operators. They contain no data of objects.

use axum::response::Response;
use crowsnest_apimachinery::status::ApiError;

use super::cache::metrics;
use super::definition;

use crate::resource::{Call, HandledResource};

pub(super) static METRICS: HandledResource =
    HandledResource::new(definition("metrics", "CacheMetrics"), |call| Box::pin(show(call)));

async fn show(Call { server, .. }: Call<'_>) -> Result<Response, ApiError> {
    metrics(server.running()?, server.middleware.series(), &server.middleware.metrics).await
}
