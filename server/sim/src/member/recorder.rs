//! Event recorder of a member's components. Events are written in the background; repeated events are counted, old ones
//! are deleted.
//!
//! Like the recorder of client-go, it never blocks: when the queue is full, events are dropped, and their number is
//! counted.

use crate::member::context::{FIELD_MANAGER, create_params};
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
const QUEUE_CAPACITY: usize = 8192;
/// Maximum number of events that are written concurrently.
const MAX_CONCURRENT_WRITES: usize = 8;
/// Maximum number of event series whose repetitions are counted.
const MAX_SERIES: usize = 4096;
/// Age at which events are deleted; kube-apiserver's default `--event-ttl`.
const EVENT_TTL: Duration = Duration::from_secs(3600);
/// Interval at which old events are deleted.
const DELETION_INTERVAL: Duration = Duration::from_secs(30);
/// Maximum number of events; the oldest are deleted first.
const MAX_EVENTS: usize = 20_000;

/// The object of an event.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Subject {
    pub api_version: &'static str,
    pub kind: &'static str,
    pub key: Key,
    pub uid: Arc<str>,
    /// `fieldPath` of the event, such as `spec.containers{web}`.
    pub field_path: Option<String>,
}

impl Subject {
    pub fn new(api_version: &'static str, kind: &'static str, key: Key, uid: &str) -> Self {
        Self { api_version, kind, key, uid: uid.into(), field_path: None }
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

/// Identity of an event: repetitions with an equal identity are counted.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Series {
    subject: Subject,
    source: Source,
    is_warning: bool,
    reason: &'static str,
    message: String,
}

struct QueuedEvent {
    series: Series,
    at: Timestamp,
}

/// Queues events for the background writer.
#[derive(Clone)]
pub struct Recorder {
    queue: mpsc::Sender<QueuedEvent>,
    dropped: Arc<AtomicU64>,
}

impl Recorder {
    /// Creates a recorder and its writer.
    pub fn new(client: Client) -> (Self, EventWriter) {
        let (queue, receiver) = mpsc::channel(QUEUE_CAPACITY);
        let recorder = Self { queue, dropped: Arc::default() };
        let event_counts = Mutex::new(lru::LruCache::new(NonZeroUsize::new(MAX_SERIES).unwrap_or(NonZeroUsize::MIN)));
        (recorder, EventWriter { client, receiver, state: WriterState { event_counts, existing: Mutex::default() } })
    }

    /// Records an event, unless the queue is full.
    pub fn record(
        &self,
        subject: Subject,
        source: Source,
        is_warning: bool,
        reason: &'static str,
        message: impl Into<String>,
    ) {
        let series = Series { subject, source, is_warning, reason, message: message.into() };
        if self.queue.try_send(QueuedEvent { series, at: Timestamp::now() }).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Number of events dropped because the queue was full.
    pub fn dropped_events(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

/// State of the writer of events.
struct WriterState {
    /// Name and count of the event of each series.
    event_counts: Mutex<lru::LruCache<Series, (String, i32)>>,
    /// Namespace, name and creation time of the existing events, oldest first.
    existing: Mutex<VecDeque<(Arc<str>, String, Timestamp)>>,
}

/// Writes events and deletes old ones.
pub struct EventWriter {
    client: Client,
    receiver: mpsc::Receiver<QueuedEvent>,
    state: WriterState,
}

impl EventWriter {
    /// Runs until cancelled.
    pub async fn run(self, stop: CancellationToken) {
        let Self { client, mut receiver, state } = self;
        list_existing(&client, &state).await;
        let incoming = futures::stream::poll_fn(|context| receiver.poll_recv(context));
        let writes = incoming.for_each_concurrent(MAX_CONCURRENT_WRITES, |queued| write_event(&client, &state, queued));
        let deletion = delete_old_events(&client, &state);
        tokio::select! {
            () = stop.cancelled() => {}
            () = writes => {}
            () = deletion => {}
        }
    }
}

/// Lists the events that exist at the start.
async fn list_existing(client: &Client, state: &WriterState) {
    let events: Api<Event> = Api::all(client.clone());
    match events.list_metadata(&ListParams::default()).await {
        Ok(list) => {
            let mut events: Vec<_> = list.items.into_iter().map(|event| event.metadata).collect();
            events.sort_by_key(|meta| meta.creation_timestamp.as_ref().map(|time| time.0));
            state.existing.lock().extend(events.into_iter().map(|meta| {
                let created = meta.creation_timestamp.map(|time| time.0).unwrap_or_default();
                (Arc::from(meta.namespace.unwrap_or_default()), meta.name.unwrap_or_default(), created)
            }));
        }
        Err(error) => tracing::warn!(%error, "cannot list existing events; old ones will not be deleted"),
    }
}

async fn write_event(client: &Client, state: &WriterState, queued: QueuedEvent) {
    let namespace: Arc<str> = match &*queued.series.subject.key.namespace {
        "" => "default".into(),
        _ => queued.series.subject.key.namespace.clone(),
    };
    let events: Api<Event> = Api::namespaced(client.clone(), &namespace);
    let repetition = state.event_counts.lock().get_mut(&queued.series).map(|(name, count)| {
        *count += 1;
        (name.clone(), *count)
    });
    if let Some((name, count)) = repetition {
        let patch = json!({"count": count, "lastTimestamp": super::pod_lifecycle::format_time(queued.at)});
        match events.patch(&name, &PatchParams::apply(FIELD_MANAGER), &Patch::Merge(&patch)).await {
            Ok(_) => return,
            Err(error) => tracing::debug!(%error, "cannot count a repeated event; writing a new one"),
        }
    }
    let name = format!(
        "{}.{:016x}",
        queued.series.subject.key.name,
        queued.at.as_nanosecond() ^ i128::from(rand::random::<u16>())
    );
    let event = match serde_json::from_value::<Event>(event_body(&queued, &namespace, &name)) {
        Ok(event) => event,
        Err(error) => return tracing::warn!(%error, "cannot encode an event"),
    };
    match events.create(&create_params(), &event).await {
        Ok(_) => {
            state.existing.lock().push_back((namespace, name.clone(), queued.at));
            state.event_counts.lock().put(queued.series, (name, 1));
        }
        // Events are rejected in a namespace that is being deleted.
        Err(error) => tracing::debug!(%error, "cannot write an event"),
    }
}

fn event_body(queued: &QueuedEvent, namespace: &str, name: &str) -> Value {
    let Series { subject, source, is_warning, reason, message } = &queued.series;
    let at = super::pod_lifecycle::format_time(queued.at);
    json!({
        "metadata": {"name": name, "namespace": namespace},
        "involvedObject": {
            "apiVersion": subject.api_version, "kind": subject.kind, "namespace": &*subject.key.namespace,
            "name": &*subject.key.name, "uid": &*subject.uid, "fieldPath": subject.field_path,
        },
        "type": if *is_warning { "Warning" } else { "Normal" },
        "reason": reason,
        "message": message,
        "source": {"component": source.component, "host": source.host.as_deref()},
        "reportingComponent": source.component,
        "reportingInstance": source.host.as_deref().unwrap_or_default(),
        "firstTimestamp": at, "lastTimestamp": at, "count": 1,
    })
}

/// Deletes events that are older than [`EVENT_TTL`], and the oldest ones beyond [`MAX_EVENTS`].
async fn delete_old_events(client: &Client, state: &WriterState) {
    loop {
        tokio::time::sleep(DELETION_INTERVAL).await;
        loop {
            let oldest = {
                let mut existing = state.existing.lock();
                let now = Timestamp::now();
                let is_old = |at: &Timestamp| now.duration_since(*at).unsigned_abs() > EVENT_TTL;
                let too_many = existing.len() > MAX_EVENTS;
                if existing.front().is_some_and(|(_, _, at)| too_many || is_old(at)) {
                    existing.pop_front()
                } else {
                    None
                }
            };
            let Some((namespace, name, _)) = oldest else { break };
            let events: Api<Event> = Api::namespaced(client.clone(), &namespace);
            if let Err(error) = events.delete(&name, &DeleteParams::default()).await {
                tracing::debug!(%error, %name, "cannot delete an old event");
            }
        }
    }
}
