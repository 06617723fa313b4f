//! Shares the states of collections between replicas: the collecting replica stores its errors, the others read
//! positions and errors.

use super::Claims;
use crowsnest_apimachinery::names::ClusterName;
use crowsnest_store::States;
use crowsnest_store::View;
use crowsnest_store::postgres::PostgresStore;
use crowsnest_store::{CollectionKey, CollectionState, Error};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

/// Polling interval without notifications, and minimum interval between two reads.
const LOOK_EVERY: Duration = Duration::from_secs(1);
const AT_MOST_EVERY: Duration = Duration::from_millis(200);
const NOBODY: &str = "no replica currently collects it";

pub(crate) struct SharedStates {
    pub store: Arc<PostgresStore>,
    pub states: Arc<States>,
    pub claims: Arc<Claims>,
    pub view: watch::Receiver<View>,
    pub heard: Arc<Notify>,
    /// Errors of this replica's collections as stored in the database.
    written: HashMap<CollectionKey, Option<String>>,
    /// Database time up to which the states of other replicas were read; None: not yet.
    read: Option<String>,
    leaderless: BTreeSet<ClusterName>,
}

impl SharedStates {
    pub fn new(
        store: Arc<PostgresStore>,
        states: Arc<States>,
        claims: Arc<Claims>,
        view: watch::Receiver<View>,
        heard: Arc<Notify>,
    ) -> Self {
        let (written, read, leaderless) = (HashMap::new(), None, BTreeSet::new());
        Self { store, states, claims, view, heard, written, read, leaderless }
    }

    /// Runs until stopped; an outage only causes a delay.
    pub async fn run(mut self, stop: CancellationToken) -> Result<(), Error> {
        let mut version = self.states.version();
        loop {
            version.borrow_and_update();
            let done = async {
                self.tell().await?;
                self.hear().await
            };
            if let Err(error) = done.await {
                tracing::debug!(error = error.chain(), "cannot share the state of collections");
            }
            tokio::select! {
                () = stop.cancelled() => return Ok(()),
                () = self.heard.notified() => {}
                changed = version.changed() => if changed.is_err() { return Ok(()) },
                () = tokio::time::sleep(LOOK_EVERY) => {}
            }
            tokio::select! {
                () = stop.cancelled() => return Ok(()),
                () = tokio::time::sleep(AT_MOST_EVERY) => {}
            }
        }
    }

    /// Stores changed errors of the collections that this replica collects.
    async fn tell(&mut self) -> Result<(), Error> {
        let all = self.states.all();
        let mut news = Vec::new();
        for (key, state) in &all {
            let Some(epoch) = self.claims.epoch_of(&key.cluster) else { continue };
            if self.written.get(key) != Some(&state.trouble) {
                news.push((key.clone(), epoch, state.trouble.clone()));
            }
        }
        self.written.retain(|key, _| self.claims.epoch_of(&key.cluster).is_some());
        if !news.is_empty() {
            self.store.note(&news).await?;
            self.written.extend(news.into_iter().map(|(key, _, trouble)| (key, trouble)));
        }
        Ok(())
    }

    /// Reads the states of other replicas' collections.
    async fn hear(&mut self) -> Result<(), Error> {
        let view = self.view.borrow().clone();
        let led = |cluster: &ClusterName| view.is_led(cluster);
        let leaderless: BTreeSet<ClusterName> = view.stored.iter().filter(|cluster| !led(cluster)).cloned().collect();
        if leaderless != self.leaderless {
            // The leaders changed: read all states again.
            self.read = None;
            self.leaderless = leaderless;
        }
        let (found, now) = self.store.collections_since(self.read.as_deref()).await?;
        let _taking = self.claims.taking.lock();
        for (gone, stored) in found {
            if self.claims.epoch_of(&stored.key.cluster).is_some() {
                continue;
            }
            if gone {
                self.states.remove(&stored.key);
                continue;
            }
            let silent = self.leaderless.contains(&stored.key.cluster).then(|| NOBODY.to_owned());
            let trouble = stored.state.trouble.or(silent);
            self.states.update(&stored.key, |state| *state = CollectionState { trouble, ..stored.state });
        }
        self.read = Some(now);
        Ok(())
    }
}
