//! Impersonation: the user that `Impersonate-*` headers request, the RBAC checks that it requires, and the resulting
//! identity.
//!
//! This file and `modes`, which plans the checks, are pure. [`Impersonator`] sends the checks to an access reviewer.
//!
//! Used by the Kubernetes API server, and by extension servers that are called without a front proxy.

mod impersonator;
mod modes;

use crowsnest_apimachinery::rbac::Action;
use crowsnest_apimachinery::user::{ANONYMOUS, UNAUTHENTICATED, UserInfo, parse_service_account_user};
use http::header::HeaderMap;

pub use impersonator::Impersonator;
pub use modes::Mode;

use super::request_header;
use crowsnest_apimachinery::status::ApiError;

/// Removes the impersonation headers of a request.
pub fn strip(headers: &mut HeaderMap) {
    request_header::strip_impersonation_headers(headers);
}

/// The user that `Impersonate-*` headers request, unchanged; 400 if headers are repeated, cannot be parsed or name no
/// user.
pub fn requested_user(headers: &HeaderMap) -> Result<Option<UserInfo>, ApiError> {
    let user = request_header::impersonated_user(headers)?;
    if !user.name.is_empty() {
        return Ok(Some(user));
    }
    if user == UserInfo::default() {
        return Ok(None);
    }
    let quote_all = |items: &[String]| items.iter().map(|i| format!("{i:?}")).collect::<Vec<_>>().join(", ");
    let groups = if user.groups.is_empty() {
        "[]string(nil)".into()
    } else {
        format!("[]string{{{}}}", quote_all(&user.groups))
    };
    let extra: Vec<String> = user.extra.iter().map(|(k, v)| format!("{k:?}:[]string{{{}}}", quote_all(v))).collect();
    let extra = if extra.is_empty() {
        "map[string][]string(nil)".to_owned()
    } else {
        format!("map[string][]string{{{}}}", extra.join(", "))
    };
    Err(ApiError::bad_request(format!(
        "requested &user.DefaultInfo{{Name:\"\", UID:{:?}, Groups:{groups}, Extra:{extra}}} without impersonating a user name",
        user.uid
    )))
}

/// RBAC checks that unconstrained impersonation requires, in order: one each for user, UID, groups and extra values.
pub fn required_actions(user: &UserInfo) -> Vec<Action> {
    let action = |group: &str, resource: &str, subresource: &str, name: &str, namespace: &str| Action::Resource {
        verb: "impersonate".into(),
        group: group.into(),
        resource: resource.into(),
        subresource: subresource.into(),
        namespace: namespace.into(),
        name: name.into(),
    };
    let mut actions = Vec::new();
    match parse_service_account_user(&user.name) {
        Some((namespace, name)) => actions.push(action("", "serviceaccounts", "", name, namespace)),
        None => actions.push(action("", "users", "", &user.name, "")),
    }
    if !user.uid.is_empty() {
        actions.push(action("authentication.k8s.io", "uids", "", &user.uid, ""));
    }
    actions.extend(user.groups.iter().map(|group| action("", "groups", "", group, "")));
    for (key, values) in &user.extra {
        actions.extend(values.iter().map(|value| action("authentication.k8s.io", "userextras", key, value, "")));
    }
    actions
}

/// Adds the groups that every authenticated user or service account belongs to.
pub fn add_default_groups(mut user: UserInfo) -> UserInfo {
    if user.groups.is_empty()
        && let Some((namespace, _)) = parse_service_account_user(&user.name)
    {
        user.groups = vec!["system:serviceaccounts".into(), format!("system:serviceaccounts:{namespace}")];
    }
    // `system:unauthenticated` excludes `system:authenticated`, but the anonymous user always gets the former.
    let is_unauthenticated = user.groups.iter().any(|group| group == UNAUTHENTICATED);
    if is_unauthenticated && user.name != ANONYMOUS { user } else { user.with_implied_groups() }
}
