//! An https proxy: TLS to the proxy itself, then any CONNECT target.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result, bail};
use rustls::ServerConfig;
use rustls_pki_types::PrivatePkcs8KeyDer;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio_rustls::TlsAcceptor;

/// A running proxy. Stops when dropped.
pub struct Proxy {
    pub url: String,
    /// Its self-signed certificate.
    pub certificate: String,
    /// Number of connections that were forwarded.
    connections: Arc<AtomicUsize>,
    _runtime: Runtime,
}

impl Proxy {
    pub fn start() -> Result<Self> {
        let certified_key = rcgen::generate_simple_self_signed(["localhost".to_owned()])?;
        let key = PrivatePkcs8KeyDer::from(certified_key.signing_key.serialize_der());
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
        let tls = tls.with_no_client_auth().with_single_cert(vec![certified_key.cert.der().clone()], key.into())?;
        let acceptor = TlsAcceptor::from(Arc::new(tls));
        let runtime = Runtime::new()?;
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0"))?;
        let url = format!("https://localhost:{}", listener.local_addr()?.port());
        let connections = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&connections);
        runtime.spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (acceptor, counter) = (acceptor.clone(), Arc::clone(&counter));
                // Errors of a connection are reported by its client.
                tokio::spawn(async move { forward(client, &acceptor, &counter).await.ok() });
            }
        });
        Ok(Self { url, certificate: certified_key.cert.pem(), connections, _runtime: runtime })
    }

    /// Number of connections that were forwarded.
    pub fn connection_count(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

async fn forward(client: TcpStream, acceptor: &TlsAcceptor, connections: &AtomicUsize) -> Result<()> {
    let mut client = acceptor.accept(client).await?;
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(client.read_u8().await?);
    }
    let head = String::from_utf8(head)?;
    let mut words = head.split_whitespace();
    let (Some("CONNECT"), Some(target)) = (words.next(), words.next()) else { bail!("unexpected request {head:?}") };
    let mut server = TcpStream::connect(target).await.context("cannot connect to the target")?;
    client.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").await?;
    connections.fetch_add(1, Ordering::SeqCst);
    tokio::io::copy_bidirectional(&mut client, &mut server).await?;
    Ok(())
}
