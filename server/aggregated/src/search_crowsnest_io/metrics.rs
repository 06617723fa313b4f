//! `metrics`: metrics of the process as OpenMetrics text, for operators. They contain nothing of an object.

use axum::response::Response;
use crowsnest_apimachinery::status::ApiError;
use futures::future::BoxFuture;

use super::cache::metrics;
use super::definition;

use crate::resource::{Call, Definition, Resource};

pub(super) struct Metrics;

impl Resource for Metrics {
    fn definition(&self) -> &Definition {
        const DEFINITION: Definition = definition("metrics", "CacheMetrics");
        &DEFINITION
    }

    fn serve<'a>(&'a self, call: Call<'a>) -> BoxFuture<'a, Result<Response, ApiError>> {
        Box::pin(async move {
            let server = call.server;
            metrics(server.running()?, server.middleware.series(), &server.middleware.metrics).await
        })
    }
}
