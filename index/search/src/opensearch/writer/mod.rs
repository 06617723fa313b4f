//! Keeps an index behind an alias equal to a source of changes.
//!
//! A batch of changes is read from the source, sent in bulk requests, and when every document is acknowledged,
//! superseded or refused, a progress document takes the batch's position as its version. After a crash on either side
//! the writer resumes there; documents that are sent twice are refused by their external version. Only one batch is in
//! memory, even during a long outage of the engine. A document that the engine refuses becomes a dead letter; an older
//! state of it stays in the index. A lost index is created and filled again. If the template or the source changes, or
//! deletions were pruned, a new index is filled while the old one serves searches.
//!
//! One of the processes that share an index is elected to write. The others read its position.

mod election;
mod index;
mod plan;
pub mod progress;
pub mod send;
mod source;

pub use plan::AliasError;
pub use progress::{DeadLetter, Progress, State};
pub use source::{BatchBounds, ChangeBatch, ChangeSource, IndexPosition, SourceError};

use crate::opensearch::bulk::{BulkLimits, Marker};
use crate::opensearch::client::{Client, ClientError, ErrorResponse};
use crowsnest_component_base::retry::{Backoff, jitter};
use election::WriteElection;
use index::{Indices, Target, WriteResult};
use parking_lot::Mutex;
use plan::{AliasTarget, Origin};
use progress::DeadLetters;
use send::{DeliveryObserver, Round, Sender};
use serde_json::Value;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use xxhash_rust::xxh3::xxh3_128;

/// Id of the document whose version is the position.
const PROGRESS_ID: &str = "crowsnest-progress";
/// Range of the factor that varies delays between attempts.
pub const JITTER: (f64, f64) = (0.5, 1.0);

/// Settings of a writer.
#[derive(Debug, Clone)]
pub struct WriterOptions {
    /// Alias that searches use. Indices are called `ALIAS-NUMBER`.
    pub alias: String,
    /// Settings and mappings of the index.
    pub template: Value,
    pub limits: BulkLimits,
    /// Maximum number of concurrent bulk requests.
    pub max_concurrent_requests: usize,
    pub batch: BatchBounds,
    pub backoff: Backoff,
    /// The index behind the alias is checked again after this time.
    pub check_interval: Duration,
    /// Maximum number of dead letters kept.
    pub dead_letters: usize,
    /// False while another process writes to the index. Two that write at the same time do no harm: external versions
    /// decide.
    pub elected: watch::Receiver<bool>,
    /// Interval at which a writer that is not elected reads the position of the elected one.
    pub read_interval: Duration,
    /// Time without progress after which a writer that is not elected writes as well.
    pub takeover_timeout: Duration,
}

impl WriterOptions {
    /// Options with defaults for everything else.
    pub fn new(alias: impl Into<String>, template: Value) -> Self {
        Self {
            alias: alias.into(),
            template,
            limits: BulkLimits { bytes: 5 << 20, items: 500 },
            max_concurrent_requests: 2,
            batch: BatchBounds { changes: 2000, bytes: 32 << 20 },
            backoff: Backoff::new(Duration::from_millis(200), Duration::from_secs(30)),
            check_interval: Duration::from_secs(30),
            dead_letters: 100,
            elected: watch::channel(true).1,
            read_interval: Duration::from_millis(500),
            takeover_timeout: Duration::from_secs(30),
        }
    }
}

/// Reason why a writer waits.
#[derive(Debug, thiserror::Error)]
pub enum WriterError {
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error(transparent)]
    Alias(#[from] AliasError),
    #[error(transparent)]
    Source(#[from] SourceError),
    #[error("the index cannot be written to: {0}")]
    Index(ErrorResponse),
    #[error("the alias points at another index")]
    Replaced,
    #[error("the search engine accepts no documents: {0}")]
    NothingAccepted(String),
    #[error("the index behind the alias keeps changing")]
    UnstableIndex,
    #[error("the alias points at no index yet")]
    NoIndex,
    #[error("the index behind the alias was filled from another cache and is being replaced")]
    OtherSource,
}

/// Keeps an index behind an alias equal to a source of changes.
#[derive(Debug)]
pub struct Writer<S> {
    client: Arc<Client>,
    source: S,
    options: WriterOptions,
    progress: watch::Sender<Progress>,
    dead_letters: Mutex<DeadLetters>,
}

/// The index that serves searches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SearchIndex {
    pub index: String,
    /// It has another template than this version's, so searches may miss hits until it is rebuilt.
    pub is_outdated: bool,
}

/// Reason why writing to an index ended without an error.
enum FillEnd {
    /// The index is checked again.
    Check,
    /// A rebuilt index is put in place of another one.
    CaughtUp(Target),
    /// The source has pruned deletions that the index may lack.
    Pruned(Target),
}

impl<S: ChangeSource> Writer<S> {
    pub fn new(client: Arc<Client>, source: S, options: WriterOptions) -> Self {
        let dead_letters = Mutex::new(DeadLetters::new(options.dead_letters));
        Self { client, source, options, progress: watch::Sender::default(), dead_letters }
    }

    /// State and counters; `latest` is the source's current newest sequence number.
    pub fn progress(&self) -> Progress {
        Progress { latest: self.source.latest(), ..self.progress.borrow().clone() }
    }

    /// Notifies of changes of the progress; `latest` is the value at the time of the change.
    pub fn watch(&self) -> watch::Receiver<Progress> {
        self.progress.subscribe()
    }

    /// The last documents that the engine refused. A document whose newer state was written is left out.
    pub fn dead_letters(&self) -> Vec<DeadLetter> {
        self.dead_letters.lock().list()
    }

    /// Writes until stopped. After an error the writer waits and tries again; the progress shows the error.
    pub async fn run(&self, stop: CancellationToken) {
        let mut failures = 0;
        let options = &self.options;
        let mut election = WriteElection::new(options.elected.clone(), options.takeover_timeout, Instant::now());
        while let Some(end) = stop.run_until_cancelled(self.run_once(&mut election, &mut failures)).await {
            let Err(error) = end else { continue };
            election.check_timeout(Instant::now());
            let (reason, is_retryable) = match &error {
                WriterError::Client(error) => (error.chain(), error.is_retryable()),
                error => (error.to_string(), !matches!(error, WriterError::Alias(_))),
            };
            if self.update_progress(|progress| progress.state = State::Waiting { reason: reason.clone() }) {
                tracing::warn!(reason, "cannot write to the search engine or read its position");
            }
            // Other errors last until the configuration is changed, so the delay is the longest one.
            let delay = self.retry_delay(if is_retryable { failures } else { u32::MAX });
            failures += 1;
            let pause = async {
                tokio::select! {
                    () = tokio::time::sleep(delay) => {}
                    () = election.wait_for_election() => {}
                }
            };
            stop.run_until_cancelled(pause).await;
        }
    }

    /// Creates an index that is filled beside the one that serves searches, and then takes its place. The writer begins with it at its next
    /// check. A rebuild that is under way continues.
    pub async fn rebuild(&self) -> Result<(), WriterError> {
        self.client.detect().await?;
        self.indices().create_rebuild().await
    }

    /// Writes if this process is the writer. Otherwise reads the position once and waits until it has to be read again.
    async fn run_once(&self, election: &mut WriteElection, failures: &mut u32) -> Result<(), WriterError> {
        if election.should_write() {
            return tokio::select! {
                end = self.follow(failures) => end,
                () = election.wait_for_election() => Ok(()),
            };
        }
        let SearchIndex { index, .. } = self.find_search_index().await?;
        let position = self.indices().version_in(&index, PROGRESS_ID).await?.unwrap_or(0);
        self.update_progress(|progress| {
            progress.state = State::Standby;
            progress.position = position;
            progress.index = index;
        });
        *failures = 0;
        election.record_position(position, self.source.latest(), Instant::now());
        drop(tokio::time::timeout(self.options.read_interval, election.wait_for_election()).await);
        Ok(())
    }

    /// Finds the index behind the alias. Fails unless it was filled from this source, because only then do its record ids
    /// identify objects of this store.
    pub(super) async fn find_search_index(&self) -> Result<SearchIndex, WriterError> {
        let indices = self.indices();
        match indices.resolve_alias(&self.options.alias).await? {
            AliasTarget::None => Err(WriterError::NoIndex),
            AliasTarget::Unusable(error) => Err(error.into()),
            AliasTarget::Usable { origin, .. } if origin.source != indices.origin.source => {
                Err(WriterError::OtherSource)
            }
            AliasTarget::Usable { index, origin } => {
                Ok(SearchIndex { index, is_outdated: origin.template != indices.origin.template })
            }
        }
    }

    fn indices(&self) -> Indices<'_> {
        Indices {
            client: &self.client,
            alias: &self.options.alias,
            template: &self.options.template,
            origin: Origin {
                template: format!("{:032x}", xxh3_128(self.options.template.to_string().as_bytes())),
                source: self.source.identity(),
            },
        }
    }

    /// Finds the index to write to and writes to it until it has to be checked again. `failures` is reset to 0 once the
    /// engine has accepted a document.
    async fn follow(&self, failures: &mut u32) -> Result<(), WriterError> {
        self.client.detect().await?;
        let indices = self.indices();
        let target = indices.prepare().await?;
        match self.fill(&indices, target, failures).await? {
            FillEnd::Check => Ok(()),
            FillEnd::CaughtUp(target) => {
                indices.swap(&target.index, target.replaces.as_deref()).await?;
                self.update_progress(|progress| progress.rebuilds += 1);
                Ok(())
            }
            FillEnd::Pruned(Target { index, replaces: Some(_), .. }) => indices.delete(&index).await,
            FillEnd::Pruned(_) => indices.create_rebuild().await,
        }
    }

    async fn fill(&self, indices: &Indices<'_>, target: Target, failures: &mut u32) -> Result<FillEnd, WriterError> {
        let marker = Marker::Document(format!("crowsnest-marker-{}", target.index));
        let Some(empty_at) = self.empty_at(indices, &target, &marker).await? else {
            return Ok(FillEnd::Pruned(target));
        };
        let mut position = indices.version(&target, PROGRESS_ID).await?.unwrap_or(0);
        let state = if target.replaces.is_some() { State::Rebuilding } else { State::Following };
        self.update_progress(|progress| {
            progress.state = state.clone();
            progress.position = position;
            progress.index.clone_from(&target.index);
        });
        let sender = Sender {
            client: &self.client,
            alias: &target.alias,
            marker: &marker,
            limits: self.options.limits,
            max_concurrent_requests: self.options.max_concurrent_requests,
        };
        let check_at = Instant::now() + self.options.check_interval;
        while Instant::now() < check_at {
            let batch = match self.source.changes(IndexPosition { position, empty_at }, self.options.batch).await {
                Err(SourceError::Pruned) => return Ok(FillEnd::Pruned(target)),
                other => other?,
            };
            if batch.position <= position {
                *failures = 0;
                if target.replaces.is_some() {
                    return Ok(FillEnd::CaughtUp(target));
                }
                if tokio::time::timeout_at(check_at, self.source.wait_for_changes(position)).await.is_err() {
                    return Ok(FillEnd::Check);
                }
                continue;
            }
            sender.deliver(batch.changes, failures, self).await?;
            indices.write_version(&target, PROGRESS_ID, batch.position).await?;
            *failures = 0;
            position = batch.position;
            self.update_progress(|progress| {
                progress.state = state.clone();
                progress.position = position;
            });
        }
        Ok(FillEnd::Check)
    }

    /// Newest change at the time when the index was empty: the version of its marker, which is written first. None if two
    /// writers wrote different markers at the same time.
    async fn empty_at(
        &self,
        indices: &Indices<'_>,
        target: &Target,
        marker: &Marker,
    ) -> Result<Option<u64>, WriterError> {
        if let Some(version) = indices.version(target, marker.id()).await? {
            return Ok(Some(version));
        }
        let latest = self.source.latest().max(1);
        match indices.write_version(target, marker.id(), latest).await? {
            WriteResult::Created => Ok(Some(latest)),
            WriteResult::Updated => Ok(None),
            WriteResult::Superseded => indices.version(target, marker.id()).await,
        }
    }

    /// Changes the progress. Returns true if its state has changed.
    fn update_progress(&self, change: impl FnOnce(&mut Progress)) -> bool {
        let mut state_changed = false;
        let latest = self.source.latest();
        self.progress.send_modify(|progress| {
            let before = progress.state.clone();
            change(progress);
            progress.latest = latest;
            state_changed = progress.state != before;
        });
        state_changed
    }
}

impl<S: ChangeSource> DeliveryObserver for Writer<S> {
    fn record_round(&self, round: &Round) {
        let mut letters = self.dead_letters.lock();
        for id in &round.written {
            letters.remove(id);
        }
        for (change, error_response) in &round.poisoned {
            tracing::warn!(id = change.id, seq = change.seq, error = %error_response, "the search engine refuses a document");
            letters.add(DeadLetter::new(change.id.clone(), change.seq, error_response));
        }
        drop(letters);
        self.update_progress(|progress| {
            progress.rounds += 1;
            progress.round_microseconds += u64::try_from(round.duration.as_micros()).unwrap_or(u64::MAX);
            progress.written += round.written.len() as u64;
            progress.superseded += round.superseded;
            progress.dead_letters += round.poisoned.len() as u64;
            progress.retried += round.pending.len() as u64;
        });
    }

    fn report_waiting(&self, reason: &str) {
        self.update_progress(|progress| progress.state = State::Waiting { reason: reason.to_owned() });
    }

    fn retry_delay(&self, failures: u32) -> Duration {
        jitter(self.options.backoff.delay(failures.saturating_add(1)), JITTER, rand::random())
    }
}
