//! Requests to the webhooks by clients other than the API server, and hostile scripts of users: neither has an effect
//! on other users.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use crowsnest_tests::Process;
use crowsnest_tests::{Fleet, Kubectl, binary, free_port, wait_for};
use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

const QUOTA: &str = include_str!("webhooks/quota.yaml");
const HOSTILE: &str = include_str!("webhooks/hostile.yaml");
const DRAFT: &str = include_str!("webhooks/draft.yaml");
const GATE: [&str; 2] = ["--feature-gates", "FederatedQuotaEnforcement=true"];

/// A certificate authority of the test. The fleet trusts it only if it is named in a flag.
struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new(name: &str) -> Result<Self> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let pem = params.self_signed(&key)?.pem();
        Ok(Self { pem, issuer: Issuer::new(params, key) })
    }

    /// Issues a client certificate; returns it with its key, PEM.
    fn issue_client_certificate(&self, name: &str) -> Result<String> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let certificate = params.signed_by(&key, &self.issuer)?.pem();
        Ok(format!("{certificate}{}", key.serialize_pem()))
    }

    /// Issues a server certificate for this machine; returns the files of the certificate and its key.
    fn issue_server_certificate(&self, folder: &Path) -> Result<[String; 2]> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned()])?;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let certificate = params.signed_by(&key, &self.issuer)?.pem();
        let files = [folder.join("tls.crt"), folder.join("tls.key")];
        for (file, text) in files.iter().zip([certificate, key.serialize_pem()]) {
            std::fs::write(file, text)?;
        }
        Ok(files.map(|file| file.display().to_string()))
    }
}

/// Client certificate and key of the kubeconfig, PEM.
fn own_certificate(kubectl: &Kubectl) -> Result<String> {
    let field = |name: &str| {
        let path = format!("jsonpath={{.users[0].user.{name}}}");
        let value = kubectl.run_ok(&["config", "view", "--raw", "-o", &path], "")?;
        anyhow::Ok(String::from_utf8(STANDARD.decode(value.trim())?)?)
    };
    Ok(format!("{}{}", field("client-certificate-data")?, field("client-key-data")?))
}

/// Review of a binding with this usage, in the form that an API server sends.
fn forged_review(name: &str, cpu: &str, dry_run: bool) -> Value {
    json!({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": {
        "uid": "11111111-1111-1111-1111-111111111111", "operation": "CREATE", "dryRun": dry_run,
        "name": name, "namespace": "shop", "object": binding(name, cpu),
        "userInfo": {"username": "system:admin", "groups": ["system:masters"]},
    }})
}

fn binding(name: &str, cpu: &str) -> Value {
    json!({
        "apiVersion": "work.karmada.io/v1alpha2", "kind": "ResourceBinding",
        "metadata": {"name": name, "namespace": "shop"},
        "spec": {
            "resource": {"apiVersion": "apps/v1", "kind": "Deployment", "namespace": "shop", "name": name},
            "replicas": 1, "clusters": [{"name": "m1", "replicas": 1}],
            "replicaRequirements": {"resourceRequest": {"cpu": cpu}},
        },
    })
}

/// Posts a body; returns status and response.
async fn post(url: &str, identity: Option<&str>, body: &Value) -> Result<(u16, Value)> {
    let mut client = reqwest::Client::builder().tls_danger_accept_invalid_certs(true);
    if let Some(pem) = identity {
        client = client.identity(reqwest::Identity::from_pem(pem.as_bytes())?);
    }
    let response = client.build()?.post(url).json(body).send().await?;
    let status = response.status().as_u16();
    let text = response.text().await?;
    Ok((status, serde_json::from_str(&text).unwrap_or(Value::String(text))))
}

/// Checks that forged reviews had no effect: the quota and the journal are unchanged, and no quota is used.
fn ensure_no_effect(fleet: &Fleet, kubectl: &Kubectl) -> Result<()> {
    let status = ["get", "federatedresourcequota", "cpus", "-n", "shop", "-o", "jsonpath={.status.overallUsed}"];
    let used = kubectl.run_ok(&status, "")?;
    ensure!(used.is_empty() || used == "{}", "the quota has recorded {used}");
    let output = fleet.crowsnest(&["journal", "federatedresourcequota/cpus", "-n", "shop", "-o", "json"])?;
    ensure!(!output.out.contains("QuotaDenied"), "{output:?}");
    let events = kubectl.run_ok(&["get", "events", "-n", "shop", "-o", "json"], "")?;
    ensure!(!events.contains("exceeded for resource"), "{events}");
    let valid = serde_json::to_string(&binding("valid", "2"))?;
    kubectl.run_ok(&["create", "-f", "-"], &valid)?;
    kubectl.run_ok(&["delete", "rb", "valid", "-n", "shop"], "")?;
    let used = ["get", "federatedresourcequota", "cpus", "-n", "shop", "-o", "jsonpath={.status.overallUsed.cpu}"];
    kubectl.run_until(&used, |out| out.is_empty() || out == "0").map(drop)
}

#[test]
fn forged_reviews_have_no_effect() -> Result<()> {
    crate::use_ring();
    let dir = tempfile::tempdir()?;
    let fleet = Fleet::start(&dir.path().join("data"), &["--no-members", GATE[0], GATE[1]])?;
    let Some(kubectl) = fleet.any_kubectl()? else { return Ok(()) };
    kubectl.run_ok(&["apply", "-f", "-"], QUOTA)?;
    let runtime = Runtime::new()?;
    check_own_webhooks(&fleet, &kubectl, &runtime).context("webhooks of the fleet")?;
    check_open_webhooks(&fleet, &kubectl, &runtime, dir.path()).context("webhooks without client certificates")?;
    check_closed_webhooks(&fleet, &kubectl, &runtime, dir.path()).context("webhooks with client certificates")?;
    ensure!(fleet.stop()?.success());
    Ok(())
}

/// Only the API server of the fleet reaches its webhooks.
fn check_own_webhooks(fleet: &Fleet, kubectl: &Kubectl, runtime: &Runtime) -> Result<()> {
    let urls = kubectl.run_ok(&["get", "validatingwebhookconfigurations", "-o", "json"], "")?;
    let url =
        urls.split('"').find(|text| text.ends_with("/validate-resourcebinding")).context("no webhook for bindings")?;
    ensure_answers_api_server(kubectl)?;
    let identities = [
        None,
        Some(own_certificate(kubectl)?),
        Some(Authority::new("strangers")?.issue_client_certificate("kube-apiserver-webhook-client")?),
    ];
    for identity in &identities {
        for review in [forged_review("made-up", "1500m", false), forged_review("made-up", "3", false)] {
            let result = runtime.block_on(post(url, identity.as_deref(), &review));
            ensure!(result.is_err(), "{result:?}");
        }
    }
    // The errors above prove nothing if the webhooks have ended.
    ensure_answers_api_server(kubectl)?;
    ensure_no_effect(fleet, kubectl)
}

/// Checks that the webhook answers reviews of the API server: it allows a binding within the quota, and denies one above it. Dry runs
/// change neither quota nor journal.
fn ensure_answers_api_server(kubectl: &Kubectl) -> Result<()> {
    let create = ["create", "--dry-run=server", "-f", "-"];
    kubectl.run_ok(&create, &serde_json::to_string(&binding("allowed", "1500m"))?)?;
    let denial = "admission webhook \"resourcebinding.karmada.io\" denied the request: \
        FederatedResourceQuota(shop/cpus) exceeded for resource cpu";
    kubectl.expect_output(&create, &serde_json::to_string(&binding("denied", "3"))?, 1, denial).map(drop)
}

/// Starts `crowsnest serve --roles webhook`; returns the process and the URL of its webhook for bindings.
fn start_webhooks(fleet: &Fleet, folder: &Path, extra_args: &[&str]) -> Result<(Process, String)> {
    std::fs::create_dir_all(folder)?;
    let [certificate, key] = Authority::new("servers")?.issue_server_certificate(folder)?;
    let (port, health_port) = (free_port()?, free_port()?);
    let address = |port: u16| SocketAddr::from((Ipv4Addr::LOCALHOST, port)).to_string();
    let mut command = Command::new(binary()?);
    command.args(["serve", "--roles", "webhook", "--metrics-bind-address", "0", "--kubeconfig"]);
    command.arg(fleet.kubeconfig("cp")).arg("--data-dir").arg(folder.join("data")).args(GATE).args(extra_args);
    command.args(["--tls-cert-file", &certificate, "--tls-private-key-file", &key, "--listen", &address(port)]);
    command.args(["--health-probe-bind-address", &address(health_port)]);
    let log = std::fs::File::create(folder.join("log"))?;
    let process = Process::spawn(command.stdout(Stdio::null()).stderr(log))?;
    wait_for("the webhooks to be served", || Ok(std::net::TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok()))
        .with_context(|| std::fs::read_to_string(folder.join("log")).unwrap_or_default())?;
    Ok((process, format!("https://{}/webhooks/validate-resourcebinding", address(port))))
}

/// If API servers present no client certificate, senders cannot be verified.
fn check_open_webhooks(fleet: &Fleet, kubectl: &Kubectl, runtime: &Runtime, folder: &Path) -> Result<()> {
    let (mut process, url) = start_webhooks(fleet, &folder.join("open"), &[])?;
    for dry_run in [true, false] {
        for (cpu, allowed) in [("1500m", true), ("1500m", true), ("3", false)] {
            let (status, response_body) =
                runtime.block_on(post(&url, None, &forged_review("made-up", cpu, dry_run)))?;
            ensure!(status == 200 && response_body["response"]["allowed"] == allowed, "{status} {response_body}");
        }
    }
    ensure_no_effect(fleet, kubectl)?;
    let malformed =
        [json!({}), json!([]), json!({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1beta1"})];
    for body in malformed {
        let (status, response_body) = runtime.block_on(post(&url, None, &body))?;
        ensure!(status == 400 && response_body["reason"] == "BadRequest", "{status} {response_body}");
    }
    let large = json!({"x": "x".repeat(9 << 20)});
    ensure!(runtime.block_on(post(&url, None, &large)).is_ok_and(|(status, _)| status == 400));
    process.kill()
}

/// If API servers present a client certificate, all other clients are refused.
fn check_closed_webhooks(fleet: &Fleet, kubectl: &Kubectl, runtime: &Runtime, folder: &Path) -> Result<()> {
    let authority = Authority::new("webhook clients")?;
    let file = folder.join("webhook-clients.crt");
    std::fs::write(&file, &authority.pem)?;
    let file = file.display().to_string();
    let flags = ["--webhook-client-ca-file", &file, "--webhook-client-allowed-names", "apiserver"];
    let (mut process, url) = start_webhooks(fleet, &folder.join("closed"), &flags)?;
    let cases = [
        (None, 401),
        (Some(own_certificate(kubectl)?), 401),
        (Some(Authority::new("webhook clients")?.issue_client_certificate("apiserver")?), 401),
        (Some(authority.issue_client_certificate("other-client")?), 401),
        (Some(authority.issue_client_certificate("apiserver")?), 200),
    ];
    for (identity, expected) in &cases {
        let (status, response_body) =
            runtime.block_on(post(&url, identity.as_deref(), &forged_review("made-up", "3", false)))?;
        ensure!(status == *expected, "{status} instead of {expected}: {response_body}");
        let convert = url.replace("validate-resourcebinding", "convert");
        let (status, _) = runtime.block_on(post(&convert, identity.as_deref(), &json!({})))?;
        ensure!(status == 400, "the conversion returned {status}");
    }
    ensure_no_effect(fleet, kubectl)?;
    process.kill()
}

#[test]
fn scripts_of_users_do_not_affect_others() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let fleet = Fleet::start(&dir.path().join("data"), &["--members", "member1"])?;
    let Some(kubectl) = fleet.any_kubectl()? else { return Ok(()) };
    check_permission_for_drafts(&kubectl).with_context(|| fleet.log())?;
    check_slow_script(&fleet, &kubectl).with_context(|| fleet.log())?;
    ensure!(fleet.stop()?.success());
    Ok(())
}

/// A slow script delays no other request.
fn check_slow_script(fleet: &Fleet, kubectl: &Kubectl) -> Result<()> {
    kubectl.run_ok(&["apply", "-f", "-"], HOSTILE)?;
    for index in 0..8 {
        kubectl.run_ok(&["create", "deployment", &format!("web-{index}"), "--image", "nginx"], "")?;
    }
    let events = ["get", "events", "-n", "default", "-o", "jsonpath={..message}", "--request-timeout=30s"];
    // The control plane responds meanwhile: kubectl times out after half a minute, and a failed call ends the test.
    wait_for("an event about the script", || Ok(kubectl.run_ok(&events, "")?.contains("context deadline exceeded")))?;
    kubectl.run_ok(&["create", "configmap", "other", "--from-literal=a=b"], "")?;
    let member = kubectl.with_kubeconfig(&fleet.kubeconfig("member1"));
    let get = ["get", "configmap", "other", "-o", "name", "--ignore-not-found"];
    member.run_until(&get, |out| out.contains("other")).map(drop)
}

/// The scripts of a draft run only for users who may create it.
fn check_permission_for_drafts(kubectl: &Kubectl) -> Result<()> {
    kubectl.run_ok(&["apply", "-f", "-"], DRAFT)?;
    let script = "function GetReplicas(obj) return 1 end";
    let draft = json!({"apiVersion": "propagation.crowsnest.io/v1alpha1", "kind": "Plan", "spec": {"objects": [{
        "apiVersion": "config.karmada.io/v1alpha1", "kind": "ResourceInterpreterCustomization", "metadata": {"name": "draft"},
        "spec": {"target": {"apiVersion": "apps/v1", "kind": "Deployment"},
                 "customizations": {"replicaResource": {"luaScript": script}}},
    }]}})
    .to_string();
    let create = ["create", "--raw", "/apis/propagation.crowsnest.io/v1alpha1/plans", "-f", "-"];
    let user = |name: &str| kubectl.with_flags(&["--as", name, "--as-group", "system:authenticated"]);
    let forbidden = "resourceinterpretercustomizations.config.karmada.io is forbidden";
    user("ann").expect_output(&create, &draft, 1, forbidden)?;
    user("bob").run_ok(&create, &draft).map(drop)
}
