//! Objects from `data/` that several areas use.

use std::sync::Arc;

use anyhow::Result;
use crowsnest_apimachinery::names::{ClusterName, Gvr};
use crowsnest_apimachinery::unstructured;
use crowsnest_store::ingest::{self, Draft, ExpectedType, IngestOptions, RawObject};
use crowsnest_store::{Object, Record, RecordKey, Seq};
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use serde_json::{Value, json};

pub const DEPLOYMENT: &str = include_str!("data/deployment.yaml");
const POD: &str = include_str!("data/pod.yaml");
/// Number of pods.
pub const PODS: u32 = 100;
/// Number of namespaces, and number of nodes, over which the pods are distributed.
const GROUPS: u32 = 10;

/// Decodes YAML through JSON, like a client of an API server.
pub fn yaml<T: DeserializeOwned>(text: &str) -> Result<T> {
    let value: Value = serde_saphyr::from_str(text)?;
    Ok(serde_json::from_value(value)?)
}

/// Name of a member cluster.
pub fn member_name(number: u32) -> String {
    format!("member-{number:03}")
}

/// Pods that differ in name, namespace, node and the label `shard`.
pub fn pods() -> Result<Vec<Value>> {
    let template: Value = yaml(POD)?;
    let pod = |number: u32| {
        let mut pod = template.clone();
        unstructured::set(&mut pod, &["metadata", "name"], json!(format!("pod-{number:03}")));
        unstructured::set(&mut pod, &["metadata", "namespace"], json!(format!("team-{}", number % GROUPS)));
        unstructured::set(&mut pod, &["spec", "nodeName"], json!(format!("node-{}", number % GROUPS)));
        unstructured::set_label(&mut pod, "shard", &(number % 4).to_string());
        pod
    };
    Ok((0..PODS).map(pod).collect())
}

pub fn pod_resource() -> Gvr {
    Gvr::new("", "v1", "pods")
}

/// A pod as the collector reads it from a member.
pub fn ingest_pod(raw: &RawValue, resource: &Gvr) -> Result<Draft> {
    Ok(ingest::read(RawObject::new(raw.get()), ExpectedType { resource, kind: "Pod" }, &IngestOptions::default())?)
}

/// The pods as read from the store.
pub fn stored_pods() -> Result<Vec<Object>> {
    let resource = pod_resource();
    let read = |(id, pod): (u64, &Value)| -> Result<Object> {
        let raw = serde_json::value::to_raw_value(pod)?;
        stored_object(id, ingest_pod(&raw, &resource)?)
    };
    let pods = pods()?;
    (1..).zip(&pods).map(read).collect()
}

fn stored_object(id: u64, draft: Draft) -> Result<Object> {
    let cluster = ClusterName::parse(&member_name(0))?;
    let record = Record {
        id,
        key: RecordKey::new(cluster, pod_resource(), &draft.namespace, &draft.name),
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
    Ok(Object { record: Arc::new(record), body: draft.body })
}
