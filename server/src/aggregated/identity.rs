//! Who asks the aggregated server and may they: front-proxy headers behind a trusted client certificate, else a bearer token
//! that the control plane reviews; then a SubjectAccessReview there, cached briefly (delegated authentication and authorisation
//! as extension API servers do it).

use std::collections::BTreeMap;
use std::time::Duration;

use crowsnest_api::user::UserInfo;
use http::{HeaderMap, Method, StatusCode, header};
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec};
use k8s_openapi::api::authorization::v1::{
    NonResourceAttributes, ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use kube::api::{Api, PostParams};
use moka::future::Cache;

use super::reply::Failure;

/// How the TLS layer saw the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PeerTrust {
    /// The client certificate is one of the front proxy's, so its `X-Remote-*` headers may be believed.
    pub(crate) front_proxy: bool,
}

/// What the caller wants, in RBAC's terms.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(crate) struct Wanted {
    pub(crate) verb: String,
    pub(crate) group: String,
    pub(crate) version: String,
    pub(crate) resource: String,
    pub(crate) subresource: String,
    pub(crate) name: String,
    /// Set for paths that name no resource.
    pub(crate) path: Option<String>,
}

/// Asks the control plane about tokens and rights.
#[derive(Clone)]
pub(crate) struct Delegated {
    control_plane: kube::Client,
    tokens: Cache<String, Option<UserInfo>>,
    verdicts: Cache<(UserInfo, Wanted), Result<(), String>>,
}

impl Delegated {
    pub(crate) fn new(control_plane: kube::Client) -> Self {
        Self {
            control_plane,
            tokens: Cache::builder().max_capacity(1_000).time_to_live(Duration::from_secs(10)).build(),
            verdicts: Cache::builder().max_capacity(10_000).time_to_live(Duration::from_secs(5)).build(),
        }
    }

    /// The caller, or 401.
    pub(crate) async fn authenticate(&self, trust: PeerTrust, headers: &HeaderMap) -> Result<UserInfo, Failure> {
        if trust.front_proxy
            && let Some(caller) = front_proxy_caller(headers)
        {
            return Ok(caller);
        }
        let token = headers
            .get(header::AUTHORIZATION)
            .and_then(|v| v.to_str().ok())
            .and_then(|v| v.strip_prefix("Bearer ").or_else(|| v.strip_prefix("bearer ")));
        let Some(token) = token else {
            return Ok(anonymous());
        };
        if let Some(known) = self.tokens.get(token).await {
            return known.ok_or_else(Failure::unauthorized);
        }
        let caller = self.review_token(token).await?;
        self.tokens.insert(token.to_owned(), caller.clone()).await;
        caller.ok_or_else(Failure::unauthorized)
    }

    async fn review_token(&self, token: &str) -> Result<Option<UserInfo>, Failure> {
        let review = TokenReview {
            spec: TokenReviewSpec { token: token.to_owned(), audiences: None },
            ..TokenReview::default()
        };
        let reviews: Api<TokenReview> = Api::all(self.control_plane.clone());
        let answer = reviews.create(&PostParams::default(), &review).await.map_err(Failure::upstream)?;
        let status = answer.status.unwrap_or_default();
        if status.authenticated != Some(true) {
            return Ok(None);
        }
        let user = status.user.unwrap_or_default();
        Ok(Some(UserInfo {
            name: user.username.unwrap_or_default(),
            uid: user.uid.unwrap_or_default(),
            groups: user.groups.unwrap_or_default(),
            extra: user.extra.unwrap_or_default(),
        }))
    }

    /// Refuses with kube-apiserver's wording when RBAC in the control plane does not allow it.
    pub(crate) async fn authorize(&self, caller: &UserInfo, wanted: &Wanted) -> Result<(), Failure> {
        if caller.is_master() {
            return Ok(());
        }
        let key = (caller.clone(), wanted.clone());
        let verdict = match self.verdicts.get(&key).await {
            Some(verdict) => verdict,
            None => {
                let verdict = self.review_access(caller, wanted).await?;
                self.verdicts.insert(key, verdict.clone()).await;
                verdict
            }
        };
        verdict.map_err(|reason| forbidden(caller, wanted, &reason))
    }

    async fn review_access(&self, caller: &UserInfo, wanted: &Wanted) -> Result<Result<(), String>, Failure> {
        let mut spec = SubjectAccessReviewSpec {
            user: Some(caller.name.clone()),
            uid: Some(caller.uid.clone()).filter(|u| !u.is_empty()),
            groups: Some(caller.groups.clone()),
            extra: Some(caller.extra.clone()).filter(|e| !e.is_empty()),
            ..SubjectAccessReviewSpec::default()
        };
        match &wanted.path {
            Some(path) => {
                spec.non_resource_attributes =
                    Some(NonResourceAttributes { path: Some(path.clone()), verb: Some(wanted.verb.clone()) });
            }
            None => {
                let some = |text: &String| Some(text.clone()).filter(|t| !t.is_empty());
                spec.resource_attributes = Some(ResourceAttributes {
                    group: some(&wanted.group),
                    version: some(&wanted.version),
                    resource: some(&wanted.resource),
                    subresource: some(&wanted.subresource),
                    name: some(&wanted.name),
                    verb: Some(wanted.verb.clone()),
                    ..ResourceAttributes::default()
                });
            }
        }
        let reviews: Api<SubjectAccessReview> = Api::all(self.control_plane.clone());
        let review = SubjectAccessReview { spec, ..SubjectAccessReview::default() };
        let answer = reviews.create(&PostParams::default(), &review).await.map_err(Failure::upstream)?;
        let status = answer.status.unwrap_or_default();
        Ok(if status.allowed { Ok(()) } else { Err(status.reason.unwrap_or_default()) })
    }
}

fn front_proxy_caller(headers: &HeaderMap) -> Option<UserInfo> {
    let text = |value: &http::HeaderValue| value.to_str().ok().map(str::to_owned);
    let name = headers.get("x-remote-user").and_then(text)?;
    let mut caller = UserInfo {
        name,
        uid: headers.get("x-remote-uid").and_then(text).unwrap_or_default(),
        groups: headers.get_all("x-remote-group").iter().filter_map(text).collect(),
        extra: BTreeMap::new(),
    };
    for (name, value) in headers {
        if let (Some(key), Some(value)) = (name.as_str().strip_prefix("x-remote-extra-"), text(value)) {
            let key = percent_encoding::percent_decode_str(key).decode_utf8_lossy().into_owned();
            caller.extra.entry(key).or_default().push(value);
        }
    }
    Some(caller)
}

fn anonymous() -> UserInfo {
    UserInfo { name: "system:anonymous".into(), groups: vec!["system:unauthenticated".into()], ..UserInfo::default() }
}

fn forbidden(caller: &UserInfo, wanted: &Wanted, reason: &str) -> Failure {
    let tail = if reason.is_empty() { String::new() } else { format!(": {reason}") };
    if let Some(path) = &wanted.path {
        let text = format!("forbidden: User \"{}\" cannot {} path \"{path}\"{tail}", caller.name, wanted.verb);
        return Failure::new(StatusCode::FORBIDDEN, "Forbidden", text).with_details("", "", "");
    }
    let resource = if wanted.subresource.is_empty() {
        wanted.resource.clone()
    } else {
        format!("{}/{}", wanted.resource, wanted.subresource)
    };
    let what = format!("{}.{}", wanted.resource, wanted.group);
    let subject = if wanted.name.is_empty() { what } else { format!("{what} \"{}\"", wanted.name) };
    let text = format!(
        "{subject} is forbidden: User \"{}\" cannot {} resource \"{resource}\" in API group \"{}\" at the cluster scope{tail}",
        caller.name, wanted.verb, wanted.group
    );
    Failure::new(StatusCode::FORBIDDEN, "Forbidden", text).with_details(&wanted.group, &wanted.resource, &wanted.name)
}

/// RBAC's verb for a request.
pub(crate) fn verb(method: &Method, named: bool, watch: bool) -> &'static str {
    match (method.as_str(), named) {
        ("GET" | "HEAD", _) if watch => "watch",
        ("GET" | "HEAD", true) => "get",
        ("GET" | "HEAD", false) => "list",
        ("POST", _) => "create",
        ("PUT", _) => "update",
        ("PATCH", _) => "patch",
        ("DELETE", true) => "delete",
        ("DELETE", false) => "deletecollection",
        _ => "get",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn front_proxy_headers_become_a_caller() {
        let mut headers = HeaderMap::new();
        headers.insert("x-remote-user", "alice".parse().unwrap());
        headers.append("x-remote-group", "dev".parse().unwrap());
        headers.append("x-remote-group", "system:authenticated".parse().unwrap());
        headers.append("x-remote-extra-example.com%2fteam", "blue".parse().unwrap());
        let caller = front_proxy_caller(&headers).unwrap();
        assert_eq!((caller.name.as_str(), caller.groups.len()), ("alice", 2));
        assert_eq!(caller.extra["example.com/team"], ["blue"]);
    }

    #[test]
    fn verbs_follow_method_and_path() {
        let cases = [
            ("GET", true, false, "get"),
            ("GET", false, false, "list"),
            ("GET", false, true, "watch"),
            ("DELETE", false, false, "deletecollection"),
        ];
        for (method, named, watch, expected) in cases {
            assert_eq!(verb(&method.parse().unwrap(), named, watch), expected);
        }
    }
}
