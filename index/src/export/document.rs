//! Documents, index names and mapping of Karmada's backend store (`pkg/search/backendstore/opensearch.go`); pure functions.
//!
//! `spec` and `status` are JSON in strings; the cluster is only in an annotation. Everything else of an object (uid,
//! resourceVersion, owner references, `data`) is omitted, as in Karmada: an additional field would become part of the mapping
//! of the users' indices.

use crowsnest_api::constants::annotation::CACHED_FROM_CLUSTER;
use crowsnest_store::record::Object;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use std::borrow::Cow;
use std::collections::BTreeMap;

/// Prefix of the names of all indices.
pub const PREFIX: &str = "kubernetes";
/// Suffix of the aliases through which Crowsnest writes. It identifies the indices that Crowsnest has written.
const ALIAS_SUFFIX: &str = "crowsnest";
/// Go's zero time, which Karmada writes for objects without a creation time.
const NO_TIME: &str = "0001-01-01T00:00:00Z";

/// Name of a kind's index. Kinds of the same name share it, independent of their group.
pub fn index_name(kind: &str) -> String {
    format!("{PREFIX}-{}", kind.to_lowercase())
}

/// Alias of an index. Bulk requests name it, so that a backend does not create a missing index with guessed types.
pub fn alias_of(index: &str) -> String {
    format!("{index}-{ALIAS_SUFFIX}")
}

/// Pattern of all aliases.
pub fn alias_pattern() -> String {
    format!("{PREFIX}-*-{ALIAS_SUFFIX}")
}

/// Body that creates an index: Karmada's settings and mapping, with the alias. `gc_deletes`: an older version that arrives
/// within this time after a deletion is rejected.
pub fn index_body(alias: &str) -> Value {
    let text = json!({"type": "text"});
    let with_keyword = json!({"type": "text", "fields": {"keyword": {"type": "keyword", "ignore_above": 256}}});
    let stored = json!({"type": "object", "enabled": false});
    json!({
        "settings": {"index": {"number_of_shards": 1, "number_of_replicas": 0, "gc_deletes": "1h"}},
        "aliases": {alias: {}},
        "mappings": {"properties": {
            "apiVersion": text,
            "kind": text,
            "metadata": {"properties": {
                "annotations": stored,
                "creationTimestamp": text,
                "deletionTimestamp": text,
                "labels": stored,
                "name": with_keyword,
                "namespace": with_keyword,
                "ownerReferences": text,
                "resourceVersion": with_keyword,
            }},
            "spec": stored,
            "status": stored,
        }},
    })
}

/// A document with its fields in Karmada's order.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct KarmadaDocument<'o> {
    api_version: Cow<'o, str>,
    kind: Cow<'o, str>,
    metadata: DocumentMetadata<'o>,
    spec: &'o str,
    status: &'o str,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct DocumentMetadata<'o> {
    annotations: BTreeMap<Cow<'o, str>, Cow<'o, str>>,
    creation_timestamp: String,
    deletion_timestamp: Option<String>,
    labels: Option<BTreeMap<Cow<'o, str>, Cow<'o, str>>>,
    name: &'o str,
    namespace: &'o str,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Body<'o> {
    #[serde(borrow)]
    api_version: Cow<'o, str>,
    #[serde(borrow)]
    kind: Cow<'o, str>,
    #[serde(borrow, default)]
    metadata: Metadata<'o>,
    #[serde(borrow)]
    spec: Option<&'o RawValue>,
    #[serde(borrow)]
    status: Option<&'o RawValue>,
}

#[derive(Default, Deserialize)]
struct Metadata<'o> {
    #[serde(borrow, default)]
    labels: Option<Texts<'o>>,
    #[serde(borrow, default)]
    annotations: Option<Texts<'o>>,
}

/// Values that are not text are omitted, because a member may send any JSON.
type Texts<'o> = BTreeMap<Cow<'o, str>, Value>;

/// Encodes the document of a cached object as JSON on one line.
pub fn encode_document(object: &Object) -> Result<Vec<u8>, serde_json::Error> {
    let body: Body<'_> = serde_json::from_slice(&object.body)?;
    let texts = |texts: Texts<'_>| -> BTreeMap<String, String> {
        let text = |(key, value): (Cow<'_, str>, Value)| match value {
            Value::String(value) => Some((key.into_owned(), value)),
            _ => None,
        };
        texts.into_iter().filter_map(text).collect()
    };
    let mut annotations = body.metadata.annotations.map(texts).unwrap_or_default();
    annotations.insert(CACHED_FROM_CLUSTER.to_owned(), object.record.key.cluster().as_str().to_owned());
    let owned = |texts: BTreeMap<String, String>| texts.into_iter().map(|(k, v)| (k.into(), v.into())).collect();
    let document = KarmadaDocument {
        api_version: body.api_version,
        kind: body.kind,
        metadata: DocumentMetadata {
            annotations: owned(annotations),
            creation_timestamp: object.record.created.and_then(time).unwrap_or_else(|| NO_TIME.to_owned()),
            deletion_timestamp: object.record.deleting.and_then(time),
            labels: body.metadata.labels.map(texts).map(owned),
            name: &object.record.key.name,
            namespace: &object.record.key.namespace,
        },
        spec: body.spec.map_or("null", RawValue::get),
        status: body.status.map_or("null", RawValue::get),
    };
    serde_json::to_vec(&document)
}

/// RFC 3339 in UTC, to the second.
fn time(seconds: i64) -> Option<String> {
    Timestamp::from_second(seconds).ok().map(|time| time.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crowsnest_store::fixtures::stored;
    use rstest::rstest;

    fn document_of(object: Value) -> Value {
        serde_json::from_slice(&encode_document(&stored("member1", 7, &object)).unwrap()).unwrap()
    }

    /// Documents as created by Karmada's `upsert`.
    #[rstest]
    #[case::all_fields(
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web", "namespace": "shop",
            "uid": "u", "resourceVersion": "5", "creationTimestamp": "2026-08-01T10:00:00Z",
            "deletionTimestamp": "2026-08-02T10:00:00Z", "labels": {"app.kubernetes.io/name": "web"},
            "annotations": {"a": "b"}, "ownerReferences": [{"kind": "X", "name": "x", "uid": "y", "apiVersion": "v1"}]},
            "spec": {"replicas": 2, "b": [1, "<ü>"]}, "status": {"readyReplicas": 1}, "data": {"k": "v"}}),
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {
            "annotations": {"a": "b", "resource.karmada.io/cached-from-cluster": "member1"},
            "creationTimestamp": "2026-08-01T10:00:00Z", "deletionTimestamp": "2026-08-02T10:00:00Z",
            "labels": {"app.kubernetes.io/name": "web"}, "name": "web", "namespace": "shop"},
            "spec": "{\"b\":[1,\"<ü>\"],\"replicas\":2}", "status": "{\"readyReplicas\":1}"}),
    )]
    #[case::nothing_but_a_name(
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}}),
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {
            "annotations": {"resource.karmada.io/cached-from-cluster": "member1"},
            "creationTimestamp": "0001-01-01T00:00:00Z", "deletionTimestamp": null, "labels": null,
            "name": "n1", "namespace": ""}, "spec": "null", "status": "null"}),
    )]
    #[case::values_of_secrets_are_not_read(
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s", "namespace": "a", "labels": {},
            "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{\"data\":{\"p\":\"aHVudGVyMg==\"}}"}},
            "data": {"p": "aHVudGVyMg=="}}),
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {
            "annotations": {"resource.karmada.io/cached-from-cluster": "member1"},
            "creationTimestamp": "0001-01-01T00:00:00Z", "deletionTimestamp": null, "labels": {},
            "name": "s", "namespace": "a"}, "spec": "null", "status": "null"}),
    )]
    fn documents_have_the_layout_of_karmada(#[case] object: Value, #[case] expected: Value) {
        assert_eq!(document_of(object), expected);
    }

    #[test]
    fn annotations_that_are_not_strings_are_omitted() {
        let annotations = json!({"a": 1, "b": {"c": []}, "d": null, "e": "f"});
        let object = document_of(
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "annotations": annotations}}),
        );
        let expected = json!({"e": "f", "resource.karmada.io/cached-from-cluster": "member1"});
        assert_eq!(object["metadata"]["annotations"], expected);
    }

    #[test]
    fn a_document_is_one_line_with_fields_in_the_order_of_karmada() {
        let object = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "labels": {"x": "1\n2"}}});
        let text = String::from_utf8(encode_document(&stored("m", 1, &object)).unwrap()).unwrap();
        assert_eq!(
            text,
            "{\"apiVersion\":\"v1\",\"kind\":\"Pod\",\"metadata\":{\"annotations\":{\"resource.karmada.io/cached-from-cluster\":\"m\"},\
             \"creationTimestamp\":\"0001-01-01T00:00:00Z\",\"deletionTimestamp\":null,\"labels\":{\"x\":\"1\\n2\"},\
             \"name\":\"a\",\"namespace\":\"\"},\"spec\":\"null\",\"status\":\"null\"}"
        );
    }

    #[rstest]
    #[case("Pod", "kubernetes-pod", "kubernetes-pod-crowsnest")]
    #[case(
        "HorizontalPodAutoscaler",
        "kubernetes-horizontalpodautoscaler",
        "kubernetes-horizontalpodautoscaler-crowsnest"
    )]
    fn indices_are_named_by_kind(#[case] kind: &str, #[case] index: &str, #[case] alias: &str) {
        assert_eq!((index_name(kind).as_str(), alias_of(index).as_str()), (index, alias));
    }
}
