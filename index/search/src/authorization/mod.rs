//! Authorization of reads in each cluster, evaluated from the cluster's own RBAC objects in the cache.
//!
//! Updated by one task that follows Roles, ClusterRoles and their bindings; read by every search. A cluster whose
//! RBAC objects are not completely cached is sent access reviews ([`access_reviews`]). The group `system:masters` may read
//! everything; its permissions are not evaluated.

pub(crate) mod access_reviews;
mod cluster_rules;
pub(crate) mod decision;
mod follower;
mod member_access;
mod read_permissions;
mod scope_terms;
mod stamps;

use crate::authorization::decision::ScopeDecision;
pub(crate) use access_reviews::ReviewCache;
use access_reviews::ReviewResults;
pub use cluster_rules::{ClusterRules, RulesState};
use crowsnest_apimachinery::names::{ClusterName, Gvr};
use crowsnest_apimachinery::rbac::{Grant, Rbac, ReadKind, ReadableNames, ReadableObjects};
use crowsnest_apimachinery::user::UserInfo;
use crowsnest_store::CollectionStates;
use crowsnest_store::metrics::Metrics;
use crowsnest_store::record::ChangeKind;
use crowsnest_store::{CollectionKey, Record, Seq};
pub(crate) use follower::RulesFollower;
use member_access::MemberAccess;
use parking_lot::RwLock;
pub use read_permissions::ReadPermissions;
pub use scope_terms::ScopeTerms;
use serde::de::DeserializeOwned;
use stamps::{AuthorizationCache, Basis, CallerAuthorization, Stamp, VersionedRbac, evaluate_grants, newest_revision};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Weak};
use tokio::sync::watch;
use xxhash_rust::xxh3::xxh3_128;

const GROUP: &str = "rbac.authorization.k8s.io";
const RESOURCES: [&str; 4] = ["roles", "clusterroles", "rolebindings", "clusterrolebindings"];

/// The resources whose objects determine permissions.
pub fn rbac_resources() -> [Gvr; 4] {
    RESOURCES.map(|resource| Gvr::new(GROUP, "v1", resource))
}

/// The rules on which decisions for a caller are based. A cache stores it with a decision to check later whether it
/// is still valid.
#[derive(Debug, Clone)]
pub struct DecisionBasis {
    rbac_rules: Weak<RbacRules>,
    stamps: Arc<Basis>,
}

/// The RBAC rules of all clusters, from which the permissions of callers are evaluated.
#[derive(Default)]
pub struct RbacRules {
    clusters: RwLock<BTreeMap<ClusterName, VersionedRbac>>,
    /// Incremented whenever a rule changes.
    revision: watch::Sender<u64>,
    authorizations: AuthorizationCache,
    /// The newest change of the store up to which rules are applied.
    applied_seq: watch::Sender<Seq>,
    metrics: Arc<Metrics>,
}

impl std::fmt::Debug for RbacRules {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RbacRules").field("clusters", &self.clusters.read().len()).finish()
    }
}

impl RbacRules {
    pub(crate) fn new(metrics: Arc<Metrics>) -> Self {
        Self { metrics, ..Self::default() }
    }

    /// Permissions of a caller, evaluated per cluster on demand. The caller gets the groups that API servers add to every
    /// user, such as `system:authenticated`.
    pub fn for_caller(self: &Arc<Self>, caller: &UserInfo) -> CallerPermissions {
        let caller = Arc::new(caller.clone().with_implied_groups());
        let authorization = self.authorization(&caller);
        CallerPermissions {
            rbac_rules: Arc::clone(self),
            basis: Arc::clone(&authorization.basis),
            authorization,
            caller,
            grants: HashMap::new(),
            is_outdated: false,
            review_results: HashMap::new(),
            decisions: HashMap::new(),
        }
    }

    /// The current authorization of a caller.
    fn authorization(&self, caller: &Arc<UserInfo>) -> Arc<CallerAuthorization> {
        if caller.is_master() {
            return Arc::default();
        }
        let authorization = self.authorizations.get(caller);
        if let Some(authorization) =
            authorization.filter(|authorization| authorization.revision == *self.revision.borrow())
        {
            return authorization;
        }
        let clusters = self.clusters.read();
        // Rules change only under the write lock of `clusters`.
        let revision = *self.revision.borrow();
        self.authorizations.refresh(caller, revision, &clusters)
    }

    /// Applies a change of an RBAC object.
    pub fn apply(&self, record: &Record, body: &[u8], change_kind: ChangeKind) {
        let resource = &*record.key.resource().resource;
        let namespace = &*record.key.namespace;
        let name = &*record.key.name;
        let mut clusters = self.clusters.write();
        let VersionedRbac { rbac, revision: cluster_revision } =
            clusters.entry(record.key.cluster().clone()).or_default();
        let rbac = Arc::make_mut(rbac);
        let warn_invalid =
            |error| tracing::warn!(namespace, name, %error, "a {resource} object is invalid and grants nothing");
        match resource {
            "roles" | "clusterroles" => match parse_object(body, change_kind).map_err(warn_invalid) {
                Ok(Some(role)) => rbac.put_role(namespace, name, role),
                Ok(None) | Err(()) => rbac.remove_role(namespace, name),
            },
            "rolebindings" | "clusterrolebindings" => match parse_object(body, change_kind).map_err(warn_invalid) {
                Ok(Some(binding)) => rbac.put_binding(namespace, name, binding),
                Ok(None) | Err(()) => rbac.remove_binding(namespace, name),
            },
            _ => {}
        }
        self.revision.send_modify(|revision| {
            *revision += 1;
            *cluster_revision = *revision;
        });
    }

    /// Receiver that is notified whenever a rule changes.
    pub fn rule_changes(&self) -> watch::Receiver<u64> {
        self.revision.subscribe()
    }

    /// The newest change of the store up to which rules are applied.
    pub fn applied_seq(&self) -> watch::Receiver<Seq> {
        self.applied_seq.subscribe()
    }

    /// The grants of a caller in a cluster, and the revision of the rules they are derived from. If newer rules of the
    /// control plane may have changed the caller's member access, the revision differs from the one in the caller's authorization.
    fn grants(
        &self,
        cluster: &ClusterName,
        caller: &UserInfo,
        member_access: &MemberAccess,
    ) -> (Vec<Grant>, Option<u64>) {
        let clusters = self.clusters.read();
        let Some(cluster_rules) = clusters.get(cluster) else { return (Vec::new(), None) };
        (
            evaluate_grants(member_access, caller, cluster, cluster_rules),
            Some(newest_revision(member_access, cluster, cluster_rules, &clusters)),
        )
    }

    /// The rules of a cluster.
    fn cluster_rbac(&self, cluster: &ClusterName) -> Arc<Rbac> {
        self.clusters.read().get(cluster).map(|cluster_rules| Arc::clone(&cluster_rules.rbac)).unwrap_or_default()
    }

    /// True if the rules of a member apply to a caller of the control plane.
    pub(crate) fn rules_apply_in(&self, caller: &UserInfo, cluster: &ClusterName) -> bool {
        caller.is_master()
            || self.authorization(&Arc::new(caller.clone().with_implied_groups())).member_access.rules_apply_in(cluster)
    }

    /// Replaces all rules with those of `fresh`.
    fn replace(&self, fresh: Self) {
        let mut clusters = self.clusters.write();
        *clusters = fresh.clusters.into_inner();
        self.revision.send_modify(|revision| {
            *revision += 1;
            // Restart the revisions, because those of `fresh` belong to another counter.
            clusters.values_mut().for_each(|cluster_rules| cluster_rules.revision = *revision);
        });
    }
}

/// Permissions of a caller, cached for the duration of a search.
#[derive(Debug)]
pub struct CallerPermissions {
    rbac_rules: Arc<RbacRules>,
    /// The caller's authorization at creation.
    authorization: Arc<CallerAuthorization>,
    /// The basis of that authorization, with the results of access reviews.
    basis: Arc<Basis>,
    caller: Arc<UserInfo>,
    grants: HashMap<ClusterName, Vec<Grant>>,
    /// Some grants were evaluated from newer rules than `authorization`.
    is_outdated: bool,
    /// Results of access reviews, for clusters without cached RBAC objects.
    review_results: HashMap<ClusterName, ReviewResults>,
    /// Decisions by scope.
    decisions: HashMap<Arc<str>, ScopeDecision>,
}

impl CallerPermissions {
    /// True if the caller may read everything.
    pub fn is_unlimited(&self) -> bool {
        self.caller.is_master()
    }

    pub fn caller(&self) -> &Arc<UserInfo> {
        &self.caller
    }

    /// The rules on which this caller's decisions are based. None if some decisions used newer rules; decisions must not be
    /// cached then.
    pub fn basis(&self) -> Option<DecisionBasis> {
        let basis = || DecisionBasis { rbac_rules: Arc::downgrade(&self.rbac_rules), stamps: Arc::clone(&self.basis) };
        (!self.is_outdated).then(basis)
    }

    /// Clusters in which decisions may differ from those made on `basis`; None if `basis` belongs to another [`RbacRules`].
    pub fn changed_from(&self, basis: &DecisionBasis) -> Option<BTreeSet<ClusterName>> {
        let same_rules = std::ptr::eq(basis.rbac_rules.as_ptr(), Arc::as_ptr(&self.rbac_rules));
        same_rules.then(|| self.basis.differing_clusters(&basis.stamps))
    }

    /// The cached decision for a scope, or a new one.
    pub fn cached_decision(
        &mut self,
        scope: &Arc<str>,
        decide: impl FnOnce(&mut Self, &str) -> ScopeDecision,
    ) -> ScopeDecision {
        if let Some(decided) = self.decisions.get(scope) {
            return decided.clone();
        }
        self.rbac_rules.metrics.verdicts.add(1);
        let decided = decide(self, scope);
        self.decisions.insert(Arc::clone(scope), decided.clone());
        decided
    }

    /// Adds the results of access reviews.
    fn add_review_results(&mut self, review_results: HashMap<ClusterName, ReviewResults>) {
        if !review_results.is_empty() {
            let stamps =
                review_results.iter().map(|(cluster, results)| (cluster.clone(), Stamp::Reviewed(results.digest())));
            self.basis = Arc::new(self.authorization.basis.with_stamps(stamps));
        }
        self.review_results = review_results;
    }

    /// Clusters whose cached rules grant the caller something else than in `before`.
    pub fn changed_since(&self, before: &Self) -> BTreeSet<ClusterName> {
        let mut changed = self.authorization.basis.differing_clusters(&before.authorization.basis);
        changed.retain(|cluster| !before.review_results.contains_key(cluster));
        changed
    }

    /// Digest of the caller's permissions in a cluster. Equal rules have equal digests in all processes of a version, so
    /// that a digest can be saved. None if the permissions are unknown.
    pub(crate) fn digest(&mut self, cluster: &ClusterName) -> Option<u128> {
        if self.caller.is_master() {
            return Some(0);
        }
        if let Some(results) = self.review_results.get(cluster) {
            return results.missing_reason().is_none().then(|| u128::from(results.digest()));
        }
        // Bindings are evaluated in the order of their namespaces and names.
        Some(xxh3_128(format!("{:?}", self.grants(cluster)).as_bytes()))
    }

    /// Reason why permissions in a cluster are unknown, and therefore denied; None if they are known.
    pub fn missing_reason(&self, cluster: &ClusterName) -> Option<&str> {
        self.review_results.get(cluster)?.missing_reason()
    }

    /// The objects of a resource in a namespace (empty for cluster-scoped ones) that may be read in this way. Clusters
    /// whose rules are not in the cache answer access reviews for lists only.
    pub fn readable_names(
        &mut self,
        read_kind: ReadKind,
        cluster: &ClusterName,
        group: &str,
        resource: &str,
        namespace: &str,
    ) -> ReadableNames {
        if self.caller.is_master() {
            return ReadableNames::All;
        }
        if let Some(results) = self.review_results.get(cluster) {
            return if results.allows(group, resource, namespace) {
                ReadableNames::All
            } else {
                ReadableNames::Nothing
            };
        }
        ReadableNames::from_grants(self.grants(cluster), read_kind, group, resource, namespace)
    }

    /// True if the rules of a cluster apply to this caller.
    pub(crate) fn rules_apply_in(&self, cluster: &ClusterName) -> bool {
        self.caller.is_master() || self.authorization.member_access.rules_apply_in(cluster)
    }

    /// True if the caller may see the cluster and its properties: the caller may get or list it in the control plane,
    /// use its proxy, or has any permission in it.
    pub fn may_see(&self, cluster: &ClusterName) -> bool {
        if self.caller.is_master() || self.authorization.member_access.can_see(cluster) {
            return true;
        }
        match self.review_results.get(cluster) {
            Some(results) => results.allows_anything(),
            None => self.authorization.has_permissions_in(cluster),
        }
    }

    /// The only namespaces in which objects of a resource may be listed; `None` if there is no such limit.
    pub fn namespace_limit(&mut self, cluster: &ClusterName, group: &str, resource: &str) -> Option<BTreeSet<String>> {
        if self.caller.is_master() {
            return None;
        }
        match self.review_results.get(cluster) {
            Some(results) => results.readable_objects(group, resource).namespace_limit(),
            None => {
                ReadableObjects::namespace_limit_from_grants(self.grants(cluster), ReadKind::Listing, group, resource)
            }
        }
    }

    /// The objects of a resource in all namespaces that may be read in this way.
    pub(crate) fn readable_objects(
        &mut self,
        read_kind: ReadKind,
        cluster: &ClusterName,
        group: &str,
        resource: &str,
    ) -> ReadableObjects {
        if self.caller.is_master() {
            return ReadableObjects::uniform(ReadableNames::All);
        }
        match self.review_results.get(cluster) {
            Some(results) => results.readable_objects(group, resource),
            None => ReadableObjects::from_grants(self.grants(cluster), read_kind, group, resource),
        }
    }

    fn grants(&mut self, cluster: &ClusterName) -> &[Grant] {
        if !self.grants.contains_key(cluster) {
            let (grants, revision) = self.rbac_rules.grants(cluster, &self.caller, &self.authorization.member_access);
            self.is_outdated |= revision != self.authorization.revision_of(cluster);
            self.grants.insert(cluster.clone(), grants);
        }
        self.grants.get(cluster).map(Vec::as_slice).unwrap_or_default()
    }
}

/// True if all RBAC objects of a cluster are in the cache.
fn has_complete_rules(states: &CollectionStates, cluster: &ClusterName) -> bool {
    let complete = |gvr| states.get(&CollectionKey::new(cluster.clone(), gvr)).is_some_and(|state| state.complete);
    rbac_resources().into_iter().all(complete)
}

/// Parses an object; None if it was deleted.
fn parse_object<T: DeserializeOwned>(body: &[u8], change_kind: ChangeKind) -> Result<Option<T>, serde_json::Error> {
    if change_kind == ChangeKind::Deleted { Ok(None) } else { serde_json::from_slice(body).map(Some) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crowsnest_store::fixtures::stored;
    use serde_json::json;

    /// A decision during a change of rules must not be cached.
    #[test]
    fn decisions_of_newer_rules_are_not_cached() {
        let rbac_rules = Arc::new(RbacRules::default());
        let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "rules": [],
            "metadata": {"namespace": "shop", "name": "reader"}});
        let role = stored("member1", 1, &role);
        let can_be_cached = |change: bool| {
            let mut ann = rbac_rules.for_caller(&UserInfo::new("ann", ["staff"]));
            if change {
                rbac_rules.apply(&role.record, &role.body, ChangeKind::Modified);
            }
            ann.readable_names(ReadKind::Listing, role.record.key.cluster(), "", "pods", "shop");
            ann.basis().is_some()
        };
        assert!(!can_be_cached(true) && can_be_cached(false));
    }

    /// A digest that was saved by another process is comparable.
    #[test]
    fn digests_depend_on_the_rules_only() {
        let object = |kind: &str, rest: serde_json::Value| {
            let mut object = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind,
                "metadata": {"namespace": "shop", "name": "reader"}});
            object.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
            stored("member1", 1, &object)
        };
        let role = |resource: &str| {
            object("Role", json!({"rules": [{"verbs": ["list"], "apiGroups": [""], "resources": [resource]}]}))
        };
        let subjects = json!([{"kind": "User", "name": "ann"}]);
        let binding =
            object("RoleBinding", json!({"roleRef": {"kind": "Role", "name": "reader"}, "subjects": subjects}));
        let digest = |objects: &[&crowsnest_store::Object]| {
            let rbac_rules = Arc::new(RbacRules::default());
            objects.iter().for_each(|object| rbac_rules.apply(&object.record, &object.body, ChangeKind::Added));
            rbac_rules.for_caller(&UserInfo::new("ann", ["staff"])).digest(binding.record.key.cluster()).unwrap()
        };
        let (pods, secrets) = (role("pods"), role("secrets"));
        assert_eq!(digest(&[&pods, &binding]), digest(&[&secrets, &binding, &pods]));
        assert_ne!(digest(&[&pods, &binding]), digest(&[&secrets, &binding]));
        assert_ne!(digest(&[&pods, &binding]), digest(&[&pods]));
    }

    #[test]
    fn invalid_objects_grant_nothing() {
        let rbac_rules = Arc::new(RbacRules::default());
        let object = |kind: &str, rest: serde_json::Value| {
            let mut object = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind,
                "metadata": {"namespace": "shop", "name": "reader"}});
            object.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
            stored("member1", 1, &object)
        };
        let role = object("Role", json!({"rules": [{"verbs": ["list"], "apiGroups": [""], "resources": ["pods"]}]}));
        let subjects = json!([{"kind": "User", "name": "ann"}]);
        let binding =
            object("RoleBinding", json!({"roleRef": {"kind": "Role", "name": "reader"}, "subjects": subjects}));
        let readable = || {
            let mut ann = rbac_rules.for_caller(&UserInfo::new("ann", ["staff"]));
            ann.readable_names(ReadKind::Listing, role.record.key.cluster(), "", "pods", "shop")
        };
        for broken in [&role, &binding] {
            for object in [&role, &binding] {
                rbac_rules.apply(&object.record, &object.body, ChangeKind::Added);
            }
            assert_eq!(readable(), ReadableNames::All);
            rbac_rules.apply(&broken.record, br#"{"rules": 1, "subjects": 1}"#, ChangeKind::Modified);
            assert_eq!(readable(), ReadableNames::Nothing);
        }
    }
}
