//! Tests of synthetic load from the point of view of the member's clients: number of pods, realistic objects, churn, restarts.

#![expect(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::collections::{BTreeSet, HashMap};
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use crowsnest_kube_apiserver::Data;
use crowsnest_registry::storage::Durability;
use crowsnest_sim::load::Load;
use crowsnest_sim::member::{Member, MemberConfig};
use futures::{Stream, StreamExt};
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::core::v1::{Event, Node, Pod};
use kube::api::{DeleteParams, ListParams, WatchEvent, WatchParams};
use kube::{Api, Client, ResourceExt};

/// Time limit of each wait.
const WAIT_TIMEOUT: Duration = Duration::from_secs(120);

async fn start(data: Data) -> (Arc<Member>, Client) {
    let member = Member::start(MemberConfig { data, ..MemberConfig::new("m1") }).await.unwrap();
    let client = member.server().admin();
    (member, client)
}

/// Starts a member whose data is in a directory.
async fn start_persistent(directory: &Path) -> (Arc<Member>, Client) {
    start(Data::Directory { path: directory.to_owned(), durability: Durability::Process }).await
}

async fn list<K>(client: &Client) -> Vec<K>
where
    K: kube::Resource<DynamicType = ()> + Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    Api::all(client.clone()).list(&ListParams::default()).await.unwrap().items
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

fn restarts(pod: &Pod) -> i32 {
    let statuses = pod.status.as_ref().and_then(|status| status.container_statuses.as_deref()).unwrap_or_default();
    statuses.iter().map(|status| status.restart_count).sum()
}

/// All further changes of pods.
async fn pod_changes(client: &Client) -> impl Stream<Item = WatchEvent<Pod>> + use<> {
    let pods: Api<Pod> = Api::all(client.clone());
    let now = pods.list_metadata(&ListParams::default().limit(1)).await.unwrap().metadata.resource_version.unwrap();
    pods.watch(&WatchParams::default(), &now).await.unwrap().map(Result::unwrap).boxed()
}

/// Lists pods after each change until the condition is met.
async fn wait_until(client: &Client, description: &str, condition: impl Fn(&[Pod]) -> bool) {
    let mut changes = pin!(pod_changes(client).await);
    let wait = async {
        while !condition(&list::<Pod>(client).await) {
            changes.next().await.unwrap();
        }
    };
    tokio::time::timeout(WAIT_TIMEOUT, wait).await.unwrap_or_else(|_| panic!("timed out waiting for {description}"));
}

#[tokio::test]
async fn loads_have_the_requested_size_and_realistic_objects() {
    let (member, client) = start(Data::Memory).await;
    let load = Load { seed: 3, min_pod_bytes: 9500, ..Load::new(600) };
    let report = member.start_load(load).await.unwrap();
    let pods = list::<Pod>(&client).await;
    assert_eq!((pods.len(), report.pods, report.written), (600, 600, 600));
    assert!(pods.iter().filter(|pod| is_ready(pod)).count() >= report.healthy && report.healthy > 500);

    let sets: HashMap<String, ReplicaSet> =
        list::<ReplicaSet>(&client).await.into_iter().map(|set| (set.uid().unwrap(), set)).collect();
    let deployments: HashMap<String, Deployment> = list::<Deployment>(&client)
        .await
        .into_iter()
        .map(|deployment| (deployment.uid().unwrap(), deployment))
        .collect();
    let nodes: BTreeSet<String> = list::<Node>(&client).await.iter().map(ResourceExt::name_any).collect();
    let (mut addresses, mut images, mut namespaces) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    for pod in &pods {
        let set = &sets[&pod.owner_references()[0].uid];
        let deployment = &deployments[&set.owner_references()[0].uid];
        assert!(pod.name_any().starts_with(&set.name_any()) && set.name_any().starts_with(&deployment.name_any()));
        let spec = pod.spec.as_ref().unwrap();
        assert!(nodes.contains(spec.node_name.as_ref().unwrap()));
        images.insert(spec.containers[0].image.clone().unwrap());
        namespaces.insert(pod.namespace().unwrap());
        let status = pod.status.as_ref().unwrap();
        if let Some(address) = &status.pod_ip {
            assert!(address.starts_with("10.") && status.host_ip.as_ref().unwrap().starts_with("172."));
            assert!(addresses.insert(address.clone()), "{address} is assigned twice");
            let id = status.container_statuses.as_ref().unwrap()[0].container_id.as_ref().unwrap();
            assert!(id.starts_with("containerd://") && id.len() > 70, "{id}");
        }
        let size = serde_json::to_vec(pod).unwrap().len();
        assert!((9500..12_000).contains(&size), "{size} bytes");
    }
    assert!(addresses.len() >= report.healthy && images.len() > 10 && namespaces.len() > 10);
    // Objects equal those that the controllers would create: no Deployment gets a second ReplicaSet.
    assert_eq!(sets.len(), deployments.len());
    member.stop().await.unwrap();
}

#[tokio::test]
async fn deleted_pods_are_replaced() {
    let (member, client) = start(Data::Memory).await;
    member.start_load(Load::new(100)).await.unwrap();
    let deleted_pod = list::<Pod>(&client).await.into_iter().find(is_ready).unwrap();
    let pods: Api<Pod> = Api::namespaced(client.clone(), &deleted_pod.namespace().unwrap());
    pods.delete(&deleted_pod.name_any(), &DeleteParams::default()).await.unwrap();
    let owner = deleted_pod.owner_references()[0].uid.clone();
    let before = list::<Pod>(&client).await;
    let ready_siblings =
        |pods: &[Pod]| pods.iter().filter(|pod| pod.owner_references()[0].uid == owner && is_ready(pod)).count();
    let expected = ready_siblings(&before).max(1);
    wait_until(&client, "a replacement", |pods| {
        pods.len() == 100 && ready_siblings(pods) >= expected && !pods.iter().any(|pod| pod.uid() == deleted_pod.uid())
    })
    .await;
    // No rollout was triggered: each Deployment has one ReplicaSet.
    let (deployments, sets) = (list::<Deployment>(&client).await, list::<ReplicaSet>(&client).await);
    assert_eq!(deployments.len(), sets.len());
    let is_deletion = |event: &&Event| event.reason.as_deref() == Some("SuccessfulDelete");
    assert_eq!(list::<Event>(&client).await.iter().find(is_deletion), None);
    member.stop().await.unwrap();
}

#[tokio::test]
async fn restarted_members_keep_their_load() {
    let directory = tempfile::tempdir().unwrap();
    let (member, client) = start_persistent(directory.path()).await;
    member.start_load(Load::new(100)).await.unwrap();
    let before: BTreeSet<String> = list::<Pod>(&client).await.iter().map(|pod| pod.uid().unwrap()).collect();
    member.stop().await.unwrap();
    drop((member, client));

    let (member, client) = start_persistent(directory.path()).await;
    let report = member.start_load(Load::new(100)).await.unwrap();
    assert_eq!(report.written, 0);
    let after: BTreeSet<String> = list::<Pod>(&client).await.iter().map(|pod| pod.uid().unwrap()).collect();
    assert_eq!(before, after);
    member.start_load(Load::new(150)).await.unwrap();
    wait_until(&client, "50 more pods", |pods| {
        pods.iter().filter(|pod| pod.metadata.deletion_timestamp.is_none()).count() == 150
    })
    .await;
    member.stop().await.unwrap();
}

#[tokio::test]
async fn churn_changes_pods_but_not_their_number() {
    let (member, client) = start(Data::Memory).await;
    let mut changes = pin!(pod_changes(&client).await);
    member.start_load(Load { churn_per_second: 50.0, ..Load::new(200) }).await.unwrap();
    let mut seen: BTreeSet<&str> = BTreeSet::new();
    let wait = async {
        let mut pods: HashMap<String, Pod> = HashMap::new();
        while seen.len() < 4 {
            match changes.next().await.unwrap() {
                WatchEvent::Added(pod) | WatchEvent::Modified(pod) => {
                    let uid = pod.uid().unwrap();
                    if let Some(before) = pods.get(&uid) {
                        seen.extend((restarts(&pod) > restarts(before)).then_some("restart"));
                        seen.extend((pod.labels() != before.labels()).then_some("label"));
                    } else if pods.len() >= 200 {
                        seen.insert("new");
                    }
                    pods.insert(uid, pod);
                }
                WatchEvent::Deleted(_) => seen.extend(Some("deleted")),
                other => panic!("{other:?}"),
            }
        }
    };
    tokio::time::timeout(WAIT_TIMEOUT, wait).await.expect("every kind of change");
    let wait = async {
        while !list::<Event>(&client).await.iter().any(|event| event.reason.as_deref() == Some("Unhealthy")) {
            changes.next().await.unwrap();
        }
    };
    tokio::time::timeout(WAIT_TIMEOUT, wait).await.expect("an event of churn");
    assert!(member.churn_changes() > 0);
    // A load without churn ends the churn of the previous one.
    member.start_load(Load::new(200)).await.unwrap();
    wait_until(&client, "200 pods, none of them terminating", |pods| {
        pods.len() == 200 && pods.iter().all(|pod| pod.metadata.deletion_timestamp.is_none())
    })
    .await;
    member.stop().await.unwrap();
}

#[tokio::test]
async fn invalid_loads_are_rejected() {
    let (member, client) = start(Data::Memory).await;
    for (body, reason) in
        [(r#"{"pods": 0}"#, "pods=0 is not between"), (r#"{"pods": 1, "churn": -1}"#, "churn=-1/s is not between")]
    {
        let load: Load = serde_json::from_str(body).unwrap();
        let error = member.start_load(load).await.unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
    }
    assert!(list::<Pod>(&client).await.is_empty());
    member.stop().await.unwrap();
}
