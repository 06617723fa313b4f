//! The final state does not depend on the order of changes, and objects that are up to date are not written, not
//! even by restarted controllers.

mod final_state;
mod kinds;
mod orders;

use crowsnest_controllers::runtime::dynamic_client::{Resource, Target};
use serde_json::{Value, json};

use crate::test_env::{TestEnv, builtin};

fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// The resource of an object. It is namespaced if the object has a namespace.
fn resource_of(object: &Value) -> Resource {
    let (group, version) = text(object, "/apiVersion").split_once('/').unwrap_or(("", text(object, "/apiVersion")));
    let kind = text(object, "/kind");
    let lower = kind.to_lowercase();
    let plural = match lower.strip_suffix('y') {
        Some(stem) => format!("{stem}ies"),
        None if lower.ends_with('s') => format!("{lower}es"),
        None => format!("{lower}s"),
    };
    Resource::builtin(group, version, &plural, kind, object.pointer("/metadata/namespace").is_some())
}

/// Resources with writes between two points in time.
fn written_resources<'a>(before: &'a LastWrites, after: &'a LastWrites) -> Vec<&'a String> {
    let is_written = |(resource, revision): &(&String, &u64)| before.get(*resource) != Some(*revision);
    after.iter().filter(is_written).map(|(resource, _)| resource).collect()
}

/// Key of the Clusters of the control plane in [`LastWrites`].
const CLUSTERS: &str = "control plane cluster.karmada.io/clusters";

/// Revision of the last write of each resource, by server and resource; see [`TestEnv::last_writes`].
type LastWrites = std::collections::BTreeMap<String, u64>;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn objects_that_are_up_to_date_are_not_written_for_every_kind() {
    let env = TestEnv::start(&["m1", "m2"]).await;
    kinds::propagate(&env).await;
    env.wait_until_settled().await;

    // A full resync writes nothing, and sends no requests to members. The status of Clusters may still change with
    // the objects that were just created there.
    for round in 0.. {
        let before = env.last_writes();
        env.requests.take();
        env.manager.run_full_resync().await.unwrap();
        env.wait_until_settled().await;
        let (after, requests) = (env.last_writes(), env.requests.take());
        let written = written_resources(&before, &after);
        if round < 10 && written == [CLUSTERS] {
            continue;
        }
        assert!(written.is_empty(), "a full resync wrote {written:?}");
        assert!(requests.is_empty(), "a full resync requested {requests:#?}");
        break;
    }

    // Restarted controllers have no state. They send requests and write nothing, except for changes in a member since
    // its status was last collected.
    let mut env = env;
    for restart in 0.. {
        let before = env.last_writes();
        env.requests.take();
        env = env.restart().await;
        env.wait_until_settled().await;
        let (after, requests) = (env.last_writes(), env.requests.take());
        let written = written_resources(&before, &after);
        if restart == 0 && written == [CLUSTERS] {
            continue;
        }
        assert!(written.is_empty(), "restarted controllers wrote {written:?}: {requests:#?}");
        break;
    }
    env.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_scheduling_result_without_status_is_completed() {
    let env = TestEnv::start(&["m1", "m2"]).await;
    let control_plane = env.objects();
    let weights = ["m1", "m2"].map(|name| json!({"targetCluster": {"clusterNames": [name]}, "weight": 1}));
    let divided = json!({"replicaScheduling": {"replicaSchedulingType": "Divided", "replicaDivisionPreference": "Weighted",
        "weightPreference": {"staticWeightList": weights}}});
    let manifest = crate::policy("p", "Deployment", "apps/v1", divided);
    control_plane.create(&crate::propagation_policy(), "default", &manifest).await.unwrap();
    control_plane.create(&builtin("apps", "deployments", "Deployment"), "default", &crate::web(4)).await.unwrap();
    let scheduled = |binding: &Value| crate::condition_is(binding, "Scheduled", "True");
    env.wait_for(&control_plane, &crate::binding(), "default", "web-deployment", scheduled).await;
    env.wait_until_settled().await;

    // The state between the two writes: the result is stored, and its status is not.
    let binding = crate::binding();
    let target = Target::new(&binding, "default", "web-deployment");
    let without_status =
        json!({"status": {"conditions": null, "lastScheduledTime": null, "schedulerObservedGeneration": null}});
    control_plane.merge(target.status(), &without_status).await.unwrap();
    env.manager.run_full_resync().await.unwrap();
    let is_scheduled = |binding: &Value| {
        scheduled(binding)
            && binding["status"]["lastScheduledTime"].is_string()
            && binding["status"]["schedulerObservedGeneration"] == binding["metadata"]["generation"]
    };
    env.wait_for(&control_plane, &binding, "default", "web-deployment", is_scheduled).await;
    env.stop().await;
}
