//! Configuration that `serve` and `up` share: the audit log, the API server in front of the aggregated APIs, the webhooks' clients.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use crowsnest_apiserver::audit::Auditor;
use crowsnest_apiserver::audit::log::{AuditLog, Destination, Files, Writer};
use crowsnest_apiserver::audit::policy::Policy;
use crowsnest_apiserver::authn::{Credentials, Serving};
use crowsnest_process::client_ca::Trust;
use crowsnest_process::reload::{Reloader, Reloads};

use crowsnest_aggregated::request::audit::{DELICATE, Members};
use crowsnest_aggregated::request::limits::Limits;
use crowsnest_aggregated::request::middleware::Edge;
use crowsnest_runtime::metrics::ProcessMetrics;
use crowsnest_webhook::clients::Clients;

/// Timeout of requests that are answered here, as in kube-apiserver.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Configuration of the audit log.
#[derive(Debug, Clone)]
pub struct AuditConfig {
    pub destination: AuditDestination,
    /// Days that old files are kept; 0 for any time.
    pub max_age_days: u32,
    /// Number of old files that are kept; 0 for any number.
    pub max_backups: usize,
    /// Megabytes of a file before the next one begins; 0 for any size.
    pub max_megabytes: u32,
    /// An audit.k8s.io/v1 Policy; everything but health and discovery is audited where there is none.
    pub policy_file: Option<PathBuf>,
}

/// Where audit events go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AuditDestination {
    /// `audit/audit.log` in the data directory.
    DataDirectory,
    File(PathBuf),
    StandardOutput,
    Nowhere,
}

/// Configuration of the API server: authorities, certificates by name, limits.
#[derive(Debug, Clone)]
pub struct ApiConfig {
    pub audit: AuditConfig,
    /// Authority of users' client certificates; the control plane's where there is none.
    pub client_ca_file: Option<PathBuf>,
    /// Authority of front proxies; the control plane's where there is none.
    pub front_proxies: Option<CertificateNames>,
    /// Files of certificates and keys for the names that clients ask for.
    pub named_certificates: Vec<[PathBuf; 2]>,
    /// Interval at which all these files are read again.
    pub reload_interval: Duration,
    /// Concurrent requests that change nothing; 0 for any number.
    pub max_requests_inflight: usize,
    /// Concurrent requests that change something; 0 for any number.
    pub max_mutating_requests_inflight: usize,
}

/// An authority, and the names in its certificates that are accepted; any where there are none.
#[derive(Debug, Clone)]
pub struct CertificateNames {
    pub ca_file: PathBuf,
    pub allowed_names: Vec<String>,
}

impl AuditConfig {
    /// Starts the audit log, whose files are in `folder` unless configured otherwise; returns the auditor and the log's writer.
    pub fn start(&self, folder: PathBuf) -> anyhow::Result<(Auditor, Option<Writer>)> {
        let policy = self.policy()?;
        let file = |path| {
            let max_bytes = u64::from(self.max_megabytes) << 20;
            let (max_backups, max_age_days) = (self.max_backups, self.max_age_days);
            Destination::File(Files { path, max_bytes, max_backups, max_age_days })
        };
        let destination = match &self.destination {
            AuditDestination::DataDirectory => file(folder.join("audit.log")),
            AuditDestination::File(path) => file(path.clone()),
            AuditDestination::StandardOutput => Destination::StandardOutput,
            AuditDestination::Nowhere => return Ok((Auditor::default(), None)),
        };
        let path = match &destination {
            Destination::File(files) => files.path.display().to_string(),
            Destination::StandardOutput => "-".to_owned(),
        };
        let (log, writer) = AuditLog::start(destination).with_context(|| format!("--audit-log-path {path}"))?;
        Ok((Auditor::new(policy, log, Members), Some(writer)))
    }

    fn policy(&self) -> anyhow::Result<Policy> {
        let Some(path) = &self.policy_file else { return Ok(Policy::default()) };
        let read = || anyhow::Ok(Policy::parse(&std::fs::read_to_string(path)?)?);
        let policy = read().with_context(|| format!("--audit-policy-file {}", path.display()))?;
        Ok(policy.with_delicate(&DELICATE))
    }
}

impl ApiConfig {
    /// A reloader with the configured interval; nothing is watched yet.
    pub fn reloader(&self) -> Reloader {
        Reloader::new(self.reload_interval)
    }

    /// Reads authorities and certificates, now and whenever the files change.
    pub async fn watch(
        &self,
        reloader: &mut Reloader,
        trust: &Arc<Trust>,
        listeners: Vec<Arc<Serving>>,
    ) -> anyhow::Result<()> {
        if let Some(file) = self.client_ca_file.clone() {
            let trust = Arc::clone(trust);
            let take = move |read: &[String]| Ok(trust.read(|files| files.users = read.first().cloned())?);
            reloader.watch("client-ca-file", vec![file], take).await?;
        }
        if let Some(CertificateNames { ca_file, allowed_names }) = self.front_proxies.clone() {
            let trust = Arc::clone(trust);
            let take = move |read: &[String]| {
                Ok(trust.read(|files| {
                    files.front_proxies = read.first().cloned();
                    files.allowed_names.clone_from(&allowed_names);
                })?)
            };
            reloader.watch("requestheader-client-ca-file", vec![ca_file], take).await?;
        }
        if !self.named_certificates.is_empty() {
            let files = self.named_certificates.iter().flatten().cloned().collect();
            let take = move |read: &[String]| {
                let (pairs, _) = read.as_chunks::<2>();
                let pair = |[certificate, key]: &[String; 2]| Credentials {
                    certificate: certificate.clone(),
                    key: key.clone(),
                };
                let named: Vec<Credentials> = pairs.iter().map(pair).collect();
                listeners.iter().try_for_each(|listener| Ok(listener.name(&named)?))
            };
            reloader.watch("tls-sni-cert-key", files, take).await?;
        }
        Ok(())
    }

    /// The middleware before the handlers.
    pub fn middleware(&self, auditor: Auditor, reloads: Arc<Reloads>) -> Edge {
        let limits = Limits::new(self.max_requests_inflight, self.max_mutating_requests_inflight);
        Edge { auditor, limits, reloads, metrics: Arc::new(ProcessMetrics::new()), timeout: TIMEOUT }
    }
}

/// The clients that reviews are accepted from; any where there is no authority. Reloads the authority when its file changes.
pub async fn webhook_clients(config: Option<&CertificateNames>, reloader: &mut Reloader) -> anyhow::Result<Clients> {
    let Some(CertificateNames { ca_file, allowed_names }) = config.cloned() else {
        tracing::info!("the webhooks answer anybody: no --webhook-client-ca-file is given");
        return Ok(Clients::Anybody);
    };
    let clients = Clients::certified();
    let believing = clients.clone();
    let take = move |read: &[String]| Ok(believing.believe(read.first().map_or("", String::as_str), &allowed_names)?);
    reloader.watch("webhook-client-ca-file", vec![ca_file], take).await?;
    Ok(clients)
}
