//! Fleet-wide proxy: reads all clusters at once from the cache, and sends writes to the one cluster that contains the
//! object.
//!
//! Deliberate differences from Karmada: a watch continues when clusters join, leave or fail. Clusters that are not
//! ready stay in the result, with a warning. Each caller sees only the objects that they may read in the member.
//! Requests for resources that no ResourceRegistry selects are sent to the control plane as the caller. A
//! resourceVersion contains the cache's sequence number in addition to the version of each cluster. Tables of core
//! kinds have a cluster column. DeleteCollection is not supported. `metrics.k8s.io` is answered from the members if
//! the control plane does not serve it.

mod list;
mod metrics;
mod read_after_write;
mod removed_collections;
mod search;
mod view;
mod watch;
pub(crate) mod write;

use std::sync::Arc;

use crowsnest_apimachinery::names::ClusterName;
use crowsnest_apimachinery::request::{Query, ResourcePath};
use crowsnest_members::Member;
use http::{HeaderValue, Request, Response};

use crate::native::{NativePath, Verb};
use crate::{Body, Caller, ClusterObserver, Error, Proxy, admission, target_cluster};

pub(crate) use self::view::View;

impl Proxy {
    pub(crate) async fn serve_fleet_wide(
        &self,
        caller: &Caller,
        path: &str,
        mut request: Request<Body>,
    ) -> Result<Response<Body>, Error> {
        refuse_nested(path)?;
        let Some(native) = NativePath::parse(path) else {
            return match metrics::discovery_document(path).filter(|_| self.has_metrics_of_members()) {
                Some(document) => self.serve_metrics_discovery(document, caller, path, request).await,
                None => self.forward_to_control_plane(caller, path, request).await,
            };
        };
        let target = target_cluster::take_target(&mut request)?;
        if let Some(name) = &target
            && !self.has_member(caller, name).await
        {
            return Err(Error::ClusterNotFound(name.to_string()));
        }
        if let Some(name) = &target {
            admission::admit(&mut request, name).await?;
        }
        let view = View::for_request(&self.inner.cache, &native, caller, target.clone()).await;
        let view = match (view, target) {
            (Some(view), _) => view,
            // A resource that is not cached is read from the named cluster.
            (None, Some(cluster)) if !self.inner.cache.searcher().rules_apply_in(caller, &cluster) => {
                return Err(Error::ProxyForbidden { cluster, user: caller.name.clone() });
            }
            (None, Some(cluster)) => return self.forward_to_cluster(cluster.as_str(), caller, path, request).await,
            (None, None) if metrics::is_metrics_path(&native) && self.has_metrics_of_members() => {
                return self.serve_metrics(caller, &native, path, request).await;
            }
            (None, None) => return self.forward_to_control_plane(caller, path, request).await,
        };
        let query = Query::parse(request.uri().query());
        let verb = native.verb(request.method(), &query);
        match verb {
            Verb::Get if native.subresource.is_empty() => {
                self.get_cached(caller, &native, view, path, &query, request).await
            }
            Verb::List if native.subresource.is_empty() => {
                self.report_clusters(&request, || view.readable_clusters(&self.inner.cache));
                self.list_cached(view, &query, request.headers()).await
            }
            Verb::Watch if native.subresource.is_empty() => {
                self.report_clusters(&request, || view.readable_clusters(&self.inner.cache));
                self.watch_cached(&native, view, &query, request.headers()).await
            }
            _ => self.send_to_owner(caller, &native, view, verb, path, request).await,
        }
    }

    /// True if a member of this name exists and the caller may see it.
    async fn has_member(&self, caller: &Caller, name: &ClusterName) -> bool {
        self.inner.fleet.member(name).is_some() && self.inner.cache.searcher().may_see(caller, name).await
    }

    /// The members to which requests of the caller may be sent without a separate authorization for each member in the
    /// control plane.
    pub(crate) fn members_of(&self, caller: &Caller) -> Vec<Arc<Member>> {
        let mut members = self.inner.fleet.members();
        members.retain(|member| self.inner.cache.searcher().rules_apply_in(caller, member.name()));
        members
    }

    /// Reports the clusters whose data a response contains to the request's [`ClusterObserver`], if it has one.
    pub(crate) fn report_clusters(&self, request: &Request<Body>, clusters: impl FnOnce() -> Vec<ClusterName>) {
        if let Some(observer) = request.extensions().get::<Arc<dyn ClusterObserver>>() {
            observer.record_clusters(&clusters());
        }
    }
}

/// Refuses a fleet-wide proxy inside another one: each level would cause another request to this process.
fn refuse_nested(path: &str) -> Result<(), Error> {
    match ResourcePath::parse(path) {
        Some(found)
            if found.group == crowsnest_api::search::GROUP
                && matches!(found.resource.as_str(), "proxying" | "search") =>
        {
            Err(Error::BadRequest("the fleet-wide proxy cannot be reached through itself".to_owned()))
        }
        _ => Ok(()),
    }
}

/// A `Warning` header in the form Kubernetes uses.
pub(crate) fn warning(text: &str) -> HeaderValue {
    let printable: String = text.chars().map(|c| if c.is_ascii_graphic() || c == ' ' { c } else { '?' }).collect();
    let escaped = printable.replace('\\', "\\\\").replace('"', "\\\"");
    HeaderValue::from_str(&format!("299 - \"{escaped}\"")).unwrap_or_else(|_| HeaderValue::from_static("299 - \"\""))
}
