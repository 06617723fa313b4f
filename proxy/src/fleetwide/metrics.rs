//! `metrics.k8s.io` of the fleet, for `kubectl top` and similar clients. If the control plane does not serve the
//! group, members are queried as the caller and discovery lists the group. Usage can be neither watched nor cached.
//!
//! If the control plane serves the group, with our adapter ([`crate::metrics`]) or Karmada's, requests go to it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use crowsnest_apimachinery::names::ClusterName;
use crowsnest_apimachinery::request::Query;
use crowsnest_members::Member;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use serde_json::Value;

use crate::cluster::read_response_body;
use crate::metrics::resource::{Kind, UsageListRequest, selectors};
use crate::metrics::{MemberIdentity, collect_body, unreachable_error};
use crate::native::{NativePath, Verb};
use crate::table::{Content, Shape};
use crate::{Body, Caller, Error, Proxy, full};

const GROUP: &str = "metrics.k8s.io";
/// Timeout of the head and of the body of a member's discovery document.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(2);
/// Number of members that are tried before the group is omitted from discovery.
const MAX_TRIED_MEMBERS: usize = 3;

/// A discovery document that lists the group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiscoveryDocument {
    /// The list of all groups, `/apis`.
    AllGroups,
    /// The document of this group or of its version, `/apis/metrics.k8s.io`.
    MetricsGroup,
}

/// The discovery document at a path.
pub fn discovery_document(path: &str) -> Option<DiscoveryDocument> {
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    match parts.as_slice() {
        ["apis"] => Some(DiscoveryDocument::AllGroups),
        ["apis", GROUP] | ["apis", GROUP, _] => Some(DiscoveryDocument::MetricsGroup),
        _ => None,
    }
}

/// True if a path is a list or object of the group.
pub fn is_metrics_path(native: &NativePath) -> bool {
    &*native.resource.group == GROUP && native.subresource.is_empty()
}

impl Proxy {
    /// True if members serve the group and the control plane does not.
    pub(super) fn has_metrics_of_members(&self) -> bool {
        let control_plane_serves = self.serves_metrics(&ClusterName::control_plane());
        !control_plane_serves && self.inner.fleet.members().iter().any(|member| self.serves_metrics(member.name()))
    }

    /// True if the group is in the discovery of a cluster.
    fn serves_metrics(&self, cluster: &ClusterName) -> bool {
        let served = self.inner.cache.served_resources(cluster);
        served.is_some_and(|served| {
            let group = format!("{GROUP}/");
            served.resources.iter().any(|resource| &*resource.gvr.group == GROUP)
                || served.stale.iter().any(|version| version.starts_with(&group))
        })
    }

    /// Usage in all members, or of the one named object.
    pub(super) async fn serve_metrics(
        &self,
        caller: &Caller,
        native: &NativePath,
        path: &str,
        request: Request<Body>,
    ) -> Result<Response<Body>, Error> {
        let parameters = Query::parse(request.uri().query());
        match native.verb(request.method(), &parameters) {
            Verb::List => {
                let kind = Kind::from_path(native).ok_or(Error::UnknownResource)?;
                let (fields, query) = selectors(native, &parameters)?;
                let shape = Shape::from_accept_header(request.headers(), &parameters, Content::List)?;
                let (members, missing, identity) =
                    (self.members_of(caller), Vec::new(), MemberIdentity::Caller(caller));
                self.list_usage(UsageListRequest { kind, members, missing, identity, path, fields, query, shape }).await
            }
            Verb::Get => {
                let owner = native.require_only_one(self.find_owners(caller, native).await?, |owner| owner.name())?;
                self.forward_to_member(&owner, caller, path, request, None).await
            }
            _ => Err(Error::MethodNotAllowed),
        }
    }

    /// The control plane's discovery document with the group added from a member.
    pub(super) async fn serve_metrics_discovery(
        &self,
        document: DiscoveryDocument,
        caller: &Caller,
        path: &str,
        mut request: Request<Body>,
    ) -> Result<Response<Body>, Error> {
        if request.method() != Method::GET {
            return self.forward_to_control_plane(caller, path, request).await;
        }
        request_plain_json(request.headers_mut());
        let headers = request.headers().clone();
        if document == DiscoveryDocument::MetricsGroup {
            return match self.discover_from_members(caller, path, &headers).await {
                Some(response) => Ok(response.map(full)),
                None => self.forward_to_control_plane(caller, path, request).await,
            };
        }
        let response = self.forward_to_control_plane(caller, path, request).await?;
        if response.status() != StatusCode::OK {
            return Ok(response);
        }
        let (mut parts, body) = response.into_parts();
        let mut response_body = read_response_body(body).await?;
        let member_document = self.discover_from_members(caller, path, &headers).await;
        let merged = member_document.and_then(|document| add_metrics_group(&response_body, document.body()));
        if let Some(merged) = merged {
            response_body = merged.into();
            // The merged document differs from the one that the ETag identifies.
            parts.headers.remove(header::ETAG);
        }
        parts.headers.insert(header::CONTENT_LENGTH, HeaderValue::from(response_body.len()));
        Ok(Response::from_parts(parts, full(response_body)))
    }

    /// The discovery document of the first member that returns it completely. Failures of other members are logged.
    async fn discover_from_members(&self, caller: &Caller, path: &str, headers: &HeaderMap) -> Option<Response<Bytes>> {
        let members = self.members_of(caller);
        let serving = members.iter().filter(|member| self.serves_metrics(member.name()));
        let mut serving: Vec<&Arc<Member>> = serving.collect();
        serving.sort_by_key(|member| member.name().clone());
        for member in serving.into_iter().take(MAX_TRIED_MEMBERS) {
            let mut request = Request::new(full(""));
            *request.headers_mut() = headers.clone();
            match self.read_from_member(member, caller, path, request).await {
                Ok(response) if response.status() == StatusCode::OK => return Some(response),
                Ok(response) => {
                    tracing::debug!(cluster = %member.name(), status = %response.status(), path, "a member did not return its discovery document");
                }
                Err(error) => {
                    tracing::debug!(cluster = %member.name(), %error, path, "a member did not return its discovery document")
                }
            }
        }
        None
    }

    /// The complete response of a member.
    async fn read_from_member(
        &self,
        member: &Arc<Member>,
        caller: &Caller,
        path: &str,
        request: Request<Body>,
    ) -> Result<Response<Bytes>, Error> {
        let response = self.forward_to_member(member, caller, path, request, Some(RESPONSE_TIMEOUT)).await?;
        read_completely(member.name(), response, RESPONSE_TIMEOUT).await
    }
}

/// A response of a member with its complete body, which must arrive within `timeout`.
async fn read_completely(
    cluster: &ClusterName,
    response: Response<Body>,
    timeout: Duration,
) -> Result<Response<Bytes>, Error> {
    let (parts, body) = response.into_parts();
    let body = tokio::time::timeout(timeout, collect_body(cluster, body)).await;
    let body = body.map_err(|_| unreachable_error(cluster, format!("no complete response within {timeout:?}")))??;
    Ok(Response::from_parts(parts, body))
}

/// Restricts `Accept` to uncompressed JSON, in which documents are merged, and removes `If-None-Match`: the ETag of the control
/// plane does not identify a merged document.
fn request_plain_json(headers: &mut HeaderMap) {
    let accepts = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let json = accepts.flat_map(|accept| accept.split(',')).map(str::trim);
    let json: Vec<&str> = json.filter(|media| media.split(';').next() == Some("application/json")).collect();
    let json = if json.is_empty() { "application/json".to_owned() } else { json.join(",") };
    for name in [header::ACCEPT_ENCODING, header::IF_NONE_MATCH] {
        headers.remove(name);
    }
    headers
        .insert(header::ACCEPT, HeaderValue::from_str(&json).unwrap_or(HeaderValue::from_static("application/json")));
}

/// Adds the group of a member's document to a document of the same form; None if there is nothing to add.
fn add_metrics_group(document: &[u8], member_document: &[u8]) -> Option<Vec<u8>> {
    let mut document: Value = serde_json::from_slice(document).ok()?;
    let member_document: Value = serde_json::from_slice(member_document).ok()?;
    let (list, name) = match document.get("kind")?.as_str()? {
        "APIGroupDiscoveryList" => ("items", "/metadata/name"),
        "APIGroupList" => ("groups", "/name"),
        _ => return None,
    };
    if document.get("kind") != member_document.get("kind")
        || document.get("apiVersion") != member_document.get("apiVersion")
    {
        return None;
    }
    let is_metrics = |group: &&Value| group.pointer(name).and_then(Value::as_str) == Some(GROUP);
    let group = member_document.get(list)?.as_array()?.iter().find(is_metrics)?.clone();
    let groups = document.get_mut(list)?.as_array_mut()?;
    if groups.iter().any(|group| is_metrics(&group)) {
        return None;
    }
    groups.push(group);
    serde_json::to_vec(&document).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::BoxError;
    use futures::StreamExt;
    use futures::stream;
    use http_body::Frame;
    use http_body_util::{BodyExt, StreamBody};
    use serde_json::json;

    /// A body that sends this text, then possibly an error, and then possibly stalls.
    fn document(text: &'static str, breaks: bool, stalls: bool) -> Response<Body> {
        let broken: Option<Result<Frame<Bytes>, BoxError>> = breaks.then(|| Err("connection reset".into()));
        let sent = stream::iter([Ok(Frame::data(Bytes::from_static(text.as_bytes())))].into_iter().chain(broken));
        let rest = if stalls { stream::pending().left_stream() } else { stream::empty().right_stream() };
        Response::new(StreamBody::new(sent.chain(rest)).boxed_unsync())
    }

    #[rstest::rstest]
    #[case::complete(document("{}", false, false), Ok("{}"))]
    #[case::broken(document("{", true, false), Err("connection reset"))]
    #[case::stalled(document("{", false, true), Err("no complete response within 20ms"))]
    #[tokio::test]
    async fn incomplete_documents_are_errors(#[case] response: Response<Body>, #[case] expected: Result<&str, &str>) {
        let cluster = ClusterName::parse("m1").unwrap();
        let result = read_completely(&cluster, response, Duration::from_millis(20)).await;
        match (result.map(Response::into_body), expected) {
            (Ok(body), Ok(expected)) => assert_eq!(body, expected),
            (Err(error), Err(expected)) => assert!(error.to_string().contains(expected), "{error}"),
            (result, expected) => panic!("{result:?} instead of {expected:?}"),
        }
    }

    #[rstest::rstest]
    #[case("/apis", Some(DiscoveryDocument::AllGroups))]
    #[case("/apis/", Some(DiscoveryDocument::AllGroups))]
    #[case("/apis/metrics.k8s.io", Some(DiscoveryDocument::MetricsGroup))]
    #[case("/apis/metrics.k8s.io/v1beta1", Some(DiscoveryDocument::MetricsGroup))]
    #[case("/apis/apps/v1", None)]
    #[case("/api", None)]
    fn discovery_documents_are_recognized(#[case] path: &str, #[case] expected: Option<DiscoveryDocument>) {
        assert_eq!(discovery_document(path), expected);
    }

    fn legacy(names: &[&str]) -> Value {
        let groups: Vec<Value> = names.iter().map(|name| json!({"name": name})).collect();
        json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
    }

    fn aggregated(names: &[&str]) -> Value {
        let items: Vec<Value> = names.iter().map(|name| json!({"metadata": {"name": name}})).collect();
        json!({"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "items": items})
    }

    #[rstest::rstest]
    #[case::legacy_discovery(legacy(&["apps"]), legacy(&["batch", GROUP]), Some(legacy(&["apps", GROUP])))]
    #[case::aggregated_discovery(aggregated(&["apps"]), aggregated(&[GROUP]), Some(aggregated(&["apps", GROUP])))]
    #[case::already_listed(legacy(&[GROUP]), legacy(&[GROUP]), None)]
    #[case::another_form(aggregated(&[]), legacy(&[GROUP]), None)]
    #[case::nothing_to_add(legacy(&["apps"]), legacy(&["apps"]), None)]
    #[case::member_without_groups(legacy(&["apps"]), json!(null), None)]
    fn the_group_of_a_member_is_added(
        #[case] document: Value,
        #[case] member_document: Value,
        #[case] expected: Option<Value>,
    ) {
        let merged = add_metrics_group(document.to_string().as_bytes(), member_document.to_string().as_bytes());
        assert_eq!(merged.map(|merged| serde_json::from_slice::<Value>(&merged).unwrap()), expected);
    }

    #[rstest::rstest]
    #[case(
        "application/json;as=APIGroupDiscoveryList;v=v2;g=apidiscovery.k8s.io,application/json",
        "application/json;as=APIGroupDiscoveryList;v=v2;g=apidiscovery.k8s.io,application/json"
    )]
    #[case("application/vnd.kubernetes.protobuf, application/json", "application/json")]
    #[case("*/*", "application/json")]
    fn json_is_requested(#[case] accept: &str, #[case] expected: &str) {
        let mut headers = HeaderMap::from_iter([
            (header::ACCEPT, HeaderValue::from_str(accept).unwrap()),
            (header::IF_NONE_MATCH, HeaderValue::from_static("\"e\"")),
        ]);
        request_plain_json(&mut headers);
        assert_eq!((headers[header::ACCEPT].to_str().unwrap(), headers.len()), (expected, 1));
    }
}
