//! A relay between a sink and the database, which closes a connection at a chosen byte.

use crowsnest_graph::BoltTarget;
use parking_lot::Mutex;
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::task::AbortOnDropHandle;

const BUFFER_BYTES: usize = 4 << 10;

/// Direction of data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// To the database.
    Requests,
    /// To the sink. A response that is lost may be the confirmation of a commit.
    Responses,
}

/// Where the next connection is closed.
#[derive(Debug, Clone, Copy)]
struct Cut {
    direction: Direction,
    /// Bytes in this direction before it, on all connections.
    bytes_left: usize,
}

/// Bytes forwarded in each direction, and connections that were closed at a cut.
#[derive(Debug, Clone, Copy, Default)]
pub struct Counters {
    pub request_bytes: usize,
    pub response_bytes: usize,
    pub cuts: usize,
}

#[derive(Default)]
struct Shared {
    cut: Mutex<Option<Cut>>,
    counters: watch::Sender<Counters>,
}

/// A running relay. All its connections are closed when it is dropped.
pub struct Relay {
    port: u16,
    shared: Arc<Shared>,
    _task: AbortOnDropHandle<()>,
}

impl Relay {
    /// Forwards connections to a database on the loopback address.
    pub async fn start(database_port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared = Arc::new(Shared::default());
        let task = tokio::spawn(forward_connections(listener, database_port, Arc::clone(&shared)));
        Self { port, shared, _task: AbortOnDropHandle::new(task) }
    }

    /// The target of a sink, with the address of the relay.
    pub fn target(&self, target: BoltTarget) -> BoltTarget {
        BoltTarget { address: format!("bolt://127.0.0.1:{}", self.port), ..target }
    }

    pub fn counters(&self) -> Counters {
        *self.shared.counters.borrow()
    }

    /// Closes the connection that forwards this byte.
    pub fn cut_after(&self, direction: Direction, bytes: usize) {
        *self.shared.cut.lock() = Some(Cut { direction, bytes_left: bytes });
    }

    /// Closes no further connection.
    pub fn clear_cut(&self) {
        *self.shared.cut.lock() = None;
    }

    /// Waits until a number of connections were closed at a cut.
    pub async fn wait_for_cuts(&self, count: usize) {
        let mut counters = self.shared.counters.subscribe();
        // The sender lives as long as the relay.
        drop(counters.wait_for(|counters| counters.cuts >= count).await);
    }
}

async fn forward_connections(listener: TcpListener, database_port: u16, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            Some(_) = connections.join_next() => {}
            accepted = listener.accept() => {
                let (client, _) = accepted.unwrap();
                connections.spawn(forward(client, database_port, Arc::clone(&shared)));
            }
        }
    }
}

/// Forwards a connection until one of its ends is closed. While the database is stopped, the connection ends at once.
async fn forward(client: TcpStream, database_port: u16, shared: Arc<Shared>) {
    let Ok(server) = TcpStream::connect(("127.0.0.1", database_port)).await else { return };
    let ((from_client, to_client), (from_server, to_server)) = (client.into_split(), server.into_split());
    tokio::select! {
        () = shared.copy(Direction::Requests, from_client, to_server) => {}
        () = shared.copy(Direction::Responses, from_server, to_client) => {}
    }
}

impl Shared {
    /// Copies one direction of a connection until it ends or is cut.
    async fn copy(&self, direction: Direction, mut from: OwnedReadHalf, mut to: OwnedWriteHalf) {
        let mut buffer = vec![0; BUFFER_BYTES];
        loop {
            let Ok(length @ 1..) = from.read(&mut buffer).await else { return };
            let cut_at = self.find_cut(direction, length);
            let forwarded = cut_at.unwrap_or(length);
            if to.write_all(&buffer[..forwarded]).await.is_err() {
                return;
            }
            self.counters.send_modify(|counters| {
                let bytes = match direction {
                    Direction::Requests => &mut counters.request_bytes,
                    Direction::Responses => &mut counters.response_bytes,
                };
                *bytes += forwarded;
                counters.cuts += usize::from(cut_at.is_some());
            });
            if cut_at.is_some() {
                return;
            }
        }
    }

    /// Number of these bytes before the cut; `None` if the cut is not among them.
    fn find_cut(&self, direction: Direction, length: usize) -> Option<usize> {
        let mut cut = self.cut.lock();
        let next = cut.as_mut().filter(|cut| cut.direction == direction)?;
        if next.bytes_left < length {
            return cut.take().map(|cut| cut.bytes_left);
        }
        next.bytes_left -= length;
        None
    }
}
