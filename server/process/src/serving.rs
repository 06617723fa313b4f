//! Serves a router on a TLS listener: handshakes, HTTP/1.1 and h2 on one port, upgrades, graceful shutdown.
//!
//! Used by the aggregated API server, the webhooks and the scheduler estimator. The client's certificate is verified
//! once per connection (`client_certificate`), and passed to handlers as a [`Peer`] extension. The trusted CAs may
//! change while serving (`client_ca`); open connections are not affected.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use arc_swap::ArcSwap;
use crowsnest_apiserver::authn::ServingCertificates;
use crowsnest_apiserver::authn::peer::AuthorityError;
use crowsnest_apiserver::serve::{accept_connection, coalesce_writes, read_ahead};
use hyper::server::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt;

use crate::client_certificate::{Authorities, Peer, parse_roots};

/// Maximum time that open requests may take after shutdown has begun.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout of a TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Timeout of a request head, and idle timeout between requests; longer than clients keep idle connections, so that
/// they do not use a closed one.
const HEAD_TIMEOUT: Duration = Duration::from_secs(100);
/// Maximum size of a request head in bytes, including the URL, which contains the command of an exec request.
const MAX_HEAD_BYTES: u32 = 128 * 1024;
/// Maximum number of headers in a request; front proxies send one for each group of the user.
const MAX_HEADERS: usize = 1024;
/// Maximum number of concurrent requests per connection, as in kube-apiserver.
const MAX_CONCURRENT_STREAMS: u32 = 250;
/// Interval of h2 keep-alive pings; a connection without responses is closed.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(30);

#[derive(Debug, thiserror::Error)]
pub enum ServingError {
    #[error(transparent)]
    Authority(#[from] AuthorityError),
}

/// Certificates that a client presented, its own first. The handshake has only verified that the client holds the
/// private key.
#[derive(Debug, Clone, Default)]
pub struct ClientChain(pub Arc<[CertificateDer<'static>]>);

/// TLS configuration of a listener. Cheap to clone; all clones change together.
#[derive(Clone)]
pub struct Tls {
    serving: Arc<ServingCertificates>,
    /// Configuration of new handshakes.
    active: Arc<ArcSwap<ActiveConfig>>,
}

struct ActiveConfig {
    acceptor: TlsAcceptor,
    /// `None` if the handshake verifies clients.
    client_cas: Option<Authorities>,
}

impl Tls {
    /// Serves the certificates of `serving` and accepts client certificates of `client_cas`.
    pub fn new(serving: Arc<ServingCertificates>, client_cas: Authorities) -> Self {
        let active = Arc::new(ArcSwap::from_pointee(ActiveConfig::new(Arc::clone(&serving), client_cas)));
        Self { serving, active }
    }

    /// For gRPC: TLS 1.3; the handshake accepts only clients with a certificate of this CA (PEM), or all clients
    /// without a CA.
    pub fn for_grpc(serving: Arc<ServingCertificates>, client_ca: Option<&str>) -> Result<Self, ServingError> {
        let active = Arc::new(ArcSwap::from_pointee(ActiveConfig::for_grpc(Arc::clone(&serving), client_ca)?));
        Ok(Self { serving, active })
    }

    /// For API servers as webhook clients: the handshake accepts only clients with a certificate of this CA (PEM).
    pub fn with_client_ca(serving: Arc<ServingCertificates>, client_ca: &str) -> Result<Self, ServingError> {
        let active = Arc::new(ArcSwap::from_pointee(ActiveConfig::with_client_ca(Arc::clone(&serving), client_ca)?));
        Ok(Self { serving, active })
    }

    /// For browsers: no client certificate is requested.
    pub fn without_client_certificates(serving: Arc<ServingCertificates>) -> Self {
        let mut config =
            rustls::ServerConfig::builder()
                .with_no_client_auth()
                .with_cert_resolver(Arc::<ServingCertificates>::clone(&serving));
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let acceptor = TlsAcceptor::from(Arc::new(config));
        Self { serving, active: Arc::new(ArcSwap::from_pointee(ActiveConfig { acceptor, client_cas: None })) }
    }

    /// Replaces the trusted CAs.
    pub fn set_trusted_cas(&self, client_cas: Authorities) {
        self.active.store(Arc::new(ActiveConfig::new(Arc::clone(&self.serving), client_cas)));
    }

    /// Accepts only clients with a certificate of this CA in later handshakes.
    pub fn require_client_ca(&self, client_ca: &str) -> Result<(), ServingError> {
        self.active.store(Arc::new(ActiveConfig::for_grpc(Arc::clone(&self.serving), Some(client_ca))?));
        Ok(())
    }
}

impl ActiveConfig {
    fn new(serving: Arc<ServingCertificates>, client_cas: Authorities) -> Self {
        let builder = rustls::ServerConfig::builder().with_client_cert_verifier(client_cas.handshake());
        let mut config = builder.with_cert_resolver(serving);
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Self { acceptor: TlsAcceptor::from(Arc::new(config)), client_cas: Some(client_cas) }
    }

    fn with_client_ca(serving: Arc<ServingCertificates>, client_ca: &str) -> Result<Self, ServingError> {
        let roots = Arc::new(parse_roots(client_ca, "the client CA")?);
        let verifier = WebPkiClientVerifier::builder(roots).build().map_err(AuthorityError::from)?;
        let builder = rustls::ServerConfig::builder().with_client_cert_verifier(verifier);
        let mut config = builder.with_cert_resolver(serving);
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Self { acceptor: TlsAcceptor::from(Arc::new(config)), client_cas: None })
    }

    fn for_grpc(serving: Arc<ServingCertificates>, client_ca: Option<&str>) -> Result<Self, ServingError> {
        let builder = rustls::ServerConfig::builder_with_protocol_versions(&[&rustls::version::TLS13]);
        let builder = match client_ca {
            Some(pem) => {
                let roots = Arc::new(parse_roots(pem, "the client CA")?);
                let verifier = WebPkiClientVerifier::builder(roots).build().map_err(AuthorityError::from)?;
                builder.with_client_cert_verifier(verifier)
            }
            None => builder.with_no_client_auth(),
        };
        let mut config = builder.with_cert_resolver(serving);
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(Self { acceptor: TlsAcceptor::from(Arc::new(config)), client_cas: None })
    }
}

/// The open connections of a listener, which can be closed gracefully while new ones are accepted. Cheap to clone.
#[derive(Clone, Default)]
pub struct OpenConnections(Arc<ArcSwap<CancellationToken>>);

impl OpenConnections {
    /// Closes all open connections after their current requests.
    pub fn close(&self) {
        self.0.swap(Arc::default()).cancel();
    }

    /// Token that closes a new connection.
    fn close_token(&self) -> CancellationToken {
        CancellationToken::clone(&self.0.load())
    }
}

/// Accepts connections until `shutdown`, then lets open requests finish for `DRAIN_TIMEOUT`. `tls: None` serves plain
/// HTTP (the UI on loopback).
pub async fn serve(listener: TcpListener, tls: Option<Tls>, router: axum::Router, shutdown: CancellationToken) {
    accept(listener, tls, Protocol::Http1, router, OpenConnections::default(), shutdown).await;
}

/// Like [`serve`], with connections that can be closed.
pub async fn serve_with_connections(
    listener: TcpListener,
    tls: Tls,
    router: axum::Router,
    connections: OpenConnections,
    shutdown: CancellationToken,
) {
    accept(listener, Some(tls), Protocol::Http1, router, connections, shutdown).await;
}

/// Like [`serve`], for gRPC: without TLS, clients start with h2 directly.
pub async fn serve_grpc(listener: TcpListener, tls: Option<Tls>, router: axum::Router, shutdown: CancellationToken) {
    accept(listener, tls, Protocol::Http2, router, OpenConnections::default(), shutdown).await;
}

async fn accept(
    listener: TcpListener,
    tls: Option<Tls>,
    plain_protocol: Protocol,
    router: axum::Router,
    connections: OpenConnections,
    shutdown: CancellationToken,
) {
    let tasks = TaskTracker::new();
    loop {
        let (socket, address) = tokio::select! {
            () = shutdown.cancelled() => break,
            accepted = accept_connection(&listener) => accepted,
        };
        let tls = tls.as_ref().map(|tls| tls.active.load_full());
        let (router, close) = (router.clone(), connections.close_token());
        let stop = shutdown.clone();
        let shutdown = async move {
            tokio::select! {
                () = stop.cancelled() => {}
                () = close.cancelled() => {}
            }
        };
        let address = Some(address.ip());
        tasks.spawn(async move {
            let result = match tls {
                None => {
                    let peer = Peer { address, ..Peer::default() };
                    serve_connection(
                        TokioIo::new(socket),
                        (peer, ClientChain::default()),
                        plain_protocol,
                        router,
                        shutdown,
                    )
                    .await
                }
                Some(tls) => {
                    match tokio::time::timeout(HANDSHAKE_TIMEOUT, tls.acceptor.accept(read_ahead(socket))).await {
                        Ok(Ok(stream)) => {
                            let session = stream.get_ref().1;
                            let chain = session.peer_certificates().unwrap_or_default();
                            let peer = match &tls.client_cas {
                                Some(cas) => Peer::new(address, cas.verify_chain(chain, UnixTime::now())),
                                None => Peer { address, ..Peer::default() },
                            };
                            let client_chain =
                                ClientChain(chain.iter().map(|certificate| certificate.clone().into_owned()).collect());
                            let h2 = session.alpn_protocol() == Some(b"h2");
                            let protocol = if h2 { Protocol::Http2 } else { Protocol::Http1 };
                            serve_connection(TokioIo::new(stream), (peer, client_chain), protocol, router, shutdown)
                                .await
                        }
                        Ok(Err(error)) => Err(error.into()),
                        Err(_) => Err(io::Error::from(io::ErrorKind::TimedOut).into()),
                    }
                }
            };
            if let Err(error) = result {
                tracing::debug!(error, "a connection ended");
            }
        });
    }
    tasks.close();
    if tokio::time::timeout(DRAIN_TIMEOUT, tasks.wait()).await.is_err() {
        tracing::info!(open = tasks.len(), "closing connections that did not drain");
    }
}

/// Protocol of a connection: negotiated by TLS, or fixed for plain text, so that it is not detected from the first bytes.
#[derive(Debug, Clone, Copy)]
enum Protocol {
    Http1,
    Http2,
}

async fn serve_connection<IO>(
    io: TokioIo<IO>,
    (peer, client_chain): (Peer, ClientChain),
    protocol: Protocol,
    router: axum::Router,
    shutdown: impl Future<Output = ()>,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>>
where
    IO: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    let service = router.map_request(move |mut request: http::Request<hyper::body::Incoming>| {
        request.extensions_mut().insert(peer.clone());
        request.extensions_mut().insert(client_chain.clone());
        request.map(axum::body::Body::new)
    });
    let service = TowerToHyperService::new(service);
    match protocol {
        Protocol::Http1 => {
            let mut builder = http1::Builder::new();
            builder.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT);
            builder.max_headers(MAX_HEADERS).max_buf_size(MAX_HEAD_BYTES as usize);
            let connection = builder.serve_connection(io, service).with_upgrades();
            Ok(serve_until(connection, |connection| connection.graceful_shutdown(), shutdown).await?)
        }
        Protocol::Http2 => {
            let mut builder = http2::Builder::new(TokioExecutor::new());
            builder.timer(TokioTimer::new()).keep_alive_interval(KEEP_ALIVE_INTERVAL);
            builder.max_concurrent_streams(MAX_CONCURRENT_STREAMS).max_header_list_size(MAX_HEAD_BYTES);
            let connection = builder.serve_connection(TokioIo::new(coalesce_writes(io.into_inner())), service);
            Ok(serve_until(connection, |connection| connection.graceful_shutdown(), shutdown).await?)
        }
    }
}

/// Serves a connection until it ends. On `shutdown`, calls `end` to shut it down gracefully and waits for its end.
async fn serve_until<C: Future>(
    connection: C,
    end: impl FnOnce(Pin<&mut C>),
    shutdown: impl Future<Output = ()>,
) -> C::Output {
    let mut connection = std::pin::pin!(connection);
    tokio::select! {
        output = connection.as_mut() => output,
        () = shutdown => {
            end(connection.as_mut());
            connection.await
        }
    }
}

/// Addresses of the plain HTTP servers for probes and for metrics; `None` for no server.
#[derive(Debug, Clone, Copy, Default)]
pub struct ProbeAddresses {
    pub health: Option<SocketAddr>,
    pub metrics: Option<SocketAddr>,
}

impl ProbeAddresses {
    /// Binds the addresses. The returned servers accept connections until `shutdown`.
    pub async fn bind(
        self,
        health: axum::Router,
        metrics: axum::Router,
        shutdown: CancellationToken,
    ) -> anyhow::Result<Vec<impl Future<Output = ()> + Send>> {
        let mut servers = Vec::new();
        for (address, flag, routes) in
            [(self.health, "--health-probe-bind-address", health), (self.metrics, "--metrics-bind-address", metrics)]
        {
            let Some(address) = address else { continue };
            servers.push(serve(bind(address, flag).await?, None, routes, shutdown.clone()));
        }
        Ok(servers)
    }
}

/// Binds an address; `flag` names the flag for the error.
pub async fn bind(address: SocketAddr, flag: &str) -> anyhow::Result<TcpListener> {
    match TcpListener::bind(address).await {
        Ok(listener) => Ok(listener),
        Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {
            bail!("{address} is in use by another program; stop it or choose another address with {flag}")
        }
        Err(error) => Err(error).with_context(|| format!("cannot listen on {address} ({flag})")),
    }
}
