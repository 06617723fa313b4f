//! Proxies requests to member clusters: `clusters/{name}/proxy`, `clusters/*/proxy` for all members, the fleet-wide
//! proxy (`proxying/{any}/proxy`), `search/cache`, the logs of many pods, and the metrics of all members.
//!
//! `server/` authenticates and authorizes a request and then calls a method of [`Proxy`]. Every method returns an
//! HTTP response; errors are a Kubernetes `Status`. Requests to members impersonate the caller; those for metrics
//! use this process' own permissions. Streams of upgraded connections are copied without inspection. Lists are
//! streamed and never buffered, except lists of metrics, which are sorted.

mod admission;
mod all_clusters;
mod breaker;
mod cluster;
mod composite;
mod error;
mod fleetwide;
mod impersonation;
pub mod logs;
mod merged;
mod metrics;
mod native;
mod object;
mod options;
mod preconditions;
mod protobuf;
mod relay;
pub mod response_headers;
mod session;
mod table;
mod target_cluster;
mod transport;
mod update;

pub use admission::MemberAdmission;
/// The authenticated user of a request.
pub use crowsnest_apimachinery::user::UserInfo as Caller;
pub use error::{BoxError, Error};
pub use metrics::Metric;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use crowsnest_apimachinery::names::ClusterName;
use crowsnest_index::GlobalCache;
use crowsnest_members::Fleet;
use http::{Request, Response};
use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::transport::Transport;

/// Default response timeout of members, the request timeout of kube-apiserver.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(60);

/// Body of a request or response; always streamed.
pub type Body = UnsyncBoxBody<Bytes, BoxError>;

/// Observer of the clusters that a request reaches, added to the request's extensions as `Arc<dyn ClusterObserver>`. It is
/// kept until the tunnel of an upgraded connection has ended.
pub trait ClusterObserver: Send + Sync {
    /// Records that the request is sent to this cluster.
    fn record_request(&self, cluster: &ClusterName);

    /// Records the clusters whose data the response contains, in name order. The data may come from the cache.
    fn record_clusters(&self, clusters: &[ClusterName]);
}

/// Handle to the proxy. Cheap to clone.
#[derive(Clone)]
pub struct Proxy {
    inner: Arc<Inner>,
}

struct Inner {
    fleet: Fleet,
    cache: GlobalCache,
    transport: Transport,
    /// Tunnels of upgraded connections.
    tunnels: TaskTracker,
    stopping: CancellationToken,
    /// Limit of open log streams.
    log_streams: Arc<Semaphore>,
    /// Cached discovery of the members' custom metrics.
    metrics: metrics::DiscoveryCache,
}

impl Proxy {
    pub fn new(cache: GlobalCache) -> Self {
        Self::with_response_timeout(cache, RESPONSE_TIMEOUT)
    }

    /// Members have to respond within `response_timeout`, unless their Cluster sets another timeout.
    pub fn with_response_timeout(cache: GlobalCache, response_timeout: Duration) -> Self {
        let stopping = CancellationToken::new();
        let inner = Inner {
            fleet: cache.fleet().clone(),
            cache,
            transport: Transport::new(response_timeout),
            tunnels: TaskTracker::new(),
            stopping,
            log_streams: Arc::new(Semaphore::new(logs::MAX_STREAMS_OF_ALL_REQUESTS)),
            metrics: metrics::DiscoveryCache::default(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// `clusters/{name}/proxy/{path}`: sends the request to the member as the caller. `path` is the part after
    /// `proxy`, unchanged; the name `*` sends it to every member.
    pub async fn cluster(&self, name: &str, caller: &Caller, path: &str, request: Request<Body>) -> Response<Body> {
        let result = match (transport::check_path(request.method(), path), name) {
            (Err(error), _) => Err(error),
            (Ok(path), "*") => self.serve_all_clusters(caller, path, request).await,
            (Ok(path), name) => self.forward_to_cluster(name, caller, path, request).await,
        };
        result.unwrap_or_else(|error| error.into_response())
    }

    /// `proxying/{any}/proxy/{path}`: reads of registered resources use the cache, writes are sent to the cluster that
    /// contains the object, everything else to the control plane; all as the caller.
    pub async fn fleet_wide(&self, caller: &Caller, path: &str, request: Request<Body>) -> Response<Body> {
        let result = match transport::check_path(request.method(), path) {
            Ok(path) => self.serve_fleet_wide(caller, path, request).await,
            Err(error) => Err(error),
        };
        result.unwrap_or_else(|error| error.into_response())
    }

    /// `search/cache/{path}`: the cached objects of all clusters that the caller may read, as a native list.
    pub async fn search_cache(&self, caller: &Caller, path: &str, request: Request<Body>) -> Response<Body> {
        let result = match transport::check_path(request.method(), path) {
            Ok(path) => self.search(caller, path, request).await,
            Err(error) => Err(error),
        };
        result.unwrap_or_else(|error| error.into_response())
    }

    /// Ends all tunnels and watches, and waits for the tunnels.
    pub async fn stop(&self) {
        self.inner.stopping.cancel();
        self.inner.tunnels.close();
        self.inner.tunnels.wait().await;
    }
}

/// True if a native path is a resource or one of its objects.
pub fn is_resource_path(path: &str) -> bool {
    native::NativePath::parse(path).is_some_and(|native| native.subresource.is_empty())
}

/// True if a native path is a resource, one of its objects, or a subresource.
pub fn is_resource_or_subresource_path(path: &str) -> bool {
    native::NativePath::parse(path).is_some()
}

/// A body of bytes in memory.
pub(crate) fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}

/// Source of a response body that is produced in chunks.
pub(crate) trait BodySource: Send + Sized + 'static {
    /// The next chunk; `None` at the end.
    fn next(&mut self) -> impl Future<Output = Result<Option<Bytes>, BoxError>> + Send;

    fn into_body(self) -> Body {
        let stream = futures::stream::try_unfold(self, |mut source| async move {
            Ok::<_, BoxError>(source.next().await?.map(|bytes| (Frame::data(bytes), source)))
        });
        StreamBody::new(stream).boxed_unsync()
    }
}

/// Servers spawn these futures, so they have to be `Send`.
#[cfg(test)]
mod tests {
    use super::*;

    fn assert_send<T: Send>(_: impl Fn() -> T) {}

    #[test]
    fn request_futures_are_send() {
        let parts: Option<(Proxy, Caller, Request<Body>)> = None;
        if let Some((proxy, caller, _)) = &parts {
            let request = || Request::new(full(""));
            assert_send(|| proxy.cluster("m", caller, "/", request()));
            assert_send(|| proxy.fleet_wide(caller, "/", request()));
            assert_send(|| proxy.search_cache(caller, "/", request()));
            assert_send(|| proxy.serve_usage("/", request()));
            assert_send(|| proxy.custom_metrics("/", request()));
            assert_send(|| proxy.list_custom_metrics());
            let request = logs::LogRequest::parse(None, jiff::Timestamp::UNIX_EPOCH).unwrap();
            assert_send(|| proxy.logs(caller, request.clone(), Default::default()));
        }
    }
}
