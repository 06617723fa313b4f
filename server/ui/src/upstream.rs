//! Requests of the UI to the control plane, authenticated with a bearer token or a client certificate.
//!
//! All requests with tokens share one client, which has no credentials of its own; each request carries its caller's
//! token. Nothing is created or kept per token.

use crowsnest_apimachinery::status::ApiError;
use crowsnest_component_base::body;
use crowsnest_component_base::client_errors::api_error;
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use kube::client::Body as KubeBody;
use kube::config::AuthInfo;

const REVIEWS_PATH: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
/// Maximum size of a SelfSubjectReview response in bytes; a user may be in many groups.
const MAX_REVIEW_BYTES: usize = 4 << 20;
/// Maximum length of a bearer token.
const MAX_TOKEN_LENGTH: usize = 8192;

/// Address and certificate authority of the control plane.
#[derive(Clone)]
pub struct Upstream {
    config: kube::Config,
    /// Client without credentials.
    client: kube::Client,
}

impl Upstream {
    /// Takes the address and the certificate authority from `config`; ignores its credentials.
    pub fn new(mut config: kube::Config) -> kube::Result<Self> {
        config.auth_info = AuthInfo::default();
        // The browser decides about retries.
        config.default_retry = false;
        let client = kube::Client::try_from(config.clone())?;
        Ok(Self { config, client })
    }

    /// Returns an actor that authenticates with a token.
    pub(super) fn as_bearer(&self, token: &str) -> Result<Actor, ApiError> {
        let invalid = || ApiError::bad_request("invalid bearer token");
        if !is_bearer_token(token) {
            return Err(invalid());
        }
        let mut bearer = HeaderValue::try_from(format!("Bearer {token}")).map_err(|_| invalid())?;
        bearer.set_sensitive(true);
        Ok(Actor { client: self.client.clone(), bearer: Some(bearer) })
    }

    /// Returns an actor that authenticates with the certificate or the token of a kubeconfig's user.
    pub(super) fn as_kubeconfig_user(&self, user: AuthInfo) -> Result<Actor, ApiError> {
        let mut config = self.config.clone();
        config.auth_info = user;
        let unusable =
            |error: kube::Error| ApiError::bad_request(format!("cannot use the client certificate or key: {error}"));
        Ok(Actor { client: kube::Client::try_from(config).map_err(unusable)?, bearer: None })
    }
}

/// True for values that may follow `Bearer` in an `Authorization` header (RFC 6750) and do not exceed the maximum
/// length.
pub(super) fn is_bearer_token(token: &str) -> bool {
    !token.is_empty()
        && token.len() <= MAX_TOKEN_LENGTH
        && token.bytes().all(|byte| byte.is_ascii_graphic() && byte != b';' && byte != b',')
}

/// User of the control plane for whom requests are sent. Cheap to clone.
#[derive(Clone)]
pub(super) struct Actor {
    client: kube::Client,
    bearer: Option<HeaderValue>,
}

impl Actor {
    /// Sends a request, adding the credentials.
    pub(super) async fn send(&self, mut request: http::Request<KubeBody>) -> kube::Result<http::Response<KubeBody>> {
        if let Some(bearer) = &self.bearer {
            request.headers_mut().insert(header::AUTHORIZATION, bearer.clone());
        }
        self.client.send(request).await
    }

    /// The user as the control plane authenticates it.
    pub(super) async fn whoami(&self) -> Result<serde_json::Value, ApiError> {
        let body = serde_json::to_vec(&SelfSubjectReview::default()).map_err(ApiError::internal)?;
        let request = http::Request::builder()
            .method(Method::POST)
            .uri(REVIEWS_PATH)
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::ACCEPT, "application/json")
            .body(KubeBody::from(body))
            .map_err(ApiError::internal)?;
        let response = self.send(request).await.map_err(api_error)?;
        let status = response.status();
        let body = body::collect(response.into_body(), MAX_REVIEW_BYTES).await.map_err(|_| invalid_review())?;
        if !status.is_success() {
            return Err(response_error(status, &body));
        }
        let review: SelfSubjectReview = serde_json::from_slice(&body).map_err(|_| invalid_review())?;
        let user = review.status.and_then(|status| status.user_info).unwrap_or_default();
        let name = user.username.unwrap_or_default();
        if name.is_empty() || name == "system:anonymous" {
            return Err(ApiError::unauthorized());
        }
        Ok(serde_json::json!({"user": name, "groups": user.groups.unwrap_or_default()}))
    }
}

fn invalid_review() -> ApiError {
    ApiError::from_parts(
        StatusCode::BAD_GATEWAY.as_u16(),
        "InternalError",
        "cannot read your identity: the control plane's response is not a SelfSubjectReview",
    )
}

/// Converts an error response; uses its Status if it contains one.
fn response_error(status: StatusCode, body: &[u8]) -> ApiError {
    let status_object: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
    let text = |key: &str| status_object[key].as_str().filter(|text| !text.is_empty());
    let reason = text("reason").or(status.canonical_reason()).unwrap_or_default();
    let message = text("message").or(status.canonical_reason()).unwrap_or_default();
    ApiError::from_parts(status.as_u16(), reason, message)
}

/// Request headers that are forwarded to the control plane. All others are dropped: credentials, impersonation,
/// front-proxy identities, forwarding and connection headers.
const FORWARDED_HEADERS: &[&str] = &[
    "accept",
    "content-type",
    "if-match",
    "if-modified-since",
    "if-none-match",
    "mcp-method",
    "mcp-name",
    "mcp-protocol-version",
    "range",
    "sec-websocket-extensions",
    "sec-websocket-key",
    "sec-websocket-protocol",
    "sec-websocket-version",
    "traceparent",
    "tracestate",
    "user-agent",
    "x-crowsnest-cluster",
];

/// Prefix of the WebSocket subprotocol in which Kubernetes clients send a bearer token.
const BEARER_PROTOCOL: &str = "base64url.bearer.authorization.k8s.io.";

/// The headers of a browser's request that are forwarded. Has no side effects.
pub(super) fn forwarded_request_headers(headers: &HeaderMap) -> HeaderMap {
    let mut forwarded = HeaderMap::new();
    for (name, value) in headers {
        let carries_token = *name == header::SEC_WEBSOCKET_PROTOCOL
            && value.to_str().map_or(true, |text| text.contains(BEARER_PROTOCOL));
        if FORWARDED_HEADERS.contains(&name.as_str()) && !carries_token {
            forwarded.append(name.clone(), value.clone());
        }
    }
    forwarded
}

#[cfg(test)]
mod tests {
    use http::HeaderName;
    use rstest::rstest;

    use super::*;

    fn map(names: &[&str]) -> HeaderMap {
        names.iter().map(|name| (name.parse::<HeaderName>().unwrap(), HeaderValue::from_static("a"))).collect()
    }

    #[test]
    fn identity_headers_are_dropped() {
        let dropped = [
            "authorization",
            "proxy-authorization",
            "cookie",
            "impersonate-user",
            "impersonate-group",
            "impersonate-uid",
            "impersonate-extra-a",
            "x-remote-user",
            "x-remote-group",
            "x-remote-extra-a",
            "x-crowsnest-audit-record",
            "x-forwarded-for",
            "x-forwarded-host",
            "forwarded",
            "host",
            "origin",
            "connection",
            "upgrade",
            "te",
            "trailer",
            "transfer-encoding",
            "keep-alive",
            "accept-encoding",
        ];
        assert!(forwarded_request_headers(&map(&dropped)).is_empty());
        let kept = ["accept", "content-type", "sec-websocket-key", "traceparent", "x-crowsnest-cluster"];
        assert_eq!(forwarded_request_headers(&map(&[&kept[..], &dropped].concat())), map(&kept));
    }

    #[rstest]
    #[case::terminal("v5.channel.k8s.io", true)]
    #[case::token("base64url.bearer.authorization.k8s.io.YQ, v5.channel.k8s.io", false)]
    fn token_subprotocols_are_dropped(#[case] protocol: &'static str, #[case] expected: bool) {
        let headers = HeaderMap::from_iter([(header::SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(protocol))]);
        assert_eq!(!forwarded_request_headers(&headers).is_empty(), expected);
    }

    #[rstest]
    #[case("abc.def-_", true)]
    #[case("", false)]
    #[case("a b", false)]
    #[case("a\r\nX: y", false)]
    #[case("a;b", false)]
    #[case("ä", false)]
    #[case(&"a".repeat(8193), false)]
    fn bearer_tokens_are_validated(#[case] token: &str, #[case] expected: bool) {
        assert_eq!(is_bearer_token(token), expected);
    }

    #[test]
    fn statuses_of_the_control_plane_are_kept() {
        let body = br#"{"kind":"Status","reason":"Unauthorized","message":"Unauthorized","code":401}"#;
        assert_eq!(response_error(StatusCode::UNAUTHORIZED, body).message, "Unauthorized");
        assert_eq!(response_error(StatusCode::BAD_GATEWAY, b"<html>").message, "Bad Gateway");
    }
}
