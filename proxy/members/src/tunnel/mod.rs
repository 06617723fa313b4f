//! The reverse tunnel: how a member is reached that nobody can dial.
//!
//! An agent in the member opens a connection to the control plane and asks to upgrade it; then the roles turn. The control plane
//! speaks HTTP/2 as a client and the agent as a server. Each connection that the control plane wants to the member's API server
//! is one CONNECT stream, whose bytes are those of the connection: TLS runs end to end inside of it. docs/TUNNEL.md is the
//! protocol.
//!
//! [`Tunnels`] is the control plane's side: written by whoever accepts agents, read by [`crate::Dialer`] and
//! [`crate::Fleet`]. [`Agent`] is the member's.

mod agent;
mod open;
#[cfg(test)]
mod tests;

pub use agent::{Agent, backoff};
pub use open::Tunnels;

use crate::Error;
use http::Uri;
use http::uri::Authority;
use std::time::Duration;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// What an agent asks to upgrade to.
pub use crowsnest_apimachinery::request::TUNNEL_PROTOCOL as PROTOCOL;

/// Connections that one tunnel carries at once.
pub const MAX_STREAMS: u32 = 1024;

/// Where the control plane tells an agent how many replicas it has; below it stands the number. An earlier agent answers 405.
const REPLICAS: &str = "/replicas/";

/// Tunnels of one cluster at once; one more ends the oldest.
pub const MAX_TUNNELS: usize = 8;

/// Bytes that may be on their way in one stream and not yet read.
const STREAM_WINDOW: u32 = 512 << 10;

/// As much as all streams together: one that nobody reads must not hold up the others.
const CONNECTION_WINDOW: u32 = MAX_STREAMS * STREAM_WINDOW;

/// How a side notices that the other has gone without a word, and how long its return is waited for.
#[derive(Debug, Clone, Copy)]
struct Pulse {
    /// Having heard nothing for so long, it asks.
    ask_after: Duration,
    /// Having heard nothing for so long since, it takes the other for dead.
    answer_within: Duration,
    /// For so long after a cluster's last tunnel ended, or after it was first asked for here, whoever wants to reach it waits for
    /// one: its agent opens the next within a second or two, and finds a process that has just started as soon.
    opens_within: Duration,
}

impl Default for Pulse {
    /// What the first two make is three intervals.
    fn default() -> Self {
        Self {
            ask_after: Duration::from_secs(15),
            answer_within: Duration::from_secs(30),
            opens_within: Duration::from_secs(6),
        }
    }
}

/// The largest answer of an agent that cannot connect: the reason, as text.
const MAX_REASON: usize = 4 << 10;

/// Host and port of an API server, as CONNECT names it.
pub(crate) fn authority(endpoint: &Uri) -> Result<Authority, Error> {
    let fail = |reason: String| Error::Dial { target: endpoint.to_string(), reason };
    let host = endpoint.host().ok_or_else(|| fail("it names no host".to_owned()))?.to_ascii_lowercase();
    let port = endpoint.port_u16().unwrap_or(if endpoint.scheme_str() == Some("http") { 80 } else { 443 });
    format!("{host}:{port}").parse().map_err(|error: http::uri::InvalidUri| fail(error.to_string()))
}

/// Runs the tasks of one tunnel, which end with it.
#[derive(Debug, Clone)]
struct Tasks {
    tracker: TaskTracker,
    stop: CancellationToken,
}

impl<F> hyper::rt::Executor<F> for Tasks
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    fn execute(&self, task: F) {
        let stop = self.stop.clone();
        self.tracker.spawn(async move { stop.run_until_cancelled(task).await });
    }
}
