//! Connections to members: a pooled HTTP/1.1 client and a circuit breaker for each, recreated when the cluster's
//! connection changes.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crowsnest_api::constants::annotation::RESPONSE_TIMEOUT;
use crowsnest_apimachinery::names::ClusterName;
use crowsnest_apimachinery::request::{Query, RequestPath, remove_hop_by_hop, requested_upgrade};
use crowsnest_component_base::spans;
use crowsnest_members::{Connection, Dialer, Member, impersonated_headers};
use http::{Method, Request, Response, Uri};
use http_body_util::BodyExt;
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use parking_lot::Mutex;
use tracing::field::Empty;
use tracing::{Instrument, Span};

use crate::breaker::{Breaker, Rejection};
use crate::native::NativePath;
use crate::{Body, Caller, Error, impersonation};

/// Maximum number of idle connections per member, and their timeout.
const MAX_IDLE_CONNECTIONS: usize = 32;
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);

type MemberClient = Client<Dialer, Body>;

/// Clients and breakers of all members.
pub struct Transport {
    clients: Mutex<HashMap<ClusterName, MemberTransport>>,
    response_timeout: Duration,
}

/// Client and breaker of a member.
#[derive(Clone)]
struct MemberTransport {
    connection: Arc<Connection>,
    client: MemberClient,
    breaker: Arc<Mutex<Breaker>>,
}

impl Transport {
    /// `response_timeout` is the default response timeout; the Cluster's annotation [`RESPONSE_TIMEOUT`] overrides it.
    pub fn new(response_timeout: Duration) -> Self {
        Self { clients: Mutex::default(), response_timeout }
    }

    /// Default response timeout of members.
    pub fn response_timeout(&self) -> Duration {
        self.response_timeout
    }

    /// Closes the connections of clusters that are not members.
    pub fn retain(&self, is_member: impl Fn(&ClusterName) -> bool) {
        self.clients.lock().retain(|cluster, _| is_member(cluster));
    }

    /// The transport of a member, created again if its connection has changed.
    fn member_transport(&self, cluster: &ClusterName, connection: &Arc<Connection>) -> MemberTransport {
        let mut clients = self.clients.lock();
        if let Some(transport) = clients.get(cluster)
            && Arc::ptr_eq(&transport.connection, connection)
        {
            return transport.clone();
        }
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_max_idle_per_host(MAX_IDLE_CONNECTIONS)
            .pool_idle_timeout(IDLE_TIMEOUT)
            .build(connection.dialer().clone());
        let transport = MemberTransport { connection: Arc::clone(connection), client, breaker: Arc::default() };
        clients.insert(cluster.clone(), transport.clone());
        transport
    }

    /// Sends a request to a member as the caller. `path` replaces the request's path; the query is kept. A 101
    /// response contains the connection (`hyper::upgrade::on`). `timeout` limits the time to the response head; `None`
    /// means the member's timeout.
    pub async fn send(
        &self,
        member: &Member,
        caller: &Caller,
        path: &str,
        mut request: Request<Body>,
        timeout: Option<Duration>,
    ) -> Result<Response<Body>, Error> {
        let span = request_span(member.name(), path, request.method());
        let exchange = async {
            let connection = address_request(member, caller, path, &mut request)?;
            let response = self.exchange(member, &connection, request, timeout).await?;
            impersonation::add_hint(member.name(), &caller.name, response).await
        };
        let sent = exchange.instrument(span.clone()).await;
        match &sent {
            Ok(response) => {
                span.record("http.response.status_code", response.status().as_u16());
            }
            Err(error) => spans::record_error(&span, error.code_and_reason().1),
        }
        sent
    }

    /// Sends an addressed request.
    async fn exchange(
        &self,
        member: &Member,
        connection: &Arc<Connection>,
        request: Request<Body>,
        timeout: Option<Duration>,
    ) -> Result<Response<Body>, Error> {
        let (cluster, is_upgrade) = (member.name(), requested_upgrade(request.headers()).is_some());
        let follows_log = Query::parse(request.uri().query()).flag("follow");
        let timeout = timeout.or_else(|| cluster_response_timeout(member)).unwrap_or(self.response_timeout);
        // A followed log sends its response head only with the first line.
        let timeout = (!follows_log).then_some(timeout);
        let mut response = self.member_transport(cluster, connection).send(cluster, request, timeout).await?;
        match response.status() {
            http::StatusCode::SWITCHING_PROTOCOLS if is_upgrade => {}
            http::StatusCode::SWITCHING_PROTOCOLS => return Err(Error::UnrequestedUpgrade(cluster.clone())),
            _ => remove_hop_by_hop(response.headers_mut()),
        }
        Ok(response.map(|body| body.map_err(Into::into).boxed_unsync()))
    }
}

impl MemberTransport {
    /// Sends the request unless the breaker rejects it.
    async fn send(
        &self,
        cluster: &ClusterName,
        request: Request<Body>,
        timeout: Option<Duration>,
    ) -> Result<Response<hyper::body::Incoming>, Error> {
        let started_at = Instant::now();
        self.breaker.lock().admit(started_at).map_err(|Rejection { reason, retry_after }| Error::Suspended {
            cluster: cluster.clone(),
            reason,
            retry_after,
        })?;
        let unreachable = |reason: String| Error::Unreachable { cluster: cluster.clone(), reason };
        let response = self.client.request(request);
        let result = match timeout {
            Some(timeout) => tokio::time::timeout(timeout, response).await.map_err(|_| timeout),
            None => Ok(response.await),
        };
        let (mut breaker, now) = (self.breaker.lock(), Instant::now());
        match result {
            Ok(Ok(response)) => {
                breaker.record_response(now);
                Ok(response)
            }
            Ok(Err(error)) => {
                let reason = error_chain(&error);
                // An interrupted request does not indicate that the member is unreachable.
                if error.is_connect() {
                    breaker.record_failure(now, &reason);
                }
                Err(unreachable(reason))
            }
            Err(timeout) => {
                let reason = format!("no response within {} s", timeout.as_secs_f32());
                breaker.record_timeout(now, started_at, &reason);
                Err(unreachable(reason))
            }
        }
    }
}

/// Span of a request up to its response head. Only the resource is recorded, because the rest of the path may be
/// confidential.
fn request_span(cluster: &ClusterName, path: &str, method: &Method) -> Span {
    // Parsed only if the span is enabled.
    let kind = || NativePath::parse(path).map(|native| native.rbac_resource()).unwrap_or_default();
    tracing::info_span!(
        target: spans::SPAN_TARGET,
        "request",
        otel.name = %format_args!("{method} {}", kind()),
        otel.kind = "client",
        otel.status_code = Empty,
        k8s.cluster.name = %cluster,
        crowsnest.resource = kind(),
        http.request.method = method.as_str(),
        http.response.status_code = Empty,
        error.type = Empty,
    )
}

/// Replaces the headers and target of a request by those for a member, as the caller. Returns the connection to the
/// member.
fn address_request(
    member: &Member,
    caller: &Caller,
    path: &str,
    request: &mut Request<Body>,
) -> Result<Arc<Connection>, Error> {
    let path = check_path(request.method(), path)?;
    let cluster = member.name();
    let connection_error = |source| match source {
        crowsnest_members::Error::Endpoint { endpoint, .. } if endpoint.is_empty() => {
            Error::NoEndpoint(cluster.clone())
        }
        source @ crowsnest_members::Error::NoTunnel(_) => {
            Error::Unreachable { cluster: cluster.clone(), reason: source.to_string() }
        }
        source => Error::Connection { cluster: cluster.clone(), source },
    };
    let connection = member.connection().map_err(connection_error)?.clone();
    let token =
        member.impersonator_token().map_err(|source| Error::Impersonator { cluster: cluster.clone(), source })?;
    let mut headers = impersonated_headers(request.headers(), caller, Some(token), member.impersonated_attributes())
        .map_err(|error| Error::BadRequest(error.to_string()))?;
    spans::inject_trace_context(&mut headers);
    *request.headers_mut() = headers;
    let target = target_uri(&connection, path, request.uri().query())
        .map_err(|error| Error::BadRequest(format!("path {path:?}: {error}")))?;
    *request.uri_mut() = target;
    *request.version_mut() = http::Version::HTTP_11;
    Ok(connection)
}

/// Response timeout set by the member's Cluster.
fn cluster_response_timeout(member: &Member) -> Option<Duration> {
    let seconds = member.cluster().metadata.annotations.as_ref()?.get(RESPONSE_TIMEOUT)?.parse().ok();
    seconds.filter(|seconds| *seconds > 0).map(Duration::from_secs)
}

fn target_uri(connection: &Connection, path: &str, query: Option<&str>) -> Result<Uri, http::Error> {
    let slash = if path.starts_with('/') { "" } else { "/" };
    let query = query.map(|query| format!("?{query}")).unwrap_or_default();
    let scheme = connection.spec().endpoint.scheme_str().unwrap_or("https");
    Uri::builder()
        .scheme(scheme)
        .authority(connection.host())
        .path_and_query(format!("{}{slash}{path}{query}", connection.path_prefix()))
        .build()
}

/// Returns the path if this process, which authorizes the request, and the recipient parse it in the same way.
pub fn check_path<'p>(method: &Method, path: &'p str) -> Result<&'p str, Error> {
    RequestPath::parse_for_forwarding(method, path).map_err(|error| Error::BadRequest(error.to_string()))?;
    Ok(path)
}

/// An error message with its causes.
pub fn error_chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text = format!("{text}: {cause}");
        next = cause.source();
    }
    text
}
