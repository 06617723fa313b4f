//! TCP forwarder on the loopback address in front of a server. While it is closed, the server is unreachable through
//! it; while it trickles, the server's data arrives at one byte per second.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context;
use crowsnest_apiserver::serve::accept_connection;
use crowsnest_component_base::tasks::Tasks;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Size of the buffer of each direction of a connection.
const BUFFER_BYTES: usize = 64 << 10;
/// Interval between two bytes while the forwarder trickles.
const TRICKLE_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Open,
    /// Connections are closed, and new ones as soon as they are made.
    Closed,
    /// Data of the server is forwarded byte by byte.
    Trickling,
}

/// A running forwarder.
pub(super) struct Forwarder {
    address: SocketAddr,
    mode: watch::Sender<Mode>,
    tasks: Tasks,
}

impl Forwarder {
    /// Forwards connections to a host and port.
    pub(super) async fn start(host: String, port: u16) -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await.context("cannot listen on loopback")?;
        let address = listener.local_addr()?;
        let (mode, tasks) = (watch::Sender::new(Mode::Open), Tasks::default());
        let connections = forward_connections(listener, (host, port), mode.subscribe());
        let stop = tasks.stop_token().clone();
        tasks.spawn_until_stop("forwarder", async move {
            // Connections end with this future.
            stop.run_until_cancelled(connections).await;
        });
        Ok(Self { address, mode, tasks })
    }

    /// Address to connect to instead of that of the server.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Closes all connections, and new ones as soon as they are made.
    pub(super) fn close(&self) {
        self.mode.send_replace(Mode::Closed);
    }

    /// Forwards connections without limit again.
    pub(super) fn open(&self) {
        self.mode.send_replace(Mode::Open);
    }

    /// Forwards the server's data at one byte per second, including on open connections.
    pub(super) fn trickle(&self) {
        self.mode.send_replace(Mode::Trickling);
    }

    pub(super) async fn stop(self) {
        self.tasks.stop().await;
    }
}

async fn forward_connections(listener: TcpListener, server: (String, u16), mode: watch::Receiver<Mode>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            Some(_) = connections.join_next() => {}
            // While the forwarder is closed, connections are dropped. The port stays in use, so that no other process can
            // take it.
            (client, _) = accept_connection(&listener) => if *mode.borrow() != Mode::Closed {
                connections.spawn(forward(client, server.clone(), mode.clone()));
            },
        }
    }
}

/// Forwards a connection until one of its ends or the forwarder is closed.
async fn forward(client: TcpStream, (host, port): (String, u16), mut mode: watch::Receiver<Mode>) {
    let responses = mode.clone();
    let copy = async {
        let (from_client, mut to_client) = client.into_split();
        let (from_server, mut to_server) = TcpStream::connect((host.as_str(), port)).await?.into_split();
        let mut from_client = tokio::io::BufReader::with_capacity(BUFFER_BYTES, from_client);
        let requests = async {
            tokio::io::copy_buf(&mut from_client, &mut to_server).await?;
            to_server.shutdown().await
        };
        tokio::try_join!(requests, forward_responses(from_server, &mut to_client, responses)).map(drop)
    };
    let closed = async { mode.wait_for(|mode| *mode == Mode::Closed).await.is_ok() };
    let result: io::Result<()> = tokio::select! {
        result = copy => result,
        _ = closed => Ok(()),
    };
    if let Err(error) = result {
        tracing::debug!(%error, "a forwarded connection ended");
    }
}

/// Forwards the server's data in the current mode until it ends.
async fn forward_responses(
    mut from_server: OwnedReadHalf,
    to_client: &mut OwnedWriteHalf,
    mut mode: watch::Receiver<Mode>,
) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let length = from_server.read(&mut buffer).await?;
        if length == 0 {
            return to_client.shutdown().await;
        }
        let mut pending = &buffer[..length];
        while let [first, rest @ ..] = pending {
            if *mode.borrow_and_update() != Mode::Trickling {
                to_client.write_all(pending).await?;
                break;
            }
            to_client.write_all(&[*first]).await?;
            pending = rest;
            // Waits for less if the mode changes or the forwarder stops.
            let _ = tokio::time::timeout(TRICKLE_INTERVAL, mode.changed()).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Connects through the forwarder, sends a byte in both directions, and returns both ends.
    async fn connect(forwarder: &Forwarder, server: &TcpListener) -> (TcpStream, TcpStream) {
        let mut client = TcpStream::connect(forwarder.address()).await.unwrap();
        client.write_all(b"?").await.unwrap();
        let (mut connection, _) = server.accept().await.unwrap();
        assert_eq!(connection.read_u8().await.unwrap(), b'?');
        connection.write_all(b"!").await.unwrap();
        assert_eq!(client.read_u8().await.unwrap(), b'!');
        (client, connection)
    }

    #[tokio::test]
    async fn connections_end_while_the_forwarder_is_closed() {
        let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = server.local_addr().unwrap();
        let forwarder = Forwarder::start(address.ip().to_string(), address.port()).await.unwrap();
        let (mut first, mut first_at_server) = connect(&forwarder, &server).await;
        forwarder.close();
        assert!(first.read_u8().await.is_err());
        assert!(first_at_server.read_u8().await.is_err());
        let mut second = TcpStream::connect(forwarder.address()).await.unwrap();
        assert!(second.read_u8().await.is_err());
        forwarder.open();
        let (mut third, mut third_at_server) = connect(&forwarder, &server).await;
        forwarder.stop().await;
        assert!(third.read_u8().await.is_err());
        assert!(third_at_server.read_u8().await.is_err());
    }

    #[tokio::test]
    async fn a_trickling_forwarder_sends_a_byte_each_second() {
        let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = server.local_addr().unwrap();
        let forwarder = Forwarder::start(address.ip().to_string(), address.port()).await.unwrap();
        let (mut client, mut at_server) = connect(&forwarder, &server).await;
        forwarder.trickle();
        let start = std::time::Instant::now();
        at_server.write_all(b"abcd").await.unwrap();
        let mut received = [0; 3];
        client.read_exact(&mut received).await.unwrap();
        assert_eq!(&received, b"abc");
        assert!(start.elapsed() >= 2 * TRICKLE_INTERVAL);
        // Requests are not limited.
        client.write_all(b"question").await.unwrap();
        at_server.read_exact(&mut [0; 8]).await.unwrap();
        forwarder.open();
        client.read_exact(&mut [0; 1]).await.unwrap();
        forwarder.stop().await;
    }
}
