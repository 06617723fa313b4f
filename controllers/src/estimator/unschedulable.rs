//! Finds the pods of a workload that count as unschedulable: those of a Deployment's newest ReplicaSet. Both are read
//! from the member, since they are rarely needed and the cache does not need to hold all ReplicaSets.

use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use kube::api::ListParams;
use kube::core::Selector;
use kube::{Api, Client};

use crate::Error;
use crowsnest_plan::descheduling;

/// UID of the ReplicaSet with the current pod template of a Deployment. `None` if it does not exist yet.
pub async fn newest_replica_set(client: Client, namespace: &str, name: &str) -> Result<Option<String>, Error> {
    let operation = |resource: &str| format!("GET {resource} of {namespace}/{name}");
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), namespace);
    let deployment = deployments.get(name).await.map_err(|source| Error::request(operation("deployments"), source))?;
    let selector = Selector::try_from(deployment.spec.selector.clone())
        .map_err(|error| Error::Other(format!("deployment {namespace}/{name}: {error}")))?;
    if selector.selects_all() {
        return Ok(None);
    }
    let replica_sets: Api<ReplicaSet> = Api::namespaced(client, namespace);
    let listed = replica_sets.list(&ListParams::default().labels_from(&selector)).await;
    let listed = listed.map_err(|source| Error::request(operation("replicasets"), source))?;
    let newest = descheduling::current_replica_set(&deployment, &listed.items);
    Ok(newest.and_then(|set| set.metadata.uid.clone()))
}
