//! The network between the cache and one member: a proxy that closes connections, truncates responses, stalls and
//! refuses.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

pub struct Network {
    port: u16,
    state: Arc<NetworkState>,
    accepting: JoinHandle<()>,
}

/// State shared by all connections.
struct NetworkState {
    stalled: watch::Sender<bool>,
    refusing: watch::Sender<bool>,
    /// Incremented to close all existing connections.
    cuts: watch::Sender<u64>,
    /// Remaining bytes of responses before connections are closed.
    budget: AtomicI64,
}

impl Network {
    pub async fn start(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port_of_proxy = listener.local_addr().unwrap().port();
        let state = Arc::new(NetworkState {
            stalled: watch::Sender::new(false),
            refusing: watch::Sender::new(false),
            cuts: watch::Sender::new(0),
            budget: AtomicI64::new(i64::MAX),
        });
        let shared = Arc::clone(&state);
        let accepting = tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                if !*shared.refusing.borrow() {
                    tokio::spawn(forward_connection(near, port, Arc::clone(&shared)));
                }
            }
        });
        Self { port: port_of_proxy, state, accepting }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Closes all connections.
    pub fn cut(&self) {
        self.state.cuts.send_modify(|cuts| *cuts += 1);
    }

    /// Forwards this many bytes of responses and then closes all connections.
    pub fn cut_within(&self, bytes: i64) {
        self.state.budget.store(bytes, Ordering::SeqCst);
    }

    /// Keeps connections open without traffic.
    pub fn stall(&self, stalled: bool) {
        self.state.stalled.send_replace(stalled);
    }

    /// Refuses new connections.
    pub fn refuse(&self, refusing: bool) {
        self.state.refusing.send_replace(refusing);
    }

    pub fn heal(&self) {
        self.state.budget.store(i64::MAX, Ordering::SeqCst);
        self.refuse(false);
        self.stall(false);
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn forward_connection(near: TcpStream, port: u16, state: Arc<NetworkState>) {
    let mut cuts = state.cuts.subscribe();
    let Ok(far) = TcpStream::connect(("127.0.0.1", port)).await else { return };
    let (near_read, near_write) = near.into_split();
    let (far_read, far_write) = far.into_split();
    // When one direction ends, both sockets are closed.
    tokio::select! {
        () = forward(near_read, far_write, &state, false) => {}
        () = forward(far_read, near_write, &state, true) => {}
        _ = cuts.changed() => {}
    }
}

/// Forwards one direction until either end closes or the budget of response bytes is used up.
async fn forward(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, state: &NetworkState, are_responses: bool) {
    let mut stalled = state.stalled.subscribe();
    let mut buffer = vec![0; 16 << 10];
    loop {
        let Ok(read) = from.read(&mut buffer).await else { return };
        if read == 0 || stalled.wait_for(|stalled| !stalled).await.is_err() {
            return;
        }
        let left = if are_responses { state.budget.fetch_sub(read as i64, Ordering::SeqCst) } else { i64::MAX };
        let through = read.min(usize::try_from(left).unwrap_or(0));
        if to.write_all(&buffer[..through]).await.is_err() {
            return;
        }
        if through < read {
            // Only once: later connections are not cut.
            state.budget.store(i64::MAX, Ordering::SeqCst);
            state.cuts.send_modify(|cuts| *cuts += 1);
            return;
        }
    }
}
