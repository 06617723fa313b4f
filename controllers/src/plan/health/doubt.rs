//! Doubt of ourselves: when most of the fleet goes away at once, the fault is probably on this side. A cluster whose readiness is
//! doubted keeps it, and says so in its condition `HealthSignals`, which is what the taint manager and ClusterTaintPolicies read.

use std::fmt;
use std::time::Duration;

use crowsnest_api::cluster::Cluster;
use crowsnest_api::constants::{annotation, condition as words};

use crate::plan::conditions;

/// Clusters that go away within this time of each other go away together.
pub const TOGETHER: Duration = Duration::from_secs(60);

/// Why nobody should believe what is seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Doubt {
    Fleet {
        lost: usize,
        all: usize,
    },
    /// What its own API answered.
    ControlPlane(String),
}

impl fmt::Display for Doubt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Doubt::Fleet { lost, all } => write!(
                f,
                "{lost} of {all} clusters stopped answering within {} s: the fault is probably on this side",
                TOGETHER.as_secs()
            ),
            Doubt::ControlPlane(why) => {
                write!(f, "the control plane's own API fails ({why}): the fault is probably on this side")
            }
        }
    }
}

/// Whether too many of `all` clusters were lost together; `lost` says when each was.
pub fn of_fleet(lost: impl IntoIterator<Item = Duration>, all: usize, threshold: f64) -> Option<Doubt> {
    let mut lost: Vec<Duration> = lost.into_iter().collect();
    lost.sort_unstable();
    let mut first = 0;
    let mut most = 0;
    for (last, at) in lost.iter().enumerate() {
        while *at - lost[first] > TOGETHER {
            first += 1;
        }
        most = most.max(last + 1 - first);
    }
    let share = most as f64 / all.max(1) as f64;
    (most >= 2 && share > threshold).then_some(Doubt::Fleet { lost: most, all })
}

/// Whether an administrator said that a cluster is down, whatever others are.
pub fn is_confirmed_down(cluster: &Cluster) -> bool {
    let annotations = cluster.metadata.annotations.as_ref();
    annotations.and_then(|all| all.get(annotation::CONFIRMED_DOWN)).is_some_and(|said| said == "true")
}

/// Whether a cluster's readiness is doubted, as it says.
pub fn is_doubted(cluster: &Cluster) -> bool {
    conditions::find(&cluster.status.conditions, words::HEALTH_SIGNALS)
        .is_some_and(|signals| signals.reason == words::HEALTH_SIGNALS_DOUBTED)
}
