//! Keeps [`RbacRules`] equal to the RBAC objects of all clusters in the store.

use super::{GROUP, RESOURCES, RbacRules};
use crowsnest_store::record::ChangeKind;
use crowsnest_store::tail::Tail;
use crowsnest_store::{CollectionKey, CollectionStates, Error, OUTAGE_RETRY, Object, Record, Scan, Store};
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

/// Number of records read at once.
const READ_BATCH: usize = 500;

/// The task that follows the RBAC objects of all clusters.
pub(crate) struct RulesFollower {
    pub rbac_rules: Arc<RbacRules>,
    pub store: Arc<dyn Store>,
    pub tail: Arc<Tail>,
    pub states: Arc<CollectionStates>,
    /// True if the follower retries after an outage of the store; the rules are then applied late.
    pub tolerates_outages: bool,
}

impl RulesFollower {
    pub async fn run(self, stop: CancellationToken) -> Result<(), Error> {
        let mut tail = self.tail.follow(self.tail.latest());
        self.load(&stop).await?;
        loop {
            self.rbac_rules.applied_seq.send_replace(tail.since());
            let changes = tokio::select! {
                () = stop.cancelled() => return Ok(()),
                changes = tail.next() => changes,
            };
            match changes {
                None => return Ok(()),
                Some(Ok(changes)) => {
                    for change in changes.iter().filter(|change| is_rbac(&change.object.record)) {
                        self.rbac_rules.apply(&change.object.record, &change.object.body, change.kind);
                    }
                }
                Some(Err(_)) => {
                    tail.skip_to(self.tail.latest());
                    self.load(&stop).await?;
                }
            }
        }
    }

    /// Reads the rules of all clusters again.
    async fn load(&self, stop: &CancellationToken) -> Result<(), Error> {
        loop {
            // The previous rules apply until the new ones are complete.
            let fresh = RbacRules::default();
            match self.load_once(&fresh).await {
                Ok(()) => {
                    self.rbac_rules.replace(fresh);
                    return Ok(());
                }
                Err(error) if self.tolerates_outages && error.is_outage() => {
                    tracing::debug!(error = error.chain(), "cannot read RBAC objects; retrying");
                }
                other => return other,
            }
            if stop.run_until_cancelled(tokio::time::sleep(OUTAGE_RETRY)).await.is_none() {
                return Ok(());
            }
        }
    }

    async fn load_once(&self, rbac_rules: &RbacRules) -> Result<(), Error> {
        for (key, _) in self.states.all() {
            let gvr = &key.resource;
            if &*gvr.group != GROUP || !RESOURCES.contains(&&*gvr.resource) {
                continue;
            }
            for object in self.objects(key).await? {
                rbac_rules.apply(&object.record, &object.body, ChangeKind::Added);
            }
        }
        Ok(())
    }

    /// All objects of a collection.
    async fn objects(&self, collection: CollectionKey) -> Result<Vec<Object>, Error> {
        let mut scan = Scan { collection, namespaces: None, after: None, labels: None };
        let mut objects = Vec::new();
        loop {
            let (records, next) = self.store.records(&scan, &|_| Ok(true), READ_BATCH).await?;
            objects.extend(self.store.bodies(records).await?);
            match next {
                None => return Ok(objects),
                next => scan.after = next,
            }
        }
    }
}

fn is_rbac(record: &Record) -> bool {
    let gvr = record.key.resource();
    &*gvr.group == GROUP && RESOURCES.contains(&&*gvr.resource)
}
