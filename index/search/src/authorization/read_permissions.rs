//! Permissions of one caller to read the objects of a resource, for paged lists, for watches, and for reads by name.

use super::CallerPermissions;
use crate::Searcher;
use crate::authorization::access_reviews::RESULT_TTL;
use crowsnest_apimachinery::names::{ClusterName, Gvr};
use crowsnest_apimachinery::rbac::{ReadKind, ReadableObjects};
use crowsnest_apimachinery::user::UserInfo;
use crowsnest_members::Member;
use crowsnest_store::RecordKey;
use parking_lot::Mutex;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time limit for determining permissions. Clusters whose rules are not in the cache get half of it.
const PERMISSIONS_TIMEOUT: Duration = Duration::from_secs(2);

/// A caller's permissions to read one resource, as of its creation. Cheap to clone.
#[derive(Debug, Clone)]
pub struct ReadPermissions {
    resource: Gvr,
    read_kind: ReadKind,
    created_at: Instant,
    /// `None`: the caller may read everything.
    permissions: Option<Arc<Mutex<EvaluatedPermissions>>>,
}

#[derive(Debug)]
struct EvaluatedPermissions {
    permissions: CallerPermissions,
    readable_objects: HashMap<ClusterName, Arc<ReadableObjects>>,
}

impl Searcher {
    /// Permissions of a caller to read a resource by name or in lists.
    pub async fn read_permissions(&self, caller: &UserInfo, resource: &Gvr, read_kind: ReadKind) -> ReadPermissions {
        let created_at = Instant::now();
        let permissions = self.permissions_of(caller, created_at + PERMISSIONS_TIMEOUT).await;
        let evaluated_permissions =
            || Arc::new(Mutex::new(EvaluatedPermissions { permissions, readable_objects: HashMap::new() }));
        ReadPermissions {
            resource: resource.clone(),
            read_kind,
            created_at,
            permissions: (!caller.is_master()).then(evaluated_permissions),
        }
    }

    /// True if the rules of a member apply to a caller of the control plane. Only then may requests be sent to the
    /// member as this caller without a separate authorization in the control plane (see the module `member_access`).
    pub fn rules_apply_in(&self, caller: &UserInfo, cluster: &ClusterName) -> bool {
        self.inner.rbac_rules.rules_apply_in(caller, cluster)
    }

    /// True if a caller may see a cluster.
    pub async fn may_see(&self, caller: &UserInfo, cluster: &ClusterName) -> bool {
        self.permissions_of(caller, Instant::now() + PERMISSIONS_TIMEOUT).await.may_see(cluster)
    }

    /// The members that a caller may see.
    pub async fn visible_members(&self, caller: &UserInfo) -> Vec<Arc<Member>> {
        let permissions = self.permissions_of(caller, Instant::now() + PERMISSIONS_TIMEOUT).await;
        let mut members = self.inner.cache.fleet.members();
        members.retain(|member| permissions.may_see(member.name()));
        members
    }
}

impl ReadPermissions {
    pub fn may_read(&self, key: &RecordKey) -> bool {
        self.readable_objects(key.cluster())
            .is_none_or(|readable_objects| readable_objects.allows(&key.namespace, &key.name))
    }

    /// The only namespaces of a cluster that the caller may read; `None` if there is no such limit.
    pub fn namespace_limit(&self, cluster: &ClusterName) -> Option<BTreeSet<String>> {
        self.readable_objects(cluster)?.namespace_limit()
    }

    /// The objects of the cluster that may be read; `None` means all, without evaluating rules.
    pub fn readable_objects(&self, cluster: &ClusterName) -> Option<Arc<ReadableObjects>> {
        let mut evaluated_permissions = self.permissions.as_ref()?.lock();
        if let Some(readable_objects) = evaluated_permissions.readable_objects.get(cluster) {
            return Some(Arc::clone(readable_objects));
        }
        let readable_objects = Arc::new(evaluated_permissions.permissions.readable_objects(
            self.read_kind,
            cluster,
            &self.resource.group,
            &self.resource.resource,
        ));
        evaluated_permissions.readable_objects.insert(cluster.clone(), Arc::clone(&readable_objects));
        Some(readable_objects)
    }

    /// The caller's current permissions; `None` if no rule that affects them has changed since, and no review result has expired.
    pub async fn refresh(&self, searcher: &Searcher) -> Option<Self> {
        let caller = {
            let evaluated_permissions = self.permissions.as_ref()?.lock();
            let CallerPermissions { authorization, caller, is_outdated, .. } = &evaluated_permissions.permissions;
            let is_current = !is_outdated
                && Arc::ptr_eq(&authorization.basis, &searcher.inner.rbac_rules.authorization(caller).basis);
            if is_current
                && (evaluated_permissions.permissions.review_results.is_empty()
                    || self.created_at.elapsed() < RESULT_TTL)
            {
                return None;
            }
            Arc::clone(&evaluated_permissions.permissions.caller)
        };
        Some(searcher.read_permissions(&caller, &self.resource, self.read_kind).await)
    }

    /// True if the caller may see the cluster.
    pub fn may_see(&self, cluster: &ClusterName) -> bool {
        self.permissions
            .as_ref()
            .is_none_or(|evaluated_permissions| evaluated_permissions.lock().permissions.may_see(cluster))
    }

    /// True if both permissions allow the same objects in these clusters.
    pub fn has_same_access(&self, other: &Self, clusters: &[ClusterName]) -> bool {
        clusters.iter().all(|cluster| self.readable_objects(cluster) == other.readable_objects(cluster))
    }
}
