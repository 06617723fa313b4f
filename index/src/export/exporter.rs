//! Keeps an engine's indices of Karmada's layout equal to the selected objects of the store.

use super::document::{alias_of, document};
use super::error::{ExportError, ExportFailure};
use super::progress::{ExportProgress, ExportState};
use super::selection::Selection;
use super::source::{ObjectChange, Source};
use super::state::{ExportCheckpoint, Memory};
use super::version::{DocumentVersion, Epochs};
use super::{Engines, ExportOptions, indices};
use bytes::Bytes;
use crowsnest_component_base::retry::jitter;
use crowsnest_search::opensearch::bulk::{DocumentChange, Marker};
use crowsnest_search::opensearch::client::Client;
use crowsnest_search::opensearch::writer::progress::DeadLetters;
pub use crowsnest_search::opensearch::writer::send::{Account, Round, Sender};
use crowsnest_search::opensearch::writer::{DeadLetter, JITTER};
use crowsnest_store::States;
use crowsnest_store::{CollectionKey, Error};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Maximum number of dead letters kept.
const DEAD_LETTERS: usize = 100;

/// Keeps the indices of one engine equal to the selected objects. Created by [`crate::Index::exporter`].
pub struct Exporter {
    /// Name of the engine in the saved states.
    pub(super) name: String,
    pub(super) destination: String,
    pub(super) client: Client,
    pub(super) source: Source,
    pub(super) states: Arc<States>,
    pub(super) memory: Memory,
    pub(super) engines: Arc<Engines>,
    pub(super) selection: watch::Receiver<Arc<Selection>>,
    pub(super) options: ExportOptions,
    pub(super) progress: watch::Sender<ExportProgress>,
    pub(super) dead_letters: Mutex<DeadLetters>,
}

/// One connection to an engine with one selection.
pub(super) struct Session {
    pub selection: Arc<Selection>,
    pub epochs: Epochs,
    pub checkpoint: ExportCheckpoint,
    /// Selected collections that were incomplete in the store when their index was compared.
    pub incomplete: BTreeSet<CollectionKey>,
    saved_at: Instant,
    is_saved: bool,
}

/// Why following an engine ended without an error.
enum End {
    /// The selection or the engine changed.
    Again,
    Cleaned,
}

impl Exporter {
    pub(super) fn letters() -> Mutex<DeadLetters> {
        Mutex::new(DeadLetters::new(DEAD_LETTERS))
    }

    /// State and counters; `latest` is the store's current newest change.
    pub fn progress(&self) -> ExportProgress {
        ExportProgress { latest: self.source.latest(), ..self.progress.borrow().clone() }
    }

    /// Notifies of changes of the progress; `latest` is the value at the time of the change.
    pub fn watch(&self) -> watch::Receiver<ExportProgress> {
        self.progress.subscribe()
    }

    /// Exports until stopped, or until nothing is selected and the engine contains no documents of Crowsnest.
    /// Errors are retried and reported in the progress.
    pub async fn run(&self, stop: CancellationToken) {
        let mut failures = 0;
        let mut seen = None;
        while let Some(end) = stop.run_until_cancelled(self.session(seen.take(), &mut failures)).await {
            let error = match end {
                Ok(End::Again) => continue,
                Ok(End::Cleaned) => {
                    self.change(|progress| progress.state = ExportState::Cleaned);
                    break;
                }
                Err(ExportError::Ahead { epoch }) => {
                    seen = Some(epoch);
                    continue;
                }
                Err(ExportError::Pruned) => {
                    seen = Some(0);
                    continue;
                }
                Err(error) => error,
            };
            let (trouble, reason) = (error.trouble(), error.chain());
            let mut is_new = false;
            self.change(|progress| {
                let state = ExportState::Waiting { trouble, reason: reason.clone() };
                is_new = progress.state != state;
                progress.state = state;
                progress.connected &= !matches!(
                    trouble,
                    ExportFailure::Unreachable
                        | ExportFailure::Credentials
                        | ExportFailure::Certificate
                        | ExportFailure::Unsupported
                );
            });
            if is_new {
                tracing::warn!(reason, "cannot export to the search engine of a ResourceRegistry");
            }
            failures += 1;
            let delay = self.options.backoff.delay(if error.is_retried() { failures } else { u32::MAX });
            stop.run_until_cancelled(tokio::time::sleep(jitter(delay, JITTER, rand::random()))).await;
        }
        self.engines.release(&self.name);
    }

    /// `compare_above`: compare everything with an epoch above this one, regardless of the saved state.
    async fn session(&self, compare_above: Option<u64>, failures: &mut u32) -> Result<End, ExportError> {
        let found = self.client.detect().await?;
        let engine = indices::identity(&self.client).await?;
        self.change(|progress| {
            progress.connected = true;
            progress.engine = found.to_string();
        });
        let mut selection = self.selection.clone();
        let selected = Arc::clone(&selection.borrow_and_update());
        if !self.engines.claim(&self.memory, &self.name, &engine, !selected.is_empty()).await? {
            // Another configuration names this engine and cleans it up.
            self.memory.forget(&self.name).await?;
            return Ok(End::Cleaned);
        }
        let known = if compare_above.is_none() { self.resumable(&engine, &selected).await? } else { None };
        let mut session = match known {
            Some(session) => session,
            None => self.compare_all(engine, selected, compare_above.unwrap_or(0), failures).await?,
        };
        if session.selection.is_empty() {
            self.memory.forget(&self.name).await?;
            return Ok(End::Cleaned);
        }
        self.follow(&mut session, &mut selection, failures).await
    }

    /// The previous session, if it can continue: same selection, engine and indices, and no pruned deletions.
    async fn resumable(&self, engine: &str, selection: &Arc<Selection>) -> Result<Option<Session>, ExportError> {
        let Some(checkpoint) = self.memory.of(&self.name).await? else { return Ok(None) };
        let of_now = checkpoint.engine == engine
            && checkpoint.selection == selection.digest()
            && checkpoint.position <= self.source.latest()
            && checkpoint.indices.keys().cloned().collect::<BTreeSet<_>>() == selection.indices()
            && self.source.store.pruned().await?.0 <= checkpoint.position;
        // Collections that were incomplete may be complete now.
        let is_complete = |key: &CollectionKey| self.states.get(key).is_some_and(|state| state.complete);
        if !of_now || selection.is_empty() || !selection.collections().all(is_complete) {
            return Ok(None);
        }
        for (index, uuid) in &checkpoint.indices {
            if indices::ensure(&self.client, index).await? != *uuid {
                return Ok(None);
            }
        }
        let epochs = Epochs { first: checkpoint.epoch, last: checkpoint.epoch };
        Ok(Some(Session::new(Arc::clone(selection), epochs, checkpoint)))
    }

    /// Compares all indices that are selected, or that Crowsnest has written to, with the store.
    async fn compare_all(
        &self,
        engine: String,
        selection: Arc<Selection>,
        seen: u64,
        failures: &mut u32,
    ) -> Result<Session, ExportError> {
        let epochs = self.memory.next_epoch(seen).await?;
        // Read before the first index: changes after it are followed.
        let position = self.source.latest();
        let (selected, written) = (selection.indices(), indices::written(&self.client).await?);
        let checkpoint = ExportCheckpoint {
            destination: self.destination.clone(),
            engine,
            selection: selection.digest(),
            epoch: epochs.last,
            position,
            indices: BTreeMap::new(),
            abandoned_at: None,
        };
        // Saved before any write, so that the export can be cleaned up after a crash even if it is no longer
        // selected.
        if !selection.is_empty() {
            let unsettled = ExportCheckpoint { selection: String::new(), ..checkpoint.clone() };
            self.memory.keep(&self.name, &unsettled).await?;
        }
        let mut session = Session::new(selection, epochs, checkpoint);
        for index in selected.union(&written) {
            let uuid = self.compare(&mut session, index, failures).await?;
            if selected.contains(index) {
                session.checkpoint.indices.insert(index.clone(), uuid);
            } else if !session.selection.reserves(index) {
                indices::release(&self.client, index).await?;
            }
        }
        self.change(|progress| progress.position = position);
        if !session.selection.is_empty() {
            self.save(&mut session).await?;
        }
        Ok(session)
    }

    async fn follow(
        &self,
        session: &mut Session,
        selection: &mut watch::Receiver<Arc<Selection>>,
        failures: &mut u32,
    ) -> Result<End, ExportError> {
        let mut completed = self.states.version();
        let mut check_at = Instant::now() + self.options.check_every;
        loop {
            if selection.has_changed().unwrap_or(false) {
                return Ok(End::Again);
            }
            completed.borrow_and_update();
            self.compare_completed(session, failures).await?;
            let position = session.checkpoint.position;
            let page = self.source.after(position).await?;
            if page.position > position {
                self.write(session, page.changes, failures).await?;
                session.advance(page.position);
            }
            *failures = 0;
            let position = session.checkpoint.position;
            self.change(|progress| {
                progress.state = ExportState::Following;
                progress.connected = true;
                progress.position = position;
            });
            let now = Instant::now();
            let save_at = session.saved_at + self.options.save_every;
            if !session.is_saved && now >= save_at {
                self.save(session).await?;
            }
            if now >= check_at {
                if !self.check(session, failures).await? {
                    return Ok(End::Again);
                }
                check_at = Instant::now() + self.options.check_every;
            }
            let wake_at = if session.is_saved { check_at } else { check_at.min(save_at) };
            tokio::select! {
                () = self.source.changed(position) => {}
                changed = completed.changed() => if changed.is_err() { return Ok(End::Again) },
                changed = selection.changed() => if changed.is_err() { return Ok(End::Again) } else { selection.mark_changed() },
                () = tokio::time::sleep_until(wake_at) => {}
            }
        }
    }

    /// Compares indices of collections that have become complete.
    async fn compare_completed(&self, session: &mut Session, failures: &mut u32) -> Result<(), ExportError> {
        let is_complete = |key: &&CollectionKey| self.states.get(key).is_some_and(|state| state.complete);
        let complete: Vec<CollectionKey> = session.incomplete.iter().filter(is_complete).cloned().collect();
        let indices: BTreeSet<String> = complete.iter().filter_map(|key| session.selection.index_with(key)).collect();
        for key in &complete {
            session.incomplete.remove(key);
        }
        if indices.is_empty() {
            return Ok(());
        }
        self.renew(session).await?;
        for index in indices {
            self.compare(session, &index, failures).await?;
        }
        Ok(())
    }

    /// Checks the engine and its indices. False: it is another engine.
    async fn check(&self, session: &mut Session, failures: &mut u32) -> Result<bool, ExportError> {
        if indices::identity(&self.client).await? != session.checkpoint.engine {
            return Ok(false);
        }
        let mut replaced = Vec::new();
        for (index, uuid) in &session.checkpoint.indices {
            if indices::ensure(&self.client, index).await? != *uuid {
                replaced.push(index.clone());
            }
        }
        if !replaced.is_empty() {
            self.renew(session).await?;
        }
        for index in replaced {
            let uuid = self.compare(session, &index, failures).await?;
            session.checkpoint.indices.insert(index, uuid);
            session.is_saved = false;
        }
        Ok(true)
    }

    /// Takes a new epoch for a comparison.
    async fn renew(&self, session: &mut Session) -> Result<(), ExportError> {
        session.epochs = self.memory.next_epoch(0).await?;
        session.checkpoint.epoch = session.epochs.last;
        // Later writes have the new epoch.
        self.save(session).await
    }

    async fn save(&self, session: &mut Session) -> Result<(), ExportError> {
        self.memory.keep(&self.name, &session.checkpoint).await?;
        (session.saved_at, session.is_saved) = (Instant::now(), true);
        Ok(())
    }

    /// Writes changes of selected objects.
    async fn write(
        &self,
        session: &Session,
        changes: Vec<ObjectChange>,
        failures: &mut u32,
    ) -> Result<(), ExportError> {
        let of_index = |change: ObjectChange| {
            let index = session.selection.index_of(&change.key.collection, &change.key.namespace)?;
            (!change.uid.is_empty()).then_some((index, change))
        };
        let selected: Vec<(String, ObjectChange)> = changes.into_iter().filter_map(of_index).collect();
        if selected.is_empty() {
            return Ok(());
        }
        for (index, changes) in self.documents(selected, session.epochs.last).await? {
            self.send(&index, changes, failures).await?;
        }
        Ok(())
    }

    /// Creates the documents of changes, by index, on blocking threads. An object that cannot be converted becomes
    /// a dead letter.
    pub(super) async fn documents(
        &self,
        changes: Vec<(String, ObjectChange)>,
        epoch: u64,
    ) -> Result<BTreeMap<String, Vec<DocumentChange>>, ExportError> {
        let source = self.source.clone();
        let work = tokio::task::spawn_blocking(move || {
            let mut by_index: BTreeMap<String, Vec<DocumentChange>> = BTreeMap::new();
            let mut unreadable = Vec::new();
            for (index, change) in changes {
                match document_change(&source, change, epoch) {
                    Ok(change) => by_index.entry(index).or_default().push(change),
                    Err(letter) => unreadable.push(letter),
                }
            }
            (by_index, unreadable)
        });
        let (by_index, unreadable) = match work.await {
            Ok(made) => made,
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            Err(_) => return Err(Error::Stopped.into()),
        };
        if !unreadable.is_empty() {
            self.bury(unreadable);
        }
        Ok(by_index)
    }

    /// Sends changes of an index until the engine has accepted or rejected each of them.
    pub(super) async fn send(
        &self,
        index: &str,
        changes: Vec<DocumentChange>,
        failures: &mut u32,
    ) -> Result<(), ExportError> {
        let deleted = changes.iter().filter(|change| change.document.is_none()).map(|change| change.id.clone());
        let account = Written { exporter: self, deleted: deleted.collect() };
        let sender = Sender {
            client: &self.client,
            alias: &alias_of(index),
            marker: &Marker::Guard,
            limits: self.options.limits,
            at_once: self.options.at_once,
        };
        let sent = sender.deliver(changes, failures, &account).await;
        sent.map_err(|error| ExportError::of_writer(index, error))
    }

    /// Keeps dead letters of objects that are not sent.
    fn bury(&self, unreadable: Vec<DeadLetter>) {
        let count = unreadable.len() as u64;
        let mut letters = self.dead_letters.lock();
        unreadable.into_iter().for_each(|letter| letters.add(letter));
        let listed = letters.list();
        drop(letters);
        self.change(|progress| {
            progress.refused += count;
            progress.dead_letters = listed;
        });
    }

    pub(super) fn change(&self, change: impl FnOnce(&mut ExportProgress)) {
        let latest = self.source.latest();
        self.progress.send_modify(|progress| {
            change(progress);
            progress.latest = latest;
        });
    }
}

impl Session {
    pub(super) fn new(selection: Arc<Selection>, epochs: Epochs, checkpoint: ExportCheckpoint) -> Self {
        let incomplete = BTreeSet::new();
        Self { selection, epochs, checkpoint, incomplete, saved_at: Instant::now(), is_saved: true }
    }

    fn advance(&mut self, position: u64) {
        self.checkpoint.position = position;
        self.is_saved = false;
    }
}

/// Counts the documents that one request writes.
struct Written<'e> {
    exporter: &'e Exporter,
    deleted: BTreeSet<String>,
}

impl Account for Written<'_> {
    fn count(&self, round: &Round) {
        let mut letters = self.exporter.dead_letters.lock();
        for id in &round.written {
            letters.remove(id);
        }
        for (change, fault) in &round.poisoned {
            tracing::warn!(id = change.id, %fault, "the search engine of a ResourceRegistry rejected a document");
            letters.add(DeadLetter::new(change.id.clone(), change.seq, fault));
        }
        let listed = letters.list();
        drop(letters);
        let deleted = round.written.iter().filter(|id| self.deleted.contains(*id)).count() as u64;
        self.exporter.change(|progress| {
            progress.written += round.written.len() as u64 - deleted;
            progress.deleted += deleted;
            progress.superseded += round.superseded;
            progress.retried += round.pending.len() as u64;
            progress.refused += round.poisoned.len() as u64;
            progress.dead_letters = listed;
        });
    }

    fn waits(&self, reason: &str) {
        let state = ExportState::Waiting { trouble: ExportFailure::Refused, reason: reason.to_owned() };
        self.exporter.change(|progress| progress.state = state);
    }

    fn pause(&self, failures: u32) -> Duration {
        jitter(self.exporter.options.backoff.delay(failures.saturating_add(1)), JITTER, rand::random())
    }
}

fn document_change(source: &Source, change: ObjectChange, epoch: u64) -> Result<DocumentChange, DeadLetter> {
    let ObjectChange { seq, key, uid, object } = change;
    let made: Result<Option<Vec<u8>>, Box<dyn std::error::Error>> =
        object.map(|object| Ok(document(&source.redacted(object)?)?)).transpose();
    let seq = DocumentVersion::of(epoch, seq).number();
    match made {
        Ok(made) => Ok(DocumentChange { seq, id: uid, document: made.map(Bytes::from) }),
        Err(error) => {
            let object = format!("{} {}/{}", key.collection, key.namespace, key.name);
            tracing::warn!(object, %error, "cannot convert an object to a document");
            Err(DeadLetter { id: uid, seq, reason: format!("cannot convert it to a document: {error}") })
        }
    }
}
