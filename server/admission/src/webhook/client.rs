//! HTTP client for admission and conversion webhooks.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use crowsnest_apimachinery::request::MAX_REQUEST_BODY_BYTES;
use crowsnest_apimachinery::yaml;
use crowsnest_apiserver::outbound::{OutboundClients, OutboundError, Target};
use crowsnest_component_base::body;
use crowsnest_schema::decode;
use http::header::{ACCEPT, CONTENT_TYPE};
use serde_json::Value;

/// Reason why a webhook call failed.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    #[error("{0}")]
    Outbound(#[from] OutboundError),
    #[error("Post {url:?}: context deadline exceeded")]
    Deadline { url: String },
    /// An HTTP failure, with client-go's wording.
    #[error("{0}")]
    Status(String),
    #[error("{0}")]
    Body(String),
}

/// Client for webhooks.
#[derive(Debug)]
pub struct WebhookClient {
    outbound: Arc<OutboundClients>,
}

impl WebhookClient {
    pub fn new(outbound: Arc<OutboundClients>) -> Self {
        Self { outbound }
    }

    /// Posts an AdmissionReview or ConversionReview and returns the parsed response; fails after `timeout`.
    pub async fn post(&self, target: &Target, review: &Value, timeout: Duration) -> Result<Value, CallError> {
        let path = format!("/?timeout={}", format_timeout(timeout));
        let request = http::Request::post(path)
            .header(CONTENT_TYPE, "application/json")
            .header(ACCEPT, "application/json, */*")
            .header(http::header::USER_AGENT, "kube-apiserver-admission")
            .body(Body::from(review.to_string()))
            .map_err(OutboundError::from)?;
        match tokio::time::timeout(timeout, self.send(target, request)).await {
            Ok(response) => response,
            Err(_) => Err(CallError::Deadline { url: format!("{}?timeout={}", target.url(), format_timeout(timeout)) }),
        }
    }

    async fn send(&self, target: &Target, request: http::Request<Body>) -> Result<Value, CallError> {
        let response = self.outbound.send_review(target, request).await?;
        let status = response.status();
        let media_type = response.headers().get(CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or("").to_owned();
        // Responses have the size limit of requests.
        let body = body::collect(response.into_body(), MAX_REQUEST_BODY_BYTES).await;
        let body = body.map_err(|error| CallError::Body(error.to_string()))?;
        if !status.is_success() {
            return Err(CallError::Status(crowsnest_apimachinery::response_error::error_message(
                status.as_u16(),
                media_type.starts_with("text/"),
                &body,
            )));
        }
        if body.is_empty() {
            return Err(CallError::Body(format!(
                "0-length response with status code: {} and content type: {media_type}",
                status.as_u16()
            )));
        }
        let parsed = parse_response(&body);
        parsed.map_err(|reason| CallError::Body(format!("couldn't get version/kind; json parse error: {reason}")))
    }
}

/// Parses a response as JSON or YAML.
fn parse_response(body: &[u8]) -> Result<Value, String> {
    let first = body.iter().find(|byte| !byte.is_ascii_whitespace());
    let value = match first {
        Some(b'{') => decode::parse_json(body)?,
        _ => match std::str::from_utf8(body).ok().and_then(|text| yaml::parse(text).ok()) {
            Some(value) => value,
            None => decode::parse_json(body)?,
        },
    };
    match value {
        Value::Object(_) | Value::Null => Ok(value),
        other => {
            let kind = crowsnest_schema::patch::go_kind(&other);
            Err(format!("json: cannot unmarshal {kind} into Go value of type {}", decode::TYPE_META))
        }
    }
}

/// Formats whole seconds as Go does: `10s`, `1m30s`.
fn format_timeout(timeout: Duration) -> String {
    match timeout.as_secs() {
        seconds @ 0..60 => format!("{seconds}s"),
        seconds => format!("{}m{}s", seconds / 60, seconds % 60),
    }
}
