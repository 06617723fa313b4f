//! Indexes changes by topic, so that each of thousands of followers wakes only for its own changes.
//!
//! The tail updates the index together with its window, under the same lock. The index contains only topics that have
//! followers.

use crate::Gone;
use crate::record::{Change, Seq};
use crowsnest_apimachinery::names::Gvr;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use tokio::sync::watch;

/// Objects of a resource, optionally limited to a namespace and a name.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Topic {
    pub resource: Gvr,
    pub namespace: Option<Arc<str>>,
    pub name: Option<Arc<str>>,
}

/// The namespace and name of a topic, without the resource.
type TopicKey = (Option<Arc<str>>, Option<Arc<str>>);

#[derive(Debug, Default)]
pub(super) struct Topics {
    by_resource: HashMap<Gvr, HashMap<TopicKey, FollowedTopic>>,
}

#[derive(Debug, Default)]
struct FollowedTopic {
    changes: VecDeque<Arc<Change>>,
    /// All changes of the topic after this seq are in `changes`. It may be older than the window's, because it advances
    /// only when a change of the topic leaves the window.
    since: Seq,
    latest: watch::Sender<Seq>,
    followers: usize,
}

impl Topic {
    pub(super) fn matches(&self, change: &Change) -> bool {
        let key = &change.object.record.key;
        *key.resource() == self.resource
            && self.namespace.as_ref().is_none_or(|namespace| *namespace == key.namespace)
            && self.name.as_ref().is_none_or(|name| *name == key.name)
    }

    fn topic_key(&self) -> TopicKey {
        (self.namespace.clone(), self.name.clone())
    }
}

impl Topics {
    /// Adds a follower of a topic. `window` contains all changes after `since`.
    pub fn follow<'w>(
        &mut self,
        topic: &Topic,
        since: Seq,
        window: impl Iterator<Item = &'w Arc<Change>>,
    ) -> watch::Receiver<Seq> {
        let followed =
            self.by_resource.entry(topic.resource.clone()).or_default().entry(topic.topic_key()).or_default();
        if followed.followers == 0 {
            followed.since = since;
            followed.changes = window.filter(|change| topic.matches(change)).cloned().collect();
        }
        followed.followers += 1;
        followed.latest.subscribe()
    }

    pub fn unfollow(&mut self, topic: &Topic) {
        let Some(by_key) = self.by_resource.get_mut(&topic.resource) else { return };
        let topic_key = topic.topic_key();
        if let Some(followed) = by_key.get_mut(&topic_key) {
            followed.followers -= 1;
            if followed.followers == 0 {
                by_key.remove(&topic_key);
            }
        }
        if by_key.is_empty() {
            self.by_resource.remove(&topic.resource);
        }
    }

    /// The changes of a topic after `since`.
    pub fn changes_after(&self, topic: &Topic, since: Seq, limit: usize) -> Result<Vec<Arc<Change>>, Gone> {
        let followed = self.by_resource.get(&topic.resource).and_then(|by_key| by_key.get(&topic.topic_key()));
        let Some(followed) = followed else { return Ok(Vec::new()) };
        if since < followed.since {
            return Err(Gone { oldest: followed.since });
        }
        let start = followed.changes.partition_point(|change| change.seq <= since);
        Ok(followed.changes.iter().skip(start).take(limit).cloned().collect())
    }

    /// Adds the newest change.
    pub fn push(&mut self, change: &Arc<Change>) {
        self.for_each_topic_of(change, |followed| {
            followed.changes.push_back(Arc::clone(change));
            followed.latest.send_replace(change.seq);
        });
    }

    /// Removes the oldest change from the window.
    pub fn pop(&mut self, change: &Change) {
        self.for_each_topic_of(change, |followed| {
            followed.since = change.seq;
            while followed.changes.front().is_some_and(|oldest| oldest.seq <= change.seq) {
                followed.changes.pop_front();
            }
        });
    }

    /// Clears the window; followers get [`Gone`] on their next read.
    pub fn clear(&mut self, latest: Seq) {
        for followed in self.by_resource.values_mut().flat_map(HashMap::values_mut) {
            followed.changes.clear();
            followed.since = latest;
            followed.latest.send_replace(latest);
        }
    }

    fn for_each_topic_of(&mut self, change: &Change, mut update: impl FnMut(&mut FollowedTopic)) {
        let key = &change.object.record.key;
        let Some(by_key) = self.by_resource.get_mut(key.resource()) else { return };
        for namespace in [None, Some(&key.namespace)] {
            for name in [None, Some(&key.name)] {
                if let Some(followed) = by_key.get_mut(&(namespace.cloned(), name.cloned())) {
                    update(followed);
                }
            }
        }
    }
}
