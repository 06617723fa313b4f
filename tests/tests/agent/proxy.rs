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

/// Stops when dropped.
pub struct Proxy {
    pub url: String,
    /// Its self-signed certificate.
    pub certificate: String,
    carried: Arc<AtomicUsize>,
    _runtime: Runtime,
}

impl Proxy {
    pub fn start() -> Result<Self> {
        let own = rcgen::generate_simple_self_signed(["localhost".to_owned()])?;
        let key = PrivatePkcs8KeyDer::from(own.signing_key.serialize_der());
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
        let tls = tls.with_no_client_auth().with_single_cert(vec![own.cert.der().clone()], key.into())?;
        let acceptor = TlsAcceptor::from(Arc::new(tls));
        let runtime = Runtime::new()?;
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0"))?;
        let url = format!("https://localhost:{}", listener.local_addr()?.port());
        let carried = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&carried);
        runtime.spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (acceptor, counted) = (acceptor.clone(), Arc::clone(&counted));
                // Errors of a connection are reported by its client.
                tokio::spawn(async move { carry(client, &acceptor, &counted).await.ok() });
            }
        });
        Ok(Self { url, certificate: own.cert.pem(), carried, _runtime: runtime })
    }

    /// Number of connections.
    pub fn carried(&self) -> usize {
        self.carried.load(Ordering::SeqCst)
    }
}

async fn carry(client: TcpStream, acceptor: &TlsAcceptor, carried: &AtomicUsize) -> Result<()> {
    let mut client = acceptor.accept(client).await?;
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(client.read_u8().await?);
    }
    let head = String::from_utf8(head)?;
    let mut words = head.split_whitespace();
    let (Some("CONNECT"), Some(target)) = (words.next(), words.next()) else { bail!("asked {head:?}") };
    let mut server = TcpStream::connect(target).await.context("connecting")?;
    client.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").await?;
    carried.fetch_add(1, Ordering::SeqCst);
    tokio::io::copy_bidirectional(&mut client, &mut server).await?;
    Ok(())
}
