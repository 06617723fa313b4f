//! Tests of the cache's invariants (docs/ARCHITECTURE.md). More tests: memory and misbehaving members in
//! `misbehaving_members.rs`, recovery in `faults.rs`, permissions in `permissions.rs`.

#![expect(clippy::unwrap_used, reason = "in a test a panic is the report")]

#[path = "support/members.rs"]
mod members;

use crowsnest_apimachinery::names::{ClusterName, Gvr};
use crowsnest_apimachinery::user::UserInfo;
use crowsnest_index::{
    CacheOptions, Change, CollectionKey, Follower, GlobalCache, ListQuery, RecordKey, SearchRequest, SearchResponse,
    Summary,
};
use crowsnest_members::{Fleet, FleetOptions};
use crowsnest_store::{Clusters, Interest, InterestGuard, InterestReason, Interests, Namespaces};
use futures::TryStreamExt;
use kube::api::DeleteParams;
use members::{Member, api, config_map, config_maps, control_plane, name, namespace, register, start, within};
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// One member whose ConfigMaps and Secrets are collected.
struct TestEnv {
    member: Option<Member>,
    fleet: Fleet,
    declared: Interests,
    interests: Vec<InterestGuard>,
    directory: tempfile::TempDir,
    _control_plane: Member,
}

const OBJECTS: usize = 20;

fn secrets() -> Gvr {
    Gvr::new("", "v1", "secrets")
}

fn interest(resource: Gvr, reason: &str) -> Interest {
    let (clusters, namespaces) = (Clusters::All, Namespaces::All);
    Interest { clusters, resource, namespaces, reason: InterestReason::Other(reason.to_owned()) }
}

impl TestEnv {
    async fn new() -> Self {
        let control_plane = control_plane().await;
        let member = start("member1").await;
        member.create(namespace("shop")).await;
        for nth in 0..OBJECTS {
            member.create(config_map("shop", &format!("app-{nth}"), "hello world")).await;
        }
        register(&control_plane.server.admin(), "member1", &member).await;
        let fleet = Fleet::start(control_plane.server.admin(), FleetOptions::on_loopback()).await.unwrap();
        let declared = Interests::default();
        let interests = [config_maps(), secrets()].map(|resource| declared.declare(interest(resource, "test")));
        let directory = tempfile::tempdir().unwrap();
        let interests = interests.into();
        Self { member: Some(member), fleet, declared, interests, directory, _control_plane: control_plane }
    }

    fn options(&self) -> CacheOptions {
        let text_commit_interval = Duration::from_millis(20);
        let options = CacheOptions::new(self.directory.path());
        CacheOptions { collect_everything: false, collect_control_plane: false, text_commit_interval, ..options }
    }

    async fn open_cache(&self, options: CacheOptions) -> GlobalCache {
        let cache = GlobalCache::open_with(self.fleet.clone(), options, self.declared.clone()).await.unwrap();
        for resource in [config_maps(), secrets()] {
            within("the first list", cache.wait_until_complete(&CollectionKey::new(name("member1"), resource))).await;
        }
        cache
    }

    fn member(&self) -> &Member {
        self.member.as_ref().unwrap()
    }
}

async fn bodies(cache: &GlobalCache) -> Vec<String> {
    let query = ListQuery::new(name("member1"), config_maps()).in_namespace("shop");
    let objects: Vec<_> = cache.list(query).try_collect().await.unwrap();
    objects.iter().map(|object| object.text().to_owned()).collect()
}

/// The next change of an object of this name.
async fn next_change_of(follower: &mut Follower, name: &str) -> Arc<Change> {
    let next = async {
        loop {
            let mut changes = follower.next().await.unwrap().unwrap().into_iter();
            if let Some(change) = changes.find(|change| &*change.object.record.key.name == name) {
                return change;
            }
        }
    };
    within(name, next).await
}

async fn search(cache: &GlobalCache, query: &str) -> SearchResponse {
    cache.searcher().search_all(SearchRequest::new(query, UserInfo::system())).await.unwrap()
}

async fn wait_until_searchable(cache: &GlobalCache) {
    let seq = cache.seq();
    within("the text index", cache.searcher().searchable().wait_for(|reached| *reached >= seq)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_collector_follows_a_resource_for_all_interests() {
    let mut env = TestEnv::new().await;
    let cache = env.open_cache(env.options()).await;
    let collectors = cache.metrics().collectors.get();
    let other_reasons = ["registry", "controller", "page"];
    env.interests.extend(other_reasons.map(|reason| env.declared.declare(interest(config_maps(), reason))));
    // When a later interest is collected, the earlier ones have been processed.
    let endpoints = Gvr::new("", "v1", "endpoints");
    let late_interest = env.declared.declare(interest(endpoints.clone(), "late"));
    within("the late one", cache.wait_until_complete(&CollectionKey::new(name("member1"), endpoints.clone()))).await;
    assert_eq!(cache.metrics().collectors.get(), collectors + 1);

    // When the last interest ends, the collector stops and the records are deleted.
    let key = CollectionKey::new(name("member1"), config_maps());
    drop(late_interest);
    env.interests.drain(..1).for_each(drop);
    let mut version = cache.states_version();
    let deleted = CollectionKey::new(name("member1"), endpoints);
    within("the late one's end", version.wait_for(|_| cache.state(&deleted).is_none())).await.unwrap();
    assert!(cache.state(&key).is_some_and(|state| state.is_fresh()), "three other interests remain");
    env.interests.clear();
    within("the end", version.wait_for(|_| cache.state(&key).is_none())).await.unwrap();
    assert!(bodies(&cache).await.is_empty());
    cache.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deleted_data_directory_loses_nothing() {
    let env = TestEnv::new().await;
    let cache = env.open_cache(env.options()).await;
    let before = bodies(&cache).await;
    cache.stop().await;
    for entry in std::fs::read_dir(env.directory.path()).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { std::fs::remove_dir_all(path).unwrap() } else { std::fs::remove_file(path).unwrap() }
    }
    let cache = env.open_cache(env.options()).await;
    assert_eq!((bodies(&cache).await, before.len()), (before, OBJECTS));
    wait_until_searchable(&cache).await;
    assert_eq!(search(&cache, "kind:configmap hello").await.hits.len(), OBJECTS);
    cache.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_text_index_is_rebuilt_from_the_store() {
    let mut env = TestEnv::new().await;
    let cache = env.open_cache(env.options()).await;
    cache.stop().await;
    env.member.take().unwrap().shut_down().await;
    std::fs::remove_dir_all(env.directory.path().join("text")).unwrap();
    let cache = env.open_cache(env.options()).await;
    wait_until_searchable(&cache).await;
    // Stored collections are resumed if their cluster responds.
    let mut version = cache.states_version();
    let is_resumed = || {
        let states = cache.states();
        let mut control_plane_states = states.iter().filter(|(key, _)| key.cluster == ClusterName::control_plane());
        control_plane_states.all(|(_, state)| state.is_fresh())
    };
    within("the control plane", version.wait_for(|_| is_resumed())).await.unwrap();
    let response = search(&cache, "kind:configmap hello").await;
    assert_eq!((response.hits.len(), response.skipped.len()), (OBJECTS, 1), "the unreachable member is reported");
    cache.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_never_wait_for_the_text_index() {
    let env = TestEnv::new().await;
    let never = Duration::from_secs(24 * 3600);
    let options = CacheOptions { text_commit_interval: never, text_commit_changes: usize::MAX, ..env.options() };
    let cache = env.open_cache(options).await;
    let mut follower = cache.follow(cache.seq());
    env.member().create(config_map("shop", "new", "fresh")).await;
    let change = next_change_of(&mut follower, "new").await;
    let key = RecordKey::new(name("member1"), config_maps(), "shop", "new");
    assert_eq!(cache.get(&key).await.unwrap().unwrap().body, change.object.body);
    assert!(bodies(&cache).await.contains(&change.object.text().to_owned()));
    // Search does not include the change yet and reports its lag.
    let seq_before = cache.seq().0;
    let Summary { total, seq, behind, .. } = search(&cache, "fresh").await.summary.unwrap();
    assert_eq!(total, 0);
    assert!(behind > 0);
    // Other objects may be listed meanwhile.
    let seqs = seq_before..=cache.seq().0;
    assert!(seqs.contains(&(seq.0 + behind)), "{seq:?} and {behind} behind, of {seqs:?}");
    cache.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deleted_objects_are_found_before_the_text_index_has_processed_them() {
    let env = TestEnv::new().await;
    let cache = env.open_cache(env.options()).await;
    wait_until_searchable(&cache).await;
    cache.stop().await;
    let never = Duration::from_secs(24 * 3600);
    let options = CacheOptions { text_commit_interval: never, text_commit_changes: usize::MAX, ..env.options() };
    let cache = env.open_cache(options).await;
    let mut follower = cache.follow(cache.seq());
    let deleted = api(&env.member().server.admin(), &config_map("shop", "app-3", ""));
    deleted.delete("app-3", &DeleteParams::default()).await.unwrap();
    next_change_of(&mut follower, "app-3").await;
    for when in ["during:now-1h..now", "(is:deleted OR -is:deleted)"] {
        let response = search(&cache, &format!("kind:configmap hello {when}")).await;
        let deleted: Vec<_> =
            response.hits.iter().filter(|hit| hit.version_end.is_some_and(|was| was.deleted)).collect();
        let total = response.summary.map(|summary| summary.total);
        assert_eq!((total, response.hits.len()), (Some(OBJECTS as u64), OBJECTS), "{when}");
        assert_eq!(deleted.iter().map(|hit| &*hit.object.record.key.name).collect::<Vec<_>>(), ["app-3"], "{when}");
    }
    cache.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ended_worker_makes_the_cache_unready() {
    for worker in ["store writer", "text index", "authorization", "collectors"] {
        let env = TestEnv::new().await;
        let cache = env.open_cache(env.options()).await;
        assert_eq!((cache.check_ready(), cache.failed_workers()), (Ok(()), Vec::new()));
        assert!(cache.abort_worker(worker), "there is no worker {worker}");
        let unready = within(worker, async {
            loop {
                match cache.check_ready() {
                    Err(reason) => return reason,
                    Ok(()) => tokio::task::yield_now().await,
                }
            }
        });
        assert!(unready.await.contains(worker), "{worker}");
        assert!(
            cache.failed_workers().iter().any(|failed| failed.contains(worker)),
            "{worker}: {:?}",
            cache.failed_workers()
        );
        cache.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn secret_values_are_not_stored() {
    const VALUE: &str = "correct-horse-battery";
    let env = TestEnv::new().await;
    let cache = env.open_cache(env.options()).await;
    let mut follower = cache.follow(cache.seq());
    env.member()
        .create(json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"namespace": "shop", "name": "login"},
            "stringData": {"password": VALUE}}))
        .await;
    let change = next_change_of(&mut follower, "login").await;
    wait_until_searchable(&cache).await;
    let body: Value = change.object.parse().unwrap();
    assert_eq!((&body["data"]["password"], change.object.record.redacted), (&json!(""), true));
    assert_eq!(search(&cache, "kind:secret password").await.hits.len(), 1, "names of keys are found");
    let encoded = "Y29ycmVjdC1ob3JzZS1iYXR0ZXJ5";
    for query in [VALUE, encoded] {
        assert_eq!(search(&cache, query).await.hits.len(), 0, "{query}");
    }
    cache.stop().await;
    let mut files = vec![env.directory.path().to_owned()];
    while let Some(path) = files.pop() {
        match path.is_dir() {
            true => files.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path())),
            false => assert!(!file_contains(&path, VALUE) && !file_contains(&path, encoded), "{}", path.display()),
        }
    }
}

fn file_contains(path: &Path, text: &str) -> bool {
    std::fs::read(path).unwrap().windows(text.len()).any(|window| window == text.as_bytes())
}
