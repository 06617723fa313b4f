//! Carries requests to member clusters: `clusters/{name}/proxy`, its fan-out `clusters/*/proxy`, the fleet-wide proxy
//! (`proxying/{any}/proxy`), `search/cache`, the logs of many pods at once, and the metrics of all members.
//!
//! `server/` authenticates and authorises, then calls one method of [`Proxy`]; every method answers, errors included, as
//! Kubernetes answers (a `Status`). Requests to members are made as the caller, by impersonation; those for metrics with our own
//! rights. Streams of upgraded connections are moved byte for byte and never looked into; lists are streamed, never held (but
//! those of metrics, which have an order).

mod addressed;
mod breaker;
mod cluster;
mod composite;
mod conditions;
mod error;
mod every;
mod fleetwide;
mod impersonation;
mod items;
mod joined;
pub mod logs;
mod metrics;
mod native;
mod object;
mod options;
mod protobuf;
mod relay;
pub mod response_headers;
mod session;
mod table;
mod transport;
mod update;

/// Who asks.
pub use crowsnest_apimachinery::user::UserInfo as Caller;
pub use error::{BoxError, Error};
pub use metrics::Metric;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use crowsnest_apimachinery::names::ClusterName;
use crowsnest_index::Index;
use crowsnest_members::Fleet;
use http::{Request, Response};
use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::transport::Transport;

/// A kube-apiserver gives up after this time itself.
const ANSWER_WITHIN: Duration = Duration::from_secs(60);

/// Bodies of requests and answers; always streamed.
pub type Body = UnsyncBoxBody<Bytes, BoxError>;

/// Whoever wants to know where a request goes: an `Arc<dyn Witness>` among its extensions. It is held until the tunnel of an
/// upgraded connection has ended.
pub trait Witness: Send + Sync {
    /// The request is sent to this member.
    fn asks(&self, cluster: &ClusterName);

    /// The request is answered for these, in the order of their names: from the cache, or by asking all of them.
    fn reads(&self, clusters: &[ClusterName]);
}

/// Everything needed to carry requests. Cheap to clone.
#[derive(Clone)]
pub struct Proxy {
    inner: Arc<Inner>,
}

struct Inner {
    fleet: Fleet,
    index: Index,
    transport: Transport,
    /// Tunnels of upgraded connections.
    tunnels: TaskTracker,
    stopping: CancellationToken,
    /// Logs that are read at once.
    log_streams: Arc<Semaphore>,
    /// What members serve of custom metrics.
    metrics: metrics::Remembered,
}

impl Proxy {
    pub fn new(index: Index) -> Self {
        Self::with_patience(index, ANSWER_WITHIN)
    }

    /// Members answer within this time, unless their Cluster says otherwise.
    pub fn with_patience(index: Index, answer_within: Duration) -> Self {
        let stopping = CancellationToken::new();
        let inner = Inner {
            fleet: index.fleet().clone(),
            index,
            transport: Transport::new(answer_within),
            tunnels: TaskTracker::new(),
            stopping,
            log_streams: Arc::new(Semaphore::new(logs::STREAMS_OF_ALL)),
            metrics: metrics::Remembered::default(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// `clusters/{name}/proxy/{path}`: the request goes to that member as the caller. `path` is what follows `proxy`,
    /// as it was sent; `name` may be `*`, which asks every member.
    pub async fn cluster(&self, name: &str, caller: &Caller, path: &str, request: Request<Body>) -> Response<Body> {
        let answer = match (transport::checked(request.method(), path), name) {
            (Err(error), _) => Err(error),
            (Ok(path), "*") => self.every_cluster(caller, path, request).await,
            (Ok(path), name) => self.one_cluster(name, caller, path, request).await,
        };
        answer.unwrap_or_else(|error| error.into_response())
    }

    /// `proxying/{any}/proxy/{path}`: reads of registered resources come from the cache, writes go to the cluster that
    /// holds the object, everything else to the control plane; all as the caller.
    pub async fn fleet_wide(&self, caller: &Caller, path: &str, request: Request<Body>) -> Response<Body> {
        let answer = match transport::checked(request.method(), path) {
            Ok(path) => self.carry(caller, path, request).await,
            Err(error) => Err(error),
        };
        answer.unwrap_or_else(|error| error.into_response())
    }

    /// `search/cache/{path}`: what the cache holds of all clusters and the caller may read there, in the form of a native
    /// list.
    pub async fn search_cache(&self, caller: &Caller, path: &str, request: Request<Body>) -> Response<Body> {
        let answer = match transport::checked(request.method(), path) {
            Ok(path) => self.search(caller, path, request).await,
            Err(error) => Err(error),
        };
        answer.unwrap_or_else(|error| error.into_response())
    }

    /// Ends all tunnels and watches, and waits for the tunnels.
    pub async fn stop(&self) {
        self.inner.stopping.cancel();
        self.inner.tunnels.close();
        self.inner.tunnels.wait().await;
    }
}

/// Whether a native path asks for objects: a resource, or one of its objects.
pub fn names_a_resource(path: &str) -> bool {
    native::Native::parse(path).is_some_and(|native| native.subresource.is_empty())
}

/// Whether a native path is in a resource: one that registries may name, its objects, or what is below them.
pub fn is_in_a_resource(path: &str) -> bool {
    native::Native::parse(path).is_some()
}

/// A body that is already there.
pub(crate) fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}

/// A source of a body that is written piece by piece.
pub(crate) trait Pieces: Send + Sized + 'static {
    /// The next piece; `None` at the end.
    fn next(&mut self) -> impl Future<Output = Result<Option<Bytes>, BoxError>> + Send;

    fn into_body(self) -> Body {
        let stream = futures::stream::try_unfold(self, |mut pieces| async move {
            Ok::<_, BoxError>(pieces.next().await?.map(|bytes| (Frame::data(bytes), pieces)))
        });
        StreamBody::new(stream).boxed_unsync()
    }
}

/// Servers spawn these futures.
#[cfg(test)]
mod tests {
    use super::*;

    fn sendable<T: Send>(_: impl Fn() -> T) {}

    #[test]
    fn requests_can_be_served_on_any_thread() {
        let parts: Option<(Proxy, Caller, Request<Body>)> = None;
        if let Some((proxy, caller, _)) = &parts {
            let request = || Request::new(full(""));
            sendable(|| proxy.cluster("m", caller, "/", request()));
            sendable(|| proxy.fleet_wide(caller, "/", request()));
            sendable(|| proxy.search_cache(caller, "/", request()));
            sendable(|| proxy.usage("/", request()));
            sendable(|| proxy.custom_metrics("/", request()));
            sendable(|| proxy.custom_metrics_served());
            let request = logs::LogRequest::parse(None, jiff::Timestamp::UNIX_EPOCH).unwrap();
            sendable(|| proxy.logs(caller, request.clone(), Default::default()));
        }
    }
}
