//! Logs that are followed: those of the pods there are, and of those that come.
//!
//! The search that found the pods goes on, and tells which come, change and leave. It is asked anew now and then: what a
//! caller may read may have changed.

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

use super::followed::{Known, followed};
use super::pod::Pod;
use super::read::{Refusal, Said};
use super::select::From;
use super::{Found, LogEvent, LogSource, MOST_PODS, Selecting, Selection, Told};

/// Whoever follows longer asks anew: who somebody is, and whether they may ask, is looked at when they ask.
const LONGEST: Duration = Duration::from_secs(4 * 3600);
/// Between two searches, where one ends at once.
const ANEW: Duration = Duration::from_secs(2);
/// A pod that is older than the request by more is read from when the request began: clocks differ.
const CLOCKS: SignedDuration = SignedDuration::from_secs(60);

struct Follow {
    selecting: Selecting,
    selection: Selection,
    /// By record.
    pods: HashMap<u64, Followed>,
    /// Those that the running search told, until it has told all; none after that.
    told_anew: Option<HashSet<u64>>,
    logs: SelectAll<BoxStream<'static, (Arc<LogSource>, Said)>>,
    waiting: VecDeque<LogEvent>,
    skipped: Vec<Skipped>,
    told: Told,
    began: Timestamp,
    ends: Instant,
    over: bool,
}

/// A pod whose logs are followed.
struct Followed {
    /// A pod of the same name that comes after it is another one.
    uid: String,
    known: watch::Sender<Known>,
    /// Containers, whether their logs are over or not.
    containers: BTreeSet<String>,
}

pub fn follow(
    selecting: Selecting,
    selection: Selection,
    mut found: Found,
    began: Timestamp,
) -> BoxStream<'static, LogEvent> {
    let opening = found.opening();
    let from = selecting.reach.request.from;
    let mut follow = Follow {
        selecting,
        selection,
        pods: HashMap::new(),
        told_anew: None,
        logs: SelectAll::new(),
        waiting: VecDeque::new(),
        skipped: found.skipped,
        told: Told::default(),
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
                Some((source, said)) = self.logs.next(), if !self.logs.is_empty() => {
                    self.told.count(&said);
                    return Some(LogEvent::Said(source, said));
                }
                event = self.selection.next() => self.selected(event),
                () = tokio::time::sleep_until(self.ends) => self.end("they were followed for four hours: ask again"),
            }
        }
    }

    fn end(&mut self, why: &'static str) {
        self.over = true;
        self.waiting.push_back(LogEvent::Done(Told { why: Some(why), ..self.told.clone() }));
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
                Err(error) => tracing::warn!(%error, "a pod cannot be read, and its logs are not followed"),
            },
            Some(Ok(LiveEvent::Left(object))) => self.lose(object.record.id),
            Some(Ok(LiveEvent::Counts { .. })) => {}
            Some(Ok(LiveEvent::FellBehind)) | None => self.anew(),
            Some(Err(error)) => {
                self.over = true;
                self.waiting.push_back(LogEvent::Failed(error.chain()));
            }
        }
    }

    /// Searches again: what it does not find is there no more.
    fn anew(&mut self) {
        self.told_anew = Some(HashSet::new());
        let selecting = self.selecting.clone();
        let later = async move {
            tokio::time::sleep(ANEW).await;
            selecting.select()
        };
        self.selection = futures::stream::once(later).flatten().boxed();
    }

    /// A piece of the answer of a search that was asked anew.
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
                    if let Some(told) = &mut self.told_anew {
                        told.insert(hit.object.record.id);
                    }
                    match self.selecting.pod(hit) {
                        Ok(Some((record, pod))) => {
                            let from = self.joins_from(&pod);
                            self.see(&record, pod, from);
                        }
                        Ok(None) => {}
                        Err(error) => tracing::warn!(%error, "a pod cannot be read, and its logs are not followed"),
                    }
                }
            }
            SearchEvent::Done(summary) => {
                // Of an answer that is not whole, what is missing may be there.
                let Some(told) = self.told_anew.take().filter(|_| !summary.incomplete && summary.next.is_none()) else {
                    return;
                };
                let gone: Vec<u64> = self.pods.keys().filter(|id| !told.contains(id)).copied().collect();
                gone.into_iter().for_each(|id| self.lose(id));
            }
            SearchEvent::Remarks(_) | SearchEvent::Facets(_) | SearchEvent::Groups(_) => {}
        }
    }

    /// What comes is read from its beginning, unless it was there before and only was not asked for.
    fn joins_from(&self, pod: &Pod) -> From {
        let since = self.began.checked_sub(CLOCKS).unwrap_or(self.began).as_second();
        match pod.created {
            Some(created) if created < since => From { since: Some(self.began), tail: None },
            _ => From::default(),
        }
    }

    /// A pod as it is now. What its containers that run have said is read from there; of others all is new.
    fn see(&mut self, record: &Arc<Record>, pod: Pod, from: From) {
        if self.pods.get(&record.id).is_some_and(|known| known.uid != record.uid) {
            self.lose(record.id);
        }
        let sources: Vec<LogSource> = self.selecting.sources(record, &pod).collect();
        if self.pods.len() >= MOST_PODS && !self.pods.contains_key(&record.id) {
            let message = format!("the logs of {MOST_PODS} pods are followed already: narrow the query");
            let refusal = Refusal { code: 429, reason: "TooManyRequests".to_owned(), message };
            for source in sources {
                self.told.refused += 1;
                self.waiting.push_back(LogEvent::Said(Arc::new(source), Said::Refused(refusal.clone())));
            }
            return;
        }
        let known = Known { pod, gone: false };
        let followed_pod = match self.pods.entry(record.id) {
            Entry::Occupied(entry) => {
                entry.get().known.send_replace(known);
                entry.into_mut()
            }
            Entry::Vacant(entry) => entry.insert(Followed {
                uid: record.uid.clone(),
                known: watch::Sender::new(known),
                containers: BTreeSet::new(),
            }),
        };
        for source in sources {
            if followed_pod.containers.insert(source.container.clone()) {
                let started = followed_pod.known.borrow().pod.state(&source.container).started;
                let from = if started { from } else { From::default() };
                let (reach, source) = (self.selecting.reach.clone(), Arc::new(source));
                let log = followed(reach, Arc::clone(&source), followed_pod.known.subscribe(), from);
                self.logs.push(log.map(move |said| (Arc::clone(&source), said)).boxed());
            }
        }
    }

    fn lose(&mut self, id: u64) {
        if let Some(pod) = self.pods.remove(&id) {
            pod.known.send_modify(|known| known.gone = true);
        }
    }
}
