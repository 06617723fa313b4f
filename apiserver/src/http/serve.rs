//! Listening sockets: TLS with optional client certificates, HTTP/1.1 and h2 on one port, upgrades, draining.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt;

use crate::authn::PeerCertificate;

/// Time for a TLS handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Time for running requests once the server drains.
const DRAIN: Duration = Duration::from_secs(10);

/// Accepts connections until cancelled, then lets running requests finish. `tls` of `None` serves plain HTTP.
pub async fn serve(
    listener: TcpListener,
    tls: Option<Arc<rustls::ServerConfig>>,
    router: Router,
    cancelled: CancellationToken,
) -> std::io::Result<()> {
    let acceptor = tls.map(TlsAcceptor::from);
    let connections = TaskTracker::new();
    loop {
        let stream = tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    // Out of file descriptors, or a connection that died in the queue: not a reason to stop.
                    tracing::warn!(%error, "accept");
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    continue;
                }
            },
            () = cancelled.cancelled() => break,
        };
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "nodelay");
        }
        let (router, acceptor, cancelled) = (router.clone(), acceptor.clone(), cancelled.clone());
        connections.spawn(async move {
            let Some(acceptor) = acceptor else { return connection(stream, None, router, cancelled).await };
            match tokio::time::timeout(HANDSHAKE, acceptor.accept(stream)).await {
                Ok(Ok(stream)) => {
                    let certificate = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
                    let peer = certificate.and_then(|der| PeerCertificate::read(der));
                    connection(stream, peer, router, cancelled).await;
                }
                Ok(Err(error)) => tracing::debug!(%error, "TLS handshake"),
                Err(_) => tracing::debug!("TLS handshake took too long"),
            }
        });
    }
    connections.close();
    if tokio::time::timeout(DRAIN, connections.wait()).await.is_err() {
        tracing::info!(open = connections.len(), "connections left open at the end of the drain");
    }
    Ok(())
}

/// Serves one connection, upgrades included.
pub(crate) async fn connection<S>(
    stream: S,
    peer: Option<PeerCertificate>,
    router: Router,
    cancelled: CancellationToken,
) where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let service = hyper::service::service_fn(move |request: hyper::Request<Incoming>| {
        let mut request = request.map(Body::new);
        if let Some(peer) = &peer {
            request.extensions_mut().insert(peer.clone());
        }
        router.clone().oneshot(request)
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
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = cancelled.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "connection");
    }
}
