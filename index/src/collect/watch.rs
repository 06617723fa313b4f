//! Watches a resource of a member and stores its events in the order of their resourceVersions.
//!
//! A watch normally sends only versions newer than its start. A member that sends an older one is inconsistent: an
//! outdated replica of its API server responded, or it was restored from a backup. Stored objects are not
//! overwritten by older ones (opaque versions cannot be compared; the last one is stored), and the resource is
//! listed again soon.

use super::budget::Share;
use super::collector::{Collector, CollectorProgress, ConversionOutcome};
use super::feed::{Bookmark, Event, Lines, Page, StatusBody};
use super::pages::Plan;
use super::versions::is_older;
use bytes::Bytes;
use crowsnest_apimachinery::request::percent_encoded;
use crowsnest_store::Error;
use crowsnest_store::options::MemberTimeouts;
use crowsnest_store::record::RecordKey;
use crowsnest_store::{Progress, Step};
use futures::Stream;
use http_body_util::BodyExt;
use serde_json::value::RawValue;
use std::time::Duration;
use tokio::time::Instant;

/// A watch that ends before this time without new events counts as failed.
const BRIEF: Duration = Duration::from_millis(900);
/// After a start or an interruption, a watch first sends missed events, or 410 Gone. It has caught up after an idle period
/// of the first duration, or at the latest after the second one.
const CAUGHT_UP: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(3));

/// Reason why a watch ended without a failure.
pub(super) enum Ended {
    /// Closed by the server; resume from the position.
    Closed,
    /// The resource has to be listed again, with the reason.
    Expired(String),
}

/// State of a watch.
pub(super) struct Watching {
    began: Instant,
    /// The server should end the watch before; otherwise the connection counts as dead.
    deadline: Instant,
    /// End of the catch-up phase, in which missed events may still arrive; the collection counts as followed
    /// afterwards.
    catching_up: Option<Instant>,
    /// An event was received.
    heard: bool,
    /// The position has advanced.
    moved: bool,
    /// The watch sent an older version, with the reason and the time until which it is followed.
    doubt: Option<(String, Instant)>,
}

impl Watching {
    pub fn begin(timeouts: &MemberTimeouts, seconds: Duration) -> Self {
        let began = Instant::now();
        let deadline = began + seconds + timeouts.answer;
        Self { began, deadline, catching_up: None, heard: false, moved: false, doubt: None }
    }

    /// Time of the next action without an event.
    fn until(&self) -> Instant {
        let until = self.doubt.as_ref().map_or(self.deadline, |(_, until)| *until);
        self.catching_up.map_or(until, |caught_up| caught_up.min(until))
    }

    fn has_caught_up(&self) -> bool {
        self.catching_up.is_some_and(|caught_up| caught_up <= Instant::now())
    }

    /// An event was received; further missed events may follow.
    fn still_catching_up(&mut self) {
        if let Some(caught_up) = &mut self.catching_up {
            *caught_up = (Instant::now() + CAUGHT_UP.0).min(self.began + CAUGHT_UP.1);
        }
    }
}

/// Events read from the available lines.
#[derive(Default)]
struct ReceivedEvents {
    steps: Vec<Step>,
    version: Option<String>,
    /// Steps older than preceding ones.
    late: Vec<Step>,
    doubt: Option<String>,
}

impl Collector {
    /// Randomized, so that watches do not end at the same time.
    pub fn watch_seconds(&self) -> Duration {
        let least = self.shared.options.timeouts.watch.as_secs().max(1);
        Duration::from_secs(least + rand::random::<u64>() % least)
    }

    /// Watches from the current position.
    pub async fn watch(&self, course: &mut CollectorProgress) -> Result<Ended, Error> {
        let seconds = self.watch_seconds();
        let from = percent_encoded(course.position.as_deref().unwrap_or_default());
        let query = "watch=true&allowWatchBookmarks=true";
        let query = format!("{query}&resourceVersion={from}&timeoutSeconds={}", seconds.as_secs());
        let body = match self.get(&query).await {
            Err(Error::Answer { status: 410, .. }) => return Ok(expired()),
            // The server may not have reached this version yet, or may have been restored.
            Err(error @ Error::Answer { status: 504, .. }) => {
                return match self.still_there(course).await? {
                    Ended::Closed => Err(error),
                    expired => Ok(expired),
                };
            }
            other => other?,
        };
        let mut lines = Lines::new(body.into_data_stream(), &self.key, self.shared.options.max_object_bytes);
        self.watch_lines(&mut lines, Watching::begin(&self.shared.options.timeouts, seconds), course).await
    }

    /// Reads an open watch until it ends.
    pub async fn watch_lines<S, E>(
        &self,
        lines: &mut Lines<S>,
        mut watching: Watching,
        course: &mut CollectorProgress,
    ) -> Result<Ended, Error>
    where
        S: Stream<Item = Result<Bytes, E>> + Unpin,
        E: std::error::Error + 'static,
    {
        self.shared.metrics.watches.add(1);
        let now = (self.shared.now_ms)();
        self.shared.states.update(&self.key, |state| state.heard_at = now);
        if self.shared.states.get(&self.key).is_some_and(|state| state.trouble.is_some()) {
            watching.catching_up = Some(Instant::now() + CAUGHT_UP.0);
        }
        loop {
            if let Some(ended) = self.events(lines, &mut watching, course).await? {
                return Ok(ended);
            }
            if watching.has_caught_up() {
                self.caught_up(&mut watching).await?;
            }
            match tokio::time::timeout_at(watching.until(), lines.more()).await {
                Ok(more) => match more? {
                    true => watching.still_catching_up(),
                    false => return self.closed(watching, course).await,
                },
                Err(_) if watching.has_caught_up() => {}
                Err(_) => return doubted(watching).ok_or_else(|| self.interrupted("the watch did not end in time")),
            }
        }
    }

    /// The missed events are stored; the collection is followed again.
    async fn caught_up(&self, watching: &mut Watching) -> Result<(), Error> {
        watching.catching_up = None;
        self.send_and_wait(Vec::new(), Progress::default()).await?;
        if watching.doubt.is_none() {
            self.shared.states.update(&self.key, |state| state.trouble = None);
        }
        Ok(())
    }

    async fn closed(&self, watching: Watching, course: &mut CollectorProgress) -> Result<Ended, Error> {
        let (heard, brief) = (watching.heard, !watching.moved && watching.began.elapsed() < BRIEF);
        if let Some(ended) = doubted(watching) {
            return Ok(ended);
        }
        match heard {
            _ if brief => Err(self.interrupted("its watch ended immediately")),
            true => Ok(Ended::Closed),
            false => self.still_there(course).await,
        }
    }

    /// Servers send nothing before a watch's start. A server restored to a lower version stays silent until it
    /// reaches that version, so the version is checked after a silent watch.
    async fn still_there(&self, course: &CollectorProgress) -> Result<Ended, Error> {
        let plan = Plan { objects: 1, bytes: self.shared.options.max_object_bytes };
        let (bytes, _share) = self.page(None, plan).await?;
        let page: Page<'_> = self.parse(&bytes)?;
        let version = page.metadata.resource_version;
        match &course.position {
            Some(position) if is_older(&version, position) => {
                Ok(Ended::Expired(format!("it returned from resourceVersion {position} to {version}; listing again")))
            }
            _ => Ok(Ended::Closed),
        }
    }

    /// Processes the available events, including those before an unreadable one.
    async fn events<S, E>(
        &self,
        lines: &mut Lines<S>,
        watching: &mut Watching,
        course: &mut CollectorProgress,
    ) -> Result<Option<Ended>, Error>
    where
        S: Stream<Item = Result<Bytes, E>> + Unpin,
        E: std::error::Error + 'static,
    {
        if lines.buffered() == 0 {
            return Ok(None);
        }
        let known = self.kind();
        let share = self.share(lines.buffered()).await?;
        let mut heard = ReceivedEvents::default();
        let mut ended = Ok(None);
        while let Some(line) = lines.ready() {
            if line.is_empty() {
                continue;
            }
            watching.heard = true;
            ended = self.event(&line, &known.0, course, &mut heard);
            if !matches!(ended, Ok(None)) {
                break;
            }
        }
        self.deliver(heard, known, share, watching, course).await?;
        ended
    }

    fn event(
        &self,
        line: &[u8],
        kind: &str,
        course: &CollectorProgress,
        heard: &mut ReceivedEvents,
    ) -> Result<Option<Ended>, Error> {
        let event: Event<'_> = self.parse(line)?;
        let step = match &*event.type_ {
            "ADDED" | "MODIFIED" => match self.put(event.object, kind, kind) {
                ConversionOutcome::Step(step) => Some(step),
                ConversionOutcome::Elsewhere | ConversionOutcome::Refused => None,
            },
            "DELETED" => {
                let step = self.deletion(event.object, kind);
                if step.is_none() {
                    heard.doubt = Some("it sent an unreadable deletion".to_owned());
                }
                step
            }
            "BOOKMARK" => None,
            "ERROR" => {
                let status: StatusBody = self.parse(event.object.get().as_bytes())?;
                return if status.code == 410 { Ok(Some(expired())) } else { Err(self.refused(status)) };
            }
            other => return Err(self.interrupted(format!("unknown event type {other:?}"))),
        };
        // The version of a step is already parsed.
        let version = step.as_ref().map_or_else(|| self.version(event.object), |step| version_of(step).to_owned());
        let reached = heard.version.as_deref().or(course.position.as_deref());
        match reached.filter(|reached| is_older(&version, reached)) {
            None => {
                heard.steps.extend(step);
                heard.version = Some(version).filter(|version| !version.is_empty()).or(heard.version.take());
            }
            Some(_) if step.is_some() => heard.late.extend(step),
            Some(reached) => heard.doubt = Some(went_back(&version, reached)),
        }
        Ok(None)
    }

    fn version(&self, object: &RawValue) -> String {
        let bookmark: Bookmark = self.parse(object.get().as_bytes()).unwrap_or_default();
        bookmark.metadata.resource_version
    }

    async fn deliver(
        &self,
        heard: ReceivedEvents,
        known: (String, Option<bool>),
        share: Share,
        watching: &mut Watching,
        course: &mut CollectorProgress,
    ) -> Result<(), Error> {
        let ReceivedEvents { steps, version, late, mut doubt } = heard;
        if !steps.is_empty() || version.is_some() {
            let kind = Self::reported_kind(known, &steps);
            let progress = Progress { resource_version: version.clone(), kind, ..Progress::default() };
            self.send(steps, progress, share).await?;
        } else {
            // Released first: waiting for a share while holding one could deadlock.
            drop(share);
        }
        if let Some(version) = version {
            watching.moved |= course.position.as_ref() != Some(&version);
            course.advance(version);
        }
        if !late.is_empty() {
            // Late steps are compared with the stored objects.
            self.send_and_wait(Vec::new(), Progress::default()).await?;
        }
        let reached = course.position.as_deref().unwrap_or_default();
        for step in late {
            if self.is_outdated(&step).await? {
                self.shared.metrics.objects_outdated.add(1);
                doubt = Some(went_back(version_of(&step), reached));
            } else {
                let share = self.share(size_of(&step)).await?;
                self.send(vec![step], Progress::default(), share).await?;
            }
        }
        if let Some(reason) = doubt.filter(|_| watching.doubt.is_none()) {
            tracing::debug!(collection = %self.key, reason, "the member sent an older version; listing again soon");
            self.shared.states.update(&self.key, |state| state.trouble = Some(reason.clone()));
            watching.doubt = Some((reason, Instant::now() + self.shared.options.timeouts.doubt));
        }
        Ok(())
    }

    /// True if a newer version of the object is stored. A late new object may have been deleted since.
    async fn is_outdated(&self, step: &Step) -> Result<bool, Error> {
        let (namespace, name) = step.key();
        let key = RecordKey { collection: self.key.clone(), namespace: namespace.into(), name: name.into() };
        let stored = self.shared.store.get(&key).await?;
        Ok(match stored {
            Some(object) => is_older(version_of(step), &object.record.resource_version),
            None => matches!(step, Step::Put(..)),
        })
    }
}

fn version_of(step: &Step) -> &str {
    match step {
        Step::Put(draft, _) => &draft.resource_version,
        Step::Delete { resource_version, .. } => resource_version,
    }
}

fn size_of(step: &Step) -> usize {
    match step {
        Step::Put(draft, _) => draft.body.len(),
        Step::Delete { .. } => 0,
    }
}

fn went_back(version: &str, reached: &str) -> String {
    format!(
        "it sent resourceVersion {version} after {reached}; it is an outdated replica or was restored; listing again"
    )
}

fn expired() -> Ended {
    Ended::Expired("the missed events are no longer available; listing again".to_owned())
}

fn doubted(watching: Watching) -> Option<Ended> {
    watching.doubt.map(|(reason, _)| Ended::Expired(reason))
}
