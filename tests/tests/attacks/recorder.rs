//! A proxy in front of a simulated member's API server that records the raw bytes of each request. It responds itself,
//! with 200 or 101, to requests that contain the table's mark or impersonate another user, and relays all others
//! (probes, collectors, the agent's registration) to the API server.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result};
use crowsnest_tests::WAIT_TIMEOUT;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::{TlsAcceptor, TlsConnector};
use tokio_util::task::TaskTracker;

use crate::attacks::wire::{self, Framing, Wire, find, lossy};

/// Prefix of the mark in the path, the query or a header of each request of the table. The number of its case follows.
pub const MARK: &str = "xq7-";
/// Query parameter that makes the recorder switch protocols without an upgrade request.
const SWITCH_PARAMETER: &[u8] = b"switches=x";
/// User with which the test prepares and checks the system.
const ADMINISTRATOR: &str = "system:admin";
/// Time for which the bytes of an upgraded connection are recorded.
const UPGRADED_RECORDING_TIME: Duration = Duration::from_secs(1);

/// A request as the member received it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordedRequest {
    pub member: &'static str,
    /// Request line and headers, including the final empty line.
    pub head: Vec<u8>,
    /// Raw body and trailers, or the bytes after an upgrade.
    pub body: Vec<u8>,
    /// Reason why a strict recipient cannot find the end of the body.
    pub framing_error: Option<String>,
    /// True if the request was relayed to the API server: it does not belong to the table.
    pub relayed: bool,
}

impl RecordedRequest {
    pub fn contains(&self, part: &[u8]) -> bool {
        find(&self.head, part).is_some() || find(&self.body, part).is_some()
    }
}

/// Recording proxy of one member.
pub struct Recorder {
    pub name: &'static str,
    pub address: SocketAddr,
    /// Certificate authority of the recorder's certificate, PEM.
    pub authority: String,
    requests: Mutex<Vec<RecordedRequest>>,
    /// Address of the API server.
    upstream: SocketAddr,
    connector: TlsConnector,
    /// Open connections.
    connections: TaskTracker,
    /// True if the recorder responds as if all requested objects exist; otherwise, as if none does.
    has_objects: bool,
}

impl Recorder {
    /// Starts a recorder in front of the API server at `upstream`, whose certificate was issued by `authority` (PEM).
    pub async fn start(
        name: &'static str,
        upstream: SocketAddr,
        authority: &[u8],
        has_objects: bool,
    ) -> Result<Arc<Self>> {
        let (pem, tls) = server_tls(&["127.0.0.1", "kubernetes.default.svc"])?;
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(authority) {
            roots.add(certificate?)?;
        }
        let client = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let recorder = Arc::new(Self {
            name,
            address: listener.local_addr()?,
            authority: pem,
            requests: Mutex::default(),
            upstream,
            connector: TlsConnector::from(Arc::new(client)),
            connections: TaskTracker::new(),
            has_objects,
        });
        let (acceptor, serving) = (TlsAcceptor::from(Arc::new(tls)), Arc::clone(&recorder));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, recorder) = (acceptor.clone(), Arc::clone(&serving));
                // An interrupted connection is not an error; the bytes received so far are retained.
                let connections = recorder.connections.clone();
                connections.spawn(async move { recorder.serve(Wire::new(acceptor.accept(stream).await?)).await });
            }
        });
        Ok(recorder)
    }

    /// Requests received so far, in the order in which their heads were complete.
    pub fn requests(&self) -> Vec<RecordedRequest> {
        self.requests.lock().expect("the lock is not poisoned").clone()
    }

    /// Waits until all connections have ended.
    pub async fn wait_for_connections(&self) -> Result<()> {
        self.connections.close();
        tokio::time::timeout(WAIT_TIMEOUT, self.connections.wait())
            .await
            .with_context(|| format!("connections to {} are still open", self.name))
    }

    /// Records a request without its body; returns its index.
    fn record(&self, head: &[u8]) -> usize {
        let mut all = self.requests.lock().expect("the lock is not poisoned");
        all.push(RecordedRequest {
            member: self.name,
            head: head.to_vec(),
            body: Vec::new(),
            framing_error: None,
            relayed: is_relayed(head),
        });
        all.len() - 1
    }

    fn update(&self, index: usize, change: impl FnOnce(&mut RecordedRequest)) {
        change(&mut self.requests.lock().expect("the lock is not poisoned")[index]);
    }

    async fn serve(&self, mut wire: Wire) -> Result<()> {
        while let Some(head) = wire.read_until(b"\r\n\r\n").await? {
            let index = self.record(&head);
            let framing = wire::framing(&head).inspect_err(|error| {
                self.update(index, |recorded| recorded.framing_error = Some(format!("{error:#}")));
            })?;
            let mut body = Vec::new();
            let read = wire.read_body(framing, &mut body).await;
            self.update(index, |recorded| {
                recorded.body.clone_from(&body);
                recorded.framing_error = read.as_ref().err().map(|error| format!("{error:#}"));
            });
            read?;
            if is_relayed(&head) {
                return self.relay(wire, &head, &body, framing).await;
            }
            if let Some(protocol) =
                requested_upgrade(&head).or_else(|| has_switch_parameter(&head).then(|| "x".to_owned()))
            {
                let response = format!(
                    "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: {protocol}\r\n{}\r\n",
                    subprotocol_header(&head)
                );
                wire.write(response.as_bytes()).await?;
                let bytes = wire.read_rest(UPGRADED_RECORDING_TIME).await;
                self.update(index, |recorded| recorded.body.extend(bytes));
                return Ok(());
            }
            wire.write(&self.respond(&head)).await?;
        }
        Ok(())
    }

    fn respond(&self, head: &[u8]) -> Vec<u8> {
        // The fleet-wide proxy searches for the cluster of an object by requesting only the object's metadata.
        let is_search = find(head, b"as=PartialObjectMetadata").is_some();
        let (status, body) = match is_search && !self.has_objects {
            true => ("404 Not Found", r#"{"kind":"Status","apiVersion":"v1","status":"Failure","code":404}"#),
            false => ("200 OK", r#"{"kind":"List","apiVersion":"v1","metadata":{"resourceVersion":"1"},"items":[]}"#),
        };
        let length = body.len();
        let body = if head.starts_with(b"HEAD ") { "" } else { body };
        let head = format!("HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n");
        format!("{head}{body}").into_bytes()
    }

    /// Relays a request, and then all bytes of its connection, to the API server.
    async fn relay(&self, wire: Wire, head: &[u8], body: &[u8], framing: Framing) -> Result<()> {
        let stream = TcpStream::connect(self.upstream).await?;
        let name = ServerName::IpAddress(self.upstream.ip().into());
        let mut upstream = self.connector.connect(name, stream).await?;
        let head = if requested_upgrade(head).is_some() { head.to_vec() } else { with_connection_close(head) };
        tokio::io::AsyncWriteExt::write_all(&mut upstream, &head).await?;
        if framing != Framing::None {
            tokio::io::AsyncWriteExt::write_all(&mut upstream, body).await?;
        }
        let (mut client, _) = wire.into_parts();
        tokio::io::copy_bidirectional(&mut client, &mut upstream).await?;
        Ok(())
    }
}

/// True if the recorder switches protocols although the request contains no upgrade.
fn has_switch_parameter(head: &[u8]) -> bool {
    find(head, SWITCH_PARAMETER).is_some()
}

/// True for requests that do not belong to the table: they have no mark, and impersonate only the administrator or no
/// user.
fn is_relayed(head: &[u8]) -> bool {
    let marked = find(head, MARK.as_bytes()).is_some();
    let impersonates = wire::values(head, "impersonate-user").iter().any(|user| user != ADMINISTRATOR);
    !marked && !impersonates && !head.starts_with(b"CONNECT ")
}

/// Protocol in the upgrade header of a request.
fn requested_upgrade(head: &[u8]) -> Option<String> {
    let is_upgrade = wire::values(head, "connection").join(",").to_ascii_lowercase();
    let is_upgrade = is_upgrade.split(',').any(|token| token.trim() == "upgrade");
    is_upgrade.then(|| wire::values(head, "upgrade").into_iter().next()).flatten()
}

/// Response header that accepts the first offered WebSocket subprotocol; empty if none was offered.
fn subprotocol_header(head: &[u8]) -> String {
    let offered = wire::values(head, "sec-websocket-protocol").join(",");
    match offered.split(',').map(str::trim).find(|one| !one.is_empty()) {
        Some(first) => format!("Sec-WebSocket-Protocol: {first}\r\n"),
        None => String::new(),
    }
}

/// The head of a request, with its `Connection` header replaced by `Connection: close`.
fn with_connection_close(head: &[u8]) -> Vec<u8> {
    let text = lossy(head);
    let mut lines = text.trim_end().split("\r\n");
    let first = lines.next().unwrap_or_default();
    let rest = lines.filter(|line| !line.to_ascii_lowercase().starts_with("connection:"));
    let rest: String = rest.map(|line| format!("{line}\r\n")).collect();
    format!("{first}\r\n{rest}Connection: close\r\n\r\n").into_bytes()
}

/// Certificate of a server and the authority that issued it (PEM).
fn server_tls(names: &[&str]) -> Result<(String, ServerConfig)> {
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(DnType::CommonName, "recorder-authority");
    let pem = params.self_signed(&key)?.pem();
    let issuer = Issuer::new(params, key);
    let key = KeyPair::generate()?;
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let certificate = CertificateParams::new(names)?.signed_by(&key, &issuer).context("cannot sign the certificate")?;
    let key = PrivatePkcs8KeyDer::from(key.serialize_der());
    let tls = ServerConfig::builder().with_no_client_auth();
    Ok((pem, tls.with_single_cert(vec![certificate.der().clone()], key.into())?))
}
