//! Audit record of one request: collects the event while the request runs.

use std::fmt;
use std::sync::Arc;

use crowsnest_apimachinery::user::UserInfo;
use http::StatusCode;
use jiff::Timestamp;
use parking_lot::Mutex;
use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};
use tokio::sync::Semaphore;

use super::UNIT;
use super::event::{self, AuthenticationMetadata, Event, Level, RawBody, Request, Stage, User};
use super::log::{AuditLog, QueuePermit};
use super::policy::Decision;

/// Largest logged body in bytes; larger ones are omitted and the event is annotated as truncated.
pub(super) const LARGEST: usize = 1 << 20;

/// Audit record of one request. The last event is written when the last reference is dropped.
pub struct Record {
    log: AuditLog,
    body_permits: Arc<Semaphore>,
    decision: Decision,
    lasts: bool,
    state: Mutex<State>,
}

struct State {
    event: Event,
    /// Reserved queue slot of the last event.
    last: Option<QueuePermit>,
    /// True once the response has started.
    begun: bool,
    panicked: bool,
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
        lasts: bool,
    ) -> Arc<Self> {
        let event = Event::received(request, user, decision.level);
        let state = Mutex::new(State { event, last: None, begun: false, panicked: false });
        let record = Self { log, body_permits, decision, lasts, state };
        record.write_now(Stage::RequestReceived).await;
        // No slot is reserved for long-running requests, which would hold it for hours.
        if !lasts && record.writes(Stage::ResponseComplete) {
            let permit = record.log.reserve().await;
            record.state.lock().last = permit;
        }
        Arc::new(record)
    }

    fn writes(&self, stage: Stage) -> bool {
        !self.decision.omit.contains(&stage)
    }

    async fn write_now(&self, stage: Stage) {
        if self.writes(stage) {
            let permit = self.log.reserve().await;
            let event = self.event_at(stage);
            self.log.put(permit, event);
        }
    }

    fn event_at(&self, stage: Stage) -> Event {
        let mut event = self.state.lock().event.clone();
        (event.stage, event.stage_timestamp) = (stage, Timestamp::now());
        event
    }

    /// Records the impersonated user, and the verb that permitted it in a constrained mode.
    pub fn impersonated(&self, user: &UserInfo, constraint: Option<&'static str>) {
        let event = &mut self.state.lock().event;
        event.impersonated_user = Some(User::from(user));
        event.authentication_metadata =
            constraint.map(|impersonation_constraint| AuthenticationMetadata { impersonation_constraint });
    }

    /// Records the authorization decision.
    pub fn authorized(&self, allowed: bool, reason: &str) {
        self.note(event::DECISION, if allowed { "allow" } else { "forbid" });
        self.note(event::REASON, reason);
    }

    /// Sets an annotation.
    pub fn note(&self, key: &str, value: &str) {
        self.state.lock().event.annotations.insert(key.to_owned(), value.to_owned());
    }

    /// True if request bodies are logged.
    pub fn wants_request(&self) -> bool {
        self.decision.level >= Level::Request
    }

    /// True if response bodies are logged; never for streams.
    pub fn wants_response(&self) -> bool {
        self.decision.level >= Level::RequestResponse && !self.lasts
    }

    /// Records the request object.
    pub fn requested(&self, object: &Value) {
        self.state.lock().event.complete_reference(object, true);
        if self.wants_request()
            && let Some(kept) = self.encode(object.clone())
        {
            self.state.lock().event.request_object = Some(kept);
        }
    }

    /// Records a patch, which does not identify an object.
    pub fn patched(&self, patch: Value) {
        if self.wants_request()
            && let Some(kept) = self.encode(patch)
        {
            self.state.lock().event.request_object = Some(kept);
        }
    }

    /// Records the identity of a created object: its generated name and UID.
    pub fn created(&self, object: &Value) {
        self.state.lock().event.complete_reference(object, false);
    }

    /// Records the response body.
    pub fn responded(&self, object: Value) {
        if self.wants_response()
            && let Some(kept) = self.encode(object)
        {
            self.state.lock().event.response_object = Some(kept);
        }
    }

    /// Annotates the event: a body was too large to be logged.
    pub fn truncated(&self) {
        self.note(event::TRUNCATED, "true");
    }

    /// Encodes a body for the log; `None` if it or the sum of queued bodies is too large.
    fn encode(&self, object: Value) -> Option<RawBody> {
        let object = if self.decision.omit_managed_fields { event::without_managed_fields(object) } else { object };
        let raw: Option<Box<RawValue>> = to_raw_value(&object).ok().filter(|raw| raw.get().len() <= LARGEST);
        let body_permits = raw.as_ref().and_then(|raw| {
            let units = u32::try_from(raw.get().len().div_ceil(UNIT)).ok()?;
            Arc::clone(&self.body_permits).try_acquire_many_owned(units).ok()
        });
        let (Some(raw), Some(body_permits)) = (raw, body_permits) else {
            self.truncated();
            return None;
        };
        self.state.lock().event.body_permits.push(Arc::new(body_permits));
        Some(RawBody::from(raw))
    }

    /// Records the start of the response. When several servers forward a response, the status of the first one is
    /// kept.
    pub async fn answered(&self, code: StatusCode, status: Option<&Value>) {
        let first = {
            let mut state = self.state.lock();
            let known = state.event.response_status.as_ref().and_then(|status| status["code"].as_u64());
            if known != Some(u64::from(code.as_u16())) {
                state.event.response_status = Some(event::response_status(code.as_u16(), status));
            }
            !std::mem::replace(&mut state.begun, true)
        };
        if self.lasts && first {
            self.write_now(Stage::ResponseStarted).await;
        }
    }

    pub fn panicked(&self) {
        let mut state = self.state.lock();
        state.panicked = true;
        state.event.response_status = Some(event::response_status(500, None));
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        let (permit, panicked) = {
            let mut state = self.state.lock();
            (state.last.take(), state.panicked)
        };
        let stage = if panicked { Stage::Panic } else { Stage::ResponseComplete };
        if self.writes(stage) {
            self.log.put(permit, self.event_at(stage));
        }
    }
}
