//! Creates the users of the table in the control plane, with their permissions and credentials.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use anyhow::{Context, Result, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use kube::Client;
use rcgen::{KeyPair, PublicKeyData, SigningKey};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::net::TcpStream;

use crate::attacks::evaluation::Identity;
use crate::attacks::http1::exchange;
use crate::attacks::test_env::{send, wait_until};
use crate::attacks::wire::{Wire, lossy, values};

const CALLERS: &str = include_str!("callers.yaml");
const SIGNING_REQUESTS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
const RBAC: &str = "rbac.authorization.k8s.io";

/// A user who sends requests, as listed in `callers.yaml`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Caller {
    name: String,
    #[serde(default)]
    groups: Vec<String>,
    /// Namespace of the service account; `None` for a user with a client certificate.
    #[serde(rename = "account")]
    service_account_namespace: Option<String>,
    rules: Vec<Value>,
}

/// Certificate and key in PEM.
#[derive(Debug, Clone)]
pub struct Certificate {
    pub certificate: String,
    pub key: String,
}

/// Credentials and identities of the callers, each by the caller's name.
#[derive(Debug, Default)]
pub struct Credentials {
    pub identities: BTreeMap<String, Identity>,
    pub certificates: BTreeMap<String, Certificate>,
    pub tokens: BTreeMap<String, String>,
}

/// Creates the permissions, certificates and tokens of all callers.
pub async fn create_callers(control_plane: &Client) -> Result<Credentials> {
    let callers: Vec<Caller> = serde_saphyr::from_str(CALLERS)?;
    let mut credentials = Credentials::default();
    let mut keys = BTreeMap::new();
    for caller in &callers {
        grant_rules(control_plane, caller).await?;
        let name = caller.name.clone();
        let identity = match &caller.service_account_namespace {
            Some(namespace) => {
                let (token, uid) = create_service_account(control_plane, namespace, &name).await?;
                credentials.tokens.insert(name.clone(), token);
                // Each API server adds the groups of the namespace itself.
                Identity { user: format!("system:serviceaccount:{namespace}:{name}"), groups: Vec::new(), uid }
            }
            None => {
                keys.insert(name.clone(), request_certificate(control_plane, caller).await?);
                Identity { user: name.clone(), groups: caller.groups.clone(), uid: String::new() }
            }
        };
        credentials.identities.insert(name, identity);
    }
    for (name, key) in keys {
        let signed = |request: &Value| request["status"]["certificate"].is_string();
        let request = wait_until(control_plane, &format!("{SIGNING_REQUESTS}/attacks-{name}"), signed).await?;
        let certificate =
            STANDARD.decode(request["status"]["certificate"].as_str().context("the request has no certificate")?)?;
        credentials.certificates.insert(name, Certificate { certificate: String::from_utf8(certificate)?, key });
    }
    Ok(credentials)
}

/// Binds the caller's rules to its user or service account.
async fn grant_rules(control_plane: &Client, caller: &Caller) -> Result<()> {
    let name = format!("attacks:{}", caller.name);
    let subject = match &caller.service_account_namespace {
        Some(namespace) => json!({"kind": "ServiceAccount", "name": caller.name, "namespace": namespace}),
        None => json!({"apiGroup": RBAC, "kind": "User", "name": caller.name}),
    };
    let role = json!({"metadata": {"name": name}, "rules": caller.rules});
    send(control_plane, "POST", &format!("/apis/{RBAC}/v1/clusterroles"), &role).await?;
    let binding = json!({"metadata": {"name": name}, "subjects": [subject],
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": name}});
    send(control_plane, "POST", &format!("/apis/{RBAC}/v1/clusterrolebindings"), &binding).await?;
    Ok(())
}

/// Creates a service account; returns its token and UID.
async fn create_service_account(control_plane: &Client, namespace: &str, name: &str) -> Result<(String, String)> {
    let accounts = format!("/api/v1/namespaces/{namespace}/serviceaccounts");
    let account = send(control_plane, "POST", &accounts, &json!({"metadata": {"name": name}})).await?;
    let request = json!({"spec": {"expirationSeconds": 3600}});
    let issued = send(control_plane, "POST", &format!("{accounts}/{name}/token"), &request).await?;
    let token = issued["status"]["token"].as_str().context("the response has no token")?;
    Ok((token.to_owned(), account["metadata"]["uid"].as_str().unwrap_or_default().to_owned()))
}

/// Requests a client certificate for a caller and approves the request; returns the key in PEM.
async fn request_certificate(control_plane: &Client, caller: &Caller) -> Result<String> {
    let key = KeyPair::generate()?;
    let name = format!("attacks-{}", caller.name);
    let request = STANDARD.encode(signing_request(caller, &key)?);
    let request = json!({"metadata": {"name": name}, "spec": {"signerName": "kubernetes.io/kube-apiserver-client",
        "request": request, "usages": ["digital signature", "key encipherment", "client auth"]}});
    send(control_plane, "POST", SIGNING_REQUESTS, &request).await?;
    let approved = json!({"status": {"conditions": [
        {"type": "Approved", "status": "True", "reason": "Test", "message": "one of the table's callers"}]}});
    send(control_plane, "PATCH", &format!("{SIGNING_REQUESTS}/{name}/approval"), &approved).await?;
    Ok(key.serialize_pem())
}

/// A PKCS #10 request in PEM. Encoded here because rcgen supports only one organization in a subject.
fn signing_request(caller: &Caller, key: &KeyPair) -> Result<String> {
    // joint-iso-itu-t(2) ds(5) attributeType(4), and the number of organizationName or commonName.
    let attribute = |number: u8, value: &str| {
        let kind = der(0x06, &[&[0x55, 0x04, number]]);
        der(0x31, &[&der(0x30, &[&kind, &der(0x0c, &[value.as_bytes()])])])
    };
    let groups = caller.groups.iter().map(|group| attribute(10, group));
    let names: Vec<u8> = groups.chain([attribute(3, &caller.name)]).flatten().collect();
    let public = key.subject_public_key_info();
    let request_info = der(0x30, &[&der(0x02, &[&[0]]), &der(0x30, &[&names]), &public, &der(0xa0, &[])]);
    // ecdsa-with-SHA256
    let algorithm = der(0x30, &[&der(0x06, &[&[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x02]])]);
    let signature = der(0x03, &[&[0], &key.sign(&request_info)?]);
    let request = STANDARD.encode(der(0x30, &[&request_info, &algorithm, &signature]));
    let lines: Vec<&str> = request.as_bytes().chunks(64).map(std::str::from_utf8).collect::<Result<_, _>>()?;
    Ok(format!("-----BEGIN CERTIFICATE REQUEST-----\n{}\n-----END CERTIFICATE REQUEST-----\n", lines.join("\n")))
}

/// A DER value with its tag and length.
fn der(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    let content = parts.concat();
    let length = content.len();
    let mut value = match length {
        0..128 => vec![tag, length as u8],
        128..256 => vec![tag, 0x81, length as u8],
        _ => vec![tag, 0x82, (length >> 8) as u8, length as u8],
    };
    value.extend(content);
    value
}

/// Signs all callers in at the UI; returns the cookies of their sessions by caller.
pub async fn sign_in(
    ui: SocketAddr,
    certificates: &BTreeMap<String, Certificate>,
    tokens: &BTreeMap<String, String>,
) -> Result<BTreeMap<String, String>> {
    let by_token = tokens.iter().map(|(name, token)| (name, json!({"token": token})));
    let by_certificate = certificates.iter().map(|(name, certificate)| {
        let config = json!({"apiVersion": "v1", "kind": "Config", "current-context": "x",
            "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
            "users": [{"name": "x", "user": {"client-certificate-data": STANDARD.encode(&certificate.certificate),
                "client-key-data": STANDARD.encode(&certificate.key)}}]});
        (name, json!({"kubeconfig": config.to_string()}))
    });
    let mut cookies = BTreeMap::new();
    for (name, body) in by_token.chain(by_certificate) {
        let body = body.to_string();
        let head = format!(
            "POST /ui/session HTTP/1.1\r\nHost: {ui}\r\nX-Crowsnest-Client: attacks\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n",
            body.len()
        );
        let response = exchange(Wire::new(TcpStream::connect(ui).await?), format!("{head}{body}").as_bytes()).await;
        ensure!(response.status == 200, "{name} cannot sign in: {} {}", response.status, lossy(&response.body));
        let set_cookies = values(&response.head, "set-cookie");
        let pair = |cookie: &String| cookie.split(';').next().unwrap_or_default().trim().to_owned();
        let session_cookies: Vec<String> = set_cookies.iter().map(pair).filter(|pair| !pair.ends_with('=')).collect();
        ensure!(!session_cookies.is_empty(), "{name} received no cookie");
        cookies.insert(name.clone(), session_cookies.join("; "));
    }
    Ok(cookies)
}
