//! Groups of flags that several server processes share.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use crowsnest_apimachinery::names::ClusterName;

use super::adapter::AdapterArgs;
use super::api_args::ApiArgs;
use super::cache_options::CacheOptionsArgs;
use super::controllers::ControllerArgs;
use super::oidc::{OidcArgs, SignInArgs};
use super::tracing::TracingArgs;
use super::ui::UiArgs;

/// Format of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    Text,
    Json,
}

/// Flags of processes that run as services.
#[derive(Debug, Clone, Args)]
pub(crate) struct ProcessArgs {
    /// Configuration file: YAML with flag names as keys. Flags and environment variables take precedence
    #[arg(long, env = "CROWSNEST_CONFIG", value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Format of log lines on standard error
    #[arg(long, env = "CROWSNEST_LOG_FORMAT", value_enum, default_value = "text", value_name = "FORMAT")]
    pub(crate) log_format: LogFormat,
}

/// Flags of processes that run beside a member.
#[derive(Debug, Clone, Args)]
pub(crate) struct OwnClusterArgs {
    /// Name of this cluster in the control plane
    #[arg(long, env = "CROWSNEST_CLUSTER_NAME", value_name = "NAME")]
    pub(crate) cluster_name: ClusterName,
    /// Kubeconfig file of this cluster [default: the service account of this pod]
    #[arg(long, env = "CROWSNEST_KUBECONFIG", value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// Context of that kubeconfig [default: its current context]
    #[arg(long, env = "CROWSNEST_CONTEXT", value_name = "NAME", requires = "kubeconfig")]
    pub(crate) context: Option<String>,
}

/// Flags of the parts that `serve` and `up` both run: cache, controllers, aggregated APIs and UI.
#[derive(Debug, Clone, Args)]
pub(crate) struct PartArgs {
    #[command(flatten)]
    pub(crate) adapter: AdapterArgs,
    #[command(flatten)]
    pub(crate) controllers: ControllerArgs,
    #[command(flatten)]
    pub(crate) cache: CacheOptionsArgs,
    #[command(flatten)]
    pub(crate) api: ApiArgs,
    #[command(flatten)]
    pub(crate) oidc: OidcArgs,
    #[command(flatten)]
    pub(crate) sign_in: SignInArgs,
    #[command(flatten)]
    pub(crate) ui: UiArgs,
    #[command(flatten)]
    pub(crate) tracing: TracingArgs,
}
