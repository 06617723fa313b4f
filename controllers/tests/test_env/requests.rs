//! Requests to members for single objects. Lists and watches, which belong to the cache, and health checks are not
//! recorded.

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::response::IntoResponse;
use axum::routing::any;
use crowsnest_kube_apiserver::ApiServer;
use futures::StreamExt;
use http::{Method, StatusCode, Uri};
use parking_lot::Mutex;
use tokio::sync::watch;
use tower::ServiceExt;

#[derive(Clone, Default)]
pub struct Requests {
    /// Requests as `MEMBER METHOD PATH`.
    recorded: Arc<watch::Sender<Vec<String>>>,
    unhealthy: Arc<Mutex<BTreeSet<String>>>,
    /// The request whose response will be lost, in the form of `recorded`.
    lost: Arc<Mutex<Option<String>>>,
    /// True while events of watches are held back.
    is_paused: Arc<watch::Sender<bool>>,
}

impl Requests {
    /// Removes and returns the requests since the last call.
    pub fn take(&self) -> Vec<String> {
        self.recorded.send_replace(Vec::new())
    }

    /// Waits until a request is recorded.
    pub async fn wait_for(&self, request: &str) {
        let mut recorded = self.recorded.subscribe();
        let found = recorded.wait_for(|recorded| recorded.iter().any(|line| line == request));
        drop(tokio::time::timeout(super::TIMEOUT, found).await.expect("the request is sent in time"));
    }

    /// Holds back the events of the controllers' watches in members, or delivers them again.
    pub fn pause_watches(&self, is_paused: bool) {
        self.is_paused.send_replace(is_paused);
    }

    /// Processes the next request that is recorded as `request`, and responds to it with a gateway timeout.
    pub fn lose_response(&self, request: &str) {
        *self.lost.lock() = Some(request.to_owned());
    }

    /// Sets the result of a member's health check. Other requests are not affected.
    pub fn set_healthy(&self, member: &str, is_healthy: bool) {
        let mut unhealthy = self.unhealthy.lock();
        if is_healthy {
            unhealthy.remove(member);
        } else {
            unhealthy.insert(member.to_owned());
        }
    }

    /// The routes of a member, which record requests for single objects.
    pub fn record(&self, member: &ApiServer) -> Router {
        let (name, router, recorded) = (member.name().to_owned(), member.router(), Arc::clone(&self.recorded));
        let (unhealthy, lost) = (Arc::clone(&self.unhealthy), Arc::clone(&self.lost));
        let is_paused = Arc::clone(&self.is_paused);
        let handle = move |request: Request| async move {
            let line = format!("{name} {} {}", request.method(), request.uri().path());
            let is_lost = lost.lock().take_if(|lost| *lost == line).is_some();
            if is_for_single_object(request.method(), request.uri()) {
                recorded.send_modify(|recorded| recorded.push(line));
            }
            if request.uri().path() == "/readyz" && unhealthy.lock().contains(&name) {
                return Ok((StatusCode::INTERNAL_SERVER_ERROR, "etcd failed").into_response());
            }
            let is_watch = request.uri().query().is_some_and(|query| query.contains("watch="));
            let response = router.oneshot(request).await;
            if is_watch {
                return response.map(|response| response.map(|body| hold_back(body, is_paused.subscribe())));
            }
            if is_lost {
                return Ok((StatusCode::GATEWAY_TIMEOUT, "no response").into_response());
            }
            response
        };
        Router::new().route("/{*path}", any(handle))
    }
}

/// A body whose data are delivered while the watches are not paused.
fn hold_back(body: Body, is_paused: watch::Receiver<bool>) -> Body {
    let data = StreamExt::then(body.into_data_stream(), move |data| {
        let mut is_paused = is_paused.clone();
        async move {
            // The sender is only dropped at the end of the test.
            drop(is_paused.wait_for(|is_paused| !is_paused).await);
            data
        }
    });
    Body::from_stream(data)
}

fn is_for_single_object(method: &Method, uri: &Uri) -> bool {
    let parts: Vec<&str> = uri.path().trim_matches('/').split('/').collect();
    let resource = match parts.as_slice() {
        ["api", _, resource @ ..] | ["apis", _, _, resource @ ..] => resource,
        _ => return false,
    };
    let query = uri.query().unwrap_or_default();
    let is_list_or_watch =
        method == Method::GET && ["limit=", "watch="].iter().any(|parameter| query.contains(parameter));
    !resource.is_empty() && !is_list_or_watch
}
