//! Renewal of certificates while `crowsnest serve` runs: the serving certificate, in files or in the control plane's
//! Secret, and the client certificate. New connections use the new one, and no request fails during the renewal.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use crowsnest_tests::{Apiserver, WAIT_TIMEOUT, wait_for};
use kube::api::{DynamicObject, Patch, PatchParams, PostParams};
use kube::config::Kubeconfig;
use kube::{Api, Client};
use rcgen::{BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, Issuer, KeyPair};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

use crate::serve::network::Balancer;
use crate::serve::readers::get_text;
use crate::serve::replica::{Replica, ReplicaConfig, client, crowsnest, free_port};
use crate::serve::test_env::{object, objects};

const CLUSTERS: &str = "/apis/cluster.karmada.io/v1alpha1/clusters";
/// Names in the serving certificates; the control plane uses the first.
const NAMES: [&str; 3] = ["crowsnest.karmada-system.svc", "127.0.0.1", "localhost"];

/// A serving certificate and its key, and the authority that issued it; all in PEM.
struct TestCertificate {
    authority: String,
    certificate: String,
    key: String,
}

impl TestCertificate {
    fn generate(name: &str) -> Result<Self> {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate()?;
        let authority = params.self_signed(&key)?.pem();
        let issuer = Issuer::new(params, key);
        let server_key = KeyPair::generate()?;
        let certificate = CertificateParams::new(NAMES.map(str::to_owned).to_vec())?.signed_by(&server_key, &issuer)?;
        Ok(Self { authority, certificate: certificate.pem(), key: server_key.serialize_pem() })
    }

    /// True if this certificate is served at a port.
    async fn is_served_at(&self, port: u16) -> Result<bool> {
        let mut config = kube::Config::new(format!("https://127.0.0.1:{port}").parse()?);
        config.root_cert = Some(vec![CertificateDer::from_pem_slice(self.authority.as_bytes())?.to_vec()]);
        let result = get_text(&Client::try_from(config)?, "/healthz").await;
        Ok(matches!(result, Ok(_) | Err(kube::Error::Api(_))))
    }
}

/// Sends requests through the control plane continuously.
struct RequestLoop {
    is_stopped: Arc<AtomicBool>,
    /// Number of successful requests.
    successes: Arc<AtomicUsize>,
    /// Returns the errors of failed requests.
    task: JoinHandle<Vec<String>>,
}

impl RequestLoop {
    fn start(runtime: &Runtime, client: Client) -> Result<Self> {
        wait_for("clusters to be served", || Ok(runtime.block_on(get_text(&client, CLUSTERS)).is_ok()))?;
        let is_stopped = Arc::new(AtomicBool::new(false));
        let successes = Arc::<AtomicUsize>::default();
        let (should_stop, counter) = (Arc::clone(&is_stopped), Arc::clone(&successes));
        let task = runtime.spawn(async move {
            let mut failures = Vec::new();
            let mut interval = tokio::time::interval(Duration::from_millis(50));
            while !should_stop.load(Ordering::Relaxed) {
                interval.tick().await;
                match get_text(&client, CLUSTERS).await {
                    Ok(_) => drop(counter.fetch_add(1, Ordering::Relaxed)),
                    Err(error) => failures.push(error.to_string()),
                }
            }
            failures
        });
        Ok(Self { is_stopped, successes, task })
    }

    /// Stops after more successful requests; fails if a request failed.
    fn stop(self, runtime: &Runtime) -> Result<()> {
        let before = self.successes.load(Ordering::Relaxed);
        let has_more = || Ok(self.task.is_finished() || self.successes.load(Ordering::Relaxed) >= before + 10);
        wait_for("more requests", has_more)?;
        self.is_stopped.store(true, Ordering::Relaxed);
        let failures = runtime.block_on(self.task)?;
        ensure!(failures.is_empty(), "requests failed: {failures:#?}");
        Ok(())
    }
}

/// A control plane that trusts the authorities of both serving certificates.
struct Fixture {
    runtime: Runtime,
    dir: tempfile::TempDir,
    control_plane: Apiserver,
    cp: Client,
    port: u16,
    certificates: [TestCertificate; 2],
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
            certificates: [TestCertificate::generate("first")?, TestCertificate::generate("second")?],
            dir,
        };
        let ca_file = fixture
            .write("ca.crt", &fixture.certificates.iter().map(|pair| pair.authority.as_str()).collect::<String>())?;
        let (port, ca_file) = (fixture.port.to_string(), ca_file.display().to_string());
        let output = crowsnest(
            &fixture.control_plane.kubeconfig,
            &["install", "--host", "127.0.0.1", "--port", &port, "--ca-file", &ca_file],
        )?;
        ensure!(output.ok, "{output:?}");
        Ok(fixture)
    }

    /// Writes a file atomically, as a kubelet does for mounted Secrets.
    fn write(&self, name: &str, text: &str) -> Result<PathBuf> {
        let (file, next) = (self.dir.path().join(name), self.dir.path().join(format!("{name}.next")));
        fs::write(&next, text)?;
        fs::rename(next, &file)?;
        Ok(file)
    }

    /// Starts a replica; its log, data and kubeconfig are named after it.
    fn start_replica(&self, name: &'static str, flags: &[String]) -> Result<Replica> {
        let common = ["--reload-interval=1", "--roles=aggregated,webhook"].map(str::to_owned);
        let config = ReplicaConfig {
            control_plane: self.control_plane.kubeconfig.clone(),
            database: "sqlite:".to_owned(),
            folder: self.dir.path().to_owned(),
            flags: common.iter().chain(flags).cloned().collect(),
        };
        Replica::start(name, &config)
    }

    /// Starts a replica with the first serving certificate in files.
    fn start_with_files(&self) -> Result<Replica> {
        let [first, _] = &self.certificates;
        let certificate = self.write("tls.crt", &first.certificate)?.display().to_string();
        let key = self.write("tls.key", &first.key)?.display().to_string();
        let flags = [format!("--tls-cert-file={certificate}"), format!("--tls-private-key-file={key}")];
        self.start_replica("files", &flags)
    }

    /// Starts a replica that reads the first serving certificate from the control plane's Secret.
    fn start_with_secret(&self) -> Result<Replica> {
        let [first, _] = &self.certificates;
        let secret = json!({"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls",
            "metadata": {"name": "crowsnest-serving"}, "data": secret_data(first)});
        self.runtime.block_on(self.secrets().create(&PostParams::default(), &object(secret)?))?;
        self.start_replica("secret", &[])
    }

    /// Starts a load balancer with this replica only. Returns when the replica is ready.
    fn start_balancer(&self, replica: &Replica) -> Result<Balancer> {
        let balancer = Balancer::start(self.port, [replica.backend()])?;
        wait_for(&format!("replica {} to be ready", replica.name), || replica.is_ready())
            .with_context(|| replica.log())?;
        Ok(balancer)
    }

    fn secrets(&self) -> Api<DynamicObject> {
        objects(&self.cp, "", "v1", "Secret", Some("karmada-system"))
    }

    /// Checks that the first certificate is served before `change` and the second one after it, without failed
    /// requests.
    fn check_reload(&self, replica: &Replica, change: impl FnOnce() -> Result<()>) -> Result<()> {
        let port = replica.backend().port;
        let [first, second] = &self.certificates;
        let is_served = |certificate: &TestCertificate| self.runtime.block_on(certificate.is_served_at(port));
        ensure!(is_served(first)? && !is_served(second)?, "{}", replica.log());
        let request_loop = RequestLoop::start(&self.runtime, self.cp.clone())?;
        change()?;
        wait_for("the second certificate to be served", || is_served(second)).with_context(|| replica.log())?;
        ensure!(!is_served(first)?, "both certificates are served");
        request_loop.stop(&self.runtime).with_context(|| replica.log())?;
        ensure!(replica.is_ready()?, "{}", replica.log());
        Ok(())
    }
}

/// Content of a Secret with a serving certificate.
fn secret_data(pair: &TestCertificate) -> Value {
    json!({"tls.crt": STANDARD.encode(&pair.certificate), "tls.key": STANDARD.encode(&pair.key)})
}

/// One control plane with two replicas, because each start is expensive. They serve one after the other, so that all
/// requests reach the replica under test.
#[test]
fn certificates_are_reloaded() -> Result<()> {
    let fixture = Fixture::start()?;
    let (files, secret) = (fixture.start_with_files()?, fixture.start_with_secret()?);
    let balancer = fixture.start_balancer(&files)?;
    check_files(&fixture, &files).context("serving certificate in files")?;
    check_client_certificate(&fixture, &files).context("client certificate")?;
    drop((balancer, files));
    let _balancer = fixture.start_balancer(&secret)?;
    check_secret(&fixture, &secret).context("serving certificate in a Secret")
}

fn check_files(fixture: &Fixture, replica: &Replica) -> Result<()> {
    let [_, second] = &fixture.certificates;
    fixture.check_reload(replica, || {
        fixture.write("tls.crt", &second.certificate)?;
        // A certificate without its key is not used, and changes nothing.
        let is_refused = || Ok(replica.metrics()?.contains("crowsnest_reload_stale{files=\"tls-cert-file\"} 1\n"));
        wait_for("the certificate without its key to be refused", is_refused)?;
        fixture.write("tls.key", &second.key).map(drop)
    })
}

fn check_secret(fixture: &Fixture, replica: &Replica) -> Result<()> {
    let [_, second] = &fixture.certificates;
    fixture.check_reload(replica, || {
        let next = Patch::Merge(json!({"data": secret_data(second)}));
        fixture.runtime.block_on(fixture.secrets().patch("crowsnest-serving", &PatchParams::default(), &next))?;
        Ok(())
    })
}

/// Creates a user with the role cluster-admin and a client certificate that the control plane signs; returns the
/// certificate and its key in PEM.
async fn create_user(cp: &Client, name: &str) -> Result<(String, String)> {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    let key = KeyPair::generate()?;
    let request = json!({"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
        "metadata": {"name": name}, "spec": {"signerName": "kubernetes.io/kube-apiserver-client",
            "request": STANDARD.encode(params.serialize_request(&key)?.pem()?), "usages": ["client auth"]}});
    let requests = objects(cp, "certificates.k8s.io", "v1", "CertificateSigningRequest", None);
    let mut created = requests.create(&PostParams::default(), &object(request)?).await?;
    created.data["status"] = json!({"conditions": [{"type": "Approved", "status": "True", "reason": "ByATest"}]});
    let approval =
        http::Request::put(format!("/apis/certificates.k8s.io/v1/certificatesigningrequests/{name}/approval"))
            .header("content-type", "application/json")
            .body(serde_json::to_vec(&created)?)?;
    cp.request::<Value>(approval).await?;
    let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
        "metadata": {"name": name}, "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": name}],
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}});
    let bindings = objects(cp, "rbac.authorization.k8s.io", "v1", "ClusterRoleBinding", None);
    bindings.create(&PostParams::default(), &object(binding)?).await?;
    let signing = async {
        loop {
            let found = requests.get(name).await?;
            if let Some(certificate) = found.data["status"]["certificate"].as_str() {
                return anyhow::Ok((String::from_utf8(STANDARD.decode(certificate)?)?, key.serialize_pem()));
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(WAIT_TIMEOUT, signing).await.context("the certificate is not signed in time")?
}

/// Replaces the client certificate in a kubeconfig, atomically.
fn replace_client_certificate(file: &Path, certificate: &str, key: &str) -> Result<()> {
    let mut kubeconfig = Kubeconfig::read_from(file)?;
    for user in kubeconfig.auth_infos.iter_mut().filter_map(|named| named.auth_info.as_mut()) {
        *user = serde_json::from_value(json!({"client-certificate-data": STANDARD.encode(certificate),
            "client-key-data": STANDARD.encode(key)}))?;
    }
    let next = file.with_extension("next");
    fs::write(&next, serde_saphyr::to_string(&kubeconfig)?)?;
    Ok(fs::rename(next, file)?)
}

fn check_client_certificate(fixture: &Fixture, replica: &Replica) -> Result<()> {
    let (certificate, key) = fixture.runtime.block_on(create_user(&fixture.cp, "renewed"))?;
    let request_loop = RequestLoop::start(&fixture.runtime, fixture.cp.clone())?;
    let kubeconfig = fixture.dir.path().join(format!("{}.kubeconfig", replica.name));
    replace_client_certificate(&kubeconfig, &certificate, &key)?;
    wait_for("requests with the new certificate", || {
        let log = fs::read_to_string(fixture.control_plane.audit_log())?;
        let events = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let mut own_events = events.filter(|event| event["user"]["username"] == "renewed");
        Ok(own_events.any(|event| event["responseStatus"]["code"] == 200 || event["responseStatus"]["code"] == 201))
    })
    .with_context(|| replica.log())?;
    request_loop.stop(&fixture.runtime).with_context(|| replica.log())?;
    ensure!(replica.is_ready()?, "{}", replica.log());
    Ok(())
}
