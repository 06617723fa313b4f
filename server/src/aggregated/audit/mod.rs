//! The audit log of this server, in Kubernetes' form: who asked what of whom, when, and what was answered.
//!
//! A [`Record`] goes with its request. It is written when the request is received, when a long answer begins and when all is
//! over: with the last byte of the body, or of the tunnel. `policy` says what is written, `log` writes it.

pub(crate) mod event;
pub(crate) mod log;
pub(crate) mod policy;

use std::sync::Arc;

use crowsnest_api::names::ClusterName;
use crowsnest_api::user::UserInfo;
use http::StatusCode;
use jiff::Timestamp;
use parking_lot::Mutex;
use serde_json::Value;

use super::identity::{Verdict, Wanted};
use event::{Event, Request, Stage, User};
use log::{AuditLog, Place};
use policy::Policy;

/// Decides and records. Without a log nothing is.
#[derive(Clone, Default)]
pub(crate) struct Auditor {
    on: Option<(Arc<Policy>, AuditLog)>,
}

impl Auditor {
    pub(crate) fn new(policy: Policy, log: AuditLog) -> Self {
        Self { on: Some((Arc::new(policy), log)) }
    }

    pub(crate) fn log(&self) -> Option<&AuditLog> {
        self.on.as_ref().map(|(_, log)| log)
    }

    /// The record of a request that was received, unless it has none. `user` is none when nobody could be authenticated.
    pub(crate) async fn begin(
        &self,
        request: &Request<'_>,
        user: Option<&UserInfo>,
        lasts: bool,
    ) -> Option<Arc<Record>> {
        let (policy, log) = self.on.as_ref()?;
        let asked: Vec<&Wanted> = [Some(request.wanted), request.of_member].into_iter().flatten().collect();
        let omitted = policy.omitted(user.unwrap_or(&UserInfo::default()), &asked)?;
        let event = Event::received(request, user);
        let record = Record {
            log: log.clone(),
            omitted,
            lasts,
            state: Mutex::new(State { event, last: None, panicked: false }),
        };
        record.now(Stage::RequestReceived).await;
        // A request that lasts would keep its place for hours.
        if !lasts && record.writes(Stage::ResponseComplete) {
            let place = log.place().await;
            record.state.lock().last = place;
        }
        Some(Arc::new(record))
    }
}

/// What is written of one request. The last event is written when the last holder lets go.
pub(crate) struct Record {
    log: AuditLog,
    omitted: Vec<Stage>,
    lasts: bool,
    state: Mutex<State>,
}

struct State {
    event: Event,
    /// For the last event.
    last: Option<Place>,
    panicked: bool,
}

impl Record {
    fn writes(&self, stage: Stage) -> bool {
        !self.omitted.contains(&stage)
    }

    async fn now(&self, stage: Stage) {
        if self.writes(stage) {
            let place = self.log.place().await;
            let event = self.at(stage);
            self.log.put(place, event);
        }
    }

    fn at(&self, stage: Stage) -> Event {
        let mut event = self.state.lock().event.clone();
        (event.stage, event.stage_timestamp) = (stage, Timestamp::now());
        event
    }

    pub(crate) fn impersonated(&self, user: &UserInfo) {
        self.state.lock().event.impersonated_user = Some(User::from(user));
    }

    pub(crate) fn decided(&self, verdict: &Verdict) {
        let decision = if verdict.allowed { "allow" } else { "forbid" };
        let notes = [(event::DECISION, decision), (event::REASON, verdict.reason.as_str())];
        let notes = notes.map(|(key, value)| (key.to_owned(), value.to_owned()));
        self.state.lock().event.annotations.extend(notes);
    }

    /// The answer begins.
    pub(crate) async fn answered(&self, code: StatusCode, failure: Option<&Value>) {
        self.state.lock().event.response_status = Some(event::response_status(code.as_u16(), failure));
        if self.lasts {
            self.now(Stage::ResponseStarted).await;
        }
    }

    pub(crate) fn panicked(&self) {
        let mut state = self.state.lock();
        state.panicked = true;
        state.event.response_status = Some(event::response_status(500, None));
    }
}

/// The fleet-wide proxy finds out itself whom it asks. Its tunnels hold the record until they end.
impl crowsnest_proxy::Witness for Record {
    fn asks(&self, cluster: &ClusterName) {
        self.state.lock().event.annotations.insert(event::CLUSTER.to_owned(), cluster.to_string());
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        let (place, panicked) = {
            let mut state = self.state.lock();
            (state.last.take(), state.panicked)
        };
        let stage = if panicked { Stage::Panic } else { Stage::ResponseComplete };
        if self.writes(stage) {
            self.log.put(place, self.at(stage));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderMap;

    pub(super) fn event(id: &str) -> Event {
        let wanted = Wanted { verb: "get".into(), path: Some("/x".into()), ..Wanted::default() };
        Event::received(&request(id, &HeaderMap::new(), &wanted), None)
    }

    fn request<'a>(id: &'a str, headers: &'a HeaderMap, wanted: &'a Wanted) -> Request<'a> {
        static URI: std::sync::LazyLock<http::Uri> = std::sync::LazyLock::new(|| http::Uri::from_static("/x"));
        let received = Timestamp::UNIX_EPOCH;
        Request { audit_id: id, received, uri: &URI, headers, peer: None, wanted, of_member: None, cluster: None }
    }

    /// Stages and codes in the order they are written in.
    async fn written(policy: &str, lasts: bool, panics: bool) -> Vec<(String, u64)> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.log");
        let files = log::Files { path: path.clone(), max_bytes: 0, max_backups: 0, max_age_days: 0 };
        let (log, writer) = AuditLog::start(log::Destination::File(files)).unwrap();
        let auditor = Auditor::new(Policy::parse(policy).unwrap(), log);
        let (headers, wanted) =
            (HeaderMap::new(), Wanted { verb: "get".into(), path: Some("/x".into()), ..Wanted::default() });
        let record = auditor.begin(&request("1", &headers, &wanted), None, lasts).await;
        if let Some(record) = record {
            match panics {
                true => record.panicked(),
                false => record.answered(StatusCode::OK, None).await,
            }
        }
        writer.stop().await;
        let text = std::fs::read_to_string(&path).unwrap();
        let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let seen =
            lines.map(|line| (line["stage"].as_str().unwrap().to_owned(), line["responseStatus"]["code"].as_u64()));
        seen.map(|(stage, code)| (stage, code.unwrap_or_default())).collect()
    }

    #[tokio::test]
    async fn each_stage_is_written_once_unless_it_is_left_out() {
        let all = "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata}]";
        let none = "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: None}]";
        let end = "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata}]\n\
            omitStages: [RequestReceived, ResponseStarted]";
        let cases: [(&str, bool, bool, &[(&str, u64)]); 5] = [
            (all, false, false, &[("RequestReceived", 0), ("ResponseComplete", 200)]),
            (all, true, false, &[("RequestReceived", 0), ("ResponseStarted", 200), ("ResponseComplete", 200)]),
            (all, false, true, &[("RequestReceived", 0), ("Panic", 500)]),
            (none, true, false, &[]),
            (end, true, false, &[("ResponseComplete", 200)]),
        ];
        for (policy, lasts, panics, expected) in cases {
            let expected: Vec<(String, u64)> = expected.iter().map(|(s, c)| ((*s).to_owned(), *c)).collect();
            assert_eq!(written(policy, lasts, panics).await, expected, "{policy} {lasts} {panics}");
        }
    }
}
