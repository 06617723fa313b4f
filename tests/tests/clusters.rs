//! A user who may write Clusters, and has no other rights, cannot have a member's token sent to an address of the
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
use crowsnest_tests::{Fleet, Kubectl, until};
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
use serde_json::{Value, json};

const BOOTSTRAP: &str = include_str!("certificates/token.yaml");
const RIGHTS: &str = include_str!("clusters/rights.yaml");
const SECRETS: &str = "/api/v1/namespaces/karmada-cluster/secrets";
const NOT_THEIRS: &str = "deciding where a cluster's token is sent requires that permission";
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
        kubectl.ok(&["apply", "-f", "-"], RIGHTS)?;
        let stored = || kubectl.ok(&["get", "cluster", "member1", "-o", "jsonpath={.spec}"], "");
        let before = stored()?;
        writes_of_a_stranger(&kubectl, &recorder)?;
        writes_of_a_status(&kubectl, &recorder)?;
        writes_of_the_internal_group(&kubectl, &recorder)?;
        writes_of_an_agent(&kubectl, &recorder, dir.path())?;
        certificates_give_no_rights_on_clusters_of_others(&kubectl, &recorder, dir.path())?;
        tokens_are_not_sent_over_http(&kubectl, &recorder)?;
        ensure!(stored()? == before, "the spec of the cluster has changed: {}", stored()?);
        ensure!(
            !recorder.is_reached_within(OBSERVATION_TIME) && recorder.bytes() == 0,
            "{} bytes arrived",
            recorder.bytes()
        );
        an_administrator_can_change_the_address(&kubectl, &recorder)
    };
    checks().with_context(|| fleet.log())?;
    ensure!(fleet.stop()?.success());
    Ok(())
}

fn secret(name: &str) -> Value {
    json!({"namespace": "karmada-cluster", "name": name})
}

fn cluster((group, kind): (&str, &str), name: &str, spec: Value) -> String {
    let metadata = json!({"name": name});
    json!({"apiVersion": format!("{group}/v1alpha1"), "kind": kind, "metadata": metadata, "spec": spec}).to_string()
}

fn karmada(name: &str, spec: Value) -> String {
    cluster(("cluster.karmada.io", "Cluster"), name, spec)
}

fn stored(name: &str, spec: Value) -> String {
    cluster(("storage.crowsnest.io", "StoredCluster"), name, spec)
}

/// A user with all rights on clusters and none on Secrets.
fn writes_of_a_stranger(kubectl: &Kubectl, recorder: &Recorder) -> Result<()> {
    let eve = kubectl.with(&["--as", "eve"]);
    let recorder_url = recorder.url("https");
    let with = |reference: Value| json!({"syncMode": "Push", "apiEndpoint": recorder_url, "secretRef": reference});
    for (case, spec) in [
        ("another's secret", with(secret("member1"))),
        ("a secret by its own name", with(secret("trap"))),
        ("a secret elsewhere", with(json!({"namespace": "kube-system", "name": "any"}))),
        (
            "another's impersonator",
            json!({"syncMode": "Push", "apiEndpoint": recorder_url, "impersonatorSecretRef": secret("member1-impersonator")}),
        ),
        (
            "another's secret behind a proxy",
            json!({"syncMode": "Push", "apiEndpoint": "https://10.0.0.1", "proxyURL": recorder.url("http"),
                "secretRef": secret("member1"), "insecureSkipTLSVerification": true}),
        ),
    ] {
        let made = karmada("trap", spec);
        eve.expect_output(&["create", "-f", "-"], &made, 1, NOT_THEIRS).context(case)?;
        eve.expect_output(&["apply", "--server-side", "-f", "-"], &made, 1, NOT_THEIRS).context(case)?;
    }
    for change in [
        json!({"apiEndpoint": recorder_url}),
        json!({"apiEndpoint": recorder_url, "insecureSkipTLSVerification": true}),
        json!({"proxyURL": recorder.url("http")}),
        json!({"insecureSkipTLSVerification": true}),
    ] {
        let merge = json!({"spec": change}).to_string();
        for kind in ["merge", "strategic"] {
            eve.expect_output(&["patch", "cluster", "member1", "--type", kind, "-p", &merge], "", 1, NOT_THEIRS)?;
        }
        let operations = change.as_object().into_iter().flatten();
        let operations =
            operations.map(|(key, value)| json!({"op": "add", "path": format!("/spec/{key}"), "value": value}));
        let patch = Value::from_iter(operations).to_string();
        eve.expect_output(&["patch", "cluster", "member1", "--type", "json", "-p", &patch], "", 1, NOT_THEIRS)?;
        let mut whole: Value = serde_json::from_str(&kubectl.ok(&["get", "cluster", "member1", "-o", "json"], "")?)?;
        for (key, value) in change.as_object().into_iter().flatten() {
            whole["spec"][key] = value.clone();
        }
        eve.expect_output(&["replace", "-f", "-"], &whole.to_string(), 1, NOT_THEIRS)?;
        let applied = karmada("member1", change);
        eve.expect_output(&["apply", "--server-side", "--force-conflicts", "-f", "-"], &applied, 1, NOT_THEIRS)?;
    }
    // Changes that do not affect tokens are subject to RBAC only.
    eve.ok(
        &["patch", "cluster", "member1", "--type", "merge", "-p", r#"{"metadata": {"labels": {"team": "blue"}}}"#],
        "",
    )?;
    eve.ok(&["create", "-f", "-"], &karmada("without-tokens", json!({"syncMode": "Pull"})))?;
    kubectl.ok(&["delete", "cluster", "without-tokens", "--timeout=60s"], "").map(drop)
}

/// A user who may write the status only changes nothing else. A user who may also write the cluster is reviewed for it.
fn writes_of_a_status(kubectl: &Kubectl, recorder: &Recorder) -> Result<()> {
    let (eve, reporter) = (kubectl.with(&["--as", "eve"]), kubectl.with(&["--as", "reporter"]));
    let sent = |spec: Value| json!({"spec": spec, "status": {"remedyActions": ["TrafficControl"]}}).to_string();
    let redirected = sent(json!({"apiEndpoint": recorder.url("https"), "region": "stolen"}));
    for kind in ["merge", "strategic"] {
        let patch = ["patch", "cluster", "member1", "--subresource=status", "--type", kind, "-p", &redirected];
        let region = [&patch[..], &["-o", "jsonpath={.spec.region}"]].concat();
        ensure!(reporter.ok(&region, "")? != "stolen", "a status has changed the spec");
        eve.expect_output(&patch, "", 1, NOT_THEIRS)?;
    }
    Ok(())
}

/// The group in which Clusters are stored. No user gets rights on it explicitly, but `*` includes it.
fn writes_of_the_internal_group(kubectl: &Kubectl, recorder: &Recorder) -> Result<()> {
    let eve = kubectl.with(&["--as", "eve"]);
    let recorder_url = recorder.url("https");
    let spec = json!({"syncMode": "Push", "apiEndpoint": recorder_url, "secretRef": secret("member1")});
    eve.expect_output(&["create", "-f", "-"], &stored("trap", spec), 1, NOT_THEIRS)?;
    let (what, patch) =
        ("storedclusters.storage.crowsnest.io", json!({"spec": {"apiEndpoint": recorder_url}}).to_string());
    eve.expect_output(&["patch", what, "member1", "--type", "merge", "-p", &patch], "", 1, NOT_THEIRS).map(drop)
}

/// With a certificate obtained with a bootstrap token, and the rights that come with it.
fn writes_of_an_agent(kubectl: &Kubectl, recorder: &Recorder, folder: &Path) -> Result<()> {
    let agent = agent(kubectl, folder, "m9")?;
    let recorder_url = recorder.url("https");
    let own = json!({"syncMode": "Pull", "apiEndpoint": "https://10.0.0.9", "secretRef": secret("m9"),
        "impersonatorSecretRef": secret("m9-impersonator")});
    // The rights are granted when the certificate is approved.
    let opaque = |name: &str| json!({"apiVersion": "v1", "kind": "Secret", "metadata": secret(name), "stringData": {"token": "t"}});
    until("the agent to have its rights", || {
        Ok(agent.run(&["create", "-f", "-"], &opaque("m9").to_string())?.code == Some(0))
    })?;

    let others = "may write its own cluster only";
    agent.expect_output(&["create", "-f", "-"], &karmada("m8", json!({"syncMode": "Pull"})), 1, others)?;
    let mut stolen = own.clone();
    (stolen["secretRef"], stolen["apiEndpoint"]) = (secret("member1"), recorder_url.clone().into());
    agent.expect_output(&["create", "-f", "-"], &karmada("m9", stolen), 1, NOT_THEIRS)?;
    let moved = json!({"spec": {"apiEndpoint": recorder_url}}).to_string();
    agent.expect_output(&["patch", "cluster", "member1", "--type", "merge", "-p", &moved], "", 1, others)?;
    let status = json!({"status": {"kubernetesVersion": "v9"}}).to_string();
    let patch = ["patch", "cluster", "member1", "--subresource=status", "--type", "merge", "-p", &status];
    agent.expect_output(&patch, "", 1, others)?;

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
    agent.ok(&reports, &opaque("m9-impersonator").to_string())?;
    agent.ok(&["create", "-f", "-"], &karmada("m9", own))?;
    let renewed = json!({"stringData": {"token": "u"}});
    let patch = |secret: &str| {
        patched(&agent, folder, "m9", &format!("{SECRETS}/{secret}?fieldManager=crowsnest-agent"), &renewed)
    };
    let (code, body) = patch("m9-impersonator")?;
    ensure!(code == 200, "{code} {body}");
    // Another field manager reported it.
    let (code, body) = patch("m9")?;
    ensure!(code == 403 && body.contains("which no agent created"), "{code} {body}");
    let moved = json!({"spec": {"apiEndpoint": "https://10.0.0.10"}}).to_string();
    agent.ok(&["patch", "cluster", "m9", "--type", "merge", "-p", &moved], "")?;
    kubectl.ok(&["delete", "cluster", "m9", "--timeout=60s"], "").map(drop)
}

/// With a certificate for a name that another user gives to a cluster later.
fn certificates_give_no_rights_on_clusters_of_others(
    kubectl: &Kubectl,
    recorder: &Recorder,
    folder: &Path,
) -> Result<()> {
    let agent = agent(kubectl, folder, "m7")?;
    let token =
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": secret("m7"), "stringData": {"token": "theirs"}});
    kubectl.ok(&["create", "-f", "-"], &token.to_string())?;
    let joined = json!({"syncMode": "Push", "apiEndpoint": "https://10.0.0.9", "secretRef": secret("m7")});
    kubectl.ok(&["create", "-f", "-"], &karmada("m7", joined))?;
    let (code, body) = patched(&agent, folder, "m7", &format!("{SECRETS}/m7"), &json!({}))?;
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
    // An agent's cluster with another name cannot be contacted directly.
    let dialled = karmada("m7", json!({"syncMode": "Push", "apiEndpoint": recorder.url("https")}));
    agent.expect_output(&["create", "-f", "-"], &dialled, 1, "in pull mode only")?;
    agent.expect_output(&["get", "clusters"], "", 1, "forbidden")?;
    kubectl.ok(&["delete", "cluster", "m7", "--timeout=60s"], "")?;
    // The same name is admitted once: requests are handled in order, and the next one is approved.
    let second = request(kubectl, "m7-again", "system:karmada:agent:m7")?;
    let next = request(kubectl, "m6", "system:karmada:agent:m6")?;
    kubectl.until(&["get", "csr", &next, "-o", "jsonpath={.status.certificate}"], |out| !out.is_empty())?;
    let status = kubectl.ok(&["get", "csr", &second, "-o", "jsonpath={.status}"], "")?;
    ensure!(status.is_empty() || status == "{}", "{status}");
    Ok(())
}

/// Applies to administrators and all other users.
fn tokens_are_not_sent_over_http(kubectl: &Kubectl, recorder: &Recorder) -> Result<()> {
    let spec = json!({"syncMode": "Push", "apiEndpoint": recorder.url("http"), "secretRef": secret("member1")});
    let refused = "spec.apiEndpoint: Invalid value";
    kubectl.expect_output(&["create", "-f", "-"], &karmada("plain", spec.clone()), 1, refused)?;
    kubectl.expect_output(&["create", "-f", "-"], &stored("plain", spec), 1, refused).map(drop)
}

/// Shows that the recorder would have recorded a token.
fn an_administrator_can_change_the_address(kubectl: &Kubectl, recorder: &Recorder) -> Result<()> {
    let spec = json!({"syncMode": "Push", "apiEndpoint": recorder.url("https"), "secretRef": secret("member1")});
    kubectl.ok(&["create", "-f", "-"], &karmada("decoy", spec))?;
    until("a token to arrive at the recorder", || Ok(recorder.bytes() > 0))
}

/// Sends a merge patch as the agent `name`, without the read that kubectl does first.
fn patched(agent: &Kubectl, folder: &Path, name: &str, path: &str, change: &Value) -> Result<(u16, String)> {
    let server = agent.ok(&["config", "view", "-o", "jsonpath={.clusters[0].cluster.server}"], "")?;
    let [certificate, key] = ["crt", "key"].map(|extension| fs::read(folder.join(format!("{name}.{extension}"))));
    let identity = reqwest::Identity::from_pem(&[certificate?, key?].concat())?;
    let sent = async {
        let client = reqwest::Client::builder().tls_danger_accept_invalid_certs(true).identity(identity).build()?;
        let request = client.patch(format!("{server}{path}")).header("content-type", "application/merge-patch+json");
        let response = request.body(change.to_string()).send().await?;
        anyhow::Ok((response.status().as_u16(), response.text().await?))
    };
    tokio::runtime::Runtime::new()?.block_on(sent)
}

/// Requests a certificate for this user with a bootstrap token.
fn request(kubectl: &Kubectl, name: &str, user: &str) -> Result<String> {
    request_certificate(kubectl, name, user).map(|_| name.to_owned())
}

/// The key of a request, made by the bearer of a bootstrap token.
fn request_certificate(kubectl: &Kubectl, name: &str, user: &str) -> Result<KeyPair> {
    kubectl.ok(&["apply", "-f", "-"], BOOTSTRAP)?;
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::OrganizationName, "system:karmada:agents");
    params.distinguished_name.push(DnType::CommonName, user);
    let key = KeyPair::generate()?;
    let request = STANDARD.encode(params.serialize_request(&key)?.pem()?);
    let request = json!({"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
        "metadata": {"name": name}, "spec": {"signerName": "kubernetes.io/kube-apiserver-client", "request": request,
        "usages": ["digital signature", "key encipherment", "client auth"]}});
    kubectl.with_token("abcdef.0123456789abcdef")?.ok(&["create", "-f", "-"], &request.to_string())?;
    Ok(key)
}

/// The agent of a cluster of this name, which is not registered.
fn agent(kubectl: &Kubectl, folder: &Path, name: &str) -> Result<Kubectl> {
    let key = request_certificate(kubectl, name, &format!("system:karmada:agent:{name}"))?;
    let signed = ["get", "csr", name, "-o", "jsonpath={.status.certificate}"];
    let certificate = STANDARD.decode(kubectl.until(&signed, |out| !out.is_empty())?)?;
    let file = |extension: &str| folder.join(format!("{name}.{extension}"));
    fs::write(file("crt"), certificate)?;
    fs::write(file("key"), key.serialize_pem())?;
    fs::write(file("kubeconfig"), kubectl.ok(&["config", "view", "--raw", "--minify", "--flatten"], "")?)?;
    let (certificate, key) = (file("crt").display().to_string(), file("key").display().to_string());
    let agent = kubectl.on(&file("kubeconfig"));
    let credentials = ["config", "set-credentials", name, "--client-certificate", &certificate, "--client-key", &key];
    agent.ok(&[&credentials[..], &["--embed-certs"]].concat(), "")?;
    agent.ok(&["config", "set-context", "--current", "--user", name], "")?;
    Ok(agent)
}

/// Accepts every connection and counts connections and bytes.
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
        let counted = Arc::clone(&bytes);
        let (arrived, arrivals) = channel();
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let mut first = [0; 1024];
                let _ = stream.set_read_timeout(Some(Duration::from_secs(1)));
                // A connection counts even if it sends no bytes.
                counted.fetch_add(1 + stream.read(&mut first).unwrap_or_default(), Ordering::SeqCst);
                // The test may have ended.
                let _ = arrived.send(());
            }
        });
        Ok(Self { port, bytes, arrivals })
    }

    fn url(&self, scheme: &str) -> String {
        format!("{scheme}://127.0.0.1:{}", self.port)
    }

    fn is_reached_within(&self, time: Duration) -> bool {
        self.arrivals.recv_timeout(time).is_ok()
    }

    fn bytes(&self) -> usize {
        self.bytes.load(Ordering::SeqCst)
    }
}
