//! Stored objects are migrated to the kinds of this version, even if the migration is interrupted after any of its writes.

#![expect(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crowsnest_api::constants::annotation::{MIGRATED_CREATED, MIGRATED_UID, MIGRATION_UNVERIFIED, READS_STORED_KINDS};
use crowsnest_api::names::{LEASES, NAMESPACE_KARMADA_SYSTEM};
use crowsnest_api::storage::STORED_KINDS;
use crowsnest_install::{apply_all, stored_kind_migration};
use crowsnest_kube_apiserver::{ApiServer, Config, Data};
use http::{Method, Request, header};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::client::Body;
use serde_json::{Value, json};

const GROUP: &str = "/apis/storage.crowsnest.io/v1alpha1";
/// The policy that rejects writes of the original objects after they were copied.
const POLICY: &str = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/moved.storage.crowsnest.io";

/// CustomResourceDefinitions with their earlier names.
fn earlier_definitions() -> Vec<Value> {
    let rename = |text: String, kind: &&'static crowsnest_api::storage::StoredKind| {
        let singular = |kind: &str| format!("\"{}\"", kind.to_lowercase());
        let text = text.replace(&singular(kind.stored_kind), &singular(kind.kind));
        text.replace(kind.stored_plural, kind.plural).replace(kind.stored_kind, kind.kind)
    };
    let text = STORED_KINDS.iter().fold(json!(stored_kind_migration::definitions()).to_string(), rename);
    serde_json::from_str(&text).unwrap()
}

async fn send(client: &kube::Client, method: Method, path: &str, body: &Value) -> Result<Value, kube::Error> {
    let kind = if method == Method::PATCH { "application/merge-patch+json" } else { "application/json" };
    let request = Request::builder().method(method).uri(path).header(header::CONTENT_TYPE, kind);
    client.request(request.body(serde_json::to_vec(body).unwrap()).unwrap()).await
}

async fn get(client: &kube::Client, path: &str) -> Option<Value> {
    match client.request(Request::get(path).body(Vec::new()).unwrap()).await {
        Ok(found) => Some(found),
        Err(kube::Error::Api(status)) if status.code == 404 => None,
        Err(error) => panic!("{path}: {error}"),
    }
}

/// A client that fails after this number of writes, as if its process were stopped.
fn client_with_write_limit(client: &kube::Client, writes: usize) -> kube::Client {
    let (client, remaining) = (client.clone(), Arc::new(AtomicUsize::new(writes)));
    let service = tower::service_fn(move |request: Request<Body>| {
        let (client, remaining) = (client.clone(), remaining.clone());
        async move {
            let take_write =
                || remaining.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |count| count.checked_sub(1));
            if request.method() != Method::GET && take_write().is_err() {
                return Err(std::io::Error::other("stopped"));
            }
            client.send(request).await.map_err(std::io::Error::other)
        }
    });
    kube::Client::new(service, "default")
}

/// A control plane with objects of an earlier version, and these objects.
async fn start_earlier_version() -> (ApiServer, Vec<(String, Value)>) {
    let server = ApiServer::start(Config::new("test", Data::Memory)).await.unwrap();
    let client = server.admin();
    apply_all(&client, &earlier_definitions()).await.unwrap();
    let object = |kind: &str, name: &str, spec: Value| {
        json!({"apiVersion": "storage.crowsnest.io/v1alpha1", "kind": kind,
            "metadata": {"name": name, "labels": {"tier": "gold"}}, "spec": spec})
    };
    let with_finalizer = |mut object: Value| {
        object["metadata"]["finalizers"] = json!(["karmada.io/cluster-controller"]);
        object
    };
    let search = json!({"title": "t", "query": "kind:pod", "shared": true, "owner": "o", "syntax": "1"});
    let objects = [
        ("clusters", with_finalizer(object("Cluster", "m1", json!({"syncMode": "Push", "region": "eu"})))),
        ("clusters", with_finalizer(object("Cluster", "leaving", json!({"syncMode": "Pull"})))),
        ("resourceregistries", object("ResourceRegistry", "r", json!({"targetCluster": {}}))),
        ("savedsearches", object("SavedSearch", "s", search)),
    ];
    let mut stored = Vec::new();
    for (plural, object) in objects {
        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
        let path = format!("{GROUP}/{plural}/{name}");
        let mut created =
            send(&client, Method::POST, &format!("{GROUP}/{plural}?fieldManager=argo"), &object).await.unwrap();
        if plural == "clusters" {
            created["status"] = json!({"kubernetesVersion": "v1.36.0"});
            created = send(&client, Method::PUT, &format!("{path}/status"), &created).await.unwrap();
        }
        if name == "leaving" {
            created = send(&client, Method::DELETE, &path, &json!({})).await.unwrap();
        }
        stored.push((path, created));
    }
    (server, stored)
}

/// Path of an object in its new kind.
fn new_path(path: &str) -> String {
    let kinds = STORED_KINDS.iter().map(|kind| (format!("/{}/", kind.plural), format!("/{}/", kind.stored_plural)));
    kinds.fold(path.to_owned(), |path, (old, new)| path.replace(&old, &new))
}

/// Asserts that the copies of all objects are equal to the originals and have their UIDs.
async fn assert_all_migrated(client: &kube::Client, stored: &[(String, Value)]) {
    for (path, old) in stored {
        let new = get(client, &new_path(path)).await.unwrap_or_else(|| panic!("{path} is lost"));
        let annotations = &new["metadata"]["annotations"];
        assert_eq!(annotations[MIGRATED_UID], old["metadata"]["uid"], "{new}");
        assert_eq!(annotations[MIGRATED_CREATED], old["metadata"]["creationTimestamp"], "{new}");
        assert_eq!(annotations.get(MIGRATION_UNVERIFIED), None, "{new}");
        for field in ["/spec", "/status", "/metadata/labels", "/metadata/finalizers"] {
            assert_eq!(new.pointer(field), old.pointer(field), "{field}: {new}");
        }
        let is_terminating = |object: &Value| object["metadata"]["deletionTimestamp"].is_string();
        assert_eq!(is_terminating(&new), is_terminating(old), "{new}");
        let managers = new["metadata"]["managedFields"].as_array().unwrap();
        assert!(managers.iter().any(|entry| entry["manager"] == "argo"), "{new}");
    }
}

#[tokio::test]
async fn interrupted_migrations_are_resumed() {
    let mut interruptions = 0;
    for writes in 0.. {
        let (server, stored) = start_earlier_version().await;
        let client = server.admin();
        let limited_client = client_with_write_limit(&client, writes);
        let copied = stored_kind_migration::copy(&limited_client, &mut Vec::new()).await;
        let removed = match copied {
            Ok(()) => stored_kind_migration::remove(&limited_client, &mut Vec::new()).await,
            Err(error) => Err(error),
        };
        if let Err(error) = &removed {
            assert!(format!("{error:#}").contains("stopped"), "{error:#}");
            interruptions += 1;
        }
        stored_kind_migration::copy(&client, &mut Vec::new()).await.unwrap();
        stored_kind_migration::remove(&client, &mut Vec::new()).await.unwrap();
        assert_all_migrated(&client, &stored).await;
        assert!(stored_kind_migration::earlier_definition_names(&client).await.unwrap().is_empty());
        assert_eq!(get(&client, POLICY).await, None);
        // A second run changes nothing.
        let mut report = Vec::new();
        stored_kind_migration::copy(&client, &mut report).await.unwrap();
        stored_kind_migration::remove(&client, &mut report).await.unwrap();
        assert_eq!(String::from_utf8(report).unwrap(), "");
        server.stop().await.unwrap();
        if removed.is_ok() {
            break;
        }
    }
    assert!(interruptions > 20, "{interruptions}");
}

#[tokio::test]
async fn original_objects_are_read_only_until_they_are_removed() {
    let (server, stored) = start_earlier_version().await;
    let client = server.admin();
    assert!(stored_kind_migration::remove(&client, &mut Vec::new()).await.is_err(), "nothing was copied");
    stored_kind_migration::copy(&client, &mut Vec::new()).await.unwrap();
    let change = json!({"metadata": {"labels": {"tier": "silver"}}});
    for (path, _) in &stored {
        for (method, body) in [(Method::PATCH, &change), (Method::DELETE, &json!({}))] {
            let refused = send(&client, method, path, body).await.unwrap_err();
            assert!(refused.to_string().contains("are read-only since they were migrated"), "{path}: {refused}");
        }
        send(&client, Method::PATCH, &new_path(path), &change).await.unwrap();
    }
    // Changes and deletions made under the new name are kept.
    send(&client, Method::DELETE, &format!("{GROUP}/storedsearches/s"), &json!({})).await.unwrap();
    stored_kind_migration::copy(&client, &mut Vec::new()).await.unwrap();
    let changed = get(&client, &format!("{GROUP}/storedclusters/m1")).await.unwrap();
    assert_eq!(changed["metadata"]["labels"]["tier"], "silver");
    assert_eq!(get(&client, &format!("{GROUP}/storedsearches/s")).await, None);
    // No Lease of the controllers is held, so another version may still read the old objects.
    let mut report = Vec::new();
    stored_kind_migration::remove_unused(&client, &mut report).await.unwrap();
    assert!(String::from_utf8(report).unwrap().contains("run \"crowsnest install\" again"));
    assert!(get(&client, &stored[0].0).await.is_some());
    // All Leases are held by this version, so nothing reads them.
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE_KARMADA_SYSTEM}});
    apply_all(&client, &[namespace]).await.unwrap();
    for name in LEASES {
        let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {"name": name, "annotations": {READS_STORED_KINDS: "new"}},
            "spec": {"holderIdentity": "new", "leaseDurationSeconds": 3600, "renewTime": MicroTime(Timestamp::now())}});
        let path = format!("/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE_KARMADA_SYSTEM}/leases");
        send(&client, Method::POST, &path, &lease).await.unwrap();
    }
    stored_kind_migration::remove_unused(&client, &mut Vec::new()).await.unwrap();
    assert_eq!(get(&client, &stored[0].0).await, None);
    assert!(stored_kind_migration::earlier_definition_names(&client).await.unwrap().is_empty());
    assert_eq!(get(&client, POLICY).await, None);
    server.stop().await.unwrap();
}

#[tokio::test]
async fn uninstalling_keeps_objects_that_were_not_copied() {
    let (server, stored) = start_earlier_version().await;
    let client = server.admin();
    let earlier_kinds = STORED_KINDS.map(|kind| (format!("{}.storage.crowsnest.io", kind.plural), 0));
    // Before the migration, all objects are kept.
    let counts = [2, 1, 1];
    let kept: Vec<_> = earlier_kinds.iter().zip(counts).map(|((name, _), count)| (name.clone(), count)).collect();
    let found = stored_kind_migration::read_leftovers(&client, false).await.unwrap();
    assert_eq!((names(&found), &*found.kept), (vec![], &*kept));
    // A dry run assumes that all Clusters were removed.
    let found = stored_kind_migration::read_leftovers(&client, true).await.unwrap();
    assert_eq!((names(&found), &*found.kept), (vec!["clusters.storage.crowsnest.io".to_owned()], &kept[1..]));
    // After it, earlier definitions are removed with their objects, and definitions of this version only without objects.
    stored_kind_migration::copy(&client, &mut Vec::new()).await.unwrap();
    send(&client, Method::DELETE, &format!("{GROUP}/storedsearches/s"), &json!({})).await.unwrap();
    let found = stored_kind_migration::read_leftovers(&client, false).await.unwrap();
    let policy = "moved.storage.crowsnest.io".to_owned();
    let mut expected = earlier_kinds.map(|(name, _)| name).to_vec();
    expected.extend(["storedsearches.storage.crowsnest.io".to_owned(), policy.clone(), policy]);
    let kept = [("storedclusters", 2), ("storedresourceregistries", 1)];
    let kept = kept.map(|(plural, count)| (format!("{plural}.storage.crowsnest.io"), count));
    assert_eq!((names(&found), &*found.kept), (expected, &kept[..]));
    stored_kind_migration::release_copied_objects(&client).await.unwrap();
    for (path, _) in stored.iter().filter(|(path, _)| path.ends_with("/clusters/m1")) {
        let released = get(&client, path).await.unwrap();
        assert_eq!(released["metadata"].get("finalizers"), None, "{released}");
    }
    server.stop().await.unwrap();
}

fn names(leftovers: &stored_kind_migration::Leftovers) -> Vec<String> {
    leftovers.removable.iter().map(|object| object["metadata"]["name"].as_str().unwrap().to_owned()).collect()
}
