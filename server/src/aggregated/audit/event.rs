//! One line of the audit log: `audit.k8s.io/v1` `Event`, at level Metadata. Pure.

use std::collections::BTreeMap;
use std::net::IpAddr;

use crowsnest_api::user::UserInfo;
use http::{HeaderMap, HeaderName, Uri, header};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::super::identity::Wanted;

/// Which cluster was asked; `*` is every one.
pub(crate) const CLUSTER: &str = "crowsnest.io/cluster";
/// What was asked of it, in RBAC's terms.
const MEMBER_VERB: &str = "crowsnest.io/member-verb";
const MEMBER_RESOURCE: &str = "crowsnest.io/member-resource";
const MEMBER_NAMESPACE: &str = "crowsnest.io/member-namespace";
const MEMBER_NAME: &str = "crowsnest.io/member-name";
const MEMBER_PATH: &str = "crowsnest.io/member-path";
/// As kube-apiserver notes what authorisation found.
pub(crate) const DECISION: &str = "authorization.k8s.io/decision";
pub(crate) const REASON: &str = "authorization.k8s.io/reason";

const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const REAL_IP: HeaderName = HeaderName::from_static("x-real-ip");

/// What is kept of a client's name for itself, as kube-apiserver does.
const USER_AGENT: usize = 1024;
/// Addresses believed of one request.
const SOURCES: usize = 16;
/// What is kept of a request's address; the longest command of an exec fits.
const REQUEST_URI: usize = 32 * 1024;
/// Query parameters whose values open doors.
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

/// When of a request an event is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Stage {
    RequestReceived,
    /// Of those that last: the answer has begun.
    ResponseStarted,
    ResponseComplete,
    Panic,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct User {
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
pub(crate) struct ObjectReference {
    resource: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    namespace: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    api_group: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    api_version: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    subresource: String,
}

impl ObjectReference {
    /// `None` for paths that name no resource.
    pub(crate) fn of(wanted: &Wanted) -> Option<Self> {
        let Wanted { group, version, resource, subresource, namespace, name, path, .. } = wanted.clone();
        path.is_none().then_some(Self {
            resource,
            namespace,
            name,
            api_group: group,
            api_version: version,
            subresource,
        })
    }
}

/// Fields stand in the order in which kube-apiserver writes them.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Event {
    kind: &'static str,
    api_version: &'static str,
    level: &'static str,
    #[serde(rename = "auditID")]
    pub(crate) audit_id: String,
    pub(crate) stage: Stage,
    #[serde(rename = "requestURI")]
    pub(crate) request_uri: String,
    pub(crate) verb: String,
    pub(crate) user: User,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) impersonated_user: Option<User>,
    #[serde(rename = "sourceIPs")]
    pub(crate) source_ips: Vec<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) user_agent: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) object_ref: Option<ObjectReference>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) response_status: Option<Value>,
    #[serde(serialize_with = "micro")]
    pub(crate) request_received_timestamp: Timestamp,
    #[serde(serialize_with = "micro")]
    pub(crate) stage_timestamp: Timestamp,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) annotations: BTreeMap<String, String>,
}

/// What is known of a request before anybody looks into it.
pub(crate) struct Request<'a> {
    pub(crate) audit_id: &'a str,
    pub(crate) received: Timestamp,
    pub(crate) uri: &'a Uri,
    pub(crate) headers: &'a HeaderMap,
    pub(crate) peer: Option<IpAddr>,
    pub(crate) wanted: &'a Wanted,
    /// What it asks of members.
    pub(crate) of_member: Option<&'a Wanted>,
    pub(crate) cluster: Option<&'a str>,
}

impl Event {
    /// The event of a request that has been received; nobody is who could not be authenticated.
    pub(crate) fn received(request: &Request<'_>, user: Option<&UserInfo>) -> Self {
        let agent = request.headers.get(header::USER_AGENT).map(|agent| String::from_utf8_lossy(agent.as_bytes()));
        let wanted = request.wanted;
        Self {
            kind: "Event",
            api_version: "audit.k8s.io/v1",
            level: "Metadata",
            audit_id: request.audit_id.to_owned(),
            stage: Stage::RequestReceived,
            request_uri: request_uri(request.uri),
            verb: wanted.verb.clone(),
            user: User::from(user.unwrap_or(&UserInfo::default())),
            impersonated_user: None,
            source_ips: source_ips(request.headers, request.peer),
            user_agent: truncated(&agent.unwrap_or_default(), USER_AGENT),
            object_ref: ObjectReference::of(wanted),
            response_status: None,
            request_received_timestamp: request.received,
            stage_timestamp: request.received,
            annotations: annotations(request),
        }
    }
}

/// `responseStatus`: the code, and of a failure what its Status says, but for the details.
pub(crate) fn response_status(code: u16, failure: Option<&Value>) -> Value {
    let mut status = json!({"metadata": {}, "code": code});
    for field in ["status", "message", "reason"] {
        if let Some(value) = failure.and_then(|failure| failure.get(field)) {
            status[field] = value.clone();
        }
    }
    status
}

fn annotations(request: &Request<'_>) -> BTreeMap<String, String> {
    let mut notes = BTreeMap::new();
    let mut note = |key: &str, value: &str| {
        if !value.is_empty() {
            notes.insert(key.to_owned(), value.to_owned());
        }
    };
    note(CLUSTER, request.cluster.unwrap_or_default());
    if let Some(theirs) = request.of_member {
        note(MEMBER_VERB, &theirs.verb);
        note(MEMBER_PATH, theirs.path.as_deref().unwrap_or_default());
        note(MEMBER_NAMESPACE, &theirs.namespace);
        note(MEMBER_NAME, &theirs.name);
        if theirs.path.is_none() {
            let dot = if theirs.group.is_empty() { "" } else { "." };
            let slash = if theirs.subresource.is_empty() { "" } else { "/" };
            let Wanted { resource, group, subresource, .. } = theirs;
            note(MEMBER_RESOURCE, &format!("{resource}{dot}{group}{slash}{subresource}"));
        }
    }
    notes
}

/// Where a request comes from: what proxies say, then who is connected.
fn source_ips(headers: &HeaderMap, peer: Option<IpAddr>) -> Vec<String> {
    let said = |name: &HeaderName| -> Vec<IpAddr> {
        let values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
        values.flat_map(|value| value.split(',')).filter_map(|one| one.trim().parse().ok()).take(SOURCES).collect()
    };
    let mut all = said(&FORWARDED_FOR);
    if all.is_empty() {
        all = said(&REAL_IP).into_iter().take(1).collect();
    }
    if let Some(peer) = peer.map(|peer| peer.to_canonical())
        && all.last() != Some(&peer)
    {
        all.push(peer);
    }
    all.iter().map(ToString::to_string).collect()
}

/// Path and query, without the values of parameters that are secrets.
fn request_uri(uri: &Uri) -> String {
    let Some(query) = uri.query() else { return truncated(uri.path(), REQUEST_URI) };
    let withheld = |pair: &str| {
        let key = pair.split('=').next().unwrap_or_default();
        let name = percent_encoding::percent_decode_str(key).decode_utf8_lossy().to_ascii_lowercase();
        match SECRET_PARAMETERS.contains(&name.as_str()) {
            true => format!("{key}=REDACTED"),
            false => pair.to_owned(),
        }
    };
    let pairs: Vec<String> = query.split('&').map(withheld).collect();
    truncated(&format!("{}?{}", uri.path(), pairs.join("&")), REQUEST_URI)
}

fn truncated(text: &str, most: usize) -> String {
    if text.len() <= most {
        return text.to_owned();
    }
    format!("{}...TRUNCATED", &text[..text.floor_char_boundary(most)])
}

fn micro<S: serde::Serializer>(time: &Timestamp, serializer: S) -> Result<S::Ok, S::Error> {
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
    fn what_opens_doors_is_not_logged(#[case] uri: &str, #[case] expected: &str) {
        assert_eq!(request_uri(&uri.parse().unwrap()), expected);
    }

    #[rstest]
    #[case(&[], Some("10.0.0.1"), &["10.0.0.1"])]
    #[case(&[("x-forwarded-for", "1.2.3.4, 5.6.7.8")], Some("10.0.0.1"), &["1.2.3.4", "5.6.7.8", "10.0.0.1"])]
    #[case(&[("x-forwarded-for", "1.2.3.4")], Some("1.2.3.4"), &["1.2.3.4"])]
    #[case(&[("x-forwarded-for", "nonsense")], Some("::ffff:10.0.0.1"), &["10.0.0.1"])]
    #[case(&[("x-real-ip", "9.9.9.9"), ("x-forwarded-for", "1.2.3.4")], None, &["1.2.3.4"])]
    #[case(&[("x-real-ip", "9.9.9.9")], None, &["9.9.9.9"])]
    fn sources_are_those_proxies_name_and_the_peer(
        #[case] given: &[(&'static str, &'static str)],
        #[case] peer: Option<&str>,
        #[case] expected: &[&str],
    ) {
        let mut headers = HeaderMap::new();
        for (name, value) in given {
            headers.append(*name, value.parse().unwrap());
        }
        assert_eq!(source_ips(&headers, peer.map(|peer| peer.parse().unwrap())), expected);
    }

    #[test]
    fn a_line_is_what_kubernetes_writes() {
        let path = "/apis/cluster.karmada.io/v1alpha1/clusters/m1/proxy/api/v1/namespaces/default/pods/web/exec";
        let uri: Uri = format!("{path}?command=ls&token=x").parse().unwrap();
        let mut headers = HeaderMap::new();
        headers.insert(header::USER_AGENT, "kubectl/v1.36".parse().unwrap());
        let ours = Wanted {
            verb: "create".into(),
            group: "cluster.karmada.io".into(),
            version: "v1alpha1".into(),
            resource: "clusters".into(),
            subresource: "proxy".into(),
            name: "m1".into(),
            ..Wanted::default()
        };
        let theirs = Wanted {
            verb: "create".into(),
            version: "v1".into(),
            resource: "pods".into(),
            subresource: "exec".into(),
            namespace: "default".into(),
            name: "web".into(),
            ..Wanted::default()
        };
        let mut event = Event::received(
            &Request {
                audit_id: "id-1",
                received: "2026-01-02T03:04:05.678901234Z".parse().unwrap(),
                uri: &uri,
                headers: &headers,
                peer: Some("10.0.0.1".parse().unwrap()),
                wanted: &ours,
                of_member: Some(&theirs),
                cluster: Some("m1"),
            },
            Some(&UserInfo::new("alice", ["dev"])),
        );
        event.stage = Stage::ResponseComplete;
        event.response_status = Some(response_status(403, Some(&json!({"reason": "Forbidden", "details": {}}))));
        insta::assert_json_snapshot!(event);
    }
}
