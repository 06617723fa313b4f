//! Tests of complete members in memory, from the point of view of the cluster's users.

#![expect(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::fmt::Debug;
use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use crowsnest_sim::member::{Member, MemberConfig, Outage, Profile};
use futures::StreamExt;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{
    ConfigMap, Endpoints, Event, Node, PersistentVolumeClaim, Pod, ReplicationController, ResourceQuota, Service,
};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::{ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// Time limit of each wait.
const WAIT_TIMEOUT: Duration = Duration::from_secs(60);

async fn start_member(name: &str, profile: Profile) -> (Arc<Member>, Client) {
    let member = Member::start(MemberConfig { profile, ..MemberConfig::new(name) }).await.unwrap();
    let client = member.server().admin();
    (member, client)
}

/// Creates a client that connects through the member's listener.
async fn external_client(member: &Member) -> Client {
    let kubeconfig = kube::config::Kubeconfig::from_yaml(&member.kubeconfig().unwrap()).unwrap();
    let options = kube::config::KubeConfigOptions::default();
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &options).await.unwrap();
    Client::try_from(config).unwrap()
}

async fn create<K>(client: &Client, object: Value) -> K
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + Serialize + DeserializeOwned,
{
    let object: K = serde_json::from_value(object).unwrap();
    Api::namespaced(client.clone(), "default").create(&PostParams::default(), &object).await.unwrap()
}

/// Watches an object until the condition is met.
async fn wait_until<K>(client: &Client, name: &str, description: &str, mut condition: impl FnMut(&K) -> bool) -> K
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + Debug
        + DeserializeOwned
        + Send
        + Sync
        + 'static,
{
    let api: Api<K> = Api::namespaced(client.clone(), "default");
    let config = watcher::Config::default().fields(&format!("metadata.name={name}"));
    let mut changes = watcher(api.clone(), config).applied_objects().boxed();
    let wait = tokio::time::timeout(WAIT_TIMEOUT, async {
        while let Some(object) = changes.next().await {
            let object = object.unwrap();
            if condition(&object) {
                return object;
            }
        }
        panic!("the watch ended")
    });
    match wait.await {
        Ok(object) => object,
        Err(_) => panic!("timed out waiting for {description} of {name}; last state: {:#?}", api.get(name).await),
    }
}

/// Lists a kind after each change until the condition is met.
async fn wait_until_all<K>(client: &Client, description: &str, condition: impl Fn(&[K]) -> bool) -> Vec<K>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + Debug
        + DeserializeOwned
        + Send
        + Sync
        + 'static,
{
    let api: Api<K> = Api::namespaced(client.clone(), "default");
    let mut changes = watcher(api.clone(), watcher::Config::default()).boxed();
    let wait = tokio::time::timeout(WAIT_TIMEOUT, async {
        loop {
            let list = api.list(&ListParams::default()).await.unwrap().items;
            if condition(&list) {
                return list;
            }
            changes.next().await.unwrap().unwrap();
        }
    });
    match wait.await {
        Ok(list) => list,
        Err(_) => {
            panic!("timed out waiting for {description}; last state: {:#?}", api.list(&ListParams::default()).await)
        }
    }
}

fn deployment(name: &str, replicas: i32, extra: Value) -> Value {
    let mut spec = json!({"containers": [{"name": "web", "image": "nginx:1.25", "ports": [{"name": "http", "containerPort": 80}]}]});
    if let (Some(spec), Some(extra)) = (spec.as_object_mut(), extra["spec"].as_object()) {
        spec.extend(extra.clone());
    }
    json!({
        "metadata": {"name": name},
        "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": {
            "metadata": {"labels": {"app": name}, "annotations": extra["annotations"]}, "spec": spec}},
    })
}

fn is_available(deployment: &Deployment, replicas: i32) -> bool {
    let status = deployment.status.clone().unwrap_or_default();
    status.observed_generation == deployment.metadata.generation
        && status.available_replicas == Some(replicas)
        && status.updated_replicas == Some(replicas)
        && status.replicas == Some(replicas)
}

#[tokio::test]
async fn deployments_become_available_and_roll_out() {
    let (member, client) = start_member("m1", Profile::Default).await;
    create::<Deployment>(&client, deployment("web", 3, json!({}))).await;
    let service = json!({"metadata": {"name": "web"}, "spec": {"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": "http"}]}});
    create::<Service>(&client, service).await;
    let running = wait_until::<Deployment>(&client, "web", "availability", |web| is_available(web, 3)).await;
    assert_eq!(running.metadata.generation, Some(1), "the revision is not part of the spec");
    insta::assert_json_snapshot!("deployment-status", running.status, {
        ".conditions[].lastTransitionTime" => "<time>", ".conditions[].lastUpdateTime" => "<time>",
        ".conditions[].message" => insta::dynamic_redaction(|text, _| {
            let text = text.as_str().unwrap_or_default().to_owned();
            text.split('"').enumerate().map(|(at, part)| if at == 1 { "\"<set>\"" } else { part }).collect::<String>()
        }),
        ".observedGeneration" => "<generation>",
    });
    let pods: Api<Pod> = Api::namespaced(client.clone(), "default");
    let pod = pods.list(&ListParams::default()).await.unwrap().items.remove(0);
    let status = pod.status.clone().unwrap();
    assert_eq!(status.phase.as_deref(), Some("Running"));
    assert!(status.pod_ip.unwrap().starts_with("10.") && status.host_ip.unwrap().starts_with("172."));
    assert_eq!(status.container_statuses.unwrap()[0].image, "docker.io/library/nginx:1.25");
    assert!(pod.spec.unwrap().node_name.unwrap().starts_with("m1-node-"));
    wait_until_all::<EndpointSlice>(&client, "three ready endpoints", |slices| {
        slices
            .iter()
            .flat_map(|slice| slice.endpoints.iter().flatten())
            .filter(|e| e.conditions.as_ref().unwrap().ready == Some(true))
            .count()
            == 3
    })
    .await;
    wait_until::<Endpoints>(&client, "web", "addresses", |endpoints| {
        endpoints.subsets.iter().flatten().flat_map(|subset| subset.addresses.iter().flatten()).count() == 3
    })
    .await;

    let api: Api<Deployment> = Api::namespaced(client.clone(), "default");
    let patch = json!({"spec": {"replicas": 4, "template": {"spec": {"containers": [{"name": "web", "image": "nginx:1.27"}]}}}});
    api.patch("web", &PatchParams::default(), &Patch::Strategic(&patch)).await.unwrap();
    let rolled = wait_until::<Deployment>(&client, "web", "the rollout", |web| is_available(web, 4)).await;
    assert_eq!(rolled.metadata.generation, Some(2));
    assert_eq!(rolled.metadata.annotations.unwrap()["deployment.kubernetes.io/revision"], "2");
    wait_until_all::<ReplicaSet>(&client, "an empty old ReplicaSet", |sets| {
        let mut sizes: Vec<_> =
            sets.iter().map(|set| set.status.as_ref().map_or(-1, |status| status.replicas)).collect();
        sizes.sort_unstable();
        sizes == [0, 4]
    })
    .await;
    wait_until_all::<Event>(&client, "the events of a rollout", |events| {
        let reasons: Vec<_> = events.iter().filter_map(|event| event.reason.as_deref()).collect();
        ["Scheduled", "Pulled", "Created", "Started", "ScalingReplicaSet", "SuccessfulCreate", "Killing"]
            .iter()
            .all(|r| reasons.contains(r))
    })
    .await;
    member.stop().await.unwrap();
}

#[tokio::test]
async fn stateful_sets_daemon_sets_and_jobs_become_ready() {
    let (member, client) = start_member("m2", Profile::Default).await;
    let template = |app: &str, more: Value| {
        let mut spec = json!({"containers": [{"name": "c", "image": "busybox"}]});
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({"metadata": {"labels": {"app": app}}, "spec": spec})
    };
    let claim = json!({"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}});
    let set = json!({"metadata": {"name": "db"}, "spec": {"replicas": 3, "serviceName": "db", "selector": {"matchLabels": {"app": "db"}},
        "template": template("db", json!({})), "volumeClaimTemplates": [claim]}});
    create::<StatefulSet>(&client, set).await;
    let daemons = json!({"metadata": {"name": "agent"}, "spec": {"selector": {"matchLabels": {"app": "agent"}}, "template": template("agent", json!({}))}});
    create::<DaemonSet>(&client, daemons).await;
    let job = json!({"metadata": {"name": "sums"}, "spec": {"completions": 3, "parallelism": 2, "completionMode": "Indexed",
        "template": template("sums", json!({"restartPolicy": "Never"}))}});
    create::<Job>(&client, job).await;
    let budget =
        json!({"metadata": {"name": "db"}, "spec": {"minAvailable": 2, "selector": {"matchLabels": {"app": "db"}}}});
    create::<PodDisruptionBudget>(&client, budget).await;
    let quota = json!({"metadata": {"name": "all"}, "spec": {"hard": {"pods": "50", "configmaps": "9"}}});
    create::<ResourceQuota>(&client, quota).await;

    let set = wait_until::<StatefulSet>(&client, "db", "three replicas", |set| {
        set.status
            .as_ref()
            .is_some_and(|status| status.available_replicas == Some(3) && status.current_replicas == Some(3))
    })
    .await;
    let status = set.status.unwrap();
    assert_eq!((status.current_revision, status.updated_replicas), (status.update_revision, Some(3)));
    wait_until::<PersistentVolumeClaim>(&client, "data-db-2", "a volume", |claim| {
        claim.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Bound")
    })
    .await;
    wait_until::<DaemonSet>(&client, "agent", "a pod on every node", |set| {
        set.status
            .as_ref()
            .is_some_and(|status| status.number_available == Some(3) && status.updated_number_scheduled == Some(3))
    })
    .await;
    let job = wait_until::<Job>(&client, "sums", "completion", |job| {
        job.status.as_ref().is_some_and(|status| status.completion_time.is_some())
    })
    .await;
    let status = job.status.unwrap();
    assert_eq!((status.succeeded, status.completed_indexes.as_deref(), status.active), (Some(3), Some("0-2"), None));
    wait_until::<PodDisruptionBudget>(&client, "db", "allowed disruptions", |budget| {
        budget
            .status
            .as_ref()
            .is_some_and(|status| status.disruptions_allowed == Some(1) && status.expected_pods == Some(3))
    })
    .await;
    wait_until::<ResourceQuota>(&client, "all", "the count of pods", |quota| {
        let used = quota.status.as_ref().and_then(|status| status.used.as_ref());
        used.and_then(|used| used.get("pods")).is_some_and(|pods| pods.0 == "6")
    })
    .await;
    wait_until::<ConfigMap>(&client, "kube-root-ca.crt", "the certificate", |map| {
        map.data.as_ref().is_some_and(|data| data.contains_key("ca.crt"))
    })
    .await;
    member.stop().await.unwrap();
}

#[tokio::test]
async fn commands_determine_the_outcome_of_jobs() {
    let (member, client) = start_member("m3", Profile::Default).await;
    let job = |name: &str, spec: Value, pod: Value| {
        let mut job = json!({"metadata": {"name": name}, "spec": spec});
        job["spec"]["template"] = json!({"spec": pod});
        job
    };
    let script = |script: &str| {
        json!([{"name": "c", "image": "busybox", "command": ["/bin/sh", "-c", script],
        "volumeMounts": [{"name": "data", "mountPath": "/data"}]}])
    };
    let volumes = json!([{"name": "data", "emptyDir": {}}]);
    let succeeds_on_retry = script("if [[ -r /data/f ]]\nthen\n exit 0\nelse\n touch /data/f\n exit 1\nfi");
    let once = json!({"restartPolicy": "OnFailure", "containers": succeeds_on_retry, "volumes": volumes});
    create::<Job>(&client, job("once", json!({"completions": 2, "parallelism": 2}), once)).await;
    let odd = json!({"restartPolicy": "Never", "volumes": volumes,
        "containers": script("if [ $(expr ${JOB_COMPLETION_INDEX} % 2) -ne 0 ]; then exit 1; else exit 0; fi")});
    let indexed = json!({"completions": 4, "parallelism": 2, "completionMode": "Indexed", "backoffLimitPerIndex": 0});
    create::<Job>(&client, job("odd", indexed, odd.clone())).await;
    let enough = json!({"completions": 5, "parallelism": 2, "completionMode": "Indexed",
        "successPolicy": {"rules": [{"succeededIndexes": "0"}]}});
    create::<Job>(&client, job("enough", enough, odd)).await;
    let pause = json!({"restartPolicy": "Never", "containers": [{"name": "c", "image": "registry.k8s.io/pause:3.10"}]});
    create::<Job>(&client, job("pause", json!({}), pause)).await;
    let outcome = |status: &k8s_openapi::api::batch::v1::JobStatus| {
        let condition = |kind: &str| {
            let found = status.conditions.iter().flatten().find(|condition| condition.type_ == kind)?;
            Some(format!("{kind} {}", found.reason.clone().unwrap_or_default()))
        };
        condition("Complete").or_else(|| condition("Failed"))
    };
    for (name, expected, counts) in [
        ("once", "Complete CompletionsReached", (Some(2), None, None, None)),
        ("odd", "Failed FailedIndexes", (Some(2), Some(2), Some("0,2"), Some("1,3"))),
        ("enough", "Complete SuccessPolicy", (Some(1), None, Some("0"), None)),
    ] {
        let finished =
            wait_until::<Job>(&client, name, "its outcome", |job| job.status.as_ref().and_then(outcome).is_some())
                .await;
        let status = finished.status.unwrap();
        assert_eq!(outcome(&status).unwrap(), expected, "{name}");
        let failed = if name == "enough" { None } else { status.failed };
        let indexes = (status.completed_indexes.as_deref(), status.failed_indexes.as_deref());
        assert_eq!((status.succeeded, failed, indexes.0, indexes.1), counts, "{name}");
    }
    let running = wait_until::<Job>(&client, "pause", "a ready pod", |job| {
        job.status.as_ref().is_some_and(|status| status.ready == Some(1))
    })
    .await;
    assert_eq!(running.status.unwrap().conditions, None);
    let jobs: Api<Job> = Api::namespaced(client.clone(), "default");
    jobs.delete("pause", &kube::api::DeleteParams::background()).await.unwrap();
    wait_until_all::<Pod>(&client, "pods without finalizers", |pods| {
        let is_pause_pod = |pod: &&Pod| pod.metadata.name.as_deref().is_some_and(|name| name.starts_with("pause-"));
        pods.iter().filter(is_pause_pod).count() == 0 && pods.iter().all(|pod| pod.metadata.finalizers.is_none())
    })
    .await;
    member.stop().await.unwrap();
}

#[tokio::test]
async fn rejected_pods_are_recreated() {
    let (member, client) = start_member("m4", Profile::Default).await;
    let replicated = json!({"metadata": {"name": "rc"}, "spec": {"replicas": 2, "selector": {"app": "rc"}, "template": {
        "metadata": {"labels": {"app": "rc"}}, "spec": {"containers": [{"name": "c", "image": "nginx"}]}}}});
    create::<ReplicationController>(&client, replicated).await;
    let pod_spec = json!({"nodeName": "m4-node-1", "containers": [
        {"name": "c", "image": "nginx", "ports": [{"containerPort": 4000, "hostPort": 4000}]}]});
    create::<Pod>(&client, json!({"metadata": {"name": "holder"}, "spec": pod_spec})).await;
    let phase = |pod: &Pod| pod.status.as_ref().and_then(|status| status.phase.clone()).unwrap_or_default();
    wait_until::<Pod>(&client, "holder", "a start", |pod| phase(pod) == "Running").await;
    let set = json!({"metadata": {"name": "db"}, "spec": {"replicas": 1, "serviceName": "db", "selector": {"matchLabels": {"app": "db"}},
        "template": {"metadata": {"labels": {"app": "db"}}, "spec": pod_spec}}});
    create::<StatefulSet>(&client, set).await;
    let rejected = wait_until::<Pod>(&client, "db-0", "a rejection", |pod| phase(pod) == "Failed").await;
    assert_eq!(rejected.status.unwrap().reason.as_deref(), Some("NodePorts"));
    let pods: Api<Pod> = Api::namespaced(client.clone(), "default");
    pods.delete("holder", &kube::api::DeleteParams::default()).await.unwrap();
    let replaced = wait_until::<Pod>(&client, "db-0", "a start", |pod| phase(pod) == "Running").await;
    assert_ne!(replaced.metadata.uid, rejected.metadata.uid);
    wait_until::<ReplicationController>(&client, "rc", "two replicas", |rc| {
        rc.status
            .as_ref()
            .is_some_and(|status| status.available_replicas == Some(2) && status.observed_generation == Some(1))
    })
    .await;
    member.stop().await.unwrap();
}

#[tokio::test]
async fn unschedulable_pods_start_when_resources_are_free() {
    let (member, client) = start_member("m1", Profile::Conformance).await;
    let nodes: Api<Node> = Api::all(client.clone());
    let node = nodes.get("m1-node-3").await.unwrap();
    let allocatable = node.status.unwrap().allocatable.unwrap();
    assert_eq!(
        (allocatable["cpu"].0.as_str(), allocatable["memory"].0.as_str(), allocatable["pods"].0.as_str()),
        ("2", "16Gi", "110")
    );
    let cpu = |cpu: &str| json!({"spec": {"containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": cpu}}}]}});
    create::<Deployment>(&client, deployment("large", 3, cpu("1500m"))).await;
    wait_until::<Deployment>(&client, "large", "availability", |large| is_available(large, 3)).await;
    create::<Pod>(&client, json!({"metadata": {"name": "late"}, "spec": cpu("1")["spec"]})).await;
    let late = wait_until::<Pod>(&client, "late", "a scheduling decision", |pod| {
        pod.status.as_ref().is_some_and(|status| status.conditions.is_some())
    })
    .await;
    let condition = late.status.unwrap().conditions.unwrap().remove(0);
    assert_eq!((condition.type_.as_str(), condition.reason.as_deref()), ("PodScheduled", Some("Unschedulable")));
    assert!(condition.message.unwrap().starts_with("0/3 nodes are available: 3 Insufficient cpu."));
    let api: Api<Deployment> = Api::namespaced(client.clone(), "default");
    api.patch("large", &PatchParams::default(), &Patch::Merge(&json!({"spec": {"replicas": 2}}))).await.unwrap();
    wait_until::<Pod>(&client, "late", "a node", |pod| {
        pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Running")
    })
    .await;
    member.stop().await.unwrap();
}

#[tokio::test]
async fn pods_of_failed_nodes_are_evicted() {
    let (member, client) = start_member("m1", Profile::Default).await;
    let tolerations = json!([{"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 0}]);
    create::<Deployment>(&client, deployment("web", 3, json!({"spec": {"tolerations": tolerations}}))).await;
    wait_until::<Deployment>(&client, "web", "availability", |web| is_available(web, 3)).await;
    member.fail_node("m1-node-1").await.unwrap();
    let is_on_failed_node = |pod: &&Pod| pod.spec.as_ref().unwrap().node_name.as_deref() == Some("m1-node-1");
    wait_until_all::<Pod>(&client, "eviction and replacement", |pods| {
        let are_evicted = pods.iter().filter(is_on_failed_node).all(|pod| pod.metadata.deletion_timestamp.is_some());
        let ready = pods.iter().filter(|pod| {
            !is_on_failed_node(pod) && pod.status.as_ref().is_some_and(|s| s.phase.as_deref() == Some("Running"))
        });
        are_evicted && ready.count() == 3
    })
    .await;
    let nodes: Api<Node> = Api::all(client.clone());
    let failed_node = nodes.get("m1-node-1").await.unwrap();
    assert_eq!(failed_node.spec.unwrap().taints.unwrap().len(), 2);
    member.recover_node("m1-node-1").await.unwrap();
    wait_until_all::<Pod>(&client, "deletion of the evicted pods", |pods| pods.len() == 3).await;
    member.stop().await.unwrap();
}

/// A taint of `kubectl taint` has no `timeAdded`.
#[tokio::test]
async fn taints_without_time_added_evict_pods_after_their_toleration_seconds() {
    let (member, client) = start_member("m1", Profile::Default).await;
    let tolerations = |seconds: Value| json!([{"key": "maintenance", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds}]);
    let pods = [("evicted", tolerations(json!(1))), ("tolerating", tolerations(Value::Null))];
    for (name, tolerations) in &pods {
        let spec = json!({"nodeName": "m1-node-1", "tolerations": tolerations, "containers": [{"name": "c", "image": "nginx"}]});
        create::<Pod>(&client, json!({"metadata": {"name": name}, "spec": spec})).await;
    }
    let nodes: Api<Node> = Api::all(client.clone());
    let taint = json!({"spec": {"taints": [{"key": "maintenance", "effect": "NoExecute"}]}});
    nodes.patch("m1-node-1", &PatchParams::default(), &Patch::Merge(&taint)).await.unwrap();
    let remaining = wait_until_all::<Pod>(&client, "an eviction", |pods| pods.len() == 1).await;
    assert_eq!(remaining[0].metadata.name.as_deref(), Some("tolerating"));
    member.stop().await.unwrap();
}

#[tokio::test]
async fn autoscalers_scale_and_faults_interrupt_clients() {
    let (member, client) = start_member("m1", Profile::Default).await;
    let busy = json!({"annotations": {"sim.crowsnest.io/cpu": "200m"}, "spec": {"containers": [
        {"name": "web", "image": "nginx", "resources": {"requests": {"cpu": "100m"}}}]}});
    create::<Deployment>(&client, deployment("busy", 2, busy)).await;
    wait_until::<Deployment>(&client, "busy", "availability", |busy| is_available(busy, 2)).await;
    let scaler = json!({"metadata": {"name": "busy"}, "spec": {"minReplicas": 1, "maxReplicas": 3,
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "busy"},
        "metrics": [{"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}}}]}});
    create::<HorizontalPodAutoscaler>(&client, scaler).await;
    wait_until::<Deployment>(&client, "busy", "the largest size", |busy| is_available(busy, 3)).await;
    let top = http::Request::get("/apis/metrics.k8s.io/v1beta1/namespaces/default/pods").body(Vec::new()).unwrap();
    let top: Value = client.request(top).await.unwrap();
    assert_eq!(top["items"][0]["containers"][0]["usage"]["cpu"], "200m");

    let external = external_client(&member).await;
    let pods: Api<Pod> = Api::namespaced(external.clone(), "default");
    let mut watch = pods.watch(&kube::api::WatchParams::default(), "0").await.unwrap().boxed();
    member.faults().drop_watches();
    let ended = async { while watch.next().await.is_some_and(|event| event.is_ok()) {} };
    tokio::time::timeout(WAIT_TIMEOUT, ended).await.expect("the watch was not closed");
    member.pause().await;
    assert!(pods.list(&ListParams::default()).await.is_err());
    member.resume().await.unwrap();
    assert_eq!(pods.list(&ListParams::default()).await.unwrap().items.len(), 3);
    member.stop().await.unwrap();
}

#[tokio::test]
async fn the_address_of_a_paused_member_is_reserved_until_it_stops() {
    let (member, _) = start_member("m1", Profile::Default).await;
    let address = member.address();
    let bind = || tokio::net::TcpSocket::new_v4().unwrap().bind(address).map_err(|error| error.kind());
    member.pause().await;
    assert_eq!(bind(), Err(ErrorKind::AddrInUse));
    let connected = tokio::net::TcpStream::connect(address).await;
    assert_eq!(connected.unwrap_err().kind(), ErrorKind::ConnectionRefused);
    member.resume().await.unwrap();
    assert_eq!(member.address(), address);
    member.stop().await.unwrap();
    assert_eq!(bind(), Ok(()));
}

/// Time for which no response or event may arrive during an outage.
const OUTAGE_CHECK_DURATION: Duration = Duration::from_millis(300);

#[tokio::test]
async fn events_are_delivered_after_an_outage() {
    let (member, internal) = start_member("m1", Profile::Default).await;
    let external = external_client(&member).await;
    let maps: Api<ConfigMap> = Api::namespaced(external.clone(), "default");
    for (outage, name) in [(Outage::Silent, "silent"), (Outage::Partitioned, "partitioned")] {
        let mut watch = maps.watch(&WatchParams::default(), "0").await.unwrap().boxed();
        let mut event = std::pin::pin!(async {
            while let Some(change) = watch.next().await {
                if matches!(change.unwrap(), WatchEvent::Added(map) if map.metadata.name.as_deref() == Some(name)) {
                    return;
                }
            }
            panic!("the watch ended");
        });
        member.start_outage(outage).await.unwrap();
        assert!(!member.is_reachable().await);
        // The member's own controllers keep running.
        create::<ConfigMap>(&internal, json!({"metadata": {"name": name}})).await;
        assert!(
            tokio::time::timeout(OUTAGE_CHECK_DURATION, maps.get(name)).await.is_err(),
            "{outage:?}: the member responds"
        );
        assert!(
            tokio::time::timeout(OUTAGE_CHECK_DURATION, event.as_mut()).await.is_err(),
            "{outage:?}: its watch continues"
        );
        member.resume().await.unwrap();
        assert!(member.is_reachable().await);
        tokio::time::timeout(WAIT_TIMEOUT, event).await.unwrap();
        maps.get(name).await.unwrap();
    }
    // A partitioned member can be stopped and resumed.
    member.start_outage(Outage::Partitioned).await.unwrap();
    member.pause().await;
    member.start_outage_for(Outage::Silent, OUTAGE_CHECK_DURATION).await.unwrap();
    tokio::time::timeout(WAIT_TIMEOUT, maps.list(&ListParams::default())).await.unwrap().unwrap();
    member.flap(Duration::from_millis(20)).await.unwrap();
    let reachability_changes = async {
        for reachable in [true, false, true] {
            while member.is_reachable().await != reachable {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
    };
    tokio::time::timeout(WAIT_TIMEOUT, reachability_changes).await.unwrap();
    member.resume().await.unwrap();
    maps.list(&ListParams::default()).await.unwrap();
    member.stop().await.unwrap();
}

#[tokio::test]
async fn injected_errors_and_health_statuses_are_returned() {
    let (member, _) = start_member("m1", Profile::Default).await;
    let external = external_client(&member).await;
    let readyz = || http::Request::get("/readyz").body(Vec::new()).unwrap();
    let status = |error| match error {
        kube::Error::Api(status) => status.code,
        other => panic!("{other}"),
    };
    member.faults().set_readyz(Some(http::StatusCode::BAD_GATEWAY));
    assert_eq!(status(external.request_text(readyz()).await.unwrap_err()), 502);
    member.faults().set_readyz(None);
    assert_eq!(external.request_text(readyz()).await.unwrap(), "ok");
    member.faults().set_error_percent(50);
    let pods: Api<Pod> = Api::namespaced(external.clone(), "default");
    for should_fail in [false, true, false, true] {
        assert_eq!(pods.list(&ListParams::default()).await.err().map(status), should_fail.then_some(500));
    }
    member.stop().await.unwrap();
}
