//! Configuration that `serve` and `up` share: audit log, API server of the aggregated APIs, clients of the webhooks.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use crowsnest_apiserver::audit::Auditor;
use crowsnest_apiserver::audit::log::{AuditLog, Destination, LogFile, Writer};
use crowsnest_apiserver::audit::policy::Policy;
use crowsnest_apiserver::authn::{Credentials, ServingCertificates};
use crowsnest_process::client_ca::ClientCaUpdater;
use crowsnest_process::reload::{ReloadCounters, Reloader};

use crowsnest_aggregated::request::audit::{MemberRequests, SENSITIVE_RESOURCES};
use crowsnest_aggregated::request::limits::Limits;
use crowsnest_aggregated::request::middleware::ApiMiddleware;
use crowsnest_runtime::metrics::ProcessMetrics;
use crowsnest_webhook::clients::Clients;

/// Timeout of requests answered by this process, as in kube-apiserver.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Configuration of the audit log.
#[derive(Debug, Clone)]
pub struct AuditConfig {
    pub destination: AuditDestination,
    /// Maximum age of rotated files in days; 0 means no limit.
    pub max_age_days: u32,
    /// Maximum number of rotated files; 0 means no limit.
    pub max_backups: usize,
    /// Maximum size of a file in megabytes; 0 means no limit.
    pub max_megabytes: u32,
    /// File with an audit.k8s.io/v1 Policy; `None` audits everything except health and discovery requests.
    pub policy_file: Option<PathBuf>,
}

/// Destination of audit events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AuditDestination {
    /// `audit/audit.log` in the data directory.
    DataDirectory,
    File(PathBuf),
    StandardOutput,
    None,
}

/// Configuration of the API server: client CAs, certificates by name, limits.
#[derive(Debug, Clone)]
pub struct ApiConfig {
    pub audit: AuditConfig,
    /// CA file of users' client certificates; `None` for the control plane's.
    pub client_ca_file: Option<PathBuf>,
    /// CA of front proxies; `None` for the control plane's.
    pub front_proxies: Option<TrustedClients>,
    /// Certificate and key files, selected by the server name that clients request (SNI).
    pub named_certificates: Vec<[PathBuf; 2]>,
    /// Interval between checks of these files for changes.
    pub reload_interval: Duration,
    /// Maximum number of concurrent read requests; 0 means no limit.
    pub max_requests_inflight: usize,
    /// Maximum number of concurrent write requests; 0 means no limit.
    pub max_mutating_requests_inflight: usize,
}

/// Client certificates that are trusted: those of a CA with one of the common names. An empty list allows all names.
#[derive(Debug, Clone)]
pub struct TrustedClients {
    pub ca_file: PathBuf,
    pub allowed_names: Vec<String>,
}

impl AuditConfig {
    /// Starts the audit log, by default in `folder`; returns the auditor and the log's writer.
    pub fn start(&self, folder: PathBuf) -> anyhow::Result<(Auditor, Option<Writer>)> {
        let policy = self.policy()?;
        let file = |path| {
            let max_bytes = u64::from(self.max_megabytes) << 20;
            let (max_backups, max_age_days) = (self.max_backups, self.max_age_days);
            Destination::File(LogFile { path, max_bytes, max_backups, max_age_days })
        };
        let destination = match &self.destination {
            AuditDestination::DataDirectory => file(folder.join("audit.log")),
            AuditDestination::File(path) => file(path.clone()),
            AuditDestination::StandardOutput => Destination::StandardOutput,
            AuditDestination::None => return Ok((Auditor::default(), None)),
        };
        let path = match &destination {
            Destination::File(files) => files.path.display().to_string(),
            Destination::StandardOutput => "-".to_owned(),
        };
        let (log, writer) = AuditLog::start(destination).with_context(|| format!("--audit-log-path {path}"))?;
        Ok((Auditor::new(policy, log, MemberRequests), Some(writer)))
    }

    fn policy(&self) -> anyhow::Result<Policy> {
        let Some(path) = &self.policy_file else { return Ok(Policy::default()) };
        let read_policy = || anyhow::Ok(Policy::parse(&std::fs::read_to_string(path)?)?);
        let policy = read_policy().with_context(|| format!("--audit-policy-file {}", path.display()))?;
        Ok(policy.with_sensitive_resources(&SENSITIVE_RESOURCES))
    }
}

impl ApiConfig {
    /// A reloader with the configured interval, without files yet.
    pub fn reloader(&self) -> Reloader {
        Reloader::new(self.reload_interval)
    }

    /// Loads CAs and certificates, now and when the files change.
    pub async fn watch(
        &self,
        reloader: &mut Reloader,
        client_cas: &Arc<ClientCaUpdater>,
        listeners: Vec<Arc<ServingCertificates>>,
    ) -> anyhow::Result<()> {
        if let Some(file) = self.client_ca_file.clone() {
            let client_cas = Arc::clone(client_cas);
            let apply = move |contents: &[String]| {
                Ok(client_cas.update_files(|files| files.users = contents.first().cloned())?)
            };
            reloader.watch("client-ca-file", vec![file], apply).await?;
        }
        if let Some(TrustedClients { ca_file, allowed_names }) = self.front_proxies.clone() {
            let client_cas = Arc::clone(client_cas);
            let apply = move |contents: &[String]| {
                Ok(client_cas.update_files(|files| {
                    files.front_proxies = contents.first().cloned();
                    files.allowed_names.clone_from(&allowed_names);
                })?)
            };
            reloader.watch("requestheader-client-ca-file", vec![ca_file], apply).await?;
        }
        if !self.named_certificates.is_empty() {
            let files = self.named_certificates.iter().flatten().cloned().collect();
            let apply = move |contents: &[String]| {
                let (pairs, _) = contents.as_chunks::<2>();
                let to_credentials = |[certificate, key]: &[String; 2]| Credentials {
                    certificate: certificate.clone(),
                    key: key.clone(),
                };
                let credentials: Vec<Credentials> = pairs.iter().map(to_credentials).collect();
                listeners.iter().try_for_each(|listener| Ok(listener.replace_by_name(&credentials)?))
            };
            reloader.watch("tls-sni-cert-key", files, apply).await?;
        }
        Ok(())
    }

    /// The middleware of the API handlers.
    pub fn middleware(&self, auditor: Auditor, reloads: Arc<ReloadCounters>) -> ApiMiddleware {
        let limits = Limits::new(self.max_requests_inflight, self.max_mutating_requests_inflight);
        ApiMiddleware { auditor, limits, reloads, metrics: Arc::new(ProcessMetrics::new()), timeout: REQUEST_TIMEOUT }
    }
}

/// Clients that may call the webhooks: any client if no CA is configured. The CA is reloaded when its file changes.
pub async fn webhook_clients(config: Option<&TrustedClients>, reloader: &mut Reloader) -> anyhow::Result<Clients> {
    let Some(TrustedClients { ca_file, allowed_names }) = config.cloned() else {
        tracing::info!("the webhooks accept any client; use --webhook-client-ca-file to require client certificates");
        return Ok(Clients::Unauthenticated);
    };
    let clients = Clients::with_client_certificates();
    let reloaded_clients = clients.clone();
    let apply = move |contents: &[String]| {
        Ok(reloaded_clients.set_trusted_ca(contents.first().map_or("", String::as_str), &allowed_names)?)
    };
    reloader.watch("webhook-client-ca-file", vec![ca_file], apply).await?;
    Ok(clients)
}
