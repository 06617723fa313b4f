//! Audit annotations that webhooks add to a write on a running server.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use axum::body::Body;
use base64::Engine;
use crowsnest_apimachinery::names::Gvr;
use crowsnest_apimachinery::request::Query;
use crowsnest_apimachinery::request::options::WriteOptions;
use crowsnest_apimachinery::user::UserInfo;
use crowsnest_apiserver::audit::log::{AuditLog, Destination, LogFile};
use crowsnest_apiserver::audit::policy::Policy;
use crowsnest_apiserver::audit::{Attributes, Auditor, Request};
use crowsnest_apiserver::outbound::InProcessServer;
use crowsnest_registry::strategy::RequestContext;
use http::{HeaderMap, Uri};
use kube::api::{Api, DynamicObject, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use rstest::rstest;
use serde_json::{Value, json};

use crate::{ApiServer, Config, Data};

/// Responds to each review with the same response.
struct FixedWebhook(Value);

#[async_trait]
impl InProcessServer for FixedWebhook {
    async fn serve(&self, request: http::Request<Body>) -> http::Response<Body> {
        let body = axum::body::to_bytes(request.into_body(), usize::MAX).await.unwrap();
        let mut review: Value = serde_json::from_slice(&body).unwrap();
        let mut response = self.0.clone();
        response["uid"] = review["request"]["uid"].clone();
        review["response"] = response;
        http::Response::new(Body::from(review.to_string()))
    }
}

/// A response with a patch that sets an annotation of the object, and audit annotations.
fn patch_response(name: &str, annotations: Value) -> Value {
    let patch = json!([{"op": "add", "path": format!("/metadata/annotations/{name}"), "value": "<x>"}]).to_string();
    let patch = base64::engine::general_purpose::STANDARD.encode(patch);
    json!({"allowed": true, "patchType": "JSONPatch", "patch": patch, "auditAnnotations": annotations})
}

/// A webhook for ConfigMaps. Services that are not mounted cannot be reached.
fn webhook(name: &str, more: &Value) -> Value {
    let mut webhook = json!({"name": format!("{name}.example.com"), "admissionReviewVersions": ["v1"],
        "sideEffects": "None", "failurePolicy": "Ignore", "timeoutSeconds": 1,
        "clientConfig": {"service": {"namespace": "default", "name": name}},
        "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]}]});
    webhook.as_object_mut().unwrap().extend(more.as_object().cloned().unwrap_or_default());
    webhook
}

async fn configure(server: &ApiServer, kind: &str, webhooks: Value) {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("admissionregistration.k8s.io", "v1", kind));
    let api: Api<DynamicObject> = Api::all_with(server.admin(), &resource);
    let types =
        json!({"apiVersion": resource.api_version, "kind": kind, "metadata": {"name": "c"}, "webhooks": webhooks});
    api.create(&PostParams::default(), &serde_json::from_value(types).unwrap()).await.unwrap();
}

/// Creates a ConfigMap under an audit level; returns the annotations of its last event.
async fn audited_create(server: &ApiServer, level: &str) -> BTreeMap<String, String> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("audit.log");
    let file = LogFile { path: path.clone(), max_bytes: 0, max_backups: 0, max_age_days: 0 };
    let (log, writer) = AuditLog::start(Destination::File(file)).unwrap();
    let rule = json!({"level": level, "resources": [{"group": "", "resources": ["configmaps"]}]});
    let policy = json!({"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": [rule]}).to_string();
    let auditor = Auditor::new(Policy::parse(&policy).unwrap(), log, ());
    let user = UserInfo::new("jane", ["dev"]);
    let attributes = Attributes {
        verb: "create".to_owned(),
        version: "v1".to_owned(),
        resource: "configmaps".to_owned(),
        namespace: "default".to_owned(),
        ..Attributes::default()
    };
    let request = Request {
        audit_id: "id",
        received_at: jiff::Timestamp::now(),
        uri: &Uri::from_static("/api/v1/namespaces/default/configmaps"),
        headers: &HeaderMap::new(),
        peer: None,
        attributes: &attributes,
        forwarded: None,
    };
    let record = auditor.begin(&request, Some(&user), false).await;
    assert!(record.is_some());
    let context = RequestContext {
        user,
        now: jiff::Timestamp::now(),
        dry_run: false,
        subresource: String::new(),
        namespace: "default".to_owned(),
        record,
    };
    let resource = server.registry().catalog.get(&Gvr::new("", "v1", "configmaps")).unwrap();
    let options = WriteOptions::parse("CreateOptions", &Query::default(), "test", false).unwrap();
    let object = json!({"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": level.to_lowercase(), "namespace": "default", "labels": {"a": "b"}, "annotations": {"a": "b"}}});
    server.registry().create(&resource, &context, object, &options, &mut Vec::new()).await.unwrap();
    drop(context);
    writer.stop().await;
    let text = std::fs::read_to_string(&path).unwrap();
    let event: Value = serde_json::from_str(text.lines().next_back().unwrap()).unwrap();
    assert_eq!(event["stage"], "ResponseComplete");
    serde_json::from_value(event["annotations"].clone()).unwrap()
}

const MUTATIONS: &[(&str, &str)] = &[
    (
        "mutation.webhook.admission.k8s.io/round_0_index_0",
        r#"{"configuration":"c","webhook":"gone.example.com","mutated":false}"#,
    ),
    ("failed-open.mutation.webhook.admission.k8s.io/round_0_index_0", "gone.example.com"),
    (
        "mutation.webhook.admission.k8s.io/round_0_index_2",
        r#"{"configuration":"c","webhook":"first.example.com","mutated":true}"#,
    ),
    (
        "mutation.webhook.admission.k8s.io/round_0_index_3",
        r#"{"configuration":"c","webhook":"second.example.com","mutated":true}"#,
    ),
    (
        "mutation.webhook.admission.k8s.io/round_1_index_2",
        r#"{"configuration":"c","webhook":"first.example.com","mutated":false}"#,
    ),
    ("first.example.com/note", "seen"),
    ("failed-open.validating.webhook.admission.k8s.io/round_0_index_1", "absent.example.com"),
    ("agree.example.com/note", "valid"),
];

const PATCHES: &[(&str, &str)] = &[
    (
        "patch.webhook.admission.k8s.io/round_0_index_2",
        r#"{"configuration":"c","webhook":"first.example.com","patch":[{"op":"add","path":"/metadata/annotations/first","value":"\u003cx\u003e"}],"patchType":"JSONPatch"}"#,
    ),
    (
        "patch.webhook.admission.k8s.io/round_0_index_3",
        r#"{"configuration":"c","webhook":"second.example.com","patch":[{"op":"add","path":"/metadata/annotations/second","value":"\u003cx\u003e"}],"patchType":"JSONPatch"}"#,
    ),
    (
        "patch.webhook.admission.k8s.io/round_1_index_2",
        r#"{"configuration":"c","webhook":"first.example.com","patch":[{"op":"add","path":"/metadata/annotations/first","value":"\u003cx\u003e"}],"patchType":"JSONPatch"}"#,
    ),
];

/// Keys that a webhook returns are ignored if they are not valid annotation keys.
#[rstest]
#[case::metadata("Metadata", &[MUTATIONS])]
#[case::request("Request", &[MUTATIONS, PATCHES])]
#[tokio::test]
async fn calls_of_webhooks_are_annotated(#[case] level: &str, #[case] expected: &[&[(&str, &str)]]) {
    let server = ApiServer::start(Config::new("test", Data::Memory)).await.unwrap();
    let mounted = [
        ("first", patch_response("first", json!({"note": "seen", "no/key": "x", "": "y"}))),
        ("second", patch_response("second", json!({}))),
        ("agree", json!({"allowed": true, "auditAnnotations": {"note": "valid"}})),
    ];
    for (name, response) in mounted {
        server.services().in_process.mount("default", name, Arc::new(FixedWebhook(response)));
    }
    let elsewhere = json!({"objectSelector": {"matchLabels": {"a": "other"}}});
    let mutating = json!([
        webhook("gone", &Value::Null),
        webhook("elsewhere", &elsewhere),
        webhook("first", &json!({"reinvocationPolicy": "IfNeeded"})),
        webhook("second", &Value::Null),
    ]);
    configure(&server, "MutatingWebhookConfiguration", mutating).await;
    let validating =
        json!([webhook("elsewhere", &elsewhere), webhook("agree", &Value::Null), webhook("absent", &Value::Null)]);
    configure(&server, "ValidatingWebhookConfiguration", validating).await;

    let expected: BTreeMap<String, String> =
        expected.concat().into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
    assert_eq!(audited_create(&server, level).await, expected);
    server.stop().await.unwrap();
}
