//! Discovers all listable resources of a cluster for search, and repeats the discovery when definitions change.

use super::Shared;
use super::definitions::DiscoveryExpectations;
use crowsnest_apimachinery::names::{ClusterName, Gvr};
use crowsnest_component_base::retry::{Backoff, jitter};
use crowsnest_members::discovery::discover_again;
use crowsnest_members::{ApiResource, ApiResources};
use crowsnest_store::{Clusters, Interest, InterestGuard, InterestReason, Namespaces};
use kube::Client;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// Interval of discovery without a change of definitions.
const LOOK_EVERY: Duration = Duration::from_secs(300);
/// Backoff while an expected change is not served yet: a definition is changed before it is served.
const PROMISED: Backoff = Backoff::new(Duration::from_millis(25), Duration::from_secs(5));
/// Maximum number of attempts for expected changes: about half a minute.
const LOOKS: u32 = 12;
const RETRY: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(30));

/// Runs until dropped; then the declared interests end.
pub(super) async fn explore(
    shared: Arc<Shared>,
    cluster: ClusterName,
    client: Client,
    promises: Arc<DiscoveryExpectations>,
) {
    let mut guards: BTreeMap<Gvr, InterestGuard> = BTreeMap::new();
    let (mut retries, mut attempts) = (RETRY.delays(), 0);
    let mut known = None;
    loop {
        let wait = match discover_again(&client, known.as_ref()).await {
            Ok(found) => {
                retries.reset();
                let stale = !found.resources.stale.is_empty();
                // Published first, because collectors read kinds from it.
                let learned = shared.learn(&cluster, Arc::clone(&found.resources));
                known = Some(found);
                let found = learned;
                let changed = declare(&shared, &cluster, &found, &mut guards);
                let newly_settled = shared.settled.lock().insert(cluster.clone());
                if newly_settled && !changed {
                    shared.interests.nudge();
                }
                attempts = if promises.are_kept(&found) { 0 } else { attempts + 1 };
                if attempts > LOOKS {
                    promises.forget();
                    attempts = 0;
                }
                match (attempts, stale) {
                    (1.., _) => PROMISED.delay(attempts),
                    (0, true) => Duration::from_secs(10),
                    (0, false) => LOOK_EVERY,
                }
            }
            Err(error) => {
                tracing::debug!(%cluster, %error, "cannot discover the resources of a cluster");
                retries.next_delay()
            }
        };
        let wait = jitter(wait, (0.75, 1.25), rand::random());
        if tokio::time::timeout(wait, promises.nudge.notified()).await.is_ok() {
            attempts = 0;
        }
    }
}

/// Declares interests in new resources and ends those in removed ones. True if something changed.
fn declare(
    shared: &Shared,
    cluster: &ClusterName,
    found: &ApiResources,
    guards: &mut BTreeMap<Gvr, InterestGuard>,
) -> bool {
    let is_requested = match cluster.is_control_plane() {
        true => shared.options.collect_control_plane,
        false => shared.options.collect_everything,
    };
    let excluded = |resource: &&ApiResource| !shared.options.excluded.contains(&resource.gvr.group_resource());
    let served = found.preferred().into_iter().filter(|resource| resource.is_listable()).filter(excluded);
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
        why: InterestReason::Search,
    });
    // Declared atomically, so that a cluster never appears to have only some of its kinds.
    let declared = shared.interests.declare_all(interests);
    guards.extend(new.iter().cloned().zip(declared));
    changed
}
