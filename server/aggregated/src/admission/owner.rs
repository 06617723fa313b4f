//! Admission of a request for all members that turns out to be for one of them.

use std::sync::Arc;

use crowsnest_apimachinery::names::ClusterName;
use crowsnest_apimachinery::status::ApiError;
use crowsnest_apimachinery::user::UserInfo;
use crowsnest_apiserver::audit::Record;
use crowsnest_process::client_certificate::Peer;
use crowsnest_proxy::MemberAdmission;
use futures::future::BoxFuture;
use http::{HeaderMap, Method, Uri};
use parking_lot::Mutex;

use super::AdmissionChain;
use crate::cluster_karmada_io;
use crate::request::context::{RequestAttributes, RequestContext};
use crate::resource::Members;
use crate::resource::registry::{Registry, VERSION};
use crate::server::AggregatedServer;

/// Admits a request whose path does not name a member, as a request to `clusters/NAME/proxy` of the member that owns the
/// object.
pub(crate) struct OwnerAdmission {
    chain: Arc<AdmissionChain>,
    registry: &'static Registry,
    user: UserInfo,
    peer: Peer,
    audit: Option<Arc<Record>>,
    method: Method,
    /// Raw path in the member.
    path: String,
    warnings: Mutex<Vec<String>>,
}

impl OwnerAdmission {
    /// `None` for a request that names its member or reaches no member: it has been admitted already.
    pub(crate) fn for_request(
        server: &AggregatedServer,
        context: &RequestContext,
        method: &Method,
    ) -> Option<Arc<Self>> {
        let found = context.attributes.route.resource_route()?;
        let is_for_all_members = match found.resource.definition().members {
            Members::None => false,
            Members::Named => context.name() == "*",
            Members::All => true,
        };
        is_for_all_members.then(|| {
            Arc::new(Self {
                chain: Arc::clone(&server.admission),
                registry: server.registry,
                user: context.user.clone(),
                peer: context.peer.clone(),
                audit: context.audit.clone(),
                method: method.clone(),
                path: context.attributes.subpath().to_owned(),
                warnings: Mutex::default(),
            })
        })
    }

    /// Removes and returns the warnings of the admission so far.
    pub(crate) fn take_warnings(&self) -> Vec<String> {
        std::mem::take(&mut *self.warnings.lock())
    }

    async fn admit_for(&self, cluster: &ClusterName) -> Result<(), ApiError> {
        let uri = format!("/apis/{}/{VERSION}/clusters/{cluster}/proxy{}", cluster_karmada_io::NAME, self.path);
        let uri: Uri = uri.parse().map_err(ApiError::internal)?;
        let attributes = RequestAttributes::parse(self.registry, &self.method, &uri, &HeaderMap::new());
        let (user, peer, audit) = (self.user.clone(), self.peer.clone(), self.audit.clone());
        let context = RequestContext { user, peer, attributes, audit };
        let found = context.attributes.route.resource_route().ok_or_else(ApiError::unknown_resource)?;
        let connect = found.resource.definition().connect.ok_or_else(ApiError::unknown_resource)?;
        let (admitted, warnings) = self.chain.connect(&context, found, connect).await;
        self.warnings.lock().extend(warnings);
        admitted
    }
}

impl MemberAdmission for OwnerAdmission {
    fn admit<'a>(&'a self, cluster: &'a ClusterName) -> BoxFuture<'a, Result<(), ApiError>> {
        Box::pin(self.admit_for(cluster))
    }
}
