//! Event recorder: Events (`core/v1`) on objects of the control plane.
//!
//! Recording never blocks. [`correlator`] decides which events are written, and when: repetitions increase a count, and
//! a burst of propagated templates gets one event for each template. Failures are written immediately.

mod correlator;
mod scheduled_writes;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Instant;

use crowsnest_api::work::ResourceBindingSpec;
use crowsnest_apimachinery::names::NamespacedName;
use crowsnest_apimachinery::unstructured;
use futures::{StreamExt, stream};
use k8s_openapi::jiff::Timestamp;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use self::correlator::{Correlator, DueWrite, Entry, EventName, Occurrences, RecordOutcome};
use crate::runtime::dynamic_client::{DynamicClient, Resource, Target};
use crate::runtime::write_priority::WriteLoad;

/// Type of an Event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Severity {
    Normal,
    Warning,
}

/// Number of events that are written concurrently.
const WRITERS: usize = 4;
/// Maximum number of due events that are written before the next failures are taken.
const BATCH_SIZE: usize = 64;

struct Shared {
    correlator: Mutex<Correlator>,
    /// Wakes the writer for an event that is due before its planned wake-up.
    wake: Notify,
    write_load: Arc<WriteLoad>,
    /// False while an event waits to be created. Changed only while the correlator is locked.
    is_flushed: watch::Sender<bool>,
}

/// Records events. Cheap to clone.
#[derive(Clone)]
pub struct EventRecorder {
    shared: Arc<Shared>,
}

impl EventRecorder {
    /// Returns the recorder and the task that writes its events.
    pub fn new(
        objects: DynamicClient,
        component: &'static str,
        stop: CancellationToken,
    ) -> (Self, impl Future<Output = ()>) {
        let shared = Arc::new(Shared {
            correlator: Mutex::new(Correlator::new(Instant::now())),
            wake: Notify::new(),
            write_load: Arc::default(),
            is_flushed: watch::Sender::new(true),
        });
        let writer = Writer { objects, component, shared: Arc::clone(&shared) };
        (EventRecorder { shared }, async move {
            stop.run_until_cancelled(writer.run()).await;
        })
    }

    /// The write load, under which events are delayed.
    pub fn write_load(&self) -> &Arc<WriteLoad> {
        &self.shared.write_load
    }

    /// Records an event on a binding and on its template.
    pub fn record_with_template(
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
        self.record(binding, severity, reason, message);
        self.record(&template, severity, reason, message);
    }

    /// Records an event on `regarding` (any object with apiVersion, kind and metadata).
    pub fn record(&self, regarding: &Value, severity: Severity, reason: &'static str, message: impl Into<String>) {
        let (regarding, message) = (Arc::new(object_reference(regarding)), message.into());
        let entry = Entry { regarding, severity, reason, message, at: Timestamp::now() };
        let mut correlator = self.shared.correlator.lock();
        let recorded = correlator.record(entry, Instant::now());
        self.shared.is_flushed.send_replace(correlator.is_flushed());
        match recorded {
            RecordOutcome::Scheduled => {}
            RecordOutcome::WakeWriter => self.shared.wake.notify_one(),
            RecordOutcome::Dropped => {
                tracing::debug!(reason, "an event is dropped because too many writes are scheduled")
            }
        }
    }

    /// Waits until all events recorded so far are written or dropped. Updates of counts are not awaited.
    pub async fn wait_flushed(&self) {
        let mut is_flushed = self.shared.is_flushed.subscribe();
        // The sender lives as long as `self`.
        drop(is_flushed.wait_for(|is_flushed| *is_flushed).await);
    }

    /// True if no event waits to be created.
    pub fn is_flushed(&self) -> bool {
        *self.shared.is_flushed.borrow()
    }
}

fn object_reference(regarding: &Value) -> Value {
    json!({
        "apiVersion": unstructured::api_version(regarding), "kind": unstructured::kind(regarding),
        "namespace": unstructured::namespace(regarding), "name": unstructured::name(regarding),
        "uid": unstructured::uid(regarding),
    })
}

struct Writer {
    objects: DynamicClient,
    component: &'static str,
    shared: Arc<Shared>,
}

impl Writer {
    async fn run(self) {
        loop {
            let (due, next) = {
                let (now, is_busy) = (Instant::now(), self.shared.write_load.is_busy());
                let mut correlator = self.shared.correlator.lock();
                let due = correlator.take_due(now, is_busy, BATCH_SIZE);
                self.shared.is_flushed.send_replace(correlator.is_flushed());
                (due, correlator.plan_wake(now))
            };
            if !due.is_empty() {
                stream::iter(due).for_each_concurrent(WRITERS, |write| self.write(write)).await;
                continue;
            }
            let woken = self.shared.wake.notified();
            match next {
                Some(delay) => drop(tokio::time::timeout(delay, woken).await),
                None => woken.await,
            }
        }
    }

    async fn write(&self, write: DueWrite) {
        let written = match &write.written {
            Some(name) => self.update(name, &write.occurrences).await,
            None => self.create(&write.occurrences).await,
        };
        self.shared.correlator.lock().end(&write, written, Instant::now());
    }

    /// Updates the count of an event. `None` if it no longer exists.
    async fn update(&self, written: &EventName, occurrences: &Occurrences) -> Option<EventName> {
        let Occurrences { entry, count, .. } = occurrences;
        let patch = json!({"count": count, "lastTimestamp": format_time(entry.at), "message": entry.message});
        let resource = event_resource();
        match self.objects.merge(Target::new(&resource, &written.namespace, &written.name), &patch).await {
            Err(error) if error.is_not_found() => None,
            Err(error) => {
                tracing::debug!(%error, "cannot update the count of an event");
                Some(written.clone())
            }
            Ok(_) => Some(written.clone()),
        }
    }

    async fn create(&self, occurrences: &Occurrences) -> Option<EventName> {
        let event = new_event(occurrences, self.component, Timestamp::now());
        let NamespacedName { namespace, name } = unstructured::key(&event);
        match self.objects.create(&event_resource(), &namespace, &event).await {
            Ok(_) => Some(EventName { namespace, name }),
            Err(error) => {
                tracing::debug!(%error, "cannot write an event");
                None
            }
        }
    }
}

fn event_resource() -> Resource {
    Resource::builtin("", "v1", "events", "Event", true)
}

fn format_time(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

fn new_event(Occurrences { entry, first, count }: &Occurrences, component: &str, now: Timestamp) -> Value {
    let namespace = match unstructured::text(&entry.regarding, &["namespace"]) {
        "" => "default",
        namespace => namespace,
    };
    let name = format!("{}.{:x}", unstructured::text(&entry.regarding, &["name"]), now.as_nanosecond());
    json!({
        "apiVersion": "v1", "kind": "Event",
        "metadata": {"namespace": namespace, "name": name},
        "involvedObject": *entry.regarding,
        "type": if entry.severity == Severity::Warning { "Warning" } else { "Normal" },
        "reason": entry.reason, "message": entry.message, "count": count,
        "firstTimestamp": format_time(*first), "lastTimestamp": format_time(entry.at),
        "source": {"component": component}, "reportingComponent": component, "reportingInstance": "",
    })
}
