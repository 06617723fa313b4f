//! Impersonation permissions on a running server.

use axum::body::Body;
use crowsnest_apimachinery::user::{MASTERS, UserInfo};
use http::Request;
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::http::client::InProcessService;
use crate::{ApiServer, Config, Data};

const REVIEW: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";

/// Sends a POST request; returns status code and response object.
async fn post(service: &InProcessService, path: &str, headers: &[(&str, &str)], body: Value) -> (u16, Value) {
    let request = headers.iter().fold(Request::post(path), |request, (name, value)| request.header(*name, *value));
    let request = request.header("content-type", "application/json").body(Body::from(body.to_string())).unwrap();
    let response = service.clone().oneshot(request).await.unwrap();
    let code = response.status().as_u16();
    let body = axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap();
    (code, serde_json::from_slice(&body).unwrap_or_default())
}

#[tokio::test]
async fn each_impersonated_attribute_needs_its_permission() {
    let server = ApiServer::start(Config::new("test", Data::Memory)).await.unwrap();
    let user = |name: &str, groups: &[&str]| {
        let groups = groups.iter().map(|group| (*group).to_owned()).collect();
        server.service(UserInfo { name: name.into(), groups, ..UserInfo::default() })
    };
    let (admin, ops) = (user("admin", &[MASTERS]), user("ops", &["system:authenticated"]));
    let rule = |group: &str, resource: &str, names: &[&str]| json!({"verbs": ["impersonate"], "apiGroups": [group], "resources": [resource], "resourceNames": names});
    let rbac = "rbac.authorization.k8s.io";
    let role = json!({"metadata": {"name": "speaks-as"}, "rules": [
        rule("", "users", &["jane"]), rule("", "groups", &["devs"]), rule("", "serviceaccounts", &["bot"]),
        rule("authentication.k8s.io", "uids", &["u1"]), rule("authentication.k8s.io", "userextras/scopes", &["view"]),
    ]});
    let binding = json!({"metadata": {"name": "speaks-as"},
        "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": "speaks-as"},
        "subjects": [{"apiGroup": rbac, "kind": "User", "name": "ops"}]});
    for (resource, object) in [("clusterroles", role), ("clusterrolebindings", binding)] {
        let (code, response) = post(&admin, &format!("/apis/{rbac}/v1/{resource}"), &[], object).await;
        assert_eq!(code, 201, "{response}");
    }

    let jane = ("impersonate-user", "jane");
    let (group, uid) = (("impersonate-group", "devs"), ("impersonate-uid", "u1"));
    let scopes = ("impersonate-extra-scopes", "view");
    let (code, response) = post(&ops, REVIEW, &[jane, group, uid, scopes], json!({})).await;
    let expected = json!({"username": "jane", "uid": "u1", "groups": ["devs", "system:authenticated"],
        "extra": {"scopes": ["view"]}});
    assert_eq!((code, &response["status"]["userInfo"]), (201, &expected), "{response}");
    let bot = ("impersonate-user", "system:serviceaccount:default:bot");
    let (code, response) = post(&ops, REVIEW, &[bot], json!({})).await;
    let groups = json!(["system:serviceaccounts", "system:serviceaccounts:default", "system:authenticated"]);
    assert_eq!((code, &response["status"]["userInfo"]["groups"]), (201, &groups), "{response}");

    let refused = |subject: &str, resource: &str, group: &str, name: &str| {
        format!(
            "{subject} \"{name}\" is forbidden: User \"ops\" cannot impersonate resource \"{resource}\" in API group \"{group}\" at the cluster scope"
        )
    };
    let authentication = "authentication.k8s.io";
    for (headers, reason) in [
        (vec![("impersonate-user", "john")], refused("users", "users", "", "john")),
        (vec![jane, ("impersonate-group", MASTERS)], refused("groups", "groups", "", MASTERS)),
        (vec![jane, ("impersonate-uid", "u2")], refused("uids.authentication.k8s.io", "uids", authentication, "u2")),
        (
            vec![jane, ("impersonate-extra-scopes", "edit")],
            refused("userextras.authentication.k8s.io", "userextras/scopes", authentication, "edit"),
        ),
        (
            vec![jane, ("impersonate-extra-other", "view")],
            refused("userextras.authentication.k8s.io", "userextras/other", authentication, "view"),
        ),
    ] {
        let (code, status) = post(&ops, REVIEW, &headers, json!({})).await;
        assert_eq!((code, status["message"].as_str()), (403, Some(reason.as_str())), "{headers:?}");
    }
    // The other headers require a user name.
    let (code, status) = post(&ops, REVIEW, &[uid], json!({})).await;
    let text = status["message"].as_str().unwrap_or_default();
    assert!(code == 400 && text.ends_with("without impersonating a user name"), "{code} {status}");
    server.stop().await.unwrap();
}

/// The modes of KEP-5284: permissions to impersonate name the mode and the request.
#[tokio::test]
async fn constrained_impersonation_is_tried_first() {
    let server = ApiServer::start(Config::new("test", Data::Memory)).await.unwrap();
    let user = |name: &str, groups: &[&str]| {
        let groups = groups.iter().map(|group| (*group).to_owned()).collect();
        server.service(UserInfo { name: name.into(), groups, ..UserInfo::default() })
    };
    let (admin, ops) = (user("admin", &[MASTERS]), user("ops", &["system:authenticated"]));
    let (rbac, authentication) = ("rbac.authorization.k8s.io", "authentication.k8s.io");
    let rule = |verb: &str, resource: &str, names: &[&str]| json!({"verbs": [verb], "apiGroups": [authentication], "resources": [resource], "resourceNames": names});
    let role = json!({"metadata": {"name": "speaks-as"}, "rules": [
        rule("impersonate:user-info", "users", &["jane"]), rule("impersonate:user-info", "groups", &["devs"]),
        rule("impersonate:serviceaccount", "serviceaccounts", &["bot"]), rule("impersonate:arbitrary-node", "nodes", &["n1"]),
        rule("impersonate-on:user-info:create", "selfsubjectreviews", &[]),
        rule("impersonate-on:serviceaccount:create", "selfsubjectreviews", &[]),
        rule("impersonate-on:arbitrary-node:create", "selfsubjectreviews", &[]),
    ]});
    let binding = json!({"metadata": {"name": "speaks-as"},
        "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": "speaks-as"},
        "subjects": [{"apiGroup": rbac, "kind": "User", "name": "ops"}]});
    // Without permissions, the first mode refuses.
    let (code, status) = post(&ops, REVIEW, &[("impersonate-user", "jane")], json!({})).await;
    let reason = "selfsubjectreviews.authentication.k8s.io is forbidden: User \"ops\" cannot impersonate-on:user-info:create resource \"selfsubjectreviews\" in API group \"authentication.k8s.io\" at the cluster scope";
    assert_eq!((code, status["message"].as_str()), (403, Some(reason)));
    for (resource, object) in [("clusterroles", role), ("clusterrolebindings", binding)] {
        let (code, response) = post(&admin, &format!("/apis/{rbac}/v1/{resource}"), &[], object).await;
        assert_eq!(code, 201, "{response}");
    }
    for (name, groups) in [
        ("jane", json!(["system:authenticated"])),
        (
            "system:serviceaccount:default:bot",
            json!(["system:serviceaccounts", "system:serviceaccounts:default", "system:authenticated"]),
        ),
        ("system:node:n1", json!(["system:nodes", "system:authenticated"])),
    ] {
        let (code, response) = post(&ops, REVIEW, &[("impersonate-user", name)], json!({})).await;
        assert_eq!((code, &response["status"]["userInfo"]["groups"]), (201, &groups), "{name}: {response}");
    }
    // The permissions allow neither other requests nor the impersonation of administrators.
    let config_maps = "/api/v1/namespaces/default/configmaps";
    let masters = [("impersonate-user", "jane"), ("impersonate-group", MASTERS)];
    for (path, headers) in [(config_maps, &masters[..1]), (REVIEW, &masters[..])] {
        let (code, status) = post(&ops, path, headers, json!({})).await;
        assert_eq!(code, 403, "{status}");
    }
    server.stop().await.unwrap();
}
