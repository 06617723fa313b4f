//! Standard input and output: one message per line. Requests run concurrently; a cancelled one is dropped unanswered.

use std::collections::HashMap;
use std::io;

use futures::StreamExt;
use futures::future::{AbortHandle, AbortRegistration, Abortable};
use futures::stream::FuturesUnordered;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio_util::codec::{FramedRead, LinesCodec, LinesCodecError};

use crate::api::Api;
use crate::message::{INVALID_REQUEST, MAX_MESSAGE, Message, Request, RpcError, response};
use crate::methods::answer;

/// Maximum number of requests that run at once; further lines are read after one has ended.
const MAX_CONCURRENT: usize = 16;

/// Serves until the end of the input, and answers the requests that still run.
pub async fn serve(
    api: &dyn Api,
    input: impl AsyncRead + Unpin,
    mut output: impl AsyncWrite + Unpin,
) -> io::Result<()> {
    let mut lines = FramedRead::new(input, LinesCodec::new_with_max_length(MAX_MESSAGE));
    let mut running = FuturesUnordered::new();
    let mut handles: HashMap<String, AbortHandle> = HashMap::new();
    let mut is_open = true;
    // After an error, the reader reports an end once, and continues.
    let mut is_end_of_error = false;
    while is_open || !running.is_empty() {
        tokio::select! {
            Some((key, response)) = running.next(), if !running.is_empty() => {
                handles.remove(&key);
                if let Some(response) = response {
                    write(&mut output, &response).await?;
                }
            }
            line = lines.next(), if is_open && running.len() < MAX_CONCURRENT => match line {
                None if is_end_of_error => is_end_of_error = false,
                None => is_open = false,
                Some(Err(LinesCodecError::Io(error))) => return Err(error),
                Some(Err(LinesCodecError::MaxLineLengthExceeded)) => {
                    is_end_of_error = true;
                    let error = format!("the message has more than {MAX_MESSAGE} bytes");
                    write(&mut output, &response(&Value::Null, Err(RpcError::new(INVALID_REQUEST, error)))).await?;
                }
                Some(Ok(line)) if line.trim().is_empty() => {}
                Some(Ok(line)) => match Message::parse(line.as_bytes()) {
                    Err((id, error)) => write(&mut output, &response(&id, Err(error))).await?,
                    Ok(Message::Request(request)) => {
                        let (handle, registration) = AbortHandle::new_pair();
                        let key = request.id.to_string();
                        handles.insert(key.clone(), handle);
                        running.push(run(api, request, key, registration));
                    }
                    Ok(Message::Notification { method, params }) if method == "notifications/cancelled" => {
                        let id = params.get("requestId").unwrap_or(&Value::Null).to_string();
                        if let Some(handle) = handles.get(&id) {
                            handle.abort();
                        }
                    }
                    Ok(Message::Notification { .. } | Message::Response) => {}
                },
            },
        }
    }
    Ok(())
}

async fn run(api: &dyn Api, request: Request, key: String, registration: AbortRegistration) -> (String, Option<Value>) {
    let answered = Abortable::new(answer(api, &request), registration).await;
    (key, answered.ok().map(|result| response(&request.id, result)))
}

async fn write(output: &mut (impl AsyncWrite + Unpin), message: &Value) -> io::Result<()> {
    output.write_all(format!("{message}\n").as_bytes()).await?;
    output.flush().await
}
