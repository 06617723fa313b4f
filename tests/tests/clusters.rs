//! A user who may write Clusters, and has no other permissions, cannot have a member's token sent to an address of the
//! user's choice: not with another cluster's Secret, by changing another cluster, over HTTP, through a status, through
//! the internal group, or with an agent's Secrets. Such a token would arrive at a recorder, which stays empty until an
//! administrator sends one there.

use std::fs;
use std::io::Read;
use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use crowsnest_tests::{Fleet, Kubectl, wait_for};
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
use serde_json::{Value, json};

const BOOTSTRAP: &str = include_str!("certificates/token.yaml");
const PERMISSIONS: &str = include_str!("clusters/permissions.yaml");
const SECRETS: &str = "/api/v1/namespaces/karmada-cluster/secrets";
const DESTINATION_FORBIDDEN: &str = "deciding where a cluster's token is sent requires that permission";
/// Longer than the interval of a cluster's health check, which sends a token to every reachable cluster.
const OBSERVATION_TIME: Duration = Duration::from_secs(3);

#[test]
fn tokens_are_not_sent_to_unauthorized_addresses() -> Result<()> {
    crate::use_ring();
    let dir = tempfile::tempdir()?;
    let fleet = Fleet::start(&dir.path().join("data"), &["--members", "member1"])?;
    let Some(kubectl) = fleet.any_kubectl()? else { return Ok(()) };
    let recorder = Recorder::start()?;
    let checks = || -> Result<()> {
        kubectl.run_ok(&["apply", "-f", "-"], PERMISSIONS)?;
        let read_spec = || kubectl.run_ok(&["get", "cluster", "member1", "-o", "jsonpath={.spec}"], "");
        let before = read_spec()?;
        check_user_without_secrets(&kubectl, &recorder)?;
        check_status_writes(&kubectl, &recorder)?;
        check_internal_group(&kubectl, &recorder)?;
        check_agent(&kubectl, &recorder, dir.path())?;
        check_agent_of_existing_cluster(&kubectl, &recorder, dir.path())?;
        check_plain_http(&kubectl, &recorder)?;
        ensure!(read_spec()? == before, "the spec of the cluster has changed: {}", read_spec()?);
        ensure!(
            !recorder.is_connected_within(OBSERVATION_TIME) && recorder.received_bytes() == 0,
            "{} bytes arrived",
            recorder.received_bytes()
        );
        check_administrator(&kubectl, &recorder)
    };
    checks().with_context(|| fleet.log())?;
    ensure!(fleet.stop()?.success());
    Ok(())
}

fn secret_reference(name: &str) -> Value {
    json!({"namespace": "karmada-cluster", "name": name})
}

/// Manifest of a kind that represents a cluster.
fn manifest((group, kind): (&str, &str), name: &str, spec: Value) -> String {
    let metadata = json!({"name": name});
    json!({"apiVersion": format!("{group}/v1alpha1"), "kind": kind, "metadata": metadata, "spec": spec}).to_string()
}

fn cluster_manifest(name: &str, spec: Value) -> String {
    manifest(("cluster.karmada.io", "Cluster"), name, spec)
}

fn stored_cluster_manifest(name: &str, spec: Value) -> String {
    manifest(("storage.crowsnest.io", "StoredCluster"), name, spec)
}

/// A user with all permissions on Clusters and none on Secrets cannot change where tokens are sent.
fn check_user_without_secrets(kubectl: &Kubectl, recorder: &Recorder) -> Result<()> {
    let eve = kubectl.with_flags(&["--as", "eve"]);
    let recorder_url = recorder.url("https");
    let with = |reference: Value| json!({"syncMode": "Push", "apiEndpoint": recorder_url, "secretRef": reference});
    for (case, spec) in [
        ("another cluster's Secret", with(secret_reference("member1"))),
        ("a Secret with the cluster's own name", with(secret_reference("trap"))),
        ("a Secret in another namespace", with(json!({"namespace": "kube-system", "name": "any"}))),
        (
            "another cluster's impersonator Secret",
            json!({"syncMode": "Push", "apiEndpoint": recorder_url, "impersonatorSecretRef": secret_reference("member1-impersonator")}),
        ),
        (
            "another cluster's Secret through a proxy",
            json!({"syncMode": "Push", "apiEndpoint": "https://10.0.0.1", "proxyURL": recorder.url("http"),
                "secretRef": secret_reference("member1"), "insecureSkipTLSVerification": true}),
        ),
    ] {
        let manifest = cluster_manifest("trap", spec);
        eve.expect_output(&["create", "-f", "-"], &manifest, 1, DESTINATION_FORBIDDEN).context(case)?;
        eve.expect_output(&["apply", "--server-side", "-f", "-"], &manifest, 1, DESTINATION_FORBIDDEN).context(case)?;
    }
    for change in [
        json!({"apiEndpoint": recorder_url}),
        json!({"apiEndpoint": recorder_url, "insecureSkipTLSVerification": true}),
        json!({"proxyURL": recorder.url("http")}),
        json!({"insecureSkipTLSVerification": true}),
    ] {
        let merge = json!({"spec": change}).to_string();
        for kind in ["merge", "strategic"] {
            eve.expect_output(
                &["patch", "cluster", "member1", "--type", kind, "-p", &merge],
                "",
                1,
                DESTINATION_FORBIDDEN,
            )?;
        }
        let operations = change.as_object().into_iter().flatten();
        let operations =
            operations.map(|(key, value)| json!({"op": "add", "path": format!("/spec/{key}"), "value": value}));
        let patch = Value::from_iter(operations).to_string();
        eve.expect_output(
            &["patch", "cluster", "member1", "--type", "json", "-p", &patch],
            "",
            1,
            DESTINATION_FORBIDDEN,
        )?;
        let mut cluster: Value =
            serde_json::from_str(&kubectl.run_ok(&["get", "cluster", "member1", "-o", "json"], "")?)?;
        for (key, value) in change.as_object().into_iter().flatten() {
            cluster["spec"][key] = value.clone();
        }
        eve.expect_output(&["replace", "-f", "-"], &cluster.to_string(), 1, DESTINATION_FORBIDDEN)?;
        let applied = cluster_manifest("member1", change);
        eve.expect_output(
            &["apply", "--server-side", "--force-conflicts", "-f", "-"],
            &applied,
            1,
            DESTINATION_FORBIDDEN,
        )?;
    }
    // Changes that do not affect tokens are subject to RBAC only.
    eve.run_ok(
        &["patch", "cluster", "member1", "--type", "merge", "-p", r#"{"metadata": {"labels": {"team": "blue"}}}"#],
        "",
    )?;
    eve.run_ok(&["create", "-f", "-"], &cluster_manifest("without-tokens", json!({"syncMode": "Pull"})))?;
    kubectl.run_ok(&["delete", "cluster", "without-tokens", "--timeout=240s"], "").map(drop)
}

/// A status update of a user who may write only the status does not change the spec. One of a user who may also write
/// the Cluster needs permission to read the token.
fn check_status_writes(kubectl: &Kubectl, recorder: &Recorder) -> Result<()> {
    let (eve, reporter) = (kubectl.with_flags(&["--as", "eve"]), kubectl.with_flags(&["--as", "reporter"]));
    let status_patch = |spec: Value| json!({"spec": spec, "status": {"remedyActions": ["TrafficControl"]}}).to_string();
    let redirected = status_patch(json!({"apiEndpoint": recorder.url("https"), "region": "stolen"}));
    for kind in ["merge", "strategic"] {
        let patch = ["patch", "cluster", "member1", "--subresource=status", "--type", kind, "-p", &redirected];
        let region = [&patch[..], &["-o", "jsonpath={.spec.region}"]].concat();
        ensure!(reporter.run_ok(&region, "")? != "stolen", "a status has changed the spec");
        eve.expect_output(&patch, "", 1, DESTINATION_FORBIDDEN)?;
    }
    Ok(())
}

/// The checks also apply to the group in which Clusters are stored, because permissions on the group `*` include it.
fn check_internal_group(kubectl: &Kubectl, recorder: &Recorder) -> Result<()> {
    let eve = kubectl.with_flags(&["--as", "eve"]);
    let recorder_url = recorder.url("https");
    let spec = json!({"syncMode": "Push", "apiEndpoint": recorder_url, "secretRef": secret_reference("member1")});
    eve.expect_output(&["create", "-f", "-"], &stored_cluster_manifest("trap", spec), 1, DESTINATION_FORBIDDEN)?;
    let (resource, patch) =
        ("storedclusters.storage.crowsnest.io", json!({"spec": {"apiEndpoint": recorder_url}}).to_string());
    eve.expect_output(&["patch", resource, "member1", "--type", "merge", "-p", &patch], "", 1, DESTINATION_FORBIDDEN)
        .map(drop)
}

/// An agent whose certificate was issued with a bootstrap token can write only its own cluster.
fn check_agent(kubectl: &Kubectl, recorder: &Recorder, folder: &Path) -> Result<()> {
    let agent = create_agent(kubectl, folder, "m9")?;
    let recorder_url = recorder.url("https");
    let own = json!({"syncMode": "Pull", "apiEndpoint": "https://10.0.0.9", "secretRef": secret_reference("m9"),
        "impersonatorSecretRef": secret_reference("m9-impersonator")});
    // The permissions are granted when the certificate is approved.
    let opaque = |name: &str| json!({"apiVersion": "v1", "kind": "Secret", "metadata": secret_reference(name), "stringData": {"token": "t"}});
    wait_for("the agent to have its permissions", || {
        Ok(agent.run(&["create", "-f", "-"], &opaque("m9").to_string())?.code == Some(0))
    })?;

    let own_cluster_only = "may write its own cluster only";
    agent.expect_output(
        &["create", "-f", "-"],
        &cluster_manifest("m8", json!({"syncMode": "Pull"})),
        1,
        own_cluster_only,
    )?;
    let mut stolen = own.clone();
    (stolen["secretRef"], stolen["apiEndpoint"]) = (secret_reference("member1"), recorder_url.clone().into());
    agent.expect_output(&["create", "-f", "-"], &cluster_manifest("m9", stolen), 1, DESTINATION_FORBIDDEN)?;
    let moved = json!({"spec": {"apiEndpoint": recorder_url}}).to_string();
    agent.expect_output(&["patch", "cluster", "member1", "--type", "merge", "-p", &moved], "", 1, own_cluster_only)?;
    let status = json!({"status": {"kubernetesVersion": "v9"}}).to_string();
    let patch = ["patch", "cluster", "member1", "--subresource=status", "--type", "merge", "-p", &status];
    agent.expect_output(&patch, "", 1, own_cluster_only)?;

    let mut token = opaque("m9-impersonator");
    token["type"] = "kubernetes.io/service-account-token".into();
    token["metadata"]["annotations"] = json!({"kubernetes.io/service-account.name": "default"});
    agent.expect_output(&["create", "-f", "-"], &token.to_string(), 1, "may write secrets of type")?;
    agent.expect_output(
        &["create", "-f", "-"],
        &opaque("m8").to_string(),
        1,
        "may write the secrets of its own cluster only",
    )?;
    kubectl.expect_output(&["get", "secret", "-n", "karmada-cluster", "m9-impersonator"], "", 1, "not found")?;

    // The agent's regular writes are still allowed.
    let reports = ["create", "--field-manager", "crowsnest-agent", "-f", "-"];
    agent.run_ok(&reports, &opaque("m9-impersonator").to_string())?;
    agent.run_ok(&["create", "-f", "-"], &cluster_manifest("m9", own))?;
    let renewed = json!({"stringData": {"token": "u"}});
    let patch = |secret: &str| {
        send_patch(&agent, folder, "m9", &format!("{SECRETS}/{secret}?fieldManager=crowsnest-agent"), &renewed)
    };
    let (code, body) = patch("m9-impersonator")?;
    ensure!(code == 200, "{code} {body}");
    // The Secret `m9` was created by another field manager.
    let (code, body) = patch("m9")?;
    ensure!(code == 403 && body.contains("which no agent created"), "{code} {body}");
    let moved = json!({"spec": {"apiEndpoint": "https://10.0.0.10"}}).to_string();
    agent.run_ok(&["patch", "cluster", "m9", "--type", "merge", "-p", &moved], "")?;
    kubectl.run_ok(&["delete", "cluster", "m9", "--timeout=240s"], "").map(drop)
}

/// An agent's certificate gives no permissions on a cluster that another user registered later with the same name.
fn check_agent_of_existing_cluster(kubectl: &Kubectl, recorder: &Recorder, folder: &Path) -> Result<()> {
    let agent = create_agent(kubectl, folder, "m7")?;
    let token = json!({"apiVersion": "v1", "kind": "Secret", "metadata": secret_reference("m7"), "stringData": {"token": "theirs"}});
    kubectl.run_ok(&["create", "-f", "-"], &token.to_string())?;
    let joined = json!({"syncMode": "Push", "apiEndpoint": "https://10.0.0.9", "secretRef": secret_reference("m7")});
    kubectl.run_ok(&["create", "-f", "-"], &cluster_manifest("m7", joined))?;
    let (code, body) = send_patch(&agent, folder, "m7", &format!("{SECRETS}/m7"), &json!({}))?;
    ensure!(code == 403 && body.contains("which no agent created") && !body.contains("\"data\""), "{code} {body}");
    let changes = [
        json!({"spec": {"apiEndpoint": recorder.url("https"), "insecureSkipTLSVerification": true}}),
        json!({"spec": {"apiEndpoint": recorder.url("https"), "syncMode": "Pull"}}),
        json!({"metadata": {"annotations": {"fleet.crowsnest.io/reached-through": "agent"}}}),
    ];
    for change in changes {
        let change = change.to_string();
        let output = agent.run(&["patch", "cluster", "m7", "--type", "merge", "-p", &change], "")?;
        ensure!(output.code == Some(1) && output.err.contains("forbidden"), "{change}: {output:?}");
    }
    // An agent can register its cluster in pull mode only, so the control plane sends no token to its address.
    let push_mode = cluster_manifest("m7", json!({"syncMode": "Push", "apiEndpoint": recorder.url("https")}));
    agent.expect_output(&["create", "-f", "-"], &push_mode, 1, "in pull mode only")?;
    agent.expect_output(&["get", "clusters"], "", 1, "forbidden")?;
    kubectl.run_ok(&["delete", "cluster", "m7", "--timeout=240s"], "")?;
    // A second request for the same name is not approved. Requests are handled in order, so it has been handled when the
    // next one is approved.
    let (second, next) = ("m7-again", "m6");
    request_certificate(kubectl, second, "system:karmada:agent:m7")?;
    request_certificate(kubectl, next, "system:karmada:agent:m6")?;
    kubectl.run_until(&["get", "csr", next, "-o", "jsonpath={.status.certificate}"], |out| !out.is_empty())?;
    let status = kubectl.run_ok(&["get", "csr", second, "-o", "jsonpath={.status}"], "")?;
    ensure!(status.is_empty() || status == "{}", "{status}");
    Ok(())
}

/// Clusters with an HTTP address are refused for all users, including administrators.
fn check_plain_http(kubectl: &Kubectl, recorder: &Recorder) -> Result<()> {
    let spec =
        json!({"syncMode": "Push", "apiEndpoint": recorder.url("http"), "secretRef": secret_reference("member1")});
    let refused = "spec.apiEndpoint: Invalid value";
    kubectl.expect_output(&["create", "-f", "-"], &cluster_manifest("plain", spec.clone()), 1, refused)?;
    kubectl.expect_output(&["create", "-f", "-"], &stored_cluster_manifest("plain", spec), 1, refused).map(drop)
}

/// An administrator can change the address. This shows that the recorder records tokens.
fn check_administrator(kubectl: &Kubectl, recorder: &Recorder) -> Result<()> {
    let spec =
        json!({"syncMode": "Push", "apiEndpoint": recorder.url("https"), "secretRef": secret_reference("member1")});
    kubectl.run_ok(&["create", "-f", "-"], &cluster_manifest("decoy", spec))?;
    wait_for("a token to arrive at the recorder", || Ok(recorder.received_bytes() > 0))
}

/// Sends a merge patch as the agent `name`, without the read that kubectl does first.
fn send_patch(agent: &Kubectl, folder: &Path, name: &str, path: &str, change: &Value) -> Result<(u16, String)> {
    let server = agent.run_ok(&["config", "view", "-o", "jsonpath={.clusters[0].cluster.server}"], "")?;
    let [certificate, key] = ["crt", "key"].map(|extension| fs::read(folder.join(format!("{name}.{extension}"))));
    let identity = reqwest::Identity::from_pem(&[certificate?, key?].concat())?;
    let exchange = async {
        let client = reqwest::Client::builder().tls_danger_accept_invalid_certs(true).identity(identity).build()?;
        let request = client.patch(format!("{server}{path}")).header("content-type", "application/merge-patch+json");
        let response = request.body(change.to_string()).send().await?;
        anyhow::Ok((response.status().as_u16(), response.text().await?))
    };
    tokio::runtime::Runtime::new()?.block_on(exchange)
}

/// Requests a certificate for this user with a bootstrap token; returns the key.
fn request_certificate(kubectl: &Kubectl, name: &str, user: &str) -> Result<KeyPair> {
    kubectl.run_ok(&["apply", "-f", "-"], BOOTSTRAP)?;
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::OrganizationName, "system:karmada:agents");
    params.distinguished_name.push(DnType::CommonName, user);
    let key = KeyPair::generate()?;
    let request = STANDARD.encode(params.serialize_request(&key)?.pem()?);
    let request = json!({"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
        "metadata": {"name": name}, "spec": {"signerName": "kubernetes.io/kube-apiserver-client", "request": request,
        "usages": ["digital signature", "key encipherment", "client auth"]}});
    kubectl.with_token("abcdef.0123456789abcdef")?.run_ok(&["create", "-f", "-"], &request.to_string())?;
    Ok(key)
}

/// Requests a certificate for the agent of a cluster; returns kubectl with it. The cluster is not registered.
fn create_agent(kubectl: &Kubectl, folder: &Path, name: &str) -> Result<Kubectl> {
    let key = request_certificate(kubectl, name, &format!("system:karmada:agent:{name}"))?;
    let signed = ["get", "csr", name, "-o", "jsonpath={.status.certificate}"];
    let certificate = STANDARD.decode(kubectl.run_until(&signed, |out| !out.is_empty())?)?;
    let file = |extension: &str| folder.join(format!("{name}.{extension}"));
    fs::write(file("crt"), certificate)?;
    fs::write(file("key"), key.serialize_pem())?;
    fs::write(file("kubeconfig"), kubectl.run_ok(&["config", "view", "--raw", "--minify", "--flatten"], "")?)?;
    let (certificate, key) = (file("crt").display().to_string(), file("key").display().to_string());
    let agent = kubectl.with_kubeconfig(&file("kubeconfig"));
    let credentials = ["config", "set-credentials", name, "--client-certificate", &certificate, "--client-key", &key];
    agent.run_ok(&[&credentials[..], &["--embed-certs"]].concat(), "")?;
    agent.run_ok(&["config", "set-context", "--current", "--user", name], "")?;
    Ok(agent)
}

/// Accepts every connection; counts the received bytes, plus one for each connection.
struct Recorder {
    port: u16,
    bytes: Arc<AtomicUsize>,
    arrivals: Receiver<()>,
}

impl Recorder {
    fn start() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let port = listener.local_addr()?.port();
        let bytes = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&bytes);
        let (sender, arrivals) = channel();
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let mut first = [0; 1024];
                let _ = stream.set_read_timeout(Some(Duration::from_secs(1)));
                // A connection counts even if it sends no bytes.
                counter.fetch_add(1 + stream.read(&mut first).unwrap_or_default(), Ordering::SeqCst);
                // The test may have ended.
                let _ = sender.send(());
            }
        });
        Ok(Self { port, bytes, arrivals })
    }

    fn url(&self, scheme: &str) -> String {
        format!("{scheme}://127.0.0.1:{}", self.port)
    }

    fn is_connected_within(&self, time: Duration) -> bool {
        self.arrivals.recv_timeout(time).is_ok()
    }

    /// Number of received bytes, plus one for each connection.
    fn received_bytes(&self) -> usize {
        self.bytes.load(Ordering::SeqCst)
    }
}
