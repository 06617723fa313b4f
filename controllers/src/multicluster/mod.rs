//! Multi-cluster services.
//!
//! As in KEP-1645, the [`ServiceExportController`] collects the EndpointSlices of exported Services from members into
//! Works, the [`EndpointSliceController`] creates EndpointSlices of the control plane from them, and the
//! [`ServiceImportController`] maintains the Service derived from an import. The dependencies distributor propagates
//! Service and slices with the import.
//!
//! For MultiClusterServices, the [`MultiClusterServiceController`] claims the Service and dispatches the
//! EndpointSlices collected by the [`EndpointSliceCollectController`]. The [`MultiClusterIngressController`] reports
//! the clusters of an ingress' backend services.

mod endpoint_slice;
mod endpointslice_collect;
mod multi_cluster_ingress;
mod multi_cluster_service;
mod service_export;
mod service_import;

use std::time::Duration;

use crowsnest_apimachinery::names::ClusterName;

use crate::Error;
use crate::runtime::Switch;
use crate::runtime::context::Context;
use crate::runtime::dynamic_client::Resource;

pub use self::endpoint_slice::EndpointSliceController;
pub use self::endpointslice_collect::EndpointSliceCollectController;
pub use self::multi_cluster_ingress::MultiClusterIngressController;
pub use self::multi_cluster_service::MultiClusterServiceController;
pub use self::service_export::ServiceExportController;
pub use self::service_import::ServiceImportController;

/// Switch of the MultiClusterService and MultiClusterIngress controllers. Includes dispatching EndpointSlices, which is
/// a separate controller in Karmada.
const MULTI_CLUSTER_SERVICE_SWITCH: Switch = Switch::OnByDefault(&["endpointsliceDispatch", "multiclusterservice"]);
const ENDPOINT_SLICE: (&str, &str) = ("discovery.k8s.io/v1", "EndpointSlice");
/// Maximum wait for the first list of a member's resource, after which the key is requeued.
const LIST_TIMEOUT: Duration = Duration::from_secs(5);

/// Starts collecting a kind of a member, and waits for its first list. `None` if the member does not serve it.
async fn collect_member_resource(
    context: &Context,
    cluster: &ClusterName,
    (api_version, kind): (&str, &str),
) -> Result<Option<Resource>, Error> {
    let resource = match context.rest_mapper.find(cluster, api_version, kind).await {
        Ok(resource) => resource,
        Err(Error::UnknownKind { .. }) => return Ok(None),
        Err(error) => return Err(error),
    };
    context.cache.collect(cluster, &resource);
    match context.cache.wait_synced(cluster, &resource.gvr, LIST_TIMEOUT).await {
        true => Ok(Some(resource)),
        false => Err(Error::Waiting(format!("{kind} of cluster {cluster} is not listed yet"))),
    }
}
