//! Audit log in Kubernetes' format: who requested what, when, and with which result.
//!
//! A [`Record`] accompanies its request. Events are written when the request is received, when a long-running
//! response starts, and when the response or tunnel ends. `policy` decides what is logged, `log` writes it, and
//! `held` wraps the bodies of requests and responses.
//!
//! A request that is forwarded to another server of this process is one request. When both servers share a log, the
//! record is passed on with it, so that one event has the user as the first server authenticated it and the object
//! that the second one resolved.

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

/// Header with the ID of a request, which all servers on its path log.
pub const AUDIT_ID: HeaderName = HeaderName::from_static("audit-id");
/// Header with the key under which a server that shares the audit log finds the record of a forwarded request.
pub const HANDED: HeaderName = HeaderName::from_static("x-crowsnest-audit-record");
/// Longest `Audit-ID` that is taken from a request, as in kube-apiserver.
const LONGEST_ID: usize = 64;
/// Memory limit of bodies in queued events, in units of [`UNIT`] bytes.
const ROOM: usize = 64 << 10;
const UNIT: usize = 1 << 10;

/// Resolves the attributes that forwarded requests have at their target server.
pub trait Lookout: Send + Sync {
    fn beyond(&self, method: &Method, uri: &Uri, headers: &HeaderMap) -> Option<Beyond>;
}

/// Implementation for servers that forward no requests.
impl Lookout for () {
    fn beyond(&self, _: &Method, _: &Uri, _: &HeaderMap) -> Option<Beyond> {
        None
    }
}

/// Applies the audit policy and creates records; without a log it does nothing. Cheap to clone.
#[derive(Clone, Default)]
pub struct Auditor {
    on: Option<Arc<On>>,
}

struct On {
    policy: Policy,
    log: AuditLog,
    lookout: Box<dyn Lookout>,
    /// Records of requests that are being forwarded to another server, by a random key. `None` if the request is not
    /// logged.
    handed: Mutex<HashMap<String, Option<Arc<Record>>>>,
    body_permits: Arc<Semaphore>,
}

impl Auditor {
    pub fn new(policy: Policy, log: AuditLog, lookout: impl Lookout + 'static) -> Self {
        let (lookout, handed, body_permits) = (Box::new(lookout), Mutex::default(), Arc::new(Semaphore::new(ROOM)));
        Self { on: Some(Arc::new(On { policy, log, lookout, handed, body_permits })) }
    }

    pub fn log(&self) -> Option<&AuditLog> {
        self.on.as_ref().map(|on| &on.log)
    }

    /// The attributes that a request has at the server to which it is forwarded.
    pub fn beyond(&self, method: &Method, uri: &Uri, headers: &HeaderMap) -> Option<Beyond> {
        self.on.as_ref().and_then(|on| on.lookout.beyond(method, uri, headers))
    }

    /// Creates the record of a received request; `None` if the policy does not log it. `user` is `None` if
    /// authentication failed.
    pub async fn begin(&self, request: &Request<'_>, user: Option<&UserInfo>, lasts: bool) -> Option<Arc<Record>> {
        let on = self.on.as_ref()?;
        let beyond = request.beyond.and_then(|beyond| beyond.attributes.as_ref());
        let attributes: Vec<&Attributes> = [Some(request.attributes), beyond].into_iter().flatten().collect();
        let decision = on.policy.decide(user.unwrap_or(&UserInfo::default()), &attributes)?;
        Some(Record::begin(on.log.clone(), Arc::clone(&on.body_permits), decision, request, user, lasts).await)
    }

    /// Registers the record of a request that is forwarded; `None` registers that the request is not logged.
    pub fn hand(&self, record: Option<Arc<Record>>) -> Option<Handed> {
        let on = self.on.clone()?;
        let name = uuid::Uuid::new_v4().to_string();
        on.handed.lock().insert(name.clone(), record);
        Some(Handed { on, name })
    }

    /// Removes and returns the record registered under a key.
    pub fn take(&self, name: &str) -> Option<Option<Arc<Record>>> {
        self.on.as_ref()?.handed.lock().remove(name)
    }
}

/// Registration of a forwarded record; removed on drop.
pub struct Handed {
    on: Arc<On>,
    name: String,
}

impl Handed {
    /// Value of the [`HANDED`] header.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl Drop for Handed {
    fn drop(&mut self) {
        self.on.handed.lock().remove(&self.name);
    }
}

/// The `Audit-ID` of a request, or a new one if it is missing or too long.
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
        let attributes = sample_attributes();
        event::Event::received(&request(id, &HeaderMap::new(), &attributes), None, Level::Metadata)
    }

    fn sample_attributes() -> Attributes {
        Attributes { verb: "create".into(), resource: "pods".into(), version: "v1".into(), ..Attributes::default() }
    }

    fn request<'a>(id: &'a str, headers: &'a HeaderMap, attributes: &'a Attributes) -> Request<'a> {
        static URI: std::sync::LazyLock<http::Uri> = std::sync::LazyLock::new(|| http::Uri::from_static("/x"));
        let received = Timestamp::UNIX_EPOCH;
        Request { audit_id: id, received, uri: &URI, headers, peer: None, attributes, beyond: None }
    }

    fn policy(rest: &str) -> String {
        format!("apiVersion: audit.k8s.io/v1\nkind: Policy\n{rest}")
    }

    /// Events that are logged while `during` runs.
    async fn logged(policy: &str, during: impl AsyncFnOnce(Auditor)) -> Vec<Value> {
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
    async fn each_stage_is_logged_once_unless_omitted() {
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
            let events = logged(policy, async |auditor: Auditor| {
                let (headers, attributes) = (HeaderMap::new(), sample_attributes());
                let Some(record) = auditor.begin(&request("1", &headers, &attributes), None, lasts).await else {
                    return;
                };
                match panics {
                    true => record.panicked(),
                    false => record.answered(StatusCode::OK, None).await,
                }
                // A server that forwards the response reports the same status again.
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
    async fn bodies_are_logged_by_level() {
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
            let events = logged(&rule, async |auditor: Auditor| {
                let (headers, attributes) = (HeaderMap::new(), sample_attributes());
                let record = auditor.begin(&request("1", &headers, &attributes), None, false).await.unwrap();
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
            let annotation = event["annotations"]["audit.k8s.io/truncated"].as_str();
            assert_eq!(annotation.unwrap_or_default(), truncated, "{rule}");
        }
    }

    #[tokio::test]
    async fn forwarded_records_are_taken_once_while_registered() {
        let rule = policy("rules: [{level: Metadata}]\nomitStages: [RequestReceived]");
        let events = logged(&rule, async |auditor: Auditor| {
            let (headers, attributes) = (HeaderMap::new(), sample_attributes());
            let record = auditor.begin(&request("1", &headers, &attributes), None, false).await;
            let handed = auditor.hand(record.clone()).unwrap();
            let found = auditor.take(handed.name()).unwrap().unwrap();
            found.note("example.com/reached", "m1");
            assert!(auditor.take(handed.name()).is_none());
            let unseen = auditor.hand(record).unwrap();
            let name = unseen.name().to_owned();
            drop(unseen);
            assert!(auditor.take(&name).is_none());
            // A request without a record is registered as not logged.
            let none = auditor.hand(None).unwrap();
            assert!(auditor.take(none.name()).unwrap().is_none());
        })
        .await;
        let [event] = events.as_slice() else { panic!("{events:#?}") };
        assert_eq!(event["annotations"]["example.com/reached"], "m1");
        assert!(Auditor::default().hand(None).is_none());
    }

    #[test]
    fn audit_id_of_the_request_is_kept() {
        let named = |id: &str| HeaderMap::from_iter([(AUDIT_ID, id.parse().unwrap())]);
        let cases =
            [(named("abc"), "abc"), (named(""), "new"), (named(&"x".repeat(65)), "new"), (HeaderMap::new(), "new")];
        for (headers, expected) in cases {
            assert_eq!(id_of(&headers, || "new".to_owned()), expected, "{headers:?}");
        }
    }
}
