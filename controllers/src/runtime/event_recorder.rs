//! Event recorder: Events (`core/v1`) on objects of the control plane. Repeated events increase a count.
//!
//! Recording never blocks. Events of successes are rate-limited, and dropped while the control plane is under write
//! load ([`WriteLoad`]). Under load, events of failures are written more slowly, and the newest are dropped if the
//! queue is full. Equal events of an object always have the same writer, which counts them.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use crowsnest_api::work::ResourceBindingSpec;
use crowsnest_apimachinery::names::NamespacedName;
use crowsnest_apimachinery::unstructured;
use futures::future::join_all;
use k8s_openapi::jiff::Timestamp;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::runtime::dynamic_client::{Objects, Resource, Target};
use crate::runtime::write_priority::WriteLoad;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severity {
    Normal,
    Warning,
}

#[derive(Debug)]
struct Entry {
    regarding: Value,
    severity: Severity,
    reason: &'static str,
    message: String,
}

/// Number of events that are written concurrently.
const WRITERS: usize = 4;
/// Capacity of the queue of each writer.
const WAITING: usize = 1024;
/// Number of events that each writer keeps to count repetitions.
const REMEMBERED: usize = 2048;
/// Interval between two failure events of a writer while the control plane is under write load.
const SLOWLY: Duration = Duration::from_millis(100);

/// Rate of success events per second, and their burst.
const RATE: f64 = 50.0;
const BURST: f64 = 200.0;

/// Token bucket that limits the rate of success events.
#[derive(Debug)]
struct Allowance {
    left: f64,
    at: Instant,
}

impl Allowance {
    fn new(now: Instant) -> Self {
        Allowance { left: BURST, at: now }
    }

    /// Takes one token, if available.
    fn take(&mut self, now: Instant) -> bool {
        let since = now.saturating_duration_since(self.at);
        self.left = (self.left + since.as_secs_f64() * RATE).min(BURST);
        self.at = self.at.max(now);
        let taken = self.left >= 1.0;
        if taken {
            self.left -= 1.0;
        }
        taken
    }
}

struct Shared {
    writers: Vec<mpsc::Sender<Entry>>,
    allowance: Mutex<Allowance>,
    write_load: Arc<WriteLoad>,
    /// Number of events that are recorded and not written yet.
    waiting: Arc<watch::Sender<usize>>,
}

/// Records events. Cheap to clone.
#[derive(Clone)]
pub struct Events {
    shared: Arc<Shared>,
}

impl Events {
    /// Returns the recorder and the task that writes its events.
    pub fn new(objects: Objects, component: &'static str, stop: CancellationToken) -> (Self, impl Future<Output = ()>) {
        let write_load = Arc::new(WriteLoad::default());
        let waiting = Arc::new(watch::Sender::new(0));
        let (writers, receivers): (Vec<_>, Vec<_>) = (0..WRITERS).map(|_| mpsc::channel(WAITING)).unzip();
        let writing = receivers.into_iter().map(|entries| {
            let waiting = Arc::clone(&waiting);
            let writer = Writer { objects: objects.clone(), component, waiting, written: HashMap::new() };
            writer.run(entries, Arc::clone(&write_load), stop.clone())
        });
        let writing = join_all(writing.collect::<Vec<_>>());
        let allowance = Mutex::new(Allowance::new(Instant::now()));
        let events = Events { shared: Arc::new(Shared { writers, allowance, write_load, waiting }) };
        (events, async move { drop(writing.await) })
    }

    /// The write load, under which events are delayed or dropped.
    pub fn write_load(&self) -> &Arc<WriteLoad> {
        &self.shared.write_load
    }

    /// Records an event on a binding and on its template.
    pub fn note_both(
        &self,
        binding: &Value,
        spec: &ResourceBindingSpec,
        severity: Severity,
        reason: &'static str,
        message: &str,
    ) {
        let resource = &spec.resource;
        let template = json!({
            "apiVersion": resource.api_version, "kind": resource.kind,
            "metadata": {"namespace": resource.namespace, "name": resource.name, "uid": resource.uid},
        });
        self.note(binding, severity, reason, message);
        self.note(&template, severity, reason, message);
    }

    /// Records an event on `regarding` (any object with apiVersion, kind and metadata).
    pub fn note(&self, regarding: &Value, severity: Severity, reason: &'static str, message: impl Into<String>) {
        if severity == Severity::Normal && !self.may_record_success() {
            return;
        }
        let entry = Entry { regarding: reference(regarding), severity, reason, message: message.into() };
        let mut hasher = DefaultHasher::new();
        (unstructured::uid(regarding), unstructured::name(regarding), reason, &entry.message).hash(&mut hasher);
        let writer = hasher.finish() as usize % self.shared.writers.len();
        // Incremented before a writer can write it.
        self.shared.waiting.send_modify(|waiting| *waiting += 1);
        if self.shared.writers[writer].try_send(entry).is_err() {
            self.shared.waiting.send_modify(|waiting| *waiting -= 1);
            tracing::debug!(reason, "event dropped");
        }
    }

    /// Waits until all events recorded so far are written or dropped.
    pub async fn flushed(&self) {
        let mut waiting = self.shared.waiting.subscribe();
        // The sender lives as long as `self`.
        drop(waiting.wait_for(|waiting| *waiting == 0).await);
    }

    /// True if no event is pending.
    pub fn is_flushed(&self) -> bool {
        *self.shared.waiting.borrow() == 0
    }

    fn may_record_success(&self) -> bool {
        !self.shared.write_load.is_busy() && self.shared.allowance.lock().take(Instant::now())
    }
}

fn reference(regarding: &Value) -> Value {
    json!({
        "apiVersion": unstructured::api_version(regarding), "kind": unstructured::kind(regarding),
        "namespace": unstructured::namespace(regarding), "name": unstructured::name(regarding),
        "uid": unstructured::uid(regarding),
    })
}

type Key = (String, &'static str, String);

/// A written Event, with its count.
struct Written {
    namespace: String,
    name: String,
    count: u64,
}

struct Writer {
    objects: Objects,
    component: &'static str,
    waiting: Arc<watch::Sender<usize>>,
    written: HashMap<Key, Written>,
}

impl Writer {
    async fn run(mut self, mut entries: mpsc::Receiver<Entry>, write_load: Arc<WriteLoad>, stop: CancellationToken) {
        let writing = async {
            while let Some(entry) = entries.recv().await {
                let (busy, failure) = (write_load.is_busy(), entry.severity == Severity::Warning);
                if busy && failure {
                    tokio::time::sleep(SLOWLY).await;
                }
                if !busy || failure {
                    self.write(entry).await;
                }
                self.waiting.send_modify(|waiting| *waiting -= 1);
            }
        };
        stop.run_until_cancelled(writing).await;
    }

    async fn write(&mut self, entry: Entry) {
        let resource = Resource::builtin("", "v1", "events", "Event", true);
        let key = (entry.regarding.to_string(), entry.reason, entry.message.clone());
        let now = Timestamp::now();
        if let Some(known) = self.written.get_mut(&key) {
            known.count += 1;
            let patch = json!({"count": known.count, "lastTimestamp": seconds(now)});
            if self.objects.merge(Target::new(&resource, &known.namespace, &known.name), &patch).await.is_ok() {
                return;
            }
            self.written.remove(&key);
        }
        let event = event_of(&entry, self.component, now);
        let NamespacedName { namespace, name } = unstructured::key(&event);
        match self.objects.create(&resource, &namespace, &event).await {
            Ok(_) => {
                if self.written.len() >= REMEMBERED {
                    self.written.clear();
                }
                self.written.insert(key, Written { namespace, name, count: 1 });
            }
            Err(error) => tracing::debug!(%error, "event not written"),
        }
    }
}

fn seconds(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

fn event_of(entry: &Entry, component: &str, now: Timestamp) -> Value {
    let namespace = match unstructured::text(&entry.regarding, &["namespace"]) {
        "" => "default",
        namespace => namespace,
    };
    let name = format!("{}.{:x}", unstructured::text(&entry.regarding, &["name"]), now.as_nanosecond());
    json!({
        "apiVersion": "v1", "kind": "Event",
        "metadata": {"namespace": namespace, "name": name},
        "involvedObject": entry.regarding,
        "type": if entry.severity == Severity::Warning { "Warning" } else { "Normal" },
        "reason": entry.reason, "message": entry.message, "count": 1,
        "firstTimestamp": seconds(now), "lastTimestamp": seconds(now),
        "source": {"component": component}, "reportingComponent": component, "reportingInstance": "",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn success_events_are_rate_limited() {
        let start = Instant::now();
        let mut allowance = Allowance::new(start);
        let taken = |allowance: &mut Allowance, now| (0..1000).filter(|_| allowance.take(now)).count();
        assert_eq!(taken(&mut allowance, start), 200);
        assert_eq!(taken(&mut allowance, start + Duration::from_millis(100)), 5);
        assert_eq!(taken(&mut allowance, start + Duration::from_secs(60)), 200, "tokens are limited to the burst");
        assert_eq!(taken(&mut allowance, start), 0, "no tokens without elapsed time");
    }

    /// A recorder whose writers never write, with the receivers of their queues.
    fn recorder() -> (Events, Vec<mpsc::Receiver<Entry>>) {
        let (writers, receivers) = (0..WRITERS).map(|_| mpsc::channel(WAITING)).unzip();
        let allowance = Mutex::new(Allowance::new(Instant::now()));
        let waiting = Arc::new(watch::Sender::new(0));
        (Events { shared: Arc::new(Shared { writers, allowance, write_load: Arc::default(), waiting }) }, receivers)
    }

    fn waiting(receivers: &mut [mpsc::Receiver<Entry>]) -> Vec<Vec<Severity>> {
        let all = |entries: &mut mpsc::Receiver<Entry>| std::iter::from_fn(|| entries.try_recv().ok()).collect();
        receivers.iter_mut().map(all).map(|entries: Vec<Entry>| entries.iter().map(|e| e.severity).collect()).collect()
    }

    #[test]
    fn under_load_only_failures_are_recorded_and_equal_events_share_a_writer() {
        let (events, mut receivers) = recorder();
        let template = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "uid": "1"}});
        let busy: Vec<_> = (0..100).map(|_| events.write_load().begin()).collect();
        for severity in [Severity::Normal, Severity::Warning, Severity::Normal, Severity::Warning] {
            events.note(&template, severity, "SyncFailed", "the same message");
        }
        let mut recorded = waiting(&mut receivers);
        recorded.retain(|entries| !entries.is_empty());
        assert_eq!(recorded, [[Severity::Warning, Severity::Warning]]);
        drop(busy);
        events.note(&template, Severity::Normal, "SyncSucceed", "well");
        assert_eq!(waiting(&mut receivers).concat(), [Severity::Normal]);
    }
}
