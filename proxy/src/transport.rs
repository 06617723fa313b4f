//! Connections to members: one pooled HTTP/1.1 client each, made anew when the cluster's connection changes.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use crowsnest_api::names::ClusterName;
use crowsnest_fleet::{Connection, Dialer, Member, impersonate};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, Uri, header};
use http_body_util::BodyExt;
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use parking_lot::Mutex;

use crate::{Body, Caller, Error};

/// Idle connections kept to one member, and for how long.
const IDLE_CONNECTIONS: usize = 32;
const IDLE_FOR: Duration = Duration::from_secs(60);

type MemberClient = Client<Dialer, Body>;

/// Clients by cluster.
#[derive(Default)]
pub struct Transport {
    clients: Mutex<HashMap<ClusterName, (Arc<Connection>, MemberClient)>>,
}

impl Transport {
    fn client(&self, cluster: &ClusterName, connection: &Arc<Connection>) -> MemberClient {
        let mut clients = self.clients.lock();
        if let Some((known, client)) = clients.get(cluster)
            && Arc::ptr_eq(known, connection)
        {
            return client.clone();
        }
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_max_idle_per_host(IDLE_CONNECTIONS)
            .pool_idle_timeout(IDLE_FOR)
            .build(connection.dialer().clone());
        clients.insert(cluster.clone(), (connection.clone(), client.clone()));
        client
    }

    /// Sends a request to a member as the caller. `path` replaces the request's own path; its query stays. An answer of
    /// 101 carries the connection (`hyper::upgrade::on`).
    pub async fn send(
        &self,
        member: &Member,
        caller: &Caller,
        path: &str,
        mut request: Request<Body>,
    ) -> Result<Response<Body>, Error> {
        let cluster = member.name();
        let unconnected = |source| match source {
            crowsnest_fleet::Error::Endpoint { endpoint, .. } if endpoint.is_empty() => {
                Error::NoEndpoint(cluster.clone())
            }
            source => Error::Connection { cluster: cluster.clone(), source },
        };
        let connection = member.connection().map_err(unconnected)?.clone();
        let token =
            member.impersonator_token().map_err(|source| Error::Impersonator { cluster: cluster.clone(), source })?;
        impersonate(caller, request.headers_mut(), Some(token))
            .map_err(|error| Error::BadRequest(error.to_string()))?;
        let target = target(&connection, path, request.uri().query())
            .map_err(|error| Error::BadRequest(format!("path {path:?}: {error}")))?;
        strip_hop_headers(request.headers_mut());
        *request.uri_mut() = target;
        *request.version_mut() = http::Version::HTTP_11;
        let sent = self.client(cluster, &connection).request(request).await;
        let mut response =
            sent.map_err(|error| Error::Unreachable { cluster: cluster.clone(), reason: chain(&error) })?;
        if response.status() != http::StatusCode::SWITCHING_PROTOCOLS {
            strip_hop_headers(response.headers_mut());
        }
        Ok(response.map(|body| body.map_err(Into::into).boxed_unsync()))
    }
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

/// Headers that are about one connection, not the request. Those that ask for an upgrade stay.
pub fn strip_hop_headers(headers: &mut HeaderMap) {
    let upgrade = headers.get(header::UPGRADE).cloned();
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in named {
        headers.remove(name);
    }
    for name in [
        header::CONNECTION,
        header::HOST,
        header::PROXY_AUTHENTICATE,
        header::PROXY_AUTHORIZATION,
        header::TE,
        header::TRAILER,
        header::TRANSFER_ENCODING,
        header::UPGRADE,
        HeaderName::from_static("keep-alive"),
    ] {
        headers.remove(name);
    }
    if let Some(protocol) = upgrade {
        headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
        headers.insert(header::UPGRADE, protocol);
    }
}

/// An error with its causes.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text = format!("{text}: {cause}");
        next = cause.source();
    }
    text
}
