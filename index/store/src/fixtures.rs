//! Objects for tests and benchmarks, created through ingest like collected objects.

use crate::ingest::{Draft, ExpectedType, IngestOptions, RawObject, read};
use crate::record::{CollectionKey, Object, Record, RecordKey, Seq};
use crowsnest_apimachinery::names::{ClusterName, Gvr};
use serde_json::Value;
use std::sync::Arc;

pub fn cluster(name: &str) -> ClusterName {
    ClusterName::parse(name).expect("a cluster name")
}

/// The resource of an object: its kind in lower case with `s`, which is the plural of all kinds used in tests.
pub fn resource_of(object: &Value) -> Gvr {
    let kind = object["kind"].as_str().unwrap_or("Pod");
    let api_version = object["apiVersion"].as_str().unwrap_or("v1");
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    Gvr::new(group, version, &format!("{}s", kind.to_lowercase()))
}

pub fn draft(object: &Value) -> Draft {
    draft_with_options(object, &IngestOptions::default())
}

fn draft_with_options(object: &Value, options: &IngestOptions) -> Draft {
    let text = object.to_string();
    let gvr = resource_of(object);
    let expected = ExpectedType { resource: &gvr, kind: "Pod" };
    read(RawObject::new(&text), expected, options).expect("an object")
}

/// The object as read from the store.
pub fn stored(cluster_name: &str, id: u64, object: &Value) -> Object {
    stored_with_options(cluster_name, id, object, &IngestOptions::default())
}

/// The object as read from a store with these ingest rules.
pub fn stored_with_options(cluster_name: &str, id: u64, object: &Value, options: &IngestOptions) -> Object {
    let draft = draft_with_options(object, options);
    let key = RecordKey {
        collection: CollectionKey::new(cluster(cluster_name), resource_of(object)),
        namespace: draft.namespace.as_str().into(),
        name: draft.name.as_str().into(),
    };
    let record = Record {
        id,
        key,
        kind: draft.kind.as_str().into(),
        uid: draft.uid,
        resource_version: draft.resource_version,
        generation: draft.generation,
        created: draft.created,
        deleting: draft.deleting,
        labels: draft.labels,
        header: draft.details.into(),
        redacted: draft.redacted,
        seq: Seq(id),
        changed_at: 1_790_000_000_000,
    };
    Object { record: Arc::new(record), body: draft.body }
}
