//! The server itself: state, and which handler a route has. What is before the handlers: `edge`.

use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::response::Response;
use axum::routing::any;
use crowsnest_apimachinery::user::UserInfo;
use futures::FutureExt;
use http::{HeaderValue, StatusCode};

use crate::aggregated::cluster_karmada_io::attach;
use crate::aggregated::metrics_k8s_io as metrics;
use crate::aggregated::propagation_crowsnest_io as propagation;
use crate::aggregated::reply::{Body, Failure, json};
use crate::aggregated::request::authentication::Delegated;
use crate::aggregated::request::middleware::{self, Edge};
use crate::aggregated::resource::discovery;
use crate::aggregated::resource::openapi;
use crate::aggregated::resource::registry::Route;
use crate::aggregated::search_crowsnest_io::{query, saved_searches};
use crate::aggregated::search_karmada_io::proxying;
use crate::aggregated::stored::StoredGroup;
use crate::aggregated::stored::writer::Writer;
use crate::roles::Roles;

/// What requests need.
#[derive(Clone)]
pub(crate) struct Aggregated {
    pub(crate) control_plane: kube::Client,
    pub(crate) delegated: Delegated,
    pub(crate) roles: Arc<Roles>,
    pub(crate) edge: Edge,
    /// Whether the members' metrics are served here.
    pub(crate) metrics_adapter: bool,
}

impl Aggregated {
    fn serves(&self, group: &str) -> bool {
        self.metrics_adapter || !discovery::is_of_metrics(group)
    }
}

/// The aggregated API server as one service.
pub(crate) fn router(state: Aggregated) -> Router {
    Router::new()
        .fallback(any(middleware::serve))
        .layer(tower_http::catch_panic::CatchPanicLayer::new())
        .with_state(state)
}

pub(crate) async fn dispatch(
    state: &Aggregated,
    route: Route<'_>,
    caller: &UserInfo,
    request: Request,
) -> Result<Response, Failure> {
    let found = |document: Option<serde_json::Value>| match document {
        Some(document) => Ok(json(StatusCode::OK, &document)),
        None => Err(Failure::not_found("the server could not find the requested resource")),
    };
    match route {
        Route::Groups => found(Some(discovery::group_list(state.metrics_adapter))),
        Route::Group(group) | Route::Resources { group, .. } if !state.serves(group) => found(None),
        Route::Usage(_) | Route::CustomMetrics(_) if !state.metrics_adapter => found(None),
        Route::Group(group) => found(discovery::group(group)),
        Route::Resources { group, version } => {
            found(discovery::resources(group, version, &metrics::listed(&state.roles, group).await))
        }
        Route::OpenApi(path) => found(openapi::document(&state.control_plane, path, state.metrics_adapter).await?),
        Route::Stored { group, tail } => {
            let writer = (!caller.is_master()).then_some(Writer { delegated: &state.delegated, user: caller });
            StoredGroup::of(group).serve(&state.control_plane, tail, request, writer).boxed().await
        }
        Route::ClusterProxy { cluster, path } => {
            proxying::cluster_proxy(&state.roles, caller, cluster, path, request).boxed().await
        }
        Route::Attach { cluster } => attach::attach(&state.roles, caller, cluster, request).boxed().await,
        Route::SearchCache { path } => proxying::search_cache(&state.roles, caller, path, request).boxed().await,
        Route::SearchOpenSearch { path } => proxying::search_opensearch(path, &request),
        Route::FleetProxy { path } => proxying::fleet_proxy(&state.roles, caller, path, request).boxed().await,
        Route::Search(resource) => query::serve(state, caller, resource, request).boxed().await,
        Route::Saved(name) => saved_searches::serve(&state.control_plane, caller, name, request).boxed().await,
        Route::Explanation { namespace, name } => {
            propagation::explanation(state, caller, namespace, name, request.method()).boxed().await
        }
        Route::Plans => propagation::plan(state, caller, request).boxed().await,
        Route::Usage(path) => metrics::usage(&state.roles, path, request).boxed().await,
        Route::CustomMetrics(path) => metrics::values(&state.roles, path, request).boxed().await,
        Route::Health => Ok(health(state)),
        Route::Unknown => found(None),
    }
}

/// 200 when every worker lives, else 503 naming those that don't.
pub(crate) fn health(state: &Aggregated) -> Response {
    let mut problems = state.roles.problems();
    problems.extend(state.edge.problems());
    let (code, text) = if problems.is_empty() {
        (StatusCode::OK, "ok".to_owned())
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, problems.join("\n"))
    };
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = code;
    response.headers_mut().insert(http::header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}
