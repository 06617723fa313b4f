//! The agent's side of a tunnel: connects the control plane to one API server and nothing else.

use super::{
    CONNECTION_WINDOW_BYTES, MAX_STREAMS, REPLICAS_PATH, STREAM_WINDOW_BYTES, Tasks, TunnelTimeouts, authority,
};
use crate::{Dialer, Error, MemberIo};
use bytes::Bytes;
use crowsnest_component_base::retry::{Backoff, jitter};
use http::uri::Authority;
use http::{Method, Request, Response, StatusCode, Uri};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Backoff before the next tunnel.
const RECONNECT_BACKOFF: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(30));

/// Time limit for draining connections when the agent stops.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

/// Copy buffer size in bytes, per direction.
const BUFFER_BYTES: usize = 64 << 10;

/// Delay before the next tunnel, after `failures` failures in a row. `random` (0 to 1) shortens it by up to a half, so that
/// the agents of a fleet do not reconnect at the same moment.
pub fn reconnect_delay(failures: u32, random: f64) -> Duration {
    jitter(RECONNECT_BACKOFF.delay(failures.saturating_add(1)), (1.0, 0.5), random)
}

/// The agent's side of tunnels. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Agent {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// The endpoint in the Cluster object: the only target that CONNECT may have.
    endpoint: Authority,
    member: Dialer,
    /// The number of replicas that the control plane announced.
    replicas: watch::Sender<usize>,
}

impl Agent {
    /// `endpoint` is the API server as in the Cluster object; `member` dials it from the agent. `member` must not add
    /// TLS: the copied bytes are those of the control plane's own TLS connection to the API server.
    pub fn new(endpoint: &Uri, member: Dialer) -> Result<Self, Error> {
        let replicas = watch::Sender::default();
        Ok(Self { inner: Arc::new(Inner { endpoint: authority(endpoint)?, member, replicas }) })
    }

    /// Receives the number of control plane replicas whenever it is announced, so that the agent can connect to new
    /// ones.
    pub fn replicas(&self) -> watch::Receiver<usize> {
        self.inner.replicas.subscribe()
    }

    /// Serves one tunnel until it ends or `stop` is cancelled.
    pub async fn serve<IO>(&self, io: IO, stop: &CancellationToken) -> Result<(), Error>
    where
        IO: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
    {
        let tasks = Tasks { tracker: TaskTracker::new(), stop: CancellationToken::new() };
        let _stop_guard = tasks.stop.clone().drop_guard();
        let timeouts = TunnelTimeouts::default();
        let service = service_fn(|request| {
            let (agent, tasks) = (self.clone(), tasks.clone());
            async move { Ok::<_, Infallible>(agent.handle_request(request, &tasks).await) }
        });
        let connection = hyper::server::conn::http2::Builder::new(tasks.clone())
            .timer(TokioTimer::new())
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .max_concurrent_streams(MAX_STREAMS)
            .keep_alive_interval(timeouts.ping_interval)
            .keep_alive_timeout(timeouts.ping_timeout)
            .serve_connection(io, service);
        let mut connection = pin!(connection);
        let tunnel_error = |error: hyper::Error| Error::Tunnel(Arc::new(error));
        tokio::select! {
            result = connection.as_mut() => return result.map_err(tunnel_error),
            () = stop.cancelled() => connection.as_mut().graceful_shutdown(),
        }
        // Watches never end, so the wait is limited; the peer may close first.
        let drained = tokio::time::timeout(DRAIN_TIMEOUT, connection).await;
        tracing::debug!(?drained, "the tunnel is closed");
        Ok(())
    }

    async fn handle_request(&self, request: Request<Incoming>, tasks: &Tasks) -> Response<Full<Bytes>> {
        if let Some(replicas) = announced_replicas(&request) {
            self.inner.replicas.send_replace(replicas);
            return empty_response(StatusCode::NO_CONTENT);
        }
        if request.method() != Method::CONNECT {
            return refusal(StatusCode::METHOD_NOT_ALLOWED, "only CONNECT requests are accepted".into());
        }
        let requested = request.uri().authority().map(|authority| authority.as_str().to_ascii_lowercase());
        if requested.as_deref() != Some(self.inner.endpoint.as_str()) {
            let requested = requested.unwrap_or_default();
            tracing::warn!(requested, allowed = %self.inner.endpoint, "refused a connection");
            let text = format!("this agent connects only to {}, not to {requested}", self.inner.endpoint);
            return refusal(StatusCode::FORBIDDEN, text);
        }
        match self.inner.member.dial().await {
            Ok(member) => {
                let (upgrade, stop) = (hyper::upgrade::on(request), tasks.stop.clone());
                tasks.tracker.spawn(async move { stop.run_until_cancelled(copy_stream(upgrade, member)).await });
                Response::new(Full::default())
            }
            Err(error) => refusal(StatusCode::BAD_GATEWAY, error.to_string()),
        }
    }
}

/// The announced number of replicas, if the request is an announcement.
fn announced_replicas(request: &Request<Incoming>) -> Option<usize> {
    let number = request.uri().path().strip_prefix(REPLICAS_PATH)?;
    (request.method() == Method::POST).then(|| number.parse().ok())?
}

fn empty_response(status: StatusCode) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::default());
    *response.status_mut() = status;
    response
}

fn refusal(status: StatusCode, reason: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(reason));
    *response.status_mut() = status;
    response
}

/// Copies the bytes of a CONNECT stream and of the connection to the member in both directions.
async fn copy_stream(upgrade: OnUpgrade, mut member: MemberIo) {
    let copying = async {
        let mut stream = TokioIo::new(upgrade.await.map_err(std::io::Error::other)?);
        tokio::io::copy_bidirectional_with_sizes(&mut stream, &mut member, BUFFER_BYTES, BUFFER_BYTES).await
    };
    match copying.await {
        Ok((sent, received)) => tracing::debug!(sent, received, "a connection through the tunnel ended"),
        Err(error) => tracing::debug!(%error, "a connection through the tunnel failed"),
    }
}
