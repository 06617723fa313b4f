//! Flags of the controllers: feature gates, selection, exclusions, timeouts and rates. Names and defaults are those of
//! Karmada's components; unset flags keep the value of the profile.

use std::str::FromStr;
use std::time::Duration;

use anyhow::Context;
use clap::{Args, ValueEnum};
use crowsnest_api::policy::PurgeMode;
use crowsnest_controllers::runtime::{Config, Selection};
use crowsnest_plan::eviction::Safety;
use crowsnest_plan::gates::Gates;
use crowsnest_plan::propagation::skipped::{SkippedApis, SkippedNamespaces};
use crowsnest_plan::scheduling::Plugins;
use k8s_openapi::jiff::SignedDuration;

use super::cache_options;
use super::estimator::EstimatorClientArgs;

#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Controllers")]
pub(crate) struct ControllerArgs {
    /// Feature gates by Karmada's names: Name=true|false, separated by commas; AllAlpha and AllBeta set all gates of a
    /// stage
    #[arg(long, env = "CROWSNEST_FEATURE_GATES", value_name = "GATES", value_parser = validate_gates)]
    feature_gates: Option<String>,
    /// Controllers by Karmada's names, separated by commas: * enables those on by default, NAME enables one, -NAME
    /// disables one [default: *]
    #[arg(long, env = "CROWSNEST_CONTROLLERS", value_name = "NAMES", allow_hyphen_values = true, value_parser = Selection::from_str)]
    controllers: Option<Selection>,
    /// APIs whose objects are not propagated, separated by semicolons: GROUP, GROUP/VERSION, GROUP/VERSION/KIND,KIND or
    /// v1/KIND,KIND
    #[arg(long, env = "CROWSNEST_SKIPPED_PROPAGATING_APIS", value_name = "APIS", value_parser = SkippedApis::from_str)]
    skipped_propagating_apis: Option<SkippedApis>,
    /// Namespaces that are not propagated, in addition to the reserved ones: regular expressions of whole names,
    /// separated by commas [default: kube-.*]
    #[arg(long, env = "CROWSNEST_SKIPPED_PROPAGATING_NAMESPACES", value_name = "EXPRESSIONS", value_parser = parse_namespaces)]
    skipped_propagating_namespaces: Option<SkippedNamespaces>,
    /// Propagate workloads with 0 replicas to the selected clusters too
    #[arg(long, env = "CROWSNEST_ENABLE_EMPTY_WORKLOAD_PROPAGATION", num_args = 0..=1, require_equals = true,
          default_missing_value = "true", value_name = "BOOL")]
    enable_empty_workload_propagation: Option<bool>,
    /// Name of this scheduler; bindings that name another one are ignored [default: default-scheduler]
    #[arg(long, env = "CROWSNEST_SCHEDULER_NAME", value_name = "NAME", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    scheduler_name: Option<String>,
    /// Scheduler plugins by Karmada's names, separated by commas: * enables all, NAME enables one, -NAME disables one
    /// [default: *]
    #[arg(long, env = "CROWSNEST_PLUGINS", value_name = "NAMES", allow_hyphen_values = true, value_parser = Plugins::from_str)]
    plugins: Option<Plugins>,
    /// Evict from clusters with NoExecute taints (requires the feature gate Failover)
    #[arg(long, env = "CROWSNEST_ENABLE_NO_EXECUTE_TAINT_EVICTION", num_args = 0..=1, require_equals = true,
          default_missing_value = "true", value_name = "BOOL")]
    enable_no_execute_taint_eviction: Option<bool>,
    /// Purge mode of evictions by NoExecute taints if the policy sets none [default: Gracefully]
    #[arg(long, env = "CROWSNEST_NO_EXECUTE_TAINT_EVICTION_PURGE_MODE", value_name = "MODE", value_enum)]
    no_execute_taint_eviction_purge_mode: Option<PurgeModeArg>,
    /// Admit ClusterTaintPolicies that add NoExecute taints
    #[arg(long, env = "CROWSNEST_ALLOW_NO_EXECUTE_TAINT_POLICY", num_args = 0..=1, require_equals = true,
          default_missing_value = "true", value_name = "BOOL")]
    allow_no_execute_taint_policy: Option<bool>,
    /// Grace period of an evicted copy if the policy sets none [default: 10m]
    #[arg(long, env = "CROWSNEST_GRACEFUL_EVICTION_TIMEOUT", value_name = "DURATION", value_parser = cache_options::parse_duration)]
    graceful_eviction_timeout: Option<Duration>,
    /// Eviction of the last healthy copy: safe keeps it until a replacement is healthy; karmada removes it after the
    /// grace period [default: safe]
    #[arg(long, env = "CROWSNEST_FAILOVER_SAFETY", value_name = "RULE", value_enum)]
    failover_safety: Option<FailoverSafetyArg>,
    /// Evictions per second by NoExecute taints from clusters that are not ready (with --failover-safety=karmada: from
    /// any cluster, for each of three workers); 0 means one eviction per half hour [default: 100, or 0.5 with
    /// --failover-safety=karmada]
    #[arg(long, env = "CROWSNEST_RESOURCE_EVICTION_RATE", value_name = "RATE", value_parser = parse_rate)]
    resource_eviction_rate: Option<f64>,
    /// Evictions per second while two or more clusters, and more than 0.3 of all, are not ready; at more than 0.55,
    /// evictions stop [default: 1]
    #[arg(long, env = "CROWSNEST_SECONDARY_RESOURCE_EVICTION_RATE", value_name = "RATE", value_parser = parse_rate)]
    secondary_resource_eviction_rate: Option<f64>,
    /// Interval between updates of a cluster's status [default: 10s]
    #[arg(long, env = "CROWSNEST_CLUSTER_STATUS_UPDATE_FREQUENCY", value_name = "DURATION", value_parser = parse_period)]
    cluster_status_update_frequency: Option<Duration>,
    /// Time for which a cluster must be healthy before it becomes ready again [default: 30s]
    #[arg(long, env = "CROWSNEST_CLUSTER_SUCCESS_THRESHOLD", value_name = "DURATION", value_parser = cache_options::parse_duration)]
    cluster_success_threshold: Option<Duration>,
    /// Time for which a cluster must be unhealthy before it becomes not ready [default: 30s]
    #[arg(long, env = "CROWSNEST_CLUSTER_FAILURE_THRESHOLD", value_name = "DURATION", value_parser = cache_options::parse_duration)]
    cluster_failure_threshold: Option<Duration>,
    /// Interval between checks of the Lease of clusters with Karmada's agent [default: 5s]
    #[arg(long, env = "CROWSNEST_CLUSTER_MONITOR_PERIOD", value_name = "DURATION", value_parser = parse_period)]
    cluster_monitor_period: Option<Duration>,
    /// Time without a Lease renewal after which a cluster with Karmada's agent becomes unknown [default: 40s]
    #[arg(long, env = "CROWSNEST_CLUSTER_MONITOR_GRACE_PERIOD", value_name = "DURATION", value_parser = parse_period)]
    cluster_monitor_grace_period: Option<Duration>,
    /// Grace period for new clusters whose agent has not reported yet [default: 60s]
    #[arg(long, env = "CROWSNEST_CLUSTER_STARTUP_GRACE_PERIOD", value_name = "DURATION", value_parser = parse_period)]
    cluster_startup_grace_period: Option<Duration>,
    /// Share of clusters, from 0 to 1; if more are lost at once, the losses are ignored (not with --failover-safety=karmada)
    /// [default: 0.55]
    #[arg(long, env = "CROWSNEST_UNHEALTHY_CLUSTER_THRESHOLD", value_name = "SHARE", value_parser = parse_share)]
    unhealthy_cluster_threshold: Option<f64>,
    /// Interval between recalculations of FederatedResourceQuotas [default: 5m]
    #[arg(long, env = "CROWSNEST_FEDERATED_RESOURCE_QUOTA_SYNC_PERIOD", value_name = "DURATION", value_parser = parse_period)]
    federated_resource_quota_sync_period: Option<Duration>,
    /// Interval of the controller descheduler, which must be enabled in --controllers [default: 2m]
    #[arg(long, env = "CROWSNEST_DESCHEDULING_INTERVAL", value_name = "DURATION", value_parser = parse_period)]
    descheduling_interval: Option<Duration>,
    /// Time for which a pod must be unschedulable before the descheduler moves its replica [default: 5m]
    #[arg(long, env = "CROWSNEST_UNSCHEDULABLE_THRESHOLD", value_name = "DURATION", value_parser = cache_options::parse_duration)]
    unschedulable_threshold: Option<Duration>,
    #[command(flatten)]
    estimators: EstimatorClientArgs,
    #[command(flatten)]
    autoscaling: AutoscalingArgs,
}

/// Flags of the FederatedHPA controller.
#[derive(Debug, Clone, Default, Args)]
struct AutoscalingArgs {
    /// Interval between evaluations of a FederatedHPA [default: 15s]
    #[arg(long, env = "CROWSNEST_HORIZONTAL_POD_AUTOSCALER_SYNC_PERIOD", value_name = "DURATION", value_parser = parse_period)]
    horizontal_pod_autoscaler_sync_period: Option<Duration>,
    /// Tolerance: replicas change only if the ratio of usage to target differs from 1 by more than this [default: 0.1]
    #[arg(long, env = "CROWSNEST_HORIZONTAL_POD_AUTOSCALER_TOLERANCE", value_name = "RATIO", value_parser = parse_tolerance)]
    horizontal_pod_autoscaler_tolerance: Option<f64>,
    /// Downscale stabilization window, if the FederatedHPA's behavior sets none [default: 5m]
    #[arg(long, env = "CROWSNEST_HORIZONTAL_POD_AUTOSCALER_DOWNSCALE_STABILIZATION", value_name = "DURATION", value_parser = cache_options::parse_duration)]
    horizontal_pod_autoscaler_downscale_stabilization: Option<Duration>,
    /// Time after a pod's start during which its CPU usage counts only if it is ready [default: 5m]
    #[arg(long, env = "CROWSNEST_HORIZONTAL_POD_AUTOSCALER_CPU_INITIALIZATION_PERIOD", value_name = "DURATION", value_parser = cache_options::parse_duration)]
    horizontal_pod_autoscaler_cpu_initialization_period: Option<Duration>,
    /// Time after a pod's start during which it counts as never ready if it is unready [default: 30s]
    #[arg(long, env = "CROWSNEST_HORIZONTAL_POD_AUTOSCALER_INITIAL_READINESS_DELAY", value_name = "DURATION", value_parser = cache_options::parse_duration)]
    horizontal_pod_autoscaler_initial_readiness_delay: Option<Duration>,
    /// Accepted for compatibility; without effect, as in Karmada [default: 3m]
    #[arg(long, env = "CROWSNEST_HORIZONTAL_POD_AUTOSCALER_UPSCALE_DELAY", value_name = "DURATION", value_parser = cache_options::parse_duration)]
    horizontal_pod_autoscaler_upscale_delay: Option<Duration>,
    /// Accepted for compatibility; without effect, as in Karmada [default: 5m]
    #[arg(long, env = "CROWSNEST_HORIZONTAL_POD_AUTOSCALER_DOWNSCALE_DELAY", value_name = "DURATION", value_parser = cache_options::parse_duration)]
    horizontal_pod_autoscaler_downscale_delay: Option<Duration>,
}

impl AutoscalingArgs {
    fn apply(&self, settings: &mut Config) {
        let (periods, calculator) = (&mut settings.periods, &mut settings.replica_calculator);
        set_if_given(&mut periods.autoscaling_sync, &self.horizontal_pod_autoscaler_sync_period);
        set_if_given(&mut periods.downscale_stabilization, &self.horizontal_pod_autoscaler_downscale_stabilization);
        set_if_given(&mut calculator.tolerance, &self.horizontal_pod_autoscaler_tolerance);
        let signed = |period: Option<Duration>| Some(SignedDuration::try_from(period?).unwrap_or(SignedDuration::MAX));
        set_if_given(
            &mut calculator.cpu_initialization,
            &signed(self.horizontal_pod_autoscaler_cpu_initialization_period),
        );
        set_if_given(
            &mut calculator.initial_readiness_delay,
            &signed(self.horizontal_pod_autoscaler_initial_readiness_delay),
        );
        let delays = [self.horizontal_pod_autoscaler_upscale_delay, self.horizontal_pod_autoscaler_downscale_delay];
        if delays.iter().any(Option::is_some) {
            tracing::info!(
                "--horizontal-pod-autoscaler-upscale-delay and -downscale-delay have no effect, as in Karmada"
            );
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "PascalCase")]
enum PurgeModeArg {
    Gracefully,
    Directly,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum FailoverSafetyArg {
    Safe,
    Karmada,
}

impl ControllerArgs {
    /// The configuration; unset flags keep the values of `defaults`.
    pub(crate) fn config(&self, mut defaults: Config) -> anyhow::Result<Config> {
        let settings = &mut defaults;
        if let Some(list) = &self.feature_gates {
            settings.gates = settings.gates.with(list).context("--feature-gates")?;
            let without_effect = Gates::without_effect(list);
            if !without_effect.is_empty() {
                tracing::info!(gates = without_effect.join(","), "feature gates without effect");
            }
        }
        set_if_given(&mut settings.controllers, &self.controllers);
        set_if_given(&mut settings.skipped_apis, &self.skipped_propagating_apis);
        set_if_given(&mut settings.skipped_namespaces, &self.skipped_propagating_namespaces);
        set_if_given(&mut settings.propagate_empty_workloads, &self.enable_empty_workload_propagation);
        set_if_given(&mut settings.scheduler_name, &self.scheduler_name);
        set_if_given(&mut settings.plugins, &self.plugins);
        set_if_given(&mut settings.no_execute_taint_eviction, &self.enable_no_execute_taint_eviction);
        set_if_given(&mut settings.allow_no_execute_taint_policy, &self.allow_no_execute_taint_policy);
        let purge = self.no_execute_taint_eviction_purge_mode.map(|mode| match mode {
            PurgeModeArg::Gracefully => PurgeMode::Gracefully,
            PurgeModeArg::Directly => PurgeMode::Directly,
        });
        set_if_given(&mut settings.no_execute_purge_mode, &purge);
        let safety = self.failover_safety.map(|rule| match rule {
            FailoverSafetyArg::Safe => Safety::Safe,
            FailoverSafetyArg::Karmada => Safety::Karmada,
        });
        set_if_given(&mut settings.failover_safety, &safety);
        set_if_given(&mut settings.unhealthy_cluster_threshold, &self.unhealthy_cluster_threshold);
        if self.resource_eviction_rate.is_some() {
            settings.eviction_rate = self.resource_eviction_rate;
        }
        set_if_given(&mut settings.secondary_eviction_rate, &self.secondary_resource_eviction_rate);
        let periods = &mut settings.periods;
        set_if_given(&mut periods.graceful_eviction_timeout, &self.graceful_eviction_timeout);
        set_if_given(&mut periods.cluster_status, &self.cluster_status_update_frequency);
        set_if_given(&mut periods.cluster_success_threshold, &self.cluster_success_threshold);
        set_if_given(&mut periods.cluster_failure_threshold, &self.cluster_failure_threshold);
        set_if_given(&mut periods.cluster_monitor, &self.cluster_monitor_period);
        set_if_given(&mut periods.cluster_monitor_grace, &self.cluster_monitor_grace_period);
        set_if_given(&mut periods.cluster_startup_grace, &self.cluster_startup_grace_period);
        set_if_given(&mut periods.quota_sync, &self.federated_resource_quota_sync_period);
        set_if_given(&mut periods.descheduling, &self.descheduling_interval);
        set_if_given(&mut periods.unschedulable_threshold, &self.unschedulable_threshold);
        settings.estimators = self.estimators.open()?;
        self.autoscaling.apply(settings);
        Ok(defaults)
    }
}

fn set_if_given<T: Clone>(setting: &mut T, flag: &Option<T>) {
    if let Some(flag) = flag {
        setting.clone_from(flag);
    }
}

/// Validated while parsing so that clap names the flag; applied to the profile's gates later.
fn validate_gates(list: &str) -> Result<String, String> {
    match Gates::default().with(list) {
        Ok(_) => Ok(list.to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

fn parse_namespaces(list: &str) -> Result<SkippedNamespaces, String> {
    let expressions = list.split(',').map(str::trim).filter(|expression| !expression.is_empty());
    SkippedNamespaces::new(expressions).map_err(|error| error.to_string())
}

fn parse_tolerance(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(ratio) if (0.0..1.0).contains(&ratio) => Ok(ratio),
        Ok(_) => Err("must be at least 0 and less than 1".to_owned()),
        Err(_) => Err("is not a number such as 0.1".to_owned()),
    }
}

fn parse_period(text: &str) -> Result<Duration, String> {
    match cache_options::parse_duration(text)? {
        Duration::ZERO => Err("must be greater than 0".to_owned()),
        period => Ok(period),
    }
}

fn parse_share(text: &str) -> Result<f64, String> {
    let share = text.parse().ok().filter(|share| (0.0..=1.0).contains(share));
    share.ok_or_else(|| "must be a share from 0 to 1".to_owned())
}

fn parse_rate(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(rate) if rate.is_finite() && rate >= 0.0 => Ok(rate),
        _ => Err(format!("invalid rate {text:?}: expected evictions per second, such as 0.5")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::testing::parse_args;
    use crowsnest_controllers::estimator::EstimatorOptions;
    use crowsnest_plan::autoscaling::replicas::ReplicaCalculator;
    use crowsnest_plan::scheduling::Plugin;
    use rstest::rstest;

    fn parse_config(arguments: &str, profile: Config) -> Result<Config, String> {
        let args: ControllerArgs = parse_args(arguments)?;
        args.config(profile).map_err(|error| format!("{error:#}"))
    }

    #[test]
    fn unset_flags_keep_the_profile() {
        for profile in [Config::default(), Config::conformance()] {
            let config = parse_config("", profile.clone()).unwrap();
            assert_eq!(format!("{config:?}"), format!("{profile:?}"));
        }
    }

    #[test]
    fn flags_are_applied() {
        let config = parse_config(
            "--feature-gates Failover=true,LoggingBetaOptions=false --controllers=*,-namespace,hpaScaleTargetMarker \
             --skipped-propagating-apis batch;v1/Secret --skipped-propagating-namespaces kube-.*,infra \
             --enable-empty-workload-propagation --scheduler-name mine --enable-no-execute-taint-eviction=true \
             --no-execute-taint-eviction-purge-mode Directly --allow-no-execute-taint-policy \
             --plugins=*,-ClusterLocality --graceful-eviction-timeout 2m30s --failover-safety karmada --resource-eviction-rate 0.25 \
             --secondary-resource-eviction-rate 0 --cluster-status-update-frequency 5s \
             --cluster-success-threshold 0s --cluster-failure-threshold 1m --federated-resource-quota-sync-period 2m \
             --cluster-monitor-period 1s --cluster-monitor-grace-period 8s --cluster-startup-grace-period 12s \
             --unhealthy-cluster-threshold 0.8 \
             --horizontal-pod-autoscaler-sync-period 5s --horizontal-pod-autoscaler-tolerance 0.2 \
             --horizontal-pod-autoscaler-downscale-stabilization 0s \
             --horizontal-pod-autoscaler-cpu-initialization-period 1m \
             --horizontal-pod-autoscaler-initial-readiness-delay 10s --horizontal-pod-autoscaler-upscale-delay 1m \
             --descheduling-interval 1m --unschedulable-threshold 90s --enable-scheduler-estimator \
             --scheduler-estimator-port 10353 --scheduler-estimator-timeout 1s --scheduler-estimator-service-prefix est",
            Config::default(),
        );
        let config = config.unwrap();
        assert_eq!(config.gates, Gates { failover: true, ..Gates::default() });
        let runs = ["namespace", "hpaScaleTargetMarker", "binding"];
        assert_eq!(runs.map(|name| config.controllers.is_enabled(name)), [false, true, true]);
        assert_eq!(config.skipped_apis, "batch;v1/Secret".parse().unwrap());
        assert!(config.skipped_namespaces.contains("infra") && !config.skipped_namespaces.contains("default"));
        assert_eq!((config.propagate_empty_workloads, config.scheduler_name.as_str()), (true, "mine"));
        let on = [Plugin::ClusterLocality, Plugin::ClusterAffinity].map(|plugin| config.plugins.has(plugin));
        assert_eq!(on, [false, true]);
        assert!(config.no_execute_taint_eviction && config.allow_no_execute_taint_policy);
        assert_eq!((config.no_execute_purge_mode, config.failover_safety), (PurgeMode::Directly, Safety::Karmada));
        assert_eq!((config.eviction_rate, config.secondary_eviction_rate), (Some(0.25), 0.0));
        let periods = &config.periods;
        assert_eq!(periods.graceful_eviction_timeout, Duration::from_secs(150));
        assert_eq!(
            (periods.cluster_status, periods.cluster_success_threshold),
            (Duration::from_secs(5), Duration::ZERO)
        );
        assert_eq!(periods.cluster_failure_threshold, Duration::from_secs(60));
        assert_eq!(periods.quota_sync, Duration::from_secs(120));
        let monitor = [periods.cluster_monitor, periods.cluster_monitor_grace, periods.cluster_startup_grace];
        assert_eq!(monitor, [1, 8, 12].map(Duration::from_secs));
        assert_eq!(config.unhealthy_cluster_threshold, 0.8);
        assert_eq!(
            (periods.autoscaling_sync, periods.downscale_stabilization),
            (Duration::from_secs(5), Duration::ZERO)
        );
        let (cpu_initialization, initial_readiness_delay) =
            (SignedDuration::from_mins(1), SignedDuration::from_secs(10));
        assert_eq!(
            config.replica_calculator,
            ReplicaCalculator { tolerance: 0.2, cpu_initialization, initial_readiness_delay }
        );
        assert_eq!(
            (periods.descheduling, periods.unschedulable_threshold),
            (Duration::from_secs(60), Duration::from_secs(90))
        );
        let estimators = config.estimators.unwrap();
        let expected = EstimatorOptions {
            port: 10353,
            timeout: Duration::from_secs(1),
            service_prefix: "est".to_owned(),
            ..EstimatorOptions::default()
        };
        assert_eq!(estimators.options(), &expected);
    }

    #[test]
    fn flags_override_the_profile() {
        let arguments = "--feature-gates Failover=false --controllers * --enable-no-execute-taint-eviction=false";
        let config = parse_config(arguments, Config::conformance()).unwrap();
        assert_eq!(config.gates, Gates { failover: false, ..Gates::all() });
        assert_eq!((config.controllers, config.no_execute_taint_eviction), (Selection::default(), false));
    }

    #[rstest]
    #[case("--feature-gates Nope=true", "unrecognized feature gate: Nope (supported: AllAlpha, AllBeta, ")]
    #[case("--feature-gates Failover", "must be Name=true or Name=false")]
    #[case(
        "--controllers *,-mcs",
        "unknown controller \"mcs\"; known controllers: agentcsrapproving, applicationFailover, binding, "
    )]
    #[case("--controllers *,-workStatus", "select the same controller")]
    #[case("--plugins *,-Nope", "unknown scheduler plugin \"Nope\"; supported are APIEnablement, ")]
    #[case("--skipped-propagating-apis v1", "must be <group>")]
    #[case("--skipped-propagating-namespaces a(", "unclosed group")]
    #[case("--no-execute-taint-eviction-purge-mode Never", "[possible values: Gracefully, Directly]")]
    #[case("--failover-safety none", "[possible values: safe, karmada]")]
    #[case("--resource-eviction-rate=-1", "expected evictions per second")]
    #[case("--cluster-status-update-frequency 0s", "must be greater than 0")]
    #[case("--cluster-monitor-period 0s", "must be greater than 0")]
    #[case("--unhealthy-cluster-threshold 55", "must be a share from 0 to 1")]
    #[case("--scheduler-name=", "a value is required")]
    #[case("--horizontal-pod-autoscaler-tolerance 1.5", "must be at least 0 and less than 1")]
    #[case("--horizontal-pod-autoscaler-tolerance much", "is not a number")]
    #[case("--horizontal-pod-autoscaler-sync-period 0s", "must be greater than 0")]
    #[case("--descheduling-interval 0s", "must be greater than 0")]
    #[case("--scheduler-estimator-port 0", "0 is not in 1..=65535")]
    #[case("--enable-scheduler-estimator --scheduler-estimator-ca-file /missing/ca.crt", "/missing/ca.crt")]
    #[case("--enable-scheduler-estimator --scheduler-estimator-cert-file a.crt", "--scheduler-estimator-key-file")]
    fn invalid_flags_are_rejected(#[case] arguments: &str, #[case] expected: &str) {
        let error = parse_config(arguments, Config::default()).map(|_| ()).unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
}
