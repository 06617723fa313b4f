//! Streamable HTTP: one message per POST, answered with one JSON object. There are no sessions and no streams.
//!
//! The server in front of it authenticates the caller, checks `Origin` and limits the rate.

use http::{HeaderMap, HeaderName, StatusCode, header};
use serde_json::Value;

use crate::api::Api;
use crate::message::{HEADER_MISMATCH, METHOD_NOT_FOUND, Message, Request, RpcError, response};
use crate::methods::{self, HANDSHAKE_VERSIONS, STATELESS_VERSION, handle_request, requested_version};

const VERSION_HEADER: HeaderName = HeaderName::from_static("mcp-protocol-version");
const METHOD_HEADER: HeaderName = HeaderName::from_static("mcp-method");
const NAME_HEADER: HeaderName = HeaderName::from_static("mcp-name");

/// A response to a POST.
#[derive(Debug, Clone, PartialEq)]
pub struct HttpResponse {
    pub status: StatusCode,
    pub body: Option<Value>,
    /// Name of the tool that the message called.
    pub tool: Option<&'static str>,
}

impl HttpResponse {
    fn empty(status: StatusCode) -> Self {
        Self { status, body: None, tool: None }
    }

    fn error(status: StatusCode, id: &Value, error: RpcError) -> Self {
        Self { body: Some(response(id, Err(error))), ..Self::empty(status) }
    }
}

/// Handles the body of a POST as the caller of `api`.
pub async fn handle_post(api: &dyn Api, headers: &HeaderMap, body: &[u8]) -> HttpResponse {
    if !is_json(headers) {
        return HttpResponse::empty(StatusCode::UNSUPPORTED_MEDIA_TYPE);
    }
    let message = match Message::parse(body) {
        Ok(message) => message,
        Err((id, error)) => return HttpResponse::error(StatusCode::BAD_REQUEST, &id, error),
    };
    let Message::Request(request) = message else {
        return HttpResponse::empty(StatusCode::ACCEPTED);
    };
    if let Err(error) = check_headers(headers, &request).and_then(|()| methods::era(&request.params)) {
        return HttpResponse::error(StatusCode::BAD_REQUEST, &request.id, error);
    }
    let result = handle_request(api, &request).await;
    let status = match &result {
        Err(error) if error.code == METHOD_NOT_FOUND && requested_version(&request.params).is_some() => {
            StatusCode::NOT_FOUND
        }
        _ => StatusCode::OK,
    };
    HttpResponse { status, body: Some(response(&request.id, result)), tool: called_tool(&request) }
}

/// Name of the tool that the request calls; `None` for unknown tools.
fn called_tool(request: &Request) -> Option<&'static str> {
    let name = request.params.get("name").and_then(Value::as_str).filter(|_| request.method == "tools/call")?;
    crate::tools::tool_name(name)
}

/// True if the media type of the body is JSON, or is not stated, as by `kubectl create --raw`.
fn is_json(headers: &HeaderMap) -> bool {
    let Some(media_type) = headers.get(header::CONTENT_TYPE) else { return true };
    let media_type = media_type.to_str().unwrap_or_default();
    media_type.split(';').next().is_some_and(|media_type| media_type.trim().eq_ignore_ascii_case("application/json"))
}

/// Checks that the headers that repeat fields of the body match them.
fn check_headers(headers: &HeaderMap, request: &Request) -> Result<(), RpcError> {
    let version = single_value(headers, &VERSION_HEADER)?;
    let Some(requested) = requested_version(&request.params) else {
        return match version {
            Some(STATELESS_VERSION) => Err(methods::missing_meta(methods::VERSION_KEY)),
            // The handshake negotiated this version. It is not compared, because this server keeps no sessions.
            Some(version) if !HANDSHAKE_VERSIONS.contains(&version) => Err(methods::unsupported_version(version)),
            _ => Ok(()),
        };
    };
    check_header(&VERSION_HEADER, version, requested)?;
    if requested != STATELESS_VERSION {
        return Err(methods::unsupported_version(requested));
    }
    check_header(&METHOD_HEADER, single_value(headers, &METHOD_HEADER)?, &request.method)?;
    let field = match request.method.as_str() {
        "tools/call" | "prompts/get" => "name",
        "resources/read" => "uri",
        _ => return Ok(()),
    };
    let name = request.params.get(field).and_then(Value::as_str).unwrap_or_default();
    check_header(&NAME_HEADER, single_value(headers, &NAME_HEADER)?, name)
}

/// Fails unless the header has the expected value.
fn check_header(header: &HeaderName, value: Option<&str>, expected: &str) -> Result<(), RpcError> {
    match value {
        Some(value) if value == expected => Ok(()),
        Some(value) => Err(header_mismatch(&format!("{header} is {value:?}, the body has {expected:?}"))),
        None => Err(header_mismatch(&format!("{header} is missing"))),
    }
}

/// Value of a header, if it is set. Fails if it is set more than once or is not text.
fn single_value<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Result<Option<&'h str>, RpcError> {
    let mut values = headers.get_all(name).iter();
    let (first, second) = (values.next(), values.next());
    if second.is_some() {
        return Err(header_mismatch(&format!("{name} is sent more than once")));
    }
    first.map(|value| value.to_str().map_err(|_| header_mismatch(&format!("{name} is not ASCII text")))).transpose()
}

fn header_mismatch(cause: &str) -> RpcError {
    RpcError::new(HEADER_MISMATCH, format!("header mismatch: {cause}"))
}
