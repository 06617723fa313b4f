//! Objects on their way out: the annotation that names their cluster, and their resourceVersion.

use std::borrow::Cow;
use std::collections::BTreeMap;

use crowsnest_api::constants::annotation::CACHED_FROM_CLUSTER;
use crowsnest_index::metadata_in;
use serde::Deserialize;
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

/// What a member itself said of an object, marked like a cached one. Its version gives a watch no place to start: nobody
/// knows where in the cache it was read.
pub fn mark_live(body: &[u8], cluster: &str, form: Form) -> Result<Vec<u8>, serde_json::Error> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Metadata {
        #[serde(default)]
        resource_version: String,
    }
    #[derive(Deserialize)]
    struct Live {
        metadata: Metadata,
    }
    let live: Live = serde_json::from_slice(body)?;
    let mut version = Composite::default();
    version.set(cluster, &live.metadata.resource_version, None);
    mark(body, cluster, Some(&version.encode()), form)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn an_object_goes_out_marked() {
        let body = br#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","resourceVersion":"7","annotations":{"b":"c"}},"data":{"k":1.50}}"#;
        let mut composite = Composite::default();
        composite.set("m1", "7", None);
        let out = mark(body, "m1", Some(&composite.encode()), Form::Whole).unwrap();
        let object: Value = serde_json::from_slice(&out).unwrap();
        assert_eq!(object["metadata"]["annotations"], json!({"b": "c", CACHED_FROM_CLUSTER: "m1"}));
        assert_eq!(object["metadata"]["resourceVersion"], json!(composite.encode()));
        assert!(String::from_utf8(out.clone()).unwrap().contains("1.50"), "values are not touched");
    }

    #[test]
    fn metadata_alone() {
        let out =
            mark(br#"{"metadata":{"name":"a","annotations":null},"data":{}}"#, "m1", None, Form::Metadata).unwrap();
        let object: Value = serde_json::from_slice(&out).unwrap();
        assert_eq!(object["kind"], "PartialObjectMetadata");
        assert_eq!(object.get("data"), None);
    }

    #[test]
    fn what_a_member_said_itself_gives_a_watch_no_place_to_start() {
        let out = mark_live(br#"{"metadata":{"name":"a","resourceVersion":"7"}}"#, "m1", Form::Whole).unwrap();
        let object: Value = serde_json::from_slice(&out).unwrap();
        assert_eq!(object["metadata"]["annotations"], json!({CACHED_FROM_CLUSTER: "m1"}));
        let version = Composite::decode(object["metadata"]["resourceVersion"].as_str().unwrap());
        assert_eq!((version.version("m1"), version.has_a_place()), (Some("7"), false));
    }
}
