//! Events of the audit log: `audit.k8s.io/v1` `Event`, one JSON line each. Has no side effects.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use crowsnest_apimachinery::request::Query;
use crowsnest_apimachinery::user::UserInfo;
use http::{HeaderMap, HeaderName, Uri, header};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::sync::OwnedSemaphorePermit;

use super::attributes::Attributes;

/// Annotation keys of kube-apiserver: the authorization decision, its reason, and that a body was too large to be
/// logged.
pub(super) const DECISION: &str = "authorization.k8s.io/decision";
pub(super) const REASON: &str = "authorization.k8s.io/reason";
pub(super) const TRUNCATED: &str = "audit.k8s.io/truncated";

const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const REAL_IP: HeaderName = HeaderName::from_static("x-real-ip");

/// Maximum length of the logged `User-Agent` in bytes, as in kube-apiserver.
const MAX_USER_AGENT_BYTES: usize = 1024;
/// Maximum number of source addresses taken from one request's headers.
const MAX_SOURCE_IPS: usize = 16;
/// Maximum length of the logged request URI in bytes, enough for the command of an exec.
const MAX_REQUEST_URI_BYTES: usize = 32 * 1024;
/// Query parameters that carry credentials; their values are redacted.
const SECRET_PARAMETERS: [&str; 10] = [
    "token",
    "access_token",
    "id_token",
    "refresh_token",
    "auth_token",
    "authorization",
    "client_secret",
    "password",
    "secret",
    "api_key",
];

/// Audit level: how much of a request is logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Level {
    None,
    Metadata,
    /// Metadata and the request body.
    Request,
    /// Metadata, the request body and the response body.
    RequestResponse,
}

/// Stage of a request at which an event is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stage {
    RequestReceived,
    /// Long-running requests only: the response headers have been sent.
    ResponseStarted,
    ResponseComplete,
    Panic,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct User {
    #[serde(skip_serializing_if = "String::is_empty")]
    username: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    uid: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    groups: Vec<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    extra: BTreeMap<String, Vec<String>>,
}

impl From<&UserInfo> for User {
    fn from(user: &UserInfo) -> Self {
        let UserInfo { name, uid, groups, extra } = user.clone();
        Self { username: name, uid, groups, extra }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ObjectReference {
    resource: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    namespace: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    uid: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    api_group: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    api_version: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    resource_version: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    subresource: String,
}

impl ObjectReference {
    /// The object that a request addresses; `None` for paths that name no resource.
    fn from_attributes(attributes: &Attributes) -> Option<Self> {
        let Attributes { group, version, resource, subresource, namespace, name, path, .. } = attributes.clone();
        path.is_none().then_some(Self {
            resource,
            namespace,
            name,
            uid: String::new(),
            api_group: group,
            api_version: version,
            resource_version: String::new(),
            subresource,
        })
    }

    /// Fills the fields that the path leaves empty from an object's metadata.
    fn complete(&mut self, object: &Value, with_resource_version: bool) {
        let metadata_field = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
        let fill = |target: &mut String, field: &str| {
            if target.is_empty() {
                *target = metadata_field(field);
            }
        };
        fill(&mut self.namespace, "namespace");
        fill(&mut self.name, "name");
        fill(&mut self.uid, "uid");
        if with_resource_version {
            fill(&mut self.resource_version, "resourceVersion");
        }
    }
}

/// A logged body: raw JSON.
pub(super) type RawBody = Arc<RawValue>;

/// Details of the authentication of a request.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct AuthenticationMetadata {
    /// The verb of the constrained mode in which the user was impersonated.
    pub(super) impersonation_constraint: &'static str,
}

/// The fields are declared in the order in which kube-apiserver writes them.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Event {
    kind: &'static str,
    api_version: &'static str,
    level: Level,
    #[serde(rename = "auditID")]
    pub(super) audit_id: String,
    pub(super) stage: Stage,
    #[serde(rename = "requestURI")]
    pub(super) request_uri: String,
    pub(super) verb: String,
    pub(super) user: User,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) impersonated_user: Option<User>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) authentication_metadata: Option<AuthenticationMetadata>,
    #[serde(rename = "sourceIPs")]
    pub(super) source_ips: Vec<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) user_agent: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) object_ref: Option<ObjectReference>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) response_status: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) request_object: Option<RawBody>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) response_object: Option<RawBody>,
    #[serde(serialize_with = "serialize_micros")]
    pub(super) request_received_timestamp: Timestamp,
    #[serde(serialize_with = "serialize_micros")]
    pub(super) stage_timestamp: Timestamp,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) annotations: BTreeMap<String, String>,
    /// Permits of the memory limit for logged bodies, kept until the event is written.
    #[serde(skip)]
    pub(super) body_permits: Vec<Arc<OwnedSemaphorePermit>>,
}

/// The parts of a request that are available when it is received.
pub struct Request<'a> {
    pub audit_id: &'a str,
    pub received_at: Timestamp,
    pub uri: &'a Uri,
    pub headers: &'a HeaderMap,
    pub peer: Option<IpAddr>,
    pub attributes: &'a Attributes,
    pub forwarded: Option<&'a ForwardedRequest>,
}

/// Attributes that a request has at the server to which it is forwarded (for example a member cluster), as far as
/// its path names them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ForwardedRequest {
    /// Attributes at that server.
    pub attributes: Option<Attributes>,
    pub annotations: BTreeMap<String, String>,
    /// True for watches, streams and tunnels.
    pub is_long_running: bool,
}

impl Event {
    /// The event of a received request; `user` is `None` if authentication failed.
    pub(super) fn new(request: &Request<'_>, user: Option<&UserInfo>, level: Level) -> Self {
        let agent = request.headers.get(header::USER_AGENT).map(|agent| String::from_utf8_lossy(agent.as_bytes()));
        let attributes = request.attributes;
        Self {
            kind: "Event",
            api_version: "audit.k8s.io/v1",
            level,
            audit_id: request.audit_id.to_owned(),
            stage: Stage::RequestReceived,
            request_uri: request_uri(request.uri),
            verb: attributes.verb.clone(),
            user: User::from(user.unwrap_or(&UserInfo::default())),
            impersonated_user: None,
            authentication_metadata: None,
            source_ips: source_ips(request.headers, request.peer),
            user_agent: truncate(&agent.unwrap_or_default(), MAX_USER_AGENT_BYTES),
            object_ref: ObjectReference::from_attributes(attributes),
            response_status: None,
            request_object: None,
            response_object: None,
            request_received_timestamp: request.received_at,
            stage_timestamp: request.received_at,
            annotations: request.forwarded.map(|forwarded| forwarded.annotations.clone()).unwrap_or_default(),
            body_permits: Vec::new(),
        }
    }

    /// Completes the object reference from a request or response object. `with_resource_version` also copies its
    /// `resourceVersion`: true for the request object, whose version is logged.
    pub(super) fn complete_reference(&mut self, object: &Value, with_resource_version: bool) {
        if let Some(reference) = &mut self.object_ref {
            reference.complete(object, with_resource_version);
        }
    }
}

/// Removes `metadata.managedFields` of an object, and of the items of a list or the rows of a table.
pub(super) fn strip_managed_fields(mut object: Value) -> Value {
    fn strip(object: &mut Value) {
        if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.remove("managedFields");
        }
    }
    strip(&mut object);
    for item in object.get_mut("items").and_then(Value::as_array_mut).into_iter().flatten() {
        strip(item);
    }
    for row in object.get_mut("rows").and_then(Value::as_array_mut).into_iter().flatten() {
        row.get_mut("object").map(strip);
    }
    object
}

/// `responseStatus`: the code and, for a failure, the `Status` fields without `details`.
pub(super) fn response_status(code: u16, failure: Option<&Value>) -> Value {
    let mut status = json!({"metadata": {}, "code": code});
    for field in ["status", "message", "reason"] {
        if let Some(value) = failure.and_then(|failure| failure.get(field)) {
            status[field] = value.clone();
        }
    }
    status
}

/// Addresses of the client: those in forwarding headers, then the address of the connection.
fn source_ips(headers: &HeaderMap, peer: Option<IpAddr>) -> Vec<String> {
    let addresses_in = |name: &HeaderName| -> Vec<IpAddr> {
        let values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
        values
            .flat_map(|value| value.split(','))
            .filter_map(|address| address.trim().parse().ok())
            .take(MAX_SOURCE_IPS)
            .collect()
    };
    let mut addresses = addresses_in(&FORWARDED_FOR);
    if addresses.is_empty() {
        addresses = addresses_in(&REAL_IP).into_iter().take(1).collect();
    }
    if let Some(peer) = peer.map(|peer| peer.to_canonical())
        && addresses.last() != Some(&peer)
    {
        addresses.push(peer);
    }
    addresses.iter().map(ToString::to_string).collect()
}

/// Path and query; values of parameters that carry credentials are redacted.
fn request_uri(uri: &Uri) -> String {
    let Some(query) = uri.query() else { return truncate(uri.path(), MAX_REQUEST_URI_BYTES) };
    let is_secret = |name: &str| SECRET_PARAMETERS.contains(&name.to_ascii_lowercase().as_str());
    let query = Query::redact_parameters(query, is_secret);
    truncate(&format!("{}?{query}", uri.path()), MAX_REQUEST_URI_BYTES)
}

fn truncate(text: &str, max: usize) -> String {
    if text.len() <= max {
        return text.to_owned();
    }
    format!("{}...TRUNCATED", &text[..text.floor_char_boundary(max)])
}

fn serialize_micros<S: serde::Serializer>(time: &Timestamp, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&format_args!("{time:.6}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("/api/v1/pods", "/api/v1/pods")]
    #[case("/x?command=ls&command=-l&stdin=true", "/x?command=ls&command=-l&stdin=true")]
    #[case("/x?a=1&access_token=abc&b=2", "/x?a=1&access_token=REDACTED&b=2")]
    #[case("/x?ToKen=abc&tok%65n=def&token", "/x?ToKen=REDACTED&tok%65n=REDACTED&token=REDACTED")]
    fn credentials_in_queries_are_redacted(#[case] uri: &str, #[case] expected: &str) {
        assert_eq!(request_uri(&uri.parse().unwrap()), expected);
    }

    #[rstest]
    #[case(&[], Some("10.0.0.1"), &["10.0.0.1"])]
    #[case(&[("x-forwarded-for", "1.2.3.4, 5.6.7.8")], Some("10.0.0.1"), &["1.2.3.4", "5.6.7.8", "10.0.0.1"])]
    #[case(&[("x-forwarded-for", "1.2.3.4")], Some("1.2.3.4"), &["1.2.3.4"])]
    #[case(&[("x-forwarded-for", "nonsense")], Some("::ffff:10.0.0.1"), &["10.0.0.1"])]
    #[case(&[("x-real-ip", "9.9.9.9"), ("x-forwarded-for", "1.2.3.4")], None, &["1.2.3.4"])]
    #[case(&[("x-real-ip", "9.9.9.9")], None, &["9.9.9.9"])]
    fn source_ips_are_forwarded_addresses_and_the_peer(
        #[case] header_pairs: &[(&'static str, &'static str)],
        #[case] peer: Option<&str>,
        #[case] expected: &[&str],
    ) {
        let mut headers = HeaderMap::new();
        for (name, value) in header_pairs {
            headers.append(*name, value.parse().unwrap());
        }
        assert_eq!(source_ips(&headers, peer.map(|peer| peer.parse().unwrap())), expected);
    }

    #[test]
    fn a_line_is_what_kubernetes_writes() {
        let path = "/apis/example.com/v1/things/m1/proxy/api/v1/namespaces/default/pods/web/exec";
        let uri: Uri = format!("{path}?command=ls&token=x").parse().unwrap();
        let mut headers = HeaderMap::new();
        headers.insert(header::USER_AGENT, "kubectl/v1.36".parse().unwrap());
        let attributes = Attributes {
            verb: "create".into(),
            group: "example.com".into(),
            version: "v1".into(),
            resource: "things".into(),
            subresource: "proxy".into(),
            name: "m1".into(),
            ..Attributes::default()
        };
        let forwarded = ForwardedRequest {
            annotations: BTreeMap::from([("example.com/cluster".to_owned(), "m1".to_owned())]),
            ..ForwardedRequest::default()
        };
        let mut event = Event::new(
            &Request {
                audit_id: "id-1",
                received_at: "2026-01-02T03:04:05.678901234Z".parse().unwrap(),
                uri: &uri,
                headers: &headers,
                peer: Some("10.0.0.1".parse().unwrap()),
                attributes: &attributes,
                forwarded: Some(&forwarded),
            },
            Some(&UserInfo::new("alice", ["dev"])),
            Level::Metadata,
        );
        event.complete_reference(&json!({"metadata": {"name": "other", "uid": "u-1", "resourceVersion": "7"}}), true);
        event.stage = Stage::ResponseComplete;
        event.response_status = Some(response_status(403, Some(&json!({"reason": "Forbidden", "details": {}}))));
        insta::assert_json_snapshot!(event);
    }

    #[test]
    fn managed_fields_are_removed_from_objects_lists_and_tables() {
        let object = || json!({"metadata": {"name": "a", "managedFields": [{}]}, "spec": {}});
        let stripped = json!({"metadata": {"name": "a"}, "spec": {}});
        let list = json!({"metadata": {"managedFields": 1}, "items": [object()], "rows": [{"object": object()}, {}]});
        let expected = json!({"metadata": {}, "items": [stripped], "rows": [{"object": stripped}, {}]});
        assert_eq!(strip_managed_fields(list), expected);
        assert_eq!(strip_managed_fields(json!([1])), json!([1]));
    }
}
