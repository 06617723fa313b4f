//! Invariant I9 compared with the API server: a search shows what the member's API server allows in
//! SubjectAccessReviews, in thousands of generated cases of rules, users and objects.
//!
//! The rule: a search reveals names, so an object is shown to a caller whom the member allows one of three requests: to
//! `list` it in its namespace, to `list` it by name (`metadata.name=`, which a rule with `resourceNames` allows), or to
//! `get` it by a rule that names it. The permission to get all objects shows none, because the caller knows no names.
//! `watch` alone and subresources show nothing. A review has the attributes of the real request: a `get` of a Namespace
//! is a request in that namespace, so roles bound there allow it. Members' rules apply to the control plane's service
//! accounts only where these have access to the member ([`accounts`]).
//!
//! The member's own controller fills in the rules of aggregated ClusterRoles. Both sides parse rules and subjects with
//! `crowsnest_apimachinery::rbac`. The comparison covers how decisions are derived from them, and the whole path from
//! the member's objects to the hits.

#![expect(clippy::unwrap_used, reason = "in a test a panic is the report")]

#[path = "permissions/access.rs"]
mod access;
#[path = "permissions/accounts.rs"]
mod accounts;
#[path = "permissions/cases.rs"]
mod cases;
#[path = "support/members.rs"]
mod members;
#[path = "permissions/reviews.rs"]
mod reviews;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use cases::{Cases, LABEL, NAMESPACES, objects};
use crowsnest_apimachinery::names::{ClusterName, Gvr};
use crowsnest_apimachinery::user::UserInfo;
use crowsnest_index::{
    CacheOptions, Change, ChangeKind, CollectionKey, Follower, GlobalCache, SearchRequest, SearchResponse, Seq,
};
use crowsnest_members::{Fleet, FleetOptions};
use crowsnest_registry::authz::aggregate;
use crowsnest_search::authorization::rbac_resources;
use crowsnest_store::{Clusters, Interest, InterestGuard, InterestReason, Interests, Namespaces};
use futures::{StreamExt, stream};
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use members::{Member, api, control_plane, name, register, start, within};
use serde_json::{Value, json};

const RBAC: &str = "rbac.authorization.k8s.io/v1";
/// Maximum number of concurrent reviews.
const MAX_CONCURRENT_REVIEWS: usize = 4;

fn shown_resources() -> [Gvr; 5] {
    let core = |resource| Gvr::new("", "v1", resource);
    [core("namespaces"), core("nodes"), core("configmaps"), core("pods"), Gvr::new("apps", "v1", "deployments")]
}

/// One member whose objects and rules are in the cache.
struct TestEnv {
    member: Member,
    cache: GlobalCache,
    fleet: Fleet,
    _interests: Vec<InterestGuard>,
    _directory: tempfile::TempDir,
    control_plane: Member,
}

/// Name of the rules that give the control plane's service accounts access to members.
const MEMBER_ACCESS: &str = "accounts-reach";

/// Binding of these rules to all service accounts.
fn member_access_binding() -> Value {
    json!({"apiVersion": RBAC, "kind": "ClusterRoleBinding", "metadata": {"name": MEMBER_ACCESS},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:serviceaccounts"}],
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": MEMBER_ACCESS}})
}

impl TestEnv {
    async fn new(member: Member) -> Self {
        let control_plane = control_plane().await;
        register(&control_plane.server.admin(), "member1", &member).await;
        let rules = json!([{"apiGroups": ["cluster.karmada.io"], "resources": ["clusters/proxy"], "verbs": ["get"]}]);
        control_plane
            .create(
                json!({"apiVersion": RBAC, "kind": "ClusterRole", "metadata": {"name": MEMBER_ACCESS}, "rules": rules}),
            )
            .await;
        control_plane.create(member_access_binding()).await;
        let fleet = Fleet::start(control_plane.server.admin(), FleetOptions::on_loopback()).await.unwrap();
        let directory = tempfile::tempdir().unwrap();
        let options = CacheOptions {
            collect_everything: false,
            collect_control_plane: false,
            text_commit_interval: Duration::from_millis(20),
            ..CacheOptions::new(directory.path())
        };
        let declared = Interests::default();
        let interests = shown_resources().map(|resource| {
            let (clusters, namespaces) = (Clusters::All, Namespaces::All);
            declared.declare(Interest {
                clusters,
                resource,
                namespaces,
                reason: InterestReason::Other("test".to_owned()),
            })
        });
        let cache = GlobalCache::open_with(fleet.clone(), options, declared).await.unwrap();
        for resource in shown_resources().into_iter().chain(rbac_resources()) {
            within("the first list", cache.wait_until_complete(&CollectionKey::new(name("member1"), resource))).await;
        }
        for resource in rbac_resources() {
            let own = CollectionKey::new(ClusterName::control_plane(), resource);
            within("the control plane's rules", cache.wait_until_complete(&own)).await;
        }
        let env = Self { member, cache, fleet, _interests: interests.into(), _directory: directory, control_plane };
        env.wait_until_applied(env.cache.seq()).await;
        let seq = env.cache.seq();
        within("the text index", env.cache.searcher().searchable().wait_for(|reached| *reached >= seq)).await.unwrap();
        env
    }

    async fn wait_until_applied(&self, seq: Seq) {
        within("the rules", self.cache.searcher().applied_seq().wait_for(|reached| *reached >= seq)).await.unwrap();
    }

    /// Waits until the member's current rules are applied: each watch is ordered, so its last object arrives last.
    async fn wait_until_rules_applied(&self, round: &str) {
        aggregate::aggregate_all(self.member.server.registry()).await.unwrap();
        let mut follower = self.cache.follow(self.cache.seq());
        for (kind, namespace) in
            [("Role", Some("shop")), ("ClusterRole", None), ("RoleBinding", Some("shop")), ("ClusterRoleBinding", None)]
        {
            let role = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": round});
            let (field, value) = if kind.ends_with("Binding") { ("roleRef", role) } else { ("rules", json!([])) };
            let metadata = json!({"namespace": namespace, "name": round});
            self.member.create(json!({"apiVersion": RBAC, "kind": kind, "metadata": metadata, field: value})).await;
        }
        let mut missing = 4;
        let mut seq = Seq(0);
        while missing > 0 {
            for change in within(round, follower.next()).await.unwrap().unwrap() {
                if &*change.object.record.key.name == round {
                    missing -= 1;
                    seq = change.seq;
                }
            }
        }
        self.wait_until_applied(seq).await;
    }

    /// A change in the cache takes effect within a second.
    async fn assert_applied_soon(&self, seq: Seq) {
        let mut applied_seq = self.cache.searcher().applied_seq();
        let waited = tokio::time::timeout(Duration::from_secs(1), applied_seq.wait_for(|reached| *reached >= seq));
        waited.await.expect("within a second").unwrap();
    }

    async fn search(&self, query: &str, caller: &UserInfo) -> SearchResponse {
        self.cache.searcher().search_all(SearchRequest::new(query, caller.clone())).await.unwrap()
    }

    async fn stop(self) {
        self.cache.stop().await;
        self.fleet.stop().await;
        self.member.shut_down().await;
    }
}

/// Identifies an object in messages and comparisons.
fn format_object(kind: &str, namespace: &str, name: &str) -> String {
    format!("{kind} {namespace}/{name}")
}

fn metadata_text<'v>(object: &'v Value, field: &str) -> &'v str {
    object["metadata"][field].as_str().unwrap_or_default()
}

/// The member's own decisions for one user, cached.
struct Reviews<'m> {
    reviews: Api<SubjectAccessReview>,
    user: &'m UserInfo,
    decisions: BTreeMap<(&'static str, String, String, String), bool>,
}

impl Reviews<'_> {
    async fn allows(&mut self, verb: &'static str, resource: &Gvr, namespace: &str, name: &str) -> bool {
        let key = (verb, resource.resource.to_string(), namespace.to_owned(), name.to_owned());
        if let Some(allowed) = self.decisions.get(&key) {
            return *allowed;
        }
        // A request would include the groups that every API server adds.
        let user = self.user.clone().with_implied_groups();
        let attributes = ResourceAttributes {
            verb: Some(verb.to_owned()),
            group: Some(resource.group.to_string()),
            resource: Some(resource.resource.to_string()),
            namespace: Some(namespace.to_owned()),
            name: Some(name.to_owned()),
            ..ResourceAttributes::default()
        };
        let spec = SubjectAccessReviewSpec {
            user: Some(user.name),
            groups: Some(user.groups),
            resource_attributes: Some(attributes),
            ..SubjectAccessReviewSpec::default()
        };
        let review = SubjectAccessReview { spec, ..SubjectAccessReview::default() };
        let response = self.reviews.create(&PostParams::default(), &review).await.unwrap();
        let allowed = response.status.unwrap().allowed;
        self.decisions.insert(key, allowed);
        allowed
    }

    /// Evaluates the rule in the module documentation. `None`: every object may be read by name, so a review does not
    /// show whether a rule also names this one.
    async fn expected_visibility(&mut self, object: &Value) -> Option<bool> {
        let (kind, namespace, name) =
            (object["kind"].as_str().unwrap(), metadata_text(object, "namespace"), metadata_text(object, "name"));
        let plural = format!("{}s", kind.to_lowercase());
        let resource = shown_resources().into_iter().find(|resource| *resource.resource == *plural).unwrap();
        let request_namespace = if kind == "Namespace" { name } else { namespace };
        if self.allows("list", &resource, namespace, "").await || self.allows("list", &resource, namespace, name).await
        {
            return Some(true);
        }
        match self.allows("get", &resource, request_namespace, name).await {
            true if self.allows("get", &resource, request_namespace, "named-by-no-rule").await => None,
            got => Some(got),
        }
    }
}

/// Compares all users' hits with the member's reviews; returns the numbers of shown and hidden objects.
async fn compare(env: &TestEnv, users: &[UserInfo], round: &str) -> (usize, usize) {
    let objects = objects();
    let reviewed = stream::iter(users).map(|user| {
        let reviews = Api::all(env.member.server.admin());
        let mut reviews = Reviews { reviews, user, decisions: BTreeMap::new() };
        let objects = &objects;
        async move {
            let (mut shown, mut undecided) = (BTreeSet::new(), BTreeSet::new());
            for object in objects {
                let formatted = format_object(
                    object["kind"].as_str().unwrap(),
                    metadata_text(object, "namespace"),
                    metadata_text(object, "name"),
                );
                match reviews.expected_visibility(object).await {
                    Some(true) => drop(shown.insert(formatted)),
                    Some(false) => {}
                    None => drop(undecided.insert(formatted)),
                }
            }
            (user, shown, undecided)
        }
    });
    let reviewed: Vec<_> = reviewed.buffer_unordered(MAX_CONCURRENT_REVIEWS).collect().await;
    let mut differences = Vec::new();
    let (mut shown, mut hidden) = (0, 0);
    for (user, expected, undecided) in reviewed {
        let response = env.search(&format!("label:{LABEL}=yes"), user).await;
        assert_counts(&response, user);
        let found: BTreeSet<String> = hit_objects(&response).difference(&undecided).cloned().collect();
        for object in found.symmetric_difference(&expected) {
            let verb = if expected.contains(object) { "hidden from" } else { "shown to" };
            differences.push(format!("{object} is {verb} {} {:?}", user.name, user.groups));
        }
        shown += expected.len();
        hidden += objects.len() - expected.len() - undecided.len();
    }
    assert!(differences.is_empty(), "{round}: {} differences:\n{}", differences.len(), differences.join("\n"));
    (shown, hidden)
}

fn hit_objects(response: &SearchResponse) -> BTreeSet<String> {
    let hits = response.hits.iter().map(|hit| {
        let key = &hit.object.record.key;
        format_object(&hit.object.record.kind, &key.namespace, &key.name)
    });
    let found: BTreeSet<String> = hits.collect();
    assert_eq!(found.len(), response.hits.len(), "duplicate hit");
    found
}

/// Totals and facets count exactly the hits.
fn assert_counts(response: &SearchResponse, user: &UserInfo) {
    let summary = response.summary.as_ref().unwrap();
    assert_eq!((summary.total, summary.incomplete), (response.hits.len() as u64, false), "{}", user.name);
    let mut counted: BTreeMap<(&str, String), u64> = BTreeMap::new();
    for hit in &response.hits {
        let key = &hit.object.record.key;
        *counted.entry(("kind", hit.object.record.kind.to_string())).or_default() += 1;
        *counted.entry(("cluster", key.cluster().to_string())).or_default() += 1;
        if !key.namespace.is_empty() {
            *counted.entry(("namespace", key.namespace.to_string())).or_default() += 1;
        }
    }
    for field in ["kind", "cluster", "namespace"] {
        let facet = response.facets.iter().find(|facet| facet.field == field).unwrap();
        let facet: BTreeMap<_, _> =
            facet.values.iter().map(|(value, count)| ((field, value.clone()), *count)).collect();
        let counted: BTreeMap<_, _> =
            counted.iter().filter(|((name, _), _)| *name == field).map(|(key, count)| (key.clone(), *count)).collect();
        assert_eq!(facet, counted, "{field} for {}", user.name);
    }
}

async fn create_all(member: &Member, objects: &[Value]) {
    stream::iter(objects).for_each_concurrent(MAX_CONCURRENT_REVIEWS, |object| member.create(object.clone())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn searches_show_what_the_member_allows() {
    let mut cases = Cases::new(9);
    let member = start("member1").await;
    let objects = objects();
    let (namespaces, others) = objects.split_at(NAMESPACES.len());
    for objects in [namespaces, others, &cases.roles, &cases.bindings] {
        create_all(&member, objects).await;
    }
    aggregate::aggregate_all(member.server.registry()).await.unwrap();
    let env = TestEnv::new(member).await;
    let (shown, hidden) = compare(&env, &cases.users, "as listed").await;
    assert!(shown > 500 && hidden > 2000, "too few cases: {shown} shown, {hidden} hidden");

    // Repeats the comparison while bindings and roles change.
    let admin = env.member.server.admin();
    let bindings = cases.bindings.clone();
    for binding in cases.pick(&bindings, 120) {
        api(&admin, binding).delete(metadata_text(binding, "name"), &DeleteParams::default()).await.unwrap();
    }
    let roles: Vec<Value> = cases.roles.iter().filter(|role| role["aggregationRule"].is_null()).cloned().collect();
    for (nth, role) in cases.pick(&roles, 120).into_iter().enumerate() {
        let stored = api(&admin, role);
        if nth % 4 == 0 {
            stored.delete(metadata_text(role, "name"), &DeleteParams::default()).await.unwrap();
        } else {
            let changed = serde_json::from_value(cases.other_rules(role)).unwrap();
            stored.replace(metadata_text(role, "name"), &PostParams::default(), &changed).await.unwrap();
        }
    }
    let more: Vec<Value> = (0..120).map(|_| cases.add_binding()).collect();
    create_all(&env.member, &more).await;
    env.wait_until_rules_applied("changed").await;
    let (shown, hidden) = compare(&env, &cases.users, "as changed").await;
    assert!(shown > 500 && hidden > 2000, "too few cases: {shown} shown, {hidden} hidden");
    env.stop().await;
}

/// Waits for the next change of this kind of an object of this name.
async fn wait_for_change(follower: &mut Follower, name: &str, change_kind: ChangeKind) -> Seq {
    let next = async {
        loop {
            let changes = follower.next().await.unwrap().unwrap();
            let is_match =
                |change: &&Arc<Change>| (&*change.object.record.key.name, change.kind) == (name, change_kind);
            if let Some(change) = changes.iter().find(is_match) {
                return change.seq;
            }
        }
    };
    within(name, next).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn grants_follow_their_binding() {
    let member = start("member1").await;
    let objects = objects();
    let (namespaces, others) = objects.split_at(NAMESPACES.len());
    create_all(&member, namespaces).await;
    create_all(&member, others).await;
    let rules = json!([{"apiGroups": [""], "resources": ["configmaps", "pods"], "verbs": ["list"]}]);
    member
        .create(json!({"apiVersion": RBAC, "kind": "ClusterRole", "metadata": {"name": "reader"}, "rules": rules}))
        .await;
    let env = TestEnv::new(member).await;
    let admin = env.member.server.admin();
    let role = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "reader"});
    let ann = UserInfo::new("ann", ["staff"]);
    let shown = async |query: &str| {
        let response = env.search(query, &ann).await;
        assert_counts(&response, &ann);
        let suggestions = response.summary.as_ref().unwrap().did_you_mean.len();
        (response.hits.len(), suggestions)
    };
    // In a namespace and cluster-wide, by user and by group.
    let subjects = ["User", "Group"].map(|kind| {
        let name = if kind == "User" { "ann" } else { "staff" };
        json!([{"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name}])
    });
    let here = json!({"namespace": "shop", "name": "ann-reads"});
    let everywhere = json!({"name": "ann-reads"});
    let everything = format!("label:{LABEL}=yes");
    for (kind, metadata, subjects, hits) in
        [("RoleBinding", here, &subjects[0], 4), ("ClusterRoleBinding", everywhere, &subjects[1], 12)]
    {
        let binding =
            json!({"apiVersion": RBAC, "kind": kind, "metadata": metadata, "subjects": subjects, "roleRef": role});
        assert_eq!((shown(&everything).await, shown("app-").await), ((0, 0), (0, 0)));
        let mut follower = env.cache.follow(env.cache.seq());
        env.member.create(binding.clone()).await;
        env.assert_applied_soon(wait_for_change(&mut follower, "ann-reads", ChangeKind::Added).await).await;
        assert_eq!(shown(&everything).await, (hits, 0), "{kind}");
        // Suggestions only contain names that she may see.
        assert_eq!(shown("name:appp").await, (0, 1), "{kind}");

        // A change of the role takes effect immediately as well.
        let mut other = json!({"apiVersion": RBAC, "kind": "ClusterRole", "metadata": {"name": "reader"}, "rules": []});
        let roles = api(&admin, &other);
        roles.replace("reader", &PostParams::default(), &serde_json::from_value(other.clone()).unwrap()).await.unwrap();
        env.assert_applied_soon(wait_for_change(&mut follower, "reader", ChangeKind::Modified).await).await;
        assert_eq!((shown(&everything).await, shown("name:appp").await), ((0, 0), (0, 0)), "{kind}");
        other["rules"] = rules.clone();
        roles.replace("reader", &PostParams::default(), &serde_json::from_value(other).unwrap()).await.unwrap();
        env.assert_applied_soon(wait_for_change(&mut follower, "reader", ChangeKind::Modified).await).await;
        assert_eq!(shown(&everything).await, (hits, 0), "{kind}");

        api(&admin, &binding).delete("ann-reads", &DeleteParams::default()).await.unwrap();
        env.assert_applied_soon(wait_for_change(&mut follower, "ann-reads", ChangeKind::Deleted).await).await;
        assert_eq!((shown(&everything).await, shown("name:appp").await), ((0, 0), (0, 0)), "{kind}");
    }
    assert_eq!(env.cache.metrics().access_reviews.get(), 0, "the rules in the cache decide");
    env.stop().await;
}
