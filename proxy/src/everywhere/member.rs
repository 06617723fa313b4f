//! Requests for one collection to each member, as the caller.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use crowsnest_apimachinery::names::ClusterName;
use crowsnest_apimachinery::request::{Query, query_string};
use crowsnest_members::Member;
use futures::future::BoxFuture;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::BodyExt;
use serde::Deserialize;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::item::{Document, Item};
use super::small;
use crate::merged::Heading;
use crate::object::Form;
use crate::table::{Include, Shape, TableForm, merged_columns};
use crate::{Body, Caller, Error, Proxy, full};

/// Time limit for a complete page.
const PAGE_WITHIN: Duration = Duration::from_secs(60);
/// Number of objects requested at once.
const CHUNK: usize = 200;
/// Number of members whose pages a watch reads at the same time. Their objects are in memory until they are sent.
const CONCURRENT_PAGES: usize = 4;
/// Size limit of a page in bytes. A larger page is requested again with fewer objects.
const MAX_PAGE: usize = 16 << 20;
/// Divisor of the number of objects after a page that was too large.
const FEWER: usize = 8;
/// Parameters that are set for each member.
const SET_FOR_EACH: [&str; 9] = [
    "allowWatchBookmarks",
    "continue",
    "includeObject",
    "limit",
    "resourceVersion",
    "resourceVersionMatch",
    "sendInitialEvents",
    "timeoutSeconds",
    "watch",
];

/// A collection in all members, as the caller requests it.
pub struct Collection {
    pub proxy: Proxy,
    pub caller: Caller,
    path: String,
    /// Parameters of the caller that members receive unchanged: the selectors and parameters of extensions.
    query: String,
    pub shape: Shape,
    /// Permits for the pages of a watch.
    page_permits: Semaphore,
}

/// Position at which a member's page begins, and the state that it shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Start {
    Latest,
    NotOlderThan(String),
    /// Servers without versions send an empty one.
    Exact(String),
    /// After the objects that the member sent before this continue token.
    After(String),
}

impl Start {
    fn parameters(&self) -> Vec<(&'static str, &str)> {
        let version = |version, matching| vec![("resourceVersion", version), ("resourceVersionMatch", matching)];
        match self {
            Self::Exact(text) if text.is_empty() => Vec::new(),
            Self::Latest => Vec::new(),
            Self::NotOlderThan(text) => version(text.as_str(), "NotOlderThan"),
            Self::Exact(text) => version(text.as_str(), "Exact"),
            Self::After(token) => vec![("continue", token.as_str())],
        }
    }
}

/// Consecutive objects of a member.
#[derive(Debug)]
pub struct MemberPage {
    pub items: Vec<Item>,
    /// Continue token; None at the end.
    pub next: Option<String>,
    pub version: String,
    pub heading: Heading,
    /// `Warning` headers of the member.
    pub warnings: Vec<HeaderValue>,
}

/// A member's response other than 200.
#[derive(Debug)]
pub struct Answer {
    pub response: Response<Bytes>,
    message: String,
    /// Continue token with which an expired list continues.
    pub token: Option<String>,
}

/// Why a member sends no page or watch.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    #[error("answered {}{}", .0.response.status(), .0.message)]
    Answered(Box<Answer>),
    #[error(transparent)]
    Failed(Box<Error>),
    /// The response is incomplete or invalid.
    #[error("{reason}")]
    Broken { cluster: ClusterName, reason: String },
}

impl Refusal {
    /// Status of the member's response, if there is one.
    pub fn status(&self) -> Option<StatusCode> {
        match self {
            Self::Answered(answer) => Some(answer.response.status()),
            Self::Failed(_) | Self::Broken { .. } => None,
        }
    }

    /// The response of a request that no member fulfils.
    pub fn into_response(self) -> Result<Response<Body>, Error> {
        match self {
            Self::Answered(answer) => Ok(answer.response.map(full)),
            Self::Failed(error) => Err(*error),
            Self::Broken { cluster, reason } => Err(Error::Unreachable { cluster, reason }),
        }
    }
}

impl Collection {
    /// `path` is that of the collection; `query` that of the caller.
    pub fn new(proxy: &Proxy, caller: &Caller, path: String, query: Option<&str>, shape: Shape) -> Self {
        let query = Query::remove_parameters(query.unwrap_or_default(), |name| SET_FOR_EACH.contains(&name));
        let page_permits = Semaphore::new(CONCURRENT_PAGES);
        Self { proxy: proxy.clone(), caller: caller.clone(), path, query, shape, page_permits }
    }

    /// Restricts the collection to one name.
    pub fn named(mut self, name: &str) -> Self {
        let rest = Query::remove_parameters(&self.query, |name| name == "fieldSelector");
        let selector = query_string([("fieldSelector", format!("metadata.name={name}").as_str())]);
        self.query = if rest.is_empty() { selector } else { format!("{rest}&{selector}") };
        self
    }

    /// Reads about `want` objects of a member.
    pub fn page(
        self: &Arc<Self>,
        member: &Arc<Member>,
        start: Start,
        want: usize,
    ) -> BoxFuture<'static, Result<MemberPage, Refusal>> {
        let (collection, member) = (Arc::clone(self), Arc::clone(member));
        Box::pin(async move {
            let mut limit = want.clamp(1, CHUNK);
            loop {
                match collection.page_of(&member, &start, limit).await {
                    Err(PageError::TooLarge) if limit > 1 => limit = (limit / FEWER).max(1),
                    Err(PageError::TooLarge) => {
                        let reason = format!("has an object larger than {} MiB", MAX_PAGE >> 20);
                        return Err(Refusal::Broken { cluster: member.name().clone(), reason });
                    }
                    Err(PageError::Refused(refusal)) => return Err(refusal),
                    Ok(page) => return Ok(page),
                }
            }
        })
    }

    /// Reads current objects of a member for a watch. The first page has one object, because it only determines whether
    /// the member accepts the request: the first pages of all members are in memory before the response begins.
    pub async fn initial_page(self: &Arc<Self>, member: &Arc<Member>, start: Start) -> Result<MemberPage, Refusal> {
        if start == Start::Latest {
            return self.page(member, start, 1).await;
        }
        // The semaphore is never closed.
        let _permit = self.page_permits.acquire().await;
        self.page(member, start, CHUNK).await
    }

    async fn page_of(&self, member: &Arc<Member>, start: &Start, limit: usize) -> Result<MemberPage, PageError> {
        let limit = limit.to_string();
        let mut parameters = start.parameters();
        parameters.push(("limit", limit.as_str()));
        let response = self.request(member, &parameters, self.accept(false)).await?;
        let warnings = response.headers().get_all(header::WARNING).iter().cloned().collect();
        let body = collect(response.into_body(), self.proxy.response_timeout()).await.map_err(|error| match error {
            ReadError::TooLarge => PageError::TooLarge,
            ReadError::Broken(reason) => PageError::broken(member, reason),
        })?;
        let document: Document = serde_json::from_slice(&body).map_err(|error| {
            let reason = match error.is_eof() {
                true => "broke off in the middle of its list".to_owned(),
                false => format!("sent an invalid list: {error}"),
            };
            PageError::broken(member, reason)
        })?;
        Ok(MemberPage::of(document, member.name(), warnings))
    }

    /// Starts to watch a member from a version.
    pub fn watch(
        self: &Arc<Self>,
        member: &Arc<Member>,
        version: String,
        timeout: Duration,
    ) -> BoxFuture<'static, Result<Body, Refusal>> {
        let (collection, member) = (Arc::clone(self), Arc::clone(member));
        Box::pin(async move {
            let timeout = timeout.as_secs().max(1).to_string();
            let parameters = [
                ("watch", "true"),
                ("allowWatchBookmarks", "true"),
                ("resourceVersion", version.as_str()),
                ("timeoutSeconds", timeout.as_str()),
            ];
            let response = collection.request(&member, &parameters, collection.accept(true)).await?;
            Ok(response.into_body())
        })
    }

    /// A response with status 200.
    async fn request(
        &self,
        member: &Arc<Member>,
        parameters: &[(&str, &str)],
        accept: &'static str,
    ) -> Result<Response<Body>, Refusal> {
        let include = match self.shape {
            Shape::Table(TableForm { include: Include::Object, .. }) => Some(("includeObject", "Object")),
            // Versions are read from the metadata of rows.
            Shape::Table(_) => Some(("includeObject", "Metadata")),
            Shape::Objects(_) => None,
        };
        let own = query_string(parameters.iter().copied().chain(include));
        let query: Vec<&str> =
            [self.query.as_str(), own.as_str()].into_iter().filter(|part| !part.is_empty()).collect();
        let request = get(&format!("?{}", query.join("&")), HeaderValue::from_static(accept));
        let timeout = Some(self.proxy.response_timeout());
        let sent = self.proxy.forward_to_member(member, &self.caller, &self.path, request, timeout).await;
        let response = sent.map_err(|error| Refusal::Failed(Box::new(error)))?;
        if response.status() == StatusCode::OK {
            return Ok(response);
        }
        let (mut parts, body) = response.into_parts();
        let body = small(body).await.unwrap_or_default();
        parts.headers.insert(header::CONTENT_LENGTH, HeaderValue::from(body.len()));
        let Status { message, metadata } = serde_json::from_slice(&body).unwrap_or_default();
        let message = if message.is_empty() { message } else { format!(": {message}") };
        let token = Some(metadata.token).filter(|token| !token.is_empty());
        let response = Response::from_parts(parts, body);
        Err(Refusal::Answered(Box::new(Answer { response, message, token })))
    }

    /// Media type of a member's list or watch. Tables and metadata are encoded again in the version of the client.
    fn accept(&self, is_watch: bool) -> &'static str {
        match self.shape {
            Shape::Objects(Form::Whole) => "application/json",
            Shape::Objects(Form::Metadata(_)) if is_watch => {
                "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
            }
            Shape::Objects(Form::Metadata(_)) => "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",
            Shape::Table(_) => "application/json;as=Table;v=v1;g=meta.k8s.io",
        }
    }
}

impl MemberPage {
    fn of(document: Document, cluster: &ClusterName, warnings: Vec<HeaderValue>) -> Self {
        let heading = Heading {
            kind: document.kind.clone(),
            api_version: document.api_version.clone(),
            columns: document.column_definitions.as_deref().map(merged_columns),
        };
        let next = Some(document.metadata.token.clone()).filter(|token| !token.is_empty());
        let version = document.metadata.resource_version.clone();
        let items = document.into_items(cluster, &mut Arc::default());
        Self { items, next, version, heading, warnings }
    }
}

/// The fields of a `Status` that are used.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Status {
    message: String,
    metadata: StatusMetadata,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct StatusMetadata {
    #[serde(rename = "continue")]
    token: String,
}

enum PageError {
    TooLarge,
    Refused(Refusal),
}

impl From<Refusal> for PageError {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl PageError {
    fn broken(member: &Member, reason: String) -> Self {
        Self::Refused(Refusal::Broken { cluster: member.name().clone(), reason })
    }
}

enum ReadError {
    TooLarge,
    Broken(String),
}

/// Reads a page that may pause for `idle` and must be complete within [`PAGE_WITHIN`].
async fn collect(mut body: Body, idle: Duration) -> Result<Bytes, ReadError> {
    let end = Instant::now() + PAGE_WITHIN;
    let mut read = BytesMut::new();
    loop {
        let due = end.min(Instant::now() + idle);
        let frame = match tokio::time::timeout_at(due, body.frame()).await {
            Err(_) if Instant::now() >= end => {
                let reason = format!("did not send all of its list within {} s", PAGE_WITHIN.as_secs());
                return Err(ReadError::Broken(reason));
            }
            Err(_) => {
                let reason = format!("sent a part of its list, then nothing for {} s", idle.as_secs_f32());
                return Err(ReadError::Broken(reason));
            }
            Ok(None) => return Ok(read.freeze()),
            Ok(Some(Err(error))) => {
                return Err(ReadError::Broken(format!("broke off in the middle of its list: {error}")));
            }
            Ok(Some(Ok(frame))) => frame,
        };
        let data = frame.into_data().unwrap_or_default();
        if read.len() + data.len() > MAX_PAGE {
            return Err(ReadError::TooLarge);
        }
        read.extend_from_slice(&data);
    }
}

/// A GET request. `query` is empty or begins with a question mark.
pub(crate) fn get(query: &str, accept: HeaderValue) -> Request<Body> {
    let mut request = Request::new(full(Bytes::new()));
    *request.method_mut() = Method::GET;
    if let Ok(uri) = format!("/{query}").parse() {
        *request.uri_mut() = uri;
    }
    request.headers_mut().insert(header::ACCEPT, accept);
    request
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::BoxError;
    use futures::StreamExt;
    use http_body::Frame;
    use http_body_util::StreamBody;
    use rstest::rstest;

    const SILENCE: &str = "…";
    const BREAK: &str = "!";

    /// A body that sends these pieces, stalls or fails.
    fn body(pieces: &[&'static str]) -> Body {
        let pieces = pieces.to_vec();
        let stream = futures::stream::iter(pieces).then(|piece| async move {
            match piece {
                SILENCE => std::future::pending().await,
                BREAK => Err(BoxError::from("connection reset")),
                data => Ok(Frame::data(Bytes::from_static(data.as_bytes()))),
            }
        });
        StreamBody::new(stream).boxed_unsync()
    }

    #[rstest]
    #[case::whole(&["{\"items\":", "[]}"], Ok("{\"items\":[]}"))]
    #[case::silent(&["{\"items\":[", SILENCE], Err("sent a part of its list, then nothing for 0.1 s"))]
    #[case::broken_off(&["{", BREAK], Err("broke off in the middle of its list: connection reset"))]
    #[tokio::test]
    async fn pages_are_complete(#[case] pieces: &[&'static str], #[case] expected: Result<&str, &str>) {
        let read = match collect(body(pieces), Duration::from_millis(100)).await {
            Ok(read) => Ok(String::from_utf8(read.to_vec()).unwrap()),
            Err(ReadError::Broken(reason)) => Err(reason),
            Err(ReadError::TooLarge) => Err("too large".to_owned()),
        };
        assert_eq!(read, expected.map(str::to_owned).map_err(str::to_owned));
    }

    #[rstest]
    #[case(Start::Latest, "")]
    #[case(Start::NotOlderThan("7".into()), "resourceVersion=7&resourceVersionMatch=NotOlderThan")]
    #[case(Start::Exact("7".into()), "resourceVersion=7&resourceVersionMatch=Exact")]
    #[case::server_without_versions(Start::Exact(String::new()), "")]
    #[case(Start::After("t".into()), "continue=t")]
    fn starts(#[case] start: Start, #[case] expected: &str) {
        assert_eq!(query_string(start.parameters()), expected);
    }
}
