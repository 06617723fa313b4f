//! Cache of the documents of a segment that a caller may read, with the rules on which the decisions are based.
//!
//! Written and read by searches. When the caller's grants in a cluster change, an entry remains valid for all other
//! clusters.

use super::permitted::PermittedDocs;
use crate::authorization::{CallerPermissions, DecisionBasis, RbacRules};
use crate::document::columns::Facet;
use crate::tantivy::segments::SegmentDataId;
use crowsnest_apimachinery::names::ClusterName;
use crowsnest_apimachinery::user::UserInfo;
use moka::policy::EvictionPolicy;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

/// Limit on the memory of all entries.
const MAX_BYTES: u64 = 32 << 20;
/// Idle time after which an entry is evicted.
const IDLE_TIMEOUT: Duration = Duration::from_secs(600);

/// Caller and segment.
type Key = (Arc<UserInfo>, SegmentDataId);

#[derive(Clone)]
struct Entry {
    basis: DecisionBasis,
    permitted: Arc<PermittedDocs>,
}

/// The last decision about a segment for a caller.
#[derive(Debug)]
pub struct CachedPermission {
    pub permitted: Arc<PermittedDocs>,
    /// Clusters whose rules may have changed for the caller since.
    pub changed: BTreeSet<ClusterName>,
}

/// Cache of permitted documents by caller and segment.
pub struct PermittedCache(moka::sync::Cache<Key, Entry>);

impl Default for PermittedCache {
    fn default() -> Self {
        let size = |_: &Key, entry: &Entry| u32::try_from(256 + entry.permitted.bytes()).unwrap_or(u32::MAX);
        let cache = moka::sync::Cache::builder().max_capacity(MAX_BYTES).weigher(size);
        Self(cache.eviction_policy(EvictionPolicy::lru()).time_to_idle(IDLE_TIMEOUT).build())
    }
}

impl PermittedCache {
    pub fn get(&self, permissions: &CallerPermissions, segment: SegmentDataId) -> Option<CachedPermission> {
        let Entry { basis, permitted } = self.0.get(&(Arc::clone(permissions.caller()), segment))?;
        Some(CachedPermission { permitted, changed: permissions.changed_from(&basis)? })
    }

    /// Stores a decision, unless the rules changed while it was made.
    pub fn insert(&self, permissions: &CallerPermissions, segment: SegmentDataId, permitted: &Arc<PermittedDocs>) {
        if let Some(basis) = permissions.basis() {
            let entry = Entry { basis, permitted: Arc::clone(permitted) };
            self.0.insert((Arc::clone(permissions.caller()), segment), entry);
        }
    }

    /// Evicts merged segments. Returns the callers whose entries were valid, with the facets that were counted.
    pub fn evict(
        &self,
        rbac_rules: &Arc<RbacRules>,
        segments: &HashSet<SegmentDataId>,
    ) -> Vec<(CallerPermissions, Vec<Facet>)> {
        let mut callers: HashMap<Arc<UserInfo>, (Vec<DecisionBasis>, BTreeSet<Facet>)> = HashMap::new();
        for (key, Entry { basis, permitted }) in self.0.iter().filter(|(key, _)| segments.contains(&key.1)) {
            let (bases, facets) = callers.entry(Arc::clone(&key.0)).or_default();
            bases.push(basis);
            facets.extend(permitted.facets());
            self.0.invalidate(&*key);
        }
        let with_valid_entry = |(caller, (bases, facets)): (Arc<UserInfo>, (Vec<DecisionBasis>, BTreeSet<Facet>))| {
            let permissions = rbac_rules.for_caller(&caller);
            let is_unchanged = |basis| permissions.changed_from(basis).is_some_and(|changed| changed.is_empty());
            bases.iter().any(is_unchanged).then(|| (permissions, facets.into_iter().collect()))
        };
        callers.into_iter().filter_map(with_valid_entry).collect()
    }
}
