//! `clusters/*/proxy`: one request asked of every member.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use crowsnest_fleet::Member;
use futures::stream::{FuturesUnordered, StreamExt};
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};

use crate::fleetwide::warning;
use crate::items::ItemsScanner;
use crate::native::{Native, Query, Verb};
use crate::{Body, BoxError, Caller, Error, Proxy, full};

/// How long a fan-out waits for a member's first byte: one that hangs must not hold up the others.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

impl Proxy {
    /// Paths without a resource go to the control plane, a named object to the one cluster that has it, a collection is
    /// listed in all clusters and the items put one after the other.
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
            Verb::List => self.list_everywhere(caller, path, request.uri().query()).await,
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

    /// The members that have an object of that name, each asked as the caller.
    pub(crate) async fn owners(&self, caller: &Caller, native: &Native) -> Result<Vec<Arc<Member>>, Error> {
        let namespace = Some(native.namespace.as_str()).filter(|n| !n.is_empty());
        let object = &format!("{}/{}", native.resource.path(namespace), native.name);
        let members = self.inner.fleet.members();
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
        // Who cannot be asked may have it.
        match (owners.is_empty(), unknown) {
            (true, Some(error)) => Err(error),
            _ => Ok(owners),
        }
    }

    async fn has(&self, member: &Arc<Member>, caller: &Caller, path: &str) -> Result<bool, Error> {
        Ok(self.asked(member, caller, path, "").await?.status() == StatusCode::OK)
    }

    async fn asked(
        &self,
        member: &Arc<Member>,
        caller: &Caller,
        path: &str,
        query: &str,
    ) -> Result<Response<Body>, Error> {
        self.to_member(member, caller, path, get(query), Some(ANSWER_WITHIN)).await
    }

    pub(crate) async fn list_everywhere(
        &self,
        caller: &Caller,
        path: &str,
        query: Option<&str>,
    ) -> Result<Response<Body>, Error> {
        // Each list is whole: nothing could tell where all of them go on.
        let parts = query.unwrap_or_default().split('&');
        let parts =
            parts.filter(|part| !part.starts_with("limit=") && !part.starts_with("continue=") && !part.is_empty());
        let query = &format!("?{}", parts.collect::<Vec<_>>().join("&"));
        let members = self.inner.fleet.members();
        let mut asked: FuturesUnordered<_> = members
            .iter()
            .map(|member| async move { (member.name().clone(), self.asked(member, caller, path, query).await) })
            .collect();
        let (mut lists, mut warnings, mut refused) = (Vec::new(), Vec::new(), None);
        while let Some((cluster, answer)) = asked.next().await {
            match answer {
                Ok(response) if response.status() == StatusCode::OK => lists.push(response),
                Ok(response) => {
                    warnings.push(format!("cluster {cluster} answered {}", response.status()));
                    refused.get_or_insert(Ok(response));
                }
                Err(error) => {
                    warnings.push(error.to_string());
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
        if let Some(first) = lists.first() {
            answer.headers_mut().clone_from(first.headers());
        }
        let headers = answer.headers_mut();
        headers.remove(header::CONTENT_LENGTH);
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        for text in warnings {
            headers.append(header::WARNING, warning(&text));
        }
        Ok(answer.map(|_| concatenate(lists.into_iter().map(Response::into_body).collect())))
    }
}

/// One list of the items of all lists, as they stream in.
fn concatenate(lists: Vec<Body>) -> Body {
    struct Joined {
        lists: std::vec::IntoIter<Body>,
        current: Option<(Body, ItemsScanner)>,
        kind: Option<String>,
        api_version: Option<String>,
        /// Something stands before the next items.
        any: bool,
        /// Nothing of the current list has been told yet.
        fresh: bool,
        started: bool,
        ended: bool,
    }
    let joined = Joined {
        lists: lists.into_iter(),
        current: None,
        kind: None,
        api_version: None,
        any: false,
        fresh: true,
        started: false,
        ended: false,
    };
    let stream = futures::stream::try_unfold(joined, |mut joined| async move {
        if joined.ended {
            return Ok::<_, BoxError>(None);
        }
        let mut out = BytesMut::new();
        if !std::mem::replace(&mut joined.started, true) {
            out.extend_from_slice(b"{\"items\":[");
        }
        loop {
            let Some((body, scanner)) = &mut joined.current else {
                match joined.lists.next() {
                    Some(body) => {
                        joined.current = Some((body, ItemsScanner::default()));
                        joined.fresh = true;
                        continue;
                    }
                    None => {
                        let tail = serde_json::json!({
                            "apiVersion": joined.api_version.as_deref().unwrap_or("v1"),
                            "kind": joined.kind.as_deref().unwrap_or("List"), "metadata": {},
                        });
                        out.extend_from_slice(b"],");
                        out.extend_from_slice(&tail.to_string().as_bytes()[1..]);
                        joined.ended = true;
                        break;
                    }
                }
            };
            let Some(frame) = body.frame().await else {
                joined.kind = joined.kind.take().or(scanner.kind.take());
                joined.api_version = joined.api_version.take().or(scanner.api_version.take());
                joined.current = None;
                continue;
            };
            let Ok(data) = frame?.into_data() else { continue };
            let mut items = BytesMut::new();
            scanner.feed(&data, &mut items);
            // Later on they may be inside a text.
            if items.is_empty() || joined.fresh && items.iter().all(u8::is_ascii_whitespace) {
                continue;
            }
            if std::mem::take(&mut joined.fresh) && std::mem::replace(&mut joined.any, true) {
                out.extend_from_slice(b",");
            }
            out.extend_from_slice(&items);
            break;
        }
        Ok(Some((Frame::data(out.freeze()), joined)))
    });
    BodyExt::boxed_unsync(StreamBody::new(stream))
}

/// A GET for plain JSON: tables and compressed lists cannot be put together.
fn get(query: &str) -> Request<Body> {
    let mut request = Request::new(full(Bytes::new()));
    *request.method_mut() = Method::GET;
    if let Ok(uri) = format!("/{query}").parse() {
        *request.uri_mut() = uri;
    }
    request.headers_mut().insert(header::ACCEPT, HeaderValue::from_static("application/json"));
    request
}

fn text(status: StatusCode, message: String) -> Response<Body> {
    let mut response = Response::new(full(message));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}
