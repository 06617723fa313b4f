//! Ingest: an object's bytes as the member sent them become a record and a body.
//!
//! Borrowed bytes are scanned, not built into trees: the top level and `metadata` are split into raw pieces, the pieces
//! worth keeping are joined again, and views read what is printed. Secret values never get past here (invariant I8).

mod redact;
mod split;

use crate::record::Owner;
use bytes::Bytes;
use crowsnest_api::print::{Printed, print, unix_seconds};
use serde::Deserialize;
use serde_json::value::RawValue;
use split::{Fields, Text};
use std::collections::BTreeMap;

/// An object ready to be stored.
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
    pub owners: Vec<Owner>,
    pub printed: Printed,
    pub redacted: bool,
    pub body: Bytes,
}

/// What the server's answer says about all its objects; items of typed lists leave it out.
#[derive(Debug, Clone, Copy)]
pub struct Expected<'a> {
    pub group: &'a str,
    pub api_version: &'a str,
    /// Used where the object does not say.
    pub kind: &'a str,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata<'a> {
    #[serde(borrow)]
    name: Text<'a>,
    #[serde(borrow, default)]
    namespace: Option<Text<'a>>,
    #[serde(borrow, default)]
    uid: Option<Text<'a>>,
    #[serde(borrow, default)]
    resource_version: Option<Text<'a>>,
    #[serde(default)]
    generation: Option<i64>,
    #[serde(borrow, default)]
    creation_timestamp: Option<Text<'a>>,
    #[serde(borrow, default)]
    deletion_timestamp: Option<Text<'a>>,
    #[serde(default)]
    labels: Option<BTreeMap<String, Option<String>>>,
    #[serde(default)]
    owner_references: Option<Vec<Owner>>,
}

/// Reads one object. Fails on anything that is not a JSON object with a name.
pub fn read(raw: &RawValue, expected: Expected<'_>, keep_secret_values: bool) -> Result<Draft, serde_json::Error> {
    let fields: Fields<'_> = serde_json::from_str(raw.get())?;
    let text = |name: &str| fields.get(name).and_then(|raw| serde_json::from_str::<Text<'_>>(raw.get()).ok());
    let kind = text("kind").map_or_else(|| expected.kind.to_owned(), |kind| kind.to_string());
    let api_version = text("apiVersion").map_or_else(|| expected.api_version.to_owned(), |text| text.to_string());
    let metadata_raw = fields.get("metadata").map_or("{}", RawValue::get);
    let metadata: Metadata<'_> = serde_json::from_str(metadata_raw)?;
    let secret = redact::needed(expected.group, &kind, raw.get()) && !keep_secret_values;

    let mut body = String::with_capacity(raw.get().len() + 64);
    let mut out = split::Joined::new(&mut body);
    out.push("apiVersion", &serde_json::to_string(&api_version)?);
    out.push("kind", &serde_json::to_string(&kind)?);
    // Early, where readers find it without going through the rest.
    if let Some(metadata) = fields.get("metadata") {
        out.push("metadata", &split::metadata(metadata.get(), secret)?);
    }
    for (name, value) in fields.iter() {
        match name {
            "apiVersion" | "kind" | "metadata" => {}
            _ if secret => out.push(name, &redact::field(&kind, name, value)?),
            _ => out.push(name, value.get()),
        }
    }
    out.finish();
    let printed = print(expected.group, &kind, body.as_bytes());
    let time = |text: &Option<Text<'_>>| text.as_ref().and_then(|text| unix_seconds(text));
    let owned = |text: Option<Text<'_>>| text.map(|text| text.to_string()).unwrap_or_default();
    let labels = metadata.labels.unwrap_or_default();
    Ok(Draft {
        created: time(&metadata.creation_timestamp),
        deleting: time(&metadata.deletion_timestamp),
        name: metadata.name.to_string(),
        namespace: owned(metadata.namespace),
        uid: owned(metadata.uid),
        resource_version: owned(metadata.resource_version),
        generation: metadata.generation.unwrap_or_default(),
        labels: labels.into_iter().map(|(key, value)| (key, value.unwrap_or_default())).collect(),
        owners: metadata.owner_references.unwrap_or_default(),
        kind,
        printed,
        redacted: secret,
        body: Bytes::from(body),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read_value(value: serde_json::Value, group: &str) -> Draft {
        let text = value.to_string();
        let raw: &RawValue = serde_json::from_str(&text).unwrap();
        read(raw, Expected { group, api_version: "v1", kind: "Pod" }, false).unwrap()
    }

    #[test]
    fn managed_fields_go_and_kind_comes() {
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
        assert_eq!((draft.name.as_str(), draft.printed.node.as_deref()), ("web\"0", Some("n")));
    }

    #[test]
    fn secret_values_never_get_in() {
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
}
