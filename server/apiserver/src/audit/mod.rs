//! The audit log, in Kubernetes' form: who asked what, when, and what was answered.
//!
//! A [`Record`] goes with its request. It is written when the request is received, when a long answer begins and when all is
//! over: with the last byte of the body, or of the tunnel. `policy` says what is written, `log` writes it, `held` is the body
//! that a record goes with.
//!
//! A request that is passed on to a server behind this one is one request. When both write into the same log, its record is
//! handed on, so that one event tells who asked, as the first of them knows it, and whom that reached, as the second does.

pub mod attributes;
mod event;
pub mod held;
pub mod log;
pub mod policy;
mod record;

use std::collections::HashMap;
use std::sync::Arc;

use crowsnest_apimachinery::user::UserInfo;
use http::{HeaderMap, HeaderName, Method, Uri};
use parking_lot::Mutex;
use tokio::sync::Semaphore;

pub use attributes::Attributes;
pub use event::{Beyond, Level, Request, Stage};
use log::AuditLog;
use policy::Policy;
pub use record::Record;

/// Names a request in the logs of every server it goes through.
pub const AUDIT_ID: HeaderName = HeaderName::from_static("audit-id");
/// By which a server that writes into the same log finds the record of a request that is passed on to it.
pub const HANDED: HeaderName = HeaderName::from_static("x-crowsnest-audit-record");
/// As long as kube-apiserver takes an ID from a request.
const LONGEST_ID: usize = 64;
/// Memory for bodies in events that are not written yet, in units of [`UNIT`] bytes.
const ROOM: usize = 64 << 10;
const UNIT: usize = 1 << 10;

/// Knows what requests ask of servers behind this one.
pub trait Lookout: Send + Sync {
    fn beyond(&self, method: &Method, uri: &Uri, headers: &HeaderMap) -> Option<Beyond>;
}

/// Nothing is behind this server.
impl Lookout for () {
    fn beyond(&self, _: &Method, _: &Uri, _: &HeaderMap) -> Option<Beyond> {
        None
    }
}

/// Decides and records. Without a log nothing is. Cheap to clone.
#[derive(Clone, Default)]
pub struct Auditor {
    on: Option<Arc<On>>,
}

struct On {
    policy: Policy,
    log: AuditLog,
    lookout: Box<dyn Lookout>,
    /// Requests on their way to servers behind this one, by names nobody can guess. Those without a record have none there.
    handed: Mutex<HashMap<String, Option<Arc<Record>>>>,
    room: Arc<Semaphore>,
}

impl Auditor {
    pub fn new(policy: Policy, log: AuditLog, lookout: impl Lookout + 'static) -> Self {
        let (lookout, handed, room) = (Box::new(lookout), Mutex::default(), Arc::new(Semaphore::new(ROOM)));
        Self { on: Some(Arc::new(On { policy, log, lookout, handed, room })) }
    }

    pub fn log(&self) -> Option<&AuditLog> {
        self.on.as_ref().map(|on| &on.log)
    }

    /// What a request asks of servers behind this one.
    pub fn beyond(&self, method: &Method, uri: &Uri, headers: &HeaderMap) -> Option<Beyond> {
        self.on.as_ref().and_then(|on| on.lookout.beyond(method, uri, headers))
    }

    /// The record of a request that was received, unless it has none. `user` is none when nobody could be authenticated.
    pub async fn begin(&self, request: &Request<'_>, user: Option<&UserInfo>, lasts: bool) -> Option<Arc<Record>> {
        let on = self.on.as_ref()?;
        let beyond = request.beyond.and_then(|beyond| beyond.asked.as_ref());
        let asked: Vec<&Attributes> = [Some(request.asked), beyond].into_iter().flatten().collect();
        let decision = on.policy.decide(user.unwrap_or(&UserInfo::default()), &asked)?;
        Some(Record::begin(on.log.clone(), Arc::clone(&on.room), decision, request, user, lasts).await)
    }

    /// Passes a request's record on; none says that the request has none.
    pub fn hand(&self, record: Option<Arc<Record>>) -> Option<Handed> {
        let on = self.on.clone()?;
        let name = uuid::Uuid::new_v4().to_string();
        on.handed.lock().insert(name.clone(), record);
        Some(Handed { on, name })
    }

    /// What was passed on with this name, once.
    pub fn take(&self, name: &str) -> Option<Option<Arc<Record>>> {
        self.on.as_ref()?.handed.lock().remove(name)
    }
}

/// A record that was passed on; nobody finds it any more when this is dropped.
pub struct Handed {
    on: Arc<On>,
    name: String,
}

impl Handed {
    /// The value of [`HANDED`].
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl Drop for Handed {
    fn drop(&mut self) {
        self.on.handed.lock().remove(&self.name);
    }
}

/// The one a request came with, else a new one.
pub fn id_of(headers: &HeaderMap, new: impl FnOnce() -> String) -> String {
    let given = headers.get(AUDIT_ID).and_then(|id| id.to_str().ok());
    given.filter(|id| (1..=LONGEST_ID).contains(&id.len())).map_or_else(new, str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::StatusCode;
    use jiff::Timestamp;
    use serde_json::{Value, json};

    pub(super) fn event(id: &str) -> event::Event {
        let asked = asked();
        event::Event::received(&request(id, &HeaderMap::new(), &asked), None, Level::Metadata)
    }

    fn asked() -> Attributes {
        Attributes { verb: "create".into(), resource: "pods".into(), version: "v1".into(), ..Attributes::default() }
    }

    fn request<'a>(id: &'a str, headers: &'a HeaderMap, asked: &'a Attributes) -> Request<'a> {
        static URI: std::sync::LazyLock<http::Uri> = std::sync::LazyLock::new(|| http::Uri::from_static("/x"));
        let received = Timestamp::UNIX_EPOCH;
        Request { audit_id: id, received, uri: &URI, headers, peer: None, asked, beyond: None }
    }

    fn policy(rest: &str) -> String {
        format!("apiVersion: audit.k8s.io/v1\nkind: Policy\n{rest}")
    }

    /// What is written while this happens.
    async fn written(policy: &str, during: impl AsyncFnOnce(Auditor)) -> Vec<Value> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.log");
        let files = log::Files { path: path.clone(), max_bytes: 0, max_backups: 0, max_age_days: 0 };
        let (log, writer) = AuditLog::start(log::Destination::File(files)).unwrap();
        during(Auditor::new(Policy::parse(policy).unwrap(), log, ())).await;
        writer.stop().await;
        let text = std::fs::read_to_string(&path).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[tokio::test]
    async fn each_stage_is_written_once_unless_it_is_left_out() {
        let all = &policy("rules: [{level: Metadata}]");
        let none = &policy("rules: [{level: None}]");
        let end = &policy("rules: [{level: Metadata}]\nomitStages: [RequestReceived, ResponseStarted]");
        let cases: [(&str, bool, bool, &[(&str, u64)]); 5] = [
            (all, false, false, &[("RequestReceived", 0), ("ResponseComplete", 200)]),
            (all, true, false, &[("RequestReceived", 0), ("ResponseStarted", 200), ("ResponseComplete", 200)]),
            (all, false, true, &[("RequestReceived", 0), ("Panic", 500)]),
            (none, true, false, &[]),
            (end, true, false, &[("ResponseComplete", 200)]),
        ];
        for (policy, lasts, panics, expected) in cases {
            let events = written(policy, async |auditor: Auditor| {
                let (headers, asked) = (HeaderMap::new(), asked());
                let Some(record) = auditor.begin(&request("1", &headers, &asked), None, lasts).await else { return };
                match panics {
                    true => record.panicked(),
                    false => record.answered(StatusCode::OK, None).await,
                }
                // Whoever passes the answer on says the same again.
                if !panics {
                    record.answered(StatusCode::OK, None).await;
                }
            })
            .await;
            let seen: Vec<(String, u64)> = events
                .iter()
                .map(|event| {
                    let code = event["responseStatus"]["code"].as_u64();
                    (event["stage"].as_str().unwrap().to_owned(), code.unwrap_or_default())
                })
                .collect();
            let expected: Vec<(String, u64)> = expected.iter().map(|(s, c)| ((*s).to_owned(), *c)).collect();
            assert_eq!(seen, expected, "{policy} {lasts} {panics}");
        }
    }

    #[tokio::test]
    async fn as_much_is_written_as_the_policy_asks_for() {
        let metadata = json!({"generateName": "a-", "resourceVersion": "7", "managedFields": [{}]});
        let sent = json!({"metadata": metadata, "data": "x"});
        let made = json!({"metadata": {"name": "a-1", "uid": "u-1", "resourceVersion": "9"}, "data": "y"});
        let large = json!({"metadata": {}, "data": "x".repeat(record::LARGEST)});
        let plain = json!({"metadata": {"generateName": "a-", "resourceVersion": "7"}, "data": "x"});
        let null = Value::Null;
        let cases: [(&str, &Value, [&Value; 2], &str); 5] = [
            ("level: Metadata", &made, [&null, &null], ""),
            ("level: Request", &made, [&sent, &null], ""),
            ("level: RequestResponse", &made, [&sent, &made], ""),
            ("level: RequestResponse, omitManagedFields: true", &made, [&plain, &made], ""),
            ("level: RequestResponse", &large, [&sent, &null], "true"),
        ];
        for (rule, answered, expected, truncated) in cases {
            let rule = policy(&format!("rules: [{{{rule}}}]\nomitStages: [RequestReceived]"));
            let events = written(&rule, async |auditor: Auditor| {
                let (headers, asked) = (HeaderMap::new(), asked());
                let record = auditor.begin(&request("1", &headers, &asked), None, false).await.unwrap();
                record.requested(&sent);
                record.created(&made);
                record.responded(answered.clone());
                record.answered(StatusCode::CREATED, None).await;
            })
            .await;
            let [event] = events.as_slice() else { panic!("{events:#?}") };
            assert_eq!([&event["requestObject"], &event["responseObject"]], expected, "{rule}");
            let about = ["name", "uid", "resourceVersion"].map(|field| event["objectRef"][field].as_str().unwrap());
            assert_eq!(about, ["a-1", "u-1", "7"], "{rule}");
            let said = event["annotations"]["audit.k8s.io/truncated"].as_str();
            assert_eq!(said.unwrap_or_default(), truncated, "{rule}");
        }
    }

    #[tokio::test]
    async fn a_record_that_is_handed_on_is_found_once_and_only_while_it_is() {
        let rule = policy("rules: [{level: Metadata}]\nomitStages: [RequestReceived]");
        let events = written(&rule, async |auditor: Auditor| {
            let (headers, asked) = (HeaderMap::new(), asked());
            let record = auditor.begin(&request("1", &headers, &asked), None, false).await;
            let handed = auditor.hand(record.clone()).unwrap();
            let found = auditor.take(handed.name()).unwrap().unwrap();
            found.note("example.com/reached", "m1");
            assert!(auditor.take(handed.name()).is_none());
            let unseen = auditor.hand(record).unwrap();
            let name = unseen.name().to_owned();
            drop(unseen);
            assert!(auditor.take(&name).is_none());
            // A request without a record has none anywhere.
            let none = auditor.hand(None).unwrap();
            assert!(auditor.take(none.name()).unwrap().is_none());
        })
        .await;
        let [event] = events.as_slice() else { panic!("{events:#?}") };
        assert_eq!(event["annotations"]["example.com/reached"], "m1");
        assert!(Auditor::default().hand(None).is_none());
    }

    #[test]
    fn a_request_keeps_the_id_it_came_with() {
        let named = |id: &str| HeaderMap::from_iter([(AUDIT_ID, id.parse().unwrap())]);
        let cases =
            [(named("abc"), "abc"), (named(""), "new"), (named(&"x".repeat(65)), "new"), (HeaderMap::new(), "new")];
        for (headers, expected) in cases {
            assert_eq!(id_of(&headers, || "new".to_owned()), expected, "{headers:?}");
        }
    }
}
