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

    /// The resources to collect from each of these clusters, each with the union of the namespaces of the interests in it.
    /// Visits each interest once: a large fleet has thousands, most of them in one cluster.
    pub fn by_cluster<'c>(
        &self,
        clusters: impl IntoIterator<Item = &'c ClusterName>,
    ) -> BTreeMap<&'c ClusterName, BTreeMap<Gvr, Namespaces>> {
        let mut by_cluster: BTreeMap<&ClusterName, BTreeMap<Gvr, Namespaces>> =
            clusters.into_iter().map(|cluster| (cluster, BTreeMap::new())).collect();
        for interest in self.inner.declared.lock().interests.values() {
            match &interest.clusters {
                Clusters::All => by_cluster
                    .iter_mut()
                    .filter(|(cluster, _)| interest.clusters.contains(cluster))
                    .for_each(|(_, resources)| add(resources, interest)),
                Clusters::Names(names) => {
                    for name in names {
                        if let Some(resources) = by_cluster.get_mut(name) {
                            add(resources, interest);
                        }
                    }
                }
            }
        }
        by_cluster
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

    /// Counter of changes. After an increment, receivers read [`Interests::by_cluster`].
    pub fn version(&self) -> watch::Receiver<u64> {
        self.inner.version.subscribe()
    }
}

/// Adds an interest's namespaces to those of its resource.
fn add(resources: &mut BTreeMap<Gvr, Namespaces>, interest: &Interest) {
    let namespaces = match resources.remove(&interest.resource) {
        Some(others) => others.union(&interest.namespaces),
        None => interest.namespaces.clone(),
    };
    resources.insert(interest.resource.clone(), namespaces);
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
        let (control_plane, pods) = (ClusterName::control_plane(), Gvr::new("", "v1", "pods"));
        let by_resource = |cluster| interests.by_cluster([cluster]).remove(cluster).unwrap();
        let declare = |namespaces, reason| {
            interests.declare(Interest { clusters: Clusters::All, resource: pods.clone(), namespaces, reason })
        };
        let narrow = declare(Namespaces::Names(BTreeSet::from(["a".to_owned()])), InterestReason::Search);
        let other = declare(Namespaces::Names(BTreeSet::from(["b".to_owned()])), InterestReason::Authorization);
        let both = by_resource(&cluster);
        assert_eq!(both[&pods], Namespaces::Names(BTreeSet::from(["a".to_owned(), "b".to_owned()])));
        let wide = declare(Namespaces::All, InterestReason::Controller("status"));
        assert_eq!(by_resource(&cluster)[&pods], Namespaces::All);
        assert!(by_resource(&control_plane).is_empty());
        drop((narrow, wide));
        assert_eq!(by_resource(&cluster)[&pods], Namespaces::Names(BTreeSet::from(["b".to_owned()])));
        drop(other);
        assert!(by_resource(&cluster).is_empty());
    }

    #[test]
    fn clusters_have_the_interests_that_name_them_and_members_those_in_all() {
        let interests = Interests::default();
        let cluster = |name| ClusterName::parse(name).unwrap();
        let (first, second, control_plane) = (cluster("member1"), cluster("member2"), ClusterName::control_plane());
        let declare = |clusters, resource| {
            let reason = InterestReason::Search;
            let resource = Gvr::new("", "v1", resource);
            interests.declare(Interest { clusters, resource, namespaces: Namespaces::All, reason })
        };
        let _guards = [
            declare(Clusters::All, "pods"),
            declare(Clusters::one(first.clone()), "secrets"),
            declare(Clusters::Names([first.clone(), control_plane.clone()].into()), "nodes"),
            declare(Clusters::one(cluster("another")), "services"),
        ];
        let by_cluster = interests.by_cluster([&first, &second, &control_plane]);
        let resources = |cluster| by_cluster[cluster].keys().map(|gvr| &*gvr.resource).collect::<Vec<_>>();
        assert_eq!(resources(&first), ["nodes", "pods", "secrets"]);
        assert_eq!(resources(&second), ["pods"]);
        assert_eq!(resources(&control_plane), ["nodes"]);
    }
}
