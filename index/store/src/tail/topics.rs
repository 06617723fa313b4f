//! Changes by what they are of, for followers of a part: of thousands of them, each wakes for its own changes only.
//!
//! Written by the tail beside its window, under the same lock; holds what of the window somebody follows by topic.

use crate::Gone;
use crate::record::{Change, Seq};
use crowsnest_apimachinery::names::Gvr;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use tokio::sync::watch;

/// Objects of a resource: all of them, those of a namespace, those of a name.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Topic {
    pub resource: Gvr,
    pub namespace: Option<Arc<str>>,
    pub name: Option<Arc<str>>,
}

/// Part of a topic that is the same for all resources.
type Place = (Option<Arc<str>>, Option<Arc<str>>);

#[derive(Debug, Default)]
pub(super) struct Topics {
    of: HashMap<Gvr, HashMap<Place, Followed>>,
}

#[derive(Debug, Default)]
struct Followed {
    changes: VecDeque<Arc<Change>>,
    /// None of them is missing after this, however much else left the window.
    since: Seq,
    latest: watch::Sender<Seq>,
    followers: usize,
}

impl Topic {
    pub(super) fn holds(&self, change: &Change) -> bool {
        let key = &change.object.record.key;
        *key.resource() == self.resource
            && self.namespace.as_ref().is_none_or(|namespace| *namespace == key.namespace)
            && self.name.as_ref().is_none_or(|name| *name == key.name)
    }

    fn place(&self) -> Place {
        (self.namespace.clone(), self.name.clone())
    }
}

impl Topics {
    /// One more follows it. It may begin with the window, which is whole after `since`.
    pub fn join<'w>(
        &mut self,
        topic: &Topic,
        since: Seq,
        window: impl Iterator<Item = &'w Arc<Change>>,
    ) -> watch::Receiver<Seq> {
        let followed = self.of.entry(topic.resource.clone()).or_default().entry(topic.place()).or_default();
        if followed.followers == 0 {
            followed.since = since;
            followed.changes = window.filter(|change| topic.holds(change)).cloned().collect();
        }
        followed.followers += 1;
        followed.latest.subscribe()
    }

    pub fn leave(&mut self, topic: &Topic) {
        let Some(places) = self.of.get_mut(&topic.resource) else { return };
        let place = topic.place();
        if let Some(followed) = places.get_mut(&place) {
            followed.followers -= 1;
            if followed.followers == 0 {
                places.remove(&place);
            }
        }
        if places.is_empty() {
            self.of.remove(&topic.resource);
        }
    }

    /// Of a topic, what came after `since`.
    pub fn after(&self, topic: &Topic, since: Seq, most: usize) -> Result<Vec<Arc<Change>>, Gone> {
        let followed = self.of.get(&topic.resource).and_then(|places| places.get(&topic.place()));
        let Some(followed) = followed else { return Ok(Vec::new()) };
        if since < followed.since {
            return Err(Gone { oldest: followed.since });
        }
        let start = followed.changes.partition_point(|change| change.seq <= since);
        Ok(followed.changes.iter().skip(start).take(most).cloned().collect())
    }

    /// The newest change.
    pub fn push(&mut self, change: &Arc<Change>) {
        self.each(change, |followed| {
            followed.changes.push_back(Arc::clone(change));
            followed.latest.send_replace(change.seq);
        });
    }

    /// The oldest change left the window.
    pub fn pop(&mut self, change: &Change) {
        self.each(change, |followed| {
            followed.since = change.seq;
            while followed.changes.front().is_some_and(|oldest| oldest.seq <= change.seq) {
                followed.changes.pop_front();
            }
        });
    }

    /// Everything left the window; whoever follows finds out.
    pub fn clear(&mut self, latest: Seq) {
        for followed in self.of.values_mut().flat_map(HashMap::values_mut) {
            followed.changes.clear();
            followed.since = latest;
            followed.latest.send_replace(latest);
        }
    }

    fn each(&mut self, change: &Change, mut of: impl FnMut(&mut Followed)) {
        let key = &change.object.record.key;
        let Some(places) = self.of.get_mut(key.resource()) else { return };
        for namespace in [None, Some(&key.namespace)] {
            for name in [None, Some(&key.name)] {
                if let Some(followed) = places.get_mut(&(namespace.cloned(), name.cloned())) {
                    of(followed);
                }
            }
        }
    }
}
