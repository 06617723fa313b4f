//! Faults of a member: unreachable, silent, slow, failing or unhealthy API, closed watches, limited write rate.
//!
//! Faults affect requests through the listener; the member's own controllers are not affected. Node failures are in
//! [`super::node`].

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::{Json, Router};
use crowsnest_apimachinery::request::Query;
use crowsnest_apiserver::authn::ServingCertificates;
use crowsnest_apiserver::serve::serve_with_wrapper;
use crowsnest_kube_apiserver::ApiServer;
use futures::StreamExt;
use parking_lot::Mutex;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::{Mutex as AsyncMutex, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::wire::{Wire, Wiring};
use crate::error::{Error, Result};

/// Health endpoints.
const HEALTH: [&str; 2] = ["/readyz", "/healthz"];

/// Fault settings of a member, shared by the listener's middleware and the clients that inject faults.
#[derive(Default)]
pub struct Faults {
    settings: Mutex<Settings>,
    watches: Mutex<CancellationToken>,
    write_slots: Mutex<WriteSlots>,
    writes: AtomicU64,
    silent: watch::Sender<bool>,
    /// Cancelled when the listener closes, which ends waiting requests.
    closing: Mutex<CancellationToken>,
    wiring: Arc<Wiring>,
}

/// Settings for individual requests.
#[derive(Debug, Default)]
struct Settings {
    delay: Duration,
    /// Delays by path prefix, which replace the general one.
    delays: BTreeMap<String, Duration>,
    readyz: Option<StatusCode>,
    errors: Errors,
}

impl Settings {
    /// The delay of a path; the longest matching prefix counts.
    fn delay_of(&self, path: &str) -> Duration {
        let fitting = self.delays.iter().filter(|(beginning, _)| path.starts_with(beginning.as_str()));
        fitting.max_by_key(|(beginning, _)| beginning.len()).map_or(self.delay, |(_, delay)| *delay)
    }
}

/// Fails a percentage of requests, evenly distributed.
#[derive(Debug, Default, Clone, Copy)]
struct Errors {
    percent: u8,
    owed: u8,
}

impl Errors {
    /// True if the next request fails.
    fn next(&mut self) -> bool {
        self.owed += self.percent.min(100);
        let fails = self.owed >= 100;
        self.owed -= if fails { 100 } else { 0 };
        fails
    }
}

/// Rate limit of writes.
#[derive(Debug, Default)]
struct WriteSlots {
    /// Interval between writes; zero means unlimited.
    between: Duration,
    next: Option<Instant>,
}

impl WriteSlots {
    /// Time at which the next write can start. Unused slots do not accumulate.
    fn take(&mut self, now: Instant) -> Instant {
        let slot = self.next.map_or(now, |next| next.max(now));
        self.next = Some(slot + self.between);
        slot
    }
}

impl Faults {
    /// Delays all requests; zero removes the delay.
    pub fn set_delay(&self, delay: Duration) {
        self.settings.lock().delay = delay;
    }

    pub fn delay(&self) -> Duration {
        self.settings.lock().delay
    }

    /// Delays requests whose path has this prefix, instead of the general delay; zero removes the setting.
    pub fn set_delay_of(&self, path: &str, delay: Duration) {
        let delays = &mut self.settings.lock().delays;
        match delay {
            Duration::ZERO => delays.remove(path),
            delay => delays.insert(path.to_owned(), delay),
        };
    }

    /// Overrides the status of health checks; `None` removes the override.
    pub fn set_readyz(&self, status: Option<StatusCode>) {
        self.settings.lock().readyz = status;
    }

    pub fn readyz(&self) -> Option<StatusCode> {
        self.settings.lock().readyz
    }

    /// Fails a percentage of requests.
    pub fn set_errors(&self, percent: u8) {
        self.settings.lock().errors = Errors { percent, owed: 0 };
    }

    pub fn errors(&self) -> u8 {
        self.settings.lock().errors.percent
    }

    /// Accepts requests without responding; open connections stay open. Pending requests are answered when it ends.
    pub fn set_silent(&self, silent: bool) {
        self.silent.send_replace(silent);
    }

    pub fn is_silent(&self) -> bool {
        *self.silent.borrow()
    }

    /// Holds all traffic in both directions, including the end of connections. Held data is delivered when it ends.
    pub fn set_partitioned(&self, partitioned: bool) {
        self.wiring.set(if partitioned { Wire::Holds } else { Wire::Carries });
    }

    pub fn is_partitioned(&self) -> bool {
        self.wiring.get() == Wire::Holds
    }

    /// Limits writes per second, in the order of arrival; 0 means unlimited.
    pub fn set_write_rate(&self, a_second: u32) {
        let between = if a_second == 0 { Duration::ZERO } else { Duration::from_secs(1) / a_second };
        *self.write_slots.lock() = WriteSlots { between, next: None };
    }

    /// Number of writes through the listener.
    pub fn writes(&self) -> u64 {
        self.writes.load(Ordering::Relaxed)
    }

    /// Counts a write and waits for its slot.
    async fn wait_for_write_slot(&self) {
        self.writes.fetch_add(1, Ordering::Relaxed);
        let slot = self.write_slots.lock().take(Instant::now());
        tokio::time::sleep_until(slot).await;
    }

    /// Closes all open watches, log streams and other long-running responses. New ones can be opened.
    pub fn drop_watches(&self) {
        std::mem::take(&mut *self.watches.lock()).cancel();
    }

    /// Resets the state of the previous listener when the listener opens.
    fn open(&self) {
        *self.closing.lock() = CancellationToken::new();
        self.wiring.set(Wire::Carries);
    }

    /// Ends all waiting when the listener closes, so that nothing delays it.
    fn close(&self) {
        self.closing.lock().cancel();
        self.drop_watches();
        if self.is_partitioned() {
            self.wiring.set(Wire::Breaks);
        }
    }

    /// Delays a request according to the settings.
    async fn hold_up(&self, path: &str, is_write: bool) {
        let delay = self.settings.lock().delay_of(path);
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        if is_write {
            self.wait_for_write_slot().await;
        }
        spoken(&self.silent).await;
    }

    /// The response that replaces that of a request.
    fn refuse(&self, path: &str) -> Option<Response> {
        let mut settings = self.settings.lock();
        if let Some(status) = settings.readyz
            && HEALTH.contains(&path)
        {
            return Some((status, "injected fault\n").into_response());
        }
        settings.errors.next().then(|| failure(StatusCode::INTERNAL_SERVER_ERROR, "injected fault"))
    }

    /// Adds the faults to a router as middleware.
    pub fn around(self: &Arc<Self>, router: Router) -> Router {
        router.layer(axum::middleware::from_fn_with_state(self.clone(), pass))
    }
}

/// Waits until the member is no longer silent; false if the settings have been dropped.
async fn spoken(silent: &watch::Sender<bool>) -> bool {
    silent.subscribe().wait_for(|silent| !silent).await.is_ok()
}

/// An error Status in Kubernetes' format.
pub(super) fn failure(code: StatusCode, message: &str) -> Response {
    let reason = code.canonical_reason().unwrap_or_default().replace(' ', "");
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message,
        "reason": reason, "code": code.as_u16()});
    (code, Json(status)).into_response()
}

/// True for methods that modify; reviews and dry runs count as well.
fn is_write(request: &Request) -> bool {
    matches!(*request.method(), Method::POST | Method::PUT | Method::PATCH | Method::DELETE)
}

fn is_watch(request: &Request) -> bool {
    let query = request.uri().query().unwrap_or_default();
    let query = Query::parse(Some(query));
    query.flag("watch") || query.flag("follow") || request.uri().path().contains("/watch/")
}

async fn pass(State(faults): State<Arc<Faults>>, request: Request, next: Next) -> Response {
    let closing = faults.closing.lock().clone();
    tokio::select! {
        () = closing.cancelled() => return failure(StatusCode::SERVICE_UNAVAILABLE, "the member is being stopped"),
        () = faults.hold_up(request.uri().path(), is_write(&request)) => {}
    }
    if let Some(refused) = faults.refuse(request.uri().path()) {
        return refused;
    }
    if !is_watch(&request) {
        return next.run(request).await;
    }
    let cut = faults.watches.lock().clone();
    let (parts, body) = next.run(request).await.into_parts();
    let silence = faults.clone();
    let body = body.into_data_stream().filter_map(move |piece| {
        let silence = silence.clone();
        async move { (!silence.is_silent() || spoken(&silence.silent).await).then_some(piece) }
    });
    Response::from_parts(parts, Body::from_stream(body.take_until(cut.cancelled_owned())))
}

/// The listening socket of a member, which can be closed and opened again on the same address.
pub struct Listening {
    server: ApiServer,
    router: Router,
    names: Vec<String>,
    faults: Arc<Faults>,
    address: Mutex<SocketAddr>,
    running: AsyncMutex<Option<(CancellationToken, JoinHandle<()>)>>,
}

impl Listening {
    /// Opens the socket; port 0 selects a free port, which is kept.
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
        self.faults.open();
        let address = self.address();
        let io = |source| Error::Io { what: format!("listen on {address}"), source };
        let listener = TcpListener::bind(address).await.map_err(io)?;
        *self.address.lock() = listener.local_addr().map_err(io)?;
        let start = |error: crowsnest_apiserver::Error| Error::Start {
            cluster: self.server.name().to_owned(),
            reason: error.to_string(),
        };
        let authority = self.server.authority();
        let tls = authority
            .issue_serving_certificate(&self.names)
            .and_then(|own| self.server.tls(ServingCertificates::new(&own)?))
            .map_err(start)?;
        let stop = CancellationToken::new();
        let wiring = self.faults.wiring.clone();
        let between = move |stream| wiring.around(stream);
        let serve = serve_with_wrapper(listener, Some(tls), self.router.clone(), stop.clone(), between);
        let task = tokio::spawn(async move {
            if let Err(error) = serve.await {
                tracing::error!(%error, "the listener of a member failed");
            }
        });
        *running = Some((stop, task));
        Ok(())
    }

    /// Closes the socket and all connections: the member is unreachable.
    pub async fn pause(&self) {
        let Some((stop, task)) = self.running.lock().await.take() else { return };
        stop.cancel();
        self.faults.close();
        if let Err(error) = task.await {
            tracing::error!(%error, "the listener task of a member panicked");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn write_slots_do_not_accumulate() {
        let start = Instant::now();
        let after = |ms| start + Duration::from_millis(ms);
        let mut write_slots = WriteSlots { between: Duration::from_millis(4), next: None };
        assert_eq!([0, 0, 1].map(|ms| write_slots.take(after(ms))), [0, 4, 8].map(after));
        assert_eq!([100, 100].map(|ms| write_slots.take(after(ms))), [100, 104].map(after));
        let mut free = WriteSlots::default();
        assert_eq!([0, 0, 5].map(|ms| free.take(after(ms))), [0, 0, 5].map(after));
    }

    #[test]
    fn errors_are_even_and_the_longest_prefix_counts() {
        let failed = |percent| {
            let mut errors = Errors { percent, owed: 0 };
            (0..10).map(|_| u8::from(errors.next())).collect::<Vec<u8>>()
        };
        assert_eq!(failed(0), [0; 10]);
        assert_eq!(failed(30), [0, 0, 0, 1, 0, 0, 1, 0, 0, 1]);
        assert_eq!(failed(100), [1; 10]);

        let faults = Faults::default();
        let ms = Duration::from_millis;
        faults.set_delay(ms(1));
        faults.set_delay_of("/api", ms(2));
        faults.set_delay_of("/apis/apps", ms(3));
        let delays = || ["/readyz", "/api/v1/pods", "/apis/apps/v1"].map(|path| faults.settings.lock().delay_of(path));
        assert_eq!(delays(), [1, 2, 3].map(ms));
        faults.set_delay_of("/apis/apps", Duration::ZERO);
        assert_eq!(delays(), [1, 2, 2].map(ms));
    }

    #[test]
    fn only_modifying_methods_are_writes() {
        let request = |method: &str, path: &str| {
            Request::builder().method(method).uri(path).body(Body::empty()).expect("a request")
        };
        let path = "/api/v1/namespaces/default/configmaps";
        let writes = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD"].map(|method| is_write(&request(method, path)));
        assert_eq!(writes, [false, true, true, true, true, false]);
    }
}
