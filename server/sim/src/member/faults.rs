//! Faults of a member: outages, delays, failing requests, unhealthy health checks, closed watches, limited write rate.
//!
//! Faults affect requests through the listener only, not the member's own controllers. Node failures are in
//! [`super::node`].

use std::collections::BTreeMap;
use std::io;
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
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::{Mutex as AsyncMutex, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::network::{Network, NetworkState};
use crate::error::{Error, Result};

/// Maximum number of connections that wait to be accepted.
const LISTEN_BACKLOG: u32 = 1024;
/// Paths of the health checks.
const HEALTH_PATHS: [&str; 2] = ["/readyz", "/healthz"];

/// Faults of a member, shared by the listener's middleware and the code that injects faults.
#[derive(Default)]
pub struct Faults {
    settings: Mutex<Settings>,
    /// Cancelled to close the open watches; then replaced.
    watches: Mutex<CancellationToken>,
    write_slots: Mutex<WriteSlots>,
    write_count: AtomicU64,
    silent: watch::Sender<bool>,
    /// Cancelled when the listener closes, which ends requests that are delayed.
    closing: Mutex<CancellationToken>,
    network: Arc<Network>,
}

/// Settings for individual requests.
#[derive(Debug, Default)]
struct Settings {
    delay: Duration,
    /// Delays by path prefix, which replace the general one.
    delays: BTreeMap<String, Duration>,
    /// Overrides the status of both health checks, `/readyz` and `/healthz`.
    readyz: Option<StatusCode>,
    errors: ErrorInjection,
}

impl Settings {
    /// Delay of requests for a path: that of the longest matching prefix.
    fn path_delay(&self, path: &str) -> Duration {
        let matching = self.delays.iter().filter(|(prefix, _)| path.starts_with(prefix.as_str()));
        matching.max_by_key(|(prefix, _)| prefix.len()).map_or(self.delay, |(_, delay)| *delay)
    }
}

/// Fails a percentage of requests, evenly distributed.
#[derive(Debug, Default, Clone, Copy)]
struct ErrorInjection {
    percent: u8,
    /// Percentage points that have accumulated since the last failed request.
    accumulated: u8,
}

impl ErrorInjection {
    /// Decides whether the next request fails.
    fn should_fail_next(&mut self) -> bool {
        self.accumulated += self.percent.min(100);
        let fails = self.accumulated >= 100;
        self.accumulated -= if fails { 100 } else { 0 };
        fails
    }
}

/// Rate limit of writes.
#[derive(Debug, Default)]
struct WriteSlots {
    /// Interval between writes; zero means unlimited.
    interval: Duration,
    next: Option<Instant>,
}

impl WriteSlots {
    /// Reserves a slot and returns its time. Unused slots do not accumulate.
    fn reserve(&mut self, now: Instant) -> Instant {
        let slot = self.next.map_or(now, |next| next.max(now));
        self.next = Some(slot + self.interval);
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
    pub fn set_path_delay(&self, path: &str, delay: Duration) {
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

    /// Status that overrides that of health checks.
    pub fn readyz(&self) -> Option<StatusCode> {
        self.settings.lock().readyz
    }

    /// Fails a percentage of requests.
    pub fn set_error_percent(&self, percent: u8) {
        self.settings.lock().errors = ErrorInjection { percent, accumulated: 0 };
    }

    /// Percentage of requests that fail.
    pub fn error_percent(&self) -> u8 {
        self.settings.lock().errors.percent
    }

    /// Accepts requests without responding; open connections stay open. Pending requests are processed when this ends.
    pub fn set_silent(&self, silent: bool) {
        self.silent.send_replace(silent);
    }

    pub fn is_silent(&self) -> bool {
        *self.silent.borrow()
    }

    /// Stalls all traffic in both directions, including the closing of connections. The data is delivered when this
    /// ends.
    pub fn set_partitioned(&self, partitioned: bool) {
        self.network.set(if partitioned { NetworkState::Stalled } else { NetworkState::Up });
    }

    pub fn is_partitioned(&self) -> bool {
        self.network.get() == NetworkState::Stalled
    }

    /// Limits writes per second, in the order of arrival; 0 means unlimited.
    pub fn set_write_rate(&self, writes_per_second: u32) {
        let interval = if writes_per_second == 0 { Duration::ZERO } else { Duration::from_secs(1) / writes_per_second };
        *self.write_slots.lock() = WriteSlots { interval, next: None };
    }

    /// Number of writes through the listener.
    pub fn writes(&self) -> u64 {
        self.write_count.load(Ordering::Relaxed)
    }

    /// Counts a write and waits for its slot.
    async fn wait_for_write_slot(&self) {
        self.write_count.fetch_add(1, Ordering::Relaxed);
        let slot = self.write_slots.lock().reserve(Instant::now());
        tokio::time::sleep_until(slot).await;
    }

    /// Closes all open watches, log streams and other long-running responses. New ones can be opened.
    pub fn drop_watches(&self) {
        std::mem::take(&mut *self.watches.lock()).cancel();
    }

    /// Resets the state of the previous listener when a listener opens.
    fn reset_for_open(&self) {
        *self.closing.lock() = CancellationToken::new();
        self.network.set(NetworkState::Up);
    }

    /// Ends delayed requests and open watches when the listener closes, so that they do not delay it.
    fn release_for_close(&self) {
        self.closing.lock().cancel();
        self.drop_watches();
        if self.is_partitioned() {
            self.network.set(NetworkState::Broken);
        }
    }

    /// Delays a request according to the settings.
    async fn delay_request(&self, path: &str, is_write: bool) {
        let delay = self.settings.lock().path_delay(path);
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        if is_write {
            self.wait_for_write_slot().await;
        }
        wait_while_silent(&self.silent).await;
    }

    /// Response of an injected error, if this request fails.
    fn injected_error(&self, path: &str) -> Option<Response> {
        let mut settings = self.settings.lock();
        if let Some(status) = settings.readyz
            && HEALTH_PATHS.contains(&path)
        {
            return Some((status, "injected fault\n").into_response());
        }
        settings.errors.should_fail_next().then(|| status_failure(StatusCode::INTERNAL_SERVER_ERROR, "injected fault"))
    }

    /// Adds the faults to a router as middleware.
    pub fn wrap_router(self: &Arc<Self>, router: Router) -> Router {
        router.layer(axum::middleware::from_fn_with_state(self.clone(), inject_faults))
    }
}

/// Waits until the member is no longer silent; false if the settings have been dropped.
async fn wait_while_silent(silent: &watch::Sender<bool>) -> bool {
    silent.subscribe().wait_for(|silent| !silent).await.is_ok()
}

/// An error response with a Kubernetes Status as body.
pub(super) fn status_failure(code: StatusCode, message: &str) -> Response {
    let reason = code.canonical_reason().unwrap_or_default().replace(' ', "");
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message,
        "reason": reason, "code": code.as_u16()});
    (code, Json(status)).into_response()
}

/// True for methods that write, including access reviews and dry runs.
fn is_write(request: &Request) -> bool {
    matches!(*request.method(), Method::POST | Method::PUT | Method::PATCH | Method::DELETE)
}

fn is_watch(request: &Request) -> bool {
    let query = request.uri().query().unwrap_or_default();
    let query = Query::parse(Some(query));
    query.flag("watch") || query.flag("follow") || request.uri().path().contains("/watch/")
}

async fn inject_faults(State(faults): State<Arc<Faults>>, request: Request, next: Next) -> Response {
    let closing = faults.closing.lock().clone();
    tokio::select! {
        () = closing.cancelled() => return status_failure(StatusCode::SERVICE_UNAVAILABLE, "the member is being stopped"),
        () = faults.delay_request(request.uri().path(), is_write(&request)) => {}
    }
    if let Some(response) = faults.injected_error(request.uri().path()) {
        return response;
    }
    if !is_watch(&request) {
        return next.run(request).await;
    }
    let watches_closed = faults.watches.lock().clone();
    let (parts, body) = next.run(request).await.into_parts();
    let body_faults = faults.clone();
    let body = body.into_data_stream().filter_map(move |piece| {
        let faults = body_faults.clone();
        async move { (!faults.is_silent() || wait_while_silent(&faults.silent).await).then_some(piece) }
    });
    Response::from_parts(parts, Body::from_stream(body.take_until(watches_closed.cancelled_owned())))
}

/// The listening socket of a member, which can be closed and opened again on the same address.
pub struct Listener {
    server: ApiServer,
    router: Router,
    /// Names in the serving certificate.
    certificate_names: Vec<String>,
    faults: Arc<Faults>,
    address: Mutex<SocketAddr>,
    running: AsyncMutex<Option<(CancellationToken, JoinHandle<()>)>>,
    /// Socket that reserves the address while the member is paused, so that the port is not assigned to another socket.
    /// It does not listen, so connections are refused.
    address_reservation: Mutex<Option<TcpSocket>>,
}

impl Listener {
    /// Opens the socket; port 0 selects a free port, which is kept.
    pub async fn open(
        server: ApiServer,
        router: Router,
        certificate_names: Vec<String>,
        faults: Arc<Faults>,
        address: SocketAddr,
    ) -> Result<Self> {
        let listener = Self {
            server,
            router,
            certificate_names,
            faults,
            address: Mutex::new(address),
            running: AsyncMutex::new(None),
            address_reservation: Mutex::default(),
        };
        listener.resume().await?;
        Ok(listener)
    }

    pub fn address(&self) -> SocketAddr {
        *self.address.lock()
    }

    pub async fn is_open(&self) -> bool {
        self.running.lock().await.is_some()
    }

    /// Opens the socket again after [`Listener::pause`].
    pub async fn resume(&self) -> Result<()> {
        let mut running = self.running.lock().await;
        if running.is_some() {
            return Ok(());
        }
        self.faults.reset_for_open();
        let address = self.address();
        let io_error = |source| Error::Io { operation: format!("cannot listen on {address}"), source };
        let address_reservation = self.address_reservation.lock().take();
        let listener = match address_reservation {
            Some(socket) => socket.listen(LISTEN_BACKLOG),
            None => TcpListener::bind(address).await,
        };
        let listener = listener.map_err(io_error)?;
        *self.address.lock() = listener.local_addr().map_err(io_error)?;
        let to_error = |error: crowsnest_apiserver::Error| Error::Cluster {
            cluster: self.server.name().to_owned(),
            reason: error.to_string(),
        };
        let authority = self.server.authority();
        let tls = authority
            .issue_serving_certificate(&self.certificate_names)
            .and_then(|certificate| self.server.tls(ServingCertificates::new(&certificate)?))
            .map_err(to_error)?;
        let stop = CancellationToken::new();
        let network = self.faults.network.clone();
        let wrap = move |stream| network.wrap(stream);
        let serve = serve_with_wrapper(listener, Some(tls), self.router.clone(), stop.clone(), wrap);
        let task = tokio::spawn(async move {
            if let Err(error) = serve.await {
                tracing::error!(%error, "the listener of a member failed");
            }
        });
        *running = Some((stop, task));
        Ok(())
    }

    /// Closes the socket and all connections: the member is unreachable. The address stays reserved until
    /// [`Listener::resume`] or [`Listener::release_address`].
    pub async fn pause(&self) {
        let Some((stop, task)) = self.running.lock().await.take() else { return };
        stop.cancel();
        self.faults.release_for_close();
        if let Err(error) = task.await {
            tracing::error!(%error, "the listener task of a member panicked");
        }
        match bind_without_listening(self.address()) {
            Ok(socket) => *self.address_reservation.lock() = Some(socket),
            Err(error) => tracing::warn!(%error, "cannot reserve the address of a paused member"),
        }
    }

    /// Makes the address of a paused member available to other programs.
    pub fn release_address(&self) {
        self.address_reservation.lock().take();
    }
}

fn bind_without_listening(address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // Closed connections of the previous socket may linger.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn write_slots_do_not_accumulate() {
        let start = Instant::now();
        let after = |ms| start + Duration::from_millis(ms);
        let mut write_slots = WriteSlots { interval: Duration::from_millis(4), next: None };
        assert_eq!([0, 0, 1].map(|ms| write_slots.reserve(after(ms))), [0, 4, 8].map(after));
        assert_eq!([100, 100].map(|ms| write_slots.reserve(after(ms))), [100, 104].map(after));
        let mut unlimited = WriteSlots::default();
        assert_eq!([0, 0, 5].map(|ms| unlimited.reserve(after(ms))), [0, 0, 5].map(after));
    }

    #[test]
    fn errors_are_evenly_distributed_and_the_longest_path_prefix_sets_the_delay() {
        let failures = |percent| {
            let mut errors = ErrorInjection { percent, accumulated: 0 };
            (0..10).map(|_| u8::from(errors.should_fail_next())).collect::<Vec<u8>>()
        };
        assert_eq!(failures(0), [0; 10]);
        assert_eq!(failures(30), [0, 0, 0, 1, 0, 0, 1, 0, 0, 1]);
        assert_eq!(failures(100), [1; 10]);

        let faults = Faults::default();
        let ms = Duration::from_millis;
        faults.set_delay(ms(1));
        faults.set_path_delay("/api", ms(2));
        faults.set_path_delay("/apis/apps", ms(3));
        let delays =
            || ["/readyz", "/api/v1/pods", "/apis/apps/v1"].map(|path| faults.settings.lock().path_delay(path));
        assert_eq!(delays(), [1, 2, 3].map(ms));
        faults.set_path_delay("/apis/apps", Duration::ZERO);
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
