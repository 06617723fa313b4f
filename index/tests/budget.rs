//! Bytes of objects between the network and the store are limited, however slow the store is.

#![expect(clippy::unwrap_used, reason = "in a test a panic is the report")]

#[path = "support/liar.rs"]
#[expect(dead_code, reason = "each test uses its part")]
mod liar;
#[path = "support/members.rs"]
mod members;

use crowsnest_apimachinery::names::Gvr;
use crowsnest_index::{CollectionKey, Index, IndexOptions};
use crowsnest_members::{Fleet, FleetOptions};
use crowsnest_store::{Clusters, Interest, InterestReason, Namespaces};
use liar::{Ask, Liar, Reply, Script, Truth, status};
use members::{config_maps, control_plane, name, within};
use serde_json::{Value, json};
use sqlx::Connection;

const OBJECT: usize = 20 << 10;
const OF_CLUSTER: u64 = 256 << 10;
const OF_ALL: u64 = 512 << 10;

fn large(nth: usize) -> Value {
    json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"namespace": "shop", "name": format!("large-{nth:03}"),
        "uid": nth.to_string(), "resourceVersion": "5"}, "data": {"text": "x".repeat(OBJECT)}})
}

async fn member(cluster: &str, script: Script) -> Liar {
    let mut objects: Vec<Value> = (0..60).map(large).collect();
    // Larger than the limit.
    objects[30]["data"]["text"] = "y".repeat(600 << 10).into();
    Liar::start(cluster, Truth { version: 10, objects }, script).await
}

const PAGES: Script = |ask: &Ask| ask.initial.then(|| Reply::Json(400, status(400, "no such parameter")));
const STREAM: Script = |_| None;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_blocked_store_limits_the_bytes_in_flight() {
    let control_plane = control_plane().await;
    let fleet = Fleet::start(control_plane.server.admin(), FleetOptions::on_loopback()).await.unwrap();
    let directory = tempfile::tempdir().unwrap();
    let mut options = IndexOptions::new(directory.path());
    (options.collect_everything, options.collect_control_plane) = (false, false);
    (options.bytes_in_flight, options.bytes_in_flight_per_cluster) = (OF_ALL as usize, OF_CLUSTER as usize);
    let index = Index::open(fleet.clone(), options).await.unwrap();
    let admin = control_plane.server.admin();
    let members = [member("paged", PAGES).await, member("streamed", STREAM).await];
    for member in &members {
        member.register(&admin).await;
        for resource in ["roles", "rolebindings", "clusterroles", "clusterrolebindings"] {
            let resource = Gvr::new("rbac.authorization.k8s.io", "v1", resource);
            let key = CollectionKey::new(name(&member.cluster), resource);
            within("what is always collected", index.complete(&key)).await;
        }
    }
    let want = |cluster: &str| {
        let (clusters, resource) = (Clusters::one(name(cluster)), config_maps());
        let (namespaces, why) = (Namespaces::All, InterestReason::Other("the test".to_owned()));
        index.interests().declare(Interest { clusters, resource, namespaces, why })
    };
    let in_flight = &index.metrics().bytes_in_flight;
    let reaches = async |bytes: u64| {
        while in_flight.get() < bytes {
            tokio::task::yield_now().await;
        }
    };

    let file = format!("sqlite://{}", directory.path().join("cache.sqlite").display());
    let mut blocker = sqlx::SqliteConnection::connect(&file).await.unwrap();
    sqlx::query("BEGIN IMMEDIATE").execute(&mut blocker).await.unwrap();
    let _paged = want("paged");
    within("all one cluster can have", reaches(OF_CLUSTER)).await;
    let _streamed = want("streamed");
    within("what is left for others", reaches(OF_CLUSTER + 1)).await;
    assert!(in_flight.peak() <= OF_ALL, "{} bytes are in flight", in_flight.peak());

    sqlx::query("ROLLBACK").execute(&mut blocker).await.unwrap();
    for cluster in ["paged", "streamed"] {
        let key = CollectionKey::new(name(cluster), config_maps());
        within("the whole list", index.complete(&key)).await;
        assert_eq!(index.keys(&key).await.unwrap().len(), 60, "{cluster}");
    }
    assert!(in_flight.peak() <= OF_ALL, "{} bytes were in flight", in_flight.peak());
    within("everything given back", async {
        while in_flight.get() > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    blocker.close().await.unwrap();
    index.stop().await;
    fleet.stop().await;
    control_plane.shut_down().await;
}
