//! Requests to members for single objects. Lists and watches, which belong to the cache, and health checks are not
//! recorded.

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::response::IntoResponse;
use axum::routing::any;
use crowsnest_kube_apiserver::ApiServer;
use http::{Method, StatusCode, Uri};
use parking_lot::Mutex;
use tower::ServiceExt;

#[derive(Clone, Default)]
pub struct Requests {
    recorded: Arc<Mutex<Vec<String>>>,
    unhealthy: Arc<Mutex<BTreeSet<String>>>,
    /// A request whose response will be lost, as it is recorded.
    lost: Arc<Mutex<Option<String>>>,
}

impl Requests {
    /// Removes and returns the requests since the last call.
    pub fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.recorded.lock())
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
        let handle = move |request: Request| async move {
            let line = format!("{name} {} {}", request.method(), request.uri().path());
            let is_lost = lost.lock().take_if(|lost| *lost == line).is_some();
            if is_for_single_object(request.method(), request.uri()) {
                recorded.lock().push(line);
            }
            if request.uri().path() == "/readyz" && unhealthy.lock().contains(&name) {
                return Ok((StatusCode::INTERNAL_SERVER_ERROR, "etcd failed").into_response());
            }
            let response = router.oneshot(request).await;
            if is_lost {
                return Ok((StatusCode::GATEWAY_TIMEOUT, "no response").into_response());
            }
            response
        };
        Router::new().route("/{*path}", any(handle))
    }
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
