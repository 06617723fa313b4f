//! Creation, approval and signing of certificate requests by different users, on a running server.

use axum::body::Body;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use crowsnest_apimachinery::user::{MASTERS, UserInfo};
use http::Request;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::admission::Plugin;
use crate::{ApiServer, Config, Data};

const REQUESTS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";
const CLIENT_SIGNER: &str = "kubernetes.io/kube-apiserver-client";

async fn send(server: &ApiServer, user: &str, line: &str, body: &Value) -> (u16, String) {
    let groups = if user == "admin" { vec![MASTERS.to_owned()] } else { Vec::new() };
    let service = server.service(UserInfo { name: user.into(), groups, ..UserInfo::default() });
    let (method, path) = line.split_once(' ').unwrap();
    let media = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
    let request = Request::builder().method(method).uri(path).header("content-type", media);
    let response = service.oneshot(request.body(Body::from(body.to_string())).unwrap()).await.unwrap();
    let code = response.status().as_u16();
    let body = axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap();
    let response: Value = serde_json::from_slice(&body).unwrap_or_default();
    (code, response["message"].as_str().unwrap_or_default().to_owned())
}

fn request(name: &str, organization: &str, signer: &str) -> Value {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::OrganizationName, organization);
    params.distinguished_name.push(DnType::CommonName, "ann");
    let pem = params.serialize_request(&KeyPair::generate().unwrap()).unwrap().pem().unwrap();
    let spec = json!({"signerName": signer, "request": STANDARD.encode(pem), "usages": ["client auth"]});
    json!({"metadata": {"name": name}, "spec": spec})
}

/// Starts a server. `plain` can write all parts of requests; the other users have permissions on one signer or on all of
/// a domain.
async fn start_server(disabled: &[Plugin]) -> ApiServer {
    let mut config = Config::new("test", Data::Memory);
    config.requests.disabled_admission_plugins = disabled.to_vec();
    let server = ApiServer::start(config).await.unwrap();
    let all = ["", "/approval", "/status"].map(|sub| format!("certificatesigningrequests{sub}"));
    let rule = |resources: Value, names: &[&str], verbs: &[&str]| json!([{"apiGroups": ["certificates.k8s.io"], "resources": resources, "resourceNames": names, "verbs": verbs}]);
    for (name, rules, users) in [
        ("write", rule(json!(all), &[], &["create", "patch"]), vec!["plain", "approver", "signer", "other"]),
        ("approve", rule(json!(["signers"]), &[CLIENT_SIGNER], &["approve"]), vec!["approver"]),
        ("sign", rule(json!(["signers"]), &["kubernetes.io/*"], &["sign"]), vec!["signer"]),
        ("other", rule(json!(["signers"]), &["example.com/*"], &["approve", "sign"]), vec!["other"]),
    ] {
        let subjects: Vec<Value> = users.iter().map(|user| json!({"kind": "User", "name": user})).collect();
        let role = json!({"metadata": {"name": name}, "rules": rules});
        let binding =
            json!({"metadata": {"name": name}, "roleRef": {"kind": "ClusterRole", "name": name}, "subjects": subjects});
        for (plural, body) in [("clusterroles", role), ("clusterrolebindings", binding)] {
            let (code, message) = send(&server, "admin", &format!("POST {RBAC}/{plural}"), &body).await;
            assert_eq!(code, 201, "{message}");
        }
    }
    server
}

#[tokio::test]
async fn approving_and_signing_need_permissions_on_the_signer() {
    let server = start_server(&[]).await;
    for (name, signer) in [("c", CLIENT_SIGNER), ("x", "example.com/x")] {
        let response = send(&server, "plain", &format!("POST {REQUESTS}"), &request(name, "o", signer)).await;
        assert_eq!(response.0, 201, "{response:?}");
    }
    let condition = |kind: &str| json!({"status": {"conditions": [{"type": kind, "status": "True"}]}});
    let approve = "certificatesigningrequests.certificates.k8s.io \"c\" is forbidden: user not permitted to approve requests with signerName \"kubernetes.io/kube-apiserver-client\"";
    let sign = "user not permitted to sign requests with signerName \"kubernetes.io/kube-apiserver-client\"";
    let cases = [
        ("plain", "c/approval", condition("Approved"), 403, approve),
        ("signer", "c/approval", condition("Approved"), 403, approve),
        ("other", "c/approval", condition("Approved"), 403, approve),
        ("approver", "x/approval", condition("Approved"), 403, "with signerName \"example.com/x\""),
        ("other", "x/approval", condition("Approved"), 200, ""),
        ("approver", "c/approval", condition("Denied"), 200, ""),
        (
            "plain",
            "x/status",
            json!({"status": {"conditions": [
            {"type": "Approved", "status": "True"}, {"type": "Failed", "status": "True"}]}}),
            403,
            "sign requests with signerName \"example.com/x\"",
        ),
        ("plain", "x/status", json!({"metadata": {"labels": {"a": "b"}}}), 200, ""),
        (
            "approver",
            "c/status",
            json!({"status": {"conditions": [
            {"type": "Denied", "status": "True"}, {"type": "Failed", "status": "True"}]}}),
            403,
            sign,
        ),
        ("signer", "c/status", json!({"metadata": {"labels": {"a": "b"}}}), 200, ""),
    ];
    for (user, path, body, code, expected) in cases {
        let response = send(&server, user, &format!("PATCH {REQUESTS}/{path}"), &body).await;
        assert!(response.0 == code && response.1.ends_with(expected), "{user} {path}: {response:?}");
    }
    server.stop().await.unwrap();
}

#[tokio::test]
async fn requests_for_system_masters_are_rejected() {
    let server = start_server(&[]).await;
    let refused = "certificatesigningrequests.certificates.k8s.io \"m\" is forbidden: use of kubernetes.io/kube-apiserver-client signer with system:masters group is not allowed";
    for (user, organization, signer, code, expected) in [
        ("plain", MASTERS, CLIENT_SIGNER, 403, refused),
        ("admin", MASTERS, CLIENT_SIGNER, 403, refused),
        ("plain", "system:karmada:agents", CLIENT_SIGNER, 201, ""),
        ("plain", MASTERS, "example.com/x", 201, ""),
    ] {
        let line = format!("POST {REQUESTS}?dryRun=All");
        let response = send(&server, user, &line, &request("m", organization, signer)).await;
        assert_eq!(response, (code, expected.to_owned()), "{user} {organization} {signer}");
    }
    server.stop().await.unwrap();
}

#[tokio::test]
async fn plugins_can_be_disabled() {
    use Plugin::{CertificateApproval, CertificateSigning, CertificateSubjectRestriction};
    let server = start_server(&[CertificateApproval, CertificateSigning, CertificateSubjectRestriction]).await;
    let response = send(&server, "plain", &format!("POST {REQUESTS}"), &request("m", MASTERS, CLIENT_SIGNER)).await;
    assert_eq!(response.0, 201, "{response:?}");
    let approved = json!({"status": {"conditions": [{"type": "Approved", "status": "True"}]}});
    let response = send(&server, "plain", &format!("PATCH {REQUESTS}/m/approval"), &approved).await;
    assert_eq!(response.0, 200, "{response:?}");
    server.stop().await.unwrap();
}
