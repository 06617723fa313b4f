//! What can be made to go wrong with a member: unreachable, slow, watches cut off, few writes a second.
//!
//! Faults concern what outsiders see through the listener; the member's own controllers go on. Failing nodes is in [`super::node`].

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::Method;
use axum::middleware::Next;
use axum::response::Response;
use crowsnest_apiserver::ApiServer;
use crowsnest_apiserver::authn::Serving;
use futures::StreamExt;
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::sync::Mutex as AsyncMutex;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::error::{Error, Result};

/// Delay of requests, pace of writes and life of watches. Shared by the listener's middleware and whoever injects faults.
#[derive(Default)]
pub struct Faults {
    delay_ms: AtomicU64,
    watches: Mutex<CancellationToken>,
    turns: Mutex<Turns>,
    writes: AtomicU64,
}

/// Writes at a pace: each has its turn, one after the other.
#[derive(Debug, Default)]
struct Turns {
    /// Between two turns; zero for no pace.
    between: Duration,
    next: Option<Instant>,
}

impl Turns {
    /// When a write that comes now may go on. Turns that nobody took are not made up for.
    fn take(&mut self, now: Instant) -> Instant {
        let turn = self.next.map_or(now, |next| next.max(now));
        self.next = Some(turn + self.between);
        turn
    }
}

impl Faults {
    /// Holds every request up by this much; zero for none.
    pub fn set_delay(&self, delay: Duration) {
        self.delay_ms.store(u64::try_from(delay.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    pub fn delay(&self) -> Duration {
        Duration::from_millis(self.delay_ms.load(Ordering::Relaxed))
    }

    /// Lets so many writes a second through, in the order they come; 0 for as many as there are.
    pub fn set_write_rate(&self, a_second: u32) {
        let between = if a_second == 0 { Duration::ZERO } else { Duration::from_secs(1) / a_second };
        *self.turns.lock() = Turns { between, next: None };
    }

    /// Writes that outsiders have sent so far.
    pub fn writes(&self) -> u64 {
        self.writes.load(Ordering::Relaxed)
    }

    /// Counts a write and waits for its turn.
    async fn turn(&self) {
        self.writes.fetch_add(1, Ordering::Relaxed);
        let turn = self.turns.lock().take(Instant::now());
        tokio::time::sleep_until(turn).await;
    }

    /// Cuts off all open watches, log streams and other long answers. New ones may be opened.
    pub fn drop_watches(&self) {
        std::mem::take(&mut *self.watches.lock()).cancel();
    }

    /// Puts the faults in front of a router.
    pub fn around(self: &Arc<Self>, router: Router) -> Router {
        router.layer(axum::middleware::from_fn_with_state(self.clone(), pass))
    }
}

/// A request that changes something, or asks like one that does: reviews and dry runs are counted, too.
fn is_write(request: &Request) -> bool {
    matches!(*request.method(), Method::POST | Method::PUT | Method::PATCH | Method::DELETE)
}

fn is_watch(request: &Request) -> bool {
    let query = request.uri().query().unwrap_or_default();
    query.split('&').any(|pair| matches!(pair, "watch=true" | "watch=1" | "follow=true" | "follow=1"))
        || request.uri().path().contains("/watch/")
}

async fn pass(State(faults): State<Arc<Faults>>, request: Request, next: Next) -> Response {
    let delay = faults.delay();
    if !delay.is_zero() {
        tokio::time::sleep(delay).await;
    }
    if is_write(&request) {
        faults.turn().await;
    }
    if !is_watch(&request) {
        return next.run(request).await;
    }
    let cut = faults.watches.lock().clone();
    let (parts, body) = next.run(request).await.into_parts();
    let body = body.into_data_stream().take_until(cut.cancelled_owned());
    Response::from_parts(parts, Body::from_stream(body))
}

/// A member's listening socket, which can be closed and opened again on the same address.
pub struct Listening {
    server: ApiServer,
    router: Router,
    names: Vec<String>,
    faults: Arc<Faults>,
    address: Mutex<SocketAddr>,
    running: AsyncMutex<Option<(CancellationToken, JoinHandle<()>)>>,
}

impl Listening {
    /// Opens the socket; port 0 takes a free one and keeps it.
    pub async fn open(
        server: ApiServer,
        router: Router,
        names: Vec<String>,
        faults: Arc<Faults>,
        address: SocketAddr,
    ) -> Result<Self> {
        let listening =
            Self { server, router, names, faults, address: Mutex::new(address), running: AsyncMutex::new(None) };
        listening.resume().await?;
        Ok(listening)
    }

    pub fn address(&self) -> SocketAddr {
        *self.address.lock()
    }

    pub async fn is_open(&self) -> bool {
        self.running.lock().await.is_some()
    }

    /// Opens the socket again after [`Listening::pause`].
    pub async fn resume(&self) -> Result<()> {
        let mut running = self.running.lock().await;
        if running.is_some() {
            return Ok(());
        }
        let address = self.address();
        let io = |source| Error::Io { what: format!("listen on {address}"), source };
        let listener = TcpListener::bind(address).await.map_err(io)?;
        *self.address.lock() = listener.local_addr().map_err(io)?;
        let start = |error: crowsnest_apiserver::error::Error| Error::Start {
            cluster: self.server.name().to_owned(),
            reason: error.to_string(),
        };
        let authority = self.server.authority();
        let tls = authority.server(&self.names).and_then(|own| authority.tls(Serving::new(&own)?)).map_err(start)?;
        let stop = CancellationToken::new();
        let serve = crowsnest_apiserver::http::serve::serve(listener, Some(tls), self.router.clone(), stop.clone());
        let task = tokio::spawn(async move {
            if let Err(error) = serve.await {
                tracing::error!(%error, "a member stopped serving");
            }
        });
        *running = Some((stop, task));
        Ok(())
    }

    /// Closes the socket and every connection: the member is unreachable.
    pub async fn pause(&self) {
        let Some((stop, task)) = self.running.lock().await.take() else { return };
        stop.cancel();
        self.faults.drop_watches();
        if let Err(error) = task.await {
            tracing::error!(%error, "a member's listener ended badly");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_take_turns_and_make_up_for_none() {
        let start = Instant::now();
        let after = |ms| start + Duration::from_millis(ms);
        let mut turns = Turns { between: Duration::from_millis(4), next: None };
        assert_eq!([0, 0, 1].map(|ms| turns.take(after(ms))), [0, 4, 8].map(after));
        assert_eq!([100, 100].map(|ms| turns.take(after(ms))), [100, 104].map(after));
        let mut free = Turns::default();
        assert_eq!([0, 0, 5].map(|ms| free.take(after(ms))), [0, 0, 5].map(after));
    }

    #[test]
    fn only_what_changes_something_is_a_write() {
        let request = |method: &str, path: &str| {
            Request::builder().method(method).uri(path).body(Body::empty()).expect("a request")
        };
        let path = "/api/v1/namespaces/default/configmaps";
        let writes = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD"].map(|method| is_write(&request(method, path)));
        assert_eq!(writes, [false, true, true, true, true, false]);
    }
}
