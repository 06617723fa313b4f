//! Flag of servers that may act as the metrics adapter.

use clap::Args;

#[derive(Debug, Clone, Args)]
pub(crate) struct AdapterArgs {
    /// Serve metrics.k8s.io and custom.metrics.k8s.io for all members; set to false if Karmada's metrics adapter serves
    /// them
    #[arg(long, env = "CROWSNEST_METRICS_ADAPTER", num_args = 0..=1, require_equals = true, default_value = "true",
          default_missing_value = "true", action = clap::ArgAction::Set, value_name = "BOOL")]
    pub(crate) metrics_adapter: bool,
}
