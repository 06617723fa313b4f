//! Watches: events as they happen, in the order of their resourceVersions.
//!
//! A watch tells only what is newer than where it began. A member that tells something older is not in order: an older
//! replica of its API server answers, or it was restored from a backup. What is stored is not overwritten by what is
//! older (opaque versions cannot be judged: the last one counts), and soon everything is listed again.

use super::budget::Share;
use super::collector::{Collector, Course, Taken};
use super::feed::{Bookmark, Event, Lines, Page, StatusBody};
use super::pages::Plan;
use super::versions::is_older;
use bytes::Bytes;
use crowsnest_apimachinery::request::percent_encoded;
use crowsnest_store::Error;
use crowsnest_store::options::Patience;
use crowsnest_store::record::RecordKey;
use crowsnest_store::{Progress, Step};
use futures::Stream;
use http_body_util::BodyExt;
use serde_json::value::RawValue;
use std::time::Duration;
use tokio::time::Instant;

/// A watch that ends sooner, and has told nothing new, is a failure.
const BRIEF: Duration = Duration::from_millis(900);
/// After an interruption, or a start, a watch opens before the member tells what was missed, or that it cannot. Silence of
/// this length says that everything has been told; where there is never silence, so much time does.
const CAUGHT_UP: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(3));

/// Why a watch ended without a failure.
pub(super) enum Ended {
    /// The server closed it, as servers do; go on from here.
    Closed,
    /// List again, and why.
    Expired(String),
}

/// A watch in progress.
pub(super) struct Watching {
    began: Instant,
    /// The server ends the watch itself; one that does not is as good as dead.
    deadline: Instant,
    /// What was missed may not have been told yet; followed only from then on.
    catching_up: Option<Instant>,
    /// Anything came.
    heard: bool,
    /// The position has moved.
    moved: bool,
    /// It told something older than before; followed until then.
    doubt: Option<(String, Instant)>,
}

impl Watching {
    pub fn begin(patience: &Patience, seconds: Duration) -> Self {
        let began = Instant::now();
        let deadline = began + seconds + patience.answer;
        Self { began, deadline, catching_up: None, heard: false, moved: false, doubt: None }
    }

    /// The next moment at which something is to be done though nothing comes.
    fn until(&self) -> Instant {
        let until = self.doubt.as_ref().map_or(self.deadline, |(_, until)| *until);
        self.catching_up.map_or(until, |caught_up| caught_up.min(until))
    }

    fn has_caught_up(&self) -> bool {
        self.catching_up.is_some_and(|caught_up| caught_up <= Instant::now())
    }

    /// Something came; what else was missed may follow.
    fn still_catching_up(&mut self) {
        if let Some(caught_up) = &mut self.catching_up {
            *caught_up = (Instant::now() + CAUGHT_UP.0).min(self.began + CAUGHT_UP.1);
        }
    }
}

/// What the lines that are here come to.
#[derive(Default)]
struct Heard {
    steps: Vec<Step>,
    version: Option<String>,
    /// Steps older than what came before them.
    late: Vec<Step>,
    doubt: Option<String>,
}

impl Collector {
    /// Spread, so that watches do not all end at once.
    pub fn watch_seconds(&self) -> Duration {
        let least = self.shared.options.patience.watch.as_secs().max(1);
        Duration::from_secs(least + rand::random::<u64>() % least)
    }

    /// From the position on.
    pub async fn watch(&self, course: &mut Course) -> Result<Ended, Error> {
        let seconds = self.watch_seconds();
        let from = percent_encoded(course.position.as_deref().unwrap_or_default());
        let query = "watch=true&allowWatchBookmarks=true";
        let query = format!("{query}&resourceVersion={from}&timeoutSeconds={}", seconds.as_secs());
        let body = match self.get(&query).await {
            Err(Error::Answer { status: 410, .. }) => return Ok(expired()),
            // Perhaps it has not come so far yet, or never will again.
            Err(error @ Error::Answer { status: 504, .. }) => {
                return match self.still_there(course).await? {
                    Ended::Closed => Err(error),
                    expired => Ok(expired),
                };
            }
            other => other?,
        };
        let mut lines = Lines::new(body.into_data_stream(), &self.key, self.shared.options.max_object_bytes);
        self.watch_lines(&mut lines, Watching::begin(&self.shared.options.patience, seconds), course).await
    }

    /// Follows an open watch.
    pub async fn watch_lines<S, E>(
        &self,
        lines: &mut Lines<S>,
        mut watching: Watching,
        course: &mut Course,
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
                Err(_) => return doubted(watching).ok_or_else(|| self.interrupted("the watch went silent")),
            }
        }
    }

    /// What was missed is in the store: the collection is followed again.
    async fn caught_up(&self, watching: &mut Watching) -> Result<(), Error> {
        watching.catching_up = None;
        self.send_and_wait(Vec::new(), Progress::default()).await?;
        if watching.doubt.is_none() {
            self.shared.states.update(&self.key, |state| state.trouble = None);
        }
        Ok(())
    }

    async fn closed(&self, watching: Watching, course: &mut Course) -> Result<Ended, Error> {
        let (heard, brief) = (watching.heard, !watching.moved && watching.began.elapsed() < BRIEF);
        if let Some(ended) = doubted(watching) {
            return Ok(ended);
        }
        match heard {
            _ if brief => Err(self.interrupted("its watch ended at once")),
            true => Ok(Ended::Closed),
            false => self.still_there(course).await,
        }
    }

    /// Servers tell nothing from before where a watch begins. One that was restored from a backup, with a lower version
    /// than that, is silent until it gets there: so a silent watch is followed by a look at the version.
    async fn still_there(&self, course: &Course) -> Result<Ended, Error> {
        let plan = Plan { objects: 1, bytes: self.shared.options.max_object_bytes };
        let (bytes, _share) = self.page(None, plan).await?;
        let page: Page<'_> = self.parse(&bytes)?;
        let version = page.metadata.resource_version;
        match &course.position {
            Some(position) if is_older(&version, position) => {
                Ok(Ended::Expired(format!("it is at resourceVersion {version}, after {position}; it is listed again")))
            }
            _ => Ok(Ended::Closed),
        }
    }

    /// Takes the events that are here. What came before something unreadable is taken, too.
    async fn events<S, E>(
        &self,
        lines: &mut Lines<S>,
        watching: &mut Watching,
        course: &mut Course,
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
        let mut heard = Heard::default();
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

    fn event(&self, line: &[u8], kind: &str, course: &Course, heard: &mut Heard) -> Result<Option<Ended>, Error> {
        let event: Event<'_> = self.parse(line)?;
        let step = match &*event.type_ {
            "ADDED" | "MODIFIED" => match self.put(event.object, kind, kind) {
                Taken::Step(step) => Some(step),
                Taken::Elsewhere | Taken::Refused => None,
            },
            "DELETED" => {
                let step = self.deletion(event.object, kind);
                if step.is_none() {
                    heard.doubt = Some("it told the deletion of something unreadable".to_owned());
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
        // What became a step has been read already.
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
        heard: Heard,
        known: (String, Option<bool>),
        share: Share,
        watching: &mut Watching,
        course: &mut Course,
    ) -> Result<(), Error> {
        let Heard { steps, version, late, mut doubt } = heard;
        if !steps.is_empty() || version.is_some() {
            let kind = Self::kind_told(known, &steps);
            let progress = Progress { resource_version: version.clone(), kind, ..Progress::default() };
            self.send(steps, progress, share).await?;
        } else {
            // Nobody waits for bytes while holding some.
            drop(share);
        }
        if let Some(version) = version {
            watching.moved |= course.position.as_ref() != Some(&version);
            course.advance(version);
        }
        if !late.is_empty() {
            // They are compared with what is stored.
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
            tracing::debug!(collection = %self.key, reason, "the member is not in order");
            self.shared.states.update(&self.key, |state| state.trouble = Some(reason.clone()));
            watching.doubt = Some((reason, Instant::now() + self.shared.options.patience.doubt));
        }
        Ok(())
    }

    /// Whether something newer is known of the object. A new one that comes late may have been deleted since.
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
    format!("it told resourceVersion {version} after {reached}: an outdated replica, or restored; it is listed again")
}

fn expired() -> Ended {
    Ended::Expired("it no longer tells what was missed; it is listed again".to_owned())
}

fn doubted(watching: Watching) -> Option<Ended> {
    watching.doubt.map(|(reason, _)| Ended::Expired(reason))
}
