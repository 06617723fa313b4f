//! OpenAPI documents of a running server with a custom resource.

use std::collections::BTreeSet;

use crowsnest_registry::resource::ResourceRef;
use serde_json::{Value, json};

use crate::{ApiServer, Config, Data};

async fn get(client: &kube::Client, path: &str) -> Value {
    let request = http::Request::get(path).body(Vec::new()).unwrap();
    client.request(request).await.unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Starts a server with the custom resource Challenge.
async fn start_with_challenges() -> (ApiServer, kube::Client) {
    let server = ApiServer::start(Config::new("test", Data::Memory)).await.unwrap();
    let client = server.admin();
    let definition = json!({"metadata": {"name": "challenges.acme.cert-manager.io"}, "spec": {
        "group": "acme.cert-manager.io", "scope": "Namespaced", "names": {"plural": "challenges", "kind": "Challenge"},
        "versions": [{"name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
            "selectableFields": [{"jsonPath": ".spec.url"}],
            "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                "spec": {"type": "object", "properties": {"url": {"type": "string"}}}, "status": {"type": "object"}}}}}]}});
    let request = http::Request::post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions")
        .header("content-type", "application/json");
    client.request::<Value>(request.body(definition.to_string().into_bytes()).unwrap()).await.unwrap();
    let mut changed = server.registry().catalog.subscribe();
    while !server.registry().catalog.snapshot().serves("acme.cert-manager.io", "v1") {
        changed.changed().await.unwrap();
    }
    (server, client)
}

#[tokio::test]
async fn servers_share_the_schemas_of_equal_definitions() {
    let (first, second) = (start_with_challenges().await.0, start_with_challenges().await.0);
    let [challenges, others] = [&first, &second].map(|server| {
        let served = server.registry().catalog.snapshot();
        served.by_kind("acme.cert-manager.io/v1", "Challenge").cloned().unwrap()
    });
    let schema = |resource: &ResourceRef| resource.strategy.published_schema().map(std::ptr::from_ref).unwrap();
    assert_eq!(schema(&challenges), schema(&others));
    assert!(challenges.is_custom() && challenges.strategy.schema().unwrap().field("spec").is_some());
    for server in [first, second] {
        server.stop().await.unwrap();
    }
}

#[tokio::test]
async fn documents_follow_changes_of_selectable_fields() {
    let (server, client) = start_with_challenges().await;
    let selectable_fields = async || {
        let document = get(&client, "/openapi/v3/apis/acme.cert-manager.io/v1").await;
        let schemas = &document["components"]["schemas"];
        schemas["io.cert-manager.acme.v1.Challenge"]["x-kubernetes-selectable-fields"].clone()
    };
    assert!(selectable_fields().await.is_array());
    let mut changed = server.registry().catalog.subscribe();
    let definition = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/challenges.acme.cert-manager.io";
    let request = http::Request::patch(definition).header("content-type", "application/json-patch+json");
    let patch = json!([{"op": "remove", "path": "/spec/versions/0/selectableFields"}]);
    client.request::<Value>(request.body(patch.to_string().into_bytes()).unwrap()).await.unwrap();
    let is_selectable = || {
        let served = server.registry().catalog.snapshot();
        let challenges = served.by_kind("acme.cert-manager.io/v1", "Challenge").unwrap();
        !challenges.strategy.selectable_fields(&Value::Null).is_empty()
    };
    while is_selectable() {
        changed.changed().await.unwrap();
    }
    assert_eq!(selectable_fields().await, Value::Null);
    server.stop().await.unwrap();
}

/// The operations of a document: method, path and operation.
fn operations(document: &Value) -> impl Iterator<Item = (String, &Value)> {
    document["paths"].as_object().into_iter().flatten().flat_map(|(path, item)| {
        let methods = item.as_object().into_iter().flatten().filter(|(method, _)| *method != "parameters");
        methods.map(move |(method, operation)| (format!("{method} {path}"), operation))
    })
}

fn references(node: &Value, out: &mut BTreeSet<String>) {
    match node {
        Value::Object(fields) => fields.iter().for_each(|(key, value)| match value {
            Value::String(target) if key == "$ref" => drop(out.insert(target.trim_start_matches('#').to_owned())),
            value => references(value, out),
        }),
        Value::Array(items) => items.iter().for_each(|item| references(item, out)),
        _ => {}
    }
}

fn check_references(document: &Value, name: &str) {
    let mut found = BTreeSet::new();
    references(document, &mut found);
    let missing: Vec<&String> = found.iter().filter(|pointer| document.pointer(pointer).is_none()).collect();
    assert!(missing.is_empty(), "{name}: {missing:?}");
}

#[tokio::test]
async fn operations_have_unique_ids() {
    const IDS: [(&str, &str); 26] = [
        ("get /api/", "getCoreAPIVersions"),
        ("get /apis/", "getAPIVersions"),
        ("get /apis/apps/", "getAppsAPIGroup"),
        ("get /apis/rbac.authorization.k8s.io/v1/", "getRbacAuthorizationV1APIResources"),
        ("get /version/", "getCodeVersion"),
        ("get /api/v1/pods", "listCoreV1PodForAllNamespaces"),
        ("get /api/v1/namespaces/{namespace}/pods", "listCoreV1NamespacedPod"),
        ("delete /api/v1/namespaces/{namespace}/pods", "deleteCoreV1CollectionNamespacedPod"),
        ("get /api/v1/watch/pods", "watchCoreV1PodListForAllNamespaces"),
        ("get /api/v1/watch/namespaces/{namespace}/pods", "watchCoreV1NamespacedPodList"),
        ("get /api/v1/watch/namespaces/{namespace}/pods/{name}", "watchCoreV1NamespacedPod"),
        ("get /api/v1/watch/nodes", "watchCoreV1NodeList"),
        ("get /api/v1/namespaces/{namespace}/pods/{name}/log", "readCoreV1NamespacedPodLog"),
        ("post /api/v1/namespaces/{namespace}/pods/{name}/exec", "connectCoreV1PostNamespacedPodExec"),
        ("post /api/v1/namespaces/{namespace}/pods/{name}/eviction", "createCoreV1NamespacedPodEviction"),
        (
            "get /api/v1/namespaces/{namespace}/services/{name}/proxy/{path}",
            "connectCoreV1GetNamespacedServiceProxyWithPath",
        ),
        ("head /api/v1/nodes/{name}/proxy", "connectCoreV1HeadNodeProxy"),
        ("put /api/v1/namespaces/{name}/finalize", "replaceCoreV1NamespaceFinalize"),
        ("get /apis/apps/v1/namespaces/{namespace}/deployments/{name}/scale", "readAppsV1NamespacedDeploymentScale"),
        ("post /apis/authentication.k8s.io/v1/tokenreviews", "createAuthenticationV1TokenReview"),
        (
            "patch /apis/certificates.k8s.io/v1/certificatesigningrequests/{name}/approval",
            "patchCertificatesV1CertificateSigningRequestApproval",
        ),
        ("get /apis/acme.cert-manager.io/v1/challenges", "listAcmeCertManagerIoV1ChallengeForAllNamespaces"),
        (
            "get /apis/acme.cert-manager.io/v1/namespaces/{namespace}/challenges",
            "listAcmeCertManagerIoV1NamespacedChallenge",
        ),
        (
            "delete /apis/acme.cert-manager.io/v1/namespaces/{namespace}/challenges",
            "deleteAcmeCertManagerIoV1CollectionNamespacedChallenge",
        ),
        (
            "put /apis/acme.cert-manager.io/v1/namespaces/{namespace}/challenges/{name}/status",
            "replaceAcmeCertManagerIoV1NamespacedChallengeStatus",
        ),
        ("get /.well-known/openid-configuration/", "getServiceAccountIssuerOpenIDConfiguration"),
    ];
    let (server, client) = start_with_challenges().await;
    let document = get(&client, "/openapi/v2").await;
    check_references(&document, "v2");
    let mut ids = BTreeSet::new();
    for (path, operation) in operations(&document) {
        let id = operation["operationId"].as_str().unwrap_or_else(|| panic!("{path} has no ID"));
        assert!(ids.insert(id), "{id} is not unique: {path}");
        assert!(operation["description"].as_str().is_some_and(|text| !text.is_empty()), "{path} has no description");
    }
    for (path, id) in IDS {
        let found = operations(&document).find(|(operation_path, _)| operation_path == path);
        assert_eq!(found.map(|(_, operation)| &operation["operationId"]), Some(&json!(id)), "{path}");
    }
    server.stop().await.unwrap();
}

#[tokio::test]
async fn the_index_lists_every_document() {
    let (server, client) = start_with_challenges().await;
    let index = get(&client, "/openapi/v3").await;
    let documents = index["paths"].as_object().unwrap();
    for name in [
        ".well-known/openid-configuration",
        "api",
        "api/v1",
        "apis",
        "apis/acme.cert-manager.io/v1",
        "apis/apiextensions.k8s.io",
        "apis/apps",
        "apis/apps/v1",
        "openid/v1/jwks",
        "version",
    ] {
        assert!(documents.contains_key(name), "{name}");
    }
    assert!(!documents.contains_key("apis/acme.cert-manager.io"), "groups of custom resources have no document");
    let mut ids = BTreeSet::new();
    for (name, entry) in documents {
        let document = get(&client, entry["serverRelativeURL"].as_str().unwrap()).await;
        check_references(&document, name);
        let found = operations(&document).map(|(_, operation)| operation["operationId"].to_string());
        let are_new: Vec<bool> = found.map(|id| ids.insert(id)).collect();
        assert!(!are_new.is_empty() && are_new.iter().all(|is_new| *is_new), "{name}");
    }
    let challenges = get(&client, "/openapi/v3/apis/acme.cert-manager.io/v1").await;
    let fields =
        &challenges["components"]["schemas"]["io.cert-manager.acme.v1.Challenge"]["x-kubernetes-selectable-fields"];
    assert_eq!(fields, &json!([{"fieldPath": "spec.url"}]));
    server.stop().await.unwrap();
}
