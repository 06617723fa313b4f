//! A write to the status changes only the status, and a write to the object changes everything else, with each type of
//! patch. As in Karmada, the exception is a caller who may write the Cluster itself: it may do so through the status.

use super::*;
use crate::request::authentication::DelegatedAuth;
use crowsnest_apimachinery::user::UserInfo;
use rstest::rstest;

const JSON: &str = "application/json";
const MERGE: &str = "application/merge-patch+json";
const JSON_PATCH: &str = "application/json-patch+json";
const APPLY: &str = "application/apply-patch+yaml";

struct Kind {
    group: StoredGroup,
    kind: &'static str,
    plural: &'static str,
    spec: Value,
    other_spec: Value,
}

fn kind(plural: &str) -> Kind {
    let secret = |name: &str| json!({"namespace": "karmada-cluster", "name": name});
    match plural {
        "clusters" => Kind {
            group: CLUSTERS,
            kind: "Cluster",
            plural: "clusters",
            spec: json!({"syncMode": "Push", "apiEndpoint": "https://m1", "secretRef": secret("m1")}),
            other_spec: json!({"syncMode": "Push", "apiEndpoint": "https://evil", "secretRef": secret("m2")}),
        },
        _ => Kind {
            group: StoredGroup { kind: &crowsnest_api::storage::RESOURCE_REGISTRIES, columns: None },
            kind: "ResourceRegistry",
            plural: "resourceregistries",
            spec: json!({"targetCluster": {}, "resourceSelectors": []}),
            other_spec: json!({"targetCluster": {"clusterNames": ["m1"]}, "resourceSelectors": []}),
        },
    }
}

/// Body of a write with spec and status.
fn body(kind: &Kind, content_type: &str, spec: &Value, status: &Value, live: &Value) -> Value {
    match content_type {
        JSON_PATCH => {
            json!([{"op": "add", "path": "/spec", "value": spec}, {"op": "add", "path": "/status", "value": status}])
        }
        MERGE | STRATEGIC => json!({"metadata": {"labels": {"b": "2"}}, "spec": spec, "status": status}),
        _ => {
            let metadata = json!({"name": "m1", "labels": {"b": "2"}});
            let mut object = json!({"apiVersion": format!("{}/v1alpha1", kind.group.kind.group), "kind": kind.kind,
                "metadata": metadata, "spec": spec, "status": status});
            if content_type == JSON {
                object["metadata"]["resourceVersion"] = live["metadata"]["resourceVersion"].clone();
            }
            object
        }
    }
}

#[rstest]
#[tokio::test]
async fn each_write_changes_its_own_part(
    #[values("clusters", "resourceregistries")] plural: &str,
    #[values(JSON, MERGE, JSON_PATCH, STRATEGIC, APPLY)] content_type: &str,
) {
    let server = start_control_plane().await;
    let kind = kind(plural);
    let (delegated, eve) = (DelegatedAuth::new(server.admin()), UserInfo::new("eve", ["dev"]));
    let call = async |method: &str, resource_path: &str, content_type: &str, body: &Value| {
        let uri = format!(
            "/apis/{}/v1alpha1{resource_path}?fieldManager=me&force={}",
            kind.group.kind.group,
            content_type == APPLY
        );
        let uri = if content_type == APPLY { uri } else { uri.replace("&force=false", "") };
        let request = Request::builder().method(method).uri(uri).header("content-type", content_type);
        let request = request.body(Body::from(body.to_string())).unwrap();
        // Only callers that may write the status reach this code.
        let writer = resource_path.ends_with("/status").then_some(Writer { delegated: &delegated, user: &eve });
        serve(kind.group, &server, resource_path, request, writer).await
    };
    let created = json!({"apiVersion": format!("{}/v1alpha1", kind.group.kind.group), "kind": kind.kind,
        "metadata": {"name": "m1"}, "spec": kind.spec});
    let (code, live) = call("POST", &format!("/{}", kind.plural), JSON, &created).await;
    assert_eq!(code, 201, "{live}");
    let method = if content_type == JSON { "PUT" } else { "PATCH" };
    let status = json!({"conditions": [{"type": "Ready", "status": "True", "reason": "R", "message": "",
        "lastTransitionTime": "2024-01-01T00:00:00Z"}]});

    let sent = body(&kind, content_type, &kind.other_spec, &status, &live);
    let (code, written) = call(method, &format!("/{}/m1/status", kind.plural), content_type, &sent).await;
    assert_eq!(code, 200, "{written}");
    assert_eq!((&written["spec"], &written["status"]), (&kind.spec, &status));
    assert_eq!(written["metadata"]["generation"], live["metadata"]["generation"]);

    let sent = body(&kind, content_type, &kind.other_spec, &json!({"conditions": []}), &written);
    let (code, written) = call(method, &format!("/{}/m1", kind.plural), content_type, &sent).await;
    assert_eq!(code, 200, "{written}");
    assert_eq!((&written["spec"], &written["status"]), (&kind.other_spec, &status));
    server.stop().await.unwrap();
}

/// A refused status leaves the spec in the same body unwritten.
#[rstest]
#[tokio::test]
async fn refused_writes_of_the_status_write_nothing(#[values(JSON, MERGE, STRATEGIC)] content_type: &str) {
    let server = start_with_cluster().await;
    let method = if content_type == JSON { "PUT" } else { "PATCH" };
    let spec = json!({"syncMode": "Push", "region": "west"});
    let kind = kind("clusters");
    let sent = body(&kind, content_type, &spec, &json!({"conditions": "none"}), &json!({}));
    let (code, refused) = super::call(&server, method, "/clusters/m1/status", content_type, &sent).await;
    assert_eq!((code, &refused["reason"]), (422, &json!("Invalid")), "{refused}");
    let (_, found) = super::call(&server, "GET", "/clusters/m1", JSON, &Value::Null).await;
    assert_eq!(found["spec"]["region"], "east", "{found}");
    server.stop().await.unwrap();
}

/// A read requires only permission to read, even if its request has a patch as its body. Therefore it must not write.
#[rstest]
#[tokio::test]
async fn reads_with_a_patch_body_write_nothing(#[values("GET", "DELETE")] method: &str) {
    let server = start_with_cluster().await;
    let patch = json!({"spec": {"region": "stolen"}});
    let (_, response) = super::call(&server, method, "/clusters/m1?dryRun=All", STRATEGIC, &patch).await;
    assert_ne!(response["spec"]["region"], "stolen", "{response}");
    let (_, found) = super::call(&server, "GET", "/clusters/m1", JSON, &Value::Null).await;
    assert_ne!(found["spec"]["region"], "stolen", "{found}");
    server.stop().await.unwrap();
}
