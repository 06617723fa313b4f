//! Validity stamps of authorization decisions: for each caller and cluster, a stamp that changes when the caller's
//! grants there change. Compact enough to be kept for every caller.
//!
//! Renewed on demand after a rule has changed: clusters with unchanged rules are skipped, and a rule that concerns
//! other callers leaves the stamp, and all decisions made under it, valid.

use super::member_access::MemberAccess;
use crowsnest_apimachinery::names::ClusterName;
use crowsnest_apimachinery::rbac::{Grant, Rbac};
use crowsnest_apimachinery::user::UserInfo;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::time::Duration;

/// Estimated memory in bytes per caller and cluster.
const ENTRY_BYTES: usize = 160;
const MAX_CACHE_BYTES: u64 = 16 << 20;
/// Idle time after which a caller's authorization is evicted.
const IDLE_TIMEOUT: Duration = Duration::from_secs(600);

/// The RBAC rules of a cluster.
#[derive(Debug, Default)]
pub(super) struct VersionedRbac {
    /// Shared with readers that evaluate more than one decision.
    pub rbac: Arc<Rbac>,
    /// Revision of the last effective change to these rules.
    pub revision: u64,
}

/// Stamp of the decisions for a caller in a cluster. Decisions are valid while their stamp is unchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stamp {
    /// Revision of the rules that last changed the caller's grants.
    Granted(u64),
    /// Digest of the results of access reviews.
    Reviewed(u64),
}

/// Basis of decisions: the stamps of all clusters that grant any permissions.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Basis(BTreeMap<ClusterName, Stamp>);

/// A caller's stamps and member access.
#[derive(Debug, Default)]
pub(super) struct CallerAuthorization {
    /// Revision of the newest rule change that is included.
    pub revision: u64,
    pub basis: Arc<Basis>,
    pub member_access: MemberAccess,
    /// Revision of the control plane's rules from which the member access is derived.
    member_access_revision: u64,
    clusters: BTreeMap<ClusterName, ClusterGrants>,
}

/// A caller's grants in a cluster.
#[derive(Debug, Clone, Copy)]
struct ClusterGrants {
    /// Revision of the rules from which they were evaluated.
    revision: u64,
    /// Revision of the rules that last changed the grants.
    stamp: u64,
    digest: Digest,
    /// The caller has a permission to objects of any kind.
    has_permissions: bool,
}

/// Two hashes of grants with keys that are random in each process, so that a user cannot construct a collision.
type Digest = (u64, u64);

/// Cached authorization data of callers.
pub(super) struct AuthorizationCache {
    entries: moka::sync::Cache<Arc<UserInfo>, Arc<CallerAuthorization>>,
    keys: (RandomState, RandomState),
}

impl Default for AuthorizationCache {
    fn default() -> Self {
        let size = |_: &Arc<UserInfo>, authorization: &Arc<CallerAuthorization>| {
            u32::try_from(ENTRY_BYTES * (1 + authorization.clusters.len())).unwrap_or(u32::MAX)
        };
        let entries =
            moka::sync::Cache::builder().max_capacity(MAX_CACHE_BYTES).weigher(size).time_to_idle(IDLE_TIMEOUT).build();
        Self { entries, keys: (RandomState::new(), RandomState::new()) }
    }
}

impl AuthorizationCache {
    pub fn get(&self, caller: &Arc<UserInfo>) -> Option<Arc<CallerAuthorization>> {
        self.entries.get(caller)
    }

    /// The caller's authorization under these rules; `revision` is that of their newest change. Concurrent calls for a caller are
    /// serialized.
    pub fn refresh(
        &self,
        caller: &Arc<UserInfo>,
        revision: u64,
        clusters: &BTreeMap<ClusterName, VersionedRbac>,
    ) -> Arc<CallerAuthorization> {
        let entry = self.entries.entry(Arc::clone(caller)).and_upsert_with(|previous| {
            let previous = previous.map(|previous| previous.into_value());
            match previous {
                Some(previous) if previous.revision >= revision => previous,
                previous => {
                    let digest = |grants: &[Grant]| (self.keys.0.hash_one(grants), self.keys.1.hash_one(grants));
                    Arc::new(CallerAuthorization::new(caller, previous.as_deref(), revision, clusters, digest))
                }
            }
        });
        entry.into_value()
    }
}

impl CallerAuthorization {
    /// Evaluates a caller's grants. Clusters whose rules have not changed since `before` are not evaluated again, and keep
    /// their stamps if the grants are equal.
    fn new(
        caller: &UserInfo,
        before: Option<&Self>,
        revision: u64,
        clusters: &BTreeMap<ClusterName, VersionedRbac>,
        digest: impl Fn(&[Grant]) -> Digest,
    ) -> Self {
        let (member_access, member_access_revision) = derive_member_access(caller, before, clusters);
        let cluster_grants = |(cluster, cluster_rules): (&ClusterName, &VersionedRbac)| {
            let previous = before.and_then(|before| before.clusters.get(cluster)).copied();
            let revision = newest_revision(&member_access, cluster, cluster_rules, clusters);
            let now = match previous {
                Some(previous) if previous.revision == revision => previous,
                previous => {
                    let grants = evaluate_grants(&member_access, caller, cluster, cluster_rules);
                    let digest = digest(&grants);
                    let unchanged = previous.filter(|previous| previous.digest == digest);
                    let has_permissions = grants.iter().any(Grant::covers_objects);
                    ClusterGrants {
                        revision,
                        stamp: unchanged.map_or(revision, |previous| previous.stamp),
                        digest,
                        has_permissions,
                    }
                }
            };
            (cluster.clone(), now)
        };
        let clusters: BTreeMap<ClusterName, ClusterGrants> = clusters.iter().map(cluster_grants).collect();
        let stamps = clusters.iter().map(|(cluster, grants)| (cluster.clone(), Stamp::Granted(grants.stamp)));
        let basis = Arc::new(Basis(stamps.collect()));
        // Reuses the previous allocation, so that comparisons are usually by pointer.
        let basis = match before {
            Some(before) if before.basis == basis => Arc::clone(&before.basis),
            _ => basis,
        };
        Self { revision, basis, member_access, member_access_revision, clusters }
    }

    /// Revision of the rules of a cluster from which the grants were evaluated; None if the cluster has no rules.
    pub fn revision_of(&self, cluster: &ClusterName) -> Option<u64> {
        self.clusters.get(cluster).map(|grants| grants.revision)
    }

    /// True if the rules grant the caller a permission to objects of any kind in the cluster.
    pub fn has_permissions_in(&self, cluster: &ClusterName) -> bool {
        self.clusters.get(cluster).is_some_and(|grants| grants.has_permissions)
    }
}

/// The caller's member access, and the revision of the control plane's rules from which it is derived.
fn derive_member_access(
    caller: &UserInfo,
    before: Option<&CallerAuthorization>,
    clusters: &BTreeMap<ClusterName, VersionedRbac>,
) -> (MemberAccess, u64) {
    let Some(control_plane_rules) = clusters.get(&ClusterName::control_plane()) else {
        return (MemberAccess::from_grants(caller, &[]), 0);
    };
    match before {
        Some(before) if before.member_access_revision == control_plane_rules.revision => {
            (before.member_access.clone(), control_plane_rules.revision)
        }
        _ => {
            (MemberAccess::from_grants(caller, &control_plane_rules.rbac.grants(caller)), control_plane_rules.revision)
        }
    }
}

/// The grants of a caller with this member access by the rules of a cluster.
pub(super) fn evaluate_grants(
    member_access: &MemberAccess,
    caller: &UserInfo,
    cluster: &ClusterName,
    cluster_rules: &VersionedRbac,
) -> Vec<Grant> {
    if member_access.rules_apply_in(cluster) { cluster_rules.rbac.grants(caller) } else { Vec::new() }
}

/// Revision of the newest change to a rule that may affect the grants of a caller with this member access in a cluster.
pub(super) fn newest_revision(
    member_access: &MemberAccess,
    cluster: &ClusterName,
    cluster_rules: &VersionedRbac,
    clusters: &BTreeMap<ClusterName, VersionedRbac>,
) -> u64 {
    let control_plane_rules =
        clusters.get(&ClusterName::control_plane()).filter(|_| member_access.depends_on_control_plane_in(cluster));
    control_plane_rules
        .map_or(cluster_rules.revision, |control_plane_rules| control_plane_rules.revision.max(cluster_rules.revision))
}

impl Basis {
    /// Clusters whose stamps differ or are in only one of the two.
    pub fn differing_clusters(self: &Arc<Self>, other: &Arc<Self>) -> BTreeSet<ClusterName> {
        if Arc::ptr_eq(self, other) {
            return BTreeSet::new();
        }
        let differs = |left: &Self, right: &Self| -> Vec<ClusterName> {
            left.0
                .iter()
                .filter(|(name, stamp)| right.0.get(*name) != Some(stamp))
                .map(|(name, _)| name.clone())
                .collect()
        };
        differs(self, other).into_iter().chain(differs(other, self)).collect()
    }

    /// Returns a copy with the stamps of some clusters replaced.
    pub fn with_stamps(&self, stamps: impl Iterator<Item = (ClusterName, Stamp)>) -> Self {
        let mut all = self.0.clone();
        all.extend(stamps);
        Self(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn name(cluster: &str) -> ClusterName {
        ClusterName::parse(cluster).unwrap()
    }

    struct Fleet {
        authorizations: AuthorizationCache,
        clusters: BTreeMap<ClusterName, VersionedRbac>,
        revision: u64,
    }

    impl Fleet {
        fn change(&mut self, cluster: &str, change: impl FnOnce(&mut Rbac)) {
            self.revision += 1;
            let cluster_rules = self.clusters.entry(name(cluster)).or_default();
            change(Arc::make_mut(&mut cluster_rules.rbac));
            cluster_rules.revision = self.revision;
        }

        fn authorization(&self, caller: &str) -> Arc<CallerAuthorization> {
            self.authorizations.refresh(&Arc::new(UserInfo::new(caller, ["staff"])), self.revision, &self.clusters)
        }

        fn bind(&mut self, cluster: &str, binding: &str, user: &str) {
            let binding_of = json!({"roleRef": {"kind": "ClusterRole", "name": "view"},
                "subjects": [{"kind": "User", "name": user}]});
            self.change(cluster, |rbac| rbac.put_binding("shop", binding, read(binding_of)));
        }

        fn view(&mut self, cluster: &str, resource: &str) {
            let role = json!({"rules": [{"verbs": ["list"], "apiGroups": [""], "resources": [resource]}]});
            self.change(cluster, |rbac| rbac.put_role("", "view", read(role)));
        }
    }

    fn read<T: serde::de::DeserializeOwned>(value: Value) -> T {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn a_stamp_changes_with_the_grants_of_its_caller() {
        let mut fleet = Fleet { authorizations: AuthorizationCache::default(), clusters: BTreeMap::new(), revision: 0 };
        for cluster in ["member1", "member2"] {
            fleet.view(cluster, "pods");
            fleet.bind(cluster, "ann", "ann");
        }
        let mut before = fleet.authorization("ann");
        let mut changed = |fleet: &Fleet| {
            let now = fleet.authorization("ann");
            let changed: Vec<String> =
                now.basis.differing_clusters(&before.basis).iter().map(ToString::to_string).collect();
            assert_eq!(Arc::ptr_eq(&now.basis, &before.basis), changed.is_empty());
            assert_eq!(
                now.revision_of(&name("member1")),
                fleet.clusters.get(&name("member1")).map(|cluster_rules| cluster_rules.revision)
            );
            before = now;
            changed.join(" ")
        };
        assert_eq!(changed(&fleet), "");
        fleet.bind("member1", "bob", "bob");
        assert_eq!(changed(&fleet), "", "another user's binding");
        fleet.view("member2", "services");
        assert_eq!(changed(&fleet), "member2");
        // Changed and restored before the next read.
        fleet.change("member1", |rbac| rbac.remove_binding("shop", "ann"));
        fleet.bind("member1", "ann", "ann");
        assert_eq!(changed(&fleet), "");
        fleet.change("member1", |rbac| rbac.remove_binding("shop", "ann"));
        assert_eq!(changed(&fleet), "member1");
        fleet.bind("member1", "ann", "ann");
        assert_eq!(changed(&fleet), "member1");
        fleet.clusters.remove(&name("member2"));
        fleet.revision += 1;
        assert_eq!(changed(&fleet), "member2");
        fleet.bind("member3", "bob", "bob");
        assert_eq!(changed(&fleet), "member3", "its grants were unknown");
    }

    #[test]
    fn older_rules_do_not_replace_newer_ones() {
        let mut fleet = Fleet { authorizations: AuthorizationCache::default(), clusters: BTreeMap::new(), revision: 0 };
        fleet.view("member1", "pods");
        fleet.bind("member1", "ann", "ann");
        let newer = fleet.authorization("ann");
        let late = fleet.authorizations.refresh(&Arc::new(UserInfo::new("ann", ["staff"])), 1, &BTreeMap::new());
        assert!(Arc::ptr_eq(&newer, &late));
    }
}
