//! Objects in responses: adds the annotation with their cluster, and sets their resourceVersion.

use std::borrow::{Borrow, Cow};
use std::collections::BTreeMap;

use crowsnest_api::constants::annotation::CACHED_FROM_CLUSTER;
use crowsnest_index::metadata_in;
use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};

use crate::composite::CompositeVersion;

type Fields<'a> = BTreeMap<FieldName<'a>, &'a RawValue>;

/// Name of a field, borrowed from the JSON unless it has escapes.
#[derive(Debug, Deserialize, Serialize, PartialEq, Eq, PartialOrd, Ord)]
#[serde(transparent)]
struct FieldName<'a>(#[serde(borrow)] Cow<'a, str>);

impl Borrow<str> for FieldName<'_> {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl<'a> From<&'a str> for FieldName<'a> {
    fn from(name: &'a str) -> Self {
        Self(Cow::Borrowed(name))
    }
}

/// Estimated number of bytes that the annotation and the composite resourceVersion add to an object.
pub const ANNOTATION_BYTES: usize = 256;

/// Form of an object in a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// The complete object.
    Full,
    /// `PartialObjectMetadata`
    Metadata(MetaVersion),
}

/// Version of `meta.k8s.io` in which a client accepts tables and metadata. Their fields are equal in both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetaVersion {
    V1,
    V1beta1,
}

impl MetaVersion {
    pub fn api_version(self) -> &'static str {
        match self {
            Self::V1 => "meta.k8s.io/v1",
            Self::V1beta1 => "meta.k8s.io/v1beta1",
        }
    }
}

/// Returns `body` with the annotation of its cluster, and with `version` as its resourceVersion; `None` keeps it.
/// Only the metadata is parsed.
pub fn annotate(body: &[u8], cluster: &str, version: Option<&str>, form: Form) -> Result<Vec<u8>, serde_json::Error> {
    let mut out = Vec::with_capacity(body.len() + ANNOTATION_BYTES);
    write_annotated(body, cluster, version, form, &mut out)?;
    Ok(out)
}

/// Appends the result of [`annotate`] to `out`. The bytes around the metadata are copied as they are.
pub fn write_annotated(
    body: &[u8],
    cluster: &str,
    version: Option<&str>,
    form: Form,
    out: &mut Vec<u8>,
) -> Result<(), serde_json::Error> {
    let Some(at) = metadata_in(body) else {
        out.extend_from_slice(body);
        return Ok(());
    };
    let mut metadata: Fields<'_> = serde_json::from_slice(&body[at.clone()])?;
    let mut annotations: Fields<'_> = match metadata.get("annotations") {
        Some(raw) => serde_json::from_str::<Option<Fields<'_>>>(raw.get())?.unwrap_or_default(),
        None => Fields::new(),
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
        Form::Full => (&body[..at.start], &body[at.end..]),
        Form::Metadata(meta) => {
            let head = r#"{"kind":"PartialObjectMetadata","apiVersion":""#;
            out.extend_from_slice([head, meta.api_version(), r#"","metadata":"#].concat().as_bytes());
            (&b""[..], &b"}"[..])
        }
    };
    out.extend_from_slice(before);
    serde_json::to_writer(&mut *out, &metadata)?;
    out.extend_from_slice(after);
    Ok(())
}

/// Annotates an object read from a member like a cached one. Its version has no cache position, so a watch of the cache
/// cannot start from it.
pub fn annotate_live(body: &[u8], cluster: &str, form: Form) -> Result<Vec<u8>, serde_json::Error> {
    std::str::from_utf8(body).map_err(<serde_json::Error as serde::de::Error>::custom)?;
    let body = compact(body);
    let version = own_version(&body).map(|version| CompositeVersion::for_cluster(cluster, &version).encode());
    annotate(&body, cluster, version.as_deref(), form)
}

/// The resourceVersion of an encoded object.
pub fn own_version(body: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Metadata {
        resource_version: Option<String>,
    }
    let metadata: Metadata = serde_json::from_slice(&body[metadata_in(body)?]).ok()?;
    metadata.resource_version.filter(|version| !version.is_empty())
}

/// JSON without whitespace between its tokens. API servers indent their responses to some clients.
pub fn compact(json: &[u8]) -> Cow<'_, [u8]> {
    if metadata_in(json).is_some() {
        return Cow::Borrowed(json);
    }
    let (mut in_string, mut escaped) = (false, false);
    let compact = json.iter().copied().filter(|byte| {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            _ => {}
        }
        in_string || !byte.is_ascii_whitespace()
    });
    Cow::Owned(compact.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn objects_are_annotated() {
        let body = br#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","resourceVersion":"7","annotations":{"b":"c"}},"data":{"k":1.50}}"#;
        let composite = CompositeVersion::for_cluster("m1", "7");
        let out = annotate(body, "m1", Some(&composite.encode()), Form::Full).unwrap();
        let object: Value = serde_json::from_slice(&out).unwrap();
        assert_eq!(object["metadata"]["annotations"], json!({"b": "c", CACHED_FROM_CLUSTER: "m1"}));
        assert_eq!(object["metadata"]["resourceVersion"], json!(composite.encode()));
        assert!(String::from_utf8(out.clone()).unwrap().contains("1.50"), "values are unchanged");
    }

    #[test]
    fn fields_keep_their_escapes_and_are_sorted() {
        let body = br#"{"kind":"X","metadata":{"uid":"u","na\u006de":"a","annotations":{"b\"c":"\u0041","a":null}},"data":"\u00e9"}"#;
        let out = annotate(body, "m1", Some("v"), Form::Full).unwrap();
        let metadata = format!(
            r#"{{"annotations":{{"a":null,"b\"c":"\u0041","{CACHED_FROM_CLUSTER}":"m1"}},"name":"a","resourceVersion":"v","uid":"u"}}"#
        );
        let expected = format!(r#"{{"kind":"X","metadata":{metadata},"data":"\u00e9"}}"#);
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }

    #[test]
    fn invalid_text_from_a_member_is_rejected() {
        let body = b"{\"metadata\":{\"name\":\"a\"},\"data\":\"\xff\"}";
        assert!(annotate_live(body, "m1", Form::Full).is_err());
    }

    #[rstest::rstest]
    #[case(MetaVersion::V1, "meta.k8s.io/v1")]
    #[case(MetaVersion::V1beta1, "meta.k8s.io/v1beta1")]
    fn metadata_has_the_version_of_the_client(#[case] meta: MetaVersion, #[case] version: &str) {
        let body = br#"{"metadata":{"name":"a","annotations":null},"data":{}}"#;
        let out = annotate(body, "m1", None, Form::Metadata(meta)).unwrap();
        let object: Value = serde_json::from_slice(&out).unwrap();
        let metadata = json!({"name": "a", "annotations": {CACHED_FROM_CLUSTER: "m1"}});
        let expected = json!({"kind": "PartialObjectMetadata", "apiVersion": version, "metadata": metadata});
        assert_eq!(object, expected);
    }

    #[test]
    fn objects_read_from_a_member_have_no_cache_position() {
        let out = annotate_live(br#"{"metadata":{"name":"a","resourceVersion":"7"}}"#, "m1", Form::Full).unwrap();
        let object: Value = serde_json::from_slice(&out).unwrap();
        assert_eq!(object["metadata"]["annotations"], json!({CACHED_FROM_CLUSTER: "m1"}));
        let version = CompositeVersion::decode(object["metadata"]["resourceVersion"].as_str().unwrap());
        assert_eq!((version.version("m1"), version.has_cache_position()), (Some("7"), false));
    }

    #[test]
    fn indented_objects_are_annotated() {
        let body = "{\n  \"kind\": \"X\",\n  \"metadata\": {\n    \"name\": \"a b\",\n    \"resourceVersion\": \"7\"\n  },\n  \"data\": {\"k\": \"\\\\\\\" : 1\"}\n}\n";
        let out = annotate_live(body.as_bytes(), "m1", Form::Full).unwrap();
        let object: Value = serde_json::from_slice(&out).unwrap();
        assert_eq!(object["metadata"]["annotations"], json!({CACHED_FROM_CLUSTER: "m1"}));
        assert_eq!((&object["metadata"]["name"], &object["data"]), (&json!("a b"), &json!({"k": "\\\" : 1"})));
    }
}
