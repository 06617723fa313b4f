//! Connections to members: a pooled HTTP/1.1 client and a circuit breaker for each, recreated when the cluster's
//! connection changes.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crowsnest_api::constants::annotation::ANSWER_WITHIN;
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

use crate::breaker::{Breaker, Refused};
use crate::native::Native;
use crate::{Body, Caller, Error, impersonation};

/// Limit and timeout of idle connections per member.
const IDLE_CONNECTIONS: usize = 32;
const IDLE_FOR: Duration = Duration::from_secs(60);

type MemberClient = Client<Dialer, Body>;

/// The client of each cluster.
pub struct Transport {
    clients: Mutex<HashMap<ClusterName, Reached>>,
    answer_within: Duration,
}

/// Client and breaker of a member.
#[derive(Clone)]
struct Reached {
    connection: Arc<Connection>,
    client: MemberClient,
    breaker: Arc<Mutex<Breaker>>,
}

impl Transport {
    /// `answer_within` is the default response timeout; the Cluster's annotation [`ANSWER_WITHIN`] overrides it.
    pub fn new(answer_within: Duration) -> Self {
        Self { clients: Mutex::default(), answer_within }
    }

    /// Default response timeout of members.
    pub fn answer_within(&self) -> Duration {
        self.answer_within
    }

    /// Drops the connections of members that left the fleet.
    pub fn forget(&self, is_there: impl Fn(&ClusterName) -> bool) {
        self.clients.lock().retain(|cluster, _| is_there(cluster));
    }

    fn reach(&self, cluster: &ClusterName, connection: &Arc<Connection>) -> Reached {
        let mut clients = self.clients.lock();
        if let Some(known) = clients.get(cluster)
            && Arc::ptr_eq(&known.connection, connection)
        {
            return known.clone();
        }
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_max_idle_per_host(IDLE_CONNECTIONS)
            .pool_idle_timeout(IDLE_FOR)
            .build(connection.dialer().clone());
        let reached = Reached { connection: Arc::clone(connection), client, breaker: Arc::default() };
        clients.insert(cluster.clone(), reached.clone());
        reached
    }

    /// Sends a request to a member as the caller. `path` replaces the request's path; the query is kept. A 101
    /// response carries the connection (`hyper::upgrade::on`). `within` limits the time to the response head; None:
    /// the member's timeout.
    pub async fn send(
        &self,
        member: &Member,
        caller: &Caller,
        path: &str,
        request: Request<Body>,
        within: Option<Duration>,
    ) -> Result<Response<Body>, Error> {
        let span = asking(member.name(), path, request.method());
        let sent = self.carry(member, caller, path, request, within).instrument(span.clone()).await;
        match &sent {
            Ok(response) => {
                span.record("http.response.status_code", response.status().as_u16());
            }
            Err(error) => spans::failed(&span, error.reason().1),
        }
        sent
    }

    async fn carry(
        &self,
        member: &Member,
        caller: &Caller,
        path: &str,
        mut request: Request<Body>,
        within: Option<Duration>,
    ) -> Result<Response<Body>, Error> {
        let path = checked(request.method(), path)?;
        let cluster = member.name();
        let unconnected = |source| match source {
            crowsnest_members::Error::Endpoint { endpoint, .. } if endpoint.is_empty() => {
                Error::NoEndpoint(cluster.clone())
            }
            source @ crowsnest_members::Error::NoTunnel(_) => {
                Error::Unreachable { cluster: cluster.clone(), reason: source.to_string() }
            }
            source => Error::Connection { cluster: cluster.clone(), source },
        };
        let connection = member.connection().map_err(unconnected)?.clone();
        let token =
            member.impersonator_token().map_err(|source| Error::Impersonator { cluster: cluster.clone(), source })?;
        let mut headers = impersonated_headers(request.headers(), caller, Some(token), member.claims())
            .map_err(|error| Error::BadRequest(error.to_string()))?;
        let upgrades = requested_upgrade(&headers).is_some();
        spans::inject_trace_context(&mut headers);
        *request.headers_mut() = headers;
        let target = target(&connection, path, request.uri().query())
            .map_err(|error| Error::BadRequest(format!("path {path:?}: {error}")))?;
        *request.uri_mut() = target;
        *request.version_mut() = http::Version::HTTP_11;
        let follows = Query::parse(request.uri().query()).flag("follow");
        let within = within.or_else(|| promised(member)).unwrap_or(self.answer_within);
        // A followed log sends its response head only with the first line.
        let within = (!follows).then_some(within);
        let mut response = self.reach(cluster, &connection).ask(cluster, request, within).await?;
        match response.status() {
            http::StatusCode::SWITCHING_PROTOCOLS if upgrades => {}
            http::StatusCode::SWITCHING_PROTOCOLS => return Err(Error::UnrequestedUpgrade(cluster.clone())),
            _ => remove_hop_by_hop(response.headers_mut()),
        }
        let response = response.map(|body| body.map_err(Into::into).boxed_unsync());
        impersonation::with_hint(cluster, &caller.name, response).await
    }
}

impl Reached {
    /// Sends the request unless the breaker rejects it.
    async fn ask(
        &self,
        cluster: &ClusterName,
        request: Request<Body>,
        within: Option<Duration>,
    ) -> Result<Response<hyper::body::Incoming>, Error> {
        let began = Instant::now();
        self.breaker.lock().admit(began).map_err(|Refused { why, again_in }| Error::NotAsked {
            cluster: cluster.clone(),
            why,
            again_in,
        })?;
        let unreachable = |reason: String| Error::Unreachable { cluster: cluster.clone(), reason };
        let answer = self.client.request(request);
        let answered = match within {
            Some(within) => tokio::time::timeout(within, answer).await.map_err(|_| within),
            None => Ok(answer.await),
        };
        let (mut breaker, now) = (self.breaker.lock(), Instant::now());
        match answered {
            Ok(Ok(response)) => {
                breaker.answered(now);
                Ok(response)
            }
            Ok(Err(error)) => {
                let why = chain(&error);
                // An interrupted request does not indicate that the member is unreachable.
                if error.is_connect() {
                    breaker.failed(now, &why);
                }
                Err(unreachable(why))
            }
            Err(within) => {
                let why = format!("no answer within {} s", within.as_secs_f32());
                breaker.silent(now, began, &why);
                Err(unreachable(why))
            }
        }
    }
}

/// Span of a request up to its response head. Only the resource is recorded, because the rest of the path may be
/// confidential.
fn asking(cluster: &ClusterName, path: &str, method: &Method) -> Span {
    // Parsed only if the span is enabled.
    let kind = || Native::parse(path).map(|native| native.kind()).unwrap_or_default();
    tracing::info_span!(
        target: spans::SPANS,
        "ask",
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

/// Response timeout set by the member's Cluster.
fn promised(member: &Member) -> Option<Duration> {
    let seconds = member.cluster().metadata.annotations.as_ref()?.get(ANSWER_WITHIN)?.parse().ok();
    seconds.filter(|seconds| *seconds > 0).map(Duration::from_secs)
}

fn target(connection: &Connection, path: &str, query: Option<&str>) -> Result<Uri, http::Error> {
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
pub fn checked<'p>(method: &Method, path: &'p str) -> Result<&'p str, Error> {
    RequestPath::check_forwarded(method, path).map_err(|error| Error::BadRequest(error.to_string()))?;
    Ok(path)
}

/// An error message with its causes.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text = format!("{text}: {cause}");
        next = cause.source();
    }
    text
}
