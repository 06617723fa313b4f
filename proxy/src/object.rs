//! Objects on their way out and back in: the annotation that names their cluster, and their resourceVersion.

use std::borrow::Cow;
use std::collections::BTreeMap;

use crowsnest_api::constants::annotation::CACHED_FROM_CLUSTER;
use crowsnest_index::metadata_in;
use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};

use crate::composite::Composite;

type Fields<'a> = BTreeMap<Cow<'a, str>, &'a RawValue>;

/// How much longer an object may be for its mark, about.
pub const MARK: usize = 256;

/// In which form an object is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    Whole,
    /// `PartialObjectMetadata`
    Metadata,
}

/// `body` with the annotation that names its cluster, and with `version` as its resourceVersion (none: its own). Only the
/// metadata is read.
pub fn mark(body: &[u8], cluster: &str, version: Option<&str>, form: Form) -> Result<Vec<u8>, serde_json::Error> {
    let mut out = Vec::with_capacity(body.len() + MARK);
    write_marked(body, cluster, version, form, &mut out)?;
    Ok(out)
}

/// What [`mark`] makes, at the end of `out`.
pub fn write_marked(
    body: &[u8],
    cluster: &str,
    version: Option<&str>,
    form: Form,
    out: &mut Vec<u8>,
) -> Result<(), serde_json::Error> {
    let body = std::str::from_utf8(body).map_err(<serde_json::Error as serde::de::Error>::custom)?;
    let Some(at) = metadata_in(body) else {
        out.extend_from_slice(body.as_bytes());
        return Ok(());
    };
    let mut metadata: Fields<'_> = serde_json::from_str(&body[at.clone()])?;
    let mut annotations: BTreeMap<Cow<'_, str>, &RawValue> = match metadata.get("annotations") {
        Some(raw) => serde_json::from_str::<Option<_>>(raw.get())?.unwrap_or_default(),
        None => BTreeMap::new(),
    };
    let cluster = to_raw_value(cluster)?;
    annotations.insert(CACHED_FROM_CLUSTER.into(), &cluster);
    let annotations = to_raw_value(&annotations)?;
    let version = version.map(to_raw_value).transpose()?;
    metadata.insert("annotations".into(), &annotations);
    if let Some(version) = &version {
        metadata.insert("resourceVersion".into(), version);
    }
    let (before, after) = match form {
        Form::Whole => (&body[..at.start], &body[at.end..]),
        Form::Metadata => (r#"{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":"#, "}"),
    };
    out.extend_from_slice(before.as_bytes());
    serde_json::to_writer(&mut *out, &metadata)?;
    out.extend_from_slice(after.as_bytes());
    Ok(())
}

/// What a client sends back of an object read here, as the owning cluster knows it.
pub fn unmark(body: &[u8], cluster: &str) -> Result<Vec<u8>, serde_json::Error> {
    let mut object: Value = serde_json::from_slice(body)?;
    let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) else { return Ok(body.to_vec()) };
    if let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) {
        annotations.remove(CACHED_FROM_CLUSTER);
        if annotations.is_empty() {
            metadata.remove("annotations");
        }
    }
    if let Some(version) = metadata.get("resourceVersion").and_then(Value::as_str) {
        let own = Composite::decode(version).version(cluster).unwrap_or_default().to_owned();
        // A version that is not ours is the member's own, or nothing.
        if !own.is_empty() {
            metadata.insert("resourceVersion".to_owned(), own.into());
        } else if !version.bytes().all(|b| b.is_ascii_digit()) {
            metadata.remove("resourceVersion");
        }
    }
    serde_json::to_vec(&object)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crowsnest_index::Seq;
    use serde_json::json;

    #[test]
    fn an_object_goes_out_marked_and_comes_back_as_it_was() {
        let body = br#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","resourceVersion":"7","annotations":{"b":"c"}},"data":{"k":1.50}}"#;
        let mut composite = Composite::default();
        composite.set("m1", "7", Seq(3));
        let out = mark(body, "m1", Some(&composite.encode()), Form::Whole).unwrap();
        let object: Value = serde_json::from_slice(&out).unwrap();
        assert_eq!(object["metadata"]["annotations"], json!({"b": "c", CACHED_FROM_CLUSTER: "m1"}));
        assert_eq!(object["metadata"]["resourceVersion"], json!(composite.encode()));
        assert!(String::from_utf8(out.clone()).unwrap().contains("1.50"), "values are not touched");
        let back: Value = serde_json::from_slice(&unmark(&out, "m1").unwrap()).unwrap();
        assert_eq!(back, serde_json::from_slice::<Value>(body).unwrap());
    }

    #[rstest::rstest]
    #[case(json!({"metadata": {"resourceVersion": "12"}}), json!({"metadata": {"resourceVersion": "12"}}))]
    #[case(json!({"metadata": {"resourceVersion": "eyJtMiI6IjUifQ"}}), json!({"metadata": {}}))]
    #[case(json!({"spec": 1}), json!({"spec": 1}))]
    fn foreign_versions(#[case] sent: Value, #[case] expected: Value) {
        let back = unmark(sent.to_string().as_bytes(), "m1").unwrap();
        assert_eq!(serde_json::from_slice::<Value>(&back).unwrap(), expected);
    }

    #[test]
    fn metadata_alone() {
        let out =
            mark(br#"{"metadata":{"name":"a","annotations":null},"data":{}}"#, "m1", None, Form::Metadata).unwrap();
        let object: Value = serde_json::from_slice(&out).unwrap();
        assert_eq!(object["kind"], "PartialObjectMetadata");
        assert_eq!(object.get("data"), None);
    }
}
