use super::*;
use http::{Request, Response};
use kube::client::Body;
use serde_json::json;
use std::convert::Infallible;

/// A control plane without Clusters. The registry's task panics when it sends a list request, or a watch request if
/// `panics_on_watch`.
fn control_plane(panics_on_watch: bool) -> Client {
    let service = tower::service_fn(move |request: Request<Body>| async move {
        let is_watch = request.uri().query().is_some_and(|query| query.contains("watch="));
        assert!(is_watch != panics_on_watch, "deliberate panic");
        let list = json!({"kind": "ClusterList", "apiVersion": "cluster.karmada.io/v1alpha1",
            "metadata": {"resourceVersion": "1"}, "items": []});
        Ok::<_, Infallible>(Response::new(Body::from(list.to_string().into_bytes())))
    });
    Client::new(service, "default")
}

const TASK_STOPPED: &str = "registry of members: the task stopped unexpectedly";

#[tokio::test]
async fn a_panic_before_the_first_list_fails_the_start() {
    let started = Fleet::start(control_plane(false), FleetOptions::default()).await;
    let error = started.err().expect("no fleet without a list").to_string();
    assert!(error.contains(TASK_STOPPED), "{error}");
}

#[tokio::test]
async fn a_panic_after_the_first_list_makes_the_fleet_unready() {
    let fleet = Fleet::start(control_plane(true), FleetOptions::default()).await.unwrap();
    assert_eq!(fleet.inner.tasks.wait_for_failure().await, TASK_STOPPED);
    assert_eq!(fleet.ready(), Err(TASK_STOPPED.to_owned()));
    fleet.stop().await;
}
