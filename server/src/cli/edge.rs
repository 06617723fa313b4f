//! Whom our API server believes, what it writes down and how much it takes on at once: flags named as kube-apiserver's.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use clap::Args;

use crate::aggregated::audit::Auditor;
use crate::aggregated::audit::log::{AuditLog, Destination, Files, Writer};
use crate::aggregated::audit::policy::Policy;
use crate::aggregated::edge::Edge;
use crate::aggregated::limits::Limits;

/// Longer ones of our own are stuck; kube-apiserver's default.
const TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "API server")]
pub(crate) struct EdgeArgs {
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
    /// Authority of users' client certificates [default: as the control plane says]
    #[arg(long, env = "CROWSNEST_CLIENT_CA_FILE", value_name = "FILE")]
    client_ca_file: Option<PathBuf>,
    /// Requests that change nothing, at once; 0 for any number
    #[arg(long, env = "CROWSNEST_MAX_REQUESTS_INFLIGHT", value_name = "N", default_value_t = 400)]
    max_requests_inflight: usize,
    /// Requests that change something, at once; 0 for any number
    #[arg(long, env = "CROWSNEST_MAX_MUTATING_REQUESTS_INFLIGHT", value_name = "N", default_value_t = 200)]
    max_mutating_requests_inflight: usize,
}

impl EdgeArgs {
    /// The authority of users' certificates as PEM, where a file was named.
    pub(crate) fn client_ca(&self) -> anyhow::Result<Option<String>> {
        let Some(path) = &self.client_ca_file else { return Ok(None) };
        std::fs::read_to_string(path).map(Some).with_context(|| format!("--client-ca-file {}", path.display()))
    }

    /// What stands before the handlers, and the audit log's writer. Files of the log are in `folder` unless told otherwise.
    pub(crate) fn start(&self, folder: &Path) -> anyhow::Result<(Edge, Option<Writer>)> {
        let policy = self.policy()?;
        let (auditor, writer) = match self.destination(folder) {
            None => (Auditor::default(), None),
            Some(destination) => {
                let path = match &destination {
                    Destination::File(files) => files.path.display().to_string(),
                    Destination::StandardOutput => "-".to_owned(),
                };
                let (log, writer) = AuditLog::start(destination).with_context(|| format!("--audit-log-path {path}"))?;
                (Auditor::new(policy, log), Some(writer))
            }
        };
        let limits = Limits::new(self.max_requests_inflight, self.max_mutating_requests_inflight);
        Ok((Edge { auditor, limits, timeout: TIMEOUT }, writer))
    }

    fn policy(&self) -> anyhow::Result<Policy> {
        let Some(path) = &self.audit_policy_file else { return Ok(Policy::default()) };
        let read = || anyhow::Ok(Policy::parse(&std::fs::read_to_string(path)?)?);
        let policy = read().with_context(|| format!("--audit-policy-file {}", path.display()))?;
        if policy.wants_bodies() {
            tracing::warn!("levels Request and RequestResponse are taken for Metadata: bodies may hold secrets");
        }
        Ok(policy)
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
