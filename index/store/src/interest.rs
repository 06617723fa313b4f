//! Interests of readers in resources. A resource is collected while at least one interest in it exists.

use crowsnest_apimachinery::names::{ClusterName, Gvr};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use tokio::sync::watch;

/// The clusters of an interest. `All` follows the fleet; the control plane is included only by name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Clusters {
    All,
    Names(BTreeSet<ClusterName>),
}

impl Clusters {
    pub fn one(name: ClusterName) -> Self {
        Self::Names(BTreeSet::from([name]))
    }

    pub fn contains(&self, name: &ClusterName) -> bool {
        match self {
            Self::All => !name.is_control_plane(),
            Self::Names(names) => names.contains(name),
        }
    }
}

/// The namespaces of an interest in a namespaced resource.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Namespaces {
    All,
    Names(BTreeSet<String>),
}

impl Namespaces {
    pub fn contains(&self, namespace: &str) -> bool {
        match self {
            Self::All => true,
            Self::Names(names) => names.contains(namespace),
        }
    }

    /// The union of both.
    pub fn union(self, other: &Self) -> Self {
        match (self, other) {
            (Self::Names(mut a), Self::Names(b)) => {
                a.extend(b.iter().cloned());
                Self::Names(a)
            }
            _ => Self::All,
        }
    }
}

/// Origin of an interest, shown to operators.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum InterestReason {
    /// A ResourceRegistry of this name.
    ResourceRegistry(String),
    /// Search, which collects every listable resource of each member.
    Search,
    /// A controller of this name.
    Controller(&'static str),
    /// RBAC objects, from which permissions are evaluated.
    Authorization,
    /// Another replica with this name.
    Replica(String),
    Other(String),
}

impl fmt::Display for InterestReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ResourceRegistry(name) => write!(f, "ResourceRegistry {name}"),
            Self::Search => f.write_str("search"),
            Self::Controller(name) => write!(f, "controller {name}"),
            Self::Authorization => f.write_str("authorization"),
            Self::Replica(name) => write!(f, "replica {name}"),
            Self::Other(reason) => f.write_str(reason),
        }
    }
}

/// A reader's need for a resource: it is collected as long as the interest is declared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interest {
    pub clusters: Clusters,
    pub resource: Gvr,
    pub namespaces: Namespaces,
    pub reason: InterestReason,
}

/// The union of all interests in a resource of a cluster, which one collector serves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MergedInterest {
    pub namespaces: Namespaces,
    pub reasons: BTreeSet<InterestReason>,
}

/// The set of declared interests. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Interests {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    declared: Mutex<InterestSet>,
    version: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct InterestSet {
    next: u64,
    interests: BTreeMap<u64, Interest>,
}

impl InterestSet {
    fn add(&mut self, interest: Interest) -> u64 {
        self.next += 1;
        self.interests.insert(self.next, interest);
        self.next
    }
}

impl Default for Interests {
    fn default() -> Self {
        Self { inner: Arc::new(Inner { declared: Mutex::default(), version: watch::Sender::new(0) }) }
    }
}

impl Interests {
    /// Declares an interest until the guard is dropped.
    #[must_use = "the interest ends when the guard is dropped"]
    pub fn declare(&self, interest: Interest) -> InterestGuard {
        let id = self.inner.declared.lock().add(interest);
        self.notify();
        self.guard(id)
    }

    /// Declares several interests atomically.
    #[must_use = "the interests end when the guards are dropped"]
    pub fn declare_all(&self, interests: impl IntoIterator<Item = Interest>) -> Vec<InterestGuard> {
        let ids: Vec<u64> = {
            let mut declared = self.inner.declared.lock();
            interests.into_iter().map(|interest| declared.add(interest)).collect()
        };
        if !ids.is_empty() {
            self.notify();
        }
        ids.into_iter().map(|id| self.guard(id)).collect()
    }

    fn guard(&self, id: u64) -> InterestGuard {
        InterestGuard { id, inner: Arc::clone(&self.inner) }
    }

    /// The resources to collect from this cluster, each with the union of the interests in it.
    pub fn by_resource(&self, cluster: &ClusterName) -> BTreeMap<Gvr, MergedInterest> {
        let declared = self.inner.declared.lock();
        let mut merged: BTreeMap<Gvr, MergedInterest> = BTreeMap::new();
        for interest in declared.interests.values().filter(|interest| interest.clusters.contains(cluster)) {
            match merged.get_mut(&interest.resource) {
                Some(entry) => {
                    let before = std::mem::replace(&mut entry.namespaces, Namespaces::All);
                    entry.namespaces = before.union(&interest.namespaces);
                    entry.reasons.insert(interest.reason.clone());
                }
                None => {
                    let entry = MergedInterest {
                        namespaces: interest.namespaces.clone(),
                        reasons: BTreeSet::from([interest.reason.clone()]),
                    };
                    merged.insert(interest.resource.clone(), entry);
                }
            }
        }
        merged
    }

    /// All declared interests.
    pub fn all(&self) -> Vec<Interest> {
        self.inner.declared.lock().interests.values().cloned().collect()
    }

    /// Wakes receivers of [`Interests::version`]. Also called when another condition for collecting has changed, such as
    /// the resources that a cluster serves.
    pub fn notify(&self) {
        self.inner.version.send_modify(|version| *version += 1);
    }

    /// Counter of changes. After an increment, receivers read [`Interests::by_resource`].
    pub fn version(&self) -> watch::Receiver<u64> {
        self.inner.version.subscribe()
    }
}

/// Keeps an interest declared until dropped.
#[derive(Debug)]
pub struct InterestGuard {
    id: u64,
    inner: Arc<Inner>,
}

impl Drop for InterestGuard {
    fn drop(&mut self) {
        self.inner.declared.lock().interests.remove(&self.id);
        self.inner.version.send_modify(|version| *version += 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interest_ends_when_its_guard_is_dropped() {
        let interests = Interests::default();
        let cluster = ClusterName::parse("member1").unwrap();
        let pods = Gvr::new("", "v1", "pods");
        let declare = |namespaces, reason| {
            interests.declare(Interest { clusters: Clusters::All, resource: pods.clone(), namespaces, reason })
        };
        let narrow = declare(Namespaces::Names(BTreeSet::from(["a".to_owned()])), InterestReason::Search);
        let other = declare(Namespaces::Names(BTreeSet::from(["b".to_owned()])), InterestReason::Authorization);
        let both = interests.by_resource(&cluster);
        assert_eq!(both[&pods].namespaces, Namespaces::Names(BTreeSet::from(["a".to_owned(), "b".to_owned()])));
        assert_eq!(both[&pods].reasons.len(), 2);
        let wide = declare(Namespaces::All, InterestReason::Controller("status"));
        assert_eq!(interests.by_resource(&cluster)[&pods].namespaces, Namespaces::All);
        assert!(interests.by_resource(&ClusterName::control_plane()).is_empty());
        drop((narrow, wide));
        assert_eq!(interests.by_resource(&cluster)[&pods].reasons, BTreeSet::from([InterestReason::Authorization]));
        drop(other);
        assert!(interests.by_resource(&cluster).is_empty());
    }
}
