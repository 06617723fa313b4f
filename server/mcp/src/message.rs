//! JSON-RPC messages and their errors.

use crowsnest_apimachinery::request::MAX_REQUEST_BODY_BYTES;
use serde_json::{Map, Value, json};

pub const PARSE_ERROR: i64 = -32700;
pub const INVALID_REQUEST: i64 = -32600;
pub const METHOD_NOT_FOUND: i64 = -32601;
pub const INVALID_PARAMS: i64 = -32602;
pub const INTERNAL_ERROR: i64 = -32603;
/// The limit of concurrent requests is reached. This code is specific to this server.
pub const TOO_MANY_REQUESTS: i64 = -32000;
/// A resource that does not exist, in the revisions with a handshake.
pub const RESOURCE_NOT_FOUND: i64 = -32002;
/// HTTP headers do not match the body (2026-07-28).
pub const HEADER_MISMATCH: i64 = -32020;
/// The protocol revision of a request is not supported (2026-07-28).
pub const UNSUPPORTED_PROTOCOL_VERSION: i64 = -32022;

/// Maximum size of a message in bytes; the same as for other requests to an API server.
pub const MAX_MESSAGE_BYTES: usize = MAX_REQUEST_BODY_BYTES;

/// A JSON-RPC error.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{message}")]
pub struct RpcError {
    pub code: i64,
    pub message: String,
    pub data: Option<Value>,
}

/// A message from a client.
#[derive(Debug, Clone, PartialEq)]
pub enum Message {
    Request(Request),
    Notification {
        method: String,
        params: Map<String, Value>,
    },
    /// A response. This server sends no requests, so it is ignored.
    Response,
}

/// A request, to which the server must send a response.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// A string or an integer.
    pub id: Value,
    pub method: String,
    pub params: Map<String, Value>,
}

impl RpcError {
    pub fn new(code: i64, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), data: None }
    }

    pub fn invalid_params(message: impl Into<String>) -> Self {
        Self::new(INVALID_PARAMS, message)
    }
}

/// The response to the request with this ID; null if the ID is unknown.
pub fn response(id: &Value, result: Result<Value, RpcError>) -> Value {
    match result {
        Ok(result) => json!({"jsonrpc": "2.0", "id": id, "result": result}),
        Err(RpcError { code, message, data }) => {
            let mut error = json!({"code": code, "message": message});
            if let Some(data) = data {
                error["data"] = data;
            }
            json!({"jsonrpc": "2.0", "id": id, "error": error})
        }
    }
}

impl Message {
    /// Parses a message. An error contains the ID of the request, if it has a valid one.
    pub fn parse(bytes: &[u8]) -> Result<Self, (Value, RpcError)> {
        let value: Value = serde_json::from_slice(bytes)
            .map_err(|error| (Value::Null, RpcError::new(PARSE_ERROR, format!("invalid JSON: {error}"))))?;
        let Value::Object(mut message) = value else {
            let cause = if value.is_array() { "batches are not supported" } else { "a message is a JSON object" };
            return Err((Value::Null, RpcError::new(INVALID_REQUEST, cause)));
        };
        let id = message.remove("id");
        let valid_id = id.clone().filter(is_request_id).unwrap_or_default();
        let invalid = |cause: &str| Err((valid_id.clone(), RpcError::new(INVALID_REQUEST, cause)));
        if message.get("jsonrpc").and_then(Value::as_str) != Some("2.0") {
            return invalid("\"jsonrpc\" must be \"2.0\"");
        }
        if id.as_ref().is_some_and(|id| !is_request_id(id)) {
            return invalid("\"id\" must be a string or an integer");
        }
        let method = match message.remove("method") {
            Some(Value::String(method)) => method,
            None if message.contains_key("result") || message.contains_key("error") => return Ok(Self::Response),
            _ => return invalid("\"method\" must be a string"),
        };
        let params = match message.remove("params") {
            None => Map::new(),
            Some(Value::Object(params)) => params,
            Some(_) => return invalid("\"params\" must be an object"),
        };
        Ok(match id {
            Some(id) => Self::Request(Request { id, method, params }),
            None => Self::Notification { method, params },
        })
    }
}

fn is_request_id(id: &Value) -> bool {
    id.is_string() || id.is_i64() || id.is_u64()
}
