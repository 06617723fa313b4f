//! Standard input and output: one message per line. Requests run concurrently; a cancelled request has no response.
//! Input is read while requests run, so that cancellations arrive.

use std::collections::HashMap;
use std::io;

use futures::StreamExt;
use futures::future::{AbortHandle, Abortable, BoxFuture};
use futures::stream::FuturesUnordered;
use serde_json::{Map, Value};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio_util::codec::{FramedRead, LinesCodec, LinesCodecError};

use crate::api::Api;
use crate::message::{INVALID_REQUEST, MAX_MESSAGE_BYTES, Message, Request, RpcError, TOO_MANY_REQUESTS, response};
use crate::methods::handle_request;

/// Maximum number of concurrent requests; further requests are refused.
pub(crate) const MAX_CONCURRENT_REQUESTS: usize = 16;

/// Serves until the end of the input and until the running requests are answered.
pub async fn serve(
    api: &dyn Api,
    input: impl AsyncRead + Unpin,
    mut output: impl AsyncWrite + Unpin,
) -> io::Result<()> {
    let mut lines = FramedRead::new(input, LinesCodec::new_with_max_length(MAX_MESSAGE_BYTES));
    let mut requests = RunningRequests { api, running: FuturesUnordered::new(), handles: HashMap::new() };
    let mut is_open = true;
    // After a line that is too long, the reader reports one end of the input, and then continues.
    let mut ignores_next_end = false;
    while is_open || !requests.running.is_empty() {
        let message = tokio::select! {
            Some((id, response)) = requests.running.next(), if !requests.running.is_empty() => {
                requests.handles.remove(&id);
                response
            }
            line = lines.next(), if is_open => match line {
                None => {
                    is_open = std::mem::take(&mut ignores_next_end);
                    None
                }
                Some(Err(LinesCodecError::Io(error))) => return Err(error),
                Some(Err(LinesCodecError::MaxLineLengthExceeded)) => {
                    ignores_next_end = true;
                    let error = format!("the message has more than {MAX_MESSAGE_BYTES} bytes");
                    Some(error_response(&Value::Null, INVALID_REQUEST, error))
                }
                Some(Ok(line)) => requests.receive(&line),
            },
        };
        if let Some(message) = message {
            output.write_all(format!("{message}\n").as_bytes()).await?;
            output.flush().await?;
        }
    }
    Ok(())
}

/// Requests without a response yet.
struct RunningRequests<'a> {
    api: &'a dyn Api,
    /// Each resolves to the text of its ID, and its response unless it was cancelled.
    running: FuturesUnordered<BoxFuture<'a, (String, Option<Value>)>>,
    /// Handles to cancel requests, by the text of the ID.
    handles: HashMap<String, AbortHandle>,
}

impl RunningRequests<'_> {
    /// Handles a line: starts its request or handles its notification. Returns the error response if the line is
    /// refused.
    fn receive(&mut self, line: &str) -> Option<Value> {
        if line.trim().is_empty() {
            return None;
        }
        match Message::parse(line.as_bytes()) {
            Err((id, error)) => Some(response(&id, Err(error))),
            Ok(Message::Request(request)) => self.start(request),
            Ok(Message::Notification { method, params }) => {
                if method == "notifications/cancelled" {
                    self.cancel(&params);
                }
                None
            }
            Ok(Message::Response) => None,
        }
    }

    fn start(&mut self, request: Request) -> Option<Value> {
        let id = request.id.to_string();
        if self.handles.contains_key(&id) {
            // With this ID, the client would take the error for the response to the running request.
            return Some(error_response(
                &Value::Null,
                INVALID_REQUEST,
                format!("a request with the ID {id} is running"),
            ));
        }
        if self.handles.len() >= MAX_CONCURRENT_REQUESTS {
            let error = format!("{MAX_CONCURRENT_REQUESTS} requests are running; send another when one has ended");
            return Some(error_response(&request.id, TOO_MANY_REQUESTS, error));
        }
        let (handle, registration) = AbortHandle::new_pair();
        self.handles.insert(id.clone(), handle);
        let api = self.api;
        self.running.push(Box::pin(async move {
            let result = Abortable::new(handle_request(api, &request), registration).await;
            (id, result.ok().map(|result| response(&request.id, result)))
        }));
        None
    }

    fn cancel(&self, params: &Map<String, Value>) {
        let id = params.get("requestId").unwrap_or(&Value::Null).to_string();
        if let Some(handle) = self.handles.get(&id) {
            handle.abort();
        }
    }
}

fn error_response(id: &Value, code: i64, error: String) -> Value {
    response(id, Err(RpcError::new(code, error)))
}
