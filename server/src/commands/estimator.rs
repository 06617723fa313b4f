//! Flags of `crowsnest estimator`, and of the scheduler and the descheduler as its clients. They have the names of
//! Karmada's flags.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use crowsnest_api::estimator::{DEFAULT_PORT, DEFAULT_SERVICE_PREFIX};
use crowsnest_cli::examples;
use crowsnest_component_base::kubeconfig::KubeconfigContext;
use crowsnest_controllers::estimator::{EstimatorError, EstimatorOptions, Estimators};
use crowsnest_plan::gates::Gates;

use super::cache_options;
use super::process::{OwnClusterArgs, ProcessArgs};
use crowsnest_agent::estimator::{self, Config, TlsFiles};
use crowsnest_process::serving::ProbeAddresses;

#[derive(Debug, Args)]
#[command(after_help = examples![
    "crowsnest estimator --cluster-name m1 --kubeconfig m1.kubeconfig --grpc-auth-cert-file tls.crt --grpc-auth-key-file tls.key --grpc-client-ca-file ca.crt",
])]
pub(crate) struct EstimatorArgs {
    #[command(flatten)]
    pub(crate) process: ProcessArgs,
    #[command(flatten)]
    pub(crate) cluster: OwnClusterArgs,
    /// Port of the gRPC service on all addresses
    #[arg(long, env = "CROWSNEST_SERVER_PORT", value_name = "PORT", default_value_t = DEFAULT_PORT)]
    pub(crate) server_port: u16,
    /// Certificate file of the gRPC service; without it the service uses plain text
    #[arg(long, env = "CROWSNEST_GRPC_AUTH_CERT_FILE", value_name = "FILE", requires = "grpc_auth_key_file")]
    pub(crate) grpc_auth_cert_file: Option<PathBuf>,
    /// Key file of that certificate
    #[arg(long, env = "CROWSNEST_GRPC_AUTH_KEY_FILE", value_name = "FILE", requires = "grpc_auth_cert_file")]
    pub(crate) grpc_auth_key_file: Option<PathBuf>,
    /// CA file for client certificates; clients without a valid one are rejected
    #[arg(long, env = "CROWSNEST_GRPC_CLIENT_CA_FILE", value_name = "FILE", requires = "grpc_auth_cert_file")]
    pub(crate) grpc_client_ca_file: Option<PathBuf>,
    /// Do not verify client certificates
    #[arg(long, env = "CROWSNEST_INSECURE_SKIP_GRPC_CLIENT_VERIFY", num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true",
          value_name = "BOOL")]
    pub(crate) insecure_skip_grpc_client_verify: bool,
    /// Feature gates by Karmada's names: Name=true|false, separated by commas; ResourceQuotaEstimate and
    /// SchedulingOvercommitProtection have an effect here
    #[arg(long, env = "CROWSNEST_FEATURE_GATES", value_name = "GATES", value_parser = parse_gates, default_value = "")]
    pub(crate) feature_gates: Gates,
    /// Address of /metrics; 0 disables it
    #[arg(long, env = "CROWSNEST_METRICS_BIND_ADDRESS", value_name = "ADDRESS", default_value = ":8080", value_parser = parse_listen_address)]
    pub(crate) metrics_bind_address: ListenAddress,
    /// Address of /healthz and /readyz; 0 disables it
    #[arg(long, env = "CROWSNEST_HEALTH_PROBE_BIND_ADDRESS", value_name = "ADDRESS", default_value = ":10351", value_parser = parse_listen_address)]
    pub(crate) health_probe_bind_address: ListenAddress,
}

/// An address to listen on; `None` disables the endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ListenAddress(pub(crate) Option<SocketAddr>);

/// Parses feature gates and applies them to the defaults.
fn parse_gates(list: &str) -> Result<Gates, String> {
    Gates::default().with(list).map_err(|error| error.to_string())
}

/// Parses `IP:PORT`, `:PORT` for all IPv4 addresses, or `0`, which disables the endpoint.
pub(super) fn parse_listen_address(text: &str) -> Result<ListenAddress, String> {
    let address = if text.starts_with(':') { format!("0.0.0.0{text}") } else { text.to_owned() };
    match text {
        "0" => Ok(ListenAddress(None)),
        _ => address
            .parse()
            .map(|address| ListenAddress(Some(address)))
            .map_err(|_| format!("invalid address {text:?}: expected an address such as 127.0.0.1:8080 or :8080")),
    }
}

impl EstimatorArgs {
    fn config(self) -> Config {
        let client_ca = self.grpc_client_ca_file.filter(|_| !self.insecure_skip_grpc_client_verify);
        let files = self.grpc_auth_cert_file.zip(self.grpc_auth_key_file);
        Config {
            cluster_name: self.cluster.cluster_name,
            kubeconfig: KubeconfigContext::from_flags(self.cluster.kubeconfig, self.cluster.context),
            server_port: self.server_port,
            tls: files.map(|(certificate, key)| TlsFiles { certificate, key, client_ca }),
            feature_gates: self.feature_gates,
            probe_addresses: ProbeAddresses {
                health: self.health_probe_bind_address.0,
                metrics: self.metrics_bind_address.0,
            },
        }
    }
}

/// Runs the estimator until the process receives a signal.
pub(crate) async fn run(args: EstimatorArgs) -> anyhow::Result<ExitCode> {
    estimator::run(args.config()).await
}

/// Flags of the scheduler and the descheduler as clients of estimators.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Scheduler estimators")]
pub(crate) struct EstimatorClientArgs {
    /// Query the clusters' scheduler estimators too; the lowest estimate counts
    #[arg(long, env = "CROWSNEST_ENABLE_SCHEDULER_ESTIMATOR", num_args = 0..=1, require_equals = true,
          default_missing_value = "true", value_name = "BOOL")]
    enable_scheduler_estimator: Option<bool>,
    /// Do not query the estimators of clusters in pull mode
    #[arg(long, env = "CROWSNEST_DISABLE_SCHEDULER_ESTIMATOR_IN_PULL_MODE", num_args = 0..=1, require_equals = true,
          default_missing_value = "true", value_name = "BOOL")]
    disable_scheduler_estimator_in_pull_mode: Option<bool>,
    /// Port of the estimators' Services [default: 10352]
    #[arg(long, env = "CROWSNEST_SCHEDULER_ESTIMATOR_PORT", value_name = "PORT",
          value_parser = clap::value_parser!(u16).range(1..))]
    scheduler_estimator_port: Option<u16>,
    /// Timeout of a query [default: 3s]
    #[arg(long, env = "CROWSNEST_SCHEDULER_ESTIMATOR_TIMEOUT", value_name = "DURATION", value_parser = cache_options::parse_duration)]
    scheduler_estimator_timeout: Option<Duration>,
    /// Namespace of the estimators' Services [default: karmada-system]
    #[arg(long, env = "CROWSNEST_SCHEDULER_ESTIMATOR_SERVICE_NAMESPACE", value_name = "NAMESPACE")]
    scheduler_estimator_service_namespace: Option<String>,
    /// Name prefix of the estimators' Services [default: karmada-scheduler-estimator]
    #[arg(long, env = "CROWSNEST_SCHEDULER_ESTIMATOR_SERVICE_PREFIX", value_name = "PREFIX")]
    scheduler_estimator_service_prefix: Option<String>,
    /// CA file for the estimators' certificates; without it the connection is plain text
    #[arg(long, env = "CROWSNEST_SCHEDULER_ESTIMATOR_CA_FILE", value_name = "FILE")]
    scheduler_estimator_ca_file: Option<PathBuf>,
    /// Client certificate file
    #[arg(long, env = "CROWSNEST_SCHEDULER_ESTIMATOR_CERT_FILE", value_name = "FILE")]
    #[arg(requires = "scheduler_estimator_key_file")]
    scheduler_estimator_cert_file: Option<PathBuf>,
    /// Key file of that certificate
    #[arg(long, env = "CROWSNEST_SCHEDULER_ESTIMATOR_KEY_FILE", value_name = "FILE")]
    #[arg(requires = "scheduler_estimator_cert_file")]
    scheduler_estimator_key_file: Option<PathBuf>,
    /// Do not verify the estimators' certificates
    #[arg(long, env = "CROWSNEST_INSECURE_SKIP_ESTIMATOR_VERIFY", num_args = 0..=1, require_equals = true,
          default_missing_value = "true", value_name = "BOOL")]
    insecure_skip_estimator_verify: Option<bool>,
}

impl EstimatorClientArgs {
    /// Opens the estimator clients, if enabled.
    pub(crate) fn open(&self) -> Result<Option<Estimators>, EstimatorError> {
        if !self.enable_scheduler_estimator.unwrap_or_default() {
            return Ok(None);
        }
        let defaults = EstimatorOptions::default();
        let or_default = |flag: &Option<String>, default: String| flag.clone().unwrap_or(default);
        let identity = self.scheduler_estimator_cert_file.clone().zip(self.scheduler_estimator_key_file.clone());
        let options = EstimatorOptions {
            port: self.scheduler_estimator_port.unwrap_or(defaults.port),
            timeout: self.scheduler_estimator_timeout.unwrap_or(defaults.timeout),
            service_namespace: or_default(&self.scheduler_estimator_service_namespace, defaults.service_namespace),
            service_prefix: or_default(&self.scheduler_estimator_service_prefix, DEFAULT_SERVICE_PREFIX.to_owned()),
            ca_file: self.scheduler_estimator_ca_file.clone(),
            identity,
            insecure_skip_verify: self.insecure_skip_estimator_verify.unwrap_or_default(),
            skip_pull_mode: self.disable_scheduler_estimator_in_pull_mode.unwrap_or_default(),
        };
        Estimators::new(options).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::commands::testing::parse_args;
    use rstest::rstest;

    fn parse(flags: &str) -> Result<EstimatorArgs, String> {
        parse_args(&format!("--cluster-name m1 {flags}"))
    }

    #[test]
    fn karmada_flags_are_accepted() {
        let defaults = parse("").unwrap();
        assert_eq!((defaults.server_port, defaults.insecure_skip_grpc_client_verify), (10352, false));
        assert_eq!(defaults.metrics_bind_address, ListenAddress("0.0.0.0:8080".parse().ok()));
        assert_eq!(defaults.health_probe_bind_address, ListenAddress("0.0.0.0:10351".parse().ok()));
        let args = parse(
            "--kubeconfig /etc/m1-kubeconfig --grpc-auth-cert-file a.crt --grpc-auth-key-file a.key \
             --grpc-client-ca-file ca.crt --insecure-skip-grpc-client-verify=true --server-port 1234 \
             --metrics-bind-address 127.0.0.1:8080 --health-probe-bind-address 0 \
             --feature-gates ResourceQuotaEstimate=true",
        );
        let args = args.unwrap();
        assert!(args.insecure_skip_grpc_client_verify && args.feature_gates.resource_quota_estimate);
        assert_eq!((args.server_port, args.health_probe_bind_address), (1234, ListenAddress(None)));
    }

    #[rstest]
    #[case("--insecure-skip-grpc-client-verify", None)]
    #[case("--insecure-skip-grpc-client-verify=false", Some("ca.crt"))]
    fn client_verification_is_optional(#[case] flags: &str, #[case] expected: Option<&str>) {
        let tls = "--grpc-auth-cert-file a.crt --grpc-auth-key-file a.key --grpc-client-ca-file ca.crt";
        let config = parse(&format!("{tls} {flags}")).unwrap().config();
        assert_eq!(config.tls.unwrap().client_ca.as_deref(), expected.map(Path::new));
    }

    #[rstest]
    #[case("--grpc-auth-cert-file a.crt", "--grpc-auth-key-file")]
    #[case("--grpc-client-ca-file ca.crt", "--grpc-auth-cert-file")]
    #[case("--feature-gates Nope=true", "unrecognized feature gate: Nope")]
    #[case("--metrics-bind-address invalid", "expected an address such as 127.0.0.1:8080")]
    #[case("--server-port 70000", "70000 is not in 0..=65535")]
    fn invalid_flags_are_rejected(#[case] flags: &str, #[case] expected: &str) {
        let error = parse(flags).unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
}
