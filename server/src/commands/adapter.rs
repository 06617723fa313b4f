//! Whether we are the metrics adapter: a flag of whoever serves the aggregated APIs.

use clap::Args;

#[derive(Debug, Clone, Args)]
pub(crate) struct AdapterArgs {
    /// Serve metrics.k8s.io and custom.metrics.k8s.io of all members at the control plane's address; false where Karmada's own metrics
    /// adapter does
    #[arg(long, env = "CROWSNEST_METRICS_ADAPTER", num_args = 0..=1, require_equals = true, default_value = "true",
          default_missing_value = "true", action = clap::ArgAction::Set, value_name = "BOOL")]
    pub(crate) metrics_adapter: bool,
}
