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

use super::collect_small_body;
use super::item::{Document, Item};
use crate::merged::Heading;
use crate::native::NativePath;
use crate::object::Form;
use crate::table::{Include, Shape, TableForm, merged_columns};
use crate::{Body, Caller, Error, Proxy, full};

/// Timeout for a complete page.
const PAGE_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum number of objects per page.
const MAX_PAGE_OBJECTS: usize = 200;
/// Number of members whose pages a watch reads at the same time. Their objects are in memory until they are sent.
const CONCURRENT_PAGES: usize = 4;
/// Size limit of a page in bytes. A larger page is requested again with fewer objects.
const MAX_PAGE_BYTES: usize = 16 << 20;
/// Factor by which the number of objects is reduced after a page that was too large.
const TOO_LARGE_DIVISOR: usize = 8;
/// Parameters that are set for each member.
const PARAMETERS_SET_PER_MEMBER: [&str; 9] = [
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

/// The `resourceVersion` and `continue` parameters of a page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PageStart {
    /// The first page of the current state.
    Latest,
    /// The first page of a state that is not older than this version.
    NotOlderThan(String),
    /// The first page of the state at this version; empty for servers without versions.
    Exact(String),
    /// After the objects that the member sent before this continue token.
    After(String),
}

impl PageStart {
    fn parameters(&self) -> Vec<(&'static str, &str)> {
        let version =
            |version, version_match| vec![("resourceVersion", version), ("resourceVersionMatch", version_match)];
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

/// A member's response with a status other than 200.
#[derive(Debug)]
pub struct ErrorResponse {
    pub response: Response<Bytes>,
    /// Message of its `Status` after a colon, or empty.
    message: String,
    /// Continue token with which an expired list continues.
    pub token: Option<String>,
}

/// Reason why a page or watch of a member cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum MemberError {
    #[error("responded {}{}", .0.response.status(), .0.message)]
    Response(Box<ErrorResponse>),
    /// The member did not respond.
    #[error(transparent)]
    NoResponse(Box<Error>),
    /// The response is incomplete, invalid or too large.
    #[error("{reason}")]
    InvalidResponse { cluster: ClusterName, reason: String },
}

impl MemberError {
    /// Status of the member's response, if there is one.
    pub fn status(&self) -> Option<StatusCode> {
        match self {
            Self::Response(error) => Some(error.response.status()),
            Self::NoResponse(_) | Self::InvalidResponse { .. } => None,
        }
    }

    /// The response to a request for which this error is returned.
    pub fn into_response(self) -> Result<Response<Body>, Error> {
        match self {
            Self::Response(error) => Ok(error.response.map(full)),
            Self::NoResponse(error) => Err(*error),
            Self::InvalidResponse { cluster, reason } => Err(Error::Unreachable { cluster, reason }),
        }
    }
}

impl Collection {
    /// The collection of a path, or its object of that name. `query` is the caller's query string.
    pub fn new(proxy: &Proxy, caller: &Caller, native: &NativePath, query: Option<&str>, shape: Shape) -> Self {
        let namespace = Some(native.namespace.as_str()).filter(|namespace| !namespace.is_empty());
        let (path, page_permits) = (native.resource.path(namespace), Semaphore::new(CONCURRENT_PAGES));
        let query =
            Query::remove_parameters(query.unwrap_or_default(), |name| PARAMETERS_SET_PER_MEMBER.contains(&name));
        let collection = Self { proxy: proxy.clone(), caller: caller.clone(), path, query, shape, page_permits };
        if native.name.is_empty() { collection } else { collection.with_name(&native.name) }
    }

    /// Restricts the collection to one name.
    fn with_name(mut self, name: &str) -> Self {
        let rest = Query::remove_parameters(&self.query, |name| name == "fieldSelector");
        let selector = query_string([("fieldSelector", format!("metadata.name={name}").as_str())]);
        self.query = if rest.is_empty() { selector } else { format!("{rest}&{selector}") };
        self
    }

    /// Reads about `target_count` objects of a member.
    pub fn read_page(
        self: &Arc<Self>,
        member: &Arc<Member>,
        start: PageStart,
        target_count: usize,
    ) -> BoxFuture<'static, Result<MemberPage, MemberError>> {
        let (collection, member) = (Arc::clone(self), Arc::clone(member));
        Box::pin(async move {
            let mut limit = target_count.clamp(1, MAX_PAGE_OBJECTS);
            loop {
                match collection.request_page(&member, &start, limit).await {
                    Err(PageError::TooLarge) if limit > 1 => limit = (limit / TOO_LARGE_DIVISOR).max(1),
                    Err(PageError::TooLarge) => {
                        let reason = format!("has an object larger than {} MiB", MAX_PAGE_BYTES >> 20);
                        return Err(MemberError::InvalidResponse { cluster: member.name().clone(), reason });
                    }
                    Err(PageError::Member(error)) => return Err(error),
                    Ok(page) => return Ok(page),
                }
            }
        })
    }

    /// Reads current objects of a member for a watch. The first page has one object, because it only determines whether
    /// the member accepts the request: the first pages of all members are in memory before the response begins.
    pub async fn read_initial_page(
        self: &Arc<Self>,
        member: &Arc<Member>,
        start: PageStart,
    ) -> Result<MemberPage, MemberError> {
        if start == PageStart::Latest {
            return self.read_page(member, start, 1).await;
        }
        // The semaphore is never closed.
        let _permit = self.page_permits.acquire().await;
        self.read_page(member, start, MAX_PAGE_OBJECTS).await
    }

    async fn request_page(
        &self,
        member: &Arc<Member>,
        start: &PageStart,
        limit: usize,
    ) -> Result<MemberPage, PageError> {
        let limit = limit.to_string();
        let mut parameters = start.parameters();
        parameters.push(("limit", limit.as_str()));
        let response = self.send(member, &parameters, self.accept_header(false)).await?;
        let warnings = response.headers().get_all(header::WARNING).iter().cloned().collect();
        let body =
            collect_page(response.into_body(), self.proxy.response_timeout()).await.map_err(|error| match error {
                ReadError::TooLarge => PageError::TooLarge,
                ReadError::Failed(reason) => PageError::invalid(member, reason),
            })?;
        let document: Document = serde_json::from_slice(&body).map_err(|error| {
            let reason = match error.is_eof() {
                true => "broke off in the middle of its list".to_owned(),
                false => format!("sent an invalid list: {error}"),
            };
            PageError::invalid(member, reason)
        })?;
        Ok(MemberPage::new(document, member.name(), warnings))
    }

    /// Opens a watch of a member from a version. The member ends it after `timeout`.
    pub fn open_watch(
        self: &Arc<Self>,
        member: &Arc<Member>,
        version: String,
        timeout: Duration,
    ) -> BoxFuture<'static, Result<Body, MemberError>> {
        let (collection, member) = (Arc::clone(self), Arc::clone(member));
        Box::pin(async move {
            let timeout = timeout.as_secs().max(1).to_string();
            let parameters = [
                ("watch", "true"),
                ("allowWatchBookmarks", "true"),
                ("resourceVersion", version.as_str()),
                ("timeoutSeconds", timeout.as_str()),
            ];
            let response = collection.send(&member, &parameters, collection.accept_header(true)).await?;
            Ok(response.into_body())
        })
    }

    /// Sends a request as the caller. Any response with a status other than 200 is an error.
    async fn send(
        &self,
        member: &Arc<Member>,
        parameters: &[(&str, &str)],
        accept: &'static str,
    ) -> Result<Response<Body>, MemberError> {
        let include = match self.shape {
            Shape::Table(TableForm { include: Include::Object, .. }) => Some(("includeObject", "Object")),
            // Versions are read from the metadata of rows.
            Shape::Table(_) => Some(("includeObject", "Metadata")),
            Shape::Objects(_) => None,
        };
        let added_query = query_string(parameters.iter().copied().chain(include));
        let query: Vec<&str> =
            [self.query.as_str(), added_query.as_str()].into_iter().filter(|part| !part.is_empty()).collect();
        let request = get_request(&format!("?{}", query.join("&")), HeaderValue::from_static(accept));
        let timeout = Some(self.proxy.response_timeout());
        let sent = self.proxy.forward_to_member(member, &self.caller, &self.path, request, timeout).await;
        let response = sent.map_err(|error| MemberError::NoResponse(Box::new(error)))?;
        if response.status() == StatusCode::OK {
            return Ok(response);
        }
        let (mut parts, body) = response.into_parts();
        let body = collect_small_body(body).await.unwrap_or_default();
        parts.headers.insert(header::CONTENT_LENGTH, HeaderValue::from(body.len()));
        let Status { message, metadata } = serde_json::from_slice(&body).unwrap_or_default();
        let message = if message.is_empty() { message } else { format!(": {message}") };
        let token = Some(metadata.token).filter(|token| !token.is_empty());
        let response = Response::from_parts(parts, body);
        Err(MemberError::Response(Box::new(ErrorResponse { response, message, token })))
    }

    /// Media type of a member's list or watch. Tables and metadata are encoded again in the version of the client.
    fn accept_header(&self, is_watch: bool) -> &'static str {
        match self.shape {
            Shape::Objects(Form::Full) => "application/json",
            Shape::Objects(Form::Metadata(_)) if is_watch => {
                "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
            }
            Shape::Objects(Form::Metadata(_)) => "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",
            Shape::Table(_) => "application/json;as=Table;v=v1;g=meta.k8s.io",
        }
    }
}

impl MemberPage {
    fn new(document: Document, cluster: &ClusterName, warnings: Vec<HeaderValue>) -> Self {
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
    Member(MemberError),
}

impl From<MemberError> for PageError {
    fn from(error: MemberError) -> Self {
        Self::Member(error)
    }
}

impl PageError {
    fn invalid(member: &Member, reason: String) -> Self {
        Self::Member(MemberError::InvalidResponse { cluster: member.name().clone(), reason })
    }
}

enum ReadError {
    TooLarge,
    Failed(String),
}

/// Reads a page within [`PAGE_TIMEOUT`]. `idle_timeout` limits the time between two chunks.
async fn collect_page(mut body: Body, idle_timeout: Duration) -> Result<Bytes, ReadError> {
    let end = Instant::now() + PAGE_TIMEOUT;
    let mut read = BytesMut::new();
    loop {
        let due = end.min(Instant::now() + idle_timeout);
        let frame = match tokio::time::timeout_at(due, body.frame()).await {
            Err(_) if Instant::now() >= end => {
                let reason = format!("did not send all of its list within {} s", PAGE_TIMEOUT.as_secs());
                return Err(ReadError::Failed(reason));
            }
            Err(_) => {
                let reason = format!("sent a part of its list, then nothing for {} s", idle_timeout.as_secs_f32());
                return Err(ReadError::Failed(reason));
            }
            Ok(None) => return Ok(read.freeze()),
            Ok(Some(Err(error))) => {
                return Err(ReadError::Failed(format!("broke off in the middle of its list: {error}")));
            }
            Ok(Some(Ok(frame))) => frame,
        };
        let data = frame.into_data().unwrap_or_default();
        if read.len() + data.len() > MAX_PAGE_BYTES {
            return Err(ReadError::TooLarge);
        }
        read.extend_from_slice(&data);
    }
}

/// A GET request. `query` is empty or begins with a question mark.
pub(crate) fn get_request(query: &str, accept: HeaderValue) -> Request<Body> {
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
    #[case::complete(&["{\"items\":", "[]}"], Ok("{\"items\":[]}"))]
    #[case::silent(&["{\"items\":[", SILENCE], Err("sent a part of its list, then nothing for 0.1 s"))]
    #[case::broken_off(&["{", BREAK], Err("broke off in the middle of its list: connection reset"))]
    #[tokio::test]
    async fn incomplete_pages_are_errors(#[case] pieces: &[&'static str], #[case] expected: Result<&str, &str>) {
        let read = match collect_page(body(pieces), Duration::from_millis(100)).await {
            Ok(read) => Ok(String::from_utf8(read.to_vec()).unwrap()),
            Err(ReadError::Failed(reason)) => Err(reason),
            Err(ReadError::TooLarge) => Err("too large".to_owned()),
        };
        assert_eq!(read, expected.map(str::to_owned).map_err(str::to_owned));
    }

    #[rstest]
    #[case(PageStart::Latest, "")]
    #[case(PageStart::NotOlderThan("7".into()), "resourceVersion=7&resourceVersionMatch=NotOlderThan")]
    #[case(PageStart::Exact("7".into()), "resourceVersion=7&resourceVersionMatch=Exact")]
    #[case::server_without_versions(PageStart::Exact(String::new()), "")]
    #[case(PageStart::After("t".into()), "continue=t")]
    fn page_starts_are_encoded_as_parameters(#[case] start: PageStart, #[case] expected: &str) {
        assert_eq!(query_string(start.parameters()), expected);
    }
}
