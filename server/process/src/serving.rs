//! Serving one router on one TLS listener: handshakes, HTTP/1.1 and h2 on one port, upgrades kept, drained on shutdown.
//!
//! Used by the aggregated API server, the webhooks and the scheduler estimator. The peer's certificate is judged once per connection (`peers`), and handed
//! to handlers as a [`Peer`] extension. Whom a listener believes may change while it serves (`trust`): connections that are
//! open stay what they were.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use arc_swap::ArcSwap;
use crowsnest_apiserver::authn::Serving;
use crowsnest_apiserver::authn::peer::AuthorityError;
use crowsnest_apiserver::serve::{prepare, read_ahead};
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

use crate::client_certificate::{Authorities, Peer, roots};

/// How long open requests may go on after shutdown began.
const DRAIN: Duration = Duration::from_secs(5);
/// A handshake that takes longer is a scan or a broken peer.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// The longest a request's head may take, and a connection rest between two: longer than callers keep idle ones, who would meet
/// a closed one otherwise.
const HEADERS: Duration = Duration::from_secs(100);
/// The bound of a head, its address included: the longest command of an exec fits.
const HEAD: u32 = 128 * 1024;
/// A front proxy sends a header for each group of its user.
const MAX_HEADERS: usize = 1024;
/// Requests at once on one connection, as kube-apiserver's.
const STREAMS: u32 = 250;
/// A peer that does not answer this often is gone.
const KEEP_ALIVE: Duration = Duration::from_secs(30);

#[derive(Debug, thiserror::Error)]
pub enum ServingError {
    #[error(transparent)]
    Authority(#[from] AuthorityError),
}

/// Certificates that a client has presented, its own first. The handshake has only proved that the client holds the
/// key.
#[derive(Debug, Clone, Default)]
pub struct ClientChain(pub Arc<[CertificateDer<'static>]>);

/// A listener's TLS side. Cheap to clone; all clones change together.
#[derive(Clone)]
pub struct Tls {
    serving: Arc<Serving>,
    /// What the next handshake is made with.
    active: Arc<ArcSwap<Active>>,
}

struct Active {
    acceptor: TlsAcceptor,
    /// `None` where the handshake has judged already.
    clients: Option<Authorities>,
}

impl Tls {
    /// Shows certificates of `serving` and believes `clients`.
    pub fn new(serving: Arc<Serving>, clients: Authorities) -> Self {
        let active = Arc::new(ArcSwap::from_pointee(Active::new(Arc::clone(&serving), clients)));
        Self { serving, active }
    }

    /// gRPC's side: TLS 1.3, and none but clients with a certificate of these authorities (PEM) come through the handshake;
    /// without any all do.
    pub fn strict(serving: Arc<Serving>, clients: Option<&str>) -> Result<Self, ServingError> {
        let active = Arc::new(ArcSwap::from_pointee(Active::strict(Arc::clone(&serving), clients)?));
        Ok(Self { serving, active })
    }

    /// For an API server's webhooks: the handshake accepts only clients with a certificate of this authority (PEM).
    pub fn mutual(serving: Arc<Serving>, clients: &str) -> Result<Self, ServingError> {
        let active = Arc::new(ArcSwap::from_pointee(Active::mutual(Arc::clone(&serving), clients)?));
        Ok(Self { serving, active })
    }

    /// Asks clients for no certificate: for browsers.
    pub fn anybody(serving: Arc<Serving>) -> Self {
        let mut config =
            rustls::ServerConfig::builder().with_no_client_auth().with_cert_resolver(Arc::<Serving>::clone(&serving));
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let acceptor = TlsAcceptor::from(Arc::new(config));
        Self { serving, active: Arc::new(ArcSwap::from_pointee(Active { acceptor, clients: None })) }
    }

    /// Believes others from now on.
    pub fn believe(&self, clients: Authorities) {
        self.active.store(Arc::new(Active::new(Arc::clone(&self.serving), clients)));
    }

    /// Lets only clients of these authorities through from now on.
    pub fn require(&self, clients: &str) -> Result<(), ServingError> {
        self.active.store(Arc::new(Active::strict(Arc::clone(&self.serving), Some(clients))?));
        Ok(())
    }
}

impl Active {
    fn new(serving: Arc<Serving>, clients: Authorities) -> Self {
        let builder = rustls::ServerConfig::builder().with_client_cert_verifier(clients.handshake());
        let mut config = builder.with_cert_resolver(serving);
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Self { acceptor: TlsAcceptor::from(Arc::new(config)), clients: Some(clients) }
    }

    fn mutual(serving: Arc<Serving>, clients: &str) -> Result<Self, ServingError> {
        let roots = Arc::new(roots(clients, "the clients' authority")?);
        let verifier = WebPkiClientVerifier::builder(roots).build().map_err(AuthorityError::from)?;
        let builder = rustls::ServerConfig::builder().with_client_cert_verifier(verifier);
        let mut config = builder.with_cert_resolver(serving);
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Self { acceptor: TlsAcceptor::from(Arc::new(config)), clients: None })
    }

    fn strict(serving: Arc<Serving>, clients: Option<&str>) -> Result<Self, ServingError> {
        let builder = rustls::ServerConfig::builder_with_protocol_versions(&[&rustls::version::TLS13]);
        let builder = match clients {
            Some(pem) => {
                let roots = Arc::new(roots(pem, "the clients' authority")?);
                let verifier = WebPkiClientVerifier::builder(roots).build().map_err(AuthorityError::from)?;
                builder.with_client_cert_verifier(verifier)
            }
            None => builder.with_no_client_auth(),
        };
        let mut config = builder.with_cert_resolver(serving);
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(Self { acceptor: TlsAcceptor::from(Arc::new(config)), clients: None })
    }
}

/// The connections of a listener, which may be told to end: after the requests under way, and others may come. Cheap to clone.
#[derive(Clone, Default)]
pub struct Sessions(Arc<ArcSwap<CancellationToken>>);

impl Sessions {
    /// Ends those of now.
    pub fn end(&self) {
        self.0.swap(Arc::default()).cancel();
    }

    /// Of a connection that begins now.
    fn token(&self) -> CancellationToken {
        CancellationToken::clone(&self.0.load())
    }
}

/// Accepts until `shutdown`, then lets open requests finish for a few seconds. `tls: None` serves plain HTTP (the UI on loopback).
pub async fn serve(listener: TcpListener, tls: Option<Tls>, router: axum::Router, shutdown: CancellationToken) {
    accept(listener, tls, Protocol::Http1, router, Sessions::default(), shutdown).await;
}

/// The same with connections that may be told to end.
pub async fn serve_sessions(
    listener: TcpListener,
    tls: Tls,
    router: axum::Router,
    sessions: Sessions,
    shutdown: CancellationToken,
) {
    accept(listener, Some(tls), Protocol::Http1, router, sessions, shutdown).await;
}

/// The same for gRPC, whose clients begin with h2 where there is no TLS to agree on it.
pub async fn serve_grpc(listener: TcpListener, tls: Option<Tls>, router: axum::Router, shutdown: CancellationToken) {
    accept(listener, tls, Protocol::Http2, router, Sessions::default(), shutdown).await;
}

async fn accept(
    listener: TcpListener,
    tls: Option<Tls>,
    plain: Protocol,
    router: axum::Router,
    sessions: Sessions,
    shutdown: CancellationToken,
) {
    let tasks = TaskTracker::new();
    loop {
        let (socket, address) = tokio::select! {
            () = shutdown.cancelled() => break,
            accepted = listener.accept() => match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    // Out of file descriptors: let some close before trying again.
                    tracing::warn!(%error, "accepting a connection failed");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                }
            },
        };
        prepare(&socket);
        let tls = tls.as_ref().map(|tls| tls.active.load_full());
        let (router, session) = (router.clone(), sessions.token());
        let stopping = shutdown.clone();
        let shutdown = async move {
            tokio::select! {
                () = stopping.cancelled() => {}
                () = session.cancelled() => {}
            }
        };
        let address = Some(address.ip());
        tasks.spawn(async move {
            let ended = match tls {
                None => {
                    let peer = Peer { address, ..Peer::default() };
                    connection(TokioIo::new(socket), (peer, ClientChain::default()), plain, router, shutdown).await
                }
                Some(tls) => match tokio::time::timeout(HANDSHAKE, tls.acceptor.accept(read_ahead(socket))).await {
                    Ok(Ok(stream)) => {
                        let session = stream.get_ref().1;
                        let chain = session.peer_certificates().unwrap_or_default();
                        let peer = match &tls.clients {
                            Some(clients) => Peer::new(address, clients.judge(chain, UnixTime::now())),
                            None => Peer { address, ..Peer::default() },
                        };
                        let shown = ClientChain(chain.iter().map(|one| one.clone().into_owned()).collect());
                        let h2 = session.alpn_protocol() == Some(b"h2");
                        let protocol = if h2 { Protocol::Http2 } else { Protocol::Http1 };
                        connection(TokioIo::new(stream), (peer, shown), protocol, router, shutdown).await
                    }
                    Ok(Err(error)) => Err(error.into()),
                    Err(_) => Err(io::Error::from(io::ErrorKind::TimedOut).into()),
                },
            };
            if let Err(error) = ended {
                tracing::debug!(error, "a connection ended");
            }
        });
    }
    tasks.close();
    if tokio::time::timeout(DRAIN, tasks.wait()).await.is_err() {
        tracing::info!(open = tasks.len(), "closing connections that did not drain");
    }
}

/// What the handshake agreed on: nobody waits for a client to begin to speak.
#[derive(Debug, Clone, Copy)]
enum Protocol {
    Http1,
    Http2,
}

async fn connection<IO>(
    io: TokioIo<IO>,
    (peer, shown): (Peer, ClientChain),
    protocol: Protocol,
    router: axum::Router,
    shutdown: impl Future<Output = ()>,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>>
where
    IO: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    let service = router.map_request(move |mut request: http::Request<hyper::body::Incoming>| {
        request.extensions_mut().insert(peer.clone());
        request.extensions_mut().insert(shown.clone());
        request.map(axum::body::Body::new)
    });
    let service = TowerToHyperService::new(service);
    match protocol {
        Protocol::Http1 => {
            let mut builder = http1::Builder::new();
            builder.timer(TokioTimer::new()).header_read_timeout(HEADERS);
            builder.max_headers(MAX_HEADERS).max_buf_size(HEAD as usize);
            let serving = builder.serve_connection(io, service).with_upgrades();
            Ok(until(serving, |serving| serving.graceful_shutdown(), shutdown).await?)
        }
        Protocol::Http2 => {
            let mut builder = http2::Builder::new(TokioExecutor::new());
            builder.timer(TokioTimer::new()).keep_alive_interval(KEEP_ALIVE);
            builder.max_concurrent_streams(STREAMS).max_header_list_size(HEAD);
            let serving = builder.serve_connection(io, service);
            Ok(until(serving, |serving| serving.graceful_shutdown(), shutdown).await?)
        }
    }
}

/// Serves to the end, which comes sooner after `shutdown`.
async fn until<C: Future>(serving: C, end: impl FnOnce(Pin<&mut C>), shutdown: impl Future<Output = ()>) -> C::Output {
    let mut serving = std::pin::pin!(serving);
    tokio::select! {
        ended = serving.as_mut() => ended,
        () = shutdown => {
            end(serving.as_mut());
            serving.await
        }
    }
}

/// Listens at an address that `flag` names.
pub async fn bind(address: SocketAddr, flag: &str) -> anyhow::Result<TcpListener> {
    match TcpListener::bind(address).await {
        Ok(listener) => Ok(listener),
        Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {
            bail!("{address} is taken by another program; stop it or choose another address with {flag}")
        }
        Err(error) => Err(error).with_context(|| format!("listening on {address} ({flag})")),
    }
}
