//! Usage and metrics of the fleet (`metrics.k8s.io`, `custom.metrics.k8s.io`), read from the members on each
//! request and merged as by Karmada's metrics adapter: from every Ready member, with this process' own permissions.
//! Callers have already been authorized by the control plane.
//!
//! A member that fails or times out is left out and named in a `Warning` header. [`resource`] and [`custom`] are
//! the two groups; the fleet-wide proxy uses the same functions to merge usage as the caller.

mod custom;
pub(crate) mod resource;
mod table;

pub(crate) use custom::DiscoveryCache;
pub use custom::Metric;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use crowsnest_apimachinery::names::ClusterName;
use crowsnest_apimachinery::request::query_string;
use crowsnest_component_base::body::{self, BodyError};
use crowsnest_members::Member;
use http::{HeaderValue, Request, Response, StatusCode, header};
use http_body_util::BodyExt;
use serde::Deserialize;
use serde_json::Value;

use crate::all_clusters::get_request;
use crate::fleetwide::warning;
use crate::merged::MissingCluster;
use crate::transport::error_chain;
use crate::{Body, BoxError, Caller, Error, Proxy, full};

/// Time limit for a member's complete response.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);
/// Size limit of a response in bytes: usage of a hundred thousand pods.
const MAX_RESPONSE_BYTES: usize = 64 << 20;
/// Maximum number of `Warning` headers; clients accept at most a hundred headers.
const MAX_WARNINGS: usize = 32;

/// Query string of the non-empty parameters, with its question mark; empty if there are none.
fn format_query<'q>(parameters: impl IntoIterator<Item = (&'static str, &'q str)>) -> String {
    let query = query_string(parameters.into_iter().filter(|(_, value)| !value.is_empty()));
    if query.is_empty() { query } else { format!("?{query}") }
}

/// Identity used in members.
#[derive(Debug, Clone, Copy)]
pub(crate) enum MemberIdentity<'a> {
    /// The permissions of this process' service account.
    ServiceAccount,
    Caller(&'a Caller),
}

/// Result of a request to a member.
#[derive(Debug)]
pub(crate) enum MemberResponse {
    /// The body of a response with status 200.
    Ok(Bytes),
    /// A response with a status other than 200, and its body.
    Other(StatusCode, Bytes),
    /// The member did not respond.
    NoResponse(Error),
}

/// The fields of a `Status` that are used.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Status {
    message: String,
    details: Details,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Details {
    group: String,
}

impl Status {
    fn parse(body: &[u8]) -> Self {
        serde_json::from_slice(body).unwrap_or_default()
    }
}

/// The reason for a [`MissingCluster`]: status and message of its response.
fn failure_reason(code: StatusCode, body: &[u8]) -> String {
    let message = Status::parse(body).message;
    let colon = if message.is_empty() { "" } else { ": " };
    format!("responded {code}{colon}{message}")
}

impl Proxy {
    /// Members to query, and members that are skipped because they are not ready, both in name order.
    fn ready_members(&self) -> (Vec<Arc<Member>>, Vec<MissingCluster>) {
        let members = self.inner.fleet.members().into_iter().filter(|member| !member.is_deleting());
        let (ready, not_ready): (Vec<_>, Vec<_>) = members.partition(|member| member.is_ready());
        let missing = |member: &Arc<Member>| MissingCluster {
            cluster: member.name().clone(),
            reason: "is not ready and is left out".to_owned(),
        };
        (ready, not_ready.iter().map(missing).collect())
    }

    /// Gets a complete document from a member within [`RESPONSE_TIMEOUT`].
    async fn get_from_member(
        &self,
        member: &Arc<Member>,
        identity: MemberIdentity<'_>,
        path: &str,
        query: &str,
    ) -> MemberResponse {
        let timeout = RESPONSE_TIMEOUT.min(self.inner.transport.response_timeout());
        match tokio::time::timeout(timeout, self.send_get(member, identity, path, query, timeout)).await {
            Ok(Ok((StatusCode::OK, body))) => MemberResponse::Ok(body),
            Ok(Ok((code, body))) => MemberResponse::Other(code, body),
            Ok(Err(error)) => MemberResponse::NoResponse(error),
            Err(_) => MemberResponse::NoResponse(unreachable_error(
                member.name(),
                format!("no response within {} s", timeout.as_secs_f32()),
            )),
        }
    }

    async fn send_get(
        &self,
        member: &Arc<Member>,
        identity: MemberIdentity<'_>,
        path: &str,
        query: &str,
        timeout: Duration,
    ) -> Result<(StatusCode, Bytes), Error> {
        let json = HeaderValue::from_static("application/json");
        let (code, body) = match identity {
            MemberIdentity::Caller(caller) => {
                let response =
                    self.forward_to_member(member, caller, path, get_request(query, json), Some(timeout)).await?;
                (response.status(), response.into_body())
            }
            MemberIdentity::ServiceAccount => {
                let connection_error = |source| Error::Connection { cluster: member.name().clone(), source };
                let client = member.client().map_err(connection_error)?;
                let request = Request::get(format!("{path}{query}")).header(header::ACCEPT, json);
                let request =
                    request.body(Bytes::new().into()).map_err(|error| Error::BadRequest(error.to_string()))?;
                let response = client.send(request).await;
                let response = response.map_err(|error| unreachable_error(member.name(), error_chain(&error)))?;
                (response.status(), response.into_body().map_err(BoxError::from).boxed_unsync())
            }
        };
        Ok((code, collect_body(member.name(), body).await?))
    }
}

/// Reads the complete body of a response of a member.
pub(crate) async fn collect_body(cluster: &ClusterName, body: Body) -> Result<Bytes, Error> {
    body::collect(body, MAX_RESPONSE_BYTES).await.map_err(|error| {
        let reason = match error {
            BodyError::TooLarge { limit } => format!("the response is larger than {} MiB", limit >> 20),
            BodyError::Read(error) => error.to_string(),
        };
        unreachable_error(cluster, reason)
    })
}

pub(crate) fn unreachable_error(cluster: &ClusterName, reason: String) -> Error {
    Error::Unreachable { cluster: cluster.clone(), reason }
}

fn json_value_response(value: &Value) -> Response<Body> {
    json_response(value.to_string())
}

/// A response with serialized JSON.
fn json_response(text: impl Into<Bytes>) -> Response<Body> {
    let mut response = Response::new(full(text));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// Adds a `Warning` header for each missing member.
fn with_warnings(mut response: Response<Body>, missing: &[MissingCluster]) -> Response<Body> {
    for text in warnings(missing) {
        response.headers_mut().append(header::WARNING, warning(&text));
    }
    response
}

fn warnings(missing: &[MissingCluster]) -> Vec<String> {
    let mut texts: Vec<String> = missing.iter().take(MAX_WARNINGS).map(MissingCluster::warning_text).collect();
    if let more @ 1.. = missing.len().saturating_sub(MAX_WARNINGS) {
        texts.push(format!("{more} more clusters are left out"));
    }
    texts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crowsnest_apimachinery::names::ClusterName;

    #[test]
    fn empty_parameters_are_omitted() {
        let parameters = [("labelSelector", "a in (b, c)"), ("fieldSelector", ""), ("metricLabelSelector", "d=e")];
        assert_eq!(format_query(parameters), "?labelSelector=a%20in%20%28b%2C%20c%29&metricLabelSelector=d%3De");
        assert_eq!(format_query([("labelSelector", "")]), "");
    }

    #[test]
    fn warnings_of_missing_members_are_limited() {
        let missing =
            |nth| MissingCluster { cluster: ClusterName::parse(&format!("m{nth}")).unwrap(), reason: "is gone".into() };
        let few: Vec<_> = (0..2).map(missing).collect();
        assert_eq!(warnings(&few), ["cluster m0 is gone", "cluster m1 is gone"]);
        let many: Vec<_> = (0..MAX_WARNINGS + 3).map(missing).collect();
        let texts = warnings(&many);
        assert_eq!(
            (texts.len(), texts.last().map(String::as_str)),
            (MAX_WARNINGS + 1, Some("3 more clusters are left out"))
        );
    }

    #[rstest::rstest]
    #[case(br#"{"kind":"Status","message":"no"}"#, "responded 403 Forbidden: no")]
    #[case(b"404 page not found", "responded 403 Forbidden")]
    fn the_message_of_a_member_is_reported(#[case] body: &[u8], #[case] expected: &str) {
        assert_eq!(failure_reason(StatusCode::FORBIDDEN, body), expected);
    }
}
