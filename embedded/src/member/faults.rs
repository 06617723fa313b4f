//! What can be made to go wrong with a member: unreachable, slow, watches cut off.
//!
//! Faults concern what outsiders see through the listener; the member's own controllers go on. Failing nodes is in [`super::node`].

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use crowsnest_apiserver::ApiServer;
use crowsnest_apiserver::authn::Serving;
use futures::StreamExt;
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::sync::Mutex as AsyncMutex;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::error::{Error, Result};

/// Delay of requests and life of watches. Shared by the listener's middleware and whoever injects faults.
#[derive(Default)]
pub struct Faults {
    delay_ms: AtomicU64,
    watches: Mutex<CancellationToken>,
}

impl Faults {
    /// Holds every request up by this much; zero for none.
    pub fn set_delay(&self, delay: Duration) {
        self.delay_ms.store(u64::try_from(delay.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    pub fn delay(&self) -> Duration {
        Duration::from_millis(self.delay_ms.load(Ordering::Relaxed))
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
