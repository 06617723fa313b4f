//! Privilege escalation checks for roles and bindings on a running server; expected responses are those of
//! kube-apiserver.

use axum::body::Body;
use crowsnest_apimachinery::user::{MASTERS, UserInfo};
use http::Request;
use rstest::rstest;
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::{ApiServer, Config, Data};

const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";
const GROUP: &str = "rbac.authorization.k8s.io";

async fn send(server: &ApiServer, user: &str, line: &str, body: &Value) -> (u16, String) {
    let groups = if user == "admin" { vec![MASTERS.to_owned()] } else { Vec::new() };
    let service = server.service(UserInfo { name: user.into(), groups, ..UserInfo::default() });
    let (method, path) = line.split_once(' ').unwrap();
    let (method, media) = match method {
        "APPLY" => ("PATCH", "application/apply-patch+yaml"),
        "PATCH" => ("PATCH", "application/merge-patch+json"),
        method => (method, "application/json"),
    };
    let request = Request::builder().method(method).uri(format!("{RBAC}/{path}")).header("content-type", media);
    let response = service.oneshot(request.body(Body::from(body.to_string())).unwrap()).await.unwrap();
    let code = response.status().as_u16();
    let body = axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap();
    let response: Value = serde_json::from_slice(&body).unwrap_or_default();
    (code, response["message"].as_str().unwrap_or_default().to_owned())
}

fn rules(verb: &str) -> Value {
    json!([{"apiGroups": [""], "resources": ["secrets"], "verbs": [verb]}])
}

fn role(name: &str, rules: Value) -> Value {
    json!({"apiVersion": format!("{GROUP}/v1"), "kind": "ClusterRole", "metadata": {"name": name}, "rules": rules})
}

fn aggregation() -> Value {
    json!({"clusterRoleSelectors": [{"matchLabels": {"to": "x"}}]})
}

fn binding(kind: &str, name: &str, users: &[&str]) -> Value {
    let subjects: Vec<Value> = users.iter().map(|user| json!({"kind": "User", "name": user})).collect();
    json!({"metadata": {"name": "b"}, "roleRef": {"apiGroup": GROUP, "kind": kind, "name": name}, "subjects": subjects})
}

/// Starts a server. `plain` can write all roles and bindings and get config maps; `escalates` and `binds` have their
/// verb for some names; `all` has all permissions without being in `system:masters`.
async fn start_server() -> ApiServer {
    let server = ApiServer::start(Config::new("test", Data::Memory)).await.unwrap();
    let kinds = ["roles", "clusterroles", "rolebindings", "clusterrolebindings"];
    let config = json!({"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"]});
    let writes = json!([{"apiGroups": [GROUP], "resources": kinds, "verbs": ["create", "update", "patch"]}, config]);
    let rules_with_names = |verb: &str, names: &[&str]| json!([{"apiGroups": [GROUP], "resources": ["clusterroles"], "resourceNames": names, "verbs": [verb]}]);
    let mut aggregates = role("aggregates", json!([]));
    aggregates["aggregationRule"] = aggregation();
    let roles = [
        role("writes", writes),
        role("escalates", rules_with_names("escalate", &["named"])),
        role("binds", rules_with_names("bind", &["strong", "none"])),
        role("strong", rules("get")),
        role("weak", json!([config])),
        aggregates,
    ];
    let mut objects: Vec<(&str, Value)> = roles.into_iter().map(|role| ("POST clusterroles", role)).collect();
    for (role, users) in [
        ("writes", &["plain", "escalates", "binds"][..]),
        ("escalates", &["escalates"]),
        ("binds", &["binds"]),
        ("cluster-admin", &["all"]),
        ("strong", &["nobody"]),
    ] {
        let mut binding = binding("ClusterRole", role, users);
        binding["metadata"]["name"] = format!("of-{role}").into();
        objects.push(("POST clusterrolebindings", binding));
    }
    for (line, body) in objects {
        let (code, message) = send(&server, "admin", line, &body).await;
        assert_eq!(code, 201, "{message}");
    }
    server
}

const CLUSTER_ADMIN: &str = "must have cluster-admin privileges to use the aggregationRule";
const SECRETS: &str = "is attempting to grant RBAC permissions not currently held:\n{APIGroups:[\"\"], Resources:[\"secrets\"], Verbs:[\"get\"]}";
const STRONG: &str = "PATCH clusterroles/strong";
const LABEL: &str = r#"{"metadata": {"labels": {"rbac.authorization.k8s.io/aggregate-to-view": "true"}}}"#;

#[rstest]
#[case::label("plain", STRONG, LABEL, 403, SECRETS)]
#[case::label_on_role_with_held_permissions("plain", "PATCH clusterroles/weak", LABEL, 200, "")]
#[case::label_by_admin("admin", STRONG, LABEL, 200, "")]
#[case::label_by_user_with_all_permissions("all", STRONG, LABEL, 200, "")]
#[case::finalizer("plain", STRONG, r#"{"metadata": {"finalizers": ["x.example.com/y"]}}"#, 200, "")]
#[case::no_change("plain", STRONG, r#"{"metadata": {"annotations": {}}}"#, 200, "")]
#[case::aggregation_added(
    "plain",
    "PATCH clusterroles/weak",
    r#"{"aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {"to": "x"}}]}}"#,
    403,
    CLUSTER_ADMIN
)]
#[case::aggregation_removed(
    "plain",
    "PATCH clusterroles/aggregates",
    r#"{"aggregationRule": null}"#,
    403,
    CLUSTER_ADMIN
)]
#[case::aggregation_unchanged("plain", "PATCH clusterroles/aggregates", LABEL, 403, CLUSTER_ADMIN)]
#[case::finalizer_on_aggregated_role(
    "plain",
    "PATCH clusterroles/aggregates",
    r#"{"metadata": {"finalizers": ["x.example.com/y"]}}"#,
    200,
    ""
)]
#[case::aggregation_removed_by_user_with_all_permissions(
    "all",
    "PATCH clusterroles/aggregates",
    r#"{"aggregationRule": null}"#,
    200,
    ""
)]
#[case::binding_label("plain", "PATCH clusterrolebindings/of-strong", LABEL, 403, SECRETS)]
#[case::binding_label_with_bind("binds", "PATCH clusterrolebindings/of-strong", LABEL, 200, "")]
#[case::binding_finalizer(
    "plain",
    "PATCH clusterrolebindings/of-strong",
    r#"{"metadata": {"finalizers": ["x.example.com/y"]}}"#,
    200,
    ""
)]
#[case::subjects_removed("plain", "PATCH clusterrolebindings/of-strong", r#"{"subjects": null}"#, 403, SECRETS)]
#[case::subjects_removed_with_bind("binds", "PATCH clusterrolebindings/of-strong", r#"{"subjects": null}"#, 200, "")]
#[case::role_ref_changed(
    "plain",
    "PATCH clusterrolebindings/of-strong",
    r#"{"roleRef": {"name": "weak"}}"#,
    422,
    "cannot change roleRef"
)]
#[tokio::test]
async fn patches_need_the_granted_permissions(
    #[case] user: &str,
    #[case] line: &str,
    #[case] body: &str,
    #[case] code: u16,
    #[case] expected: &str,
) {
    let server = start_server().await;
    let response = send(&server, user, line, &serde_json::from_str(body).unwrap()).await;
    assert!(response.0 == code && response.1.ends_with(expected), "{response:?}");
    server.stop().await.unwrap();
}

#[tokio::test]
async fn replacements_and_creates_need_the_granted_permissions() {
    let server = start_server().await;
    let with_change = |change: fn(&mut Value), mut object: Value| {
        change(&mut object);
        object
    };
    let strong = || role("strong", rules("get"));
    let named = || role("named", rules("get"));
    let nameless = |change| with_change(change, role("", rules("get")));
    let cases = [
        // Checked even if nothing changes, because the body does not identify the stored object.
        ("plain", "PUT clusterroles/strong", strong(), 403, SECRETS),
        (
            "plain",
            "PUT clusterroles/strong",
            with_change(|r| r["metadata"]["resourceVersion"] = "1".into(), strong()),
            403,
            SECRETS,
        ),
        ("plain", "PUT clusterroles/strong", with_change(|r| r["metadata"]["uid"] = "x".into(), strong()), 409, ""),
        ("plain", "APPLY clusterroles/strong?fieldManager=m", strong(), 200, ""),
        ("plain", "POST clusterroles", strong(), 403, SECRETS),
        ("plain", "POST clusterroles", role("A/b", rules("get")), 403, SECRETS),
        (
            "plain",
            "POST clusterroles",
            nameless(|r| r["metadata"] = json!({"generateName": "g-"})),
            403,
            "clusterroles.rbac.authorization.k8s.io is forbidden: user \"plain\" (groups=[\"system:authenticated\"]) is attempting",
        ),
        (
            "plain",
            "POST clusterroles",
            nameless(|r| r["metadata"] = json!({})),
            403,
            "clusterroles.rbac.authorization.k8s.io is forbidden",
        ),
        (
            "plain",
            "POST clusterroles",
            with_change(|r| r["aggregationRule"] = aggregation(), role("n", json!([]))),
            403,
            CLUSTER_ADMIN,
        ),
        (
            "plain",
            "POST clusterroles",
            with_change(|r| r["aggregationRule"] = json!({}), role("n", json!([]))),
            422,
            "at least one",
        ),
        (
            "all",
            "POST clusterroles?dryRun=All",
            with_change(|r| r["aggregationRule"] = aggregation(), role("n", json!([]))),
            201,
            "",
        ),
        ("plain", "PUT clusterroles/named", named(), 403, SECRETS),
        ("plain", "APPLY clusterroles/named?fieldManager=m", named(), 403, SECRETS),
        // A POST has no name in its path for a rule with resource names.
        ("escalates", "POST clusterroles", named(), 403, SECRETS),
        ("escalates", "PUT clusterroles/named?dryRun=All", named(), 201, ""),
        ("escalates", "APPLY clusterroles/named?dryRun=All&fieldManager=m", named(), 201, ""),
        ("plain", "POST clusterrolebindings", binding("ClusterRole", "strong", &[]), 403, SECRETS),
        ("plain", "POST clusterrolebindings", binding("ClusterRole", "weak", &[]), 201, ""),
        ("plain", "POST clusterrolebindings", binding("Role", "strong", &[]), 400, "Namespace parameter required."),
        ("binds", "POST namespaces/default/rolebindings?dryRun=All", binding("ClusterRole", "strong", &[]), 201, ""),
        ("binds", "POST namespaces/default/rolebindings?dryRun=All", binding("ClusterRole", "none", &[]), 201, ""),
        (
            "plain",
            "POST namespaces/default/rolebindings",
            binding("ClusterRole", "none", &[]),
            404,
            "rolebindings.rbac.authorization.k8s.io \"none\" not found",
        ),
        ("binds", "POST namespaces/default/rolebindings", binding("Role", "none", &[]), 404, "\"none\" not found"),
        ("plain", "POST namespaces/default/rolebindings", binding("Role", "", &[]), 400, "Name parameter required."),
        (
            "plain",
            "POST namespaces/default/rolebindings",
            binding("Odd", "x", &[]),
            500,
            "unsupported role reference kind: \"Odd\"",
        ),
        (
            "binds",
            "POST namespaces/default/rolebindings",
            with_change(|b| b["roleRef"]["apiGroup"] = "odd".into(), binding("ClusterRole", "strong", &[])),
            403,
            SECRETS,
        ),
    ];
    for (user, line, body, code, expected) in cases {
        let response = send(&server, user, line, &body).await;
        assert!(response.0 == code && response.1.contains(expected), "{user} {line}: {response:?}");
    }
    server.stop().await.unwrap();
}
