//! Tests of the protocol and the tools, on an API with prepared responses.

mod protocol;
mod secrets;
mod structured;
mod tools;

use bytes::Bytes;
use crowsnest_apimachinery::status::{ApiError, Reason};
use futures::future::BoxFuture;
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::message::{Request, RpcError};
use crate::{Api, ApiRequest, ApiResponse};

/// An API that records its requests. It sends the first prepared response whose text is part of the request's URI.
#[derive(Default)]
pub(super) struct PreparedApi {
    /// A part of the URI, with the response.
    responses: Vec<(&'static str, Value)>,
    pub requests: Mutex<Vec<ApiRequest>>,
}

impl PreparedApi {
    pub fn new(responses: &[(&'static str, Value)]) -> Self {
        Self { responses: responses.to_vec(), requests: Mutex::default() }
    }

    /// URIs of the requests.
    pub fn uris(&self) -> Vec<String> {
        self.requests.lock().iter().map(|request| request.uri.clone()).collect()
    }
}

impl Api for PreparedApi {
    fn send(&self, request: ApiRequest) -> BoxFuture<'_, Result<ApiResponse, ApiError>> {
        let prepared = self.responses.iter().find(|(part, _)| request.uri.contains(part));
        let response = match prepared {
            None => Err(ApiError::new(Reason::Forbidden, "access is denied")),
            Some((_, Value::String(text))) => Ok(text.clone().into_bytes()),
            Some((_, value)) => Ok(value.to_string().into_bytes()),
        };
        self.requests.lock().push(request);
        let response = response.map(|body| ApiResponse { body: Bytes::from(body), is_truncated: false });
        Box::pin(std::future::ready(response))
    }
}

pub(super) fn request(method: &str, params: Value) -> Request {
    let Value::Object(params) = params else { panic!("{params}") };
    Request { id: json!(1), method: method.to_owned(), params }
}

/// Calls a method.
pub(super) async fn call(api: &PreparedApi, method: &str, params: Value) -> Result<Value, RpcError> {
    crate::methods::handle_request(api, &request(method, params)).await
}

/// Calls a tool; returns the text of its output, and true if it is an error.
pub(super) async fn call_tool(api: &PreparedApi, name: &str, arguments: Value) -> Result<(String, bool), RpcError> {
    let result = call(api, "tools/call", json!({"name": name, "arguments": arguments})).await?;
    let text = result["content"][0]["text"].as_str().unwrap_or_default().to_owned();
    Ok((text, result["isError"] == true))
}
