//! `/mcp` at the UI's address: forwards messages of the Model Context Protocol to the control plane with the client's
//! bearer token. Sessions of browsers are not accepted, so no page can use a signed-in user's permissions.

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use crowsnest_apimachinery::status::ApiError;
use crowsnest_apiserver::authn::bearer::bearer_token;
use crowsnest_process::origin::check_origin;
use crowsnest_process::reply::{StatusResponse, json};
use http::{HeaderValue, Method, StatusCode, Uri, header};

use super::{ForwardedResponse, Ui, send};

pub(super) const PATH: &str = "/mcp";
/// Paths of the protected resource metadata (RFC 9728), without and with the path of the resource.
pub(super) const METADATA_PATH: &str = "/.well-known/oauth-protected-resource";
pub(super) const RESOURCE_METADATA_PATH: &str = "/.well-known/oauth-protected-resource/mcp";

/// Resource of the search API that handles messages.
pub(super) const UPSTREAM: &str = "/apis/search.crowsnest.io/v1alpha1/mcp";

/// Handles a request for [`PATH`].
pub(super) async fn forward(State(ui): State<Ui>, request: Request) -> Response {
    let metadata = ui.oidc.as_ref().and_then(|oidc| oidc.url_and_issuer(RESOURCE_METADATA_PATH)).map(|(url, _)| url);
    let mut response = match forward_inner(&ui, request).await {
        Ok(response) => response,
        Err(error) => StatusResponse::into_response(error),
    };
    if response.status() == StatusCode::UNAUTHORIZED {
        let challenge = metadata.map_or("Bearer".to_owned(), |url| format!("Bearer resource_metadata=\"{url}\""));
        if let Ok(challenge) = HeaderValue::try_from(challenge) {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, challenge);
        }
    }
    response.extensions_mut().insert(ForwardedResponse);
    response
}

async fn forward_inner(ui: &Ui, mut request: Request) -> Result<Response, ApiError> {
    check_origin(request.uri(), request.headers())?;
    if request.method() != Method::POST {
        let mut response = StatusResponse::into_response(ApiError::method_not_allowed());
        response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("POST"));
        return Ok(response);
    }
    let token = bearer_token(request.headers()).map_err(ApiError::from)?.ok_or_else(ApiError::unauthorized)?;
    let actor = ui.upstream.as_bearer(&token)?;
    *request.uri_mut() = Uri::from_static(UPSTREAM);
    send(ui, &actor, request).await
}

/// Names the issuer whose ID tokens are accepted; 404 without one.
pub(super) async fn metadata(State(ui): State<Ui>) -> Response {
    match ui.oidc.as_ref().and_then(|oidc| oidc.url_and_issuer(PATH)) {
        Some((resource, issuer)) => json(
            StatusCode::OK,
            &serde_json::json!({"resource": resource.as_str(), "authorization_servers": [issuer],
                "bearer_methods_supported": ["header"], "resource_name": "Crowsnest"}),
        ),
        None => StatusCode::NOT_FOUND.into_response(),
    }
}
