//! One collector: list, then watch, for ever; resumes from the stored position.

use super::feed::{self, Bookmark, Event, Lines, Page, StatusBody};
use super::{Scope, Shared};
use crate::ingest::Draft;
use crate::store::{Batch, Progress, Step};
use crate::{CollectionKey, Epoch, Error};
use bytes::Bytes;
use http_body_util::BodyExt;
use kube::Client;
use serde_json::value::RawValue;
use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a member may take to begin an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// A server that streams initial lists sends them without long pauses.
const INITIAL_EVENTS_PAUSE: Duration = Duration::from_secs(15);
/// Steps sent to the writer at once.
const BATCH_STEPS: usize = 500;
const BACKOFF: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(30));
/// A watch that lasted this long proves the member well.
const STEADY: Duration = Duration::from_secs(20);

pub(super) struct Collector {
    pub shared: Arc<Shared>,
    pub key: CollectionKey,
    pub epoch: Epoch,
    pub scope: Scope,
    pub client: Client,
}

/// Why a watch ended without a failure.
enum Ended {
    /// The server closed it, as servers do; go on from here.
    Closed,
    /// Its history is gone: list again.
    Expired,
}

/// Names seen by the list in progress, by 128-bit hash.
struct Seen {
    hashes: HashSet<u128>,
    one: RandomState,
    two: RandomState,
}

impl Seen {
    fn new() -> Self {
        Self { hashes: HashSet::new(), one: RandomState::new(), two: RandomState::new() }
    }

    fn hash(&self, namespace: &str, name: &str) -> u128 {
        let key = (namespace, name);
        (u128::from(self.one.hash_one(key)) << 64) | u128::from(self.two.hash_one(key))
    }

    fn add(&mut self, namespace: &str, name: &str) {
        self.hashes.insert(self.hash(namespace, name));
    }

    fn has(&self, namespace: &str, name: &str) -> bool {
        self.hashes.contains(&self.hash(namespace, name))
    }
}

impl Collector {
    /// Runs until it is dropped.
    pub async fn run(self, stored_position: Option<String>) {
        let mut position = stored_position;
        let mut pause = BACKOFF.0;
        loop {
            let started = Instant::now();
            let error = match self.follow(&mut position).await {
                Err(Error::Stopped) => return,
                Err(error) => error,
                Ok(()) => continue,
            };
            self.shared.metrics.watch_failures.add(1);
            let reason = error.chain();
            tracing::debug!(collection = %self.key, reason, "collector interrupted");
            self.shared.states.update(&self.key, |state| state.trouble = Some(reason));
            if started.elapsed() > STEADY {
                pause = BACKOFF.0;
            }
            // Spread, so that a member that comes back isn't met by everyone at once.
            tokio::time::sleep(pause.mul_f64(0.5 + rand::random::<f64>())).await;
            pause = (pause * 2).min(BACKOFF.1);
        }
    }

    /// Lists if there is no position, then watches until something ends it.
    async fn follow(&self, position: &mut Option<String>) -> Result<(), Error> {
        let resume = match position.as_ref() {
            Some(version) => version.clone(),
            None => {
                let streams = !self.shared.no_watch_list.lock().contains(&self.key.cluster);
                let streamed = if streams { self.watch_list(position).await? } else { None };
                match streamed {
                    // The same stream went on as a watch and has ended since.
                    Some(ended) => return self.after(ended, position),
                    None => {
                        let version = self.paged_list().await?;
                        *position = Some(version.clone());
                        version
                    }
                }
            }
        };
        let ended = self.watch(resume, position).await?;
        self.after(ended, position)
    }

    fn after(&self, ended: Ended, position: &mut Option<String>) -> Result<(), Error> {
        if matches!(ended, Ended::Expired) {
            *position = None;
            let missed = "the member no longer tells what it missed; it is listed again";
            self.shared.states.update(&self.key, |state| state.trouble = Some(missed.to_owned()));
        }
        Ok(())
    }

    fn uri(&self, query: &str) -> String {
        format!("{}?{query}", self.key.resource.path(self.scope.path_namespace()))
    }

    fn interrupted(&self, reason: impl Into<String>) -> Error {
        Error::Interrupted {
            cluster: self.key.cluster.clone(),
            resource: self.key.resource.clone(),
            reason: reason.into(),
        }
    }

    /// Pages of a list until its end; what it did not name is deleted.
    async fn paged_list(&self) -> Result<String, Error> {
        let cluster_lists = self.shared.cluster_lists(&self.key.cluster);
        let _cluster = cluster_lists.acquire().await.map_err(|_| Error::Stopped)?;
        let _all = self.shared.lists.acquire().await.map_err(|_| Error::Stopped)?;
        self.shared.metrics.lists.add(1);
        let mut seen = Seen::new();
        let mut token: Option<String> = None;
        let size = self.shared.options.page_size;
        loop {
            let query = match &token {
                None => format!("limit={size}"),
                Some(token) => format!("limit={size}&continue={}", percent(token)),
            };
            let body = match feed::get(&self.client, &self.key, &self.uri(&query), ANSWER_TIMEOUT).await {
                Err(Error::Answer { status: 410, .. }) if token.is_some() => {
                    return Err(self.interrupted("the list took longer than the server keeps its history"));
                }
                other => other?,
            };
            let max = self.shared.options.max_object_bytes * 8;
            let bytes = feed::read_page(body, &self.key, max).await?;
            let page: Page<'_> = self.parse(&bytes)?;
            let listed_kind = page.kind.strip_suffix("List").unwrap_or_default().to_owned();
            let known = self.shared.kind_of(&self.key);
            let kind = known.as_ref().map_or(listed_kind, |(kind, _)| kind.clone());
            let namespaced = known.map(|(_, namespaced)| namespaced);
            for chunk in page.items.iter().flatten().copied().collect::<Vec<_>>().chunks(BATCH_STEPS) {
                let steps: Vec<Step> = chunk.iter().filter_map(|raw| self.put(raw, &kind)).collect();
                steps.iter().map(Step::key).for_each(|(namespace, name)| seen.add(namespace, name));
                let namespaced = namespaced.unwrap_or_else(|| steps.iter().any(|step| !step.key().0.is_empty()));
                let progress = Progress { kind: Some((kind.clone(), namespaced)), ..Progress::default() };
                self.send(steps, progress).await?;
            }
            match page.metadata.continue_token.filter(|token| !token.is_empty()) {
                Some(next) => token = Some(next),
                None => {
                    let version = page.metadata.resource_version;
                    self.finish_list(&seen, &version).await?;
                    return Ok(version);
                }
            }
        }
    }

    /// Deletes what the list did not name, and marks the collection complete, in that order.
    async fn finish_list(&self, seen: &Seen, version: &str) -> Result<(), Error> {
        // Everything queued must be in the store before its keys are compared.
        self.send_and_wait(Vec::new(), Progress::default()).await?;
        let keys = self.shared.store.keys(&self.key).await?;
        let gone = keys.into_iter().filter(|(namespace, name, _)| !seen.has(namespace, name));
        let gone = gone.map(|(namespace, name, _)| Step::Delete { namespace, name, resource_version: String::new() });
        let progress = Progress {
            resource_version: Some(version.to_owned()),
            complete: true,
            scope: Some(self.scope.text()),
            kind: self.shared.kind_of(&self.key),
        };
        self.send_and_wait(gone.collect(), progress).await?;
        self.shared.states.update(&self.key, |state| state.trouble = None);
        Ok(())
    }

    /// A watch that begins with everything there is. None when the server does not offer it.
    async fn watch_list(&self, position: &mut Option<String>) -> Result<Option<Ended>, Error> {
        let cluster_lists = self.shared.cluster_lists(&self.key.cluster);
        let permits = (
            cluster_lists.acquire_owned().await.map_err(|_| Error::Stopped)?,
            self.shared.lists.acquire().await.map_err(|_| Error::Stopped)?,
        );
        let query = "watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
        let seconds = watch_seconds();
        let uri = self.uri(&format!("{query}&timeoutSeconds={}", seconds.as_secs()));
        let body = match feed::get(&self.client, &self.key, &uri, ANSWER_TIMEOUT).await {
            // Older servers refuse the parameters.
            Err(Error::Answer { status: 400 | 422, .. }) => {
                self.shared.no_watch_list.lock().insert(self.key.cluster.clone());
                return Ok(None);
            }
            other => other?,
        };
        self.shared.metrics.lists.add(1);
        let mut stream = Lines::new(body.into_data_stream(), self.shared.options.max_object_bytes);
        let mut seen = Seen::new();
        let version = loop {
            if let Some(version) = self.initial_events(&mut stream, &mut seen).await? {
                break version;
            }
            match tokio::time::timeout(INITIAL_EVENTS_PAUSE, stream.more()).await {
                Ok(Ok(true)) => {}
                Ok(Ok(false)) => return Err(self.interrupted("the initial list ended early")),
                Ok(Err(reason)) => return Err(self.interrupted(reason)),
                Err(_) => {
                    // It took the parameters for something else: ask the old way.
                    self.shared.no_watch_list.lock().insert(self.key.cluster.clone());
                    return Ok(None);
                }
            }
        };
        self.finish_list(&seen, &version).await?;
        *position = Some(version);
        drop(permits);
        self.watch_lines(&mut stream, seconds, position).await.map(Some)
    }

    /// Takes the lines that are here. Some(version) once the initial events are over.
    async fn initial_events<S, E>(&self, lines: &mut Lines<S>, seen: &mut Seen) -> Result<Option<String>, Error>
    where
        S: futures::Stream<Item = Result<Bytes, E>> + Unpin,
        E: std::fmt::Display,
    {
        let known = self.shared.kind_of(&self.key);
        let kind = known.as_ref().map(|(kind, _)| kind.clone()).unwrap_or_default();
        let mut steps = Vec::new();
        let mut ended = None;
        while let Some(line) = lines.ready() {
            if line.is_empty() {
                continue;
            }
            let event: Event<'_> = self.parse(&line)?;
            match &*event.type_ {
                "BOOKMARK" => {
                    let bookmark: Bookmark = self.parse(event.object.get().as_bytes())?;
                    if bookmark.ends_initial_events() {
                        ended = Some(bookmark.metadata.resource_version);
                        break;
                    }
                }
                "ERROR" => return Err(self.refused(event.object)),
                "DELETED" => steps.extend(self.deletion(event.object, &kind)),
                _ => {
                    if let Some(step) = self.put(event.object, &kind) {
                        let (namespace, name) = step.key();
                        seen.add(namespace, name);
                        steps.push(step);
                    }
                }
            }
        }
        if !steps.is_empty() {
            let namespaced = known.map(|(_, namespaced)| namespaced);
            let namespaced = namespaced.unwrap_or_else(|| steps.iter().any(|step| !step.key().0.is_empty()));
            let first = steps.iter().find_map(|step| match step {
                Step::Put(draft, _) => Some(draft.kind.clone()),
                Step::Delete { .. } => None,
            });
            let kind = first.map(|kind| (kind, namespaced));
            self.send(steps, Progress { kind, ..Progress::default() }).await?;
        }
        Ok(ended)
    }

    async fn watch(&self, from: String, position: &mut Option<String>) -> Result<Ended, Error> {
        let seconds = watch_seconds();
        let query = format!(
            "watch=true&allowWatchBookmarks=true&resourceVersion={}&timeoutSeconds={}",
            percent(&from),
            seconds.as_secs()
        );
        let body = match feed::get(&self.client, &self.key, &self.uri(&query), ANSWER_TIMEOUT).await {
            Err(Error::Answer { status: 410, .. }) => return Ok(Ended::Expired),
            other => other?,
        };
        let mut lines = Lines::new(body.into_data_stream(), self.shared.options.max_object_bytes);
        self.watch_lines(&mut lines, seconds, position).await
    }

    /// Follows an open watch; `position` moves along, so that whatever ends it, the next one resumes there.
    async fn watch_lines<S, E>(
        &self,
        lines: &mut Lines<S>,
        seconds: Duration,
        position: &mut Option<String>,
    ) -> Result<Ended, Error>
    where
        S: futures::Stream<Item = Result<Bytes, E>> + Unpin,
        E: std::fmt::Display,
    {
        self.shared.metrics.watches.add(1);
        let now = (self.shared.now_ms)();
        self.shared.states.update(&self.key, |state| {
            state.trouble = None;
            state.heard_at = now;
        });
        // The server ends the watch itself; one that does not is as good as dead.
        let deadline = tokio::time::Instant::now() + seconds + ANSWER_TIMEOUT;
        loop {
            if let Some(ended) = self.events(lines, position).await? {
                return Ok(ended);
            }
            match tokio::time::timeout_at(deadline, lines.more()).await {
                Ok(Ok(true)) => {}
                Ok(Ok(false)) => return Ok(Ended::Closed),
                Ok(Err(reason)) => return Err(self.interrupted(reason)),
                Err(_) => return Err(self.interrupted("the watch went silent")),
            }
        }
    }

    /// Takes the events that are here.
    async fn events<S, E>(&self, lines: &mut Lines<S>, position: &mut Option<String>) -> Result<Option<Ended>, Error>
    where
        S: futures::Stream<Item = Result<Bytes, E>> + Unpin,
        E: std::fmt::Display,
    {
        let known = self.shared.kind_of(&self.key);
        let stored = || self.shared.states.get(&self.key).map(|state| state.kind.to_string());
        let kind = known.as_ref().map(|(kind, _)| kind.clone()).or_else(stored).unwrap_or_default();
        let mut steps = Vec::new();
        let mut version = None;
        let mut ended = None;
        while let Some(line) = lines.ready() {
            if line.is_empty() {
                continue;
            }
            let event: Event<'_> = self.parse(&line)?;
            match &*event.type_ {
                "ADDED" | "MODIFIED" => steps.extend(self.put(event.object, &kind)),
                "DELETED" => steps.extend(self.deletion(event.object, &kind)),
                "BOOKMARK" => {}
                "ERROR" => {
                    let status: StatusBody = self.parse(event.object.get().as_bytes())?;
                    if status.code != 410 {
                        return Err(self.refused(event.object));
                    }
                    ended = Some(Ended::Expired);
                    break;
                }
                other => return Err(self.interrupted(format!("unknown event type {other:?}"))),
            }
            let bookmark: Bookmark = self.parse(event.object.get().as_bytes()).unwrap_or_default();
            if !bookmark.metadata.resource_version.is_empty() {
                version = Some(bookmark.metadata.resource_version);
            }
        }
        if let Some(version) = version {
            let kind = match (&known, steps.first()) {
                (Some(known), _) => Some(known.clone()),
                (None, Some(Step::Put(draft, _))) => Some((draft.kind.clone(), !draft.namespace.is_empty())),
                (None, _) => None,
            };
            let progress = Progress { resource_version: Some(version.clone()), kind, ..Progress::default() };
            self.send(steps, progress).await?;
            *position = Some(version);
        }
        Ok(ended)
    }

    fn parse<'b, T: serde::Deserialize<'b>>(&self, bytes: &'b [u8]) -> Result<T, Error> {
        let malformed = |source| Error::Malformed {
            cluster: self.key.cluster.clone(),
            resource: self.key.resource.clone(),
            source,
        };
        let text = std::str::from_utf8(bytes)
            .map_err(|e| malformed(<serde_json::Error as serde::de::Error>::custom(e.to_string())))?;
        serde_json::from_str(text).map_err(malformed)
    }

    fn refused(&self, status: &RawValue) -> Error {
        let status: StatusBody = self.parse(status.get().as_bytes()).unwrap_or_default();
        Error::Answer {
            cluster: self.key.cluster.clone(),
            resource: self.key.resource.clone(),
            status: status.code,
            message: status.message,
        }
    }

    /// One bad object is refused and counted; it does not take the others with it.
    fn put(&self, raw: &RawValue, kind: &str) -> Option<Step> {
        let shared = &self.shared;
        shared.metrics.objects_received.add(1);
        shared.metrics.bytes_received.add(raw.get().len() as u64);
        let draft = match feed::draft(raw, &self.key, kind, shared.options.store_secret_values) {
            Ok(draft) => draft,
            Err(error) => {
                shared.metrics.objects_refused.add(1);
                tracing::debug!(collection = %self.key, error = error.chain(), "refused an object");
                return None;
            }
        };
        if !draft.namespace.is_empty() && !self.scope.0.contains(&draft.namespace) {
            return None;
        }
        let packed = shared.codec.pack(&format!("{}/{}", self.key.resource.group, draft.kind), &draft.body);
        let (packed, training) = match packed {
            Ok(packed) => packed,
            Err(error) => {
                shared.metrics.objects_refused.add(1);
                tracing::warn!(collection = %self.key, error = error.chain(), "cannot pack an object");
                return None;
            }
        };
        if let Some(set) = training {
            shared.writer.train(set);
        }
        Some(Step::Put(Box::new(draft), packed))
    }

    fn deletion(&self, raw: &RawValue, kind: &str) -> Option<Step> {
        let draft = feed::draft(raw, &self.key, kind, false).ok()?;
        let Draft { namespace, name, resource_version, .. } = draft;
        Some(Step::Delete { namespace, name, resource_version })
    }

    fn batch(&self, steps: Vec<Step>, progress: Progress) -> Batch {
        Batch { collection: self.key.clone(), epoch: self.epoch, steps, progress }
    }

    async fn send(&self, steps: Vec<Step>, progress: Progress) -> Result<(), Error> {
        self.shared.writer.apply(self.batch(steps, progress)).await
    }

    async fn send_and_wait(&self, steps: Vec<Step>, progress: Progress) -> Result<(), Error> {
        self.shared.writer.apply_and_wait(self.batch(steps, progress)).await
    }
}

/// Between five and ten minutes, so that watches do not all end at once.
fn watch_seconds() -> Duration {
    Duration::from_secs(300 + rand::random::<u64>() % 300)
}

/// For a query parameter.
fn percent(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~') {
            out.push(byte as char);
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}
