//! Flags of the audit log, the API server and the webhooks, named as kube-apiserver's.

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use clap::Args;

use crowsnest_serve::api_config::{ApiConfig, AuditConfig, AuditDestination, TrustedClients};

/// Flags of the audit log.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Audit log")]
pub(crate) struct AuditArgs {
    /// Audit log: a file, - for standard output, or none [default: audit/audit.log in the data directory]
    #[arg(long, env = "CROWSNEST_AUDIT_LOG_PATH", value_name = "FILE|-|none")]
    audit_log_path: Option<PathBuf>,
    /// Maximum age of rotated audit files in days; 0 means no limit
    #[arg(long, env = "CROWSNEST_AUDIT_LOG_MAXAGE", value_name = "DAYS", default_value_t = 30)]
    audit_log_maxage: u32,
    /// Maximum number of rotated audit files; 0 means no limit
    #[arg(long, env = "CROWSNEST_AUDIT_LOG_MAXBACKUP", value_name = "N", default_value_t = 10)]
    audit_log_maxbackup: usize,
    /// Maximum size of an audit file in megabytes before it is rotated; 0 means no limit
    #[arg(long, env = "CROWSNEST_AUDIT_LOG_MAXSIZE", value_name = "MB", default_value_t = 100)]
    audit_log_maxsize: u32,
    /// File with an audit.k8s.io/v1 Policy [default: everything except health and discovery requests]
    #[arg(long, env = "CROWSNEST_AUDIT_POLICY_FILE", value_name = "FILE")]
    audit_policy_file: Option<PathBuf>,
}

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "API server")]
pub(crate) struct ApiArgs {
    #[command(flatten)]
    pub(crate) audit: AuditArgs,
    /// CA file for client certificates of users [default: as configured in the control plane]
    #[arg(long, env = "CROWSNEST_CLIENT_CA_FILE", value_name = "FILE")]
    client_ca_file: Option<PathBuf>,
    /// CA file for front proxies, whose X-Remote-* headers are trusted [default: as configured in the control plane]
    #[arg(long, env = "CROWSNEST_REQUESTHEADER_CLIENT_CA_FILE", value_name = "FILE")]
    requestheader_client_ca_file: Option<PathBuf>,
    /// Common names of front proxies' certificates, separated by commas [default: any]
    #[arg(long, env = "CROWSNEST_REQUESTHEADER_ALLOWED_NAMES", value_delimiter = ',', value_name = "NAMES")]
    #[arg(requires = "requestheader_client_ca_file")]
    requestheader_allowed_names: Vec<String>,
    /// Certificate and key for clients that request one of its names; may be repeated, or separated by semicolons
    #[arg(long, env = "CROWSNEST_TLS_SNI_CERT_KEY", value_delimiter = ';', value_name = "CERTIFICATE,KEY")]
    tls_sni_cert_key: Vec<CertificateKeyPair>,
    /// Interval between checks of these files for changes, in seconds
    #[arg(long, env = "CROWSNEST_RELOAD_INTERVAL", value_name = "SECONDS", default_value_t = 60,
          value_parser = clap::value_parser!(u64).range(1..=3600))]
    reload_interval: u64,
    /// Maximum number of concurrent read requests; 0 means no limit
    #[arg(long, env = "CROWSNEST_MAX_REQUESTS_INFLIGHT", value_name = "N", default_value_t = 400)]
    max_requests_inflight: usize,
    /// Maximum number of concurrent write requests; 0 means no limit
    #[arg(long, env = "CROWSNEST_MAX_MUTATING_REQUESTS_INFLIGHT", value_name = "N", default_value_t = 200)]
    max_mutating_requests_inflight: usize,
}

/// Client authentication of the webhooks.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Webhooks")]
pub(crate) struct WebhookArgs {
    /// CA file for the client certificate of the API server; others are rejected then [default: no client certificate
    /// is required]
    #[arg(long, env = "CROWSNEST_WEBHOOK_CLIENT_CA_FILE", value_name = "FILE")]
    webhook_client_ca_file: Option<PathBuf>,
    /// Common names of the API server's certificate, separated by commas [default: any]
    #[arg(long, env = "CROWSNEST_WEBHOOK_CLIENT_ALLOWED_NAMES", value_delimiter = ',', value_name = "NAMES")]
    #[arg(requires = "webhook_client_ca_file")]
    webhook_client_allowed_names: Vec<String>,
}

impl WebhookArgs {
    pub(crate) fn config(&self) -> Option<TrustedClients> {
        let allowed_names = self.webhook_client_allowed_names.clone();
        self.webhook_client_ca_file.clone().map(|ca_file| TrustedClients { ca_file, allowed_names })
    }
}

/// Files of a certificate and its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CertificateKeyPair([PathBuf; 2]);

impl FromStr for CertificateKeyPair {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split(',').collect::<Vec<_>>().as_slice() {
            [certificate, key] if !certificate.is_empty() && !key.is_empty() => {
                Ok(Self([certificate.into(), key.into()]))
            }
            _ => Err("expected CERTIFICATE,KEY".to_owned()),
        }
    }
}

impl ApiArgs {
    pub(crate) fn config(&self) -> ApiConfig {
        let allowed_names = self.requestheader_allowed_names.clone();
        let front_proxies = self.requestheader_client_ca_file.clone();
        ApiConfig {
            audit: self.audit.config(),
            client_ca_file: self.client_ca_file.clone(),
            front_proxies: front_proxies.map(|ca_file| TrustedClients { ca_file, allowed_names }),
            named_certificates: self.tls_sni_cert_key.iter().map(|CertificateKeyPair(files)| files.clone()).collect(),
            reload_interval: Duration::from_secs(self.reload_interval),
            max_requests_inflight: self.max_requests_inflight,
            max_mutating_requests_inflight: self.max_mutating_requests_inflight,
        }
    }
}

impl AuditArgs {
    pub(crate) fn config(&self) -> AuditConfig {
        AuditConfig {
            destination: match &self.audit_log_path {
                None => AuditDestination::DataDirectory,
                Some(path) if path == Path::new("none") => AuditDestination::None,
                Some(path) if path == Path::new("-") => AuditDestination::StandardOutput,
                Some(path) => AuditDestination::File(path.clone()),
            },
            max_age_days: self.audit_log_maxage,
            max_backups: self.audit_log_maxbackup,
            max_megabytes: self.audit_log_maxsize,
            policy_file: self.audit_policy_file.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificates_require_a_key() {
        let cases = [
            ("a.crt,a.key", true),
            ("a.crt", false),
            ("a.crt,", false),
            (",a.key", false),
            ("a.crt,a.key,b.key", false),
            ("", false),
        ];
        for (text, expected) in cases {
            assert_eq!(text.parse::<CertificateKeyPair>().is_ok(), expected, "{text}");
        }
    }
}
