//! `mcp`: messages of the Model Context Protocol (`crowsnest_mcp`). The requests of its tools are authorized and
//! handled as if the caller had sent them to this server. docs/MCP.md describes the tools.

use std::sync::Arc;
use std::time::Instant;

use axum::response::Response;
use crowsnest_apimachinery::status::ApiError;
use crowsnest_mcp::http::{HttpResponse, handle_post};
use crowsnest_mcp::{Api, ApiRequest, ApiResponse};
use crowsnest_process::origin::check_origin;
use crowsnest_process::reply::{Body, collect, json as json_response};
use futures::future::BoxFuture;
use serde_json::{Value, json};

use super::NAME;
use super::openapi::{ROOT, name_of, ref_to};
use crate::request::context::RequestContext;
use crate::request::middleware::handle_for;
use crate::resource::schema::{JSON, integer, object, responses, status, string};
use crate::resource::{CREATE, Call, Definition, HandledResource, Paths};
use crate::server::AggregatedServer;

const KIND: &str = "McpMessage";
/// Audit annotation with the tool of a call.
const TOOL_ANNOTATION: &str = "crowsnest.io/mcp-tool";

/// Headers that repeat fields of the body in revision 2026-07-28.
const HEADERS: [(&str, &str); 3] = [
    ("MCP-Protocol-Version", "Revision of the protocol."),
    ("Mcp-Method", "Method of the message."),
    ("Mcp-Name", "Name of the tool or prompt, or URI of the resource."),
];

/// Responses with a Status.
const FAILURES: [(&str, &str); 4] = [
    ("401", "The caller is not authenticated."),
    ("403", "The caller has no permission to create mcp, or a page of another origin sent the request."),
    ("413", "The message is too large."),
    ("429", "The caller sends messages too fast."),
];

pub(super) static MCP: HandledResource = HandledResource {
    definition: Definition { singular: "mcp", route: NAME, ..Definition::new("mcp", KIND, CREATE, Paths::Collection) },
    describe: |definition, document| {
        document.add_path(format!("{ROOT}/{}", definition.resource), json!({"post": operation()}));
        document.add_schema(name_of(KIND), message_schema());
    },
    handler: |call| Box::pin(handle(call)),
};

fn operation() -> Value {
    let header = |(name, description): (&str, &str)| json!({"name": name, "in": "header", "description": description, "schema": string()});
    let content = |schema: Value| json!({JSON: {"schema": schema}});
    let mut responses = responses("200", content(ref_to(KIND)), &FAILURES);
    responses["202"] = json!({"description": "The message is a notification or a response, which have no answer."});
    responses["400"] = json!({"description": "The message is invalid, or headers differ from it.",
        "content": content(json!({"anyOf": [ref_to(KIND), status()]}))});
    responses["404"] =
        json!({"description": "The method is unknown (since 2026-07-28).", "content": content(ref_to(KIND))});
    responses["415"] = json!({"description": "The body is not JSON."});
    json!({"operationId": "mcp-create", "tags": ["search"],
        "summary": "Handles one message of the Model Context Protocol, with the permissions of the caller.",
        "parameters": HEADERS.map(header), "responses": responses,
        "requestBody": {"required": true, "content": content(ref_to(KIND))}})
}

/// Schema of JSON-RPC messages, of clients and of this server.
fn message_schema() -> Value {
    let error = object(json!({"code": integer(), "message": string(), "data": {}}), &["data"]);
    let fields = json!({
        "jsonrpc": {"type": "string", "enum": ["2.0"]},
        "id": {"description": "String or integer that identifies a request; null in the response to an invalid one."},
        "method": string(), "params": {"type": "object"}, "result": {"type": "object"}, "error": error,
    });
    object(fields, &["id", "method", "params", "result", "error"])
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
        Some(body) => json_response(status, &body),
        None => {
            let mut response = Response::new(Body::empty());
            *response.status_mut() = status;
            response
        }
    })
}

/// The caller of a message, who sends the requests of its tools.
struct CallerApi<'c> {
    server: &'c AggregatedServer,
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
