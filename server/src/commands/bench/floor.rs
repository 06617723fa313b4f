//! Baseline for the watches of `apiserver`: sends the same events to the same number of connections over TLS on
//! loopback, without HTTP, store or API. It is the lower bound for the latency of any server on this machine.

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use crowsnest_apiserver::authn::{Authority, ServingCertificates};
use futures::{StreamExt, TryStreamExt};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_rustls::{TlsAcceptor, TlsConnector};
use tokio_util::io::ReaderStream;

use super::apiserver::{MAX_CONCURRENT_OPENS, WRITE_TIME_ANNOTATION, event_latencies, unix_time};
use super::cache::MeasurementPrinter;
use super::processes::BenchProcess;

/// Name in the serving certificate.
const SERVER_NAME: &str = "localhost";

/// Address of the sending process, and the CA of its certificate.
#[derive(Debug, Serialize, Deserialize)]
struct EventSource {
    address: std::net::SocketAddr,
    authority: String,
}

/// The sending process: waits for the listeners and a line of input, then sends each event to all of them.
pub(super) async fn broadcast(listeners: usize, writes: usize, bytes: usize, interval: Duration) -> anyhow::Result<()> {
    let authority = Authority::generate("bench")?;
    let serving = ServingCertificates::new(&authority.issue_serving_certificate(&[SERVER_NAME.to_owned()])?)?;
    let acceptor = TlsAcceptor::from(authority.tls(serving)?.config);
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let source = EventSource { address: listener.local_addr()?, authority: authority.certificate().to_owned() };
    let mut out = std::io::stdout();
    writeln!(out, "{}", serde_json::to_string(&source)?)?;
    let (sender, receiver) = watch::channel(Arc::<[u8]>::default());
    let mut connections = JoinSet::new();
    for _ in 0..listeners {
        let (socket, _) = listener.accept().await?;
        socket.set_nodelay(true)?;
        let (mut stream, mut receiver) = (acceptor.accept(socket).await?, receiver.clone());
        connections.spawn(async move {
            while receiver.changed().await.is_ok() {
                let event = receiver.borrow_and_update().clone();
                stream.write_all(&event).await?;
                stream.flush().await?;
            }
            anyhow::Ok(())
        });
    }
    let mut commands = BufReader::new(tokio::io::stdin()).lines();
    commands.next_line().await?.context("standard input was closed")?;
    for _ in 0..writes {
        sender.send_replace(event(bytes).into());
        tokio::time::sleep(interval).await;
    }
    writeln!(out, "sent")?;
    // Runs until standard input is closed.
    while commands.next_line().await?.is_some() {}
    connections.shutdown().await;
    Ok(())
}

/// A line of this size with the time of its creation.
fn event(bytes: usize) -> Vec<u8> {
    let mut line = format!("{{\"{WRITE_TIME_ANNOTATION}\":\"{}\",\"text\":\"", unix_time().as_nanos()).into_bytes();
    line.resize(bytes, b'x');
    line.extend_from_slice(b"\"}\n");
    line
}

/// Measures the time from the creation of each event until each listener has received its last byte.
pub(super) async fn measure(
    listeners: usize,
    writes: usize,
    bytes: usize,
    interval: Duration,
    printer: &mut MeasurementPrinter<impl Write>,
) -> anyhow::Result<()> {
    let mut process = BenchProcess::start_event_source(listeners, writes, bytes, interval).await?;
    let source: EventSource = serde_json::from_str(process.first_line())?;
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(source.authority.as_bytes())?)?;
    let config = rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let connector = TlsConnector::from(Arc::new(config));
    let opens = (0..listeners).map(async |_| {
        let socket = TcpStream::connect(source.address).await?;
        socket.set_nodelay(true)?;
        anyhow::Ok(connector.connect(ServerName::try_from(SERVER_NAME)?, socket).await?)
    });
    let streams = futures::stream::iter(opens).buffer_unordered(MAX_CONCURRENT_OPENS).try_collect::<Vec<_>>().await?;
    let mut readers: JoinSet<_> =
        streams.into_iter().map(|stream| event_latencies(ReaderStream::new(stream), writes)).collect();
    process.request("send").await?;
    let mut durations = Vec::with_capacity(listeners * writes);
    while let Some(result) = readers.join_next().await {
        durations.extend(result??);
    }
    process.stop().await?;
    printer.print_percentiles(&format!("apiserver/watch-{listeners}-floor"), durations)
}
