//! Finds the pods of a workload that count as unschedulable: those of a Deployment's newest ReplicaSet. Both are read
//! from the member, since they are rarely needed and the cache does not need to contain all ReplicaSets.

use crowsnest_apimachinery::names::Gvr;
use crowsnest_apimachinery::request::{path_segment, percent_encode};
use crowsnest_apimachinery::selector::Selector;
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use kube::api::ObjectList;

use crate::Error;
use crate::runtime::context::decode;
use crate::runtime::dynamic_client::DynamicClient;
use crowsnest_plan::descheduling;

/// UID of the ReplicaSet with the current pod template of a Deployment. `None` if it does not exist yet.
pub async fn newest_replica_set(member: &DynamicClient, namespace: &str, name: &str) -> Result<Option<String>, Error> {
    let deployments = Gvr::new("apps", "v1", "deployments").path(Some(namespace));
    let deployment: Deployment = decode(&member.read(&format!("{deployments}/{}", path_segment(name))).await?)?;
    let selector = Selector::from_label_selector(&deployment.spec.selector)
        .map_err(|error| Error::Other(format!("deployment {namespace}/{name}: {error}")))?;
    if selector.is_empty() {
        return Ok(None);
    }
    let replica_sets = Gvr::new("apps", "v1", "replicasets").path(Some(namespace));
    let path = format!("{replica_sets}?labelSelector={}", percent_encode(&selector.to_string()));
    let listed: ObjectList<ReplicaSet> = decode(&member.read(&path).await?)?;
    let newest = descheduling::current_replica_set(&deployment, &listed.items);
    Ok(newest.and_then(|set| set.metadata.uid.clone()))
}
