//! Converts updates of objects that the client read through the fleet-wide proxy to the member's form: its own
//! resourceVersion, and no cluster annotation.

use crowsnest_api::constants::annotation::CACHED_FROM_CLUSTER;
use http::{HeaderMap, header};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::composite::CompositeVersion;
use crate::protobuf;

/// Encoding of an update. The member rejects any other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    Json,
    Yaml,
    Protobuf,
}

/// An update in the form of the member that owns the object.
#[derive(Debug, PartialEq)]
pub struct Update {
    /// JSON if the update was YAML.
    pub body: Vec<u8>,
    /// True if the version has a cache position: the object was read from a list or watch of the cache.
    pub is_from_cache: bool,
}

impl Encoding {
    pub fn from_headers(headers: &HeaderMap) -> Option<Self> {
        let Some(content_type) = headers.get(header::CONTENT_TYPE) else { return Some(Self::Json) };
        let media_type = content_type.to_str().ok()?.split(';').next()?.trim();
        match media_type {
            "application/json" => Some(Self::Json),
            "application/yaml" => Some(Self::Yaml),
            "application/vnd.kubernetes.protobuf" => Some(Self::Protobuf),
            _ => None,
        }
    }
}

/// `sent` with the cluster's own resourceVersion and without the cluster annotation; None if it cannot be decoded.
pub fn to_member_form(sent: &[u8], encoding: Encoding, cluster: &str) -> Option<Update> {
    let object: Value = match encoding {
        Encoding::Json => serde_json::from_slice(sent).ok()?,
        Encoding::Yaml => serde_saphyr::from_slice(sent).ok()?,
        Encoding::Protobuf => {
            let version = protobuf::version(sent)?;
            let body = protobuf::rewrite_metadata(sent, &own_version(&version, cluster), CACHED_FROM_CLUSTER)?;
            return Some(Update { body, is_from_cache: has_cache_position(&version) });
        }
    };
    let version = object["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned();
    let body = serde_json::to_vec(&remove_cluster_annotation(object, &own_version(&version, cluster))).ok()?;
    Some(Update { body, is_from_cache: has_cache_position(&version) })
}

/// True if a JSON update has data and it equals the data of another object.
pub fn has_same_data_as(update: &[u8], existing: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Holder {
        data: Option<Map<String, Value>>,
    }
    let data = |body: &[u8]| serde_json::from_slice::<Holder>(body).ok()?.data.filter(|data| !data.is_empty());
    data(update).is_some_and(|sent| data(existing) == Some(sent))
}

fn has_cache_position(version: &str) -> bool {
    CompositeVersion::decode(version).has_cache_position()
}

/// The member's own version in an update; empty if it has none of this member.
fn own_version(sent: &str, cluster: &str) -> String {
    match CompositeVersion::decode(sent).version(cluster) {
        Some(own) if !own.is_empty() => own.to_owned(),
        _ if sent.bytes().all(|b| b.is_ascii_digit()) => sent.to_owned(),
        _ => String::new(),
    }
}

fn remove_cluster_annotation(mut object: Value, version: &str) -> Value {
    let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) else { return object };
    if let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) {
        annotations.remove(CACHED_FROM_CLUSTER);
        if annotations.is_empty() {
            metadata.remove("annotations");
        }
    }
    // The member rejects values that are not strings.
    if !metadata.get("resourceVersion").is_some_and(Value::is_string) {
        return object;
    }
    if version.is_empty() {
        metadata.remove("resourceVersion");
    } else {
        metadata.insert("resourceVersion".to_owned(), version.into());
    }
    object
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::composite::CachePosition;
    use crate::object::{Form, annotate};
    use crowsnest_index::{CacheId, Seq};
    use serde_json::json;

    #[test]
    fn updates_round_trip() {
        let body =
            br#"{"metadata":{"name":"a","resourceVersion":"7","annotations":{"b":"c"}},"data":{"k":1.5},"kind":"X"}"#;
        let mut composite = CompositeVersion::default();
        composite.set("m1", "7", Some(CachePosition { seq: Seq(3), cache: CacheId::from("c1") }));
        let out = annotate(body, "m1", Some(&composite.encode()), Form::Full).unwrap();
        let back = to_member_form(&out, Encoding::Json, "m1").unwrap();
        assert_eq!(
            serde_json::from_slice::<Value>(&back.body).unwrap(),
            serde_json::from_slice::<Value>(body).unwrap()
        );
        assert!(back.is_from_cache);
    }

    #[rstest::rstest]
    #[case::version_of_the_member(json!({"resourceVersion": "12"}), json!({"resourceVersion": "12"}))]
    #[case::version_of_another_cluster(json!({"resourceVersion": "eyJtMiI6IjUifQ"}), json!({}))]
    #[case::version_of_karmada(json!({"resourceVersion": "eyJtMSI6IjUifQ"}), json!({"resourceVersion": "5"}))]
    #[case::not_a_string(json!({"resourceVersion": 123}), json!({"resourceVersion": 123}))]
    #[case::none(json!({"annotations": {CACHED_FROM_CLUSTER: "m1", "a": "b"}}), json!({"annotations": {"a": "b"}}))]
    fn composite_versions_are_replaced_by_those_of_the_member(#[case] sent: Value, #[case] expected: Value) {
        let sent = json!({"metadata": sent}).to_string();
        let update = to_member_form(sent.as_bytes(), Encoding::Json, "m1").unwrap();
        assert_eq!(serde_json::from_slice::<Value>(&update.body).unwrap(), json!({"metadata": expected}));
        assert!(!update.is_from_cache);
    }

    #[rstest::rstest]
    #[case::withheld(r#"{"data":{"a":"","b":""}}"#, true)]
    #[case::another(r#"{"data":{"a":"","b":"eA=="}}"#, false)]
    #[case::less(r#"{"data":{"a":""}}"#, false)]
    #[case::none(r#"{"metadata":{}}"#, false)]
    #[case::unreadable("k8s", false)]
    fn data_equal_to_the_cached_data_was_read_from_the_cache(#[case] sent: &str, #[case] expected: bool) {
        assert_eq!(has_same_data_as(sent.as_bytes(), br#"{"data":{"a":"","b":""}}"#), expected);
        assert!(!has_same_data_as(br#"{"data":{}}"#, br#"{"data":{}}"#));
    }

    #[rstest::rstest]
    #[case(None, Some(Encoding::Json))]
    #[case(Some("application/json; charset=utf-8"), Some(Encoding::Json))]
    #[case(Some("application/yaml"), Some(Encoding::Yaml))]
    #[case(Some("application/vnd.kubernetes.protobuf"), Some(Encoding::Protobuf))]
    #[case(Some("application/cbor"), None)]
    fn the_encoding_is_determined_by_the_content_type(
        #[case] content_type: Option<&'static str>,
        #[case] expected: Option<Encoding>,
    ) {
        let mut headers = HeaderMap::new();
        if let Some(content_type) = content_type {
            headers.insert(header::CONTENT_TYPE, http::HeaderValue::from_static(content_type));
        }
        assert_eq!(Encoding::from_headers(&headers), expected);
    }

    #[test]
    fn yaml_becomes_json() {
        let sent = b"kind: ConfigMap\nmetadata: {name: a, resourceVersion: eyJtMSI6IjUifQ}\ndata: {k: 'yes'}\n";
        let update = to_member_form(sent, Encoding::Yaml, "m1").unwrap();
        let expected =
            json!({"kind": "ConfigMap", "metadata": {"name": "a", "resourceVersion": "5"}, "data": {"k": "yes"}});
        assert_eq!(serde_json::from_slice::<Value>(&update.body).unwrap(), expected);
        let update = to_member_form(b"metadata: {name: a, resourceVersion: 123}\n", Encoding::Yaml, "m1").unwrap();
        let expected = json!({"metadata": {"name": "a", "resourceVersion": 123}});
        assert_eq!(serde_json::from_slice::<Value>(&update.body).unwrap(), expected);
    }
}
