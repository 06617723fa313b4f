//! `clusters/*/proxy`: sends a request to every member. Each member's part is limited in time and size, so that a
//! member that hangs does not delay the others; the response names it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use crowsnest_apimachinery::names::ClusterName;
use crowsnest_apimachinery::negotiate::{self, Offer, Shape};
use crowsnest_apimachinery::request::Query;
use crowsnest_component_base::body;
use crowsnest_members::Member;
use futures::stream::{FuturesUnordered, StreamExt};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use serde_json::Value;

use crate::composite::InvalidToken;
use crate::fleetwide::warning;
use crate::joined::{Joined, Missing};
use crate::native::{Native, Verb};
use crate::options::ListOptions;
use crate::table::accepted;
use crate::{Body, Caller, Error, Proxy, full};

/// Time limit for the first byte of each member's response, and for each chunk after it.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// Time and size limit for a response body that is only read here. An unread body costs its connection.
const READ_WITHIN: Duration = Duration::from_secs(1);
const SMALL: usize = 256 << 10;
/// Media type for lists of metadata. Tables and compressed lists cannot be joined.
const METADATA: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";

impl Proxy {
    /// Sends paths without a resource to the control plane and a named object to the only cluster that has it;
    /// lists a collection in all clusters and concatenates the items.
    pub(crate) async fn every_cluster(
        &self,
        caller: &Caller,
        path: &str,
        request: Request<Body>,
    ) -> Result<Response<Body>, Error> {
        let Some(native) = Native::parse(path) else { return self.to_control_plane(caller, path, request).await };
        if !native.name.is_empty() {
            return self.named(caller, &native, path, request).await;
        }
        match native.verb(request.method(), &Query::parse(request.uri().query())) {
            Verb::List => {
                self.witnessed(&request, || {
                    let members = self.members_of(caller);
                    let mut names: Vec<ClusterName> = members.iter().map(|member| member.name().clone()).collect();
                    names.sort();
                    names
                });
                self.list_everywhere(caller, path, request.headers(), request.uri().query()).await
            }
            _ => Err(Error::MethodNotAllowed),
        }
    }

    async fn named(
        &self,
        caller: &Caller,
        native: &Native,
        path: &str,
        request: Request<Body>,
    ) -> Result<Response<Body>, Error> {
        let owners = self.owners(caller, native).await?;
        let resource = &native.resource.resource;
        match owners.as_slice() {
            [] => Ok(text(StatusCode::NOT_FOUND, format!("no cluster has {resource} {:?}\n", native.name))),
            [owner] => self.to_member(owner, caller, path, request, None).await,
            several => {
                let names: Vec<&str> = several.iter().map(|member| member.name().as_str()).collect();
                Ok(text(
                    StatusCode::CONFLICT,
                    format!("{resource} {:?} is in several clusters: {}\n", native.name, names.join(", ")),
                ))
            }
        }
    }

    /// The members that have an object of that name, each queried as the caller.
    pub(crate) async fn owners(&self, caller: &Caller, native: &Native) -> Result<Vec<Arc<Member>>, Error> {
        let namespace = Some(native.namespace.as_str()).filter(|n| !n.is_empty());
        let object = &format!("{}/{}", native.resource.path(namespace), native.name);
        let members = self.members_of(caller);
        let probes: FuturesUnordered<_> =
            members.iter().map(|member| async move { (member, self.has(member, caller, object).await) }).collect();
        let (mut owners, mut unknown) = (Vec::new(), None);
        for (member, has) in probes.collect::<Vec<_>>().await {
            match has {
                Ok(true) => owners.push(Arc::clone(member)),
                Ok(false) => {}
                Err(error) => unknown = Some(error),
            }
        }
        owners.sort_by_key(|member| member.name().clone());
        // A member that cannot be reached may have the object.
        match (owners.is_empty(), unknown) {
            (true, Some(error)) => Err(error),
            _ => Ok(owners),
        }
    }

    async fn has(&self, member: &Arc<Member>, caller: &Caller, path: &str) -> Result<bool, Error> {
        // The metadata is sufficient to check that the object exists.
        let accept = HeaderValue::from_static(
            "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1, application/json;q=0.5",
        );
        let response = self.asked(member, caller, path, get("", accept)).await?;
        let status = response.status();
        drop(small(response.into_body()).await);
        Ok(status == StatusCode::OK)
    }

    async fn asked(
        &self,
        member: &Arc<Member>,
        caller: &Caller,
        path: &str,
        request: Request<Body>,
    ) -> Result<Response<Body>, Error> {
        self.to_member(member, caller, path, request, Some(self.patience())).await
    }

    /// Maximum idle time before and within a member's part.
    fn patience(&self) -> Duration {
        ANSWER_WITHIN.min(self.inner.transport.answer_within())
    }

    /// A member's list, or its other response.
    async fn listed(
        &self,
        member: &Arc<Member>,
        caller: &Caller,
        path: &str,
        request: Request<Body>,
    ) -> Result<Listed, Error> {
        let response = self.asked(member, caller, path, request).await?;
        if response.status() == StatusCode::OK {
            return Ok(Listed::Whole(response));
        }
        let (mut parts, body) = response.into_parts();
        let said = small(body).await.unwrap_or_default();
        parts.headers.insert(header::CONTENT_LENGTH, HeaderValue::from(said.len()));
        let status: Value = serde_json::from_slice(&said).unwrap_or_default();
        let message = status["message"].as_str().map(|message| format!(": {message}")).unwrap_or_default();
        let why = format!("answered {}{message}", parts.status);
        Ok(Listed::Refused(Response::from_parts(parts, full(said)), why))
    }

    pub(crate) async fn list_everywhere(
        &self,
        caller: &Caller,
        path: &str,
        headers: &HeaderMap,
        query: Option<&str>,
    ) -> Result<Response<Body>, Error> {
        // The joined list has the form of the members' lists.
        let accept = match accepted(headers, Offer::Joined)? {
            Shape::PartialMetadataList => METADATA,
            Shape::PartialMetadata => {
                return Err(Error::NotAcceptable(negotiate::list_not_acceptable("unstructured.UnstructuredList")));
            }
            Shape::Object | Shape::Table | Shape::Aggregated { .. } => "application/json",
        };
        let options = Query::parse(query);
        ListOptions::parse(&options, false, false)?;
        if options.get("continue").is_some_and(|token| !token.is_empty()) {
            // Lists are not paginated, so there are no tokens.
            return Err(InvalidToken.into());
        }
        let whole = |name: &str| matches!(name, "limit" | "continue");
        let query = &format!("?{}", Query::without(query.unwrap_or_default(), whole));
        let members = self.members_of(caller);
        let mut asked: FuturesUnordered<_> = members
            .iter()
            .map(|member| async move {
                (
                    member.name().clone(),
                    self.listed(member, caller, path, get(query, HeaderValue::from_static(accept))).await,
                )
            })
            .collect();
        let (mut lists, mut missing, mut refused) = (Vec::new(), Vec::new(), None);
        while let Some((cluster, answer)) = asked.next().await {
            match answer {
                Ok(Listed::Whole(response)) => lists.push((cluster, response)),
                Ok(Listed::Refused(response, reason)) => {
                    missing.push(Missing { cluster, reason });
                    refused.get_or_insert(Ok(response));
                }
                Err(error) => {
                    missing.push(Missing { cluster, reason: error.to_string() });
                    refused.get_or_insert(Err(error));
                }
            }
        }
        if lists.is_empty()
            && let Some(refused) = refused
        {
            return refused;
        }
        let mut answer = Response::new(full(""));
        if let Some((_, first)) = lists.first() {
            answer.headers_mut().clone_from(first.headers());
        }
        let headers = answer.headers_mut();
        headers.remove(header::CONTENT_LENGTH);
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        for one in &missing {
            headers.append(header::WARNING, warning(&one.text()));
        }
        let lists = lists.into_iter().map(|(cluster, response)| (cluster, response.into_body()));
        let joined = Joined::new(lists, missing, self.patience());
        Ok(answer.map(|_| joined.into_body()))
    }
}

/// Result of a list request to a member.
enum Listed {
    Whole(Response<Body>),
    /// The response, and the reason to report.
    Refused(Response<Body>, String),
}

/// Reads a small body within [`READ_WITHIN`]; otherwise drops it with its connection.
async fn small(body: Body) -> Option<Bytes> {
    tokio::time::timeout(READ_WITHIN, body::collect(body, SMALL)).await.ok()?.ok()
}

/// A GET request.
pub(crate) fn get(query: &str, accept: HeaderValue) -> Request<Body> {
    let mut request = Request::new(full(Bytes::new()));
    *request.method_mut() = Method::GET;
    if let Ok(uri) = format!("/{query}").parse() {
        *request.uri_mut() = uri;
    }
    request.headers_mut().insert(header::ACCEPT, accept);
    request
}

fn text(status: StatusCode, message: String) -> Response<Body> {
    let mut response = Response::new(full(message));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}
