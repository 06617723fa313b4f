//! The middleware functions; `http::service` puts them in order.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::middleware::Next;
use crowsnest_api::rbac::Action;
use crowsnest_api::user::{AUTHENTICATED, UNAUTHENTICATED, UserInfo};
use http::HeaderMap;
use http::header::{AUTHORIZATION, HeaderName, HeaderValue};
use tower_http::compression::Predicate;

use crate::authz;
use crate::http::path::RequestInfo;
use crate::http::{Api, Response, respond};
use crate::registry::options::Query;
use crate::status::{ApiError, Details, Reason};

/// Longest time of an ordinary request.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Bytes from which an answer is compressed for clients that take gzip.
const COMPRESS_FROM: u64 = 128 * 1024;
const AUDIT_ID: HeaderName = HeaderName::from_static("audit-id");

const IMPERSONATE_USER: &str = "impersonate-user";
const IMPERSONATE_GROUP: &str = "impersonate-group";
const IMPERSONATE_UID: &str = "impersonate-uid";
const IMPERSONATE_EXTRA: &str = "impersonate-extra-";

/// Compresses what is whole and large; never streams, whose events must not wait for a block to fill.
#[derive(Debug, Clone, Copy)]
pub(super) struct LargeAnswers;

impl Predicate for LargeAnswers {
    fn should_compress<B: http_body::Body>(&self, response: &http::Response<B>) -> bool {
        response.body().size_hint().exact().is_some_and(|size| size > COMPRESS_FROM)
    }
}

/// A panic in a handler: 500, and the server lives on.
pub(super) fn panicked(_: Box<dyn Any + Send + 'static>) -> Response {
    tracing::error!("a request handler panicked");
    respond::error(&ApiError::internal("the server has encountered an internal error"))
}

/// Parses the request's path and names the request.
pub(super) async fn identify(mut request: Request, next: Next) -> Response {
    let query = Query::parse(request.uri().query());
    let info = RequestInfo::parse(request.method(), request.uri().path(), &query);
    let audit_id = request.headers().get(&AUDIT_ID).cloned().unwrap_or_else(|| {
        HeaderValue::from_str(&uuid::Uuid::new_v4().to_string()).unwrap_or(HeaderValue::from_static("-"))
    });
    request.extensions_mut().insert(Arc::new(info));
    request.extensions_mut().insert(Arc::new(query));
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    headers.entry(AUDIT_ID).or_insert(audit_id);
    headers.entry(http::header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-cache, private"));
    response
}

pub(super) async fn timeout(request: Request, next: Next) -> Response {
    let unlimited = info(&request).is_long_running();
    if unlimited {
        return next.run(request).await;
    }
    match tokio::time::timeout(TIMEOUT, next.run(request)).await {
        Ok(response) => response,
        Err(_) => {
            let text = "Timeout: request did not complete within the allotted timeout";
            respond::error(&ApiError::new(Reason::Timeout, text))
        }
    }
}

pub(super) async fn authenticate(State(api): State<Arc<Api>>, mut request: Request, next: Next) -> Response {
    match api.authenticator.authenticate(request.headers(), request.extensions()).await {
        Ok(user) => {
            request.headers_mut().remove(AUTHORIZATION);
            request.extensions_mut().insert(user);
            next.run(request).await
        }
        Err(error) => respond::error(&error),
    }
}

pub(super) async fn impersonate(State(api): State<Arc<Api>>, mut request: Request, next: Next) -> Response {
    let wanted = match impersonated(request.headers()) {
        Ok(Some(wanted)) => wanted,
        Ok(None) => return next.run(request).await,
        Err(error) => return respond::error(&error),
    };
    let user = user(&request);
    for action in impersonation_rights(&wanted) {
        if let Err(error) = api.authorizer.check(&user, &action) {
            return respond::error(&error);
        }
    }
    let names: Vec<HeaderName> =
        request.headers().keys().filter(|name| name.as_str().starts_with("impersonate-")).cloned().collect();
    for name in names {
        request.headers_mut().remove(name);
    }
    request.extensions_mut().insert(complete(wanted));
    next.run(request).await
}

/// The user that `Impersonate-*` headers ask for, as given.
fn impersonated(headers: &HeaderMap) -> Result<Option<UserInfo>, ApiError> {
    let text = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    let mut wanted = UserInfo {
        name: headers.get(IMPERSONATE_USER).map(text).unwrap_or_default(),
        uid: headers.get(IMPERSONATE_UID).map(text).unwrap_or_default(),
        groups: headers.get_all(IMPERSONATE_GROUP).iter().map(text).collect(),
        ..UserInfo::default()
    };
    for (name, value) in headers {
        if let Some(key) = name.as_str().strip_prefix(IMPERSONATE_EXTRA) {
            let key = percent_encoding::percent_decode_str(key).decode_utf8_lossy().into_owned();
            wanted.extra.entry(key).or_default().push(text(value));
        }
    }
    if !wanted.name.is_empty() {
        return Ok(Some(wanted));
    }
    if wanted == UserInfo::default() {
        return Ok(None);
    }
    let list = |items: &[String]| items.iter().map(|i| format!("{i:?}")).collect::<Vec<_>>().join(", ");
    let groups =
        if wanted.groups.is_empty() { "[]string(nil)".into() } else { format!("[]string{{{}}}", list(&wanted.groups)) };
    let extra: Vec<String> = wanted.extra.iter().map(|(k, v)| format!("{k:?}:[]string{{{}}}", list(v))).collect();
    let extra = if extra.is_empty() {
        "map[string][]string(nil)".to_owned()
    } else {
        format!("map[string][]string{{{}}}", extra.join(", "))
    };
    Err(ApiError::bad_request(format!(
        "requested &user.DefaultInfo{{Name:\"\", UID:{:?}, Groups:{groups}, Extra:{extra}}} without impersonating a user name",
        wanted.uid
    )))
}

/// The rights that impersonating a user takes: one check per user, group, uid and extra value.
fn impersonation_rights(wanted: &UserInfo) -> Vec<Action> {
    let base = |group: &str, resource: &str, subresource: &str, name: &str, namespace: &str| Action::Resource {
        verb: "impersonate".into(),
        group: group.into(),
        resource: resource.into(),
        subresource: subresource.into(),
        namespace: namespace.into(),
        name: name.into(),
    };
    let mut all = Vec::new();
    match wanted.name.strip_prefix("system:serviceaccount:").and_then(|rest| rest.split_once(':')) {
        Some((namespace, name)) => all.push(base("", "serviceaccounts", "", name, namespace)),
        None => all.push(base("", "users", "", &wanted.name, "")),
    }
    all.extend(wanted.groups.iter().map(|group| base("", "groups", "", group, "")));
    for (key, values) in &wanted.extra {
        all.extend(values.iter().map(|value| base("authentication.k8s.io", "userextras", key, value, "")));
    }
    if !wanted.uid.is_empty() {
        all.push(base("authentication.k8s.io", "uids", "", &wanted.uid, ""));
    }
    all
}

/// Adds the groups every such user is in.
fn complete(mut user: UserInfo) -> UserInfo {
    if user.groups.is_empty()
        && let Some((namespace, _)) =
            user.name.strip_prefix("system:serviceaccount:").and_then(|rest| rest.split_once(':'))
    {
        user.groups = vec!["system:serviceaccounts".into(), format!("system:serviceaccounts:{namespace}")];
    }
    let either = |group: &String| group == AUTHENTICATED || group == UNAUTHENTICATED;
    if user.groups.iter().any(either) { user } else { user.completed() }
}

/// Bounds concurrent requests; those that last are exempt.
pub(super) async fn limit(State(api): State<Arc<Api>>, request: Request, next: Next) -> Response {
    let info = info(&request);
    if info.is_long_running() || !info.is_resource {
        return next.run(request).await;
    }
    let reads = ["get", "list"].contains(&info.verb.as_str());
    let permits = if reads { &api.reads } else { &api.writes };
    // Waits in line: clients of a home server are better served by a short wait than by an error.
    match tokio::time::timeout(Duration::from_secs(15), permits.acquire()).await {
        Ok(Ok(_permit)) => next.run(request).await,
        _ => {
            let details = Details { retry_after_seconds: Some(1), ..Details::default() };
            let text = "Too many requests, please try again later.";
            respond::error(&ApiError::new(Reason::TooManyRequests, text).with_details(details))
        }
    }
}

pub(super) async fn authorize(State(api): State<Arc<Api>>, request: Request, next: Next) -> Response {
    match api.authorizer.check(&user(&request), &authz::action(&info(&request))) {
        Ok(()) => next.run(request).await,
        Err(error) => respond::error(&error),
    }
}

/// Put in place by [`identify`].
pub(super) fn info(request: &http::Request<Body>) -> Arc<RequestInfo> {
    request.extensions().get::<Arc<RequestInfo>>().cloned().unwrap_or_default()
}

/// Put in place by [`authenticate`] or [`impersonate`].
pub(super) fn user(request: &http::Request<Body>) -> UserInfo {
    request.extensions().get::<UserInfo>().cloned().unwrap_or_default()
}
