//! Assigns clusters to replicas; pure functions.

use crowsnest_apimachinery::names::ClusterName;
use crowsnest_store::{Epoch, ReplicaView};
use std::collections::{BTreeMap, BTreeSet};

/// The replica that should collect a cluster, by rendezvous hashing: the one with the highest hash for the cluster.
/// A replica that leaves gives up only its own clusters, and one that joins takes its share from all others.
pub(crate) fn owner<'r>(cluster: &str, live: impl IntoIterator<Item = &'r str>) -> Option<&'r str> {
    live.into_iter().max_by_key(|replica| (weight(cluster, replica), *replica))
}

/// Equal in every replica and version: FNV-1a with a final mix, so that similar names get different weights.
fn weight(cluster: &str, replica: &str) -> u64 {
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    for byte in cluster.bytes().chain([0xff]).chain(replica.bytes()) {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ (hash >> 31)
}

/// Changes of a replica's claims.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct ClaimPlan {
    /// Held here but not in the database: stop collecting.
    pub lost: BTreeSet<ClusterName>,
    /// Assigned to another replica or to none: stop collecting, then release.
    pub release: BTreeMap<ClusterName, Epoch>,
    /// Assigned to this replica and free.
    pub take: BTreeSet<ClusterName>,
    /// Dead holders of the clusters to take.
    pub dead: BTreeSet<String>,
}

/// Plans the changes of the claims of the replica `me`. `clusters`: all clusters. `local_claims`: the claims that the
/// replica itself believes it has. `view`: live replicas and claims in the database.
pub(crate) fn plan(
    me: &str,
    clusters: &BTreeSet<ClusterName>,
    local_claims: &BTreeMap<ClusterName, Epoch>,
    view: &ReplicaView,
) -> ClaimPlan {
    let mut plan = ClaimPlan::default();
    for (cluster, epoch) in local_claims {
        if view.claims.get(cluster) != Some(&(Some(me.to_owned()), *epoch)) {
            plan.lost.insert(cluster.clone());
        }
    }
    for (cluster, (holder, epoch)) in &view.claims {
        let is_mine = holder.as_deref() == Some(me);
        let is_assigned =
            clusters.contains(cluster) && owner(cluster.as_str(), view.live.iter().map(String::as_str)) == Some(me);
        if is_mine && !is_assigned {
            plan.release.insert(cluster.clone(), *epoch);
        }
    }
    for cluster in clusters {
        if owner(cluster.as_str(), view.live.iter().map(String::as_str)) != Some(me) {
            continue;
        }
        let holder = view.claims.get(cluster).and_then(|(holder, _)| holder.as_deref());
        match holder {
            // A claim that is held in the database but not by this process is taken again.
            Some(holder) if holder == me => {
                if !local_claims.contains_key(cluster) || plan.lost.contains(cluster) {
                    plan.take.insert(cluster.clone());
                }
            }
            // The live holder will release it.
            Some(holder) if view.live.contains(holder) => {}
            other => {
                plan.dead.extend(other.map(str::to_owned));
                plan.take.insert(cluster.clone());
            }
        }
    }
    plan
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rstest::rstest;

    fn replicas(count: usize) -> Vec<String> {
        (0..count).map(|nth| format!("crowsnest-{nth}-{:08x}", nth * 7919)).collect()
    }

    fn owners(clusters: usize, live: &[String]) -> BTreeMap<String, String> {
        let names = (0..clusters).map(|nth| format!("member{nth}"));
        names.map(|name| (name.clone(), owner(&name, live.iter().map(String::as_str)).unwrap().to_owned())).collect()
    }

    proptest! {
        #[test]
        fn only_the_share_of_a_leaving_replica_moves(clusters in 1usize..200, count in 2usize..8, leaving in 0usize..8) {
            let all = replicas(count);
            let leaving = all[leaving % count].clone();
            let remaining: Vec<String> = all.iter().filter(|replica| **replica != leaving).cloned().collect();
            let (before, after) = (owners(clusters, &all), owners(clusters, &remaining));
            for (cluster, previous_owner) in &before {
                prop_assert_eq!(&after[cluster] != previous_owner, *previous_owner == leaving);
            }
        }

        #[test]
        fn the_order_of_names_does_not_matter(name in "[a-z0-9-]{1,20}", count in 1usize..8) {
            let all = replicas(count);
            let forward = owner(&name, all.iter().map(String::as_str));
            prop_assert_eq!(forward, owner(&name, all.iter().rev().map(String::as_str)));
        }

        #[test]
        fn shares_are_even(count in 2usize..8) {
            let owners = owners(2000, &replicas(count));
            let mut shares: BTreeMap<&str, usize> = BTreeMap::new();
            owners.values().for_each(|owner| *shares.entry(owner).or_default() += 1);
            let even = 2000 / count;
            prop_assert_eq!(shares.len(), count);
            prop_assert!(shares.values().all(|share| share.abs_diff(even) < even / 4), "{:?}", shares);
        }
    }

    fn name(cluster: &str) -> ClusterName {
        ClusterName::parse(cluster).unwrap()
    }

    /// Claims are written `cluster=holder/epoch`; in the plan, `!` is lost, `-` release, `+` take.
    #[rstest]
    #[case::single_replica("a", "", "", "+m1 +m2")]
    #[case::held("a", "m1=a/1 m2=a/3", "m1=a/1 m2=a/3", "")]
    #[case::held_by_a_live_replica("a b", "m1=b/1 m2=b/1", "", "")]
    #[case::held_by_a_dead_replica("a", "m1=b/1 m2=-/4", "", "+m1 +m2 dead:b")]
    #[case::given_up("a", "m1=a/1 m2=a/1", "", "+m1 +m2")]
    #[case::taken_meanwhile("a b", "m1=b/2 m2=b/2", "m1=a/1", "!m1")]
    #[case::claimed_again_elsewhere("a", "m1=a/2 m2=a/1", "m1=a/1 m2=a/1", "!m1 +m1")]
    #[case::left_the_fleet("a", "m1=a/1 m2=a/1 old=a/1", "m1=a/1 m2=a/1 old=a/1", "-old")]
    fn claims_follow_the_live_replicas(
        #[case] live: &str,
        #[case] claims: &str,
        #[case] local_claims: &str,
        #[case] expected: &str,
    ) {
        let read = |text: &str| -> BTreeMap<ClusterName, (Option<String>, Epoch)> {
            let parts = text.split_whitespace().map(|part| {
                let (cluster, rest) = part.split_once('=').unwrap();
                let (holder, epoch) = rest.split_once('/').unwrap();
                let holder = (holder != "-").then(|| holder.to_owned());
                (name(cluster), (holder, Epoch(epoch.parse().unwrap())))
            });
            parts.collect()
        };
        let view = ReplicaView {
            requested_at: None,
            live: live.split_whitespace().map(str::to_owned).collect(),
            claims: read(claims),
            stored: BTreeSet::new(),
        };
        let local_claims = read(local_claims).into_iter().map(|(cluster, (_, epoch))| (cluster, epoch)).collect();
        let clusters = BTreeSet::from([name("m1"), name("m2")]);
        // Both clusters are assigned to a; while b is alive, b has to release its claims.
        let plan = plan("a", &clusters, &local_claims, &view);
        let mut words: Vec<String> = plan.lost.iter().map(|cluster| format!("!{cluster}")).collect();
        words.extend(plan.release.keys().map(|cluster| format!("-{cluster}")));
        words.extend(plan.take.iter().map(|cluster| format!("+{cluster}")));
        words.extend(plan.dead.iter().map(|replica| format!("dead:{replica}")));
        assert_eq!(words.join(" "), expected);
    }

    #[test]
    fn a_moved_share_is_released_first() {
        let all = replicas(2);
        let cluster = (0..).map(|nth| name(&format!("m{nth}")));
        let moving = cluster.into_iter().find(|c| owner(c.as_str(), all.iter().map(String::as_str)) == Some(&all[1]));
        let moving = moving.unwrap();
        let mut view = ReplicaView { live: all.iter().cloned().collect(), ..ReplicaView::default() };
        view.claims.insert(moving.clone(), (Some(all[0].clone()), Epoch(4)));
        let clusters = BTreeSet::from([moving.clone()]);
        let local_claims = BTreeMap::from([(moving.clone(), Epoch(4))]);
        let old = plan(&all[0], &clusters, &local_claims, &view);
        assert_eq!(old.release, BTreeMap::from([(moving.clone(), Epoch(4))]));
        assert_eq!(plan(&all[1], &clusters, &BTreeMap::new(), &view), ClaimPlan::default());
        view.claims.insert(moving.clone(), (None, Epoch(4)));
        assert_eq!(plan(&all[1], &clusters, &BTreeMap::new(), &view).take, clusters);
    }
}
