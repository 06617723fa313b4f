//! Renewal of certificates while `crowsnest serve` runs: the serving certificate, in files or in the control plane's
//! Secret, and the client certificate. New connections use the new one, and no request fails meanwhile.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use crowsnest_tests::{Apiserver, until};
use kube::Client;
use kube::api::{Patch, PatchParams, PostParams};
use kube::config::Kubeconfig;
use rcgen::{BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, Issuer, KeyPair};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

use crate::serve::reading::ask;
use crate::serve::relay::Balancer;
use crate::serve::site::{Replica, Site, client, crowsnest, free_port};
use crate::serve::world::{object, objects};

const CLUSTERS: &str = "/apis/cluster.karmada.io/v1alpha1/clusters";
/// The DNS name that the control plane uses.
const NAMES: [&str; 3] = ["crowsnest.karmada-system.svc", "127.0.0.1", "localhost"];

/// A certificate and its key as PEM, and its own authority.
struct Shown {
    authority: String,
    certificate: String,
    key: String,
}

impl Shown {
    fn make(name: &str) -> Result<Self> {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate()?;
        let authority = params.self_signed(&key)?.pem();
        let issuer = Issuer::new(params, key);
        let own = KeyPair::generate()?;
        let certificate = CertificateParams::new(NAMES.map(str::to_owned).to_vec())?.signed_by(&own, &issuer)?;
        Ok(Self { authority, certificate: certificate.pem(), key: own.serialize_pem() })
    }

    /// True if this certificate is served at a port.
    async fn is_at(&self, port: u16) -> Result<bool> {
        let mut config = kube::Config::new(format!("https://127.0.0.1:{port}").parse()?);
        config.root_cert = Some(vec![CertificateDer::from_pem_slice(self.authority.as_bytes())?.to_vec()]);
        let answered = ask(&Client::try_from(config)?, "/healthz").await;
        Ok(matches!(answered, Ok(_) | Err(kube::Error::Api(_))))
    }
}

/// Sends requests through the control plane continuously.
struct Asking {
    ends: Arc<AtomicBool>,
    answers: Arc<AtomicUsize>,
    request_loop: JoinHandle<Vec<String>>,
}

impl Asking {
    fn start(runtime: &Runtime, client: Client) -> Result<Self> {
        until("clusters to be served", || Ok(runtime.block_on(ask(&client, CLUSTERS)).is_ok()))?;
        let ends = Arc::new(AtomicBool::new(false));
        let answers = Arc::<AtomicUsize>::default();
        let (ended, answered) = (Arc::clone(&ends), Arc::clone(&answers));
        let request_loop = runtime.spawn(async move {
            let mut failures = Vec::new();
            let mut interval = tokio::time::interval(Duration::from_millis(50));
            while !ended.load(Ordering::Relaxed) {
                interval.tick().await;
                match ask(&client, CLUSTERS).await {
                    Ok(_) => drop(answered.fetch_add(1, Ordering::Relaxed)),
                    Err(error) => failures.push(error.to_string()),
                }
            }
            failures
        });
        Ok(Self { ends, answers, request_loop })
    }

    fn stop(self, runtime: &Runtime) -> Result<()> {
        // Including requests after the change.
        let before = self.answers.load(Ordering::Relaxed);
        let more = || Ok(self.request_loop.is_finished() || self.answers.load(Ordering::Relaxed) >= before + 10);
        until("more requests", more)?;
        self.ends.store(true, Ordering::Relaxed);
        let failures = runtime.block_on(self.request_loop)?;
        ensure!(failures.is_empty(), "{before} answers before, and {failures:#?}");
        Ok(())
    }
}

/// A control plane that trusts both certificates.
struct Fixture {
    runtime: Runtime,
    dir: tempfile::TempDir,
    control_plane: Apiserver,
    cp: Client,
    port: u16,
    shown: [Shown; 2],
}

impl Fixture {
    fn start() -> Result<Self> {
        let (runtime, dir) = (Runtime::new()?, tempfile::tempdir()?);
        let control_plane = Apiserver::start(&dir.path().join("cp"))?;
        let cp = runtime.block_on(client(&control_plane.kubeconfig))?;
        let fixture = Self {
            runtime,
            control_plane,
            cp,
            port: free_port()?,
            shown: [Shown::make("first")?, Shown::make("second")?],
            dir,
        };
        let both =
            fixture.write("ca.crt", &fixture.shown.iter().map(|one| one.authority.as_str()).collect::<String>())?;
        let (port, both) = (fixture.port.to_string(), both.display().to_string());
        let output = crowsnest(
            &fixture.control_plane.kubeconfig,
            &["install", "--host", "127.0.0.1", "--port", &port, "--ca-file", &both],
        )?;
        ensure!(output.ok, "{output:?}");
        Ok(fixture)
    }

    /// Atomic, as by a kubelet.
    fn write(&self, name: &str, text: &str) -> Result<PathBuf> {
        let (file, next) = (self.dir.path().join(name), self.dir.path().join(format!("{name}.next")));
        fs::write(&next, text)?;
        fs::rename(next, &file)?;
        Ok(file)
    }

    fn serve(&self, flags: &[String]) -> Result<(Replica, Balancer)> {
        let more = ["--reload-interval=1", "--roles=aggregated,webhook"].map(str::to_owned);
        let site = Site {
            control_plane: self.control_plane.kubeconfig.clone(),
            database: "sqlite:".to_owned(),
            folder: self.dir.path().to_owned(),
            flags: more.iter().chain(flags).cloned().collect(),
        };
        let replica = Replica::start("shows", &site)?;
        let balancer = Balancer::start(self.port, [replica.backend()])?;
        until("it to be ready", || replica.is_ready()).with_context(|| replica.log())?;
        Ok((replica, balancer))
    }

    /// The first certificate is served, then the second, without failed requests.
    fn changes(&self, replica: &Replica, change: impl FnOnce() -> Result<()>) -> Result<()> {
        let port = replica.backend().port;
        let [first, second] = &self.shown;
        let is_served = |shown: &Shown| self.runtime.block_on(shown.is_at(port));
        ensure!(is_served(first)? && !is_served(second)?, "{}", replica.log());
        let request_loop = Asking::start(&self.runtime, self.cp.clone())?;
        change()?;
        until("the next certificate to be shown", || is_served(second)).with_context(|| replica.log())?;
        ensure!(!is_served(first)?, "both are shown");
        request_loop.stop(&self.runtime).with_context(|| replica.log())?;
        ensure!(replica.is_ready()?, "{}", replica.log());
        Ok(())
    }
}

#[test]
fn serving_certificates_in_files_are_reloaded() -> Result<()> {
    let fixture = Fixture::start()?;
    let [first, second] = &fixture.shown;
    let certificate = fixture.write("tls.crt", &first.certificate)?.display().to_string();
    let key = fixture.write("tls.key", &first.key)?.display().to_string();
    let flags = [format!("--tls-cert-file={certificate}"), format!("--tls-private-key-file={key}")];
    let (replica, _balancer) = fixture.serve(&flags)?;
    fixture.changes(&replica, || {
        fixture.write("tls.crt", &second.certificate)?;
        // A certificate without its key is not used, and changes nothing.
        let is_refused = || Ok(replica.metrics()?.contains("crowsnest_reload_stale{files=\"tls-cert-file\"} 1\n"));
        until("half a pair to be refused", is_refused)?;
        fixture.write("tls.key", &second.key).map(drop)
    })
}

#[test]
fn the_serving_certificate_in_a_secret_is_reloaded() -> Result<()> {
    let fixture = Fixture::start()?;
    let secrets = objects(&fixture.cp, "", "v1", "Secret", Some("karmada-system"));
    let data =
        |shown: &Shown| json!({"tls.crt": STANDARD.encode(&shown.certificate), "tls.key": STANDARD.encode(&shown.key)});
    let [first, second] = &fixture.shown;
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls",
        "metadata": {"name": "crowsnest-serving"}, "data": data(first)});
    fixture.runtime.block_on(secrets.create(&PostParams::default(), &object(secret)?))?;
    let (replica, _balancer) = fixture.serve(&[])?;
    fixture.changes(&replica, || {
        let next = Patch::Merge(json!({"data": data(second)}));
        fixture.runtime.block_on(secrets.patch("crowsnest-serving", &PatchParams::default(), &next))?;
        Ok(())
    })
}

/// A certificate for another user, signed by the control plane, and its permissions.
async fn signed(cp: &Client, name: &str) -> Result<(String, String)> {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    let key = KeyPair::generate()?;
    let request = json!({"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
        "metadata": {"name": name}, "spec": {"signerName": "kubernetes.io/kube-apiserver-client",
            "request": STANDARD.encode(params.serialize_request(&key)?.pem()?), "usages": ["client auth"]}});
    let requests = objects(cp, "certificates.k8s.io", "v1", "CertificateSigningRequest", None);
    let mut made = requests.create(&PostParams::default(), &object(request)?).await?;
    made.data["status"] = json!({"conditions": [{"type": "Approved", "status": "True", "reason": "ByATest"}]});
    let approval =
        http::Request::put(format!("/apis/certificates.k8s.io/v1/certificatesigningrequests/{name}/approval"))
            .header("content-type", "application/json")
            .body(serde_json::to_vec(&made)?)?;
    cp.request::<Value>(approval).await?;
    let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
        "metadata": {"name": name}, "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": name}],
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}});
    let bindings = objects(cp, "rbac.authorization.k8s.io", "v1", "ClusterRoleBinding", None);
    bindings.create(&PostParams::default(), &object(binding)?).await?;
    loop {
        let found = requests.get(name).await?;
        if let Some(certificate) = found.data["status"]["certificate"].as_str() {
            return Ok((String::from_utf8(STANDARD.decode(certificate)?)?, key.serialize_pem()));
        }
        tokio::task::yield_now().await;
    }
}

/// Replaces the client certificate in the kubeconfig, atomically.
fn identify(file: &Path, certificate: &str, key: &str) -> Result<()> {
    let mut kubeconfig = Kubeconfig::read_from(file)?;
    for user in kubeconfig.auth_infos.iter_mut().filter_map(|named| named.auth_info.as_mut()) {
        *user = serde_json::from_value(json!({"client-certificate-data": STANDARD.encode(certificate),
            "client-key-data": STANDARD.encode(key)}))?;
    }
    let next = file.with_extension("next");
    fs::write(&next, serde_saphyr::to_string(&kubeconfig)?)?;
    Ok(fs::rename(next, file)?)
}

#[test]
fn the_client_certificate_is_reloaded() -> Result<()> {
    let fixture = Fixture::start()?;
    let [first, _] = &fixture.shown;
    let certificate = fixture.write("tls.crt", &first.certificate)?.display().to_string();
    let key = fixture.write("tls.key", &first.key)?.display().to_string();
    let flags = [format!("--tls-cert-file={certificate}"), format!("--tls-private-key-file={key}")];
    let (replica, _balancer) = fixture.serve(&flags)?;
    let (certificate, key) = fixture.runtime.block_on(signed(&fixture.cp, "renewed"))?;
    let request_loop = Asking::start(&fixture.runtime, fixture.cp.clone())?;
    identify(&fixture.dir.path().join("shows.kubeconfig"), &certificate, &key)?;
    until("requests with the new certificate", || {
        let log = fs::read_to_string(fixture.control_plane.audit_log())?;
        let events = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let mut whose = events.filter(|event| event["user"]["username"] == "renewed");
        Ok(whose.any(|event| event["responseStatus"]["code"] == 200 || event["responseStatus"]["code"] == 201))
    })
    .with_context(|| replica.log())?;
    request_loop.stop(&fixture.runtime).with_context(|| replica.log())?;
    ensure!(replica.is_ready()?, "{}", replica.log());
    Ok(())
}
