//! Keeps the indices of a backend, which have Karmada's layout, in sync with the selected objects of the store.

use super::document::{alias_of, encode_document};
use super::error::{ExportError, ExportFailure};
use super::progress::{ExportProgress, ExportState};
use super::selection::Selection;
use super::source::{ObjectChange, Source};
use super::state::{CheckpointStore, ExportCheckpoint};
use super::version::{DocumentVersion, Epochs};
use super::{BackendClaims, ExportOptions, indices};
use bytes::Bytes;
use crowsnest_component_base::retry::jitter;
use crowsnest_search::opensearch::bulk::{DocumentChange, Marker};
use crowsnest_search::opensearch::client::Client;
use crowsnest_search::opensearch::writer::progress::DeadLetters;
pub use crowsnest_search::opensearch::writer::send::{DeliveryObserver, Round, Sender};
use crowsnest_search::opensearch::writer::{DeadLetter, JITTER};
use crowsnest_store::CollectionStates;
use crowsnest_store::{CollectionKey, Error};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Maximum number of dead letters kept.
const MAX_DEAD_LETTERS: usize = 100;

/// Keeps the indices of one backend in sync with the selected objects. Created by [`crate::GlobalCache::exporter`].
pub struct Exporter {
    /// Name of the backend in the saved states.
    pub(super) name: String,
    pub(super) destination: String,
    pub(super) client: Client,
    pub(super) source: Source,
    pub(super) states: Arc<CollectionStates>,
    pub(super) checkpoints: CheckpointStore,
    pub(super) backend_claims: Arc<BackendClaims>,
    pub(super) selection: watch::Receiver<Arc<Selection>>,
    pub(super) options: ExportOptions,
    pub(super) progress: watch::Sender<ExportProgress>,
    pub(super) dead_letters: Mutex<DeadLetters>,
}

/// One connection to a backend with one selection.
pub(super) struct Session {
    pub selection: Arc<Selection>,
    pub epochs: Epochs,
    pub checkpoint: ExportCheckpoint,
    /// Selected collections that were incomplete in the store when their index was compared.
    pub incomplete: BTreeSet<CollectionKey>,
    saved_at: Instant,
    is_saved: bool,
}

/// Reason why a session ended without an error.
enum SessionEnd {
    /// The selection or the backend changed: a new session begins.
    Restart,
    /// Nothing is selected, and the documents of Crowsnest are deleted.
    Cleaned,
}

impl Exporter {
    pub(super) fn new_dead_letters() -> Mutex<DeadLetters> {
        Mutex::new(DeadLetters::new(MAX_DEAD_LETTERS))
    }

    /// State and counters; `latest` is the store's current newest change.
    pub fn progress(&self) -> ExportProgress {
        ExportProgress { latest: self.source.latest(), ..self.progress.borrow().clone() }
    }

    /// Notifies of changes of the progress; `latest` is the value at the time of the change.
    pub fn watch(&self) -> watch::Receiver<ExportProgress> {
        self.progress.subscribe()
    }

    /// Exports until stopped, or until nothing is selected and the backend contains no documents of Crowsnest.
    /// Errors are retried and reported in the progress.
    pub async fn run(&self, stop: CancellationToken) {
        let mut failures = 0;
        let mut outdated_epoch = None;
        while let Some(end) = stop.run_until_cancelled(self.run_session(outdated_epoch.take(), &mut failures)).await {
            let error = match end {
                Ok(SessionEnd::Restart) => continue,
                Ok(SessionEnd::Cleaned) => {
                    self.update_progress(|progress| progress.state = ExportState::Cleaned);
                    break;
                }
                Err(ExportError::Ahead { epoch }) => {
                    outdated_epoch = Some(epoch);
                    continue;
                }
                Err(ExportError::Pruned) => {
                    outdated_epoch = Some(0);
                    continue;
                }
                Err(error) => error,
            };
            let (failure, reason) = (error.failure(), error.chain());
            let mut is_new = false;
            self.update_progress(|progress| {
                let state = ExportState::Waiting { failure, reason: reason.clone() };
                is_new = progress.state != state;
                progress.state = state;
                progress.is_connected &= !matches!(
                    failure,
                    ExportFailure::Unreachable
                        | ExportFailure::Credentials
                        | ExportFailure::Certificate
                        | ExportFailure::Unsupported
                );
            });
            if is_new {
                tracing::warn!(reason, "cannot export to the backend of a ResourceRegistry");
            }
            failures += 1;
            let delay = self.options.backoff.delay(if error.is_retryable() { failures } else { u32::MAX });
            stop.run_until_cancelled(tokio::time::sleep(jitter(delay, JITTER, rand::random()))).await;
        }
        self.backend_claims.release(&self.name);
    }

    /// Exports until the selection or the backend changes. If `outdated_epoch` is set, the saved state is not used: all
    /// indices are compared, with an epoch greater than `outdated_epoch`.
    async fn run_session(&self, outdated_epoch: Option<u64>, failures: &mut u32) -> Result<SessionEnd, ExportError> {
        let server = self.client.detect().await?;
        let backend = indices::identity(&self.client).await?;
        self.update_progress(|progress| {
            progress.is_connected = true;
            progress.backend = server.to_string();
        });
        let mut selection = self.selection.clone();
        let selected = Arc::clone(&selection.borrow_and_update());
        if !self.backend_claims.claim(&self.checkpoints, &self.name, &backend, !selected.is_empty()).await? {
            // Another configuration names this backend and cleans it up.
            self.checkpoints.delete(&self.name).await?;
            return Ok(SessionEnd::Cleaned);
        }
        let resumable = if outdated_epoch.is_none() { self.load_resumable(&backend, &selected).await? } else { None };
        let mut session = match resumable {
            Some(session) => session,
            None => self.compare_all(backend, selected, outdated_epoch.unwrap_or(0), failures).await?,
        };
        if session.selection.is_empty() {
            self.checkpoints.delete(&self.name).await?;
            return Ok(SessionEnd::Cleaned);
        }
        self.follow(&mut session, &mut selection, failures).await
    }

    /// The previous session, if it can continue: same selection, backend and indices, and no pruned deletions.
    async fn load_resumable(&self, backend: &str, selection: &Arc<Selection>) -> Result<Option<Session>, ExportError> {
        let Some(checkpoint) = self.checkpoints.get(&self.name).await? else { return Ok(None) };
        let is_current = checkpoint.backend == backend
            && checkpoint.selection == selection.digest()
            && checkpoint.position <= self.source.latest()
            && checkpoint.indices.keys().cloned().collect::<BTreeSet<_>>() == selection.indices()
            && self.source.store.pruned_until().await?.0 <= checkpoint.position;
        // Collections that were incomplete may be complete now.
        let is_complete = |key: &CollectionKey| self.states.get(key).is_some_and(|state| state.complete);
        if !is_current || selection.is_empty() || !selection.collections().all(is_complete) {
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
        backend: String,
        selection: Arc<Selection>,
        outdated_epoch: u64,
        failures: &mut u32,
    ) -> Result<Session, ExportError> {
        let epochs = self.checkpoints.next_epoch(outdated_epoch).await?;
        // Read before the first index is compared, so that later changes are followed.
        let position = self.source.latest();
        let (selected, written) = (selection.indices(), indices::list_written(&self.client).await?);
        let checkpoint = ExportCheckpoint {
            destination: self.destination.clone(),
            backend,
            selection: selection.digest(),
            epoch: epochs.last,
            position,
            indices: BTreeMap::new(),
            abandoned_at: None,
        };
        // Saved before any write, so that the documents can be deleted after a crash even if nothing is selected then.
        // Without the digest of the selection, it is never resumed.
        if !selection.is_empty() {
            let initial = ExportCheckpoint { selection: String::new(), ..checkpoint.clone() };
            self.checkpoints.save(&self.name, &initial).await?;
        }
        let mut session = Session::new(selection, epochs, checkpoint);
        for index in selected.union(&written) {
            let uuid = self.compare(&mut session, index, failures).await?;
            if selected.contains(index) {
                session.checkpoint.indices.insert(index.clone(), uuid);
            } else if !session.selection.has_unresolved_kind(index) {
                indices::remove_alias(&self.client, index).await?;
            }
        }
        self.update_progress(|progress| progress.position = position);
        if !session.selection.is_empty() {
            self.save(&mut session).await?;
        }
        Ok(session)
    }

    /// Writes the changes of the store until the selection or the backend changes.
    async fn follow(
        &self,
        session: &mut Session,
        selection: &mut watch::Receiver<Arc<Selection>>,
        failures: &mut u32,
    ) -> Result<SessionEnd, ExportError> {
        let mut state_changes = self.states.version();
        let mut check_at = Instant::now() + self.options.check_interval;
        loop {
            if selection.has_changed().unwrap_or(false) {
                return Ok(SessionEnd::Restart);
            }
            state_changes.borrow_and_update();
            self.compare_completed(session, failures).await?;
            let position = session.checkpoint.position;
            let page = self.source.changes_after(position).await?;
            if page.position > position {
                self.write(session, page.changes, failures).await?;
                session.advance(page.position);
            }
            *failures = 0;
            let position = session.checkpoint.position;
            self.update_progress(|progress| {
                progress.state = ExportState::Following;
                progress.is_connected = true;
                progress.position = position;
            });
            let now = Instant::now();
            let save_at = session.saved_at + self.options.save_interval;
            if !session.is_saved && now >= save_at {
                self.save(session).await?;
            }
            if now >= check_at {
                if !self.check(session, failures).await? {
                    return Ok(SessionEnd::Restart);
                }
                check_at = Instant::now() + self.options.check_interval;
            }
            let wake_at = if session.is_saved { check_at } else { check_at.min(save_at) };
            tokio::select! {
                () = self.source.wait_for_changes(position) => {}
                changed = state_changes.changed() => if changed.is_err() { return Ok(SessionEnd::Restart) },
                changed = selection.changed() => if changed.is_err() { return Ok(SessionEnd::Restart) } else { selection.mark_changed() },
                () = tokio::time::sleep_until(wake_at) => {}
            }
        }
    }

    /// Compares indices of collections that have become complete.
    async fn compare_completed(&self, session: &mut Session, failures: &mut u32) -> Result<(), ExportError> {
        let is_complete = |key: &&CollectionKey| self.states.get(key).is_some_and(|state| state.complete);
        let complete: Vec<CollectionKey> = session.incomplete.iter().filter(is_complete).cloned().collect();
        let indices: BTreeSet<String> =
            complete.iter().filter_map(|key| session.selection.index_of_collection(key)).collect();
        for key in &complete {
            session.incomplete.remove(key);
        }
        if indices.is_empty() {
            return Ok(());
        }
        self.allocate_epoch(session).await?;
        for index in indices {
            self.compare(session, &index, failures).await?;
        }
        Ok(())
    }

    /// Checks the backend and its indices. Returns false if the address now belongs to another backend.
    async fn check(&self, session: &mut Session, failures: &mut u32) -> Result<bool, ExportError> {
        if indices::identity(&self.client).await? != session.checkpoint.backend {
            return Ok(false);
        }
        let mut replaced = Vec::new();
        for (index, uuid) in &session.checkpoint.indices {
            if indices::ensure(&self.client, index).await? != *uuid {
                replaced.push(index.clone());
            }
        }
        if !replaced.is_empty() {
            self.allocate_epoch(session).await?;
        }
        for index in replaced {
            let uuid = self.compare(session, &index, failures).await?;
            session.checkpoint.indices.insert(index, uuid);
            session.is_saved = false;
        }
        Ok(true)
    }

    /// Allocates a new epoch for a comparison and saves it.
    async fn allocate_epoch(&self, session: &mut Session) -> Result<(), ExportError> {
        session.epochs = self.checkpoints.next_epoch(0).await?;
        session.checkpoint.epoch = session.epochs.last;
        // Later writes have the new epoch.
        self.save(session).await
    }

    async fn save(&self, session: &mut Session) -> Result<(), ExportError> {
        self.checkpoints.save(&self.name, &session.checkpoint).await?;
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
        let with_index = |change: ObjectChange| {
            let index = session.selection.index_of(&change.key.collection, &change.key.namespace)?;
            (!change.uid.is_empty()).then_some((index, change))
        };
        let selected: Vec<(String, ObjectChange)> = changes.into_iter().filter_map(with_index).collect();
        if selected.is_empty() {
            return Ok(());
        }
        for (index, changes) in self.create_documents(selected, session.epochs.last).await? {
            self.send(&index, changes, failures).await?;
        }
        Ok(())
    }

    /// Creates the documents of changes, by index, on blocking threads. An object that cannot be converted becomes
    /// a dead letter.
    pub(super) async fn create_documents(
        &self,
        changes: Vec<(String, ObjectChange)>,
        epoch: u64,
    ) -> Result<BTreeMap<String, Vec<DocumentChange>>, ExportError> {
        let source = self.source.clone();
        let work = tokio::task::spawn_blocking(move || {
            let mut by_index: BTreeMap<String, Vec<DocumentChange>> = BTreeMap::new();
            let mut unreadable = Vec::new();
            for (index, change) in changes {
                match convert_change(&source, change, epoch) {
                    Ok(change) => by_index.entry(index).or_default().push(change),
                    Err(letter) => unreadable.push(letter),
                }
            }
            (by_index, unreadable)
        });
        let (by_index, unreadable) = match work.await {
            Ok(converted) => converted,
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            Err(_) => return Err(Error::Stopped.into()),
        };
        if !unreadable.is_empty() {
            self.add_dead_letters(unreadable);
        }
        Ok(by_index)
    }

    /// Sends changes of an index until the backend has accepted or rejected each of them.
    pub(super) async fn send(
        &self,
        index: &str,
        changes: Vec<DocumentChange>,
        failures: &mut u32,
    ) -> Result<(), ExportError> {
        let deleted = changes.iter().filter(|change| change.document.is_none()).map(|change| change.id.clone());
        let observer = DeliveryCounter { exporter: self, deleted: deleted.collect() };
        let sender = Sender {
            client: &self.client,
            alias: &alias_of(index),
            marker: &Marker::Guard,
            limits: self.options.limits,
            max_concurrent_requests: self.options.max_concurrent_requests,
        };
        let sent = sender.deliver(changes, failures, &observer).await;
        sent.map_err(|error| ExportError::from_writer(index, error))
    }

    /// Records dead letters of objects that could not be converted.
    fn add_dead_letters(&self, unreadable: Vec<DeadLetter>) {
        let count = unreadable.len() as u64;
        let mut letters = self.dead_letters.lock();
        unreadable.into_iter().for_each(|letter| letters.add(letter));
        let listed = letters.list();
        drop(letters);
        self.update_progress(|progress| {
            progress.refused += count;
            progress.dead_letters = listed;
        });
    }

    pub(super) fn update_progress(&self, change: impl FnOnce(&mut ExportProgress)) {
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

/// Records the results of one delivery in the progress of the export.
struct DeliveryCounter<'e> {
    exporter: &'e Exporter,
    deleted: BTreeSet<String>,
}

impl DeliveryObserver for DeliveryCounter<'_> {
    fn record_round(&self, round: &Round) {
        let mut letters = self.exporter.dead_letters.lock();
        for id in &round.written {
            letters.remove(id);
        }
        for (change, error_response) in &round.poisoned {
            tracing::warn!(id = change.id, error = %error_response, "the backend of a ResourceRegistry rejected a document");
            letters.add(DeadLetter::new(change.id.clone(), change.seq, error_response));
        }
        let listed = letters.list();
        drop(letters);
        let deleted = round.written.iter().filter(|id| self.deleted.contains(*id)).count() as u64;
        self.exporter.update_progress(|progress| {
            progress.written += round.written.len() as u64 - deleted;
            progress.deleted += deleted;
            progress.superseded += round.superseded;
            progress.retried += round.pending.len() as u64;
            progress.refused += round.poisoned.len() as u64;
            progress.dead_letters = listed;
        });
    }

    fn report_waiting(&self, reason: &str) {
        let state = ExportState::Waiting { failure: ExportFailure::Refused, reason: reason.to_owned() };
        self.exporter.update_progress(|progress| progress.state = state);
    }

    fn retry_delay(&self, failures: u32) -> Duration {
        jitter(self.exporter.options.backoff.delay(failures.saturating_add(1)), JITTER, rand::random())
    }
}

/// Creates the document of a change; a dead letter if its object cannot be converted.
fn convert_change(source: &Source, change: ObjectChange, epoch: u64) -> Result<DocumentChange, DeadLetter> {
    let ObjectChange { seq, key, uid, object, .. } = change;
    let body: Result<Option<Vec<u8>>, Box<dyn std::error::Error>> =
        object.map(|object| Ok(encode_document(&source.redact(object)?)?)).transpose();
    let seq = DocumentVersion::new(epoch, seq).number();
    match body {
        Ok(body) => Ok(DocumentChange { seq, id: uid, document: body.map(Bytes::from) }),
        Err(error) => {
            let object = format!("{} {}/{}", key.collection, key.namespace, key.name);
            tracing::warn!(object, %error, "cannot convert an object to a document");
            Err(DeadLetter { id: uid, seq, reason: format!("cannot convert it to a document: {error}") })
        }
    }
}
