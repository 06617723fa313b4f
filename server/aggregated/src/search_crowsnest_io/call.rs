//! A request for the search API, and its JSON responses.

use axum::response::Response;
use crowsnest_apimachinery::status::ApiError;
use crowsnest_apimachinery::user::UserInfo;
use http::{StatusCode, Uri};

use super::API_VERSION;
use super::parameters::Parameters;
use super::saved_searches::scopes;
use crate::request::limits::Limits;
use crate::resource::Call;
use crowsnest_process::reply::json;
use crowsnest_runtime::roles::RunningRoles;

/// A caller's request with its parameters.
pub(super) struct SearchCall<'r> {
    pub(super) running: &'r RunningRoles,
    pub(super) limits: &'r Limits,
    pub(super) user: &'r UserInfo,
    pub(super) parameters: Parameters<'r>,
    pub(super) uri: Uri,
    /// True if the response may be a stream of server-sent events.
    pub(super) accepts_events: bool,
}

impl<'r> SearchCall<'r> {
    pub(super) async fn new(Call { server, context, request }: Call<'r>) -> Result<Self, ApiError> {
        let running = server.running()?;
        let mut parameters = Parameters::new(context.query());
        if parameters.names_scope() {
            parameters.scopes = scopes(&server.control_plane, &context.user).await?;
        }
        let accepts_events = context.attributes.accepts_events;
        let (limits, user) = (&server.middleware.limits, &context.user);
        Ok(Self { running, limits, user, parameters, uri: request.into_parts().0.uri, accepts_events })
    }
}

/// A response with its kind.
pub(super) fn typed_response(kind: &str, body: &impl serde::Serialize) -> Result<Response, ApiError> {
    let mut value = serde_json::to_value(body).map_err(ApiError::internal)?;
    value["kind"] = kind.into();
    value["apiVersion"] = API_VERSION.into();
    Ok(json(StatusCode::OK, &value))
}
