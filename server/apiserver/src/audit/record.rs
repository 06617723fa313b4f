//! Audit record of one request: collects the event while the request runs.

use std::fmt;
use std::sync::Arc;

use crowsnest_apimachinery::user::UserInfo;
use http::StatusCode;
use jiff::Timestamp;
use parking_lot::Mutex;
use serde_json::Value;
use serde_json::value::to_raw_value;
use tokio::sync::Semaphore;

use super::BODY_MEMORY_UNIT_BYTES;
use super::event::{self, AuthenticationMetadata, Event, Level, RawBody, Request, Stage, User};
use super::log::{AuditLog, QueuePermit};
use super::policy::Decision;

/// Maximum size of logged bodies in bytes; larger ones are omitted and the event is annotated as truncated.
pub(super) const MAX_BODY_BYTES: usize = 1 << 20;

/// Audit record of one request. The last event is written when the last reference is dropped.
pub struct Record {
    log: AuditLog,
    body_permits: Arc<Semaphore>,
    decision: Decision,
    is_long_running: bool,
    state: Mutex<State>,
}

struct State {
    event: Event,
    /// Reserved queue slot of the last event.
    last_event_permit: Option<QueuePermit>,
    has_response_started: bool,
    has_panicked: bool,
}

impl fmt::Debug for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Record")
    }
}

impl Record {
    pub(super) async fn begin(
        log: AuditLog,
        body_permits: Arc<Semaphore>,
        decision: Decision,
        request: &Request<'_>,
        user: Option<&UserInfo>,
        is_long_running: bool,
    ) -> Arc<Self> {
        let event = Event::new(request, user, decision.level);
        let state =
            Mutex::new(State { event, last_event_permit: None, has_response_started: false, has_panicked: false });
        let record = Self { log, body_permits, decision, is_long_running, state };
        record.write_now(Stage::RequestReceived).await;
        // No slot is reserved for long-running requests, which would occupy it for hours.
        if !is_long_running && record.should_write(Stage::ResponseComplete) {
            let permit = record.log.reserve().await;
            record.state.lock().last_event_permit = permit;
        }
        Arc::new(record)
    }

    fn should_write(&self, stage: Stage) -> bool {
        !self.decision.omitted_stages.contains(&stage)
    }

    async fn write_now(&self, stage: Stage) {
        if self.should_write(stage) {
            let permit = self.log.reserve().await;
            let event = self.event_at(stage);
            self.log.enqueue(permit, event);
        }
    }

    fn event_at(&self, stage: Stage) -> Event {
        let mut event = self.state.lock().event.clone();
        (event.stage, event.stage_timestamp) = (stage, Timestamp::now());
        event
    }

    /// Records the impersonated user, and the verb that permitted it in a constrained mode.
    pub fn record_impersonation(&self, user: &UserInfo, constraint: Option<&'static str>) {
        let event = &mut self.state.lock().event;
        event.impersonated_user = Some(User::from(user));
        event.authentication_metadata =
            constraint.map(|impersonation_constraint| AuthenticationMetadata { impersonation_constraint });
    }

    /// Records the authorization decision.
    pub fn record_authorization(&self, allowed: bool, reason: &str) {
        self.annotate(event::DECISION, if allowed { "allow" } else { "forbid" });
        self.annotate(event::REASON, reason);
    }

    /// Sets an annotation.
    pub fn annotate(&self, key: &str, value: &str) {
        self.state.lock().event.annotations.insert(key.to_owned(), value.to_owned());
    }

    /// Sets an annotation unless it is set. Returns false if it already has another value.
    pub fn annotate_once(&self, key: &str, value: &str) -> bool {
        let mut state = self.state.lock();
        state.event.annotations.entry(key.to_owned()).or_insert_with(|| value.to_owned()) == value
    }

    /// True if request bodies are logged.
    pub fn logs_request_body(&self) -> bool {
        self.decision.level >= Level::Request
    }

    /// True if response bodies are logged; never for streams.
    pub fn logs_response_body(&self) -> bool {
        self.decision.level >= Level::RequestResponse && !self.is_long_running
    }

    /// Records the request object.
    pub fn record_request(&self, object: &Value) {
        self.state.lock().event.complete_reference(object, true);
        if self.logs_request_body()
            && let Some(body) = self.encode(object.clone())
        {
            self.state.lock().event.request_object = Some(body);
        }
    }

    /// Records a patch, which does not identify an object.
    pub fn record_patch(&self, patch: Value) {
        if self.logs_request_body()
            && let Some(body) = self.encode(patch)
        {
            self.state.lock().event.request_object = Some(body);
        }
    }

    /// Records the identity of a created object: its generated name and UID.
    pub fn record_created_object(&self, object: &Value) {
        self.state.lock().event.complete_reference(object, false);
    }

    /// Records the response body.
    pub fn record_response_body(&self, object: Value) {
        if self.logs_response_body()
            && let Some(body) = self.encode(object)
        {
            self.state.lock().event.response_object = Some(body);
        }
    }

    /// Annotates the event as truncated: a body was too large to be logged.
    pub fn mark_truncated(&self) {
        self.annotate(event::TRUNCATED, "true");
    }

    /// Reserves memory for a body until the event is written. Returns false, and annotates the event as truncated, if the
    /// body or the sum of queued bodies is too large.
    pub fn reserve_body(&self, bytes: usize) -> bool {
        let units = u32::try_from(bytes.div_ceil(BODY_MEMORY_UNIT_BYTES)).ok().filter(|_| bytes <= MAX_BODY_BYTES);
        let permits = units.and_then(|units| Arc::clone(&self.body_permits).try_acquire_many_owned(units).ok());
        let Some(permits) = permits else {
            self.mark_truncated();
            return false;
        };
        self.state.lock().event.body_permits.push(Arc::new(permits));
        true
    }

    /// Encodes a body for the log; `None` if it or the sum of queued bodies is too large.
    fn encode(&self, object: Value) -> Option<RawBody> {
        let object = if self.decision.omit_managed_fields { event::strip_managed_fields(object) } else { object };
        let Ok(raw) = to_raw_value(&object) else {
            self.mark_truncated();
            return None;
        };
        self.reserve_body(raw.get().len()).then(|| RawBody::from(raw))
    }

    /// Records the start of the response. Each server that forwards the response records it again; a recorded status is
    /// replaced only by one with another code.
    pub async fn record_response_start(&self, code: StatusCode, status: Option<&Value>) {
        let is_first = {
            let mut state = self.state.lock();
            let recorded = state.event.response_status.as_ref().and_then(|status| status["code"].as_u64());
            if recorded != Some(u64::from(code.as_u16())) {
                state.event.response_status = Some(event::response_status(code.as_u16(), status));
            }
            !std::mem::replace(&mut state.has_response_started, true)
        };
        if self.is_long_running && is_first {
            self.write_now(Stage::ResponseStarted).await;
        }
    }

    /// Records that the handler panicked.
    pub fn record_panic(&self) {
        let mut state = self.state.lock();
        state.has_panicked = true;
        state.event.response_status = Some(event::response_status(500, None));
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        let (permit, has_panicked) = {
            let mut state = self.state.lock();
            (state.last_event_permit.take(), state.has_panicked)
        };
        let stage = if has_panicked { Stage::Panic } else { Stage::ResponseComplete };
        if self.should_write(stage) {
            self.log.enqueue(permit, self.event_at(stage));
        }
    }
}
