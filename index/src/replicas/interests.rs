//! Shares the interests of replicas, so that the replica that collects a cluster serves all of them.
//!
//! Interests that every replica has (search, authorization) are not shared. Interests of other replicas stay valid
//! for a while after their last heartbeat, so that a restarting leader does not lose its collections.

use crowsnest_store::postgres::PostgresStore;
use crowsnest_store::{Clusters, Interest, InterestGuard, InterestReason, Interests};
use crowsnest_store::{Error, ReplicaInterest};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

const POLL_INTERVAL: Duration = Duration::from_secs(1);

pub(crate) struct SharedInterests {
    pub store: Arc<PostgresStore>,
    pub interests: Interests,
}

impl SharedInterests {
    /// Runs until stopped; during an outage, the last known interests stay declared.
    pub async fn run(self, stop: CancellationToken) -> Result<(), Error> {
        let mut version = self.interests.version();
        let mut published: Option<BTreeSet<ReplicaInterest>> = None;
        let mut guards: BTreeMap<(String, ReplicaInterest), InterestGuard> = BTreeMap::new();
        loop {
            version.borrow_and_update();
            let local_interests = replica_interests(&self.interests.all());
            if published.as_ref() != Some(&local_interests) {
                match self.store.publish_interests(&local_interests).await {
                    Ok(()) => published = Some(local_interests),
                    Err(error) => tracing::debug!(error = error.chain(), "cannot share the interests of this replica"),
                }
            }
            match self.store.read_interests().await {
                Ok(remote) => self.declare(&remote, &mut guards),
                Err(error) => tracing::debug!(error = error.chain(), "cannot read the interests of other replicas"),
            }
            tokio::select! {
                () = stop.cancelled() => return Ok(()),
                changed = version.changed() => if changed.is_err() { return Ok(()) },
                () = tokio::time::sleep(POLL_INTERVAL) => {}
            }
        }
    }

    fn declare(
        &self,
        remote: &BTreeSet<(String, ReplicaInterest)>,
        guards: &mut BTreeMap<(String, ReplicaInterest), InterestGuard>,
    ) {
        for (replica, (clusters, resource, namespaces)) in remote {
            let key = (replica.clone(), (clusters.clone(), resource.clone(), namespaces.clone()));
            guards.entry(key).or_insert_with(|| {
                let (clusters, resource) = (clusters.clone(), resource.clone());
                let (namespaces, reason) = (namespaces.clone(), InterestReason::Replica(replica.clone()));
                self.interests.declare(Interest { clusters, resource, namespaces, reason })
            });
        }
        guards.retain(|key, _| remote.contains(key));
    }
}

/// The interests to share.
fn replica_interests(interests: &[Interest]) -> BTreeSet<ReplicaInterest> {
    // Stored rows name one cluster or all, so an interest in no cluster has no row.
    let has_no_cluster = |interest: &Interest| matches!(&interest.clusters, Clusters::Names(names) if names.is_empty());
    let is_shared = |interest: &&Interest| {
        !matches!(interest.reason, InterestReason::Search | InterestReason::Authorization | InterestReason::Replica(_))
            && !has_no_cluster(interest)
    };
    let key_of =
        |interest: &Interest| (interest.clusters.clone(), interest.resource.clone(), interest.namespaces.clone());
    interests.iter().filter(is_shared).map(key_of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crowsnest_apimachinery::names::Gvr;
    use crowsnest_store::Namespaces;
    use std::collections::BTreeSet;

    #[test]
    fn an_interest_in_no_cluster_is_not_shared() {
        let interest = |clusters| Interest {
            clusters,
            resource: Gvr::new("apps", "v1", "deployments"),
            namespaces: Namespaces::All,
            reason: InterestReason::ResourceRegistry("all".to_owned()),
        };
        assert_eq!(replica_interests(&[interest(Clusters::All)]).len(), 1);
        assert!(replica_interests(&[interest(Clusters::Names(BTreeSet::new()))]).is_empty());
    }
}
