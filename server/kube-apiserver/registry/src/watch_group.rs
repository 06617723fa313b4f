//! Groups of equal watches. The lines that a group sends for consecutive changes are selected and concatenated once.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crowsnest_apimachinery::selector::{FieldSelector, Selector};
use parking_lot::Mutex;

use crate::storage::ResourceKey;

/// The properties that determine the lines of a watch. Watches with equal scopes form a group.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) struct WatchScope {
    pub table: ResourceKey,
    /// Version and name of the representation.
    pub representation: Arc<str>,
    /// Empty for all namespaces.
    pub namespace: String,
    pub labels: Selector,
    pub fields: FieldSelector,
}

/// The groups of all running watches.
#[derive(Debug, Default)]
pub(crate) struct WatchGroups(Mutex<Groups>);

#[derive(Debug, Default)]
struct Groups {
    by_scope: HashMap<Arc<WatchScope>, Arc<Group>>,
    last_number: u64,
}

#[derive(Debug)]
struct Group {
    /// Unique for the lifetime of the server.
    number: u64,
    watches: AtomicUsize,
}

/// Membership of a watch in its group; ends when dropped.
#[derive(Debug)]
pub(crate) struct GroupMember {
    groups: Arc<WatchGroups>,
    scope: Arc<WatchScope>,
    group: Arc<Group>,
}

impl WatchGroups {
    /// Adds a watch to the group of its scope.
    pub(crate) fn join(self: &Arc<Self>, scope: WatchScope) -> GroupMember {
        let mut groups = self.0.lock();
        let existing = groups.by_scope.get_key_value(&scope).map(|(scope, group)| (scope.clone(), group.clone()));
        let (scope, group) = existing.unwrap_or_else(|| {
            groups.last_number += 1;
            let group = Arc::new(Group { number: groups.last_number, watches: AtomicUsize::new(0) });
            let scope = Arc::new(scope);
            groups.by_scope.insert(scope.clone(), group.clone());
            (scope, group)
        });
        group.watches.fetch_add(1, Ordering::Relaxed);
        GroupMember { groups: self.clone(), scope, group }
    }
}

impl GroupMember {
    /// Number of the group.
    pub(crate) fn group_number(&self) -> u64 {
        self.group.number
    }

    /// True if the group has other watches.
    pub(crate) fn has_peers(&self) -> bool {
        self.group.watches.load(Ordering::Relaxed) > 1
    }
}

impl Drop for GroupMember {
    fn drop(&mut self) {
        let mut groups = self.groups.0.lock();
        if self.group.watches.fetch_sub(1, Ordering::Relaxed) == 1 {
            groups.by_scope.remove(&self.scope);
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn scope() -> WatchScope {
        WatchScope {
            table: ResourceKey::new("", "pods"),
            representation: "v1 json".into(),
            namespace: "default".into(),
            labels: Selector::default(),
            fields: FieldSelector::default(),
        }
    }

    #[test]
    fn equal_watches_are_a_group_until_the_last_ends() {
        let groups = Arc::new(WatchGroups::default());
        let one = groups.join(scope());
        assert!(!one.has_peers());
        let other = groups.join(scope());
        assert!(one.has_peers() && other.has_peers());
        assert_eq!(one.group_number(), other.group_number());
        let number = one.group_number();
        drop(one);
        assert!(!other.has_peers());
        drop(other);
        assert!(groups.0.lock().by_scope.is_empty());
        assert_ne!(groups.join(scope()).group_number(), number);
    }

    #[rstest]
    #[case::table(WatchScope { table: ResourceKey::new("apps", "pods"), ..scope() })]
    #[case::representation(WatchScope { representation: "v1 table".into(), ..scope() })]
    #[case::namespace(WatchScope { namespace: String::new(), ..scope() })]
    #[case::labels(WatchScope { labels: Selector::parse("app=web").unwrap(), ..scope() })]
    #[case::fields(WatchScope { fields: FieldSelector::parse("metadata.name=web").unwrap(), ..scope() })]
    fn different_watches_are_in_different_groups(#[case] different: WatchScope) {
        let groups = Arc::new(WatchGroups::default());
        let (one, other) = (groups.join(scope()), groups.join(different));
        assert_ne!(one.group_number(), other.group_number());
        assert!(!one.has_peers() && !other.has_peers());
    }
}
