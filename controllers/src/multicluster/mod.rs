//! Controllers for multi-cluster services.
//!
//! Multi-Cluster Services API (KEP-1645): the [`ServiceExportController`] collects the EndpointSlices of exported
//! Services from members into Works, the [`EndpointSliceController`] creates EndpointSlices in the control plane from
//! these Works, and the [`ServiceImportController`] maintains the Service derived from a ServiceImport. The
//! dependencies distributor propagates the Service and the EndpointSlices together with the ServiceImport.
//!
//! MultiClusterService: the [`MultiClusterServiceController`] claims the Service, binds it to clusters and dispatches
//! the provider clusters' EndpointSlices to the consumer clusters. The [`EndpointSliceCollectController`] collects
//! them.
//!
//! MultiClusterIngress: the [`MultiClusterIngressController`] reports the clusters of an ingress's backend services.

mod endpoint_slice;
mod endpoint_slice_collect;
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
pub use self::endpoint_slice_collect::EndpointSliceCollectController;
pub use self::multi_cluster_ingress::MultiClusterIngressController;
pub use self::multi_cluster_service::MultiClusterServiceController;
pub use self::service_export::ServiceExportController;
pub use self::service_import::ServiceImportController;

/// Names of the MultiClusterService and MultiClusterIngress controllers in `--controllers`. One of them dispatches
/// EndpointSlices, so the name of Karmada's separate controller `endpointsliceDispatch` is included.
const MULTI_CLUSTER_SERVICE_SWITCH: Switch = Switch::OnByDefault(&["endpointsliceDispatch", "multiclusterservice"]);
/// API version and kind.
const ENDPOINT_SLICE: (&str, &str) = ("discovery.k8s.io/v1", "EndpointSlice");
/// Maximum time to wait for the first list of a member's resource; afterwards, the key is requeued.
const LIST_TIMEOUT: Duration = Duration::from_secs(5);

/// Starts collecting the objects of a kind from a member, and waits for their first list. Returns `None` if the member
/// does not serve the kind.
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
    match context.cache.wait_until_synced(cluster, &resource.gvr, LIST_TIMEOUT).await {
        true => Ok(Some(resource)),
        false => Err(Error::Waiting(format!("{kind} of cluster {cluster} is not listed yet"))),
    }
}
