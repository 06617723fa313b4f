//! Finds the pods of a workload that count as unschedulable: those of a Deployment's newest ReplicaSet. Both are read
//! from the member, since they are rarely needed and the cache does not need to contain all ReplicaSets.

use std::time::Duration;

use crowsnest_apimachinery::names::Gvr;
use crowsnest_apimachinery::request::{path_segment, percent_encode};
use crowsnest_apimachinery::selector::Selector;
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use kube::api::ObjectList;
use tokio::time::timeout;

use crate::Error;
use crate::runtime::context::decode;
use crate::runtime::dynamic_client::DynamicClient;
use crowsnest_plan::descheduling;

/// Time limit of [`newest_replica_set`], that of a call of an estimator in Karmada.
pub const REPLICA_SET_TIMEOUT: Duration = Duration::from_secs(3);

/// UID of the ReplicaSet with the current pod template of a Deployment. `None` if it does not exist yet. Fails with
/// [`Error::Timeout`] if the member has not responded to both requests within `time_limit`.
pub async fn newest_replica_set(
    member: &DynamicClient,
    namespace: &str,
    name: &str,
    time_limit: Duration,
) -> Result<Option<String>, Error> {
    timeout(time_limit, read_newest_replica_set(member, namespace, name)).await.unwrap_or_else(|_| {
        let operation = format!("reading the newest ReplicaSet of deployment {namespace}/{name}");
        Err(Error::Timeout { operation, after: time_limit })
    })
}

async fn read_newest_replica_set(member: &DynamicClient, namespace: &str, name: &str) -> Result<Option<String>, Error> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use http::{Request, Response};
    use kube::Client;
    use kube::client::Body;
    use rstest::rstest;
    use serde_json::{Value, json};
    use std::convert::Infallible;

    /// A member that responds to requests for these resources, and no others.
    fn member(supported: &'static [&'static str]) -> DynamicClient {
        let service = tower::service_fn(move |request: Request<Body>| async move {
            let resource = request.uri().path().split('/').nth(6).unwrap_or_default().to_owned();
            if !supported.contains(&resource.as_str()) {
                return std::future::pending::<Result<Response<Body>, Infallible>>().await;
            }
            let body = if resource == "deployments" { deployment() } else { replica_sets() };
            Ok(Response::new(Body::from(body.to_string().into_bytes())))
        });
        DynamicClient::new(Client::new(service, "default"))
    }

    fn template() -> Value {
        json!({"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "web", "image": "nginx"}]}})
    }

    fn deployment() -> Value {
        json!({"apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"name": "web", "namespace": "default", "uid": "d"},
            "spec": {"selector": {"matchLabels": {"app": "web"}}, "template": template()}})
    }

    fn replica_sets() -> Value {
        let owner =
            json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": "d", "controller": true});
        let set = json!({"metadata": {"name": "web-1", "namespace": "default", "uid": "s", "ownerReferences": [owner]},
            "spec": {"selector": {"matchLabels": {"app": "web"}}, "template": template()}});
        json!({"apiVersion": "apps/v1", "kind": "ReplicaSetList", "metadata": {}, "items": [set]})
    }

    #[rstest]
    #[case::deployment(&[])]
    #[case::replica_sets(&["deployments"])]
    #[tokio::test]
    async fn both_requests_share_a_time_limit(#[case] supported: &'static [&'static str]) {
        let time_limit = Duration::from_millis(50);
        let error =
            newest_replica_set(&member(supported), "default", "web", time_limit).await.expect_err("no response");
        assert!(error.is_timeout(), "{error}");
        assert_eq!(
            error.to_string(),
            "reading the newest ReplicaSet of deployment default/web: no complete response within 50ms"
        );
    }

    #[tokio::test]
    async fn the_newest_replica_set_is_read() {
        let member = member(&["deployments", "replicasets"]);
        let newest = newest_replica_set(&member, "default", "web", REPLICA_SET_TIMEOUT).await.unwrap();
        assert_eq!(newest.as_deref(), Some("s"));
    }
}
