//! `Impersonate-*` headers: the requested user, the RBAC checks that it requires, and the resulting identity. Pure.
//!
//! Used by the Kubernetes API server, and by extension servers that are called without a front proxy.

mod modes;

use crowsnest_apimachinery::rbac::Action;
use crowsnest_apimachinery::user::{AUTHENTICATED, UNAUTHENTICATED, UserInfo, service_account};
use http::header::HeaderMap;

pub use modes::{Attempt, Mode, Step, attempts};

use super::request_header;
use crowsnest_apimachinery::status::ApiError;

/// Removes the impersonation headers of a request.
pub fn strip(headers: &mut HeaderMap) {
    request_header::strip_impersonated(headers);
}

/// The user that `Impersonate-*` headers request, unchanged; 400 if headers are repeated, cannot be parsed or name no
/// user.
pub fn wanted(headers: &HeaderMap) -> Result<Option<UserInfo>, ApiError> {
    let wanted = request_header::impersonated(headers)?;
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

/// RBAC checks that unconstrained impersonation requires: one each per user, group, UID and extra value.
pub fn rights(wanted: &UserInfo) -> Vec<Action> {
    let base = |group: &str, resource: &str, subresource: &str, name: &str, namespace: &str| Action::Resource {
        verb: "impersonate".into(),
        group: group.into(),
        resource: resource.into(),
        subresource: subresource.into(),
        namespace: namespace.into(),
        name: name.into(),
    };
    let mut all = Vec::new();
    match service_account(&wanted.name) {
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

/// Adds the groups that every authenticated user or service account belongs to.
pub fn complete(mut user: UserInfo) -> UserInfo {
    if user.groups.is_empty()
        && let Some((namespace, _)) = service_account(&user.name)
    {
        user.groups = vec!["system:serviceaccounts".into(), format!("system:serviceaccounts:{namespace}")];
    }
    let either = |group: &String| group == AUTHENTICATED || group == UNAUTHENTICATED;
    if user.groups.iter().any(either) { user } else { user.completed() }
}
