//! Registry of open tunnels by cluster, and connections through them.

use super::{
    CONNECTION_WINDOW_BYTES, MAX_REASON_BYTES, MAX_STREAMS, MAX_TUNNELS, REPLICAS_PATH, STREAM_WINDOW_BYTES, Tasks,
    TunnelTimeouts,
};
use crate::dial::{MemberIo, error_chain};
use bytes::Bytes;
use crowsnest_apimachinery::names::ClusterName;
use crowsnest_component_base::body;
use http::uri::{Authority, Parts};
use http::{Method, Request, Response, Uri};
use http_body_util::Empty;
use hyper::body::Incoming;
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// The registry of open tunnels. Cheap to clone; [`Tunnels::stop`] ends them all.
#[derive(Debug, Clone, Default)]
pub struct Tunnels {
    inner: Arc<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// The tunnels of each cluster, oldest first. A list is never empty.
    open: Mutex<BTreeMap<ClusterName, Vec<Arc<Tunnel>>>>,
    /// For clusters without a tunnel, the start of the time in which requests wait for one: the end of the last tunnel,
    /// or the first request. The wait ends after [`TunnelTimeouts::open_timeout`].
    waiting_since: Mutex<BTreeMap<ClusterName, Instant>>,
    next_number: AtomicU64,
    /// Incremented when a tunnel opens or ends.
    changed: watch::Sender<u64>,
    timeouts: TunnelTimeouts,
    stop: CancellationToken,
    tracker: TaskTracker,
}

#[derive(Debug)]
struct Tunnel {
    number: u64,
    sender: SendRequest<Empty<Bytes>>,
    streams: Arc<Semaphore>,
    stop: CancellationToken,
}

/// Reason why a tunnel did not open a connection.
enum Failure {
    /// The agent refused; other tunnels of the agent would as well.
    Refused(String),
    /// The tunnel is full or closing.
    Unusable(String),
}

impl Tunnels {
    #[cfg(test)]
    pub(super) fn with_timeouts(timeouts: TunnelTimeouts) -> Self {
        Self { inner: Arc::new(Inner { timeouts, ..Inner::default() }) }
    }

    /// Adds a tunnel and keeps it until it ends. `upgraded` resolves to the agent's connection after the upgrade
    /// response is sent. Newer tunnels of a cluster are preferred.
    pub fn add<IO, E>(&self, cluster: ClusterName, upgraded: impl Future<Output = Result<IO, E>> + Send + 'static)
    where
        IO: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
        E: std::error::Error + Send + 'static,
    {
        let tunnels = self.clone();
        let stop = self.inner.stop.child_token();
        self.inner.tracker.spawn(async move {
            let running = async {
                let io = upgraded.await.map_err(|error| error_chain(&error))?;
                tunnels.run(&cluster, io, stop.clone()).await.map_err(|error| error_chain(&error))
            };
            match stop.run_until_cancelled(running).await {
                Some(Err(error)) => tracing::info!(%cluster, error, "a tunnel failed"),
                Some(Ok(())) | None => tracing::info!(%cluster, "a tunnel ended"),
            }
        });
    }

    /// Keeps a tunnel in the registry while its connection is open.
    async fn run<IO>(&self, cluster: &ClusterName, io: IO, stop: CancellationToken) -> hyper::Result<()>
    where
        IO: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
    {
        let _stop_guard = stop.clone().drop_guard();
        let tasks = Tasks { tracker: self.inner.tracker.clone(), stop: stop.clone() };
        let (sender, connection) = Builder::new(tasks)
            .timer(TokioTimer::new())
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .keep_alive_interval(self.inner.timeouts.ping_interval)
            .keep_alive_timeout(self.inner.timeouts.ping_timeout)
            .keep_alive_while_idle(true)
            .handshake(io)
            .await?;
        let number = self.inner.next_number.fetch_add(1, Ordering::Relaxed);
        let streams = Arc::new(Semaphore::new(MAX_STREAMS as usize));
        self.insert(cluster, Tunnel { number, sender, streams, stop });
        // Removes the tunnel on every exit, including cancellation.
        let _entry = RegistryEntry { tunnels: self, cluster, number };
        tracing::info!(%cluster, "a tunnel was opened");
        connection.await
    }

    fn insert(&self, cluster: &ClusterName, tunnel: Tunnel) {
        let mut open = self.inner.open.lock();
        let cluster_tunnels = open.entry(cluster.clone()).or_default();
        if cluster_tunnels.len() >= MAX_TUNNELS {
            cluster_tunnels.remove(0).stop.cancel();
        }
        cluster_tunnels.push(Arc::new(tunnel));
        drop(open);
        self.inner.waiting_since.lock().remove(cluster);
        self.inner.changed.send_modify(|count| *count += 1);
    }

    /// True if a tunnel of the cluster is open.
    pub fn is_open(&self, cluster: &ClusterName) -> bool {
        self.inner.open.lock().contains_key(cluster)
    }

    /// For each cluster with tunnels: the number of tunnels and of their connections.
    pub fn counts(&self) -> Vec<(ClusterName, usize, usize)> {
        let open = self.inner.open.lock();
        let connection_count =
            |tunnel: &Arc<Tunnel>| (MAX_STREAMS as usize).saturating_sub(tunnel.streams.available_permits());
        open.iter()
            .map(|(name, tunnels)| (name.clone(), tunnels.len(), tunnels.iter().map(connection_count).sum()))
            .collect()
    }

    /// Notified when a tunnel opens or ends.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.inner.changed.subscribe()
    }

    /// Waits for a tunnel of a cluster if one is expected soon ([`TunnelTimeouts`]). Returns true if one is open.
    pub async fn wait_until_open(&self, cluster: &ClusterName) -> bool {
        let mut changes = self.changes();
        let since = *self.inner.waiting_since.lock().entry(cluster.clone()).or_insert_with(Instant::now);
        let open = async { while !self.is_open(cluster) && changes.changed().await.is_ok() {} };
        // After a timeout, the current state decides.
        let _ = tokio::time::timeout_at(since + self.inner.timeouts.open_timeout, open).await;
        self.is_open(cluster)
    }

    /// Announces the number of control plane replicas to each agent, so that it connects to new ones.
    pub fn announce_replicas(&self, replicas: usize) {
        let newest: Vec<_> = self.inner.open.lock().values().filter_map(|tunnels| tunnels.last().cloned()).collect();
        for tunnel in newest {
            let stop = tunnel.stop.clone();
            self.inner.tracker.spawn(async move {
                if let Some(Err(error)) = stop.run_until_cancelled(tunnel.announce_replicas(replicas)).await {
                    tracing::debug!(%error, "cannot announce the number of replicas to an agent");
                }
            });
        }
    }

    /// Closes the tunnels of a deleted cluster.
    pub fn close(&self, cluster: &ClusterName) {
        self.inner.waiting_since.lock().remove(cluster);
        let closed = self.inner.open.lock().remove(cluster).unwrap_or_default();
        closed.iter().for_each(|tunnel| tunnel.stop.cancel());
    }

    /// Opens a connection to `target` within the cluster. None if no tunnel is open; an error if a tunnel is open
    /// but cannot connect.
    pub(crate) async fn connect(&self, cluster: &ClusterName, target: &Authority) -> Result<Option<MemberIo>, String> {
        let tunnels: Vec<Arc<Tunnel>> = self.inner.open.lock().get(cluster).cloned().unwrap_or_default();
        let mut unusable = None;
        for tunnel in tunnels.iter().rev() {
            match tunnel.connect(target).await {
                Ok(io) => return Ok(Some(io)),
                Err(Failure::Refused(reason)) => return Err(format!("its agent refused: {reason}")),
                Err(Failure::Unusable(reason)) => unusable.get_or_insert(reason),
            };
        }
        match unusable {
            None => Ok(None),
            // The last tunnel ended during the request.
            Some(_) if !self.is_open(cluster) => Ok(None),
            Some(reason) => Err(format!("the tunnel to its agent {reason}")),
        }
    }

    /// Ends all tunnels and waits for their tasks.
    pub async fn stop(&self) {
        self.inner.stop.cancel();
        self.inner.tracker.close();
        self.inner.tracker.wait().await;
    }
}

/// An entry in the registry, removed on drop.
struct RegistryEntry<'t> {
    tunnels: &'t Tunnels,
    cluster: &'t ClusterName,
    number: u64,
}

impl Drop for RegistryEntry<'_> {
    fn drop(&mut self) {
        let inner = &self.tunnels.inner;
        let mut open = inner.open.lock();
        if let Some(cluster_tunnels) = open.get_mut(self.cluster) {
            cluster_tunnels.retain(|tunnel| tunnel.number != self.number);
            if cluster_tunnels.is_empty() {
                open.remove(self.cluster);
                inner.waiting_since.lock().insert(self.cluster.clone(), Instant::now());
            }
        }
        drop(open);
        inner.changed.send_modify(|count| *count += 1);
    }
}

impl Tunnel {
    /// Older agents ignore the announcement.
    async fn announce_replicas(&self, replicas: usize) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        let request = Request::post(format!("http://agent{REPLICAS_PATH}{replicas}")).body(Empty::new())?;
        self.sender.clone().send_request(request).await?;
        Ok(())
    }

    async fn connect(&self, target: &Authority) -> Result<MemberIo, Failure> {
        let unusable = |error: hyper::Error| Failure::Unusable(format!("broke: {}", error_chain(&error)));
        let permit = Arc::clone(&self.streams).try_acquire_owned();
        let permit = permit.map_err(|_| Failure::Unusable(format!("already has {MAX_STREAMS} connections")))?;
        let response = self.sender.clone().send_request(connect_request(target)?).await.map_err(unusable)?;
        if !response.status().is_success() {
            return Err(Failure::Refused(read_reason(response).await));
        }
        let upgraded = hyper::upgrade::on(response).await.map_err(unusable)?;
        Ok(MemberIo::with_permit(TokioIo::new(upgraded), permit))
    }
}

/// A CONNECT request for a target.
fn connect_request(target: &Authority) -> Result<Request<Empty<Bytes>>, Failure> {
    let malformed = |error: http::Error| Failure::Refused(error.to_string());
    let mut parts = Parts::default();
    parts.authority = Some(target.clone());
    let uri = Uri::from_parts(parts).map_err(|error| malformed(error.into()))?;
    Request::builder().method(Method::CONNECT).uri(uri).body(Empty::new()).map_err(malformed)
}

/// The status and text of a refusal.
async fn read_reason(response: Response<Incoming>) -> String {
    let status = response.status();
    let text = match body::collect(response.into_body(), MAX_REASON_BYTES).await {
        Ok(text) => String::from_utf8_lossy(&text).trim().to_owned(),
        Err(error) => format!("cannot read the reason: {error}"),
    };
    format!("{status}: {text}")
}
