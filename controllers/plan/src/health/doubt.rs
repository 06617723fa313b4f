//! Suspected faults of the control plane itself: if many clusters are lost at once, the cause is probably on the
//! control plane's side. A cluster whose readiness is doubted keeps its Ready condition; its condition
//! `HealthSignals` reports the doubt, which the taint manager and ClusterTaintPolicies honor.

use std::fmt;
use std::time::Duration;

use crowsnest_api::cluster::Cluster;
use crowsnest_api::constants::{annotation, condition as condition_names};

use crate::conditions;

/// Clusters lost within this time count as lost together.
pub const LOSS_WINDOW: Duration = Duration::from_secs(60);

/// Reason why the observed readiness is not trusted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Doubt {
    /// `lost` of `all` clusters were lost within [`LOSS_WINDOW`].
    Fleet { lost: usize, all: usize },
    /// Error of the control plane's own API.
    ControlPlane(String),
}

impl fmt::Display for Doubt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Doubt::Fleet { lost, all } => write!(
                f,
                "{lost} of {all} clusters stopped responding within {} s: the fault is probably on the control plane's side",
                LOSS_WINDOW.as_secs()
            ),
            Doubt::ControlPlane(reason) => {
                write!(
                    f,
                    "the control plane's own API fails ({reason}): the fault is probably on the control plane's side"
                )
            }
        }
    }
}

/// Returns a doubt if at least two clusters, and more than the share `threshold` (0 to 1) of `all` clusters, were lost
/// within [`LOSS_WINDOW`]. `loss_times` are the monotonic times at which clusters were lost.
pub fn find_fleet_doubt(loss_times: impl IntoIterator<Item = Duration>, all: usize, threshold: f64) -> Option<Doubt> {
    let mut loss_times: Vec<Duration> = loss_times.into_iter().collect();
    loss_times.sort_unstable();
    let mut first = 0;
    let mut max_lost = 0;
    for (last, at) in loss_times.iter().enumerate() {
        while *at - loss_times[first] > LOSS_WINDOW {
            first += 1;
        }
        max_lost = max_lost.max(last + 1 - first);
    }
    let share = max_lost as f64 / all.max(1) as f64;
    (max_lost >= 2 && share > threshold).then_some(Doubt::Fleet { lost: max_lost, all })
}

/// True if a cluster that was lost at `lost_at` must not become NotReady yet although `failure_threshold` has passed:
/// another cluster was not probed in the second half of this time, so it may be lost as well, which would be a reason
/// for doubt. `last_probes` are the times of the last probes of the other clusters; those older than [`LOSS_WINDOW`] are
/// ignored.
pub fn must_wait_for_probes(
    last_probes: impl IntoIterator<Item = Duration>,
    lost_at: Duration,
    failure_threshold: Duration,
    now: Duration,
) -> bool {
    let second_half = lost_at + failure_threshold / 2;
    last_probes.into_iter().any(|at| at < second_half && now.saturating_sub(at) <= LOSS_WINDOW)
}

/// True if an administrator confirmed by annotation that the cluster is down, which overrides doubt.
pub fn is_confirmed_down(cluster: &Cluster) -> bool {
    let annotations = cluster.metadata.annotations.as_ref();
    annotations.and_then(|all| all.get(annotation::CONFIRMED_DOWN)).is_some_and(|value| value == "true")
}

/// True if the cluster's `HealthSignals` condition reports doubt.
pub fn is_doubted(cluster: &Cluster) -> bool {
    conditions::find(&cluster.status.conditions, condition_names::HEALTH_SIGNALS)
        .is_some_and(|signals| signals.reason == condition_names::HEALTH_SIGNALS_DOUBTED)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::no_other_cluster(&[], false)]
    #[case::all_probed_in_the_second_half(&[116, 129], false)]
    #[case::one_last_probed_before_the_loss(&[116, 99], true)]
    #[case::one_last_probed_in_the_first_half(&[114, 129], true)]
    #[case::outdated_probe_is_ignored(&[69, 129], false)]
    fn cluster_waits_for_probes_of_others(#[case] last_probes: &[u64], #[case] waits: bool) {
        let seconds = Duration::from_secs;
        let last_probes = last_probes.iter().copied().map(seconds);
        assert_eq!(must_wait_for_probes(last_probes, seconds(100), seconds(30), seconds(130)), waits);
    }
}
