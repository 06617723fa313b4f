//! Reads and writes of resources selected by ResourceRegistries.

use crowsnest_apimachinery::names::{ClusterName, Gvr};
use crowsnest_index::CollectionKey;
use crowsnest_store::Clusters;
use http::{Method, header};
use serde_json::{Value, json};

use crate::test_env::{
    CONFIG_MAPS, LABELLED, TestEnv, admin, create, named, names, read, registered, request, test_env,
};

const SECRETS: &str = "/api/v1/namespaces/default/secrets";

fn secrets() -> Gvr {
    Gvr::new("", "v1", "secrets")
}

/// A test environment with a cached secret in m1.
async fn env_with_secret() -> (TestEnv, crowsnest_store::InterestGuard) {
    let env = test_env().await;
    let secret = json!({"metadata": {"name": "s"}, "stringData": {"password": "hunter2"}});
    create(&env.members["m1"].admin(), "v1", "Secret", Some("default"), secret).await;
    let interest = env.declare(registered(Clusters::All, secrets()));
    for cluster in ["m1", "m2"] {
        env.cache.wait_until_complete(&CollectionKey::new(ClusterName::parse(cluster).unwrap(), secrets())).await;
    }
    (env, interest)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_secret_from_a_list_cannot_overwrite_its_values() {
    let (env, _interest) = env_with_secret().await;
    let query = "fieldSelector=metadata.name%3Ds";
    let response = env.proxy.fleet_wide(&admin(), SECRETS, request(Method::GET, query, "", None)).await;
    assert!(response.headers()[header::WARNING].to_str().unwrap().contains("values of secrets are withheld"));
    let mut listed = read(response).await.1["items"][0].take();
    assert_eq!(listed["data"], json!({"password": ""}));
    (listed["apiVersion"], listed["kind"]) = ("v1".into(), "Secret".into());
    let path = format!("{SECRETS}/s");
    let mut without_version = listed.clone();
    without_version["metadata"].as_object_mut().unwrap().remove("resourceVersion");
    for object in [listed, without_version] {
        let (code, status) = env.fleet_wide(Method::PUT, &path, "", Some(object)).await;
        assert_eq!((code, &status["reason"], &status["details"]["name"]), (409, &json!("Conflict"), &json!("s")));
    }
    // A get by name returns the member's values, annotated like other objects, and the object can be updated.
    let (_, mut complete) = env.fleet_wide(Method::GET, &path, "", None).await;
    assert_eq!(complete["data"], json!({"password": "aHVudGVyMg=="}));
    assert_eq!(complete["metadata"]["annotations"]["resource.karmada.io/cached-from-cluster"], "m1");
    assert!(complete["metadata"]["resourceVersion"].as_str().unwrap().starts_with("ey"), "{complete}");
    complete["data"]["more"] = "eA==".into();
    let (code, updated) = env.fleet_wide(Method::PUT, &path, "", Some(complete)).await;
    assert_eq!((code, &updated["data"]), (200, &json!({"password": "aHVudGVyMg==", "more": "eA=="})), "{updated}");
    assert_eq!(updated["metadata"]["annotations"], Value::Null);
    let metadata = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io";
    let (_, metadata) =
        read(env.proxy.fleet_wide(&admin(), &path, request(Method::GET, "", metadata, None)).await).await;
    assert_eq!((&metadata["kind"], metadata.get("data")), (&json!("PartialObjectMetadata"), None));
    env.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn registered_resources_are_never_served_by_the_control_plane() {
    let env = test_env().await;
    let _interest = env.declare(registered(named(&[]), secrets()));
    let on_cp = format!("{SECRETS}/on-cp");
    let cases = [
        (Method::GET, SECRETS, 200, json!(null)),
        (Method::GET, on_cp.as_str(), 404, json!({"kind": "secrets", "name": "on-cp"})),
        (Method::DELETE, on_cp.as_str(), 404, json!({"kind": "secrets", "name": "on-cp"})),
        (Method::PUT, on_cp.as_str(), 404, json!({"kind": "secrets", "name": "on-cp"})),
        (Method::POST, SECRETS, 405, json!({"kind": "secrets"})),
    ];
    for (method, path, code, details) in cases {
        let body = Some(json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "on-cp"}}));
        let (actual, response) = env.fleet_wide(method.clone(), path, "", body).await;
        assert_eq!((actual, &response["details"]), (code, &details), "{method} {path}: {response}");
        if code == 200 {
            assert_eq!((&response["kind"], &response["items"]), (&json!("SecretList"), &json!([])));
        }
    }
    let (_, list) = env.fleet_wide(Method::GET, SECRETS, "", None).await;
    let version = list["metadata"]["resourceVersion"].as_str().unwrap();
    let query = format!("watch=true&timeoutSeconds=1&resourceVersion={version}");
    let (code, events) = env.fleet_wide(Method::GET, SECRETS, &query, None).await;
    assert_eq!((code, &events), (200, &json!("")), "a watch continues from an empty list");
    drop(_interest);
    assert_eq!(env.fleet_wide(Method::GET, &on_cp, "", None).await.0, 200, "it was not deleted");
    env.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn options_are_refused_as_kube_apiserver_does() {
    let env = test_env().await;
    let unknown = "\"status.phase\" is not a known field selector: only \"metadata.name\", \"metadata.namespace\"";
    let cases = [
        ("fieldSelector=status.phase%3DRunning", 400, unknown),
        ("limit=many", 400, "strconv.ParseInt: parsing \"many\": invalid syntax"),
        (
            "resourceVersionMatch=Exact",
            422,
            "ListOptions.meta.k8s.io \"\" is invalid: resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden unless resourceVersion is provided",
        ),
    ];
    for (query, code, message) in cases {
        let (actual, status) = env.fleet_wide(Method::GET, CONFIG_MAPS, query, None).await;
        assert_eq!((actual, status["message"].as_str()), (code, Some(message)), "{query}");
    }
    env.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn updates_in_yaml_are_accepted() {
    let env = test_env().await;
    let path = format!("{CONFIG_MAPS}/only-m2");
    let (_, object) = env.fleet_wide(Method::GET, &path, "", None).await;
    let version = &object["metadata"]["resourceVersion"];
    let yaml = format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: only-m2, namespace: default, resourceVersion: {version}}}\ndata: {{v: yaml}}\n"
    );
    let mut put = request(Method::PUT, "", "application/json", None);
    put.headers_mut().insert(header::CONTENT_TYPE, "application/yaml".parse().unwrap());
    put.headers_mut().insert(header::CONTENT_LENGTH, yaml.len().into());
    *put.body_mut() = crate::test_env::body(yaml);
    let (code, updated) = read(env.proxy.fleet_wide(&admin(), &path, put).await).await;
    assert_eq!((code, &updated["data"]), (200, &json!({"v": "yaml"})), "{updated}");
    env.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn search_cache_lists_like_karmada() {
    let env = test_env().await;
    let mut served = env.cache.served_version();
    while env.cache.served_resources(&ClusterName::control_plane()).is_none() {
        served.changed().await.unwrap();
    }
    let all = ["m1/both", "m1/only-m1", "m2/both", "m2/only-m2"];
    // Field selectors and limits are ignored.
    let query = format!("{LABELLED}&fieldSelector=metadata.name%3Dboth&limit=1");
    assert_eq!(names(&env.search(CONFIG_MAPS, &query).await.1), all);
    // A name returns the object, whatever the other options.
    let object_path = format!("{CONFIG_MAPS}/only-m1");
    assert_eq!(names(&env.search(&object_path, "watch=true").await.1), ["m1/only-m1"]);
    let clusters = "/apis/cluster.karmada.io/v1alpha1/clusters";
    let (code, list) = env.search(clusters, "").await;
    assert_eq!(
        (code, &list["kind"], &list["items"]),
        (200, &json!("ClusterList"), &json!([])),
        "the control plane's kind"
    );
    assert_eq!(env.search("/api/v1/ghosts", "").await.0, 404);
    let label = "unable to parse requirement: found 'b', expected: in, notin, =, ==, !=, gt, lt";
    let initial = "sendInitialEvents: Forbidden: sendInitialEvents is forbidden for list";
    for (path, query, error) in [
        (CONFIG_MAPS, "labelSelector=a%20b", label),
        (CONFIG_MAPS, "fieldSelector=a", "invalid selector: 'a'; can't understand 'a'"),
        (CONFIG_MAPS, "sendInitialEvents=true", initial),
        (object_path.as_str(), "sendInitialEvents=true", initial),
    ] {
        let (code, response) = env.search(path, query).await;
        assert_eq!((code, response), (400, json!({"error": error})), "{path}?{query}");
    }
    env.stop().await;
}
