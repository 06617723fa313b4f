//! A request for the search API, and its JSON responses.

use axum::response::Response;
use crowsnest_apimachinery::status::ApiError;
use crowsnest_apimachinery::user::UserInfo;
use http::StatusCode;

use super::API_VERSION;
use super::parameters::Parameters;
use super::saved_searches::scopes;
use crate::request::context::RequestContext;
use crate::server::Aggregated;
use crowsnest_process::reply::json;
use crowsnest_runtime::roles::Running;

/// A caller's request with its parameters.
pub(super) struct Call<'r> {
    pub(super) running: &'r Running,
    pub(super) user: &'r UserInfo,
    pub(super) parameters: Parameters<'r>,
}

impl<'r> Call<'r> {
    pub(super) async fn new(server: &'r Aggregated, context: &'r RequestContext) -> Result<Self, ApiError> {
        let running = server.running()?;
        let mut parameters = Parameters::new(context.query());
        if parameters.names_scope() {
            parameters.scopes = scopes(&server.control_plane, &context.user).await?;
        }
        Ok(Self { running, user: &context.user, parameters })
    }
}

/// A response with its kind.
pub(super) fn typed(kind: &str, body: &impl serde::Serialize) -> Result<Response, ApiError> {
    let mut value = serde_json::to_value(body).map_err(ApiError::internal)?;
    value["kind"] = kind.into();
    value["apiVersion"] = API_VERSION.into();
    Ok(json(StatusCode::OK, &value))
}
