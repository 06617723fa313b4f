//! Tests who may decide where a Cluster's tokens are sent, for each way to write a Cluster.

use super::*;
use crate::request::authentication::DelegatedAuth;
use crowsnest_apimachinery::user::UserInfo;
use rstest::rstest;

const JSON: &str = "application/json";
const YAML: &str = "application/yaml";
const MERGE: &str = "application/merge-patch+json";
const JSON_PATCH: &str = "application/json-patch+json";
const APPLY: &str = "application/apply-patch+yaml";

const REGISTRIES: StoredGroup = StoredGroup { kind: &crowsnest_api::storage::RESOURCE_REGISTRIES, columns: None };

/// A control plane with a registered cluster, and accounts with permissions for some Secrets.
struct TestServer {
    server: ApiServer,
    delegated: DelegatedAuth,
}

impl TestServer {
    async fn start() -> Self {
        let server = start_control_plane().await;
        let role_for_secret = |user: &str, name: &str, verb: &str| {
            let metadata = json!({"name": format!("{user}-{name}"), "namespace": "karmada-cluster"});
            let group = "rbac.authorization.k8s.io";
            let subject = json!({"apiGroup": group, "kind": "User", "name": user});
            let role = json!({"apiGroup": group, "kind": "Role", "name": metadata["name"]});
            let rule = json!({"apiGroups": [""], "resources": ["secrets"], "resourceNames": [name], "verbs": [verb]});
            [
                json!({"apiVersion": format!("{group}/v1"), "kind": "Role", "metadata": metadata, "rules": [rule]}),
                json!({"apiVersion": format!("{group}/v1"), "kind": "RoleBinding", "metadata": metadata, "roleRef": role,
                    "subjects": [subject]}),
            ]
        };
        let agent = "system:karmada:agent:m1";
        let mut manifests =
            vec![json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "karmada-cluster"}})];
        manifests.extend(role_for_secret("reader", "m1", "get"));
        manifests.extend(role_for_secret("reader", "m2", "get"));
        manifests.extend(role_for_secret(agent, "m1", "patch"));
        manifests.extend(role_for_secret(agent, "m1-impersonator", "patch"));
        manifests.extend(role_for_kind(agent, "clusters", &["create", "patch"]));
        manifests.extend(role_for_kind("patcher", "clusters", &["patch", "update"]));
        manifests.extend(role_for_kind("patcher", "resourceregistries", &["patch", "update"]));
        crowsnest_install::apply_all(&server.admin(), &manifests).await.unwrap();
        let delegated = DelegatedAuth::new(server.admin());
        let test = Self { server, delegated };
        let (code, created) = test.admin("POST", "/clusters", JSON, &cluster("m1", "m1")).await;
        assert_eq!(code, 201, "{created}");
        test
    }

    async fn admin(&self, method: &str, resource_path: &str, content_type: &str, body: &Value) -> (u16, Value) {
        super::call(&self.server, method, resource_path, content_type, body).await
    }

    async fn call(
        &self,
        user: &str,
        request: http::request::Builder,
        resource_path: &str,
        body: String,
    ) -> (u16, Value) {
        let groups: &[&str] = if user.starts_with("system:karmada") { &["system:karmada:agents"] } else { &[] };
        let user = UserInfo::new(user, groups.iter().copied());
        let writer = Writer { delegated: &self.delegated, user: &user };
        let uri = format!("/apis/cluster.karmada.io/v1alpha1{resource_path}");
        serve(CLUSTERS, &self.server, resource_path, request.uri(uri).body(Body::from(body)).unwrap(), Some(writer))
            .await
    }

    async fn read_stored(&self) -> Value {
        self.admin("GET", "/clusters/m1", JSON, &Value::Null).await.1["spec"].clone()
    }
}

/// A role with these verbs on a kind of the aggregated server, and its binding.
fn role_for_kind(user: &str, resource: &str, verbs: &[&str]) -> [Value; 2] {
    let group = "rbac.authorization.k8s.io";
    let served = if resource == "clusters" { CLUSTERS } else { REGISTRIES }.kind.group;
    let metadata = json!({"name": format!("{user}-{resource}")});
    let role = json!({"apiGroup": group, "kind": "ClusterRole", "name": metadata["name"]});
    let rule = json!({"apiGroups": [served], "resources": [resource], "verbs": verbs});
    [
        json!({"apiVersion": format!("{group}/v1"), "kind": "ClusterRole", "metadata": metadata, "rules": [rule]}),
        json!({"apiVersion": format!("{group}/v1"), "kind": "ClusterRoleBinding", "metadata": metadata, "roleRef": role,
            "subjects": [{"apiGroup": group, "kind": "User", "name": user}]}),
    ]
}

fn cluster(name: &str, secret: &str) -> Value {
    json!({"apiVersion": "cluster.karmada.io/v1alpha1", "kind": "Cluster", "metadata": {"name": name},
        "spec": {"syncMode": "Pull", "apiEndpoint": "https://10.0.0.1", "region": "east",
            "secretRef": {"namespace": "karmada-cluster", "name": secret}}})
}

/// A write of `change` to the spec of cluster m1, by one of [`WRITE_METHODS`].
fn write(write_method: &str, change: &Value, live: &Value) -> (&'static str, &'static str, &'static str, String) {
    let mut complete = cluster("m1", "m1");
    json_patch::merge(&mut complete["spec"], change);
    let mut versioned = complete.clone();
    versioned["metadata"]["resourceVersion"] = live["metadata"]["resourceVersion"].clone();
    let applied =
        json!({"apiVersion": complete["apiVersion"], "kind": "Cluster", "metadata": {"name": "m1"}, "spec": change});
    let operations = change.as_object().unwrap().iter();
    let operations =
        operations.map(|(key, value)| json!({"op": "add", "path": format!("/spec/{key}"), "value": value}));
    let patch = json!({"spec": change}).to_string();
    match write_method {
        "put" => ("PUT", "/clusters/m1", JSON, versioned.to_string()),
        "put yaml" => ("PUT", "/clusters/m1", YAML, versioned.to_string()),
        "put unconditional" => ("PUT", "/clusters/m1", JSON, complete.to_string()),
        "merge" => ("PATCH", "/clusters/m1", MERGE, patch),
        "strategic" => ("PATCH", "/clusters/m1", STRATEGIC, patch),
        "json patch" => ("PATCH", "/clusters/m1", JSON_PATCH, Value::from_iter(operations).to_string()),
        "apply" => ("PATCH", "/clusters/m1?fieldManager=me&force=true", APPLY, applied.to_string()),
        // The value of another parameter contains `dryRun=All`.
        "merge with a manager" => ("PATCH", "/clusters/m1?fieldManager=dryRun=All", MERGE, patch),
        "merge as a table" => ("PATCH", "/clusters/m1?as=table", MERGE, patch),
        other => panic!("{other}"),
    }
}

fn request(write_method: &str, method: &str, content_type: &str) -> http::request::Builder {
    let accept = if write_method.ends_with("table") { "application/json;as=Table;v=v1;g=meta.k8s.io" } else { JSON };
    Request::builder().method(method).header("content-type", content_type).header("accept", accept)
}

const WRITE_METHODS: [&str; 9] = [
    "put",
    "put yaml",
    "put unconditional",
    "merge",
    "strategic",
    "json patch",
    "apply",
    "merge with a manager",
    "merge as a table",
];

#[tokio::test]
async fn callers_without_the_right_to_read_a_token_cannot_redirect_it() {
    let test = TestServer::start().await;
    let (before, live) = (test.read_stored().await, test.admin("GET", "/clusters/m1", JSON, &Value::Null).await.1);
    let changes = [
        json!({"apiEndpoint": "https://evil"}),
        json!({"proxyURL": "https://evil"}),
        json!({"proxyHeader": {"a": "b"}}),
        json!({"insecureSkipTLSVerification": true}),
        json!({"secretRef": {"namespace": "karmada-cluster", "name": "m2"}, "apiEndpoint": "https://evil"}),
        json!({"impersonatorSecretRef": {"namespace": "kube-system", "name": "admin"}}),
        json!({"syncMode": "Push"}),
    ];
    for write_method in WRITE_METHODS {
        for change in &changes {
            let (method, resource_path, content_type, body) = write(write_method, change, &live);
            let (code, response) =
                test.call("eve", request(write_method, method, content_type), resource_path, body).await;
            assert_eq!((code, &response["reason"]), (403, &json!("Forbidden")), "{write_method} {change}: {response}");
            assert_eq!(test.read_stored().await, before, "{write_method} {change}");
        }
    }
    test.server.stop().await.unwrap();
}

#[tokio::test]
async fn readers_of_the_token_set_its_destination_and_others_the_other_fields() {
    let test = TestServer::start().await;
    for (nth, write_method) in WRITE_METHODS.into_iter().enumerate() {
        let writes = [
            ("reader", json!({"apiEndpoint": format!("https://10.0.1.{nth}"), "region": "east"}), 200),
            ("eve", json!({"apiEndpoint": format!("https://10.0.1.{nth}"), "region": format!("r{nth}")}), 200),
            ("system:karmada:agent:m1", json!({"apiEndpoint": format!("https://10.0.2.{nth}")}), 200),
            ("system:karmada:agent:m2", json!({"region": "stolen"}), 403),
            ("system:karmada:agent:m1", json!({"secretRef": {"namespace": "karmada-cluster", "name": "m2"}}), 403),
        ];
        for (user, change, expected) in writes {
            let live = test.admin("GET", "/clusters/m1", JSON, &Value::Null).await.1;
            let (method, resource_path, content_type, body) = write(write_method, &change, &live);
            let (code, response) =
                test.call(user, request(write_method, method, content_type), resource_path, body).await;
            assert_eq!(code, expected, "{write_method} {user} {change}: {response}");
        }
        assert_eq!(test.read_stored().await["apiEndpoint"], format!("https://10.0.2.{nth}"), "{write_method}");
    }
    test.server.stop().await.unwrap();
}

/// An agent can have a certificate for the name of a cluster that another user joined.
#[tokio::test]
async fn agents_do_not_write_clusters_that_were_joined() {
    let test = TestServer::start().await;
    let (code, response) = test.admin("PATCH", "/clusters/m1", MERGE, &json!({"spec": {"syncMode": "Push"}})).await;
    assert_eq!(code, 200, "{response}");
    let (before, live) = (test.read_stored().await, test.admin("GET", "/clusters/m1", JSON, &Value::Null).await.1);
    for write_method in WRITE_METHODS {
        for change in [json!({"syncMode": "Pull"}), json!({"region": "west"}), json!({"syncMode": "Pull", "id": "x"})] {
            let (method, resource_path, content_type, body) = write(write_method, &change, &live);
            let agent = "system:karmada:agent:m1";
            let (code, response) =
                test.call(agent, request(write_method, method, content_type), resource_path, body).await;
            assert_eq!((code, &response["reason"]), (403, &json!("Forbidden")), "{write_method} {change}: {response}");
        }
    }
    assert_eq!(test.read_stored().await, before);
    test.server.stop().await.unwrap();
}

#[rstest]
#[case::own_names("eve", "m3", "m3", 403)]
#[case::token_of_another("eve", "m3", "m1", 403)]
#[case::reader_of_the_token("reader", "m3", "m2", 201)]
#[case::agent_of_another("system:karmada:agent:m1", "m3", "m3", 403)]
#[case::agent_with_the_token_of_another("system:karmada:agent:m1", "m1", "m2", 403)]
#[case::agent("system:karmada:agent:m1", "m1", "m1", 201)]
#[tokio::test]
async fn new_clusters_need_permissions_to_their_tokens(
    #[case] user: &str,
    #[case] name: &str,
    #[case] secret: &str,
    #[case] expected: u16,
) {
    let test = TestServer::start().await;
    let complete = cluster(name, secret);
    // Apply could also change another caller's cluster of that name, created concurrently. Therefore permissions for the
    // Secrets of that cluster are required as well, and agents may only create.
    let expected_for_apply = 403;
    for (method, resource_path, content_type, expected) in [
        ("POST", "/clusters".to_owned(), JSON, expected),
        ("POST", "/clusters".to_owned(), YAML, expected),
        ("PATCH", format!("/clusters/{name}?fieldManager=me&force=true"), APPLY, expected_for_apply),
    ] {
        assert_eq!(test.admin("DELETE", &format!("/clusters/{name}"), JSON, &json!({})).await.0 / 100 % 2, 0);
        let (code, response) =
            test.call(user, request("", method, content_type), &resource_path, complete.to_string()).await;
        assert_eq!(code, expected, "{content_type}: {response}");
    }
    test.server.stop().await.unwrap();
}

/// Apply creates what does not exist, with the account of this process.
#[tokio::test]
async fn apply_creates_for_callers_who_may_create() {
    let test = TestServer::start().await;
    let plain = |name: &str| {
        json!({"apiVersion": "cluster.karmada.io/v1alpha1", "kind": "Cluster", "metadata": {"name": name},
            "spec": {"syncMode": "Pull", "region": "west"}})
    };
    let apply = |resource_path: &str, object: Value| {
        let (resource_path, object) = (format!("{resource_path}?fieldManager=me&force=true"), object.to_string());
        let test = &test;
        async move { test.call("patcher", request("", "PATCH", APPLY), &resource_path, object).await }
    };
    let (code, response) = apply("/clusters/m3", plain("m3")).await;
    let reason = "clusters.cluster.karmada.io \"m3\" is forbidden: User \"patcher\" cannot create resource \"clusters\" in API group \"cluster.karmada.io\" at the cluster scope";
    assert_eq!((code, response["message"].as_str()), (403, Some(reason)), "{response}");
    // The status of a missing Cluster cannot be written, even with a spec.
    let mut with_status = plain("m3");
    with_status["status"] = json!({"kubernetesVersion": "v1.36.0"});
    let (code, response) = apply("/clusters/m3/status", with_status).await;
    assert_eq!(code, 404, "{response}");
    assert_eq!(test.admin("GET", "/clusters/m3", JSON, &Value::Null).await.0, 404);
    let (code, response) = apply("/clusters/m1", plain("m1")).await;
    assert_eq!((code, &response["spec"]["region"]), (200, &json!("west")), "{response}");
    test.server.stop().await.unwrap();
}

#[tokio::test]
async fn registries_are_applied_by_callers_who_may_create_them() {
    let test = TestServer::start().await;
    let registry = json!({"apiVersion": "search.karmada.io/v1alpha1", "kind": "ResourceRegistry",
        "metadata": {"name": "r"}, "spec": {"targetCluster": {},
        "resourceSelectors": [{"apiVersion": "v1", "kind": "ConfigMap"}]}});
    let user = UserInfo::new("patcher", [""; 0]);
    for (user, expected) in [(Some(&user), 403), (None, 201), (Some(&user), 200)] {
        let writer = user.map(|user| Writer { delegated: &test.delegated, user });
        let resource_path = "/resourceregistries/r?fieldManager=me&force=true";
        let request = request("", "PATCH", APPLY).uri(format!("/apis/search.karmada.io/v1alpha1{resource_path}"));
        let request = request.body(Body::from(registry.to_string())).unwrap();
        let (code, response) = serve(REGISTRIES, &test.server, resource_path, request, writer).await;
        assert_eq!(code, expected, "{response}");
    }
    test.server.stop().await.unwrap();
}

/// Values of a Secret are sent to a search engine only for writers who may read them.
#[tokio::test]
async fn secrets_of_backend_stores_are_reviewed() {
    let test = TestServer::start().await;
    let registry = json!({"apiVersion": "search.karmada.io/v1alpha1", "kind": "ResourceRegistry",
        "metadata": {"name": "r"}, "spec": {"targetCluster": {},
        "resourceSelectors": [{"apiVersion": "v1", "kind": "ConfigMap"}]}});
    let store = json!({"openSearch": {"addresses": ["https://search"], "secretRef": {"namespace": "karmada-cluster", "name": "m1"}}});
    let call = async |user: Option<&str>, method: &str, content_type: &str, resource_path: &str, body: &Value| {
        let user = user.map(|user| UserInfo::new(user, [""; 0]));
        let writer = user.as_ref().map(|user| Writer { delegated: &test.delegated, user });
        let request = request("", method, content_type).uri(format!("/apis/search.karmada.io/v1alpha1{resource_path}"));
        let request = request.body(Body::from(body.to_string())).unwrap();
        serve(REGISTRIES, &test.server, resource_path, request, writer).await
    };
    let mut with_store = registry.clone();
    with_store["spec"]["backendStore"] = store.clone();
    let reason = "resourceregistries.search.karmada.io \"r\" is forbidden: User \"eve\" cannot get secret \"karmada-cluster\"/\"m1\" of \
               spec.backendStore.openSearch.secretRef: deciding where the values of a Secret are sent requires that permission (the registry is new)";
    let (code, response) = call(Some("eve"), "POST", JSON, "/resourceregistries", &with_store).await;
    assert_eq!((code, response["message"].as_str()), (403, Some(reason)), "{response}");
    let resource_path = "/resourceregistries/r?fieldManager=me";
    let patch = json!({"spec": {"backendStore": store}});
    let writes = [
        ("PUT", JSON, with_store.clone()),
        ("PATCH", MERGE, patch.clone()),
        ("PATCH", STRATEGIC, patch),
        ("PATCH", JSON_PATCH, json!([{"op": "add", "path": "/spec/backendStore", "value": store}])),
        ("PATCH", APPLY, with_store.clone()),
    ];
    for (method, content_type, body) in writes {
        let (code, response) = call(None, "POST", JSON, "/resourceregistries", &registry).await;
        assert_eq!(code, 201, "{response}");
        let (code, response) = call(Some("eve"), method, content_type, resource_path, &body).await;
        assert_eq!(code, 403, "{method} {content_type}: {response}");
        let (_, live) = call(None, "GET", JSON, "/resourceregistries/r", &Value::Null).await;
        assert_eq!(live["spec"]["backendStore"], Value::Null);
        let (code, response) = call(Some("reader"), method, content_type, resource_path, &body).await;
        assert_eq!((code, &response["spec"]["backendStore"]), (200, &store), "{method} {content_type}: {response}");
        // A change that keeps the destination of the values needs no permission to read them; another address does.
        let (code, response) =
            call(Some("eve"), "PATCH", MERGE, resource_path, &json!({"spec": {"resourceSelectors": []}})).await;
        assert_eq!(code, 200, "{response}");
        let moved = json!({"spec": {"backendStore": {"openSearch": {"addresses": ["https://evil"]}}}});
        assert_eq!(call(Some("eve"), "PATCH", MERGE, resource_path, &moved).await.0, 403);
        assert_eq!(call(None, "DELETE", JSON, "/resourceregistries/r", &Value::Null).await.0, 200);
    }
    test.server.stop().await.unwrap();
}

/// Formats that API servers support and this server does not, and JSON with a misleading media type.
#[rstest]
#[case("PATCH", "application/apply-patch+cbor")]
#[case("PATCH", "Application/Merge-Patch+JSON")]
#[case("PATCH", "application/strategic-merge-patch+json; charset=utf-8")]
#[case("PUT", "application/vnd.kubernetes.protobuf")]
#[case("PUT", "application/cbor")]
#[case("PUT", "Application/JSON")]
#[case("PUT", "")]
#[tokio::test]
async fn bodies_that_cannot_be_reviewed_are_not_written(#[case] method: &str, #[case] content_type: &str) {
    let test = TestServer::start().await;
    let (before, live) = (test.read_stored().await, test.admin("GET", "/clusters/m1", JSON, &Value::Null).await.1);
    let (.., body) =
        write(if method == "PUT" { "put" } else { "merge" }, &json!({"apiEndpoint": "https://evil"}), &live);
    let (code, response) = test.call("eve", request("", method, content_type), "/clusters/m1", body).await;
    assert!((400..500).contains(&code), "{code} {response}");
    assert_eq!(test.read_stored().await, before);
    test.server.stop().await.unwrap();
}

/// A concurrent write between review and write is not overwritten.
#[rstest]
#[case::merge(json!({"spec": {"region": "west"}}), json!({"metadata": {"resourceVersion": "7"}, "spec": {"region": "west"}}))]
#[case::apply(json!({"metadata": {"name": "m1"}}), json!({"metadata": {"name": "m1", "resourceVersion": "7"}}))]
#[case::json_patch(json!([]), json!([{"op": "add", "path": "/metadata/resourceVersion", "value": "7"}]))]
fn patches_name_the_version_that_was_reviewed(#[case] patch: Value, #[case] expected: Value) {
    let versioned = writer::patch_with_expected_version(patch.to_string().as_bytes(), "7").unwrap();
    assert_eq!(serde_json::from_slice::<Value>(&versioned).unwrap(), expected);
}

#[tokio::test]
async fn a_patch_with_an_old_version_conflicts() {
    let test = TestServer::start().await;
    for (content_type, patch) in [
        (MERGE, json!({"spec": {"region": "west"}})),
        (JSON_PATCH, json!([{"op": "add", "path": "/spec/region", "value": "west"}])),
        (APPLY, json!({"apiVersion": "cluster.karmada.io/v1alpha1", "kind": "Cluster", "metadata": {"name": "m1"}})),
    ] {
        let versioned = writer::patch_with_expected_version(patch.to_string().as_bytes(), "1").unwrap();
        let resource_path = "/clusters/m1?fieldManager=me";
        let (code, response) =
            test.admin("PATCH", resource_path, content_type, &serde_json::from_slice(&versioned).unwrap()).await;
        assert_eq!((code, &response["reason"]), (409, &json!("Conflict")), "{content_type}: {response}");
    }
    test.server.stop().await.unwrap();
}
