//! Listening sockets: TLS with optional client certificates, HTTP/1.1 and h2 on one port, upgrades, draining.

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use parking_lot::Mutex;
use rustls_pki_types::UnixTime;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt;

use crate::audit::tracked_body::TrackedBody;
use crate::authn::Tls;

pub use crate::coalesced_writes::coalesce_writes;
pub use crate::read_ahead::read_ahead;

/// Address of the client's connection, a request extension.
#[derive(Debug, Clone, Copy)]
pub struct PeerAddress(pub IpAddr);

/// Time limit of a TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Time limit for closing an idle connection gracefully.
const IDLE_CLOSE_TIMEOUT: Duration = Duration::from_secs(10);
/// Delay before the next attempt to accept a connection after a failed one.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(20);
/// Time limit for running requests during a drain.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// TCP keepalive: idle time before the first probe, interval, and number of probes.
const KEEPALIVE_IDLE_TIME: Duration = Duration::from_secs(30);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_PROBES: u32 = 3;

/// Accepts connections until cancelled, then lets running requests finish for up to `DRAIN_TIMEOUT`. Without `tls` it
/// serves plain HTTP.
pub async fn serve(
    listener: TcpListener,
    tls: Option<Tls>,
    router: Router,
    stop: CancellationToken,
) -> std::io::Result<()> {
    serve_with_wrapper(listener, tls, router, stop, |stream| stream).await
}

/// Like [`serve`], with a wrapper around each accepted socket.
pub async fn serve_with_wrapper<S>(
    listener: TcpListener,
    tls: Option<Tls>,
    router: Router,
    stop: CancellationToken,
    wrap: impl Fn(TcpStream) -> S,
) -> std::io::Result<()>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let acceptor = tls.map(|tls| (TlsAcceptor::from(tls.config), tls.clients));
    let connections = TaskTracker::new();
    loop {
        let (stream, address) = tokio::select! {
            accepted = accept_connection(&listener) => accepted,
            () = stop.cancelled() => break,
        };
        let stream = wrap(stream);
        let (router, acceptor, stop) = (router.clone(), acceptor.clone(), stop.clone());
        let mut peer = http::Extensions::new();
        peer.insert(PeerAddress(address.ip()));
        connections.spawn(async move {
            let Some((acceptor, clients)) = acceptor else {
                return serve_connection(stream, peer, router, stop).await;
            };
            match tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(read_ahead(stream))).await {
                Ok(Ok(stream)) => {
                    let chain = stream.get_ref().1.peer_certificates().unwrap_or_default();
                    peer.insert(clients.verify_chain(chain, UnixTime::now()));
                    let is_h2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
                    if is_h2 {
                        serve_connection(coalesce_writes(stream), peer, router, stop).await;
                    } else {
                        serve_connection(stream, peer, router, stop).await;
                    }
                }
                Ok(Err(error)) => tracing::debug!(%error, "TLS handshake failed"),
                Err(_) => tracing::debug!("TLS handshake timed out"),
            }
        });
    }
    connections.close();
    if tokio::time::timeout(DRAIN_TIMEOUT, connections.wait()).await.is_err() {
        tracing::info!(open = connections.len(), "closing connections that are still open after the drain");
    }
    Ok(())
}

/// Accepts the next connection and sets the options of its socket. Failures are logged and retried, because their
/// causes are temporary: no file descriptor is free, or a connection failed in the accept queue.
pub async fn accept_connection(listener: &TcpListener) -> (TcpStream, SocketAddr) {
    loop {
        match listener.accept().await {
            Ok((stream, address)) => {
                set_socket_options(&stream);
                return (stream, address);
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
            }
        }
    }
}

/// Sets the options of an accepted socket. Keepalive probes prevent middleboxes from dropping silent connections,
/// such as terminal sessions, and detect a lost peer within a minute.
fn set_socket_options(stream: &TcpStream) {
    let keepalive = TcpKeepalive::new()
        .with_time(KEEPALIVE_IDLE_TIME)
        .with_interval(KEEPALIVE_INTERVAL)
        .with_retries(KEEPALIVE_PROBES);
    let result = stream.set_nodelay(true).and_then(|()| SockRef::from(stream).set_tcp_keepalive(&keepalive));
    if let Err(error) = result {
        tracing::debug!(%error, "cannot set the options of a socket");
    }
}

/// Idle limits of a connection: before its first request, and between requests.
const FIRST_REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
const IDLE_TIMEOUT: Duration = Duration::from_secs(90);
/// Interval at which a connection is checked for idleness.
const IDLE_CHECK_INTERVAL: Duration = Duration::from_secs(10);

/// Request activity of one connection.
#[derive(Debug)]
struct Activity {
    running: AtomicUsize,
    /// End of the last request, or start of the connection.
    idle_since: Mutex<Instant>,
    has_received_request: AtomicBool,
}

/// Guard of a running request, until its response has been sent.
struct RunningRequest(Arc<Activity>);

impl Activity {
    fn new() -> Arc<Self> {
        let idle_since = Mutex::new(Instant::now());
        Arc::new(Self { running: AtomicUsize::new(0), idle_since, has_received_request: AtomicBool::new(false) })
    }

    fn begin(self: &Arc<Self>) -> RunningRequest {
        self.has_received_request.store(true, Ordering::Relaxed);
        self.running.fetch_add(1, Ordering::Relaxed);
        RunningRequest(Arc::clone(self))
    }

    /// Counts a request as finished.
    fn end(&self, now: Instant) {
        *self.idle_since.lock() = now;
        self.running.fetch_sub(1, Ordering::Relaxed);
    }

    /// True if the connection has been idle longer than its limit.
    fn is_idle(&self, now: Instant) -> bool {
        let limit =
            if self.has_received_request.load(Ordering::Relaxed) { IDLE_TIMEOUT } else { FIRST_REQUEST_TIMEOUT };
        let idle_since = *self.idle_since.lock();
        self.running.load(Ordering::Relaxed) == 0 && now.saturating_duration_since(idle_since) >= limit
    }

    async fn wait_until_idle(&self) {
        while !self.is_idle(Instant::now()) {
            tokio::time::sleep(IDLE_CHECK_INTERVAL).await;
        }
    }
}

impl Drop for RunningRequest {
    fn drop(&mut self) {
        self.0.end(Instant::now());
    }
}

/// Serves one connection, upgrades included. `peer` is added to the extensions of each request. Idle connections are
/// closed, because any client may open many.
pub async fn serve_connection<S>(stream: S, peer: http::Extensions, router: Router, stop: CancellationToken)
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let activity = Activity::new();
    let requests = Arc::clone(&activity);
    let service = hyper::service::service_fn(move |request: hyper::Request<Incoming>| {
        let running = requests.begin();
        let mut request = request.map(Body::new);
        request.extensions_mut().extend(peer.clone());
        let response = router.clone().oneshot(request);
        async move {
            let response = response.await?;
            Ok::<_, Infallible>(response.map(|body| Body::new(TrackedBody::new(body, running))))
        }
    });
    let mut builder = Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new());
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(1000)
        .keep_alive_interval(Some(Duration::from_secs(30)));
    let connection = builder.serve_connection_with_upgrades(TokioIo::new(stream), service);
    tokio::pin!(connection);
    let result = tokio::select! {
        result = connection.as_mut() => result,
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
        () = activity.wait_until_idle() => {
            connection.as_mut().graceful_shutdown();
            match tokio::time::timeout(IDLE_CLOSE_TIMEOUT, connection).await {
                Ok(result) => result,
                Err(_) => return,
            }
        }
    };
    if let Err(error) = result {
        tracing::debug!(%error, "connection failed");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    /// A connection with at most one request, which starts with the connection and ends after `request` seconds.
    #[rstest]
    #[case::no_request(None, 29, false)]
    #[case::no_request_for_long(None, 30, true)]
    #[case::one_request(Some(5), 94, false)]
    #[case::one_request_long_ago(Some(5), 95, true)]
    #[case::request_is_running(Some(500), 300, false)]
    fn idle_connections_are_closed(#[case] request: Option<u64>, #[case] seconds: u64, #[case] expected: bool) {
        let (started_at, activity) = (Instant::now(), Activity::new());
        let at = |seconds: u64| started_at + Duration::from_secs(seconds);
        *activity.idle_since.lock() = started_at;
        if let Some(ends) = request {
            std::mem::forget(activity.begin());
            if ends <= seconds {
                activity.end(at(ends));
            }
        }
        assert_eq!(activity.is_idle(at(seconds)), expected);
    }
}
