//! `mcp`: messages of the Model Context Protocol (`crowsnest_mcp`). The requests of its tools are authorized and
//! handled as if the caller had sent them to this server. docs/MCP.md describes the tools.

use std::sync::Arc;
use std::time::Instant;

use axum::response::Response;
use crowsnest_apimachinery::status::ApiError;
use crowsnest_mcp::http::{HttpResponse, handle_post};
use crowsnest_mcp::{Api, ApiRequest, ApiResponse};
use crowsnest_process::origin::check_origin;
use crowsnest_process::reply::{Body, collect, json};
use futures::future::BoxFuture;

use super::NAME;
use crate::request::context::RequestContext;
use crate::request::middleware::handle_for;
use crate::resource::{CREATE, Call, Definition, Paths, Resource};
use crate::server::Aggregated;

/// Audit annotation with the tool of a call.
const TOOL_ANNOTATION: &str = "crowsnest.io/mcp-tool";

pub(super) struct Mcp;

impl Resource for Mcp {
    fn definition(&self) -> &Definition {
        const DEFINITION: Definition = Definition {
            singular: "mcp",
            route: NAME,
            ..Definition::new("mcp", "McpMessage", CREATE, Paths::Collection)
        };
        &DEFINITION
    }

    fn serve<'a>(&'a self, call: Call<'a>) -> BoxFuture<'a, Result<Response, ApiError>> {
        Box::pin(async move { handle(call).await })
    }
}

async fn handle(Call { server, context, request }: Call<'_>) -> Result<Response, ApiError> {
    let (parts, body) = request.into_parts();
    check_origin(&parts.uri, &parts.headers)?;
    server.middleware.limits.admit_message(&context.user, Instant::now())?;
    let body = collect(body).await?;
    let observer = parts.extensions.get::<Arc<dyn crowsnest_proxy::ClusterObserver>>().cloned();
    let caller = CallerApi { server, context, observer };
    let HttpResponse { status, body, tool } = handle_post(&caller, &parts.headers, &body).await;
    if let (Some(record), Some(tool)) = (&context.audit, tool) {
        record.annotate(TOOL_ANNOTATION, tool);
    }
    Ok(match body {
        Some(body) => json(status, &body),
        None => {
            let mut response = Response::new(Body::empty());
            *response.status_mut() = status;
            response
        }
    })
}

/// The caller of a message, who sends the requests of its tools.
struct CallerApi<'c> {
    server: &'c Aggregated,
    context: &'c RequestContext,
    /// Records the clusters that requests reach, for the audit log.
    observer: Option<Arc<dyn crowsnest_proxy::ClusterObserver>>,
}

impl Api for CallerApi<'_> {
    fn send(&self, request: ApiRequest) -> BoxFuture<'_, Result<ApiResponse, ApiError>> {
        Box::pin(async move {
            let mut inner = request.to_http::<Body>()?;
            if let Some(observer) = &self.observer {
                inner.extensions_mut().insert(Arc::clone(observer));
            }
            ApiResponse::read(handle_for(self.server, self.context, inner).await?).await
        })
    }
}
