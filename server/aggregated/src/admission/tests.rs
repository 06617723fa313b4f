//! Requests for public kinds with policies and webhooks in a real control plane.

use async_trait::async_trait;
use axum::Router;
use crowsnest_apimachinery::user::{AUTHENTICATED, MASTERS, UserInfo};
use crowsnest_apiserver::audit::Auditor;
use crowsnest_apiserver::outbound::InProcessServer;
use crowsnest_kube_apiserver::ApiServer;
use crowsnest_process::client_certificate::{Certificate, Peer};
use crowsnest_process::reload::ReloadCounters;
use crowsnest_proxy::MemberAdmission;
use crowsnest_registry::storage::ResourceKey;
use crowsnest_runtime::metrics::ProcessMetrics;
use http::{HeaderMap, Method, Request, header};
use http_body_util::BodyExt;
use parking_lot::Mutex;
use rstest::rstest;
use tower::ServiceExt;

use super::owner::OwnerAdmission;
use super::*;
use crate::request::context::RequestAttributes;
use crate::request::limits::Limits;
use crate::request::middleware::ApiMiddleware;
use crate::resource::registry::REGISTRY;
use crate::server::{AggregatedServer, router};

mod status;

const JSON: &str = "application/json";
const MERGE: &str = "application/merge-patch+json";
const STRATEGIC: &str = "application/strategic-merge-patch+json";
const JSON_PATCH: &str = "application/json-patch+json";
const APPLY: &str = "application/apply-patch+yaml";
const CLUSTERS: &str = "/apis/cluster.karmada.io/v1alpha1/clusters";
const REGISTRIES: &str = "/apis/search.karmada.io/v1alpha1/resourceregistries";
const SEARCHES: &str = "/apis/search.crowsnest.io/v1alpha1/savedsearches";

/// Time within which the aggregated server sees a new policy or webhook.
const FOLLOW_TIMEOUT: Duration = Duration::from_secs(60);

/// A control plane, and the aggregated server in front of it.
struct TestServers {
    server: ApiServer,
    aggregated: AggregatedServer,
    router: Router,
    chain: Arc<AdmissionChain>,
    hook: Arc<Hook>,
}

/// A response: code, body and `Warning` headers.
type TestResponse = (u16, Value, Vec<String>);

impl TestServers {
    async fn start() -> Self {
        let server = crate::stored::tests::start_control_plane().await;
        let (client, hook) = (server.admin(), Arc::new(Hook::default()));
        let delegated = DelegatedAuth::new(client.clone());
        let services = Arc::new(Services(Arc::clone(&hook)));
        let chain = Arc::new(AdmissionChain::new(client.clone(), delegated.clone(), services));
        server.spawn("policies and webhooks", Arc::clone(&chain).run(server.stop_token()));
        let middleware = ApiMiddleware {
            auditor: Auditor::default(),
            limits: Limits::new(0, 0),
            reloads: Arc::new(ReloadCounters::default()),
            metrics: Arc::new(ProcessMetrics::new()),
            timeout: Duration::from_secs(60),
        };
        let aggregated = AggregatedServer {
            registry: &REGISTRY,
            control_plane: client,
            delegated,
            admission: Arc::clone(&chain),
            roles: Arc::default(),
            middleware,
            metrics_adapter: false,
        };
        let router = router(aggregated.clone());
        Self { server, aggregated, router, chain, hook }
    }

    /// Creates policies, bindings and webhook configurations, and waits until the aggregated server has seen them.
    async fn configure(&self, objects: &[(&'static str, Value)]) {
        for (resource, object) in objects {
            let request = Request::post(format!("/apis/{GROUP}/v1/{resource}")).header(header::CONTENT_TYPE, JSON);
            let request = request.body(object.to_string().into_bytes()).unwrap();
            self.server.admin().request::<Value>(request).await.unwrap();
        }
        let seen = || {
            objects.iter().all(|(resource, _)| {
                let stored = self.server.registry().store.count(&ResourceKey::new(GROUP, resource));
                self.chain.configurations.objects(resource).len() == stored
            })
        };
        let follow = async {
            while !seen() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(FOLLOW_TIMEOUT, follow).await.expect("the aggregated server sees the objects");
    }

    async fn send(&self, method: &str, uri: &str, media_type: &str, body: &Value) -> TestResponse {
        let admin = Certificate::User(UserInfo::new("admin", [MASTERS, AUTHENTICATED]));
        let peer = Peer { certificate: admin, ..Peer::default() };
        let body = if body.is_null() { Body::empty() } else { Body::from(body.to_string()) };
        let request = Request::builder().method(method).uri(uri).header(header::CONTENT_TYPE, media_type);
        let response = self.router.clone().oneshot(request.extension(peer).body(body).unwrap()).await.unwrap();
        let warnings = response.headers().get_all(header::WARNING).iter();
        let warnings = warnings.map(|text| text.to_str().unwrap().to_owned()).collect();
        let code = response.status().as_u16();
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        (code, serde_json::from_slice(&bytes).unwrap_or_default(), warnings)
    }

    async fn create(&self, uri: &str, object: &Value) -> Value {
        let (code, created, _) = self.send("POST", uri, JSON, object).await;
        assert_eq!(code, 201, "{created}");
        created
    }

    async fn read(&self, uri: &str) -> Value {
        let (code, found, _) = self.send("GET", uri, JSON, &Value::Null).await;
        assert_eq!(code, 200, "{found}");
        found
    }
}

/// A webhook that denies objects with the label `deny`, labels others, and records the requests.
#[derive(Default)]
struct Hook(Mutex<Vec<Value>>);

#[async_trait]
impl InProcessServer for Hook {
    async fn serve(&self, request: Request<Body>) -> Response<Body> {
        let bytes = request.into_body().collect().await.unwrap().to_bytes();
        let review: Value = serde_json::from_slice(&bytes).unwrap();
        let request = &review["request"];
        let object = if request["object"].is_null() { &request["oldObject"] } else { &request["object"] };
        let denied = object.pointer("/metadata/labels/deny").is_some();
        let mut response = json!({"uid": request["uid"], "allowed": !denied, "warnings": ["seen"]});
        if denied {
            response["status"] = json!({"message": "denied by label", "code": 403, "reason": "Forbidden"});
        } else if object["kind"] == "Cluster"
            && request["operation"] == "CREATE"
            && object.pointer("/metadata/labels/hook").is_none()
        {
            // Only the mutating webhook sees an unlabelled Cluster:
            // [{"op":"add","path":"/metadata/labels","value":{"hook":"yes"}}]
            let patch = "W3sib3AiOiJhZGQiLCJwYXRoIjoiL21ldGFkYXRhL2xhYmVscyIsInZhbHVlIjp7Imhvb2siOiJ5ZXMifX1d";
            response["patchType"] = "JSONPatch".into();
            response["patch"] = patch.into();
        }
        let answer = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response});
        self.0.lock().push(request.clone());
        Response::new(Body::from(answer.to_string()))
    }
}

struct Services(Arc<Hook>);

impl ServiceResolver for Services {
    fn resolve(&self, _namespace: &str, _name: &str, _port: u16) -> Result<Endpoint, ResolveError> {
        Ok(Endpoint::InProcess(Arc::clone(&self.0) as Arc<dyn InProcessServer>))
    }
}

fn rule(resource: &str, operation: &str) -> Value {
    json!({"apiGroups": ["cluster.karmada.io", "search.karmada.io", "search.crowsnest.io"], "apiVersions": ["*"],
        "resources": [resource], "operations": [operation]})
}

/// A bound policy that denies what does not meet an expression.
fn validating_policy(name: &str, resource: &str, operation: &str, expression: &str) -> [(&'static str, Value); 2] {
    let validation = json!({"expression": expression, "message": format!("denied by {name}")});
    [
        (
            "validatingadmissionpolicies",
            json!({"metadata": {"name": name}, "spec": {"validations": [validation],
                "matchConstraints": {"resourceRules": [rule(resource, operation)]}}}),
        ),
        (
            "validatingadmissionpolicybindings",
            json!({"metadata": {"name": name}, "spec": {"policyName": name, "validationActions": ["Deny"]}}),
        ),
    ]
}

/// A bound policy that labels clusters.
fn mutating_policy(name: &str, operation: &str) -> [(&'static str, Value); 2] {
    let expression = format!("Object{{metadata: Object.metadata{{labels: {{'{name}': 'yes'}}}}}}");
    let mutation = json!({"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": expression}});
    [
        (
            "mutatingadmissionpolicies",
            json!({"metadata": {"name": name}, "spec": {"mutations": [mutation], "reinvocationPolicy": "Never",
                "failurePolicy": "Fail", "matchConstraints": {"resourceRules": [rule("clusters", operation)]}}}),
        ),
        ("mutatingadmissionpolicybindings", json!({"metadata": {"name": name}, "spec": {"policyName": name}})),
    ]
}

fn webhook(resource: &'static str, name: &str, rule: Value, side_effects: &str) -> (&'static str, Value) {
    let service = json!({"service": {"namespace": "hooks", "name": "hook"}});
    let webhook = json!({"name": name, "clientConfig": service, "rules": [rule], "sideEffects": side_effects,
        "admissionReviewVersions": ["v1"]});
    (resource, json!({"metadata": {"name": name}, "webhooks": [webhook]}))
}

fn cluster(name: &str) -> Value {
    json!({"apiVersion": "cluster.karmada.io/v1alpha1", "kind": "Cluster", "metadata": {"name": name},
        "spec": {"syncMode": "Push", "region": "east"}})
}

#[tokio::test(flavor = "multi_thread")]
async fn policies_decide_about_all_writes() {
    let servers = TestServers::start().await;
    servers.create(CLUSTERS, &cluster("m1")).await;
    servers.create(CLUSTERS, &cluster("m2")).await;
    let policies = [
        validating_policy("creates", "clusters", "CREATE", "object.metadata.name != 'bad'"),
        validating_policy(
            "updates",
            "clusters",
            "UPDATE",
            "object.spec.region != 'bad' && oldObject.spec.region == 'east'",
        ),
        validating_policy("deletes", "clusters", "DELETE", "oldObject.metadata.name != 'm1'"),
        validating_policy("states", "clusters/status", "UPDATE", "object.status.kubernetesVersion != 'bad'"),
        validating_policy(
            "proxies",
            "clusters/proxy",
            "CONNECT",
            "request.name != 'm1' || !object.path.contains('secrets')",
        ),
    ];
    servers.configure(&policies.concat()).await;
    let region = |region: &str| json!({"spec": {"region": region}});
    let with_region = |region: &str| {
        json!({"apiVersion": "cluster.karmada.io/v1alpha1", "kind": "Cluster",
        "metadata": {"name": "m1"}, "spec": {"syncMode": "Push", "region": region}})
    };
    let operation = |region: &str| json!([{"op": "replace", "path": "/spec/region", "value": region}]);
    let status = |version: &str| json!({"status": {"kubernetesVersion": version}});
    let status_with_region = json!({"spec": {"region": "bad"}, "status": {"kubernetesVersion": "v1.36.0"}});
    let (m1, proxy) = (format!("{CLUSTERS}/m1"), format!("{CLUSTERS}/m1/proxy/api/v1"));
    let cases = [
        ("POST", CLUSTERS.to_owned(), JSON, cluster("bad"), 422, "creates"),
        ("PATCH", format!("{CLUSTERS}/bad?fieldManager=me"), APPLY, cluster("bad"), 422, "creates"),
        ("PATCH", m1.clone(), MERGE, region("bad"), 422, "updates"),
        ("PATCH", m1.clone(), STRATEGIC, region("bad"), 422, "updates"),
        ("PATCH", m1.clone(), JSON_PATCH, operation("bad"), 422, "updates"),
        ("PATCH", format!("{m1}?fieldManager=me&force=true"), APPLY, with_region("bad"), 422, "updates"),
        ("PATCH", format!("{m1}?dryRun=All"), MERGE, region("bad"), 422, "updates"),
        ("PUT", m1.clone(), JSON, with_region("bad"), 422, "updates"),
        ("PATCH", format!("{m1}/status"), MERGE, status("bad"), 422, "states"),
        ("PATCH", format!("{m1}/status"), MERGE, status_with_region, 422, "updates"),
        ("DELETE", m1.clone(), JSON, Value::Null, 422, "deletes"),
        ("DELETE", m1.clone(), JSON, json!({"kind": "DeleteOptions", "dryRun": ["All"]}), 422, "deletes"),
        ("DELETE", CLUSTERS.to_owned(), JSON, Value::Null, 422, "deletes"),
        ("DELETE", format!("{CLUSTERS}?labelSelector=!none&dryRun=All"), JSON, Value::Null, 422, "deletes"),
        ("GET", format!("{proxy}/secrets"), JSON, Value::Null, 422, "proxies"),
        ("POST", format!("{proxy}/secrets"), JSON, json!({}), 422, "proxies"),
        // The proxies are not running in this test.
        ("GET", format!("{proxy}/pods"), JSON, Value::Null, 503, ""),
        ("PATCH", format!("{m1}/status"), MERGE, status("v1.36.0"), 200, ""),
        ("PUT", m1.clone(), JSON, with_region("east"), 200, ""),
        ("DELETE", format!("{CLUSTERS}?fieldSelector=metadata.name%3Dm2"), JSON, Value::Null, 200, ""),
        ("PATCH", m1.clone(), MERGE, region("west"), 200, ""),
        // The old object is part of the decision.
        ("PATCH", m1.clone(), MERGE, region("north"), 422, "updates"),
    ];
    for (method, uri, media_type, body, code, policy) in cases {
        let (actual_code, answer, _) = servers.send(method, &uri, media_type, &body).await;
        assert_eq!(actual_code, code, "{method} {uri} {body}: {answer}");
        if code == 422 {
            let expected_end = format!(
                "ValidatingAdmissionPolicy '{policy}' with binding '{policy}' denied request: denied by {policy}"
            );
            let message = answer["message"].as_str().unwrap();
            assert!(
                message.starts_with("clusters.cluster.karmada.io ") && message.ends_with(&expected_end),
                "{message}"
            );
            assert_eq!(answer["reason"], "Invalid");
        }
    }
    let remaining = servers.read(CLUSTERS).await;
    let names: Vec<&Value> =
        remaining["items"].as_array().unwrap().iter().map(|item| &item["metadata"]["name"]).collect();
    assert_eq!(names, [&json!("m1")]);
    let (spec, status) = (&remaining["items"][0]["spec"], &remaining["items"][0]["status"]);
    assert_eq!((&spec["region"], &status["kubernetesVersion"]), (&json!("west"), &json!("v1.36.0")));
    servers.server.stop().await.unwrap();
}

#[rstest]
#[case::merge("PATCH", "", MERGE, json!({"spec": {"region": "west"}}))]
#[case::strategic("PATCH", "", STRATEGIC, json!({"spec": {"region": "west"}}))]
#[case::json_patch("PATCH", "", JSON_PATCH, json!([{"op": "replace", "path": "/spec/region", "value": "west"}]))]
#[case::apply("PATCH", "?fieldManager=me&force=true", APPLY, json!({"apiVersion": "cluster.karmada.io/v1alpha1",
    "kind": "Cluster", "metadata": {"name": "m1"}, "spec": {"region": "west"}}))]
#[case::replacement("PUT", "", JSON, json!({"apiVersion": "cluster.karmada.io/v1alpha1", "kind": "Cluster",
    "metadata": {"name": "m1", "labels": {"creates": "yes"}}, "spec": {"syncMode": "Push", "region": "west"}}))]
#[tokio::test(flavor = "multi_thread")]
async fn mutating_policies_change_what_is_stored(
    #[case] method: &str,
    #[case] query: &str,
    #[case] media_type: &str,
    #[case] body: Value,
) {
    let servers = TestServers::start().await;
    servers.configure(&[mutating_policy("creates", "CREATE"), mutating_policy("updates", "UPDATE")].concat()).await;
    let created = servers.create(CLUSTERS, &cluster("m1")).await;
    assert_eq!(created["metadata"]["labels"], json!({"creates": "yes"}));
    let dry_run = if query.is_empty() { "?dryRun=All".to_owned() } else { format!("{query}&dryRun=All") };
    for query in [dry_run.as_str(), query] {
        let (code, answer, _) = servers.send(method, &format!("{CLUSTERS}/m1{query}"), media_type, &body).await;
        assert_eq!((code, &answer["spec"]["region"]), (200, &json!("west")), "{answer}");
        assert_eq!(answer["metadata"]["labels"], json!({"creates": "yes", "updates": "yes"}));
        let stored = servers.read(&format!("{CLUSTERS}/m1")).await;
        assert_eq!(stored["metadata"]["labels"].get("updates").is_some(), !query.contains("dryRun"));
    }
    servers.server.stop().await.unwrap();
}

/// As in kube-apiserver, mutation determines the name of an object that is posted, and cannot change the name in a
/// path.
#[tokio::test(flavor = "multi_thread")]
async fn mutation_cannot_change_the_name_in_the_path() {
    let servers = TestServers::start().await;
    servers.create(CLUSTERS, &cluster("m1")).await;
    let [(policies, mut policy), binding] = mutating_policy("renames", "*");
    let expression = "[JSONPatch{op: 'replace', path: '/metadata/name', value: 'other'}]";
    policy["spec"]["mutations"] = json!([{"patchType": "JSONPatch", "jsonPatch": {"expression": expression}}]);
    policy["spec"]["matchConstraints"]["resourceRules"][0]["operations"] = json!(["CREATE", "UPDATE"]);
    servers.configure(&[(policies, policy), binding]).await;
    let region = json!({"spec": {"region": "west"}});
    for (method, name, media_type, body) in
        [("PATCH", "m1", MERGE, &region), ("PUT", "m1", JSON, &cluster("m1")), ("PATCH", "m2", APPLY, &cluster("m2"))]
    {
        let uri = format!("{CLUSTERS}/{name}?fieldManager=me");
        let (code, refused, _) = servers.send(method, &uri, media_type, body).await;
        assert!(code == 400 || code == 422, "{method} {name}: {code} {refused}");
    }
    let remaining = servers.read(CLUSTERS).await;
    let names: Vec<&Value> =
        remaining["items"].as_array().unwrap().iter().map(|item| &item["metadata"]["name"]).collect();
    assert_eq!(names, [&json!("m1")]);
    assert_eq!(remaining["items"][0]["spec"]["region"], "east");
    assert_eq!(servers.create(CLUSTERS, &cluster("m3")).await["metadata"]["name"], "other");
    servers.server.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn webhooks_review_the_public_kind_for_the_caller() {
    let servers = TestServers::start().await;
    let all =
        json!({"apiGroups": ["*"], "apiVersions": ["*"], "resources": ["clusters", "clusters/*"], "operations": ["*"]});
    let unsafe_rule = rule("resourceregistries", "CREATE");
    servers
        .configure(&[
            webhook("mutatingwebhookconfigurations", "label.example.io", rule("clusters", "CREATE"), "None"),
            webhook("validatingwebhookconfigurations", "deny.example.io", all, "None"),
            webhook("validatingwebhookconfigurations", "effects.example.io", unsafe_rule, "NoneOnDryRun"),
        ])
        .await;
    let created = servers.create(CLUSTERS, &cluster("m1")).await;
    assert_eq!(created["metadata"]["labels"], json!({"hook": "yes"}));
    let requests = std::mem::take(&mut *servers.hook.0.lock());
    let [mutating, validating] = requests.as_slice() else { panic!("{requests:?}") };
    for request in [mutating, validating] {
        assert_eq!(request["kind"], json!({"group": "cluster.karmada.io", "version": "v1alpha1", "kind": "Cluster"}));
        assert_eq!(
            (&request["userInfo"]["username"], &request["object"]["kind"]),
            (&json!("admin"), &json!("Cluster"))
        );
    }
    assert_eq!(validating["object"]["metadata"]["labels"], json!({"hook": "yes"}));
    let labels = json!({"metadata": {"labels": {"deny": "yes"}}});
    let (code, refused, warnings) = servers.send("PATCH", &format!("{CLUSTERS}/m1"), MERGE, &labels).await;
    let message = "admission webhook \"deny.example.io\" denied the request: denied by label";
    assert_eq!((code, &refused["message"]), (403, &json!(message)));
    assert_eq!(warnings, ["299 - \"seen\""]);
    let (_, _, _) = servers.send("GET", &format!("{CLUSTERS}/m1/proxy/api/v1/pods/?watch=1"), JSON, &Value::Null).await;
    let connect = servers.hook.0.lock().pop().unwrap();
    assert_eq!(
        connect["object"],
        json!({"kind": "ClusterProxyOptions", "apiVersion": "cluster.karmada.io/v1alpha1", "path": "/api/v1/pods/"})
    );
    let subject = ["operation", "name", "subResource"].map(|field| connect[field].as_str().unwrap());
    assert_eq!((subject, &connect["kind"]["kind"]), (["CONNECT", "m1", "proxy"], &json!("ClusterProxyOptions")));
    let registry = json!({"apiVersion": "search.karmada.io/v1alpha1", "kind": "ResourceRegistry",
        "metadata": {"name": "r"}, "spec": {"targetCluster": {}, "resourceSelectors": []}});
    let (code, created, warnings) = servers.send("POST", &format!("{REGISTRIES}?dryRun=All"), JSON, &registry).await;
    assert_eq!((code, warnings.len()), (201, 1), "NoneOnDryRun allows dry runs: {created}");
    servers.server.stop().await.unwrap();
}

#[rstest]
#[case::member("/apis/cluster.karmada.io/v1alpha1/clusters/m1/proxy/api/v1/pods/p", false)]
#[case::all_members("/apis/cluster.karmada.io/v1alpha1/clusters/*/proxy/api/v1/pods/p", true)]
#[case::fleet("/apis/search.karmada.io/v1alpha1/proxying/karmada/proxy/api/v1/pods/p?cluster=m1", true)]
#[case::object("/apis/cluster.karmada.io/v1alpha1/clusters/m1", false)]
#[tokio::test(flavor = "multi_thread")]
async fn requests_to_owners_are_admitted_as_those_to_named_members(#[case] uri: &str, #[case] expected: bool) {
    let servers = TestServers::start().await;
    let expression = "request.name != 'm1' || object.path != '/api/v1/pods/p'";
    servers.configure(&validating_policy("proxies", "clusters/proxy", "CONNECT", expression)).await;
    let attributes = RequestAttributes::parse(&REGISTRY, &Method::GET, &uri.parse().unwrap(), &HeaderMap::new());
    let user = UserInfo::new("ann", [AUTHENTICATED]);
    let context = RequestContext { user, peer: Peer::default(), attributes, audit: None };
    let owner = OwnerAdmission::for_request(&servers.aggregated, &context, &Method::GET);
    assert_eq!(owner.is_some(), expected);
    if let Some(owner) = owner {
        let refused = owner.admit(&"m1".parse().unwrap()).await.unwrap_err();
        assert!(refused.message.ends_with("denied by proxies"), "{}", refused.message);
        owner.admit(&"m2".parse().unwrap()).await.unwrap();
    }
    servers.server.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_webhook_that_cannot_be_called_refuses_the_request() {
    let servers = TestServers::start().await;
    servers.create(CLUSTERS, &cluster("m1")).await;
    let (resource, mut configuration) =
        webhook("validatingwebhookconfigurations", "gone.example.io", rule("clusters/*", "CONNECT"), "None");
    configuration["webhooks"][0]["clientConfig"] = json!({"url": "https://127.0.0.1:9/"});
    servers.configure(&[(resource, configuration)]).await;
    let (code, refused, _) = servers.send("GET", &format!("{CLUSTERS}/m1/proxy/api/v1/pods"), JSON, &Value::Null).await;
    let message = refused["message"].as_str().unwrap();
    assert!(code == 500 && message.contains("failed calling webhook \"gone.example.io\""), "{code} {message}");
    servers.server.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn other_stored_kinds_are_admitted() {
    let servers = TestServers::start().await;
    let registry = json!({"apiVersion": "search.karmada.io/v1alpha1", "kind": "ResourceRegistry",
        "metadata": {"name": "r"}, "spec": {"targetCluster": {}, "resourceSelectors": []}});
    let search = json!({"apiVersion": "search.crowsnest.io/v1alpha1", "kind": "SavedSearch", "metadata": {"name": "s"},
        "spec": {"title": "pods", "query": "kind:pod"}});
    servers.create(REGISTRIES, &registry).await;
    servers.create(SEARCHES, &search).await;
    let policies = ["resourceregistries", "savedsearches"].map(|resource| {
        let names = ["UPDATE", "DELETE"].map(|operation| {
            let name = format!("{resource}-{}", operation.to_lowercase());
            validating_policy(&name, resource, operation, "request.userInfo.username != 'admin'")
        });
        names.concat()
    });
    servers.configure(&policies.concat()).await;
    for (collection, name) in [(REGISTRIES, "r"), (SEARCHES, "s")] {
        let uri = format!("{collection}/{name}");
        let labels = json!({"metadata": {"labels": {"a": "1"}}});
        for (method, body) in [("PATCH", labels), ("DELETE", Value::Null)] {
            let (code, refused, _) =
                servers.send(method, &uri, if method == "PATCH" { MERGE } else { JSON }, &body).await;
            assert_eq!((code, &refused["reason"]), (422, &json!("Invalid")), "{method} {uri}: {refused}");
        }
        assert!(servers.read(&uri).await["metadata"]["labels"].is_null());
    }
    servers.server.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn policies_read_parameters_and_permissions() {
    let servers = TestServers::start().await;
    let limits = json!({"metadata": {"name": "limits"}, "data": {"region": "east"}});
    let request = Request::post("/api/v1/namespaces/default/configmaps").header(header::CONTENT_TYPE, JSON);
    let request = request.body(limits.to_string().into_bytes()).unwrap();
    servers.server.admin().request::<Value>(request).await.unwrap();
    let may_read = "authorizer.group('').resource('secrets').namespace('default').check('get').allowed()";
    let expression = format!("object.spec.region == params.data.region && {may_read}");
    let [(policies, mut policy), (bindings, mut binding)] =
        validating_policy("regions", "clusters", "CREATE", &expression);
    policy["spec"]["paramKind"] = json!({"apiVersion": "v1", "kind": "ConfigMap"});
    binding["spec"]["paramRef"] = json!({"name": "limits", "namespace": "default", "parameterNotFoundAction": "Deny"});
    servers.configure(&[(policies, policy), (bindings, binding)]).await;
    servers.create(CLUSTERS, &cluster("m1")).await;
    let mut elsewhere = cluster("m2");
    elsewhere["spec"]["region"] = "west".into();
    let (code, refused, _) = servers.send("POST", CLUSTERS, JSON, &elsewhere).await;
    assert_eq!(code, 422, "{refused}");
    servers.server.stop().await.unwrap();
}
