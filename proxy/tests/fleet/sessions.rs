//! A Cluster may forbid sessions (exec, attach, port-forward) into its pods.

use crowsnest_api::constants::annotation::EXEC;
use crowsnest_apimachinery::names::{ClusterName, Gvr};
use crowsnest_index::CollectionKey;
use crowsnest_store::Clusters;
use http::Method;
use kube::Api;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, Patch};
use serde_json::{Value, json};

use crate::test_env::{TestEnv, admin, create, read, registered, request, test_env};

const POD: &str = "/api/v1/namespaces/default/pods/web";

/// Sets the annotation of m1 and waits until it is observed.
async fn annotate(env: &TestEnv, value: Value) {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("cluster.karmada.io", "v1alpha1", "Cluster"));
    let clusters: Api<DynamicObject> = Api::all_with(env.control_plane.clone(), &resource);
    let patch = json!({"metadata": {"annotations": {EXEC: value}}});
    clusters.patch("m1", &Default::default(), &Patch::Merge(&patch)).await.unwrap();
    let m1 = ClusterName::parse("m1").unwrap();
    let observed_value = || {
        let member = env.cache.fleet().member(&m1).unwrap();
        let annotations = member.cluster().metadata.annotations.clone().unwrap_or_default();
        annotations.get(EXEC).map_or(Value::Null, |value| json!(value))
    };
    while observed_value() != value {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_forbids_sessions() {
    let env = test_env().await;
    let pods = Gvr::new("", "v1", "pods");
    let _interest = env.declare(registered(Clusters::All, pods.clone()));
    let spec = json!({"nodeName": "n", "containers": [{"name": "web", "image": "x"}]});
    create(
        &env.members["m1"].admin(),
        "v1",
        "Pod",
        Some("default"),
        json!({"metadata": {"name": "web"}, "spec": spec}),
    )
    .await;
    for member in ["m1", "m2"] {
        env.cache.wait_until_complete(&CollectionKey::new(ClusterName::parse(member).unwrap(), pods.clone())).await;
    }
    while env.fleet_wide(Method::GET, POD, "", None).await.0 != 200 {
        tokio::task::yield_now().await;
    }
    let send = |cluster: &'static str, path: String| {
        let proxy = env.proxy.clone();
        async move {
            read(proxy.cluster(cluster, &admin(), &path, request(Method::GET, "command=ls", "", None)).await).await
        }
    };
    let exec = || format!("{POD}/exec");
    for (value, expected) in [(json!("disabled"), "forbids exec"), (json!("off"), "which is neither")] {
        annotate(&env, value.clone()).await;
        let annotation = format!("its annotation proxy.crowsnest.io/exec: {value}");
        for cluster in ["m1", "*"] {
            let (code, status) = send(cluster, exec()).await;
            assert_eq!((code, &status["reason"], &status["details"]["name"]), (403, &json!("Forbidden"), &json!("m1")));
            let message = status["message"].as_str().unwrap();
            assert!(message.contains(&annotation) && message.contains(expected), "{message}");
        }
        assert_eq!(env.fleet_wide(Method::GET, &exec(), "command=ls", None).await.0, 403);
        assert_eq!(send("m1", "/api/v1/nodes/n/proxy/pods".to_owned()).await.0, 403);
        // Other requests and other clusters are unaffected.
        assert_eq!(send("m1", POD.to_owned()).await.0, 200);
        assert_eq!(send("m2", exec()).await.0, 404);
    }
    for value in [json!("enabled"), Value::Null] {
        annotate(&env, value).await;
        let (code, status) = send("m1", exec()).await;
        assert!(code != 403, "{status}");
    }
    env.stop().await;
}
