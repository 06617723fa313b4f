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
    seen: Arc<Mutex<Vec<String>>>,
    unwell: Arc<Mutex<BTreeSet<String>>>,
}

impl Requests {
    /// Requests since the last call.
    pub fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.seen.lock())
    }

    /// Sets the result of a member's health check. Other requests are not affected.
    pub fn set_well(&self, member: &str, is_well: bool) {
        let mut unwell = self.unwell.lock();
        if is_well {
            unwell.remove(member);
        } else {
            unwell.insert(member.to_owned());
        }
    }

    /// The member's routes, with recording of requests.
    pub fn counted(&self, member: &ApiServer) -> Router {
        let (name, router, seen) = (member.name().to_owned(), member.router(), Arc::clone(&self.seen));
        let unwell = Arc::clone(&self.unwell);
        let pass = move |request: Request| async move {
            if is_about_an_object(request.method(), request.uri()) {
                seen.lock().push(format!("{name} {} {}", request.method(), request.uri().path()));
            }
            if request.uri().path() == "/readyz" && unwell.lock().contains(&name) {
                return Ok((StatusCode::INTERNAL_SERVER_ERROR, "etcd failed").into_response());
            }
            router.oneshot(request).await
        };
        Router::new().route("/{*path}", any(pass))
    }
}

fn is_about_an_object(method: &Method, uri: &Uri) -> bool {
    let parts: Vec<&str> = uri.path().trim_matches('/').split('/').collect();
    let resource = match parts.as_slice() {
        ["api", _, resource @ ..] | ["apis", _, _, resource @ ..] => resource,
        _ => return false,
    };
    let query = uri.query().unwrap_or_default();
    let many = method == Method::GET && ["limit=", "watch="].iter().any(|word| query.contains(word));
    !resource.is_empty() && !many
}
