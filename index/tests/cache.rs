//! The cache with real API servers in this process: a control plane and two members.

#![expect(clippy::unwrap_used, reason = "in a test a panic is the report")]

#[path = "support/members.rs"]
mod members;

use crowsnest_apimachinery::names::{ClusterName, Gvr};
use crowsnest_apimachinery::user::UserInfo;
use crowsnest_index::{
    CacheOptions, Change, ChangeKind, CollectionKey, Follower, GlobalCache, Hit, ListQuery, RecordKey, SearchEvent,
    SearchRequest, SearchResponse, Seq,
};
use crowsnest_members::{Fleet, FleetOptions, JoinOptions, join};
use futures::TryStreamExt;
use kube::Api;
use kube::api::DeleteParams;
use members::{
    Member, TOKEN, api, cluster_definition, config_map, config_maps, control_plane, name, namespace, register, start,
    within,
};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

fn key(cluster: &str, namespace: &str, object: &str) -> RecordKey {
    RecordKey::new(name(cluster), config_maps(), namespace, object)
}

struct TestEnv {
    control_plane: Member,
    members: Vec<Member>,
    fleet: Fleet,
    cache: GlobalCache,
    directory: tempfile::TempDir,
}

/// Waits for a matching change.
async fn wait_for_change(follower: &mut Follower, description: &str, mut is_match: impl FnMut(&Change) -> bool) {
    within(description, async {
        loop {
            let changes = follower.next().await.expect("the cache runs").expect("the test is fast enough");
            if changes.iter().any(|change: &Arc<Change>| is_match(change)) {
                return;
            }
        }
    })
    .await;
}

async fn wait_until_searchable(cache: &GlobalCache, seq: Seq) {
    let mut reached = cache.searcher().searchable();
    within("the text index", reached.wait_for(|at| *at >= seq)).await.unwrap();
}

async fn search(cache: &GlobalCache, query: &str, caller: UserInfo) -> SearchResponse {
    cache.searcher().search_all(SearchRequest::new(query, caller)).await.unwrap()
}

/// Checks the order of the events of a stream, and that it has the hits, counts and suggestions of the complete response.
async fn assert_streamed(cache: &GlobalCache, query: &str, expected_order: &str) {
    let request = SearchRequest::new(query, UserInfo::system());
    let events: Vec<SearchEvent> = cache.searcher().search(request).try_collect().await.unwrap();
    let (mut streamed, mut order) = (SearchResponse::default(), Vec::new());
    for event in events {
        order.push(match event {
            SearchEvent::Notices(_) => "notices",
            SearchEvent::Skipped(_) => "skipped",
            SearchEvent::Hits(hits) => {
                streamed.hits.extend(hits);
                "hits"
            }
            SearchEvent::Summary(summary) => {
                assert_eq!((summary.total, summary.did_you_mean.len()), (streamed.hits.len() as u64, 0), "{query}");
                "summary"
            }
            SearchEvent::Facets(facets) => {
                streamed.facets = facets;
                "facets"
            }
            SearchEvent::Groups(groups) => {
                streamed.groups = Some(groups);
                "groups"
            }
            SearchEvent::Done(summary) => {
                streamed.summary = Some(summary);
                "done"
            }
        });
    }
    assert_eq!(order.join(" "), expected_order, "{query}");
    let complete = search(cache, query, UserInfo::system()).await;
    assert_eq!(hit_names(&streamed), hit_names(&complete), "{query}");
    assert_eq!((&streamed.facets, &streamed.groups), (&complete.facets, &complete.groups), "{query}");
    let corrections = |response: &SearchResponse| {
        let summary = response.summary.clone().unwrap();
        (summary.total, summary.did_you_mean, summary.relaxed_queries)
    };
    assert_eq!(corrections(&streamed), corrections(&complete), "{query}");
}

fn hit_names(response: &SearchResponse) -> Vec<String> {
    let text = |hit: &crowsnest_index::Hit| {
        let key = &hit.object.record.key;
        format!("{}/{}/{}", key.cluster(), key.namespace, key.name)
    };
    let mut names: Vec<String> = response.hits.iter().map(text).collect();
    names.sort();
    names
}

impl TestEnv {
    async fn new() -> Self {
        let control_plane = control_plane().await;
        let client = control_plane.server.admin();
        let members = vec![start("member1").await, start("member2").await];
        for (nth, member) in members.iter().enumerate() {
            member.create(namespace("shop")).await;
            member.create(namespace("ops")).await;
            for n in 0..30 {
                member.create(config_map("shop", &format!("app-{n}"), "hello world")).await;
            }
            member.create(config_map("ops", "runbook", "restart nginx:1.27")).await;
            register(&client, &format!("member{}", nth + 1), member).await;
        }
        let fleet = Fleet::start(client, FleetOptions::on_loopback()).await.unwrap();
        let directory = tempfile::tempdir().unwrap();
        let mut options = CacheOptions::new(directory.path());
        options.text_commit_interval = Duration::from_millis(50);
        let cache = GlobalCache::open(fleet.clone(), options).await.unwrap();
        for cluster in [name("member1"), name("member2"), ClusterName::control_plane()] {
            let key = CollectionKey::new(cluster, config_maps());
            within("the first list", cache.wait_until_complete(&key)).await;
        }
        let mut version = cache.states_version();
        within("every first list", async {
            while !search(&cache, "", UserInfo::system()).await.skipped.is_empty() {
                version.changed().await.unwrap();
            }
        })
        .await;
        wait_until_searchable(&cache, cache.seq()).await;
        Self { control_plane, members, fleet, cache, directory }
    }

    async fn list(&self, query: ListQuery) -> Vec<String> {
        let objects: Vec<_> = self.cache.list(query).try_collect().await.unwrap();
        objects.iter().map(|object| object.record.key.name.to_string()).collect()
    }

    async fn stop(self) {
        self.cache.stop().await;
        self.fleet.stop().await;
        for member in self.members {
            member.shut_down().await;
        }
        self.control_plane.shut_down().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn objects_of_members_are_listed_watched_and_found() {
    let env = TestEnv::new().await;
    let cache = &env.cache;
    let query = ListQuery::new(name("member1"), config_maps()).in_namespace("shop");
    let listed = env.list(query.clone()).await;
    assert_eq!(listed.len(), 30, "{listed:?}");
    assert!(listed.is_sorted());
    let page = cache.page(&query, 10).await.unwrap();
    let mut rest = query.clone();
    rest.after = page.next.clone();
    assert_eq!(page.objects.len() + env.list(rest).await.len(), 30);
    let selector = crowsnest_apimachinery::selector::Selector::parse("app in (app-3,app-4)").unwrap();
    assert_eq!(env.list(query.with_labels(selector)).await, ["app-3", "app-4"]);

    // A change is published immediately and searchable shortly after.
    let mut follower = cache.follow(cache.seq());
    env.members[1].create(config_map("ops", "late-config", "brand-new text")).await;
    let mut seq = Seq(0);
    wait_for_change(&mut follower, "the new object", |change| {
        seq = change.seq;
        change.kind == ChangeKind::Added && &*change.object.record.key.name == "late-config"
    })
    .await;
    let body: Value = cache.get(&key("member2", "ops", "late-config")).await.unwrap().unwrap().parse().unwrap();
    assert_eq!((&body["kind"], &body["metadata"]["managedFields"]), (&json!("ConfigMap"), &Value::Null));
    wait_until_searchable(cache, seq).await;
    assert_eq!(hit_names(&search(cache, "brand-new", UserInfo::system()).await), ["member2/ops/late-config"]);
    let nginx = search(cache, "kind:cm nginx:1.27 region:eu-*", UserInfo::system()).await;
    assert_eq!(hit_names(&nginx), ["member1/ops/runbook", "member2/ops/runbook"]);
    assert_eq!(nginx.facets.iter().find(|facet| facet.field == "cluster").unwrap().values.len(), 2);
    assert!(nginx.skipped.is_empty(), "{:?}", nginx.skipped);
    assert_eq!(search(cache, "late-confgi", UserInfo::system()).await.summary.unwrap().did_you_mean, ["late-config"]);
    for (query, order) in [
        ("kind:cm nginx:1.27 region:eu-*", "notices skipped hits summary facets done"),
        ("kind:cm nginx:1.27 group:cluster", "notices skipped facets groups hits done"),
        ("late-confgi", "notices skipped summary facets done"),
    ] {
        assert_streamed(cache, query, order).await;
    }
    // The control plane is collected like a member.
    assert!(
        !search(cache, "kind:cluster cluster:@control-plane name:member1", UserInfo::system()).await.hits.is_empty()
    );

    // Deletions are published as well.
    let gone = config_map("ops", "late-config", "");
    api(&env.members[1].server.admin(), &gone).delete("late-config", &DeleteParams::default()).await.unwrap();
    wait_for_change(&mut follower, "the deletion", |change| {
        seq = change.seq;
        change.kind == ChangeKind::Deleted && &*change.object.record.key.name == "late-config"
    })
    .await;
    assert!(cache.get(&key("member2", "ops", "late-config")).await.unwrap().is_none());
    wait_until_searchable(cache, seq).await;
    assert!(search(cache, "brand-new", UserInfo::system()).await.hits.is_empty());
    env.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_see_the_objects_that_each_member_allows() {
    let env = TestEnv::new().await;
    let mut follower = env.cache.follow(env.cache.seq());
    let (role, binding) = (
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"namespace": "ops", "name": "read"},
            "rules": [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list"]}]}),
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"namespace": "ops",
            "name": "ann-reads"}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "read"},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "ann"}]}),
    );
    env.members[0].create(role).await;
    env.members[0].create(binding).await;
    let mut seq = Seq(0);
    wait_for_change(&mut follower, "the binding", |change| {
        seq = change.seq;
        &*change.object.record.key.name == "ann-reads"
    })
    .await;
    wait_until_searchable(&env.cache, seq).await;
    let ann = UserInfo::new("ann", ["staff"]);
    let response = within("ann's permissions", async {
        loop {
            let response = search(&env.cache, "kind:configmap", ann.clone()).await;
            if !response.hits.is_empty() {
                return response;
            }
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert!(hit_names(&response).iter().all(|name| name.starts_with("member1/ops/")), "{:?}", hit_names(&response));
    let counted: u64 = response.facets[0].values.iter().map(|(_, count)| count).sum();
    assert_eq!((response.summary.unwrap().total, counted), (response.hits.len() as u64, response.hits.len() as u64));
    assert!(search(&env.cache, "app-3", ann).await.hits.is_empty());
    assert!(search(&env.cache, "kind:configmap", UserInfo::new("eve", ["staff"])).await.hits.is_empty());
    env.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broken_member_affects_only_itself_and_a_restart_resumes() {
    let mut env = TestEnv::new().await;
    let before = env.list(ListQuery::new(name("member2"), config_maps())).await;
    let broken = env.members.remove(1);
    let mut version = env.cache.states_version();
    broken.shut_down().await;
    let cut_off = CollectionKey::new(name("member2"), config_maps());
    within("the stale state", version.wait_for(|_| env.cache.state(&cut_off).is_some_and(|state| !state.is_fresh())))
        .await
        .unwrap();
    assert_eq!(env.list(ListQuery::new(name("member2"), config_maps())).await, before, "its records are kept");
    let response = search(&env.cache, "kind:configmap runbook", UserInfo::system()).await;
    assert_eq!(hit_names(&response).len(), 2);
    assert_eq!(response.skipped.iter().map(|skipped| skipped.cluster.as_str()).collect::<Vec<_>>(), ["member2"]);
    assert!(
        !response.skipped[0].has_missing_objects && response.skipped[0].age_seconds.is_some(),
        "{:?}",
        response.skipped
    );
    assert_eq!(env.cache.check_ready(), Ok(()), "a failing member does not make the cache unready");

    // Changes while the cache is stopped are received from the stored position, without another list.
    env.cache.stop().await;
    env.members[0].create(config_map("ops", "meanwhile", "missed")).await;
    let mut options = CacheOptions::new(env.directory.path());
    options.text_commit_interval = Duration::from_millis(50);
    env.cache = GlobalCache::open(env.fleet.clone(), options).await.unwrap();
    let start = Seq(0).max(env.cache.seq());
    if env.cache.get(&key("member1", "ops", "meanwhile")).await.unwrap().is_none() {
        let mut follower = env.cache.follow(start);
        wait_for_change(&mut follower, "the missed object", |change| &*change.object.record.key.name == "meanwhile")
            .await;
    }
    assert_eq!(env.list(ListQuery::new(name("member2"), config_maps())).await, before);
    assert_eq!(env.cache.metrics().lists.get(), 0, "everything resumed");

    // The records of a cluster that leaves are deleted.
    let mut follower = env.cache.follow(env.cache.seq());
    let cluster =
        json!({"apiVersion": "cluster.karmada.io/v1alpha1", "kind": "Cluster", "metadata": {"name": "member2"}});
    let clusters = api(&env.control_plane.server.admin(), &cluster);
    clusters.delete("member2", &DeleteParams::default()).await.unwrap();
    wait_for_change(&mut follower, "the deletion of member2's records", |change| {
        change.kind == ChangeKind::Deleted && change.object.record.key.cluster().as_str() == "member2"
    })
    .await;
    env.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kinds_are_collected_while_their_definitions_exist() {
    let env = TestEnv::new().await;
    let (member, cache) = (&env.members[0], &env.cache);
    let definition = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.example.com"},
        "spec": {"group": "example.com", "scope": "Namespaced",
            "names": {"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"},
            "versions": [{"name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}]}});
    let key = CollectionKey::new(name("member1"), Gvr::new("example.com", "v1", "widgets"));
    assert!(cache.state(&key).is_none());
    member.create(definition.clone()).await;
    within("the list of a new kind", cache.wait_until_complete(&key)).await;
    let mut follower = cache.follow(cache.seq());
    member
        .create(
            json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"namespace": "shop", "name": "one"}}),
        )
        .await;
    wait_for_change(&mut follower, "an object of the new kind", |change| change.object.record.key.collection == key)
        .await;
    let (collectors, mut version) = (cache.metrics().collectors.get(), cache.states_version());

    let definitions = api(&member.server.admin(), &definition);
    definitions.delete("widgets.example.com", &DeleteParams::default()).await.unwrap();
    wait_for_change(&mut follower, "the deletion of its records", |change| {
        change.object.record.key.collection == key && change.kind == ChangeKind::Deleted
    })
    .await;
    within("the end of its collection", version.wait_for(|_| cache.state(&key).is_none())).await.unwrap();
    assert_eq!(cache.metrics().collectors.get(), collectors - 1);
    assert!(cache.served_resources(&name("member1")).unwrap().get(&key.resource).is_none());
    env.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn joining_registers_a_member_that_then_works() {
    let control_plane = start("control-plane").await;
    control_plane.create(cluster_definition()).await;
    let member = start("member1").await;
    // Simulates the token controller.
    let secrets: Api<k8s_openapi::api::core::v1::Secret> = Api::namespaced(member.server.admin(), "karmada-cluster");
    let tokens = tokio::spawn(async move {
        for name in ["karmada-member1", "karmada-impersonator"] {
            let patch = kube::api::Patch::Merge(json!({"stringData": {"token": TOKEN}}));
            while secrets.patch(name, &Default::default(), &patch).await.is_err() {
                tokio::task::yield_now().await;
            }
        }
    });
    let client = control_plane.server.admin();
    let options = JoinOptions::new(name("member1"));
    let joined = within("joining", async {
        loop {
            // The CRD of Cluster may not be served yet.
            match join(&client, &member.config, &options).await {
                Err(error) if error.is_not_found() => tokio::task::yield_now().await,
                other => return other.unwrap(),
            }
        }
    })
    .await;
    tokens.await.unwrap();
    assert!(joined.is_new && !joined.id.is_empty());
    let second_join = join(&client, &member.config, &options).await.unwrap_err();
    assert_eq!(second_join.to_string(), "cluster member1 is already registered");
    let other_join = join(&client, &member.config, &JoinOptions::new(name("other"))).await.unwrap_err();
    assert!(other_join.to_string().ends_with("is already registered as member1"), "{other_join}");

    let fleet = Fleet::start(client, FleetOptions::on_loopback()).await.unwrap();
    let mut changes = fleet.changes();
    let member1 = within("the connection", async {
        loop {
            let change = changes.next().await.unwrap();
            if change.member().connection().is_ok() && change.member().impersonator_token().is_ok() {
                return Arc::clone(change.member());
            }
        }
    })
    .await;
    assert!(member1.probe().await.is_healthy);
    assert!(member1.api_resources().await.unwrap().get(&config_maps()).is_some());
    assert_eq!(member1.spec().id, joined.id);
    fleet.stop().await;
    member.shut_down().await;
    control_plane.shut_down().await;
}

/// An export shows the snapshot at its start, however long it takes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_export_shows_one_snapshot() {
    const ROWS: usize = 700;
    let env = TestEnv::new().await;
    let member = &env.members[0];
    let row = |nth: usize, text: &str| config_map("ops", &format!("row-{nth:03}"), text);
    let rows = api(&member.server.admin(), &row(0, ""));
    let mut follower = env.cache.follow(env.cache.seq());
    for nth in 0..ROWS {
        member.create(row(nth, "before")).await;
    }
    let is_row = |change: &Change, nth: usize| *change.object.record.key.name == *format!("row-{nth:03}");
    wait_for_change(&mut follower, "the last row", |change| is_row(change, ROWS - 1)).await;
    wait_until_searchable(&env.cache, env.cache.seq()).await;

    let mut request = SearchRequest::new("kind:configmap row- sort:name", UserInfo::system());
    request.include_manifests = true;
    let rows_of = |hits: Vec<Hit>| -> Vec<(String, String)> {
        let row = |hit: &Hit| {
            let object: Value = hit.object.parse().unwrap();
            (hit.object.record.key.name.to_string(), object["data"]["text"].as_str().unwrap().to_owned())
        };
        hits.iter().map(row).collect()
    };
    let mut export = Box::pin(env.cache.searcher().export(request.clone()).await.unwrap());
    let mut all = rows_of(within("the first rows", export.try_next()).await.unwrap().unwrap());
    assert!(all.len() < ROWS, "not everything at once");
    // Delete, change and add objects that are exported later.
    for nth in (ROWS - 60)..ROWS {
        match nth % 2 {
            0 => drop(rows.delete(&format!("row-{nth:03}"), &DeleteParams::default()).await.unwrap()),
            _ => {
                let patch = kube::api::Patch::Merge(json!({"data": {"text": "after"}}));
                rows.patch(&format!("row-{nth:03}"), &Default::default(), &patch).await.unwrap();
            }
        }
    }
    member.create(row(ROWS, "after")).await;
    wait_for_change(&mut follower, "the added row", |change| is_row(change, ROWS)).await;
    wait_until_searchable(&env.cache, env.cache.seq()).await;
    while let Some(hits) = within("more rows", export.try_next()).await.unwrap() {
        all.extend(rows_of(hits));
    }
    let expected: Vec<_> = (0..ROWS).map(|nth| (format!("row-{nth:03}"), "before".to_owned())).collect();
    assert_eq!(all, expected);

    // Another export shows another snapshot and respects the limit.
    request.query.push_str(" limit:3 name:row-69*");
    let hits: Vec<Vec<Hit>> = env.cache.searcher().export(request).await.unwrap().try_collect().await.unwrap();
    let limited_rows: Vec<_> = hits.into_iter().flat_map(rows_of).collect();
    assert_eq!(limited_rows, ["row-691", "row-693", "row-695"].map(|name| (name.to_owned(), "after".to_owned())));
    env.stop().await;
}
