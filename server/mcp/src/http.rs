//! Streamable HTTP: one message per POST, answered with one JSON object. There are no sessions and no streams.
//!
//! The server in front of it authenticates the caller, checks `Origin` and limits the rate.

use http::{HeaderMap, HeaderName, StatusCode, header};
use serde_json::Value;

use crate::api::Api;
use crate::message::{HEADER_MISMATCH, METHOD_NOT_FOUND, Message, Request, RpcError, response};
use crate::methods::{self, HANDSHAKE, STATELESS, answer, requested_version};

const VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
const METHOD: HeaderName = HeaderName::from_static("mcp-method");
const NAME: HeaderName = HeaderName::from_static("mcp-name");

/// A response to a POST.
#[derive(Debug, Clone, PartialEq)]
pub struct HttpResponse {
    pub status: StatusCode,
    pub body: Option<Value>,
    /// Tool that the message called.
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
pub async fn respond(api: &dyn Api, headers: &HeaderMap, body: &[u8]) -> HttpResponse {
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
    if let Err(error) = check_headers(headers, &request) {
        return HttpResponse::error(StatusCode::BAD_REQUEST, &request.id, error);
    }
    let result = answer(api, &request).await;
    let status = match &result {
        Err(error) if error.code == METHOD_NOT_FOUND && requested_version(&request.params).is_some() => {
            StatusCode::NOT_FOUND
        }
        Err(error) if error.code == crate::message::UNSUPPORTED_PROTOCOL_VERSION => StatusCode::BAD_REQUEST,
        _ => StatusCode::OK,
    };
    HttpResponse { status, body: Some(response(&request.id, result)), tool: called_tool(&request) }
}

fn called_tool(request: &Request) -> Option<&'static str> {
    let name = request.params.get("name").and_then(Value::as_str).filter(|_| request.method == "tools/call")?;
    crate::tools::known_name(name)
}

/// True if the body is JSON, or has no type, as that of `kubectl create --raw`.
fn is_json(headers: &HeaderMap) -> bool {
    let Some(kind) = headers.get(header::CONTENT_TYPE) else { return true };
    let kind = kind.to_str().unwrap_or_default();
    kind.split(';').next().is_some_and(|kind| kind.trim().eq_ignore_ascii_case("application/json"))
}

/// Checks the headers that repeat fields of the body.
fn check_headers(headers: &HeaderMap, request: &Request) -> Result<(), RpcError> {
    let version = single(headers, &VERSION)?;
    let Some(requested) = requested_version(&request.params) else {
        return match version {
            Some(STATELESS) => Err(mismatch("the body has no protocol version in _meta")),
            // The version that was negotiated before, which is not checked: this server keeps no sessions.
            Some(version) if !HANDSHAKE.contains(&version) => Err(methods::unsupported_version(version)),
            _ => Ok(()),
        };
    };
    expect(&VERSION, version, requested)?;
    if requested != STATELESS {
        return Err(methods::unsupported_version(requested));
    }
    expect(&METHOD, single(headers, &METHOD)?, &request.method)?;
    let field = match request.method.as_str() {
        "tools/call" | "prompts/get" => "name",
        "resources/read" => "uri",
        _ => return Ok(()),
    };
    let name = request.params.get(field).and_then(Value::as_str).unwrap_or_default();
    expect(&NAME, single(headers, &NAME)?, name)
}

fn expect(header: &HeaderName, value: Option<&str>, expected: &str) -> Result<(), RpcError> {
    match value {
        Some(value) if value == expected => Ok(()),
        Some(value) => Err(mismatch(&format!("{header} is {value:?}, the body has {expected:?}"))),
        None => Err(mismatch(&format!("{header} is missing"))),
    }
}

fn single<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Result<Option<&'h str>, RpcError> {
    let mut values = headers.get_all(name).iter();
    let (first, second) = (values.next(), values.next());
    if second.is_some() {
        return Err(mismatch(&format!("{name} is given more than once")));
    }
    first.map(|value| value.to_str().map_err(|_| mismatch(&format!("{name} is not ASCII text")))).transpose()
}

fn mismatch(what: &str) -> RpcError {
    RpcError::new(HEADER_MISMATCH, format!("header mismatch: {what}"))
}
