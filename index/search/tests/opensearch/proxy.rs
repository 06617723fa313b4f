//! A fault-injecting proxy in front of an engine.
//!
//! It reads each request, sends it over a connection of its own and ends the client's connection with the response.

use parking_lot::RwLock;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_util::sync::{CancellationToken, DropGuard};

/// Fault that the proxy injects.
#[derive(Clone, Debug)]
pub enum Fault {
    /// No fault: requests and responses are passed on.
    Pass,
    /// The connection ends before anything is read.
    Refuse,
    /// The engine gets the first half of the body, then both connections end.
    TruncateRequest,
    /// The engine gets the request; the client gets this number of bytes of the response.
    TruncateResponse(usize),
    /// The engine gets the request; the client's connection stays open without a response.
    Silence,
    /// The engine gets the request; the client gets a byte of the response every ten milliseconds.
    Slow,
    /// The engine gets nothing; the client gets this response.
    Respond(Vec<u8>),
    /// The engine gets nothing; the response never ends.
    Endless,
    /// Requests with this Authorization header are passed on; the response to others is 401.
    Authorization(String),
}

/// A request as the proxy read it.
#[derive(Clone, Debug)]
pub struct RecordedRequest {
    /// Request line and headers, lower case.
    pub head: String,
    pub body: Vec<u8>,
}

/// A running proxy; it ends when dropped.
pub struct Proxy {
    pub address: SocketAddr,
    state: Arc<State>,
    _stop: DropGuard,
}

struct State {
    upstream: SocketAddr,
    fault: RwLock<Fault>,
    requests: RwLock<Vec<RecordedRequest>>,
}

impl Proxy {
    pub async fn start(upstream: SocketAddr) -> Self {
        Self::with_tls(upstream, None).await
    }

    pub async fn with_tls(upstream: SocketAddr, tls: Option<tokio_rustls::TlsAcceptor>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(State { upstream, fault: RwLock::new(Fault::Pass), requests: RwLock::default() });
        let stop = CancellationToken::new();
        tokio::spawn(accept(listener, tls, Arc::clone(&state), stop.clone()));
        Self { address, state, _stop: stop.drop_guard() }
    }

    pub fn set(&self, fault: Fault) {
        *self.state.fault.write() = fault;
    }

    pub fn requests(&self) -> Vec<RecordedRequest> {
        self.state.requests.read().clone()
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

/// A response with a JSON body.
pub fn response(status: u16, headers: &str, body: &str) -> Fault {
    let length = body.len();
    let head =
        format!("HTTP/1.1 {status} X\r\n{headers}content-type: application/json\r\ncontent-length: {length}\r\n");
    Fault::Respond(format!("{head}connection: close\r\n\r\n{body}").into_bytes())
}

async fn accept(
    listener: TcpListener,
    tls: Option<tokio_rustls::TlsAcceptor>,
    state: Arc<State>,
    stop: CancellationToken,
) {
    // Connections end with the proxy.
    let mut connections = JoinSet::new();
    while let Some(Ok((stream, _))) = stop.run_until_cancelled(listener.accept()).await {
        let (state, tls) = (Arc::clone(&state), tls.clone());
        connections.spawn(async move {
            // Connections fail on purpose.
            match tls {
                None => drop(serve(stream, &state).await),
                Some(tls) => {
                    if let Ok(stream) = tls.accept(stream).await {
                        drop(serve(stream, &state).await);
                    }
                }
            }
        });
        while connections.try_join_next().is_some() {}
    }
}

async fn serve<S: AsyncRead + AsyncWrite + Unpin>(mut client: S, state: &State) -> std::io::Result<()> {
    let fault = state.fault.read().clone();
    if matches!(fault, Fault::Refuse) {
        return Ok(());
    }
    let Some(RecordedRequest { head, body }) = read_request(&mut client).await? else { return Ok(()) };
    state.requests.write().push(RecordedRequest { head: head.to_lowercase(), body: body.clone() });
    let refused = matches!(&fault, Fault::Authorization(expected)
        if !head.lines().any(|line| line.strip_prefix("authorization: ") == Some(expected)));
    if refused {
        client.write_all(b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\nconnection: close\r\n\r\n").await?;
        return client.shutdown().await;
    }
    match &fault {
        Fault::Respond(bytes) => {
            client.write_all(bytes).await?;
            return client.shutdown().await;
        }
        Fault::Endless => {
            client.write_all(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n").await?;
            loop {
                client.write_all(&[b' '; 65536]).await?;
            }
        }
        _ => {}
    }
    let mut engine = TcpStream::connect(state.upstream).await?;
    engine.write_all(head.replacen("\r\n", "\r\nconnection: close\r\n", 1).as_bytes()).await?;
    if matches!(fault, Fault::TruncateRequest) {
        return engine.write_all(&body[..body.len() / 2]).await;
    }
    engine.write_all(&body).await?;
    let mut response = Vec::new();
    engine.read_to_end(&mut response).await?;
    // Some engines omit `connection: close` in the response; the client would then reuse the closed connection.
    if let Some(end) = response.windows(2).position(|two| two == b"\r\n") {
        response.splice(end..end, b"\r\nconnection: close".iter().copied());
    }
    match fault {
        Fault::TruncateResponse(bytes) => client.write_all(&response[..bytes.min(response.len())]).await?,
        Fault::Silence => {
            // Waits until the client closes the connection.
            client.read_to_end(&mut Vec::new()).await?;
        }
        Fault::Slow => {
            let mut tick = tokio::time::interval(Duration::from_millis(10));
            for byte in response {
                tick.tick().await;
                client.write_all(&[byte]).await?;
            }
        }
        _ => client.write_all(&response).await?,
    }
    client.shutdown().await
}

/// A request with a content length or without a body.
async fn read_request<S: AsyncRead + Unpin>(client: &mut S) -> std::io::Result<Option<RecordedRequest>> {
    let mut bytes = Vec::new();
    let end = loop {
        if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            break end + 4;
        }
        if client.read_buf(&mut bytes).await? == 0 {
            return Ok(None);
        }
    };
    let body = bytes.split_off(end);
    let head = String::from_utf8_lossy(&bytes).into_owned();
    let length = head.lines().find_map(|line| line.to_lowercase().strip_prefix("content-length: ")?.parse().ok());
    let mut body = body;
    while body.len() < length.unwrap_or(0) {
        if client.read_buf(&mut body).await? == 0 {
            return Ok(None);
        }
    }
    Ok(Some(RecordedRequest { head, body }))
}
