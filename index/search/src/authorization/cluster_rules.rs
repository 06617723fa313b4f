//! RBAC objects of all clusters, limited to those that a caller may list, for the API group `access.crowsnest.io`.

use super::{CallerPermissions, has_complete_rules, rbac_resources};
use crate::Searcher;
use crowsnest_apimachinery::names::ClusterName;
use crowsnest_apimachinery::rbac::access::Scope;
use crowsnest_apimachinery::rbac::{ObjectKind, Rbac, ReadKind, ReadableNames, ReadableObjects};
use crowsnest_apimachinery::user::UserInfo;
use crowsnest_store::{CollectionKey, CollectionStates};
use std::sync::Arc;
use std::time::{Duration, Instant};

const GROUP: &str = super::GROUP;
/// Time limit for determining the caller's permissions.
const PERMISSIONS_TIMEOUT: Duration = Duration::from_secs(2);

/// State of a cluster's RBAC objects in the cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RulesState {
    Current,
    /// Complete, but not followed at present.
    Stale {
        reason: String,
        /// Seconds since the last contact with the cluster; `None`: never.
        age_seconds: Option<i64>,
    },
    /// Not read completely.
    Unknown {
        reason: String,
    },
}

/// The rules of a cluster, and the objects among them that a caller may list.
pub struct ClusterRules {
    pub cluster: ClusterName,
    pub state: RulesState,
    pub rbac: Arc<Rbac>,
    /// In the order of [`ObjectKind::ALL`].
    listable: [ReadableObjects; 4],
}

impl Searcher {
    /// The rules of the control plane and of the members that a caller may see, sorted by name.
    pub async fn cluster_rules(&self, caller: &UserInfo) -> Vec<ClusterRules> {
        let mut permissions = self.permissions_of(caller, Instant::now() + PERMISSIONS_TIMEOUT).await;
        let members = self.inner.cache.fleet.members();
        let mut clusters: Vec<ClusterName> = members.iter().map(|member| member.name().clone()).collect();
        clusters.push(ClusterName::control_plane());
        clusters.retain(|cluster| permissions.may_see(cluster));
        clusters.sort_unstable();
        clusters.into_iter().map(|cluster| self.rules_for(cluster, &mut permissions)).collect()
    }

    fn rules_for(&self, cluster: ClusterName, permissions: &mut CallerPermissions) -> ClusterRules {
        let listable = ObjectKind::ALL
            .map(|kind| permissions.readable_objects(ReadKind::Listing, &cluster, GROUP, kind.resource()));
        let state = rules_state(&self.inner.cache.states, &cluster, (self.inner.now_ms)());
        ClusterRules { state, rbac: self.inner.rbac_rules.cluster_rbac(&cluster), listable, cluster }
    }
}

/// State of the four collections of RBAC objects. `now_ms` is in Unix milliseconds.
fn rules_state(states: &CollectionStates, cluster: &ClusterName, now_ms: i64) -> RulesState {
    if !has_complete_rules(states, cluster) {
        return RulesState::Unknown { reason: "its RBAC objects are not in the cache".to_owned() };
    }
    let collections = rbac_resources().map(|gvr| states.get(&CollectionKey::new(cluster.clone(), gvr)));
    let outdated = || collections.iter().flatten().filter(|state| !state.is_fresh());
    let Some(reason) = outdated().find_map(|state| state.stale_reason.clone()) else { return RulesState::Current };
    let oldest = outdated().map(|state| state.last_contact_ms).filter(|at| *at > 0).min();
    RulesState::Stale { reason, age_seconds: oldest.map(|at| (now_ms - at).max(0) / 1000) }
}

impl ClusterRules {
    /// True if the caller may list this object.
    pub fn is_visible(&self, kind: ObjectKind, namespace: &str, name: &str) -> bool {
        ObjectKind::ALL
            .iter()
            .zip(&self.listable)
            .any(|(other, readable_objects)| *other == kind && readable_objects.allows(namespace, name))
    }

    /// Predicate that limits an evaluation to the RBAC objects that the caller may list.
    pub fn visibility(&self) -> impl Fn(ObjectKind, &str, &str) -> bool + Sync + '_ {
        move |kind: ObjectKind, namespace: &str, name: &str| self.is_visible(kind, namespace, name)
    }

    /// Plural names of the RBAC resources of which the caller cannot list all objects that are relevant in the scope. Depends
    /// on the caller's permissions alone, not on the objects.
    pub fn unlistable_resources(&self, scope: &Scope) -> Vec<&'static str> {
        let missing =
            |(kind, readable_objects): &(&ObjectKind, &ReadableObjects)| !covers(readable_objects, **kind, scope);
        let kinds = ObjectKind::ALL.iter().zip(&self.listable).filter(missing);
        kinds.map(|(kind, _)| kind.resource()).collect()
    }
}

/// True if all objects of a kind that are relevant in the scope are readable.
fn covers(readable_objects: &ReadableObjects, kind: ObjectKind, scope: &Scope) -> bool {
    match scope {
        _ if !kind.is_namespaced() => *readable_objects.everywhere() == ReadableNames::All,
        Scope::All => readable_objects.is_everything(),
        Scope::Namespaces(namespaces) => {
            namespaces.iter().all(|namespace| readable_objects.in_namespace(namespace) == &ReadableNames::All)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::everything(ReadableObjects::uniform(ReadableNames::All), ObjectKind::RoleBinding, Scope::All, true)]
    #[case::nothing(ReadableObjects::uniform(ReadableNames::Nothing), ObjectKind::ClusterRole, Scope::cluster(), false)]
    #[case::no_namespace_is_relevant(
        ReadableObjects::uniform(ReadableNames::Nothing),
        ObjectKind::Role,
        Scope::cluster(),
        true
    )]
    #[case::the_namespace(ReadableObjects::from_namespaces(["shop".to_owned()]), ObjectKind::Role, Scope::from_namespace("shop"), true)]
    #[case::another(ReadableObjects::from_namespaces(["shop".to_owned()]), ObjectKind::Role, Scope::from_namespace("ops"), false)]
    #[case::not_all(ReadableObjects::from_namespaces(["shop".to_owned()]), ObjectKind::Role, Scope::All, false)]
    #[case::cluster_scoped(ReadableObjects::from_namespaces(["shop".to_owned()]), ObjectKind::ClusterRoleBinding, Scope::from_namespace("shop"), false)]
    fn readable_objects_cover_scopes(
        #[case] readable_objects: ReadableObjects,
        #[case] kind: ObjectKind,
        #[case] scope: Scope,
        #[case] expected: bool,
    ) {
        assert_eq!(covers(&readable_objects, kind, &scope), expected);
    }

    #[test]
    fn incomplete_collections_are_unknown() {
        let (states, cluster) = (CollectionStates::default(), ClusterName::parse("m1").unwrap());
        let now = || rules_state(&states, &cluster, 10_000);
        assert!(matches!(now(), RulesState::Unknown { .. }));
        for gvr in rbac_resources() {
            states.update(&CollectionKey::new(cluster.clone(), gvr), |state| {
                (state.complete, state.last_contact_ms) = (true, 4000);
            });
        }
        assert_eq!(now(), RulesState::Current);
        let [first, ..] = rbac_resources();
        states.update(&CollectionKey::new(cluster.clone(), first), |state| {
            state.stale_reason = Some("no connection".into())
        });
        assert_eq!(now(), RulesState::Stale { reason: "no connection".into(), age_seconds: Some(6) });
    }
}
