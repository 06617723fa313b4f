//! Ingest: converts the bytes of an object from a member into a record and a body.
//!
//! Borrowed bytes are scanned without building trees: the top level and `metadata` are split into raw values, the
//! values to keep are joined again, and typed views read the printed columns. Secret values and withheld values are
//! removed here, so that they are never stored or indexed unless [`IngestOptions`] allows it.

mod redact;
mod split;
mod withheld;

pub use withheld::{WithheldError, WithheldPath};

use crate::Error;
use crate::record::{Details, Object, Owner};
use bytes::Bytes;
use crowsnest_apimachinery::names::Gvr;
use crowsnest_apimachinery::printers::{print, unix_seconds};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use split::{Fields, Text};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

/// An object as it will be stored, not yet compressed. Times are Unix seconds.
#[derive(Debug, Clone)]
pub struct Draft {
    pub kind: String,
    pub namespace: String,
    pub name: String,
    pub uid: String,
    pub resource_version: String,
    pub generation: i64,
    pub created: Option<i64>,
    pub deleting: Option<i64>,
    pub labels: BTreeMap<String, String>,
    pub details: Arc<Details>,
    pub redacted: bool,
    pub body: Bytes,
}

/// Type of the objects in a response. It is required because the items of typed lists omit their kind and apiVersion.
#[derive(Debug, Clone, Copy)]
pub struct ExpectedType<'a> {
    pub resource: &'a Gvr,
    /// Kind of objects without the field `kind`.
    pub kind: &'a str,
}

/// Options of the conversion: parts of bodies to keep that are removed by default, and additional values to remove.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct IngestOptions {
    /// Keep values of Secrets. They are not indexed even if they are kept.
    pub secret_values: bool,
    /// Keep `metadata.managedFields`, which enlarge an object by about a third.
    pub managed_fields: bool,
    /// Paths of values to remove.
    pub withheld: Vec<WithheldPath>,
}

/// Fields of `metadata` that are stored in a record.
#[derive(Default)]
struct Metadata<'a> {
    name: Option<Text<'a>>,
    namespace: Option<Text<'a>>,
    uid: Option<Text<'a>>,
    resource_version: Option<Text<'a>>,
    generation: Option<i64>,
    created: Option<Text<'a>>,
    deleting: Option<Text<'a>>,
    labels: Option<BTreeMap<String, Option<String>>>,
    owners: Option<Vec<Owner>>,
}

impl<'a> Metadata<'a> {
    fn from_fields(fields: &Fields<'a>) -> Result<Self, serde_json::Error> {
        let mut metadata = Self::default();
        for (name, value) in fields.iter() {
            match name {
                "name" => metadata.name = parse(value)?,
                "namespace" => metadata.namespace = parse(value)?,
                "uid" => metadata.uid = parse(value)?,
                "resourceVersion" => metadata.resource_version = parse(value)?,
                "generation" => metadata.generation = parse(value)?,
                "creationTimestamp" => metadata.created = parse(value)?,
                "deletionTimestamp" => metadata.deleting = parse(value)?,
                "labels" => metadata.labels = parse(value)?,
                "ownerReferences" => metadata.owners = parse(value)?,
                _ => {}
            }
        }
        Ok(metadata)
    }
}

fn parse<'a, T: Deserialize<'a>>(raw: &'a RawValue) -> Result<T, serde_json::Error> {
    serde_json::from_str(raw.get())
}

/// The JSON of an object, split into its top-level fields.
#[derive(Debug)]
pub struct RawObject<'a> {
    json: &'a str,
    /// The error if the text is not a JSON object.
    fields: Result<Fields<'a>, serde_json::Error>,
}

impl<'a> RawObject<'a> {
    pub fn new(json: &'a str) -> Self {
        Self { json, fields: serde_json::from_str(json) }
    }

    pub fn json(&self) -> &'a str {
        self.json
    }

    /// True if the text is a JSON object.
    pub fn is_object(&self) -> bool {
        self.fields.is_ok()
    }
}

/// Converts the JSON of one object. Fails unless it is a JSON object with `metadata.name`.
pub fn read(
    object: RawObject<'_>,
    expected: ExpectedType<'_>,
    options: &IngestOptions,
) -> Result<Draft, serde_json::Error> {
    let RawObject { json, fields } = object;
    let fields = fields?;
    let kind = fields.text("kind").unwrap_or_else(|| expected.kind.into());
    let api_version = fields.text("apiVersion");
    let api_version = api_version.map_or_else(|| expected.resource.api_version(), Text::into_owned);
    let metadata_fields: Fields<'_> = fields.get("metadata").map(parse).transpose()?.unwrap_or_default();
    let metadata = Metadata::from_fields(&metadata_fields)?;
    let name = metadata.name.ok_or_else(|| <serde_json::Error as serde::de::Error>::missing_field("name"))?;
    let group = &*expected.resource.group;
    let class = redact::RedactionClass::new(group, &kind, json, options);
    let withheld: Vec<&WithheldPath> =
        options.withheld.iter().filter(|path| path.applies_to(expected.resource)).collect();
    let mut redacted_fields = Vec::new();
    for (name, value) in fields.iter() {
        if let Some(value) = redact::redact_field(class, name, value, options)? {
            redacted_fields.push((name, value));
        }
    }
    let mut redacted = class == redact::RedactionClass::Secret || !withheld.is_empty() || !redacted_fields.is_empty();

    let removed_bytes =
        metadata_fields.get("managedFields").filter(|_| !options.managed_fields).map_or(0, |raw| raw.get().len());
    let mut body = String::with_capacity(json.len() - removed_bytes + 64);
    let mut out = split::ObjectWriter::new(&mut body);
    out.push_text("apiVersion", &api_version);
    out.push_text("kind", &kind);
    // `metadata` is written before the other fields, so that `metadata_in` finds it without scanning them.
    let metadata_out = out.begin_field("metadata");
    let is_kept_in_secret;
    let keep: Option<split::AnnotationFilter<'_>> = match (redacted, class) {
        (true, redact::RedactionClass::Secret) => {
            is_kept_in_secret = redact::annotation_filter(&fields);
            Some(&is_kept_in_secret)
        }
        (true, _) => Some(&redact::is_kept_in_redacted_object),
        (false, redact::RedactionClass::None) => None,
        (false, _) => Some(&redact::is_kept_in_other_object),
    };
    redacted |= split::copy_metadata(&metadata_fields, options.managed_fields, keep, metadata_out)?;
    for (name, value) in fields.iter() {
        match name {
            "apiVersion" | "kind" | "metadata" => {}
            _ if redacted => {
                let redacted_value =
                    redacted_fields.iter().find(|(field, _)| *field == name).map(|(_, value)| value.as_str());
                let value = redacted_value.unwrap_or(value.get()).to_owned();
                out.push(name, &withheld::redact_paths(&withheld, name, value)?);
            }
            _ => out.push(name, value.get()),
        }
    }
    out.finish();
    let printed = print(group, &kind, body.as_bytes());
    let time = |text: Option<Text<'_>>| text.and_then(|text| unix_seconds(&text));
    let owned = |text: Option<Text<'_>>| text.map(Text::into_owned).unwrap_or_default();
    let labels = metadata.labels.unwrap_or_default();
    Ok(Draft {
        created: time(metadata.created),
        deleting: time(metadata.deleting),
        name: name.into_owned(),
        namespace: owned(metadata.namespace),
        uid: owned(metadata.uid),
        resource_version: owned(metadata.resource_version),
        generation: metadata.generation.unwrap_or_default(),
        labels: labels.into_iter().map(|(key, value)| (key, value.unwrap_or_default())).collect(),
        details: Arc::new(Details { owners: metadata.owners.unwrap_or_default(), printed }),
        kind: kind.into_owned(),
        redacted,
        body: Bytes::from(body),
    })
}

/// The object without values of Secrets, even if the store keeps them ([`IngestOptions::secret_values`]). Everything that
/// is indexed or returned by searches uses this form. Borrowed if the object does not mention Secrets.
pub fn without_secret_values(object: &Object) -> Result<Cow<'_, Object>, Error> {
    let record = &object.record;
    let resource = record.key.resource();
    let is_secret = resource.group.is_empty() && &*record.kind == redact::SECRET;
    if object.body.is_empty() || !(is_secret || redact::mentions_secret(object.text())) {
        return Ok(Cow::Borrowed(object));
    }
    let options = IngestOptions { managed_fields: true, ..IngestOptions::default() };
    let expected = ExpectedType { resource, kind: &record.kind };
    let draft = read(RawObject::new(object.text()), expected, &options).map_err(|source| Error::Decode {
        object: format!("{} {}/{}", record.kind, record.key.namespace, record.key.name),
        source,
    })?;
    Ok(Cow::Owned(Object { record: record.clone(), body: draft.body }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::stored_with_options;
    use serde_json::json;

    fn read_value(value: serde_json::Value, group: &str) -> Draft {
        read_with_options(value, Gvr::new(group, "v1", ""), &IngestOptions::default())
    }

    fn read_with_options(value: serde_json::Value, resource: Gvr, options: &IngestOptions) -> Draft {
        let text = value.to_string();
        read(RawObject::new(&text), ExpectedType { resource: &resource, kind: "Pod" }, options).unwrap()
    }

    #[test]
    fn managed_fields_are_removed_and_kind_is_added() {
        let draft = read_value(
            json!({"metadata": {"name": "web\"0", "namespace": "a", "uid": "u", "resourceVersion": "7",
                "labels": {"app": "web"}, "managedFields": [{"manager": "x"}]}, "spec": {"nodeName": "n"}}),
            "",
        );
        let body: serde_json::Value = serde_json::from_slice(&draft.body).unwrap();
        assert_eq!(
            body,
            json!({"apiVersion": "v1", "kind": "Pod", "spec": {"nodeName": "n"}, "metadata": {"name": "web\"0",
                "namespace": "a", "uid": "u", "resourceVersion": "7", "labels": {"app": "web"}}})
        );
        assert_eq!((draft.name.as_str(), draft.details.printed.node.as_deref()), ("web\"0", Some("n")));
    }

    #[test]
    fn managed_fields_and_secrets_are_kept_on_request() {
        let secret = json!({"kind": "Secret", "metadata": {"name": "db", "managedFields": [{"manager": "x"}]},
            "data": {"password": "aHVudGVyMg=="}});
        for (secret_values, managed_fields) in [(false, true), (true, false)] {
            let options = IngestOptions { secret_values, managed_fields, ..IngestOptions::default() };
            let draft = read_with_options(secret.clone(), Gvr::new("", "v1", "secrets"), &options);
            let body: serde_json::Value = serde_json::from_slice(&draft.body).unwrap();
            assert_eq!(body["metadata"].get("managedFields").is_some(), managed_fields);
            assert_eq!((body["data"]["password"] == "aHVudGVyMg==", draft.redacted), (secret_values, !secret_values));
        }
    }

    #[test]
    fn json_other_than_a_named_object_is_rejected() {
        for text in [
            "7",
            "[]",
            "{}",
            r#"{"metadata":{}}"#,
            r#"{"metadata":7}"#,
            r#"{"metadata":{"name":null}}"#,
            r#"{"metadata":{"name":"a","labels":7}}"#,
            r#"{"metadata":{"name":"a","uid":7}}"#,
        ] {
            let expected = ExpectedType { resource: &Gvr::new("", "v1", "pods"), kind: "Pod" };
            assert!(read(RawObject::new(text), expected, &IngestOptions::default()).is_err(), "{text}");
        }
    }

    #[test]
    fn withheld_values_are_removed() {
        let options =
            IngestOptions { withheld: vec!["configmaps:data.b".parse().unwrap()], ..IngestOptions::default() };
        let last_applied = "kubectl.kubernetes.io/last-applied-configuration";
        let object = json!({"kind": "ConfigMap", "metadata": {"name": "c", "annotations": {last_applied: "{hunter2}"}},
            "data": {"a": "kept", "b": "hunter2"}});
        let draft = read_with_options(object.clone(), Gvr::new("", "v1", "configmaps"), &options);
        let text = String::from_utf8(draft.body.to_vec()).unwrap();
        assert!(draft.redacted && !text.contains("hunter2") && text.contains("kept"), "{text}");
        let work = json!({"kind": "Work", "metadata": {"name": "w"}, "spec": {"workload": {"manifests": [
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c", "annotations": {last_applied: "hunter2"}},
                "data": {"a": "kept", "b": "hunter2"}}]}}});
        let draft = read_with_options(work, Gvr::new("work.karmada.io", "v1alpha1", "works"), &options);
        let text = String::from_utf8(draft.body.to_vec()).unwrap();
        assert!(draft.redacted && !text.contains("hunter2") && text.contains("kept"), "{text}");
        // Objects of other resources keep their values.
        let draft = read_with_options(object, Gvr::new("example.com", "v1", "configmaps"), &options);
        assert!(!draft.redacted && String::from_utf8(draft.body.to_vec()).unwrap().contains("hunter2"));
    }

    #[test]
    fn secret_values_are_removed() {
        let last_applied = "kubectl.kubernetes.io/last-applied-configuration";
        let draft = read_value(
            json!({"kind": "Secret", "metadata": {"name": "db", "annotations": {last_applied: "{hunter2}", "team": "a"}},
                "data": {"password": "aHVudGVyMg=="}, "stringData": {"user": "hunter2"}, "type": "Opaque"}),
            "",
        );
        let text = String::from_utf8(draft.body.to_vec()).unwrap();
        assert!(draft.redacted && !text.contains("hunter2") && !text.contains("aHVudGVyMg"), "{text}");
        assert!(text.contains("password") && text.contains("\"team\":\"a\""), "{text}");

        let work = json!({"kind": "Work", "metadata": {"name": "w"}, "spec": {"workload": {"manifests": [
            {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "db"}, "data": {"password": "aHVudGVyMg=="}},
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"k": "kept"}}]}}});
        let draft = read_value(work, "work.karmada.io");
        let text = String::from_utf8(draft.body.to_vec()).unwrap();
        assert!(draft.redacted && !text.contains("aHVudGVyMg") && text.contains("kept"), "{text}");
    }

    const MARKER: &str = "marker-4b7e-copy";
    const ENCODED: &str = "bWFya2VyLTRiN2UtY29weQ==";

    fn secret(more: serde_json::Value) -> serde_json::Value {
        let mut secret =
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "db"}, "data": {"p": ENCODED}});
        secret.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        secret
    }

    #[rstest::rstest]
    #[case::copies(
        "",
        secret(json!({"metadata": {"name": "db", "annotations": {"team": "kept-1", "kapp.k14s.io/original": MARKER,
            "a/b": format!("{{\"data\":{{\"p\":\"{ENCODED}\"}}}}"), "c/d": format!("it is {MARKER}"), "e/f": ENCODED}}}))
    )]
    #[case::work("work.karmada.io", json!({"kind": "Work", "metadata": {"name": "kept-1"}, "spec": {"workload": {"manifests": [
        secret(json!({"metadata": {"name": "db", "annotations": {"x": MARKER}}}))]}}}))]
    #[case::list_in_a_work("work.karmada.io", json!({"kind": "Work", "metadata": {"name": "kept-1"}, "spec": {"workload": {"manifests": [
        {"kind": "List", "items": [secret(json!({}))]}, {"kind": "SecretList", "items": [{"data": {"p": ENCODED}}]}]}}}))]
    #[case::manifest_work("work.open-cluster-management.io", json!({"kind": "ManifestWork", "metadata": {"name": "kept-1"},
        "spec": {"workload": {"manifests": [secret(json!({}))]}}}))]
    #[case::revision("apps", json!({"kind": "ControllerRevision", "metadata": {"name": "kept-1"},
        "data": {"spec": {"template": secret(json!({"stringData": {"q": MARKER}}))}}}))]
    #[case::annotation_with_an_embedding_object("x.y", json!({"kind": "Bundle", "metadata": {"name": "kept-1", "annotations": {
        "last": json!({"spec": {"all": [secret(json!({}))]}}).to_string()}}}))]
    #[case::yaml("", json!({"kind": "ConfigMap", "metadata": {"name": "kept-1", "annotations": {
        "any.tool/applied": format!("apiVersion: v1\nkind: Secret\nstringData:\n  p: {MARKER}\n")}}}))]
    fn secret_values_are_removed_everywhere(#[case] group: &str, #[case] object: serde_json::Value) {
        assert!(object.to_string().contains(MARKER) || object.to_string().contains(ENCODED));
        let draft = read_value(object, group);
        let text = String::from_utf8(draft.body.to_vec()).unwrap();
        assert!(draft.redacted && text.contains("kept-1"), "{text}");
        assert!(!text.contains(MARKER) && !text.contains(ENCODED), "{text}");
        serde_json::from_str::<serde_json::Value>(&text).unwrap();
    }

    #[rstest::rstest]
    #[case::reference("cert-manager.io", json!({"kind": "Issuer", "metadata": {"name": "a", "annotations": {"x": "Secret"}},
        "spec": {"ca": {"kind": "Secret", "name": "ca"}}}))]
    #[case::pull_secrets("apps", json!({"kind": "Deployment", "metadata": {"name": "a", "annotations": {
        "kubectl.kubernetes.io/last-applied-configuration": "{\"kind\":\"Deployment\",\"imagePullSecrets\":[]}"}}}))]
    #[case::other_group("x.y", json!({"kind": "Bundle", "metadata": {"name": "a"},
        "spec": {"of": {"apiVersion": "x.y/v1", "kind": "Secret", "data": {"a": "b"}}}}))]
    fn objects_without_secrets_are_unchanged(#[case] group: &str, #[case] object: serde_json::Value) {
        let draft = read_value(object.clone(), group);
        let mut body: serde_json::Value = serde_json::from_slice(&draft.body).unwrap();
        body.as_object_mut().unwrap().remove("apiVersion");
        assert_eq!((body, draft.redacted), (object, false));
    }

    #[test]
    fn too_deeply_nested_secrets_are_removed() {
        let mut object = secret(json!({}));
        for _ in 0..200 {
            object = json!({"below": object});
        }
        let draft = read_value(json!({"kind": "Deep", "metadata": {"name": "a"}, "spec": object}), "x.y");
        assert!(draft.redacted && !String::from_utf8(draft.body.to_vec()).unwrap().contains(ENCODED));
    }

    #[rstest::rstest]
    #[case::a_secret(secret(json!({"metadata": {"name": "db", "managedFields": [{"manager": "x"}]}})), true)]
    #[case::an_embedded_secret(json!({"apiVersion": "x.y/v1", "kind": "Template", "metadata": {"name": "a"},
        "spec": {"manifest": secret(json!({}))}}), true)]
    #[case::names_of_secrets(json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"},
        "spec": {"imagePullSecrets": [{"name": "pull"}]}}), false)]
    fn kept_secret_values_are_removed_for_readers(#[case] object: serde_json::Value, #[case] changed: bool) {
        let options = IngestOptions { secret_values: true, managed_fields: true, ..IngestOptions::default() };
        let stored = stored_with_options("m1", 1, &object, &options);
        assert_eq!(stored.text().contains(ENCODED), changed);
        let redacted = without_secret_values(&stored).unwrap();
        assert_eq!(matches!(redacted, Cow::Owned(_)), changed);
        assert!(!redacted.text().contains(ENCODED), "{}", redacted.text());
        assert_eq!(redacted.text().contains("managedFields"), stored.text().contains("managedFields"));
        let again = without_secret_values(&redacted).unwrap();
        assert_eq!(again.text(), redacted.text());
    }

    #[test]
    fn copies_are_kept_if_secret_values_are_kept() {
        let options = IngestOptions { secret_values: true, ..IngestOptions::default() };
        let object = secret(json!({"metadata": {"name": "db", "annotations": {"kapp.k14s.io/original": MARKER}}}));
        let draft = read_with_options(object, Gvr::new("", "v1", "secrets"), &options);
        let text = String::from_utf8(draft.body.to_vec()).unwrap();
        assert!(!draft.redacted && text.contains(MARKER) && text.contains(ENCODED), "{text}");
    }
}
