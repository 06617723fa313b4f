//! Follows the logs of all pods that match a query, including pods created later.
//!
//! The search that found the pods stays open and reports changed and removed pods. It is repeated regularly,
//! because the caller's permissions may change.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use crowsnest_index::{Record, SearchEvent, Skipped};
use crowsnest_search::LiveEvent;
use futures::stream::{BoxStream, SelectAll, StreamExt, unfold};
use jiff::{SignedDuration, Timestamp};
use tokio::sync::watch;
use tokio::time::Instant;

use super::follower::{PodSnapshot, follow_log};
use super::pod::Pod;
use super::read::{Refusal, SourceEvent};
use super::select::LogStart;
use super::{Found, LogEvent, LogSource, LogSummary, MOST_PODS, Selecting, Selection};

/// Maximum duration of a follow request. Then the client has to authenticate and be authorized again.
const LONGEST: Duration = Duration::from_secs(4 * 3600);
/// Minimum interval between two searches.
const ANEW: Duration = Duration::from_secs(2);
/// Tolerance for clock differences: logs of a pod created at most this long before the request are read from the
/// beginning.
const CLOCKS: SignedDuration = SignedDuration::from_secs(60);

struct Follow {
    selecting: Selecting,
    selection: Selection,
    /// Followed pods by record id.
    pods: HashMap<u64, FollowedPod>,
    /// Pods reported by the running search until its answer is complete; None after that.
    found_again: Option<HashSet<u64>>,
    logs: SelectAll<BoxStream<'static, (Arc<LogSource>, SourceEvent)>>,
    waiting: VecDeque<LogEvent>,
    skipped: Vec<Skipped>,
    summary: LogSummary,
    began: Timestamp,
    ends: Instant,
    over: bool,
}

/// A pod whose logs are followed.
struct FollowedPod {
    /// Identifies the pod: another pod of the same name has another uid.
    uid: String,
    snapshot: watch::Sender<PodSnapshot>,
    /// Containers whose log was opened, including those that ended.
    containers: BTreeSet<String>,
}

pub fn follow(
    selecting: Selecting,
    selection: Selection,
    mut found: Found,
    began: Timestamp,
) -> BoxStream<'static, LogEvent> {
    let opening = found.opening();
    let from = selecting.reader.request.from;
    let mut follow = Follow {
        selecting,
        selection,
        pods: HashMap::new(),
        found_again: None,
        logs: SelectAll::new(),
        waiting: VecDeque::new(),
        skipped: found.skipped,
        summary: LogSummary::default(),
        began,
        ends: Instant::now() + LONGEST,
        over: false,
    };
    for (record, pod) in found.pods {
        follow.see(&record, pod, from);
    }
    let events = unfold(follow, |mut follow| async move { follow.next().await.map(|event| (event, follow)) });
    opening.chain(events).boxed()
}

impl Follow {
    async fn next(&mut self) -> Option<LogEvent> {
        loop {
            if let Some(event) = self.waiting.pop_front() {
                return Some(event);
            }
            if self.over {
                return None;
            }
            tokio::select! {
                Some((source, source_event)) = self.logs.next(), if !self.logs.is_empty() => {
                    self.summary.count(&source_event);
                    return Some(LogEvent::Source(source, source_event));
                }
                event = self.selection.next() => self.selected(event),
                () = tokio::time::sleep_until(self.ends) => self.end("the limit of four hours was reached; repeat the request"),
            }
        }
    }

    fn end(&mut self, why: &'static str) {
        self.over = true;
        self.waiting.push_back(LogEvent::Done(LogSummary { why: Some(why), ..self.summary.clone() }));
    }

    fn selected(&mut self, event: Option<Result<LiveEvent, crowsnest_index::Error>>) {
        match event {
            Some(Ok(LiveEvent::Answer(answer))) => self.answered(answer),
            Some(Ok(LiveEvent::Changed(hit))) => match self.selecting.pod(&hit) {
                Ok(Some((record, pod))) => {
                    let from = self.joins_from(&pod);
                    self.see(&record, pod, from);
                }
                Ok(None) => self.lose(hit.object.record.id),
                Err(error) => tracing::warn!(%error, "cannot decode a pod; its logs are not followed"),
            },
            Some(Ok(LiveEvent::Removed(object))) => self.lose(object.record.id),
            Some(Ok(LiveEvent::Counts { .. })) => {}
            Some(Ok(LiveEvent::Lagged)) | None => self.anew(),
            Some(Err(error)) => {
                self.over = true;
                self.waiting.push_back(LogEvent::Failed(error.chain()));
            }
        }
    }

    /// Repeats the search. Pods that it does not return are removed.
    fn anew(&mut self) {
        self.found_again = Some(HashSet::new());
        let selecting = self.selecting.clone();
        let later = async move {
            tokio::time::sleep(ANEW).await;
            selecting.select()
        };
        self.selection = futures::stream::once(later).flatten().boxed();
    }

    /// Handles a part of the answer of a repeated search.
    fn answered(&mut self, answer: SearchEvent) {
        match answer {
            SearchEvent::Skipped(skipped) => {
                let skipped = self.selecting.skipped(skipped);
                let clusters = |skipped: &[Skipped]| skipped.iter().map(|s| s.cluster.clone()).collect::<Vec<_>>();
                if clusters(&skipped) != clusters(&self.skipped) {
                    self.skipped.clone_from(&skipped);
                    self.waiting.push_back(LogEvent::Skipped(skipped));
                }
            }
            SearchEvent::Hits(hits) => {
                for hit in &hits {
                    if let Some(found_again) = &mut self.found_again {
                        found_again.insert(hit.object.record.id);
                    }
                    match self.selecting.pod(hit) {
                        Ok(Some((record, pod))) => {
                            let from = self.joins_from(&pod);
                            self.see(&record, pod, from);
                        }
                        Ok(None) => {}
                        Err(error) => tracing::warn!(%error, "cannot decode a pod; its logs are not followed"),
                    }
                }
            }
            SearchEvent::Done(summary) => {
                // Pods missing from an incomplete answer may still exist.
                let Some(found_again) =
                    self.found_again.take().filter(|_| !summary.incomplete && summary.next.is_none())
                else {
                    return;
                };
                let gone: Vec<u64> = self.pods.keys().filter(|id| !found_again.contains(id)).copied().collect();
                gone.into_iter().for_each(|id| self.lose(id));
            }
            SearchEvent::Remarks(_) | SearchEvent::Facets(_) | SearchEvent::Groups(_) => {}
        }
    }

    /// Start position for a pod that enters the selection: its beginning, unless the pod existed before the
    /// request.
    fn joins_from(&self, pod: &Pod) -> LogStart {
        let since = self.began.checked_sub(CLOCKS).unwrap_or(self.began).as_second();
        match pod.created {
            Some(created) if created < since => LogStart { since: Some(self.began), tail: None },
            _ => LogStart::default(),
        }
    }

    /// Adds or updates a pod. Running containers are read from `from`, containers that start later from their
    /// beginning.
    fn see(&mut self, record: &Arc<Record>, pod: Pod, from: LogStart) {
        if self.pods.get(&record.id).is_some_and(|known| known.uid != record.uid) {
            self.lose(record.id);
        }
        let sources: Vec<LogSource> = self.selecting.sources(record, &pod).collect();
        if self.pods.len() >= MOST_PODS && !self.pods.contains_key(&record.id) {
            let message = format!("the logs of {MOST_PODS} pods are already followed; narrow the query");
            let refusal = Refusal { code: 429, reason: "TooManyRequests".to_owned(), message };
            for source in sources {
                self.summary.refused += 1;
                self.waiting.push_back(LogEvent::Source(Arc::new(source), SourceEvent::Refused(refusal.clone())));
            }
            return;
        }
        let snapshot = PodSnapshot { pod, is_removed: false };
        let followed_pod = match self.pods.entry(record.id) {
            Entry::Occupied(entry) => {
                entry.get().snapshot.send_replace(snapshot);
                entry.into_mut()
            }
            Entry::Vacant(entry) => entry.insert(FollowedPod {
                uid: record.uid.clone(),
                snapshot: watch::Sender::new(snapshot),
                containers: BTreeSet::new(),
            }),
        };
        for source in sources {
            if followed_pod.containers.insert(source.container.clone()) {
                let started = followed_pod.snapshot.borrow().pod.state(&source.container).started;
                let from = if started { from } else { LogStart::default() };
                let (reader, source) = (self.selecting.reader.clone(), Arc::new(source));
                let log = follow_log(reader, Arc::clone(&source), followed_pod.snapshot.subscribe(), from);
                self.logs.push(log.map(move |event| (Arc::clone(&source), event)).boxed());
            }
        }
    }

    fn lose(&mut self, id: u64) {
        if let Some(pod) = self.pods.remove(&id) {
            pod.snapshot.send_modify(|snapshot| snapshot.is_removed = true);
        }
    }
}
