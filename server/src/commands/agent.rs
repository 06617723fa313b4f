//! Flags of `crowsnest agent`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use crowsnest_component_base::kubeconfig::KubeconfigContext;
use crowsnest_members::{ClusterLocation, JoinOptions, ReportedTokens};
use http::Uri;

use super::estimator::{ListenAddress, parse_listen_address};
use super::process::{OwnClusterArgs, ProcessArgs};
use crowsnest_agent::agent::{self, Config, Rotation, SecretName};
use crowsnest_cli::duration::parse_duration;
use crowsnest_cli::examples;
use crowsnest_process::serving::ProbeAddresses;

/// A token of the member that is reported to the control plane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
#[value(rename_all = "PascalCase")]
pub(crate) enum ReportedSecret {
    /// Token of the service account that the control plane uses
    KubeCredentials,
    /// Token of the service account that may impersonate users of the control plane
    KubeImpersonator,
    /// Report no token
    None,
}

#[derive(Debug, Args)]
#[command(after_help = examples![
    "crowsnest agent --cluster-name m1 --control-plane-kubeconfig /etc/crowsnest/kubeconfig",
    "crowsnest agent --cluster-name m1 --control-plane-kubeconfig cp.kubeconfig --kubeconfig ~/.kube/config --context m1",
])]
pub(crate) struct AgentArgs {
    #[command(flatten)]
    pub(crate) process: ProcessArgs,
    #[command(flatten)]
    pub(crate) cluster: OwnClusterArgs,
    /// Kubeconfig file of the control plane
    #[arg(long, env = "CROWSNEST_CONTROL_PLANE_KUBECONFIG", visible_alias = "karmada-kubeconfig", value_name = "FILE")]
    pub(crate) control_plane_kubeconfig: PathBuf,
    /// Context of that kubeconfig [default: its current context]
    #[arg(long, env = "CROWSNEST_CONTROL_PLANE_CONTEXT", visible_alias = "karmada-context", value_name = "NAME")]
    pub(crate) control_plane_context: Option<String>,
    /// URL of this cluster's API server for the Cluster object; its host must be in the server's certificate [default:
    /// the kubeconfig's server]
    #[arg(long, env = "CROWSNEST_CLUSTER_API_ENDPOINT", value_name = "URL", value_parser = crowsnest_members::credentials::parse_endpoint)]
    pub(crate) cluster_api_endpoint: Option<Uri>,
    /// Namespace of the tokens, in this cluster and in the control plane
    #[arg(long, env = "CROWSNEST_CLUSTER_NAMESPACE", default_value = crowsnest_members::join::CLUSTER_NAMESPACE, value_name = "NAMESPACE")]
    pub(crate) cluster_namespace: String,
    /// Provider of this cluster
    #[arg(long, env = "CROWSNEST_CLUSTER_PROVIDER", value_name = "PROVIDER")]
    pub(crate) cluster_provider: Option<String>,
    /// Region of this cluster
    #[arg(long, env = "CROWSNEST_CLUSTER_REGION", value_name = "REGION")]
    pub(crate) cluster_region: Option<String>,
    /// Zones of this cluster, separated by commas
    #[arg(long, env = "CROWSNEST_CLUSTER_ZONES", value_delimiter = ',', value_name = "ZONES")]
    pub(crate) cluster_zones: Vec<String>,
    /// Tokens of this cluster to report to the control plane, separated by commas
    #[arg(long, env = "CROWSNEST_REPORT_SECRETS", value_enum, value_delimiter = ',', default_values = ["KubeCredentials", "KubeImpersonator"])]
    pub(crate) report_secrets: Vec<ReportedSecret>,
    /// Address of /healthz, /livez and /readyz; 0 disables it
    #[arg(long, env = "CROWSNEST_HEALTH_PROBE_BIND_ADDRESS", value_name = "ADDRESS", default_value = "0", value_parser = parse_listen_address)]
    pub(crate) health_probe_bind_address: ListenAddress,
    /// Address of /metrics; 0 disables it
    #[arg(long, env = "CROWSNEST_METRICS_BIND_ADDRESS", value_name = "ADDRESS", default_value = "0", value_parser = parse_listen_address)]
    pub(crate) metrics_bind_address: ListenAddress,
    #[command(flatten)]
    pub(crate) rotation: RotationArgs,
}

/// Renewal of the client certificate in the control plane's kubeconfig.
#[derive(Debug, Args)]
pub(crate) struct RotationArgs {
    /// Renew the client certificate in the control plane's kubeconfig before it expires
    #[arg(long, env = "CROWSNEST_ENABLE_CERT_ROTATION", action = clap::ArgAction::Set, num_args = 0..=1, default_value_t = false, default_missing_value = "true", require_equals = true, value_name = "BOOL")]
    pub(crate) enable_cert_rotation: bool,
    /// Secret in this cluster that the kubeconfig is mounted from; renewed certificates are written to it [default: to
    /// the file]
    #[arg(long, env = "CROWSNEST_CONTROL_PLANE_KUBECONFIG_SECRET", value_name = "NAMESPACE/NAME", value_parser = parse_secret_name)]
    control_plane_kubeconfig_secret: Option<SecretName>,
    /// Lifetime of renewed certificates, in seconds
    #[arg(long, env = "CROWSNEST_CERT_EXPIRATION_SECONDS", default_value_t = 31_536_000, value_name = "SECONDS")]
    pub(crate) cert_expiration_seconds: i32,
    /// Interval between checks of the certificate's remaining lifetime
    #[arg(long, env = "CROWSNEST_CERT_ROTATION_CHECKING_INTERVAL", default_value = "5m", value_parser = parse_duration, value_name = "DURATION")]
    pub(crate) cert_rotation_checking_interval: Duration,
    /// Remaining fraction of the lifetime at which the certificate is renewed, between 0 and 1
    #[arg(long, env = "CROWSNEST_CERT_ROTATION_REMAINING_TIME_THRESHOLD", default_value_t = 0.2, value_parser = parse_fraction, value_name = "FRACTION")]
    pub(crate) cert_rotation_remaining_time_threshold: f64,
}

fn parse_secret_name(text: &str) -> Result<SecretName, String> {
    let parts = text.split_once('/').filter(|(namespace, name)| !namespace.is_empty() && !name.is_empty());
    match parts.filter(|(_, name)| !name.contains('/')) {
        Some((namespace, name)) => Ok(SecretName { namespace: namespace.to_owned(), name: name.to_owned() }),
        None => Err(format!("invalid Secret {text:?}: expected NAMESPACE/NAME")),
    }
}

fn parse_fraction(text: &str) -> Result<f64, String> {
    let fraction = text.parse::<f64>().ok().filter(|fraction| *fraction > 0.0 && *fraction < 1.0);
    fraction.ok_or_else(|| format!("invalid value {text:?}: expected a number between 0 and 1"))
}

impl AgentArgs {
    fn reported_tokens(&self) -> Result<ReportedTokens, &'static str> {
        let has = |secret| self.report_secrets.contains(&secret);
        let reported = ReportedTokens {
            cluster: has(ReportedSecret::KubeCredentials),
            impersonator: has(ReportedSecret::KubeImpersonator),
        };
        match has(ReportedSecret::None) && (reported.cluster || reported.impersonator) {
            true => Err("--report-secrets: None cannot be combined with other values"),
            false => Ok(reported),
        }
    }

    fn config(self) -> anyhow::Result<Config> {
        let reported_tokens = self.reported_tokens().map_err(anyhow::Error::msg)?;
        Ok(Config {
            registration: JoinOptions {
                namespace: self.cluster_namespace,
                location: ClusterLocation {
                    provider: self.cluster_provider,
                    region: self.cluster_region,
                    zones: self.cluster_zones,
                },
                api_endpoint: self.cluster_api_endpoint,
                reported_tokens,
                ..JoinOptions::new(self.cluster.cluster_name)
            },
            control_plane: KubeconfigContext {
                file: self.control_plane_kubeconfig,
                context: self.control_plane_context,
            },
            kubeconfig: KubeconfigContext::from_flags(self.cluster.kubeconfig, self.cluster.context),
            probe_addresses: ProbeAddresses {
                health: self.health_probe_bind_address.0,
                metrics: self.metrics_bind_address.0,
            },
            rotation: self.rotation.config(),
        })
    }
}

impl RotationArgs {
    /// `None` if renewal is disabled.
    fn config(self) -> Option<Rotation> {
        self.enable_cert_rotation.then_some(Rotation {
            secret: self.control_plane_kubeconfig_secret,
            expiration_seconds: self.cert_expiration_seconds,
            checking_interval: self.cert_rotation_checking_interval,
            remaining_time_threshold: self.cert_rotation_remaining_time_threshold,
        })
    }
}

/// Runs the agent until the process receives a signal.
pub(crate) async fn run(args: AgentArgs) -> anyhow::Result<ExitCode> {
    agent::run(args.config()?).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::testing::parse_args;
    use rstest::rstest;

    fn parse(flags: &str) -> Result<AgentArgs, String> {
        parse_args(&format!("--cluster-name m1 --karmada-kubeconfig cp {flags}"))
    }

    #[rstest]
    #[case("", Ok((true, true)))]
    #[case("--report-secrets KubeImpersonator", Ok((false, true)))]
    #[case("--report-secrets KubeCredentials", Ok((true, false)))]
    #[case("--report-secrets None", Ok((false, false)))]
    #[case("--report-secrets None,KubeCredentials", Err("--report-secrets: None cannot be combined with other values"))]
    fn report_secrets_selects_tokens(#[case] flags: &str, #[case] expected: Result<(bool, bool), &str>) {
        let reported = parse(flags).unwrap().reported_tokens();
        assert_eq!(reported.map(|reported| (reported.cluster, reported.impersonator)), expected);
    }

    #[rstest]
    #[case("", false)]
    #[case("--enable-cert-rotation", true)]
    #[case("--enable-cert-rotation=false", false)]
    fn rotation_is_optional(#[case] flags: &str, #[case] expected: bool) {
        assert_eq!(parse(flags).unwrap().config().unwrap().rotation.is_some(), expected);
    }

    #[rstest]
    #[case("--report-secrets Everything", "invalid value 'Everything'")]
    #[case("--cluster-api-endpoint ftp://m1", "scheme ftp is not http or https")]
    #[case("--context m1", "--kubeconfig")]
    #[case("--control-plane-kubeconfig-secret karmada-kubeconfig", "expected NAMESPACE/NAME")]
    #[case("--cert-rotation-remaining-time-threshold 1.5", "expected a number between 0 and 1")]
    fn invalid_flags_are_rejected(#[case] flags: &str, #[case] expected: &str) {
        let error = parse(flags).unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
}
