//! Raw connections to a member's API server: TCP, through a proxy or through its agent's tunnel, then TLS.
//!
//! One [`Dialer`] serves the member's kube client and the upgraded connections that the proxy copies byte for byte, so
//! credentials, proxies and TLS rules cannot differ between the two.

use crate::endpoints::{EndpointRules, Resolver};
use crate::tunnel::{Tunnels, authority};
use crate::{Error, MemberRoute};
use crowsnest_apimachinery::names::ClusterName;
use futures::future::BoxFuture;
use http::uri::Authority;
use http::{HeaderMap, HeaderValue, Uri};
use hyper_util::client::legacy::connect::proxy::{SocksV5, Tunnel};
use hyper_util::client::legacy::connect::{Connected, HttpConnector};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, BufReader, ReadBuf};
use tokio::sync::OwnedSemaphorePermit;
use tower::{Service, ServiceExt};

/// Read buffer of a member's socket in bytes: four TLS records. rustls alone reads 4 KiB at a time.
const READ_BUFFER_BYTES: usize = 64 * 1024;

trait Io: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

/// An open byte stream to a member's API server, after the TLS handshake.
pub struct MemberIo {
    io: Box<dyn Io>,
    /// Permit for a stream of the tunnel.
    _permit: Option<OwnedSemaphorePermit>,
}

impl MemberIo {
    fn new(io: impl Io + 'static) -> Self {
        Self { io: Box::new(io), _permit: None }
    }

    /// The stream releases the permit when it is dropped.
    pub(crate) fn with_permit(
        io: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
        permit: OwnedSemaphorePermit,
    ) -> Self {
        Self { io: Box::new(io), _permit: Some(permit) }
    }
}

impl std::fmt::Debug for MemberIo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("MemberIo")
    }
}

impl AsyncRead for MemberIo {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut *self.io).poll_read(cx, buf)
    }
}

impl AsyncWrite for MemberIo {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut *self.io).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[std::io::IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut *self.io).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut *self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut *self.io).poll_shutdown(cx)
    }
}

/// Opens connections to one API server. Cheap to clone; needs no lock.
#[derive(Debug, Clone)]
pub struct Dialer {
    target: Uri,
    proxy: Proxy,
    tunnel: Option<TunnelRoute>,
    tls: Option<Tls>,
    timeout: Duration,
    rules: EndpointRules,
}

/// The proxy of a dialer.
#[derive(Debug, Clone)]
enum Proxy {
    None,
    Http { url: Uri, headers: HeaderMap, tls: Option<Arc<ClientConfig>> },
    Socks5 { url: Uri },
}

/// Connection through the tunnels of a cluster's agent.
#[derive(Debug, Clone)]
struct TunnelRoute {
    tunnels: Tunnels,
    cluster: ClusterName,
    target: Authority,
    /// False: the member is dialed directly if no tunnel is open.
    is_exclusive: bool,
}

#[derive(Debug, Clone)]
struct Tls {
    config: Arc<ClientConfig>,
    server_name: ServerName<'static>,
}

/// The proxy through which a member is reached.
#[derive(Debug, Clone, Default)]
pub struct ProxyOptions {
    pub url: Option<Uri>,
    pub headers: HeaderMap,
    /// TLS towards the proxy itself, for `https://` proxies.
    pub tls: Option<Arc<ClientConfig>>,
}

impl Dialer {
    /// `tls` is `None` for plain HTTP (only if the endpoint begins with `http://`). Any address is allowed until
    /// rules are set.
    pub fn new(
        target: Uri,
        tls: Option<Arc<ClientConfig>>,
        proxy: ProxyOptions,
        timeout: Duration,
    ) -> Result<Self, Error> {
        let fail = |reason: String| Error::Dial { target: target.to_string(), reason };
        let tls = match tls {
            None => None,
            Some(config) => {
                let host = target.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']').to_owned();
                let server_name = ServerName::try_from(host).map_err(|e| fail(e.to_string()))?;
                Some(Tls { config, server_name })
            }
        };
        let proxy = match proxy.url {
            None => Proxy::None,
            Some(url) if url.scheme_str() == Some("socks5") => {
                Proxy::Socks5 { url: with_port(url, SOCKS_PORT).map_err(|e| fail(e.to_string()))? }
            }
            Some(url) => {
                let mut headers = proxy.headers;
                if let Some(value) = basic_auth(&url) {
                    headers.entry(http::header::PROXY_AUTHORIZATION).or_insert(value);
                }
                Proxy::Http { url, headers, tls: proxy.tls }
            }
        };
        Ok(Self { target, proxy, tunnel: None, tls, timeout, rules: EndpointRules::new(true) })
    }

    /// Applies rules for the endpoints of Clusters.
    pub fn with_rules(self, rules: EndpointRules) -> Self {
        Self { rules, ..self }
    }

    /// Uses the tunnels of the cluster's agent, exclusively or if one is open.
    pub fn with_route(self, route: MemberRoute, tunnels: &Tunnels, cluster: &ClusterName) -> Result<Self, Error> {
        let is_exclusive = match route {
            MemberRoute::Direct => return Ok(self),
            MemberRoute::AgentIfConnected => false,
            MemberRoute::AgentOnly => true,
        };
        let target = authority(&self.target)?;
        let tunnel = TunnelRoute { tunnels: tunnels.clone(), cluster: cluster.clone(), target, is_exclusive };
        Ok(Self { tunnel: Some(tunnel), ..self })
    }

    /// Scheme, host and port of the API server, with the endpoint's path prefix if it has one.
    pub fn target(&self) -> &Uri {
        &self.target
    }

    /// Connects within the connect timeout. Speaks HTTP/1.1 (ALPN), which upgrades need.
    pub async fn dial(&self) -> Result<MemberIo, Error> {
        let timeout_error = || Error::DialTimeout { target: self.target.to_string(), seconds: self.timeout.as_secs() };
        tokio::time::timeout(self.timeout, self.dial_unbounded()).await.map_err(|_| timeout_error())?
    }

    async fn dial_unbounded(&self) -> Result<MemberIo, Error> {
        let fail = |reason: String| Error::Dial { target: self.target.to_string(), reason };
        let plain = match self.dial_tunnel().await? {
            Some(io) => io,
            None => self.dial_plain().await.map_err(|e| fail(error_chain(&*e)))?,
        };
        let Some(tls) = &self.tls else { return Ok(plain) };
        let connector = tokio_rustls::TlsConnector::from(Arc::clone(&tls.config));
        let stream = connector
            .connect(tls.server_name.clone(), BufReader::with_capacity(READ_BUFFER_BYTES, plain))
            .await
            .map_err(|e| fail(error_chain(&e)))?;
        Ok(MemberIo::new(stream))
    }

    /// A connection through a tunnel; None if the member has to be dialed directly.
    async fn dial_tunnel(&self) -> Result<Option<MemberIo>, Error> {
        let Some(tunnel) = &self.tunnel else { return Ok(None) };
        match tunnel.tunnels.connect(&tunnel.cluster, &tunnel.target).await {
            Ok(None) if tunnel.is_exclusive => Err(Error::NoTunnel(tunnel.cluster.clone())),
            Ok(connection) => Ok(connection),
            Err(reason) => Err(Error::Dial { target: self.target.to_string(), reason }),
        }
    }

    /// Checks the hosts of the member and of its proxy. The member's host is checked even if a proxy connects to it: a
    /// local address would then be an address of the proxy's host.
    fn check_hosts(&self) -> Result<(), String> {
        self.rules.check_host(&self.target)?;
        match &self.proxy {
            Proxy::None => Ok(()),
            Proxy::Http { url, .. } | Proxy::Socks5 { url } => self.rules.check_host(url),
        }
    }

    async fn dial_plain(&self) -> Result<MemberIo, Box<dyn std::error::Error + Send + Sync>> {
        self.check_hosts()?;
        let mut tcp = HttpConnector::new_with_resolver(Resolver::new(self.rules));
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        // Keepalive probes detect a dead peer within a minute.
        tcp.set_keepalive(Some(Duration::from_secs(30)));
        tcp.set_keepalive_interval(Some(Duration::from_secs(10)));
        tcp.set_keepalive_retries(Some(3));
        let target = self.target.clone();
        Ok(match &self.proxy {
            Proxy::None => box_io(tcp.oneshot(target).await?),
            Proxy::Socks5 { url } => {
                let mut socks = SocksV5::new(url.clone(), tcp);
                if let Some((user, password)) = user_info(url) {
                    socks = socks.with_auth(user, password);
                }
                box_io(socks.oneshot(target).await?)
            }
            Proxy::Http { url, headers, tls: None } => {
                box_io(Tunnel::new(url.clone(), tcp).with_headers(headers.clone()).oneshot(target).await?)
            }
            Proxy::Http { url, headers, tls: Some(config) } => {
                let tls = hyper_rustls::HttpsConnector::from((tcp, Arc::clone(config)));
                box_io(Tunnel::new(url.clone(), tls).with_headers(headers.clone()).oneshot(target).await?)
            }
        })
    }
}

fn box_io<T: hyper::rt::Read + hyper::rt::Write + Send + Unpin + 'static>(io: T) -> MemberIo {
    MemberIo::new(TokioIo::new(io))
}

/// Default port of SOCKS proxies; the connector would use HTTP's.
const SOCKS_PORT: u16 = 1080;

fn with_port(url: Uri, port: u16) -> Result<Uri, http::Error> {
    let (None, Some(authority)) = (url.port(), url.authority()) else { return Ok(url) };
    let authority: Authority = format!("{authority}:{port}").parse()?;
    let mut parts = url.into_parts();
    parts.authority = Some(authority);
    Ok(Uri::from_parts(parts)?)
}

/// The message of an error with its causes, because the innermost cause is usually the most specific.
pub(crate) fn error_chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        next = cause.source();
    }
    text
}

fn user_info(uri: &Uri) -> Option<(String, String)> {
    let (info, _) = uri.authority()?.as_str().rsplit_once('@')?;
    let (user, password) = info.split_once(':').unwrap_or((info, ""));
    Some((percent_decode(user), percent_decode(password)))
}

fn percent_decode(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut i = 0;
    while i < bytes.len() {
        let hex = |b: u8| (b as char).to_digit(16);
        match (bytes[i], bytes.get(i + 1).copied().and_then(hex), bytes.get(i + 2).copied().and_then(hex)) {
            (b'%', Some(high), Some(low)) => {
                out.push((high * 16 + low) as u8);
                i += 3;
            }
            (byte, _, _) => {
                out.push(byte);
                i += 1;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

fn basic_auth(uri: &Uri) -> Option<HeaderValue> {
    use base64::Engine as _;
    let (user, password) = user_info(uri)?;
    let encoded = base64::engine::general_purpose::STANDARD.encode(format!("{user}:{password}"));
    let mut value = HeaderValue::from_str(&format!("Basic {encoded}")).ok()?;
    value.set_sensitive(true);
    Some(value)
}

/// A stream in the form that hyper's legacy client requires.
#[derive(Debug)]
pub struct HyperIo(TokioIo<MemberIo>);

impl hyper_util::client::legacy::connect::Connection for HyperIo {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl hyper::rt::Read for HyperIo {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: hyper::rt::ReadBufCursor<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl hyper::rt::Write for HyperIo {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

/// The connector of hyper's pooled client. The host of the request is ignored.
impl Service<Uri> for Dialer {
    type Response = HyperIo;
    type Error = Error;
    type Future = BoxFuture<'static, Result<HyperIo, Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let dialer = self.clone();
        Box::pin(async move { Ok(HyperIo(TokioIo::new(dialer.dial().await?))) })
    }
}

#[cfg(test)]
mod tests;
