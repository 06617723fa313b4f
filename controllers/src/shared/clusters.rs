//! State of Clusters.

use crowsnest_api::cluster::Cluster;
use crowsnest_api::constants::condition;
use crowsnest_plan::conditions;

/// Whether a member takes writes.
pub fn is_ready(cluster: &Cluster) -> bool {
    conditions::is_true(&cluster.status.conditions, condition::READY)
}
