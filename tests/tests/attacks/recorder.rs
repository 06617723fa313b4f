//! A member cluster that records the raw bytes of each request. It is a proxy in front of a simulated member's API
//! server. It responds itself, with 200 or 101, to requests that contain the table's mark or impersonate another user.
//! It passes all others (probes, collectors, the agent's registration) to that server.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result};
use crowsnest_tests::PATIENCE;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::{TlsAcceptor, TlsConnector};
use tokio_util::task::TaskTracker;

use crate::attacks::wire::{self, Framing, Wire, find, lossy};

/// Mark in the path, the query or a header of each request of the table, followed by the number of its case.
pub const MARK: &str = "xq7-";
/// Parameter that makes a member switch protocols.
const SWITCHES: &[u8] = b"switches=x";
/// User with which the test prepares and checks the system.
const ADMINISTRATOR: &str = "system:admin";
/// Time for recording an upgraded connection.
const TALK: Duration = Duration::from_secs(1);

/// Request as it arrived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Arrival {
    pub member: &'static str,
    /// Request line and headers, including the final empty line.
    pub head: Vec<u8>,
    /// Raw body and trailers, or the bytes after an upgrade.
    pub rest: Vec<u8>,
    /// Reason why a strict recipient cannot find the end of the body.
    pub broken: Option<String>,
    /// Request of the product for itself, or of the test as the administrator.
    pub relayed: bool,
}

impl Arrival {
    pub fn contains(&self, part: &[u8]) -> bool {
        find(&self.head, part).is_some() || find(&self.rest, part).is_some()
    }
}

/// See the module.
pub struct Recorder {
    pub name: &'static str,
    pub address: SocketAddr,
    /// Certificate authority of the recorder's certificate, PEM.
    pub authority: String,
    arrivals: Mutex<Vec<Arrival>>,
    behind: SocketAddr,
    connector: TlsConnector,
    /// Open connections.
    connections: TaskTracker,
    /// True if the recorder reports that every object in the table exists; otherwise none does.
    has_objects: bool,
}

impl Recorder {
    /// Starts a recorder in front of the API server at `behind`, whose certificate was issued by `authority`.
    pub async fn start(
        name: &'static str,
        behind: SocketAddr,
        authority: &[u8],
        has_objects: bool,
    ) -> Result<Arc<Self>> {
        let (pem, tls) = server_side(&["127.0.0.1", "kubernetes.default.svc"])?;
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
            arrivals: Mutex::default(),
            behind,
            connector: TlsConnector::from(Arc::new(client)),
            connections: TaskTracker::new(),
            has_objects,
        });
        let (acceptor, serving) = (TlsAcceptor::from(Arc::new(tls)), Arc::clone(&recorder));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, recorder) = (acceptor.clone(), Arc::clone(&serving));
                // A broken connection is not an error; the bytes received so far are kept.
                let connections = recorder.connections.clone();
                connections.spawn(async move { recorder.serve(Wire::new(acceptor.accept(stream).await?)).await });
            }
        });
        Ok(recorder)
    }

    /// All requests so far, in the order of their first byte.
    pub fn arrivals(&self) -> Vec<Arrival> {
        self.arrivals.lock().expect("arrivals").clone()
    }

    /// Waits until all connections have ended.
    pub async fn ended(&self) -> Result<()> {
        self.connections.close();
        tokio::time::timeout(PATIENCE, self.connections.wait())
            .await
            .with_context(|| format!("{} is in use", self.name))
    }

    fn note(&self, head: &[u8]) -> usize {
        let mut all = self.arrivals.lock().expect("arrivals");
        all.push(Arrival {
            member: self.name,
            head: head.to_vec(),
            rest: Vec::new(),
            broken: None,
            relayed: is_own(head),
        });
        all.len() - 1
    }

    fn amend(&self, nth: usize, change: impl FnOnce(&mut Arrival)) {
        change(&mut self.arrivals.lock().expect("arrivals")[nth]);
    }

    async fn serve(&self, mut wire: Wire) -> Result<()> {
        while let Some(head) = wire.until(b"\r\n\r\n").await? {
            let nth = self.note(&head);
            let framing = wire::framing(&head).inspect_err(|error| {
                self.amend(nth, |arrival| arrival.broken = Some(format!("{error:#}")));
            })?;
            let mut body = Vec::new();
            let read = wire.body(framing, &mut body).await;
            self.amend(nth, |arrival| {
                arrival.rest.clone_from(&body);
                arrival.broken = read.as_ref().err().map(|error| format!("{error:#}"));
            });
            read?;
            if is_own(&head) {
                return self.relay(wire, &head, &body, framing).await;
            }
            if let Some(protocol) = upgrade(&head).or_else(|| switches(&head).then(|| "x".to_owned())) {
                let response = format!(
                    "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: {protocol}\r\n{}\r\n",
                    accepted(&head)
                );
                wire.write(response.as_bytes()).await?;
                let talk = wire.rest(TALK).await;
                self.amend(nth, |arrival| arrival.rest.extend(talk));
                return Ok(());
            }
            wire.write(&self.respond(&head)).await?;
        }
        Ok(())
    }

    fn respond(&self, head: &[u8]) -> Vec<u8> {
        // A search for the cluster that has an object requests only its metadata.
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

    /// Passes a request on, together with its connection.
    async fn relay(&self, wire: Wire, head: &[u8], body: &[u8], framing: Framing) -> Result<()> {
        let stream = TcpStream::connect(self.behind).await?;
        let name = ServerName::IpAddress(self.behind.ip().into());
        let mut there = self.connector.connect(name, stream).await?;
        let head = if upgrade(head).is_some() { head.to_vec() } else { closing(head) };
        tokio::io::AsyncWriteExt::write_all(&mut there, &head).await?;
        if framing != Framing::None {
            tokio::io::AsyncWriteExt::write_all(&mut there, body).await?;
        }
        let (mut here, _) = wire.into_parts();
        tokio::io::copy_bidirectional(&mut here, &mut there).await?;
        Ok(())
    }
}

/// True if a request makes the member switch protocols although no upgrade was requested.
fn switches(head: &[u8]) -> bool {
    find(head, SWITCHES).is_some()
}

/// True for requests that do not belong to the table.
fn is_own(head: &[u8]) -> bool {
    let marked = find(head, MARK.as_bytes()).is_some();
    let as_somebody = wire::values(head, "impersonate-user").iter().any(|user| user != ADMINISTRATOR);
    !marked && !as_somebody && !head.starts_with(b"CONNECT ")
}

/// Upgrade protocol of a request.
fn upgrade(head: &[u8]) -> Option<String> {
    let is_upgrade = wire::values(head, "connection").join(",").to_ascii_lowercase();
    let is_upgrade = is_upgrade.split(',').any(|token| token.trim() == "upgrade");
    is_upgrade.then(|| wire::values(head, "upgrade").into_iter().next()).flatten()
}

/// Accepted subprotocol; empty if none was offered.
fn accepted(head: &[u8]) -> String {
    let offered = wire::values(head, "sec-websocket-protocol").join(",");
    match offered.split(',').map(str::trim).find(|one| !one.is_empty()) {
        Some(first) => format!("Sec-WebSocket-Protocol: {first}\r\n"),
        None => String::new(),
    }
}

/// The head of a request with `Connection: close`.
fn closing(head: &[u8]) -> Vec<u8> {
    let text = lossy(head);
    let mut lines = text.trim_end().split("\r\n");
    let first = lines.next().unwrap_or_default();
    let rest = lines.filter(|line| !line.to_ascii_lowercase().starts_with("connection:"));
    let rest: String = rest.map(|line| format!("{line}\r\n")).collect();
    format!("{first}\r\n{rest}Connection: close\r\n\r\n").into_bytes()
}

/// Certificate of a server and the authority that issued it (PEM).
fn server_side(names: &[&str]) -> Result<(String, ServerConfig)> {
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(DnType::CommonName, "recorder-authority");
    let pem = params.self_signed(&key)?.pem();
    let issuer = Issuer::new(params, key);
    let key = KeyPair::generate()?;
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let certificate = CertificateParams::new(names)?.signed_by(&key, &issuer).context("signing")?;
    let key = PrivatePkcs8KeyDer::from(key.serialize_der());
    let tls = ServerConfig::builder().with_no_client_auth();
    Ok((pem, tls.with_single_cert(vec![certificate.der().clone()], key.into())?))
}
