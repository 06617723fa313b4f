//! Delegated authentication and authorization of the aggregated server, as in other extension API servers.
//! Authenticates with front-proxy headers behind a trusted client certificate, else with the user of a client
//! certificate, else with a bearer token that the control plane reviews. Authorizes with a SubjectAccessReview in the
//! control plane. Results are cached briefly.

use crowsnest_apimachinery::rbac::{Action, Decision};
use crowsnest_apimachinery::status::ApiError;
use crowsnest_component_base::client_errors::api_error;
use std::sync::Arc;
use std::time::Duration;

use crowsnest_apimachinery::user::{ANONYMOUS, AUTHENTICATED, UNAUTHENTICATED, UserInfo};
use crowsnest_apiserver::audit::Attributes;
use crowsnest_apiserver::authn::bearer::bearer_token;
use crowsnest_apiserver::authn::impersonation::Impersonator;
use crowsnest_apiserver::authn::request_header;
use crowsnest_apiserver::authz;
use crowsnest_process::client_certificate::{Certificate, Peer};
use http::HeaderMap;
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec};
use k8s_openapi::api::authorization::v1::{
    NonResourceAttributes, ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use kube::api::{Api, PostParams};
use moka::future::Cache;

/// Decision of the control plane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccessDecision {
    pub allowed: bool,
    pub reason: String,
}

impl AccessDecision {
    /// Returns an error with kube-apiserver's wording if the request is denied.
    pub fn check(&self, caller: &UserInfo, attributes: &Attributes) -> Result<(), ApiError> {
        match self.allowed {
            true => Ok(()),
            false => Err(authz::forbidden(&caller.name, &Action::from(attributes.clone()), &self.reason)),
        }
    }
}

impl From<AccessDecision> for Decision {
    fn from(AccessDecision { allowed, reason }: AccessDecision) -> Self {
        if allowed { Self::Allowed { reason } } else { Self::NoOpinion { reason } }
    }
}

/// Keyed hash of a token, so that the memory of this process contains no usable token.
type Fingerprint = [u8; 32];

/// Time for which results of token reviews are cached. Refused tokens have a separate cache and a shorter time: they
/// may become valid soon, and invented tokens must not evict valid ones.
const TOKEN_CACHE_TTL: Duration = Duration::from_secs(10);
const REFUSED_TOKEN_CACHE_TTL: Duration = Duration::from_secs(5);

/// Maximum size of a user name with its groups for which decisions are cached.
const MAX_CACHED_IDENTITY_BYTES: usize = 64 * 1024;

/// Sends reviews of tokens and permissions to the control plane.
#[derive(Clone)]
pub struct DelegatedAuth {
    control_plane: kube::Client,
    fingerprint_key: Arc<ring::hmac::Key>,
    tokens: Cache<Fingerprint, UserInfo>,
    refused_tokens: Cache<Fingerprint, ()>,
    decisions: Cache<(UserInfo, Attributes), AccessDecision>,
    pub(super) impersonator: Arc<Impersonator>,
}

impl DelegatedAuth {
    pub fn new(control_plane: kube::Client) -> Self {
        let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, &rand::random::<[u8; 32]>());
        Self {
            control_plane,
            fingerprint_key: Arc::new(key),
            tokens: Cache::builder().max_capacity(1_000).time_to_live(TOKEN_CACHE_TTL).build(),
            refused_tokens: Cache::builder().max_capacity(1_000).time_to_live(REFUSED_TOKEN_CACHE_TTL).build(),
            decisions: Cache::builder().max_capacity(10_000).time_to_live(Duration::from_secs(5)).build(),
            impersonator: Arc::default(),
        }
    }

    /// Client of the control plane, with the account of this process.
    pub fn control_plane(&self) -> kube::Client {
        self.control_plane.clone()
    }

    /// The caller; fails with 401. As in kube-apiserver, the first valid credential counts, and a request with an
    /// invalid credential is not anonymous.
    pub async fn authenticate(&self, peer: &Peer, headers: &HeaderMap) -> Result<UserInfo, ApiError> {
        if peer.is_front_proxy
            && let Some(caller) = request_header::remote_user(headers).map_err(ApiError::from)?
        {
            return Ok(with_authenticated_group(caller));
        }
        if let Certificate::User(user) = &peer.certificate {
            return Ok(with_authenticated_group(user.clone()));
        }
        if let Some(token) = bearer_token(headers).map_err(ApiError::from)? {
            return self.token_user(&token).await;
        }
        match &peer.certificate {
            Certificate::Rejected(reason) => {
                tracing::debug!(reason, "client certificate refused");
                Err(ApiError::unauthorized())
            }
            _ => Ok(with_authenticated_group(UserInfo { name: ANONYMOUS.into(), ..UserInfo::default() })),
        }
    }

    async fn token_user(&self, token: &str) -> Result<UserInfo, ApiError> {
        let mut fingerprint = Fingerprint::default();
        fingerprint.copy_from_slice(ring::hmac::sign(&self.fingerprint_key, token.as_bytes()).as_ref());
        if let Some(user) = self.tokens.get(&fingerprint).await {
            return Ok(user);
        }
        if self.refused_tokens.contains_key(&fingerprint) {
            return Err(ApiError::unauthorized());
        }
        match self.review_token(token).await? {
            Some(user) => {
                let user = with_authenticated_group(user);
                self.tokens.insert(fingerprint, user.clone()).await;
                Ok(user)
            }
            None => {
                self.refused_tokens.insert(fingerprint, ()).await;
                Err(ApiError::unauthorized())
            }
        }
    }

    async fn review_token(&self, token: &str) -> Result<Option<UserInfo>, ApiError> {
        let review = TokenReview {
            spec: TokenReviewSpec { token: token.to_owned(), audiences: None },
            ..TokenReview::default()
        };
        let reviews: Api<TokenReview> = Api::all(self.control_plane.clone());
        let review_response = reviews.create(&PostParams::default(), &review).await.map_err(api_error)?;
        let status = review_response.status.unwrap_or_default();
        let user = status.user.unwrap_or_default();
        if status.authenticated != Some(true) || user.username.as_ref().is_none_or(String::is_empty) {
            return Ok(None);
        }
        Ok(Some(UserInfo {
            name: user.username.unwrap_or_default(),
            uid: user.uid.unwrap_or_default(),
            groups: user.groups.unwrap_or_default(),
            extra: user.extra.unwrap_or_default(),
        }))
    }

    /// Decision of RBAC in the control plane.
    pub async fn review(&self, caller: &UserInfo, attributes: &Attributes) -> Result<AccessDecision, ApiError> {
        if caller.is_master() {
            return Ok(AccessDecision { allowed: true, reason: String::new() });
        }
        let key = (caller.clone(), attributes.clone());
        if let Some(decision) = self.decisions.get(&key).await {
            return Ok(decision);
        }
        let decision = self.review_access(caller, attributes).await?;
        // Without authentication of webhook clients, any client can send reviews: the names in them must not fill the
        // memory.
        let groups: usize = caller.groups.iter().map(String::len).sum();
        if caller.name.len() + groups <= MAX_CACHED_IDENTITY_BYTES {
            self.decisions.insert(key, decision.clone()).await;
        }
        Ok(decision)
    }

    async fn review_access(&self, caller: &UserInfo, attributes: &Attributes) -> Result<AccessDecision, ApiError> {
        let mut spec = SubjectAccessReviewSpec {
            user: Some(caller.name.clone()),
            uid: Some(caller.uid.clone()).filter(|u| !u.is_empty()),
            groups: Some(caller.groups.clone()),
            extra: Some(caller.extra.clone()).filter(|e| !e.is_empty()),
            ..SubjectAccessReviewSpec::default()
        };
        match &attributes.path {
            Some(path) => {
                spec.non_resource_attributes =
                    Some(NonResourceAttributes { path: Some(path.clone()), verb: Some(attributes.verb.clone()) });
            }
            None => {
                let non_empty = |text: &String| Some(text.clone()).filter(|t| !t.is_empty());
                spec.resource_attributes = Some(ResourceAttributes {
                    group: non_empty(&attributes.group),
                    version: non_empty(&attributes.version),
                    resource: non_empty(&attributes.resource),
                    subresource: non_empty(&attributes.subresource),
                    namespace: non_empty(&attributes.namespace),
                    name: non_empty(&attributes.name),
                    verb: Some(attributes.verb.clone()),
                    ..ResourceAttributes::default()
                });
            }
        }
        let reviews: Api<SubjectAccessReview> = Api::all(self.control_plane.clone());
        let review = SubjectAccessReview { spec, ..SubjectAccessReview::default() };
        let review_response = reviews.create(&PostParams::default(), &review).await.map_err(api_error)?;
        let status = review_response.status.unwrap_or_default();
        Ok(AccessDecision { allowed: status.allowed, reason: status.reason.unwrap_or_default() })
    }
}

/// Adds the group `system:authenticated`, as every API server does, unless the user is anonymous.
fn with_authenticated_group(user: UserInfo) -> UserInfo {
    match user.groups.iter().any(|group| group == AUTHENTICATED || group == UNAUTHENTICATED) {
        true => user,
        false => user.with_implied_groups(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    type HeaderPairs<'a> = &'a [(&'static str, &'a [u8])];

    fn headers(pairs: HeaderPairs<'_>) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, HeaderValue::from_bytes(value).unwrap());
        }
        headers
    }

    /// Name of the authenticated user, or status code. The control plane is unreachable.
    async fn authenticate(peer: &Peer, pairs: HeaderPairs<'_>) -> Result<String, u16> {
        let unreachable = kube::Config::new(http::Uri::from_static("http://127.0.0.1:9"));
        let delegated = DelegatedAuth::new(kube::Client::try_from(unreachable).unwrap());
        let caller = delegated.authenticate(peer, &headers(pairs)).await;
        caller.map(|caller| caller.name).map_err(|failure| failure.code)
    }

    #[tokio::test]
    async fn first_valid_credential_counts_and_invalid_ones_are_not_anonymous() {
        let user = |is_front_proxy| Peer {
            is_front_proxy,
            certificate: Certificate::User(UserInfo::new("carla", ["dev"])),
            ..Peer::default()
        };
        let proxy =
            |is_front_proxy| Peer { is_front_proxy, certificate: Certificate::Rejected("x".into()), ..Peer::default() };
        let anonymous = Peer::default();
        let alice: HeaderPairs<'_> = &[("x-remote-user", b"alice")];
        let latin: HeaderPairs<'_> = &[("x-remote-user", b"zo\xeb")];
        let group: HeaderPairs<'_> = &[("x-remote-user", b"alice"), ("x-remote-group", b"\xff")];
        let two: HeaderPairs<'_> = &[("x-remote-user", b"alice"), ("x-remote-user", b"root")];
        let cases: [(&Peer, HeaderPairs<'_>, Result<&str, u16>); 14] = [
            (&proxy(true), two, Err(400)),
            (&user(false), two, Ok("carla")),
            (&anonymous, &[("authorization", b"Bearer t"), ("authorization", b"Bearer u")], Err(400)),
            (&anonymous, &[("authorization", b"Bearer \xff")], Err(401)),
            (&proxy(true), alice, Ok("alice")),
            (&proxy(true), latin, Err(400)),
            (&proxy(true), group, Err(400)),
            (&proxy(true), &[], Err(401)),
            (&proxy(false), alice, Err(401)),
            (&user(true), alice, Ok("alice")),
            (&user(true), &[], Ok("carla")),
            (&user(false), alice, Ok("carla")),
            (&anonymous, alice, Ok("system:anonymous")),
            (&anonymous, &[("authorization", b"Basic abc")], Ok("system:anonymous")),
        ];
        for (nth, (peer, pairs, expected)) in cases.into_iter().enumerate() {
            assert_eq!(authenticate(peer, pairs).await, expected.map(str::to_owned), "case {nth}");
        }
    }
}
