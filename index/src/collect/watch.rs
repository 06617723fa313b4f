//! Watches a resource of a member and stores its events in the order of their resourceVersions.
//!
//! A watch normally sends only versions newer than its start. A member that sends an older one is inconsistent: an
//! outdated replica of its API server responded, or it was restored from a backup. Stored objects are not
//! overwritten by older ones (opaque versions cannot be compared; the last one is stored), and the resource is
//! listed again soon.

use super::budget::Share;
use super::collector::{Collector, CollectorProgress, ConversionOutcome};
use super::feed::{Bookmark, Lines, Page, StatusBody};
use super::pages::PageSize;
use super::versions::is_older;
use bytes::Bytes;
use crowsnest_apimachinery::request::percent_encode;
use crowsnest_store::Error;
use crowsnest_store::options::MemberTimeouts;
use crowsnest_store::record::RecordKey;
use crowsnest_store::{Progress, RecordWrite};
use futures::Stream;
use http_body_util::BodyExt;
use std::time::Duration;
use tokio::time::Instant;

/// A watch that ends before this time without new events counts as failed.
const MIN_WATCH_DURATION: Duration = Duration::from_millis(900);
/// After a start or an interruption, a watch first sends missed events, or 410 Gone. It has caught up after this idle
/// period.
const CATCH_UP_IDLE_TIME: Duration = Duration::from_millis(200);
/// Maximum duration of the catch-up phase.
const MAX_CATCH_UP_TIME: Duration = Duration::from_secs(3);

/// Reason why a watch ended without a failure.
pub(super) enum WatchEnd {
    /// Closed by the server; resume from the position.
    Closed,
    /// The resource has to be listed again, with the reason.
    Expired(String),
}

/// State of a watch.
pub(super) struct WatchState {
    /// When the watch was requested. A server counts `timeoutSeconds` from then on, however late its response is read.
    requested_at: Instant,
    /// The requested `timeoutSeconds`.
    duration: Duration,
    opened_at: Instant,
    /// Time by which the server should have ended the watch; afterwards, the connection counts as dead.
    deadline: Instant,
    /// End of the catch-up phase, in which missed events may still arrive; the collection counts as followed
    /// afterwards.
    catch_up_until: Option<Instant>,
    /// An event was received.
    has_received: bool,
    /// The position has advanced.
    has_advanced: bool,
    /// Set if the watch sent an older version: the reason, and the time until which the watch is still read.
    inconsistency: Option<(String, Instant)>,
}

impl WatchState {
    /// State of a watch whose response has begun.
    pub fn new(timeouts: &MemberTimeouts, requested_at: Instant, duration: Duration) -> Self {
        let opened_at = Instant::now();
        let deadline = opened_at + duration + timeouts.response;
        Self {
            requested_at,
            duration,
            opened_at,
            deadline,
            catch_up_until: None,
            has_received: false,
            has_advanced: false,
            inconsistency: None,
        }
    }

    /// Time until which to wait for the next event.
    fn next_deadline(&self) -> Instant {
        let until = self.inconsistency.as_ref().map_or(self.deadline, |(_, until)| *until);
        self.catch_up_until.map_or(until, |catch_up_end| catch_up_end.min(until))
    }

    fn has_caught_up(&self) -> bool {
        self.catch_up_until.is_some_and(|catch_up_end| catch_up_end <= Instant::now())
    }

    /// Extends the catch-up phase after an event, because further missed events may follow.
    fn extend_catch_up(&mut self) {
        if let Some(catch_up_end) = &mut self.catch_up_until {
            *catch_up_end = (Instant::now() + CATCH_UP_IDLE_TIME).min(self.opened_at + MAX_CATCH_UP_TIME);
        }
    }
}

/// Events read from the available lines.
#[derive(Default)]
struct ReceivedEvents {
    writes: Vec<RecordWrite>,
    version: Option<String>,
    /// Writes older than preceding ones.
    late: Vec<RecordWrite>,
    inconsistency: Option<String>,
}

impl Collector {
    /// Duration of a watch. It is random, so that watches do not end at the same time.
    pub fn watch_duration(&self) -> Duration {
        let min_seconds = self.shared.options.timeouts.watch.as_secs().max(1);
        Duration::from_secs(min_seconds + rand::random::<u64>() % min_seconds)
    }

    /// Watches from the current position.
    pub async fn watch(&self, progress: &mut CollectorProgress) -> Result<WatchEnd, Error> {
        let duration = self.watch_duration();
        let from = percent_encode(progress.position.as_deref().unwrap_or_default());
        let query = "watch=true&allowWatchBookmarks=true";
        let query = format!("{query}&resourceVersion={from}&timeoutSeconds={}", duration.as_secs());
        let requested_at = Instant::now();
        let body = match self.get(&query).await {
            Err(Error::ErrorResponse { status: 410, .. }) => return Ok(expired_end()),
            // The server may not have reached this version yet, or may have been restored.
            Err(error @ Error::ErrorResponse { status: 504, .. }) => {
                return match self.check_version(progress).await? {
                    WatchEnd::Closed => Err(error),
                    expired => Ok(expired),
                };
            }
            other => other?,
        };
        let mut lines = Lines::new(body.into_data_stream(), &self.key, self.shared.options.max_object_bytes);
        let state = WatchState::new(&self.shared.options.timeouts, requested_at, duration);
        self.watch_lines(&mut lines, state, progress).await
    }

    /// Reads an open watch until it ends.
    pub async fn watch_lines<S, E>(
        &self,
        lines: &mut Lines<S>,
        mut watch_state: WatchState,
        progress: &mut CollectorProgress,
    ) -> Result<WatchEnd, Error>
    where
        S: Stream<Item = Result<Bytes, E>> + Unpin,
        E: std::error::Error + 'static,
    {
        self.shared.metrics.watches.add(1);
        let now = (self.shared.now_ms)();
        self.shared.states.update(&self.key, |state| state.last_contact_ms = now);
        if self.shared.states.get(&self.key).is_some_and(|state| state.stale_reason.is_some()) {
            watch_state.catch_up_until = Some(Instant::now() + CATCH_UP_IDLE_TIME);
        }
        loop {
            if let Some(ended) = self.process_events(lines, &mut watch_state, progress).await? {
                return Ok(ended);
            }
            if watch_state.has_caught_up() {
                self.finish_catch_up(&mut watch_state).await?;
            }
            match tokio::time::timeout_at(watch_state.next_deadline(), lines.fill()).await {
                Ok(more) => match more? {
                    true => watch_state.extend_catch_up(),
                    false => return self.handle_close(watch_state, progress).await,
                },
                Err(_) if watch_state.has_caught_up() => {}
                Err(_) => {
                    return inconsistency_end(watch_state)
                        .ok_or_else(|| self.interruption_error("the watch did not end in time"));
                }
            }
        }
    }

    /// Waits until the missed events are stored, and marks the collection as current.
    async fn finish_catch_up(&self, watch_state: &mut WatchState) -> Result<(), Error> {
        watch_state.catch_up_until = None;
        self.send_and_wait(Vec::new(), Progress::default()).await?;
        if watch_state.inconsistency.is_none() {
            self.shared.states.update(&self.key, |state| state.stale_reason = None);
        }
        Ok(())
    }

    async fn handle_close(&self, watch_state: WatchState, progress: &mut CollectorProgress) -> Result<WatchEnd, Error> {
        let has_received = watch_state.has_received;
        // The response of a watch that lasted as long as requested may have arrived late.
        let is_brief = !watch_state.has_advanced
            && watch_state.opened_at.elapsed() < MIN_WATCH_DURATION
            && watch_state.requested_at.elapsed() < watch_state.duration;
        if let Some(ended) = inconsistency_end(watch_state) {
            return Ok(ended);
        }
        match has_received {
            _ if is_brief => Err(self.interruption_error("its watch ended immediately")),
            true => Ok(WatchEnd::Closed),
            false => self.check_version(progress).await,
        }
    }

    /// Checks that the server is not at an older version than the position. A server that was restored to an older
    /// version sends no events until it passes the version from which the watch started, so a watch without events is
    /// followed by this check.
    async fn check_version(&self, progress: &CollectorProgress) -> Result<WatchEnd, Error> {
        let page_size = PageSize { objects: 1, bytes: self.shared.options.max_object_bytes };
        let (bytes, _share) = self.read_page(None, page_size).await?;
        let page: Page<'_> = self.parse(&bytes)?;
        let version = page.metadata.resource_version;
        match &progress.position {
            Some(position) if is_older(&version, position) => Ok(WatchEnd::Expired(format!(
                "it went back from resourceVersion {position} to {version}; listing again"
            ))),
            _ => Ok(WatchEnd::Closed),
        }
    }

    /// Processes the available events. If one of them cannot be read, those before it are still stored.
    async fn process_events<S, E>(
        &self,
        lines: &mut Lines<S>,
        watch_state: &mut WatchState,
        progress: &mut CollectorProgress,
    ) -> Result<Option<WatchEnd>, Error>
    where
        S: Stream<Item = Result<Bytes, E>> + Unpin,
        E: std::error::Error + 'static,
    {
        if lines.buffered_bytes() == 0 {
            return Ok(None);
        }
        let known_kind = self.known_kind();
        let share = self.acquire_share(lines.buffered_bytes()).await?;
        let mut received = ReceivedEvents::default();
        let ended = loop {
            let line = match lines.next_buffered() {
                Ok(Some(line)) => line,
                Ok(None) => break Ok(None),
                Err(error) => break Err(error),
            };
            if line.is_empty() {
                continue;
            }
            watch_state.has_received = true;
            match self.process_event(&line, &known_kind.0, progress, &mut received) {
                Ok(None) => {}
                ended => break ended,
            }
        };
        self.deliver(received, known_kind, share, watch_state, progress).await?;
        ended
    }

    fn process_event(
        &self,
        line: &[u8],
        kind: &str,
        progress: &CollectorProgress,
        received: &mut ReceivedEvents,
    ) -> Result<Option<WatchEnd>, Error> {
        let event = self.parse_event(line)?;
        let json = event.object.json();
        let write = match &*event.type_ {
            "ADDED" | "MODIFIED" => match self.convert(event.object, kind, kind) {
                ConversionOutcome::Write(write) => Some(write),
                ConversionOutcome::OtherNamespace | ConversionOutcome::Rejected => None,
            },
            "DELETED" => {
                let write = self.deletion(json, kind);
                if write.is_none() {
                    received.inconsistency = Some("it sent an unreadable deletion".to_owned());
                }
                write
            }
            "BOOKMARK" => None,
            "ERROR" => {
                let status: StatusBody = self.parse(json.as_bytes())?;
                return if status.code == 410 { Ok(Some(expired_end())) } else { Err(self.status_error(status)) };
            }
            other => return Err(self.interruption_error(format!("unknown event type {other:?}"))),
        };
        // The version of a write is already parsed.
        let version = write.as_ref().map_or_else(|| self.version(json), |write| version_of(write).to_owned());
        let position = received.version.as_deref().or(progress.position.as_deref());
        match position.filter(|position| is_older(&version, position)) {
            None => {
                received.writes.extend(write);
                received.version = Some(version).filter(|version| !version.is_empty()).or(received.version.take());
            }
            Some(_) if write.is_some() => received.late.extend(write),
            Some(position) => received.inconsistency = Some(older_version_reason(&version, position)),
        }
        Ok(None)
    }

    fn version(&self, json: &str) -> String {
        let bookmark: Bookmark = self.parse(json.as_bytes()).unwrap_or_default();
        bookmark.metadata.resource_version
    }

    /// Stores received events and advances the position. Late events are compared with the stored objects first.
    async fn deliver(
        &self,
        received: ReceivedEvents,
        known_kind: (String, Option<bool>),
        share: Share,
        watch_state: &mut WatchState,
        progress: &mut CollectorProgress,
    ) -> Result<(), Error> {
        let ReceivedEvents { writes, version, late, mut inconsistency } = received;
        if !writes.is_empty() || version.is_some() {
            let kind = Self::reported_kind(known_kind, &writes);
            let batch_progress = Progress { resource_version: version.clone(), kind, ..Progress::default() };
            self.send(writes, batch_progress, share).await?;
        } else {
            // Released first: waiting for a share while holding one could deadlock.
            drop(share);
        }
        if let Some(version) = version {
            watch_state.has_advanced |= progress.position.as_ref() != Some(&version);
            progress.advance(version);
        }
        if !late.is_empty() {
            // Waits until the preceding writes are stored, because late ones are compared with the stored objects.
            self.send_and_wait(Vec::new(), Progress::default()).await?;
        }
        let position = progress.position.as_deref().unwrap_or_default();
        for write in late {
            if self.is_outdated(&write).await? {
                self.shared.metrics.objects_outdated.add(1);
                inconsistency = Some(older_version_reason(version_of(&write), position));
            } else {
                let share = self.acquire_share(size_of(&write)).await?;
                self.send(vec![write], Progress::default(), share).await?;
            }
        }
        if let Some(reason) = inconsistency.filter(|_| watch_state.inconsistency.is_none()) {
            tracing::debug!(collection = %self.key, reason, "the member sent an older version; listing again soon");
            self.shared.states.update(&self.key, |state| state.stale_reason = Some(reason.clone()));
            watch_state.inconsistency = Some((reason, Instant::now() + self.shared.options.timeouts.suspect_watch));
        }
        Ok(())
    }

    /// True if a newer version of the object is stored, or if the write puts an object that is not stored, because it may have
    /// been deleted since.
    async fn is_outdated(&self, write: &RecordWrite) -> Result<bool, Error> {
        let (namespace, name) = write.key();
        let key = RecordKey { collection: self.key.clone(), namespace: namespace.into(), name: name.into() };
        let stored = self.shared.store.get(&key).await?;
        Ok(match stored {
            Some(object) => is_older(version_of(write), &object.record.resource_version),
            None => matches!(write, RecordWrite::Put(..)),
        })
    }
}

fn version_of(write: &RecordWrite) -> &str {
    match write {
        RecordWrite::Put(draft, _) => &draft.resource_version,
        RecordWrite::Delete { resource_version, .. } => resource_version,
    }
}

fn size_of(write: &RecordWrite) -> usize {
    match write {
        RecordWrite::Put(draft, _) => draft.body.len(),
        RecordWrite::Delete { .. } => 0,
    }
}

fn older_version_reason(version: &str, position: &str) -> String {
    format!(
        "it sent resourceVersion {version} after {position}; it is an outdated replica or was restored; listing again"
    )
}

fn expired_end() -> WatchEnd {
    WatchEnd::Expired("the missed events are no longer available; listing again".to_owned())
}

fn inconsistency_end(watch_state: WatchState) -> Option<WatchEnd> {
    watch_state.inconsistency.map(|(reason, _)| WatchEnd::Expired(reason))
}
