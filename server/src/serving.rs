//! Serving one router on one TLS listener: handshakes, HTTP/1.1 and h2 on one port, upgrades kept, drained on shutdown.
//!
//! Used by the aggregated API server and the webhooks. The peer's certificate is judged here, once per connection, and handed to
//! handlers as a [`PeerTrust`] extension.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::service::TowerToHyperService;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt;

use crate::aggregated::identity::PeerTrust;

/// How long open requests may go on after shutdown began.
const DRAIN: Duration = Duration::from_secs(5);
/// A handshake that takes longer is a scan or a broken peer.
const HANDSHAKE: Duration = Duration::from_secs(10);

#[derive(Debug, thiserror::Error)]
pub(crate) enum ServingError {
    #[error("the certificate or key for {0} can't be used")]
    Certificate(&'static str, #[source] rustls::Error),
    #[error("the client certificate authority can't be used")]
    ClientCa(#[source] rustls::server::VerifierBuilderError),
    #[error("no certificate in the PEM of {0}")]
    Pem(&'static str),
}

/// Who signs front-proxy certificates, and which names it signs count.
#[derive(Clone, Debug)]
pub(crate) struct FrontProxy {
    verifier: Arc<dyn ClientCertVerifier>,
    allowed_names: Vec<String>,
}

impl FrontProxy {
    /// `allowed_names` empty means any name.
    pub(crate) fn new(ca_pem: &str, allowed_names: Vec<String>) -> Result<Self, ServingError> {
        let mut roots = rustls::RootCertStore::empty();
        for certificate in certificates(ca_pem, "the front proxy's authority")? {
            roots.add(certificate).map_err(|e| ServingError::Certificate("the front proxy's authority", e))?;
        }
        let verifier = WebPkiClientVerifier::builder(Arc::new(roots))
            .allow_unauthenticated()
            .build()
            .map_err(ServingError::ClientCa)?;
        Ok(Self { verifier, allowed_names })
    }

    fn trusts(&self, chain: &[CertificateDer<'_>]) -> bool {
        let Some((end, rest)) = chain.split_first() else { return false };
        if self.verifier.verify_client_cert(end, rest, UnixTime::now()).is_err() {
            return false;
        }
        self.allowed_names.is_empty() || common_name(end).is_some_and(|name| self.allowed_names.contains(&name))
    }
}

/// A listener's TLS side.
#[derive(Clone)]
pub(crate) struct Tls {
    acceptor: TlsAcceptor,
    front_proxy: Option<FrontProxy>,
}

impl Tls {
    pub(crate) fn new(cert_pem: &str, key_pem: &str, front_proxy: Option<FrontProxy>) -> Result<Self, ServingError> {
        let chain = certificates(cert_pem, "serving")?;
        let key = key(key_pem).ok_or(ServingError::Pem("the serving key"))?;
        let builder = rustls::ServerConfig::builder();
        let builder = match &front_proxy {
            Some(trusted) => builder.with_client_cert_verifier(Arc::clone(&trusted.verifier)),
            None => builder.with_no_client_auth(),
        };
        let mut config = builder.with_single_cert(chain, key).map_err(|e| ServingError::Certificate("serving", e))?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Self { acceptor: TlsAcceptor::from(Arc::new(config)), front_proxy })
    }
}

fn certificates(pem: &str, what: &'static str) -> Result<Vec<CertificateDer<'static>>, ServingError> {
    use rustls::pki_types::pem::PemObject;
    let found: Vec<_> = CertificateDer::pem_slice_iter(pem.as_bytes()).filter_map(Result::ok).collect();
    if found.is_empty() { Err(ServingError::Pem(what)) } else { Ok(found) }
}

fn key(pem: &str) -> Option<PrivateKeyDer<'static>> {
    use rustls::pki_types::pem::PemObject;
    PrivateKeyDer::from_pem_slice(pem.as_bytes()).ok()
}

fn common_name(certificate: &CertificateDer<'_>) -> Option<String> {
    let (_, parsed) = x509_parser::parse_x509_certificate(certificate.as_ref()).ok()?;
    let name = parsed.subject().iter_common_name().next()?.as_str().ok()?.to_owned();
    Some(name)
}

/// Accepts until `shutdown`, then lets open requests finish for a few seconds. `tls: None` serves plain HTTP (the UI on loopback).
pub(crate) async fn serve(listener: TcpListener, tls: Option<Tls>, router: axum::Router, shutdown: CancellationToken) {
    let tasks = TaskTracker::new();
    loop {
        let socket = tokio::select! {
            () = shutdown.cancelled() => break,
            accepted = listener.accept() => match accepted {
                Ok((socket, _)) => socket,
                Err(error) => {
                    // Out of file descriptors: let some close before trying again.
                    tracing::warn!(%error, "accepting a connection failed");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                }
            },
        };
        if let Err(error) = socket.set_nodelay(true) {
            tracing::debug!(%error, "TCP_NODELAY refused");
        }
        let (tls, router, shutdown) = (tls.clone(), router.clone(), shutdown.clone());
        tasks.spawn(async move {
            let ended = match tls {
                None => connection(TokioIo::new(socket), PeerTrust { front_proxy: false }, router, shutdown).await,
                Some(tls) => match tokio::time::timeout(HANDSHAKE, tls.acceptor.accept(socket)).await {
                    Ok(Ok(stream)) => {
                        let chain = stream.get_ref().1.peer_certificates().unwrap_or_default();
                        let front_proxy = tls.front_proxy.as_ref().is_some_and(|f| f.trusts(chain));
                        connection(TokioIo::new(stream), PeerTrust { front_proxy }, router, shutdown).await
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

async fn connection<IO>(
    io: TokioIo<IO>,
    trust: PeerTrust,
    router: axum::Router,
    shutdown: CancellationToken,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>>
where
    IO: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    let service = router.map_request(move |mut request: http::Request<hyper::body::Incoming>| {
        request.extensions_mut().insert(trust);
        request.map(axum::body::Body::new)
    });
    let builder = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
    let serving = builder.serve_connection_with_upgrades(io, TowerToHyperService::new(service));
    tokio::pin!(serving);
    tokio::select! {
        ended = serving.as_mut() => ended,
        () = shutdown.cancelled() => {
            serving.as_mut().graceful_shutdown();
            serving.await
        }
    }
}
