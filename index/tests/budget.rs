//! Bytes of objects between the network and the store are limited, however slow the store is.

#![expect(clippy::unwrap_used, reason = "in a test a panic is the report")]

#[path = "support/members.rs"]
mod members;
#[path = "support/scripted_member.rs"]
#[expect(dead_code, reason = "each test uses its part")]
mod scripted_member;

use crowsnest_apimachinery::names::Gvr;
use crowsnest_index::{CacheOptions, CollectionKey, GlobalCache};
use crowsnest_members::{Fleet, FleetOptions};
use crowsnest_store::{Clusters, Interest, InterestReason, Namespaces};
use members::{config_maps, control_plane, name, within};
use scripted_member::{CollectorRequest, MemberState, Reply, Script, ScriptedMember, status};
use serde_json::{Value, json};
use sqlx::Connection;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

const OBJECT_BYTES: usize = 20 << 10;
const MAX_CLUSTER_BYTES: u64 = 256 << 10;
const MAX_TOTAL_BYTES: u64 = 512 << 10;

fn large(nth: usize) -> Value {
    json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"namespace": "shop", "name": format!("large-{nth:03}"),
        "uid": nth.to_string(), "resourceVersion": "5"}, "data": {"text": "x".repeat(OBJECT_BYTES)}})
}

async fn member(cluster: &str, script: Script) -> ScriptedMember {
    let mut objects: Vec<Value> = (0..60).map(large).collect();
    // Larger than the limit.
    objects[30]["data"]["text"] = "y".repeat(600 << 10).into();
    ScriptedMember::start(cluster, MemberState { version: 10, objects }, script).await
}

const PAGES: Script =
    |request: &CollectorRequest| request.initial.then(|| Reply::Json(400, status(400, "no such parameter")));
const STREAM: Script = |_| None;
const SILENT: Script = |request: &CollectorRequest| {
    PAGES(request).or_else(|| {
        SILENT_PAGES.fetch_add(1, Ordering::SeqCst);
        Some(Reply::NoResponse)
    })
};
/// Number of pages that were requested from the silent member.
static SILENT_PAGES: AtomicUsize = AtomicUsize::new(0);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_blocked_store_limits_the_bytes_in_flight() {
    let control_plane = control_plane().await;
    let fleet = Fleet::start(control_plane.server.admin(), FleetOptions::on_loopback()).await.unwrap();
    let directory = tempfile::tempdir().unwrap();
    let mut options = CacheOptions::new(directory.path());
    (options.collect_everything, options.collect_control_plane) = (false, false);
    (options.bytes_in_flight, options.bytes_in_flight_per_cluster) =
        (MAX_TOTAL_BYTES as usize, MAX_CLUSTER_BYTES as usize);
    let cache = GlobalCache::open(fleet.clone(), options).await.unwrap();
    let admin = control_plane.server.admin();
    let members = [member("paged", PAGES).await, member("streamed", STREAM).await];
    for member in &members {
        member.register(&admin).await;
        for resource in ["roles", "rolebindings", "clusterroles", "clusterrolebindings"] {
            let resource = Gvr::new("rbac.authorization.k8s.io", "v1", resource);
            let key = CollectionKey::new(name(&member.cluster), resource);
            within("the collections for authorization", cache.wait_until_complete(&key)).await;
        }
    }
    let declare_interest = |cluster: &str| {
        let (clusters, resource) = (Clusters::one(name(cluster)), config_maps());
        let (namespaces, reason) = (Namespaces::All, InterestReason::Other("the test".to_owned()));
        cache.interests().declare(Interest { clusters, resource, namespaces, reason })
    };
    let in_flight = &cache.metrics().bytes_in_flight;
    let wait_for_bytes = async |bytes: u64| {
        while in_flight.get() < bytes {
            tokio::task::yield_now().await;
        }
    };

    let file = format!("sqlite://{}", directory.path().join("cache.sqlite").display());
    let mut blocker = sqlx::SqliteConnection::connect(&file).await.unwrap();
    sqlx::query("BEGIN IMMEDIATE").execute(&mut blocker).await.unwrap();
    let _paged = declare_interest("paged");
    within("the limit of one cluster", wait_for_bytes(MAX_CLUSTER_BYTES)).await;
    let _streamed = declare_interest("streamed");
    within("bytes of the other cluster", wait_for_bytes(MAX_CLUSTER_BYTES + 1)).await;
    assert!(in_flight.peak() <= MAX_TOTAL_BYTES, "{} bytes are in flight", in_flight.peak());

    sqlx::query("ROLLBACK").execute(&mut blocker).await.unwrap();
    for cluster in ["paged", "streamed"] {
        let key = CollectionKey::new(name(cluster), config_maps());
        within("the whole list", cache.wait_until_complete(&key)).await;
        assert_eq!(cache.keys(&key).await.unwrap().len(), 60, "{cluster}");
    }
    assert!(in_flight.peak() <= MAX_TOTAL_BYTES, "{} bytes were in flight", in_flight.peak());
    within("the release of all bytes", async {
        while in_flight.get() > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    blocker.close().await.unwrap();
    cache.stop().await;
    fleet.stop().await;
    control_plane.shut_down().await;
}

/// The bytes of a page are available to other members while a member does not respond to the request of the page.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_member_holds_no_bytes() {
    let control_plane = control_plane().await;
    let fleet = Fleet::start(control_plane.server.admin(), FleetOptions::on_loopback()).await.unwrap();
    let directory = tempfile::tempdir().unwrap();
    let mut options = CacheOptions::new(directory.path());
    (options.collect_everything, options.collect_control_plane) = (false, false);
    // Longer than the test: the request does not end.
    options.timeouts.response = Duration::from_secs(3600);
    let cache = GlobalCache::open(fleet.clone(), options).await.unwrap();
    let silent = member("silent", SILENT).await;
    silent.register(&control_plane.server.admin()).await;
    let (clusters, resource) = (Clusters::one(name("silent")), config_maps());
    let (namespaces, reason) = (Namespaces::All, InterestReason::Other("the test".to_owned()));
    let _interest = cache.interests().declare(Interest { clusters, resource, namespaces, reason });

    // The streamed list is refused.
    let wait_until = async |condition: &dyn Fn() -> bool| {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    within("the request of a page", wait_until(&|| SILENT_PAGES.load(Ordering::SeqCst) == 1)).await;
    within("the release of its bytes", wait_until(&|| cache.metrics().bytes_in_flight.get() == 0)).await;
    assert_eq!(SILENT_PAGES.load(Ordering::SeqCst), 1, "the request ended and was repeated");
    cache.stop().await;
    fleet.stop().await;
    control_plane.shut_down().await;
}
