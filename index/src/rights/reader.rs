//! What one caller may read of a resource, object by object: for those who page through lists and follow changes
//! (invariant I9), and who ask for one by its name.

use super::CallerRights;
use super::reviews::KEPT;
use crate::{Index, RecordKey};
use crowsnest_api::names::{ClusterName, Gvr};
use crowsnest_api::rbac::{Extent, Reading};
use crowsnest_api::user::UserInfo;
use crowsnest_fleet::Member;
use parking_lot::Mutex;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Clusters that decide themselves are waited for half of it.
const WITHIN: Duration = Duration::from_secs(2);

/// A caller's rights to one resource, as they were when this was made. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Reader {
    resource: Gvr,
    reading: Reading,
    made: Instant,
    /// None: everything.
    rights: Option<Arc<Mutex<Known>>>,
}

#[derive(Debug)]
struct Known {
    rights: CallerRights,
    extents: HashMap<ClusterName, Arc<Extent>>,
}

impl Index {
    /// What a caller may read of a resource in such a way.
    pub async fn reader(&self, caller: &UserInfo, resource: &Gvr, reading: Reading) -> Reader {
        let made = Instant::now();
        let rights = self.rights_of(caller, made + WITHIN).await;
        let known = || Arc::new(Mutex::new(Known { rights, extents: HashMap::new() }));
        Reader { resource: resource.clone(), reading, made, rights: (!caller.is_master()).then(known) }
    }

    /// Whether the rules of a member are about a caller of the control plane: whether they may be asked there in the caller's
    /// name for anything that the control plane was not asked about (see the module `reach`).
    pub fn counts_in(&self, caller: &UserInfo, cluster: &ClusterName) -> bool {
        self.inner.rights.counts_in(caller, cluster)
    }

    /// Whether a caller may know that a cluster is there.
    pub async fn knows_of(&self, caller: &UserInfo, cluster: &ClusterName) -> bool {
        self.rights_of(caller, Instant::now() + WITHIN).await.knows_of(cluster)
    }

    /// The members that a caller may know of.
    pub async fn members_known_to(&self, caller: &UserInfo) -> Vec<Arc<Member>> {
        let rights = self.rights_of(caller, Instant::now() + WITHIN).await;
        let mut members = self.fleet().members();
        members.retain(|member| rights.knows_of(member.name()));
        members
    }
}

impl Reader {
    pub fn may_read(&self, key: &RecordKey) -> bool {
        self.extent(key.cluster()).is_none_or(|extent| extent.allows(&key.namespace, &key.name))
    }

    /// Of a cluster nothing outside of these namespaces may be read; none: there is no such limit.
    pub fn limit(&self, cluster: &ClusterName) -> Option<BTreeSet<String>> {
        self.extent(cluster)?.limit()
    }

    /// What may be read of the cluster; none: everything, without a look at any rule.
    pub fn extent(&self, cluster: &ClusterName) -> Option<Arc<Extent>> {
        let mut known = self.rights.as_ref()?.lock();
        if let Some(extent) = known.extents.get(cluster) {
            return Some(Arc::clone(extent));
        }
        let extent =
            Arc::new(known.rights.extent(self.reading, cluster, &self.resource.group, &self.resource.resource));
        known.extents.insert(cluster.clone(), Arc::clone(&extent));
        Some(extent)
    }

    /// The same caller's rights of now; none while no rule changed that is about them.
    pub async fn renewed(&self, index: &Index) -> Option<Self> {
        let caller = {
            let known = self.rights.as_ref()?.lock();
            let CallerRights { standing, caller, outdated, .. } = &known.rights;
            let same = !outdated && Arc::ptr_eq(&standing.basis, &index.inner.rights.standing(caller).basis);
            if same && (known.rights.reviewed.is_empty() || self.made.elapsed() < KEPT) {
                return None;
            }
            Arc::clone(&known.rights.caller)
        };
        Some(index.reader(&caller, &self.resource, self.reading).await)
    }

    /// Whether the caller may know that a cluster is there.
    pub fn knows_of(&self, cluster: &ClusterName) -> bool {
        self.rights.as_ref().is_none_or(|known| known.lock().rights.knows_of(cluster))
    }

    /// Whether the same may be read of these clusters.
    pub fn allows_the_same(&self, other: &Self, clusters: &[ClusterName]) -> bool {
        clusters.iter().all(|cluster| self.extent(cluster) == other.extent(cluster))
    }
}
