//! Flags of `crowsnest agent`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use crowsnest_members::Reported;
use http::Uri;

use super::estimator::{Listening, address};
use super::process::{OwnClusterArgs, ProcessArgs};
use crowsnest_agent::agent::{self, Config, Rotation, SecretName};
use crowsnest_cli::duration::duration;

/// A token of the member's that the control plane gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
#[value(rename_all = "PascalCase")]
pub(crate) enum Secret {
    /// That of the service account the control plane acts as
    KubeCredentials,
    /// That of the service account that may impersonate users of the control plane
    KubeImpersonator,
    /// No token at all
    None,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  crowsnest agent --cluster-name m1 --control-plane-kubeconfig /etc/crowsnest/kubeconfig\n  crowsnest agent --cluster-name m1 --control-plane-kubeconfig cp.kubeconfig --kubeconfig ~/.kube/config --context m1"
)]
pub(crate) struct AgentArgs {
    #[command(flatten)]
    pub(crate) process: ProcessArgs,
    #[command(flatten)]
    pub(crate) cluster: OwnClusterArgs,
    /// Kubeconfig of the control plane
    #[arg(long, env = "CROWSNEST_CONTROL_PLANE_KUBECONFIG", visible_alias = "karmada-kubeconfig", value_name = "FILE")]
    pub(crate) control_plane_kubeconfig: PathBuf,
    /// Context of that kubeconfig
    #[arg(long, env = "CROWSNEST_CONTROL_PLANE_CONTEXT", visible_alias = "karmada-context", value_name = "NAME")]
    pub(crate) control_plane_context: Option<String>,
    /// This cluster's API server as its certificate names it; the Cluster says so [default: the kubeconfig's]
    #[arg(long, env = "CROWSNEST_CLUSTER_API_ENDPOINT", value_name = "URL", value_parser = crowsnest_members::credentials::parse_endpoint)]
    pub(crate) cluster_api_endpoint: Option<Uri>,
    /// Namespace of the tokens, here and in the control plane
    #[arg(long, env = "CROWSNEST_CLUSTER_NAMESPACE", default_value = crowsnest_members::join::CLUSTER_NAMESPACE, value_name = "NAMESPACE")]
    pub(crate) cluster_namespace: String,
    /// Who runs this cluster
    #[arg(long, env = "CROWSNEST_CLUSTER_PROVIDER", value_name = "PROVIDER")]
    pub(crate) cluster_provider: Option<String>,
    /// Where this cluster is
    #[arg(long, env = "CROWSNEST_CLUSTER_REGION", value_name = "REGION")]
    pub(crate) cluster_region: Option<String>,
    /// Its failure zones, by comma
    #[arg(long, env = "CROWSNEST_CLUSTER_ZONES", value_delimiter = ',', value_name = "ZONES")]
    pub(crate) cluster_zones: Vec<String>,
    /// Tokens of this cluster that the control plane gets, by comma
    #[arg(long, env = "CROWSNEST_REPORT_SECRETS", value_enum, value_delimiter = ',', default_values = ["KubeCredentials", "KubeImpersonator"])]
    pub(crate) report_secrets: Vec<Secret>,
    /// Address of /healthz, /livez and /readyz, 0 for none
    #[arg(long, env = "CROWSNEST_HEALTH_PROBE_BIND_ADDRESS", value_name = "ADDRESS", default_value = "0", value_parser = address)]
    pub(crate) health_probe_bind_address: Listening,
    /// Address of /metrics, 0 for none
    #[arg(long, env = "CROWSNEST_METRICS_BIND_ADDRESS", value_name = "ADDRESS", default_value = "0", value_parser = address)]
    pub(crate) metrics_bind_address: Listening,
    #[command(flatten)]
    pub(crate) rotation: RotationArgs,
}

/// How the certificate is renewed by which the control plane knows the agent.
#[derive(Debug, Args)]
pub(crate) struct RotationArgs {
    /// Renew the certificate of that kubeconfig before it expires
    #[arg(long, env = "CROWSNEST_ENABLE_CERT_ROTATION", action = clap::ArgAction::Set, num_args = 0..=1, default_value_t = false, default_missing_value = "true", require_equals = true, value_name = "BOOL")]
    pub(crate) enable_cert_rotation: bool,
    /// The Secret here that the kubeconfig is mounted from: there the renewed one goes [default: into the file]
    #[arg(long, env = "CROWSNEST_CONTROL_PLANE_KUBECONFIG_SECRET", value_name = "NAMESPACE/NAME", value_parser = secret)]
    control_plane_kubeconfig_secret: Option<SecretName>,
    /// How long the renewed certificate holds
    #[arg(long, env = "CROWSNEST_CERT_EXPIRATION_SECONDS", default_value_t = 31_536_000, value_name = "SECONDS")]
    pub(crate) cert_expiration_seconds: i32,
    /// How often it is looked how long the certificate holds
    #[arg(long, env = "CROWSNEST_CERT_ROTATION_CHECKING_INTERVAL", default_value = "5m", value_parser = duration, value_name = "DURATION")]
    pub(crate) cert_rotation_checking_interval: Duration,
    /// It is renewed when this part of its time is left, between 0 and 1
    #[arg(long, env = "CROWSNEST_CERT_ROTATION_REMAINING_TIME_THRESHOLD", default_value_t = 0.2, value_parser = part, value_name = "PART")]
    pub(crate) cert_rotation_remaining_time_threshold: f64,
}

fn secret(text: &str) -> Result<SecretName, String> {
    let parts = text.split_once('/').filter(|(namespace, name)| !namespace.is_empty() && !name.is_empty());
    match parts.filter(|(_, name)| !name.contains('/')) {
        Some((namespace, name)) => Ok(SecretName { namespace: namespace.to_owned(), name: name.to_owned() }),
        None => Err(format!("{text:?} names no Secret: NAMESPACE/NAME does")),
    }
}

fn part(text: &str) -> Result<f64, String> {
    let part = text.parse::<f64>().ok().filter(|part| *part > 0.0 && *part < 1.0);
    part.ok_or_else(|| format!("{text:?} is no number between 0 and 1"))
}

impl AgentArgs {
    fn reported(&self) -> Result<Reported, &'static str> {
        let has = |secret| self.report_secrets.contains(&secret);
        let reported = Reported { cluster: has(Secret::KubeCredentials), impersonator: has(Secret::KubeImpersonator) };
        match has(Secret::None) && (reported.cluster || reported.impersonator) {
            true => Err("--report-secrets: None goes with nothing else"),
            false => Ok(reported),
        }
    }

    fn config(self) -> anyhow::Result<Config> {
        let report = self.reported().map_err(anyhow::Error::msg)?;
        Ok(Config {
            cluster_name: self.cluster.cluster_name,
            control_plane_kubeconfig: self.control_plane_kubeconfig,
            control_plane_context: self.control_plane_context,
            kubeconfig: self.cluster.kubeconfig,
            context: self.cluster.context,
            cluster_api_endpoint: self.cluster_api_endpoint,
            cluster_namespace: self.cluster_namespace,
            cluster_provider: self.cluster_provider,
            cluster_region: self.cluster_region,
            cluster_zones: self.cluster_zones,
            report,
            health_probe_bind_address: self.health_probe_bind_address.0,
            metrics_bind_address: self.metrics_bind_address.0,
            rotation: self.rotation.config(),
        })
    }
}

impl RotationArgs {
    /// None where the certificate is not renewed.
    fn config(self) -> Option<Rotation> {
        self.enable_cert_rotation.then_some(Rotation {
            secret: self.control_plane_kubeconfig_secret,
            expiration_seconds: self.cert_expiration_seconds,
            checking_interval: self.cert_rotation_checking_interval,
            remaining_time_threshold: self.cert_rotation_remaining_time_threshold,
        })
    }
}

/// Runs the agent until it is told to stop.
pub(crate) async fn run(args: AgentArgs) -> anyhow::Result<ExitCode> {
    agent::run(args.config()?).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use rstest::rstest;

    #[derive(Debug, Parser)]
    struct Command {
        #[command(flatten)]
        agent: AgentArgs,
    }

    fn parse(more: &str) -> Result<AgentArgs, String> {
        let least = "agent --cluster-name m1 --karmada-kubeconfig cp".split_whitespace();
        let command = Command::try_parse_from(least.chain(more.split_whitespace()));
        command.map(|command| command.agent).map_err(|error| error.to_string())
    }

    #[rstest]
    #[case("", Ok((true, true)))]
    #[case("--report-secrets KubeImpersonator", Ok((false, true)))]
    #[case("--report-secrets KubeCredentials", Ok((true, false)))]
    #[case("--report-secrets None", Ok((false, false)))]
    #[case("--report-secrets None,KubeCredentials", Err("--report-secrets: None goes with nothing else"))]
    fn tokens_are_reported_as_said(#[case] more: &str, #[case] expected: Result<(bool, bool), &str>) {
        let reported = parse(more).unwrap().reported();
        assert_eq!(reported.map(|reported| (reported.cluster, reported.impersonator)), expected);
    }

    #[rstest]
    #[case("", false)]
    #[case("--enable-cert-rotation", true)]
    #[case("--enable-cert-rotation=false", false)]
    fn certificates_are_renewed_where_it_is_said(#[case] more: &str, #[case] expected: bool) {
        assert_eq!(parse(more).unwrap().config().unwrap().rotation.is_some(), expected);
    }

    #[rstest]
    #[case("--report-secrets Everything", "invalid value 'Everything'")]
    #[case("--cluster-api-endpoint ftp://m1", "scheme ftp is not http or https")]
    #[case("--context m1", "--kubeconfig")]
    #[case("--control-plane-kubeconfig-secret karmada-kubeconfig", "NAMESPACE/NAME does")]
    #[case("--cert-rotation-remaining-time-threshold 1.5", "is no number between 0 and 1")]
    fn what_makes_no_sense_is_refused(#[case] more: &str, #[case] expected: &str) {
        let error = parse(more).unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
}
