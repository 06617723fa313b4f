//! Groups of flags that several server processes take.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use crowsnest_apimachinery::names::ClusterName;

use super::adapter::AdapterArgs;
use super::controllers::ControllerArgs;
use super::edge::EdgeArgs;
use super::keep::KeepArgs;
use super::oidc::{OidcArgs, SignInArgs};
use super::tracing::TracingArgs;
use super::ui::UiArgs;

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    Text,
    Json,
}

/// Flags of processes that an installation runs as services.
#[derive(Debug, Clone, Args)]
pub(crate) struct ProcessArgs {
    /// Settings in a file: YAML with these flags' names as keys. Flags and environment go before it
    #[arg(long, env = "CROWSNEST_CONFIG", value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// How log lines look on standard error
    #[arg(long, env = "CROWSNEST_LOG_FORMAT", value_enum, default_value = "text", value_name = "FORMAT")]
    pub(crate) log_format: LogFormat,
}

/// The cluster of a process that runs beside a member.
#[derive(Debug, Clone, Args)]
pub(crate) struct OwnClusterArgs {
    /// Name of this cluster in the fleet
    #[arg(long, env = "CROWSNEST_CLUSTER_NAME", value_name = "NAME")]
    pub(crate) cluster_name: ClusterName,
    /// Kubeconfig of this cluster [default: the service account of the pod it runs in]
    #[arg(long, env = "CROWSNEST_KUBECONFIG", value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// Context of that kubeconfig
    #[arg(long, env = "CROWSNEST_CONTEXT", value_name = "NAME", requires = "kubeconfig")]
    pub(crate) context: Option<String>,
}

/// Flags of the parts that `serve` and `up` both run: the cache, the controllers, the aggregated APIs and the UI.
#[derive(Debug, Clone, Args)]
pub(crate) struct PartArgs {
    #[command(flatten)]
    pub(crate) adapter: AdapterArgs,
    #[command(flatten)]
    pub(crate) controllers: ControllerArgs,
    #[command(flatten)]
    pub(crate) keep: KeepArgs,
    #[command(flatten)]
    pub(crate) edge: EdgeArgs,
    #[command(flatten)]
    pub(crate) oidc: OidcArgs,
    #[command(flatten)]
    pub(crate) sign_in: SignInArgs,
    #[command(flatten)]
    pub(crate) ui: UiArgs,
    #[command(flatten)]
    pub(crate) tracing: TracingArgs,
}
