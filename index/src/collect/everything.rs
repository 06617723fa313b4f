//! Search covers everything a cluster lists: its kinds are discovered, and again whenever definitions change.

use super::Shared;
use super::definitions::Promises;
use crowsnest_apimachinery::names::{ClusterName, Gvr};
use crowsnest_component_base::retry::{Backoff, jitter};
use crowsnest_members::discovery::discover_again;
use crowsnest_members::{ApiResource, ApiResources};
use crowsnest_store::{Clusters, Interest, InterestGuard, Namespaces, Why};
use kube::Client;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// How often kinds are looked at without a reason.
const LOOK_EVERY: Duration = Duration::from_secs(300);
/// A server tells of a definition first and serves it some moments later.
const PROMISED: Backoff = Backoff::new(Duration::from_millis(25), Duration::from_secs(5));
/// Looks for what was promised: half a minute.
const LOOKS: u32 = 12;
const RETRY: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(30));

/// Runs until dropped; the interests it declared end with it.
pub(super) async fn explore(shared: Arc<Shared>, cluster: ClusterName, client: Client, promises: Arc<Promises>) {
    let mut guards: BTreeMap<Gvr, InterestGuard> = BTreeMap::new();
    let (mut retries, mut looks) = (RETRY.delays(), 0);
    let mut told = None;
    loop {
        let wait = match discover_again(&client, told.as_ref()).await {
            Ok(found) => {
                retries.reset();
                let stale = !found.resources.stale.is_empty();
                // Collectors read their kinds from here, so it comes first.
                let learned = shared.learn(&cluster, Arc::clone(&found.resources));
                told = Some(found);
                let found = learned;
                let changed = declare(&shared, &cluster, &found, &mut guards);
                let newly_settled = shared.settled.lock().insert(cluster.clone());
                if newly_settled && !changed {
                    shared.interests.nudge();
                }
                looks = if promises.are_kept(&found) { 0 } else { looks + 1 };
                if looks > LOOKS {
                    promises.forget();
                    looks = 0;
                }
                match (looks, stale) {
                    (1.., _) => PROMISED.delay(looks),
                    (0, true) => Duration::from_secs(10),
                    (0, false) => LOOK_EVERY,
                }
            }
            Err(error) => {
                tracing::debug!(%cluster, %error, "cannot discover what the cluster serves");
                retries.next_delay()
            }
        };
        let wait = jitter(wait, (0.75, 1.25), rand::random());
        if tokio::time::timeout(wait, promises.nudge.notified()).await.is_ok() {
            looks = 0;
        }
    }
}

/// Declares what is new, ends what is no longer served. True when something changed.
fn declare(
    shared: &Shared,
    cluster: &ClusterName,
    found: &ApiResources,
    guards: &mut BTreeMap<Gvr, InterestGuard>,
) -> bool {
    let asked = match cluster.is_control_plane() {
        true => shared.options.collect_control_plane,
        false => shared.options.collect_everything,
    };
    let excluded = |resource: &&ApiResource| !shared.options.excluded.contains(&resource.gvr.group_resource());
    let served = found.preferred().into_iter().filter(|resource| resource.is_listable()).filter(excluded);
    let served: BTreeSet<Gvr> =
        if asked { served.map(|resource| resource.gvr.clone()).collect() } else { BTreeSet::new() };
    let before = guards.len();
    // A group whose backend is down is unknown, not gone.
    guards.retain(|gvr, _| served.contains(gvr) || found.stale.contains(&gvr.api_version()));
    let mut changed = guards.len() != before;
    let new: Vec<Gvr> = served.into_iter().filter(|resource| !guards.contains_key(resource)).collect();
    changed |= !new.is_empty();
    let interests = new.iter().map(|resource| Interest {
        clusters: Clusters::one(cluster.clone()),
        resource: resource.clone(),
        namespaces: Namespaces::All,
        why: Why::Search,
    });
    // All at once: a cluster of which some kinds are followed would look as if it had no others.
    let declared = shared.interests.declare_all(interests);
    guards.extend(new.iter().cloned().zip(declared));
    changed
}
