//! Authentication at the aggregated API server, through the control plane and directly; its audit log; and its limit of
//! concurrent requests.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use anyhow::{Context, Result, ensure};
use crowsnest_tests::{Fleet, Kubectl, until};
use kube::client::ConfigExt;
use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use serde_json::Value;

const WEB: &str = include_str!("proxies/web.yaml");
const ALICE: &str = include_str!("proxies/alice.yaml");
const ALICE_IN_MEMBER: &str = include_str!("proxies/alice-in-member.yaml");
const REGISTRY: &str = include_str!("quickstart/registry.yaml");
const CLUSTERS: &str = "/apis/cluster.karmada.io/v1alpha1/clusters";

static RUNTIME: LazyLock<tokio::runtime::Runtime> =
    LazyLock::new(|| tokio::runtime::Runtime::new().expect("a runtime"));

#[test]
fn clients_are_authenticated_audited_and_limited() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let data = dir.path().join("data");
    let fleet = Fleet::start(&data, &["--members", "member2", "--max-requests-inflight", "1"])?;
    let Some(kubectl) = fleet.any_kubectl()? else { return Ok(()) };
    kubectl.ok(&["apply", "-f", "-"], REGISTRY)?;
    kubectl.ok(&["apply", "-f", "-"], &ALICE.replace("NAME", "alice"))?;
    let member = kubectl.on(&fleet.kubeconfig("member2"));
    member.ok(&["apply", "-f", "-"], &ALICE_IN_MEMBER.replace("NAME", "alice"))?;
    member.ok(&["apply", "-f", "-"], &WEB.replace("NAME", "web"))?;
    member.until(&["get", "pod", "web"], |out| out.contains("Running"))?;

    let audited = || audited(&data);
    members_receive_the_identity(&fleet, &kubectl)?;
    requests_are_audited(&fleet, &kubectl, &audited)?;
    users_authenticate_with_certificates(&kubectl, dir.path(), &audited)?;
    limits_requests_in_flight(&fleet, &kubectl)?;
    ensure!(fleet.stop()?.success());
    Ok(())
}

/// Complete lines of the log.
fn audited(data: &Path) -> Result<Vec<Value>> {
    let text = fs::read_to_string(data.join("audit/audit.log"))?;
    let whole = text.rsplit_once('\n').map(|(whole, _)| whole).unwrap_or_default();
    whole.lines().map(|line| serde_json::from_str(line).with_context(|| line.to_owned())).collect()
}

type Audited<'a> = &'a dyn Fn() -> Result<Vec<Value>>;

/// Waits for a number of events that satisfy `wanted`; returns the first ones.
fn events(audited: Audited<'_>, many: usize, wanted: impl Fn(&Value) -> bool) -> Result<Vec<Value>> {
    let mut found = Vec::new();
    until("audit events", || {
        found = audited()?.into_iter().filter(&wanted).collect();
        Ok(found.len() >= many)
    })
    .with_context(|| format!("{:#?}", audited()))?;
    Ok(found)
}

/// The full identity, once members allow it.
fn members_receive_the_identity(fleet: &Fleet, kubectl: &Kubectl) -> Result<()> {
    let there = format!("{}{CLUSTERS}/member2/proxy", fleet.server()?);
    let alice = kubectl.with(&["--as", "alice", "--as-uid", "u-7", "--as-group", "crew", "--server", &there]);
    let who = ["auth", "whoami", "-o", "jsonpath={.status.userInfo.username} {.status.userInfo.uid}"];
    // The role must exist before its binding.
    kubectl.ok(&["apply", "-f", "-"], &ALICE.replace("kind: User", "kind: Group").replace("NAME", "crew"))?;
    alice.until(&who, |out| out == "alice u-7").map(drop)
}

fn requests_are_audited(fleet: &Fleet, kubectl: &Kubectl, audited: Audited<'_>) -> Result<()> {
    let server = fleet.server()?;
    let there = kubectl.with(&["--as", "alice", "--server", &format!("{server}{CLUSTERS}/member2/proxy")]);
    there.until(&["get", "pod", "web"], |out| out.contains("Running"))?;
    there.ok(&["exec", "web", "--", "echo", "very-secret-plans"], "")?;
    let exec = events(audited, 2, |event| {
        event["requestURI"].as_str().is_some_and(|uri| uri.contains("/pods/web/exec") && uri.contains("secret-plans"))
            && event["responseStatus"]["code"] == 101
    })?;
    let (started, ended) = (&exec[0], &exec[1]);
    ensure!(started["stage"] == "ResponseStarted" && ended["stage"] == "ResponseComplete", "{exec:#?}");
    ensure!(started["auditID"] == ended["auditID"] && exec.len() == 2, "{exec:#?}");
    // The control plane has authenticated alice.
    ensure!(started["user"]["username"] == "system:admin", "{exec:#?}");
    ensure!(started["impersonatedUser"]["username"] == "alice", "{exec:#?}");
    ensure!(
        started["objectRef"]["resource"] == "clusters" && started["objectRef"]["subresource"] == "proxy",
        "{exec:#?}"
    );
    ensure!(started["sourceIPs"].as_array().is_some_and(|ips| !ips.is_empty()), "{exec:#?}");
    let notes = &started["annotations"];
    let annotation = |key: &str| notes[format!("crowsnest.io/{key}")].as_str().unwrap_or_default().to_owned();
    ensure!(
        ["cluster", "member-resource", "member-namespace", "member-name"].map(annotation)
            == ["member2", "pods/exec", "default", "web"],
        "{notes:#}"
    );
    ensure!(notes["authorization.k8s.io/decision"] == "allow", "{notes:#}");

    // Refused requests and writes are logged as well.
    there.expect_output(&["delete", "pod", "web"], "", 1, "cannot delete resource \"pods\"")?;
    events(audited, 1, |event| {
        event["annotations"]["crowsnest.io/member-verb"] == "delete" && event["responseStatus"]["code"] == 403
    })?;
    // The fleet-wide proxy determines the cluster.
    let everywhere = format!("{server}/apis/search.karmada.io/v1alpha1/proxying/karmada/proxy");
    let everywhere = kubectl.with(&["--server", &everywhere]);
    everywhere.until(&["get", "pod", "web"], |out| out.contains("Running"))?;
    everywhere.ok(&["label", "pod", "web", "seen=yes"], "")?;
    let label = events(audited, 1, |event| event["annotations"]["crowsnest.io/member-verb"] == "patch")?;
    ensure!(label[0]["annotations"]["crowsnest.io/cluster"] == "member2", "{label:#?}");
    // Discovery requests are frequent and not logged.
    let quiet = |event: &Value| event["requestURI"] == "/apis/cluster.karmada.io/v1alpha1?timeout=32s";
    ensure!(!audited()?.iter().any(quiet));
    Ok(())
}

/// Directly, bypassing the control plane.
fn users_authenticate_with_certificates(kubectl: &Kubectl, folder: &Path, audited: Audited<'_>) -> Result<()> {
    let port = ["get", "apiservice", "v1alpha1.cluster.karmada.io", "-o", "jsonpath={.spec.service.port}"];
    let own = format!("https://127.0.0.1:{}", kubectl.ok(&port, "")?);
    let door = kubectl.with(&["--server", &own]);
    door.expect_output(&["get", "--raw", &format!("{CLUSTERS}/member2")], "", 0, "\"member2\"")?;
    let seen = events(audited, 1, |event| {
        event["requestURI"] == format!("{CLUSTERS}/member2") && event["user"]["username"] == "system:admin"
    })?;
    ensure!(seen[0]["sourceIPs"] == serde_json::json!(["127.0.0.1"]), "{seen:#?}");
    // RBAC determines whom a user may impersonate, and her permissions.
    let alice = door.with(&["--as", "alice"]);
    let pods = format!("{CLUSTERS}/member2/proxy/api/v1/namespaces/default/pods");
    alice.expect_output(&["get", "--raw", &pods], "", 0, "\"web\"")?;
    let refused = "clusters.cluster.karmada.io is forbidden: User \"alice\" cannot list resource \"clusters\"";
    alice.expect_output(&["get", "--raw", CLUSTERS], "", 1, refused)?;
    let acted = events(audited, 1, |event| event["impersonatedUser"]["username"] == "alice")?;
    ensure!(acted[0]["user"]["username"] == "system:admin", "{acted:#?}");
    // A certificate of an unknown authority does not make the user anonymous.
    let stranger = kubectl.on(&kubeconfig(folder, "stranger", &own, stranger()?)?);
    stranger.expect_output(&["get", "--raw", "/apis/cluster.karmada.io/v1alpha1"], "", 1, "Unauthorized").map(drop)
}

#[test]
fn certificates_are_reloaded() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let [before, after] = ["before", "after"].map(authority);
    let (before, after) = (before?, after?);
    // As a kubelet mounts a Secret: a symbolic link to a folder is swapped.
    let mounted = dir.path().join("mounted");
    fs::create_dir(&mounted)?;
    let mount = |name: &str, pem: &str| -> Result<()> {
        fs::create_dir(mounted.join(name))?;
        fs::write(mounted.join(name).join("ca.crt"), pem)?;
        symlink(name, mounted.join("..next"))?;
        Ok(fs::rename(mounted.join("..next"), mounted.join("..data"))?)
    };
    mount("v1", &before.0)?;
    symlink("..data/ca.crt", mounted.join("ca.crt"))?;
    let named = authority("named")?;
    let (certificate, key) = (dir.path().join("sni.crt"), dir.path().join("sni.key"));
    let (shown, shown_key) = signed(&named, "fleet.example.com", ExtendedKeyUsagePurpose::ServerAuth)?;
    fs::write(&certificate, shown)?;
    fs::write(&key, shown_key)?;
    let pair = format!("{},{}", certificate.display(), key.display());
    let ca = mounted.join("ca.crt").display().to_string();
    let flags =
        ["--members", "member2", "--client-ca-file", &ca, "--tls-sni-cert-key", &pair, "--reload-interval", "1"];
    let fleet = Fleet::start(&dir.path().join("data"), &flags)?;
    let Some(kubectl) = fleet.any_kubectl()? else { return Ok(()) };
    let port = ["get", "apiservice", "v1alpha1.cluster.karmada.io", "-o", "jsonpath={.spec.service.port}"];
    let own = format!("https://127.0.0.1:{}", kubectl.ok(&port, "")?);
    let user = |name: &str, authority: &Authority| -> Result<Kubectl> {
        let shown = signed(authority, "carla", ExtendedKeyUsagePurpose::ClientAuth)?;
        Ok(kubectl.on(&kubeconfig(dir.path(), name, &own, shown)?))
    };
    let (old, new) = (user("old", &before)?, user("new", &after)?);
    let groups = ["get", "--raw", "/apis/cluster.karmada.io/v1alpha1"];
    old.expect_output(&groups, "", 0, "clusters/proxy")?;
    new.expect_output(&groups, "", 1, "Unauthorized")?;
    mount("v2", &after.0)?;
    new.until(&groups, |out| out.contains("clusters/proxy"))?;
    old.expect_output(&groups, "", 1, "Unauthorized")?;
    // An invalid file is reported, and changes nothing.
    mount("v3", "-----BEGIN CERTIFICATE-----\nnonsense\n-----END CERTIFICATE-----\n")?;
    let metrics = ["get", "--raw", "/apis/search.crowsnest.io/v1alpha1/metrics"];
    kubectl.until(&metrics, |out| {
        out.contains("crowsnest_reload_stale{files=\"client-ca-file\"} 1")
            && out.contains("crowsnest_reload_failures_total 1")
    })?;
    new.expect_output(&groups, "", 0, "clusters/proxy")?;
    // Clients that request that name get its certificate, through the control plane as well.
    let ca = dir.path().join("sni-ca.crt");
    fs::write(&ca, &named.0)?;
    let ca = ca.display().to_string();
    let named =
        ["--tls-server-name", "fleet.example.com", "--certificate-authority", &ca, "--insecure-skip-tls-verify=false"];
    new.with(&named).expect_output(&groups, "", 0, "clusters/proxy")?;
    kubectl.with(&named).expect_output(&["get", "--raw", "/version"], "", 0, "gitVersion")?;
    ensure!(fleet.stop()?.success());
    Ok(())
}

/// A certificate authority: certificate as PEM, and its issuer.
type Authority = (String, Issuer<'static, KeyPair>);

fn authority(name: &str) -> Result<Authority> {
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(DnType::CommonName, name);
    let pem = params.self_signed(&key)?.pem();
    Ok((pem, Issuer::new(params, key)))
}

/// A certificate and its key.
fn signed(authority: &Authority, name: &str, usage: ExtendedKeyUsagePurpose) -> Result<(String, String)> {
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::new([name.to_owned()])?;
    params.distinguished_name.push(DnType::CommonName, name);
    params.extended_key_usages = vec![usage];
    Ok((params.signed_by(&key, &authority.1)?.pem(), key.serialize_pem()))
}

/// A kubeconfig with this client certificate that skips verification of the server.
fn kubeconfig(folder: &Path, name: &str, server: &str, (certificate, key): (String, String)) -> Result<PathBuf> {
    let (certificate_file, key_file) = (folder.join(format!("{name}.crt")), folder.join(format!("{name}.key")));
    fs::write(&certificate_file, certificate)?;
    fs::write(&key_file, key)?;
    let file = folder.join(format!("{name}.kubeconfig"));
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: x\nclusters: [{{name: x, cluster: {{server: '{server}', \
        insecure-skip-tls-verify: true}}}}]\nusers: [{{name: x, user: {{client-certificate: '{}', client-key: '{}'}}}}]\n\
        contexts: [{{name: x, context: {{cluster: x, user: x}}}}]\n",
        certificate_file.display(),
        key_file.display()
    );
    fs::write(&file, text)?;
    Ok(file)
}

/// A self-signed certificate for system:masters.
fn stranger() -> Result<(String, String)> {
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, "root");
    params.distinguished_name.push(DnType::OrganizationName, "system:masters");
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    Ok((params.self_signed(&key)?.pem(), key.serialize_pem()))
}

/// One request waits for its slow member; a second one exceeds the limit, except for system:masters.
fn limits_requests_in_flight(fleet: &Fleet, kubectl: &Kubectl) -> Result<()> {
    let output = fleet.crowsnest(&["sim", "member2", "delay", "50000"])?;
    ensure!(output.code == Some(0), "{output:?}");
    let pods = format!("{CLUSTERS}/member2/proxy/api/v1/namespaces/default/pods");
    let config = fs::read_to_string(fleet.kubeconfig("cp"))?;
    RUNTIME.block_on(async {
        let file = kube::config::Kubeconfig::from_yaml(&config)?;
        let config = kube::Config::from_custom_kubeconfig(file, &kube::config::KubeConfigOptions::default()).await?;
        // A client that does not retry.
        let builder = hyper_util::client::legacy::Client::builder(hyper_util::rt::TokioExecutor::new());
        let plain = builder.build::<_, kube::client::Body>(config.rustls_https_connector()?);
        let service = tower::ServiceBuilder::new().layer(config.base_uri_layer()).service(plain);
        let client = kube::Client::new(service, "default");
        // Either request may be first.
        let both = futures::future::select(Box::pin(as_alice(&client, &pods)), Box::pin(as_alice(&client, &pods)));
        let (refused, _waiting) = both.await.factor_first();
        let (code, again_in, status) = refused?;
        ensure!(code == 429 && again_in == "1", "{code} {again_in} {status:#}");
        ensure!(status["reason"] == "TooManyRequests" && status["details"]["retryAfterSeconds"] == 1, "{status:#}");
        kubectl.ok(&["get", "--raw", &format!("{CLUSTERS}/member2")], "").map(drop)
    })?;
    ensure!(fleet.crowsnest(&["sim", "member2", "delay", "0"])?.code == Some(0));
    // A disconnected client's request is no longer in flight.
    let alice = kubectl.with(&["--as", "alice"]);
    alice.until(&["get", "--raw", &pods], |out| out.contains("\"web\"")).map(drop)
}

/// Status, Retry-After and body of a response, without kubectl's retries.
async fn as_alice(client: &kube::Client, path: &str) -> Result<(u16, String, Value)> {
    let request = http::Request::get(path).header("Impersonate-User", "alice").body(kube::client::Body::empty())?;
    let (parts, body) = client.send(request).await?.into_parts();
    let body = http_body_util::BodyExt::collect(body).await?.to_bytes();
    let again_in = parts.headers.get("retry-after").map(|value| value.to_str()).transpose()?.unwrap_or_default();
    Ok((parts.status.as_u16(), again_in.to_owned(), serde_json::from_slice(&body)?))
}
