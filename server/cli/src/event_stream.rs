//! Client of server-sent event streams: splits lines into events and reconnects with backoff when a stream ends.

use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::bail;
use crowsnest_component_base::retry::{Backoff, Delays};
use futures::stream::BoxStream;
use futures::{AsyncBufReadExt, StreamExt};
use tokio::time::Instant;

use super::clients::describe_cause;
use crate::output::terminal;

/// Longest delay between two connection attempts.
const MAX_RECONNECT_DELAY: Duration = Duration::from_secs(30);
const RECONNECT_BACKOFF: Backoff = Backoff::new(Duration::from_millis(500), MAX_RECONNECT_DELAY);

/// Lines of a stream.
pub(crate) type Lines = BoxStream<'static, io::Result<String>>;

/// Follows the event stream at `path` and reconnects whenever it ends. `read` consumes one connection to its end and
/// returns whether its initial state was complete. Returns an error when the server refuses the request with a client
/// error other than 429.
pub(crate) async fn follow(
    client: &kube::Client,
    path: &str,
    mut read: impl AsyncFnMut(Lines) -> anyhow::Result<bool>,
) -> anyhow::Result<ExitCode> {
    let mut delays = ReconnectDelays::default();
    loop {
        let request = http::Request::get(path).header(http::header::ACCEPT, "text/event-stream").body(Vec::new())?;
        let started_at = Instant::now();
        let interruption = match client.request_stream(request).await {
            Ok(stream) => match read(stream.lines().boxed()).await? {
                true => None,
                false => Some("the connection was lost".to_owned()),
            },
            Err(kube::Error::Api(status)) if status.code < 500 && status.code != 429 => bail!("{}", status.message),
            Err(error) => Some(describe_cause(&error)),
        };
        if let Some(interruption) = interruption {
            writeln!(terminal::stderr(), "note: {interruption}; reconnecting")?;
        }
        tokio::time::sleep(delays.next_delay(started_at.elapsed())).await;
    }
}

/// Delays between connection attempts: they grow, and start over after a connection that lasted for `MAX_RECONNECT_DELAY`.
#[derive(Debug)]
pub(crate) struct ReconnectDelays(Delays);

impl Default for ReconnectDelays {
    fn default() -> Self {
        Self(RECONNECT_BACKOFF.delays())
    }
}

impl ReconnectDelays {
    pub(crate) fn next_delay(&mut self, connected_for: Duration) -> Duration {
        if connected_for >= MAX_RECONNECT_DELAY {
            self.0.reset();
        }
        self.0.next_delay()
    }
}

/// Parser state: the fields of the event being read.
#[derive(Debug, Default)]
pub(crate) struct EventParser {
    name: String,
    data: String,
}

impl EventParser {
    /// Consumes the next line; returns name and data of an event when the line completes one.
    pub(crate) fn push_line(&mut self, line: &str) -> Option<(String, String)> {
        let line = line.trim_end_matches(['\r', '\n']);
        if line.is_empty() {
            let (name, data) = (std::mem::take(&mut self.name), std::mem::take(&mut self.data));
            return (!data.is_empty()).then_some((name, data));
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => value.clone_into(&mut self.name),
            "data" => {
                if !self.data.is_empty() {
                    self.data.push('\n');
                }
                self.data.push_str(value);
            }
            // Comment lines keep the connection alive; the server sends no other fields.
            _ => {}
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_grow_until_a_connection_lasts() {
        let mut delays = ReconnectDelays::default();
        let delays_ms: Vec<u64> = [0, 0, 0, 29, 60, 1, 0]
            .map(|lasted| u64::try_from(delays.next_delay(Duration::from_secs(lasted)).as_millis()).unwrap())
            .to_vec();
        assert_eq!(delays_ms, [500, 1000, 2000, 4000, 500, 1000, 2000]);
        let longest = (0..20).map(|_| delays.next_delay(Duration::ZERO)).max();
        assert_eq!(longest, Some(MAX_RECONNECT_DELAY));
    }

    #[test]
    fn events_are_parsed() {
        let text = ":\n\nevent: line\ndata: {\"a\":\ndata: 1}\n\nevent: done\ndata: {}\n\nevent: begun\ndata: {";
        let mut parser = EventParser::default();
        let read: Vec<(String, String)> = text.lines().filter_map(|line| parser.push_line(line)).collect();
        let expected = [("line", "{\"a\":\n1}"), ("done", "{}")];
        assert_eq!(read, expected.map(|(name, data)| (name.to_owned(), data.to_owned())));
    }
}
