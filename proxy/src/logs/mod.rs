//! The logs of many pods in many members as one stream.
//!
//! Which pods: a search of the cache finds them, and with it only those the caller may read ([`select`]). Each log is asked of
//! its member as the caller, so that `pods/log` there decides; what is refused is told, and the others go on. Logs that
//! are not followed come in the order of their times ([`merge`]); those that are followed come as they come, new pods join
//! by themselves ([`follow`]). Everything is read no faster than the client reads.

mod follow;
mod followed;
mod line;
mod merge;
mod pod;
mod read;
mod select;

use std::collections::BTreeMap;
use std::sync::Arc;

use crowsnest_apimachinery::names::ClusterName;
use crowsnest_index::{Hit, Object, Record, SearchEvent, SearchRequest, Skipped, Summary};
use crowsnest_search::{LiveEvent, Remark};
use futures::TryStreamExt;
use futures::stream::{BoxStream, StreamExt, once};
use jiff::Timestamp;
use serde::Serialize;
use tokio::sync::Semaphore;

pub use self::line::{LONGEST_LINE, Line};
use self::merge::merged;
use self::pod::Pod;
use self::read::Reach;
pub use self::read::{Refusal, Said};
pub use self::select::{LogRequest, MOST_STREAMS, STREAMS};
use crate::{Caller, Error, Proxy};

/// Logs that are read at once for everybody.
pub(crate) const STREAMS_OF_ALL: usize = 1000;
/// Pods of one request.
const MOST_PODS: usize = 1000;

/// One container.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct LogSource {
    pub cluster: ClusterName,
    pub namespace: String,
    pub pod: String,
    pub container: String,
}

/// A piece of the answer.
#[derive(Debug, Clone)]
pub enum LogEvent {
    /// What the search for the pods has to say of its query.
    Notices(Vec<Remark>),
    /// Clusters whose pods are not known, or not as they are now.
    Skipped(Vec<Skipped>),
    Said(Arc<LogSource>, Said),
    /// The pods can no longer be followed; nothing comes behind it.
    Failed(String),
    Done(Told),
}

/// The end of an answer.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Told {
    pub lines: u64,
    /// Logs that were asked for.
    pub logs: u64,
    /// Times one was refused or broke off.
    pub refused: u64,
    /// Of logs that are followed: why they are not any more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<&'static str>,
}

impl Told {
    fn count(&mut self, said: &Said) {
        match said {
            Said::Joined => self.logs += 1,
            Said::Line(_) => self.lines += 1,
            Said::Refused(_) => self.refused += 1,
            Said::Left(_) => {}
        }
    }
}

type Selection = BoxStream<'static, Result<LiveEvent, crowsnest_index::Error>>;

/// A search for pods, and how it answers.
#[derive(Clone)]
struct Selecting {
    reach: Reach,
    search: SearchRequest,
}

/// What a search found first.
#[derive(Default)]
struct Found {
    notices: Vec<Remark>,
    skipped: Vec<Skipped>,
    pods: Vec<(Arc<Record>, Pod)>,
}

impl Proxy {
    /// The logs a request asks for, as the caller. `scopes` are the queries that `scope:` may name.
    pub async fn logs(
        &self,
        caller: &Caller,
        request: LogRequest,
        scopes: BTreeMap<String, String>,
    ) -> Result<BoxStream<'static, LogEvent>, Error> {
        let began = Timestamp::now();
        let mut search = SearchRequest::new(request.search.as_str(), caller.clone());
        search.scopes = scopes;
        search.limit = Some(MOST_PODS);
        search.facets.clear();
        search.bodies = true;
        if let Some(why) = search.unanswerable() {
            return Err(Error::BadRequest(why));
        }
        let slots = Arc::new(Semaphore::new(request.most));
        let (proxy, caller) = (self.clone(), Arc::new(caller.clone()));
        let selecting = Selecting { reach: Reach { proxy, caller, request: Arc::new(request), slots }, search };
        let mut selection = selecting.select();
        let mut found = selecting.first(&mut selection).await?;
        found.pods.sort_by(|(one, _), (other, _)| one.key.cmp(&other.key));
        selecting.allows(&found)?;
        let stopping = self.inner.stopping.clone();
        let events = match selecting.reach.request.follow {
            true => follow::follow(selecting, selection, found, began),
            false => selecting.whole(found),
        };
        Ok(events.take_until(async move { stopping.cancelled().await }).boxed())
    }
}

impl Selecting {
    fn select(&self) -> Selection {
        let index = &self.reach.proxy.inner.index;
        match self.reach.request.follow {
            true => index.searcher().live(self.search.clone()).boxed(),
            false => index.searcher().search(self.search.clone()).map_ok(LiveEvent::Answer).boxed(),
        }
    }

    /// Everything that is there already.
    async fn first(&self, selection: &mut Selection) -> Result<Found, Error> {
        let mut found = Found::default();
        while let Some(event) = selection.next().await {
            let LiveEvent::Answer(event) = event? else { continue };
            match event {
                SearchEvent::Remarks(notices) => found.notices = notices,
                SearchEvent::Skipped(skipped) => found.skipped = self.skipped(skipped),
                SearchEvent::Hits(hits) => {
                    for hit in hits {
                        found.pods.extend(self.pod(&hit)?);
                    }
                }
                SearchEvent::Done(summary) => {
                    bounded(&summary)?;
                    break;
                }
                SearchEvent::Facets(_) | SearchEvent::Groups(_) => {}
            }
        }
        Ok(found)
    }

    /// Those that were asked for.
    fn skipped(&self, mut skipped: Vec<Skipped>) -> Vec<Skipped> {
        let wanted = &self.reach.request.wanted;
        skipped.retain(|skipped| !skipped.cluster.is_control_plane() && wanted.takes_cluster(&skipped.cluster));
        skipped
    }

    /// A hit's pod, when it is there and asked for.
    fn pod(&self, hit: &Hit) -> Result<Option<(Arc<Record>, Pod)>, Error> {
        let Object { record, body } = &hit.object;
        if hit.was.is_some() || !self.reach.request.wanted.takes(record) {
            return Ok(None);
        }
        Ok(Some((Arc::clone(record), Pod::read(body)?)))
    }

    /// Refuses what is more than may be read at once.
    fn allows(&self, found: &Found) -> Result<(), Error> {
        let request = &self.reach.request;
        let of = |pod: &Pod| pod.wanted(&request.wanted).filter(|c| c.state.started || !request.follow).count();
        let logs: usize = found.pods.iter().map(|(_, pod)| of(pod)).sum();
        if logs <= request.most {
            return Ok(());
        }
        let (pods, most) = (found.pods.len(), request.most);
        Err(Error::BadRequest(format!(
            "{pods} pods with {logs} logs were found, and {most} may be read at once: narrow the query, or say maxStreams \
             ({MOST_STREAMS} at most)"
        )))
    }

    /// Of the containers of a pod that are asked for.
    fn sources<'s>(&'s self, record: &'s Record, pod: &'s Pod) -> impl Iterator<Item = LogSource> {
        pod.wanted(&self.reach.request.wanted).map(|container| LogSource {
            cluster: record.key.cluster().clone(),
            namespace: record.key.namespace.to_string(),
            pod: record.key.name.to_string(),
            container: container.name.clone(),
        })
    }

    /// All logs up to now, merged.
    fn whole(&self, mut found: Found) -> BoxStream<'static, LogEvent> {
        let sources = found.pods.iter().flat_map(|(record, pod)| self.sources(record, pod));
        let sources: Vec<Arc<LogSource>> = sources.map(Arc::new).collect();
        let logs = sources.iter().map(|source| self.reach.clone().whole(Arc::clone(source))).collect();
        let told = Arc::new(parking_lot::Mutex::new(Told::default()));
        let counted = Arc::clone(&told);
        let lines = merged(logs).filter_map(move |(number, said)| {
            counted.lock().count(&said);
            std::future::ready(sources.get(number).map(|source| LogEvent::Said(Arc::clone(source), said)))
        });
        let done = once(async move { LogEvent::Done(told.lock().clone()) });
        found.opening().chain(lines).chain(done).boxed()
    }
}

impl Found {
    /// What is told before any log.
    fn opening(&mut self) -> impl futures::Stream<Item = LogEvent> + Send + 'static {
        let (notices, skipped) = (std::mem::take(&mut self.notices), self.skipped.clone());
        let notices = (!notices.is_empty()).then_some(LogEvent::Notices(notices));
        let skipped = (!skipped.is_empty()).then_some(LogEvent::Skipped(skipped));
        futures::stream::iter(notices.into_iter().chain(skipped))
    }
}

/// A part of the pods must not look like all of them.
fn bounded(summary: &Summary) -> Result<(), Error> {
    if summary.incomplete {
        return Err(Error::Index(crowsnest_index::Error::Incomplete));
    }
    match summary.next {
        Some(_) => Err(Error::BadRequest(format!(
            "{} pods were found, and the logs of {MOST_PODS} may be asked for: narrow the query",
            summary.total
        ))),
        None => Ok(()),
    }
}
