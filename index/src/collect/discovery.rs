//! Discovers all listable resources of a cluster for search, and repeats the discovery when definitions change.

use super::Shared;
use super::discovery_expectations::DiscoveryExpectations;
use crowsnest_apimachinery::names::{ClusterName, Gvr};
use crowsnest_component_base::retry::{Backoff, jitter};
use crowsnest_members::discovery::rediscover;
use crowsnest_members::{ApiResource, ApiResources};
use crowsnest_store::{Clusters, Interest, InterestGuard, InterestReason, Namespaces};
use kube::Client;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// Interval of discovery without a change of definitions.
const DISCOVERY_INTERVAL: Duration = Duration::from_secs(300);
/// Interval of discovery while a group's backend does not respond.
const STALE_INTERVAL: Duration = Duration::from_secs(10);
/// Backoff while an expected change is not served yet: a definition is changed before it is served.
const EXPECTATION_BACKOFF: Backoff = Backoff::new(Duration::from_millis(25), Duration::from_secs(5));
/// Maximum number of attempts for expected changes: about half a minute.
const MAX_ATTEMPTS: u32 = 12;
/// Backoff after a failed discovery.
const FAILURE_BACKOFF: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(30));

/// Runs until dropped. Its interests end with it.
pub(super) async fn run(
    shared: Arc<Shared>,
    cluster: ClusterName,
    client: Client,
    expectations: Arc<DiscoveryExpectations>,
) {
    let mut guards: BTreeMap<Gvr, InterestGuard> = BTreeMap::new();
    let (mut retries, mut attempts) = (FAILURE_BACKOFF.delays(), 0);
    let mut last_discovery = None;
    loop {
        let wait = match rediscover(&client, last_discovery.as_ref()).await {
            Ok(found) => {
                retries.reset();
                let has_stale_groups = !found.resources.stale.is_empty();
                // Published first, because collectors read kinds from it.
                let published = shared.publish_served(&cluster, Arc::clone(&found.resources));
                last_discovery = Some(found);
                let found = published;
                let changed = declare_interests(&shared, &cluster, &found, &mut guards);
                let is_newly_declared = shared.declared_clusters.lock().insert(cluster.clone());
                if is_newly_declared && !changed {
                    shared.interests.notify();
                }
                attempts = if expectations.are_met(&found) { 0 } else { attempts + 1 };
                if attempts > MAX_ATTEMPTS {
                    expectations.clear();
                    attempts = 0;
                }
                match (attempts, has_stale_groups) {
                    (1.., _) => EXPECTATION_BACKOFF.delay(attempts),
                    (0, true) => STALE_INTERVAL,
                    (0, false) => DISCOVERY_INTERVAL,
                }
            }
            Err(error) => {
                tracing::debug!(%cluster, %error, "cannot discover the resources of a cluster");
                retries.next_delay()
            }
        };
        let wait = jitter(wait, (0.75, 1.25), rand::random());
        if tokio::time::timeout(wait, expectations.wake.notified()).await.is_ok() {
            attempts = 0;
        }
    }
}

/// Declares interests in new resources and ends those in removed ones. Returns true if there were any.
fn declare_interests(
    shared: &Shared,
    cluster: &ClusterName,
    found: &ApiResources,
    guards: &mut BTreeMap<Gvr, InterestGuard>,
) -> bool {
    let is_requested = match cluster.is_control_plane() {
        true => shared.options.collect_control_plane,
        false => shared.options.collect_everything,
    };
    let is_included = |resource: &&ApiResource| !shared.options.excluded.contains(&resource.gvr.group_resource());
    let served = found.preferred_versions().into_iter().filter(|resource| resource.is_listable()).filter(is_included);
    let served: BTreeSet<Gvr> =
        if is_requested { served.map(|resource| resource.gvr.clone()).collect() } else { BTreeSet::new() };
    let before = guards.len();
    // Resources of a group whose backend is down are unknown, not removed.
    guards.retain(|gvr, _| served.contains(gvr) || found.stale.contains(&gvr.api_version()));
    let mut changed = guards.len() != before;
    let new: Vec<Gvr> = served.into_iter().filter(|resource| !guards.contains_key(resource)).collect();
    changed |= !new.is_empty();
    let interests = new.iter().map(|resource| Interest {
        clusters: Clusters::one(cluster.clone()),
        resource: resource.clone(),
        namespaces: Namespaces::All,
        reason: InterestReason::Search,
    });
    // Declared atomically, so that a cluster never appears to have only some of its kinds.
    let declared = shared.interests.declare_all(interests);
    guards.extend(new.iter().cloned().zip(declared));
    changed
}
