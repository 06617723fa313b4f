//! Authentication at the aggregated API server, through the control plane and directly; its audit log; and its limit of
//! concurrent requests.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use anyhow::{Context, Result, ensure};
use crowsnest_tests::{Fleet, Kubectl, wait_for};
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
    kubectl.run_ok(&["apply", "-f", "-"], REGISTRY)?;
    kubectl.run_ok(&["apply", "-f", "-"], &ALICE.replace("NAME", "alice"))?;
    let member = kubectl.with_kubeconfig(&fleet.kubeconfig("member2"));
    member.run_ok(&["apply", "-f", "-"], &ALICE_IN_MEMBER.replace("NAME", "alice"))?;
    member.run_ok(&["apply", "-f", "-"], &WEB.replace("NAME", "web"))?;
    member.run_until(&["get", "pod", "web"], |out| out.contains("Running"))?;

    let audit_log = || read_audit_log(&data);
    check_identity_in_member(&fleet, &kubectl)?;
    check_audit_log(&fleet, &kubectl, &audit_log)?;
    check_certificates(&kubectl, dir.path(), &audit_log)?;
    check_limit_of_requests(&fleet, &kubectl)?;
    ensure!(fleet.stop()?.success());
    Ok(())
}

/// Complete lines of the log.
fn read_audit_log(data: &Path) -> Result<Vec<Value>> {
    let text = fs::read_to_string(data.join("audit/audit.log"))?;
    let complete = text.rsplit_once('\n').map(|(complete, _)| complete).unwrap_or_default();
    complete.lines().map(|line| serde_json::from_str(line).with_context(|| line.to_owned())).collect()
}

type AuditLogReader<'a> = &'a dyn Fn() -> Result<Vec<Value>>;

/// Waits until `count` events satisfy the predicate; returns all events that satisfy it.
fn wait_for_events(
    audit_log: AuditLogReader<'_>,
    count: usize,
    predicate: impl Fn(&Value) -> bool,
) -> Result<Vec<Value>> {
    let mut events = Vec::new();
    wait_for("audit events", || {
        events = audit_log()?.into_iter().filter(&predicate).collect();
        Ok(events.len() >= count)
    })
    .with_context(|| format!("{:#?}", audit_log()))?;
    Ok(events)
}

/// The member receives the user name, UID and groups of the caller.
fn check_identity_in_member(fleet: &Fleet, kubectl: &Kubectl) -> Result<()> {
    let member_url = format!("{}{CLUSTERS}/member2/proxy", fleet.server()?);
    let alice =
        kubectl.with_flags(&["--as", "alice", "--as-uid", "u-7", "--as-group", "crew", "--server", &member_url]);
    let whoami = ["auth", "whoami", "-o", "jsonpath={.status.userInfo.username} {.status.userInfo.uid}"];
    // The role must exist before its binding.
    kubectl.run_ok(&["apply", "-f", "-"], &ALICE.replace("kind: User", "kind: Group").replace("NAME", "crew"))?;
    alice.run_until(&whoami, |out| out == "alice u-7").map(drop)
}

fn check_audit_log(fleet: &Fleet, kubectl: &Kubectl, audit_log: AuditLogReader<'_>) -> Result<()> {
    let server = fleet.server()?;
    let member_kubectl =
        kubectl.with_flags(&["--as", "alice", "--server", &format!("{server}{CLUSTERS}/member2/proxy")]);
    member_kubectl.run_until(&["get", "pod", "web"], |out| out.contains("Running"))?;
    member_kubectl.run_ok(&["exec", "web", "--", "echo", "very-secret-plans"], "")?;
    let exec = wait_for_events(audit_log, 2, |event| {
        event["requestURI"].as_str().is_some_and(|uri| uri.contains("/pods/web/exec") && uri.contains("secret-plans"))
            && event["responseStatus"]["code"] == 101
    })?;
    let (started, ended) = (&exec[0], &exec[1]);
    ensure!(started["stage"] == "ResponseStarted" && ended["stage"] == "ResponseComplete", "{exec:#?}");
    ensure!(started["auditID"] == ended["auditID"] && exec.len() == 2, "{exec:#?}");
    // The control plane has authenticated the administrator, who impersonates alice.
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

    // Refused requests and writes are also logged.
    member_kubectl.expect_output(&["delete", "pod", "web"], "", 1, "cannot delete resource \"pods\"")?;
    wait_for_events(audit_log, 1, |event| {
        event["annotations"]["crowsnest.io/member-verb"] == "delete" && event["responseStatus"]["code"] == 403
    })?;
    // The fleet-wide proxy determines the cluster.
    let via_fleet = format!("{server}/apis/search.karmada.io/v1alpha1/proxying/karmada/proxy");
    let via_fleet = kubectl.with_flags(&["--server", &via_fleet]);
    via_fleet.run_until(&["get", "pod", "web"], |out| out.contains("Running"))?;
    via_fleet.run_ok(&["label", "pod", "web", "seen=yes"], "")?;
    let label = wait_for_events(audit_log, 1, |event| event["annotations"]["crowsnest.io/member-verb"] == "patch")?;
    ensure!(label[0]["annotations"]["crowsnest.io/cluster"] == "member2", "{label:#?}");
    // Discovery requests are frequent and not logged.
    let is_discovery = |event: &Value| event["requestURI"] == "/apis/cluster.karmada.io/v1alpha1?timeout=32s";
    ensure!(!audit_log()?.iter().any(is_discovery));
    Ok(())
}

/// Clients that connect to the aggregated API server directly are authenticated by their certificates.
fn check_certificates(kubectl: &Kubectl, folder: &Path, audit_log: AuditLogReader<'_>) -> Result<()> {
    let port = ["get", "apiservice", "v1alpha1.cluster.karmada.io", "-o", "jsonpath={.spec.service.port}"];
    let server_url = format!("https://127.0.0.1:{}", kubectl.run_ok(&port, "")?);
    let direct = kubectl.with_flags(&["--server", &server_url]);
    direct.expect_output(&["get", "--raw", &format!("{CLUSTERS}/member2")], "", 0, "\"member2\"")?;
    let own_events = wait_for_events(audit_log, 1, |event| {
        event["requestURI"] == format!("{CLUSTERS}/member2") && event["user"]["username"] == "system:admin"
    })?;
    ensure!(own_events[0]["sourceIPs"] == serde_json::json!(["127.0.0.1"]), "{own_events:#?}");
    // RBAC determines which users a client may impersonate, and what they may do.
    let alice = direct.with_flags(&["--as", "alice"]);
    let pods = format!("{CLUSTERS}/member2/proxy/api/v1/namespaces/default/pods");
    alice.expect_output(&["get", "--raw", &pods], "", 0, "\"web\"")?;
    let refused = "clusters.cluster.karmada.io is forbidden: User \"alice\" cannot list resource \"clusters\"";
    alice.expect_output(&["get", "--raw", CLUSTERS], "", 1, refused)?;
    let impersonated = wait_for_events(audit_log, 1, |event| event["impersonatedUser"]["username"] == "alice")?;
    ensure!(impersonated[0]["user"]["username"] == "system:admin", "{impersonated:#?}");
    // A certificate of an unknown authority does not make the user anonymous.
    let stranger =
        kubectl.with_kubeconfig(&write_kubeconfig(folder, "stranger", &server_url, self_signed_certificate()?)?);
    stranger.expect_output(&["get", "--raw", "/apis/cluster.karmada.io/v1alpha1"], "", 1, "Unauthorized").map(drop)
}

#[test]
fn certificates_are_reloaded() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let [before, after] = ["before", "after"].map(authority);
    let (before, after) = (before?, after?);
    // A file is replaced as in a mounted Secret: by swapping a symbolic link to a folder.
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
    let sni_authority = authority("sni")?;
    let (certificate, key) = (dir.path().join("sni.crt"), dir.path().join("sni.key"));
    let (sni_certificate, sni_key) =
        issue_certificate(&sni_authority, "fleet.example.com", ExtendedKeyUsagePurpose::ServerAuth)?;
    fs::write(&certificate, sni_certificate)?;
    fs::write(&key, sni_key)?;
    let pair = format!("{},{}", certificate.display(), key.display());
    let ca = mounted.join("ca.crt").display().to_string();
    let flags =
        ["--members", "member2", "--client-ca-file", &ca, "--tls-sni-cert-key", &pair, "--reload-interval", "1"];
    let fleet = Fleet::start(&dir.path().join("data"), &flags)?;
    let Some(kubectl) = fleet.any_kubectl()? else { return Ok(()) };
    let port = ["get", "apiservice", "v1alpha1.cluster.karmada.io", "-o", "jsonpath={.spec.service.port}"];
    let server_url = format!("https://127.0.0.1:{}", kubectl.run_ok(&port, "")?);
    let user = |name: &str, authority: &Authority| -> Result<Kubectl> {
        let client_certificate = issue_certificate(authority, "carla", ExtendedKeyUsagePurpose::ClientAuth)?;
        Ok(kubectl.with_kubeconfig(&write_kubeconfig(dir.path(), name, &server_url, client_certificate)?))
    };
    let (old, new) = (user("old", &before)?, user("new", &after)?);
    let discovery = ["get", "--raw", "/apis/cluster.karmada.io/v1alpha1"];
    old.expect_output(&discovery, "", 0, "clusters/proxy")?;
    new.expect_output(&discovery, "", 1, "Unauthorized")?;
    mount("v2", &after.0)?;
    new.run_until(&discovery, |out| out.contains("clusters/proxy"))?;
    old.expect_output(&discovery, "", 1, "Unauthorized")?;
    // An invalid file is reported, and changes nothing.
    mount("v3", "-----BEGIN CERTIFICATE-----\nnonsense\n-----END CERTIFICATE-----\n")?;
    let metrics = ["get", "--raw", "/apis/search.crowsnest.io/v1alpha1/metrics"];
    kubectl.run_until(&metrics, |out| {
        out.contains("crowsnest_reload_stale{files=\"client-ca-file\"} 1")
            && out.contains("crowsnest_reload_failures_total 1")
    })?;
    new.expect_output(&discovery, "", 0, "clusters/proxy")?;
    // Clients that request this server name receive its certificate, also through the control plane.
    let ca = dir.path().join("sni-ca.crt");
    fs::write(&ca, &sni_authority.0)?;
    let ca = ca.display().to_string();
    let sni_flags =
        ["--tls-server-name", "fleet.example.com", "--certificate-authority", &ca, "--insecure-skip-tls-verify=false"];
    new.with_flags(&sni_flags).expect_output(&discovery, "", 0, "clusters/proxy")?;
    kubectl.with_flags(&sni_flags).expect_output(&["get", "--raw", "/version"], "", 0, "gitVersion")?;
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
fn issue_certificate(authority: &Authority, name: &str, usage: ExtendedKeyUsagePurpose) -> Result<(String, String)> {
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::new([name.to_owned()])?;
    params.distinguished_name.push(DnType::CommonName, name);
    params.extended_key_usages = vec![usage];
    Ok((params.signed_by(&key, &authority.1)?.pem(), key.serialize_pem()))
}

/// Writes a kubeconfig that has this client certificate and skips verification of the server.
fn write_kubeconfig(folder: &Path, name: &str, server: &str, (certificate, key): (String, String)) -> Result<PathBuf> {
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
fn self_signed_certificate() -> Result<(String, String)> {
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, "root");
    params.distinguished_name.push(DnType::OrganizationName, "system:masters");
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    Ok((params.self_signed(&key)?.pem(), key.serialize_pem()))
}

/// While one request waits for a slow member, a second one exceeds the limit. Requests of system:masters are exempt.
fn check_limit_of_requests(fleet: &Fleet, kubectl: &Kubectl) -> Result<()> {
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
        let both =
            futures::future::select(Box::pin(send_as_alice(&client, &pods)), Box::pin(send_as_alice(&client, &pods)));
        let (refused, _waiting) = both.await.factor_first();
        let (code, retry_after, status) = refused?;
        ensure!(code == 429 && retry_after == "1", "{code} {retry_after} {status:#}");
        ensure!(status["reason"] == "TooManyRequests" && status["details"]["retryAfterSeconds"] == 1, "{status:#}");
        kubectl.run_ok(&["get", "--raw", &format!("{CLUSTERS}/member2")], "").map(drop)
    })?;
    ensure!(fleet.crowsnest(&["sim", "member2", "delay", "0"])?.code == Some(0));
    // A disconnected client's request is no longer in flight.
    let alice = kubectl.with_flags(&["--as", "alice"]);
    alice.run_until(&["get", "--raw", &pods], |out| out.contains("\"web\"")).map(drop)
}

/// Status, Retry-After and body of a response, without kubectl's retries.
async fn send_as_alice(client: &kube::Client, path: &str) -> Result<(u16, String, Value)> {
    let request = http::Request::get(path).header("Impersonate-User", "alice").body(kube::client::Body::empty())?;
    let (parts, body) = client.send(request).await?.into_parts();
    let body = http_body_util::BodyExt::collect(body).await?.to_bytes();
    let retry_after = parts.headers.get("retry-after").map(|value| value.to_str()).transpose()?.unwrap_or_default();
    Ok((parts.status.as_u16(), retry_after.to_owned(), serde_json::from_slice(&body)?))
}
