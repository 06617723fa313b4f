//! Reverse tunnels to members that cannot be dialed.
//!
//! The agent in the member opens a connection to the control plane and upgrades it; then the roles are reversed.
//! The control plane is the HTTP/2 client and the agent the server. Each connection to the member's API server is a
//! CONNECT stream that carries the bytes of an end-to-end TLS connection. docs/TUNNEL.md describes the protocol.
//!
//! [`Tunnels`] is the control plane's side: servers that accept agents add tunnels, [`crate::Dialer`] and
//! [`crate::Fleet`] use them. [`Agent`] is the member's side.

mod agent;
mod open;
#[cfg(test)]
mod tests;

pub use agent::{Agent, reconnect_delay};
pub use open::Tunnels;

use crate::Error;
use http::Uri;
use http::uri::Authority;
use std::time::Duration;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Upgrade protocol requested by an agent.
pub use crowsnest_apimachinery::request::TUNNEL_PROTOCOL as PROTOCOL;

/// Maximum number of connections per tunnel.
pub const MAX_STREAMS: u32 = 1024;

/// Path on which the control plane announces its number of replicas, followed by the number. Older agents respond
/// with 405.
const REPLICAS_PATH: &str = "/replicas/";

/// Maximum number of tunnels per cluster; another one closes the oldest.
pub const MAX_TUNNELS: usize = 8;

/// HTTP/2 flow-control window of a stream in bytes.
const STREAM_WINDOW_BYTES: u32 = 512 << 10;

/// HTTP/2 flow-control window of a connection in bytes: the sum of all streams, so that an unread stream cannot block the others.
const CONNECTION_WINDOW_BYTES: u32 = MAX_STREAMS * STREAM_WINDOW_BYTES;

/// Liveness checks of tunnels, and how long to wait for an agent to reconnect.
#[derive(Debug, Clone, Copy)]
struct TunnelTimeouts {
    /// Idle time after which a ping is sent.
    ping_interval: Duration,
    /// Time limit for the response to a ping; afterwards the peer counts as dead.
    ping_timeout: Duration,
    /// Maximum wait of requests for a tunnel after the cluster's last one ended, or after the first request to the cluster in
    /// this process. Agents reconnect within a second or two, and find a new process as quickly.
    open_timeout: Duration,
}

impl Default for TunnelTimeouts {
    /// A dead peer is detected after `ping_interval` plus `ping_timeout`, three ping intervals.
    fn default() -> Self {
        Self {
            ping_interval: Duration::from_secs(15),
            ping_timeout: Duration::from_secs(30),
            open_timeout: Duration::from_secs(6),
        }
    }
}

/// Maximum length in bytes of an agent's error text.
const MAX_REASON_BYTES: usize = 4 << 10;

/// Host and port of an API server, the target of CONNECT.
pub(crate) fn authority(endpoint: &Uri) -> Result<Authority, Error> {
    let fail = |reason: String| Error::Dial { target: endpoint.to_string(), reason };
    let host = endpoint.host().ok_or_else(|| fail("it has no host".to_owned()))?.to_ascii_lowercase();
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
