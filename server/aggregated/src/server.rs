//! State of the server, and the handlers of routes. `request::middleware` has the layers in front of the handlers.

use crowsnest_apimachinery::status::ApiError;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Extension, Request, State};
use axum::response::Response;
use axum::routing::any;
use http::uri::PathAndQuery;
use http::{HeaderValue, Method, StatusCode, Uri, header};

use crate::admission::owner::OwnerAdmission;
use crate::admission::{AdmissionChain, with_warnings};
use crate::request::authentication::DelegatedAuth;
use crate::request::context::RequestContext;
use crate::request::middleware::{self, ApiMiddleware};
use crate::resource::registry::{Group, Registry, ResourceRoute, Route};
use crate::resource::{Call, Paths, discovery, openapi};
use crowsnest_process::client_certificate::Peer;
use crowsnest_process::reply::{Body, StatusResponse, json};
use crowsnest_proxy::MemberAdmission;
use crowsnest_runtime::roles::{Roles, RunningRoles};

/// Short path of the resource `mcp`.
const MCP_PATH: &str = "/mcp";

/// State for handling requests.
#[derive(Clone)]
pub struct AggregatedServer {
    pub registry: &'static Registry,
    pub control_plane: kube::Client,
    pub delegated: DelegatedAuth,
    pub admission: Arc<AdmissionChain>,
    pub roles: Arc<Roles>,
    pub middleware: ApiMiddleware,
    /// True if this server serves the members' metrics.
    pub metrics_adapter: bool,
}

impl AggregatedServer {
    /// True if the group is served.
    fn serves(&self, group: &Group) -> bool {
        self.metrics_adapter || !group.api.is_metrics
    }

    /// The parts that run against the control plane; 503 before they have started.
    pub fn running(&self) -> Result<&RunningRoles, ApiError> {
        self.roles.get().ok_or_else(|| ApiError::unavailable("crowsnest is starting"))
    }
}

/// The aggregated API server as one service.
pub fn router(state: AggregatedServer) -> Router {
    Router::new()
        .route(MCP_PATH, any(serve_mcp))
        .fallback(any(middleware::serve))
        .layer(tower_http::catch_panic::CatchPanicLayer::new())
        .with_state(state)
}

/// Handles a request for [`MCP_PATH`] as a request for its resource.
async fn serve_mcp(state: State<AggregatedServer>, peer: Extension<Peer>, mut request: Request) -> Response {
    if request.method() != Method::POST {
        let mut refused = ApiError::method_not_allowed().into_response();
        refused.headers_mut().insert(header::ALLOW, HeaderValue::from_static("POST"));
        return refused;
    }
    *request.uri_mut() = match mcp_uri(request.uri()) {
        Some(uri) => uri,
        None => return ApiError::bad_request("invalid path").into_response(),
    };
    middleware::serve(state, peer, request).await
}

/// The URI of the resource `mcp` at the authority of this URI.
fn mcp_uri(uri: &Uri) -> Option<Uri> {
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(PathAndQuery::from_static("/apis/search.crowsnest.io/v1alpha1/mcp"));
    Uri::from_parts(parts).ok()
}

/// Handles an authorized request.
pub async fn dispatch(
    server: &AggregatedServer,
    context: &RequestContext,
    request: Request,
) -> Result<Response, ApiError> {
    let document = match context.attributes.route {
        Route::Groups => Some(discovery::group_list(server.registry, server.metrics_adapter)),
        Route::Group(group) => server.serves(group).then(|| discovery::group(group)),
        Route::Resources(group, version) if server.serves(group) => {
            Some(discovery::resources(server, group, version).await)
        }
        Route::OpenApi => openapi::document(server, &context.attributes.path).await?,
        Route::Resource(found) if server.serves(found.group) => {
            return serve_resource(&found, server, context, request).await;
        }
        Route::Health => return Ok(health(server)),
        Route::Resources(..) | Route::Resource(_) | Route::Unknown => None,
    };
    let document = document.ok_or_else(ApiError::unknown_resource)?;
    Ok(json(StatusCode::OK, &document))
}

async fn serve_resource(
    found: &ResourceRoute,
    server: &AggregatedServer,
    context: &RequestContext,
    mut request: Request,
) -> Result<Response, ApiError> {
    let (resource, definition) = (found.resource, found.resource.definition());
    // For forwarded requests, the other server refuses unsupported methods with its own message.
    let is_forwarded = resource.stored_group().is_some()
        || matches!(definition.paths, Paths::ObjectAndSubpaths | Paths::SubpathsOf(_));
    if !is_forwarded && !definition.has_method(request.method()) {
        return Err(ApiError::method_not_allowed());
    }
    let Some(connect) = definition.connect else { return resource.serve(Call { server, context, request }).await };
    let (admitted, mut warnings) = server.admission.connect(context, found, connect).await;
    if let Err(refused) = admitted {
        return with_warnings(Err(refused), &warnings);
    }
    let owner = OwnerAdmission::for_request(server, context, request.method());
    if let Some(owner) = &owner {
        request.extensions_mut().insert(Arc::clone(owner) as Arc<dyn MemberAdmission>);
    }
    let response = resource.serve(Call { server, context, request }).await;
    if let Some(owner) = owner {
        warnings.extend(owner.take_warnings());
    }
    with_warnings(response, &warnings)
}

/// 200 if every worker is healthy, else 503 with the problems.
pub fn health(state: &AggregatedServer) -> Response {
    let mut problems = state.roles.problems();
    problems.extend(state.middleware.problems());
    let (code, text) = if problems.is_empty() {
        (StatusCode::OK, "ok".to_owned())
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, problems.join("\n"))
    };
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = code;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}
