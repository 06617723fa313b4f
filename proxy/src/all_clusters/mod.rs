//! `clusters/*/proxy`: all members as one cluster, read live. Lists and watches are merged like those of the fleet-wide
//! proxy ([`crate::merged`]), but each member is requested as the caller, and applies its own permissions and the selectors.
//!
//! A resourceVersion contains the version of each member. A request for a name is sent to the member that has the object.

mod feed;
mod item;
mod list;
mod member;
mod member_watch;
mod object;
mod watch;

pub(crate) use self::member::get_request;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use crowsnest_apimachinery::names::ClusterName;
use crowsnest_apimachinery::request::Query;
use crowsnest_component_base::body;
use crowsnest_members::Member;
use futures::stream::{FuturesUnordered, StreamExt};
use http::{HeaderValue, Request, Response, StatusCode};

use self::member::Collection;
use crate::native::{NativePath, Verb};
use crate::table::{Content, Shape};
use crate::{Body, Caller, Error, Proxy};

/// Time limit for the first byte of each member's response, and for each chunk after it.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout and size limit of error responses, and of bodies that are read only so that their connection can be used again.
const SMALL_BODY_TIMEOUT: Duration = Duration::from_secs(1);
const MAX_SMALL_BODY_BYTES: usize = 256 << 10;

impl Proxy {
    /// Sends paths without a resource to the control plane and a named object to the only cluster that has it; lists
    /// and watches a collection in all clusters.
    pub(crate) async fn serve_all_clusters(
        &self,
        caller: &Caller,
        path: &str,
        request: Request<Body>,
    ) -> Result<Response<Body>, Error> {
        let Some(native) = NativePath::parse(path) else {
            return self.forward_to_control_plane(caller, path, request).await;
        };
        let query = Query::parse(request.uri().query());
        let verb = native.verb(request.method(), &query);
        match verb {
            Verb::Watch if native.subresource.is_empty() => {
                self.report_clusters(&request, || self.member_names(caller));
                let shape = Shape::from_accept_header(request.headers(), &query, Content::Watch)?;
                let collection = Collection::new(self, caller, &native, request.uri().query(), shape);
                self.watch_all_clusters(&native, &query, collection).await
            }
            _ if !native.name.is_empty() => {
                let owner = native.require_only_one(self.find_owners(caller, &native).await?, |owner| owner.name())?;
                self.forward_to_owner(&owner, caller, &native, verb, path, request).await
            }
            Verb::List => {
                self.report_clusters(&request, || self.member_names(caller));
                let shape = Shape::from_accept_header(request.headers(), &query, Content::List)?;
                let collection = Collection::new(self, caller, &native, request.uri().query(), shape);
                self.list_all_clusters(&native, &query, collection).await
            }
            _ => Err(Error::MethodNotAllowed),
        }
    }

    fn member_names(&self, caller: &Caller) -> Vec<ClusterName> {
        let mut names: Vec<ClusterName> = self.members_of(caller).iter().map(|member| member.name().clone()).collect();
        names.sort();
        names
    }

    /// The members that have an object of that name, each queried as the caller.
    pub(crate) async fn find_owners(&self, caller: &Caller, native: &NativePath) -> Result<Vec<Arc<Member>>, Error> {
        let namespace = Some(native.namespace.as_str()).filter(|n| !n.is_empty());
        let object = &format!("{}/{}", native.resource.path(namespace), native.name);
        let members = self.members_of(caller);
        let probes: FuturesUnordered<_> = members
            .iter()
            .map(|member| async move { (member, self.has_object(member, caller, object).await) })
            .collect();
        let (mut owners, mut unknown) = (Vec::new(), None);
        for (member, has_object) in probes.collect::<Vec<_>>().await {
            match has_object {
                Ok(true) => owners.push(Arc::clone(member)),
                Ok(false) => {}
                Err(error) => unknown = Some(error),
            }
        }
        owners.sort_by_key(|member| member.name().clone());
        // A member that cannot be reached may have the object.
        match (owners.is_empty(), unknown) {
            (true, Some(error)) => Err(error),
            _ => Ok(owners),
        }
    }

    async fn has_object(&self, member: &Arc<Member>, caller: &Caller, path: &str) -> Result<bool, Error> {
        // The metadata is sufficient to check that the object exists.
        let accept = HeaderValue::from_static(
            "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1, application/json;q=0.5",
        );
        let response = self
            .forward_to_member(member, caller, path, get_request("", accept), Some(self.response_timeout()))
            .await?;
        let status = response.status();
        drop(collect_small_body(response.into_body()).await);
        Ok(status == StatusCode::OK)
    }

    /// Maximum idle time before and within a member's part.
    fn response_timeout(&self) -> Duration {
        RESPONSE_TIMEOUT.min(self.inner.transport.response_timeout())
    }
}

/// Reads a small body within [`SMALL_BODY_TIMEOUT`]; otherwise drops it with its connection.
async fn collect_small_body(body: Body) -> Option<Bytes> {
    tokio::time::timeout(SMALL_BODY_TIMEOUT, body::collect(body, MAX_SMALL_BODY_BYTES)).await.ok()?.ok()
}
