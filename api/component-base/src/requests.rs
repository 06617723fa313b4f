//! Client metrics: requests to API servers, counted by host, method and status as client-go does.
//!
//! Requests of clients with [`RequestCountLayer`] are counted; requests that a proxy forwards are not. A host is removed
//! with its last client.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};

use futures::future::BoxFuture;
use http::{Method, Request, Response, StatusCode};
use parking_lot::Mutex;
use tower::{Layer, Service};

/// Counters of requests. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct RequestCounters(Arc<Mutex<Vec<Weak<Host>>>>);

/// Number of requests by method and status; `None` if no response arrived.
type Outcomes = HashMap<(Method, Option<StatusCode>), u64>;

#[derive(Debug)]
struct Host {
    name: String,
    outcomes: Mutex<Outcomes>,
}

/// Number of requests to a host with one method and status.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct RequestCount {
    pub host: String,
    pub method: String,
    /// `None` if no response arrived.
    pub status: Option<u16>,
    pub count: u64,
}

impl RequestCounters {
    /// Layer that counts the requests of a client of `host`.
    pub fn layer(&self, host: &str) -> RequestCountLayer {
        let mut hosts = self.0.lock();
        hosts.retain(|host| host.strong_count() > 0);
        let existing = hosts.iter().filter_map(Weak::upgrade).find(|existing| existing.name == host);
        let host = existing.unwrap_or_else(|| {
            let host = Arc::new(Host { name: host.to_owned(), outcomes: Mutex::default() });
            hosts.push(Arc::downgrade(&host));
            host
        });
        RequestCountLayer(host)
    }

    /// Values of all counters, sorted by host, method and status.
    pub fn counts(&self) -> Vec<RequestCount> {
        let hosts: Vec<Arc<Host>> = self.0.lock().iter().filter_map(Weak::upgrade).collect();
        let mut counts = Vec::new();
        for host in hosts {
            let outcomes = host.outcomes.lock();
            counts.extend(outcomes.iter().map(|((method, status), count)| RequestCount {
                host: host.name.clone(),
                method: method.to_string(),
                status: status.map(|status| status.as_u16()),
                count: *count,
            }));
        }
        counts.sort();
        counts
    }
}

/// Tower layer that counts the requests to one host.
#[derive(Debug, Clone)]
pub struct RequestCountLayer(Arc<Host>);

impl<S> Layer<S> for RequestCountLayer {
    type Service = RequestCountService<S>;

    fn layer(&self, inner: S) -> RequestCountService<S> {
        RequestCountService { inner, host: Arc::clone(&self.0) }
    }
}

/// A client whose requests are counted.
#[derive(Debug, Clone)]
pub struct RequestCountService<S> {
    inner: S,
    host: Arc<Host>,
}

impl<S, A, B> Service<Request<A>> for RequestCountService<S>
where
    S: Service<Request<A>, Response = Response<B>>,
    S::Future: Send + 'static,
{
    type Response = Response<B>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Response<B>, S::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<A>) -> Self::Future {
        let (host, method) = (Arc::clone(&self.host), request.method().clone());
        let response = self.inner.call(request);
        Box::pin(async move {
            let result = response.await;
            let status = result.as_ref().ok().map(Response::status);
            *host.outcomes.lock().entry((method, status)).or_default() += 1;
            result
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tower::ServiceExt;

    #[tokio::test]
    async fn requests_are_counted_by_status_until_the_last_client_of_a_host_is_dropped() {
        let requests = RequestCounters::default();
        let server = tower::service_fn(|request: Request<()>| async move {
            match request.uri().path() {
                "/missing" => Ok(Response::builder().status(404).body(()).expect("a response")),
                "/" => Ok(Response::new(())),
                _ => Err("no connection"),
            }
        });
        let first = requests.layer("m1:6443").layer(server);
        let second = requests.layer("m1:6443").layer(server);
        let other = requests.layer("m2:6443").layer(server);
        for (client, path) in
            [(&first, "/"), (&second, "/"), (&first, "/missing"), (&first, "/no-connection"), (&other, "/")]
        {
            drop(client.clone().oneshot(Request::get(path).body(()).expect("a request")).await);
        }
        drop(other);
        let counts: Vec<String> = requests
            .counts()
            .iter()
            .map(|RequestCount { host, method, status, count }| format!("{host} {method} {status:?} {count}"))
            .collect();
        assert_eq!(counts, ["m1:6443 GET None 1", "m1:6443 GET Some(200) 2", "m1:6443 GET Some(404) 1"]);
    }
}
