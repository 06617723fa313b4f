//! Audit log in Kubernetes' format: who requested what, when, and with which result.
//!
//! A [`Record`] accompanies its request. Events are written when the request is received, when a long-running
//! response starts, and when the response or tunnel ends. `policy` decides what is logged, `log` writes it, and
//! `tracked_body` wraps the bodies of requests and responses.
//!
//! A request that is forwarded to another server of this process is one request. When both servers share a log, the
//! record is passed on with it, so that one event has the user as the first server authenticated it and the object
//! that the second one resolved.

pub mod attributes;
mod event;
pub mod log;
pub mod policy;
mod record;
pub mod tracked_body;

use std::collections::HashMap;
use std::sync::Arc;

use crowsnest_apimachinery::user::UserInfo;
use http::{HeaderMap, HeaderName, Method, Uri};
use parking_lot::Mutex;
use tokio::sync::Semaphore;

pub use attributes::Attributes;
pub use event::{ForwardedRequest, Level, Request, Stage};
use log::AuditLog;
use policy::Policy;
pub use record::Record;

/// Header with the ID of a request, which all servers on its path log.
pub const AUDIT_ID: HeaderName = HeaderName::from_static("audit-id");
/// Header with the key under which a server that shares the audit log finds the record of a forwarded request.
pub const FORWARDED_RECORD: HeaderName = HeaderName::from_static("x-crowsnest-audit-record");
/// Maximum length of an `Audit-ID` header that is accepted from a request, as in kube-apiserver.
const MAX_ID_LENGTH: usize = 64;
/// Memory limit of bodies in queued events, in units of [`BODY_MEMORY_UNIT_BYTES`].
const BODY_MEMORY_UNITS: usize = 64 << 10;
const BODY_MEMORY_UNIT_BYTES: usize = 1 << 10;

/// Resolves the attributes that forwarded requests have at their target server.
pub trait ForwardResolver: Send + Sync {
    /// Returns the attributes of a request at its target server; `None` if this server handles the request itself.
    fn resolve(&self, method: &Method, uri: &Uri, headers: &HeaderMap) -> Option<ForwardedRequest>;
}

/// Implementation for servers that forward no requests.
impl ForwardResolver for () {
    fn resolve(&self, _: &Method, _: &Uri, _: &HeaderMap) -> Option<ForwardedRequest> {
        None
    }
}

/// Applies the audit policy and creates records; without a log it does nothing. Cheap to clone.
#[derive(Clone, Default)]
pub struct Auditor {
    active: Option<Arc<ActiveAuditor>>,
}

/// Policy, log and forwarded records of an enabled auditor.
struct ActiveAuditor {
    policy: Policy,
    log: AuditLog,
    forward_resolver: Box<dyn ForwardResolver>,
    /// Records of requests that are being forwarded to another server, by a random key. `None` if the request is not
    /// logged.
    forwarded_records: Mutex<HashMap<String, Option<Arc<Record>>>>,
    body_permits: Arc<Semaphore>,
}

impl Auditor {
    pub fn new(policy: Policy, log: AuditLog, forward_resolver: impl ForwardResolver + 'static) -> Self {
        let (forward_resolver, forwarded_records, body_permits) =
            (Box::new(forward_resolver), Mutex::default(), Arc::new(Semaphore::new(BODY_MEMORY_UNITS)));
        Self {
            active: Some(Arc::new(ActiveAuditor { policy, log, forward_resolver, forwarded_records, body_permits })),
        }
    }

    pub fn log(&self) -> Option<&AuditLog> {
        self.active.as_ref().map(|active| &active.log)
    }

    /// The attributes that a request has at the server to which it is forwarded.
    pub fn forwarded_request(&self, method: &Method, uri: &Uri, headers: &HeaderMap) -> Option<ForwardedRequest> {
        self.active.as_ref().and_then(|active| active.forward_resolver.resolve(method, uri, headers))
    }

    /// Creates the record of a received request; `None` if the policy does not log it. `user` is `None` if
    /// authentication failed.
    pub async fn begin(
        &self,
        request: &Request<'_>,
        user: Option<&UserInfo>,
        is_long_running: bool,
    ) -> Option<Arc<Record>> {
        let active = self.active.as_ref()?;
        let forwarded = request.forwarded.and_then(|forwarded| forwarded.attributes.as_ref());
        let attributes: Vec<&Attributes> = [Some(request.attributes), forwarded].into_iter().flatten().collect();
        let decision = active.policy.decide(user.unwrap_or(&UserInfo::default()), &attributes)?;
        Some(
            Record::begin(
                active.log.clone(),
                Arc::clone(&active.body_permits),
                decision,
                request,
                user,
                is_long_running,
            )
            .await,
        )
    }

    /// Registers the record of a request that is forwarded; `None` registers that the request is not logged.
    pub fn register_forwarded(&self, record: Option<Arc<Record>>) -> Option<ForwardedRecord> {
        let active = self.active.clone()?;
        let key = uuid::Uuid::new_v4().to_string();
        active.forwarded_records.lock().insert(key.clone(), record);
        Some(ForwardedRecord { auditor: active, key })
    }

    /// Removes and returns the record registered under a key.
    pub fn take_forwarded(&self, key: &str) -> Option<Option<Arc<Record>>> {
        self.active.as_ref()?.forwarded_records.lock().remove(key)
    }
}

/// Registration of a forwarded record; removed on drop.
pub struct ForwardedRecord {
    auditor: Arc<ActiveAuditor>,
    key: String,
}

impl ForwardedRecord {
    /// Value of the [`FORWARDED_RECORD`] header.
    pub fn key(&self) -> &str {
        &self.key
    }
}

impl Drop for ForwardedRecord {
    fn drop(&mut self) {
        self.auditor.forwarded_records.lock().remove(&self.key);
    }
}

/// The `Audit-ID` of a request, or a new one if it is missing or too long.
pub fn audit_id(headers: &HeaderMap, generate: impl FnOnce() -> String) -> String {
    let header = headers.get(AUDIT_ID).and_then(|id| id.to_str().ok());
    header.filter(|id| (1..=MAX_ID_LENGTH).contains(&id.len())).map_or_else(generate, str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::StatusCode;
    use jiff::Timestamp;
    use serde_json::{Value, json};

    pub(super) fn event(id: &str) -> event::Event {
        let attributes = sample_attributes();
        event::Event::new(&request(id, &HeaderMap::new(), &attributes), None, Level::Metadata)
    }

    fn sample_attributes() -> Attributes {
        Attributes { verb: "create".into(), resource: "pods".into(), version: "v1".into(), ..Attributes::default() }
    }

    fn request<'a>(id: &'a str, headers: &'a HeaderMap, attributes: &'a Attributes) -> Request<'a> {
        static URI: std::sync::LazyLock<http::Uri> = std::sync::LazyLock::new(|| http::Uri::from_static("/x"));
        let received_at = Timestamp::UNIX_EPOCH;
        Request { audit_id: id, received_at, uri: &URI, headers, peer: None, attributes, forwarded: None }
    }

    fn policy(rest: &str) -> String {
        format!("apiVersion: audit.k8s.io/v1\nkind: Policy\n{rest}")
    }

    /// Events that are logged while `action` runs.
    async fn log_events(policy: &str, action: impl AsyncFnOnce(Auditor)) -> Vec<Value> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.log");
        let log_file = log::LogFile { path: path.clone(), max_bytes: 0, max_backups: 0, max_age_days: 0 };
        let (log, writer) = AuditLog::start(log::Destination::File(log_file)).unwrap();
        action(Auditor::new(Policy::parse(policy).unwrap(), log, ())).await;
        writer.stop().await;
        let text = std::fs::read_to_string(&path).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[tokio::test]
    async fn each_stage_is_logged_once_unless_omitted() {
        let all_stages = &policy("rules: [{level: Metadata}]");
        let no_requests = &policy("rules: [{level: None}]");
        let last_stage = &policy("rules: [{level: Metadata}]\nomitStages: [RequestReceived, ResponseStarted]");
        let cases: [(&str, bool, bool, &[(&str, u64)]); 5] = [
            (all_stages, false, false, &[("RequestReceived", 0), ("ResponseComplete", 200)]),
            (all_stages, true, false, &[("RequestReceived", 0), ("ResponseStarted", 200), ("ResponseComplete", 200)]),
            (all_stages, false, true, &[("RequestReceived", 0), ("Panic", 500)]),
            (no_requests, true, false, &[]),
            (last_stage, true, false, &[("ResponseComplete", 200)]),
        ];
        for (policy, is_long_running, panics, expected) in cases {
            let events = log_events(policy, async |auditor: Auditor| {
                let (headers, attributes) = (HeaderMap::new(), sample_attributes());
                let Some(record) = auditor.begin(&request("1", &headers, &attributes), None, is_long_running).await
                else {
                    return;
                };
                match panics {
                    true => record.record_panic(),
                    false => record.record_response_start(StatusCode::OK, None).await,
                }
                // A server that forwards the response reports the same status again.
                if !panics {
                    record.record_response_start(StatusCode::OK, None).await;
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
            assert_eq!(seen, expected, "{policy} {is_long_running} {panics}");
        }
    }

    #[tokio::test]
    async fn bodies_are_logged_by_level() {
        let metadata = json!({"generateName": "a-", "resourceVersion": "7", "managedFields": [{}]});
        let sent = json!({"metadata": metadata, "data": "x"});
        let created = json!({"metadata": {"name": "a-1", "uid": "u-1", "resourceVersion": "9"}, "data": "y"});
        let large = json!({"metadata": {}, "data": "x".repeat(record::MAX_BODY_BYTES)});
        let plain = json!({"metadata": {"generateName": "a-", "resourceVersion": "7"}, "data": "x"});
        let null = Value::Null;
        let cases: [(&str, &Value, [&Value; 2], &str); 5] = [
            ("level: Metadata", &created, [&null, &null], ""),
            ("level: Request", &created, [&sent, &null], ""),
            ("level: RequestResponse", &created, [&sent, &created], ""),
            ("level: RequestResponse, omitManagedFields: true", &created, [&plain, &created], ""),
            ("level: RequestResponse", &large, [&sent, &null], "true"),
        ];
        for (rule, response, expected, truncated) in cases {
            let rule = policy(&format!("rules: [{{{rule}}}]\nomitStages: [RequestReceived]"));
            let events = log_events(&rule, async |auditor: Auditor| {
                let (headers, attributes) = (HeaderMap::new(), sample_attributes());
                let record = auditor.begin(&request("1", &headers, &attributes), None, false).await.unwrap();
                record.record_request(&sent);
                record.record_created_object(&created);
                record.record_response_body(response.clone());
                record.record_response_start(StatusCode::CREATED, None).await;
            })
            .await;
            let [event] = events.as_slice() else { panic!("{events:#?}") };
            assert_eq!([&event["requestObject"], &event["responseObject"]], expected, "{rule}");
            let reference = ["name", "uid", "resourceVersion"].map(|field| event["objectRef"][field].as_str().unwrap());
            assert_eq!(reference, ["a-1", "u-1", "7"], "{rule}");
            let annotation = event["annotations"]["audit.k8s.io/truncated"].as_str();
            assert_eq!(annotation.unwrap_or_default(), truncated, "{rule}");
        }
    }

    #[tokio::test]
    async fn memory_of_queued_bodies_is_limited() {
        let rule = policy("rules: [{level: Request}]\nomitStages: [RequestReceived]");
        let events = log_events(&rule, async |auditor: Auditor| {
            let (headers, attributes) = (HeaderMap::new(), sample_attributes());
            let large = auditor.begin(&request("1", &headers, &attributes), None, false).await.unwrap();
            assert!(!large.reserve_body(record::MAX_BODY_BYTES + 1));
            let first = auditor.begin(&request("2", &headers, &attributes), None, false).await.unwrap();
            let max_bodies = BODY_MEMORY_UNITS * BODY_MEMORY_UNIT_BYTES / record::MAX_BODY_BYTES;
            assert!((0..max_bodies).all(|_| first.reserve_body(record::MAX_BODY_BYTES)));
            let second = auditor.begin(&request("3", &headers, &attributes), None, false).await.unwrap();
            assert!(!second.reserve_body(1));
        })
        .await;
        let truncated = |event: &Value| event["annotations"]["audit.k8s.io/truncated"] == "true";
        let mut found: Vec<_> = events.iter().map(|event| (event["auditID"].as_str(), truncated(event))).collect();
        found.sort_unstable();
        assert_eq!(found, [(Some("1"), true), (Some("2"), false), (Some("3"), true)]);
    }

    #[tokio::test]
    async fn forwarded_records_are_taken_once_while_registered() {
        let rule = policy("rules: [{level: Metadata}]\nomitStages: [RequestReceived]");
        let events = log_events(&rule, async |auditor: Auditor| {
            let (headers, attributes) = (HeaderMap::new(), sample_attributes());
            let record = auditor.begin(&request("1", &headers, &attributes), None, false).await;
            let forwarded = auditor.register_forwarded(record.clone()).unwrap();
            let found = auditor.take_forwarded(forwarded.key()).unwrap().unwrap();
            found.annotate("example.com/reached", "m1");
            assert!(auditor.take_forwarded(forwarded.key()).is_none());
            let unused = auditor.register_forwarded(record).unwrap();
            let key = unused.key().to_owned();
            drop(unused);
            assert!(auditor.take_forwarded(&key).is_none());
            // A request without a record is registered as not logged.
            let without_record = auditor.register_forwarded(None).unwrap();
            assert!(auditor.take_forwarded(without_record.key()).unwrap().is_none());
        })
        .await;
        let [event] = events.as_slice() else { panic!("{events:#?}") };
        assert_eq!(event["annotations"]["example.com/reached"], "m1");
        assert!(Auditor::default().register_forwarded(None).is_none());
    }

    #[test]
    fn audit_id_of_the_request_is_kept() {
        let headers_with = |id: &str| HeaderMap::from_iter([(AUDIT_ID, id.parse().unwrap())]);
        let cases = [
            (headers_with("abc"), "abc"),
            (headers_with(""), "new"),
            (headers_with(&"x".repeat(65)), "new"),
            (HeaderMap::new(), "new"),
        ];
        for (headers, expected) in cases {
            assert_eq!(audit_id(&headers, || "new".to_owned()), expected, "{headers:?}");
        }
    }
}
