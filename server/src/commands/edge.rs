//! Whom our API server believes, what it writes down and how much it takes on at once: flags named as kube-apiserver's.

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use crowsnest_apiserver::audit::Auditor;
use crowsnest_apiserver::audit::log::{AuditLog, Destination, Files, Writer};
use crowsnest_apiserver::audit::policy::Policy;
use crowsnest_apiserver::authn::{Credentials, Serving};

use crate::aggregated::request::audit::{DELICATE, Members};
use crate::aggregated::request::limits::Limits;
use crate::aggregated::request::middleware::Edge;
use crate::figures::Figures;
use crate::reload::{Reloader, Reloads};
use crate::trust::Trust;
use crate::webhook::clients::Clients;

/// Longer ones of our own are stuck; kube-apiserver's default.
const TIMEOUT: Duration = Duration::from_secs(60);

/// What is written down.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Audit log")]
pub(crate) struct AuditArgs {
    /// Where audit events go: a file, - for standard output, or none [default: audit/audit.log in the data directory]
    #[arg(long, env = "CROWSNEST_AUDIT_LOG_PATH", value_name = "FILE|-|none")]
    audit_log_path: Option<PathBuf>,
    /// Days that old audit files are kept; 0 for any time
    #[arg(long, env = "CROWSNEST_AUDIT_LOG_MAXAGE", value_name = "DAYS", default_value_t = 30)]
    audit_log_maxage: u32,
    /// How many old audit files are kept; 0 for any number
    #[arg(long, env = "CROWSNEST_AUDIT_LOG_MAXBACKUP", value_name = "N", default_value_t = 10)]
    audit_log_maxbackup: usize,
    /// Megabytes of an audit file before it is put away; 0 for any size
    #[arg(long, env = "CROWSNEST_AUDIT_LOG_MAXSIZE", value_name = "MB", default_value_t = 100)]
    audit_log_maxsize: u32,
    /// What is audited, an audit.k8s.io/v1 Policy [default: everything but health and discovery]
    #[arg(long, env = "CROWSNEST_AUDIT_POLICY_FILE", value_name = "FILE")]
    audit_policy_file: Option<PathBuf>,
}

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "API server")]
pub(crate) struct EdgeArgs {
    #[command(flatten)]
    pub(crate) audit: AuditArgs,
    /// Authority of users' client certificates [default: as the control plane says]
    #[arg(long, env = "CROWSNEST_CLIENT_CA_FILE", value_name = "FILE")]
    client_ca_file: Option<PathBuf>,
    /// Authority of front proxies, whose X-Remote-* headers are believed [default: as the control plane says]
    #[arg(long, env = "CROWSNEST_REQUESTHEADER_CLIENT_CA_FILE", value_name = "FILE")]
    requestheader_client_ca_file: Option<PathBuf>,
    /// Names of front proxies in certificates of that authority, by comma [default: any]
    #[arg(
        long,
        env = "CROWSNEST_REQUESTHEADER_ALLOWED_NAMES",
        value_delimiter = ',',
        value_name = "NAMES",
        requires = "requestheader_client_ca_file"
    )]
    requestheader_allowed_names: Vec<String>,
    /// A certificate and its key, shown to clients that ask for one of its names; may be repeated, or several by ;
    #[arg(long, env = "CROWSNEST_TLS_SNI_CERT_KEY", value_delimiter = ';', value_name = "CERTIFICATE,KEY")]
    tls_sni_cert_key: Vec<Pair>,
    /// How often these files are looked at, to read them again once they have changed
    #[arg(long, env = "CROWSNEST_RELOAD_INTERVAL", value_name = "SECONDS", default_value_t = 60,
          value_parser = clap::value_parser!(u64).range(1..=3600))]
    reload_interval: u64,
    /// Requests that change nothing, at once; 0 for any number
    #[arg(long, env = "CROWSNEST_MAX_REQUESTS_INFLIGHT", value_name = "N", default_value_t = 400)]
    max_requests_inflight: usize,
    /// Requests that change something, at once; 0 for any number
    #[arg(long, env = "CROWSNEST_MAX_MUTATING_REQUESTS_INFLIGHT", value_name = "N", default_value_t = 200)]
    max_mutating_requests_inflight: usize,
}

/// Who may send reviews to the webhooks.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Webhooks")]
pub(crate) struct WebhookArgs {
    /// Authority of the client certificate that the API server shows to webhooks; with it nobody else is answered
    /// [default: anybody is]
    #[arg(long, env = "CROWSNEST_WEBHOOK_CLIENT_CA_FILE", value_name = "FILE")]
    webhook_client_ca_file: Option<PathBuf>,
    /// Names of API servers in certificates of that authority, by comma [default: any]
    #[arg(
        long,
        env = "CROWSNEST_WEBHOOK_CLIENT_ALLOWED_NAMES",
        value_delimiter = ',',
        value_name = "NAMES",
        requires = "webhook_client_ca_file"
    )]
    webhook_client_allowed_names: Vec<String>,
}

impl WebhookArgs {
    /// The clients that reviews are accepted from; reloads the authority when the file changes.
    pub(crate) async fn clients(&self, reloader: &mut Reloader) -> anyhow::Result<Clients> {
        let Some(file) = self.webhook_client_ca_file.clone() else {
            tracing::info!("the webhooks answer anybody: no --webhook-client-ca-file is given");
            return Ok(Clients::Anybody);
        };
        let clients = Clients::certified();
        let (believing, names) = (clients.clone(), self.webhook_client_allowed_names.clone());
        let take = move |read: &[String]| Ok(believing.believe(read.first().map_or("", String::as_str), &names)?);
        reloader.watch("webhook-client-ca-file", vec![file], take).await?;
        Ok(clients)
    }
}

/// Files of a certificate and of its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Pair([PathBuf; 2]);

impl FromStr for Pair {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split(',').collect::<Vec<_>>().as_slice() {
            [certificate, key] if !certificate.is_empty() && !key.is_empty() => {
                Ok(Self([certificate.into(), key.into()]))
            }
            _ => Err("expected two files, a certificate's and its key's, by comma".to_owned()),
        }
    }
}

impl EdgeArgs {
    /// Whatever reads files again; nothing is watched yet.
    pub(crate) fn reloader(&self) -> Reloader {
        Reloader::new(Duration::from_secs(self.reload_interval))
    }

    /// Reads whom to believe and which certificates to show, now and whenever the files change.
    pub(crate) async fn watch(
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
        if let Some(file) = self.requestheader_client_ca_file.clone() {
            let (trust, names) = (Arc::clone(trust), self.requestheader_allowed_names.clone());
            let take = move |read: &[String]| {
                Ok(trust.read(|files| {
                    files.front_proxies = read.first().cloned();
                    files.allowed_names.clone_from(&names);
                })?)
            };
            reloader.watch("requestheader-client-ca-file", vec![file], take).await?;
        }
        if !self.tls_sni_cert_key.is_empty() {
            let files = self.tls_sni_cert_key.iter().flat_map(|Pair(files)| files.clone()).collect();
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

    /// What stands before the handlers.
    pub(crate) fn edge(&self, auditor: Auditor, reloads: Arc<Reloads>) -> Edge {
        let limits = Limits::new(self.max_requests_inflight, self.max_mutating_requests_inflight);
        Edge { auditor, limits, reloads, figures: Arc::new(Figures::new()), timeout: TIMEOUT }
    }
}

impl AuditArgs {
    /// What decides and records, and the log's writer. Files of the log are in `folder` unless told otherwise.
    pub(crate) fn start(&self, folder: &Path) -> anyhow::Result<(Auditor, Option<Writer>)> {
        let policy = self.policy()?;
        let Some(destination) = self.destination(folder) else { return Ok((Auditor::default(), None)) };
        let path = match &destination {
            Destination::File(files) => files.path.display().to_string(),
            Destination::StandardOutput => "-".to_owned(),
        };
        let (log, writer) = AuditLog::start(destination).with_context(|| format!("--audit-log-path {path}"))?;
        Ok((Auditor::new(policy, log, Members), Some(writer)))
    }

    fn policy(&self) -> anyhow::Result<Policy> {
        let Some(path) = &self.audit_policy_file else { return Ok(Policy::default()) };
        let read = || anyhow::Ok(Policy::parse(&std::fs::read_to_string(path)?)?);
        let policy = read().with_context(|| format!("--audit-policy-file {}", path.display()))?;
        Ok(policy.with_delicate(&DELICATE))
    }

    fn destination(&self, folder: &Path) -> Option<Destination> {
        let path = match &self.audit_log_path {
            None => folder.join("audit.log"),
            Some(path) if path == Path::new("none") => return None,
            Some(path) if path == Path::new("-") => return Some(Destination::StandardOutput),
            Some(path) => path.clone(),
        };
        Some(Destination::File(Files {
            path,
            max_bytes: u64::from(self.audit_log_maxsize) << 20,
            max_backups: self.audit_log_maxbackup,
            max_age_days: self.audit_log_maxage,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_comes_with_its_key() {
        let cases = [
            ("a.crt,a.key", true),
            ("a.crt", false),
            ("a.crt,", false),
            (",a.key", false),
            ("a.crt,a.key,b.key", false),
            ("", false),
        ];
        for (text, good) in cases {
            assert_eq!(text.parse::<Pair>().is_ok(), good, "{text}");
        }
    }
}
