//! Follows the logs of all pods that match a query, including pods created later.
//!
//! The search that found the pods stays open and reports changed and removed pods. It is repeated regularly,
//! because the caller's permissions may change.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use crowsnest_index::{Record, SearchEvent, SkippedCluster};
use crowsnest_search::LiveEvent;
use futures::stream::{BoxStream, SelectAll, StreamExt, unfold};
use jiff::{SignedDuration, Timestamp};
use tokio::sync::watch;
use tokio::time::Instant;

use super::follower::{PodSnapshot, follow_log};
use super::pod::Pod;
use super::read::{Refusal, SourceEvent};
use super::select::LogStart;
use super::{FoundPods, LogEvent, LogSource, LogSummary, MAX_PODS, PodSearch, Selection};

/// Maximum duration of a follow request. Afterwards the client has to authenticate and be authorized again.
const MAX_DURATION: Duration = Duration::from_secs(4 * 3600);
/// Minimum interval between two searches.
const SEARCH_INTERVAL: Duration = Duration::from_secs(2);
/// Tolerance for clock differences: logs of a pod created at most this long before the request are read from the
/// beginning.
const CLOCK_TOLERANCE: SignedDuration = SignedDuration::from_secs(60);

struct PodFollower {
    search: PodSearch,
    selection: Selection,
    /// Followed pods by record id.
    pods: HashMap<u64, FollowedPod>,
    /// Ids of the pods returned by a repeated search until it is complete; None otherwise.
    found_ids: Option<HashSet<u64>>,
    logs: SelectAll<BoxStream<'static, (Arc<LogSource>, SourceEvent)>>,
    /// Events to send next.
    queued: VecDeque<LogEvent>,
    skipped: Vec<SkippedCluster>,
    summary: LogSummary,
    started_at: Timestamp,
    deadline: Instant,
    has_ended: bool,
}

/// A pod whose logs are followed.
struct FollowedPod {
    /// Identifies the pod: another pod of the same name has another uid.
    uid: String,
    snapshot: watch::Sender<PodSnapshot>,
    /// Containers whose log was opened, including those that ended.
    containers: BTreeSet<String>,
}

/// Follows the logs of the pods found so far, and of those that the selection reports later.
pub fn follow(
    search: PodSearch,
    selection: Selection,
    mut found: FoundPods,
    started_at: Timestamp,
) -> BoxStream<'static, LogEvent> {
    let opening_events = found.opening_events();
    let start = search.reader.request.start;
    let mut follower = PodFollower {
        search,
        selection,
        pods: HashMap::new(),
        found_ids: None,
        logs: SelectAll::new(),
        queued: VecDeque::new(),
        skipped: found.skipped,
        summary: LogSummary::default(),
        started_at,
        deadline: Instant::now() + MAX_DURATION,
        has_ended: false,
    };
    for (record, pod) in found.pods {
        follower.follow_pod(&record, pod, start);
    }
    let events = unfold(follower, |mut follower| async move { follower.next().await.map(|event| (event, follower)) });
    opening_events.chain(events).boxed()
}

impl PodFollower {
    async fn next(&mut self) -> Option<LogEvent> {
        loop {
            if let Some(event) = self.queued.pop_front() {
                return Some(event);
            }
            if self.has_ended {
                return None;
            }
            tokio::select! {
                Some((source, source_event)) = self.logs.next(), if !self.logs.is_empty() => {
                    self.summary.count(&source_event);
                    return Some(LogEvent::Source(source, source_event));
                }
                event = self.selection.next() => self.handle_search_event(event),
                () = tokio::time::sleep_until(self.deadline) => self.end("the limit of four hours was reached; repeat the request"),
            }
        }
    }

    fn end(&mut self, reason: &'static str) {
        self.has_ended = true;
        self.queued.push_back(LogEvent::Done(LogSummary { end_reason: Some(reason), ..self.summary.clone() }));
    }

    fn handle_search_event(&mut self, event: Option<Result<LiveEvent, crowsnest_index::Error>>) {
        match event {
            Some(Ok(LiveEvent::Initial(event))) => self.handle_result(event),
            Some(Ok(LiveEvent::Changed(hit))) => match self.search.pod(&hit) {
                Ok(Some((record, pod))) => {
                    let start = self.start_for_later_pod(&pod);
                    self.follow_pod(&record, pod, start);
                }
                Ok(None) => self.remove_pod(hit.object.record.id),
                Err(error) => tracing::warn!(%error, "cannot decode a pod; its logs are not followed"),
            },
            Some(Ok(LiveEvent::Removed(object))) => self.remove_pod(object.record.id),
            Some(Ok(LiveEvent::Counts(_))) => {}
            Some(Ok(LiveEvent::Lagged)) | None => self.repeat_search(),
            Some(Err(error)) => {
                self.has_ended = true;
                self.queued.push_back(LogEvent::Failed(error.chain()));
            }
        }
    }

    /// Repeats the search. Pods that it does not return are removed.
    fn repeat_search(&mut self) {
        self.found_ids = Some(HashSet::new());
        let search = self.search.clone();
        let delayed = async move {
            tokio::time::sleep(SEARCH_INTERVAL).await;
            search.select()
        };
        self.selection = futures::stream::once(delayed).flatten().boxed();
    }

    /// Handles a part of the result of a search.
    fn handle_result(&mut self, event: SearchEvent) {
        match event {
            SearchEvent::Skipped(skipped) => {
                let skipped = self.search.selected_clusters(skipped);
                let clusters =
                    |skipped: &[SkippedCluster]| skipped.iter().map(|s| s.cluster.clone()).collect::<Vec<_>>();
                if clusters(&skipped) != clusters(&self.skipped) {
                    self.skipped.clone_from(&skipped);
                    self.queued.push_back(LogEvent::Skipped(skipped));
                }
            }
            SearchEvent::Hits(hits) => {
                for hit in &hits {
                    if let Some(found_ids) = &mut self.found_ids {
                        found_ids.insert(hit.object.record.id);
                    }
                    match self.search.pod(hit) {
                        Ok(Some((record, pod))) => {
                            let start = self.start_for_later_pod(&pod);
                            self.follow_pod(&record, pod, start);
                        }
                        Ok(None) => {}
                        Err(error) => tracing::warn!(%error, "cannot decode a pod; its logs are not followed"),
                    }
                }
            }
            SearchEvent::Done(summary) => {
                // Pods missing from an incomplete result may still exist.
                let Some(found_ids) = self.found_ids.take().filter(|_| !summary.incomplete && summary.next.is_none())
                else {
                    return;
                };
                let missing: Vec<u64> = self.pods.keys().filter(|id| !found_ids.contains(id)).copied().collect();
                missing.into_iter().for_each(|id| self.remove_pod(id));
            }
            SearchEvent::Notices(_) | SearchEvent::Facets(_) | SearchEvent::Groups(_) | SearchEvent::Summary(_) => {}
        }
    }

    /// Start position for a pod that enters the selection: its beginning, unless the pod existed before the
    /// request.
    fn start_for_later_pod(&self, pod: &Pod) -> LogStart {
        let since = self.started_at.checked_sub(CLOCK_TOLERANCE).unwrap_or(self.started_at).as_second();
        match pod.created_seconds {
            Some(created) if created < since => LogStart { since: Some(self.started_at), tail: None },
            _ => LogStart::default(),
        }
    }

    /// Adds or updates a pod. The logs of containers that have started are read from `start`, those of containers that start
    /// later from their beginning.
    fn follow_pod(&mut self, record: &Arc<Record>, pod: Pod, start: LogStart) {
        if self.pods.get(&record.id).is_some_and(|followed| followed.uid != record.uid) {
            self.remove_pod(record.id);
        }
        let sources: Vec<LogSource> = self.search.sources(record, &pod).collect();
        if self.pods.len() >= MAX_PODS && !self.pods.contains_key(&record.id) {
            let message = format!("the logs of {MAX_PODS} pods are already followed; narrow the query");
            let refusal = Refusal { code: 429, reason: "TooManyRequests".to_owned(), message };
            for source in sources {
                self.summary.refused += 1;
                self.queued.push_back(LogEvent::Source(Arc::new(source), SourceEvent::Refused(refusal.clone())));
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
                let has_started = followed_pod.snapshot.borrow().pod.state(&source.container).has_started;
                let start = if has_started { start } else { LogStart::default() };
                let (reader, source) = (self.search.reader.clone(), Arc::new(source));
                let log = follow_log(reader, Arc::clone(&source), followed_pod.snapshot.subscribe(), start);
                self.logs.push(log.map(move |event| (Arc::clone(&source), event)).boxed());
            }
        }
    }

    fn remove_pod(&mut self, id: u64) {
        if let Some(pod) = self.pods.remove(&id) {
            pod.snapshot.send_modify(|snapshot| snapshot.is_removed = true);
        }
    }
}
