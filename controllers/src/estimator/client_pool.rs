//! Client pool of scheduler estimators: queries all clusters concurrently before a decision. A failed query is logged
//! and the decision is made without it.

use std::collections::BTreeMap;

use crowsnest_api::cluster::ClusterSyncMode;
use crowsnest_api::estimator as wire;
use crowsnest_api::work::{ObjectReference, ResourceBindingSpec};
use futures::future::join_all;
use k8s_openapi::api::core::v1::Service;

use super::client::{EstimatorTarget, Estimators};
use crate::Error;
use crate::runtime::context::{Context, decode};
use crowsnest_plan::estimation::accurate::AssumedWorkload;

/// A cluster, and the workloads that are assigned to it and do not run yet.
pub type ClusterWorkloads = (String, Vec<AssumedWorkload>);

fn describe(resource: &ObjectReference) -> String {
    format!("kind={}, name={}/{}", resource.kind, resource.namespace, resource.name)
}

fn to_wire(assumed: AssumedWorkload) -> wire::AssumedWorkload {
    let components = assumed.components.iter().map(wire::Component::from).collect();
    wire::AssumedWorkload { namespace: assumed.namespace, components }
}

/// Estimates of available replicas, or of complete component sets if `counts_sets` is true, per cluster. `None` for a
/// failed request.
pub async fn available_replicas(
    context: &Context,
    estimators: &Estimators,
    spec: &ResourceBindingSpec,
    counts_sets: bool,
    clusters: Vec<ClusterWorkloads>,
) -> Vec<(String, Option<i32>)> {
    let object = &describe(&spec.resource);
    let query = |(cluster, assumed): ClusterWorkloads| async move {
        let assumed_workloads = assumed.into_iter().map(to_wire).collect();
        let response = async {
            let Some(service) = find_service(context, estimators, &cluster).await? else { return Ok(None) };
            let target = EstimatorTarget { cluster: &cluster, service: service.as_ref(), object };
            let available = if counts_sets {
                let request = wire::MaxAvailableComponentSetsRequest {
                    cluster: cluster.clone(),
                    components: spec.components.iter().map(wire::Component::from).collect(),
                    namespace: spec.resource.namespace.clone(),
                    assumed_workloads,
                };
                estimators.call(target, request).await?.max_sets
            } else {
                let request = wire::MaxAvailableReplicasRequest {
                    cluster: cluster.clone(),
                    replica_requirements: spec.replica_requirements.as_ref().map(wire::ReplicaRequirements::from),
                    assumed_workloads,
                };
                estimators.call(target, request).await?.max_replicas
            };
            Ok(Some(available))
        };
        let result = log_failure(&cluster, response.await);
        (cluster, result)
    };
    join_all(clusters.into_iter().map(query)).await
}

/// Unschedulable replicas of a workload per cluster, for clusters with a result.
pub async fn unschedulable_replicas(
    context: &Context,
    estimators: &Estimators,
    resource: &ObjectReference,
    clusters: &[String],
    threshold: std::time::Duration,
) -> BTreeMap<String, i32> {
    let object = &describe(resource);
    let query = |cluster: &String| {
        let cluster = cluster.clone();
        async move {
            let response = async {
                let Some(service) = find_service(context, estimators, &cluster).await? else { return Ok(None) };
                let request = wire::UnschedulableReplicasRequest {
                    cluster: cluster.clone(),
                    resource: Some(wire::ObjectReference {
                        api_version: resource.api_version.clone(),
                        kind: resource.kind.clone(),
                        namespace: resource.namespace.clone(),
                        name: resource.name.clone(),
                    }),
                    unschedulable_threshold: i64::try_from(threshold.as_nanos()).unwrap_or(i64::MAX),
                };
                let target = EstimatorTarget { cluster: &cluster, service: service.as_ref(), object };
                Ok(Some(estimators.call(target, request).await?.unschedulable_replicas))
            };
            // Negative numbers mean unknown.
            let result = log_failure(&cluster, response.await).filter(|replicas| *replicas >= 0);
            result.map(|replicas| (cluster, replicas))
        }
    };
    join_all(clusters.iter().map(query)).await.into_iter().flatten().collect()
}

/// The Service of a cluster's estimator: `Some(None)` if it does not exist, `None` if the cluster must not be queried.
async fn find_service(
    context: &Context,
    estimators: &Estimators,
    cluster: &str,
) -> Result<Option<Option<Service>>, Error> {
    let options = estimators.options();
    if options.skip_pull_mode {
        let member = context.cluster(cluster).await?;
        if member.is_some_and(|member| member.spec.sync_mode == ClusterSyncMode::Pull) {
            return Ok(None);
        }
    }
    let name = options.service_name(cluster);
    let found = context.get_redacted(&context.kinds.service, &options.service_namespace, &name).await?;
    Ok(Some(found.map(|service| decode(service.view())).transpose()?))
}

fn log_failure(cluster: &str, result: Result<Option<i32>, Error>) -> Option<i32> {
    result.unwrap_or_else(|error| {
        match error {
            // Already logged when connecting failed.
            Error::Estimator(super::EstimatorError::Unreachable { .. }) => {}
            error => tracing::warn!(cluster, %error, "scheduler estimator request failed"),
        }
        None
    })
}
