//! Admission of requests to one member whose name is not part of the request. The name is known only after the cluster
//! that owns the object has been found.

use std::sync::Arc;

use crowsnest_apimachinery::names::ClusterName;
use crowsnest_apimachinery::status::ApiError;
use futures::future::BoxFuture;
use http::Request;

use crate::{Body, Error};

/// Admission of a request to a member, added to the request's extensions as `Arc<dyn MemberAdmission>` if the request has
/// been admitted only as one for all members. Each request is admitted for at most one member. Lists and watches that
/// combine several members are not admitted for each of them.
pub trait MemberAdmission: Send + Sync {
    /// Refuses the request if it must not connect to this member.
    fn admit<'a>(&'a self, cluster: &'a ClusterName) -> BoxFuture<'a, Result<(), ApiError>>;
}

/// Admits a request that this member handles, unless it has already been admitted.
pub(crate) async fn admit(request: &mut Request<Body>, cluster: &ClusterName) -> Result<(), Error> {
    match request.extensions_mut().remove::<Arc<dyn MemberAdmission>>() {
        Some(admission) => admission.admit(cluster).await.map_err(Error::NotAdmitted),
        None => Ok(()),
    }
}
