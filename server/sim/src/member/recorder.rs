//! Event recorder of a member's components: events are written in the background, repetitions are counted, old ones
//! deleted.
//!
//! Like the recorder of client-go, it never blocks: when the queue is full, events are dropped and counted.

use crate::member::world::{MANAGER, creation};
use std::collections::VecDeque;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Event;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::{Api, Client};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::store::Key;

/// Capacity of the queue.
const WAITING: usize = 8192;
/// Events written concurrently.
const AT_ONCE: usize = 8;
/// Number of event series remembered for counting.
const SERIES: usize = 4096;
/// kube-apiserver's `--event-ttl`.
const TTL: Duration = Duration::from_secs(3600);
/// Maximum number of events; the oldest are deleted first.
const KEPT: usize = 20_000;

/// The object of an event.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Subject {
    pub api_version: &'static str,
    pub kind: &'static str,
    pub key: Key,
    pub uid: Arc<str>,
    /// `spec.containers{web}`
    pub field: Option<String>,
}

impl Subject {
    pub fn new(api_version: &'static str, kind: &'static str, key: Key, uid: &str) -> Self {
        Self { api_version, kind, key, uid: uid.into(), field: None }
    }

    pub fn pod(key: &Key, uid: &str) -> Self {
        Self::new("v1", "Pod", key.clone(), uid)
    }
}

/// Source of an event: a component, with its node for a kubelet.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Source {
    pub component: &'static str,
    pub host: Option<Arc<str>>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Series {
    subject: Subject,
    source: Source,
    warning: bool,
    reason: &'static str,
    message: String,
}

struct Queued {
    series: Series,
    at: Timestamp,
}

/// Queues events for the background writer.
#[derive(Clone)]
pub struct Recorder {
    queue: mpsc::Sender<Queued>,
    dropped: Arc<AtomicU64>,
}

impl Recorder {
    /// Creates a recorder and its writer.
    pub fn new(client: Client) -> (Self, Writer) {
        let (queue, waiting) = mpsc::channel(WAITING);
        let recorder = Self { queue, dropped: Arc::default() };
        let seen = Mutex::new(lru::LruCache::new(NonZeroUsize::new(SERIES).unwrap_or(NonZeroUsize::MIN)));
        (recorder, Writer { client, waiting, shared: Shared { seen, live: Mutex::default() } })
    }

    /// Records an event, unless the queue is full.
    pub fn record(
        &self,
        subject: Subject,
        source: Source,
        warning: bool,
        reason: &'static str,
        message: impl Into<String>,
    ) {
        let series = Series { subject, source, warning, reason, message: message.into() };
        if self.queue.try_send(Queued { series, at: Timestamp::now() }).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Number of events dropped because the queue was full.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

struct Shared {
    /// Name and count of the event of a series.
    seen: Mutex<lru::LruCache<Series, (String, i32)>>,
    /// Namespace, name and creation time of the existing events, oldest first.
    live: Mutex<VecDeque<(Arc<str>, String, Timestamp)>>,
}

/// Writes events and deletes old ones.
pub struct Writer {
    client: Client,
    waiting: mpsc::Receiver<Queued>,
    shared: Shared,
}

impl Writer {
    /// Runs until cancelled.
    pub async fn run(self, stop: CancellationToken) {
        let Self { client, mut waiting, shared } = self;
        load_live(&client, &shared).await;
        let incoming = futures::stream::poll_fn(|context| waiting.poll_recv(context));
        let writes = incoming.for_each_concurrent(AT_ONCE, |queued| write(&client, &shared, queued));
        let trim = trim(&client, &shared);
        tokio::select! {
            () = stop.cancelled() => {}
            () = writes => {}
            () = trim => {}
        }
    }
}

async fn load_live(client: &Client, shared: &Shared) {
    let events: Api<Event> = Api::all(client.clone());
    match events.list_metadata(&ListParams::default()).await {
        Ok(list) => {
            let mut known: Vec<_> = list.items.into_iter().map(|event| event.metadata).collect();
            known.sort_by_key(|meta| meta.creation_timestamp.as_ref().map(|time| time.0));
            shared.live.lock().extend(known.into_iter().map(|meta| {
                let created = meta.creation_timestamp.map(|time| time.0).unwrap_or_default();
                (Arc::from(meta.namespace.unwrap_or_default()), meta.name.unwrap_or_default(), created)
            }));
        }
        Err(error) => tracing::warn!(%error, "cannot list existing events; old ones will not be deleted"),
    }
}

async fn write(client: &Client, shared: &Shared, queued: Queued) {
    let namespace: Arc<str> = match &*queued.series.subject.key.namespace {
        "" => "default".into(),
        _ => queued.series.subject.key.namespace.clone(),
    };
    let events: Api<Event> = Api::namespaced(client.clone(), &namespace);
    let known = shared.seen.lock().get_mut(&queued.series).map(|(name, count)| {
        *count += 1;
        (name.clone(), *count)
    });
    if let Some((name, count)) = known {
        let patch = json!({"count": count, "lastTimestamp": super::podlife::time(queued.at)});
        match events.patch(&name, &PatchParams::apply(MANAGER), &Patch::Merge(&patch)).await {
            Ok(_) => return,
            Err(error) => tracing::debug!(%error, "an event was deleted, writing a new one"),
        }
    }
    let name = format!(
        "{}.{:016x}",
        queued.series.subject.key.name,
        queued.at.as_nanosecond() ^ i128::from(rand::random::<u16>())
    );
    let event = match serde_json::from_value::<Event>(body(&queued, &namespace, &name)) {
        Ok(event) => event,
        Err(error) => return tracing::warn!(%error, "cannot encode an event"),
    };
    match events.create(&creation(), &event).await {
        Ok(_) => {
            shared.live.lock().push_back((namespace, name.clone(), queued.at));
            shared.seen.lock().put(queued.series, (name, 1));
        }
        // A namespace in deletion accepts no events.
        Err(error) => tracing::debug!(%error, "cannot write an event"),
    }
}

fn body(queued: &Queued, namespace: &str, name: &str) -> Value {
    let Series { subject, source, warning, reason, message } = &queued.series;
    let at = super::podlife::time(queued.at);
    json!({
        "metadata": {"name": name, "namespace": namespace},
        "involvedObject": {
            "apiVersion": subject.api_version, "kind": subject.kind, "namespace": &*subject.key.namespace,
            "name": &*subject.key.name, "uid": &*subject.uid, "fieldPath": subject.field,
        },
        "type": if *warning { "Warning" } else { "Normal" },
        "reason": reason,
        "message": message,
        "source": {"component": source.component, "host": source.host.as_deref()},
        "reportingComponent": source.component,
        "reportingInstance": source.host.as_deref().unwrap_or_default(),
        "firstTimestamp": at, "lastTimestamp": at, "count": 1,
    })
}

/// Deletes events above the age or number limit.
async fn trim(client: &Client, shared: &Shared) {
    loop {
        tokio::time::sleep(Duration::from_secs(30)).await;
        loop {
            let oldest = {
                let mut live = shared.live.lock();
                let now = Timestamp::now();
                let old = |at: &Timestamp| now.duration_since(*at).unsigned_abs() > TTL;
                let too_many = live.len() > KEPT;
                if live.front().is_some_and(|(_, _, at)| too_many || old(at)) { live.pop_front() } else { None }
            };
            let Some((namespace, name, _)) = oldest else { break };
            let events: Api<Event> = Api::namespaced(client.clone(), &namespace);
            if let Err(error) = events.delete(&name, &DeleteParams::default()).await {
                tracing::debug!(%error, %name, "an old event was already deleted");
            }
        }
    }
}
