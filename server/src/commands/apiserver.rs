//! `crowsnest apiserver`: runs the embedded control plane alone, a plain Kubernetes API server.

use std::net::SocketAddr;
use std::process::ExitCode;

use clap::Args;
use crowsnest_kube_apiserver::admission::Plugin;
use crowsnest_kube_apiserver::http::InFlightLimits;

use super::api_args::AuditArgs;
use super::data_dir::DataDirArgs;
use super::oidc::OidcArgs;
use crowsnest_up::ApiserverConfig;

#[derive(Debug, Args)]
pub(crate) struct ApiserverArgs {
    #[command(flatten)]
    pub(crate) storage: DataDirArgs,
    /// Address to serve the API on
    #[arg(long, default_value = "127.0.0.1:7443")]
    pub(crate) listen: SocketAddr,
    /// Admission plugins to disable, by kube-apiserver's names, separated by commas
    #[arg(long, value_delimiter = ',', value_name = "PLUGINS")]
    pub(crate) disable_admission_plugins: Vec<Plugin>,
    /// Maximum number of concurrent read requests; 0 means no limit
    #[arg(long, value_name = "N", default_value_t = InFlightLimits::default().reads)]
    pub(crate) max_requests_inflight: usize,
    /// Maximum number of concurrent write requests; 0 means no limit
    #[arg(long, value_name = "N", default_value_t = InFlightLimits::default().writes)]
    pub(crate) max_mutating_requests_inflight: usize,
    #[command(flatten)]
    pub(crate) oidc: OidcArgs,
    #[command(flatten)]
    pub(crate) audit: AuditArgs,
}

/// Serves the API until the process receives a signal.
pub(crate) async fn run(args: ApiserverArgs) -> anyhow::Result<ExitCode> {
    let in_flight = InFlightLimits { reads: args.max_requests_inflight, writes: args.max_mutating_requests_inflight };
    let config = ApiserverConfig {
        storage: args.storage.config(),
        listen: args.listen,
        disabled_admission_plugins: args.disable_admission_plugins,
        in_flight,
        oidc: args.oidc.authenticator()?,
        audit: args.audit.config(),
    };
    crowsnest_up::run_apiserver(config).await
}
