//! Sends SelfSubjectAccessReviews to clusters whose RBAC objects are not in the cache, to determine what a caller
//! may list there.
//!
//! Results are cached by caller and cluster for [`RESULT_TTL`]. One task per pair sends the reviews, started by the first
//! search that needs them; later searches use its results. Reviews without a response count as denied. Rules limited to
//! resource names are not reviewed: a caller who may read only some objects of a namespace sees none of them here.

use super::{CallerPermissions, has_complete_rules};
use crate::Searcher;
use crate::document::columns::SCOPE_SEPARATOR;
use crowsnest_apimachinery::names::ClusterName;
use crowsnest_apimachinery::rbac::{ReadableNames, ReadableObjects};
use crowsnest_apimachinery::user::UserInfo;
use crowsnest_members::{ImpersonatedAttributes, Member, Token, impersonated_headers};
use crowsnest_store::Error;
use futures::future::join_all;
use futures::stream::{self, TryStreamExt};
use http::header::CONTENT_TYPE;
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec};
use kube::Client;
use parking_lot::Mutex;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{Semaphore, watch};

/// Lifetime of results, the maximum delay until a revoked permission takes effect.
pub(super) const RESULT_TTL: Duration = Duration::from_secs(10);
/// Maximum time that a search waits for a cluster's results; later results serve the next search.
const MAX_WAIT: Duration = Duration::from_secs(1);
/// Time limit for the reviews of one caller in one cluster.
const REVIEW_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of cached pairs of caller and cluster.
const MAX_CACHED_RESULTS: u64 = 1000;
/// Maximum number of reviews for a caller in a cluster.
const MAX_REVIEWS: usize = 1000;
/// Maximum number of namespaces that are reviewed for a caller in a cluster.
const MAX_NAMESPACES: usize = 200;
/// Maximum number of concurrent reviews in a cluster, for all callers.
const MAX_CONCURRENT_REVIEWS: usize = 8;

const ALL: &str = "*";
const PATH: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";

/// Reviews in progress and their results, by caller, cluster and the member's uid.
pub(crate) struct ReviewCache {
    entries: moka::sync::Cache<(UserInfo, ClusterName, String), Arc<CallerReviews>>,
    permits: Mutex<HashMap<ClusterName, Arc<Semaphore>>>,
}

/// The unit of a review: a resource in one namespace. With an empty namespace, the resource in all namespaces or a
/// cluster-scoped resource.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct ReviewScope {
    namespace: String,
    group: String,
    resource: String,
}

/// Results for one caller in one cluster, as far as they are available.
#[derive(Debug, Clone)]
pub(super) struct ReviewResults {
    allowed: Arc<HashSet<ReviewScope>>,
    /// Reason why results are missing; None if they are complete.
    missing_reason: Option<String>,
}

/// Reviews of one caller in one cluster.
struct CallerReviews {
    started_at: Instant,
    allowed: Mutex<Arc<HashSet<ReviewScope>>>,
    /// Sent by the task that sends the reviews; closed when that task has ended.
    progress: watch::Receiver<Progress>,
}

/// Progress of the task that sends the reviews.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Progress {
    Pending,
    Done,
    /// Some reviews were not sent or got no response, with the reason.
    Incomplete(String),
}

impl Default for ReviewCache {
    fn default() -> Self {
        let entries = moka::sync::Cache::builder().max_capacity(MAX_CACHED_RESULTS).time_to_live(RESULT_TTL).build();
        Self { entries, permits: Mutex::default() }
    }
}

impl Searcher {
    /// Permissions of a caller. For clusters without cached RBAC objects, reviews are sent first, for at most half
    /// of the time until the deadline.
    pub(crate) async fn permissions_of(&self, caller: &UserInfo, deadline: Instant) -> CallerPermissions {
        let mut permissions = self.inner.rbac_rules.for_caller(caller);
        if permissions.is_unlimited() {
            return permissions;
        }
        let unknown = |cluster: &ClusterName| !has_complete_rules(&self.inner.cache.states, cluster);
        // Members whose rules do not apply to the caller are not sent reviews.
        let members = self.inner.cache.fleet.members().into_iter();
        let members =
            members.filter(|member| unknown(member.name()) && permissions.rules_apply_in(member.name())).map(Some);
        let control_plane = unknown(&ClusterName::control_plane()).then_some(None);
        let until = Instant::now() + deadline.saturating_duration_since(Instant::now()) / 2;
        let pending = members.chain(control_plane).map(|member| {
            let target = ReviewTarget::new(member);
            let pending = self.inner.reviews.get_or_start(self, caller, &target);
            async move { (target.cluster, pending.results(until).await) }
        });
        permissions.add_review_results(join_all(pending).await.into_iter().collect());
        permissions
    }
}

impl ReviewCache {
    /// The cached reviews of a caller in a cluster; starts them if there are none.
    fn get_or_start(&self, searcher: &Searcher, caller: &UserInfo, target: &ReviewTarget) -> Arc<CallerReviews> {
        // A cluster that was removed and joined again has another uid.
        let uid = target.member.as_ref().map(|member| member.uid().to_owned()).unwrap_or_default();
        self.entries.get_with((caller.clone(), target.cluster.clone(), uid), || {
            let (progress_sender, progress) = watch::channel(Progress::Pending);
            let pending = Arc::new(CallerReviews { started_at: Instant::now(), allowed: Mutex::default(), progress });
            let (reviews, permits) = (Arc::clone(&pending), self.permits(&target.cluster));
            let (searcher, caller, target) = (searcher.clone(), caller.clone(), target.clone());
            searcher.clone().spawn("access reviews", async move {
                let ended =
                    tokio::time::timeout(REVIEW_TIMEOUT, reviews.send(&searcher, &caller, &target, &permits)).await;
                let progress = match ended {
                    Ok(Ok(progress)) => progress,
                    Ok(Err(error)) => Progress::Incomplete(format!("access reviews failed: {}", error.chain())),
                    Err(_) => Progress::Incomplete(format!(
                        "it did not respond to access reviews within {} s",
                        REVIEW_TIMEOUT.as_secs()
                    )),
                };
                progress_sender.send_replace(progress);
            });
            pending
        })
    }

    fn permits(&self, cluster: &ClusterName) -> Arc<Semaphore> {
        let mut permits = self.permits.lock();
        permits.retain(|_, permits| Arc::strong_count(permits) > 1);
        Arc::clone(permits.entry(cluster.clone()).or_insert_with(|| Arc::new(Semaphore::new(MAX_CONCURRENT_REVIEWS))))
    }
}

impl CallerReviews {
    /// The complete results, or those available at the deadline.
    async fn results(&self, until: Instant) -> ReviewResults {
        let mut progress = self.progress.clone();
        let until = until.min(self.started_at + MAX_WAIT);
        let ended = progress.wait_for(|progress| *progress != Progress::Pending);
        // The wait fails if the task ended without a result. Otherwise, or after a timeout, the state is read below.
        let has_failed = matches!(tokio::time::timeout_at(until.into(), ended).await, Ok(Err(_)));
        let missing_reason = match &*self.progress.borrow() {
            Progress::Done => None,
            Progress::Pending if has_failed => Some("access reviews failed".to_owned()),
            Progress::Pending => Some("access reviews are in progress".to_owned()),
            Progress::Incomplete(reason) => Some(reason.clone()),
        };
        ReviewResults { allowed: Arc::clone(&self.allowed.lock()), missing_reason }
    }

    /// Sends reviews for the resources that have objects in the cluster: first for everything, then for each resource, then
    /// for each namespace of the resources that are not allowed in all namespaces.
    async fn send(
        &self,
        searcher: &Searcher,
        caller: &UserInfo,
        target: &ReviewTarget,
        permits: &Semaphore,
    ) -> Result<Progress, Error> {
        let scopes = searcher.inner.engine.scopes(&target.cluster).await?;
        let scopes: BTreeSet<ReviewScope> = scopes.iter().filter_map(|scope| ReviewScope::parse(scope)).collect();
        if scopes.is_empty() {
            return Ok(Progress::Done);
        }
        let (client, token, impersonated_attributes) = target.connect(searcher)?;
        let sender = ReviewSender { searcher, caller, client, token, impersonated_attributes, permits, reviews: self };
        sender.send([ReviewScope::everywhere(ALL, ALL)]).await?;
        if self.allows(ALL, ALL, "") {
            return Ok(Progress::Done);
        }
        let resources: BTreeSet<ReviewScope> =
            scopes.iter().map(|scope| ReviewScope::everywhere(&scope.group, &scope.resource)).collect();
        let remaining = MAX_REVIEWS.saturating_sub(resources.len());
        let mut is_truncated = resources.len() > MAX_REVIEWS;
        sender.send(resources.into_iter().take(MAX_REVIEWS)).await?;
        let undecided =
            |scope: &ReviewScope| !scope.namespace.is_empty() && !self.allows(&scope.group, &scope.resource, "");
        let undecided: Vec<ReviewScope> = scopes.into_iter().filter(undecided).collect();
        let reviewed = limit_scopes(&undecided, remaining, MAX_NAMESPACES);
        is_truncated |= reviewed.len() < undecided.len();
        sender.send(reviewed.iter().cloned()).await?;
        let reason = || format!("access reviews are limited to {MAX_REVIEWS} in {MAX_NAMESPACES} namespaces");
        Ok(if is_truncated { Progress::Incomplete(reason()) } else { Progress::Done })
    }

    fn allows(&self, group: &str, resource: &str, namespace: &str) -> bool {
        self.allowed.lock().contains(&ReviewScope::new(group, resource, namespace))
    }
}

impl ReviewResults {
    /// True if objects of a resource in a namespace (empty for cluster-scoped ones) may be listed.
    pub(super) fn allows(&self, group: &str, resource: &str, namespace: &str) -> bool {
        let mut scopes = [ReviewScope::everywhere(ALL, ALL), ReviewScope::everywhere(group, resource)].into_iter();
        scopes.any(|scope| self.allowed.contains(&scope))
            || self.allowed.contains(&ReviewScope::new(group, resource, namespace))
    }

    pub(super) fn allows_anything(&self) -> bool {
        !self.allowed.is_empty()
    }

    /// The objects of a resource, in all namespaces, that may be listed.
    pub(super) fn readable_objects(&self, group: &str, resource: &str) -> ReadableObjects {
        if self.allows(group, resource, "") {
            return ReadableObjects::uniform(ReadableNames::All);
        }
        let by_namespace = self.allowed.iter().filter(|scope| scope.group == group && scope.resource == resource);
        ReadableObjects::from_namespaces(by_namespace.map(|scope| scope.namespace.clone()))
    }

    /// Digest that changes with the allowed scopes.
    pub(super) fn digest(&self) -> u64 {
        let scope_digest = |scope: &ReviewScope| {
            let mut hasher = DefaultHasher::new();
            scope.hash(&mut hasher);
            hasher.finish()
        };
        // The sum does not depend on the order of the set.
        self.allowed.iter().map(scope_digest).fold(self.allowed.len() as u64, u64::wrapping_add)
    }

    pub(super) fn missing_reason(&self) -> Option<&str> {
        self.missing_reason.as_deref()
    }
}

impl ReviewScope {
    fn new(group: &str, resource: &str, namespace: &str) -> Self {
        Self { namespace: namespace.to_owned(), group: group.to_owned(), resource: resource.to_owned() }
    }

    fn everywhere(group: &str, resource: &str) -> Self {
        Self::new(group, resource, "")
    }

    /// Parses a value of [`Facet::Scope`] without its cluster; None if it names no resource.
    ///
    /// [`Facet::Scope`]: crate::document::columns::Facet::Scope
    fn parse(text: &str) -> Option<Self> {
        let (_, rest) = text.split_once(SCOPE_SEPARATOR)?;
        let (resource, namespace) = rest.split_once(SCOPE_SEPARATOR)?;
        let (group, resource) = resource.split_once('/')?;
        Some(Self::new(group, resource, namespace))
    }
}

/// The first `max_scopes` scopes in at most `max_namespaces` namespaces; `scopes` are sorted by namespace.
fn limit_scopes(scopes: &[ReviewScope], max_scopes: usize, max_namespaces: usize) -> &[ReviewScope] {
    let by_namespace = scopes.chunk_by(|a, b| a.namespace == b.namespace);
    let scope_count: usize = by_namespace.take(max_namespaces).map(<[ReviewScope]>::len).sum();
    scopes.get(..scope_count.min(max_scopes)).unwrap_or_default()
}

/// The cluster to which reviews are sent.
#[derive(Clone)]
struct ReviewTarget {
    cluster: ClusterName,
    /// None: the control plane.
    member: Option<Arc<Member>>,
}

impl ReviewTarget {
    fn new(member: Option<Arc<Member>>) -> Self {
        let cluster = member.as_ref().map_or_else(ClusterName::control_plane, |member| member.name().clone());
        Self { cluster, member }
    }

    /// Client and credentials for reviews as a caller. In a member, the impersonator's token is used; the control
    /// plane's client may impersonate.
    fn connect(&self, searcher: &Searcher) -> Result<(Client, Option<&Token>, ImpersonatedAttributes), Error> {
        match &self.member {
            None => Ok((searcher.inner.cache.fleet.control_plane(), None, ImpersonatedAttributes::UserAndGroups)),
            Some(member) => {
                Ok((member.client()?, Some(member.impersonator_token()?), member.impersonated_attributes()))
            }
        }
    }
}

/// Sends reviews for one caller to one cluster.
struct ReviewSender<'a> {
    searcher: &'a Searcher,
    caller: &'a UserInfo,
    client: Client,
    token: Option<&'a Token>,
    impersonated_attributes: ImpersonatedAttributes,
    permits: &'a Semaphore,
    reviews: &'a CallerReviews,
}

impl ReviewSender<'_> {
    async fn send(&self, scopes: impl IntoIterator<Item = ReviewScope>) -> Result<(), Error> {
        let scopes = stream::iter(scopes.into_iter().map(Ok));
        let review = async |scope: ReviewScope| {
            let _permit = self.permits.acquire().await.map_err(|_| Error::Stopped)?;
            if self.may_list(&scope).await? {
                Arc::make_mut(&mut *self.reviews.allowed.lock()).insert(scope);
            }
            Ok(())
        };
        scopes.try_for_each_concurrent(MAX_CONCURRENT_REVIEWS, review).await
    }

    async fn may_list(&self, scope: &ReviewScope) -> Result<bool, Error> {
        let attributes = ResourceAttributes {
            verb: Some("list".to_owned()),
            group: Some(scope.group.clone()),
            resource: Some(scope.resource.clone()),
            namespace: Some(scope.namespace.clone()),
            ..ResourceAttributes::default()
        };
        let spec = SelfSubjectAccessReviewSpec {
            resource_attributes: Some(attributes),
            ..SelfSubjectAccessReviewSpec::default()
        };
        let review = SelfSubjectAccessReview { spec, ..SelfSubjectAccessReview::default() };
        let failed = |error: kube::Error| crowsnest_members::Error::kube("cannot review access", error);
        let body = serde_json::to_vec(&review).map_err(|error| failed(kube::Error::SerdeError(error)))?;
        let request = http::Request::post(PATH).header(CONTENT_TYPE, "application/json").body(body);
        let mut request = request.map_err(|error| failed(kube::Error::HttpError(error)))?;
        *request.headers_mut() =
            impersonated_headers(request.headers(), self.caller, self.token, self.impersonated_attributes)?;
        self.searcher.inner.cache.metrics.access_reviews.add(1);
        let response: SelfSubjectAccessReview = self.client.request(request).await.map_err(failed)?;
        Ok(response.status.is_some_and(|status| status.allowed && status.denied != Some(true)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::all(10, 3, 5)]
    #[case::limited_reviews(3, 3, 3)]
    #[case::limited_namespaces(10, 2, 4)]
    #[case::none(0, 3, 0)]
    #[case::no_namespaces(10, 0, 0)]
    fn reviews_are_limited(#[case] max_reviews: usize, #[case] namespaces: usize, #[case] expected: usize) {
        let scopes = [("c", "pods"), ("a", "services"), ("b", "pods"), ("b", "services"), ("a", "pods")];
        let scopes: BTreeSet<ReviewScope> =
            scopes.map(|(namespace, resource)| ReviewScope::new("", resource, namespace)).into();
        let scopes: Vec<ReviewScope> = scopes.into_iter().collect();
        assert_eq!(limit_scopes(&scopes, max_reviews, namespaces), &scopes[..expected]);
    }

    #[tokio::test]
    async fn reviews_of_a_failed_task_are_not_waited_for() {
        let (progress_sender, progress) = watch::channel(Progress::Pending);
        let pending = CallerReviews { started_at: Instant::now(), allowed: Mutex::default(), progress };
        let task = tokio::spawn(async move {
            let _progress_sender = progress_sender;
            panic!("on purpose");
        });
        assert!(task.await.is_err());
        let reviewed = pending.results(Instant::now() + REVIEW_TIMEOUT).await;
        assert_eq!(reviewed.missing_reason(), Some("access reviews failed"));
    }

    #[rstest]
    #[case("m1\u{1f}\u{1f}", None)]
    #[case("m1\u{1f}apps/deployments\u{1f}shop", Some(("apps", "deployments", "shop")))]
    #[case("m1\u{1f}/nodes\u{1f}", Some(("", "nodes", "")))]
    #[case("m1\u{1f}/nodes", None)]
    fn scopes_are_parsed(#[case] text: &str, #[case] expected: Option<(&str, &str, &str)>) {
        let expected = expected.map(|(group, resource, namespace)| ReviewScope::new(group, resource, namespace));
        assert_eq!(ReviewScope::parse(text), expected);
    }
}
