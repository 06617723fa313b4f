//! Members that are slow, broken or inconsistent affect only their own records: these are kept with
//! the reason, while those of other members stay complete and current, although only one list runs at a time here.

#![expect(clippy::unwrap_used, reason = "in a test a panic is the report")]

#[path = "support/members.rs"]
mod members;
#[path = "support/scripted_member.rs"]
mod scripted_member;

use crowsnest_apimachinery::names::Gvr;
use crowsnest_component_base::retry::Backoff;
use crowsnest_index::{CacheOptions, Change, CollectionKey, CollectionState, GlobalCache, ListQuery, MemberTimeouts};
use crowsnest_members::{Fleet, FleetOptions};
use crowsnest_store::{Clusters, Interest, InterestGuard, InterestReason, Namespaces};
use futures::TryStreamExt;
use futures::future::join_all;
use members::{Member, config_map, config_maps, control_plane, name, namespace, register, start, within};
use scripted_member::{
    CollectorRequest, MemberState, Reply, Script, ScriptedMember, StreamEnd, bookmark, event, gone, list, object,
    status,
};
use serde_json::json;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

const TIMEOUTS: MemberTimeouts = MemberTimeouts {
    response: Duration::from_secs(3),
    page: Duration::from_secs(2),
    stream_idle: Duration::from_secs(1),
    stream_progress: Duration::from_secs(1),
    list_permit: Duration::from_millis(50),
    watch: Duration::from_secs(1),
    suspect_watch: Duration::from_millis(500),
    backoff: Backoff::new(Duration::from_millis(50), Duration::from_millis(200)),
    retry_after: Duration::from_millis(500),
};
const MAX_OBJECT_BYTES: usize = 32 << 10;
/// Objects of a member before it misbehaves.
const BEFORE: [(&str, u64); 3] = [("a", 3), ("b", 4), ("c", 5)];

/// State of a collection while its member misbehaves.
enum ExpectedState {
    Stale(&'static str),
    /// The collection is current at this version.
    Fresh(&'static str),
}

use ExpectedState::{Fresh, Stale};

struct Case {
    name: &'static str,
    script: Script,
    expected: ExpectedState,
    /// Cached objects of the member meanwhile.
    cached_objects: &'static [(&'static str, u64)],
}

const fn case(name: &'static str, expected: ExpectedState, script: Script) -> Case {
    Case { name, script, expected, cached_objects: &BEFORE }
}

/// Ends the watch, so that the member is listed again.
fn reply_to_list(request: &CollectorRequest, script: fn(&CollectorRequest) -> Reply) -> Option<Reply> {
    Some(if request.watch { gone() } else { script(request) })
}

fn reply_to_watch(request: &CollectorRequest, script: fn(&CollectorRequest) -> Reply) -> Option<Reply> {
    request.watch.then(|| script(request))
}

fn cases_after_complete_list() -> Vec<Case> {
    vec![
        case("same-token", Stale("does not end"), |request| {
            reply_to_list(request, |_| list("ConfigMapList", 11, "again", &[object("a", 3)]))
        }),
        case("same-page", Stale("does not end"), |request| {
            reply_to_list(request, |request| list("ConfigMapList", 11, &request.nth.to_string(), &[object("a", 3)]))
        }),
        case("empty-pages", Stale("does not end"), |request| {
            reply_to_list(request, |request| list("ConfigMapList", 11, &request.nth.to_string(), &[]))
        }),
        case("half-a-page", Stale("did not send a page of"), |request| {
            reply_to_list(request, |_| Reply::Lines(vec!["{\"kind\":\"ConfigMapList\",".to_owned()], StreamEnd::Hold))
        }),
        case("no-answer", Stale("no response within"), |request| reply_to_list(request, |_| Reply::NoResponse)),
        case("huge-page", Stale("larger than"), |request| {
            reply_to_list(request, |_| Reply::Endless("x".repeat(64 << 10)))
        }),
        case("gone-page", Stale("longer than the server keeps"), |request| {
            reply_to_list(request, |request| match request.token.as_str() {
                "" => list("ConfigMapList", 11, "next", &[object("a", 3)]),
                _ => gone(),
            })
        }),
        case("web-page", Stale("text/html"), |_| Some(Reply::Text("text/html", "<h1>Sign in</h1>".to_owned()))),
        case("no-list", Stale("an invalid response"), |request| {
            reply_to_list(request, |_| Reply::Json(200, json!({})))
        }),
        case("other-list", Stale("none of the 2 listed objects"), |request| {
            reply_to_list(request, |_| {
                let item = |name: &str| json!({"metadata": {"namespace": "shop", "name": name}});
                list("SecretList", 11, "", &[item("a"), item("x")])
            })
        }),
        case("busy", Stale("429: too busy"), |_| Some(Reply::RetryLater(429))),
        case("failing", Stale("500: no"), |_| Some(Reply::Json(500, status(500, "no")))),
        case("huge-line", Stale("larger than"), |request| {
            reply_to_watch(request, |_| Reply::Endless("x".repeat(8 << 10)))
        }),
        case("garbage", Stale("an invalid response"), |request| {
            reply_to_watch(request, |_| Reply::Lines(vec!["{\"type\":\n".to_owned()], StreamEnd::Hold))
        }),
        case("expired", Stale("no longer available"), |request| {
            reply_to_watch(request, |_| Reply::Lines(vec![event("ERROR", &status(410, "too old"))], StreamEnd::Hold))
        }),
        case("cut-line", Stale("was interrupted"), |request| {
            reply_to_watch(request, |_| Reply::Lines(vec!["{\"type\":\"DELE".to_owned()], StreamEnd::Cut))
        }),
        case("silent", Stale("did not end in time"), |request| {
            reply_to_watch(request, |_| Reply::Lines(Vec::new(), StreamEnd::Hold))
        }),
        case("brief", Stale("ended immediately"), |request| {
            reply_to_watch(request, |_| Reply::Lines(Vec::new(), StreamEnd::Close))
        }),
        case("brief-bookmark", Stale("ended immediately"), |request| {
            reply_to_watch(request, |_| Reply::Lines(vec![bookmark(10, false)], StreamEnd::Close))
        }),
        case("older-events", Stale("after 10; it is an outdated"), |request| {
            reply_to_watch(request, |_| {
                let lines = [("ADDED", object("z", 2)), ("MODIFIED", object("a", 2)), ("DELETED", object("b", 1))];
                Reply::Lines(lines.iter().map(|(kind, object)| event(kind, object)).collect(), StreamEnd::Hold)
            })
        }),
        case("mixed-pages", Fresh("11"), |request| {
            match (request.watch, request.from.as_str(), request.token.as_str()) {
                (true, "11", _) => Some(Reply::Lines(vec![bookmark(11, false)], StreamEnd::Hold)),
                (true, ..) => Some(gone()),
                (false, _, "") => Some(list("ConfigMapList", 11, "next", &[object("a", 3), object("b", 4)])),
                (false, ..) => Some(list("ConfigMapList", 12, "", &[object("c", 5)])),
            }
        }),
        case("behind", Fresh("8"), |request| match (request.watch, request.from.as_str()) {
            (true, "10") => Some(Reply::Json(504, status(504, "Too large resource version: 10, current: 8"))),
            (true, "8") => Some(Reply::Lines(vec![bookmark(8, false)], StreamEnd::Hold)),
            (true, _) => Some(gone()),
            (false, _) => Some(list("ConfigMapList", 8, "", &BEFORE.map(|(name, version)| object(name, version)))),
        }),
        case("older-bookmark", Stale("resourceVersion 7 after 10"), |request| {
            reply_to_watch(request, |_| Reply::Lines(vec![bookmark(7, false)], StreamEnd::Hold))
        }),
        case("bad-items", Fresh("11"), |request| match (request.watch, request.from.as_str()) {
            (true, "10") => Some(gone()),
            (true, _) => Some(Reply::Lines(vec![bookmark(11, false)], StreamEnd::Hold)),
            (false, _) => {
                let unlabelled = json!({"metadata": {"namespace": "shop", "name": "b", "labels": 7}});
                let other = json!({"kind": "Secret", "metadata": {"namespace": "shop", "name": "d"}});
                Some(list("ConfigMapList", 11, "", &[object("a", 3), json!(7), unlabelled, json!({}), other]))
            }
        }),
        Case {
            cached_objects: &[("a", 3), ("b", 4), ("c", 5), ("d", 11)],
            ..case("bad-events", Fresh("14"), |request| {
                reply_to_watch(request, |request| {
                    let nameless = json!({"kind": "ConfigMap", "metadata": {"resourceVersion": "12"}});
                    let other = json!({"kind": "Secret", "metadata": {"name": "a", "resourceVersion": "13"}});
                    let lines = [
                        event("ADDED", &object("d", 11)),
                        event("ADDED", &nameless),
                        event("ADDED", &json!("what")),
                        event("MODIFIED", &other),
                        event("DELETED", &object("never-seen", 13)),
                        event("ADDED", &object("d", 11)),
                        "\n".to_owned(),
                        bookmark(14, false),
                    ];
                    let from = usize::from(request.from == "14") * 7;
                    Reply::Lines(lines[from..].to_vec(), StreamEnd::Hold)
                })
            })
        },
    ]
}

fn cases_from_start() -> Vec<Case> {
    vec![
        Case {
            cached_objects: &[("a", 3)],
            ..case("endless-start", Stale("does not end"), |request| {
                Some(match request.initial {
                    true => Reply::Endless(event("ADDED", &object("a", 3))),
                    false => Reply::Json(500, status(500, "no")),
                })
            })
        },
        Case {
            cached_objects: &[("a", 3)],
            ..case("short-start", Stale("ended early"), |request| {
                Some(match request.initial {
                    true => Reply::Lines(vec![event("ADDED", &object("a", 3))], StreamEnd::Close),
                    false => Reply::Json(500, status(500, "no")),
                })
            })
        },
        case("stalled-start", Fresh("10"), |request| {
            request.initial.then(|| Reply::Lines(vec![event("ADDED", &object("a", 3))], StreamEnd::Hold))
        }),
    ]
}

struct TestEnv {
    control_plane: Member,
    well_behaved: Member,
    fleet: Fleet,
    cache: GlobalCache,
    _interests: Vec<InterestGuard>,
    directory: tempfile::TempDir,
}

fn options(directory: &Path) -> CacheOptions {
    let mut options = CacheOptions::new(directory);
    (options.collect_everything, options.collect_control_plane) = (false, false);
    (options.concurrent_lists, options.concurrent_lists_per_cluster, options.page_size) = (1, 1, 2);
    (options.max_object_bytes, options.timeouts) = (MAX_OBJECT_BYTES, TIMEOUTS);
    options
}

fn collection(cluster: &str) -> CollectionKey {
    CollectionKey::new(name(cluster), config_maps())
}

impl TestEnv {
    async fn new() -> Self {
        let control_plane = control_plane().await;
        let well_behaved = start("honest").await;
        well_behaved.create(namespace("shop")).await;
        register(&control_plane.server.admin(), "honest", &well_behaved).await;
        let fleet = Fleet::start(control_plane.server.admin(), FleetOptions::on_loopback()).await.unwrap();
        let directory = tempfile::tempdir().unwrap();
        let cache = GlobalCache::open(fleet.clone(), options(directory.path())).await.unwrap();
        let mut env = Self { control_plane, well_behaved, fleet, cache, _interests: Vec::new(), directory };
        env.declare_interest(Clusters::All, config_maps());
        env
    }

    /// Simulates a crash: restarts the cache with a copy of its files.
    async fn crash(&mut self, meanwhile: impl FnOnce()) {
        let copy = tempfile::tempdir().unwrap();
        for entry in fs::read_dir(self.directory.path()).unwrap().map(Result::unwrap) {
            // Only the database: everything else is derived from it and may be incomplete.
            if entry.file_type().unwrap().is_file() {
                fs::copy(entry.path(), copy.path().join(entry.file_name())).unwrap();
            }
        }
        self.cache.stop().await;
        meanwhile();
        let interests = self.cache.interests().clone();
        self.cache = GlobalCache::open_with(self.fleet.clone(), options(copy.path()), interests).await.unwrap();
        self.directory = copy;
    }

    fn declare_interest(&mut self, clusters: Clusters, resource: Gvr) {
        let (namespaces, reason) = (Namespaces::All, InterestReason::Other("the test".to_owned()));
        self._interests.push(self.cache.interests().declare(Interest { clusters, resource, namespaces, reason }));
    }

    async fn start_scripted_member(&self, cluster: &str, script: Script) -> ScriptedMember {
        let objects = BEFORE.map(|(name, version)| object(name, version)).to_vec();
        let member = ScriptedMember::start(cluster, MemberState { version: 10, objects }, script).await;
        member.register(&self.control_plane.server.admin()).await;
        member
    }

    /// Waits until the state of a cluster's ConfigMaps matches. `failure` describes a cluster that does not match in
    /// time.
    async fn wait_for_state(&self, cluster: &str, failure: &str, is_match: impl Fn(&CollectionState) -> bool) {
        let mut version = self.cache.states_version();
        let mut last = None;
        let wait = async {
            loop {
                version.borrow_and_update();
                last = self.cache.state(&collection(cluster));
                if last.as_ref().is_some_and(&is_match) {
                    return;
                }
                // Changes of positions alone do not wake the receiver.
                drop(tokio::time::timeout(Duration::from_millis(100), version.changed()).await);
            }
        };
        if tokio::time::timeout(Duration::from_secs(60), wait).await.is_err() {
            panic!("{cluster} {failure}: {last:?}");
        }
    }

    async fn wait_until_fresh(&self, cluster: &str, version: &str) {
        let fresh = |state: &CollectionState| state.is_fresh() && state.resource_version == version;
        self.wait_for_state(cluster, &format!("is not fresh at {version}"), fresh).await;
    }

    async fn wait_for_expected_state(&self, case: &Case) {
        match &case.expected {
            Fresh(version) => self.wait_until_fresh(case.name, version).await,
            Stale(text) => {
                let is_stale =
                    |state: &CollectionState| state.stale_reason.as_ref().is_some_and(|reason| reason.contains(text));
                self.wait_for_state(case.name, &format!("is not stale with {text:?}"), is_stale).await;
            }
        }
    }

    /// Names and versions of all cached objects.
    async fn cached_objects(&self, cluster: &str) -> Vec<(String, u64)> {
        let objects: Vec<_> =
            self.cache.list(ListQuery::new(name(cluster), config_maps())).try_collect().await.unwrap();
        let name_and_version = |object: &crowsnest_index::Object| {
            (object.record.key.name.to_string(), object.record.resource_version.parse().unwrap_or_default())
        };
        objects.iter().map(name_and_version).collect()
    }

    async fn assert_cached(&self, cluster: &str, expected: &[(&str, u64)]) {
        let expected: Vec<_> = expected.iter().map(|(name, version)| ((*name).to_owned(), *version)).collect();
        assert_eq!(self.cached_objects(cluster).await, expected, "{cluster}");
    }

    /// Checks that the well-behaved member is followed, and that new resources of it are listed.
    async fn assert_other_members_followed(&mut self) {
        for (resource, group) in [("secrets", ""), ("services", ""), ("deployments", "apps")] {
            let resource = Gvr::new(group, "v1", resource);
            self.declare_interest(Clusters::one(name("honest")), resource.clone());
            let key = CollectionKey::new(name("honest"), resource);
            within("a list of the well-behaved member", self.cache.wait_until_complete(&key)).await;
        }
        let mut follower = self.cache.follow(self.cache.seq());
        self.well_behaved.create(config_map("shop", "news", "hello")).await;
        within("a change of the well-behaved member", async {
            while !follower.next().await.unwrap().unwrap().iter().any(|change| {
                let key = &change.object.record.key;
                key.cluster().as_str() == "honest" && &*key.name == "news"
            }) {}
        })
        .await;
        let state = self.cache.state(&collection("honest")).unwrap();
        assert!(state.is_fresh(), "{state:?}");
        assert_eq!(self.cache.check_ready(), Ok(()));
    }

    async fn stop(self) {
        self.cache.stop().await;
        self.fleet.stop().await;
        self.well_behaved.shut_down().await;
        self.control_plane.shut_down().await;
    }
}

const CORRECT: Script = |_| None;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_misbehaving_member_affects_only_its_own_records() {
    let mut env = TestEnv::new().await;
    let (later, start) = (cases_after_complete_list(), cases_from_start());
    let mut members = Vec::new();
    for case in &later {
        members.push(env.start_scripted_member(case.name, CORRECT).await);
    }
    join_all(later.iter().map(|case| env.wait_until_fresh(case.name, "10"))).await;
    for case in &start {
        members.push(env.start_scripted_member(case.name, case.script).await);
    }
    for (member, case) in members.iter().zip(&later) {
        member.set_script(None, case.script);
    }
    let cases: Vec<&Case> = later.iter().chain(&start).collect();
    join_all(cases.iter().map(|case| env.wait_for_expected_state(case))).await;
    env.assert_other_members_followed().await;
    // The states are stable.
    join_all(cases.iter().map(|case| env.wait_for_expected_state(case))).await;
    for case in &cases {
        env.assert_cached(case.name, case.cached_objects).await;
    }
    let metrics = env.cache.metrics();
    assert!(metrics.objects_refused.get() > 0 && metrics.objects_outdated.get() > 0);

    // A member that behaves again is followed again.
    let current = [("a", 3), ("b", 20), ("e", 25)];
    for member in &members {
        let objects = current.map(|(name, version)| object(name, version)).to_vec();
        member.set_script(Some(MemberState { version: 30, objects }), CORRECT);
    }
    join_all(cases.iter().map(|case| env.wait_until_fresh(case.name, "30"))).await;
    for case in &cases {
        env.assert_cached(case.name, &current).await;
    }
    env.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_restored_from_a_backup_is_accepted_after_a_second_list() {
    let env = TestEnv::new().await;
    let member = env.start_scripted_member("restored", CORRECT).await;
    env.wait_until_fresh("restored", "10").await;
    // The rollback is not reported; it is detected by checking the version.
    member.set_script(Some(MemberState { version: 8, objects: vec![object("a", 2), object("b", 4)] }), CORRECT);
    env.wait_until_fresh("restored", "8").await;
    env.assert_cached("restored", &[("a", 2), ("b", 4)]).await;
    assert!(env.cache.metrics().watch_failures.get() >= 2, "its first list was rejected");

    // One older list may come from an outdated replica and is rejected.
    member.set_script(Some(MemberState { version: 12, objects: vec![object("a", 12), object("b", 4)] }), |request| {
        match request {
            CollectorRequest { watch: true, from, .. } if from == "8" => None,
            CollectorRequest { watch: false, nth: 1, .. } => Some(list("ConfigMapList", 5, "", &[object("a", 2)])),
            _ => None,
        }
    });
    env.wait_until_fresh("restored", "12").await;
    env.assert_cached("restored", &[("a", 12), ("b", 4)]).await;
    let removed = env.cache.deletions(crowsnest_index::Seq(env.cache.seq().0 + 1), 100).await.unwrap();
    assert!(removed.iter().all(|version| &*version.object.record.key.name != "b"), "{removed:?}");
    env.stop().await;
}

/// A watch opens before the member sends missed events or 410 Gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_collection_is_followed_again_after_missed_events_arrived() {
    let env = TestEnv::new().await;
    let missed: Script =
        |request| reply_to_watch(request, |_| Reply::Lines(vec![event("MODIFIED", &object("a", 20))], StreamEnd::Hold));
    let expired: Script = |request| {
        let line = event("ERROR", &status(410, "too old"));
        (request.watch && request.from == "10").then(|| Reply::Lines(vec![line], StreamEnd::Hold))
    };
    for (cluster, script, current) in [("missed-events", missed, None), ("expired-version", expired, Some(20))] {
        let member = env.start_scripted_member(cluster, CORRECT).await;
        env.wait_until_fresh(cluster, "10").await;
        member.set_script(None, |_| Some(Reply::Json(500, status(500, "no"))));
        let is_stale =
            |state: &CollectionState| state.stale_reason.as_ref().is_some_and(|reason| reason.contains("500: no"));
        env.wait_for_state(cluster, "does not fail", is_stale).await;
        member.set_script(current.map(|version| MemberState { version, objects: vec![object("a", 20)] }), script);
        env.wait_for_state(cluster, "is not fresh", CollectionState::is_fresh).await;
        let cached = env.cached_objects(cluster).await;
        assert!(cached.contains(&("a".to_owned(), 20)), "{cluster}: {cached:?}");
    }
    env.stop().await;
}

/// Positions of bookmarks are stored at intervals, and a crash loses the last ones: the member is then watched from
/// an older position and sends the events since, or 410 Gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_after_a_crash_resumes_from_an_older_position() {
    const CLUSTERS: [&str; 2] = ["remembers", "forgets"];
    let mut env = TestEnv::new().await;
    let mut members = Vec::new();
    for cluster in CLUSTERS {
        let member = env.start_scripted_member(cluster, CORRECT).await;
        env.wait_until_fresh(cluster, "10").await;
        member.set_script(None, |request| {
            reply_to_watch(request, |request| {
                let changes = || vec![event("MODIFIED", &object("a", 15)), event("DELETED", &object("b", 16))];
                match request.from.as_str() {
                    "10" => Reply::Lines(changes(), StreamEnd::Close),
                    _ => Reply::Lines(vec![bookmark(20, false)], StreamEnd::Hold),
                }
            })
        });
        env.wait_until_fresh(cluster, "20").await;
        members.push(member);
    }
    let seq = env.cache.seq();
    let meanwhile = || {
        // The member's list is empty, so a list would delete everything.
        members[0].set_script(Some(MemberState { version: 99, objects: Vec::new() }), |request| {
            let lines = match request.from.as_str() {
                "16" | "20" => vec![event("MODIFIED", &object("c", 25)), bookmark(30, false)],
                "30" => vec![bookmark(30, false)],
                _ => return None,
            };
            request.watch.then_some(Reply::Lines(lines, StreamEnd::Hold))
        });
        let objects = vec![object("a", 15), object("c", 25)];
        members[1].set_script(Some(MemberState { version: 30, objects }), CORRECT);
    };
    env.crash(meanwhile).await;
    for cluster in CLUSTERS {
        env.wait_until_fresh(cluster, "30").await;
        env.assert_cached(cluster, &[("a", 15), ("c", 25)]).await;
    }
    // No change is published twice; the control plane may still be creating its own roles.
    let published = env.cache.follow(seq).ready_now().unwrap();
    let name_of = |change: &Arc<Change>| {
        let key = &change.object.record.key;
        format!("{} {}", key.cluster(), key.name)
    };
    let published: BTreeSet<String> =
        published.iter().map(name_of).filter(|name| !name.starts_with("honest") && !name.starts_with('@')).collect();
    assert_eq!(published.iter().collect::<Vec<_>>(), ["forgets c", "remembers c"]);
    env.stop().await;
}
