//! State of Clusters.

use crowsnest_api::cluster::Cluster;
use crowsnest_api::constants::condition;
use crowsnest_plan::conditions;

/// Returns true if a member is ready.
pub fn is_ready(cluster: &Cluster) -> bool {
    conditions::is_true(&cluster.status.conditions, condition::READY)
}
