//! Bodies of writes under admission: the objects and options in them, and the changes that admission requires. Has no
//! side effects.

use bytes::Bytes;
use crowsnest_apimachinery::request::Query;
use crowsnest_apimachinery::request::options::DeleteOptions;
use crowsnest_apimachinery::status::ApiError;
use crowsnest_apimachinery::yaml;
use crowsnest_process::reply::Body;
use crowsnest_schema::patch::merge_patch;
use http::{HeaderMap, HeaderValue, Method, Request, header};
use serde_json::{Map, Value, json};

use super::precondition::{RESOURCE_VERSION_POINTER, copy_version, expects_version, set_expected_version};
use super::writer::{ACCEPT_JSON, is_apply};
use super::{BodyFormat, body_format};

const JSON_MEDIA_TYPE: HeaderValue = HeaderValue::from_static("application/json");
/// Metadata that the API server sets when it stores an object.
const SERVER_SET_METADATA: [&str; 4] = ["uid", "creationTimestamp", "resourceVersion", "generation"];

/// A request with its complete body.
#[derive(Debug, Clone)]
pub(super) struct BufferedRequest {
    pub(super) method: Method,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

impl BufferedRequest {
    /// A GET without headers.
    pub(super) fn get() -> Self {
        Self { method: Method::GET, headers: HeaderMap::new(), body: Bytes::new() }
    }

    pub(super) fn request(&self) -> Request<Body> {
        let mut request = Request::new(Body::from(self.body.clone()));
        request.method_mut().clone_from(&self.method);
        request.headers_mut().clone_from(&self.headers);
        request
    }

    /// The request with an `Accept` header for JSON.
    pub(super) fn accepting_json(&self) -> Self {
        let mut buffered = self.clone();
        buffered.headers.insert(header::ACCEPT, ACCEPT_JSON);
        buffered
    }

    pub(super) fn is_apply(&self) -> bool {
        self.method == Method::PATCH && is_apply(self.headers.get(header::CONTENT_TYPE))
    }

    /// The body as a value; `None` if it has another format or is invalid, which the control plane reports.
    fn parse_body(&self) -> Option<Value> {
        match body_format(&self.headers) {
            BodyFormat::Yaml => yaml::parse(std::str::from_utf8(&self.body).ok()?).ok(),
            BodyFormat::Json | BodyFormat::JsonPatch => serde_json::from_slice(&self.body).ok(),
            BodyFormat::Other => None,
        }
    }

    /// The object in the body of a create, a replacement, or a patch with the form of an object.
    pub(super) fn object(&self) -> Option<Value> {
        self.parse_body().filter(Value::is_object)
    }

    /// The request with another body, which is JSON. Patches keep their media type.
    fn with_value(mut self, value: &Value) -> Self {
        self.body = Bytes::from(value.to_string());
        if self.method != Method::PATCH {
            self.headers.insert(header::CONTENT_TYPE, JSON_MEDIA_TYPE);
        }
        self
    }

    /// True if the request names the resourceVersion that it expects.
    pub(super) fn expects_version(&self) -> bool {
        self.parse_body().is_some_and(|body| expects_version(&body))
    }

    /// The request with the resourceVersion of `live` as a precondition, unless it has one.
    pub(super) fn with_expected_version(&self, live: &Value) -> Result<Self, ApiError> {
        let version = live.pointer(RESOURCE_VERSION_POINTER).and_then(Value::as_str);
        let body = self.parse_body().filter(|body| (body.is_object() || body.is_array()) && !expects_version(body));
        // The control plane refuses other bodies with its own message.
        let (Some(version), Some(mut body)) = (version, body) else { return Ok(self.clone()) };
        set_expected_version(&mut body, version)?;
        Ok(self.clone().with_value(&body))
    }

    /// Changes the request so that its result is `changed` instead of `base`. An apply patch also applies the changes;
    /// other patches become a replacement. The control plane records the managers of fields.
    pub(super) fn with_result(mut self, base: &Value, mut changed: Value) -> Result<Self, ApiError> {
        if self.is_apply() {
            let configuration = self.object().unwrap_or_default();
            let difference = difference(base, &changed);
            return Ok(self.with_value(&merge_patch(&configuration, &difference)?));
        }
        if let Some(metadata) = changed["metadata"].as_object_mut() {
            metadata.remove("managedFields");
        }
        if self.method == Method::PATCH {
            self.method = Method::PUT;
        }
        Ok(self.with_value(&changed))
    }

    /// A new object for mutating admission, without the metadata that the API server sets later.
    pub(super) fn without_identity(&self, object: &Value) -> Value {
        let mut object = object.clone();
        let is_named = self.object().is_none_or(|buffered| has_name(&buffered)) || self.method == Method::PATCH;
        if let Some(metadata) = object["metadata"].as_object_mut() {
            metadata.retain(|key, _| !SERVER_SET_METADATA.contains(&key.as_str()) && (is_named || key != "name"));
        }
        object
    }

    /// The request with the name that was generated for the admitted object, if it creates an object without a name.
    pub(super) fn with_generated_name(self, admitted: &Value) -> Self {
        match self.object() {
            Some(mut object) if self.method == Method::POST && !has_name(&object) => {
                set_metadata(&mut object, "name", admitted["metadata"]["name"].clone());
                self.with_value(&object)
            }
            _ => self,
        }
    }

    /// True if the body of a status write has fields of the object itself.
    pub(super) fn has_more_than_status(&self) -> bool {
        self.object().is_some_and(|object| has_other_fields(&object))
    }

    /// The status write without changes of the object itself: a replacement has the other fields of the stored object,
    /// because it must be complete, and a patch has none.
    pub(super) fn status_only(self, live: &Value) -> Self {
        let Some(mut object) = self.object() else { return self };
        if let Some(fields) = object.as_object_mut() {
            fields.retain(|key, _| !is_other_field(key));
            let stored = live.as_object().filter(|_| self.method == Method::PUT).into_iter().flatten();
            let others = stored.filter(|(key, _)| is_other_field(key));
            fields.extend(others.map(|(key, value)| (key.clone(), value.clone())));
        }
        self.with_value(&object)
    }

    /// Sets the resourceVersion, if the request has one, to that of the written object.
    pub(super) fn update_version(&mut self, written: &Value) {
        if let Some(mut object) = self.object().filter(expects_version) {
            copy_version(&mut object, written);
            *self = self.clone().with_value(&object);
        }
    }

    /// The options of a deletion. Those in a body that this server cannot read are left to the control plane.
    pub(super) fn delete_options(&self, query: &Query) -> Result<DeleteOptions, ApiError> {
        let body = self.object();
        match body.is_none() && !self.body.is_empty() {
            true => DeleteOptions::parse(Some(json!({})), query),
            false => DeleteOptions::parse(body, query),
        }
    }

    /// The deletion with the resourceVersion of `live` as a precondition, unless the options have one.
    pub(super) fn deletion(&self, options: &DeleteOptions, live: &Value) -> Self {
        let is_readable = self.body.is_empty() || self.object().is_some();
        if !is_readable || options.preconditions.resource_version.is_some() {
            return self.clone();
        }
        let mut raw = options.raw.clone();
        raw["apiVersion"] = "v1".into();
        raw["kind"] = "DeleteOptions".into();
        if !raw["preconditions"].is_object() {
            raw["preconditions"] = json!({});
        }
        raw["preconditions"]["resourceVersion"] = live.pointer(RESOURCE_VERSION_POINTER).cloned().unwrap_or_default();
        self.clone().with_value(&raw)
    }
}

fn has_name(object: &Value) -> bool {
    object.pointer("/metadata/name").and_then(Value::as_str).is_some_and(|name| !name.is_empty())
}

/// True if a write to the status has fields of the object itself.
pub(super) fn has_other_fields(object: &Value) -> bool {
    object.as_object().is_some_and(|fields| fields.keys().any(|key| is_other_field(key)))
}

fn is_other_field(key: &str) -> bool {
    !matches!(key, "apiVersion" | "kind" | "metadata" | "status")
}

fn set_metadata(object: &mut Value, key: &str, value: Value) {
    if !object["metadata"].is_object() {
        object["metadata"] = json!({});
    }
    object["metadata"][key] = value;
}

/// The merge patch that turns `before` into `after`, without the managers of fields.
fn difference(before: &Value, after: &Value) -> Value {
    let (Value::Object(old), Value::Object(new)) = (before, after) else { return after.clone() };
    let mut changes = Map::new();
    for (key, value) in new.iter().filter(|(key, _)| *key != "managedFields") {
        match old.get(key) {
            Some(before) if before == value => {}
            Some(before) => drop(changes.insert(key.clone(), difference(before, value))),
            None => drop(changes.insert(key.clone(), value.clone())),
        }
    }
    let removed = old.keys().filter(|key| !new.contains_key(*key) && *key != "managedFields");
    changes.extend(removed.map(|key| (key.clone(), Value::Null)));
    Value::Object(changes)
}

/// True if two states of an object differ at most in their status and in metadata that each write changes.
pub(super) fn differs_in_status_only(before: &Value, after: &Value) -> bool {
    let without_status = |object: &Value| {
        let mut object = object.clone();
        if let Some(fields) = object.as_object_mut() {
            fields.remove("status");
        }
        if let Some(metadata) = object["metadata"].as_object_mut() {
            metadata.remove("managedFields");
            metadata.remove("resourceVersion");
        }
        object
    };
    without_status(before) == without_status(after)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const MERGE: &str = "application/merge-patch+json";
    const APPLY: &str = "application/apply-patch+yaml";

    fn buffered(method: &str, media_type: &'static str, body: &str) -> BufferedRequest {
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(media_type));
        BufferedRequest { method: method.parse().unwrap(), headers, body: Bytes::from(body.to_owned()) }
    }

    fn body(buffered: &BufferedRequest) -> Value {
        serde_json::from_slice(&buffered.body).unwrap()
    }

    #[rstest]
    #[case::replacement("PUT", "application/yaml", "metadata: {name: a}", json!({"metadata": {"name": "a", "resourceVersion": "7"}}))]
    #[case::version_in_the_request("PUT", "application/json", r#"{"metadata":{"resourceVersion":"3"}}"#,
        json!({"metadata": {"resourceVersion": "3"}}))]
    #[case::any_version_in_the_request("PUT", "application/json", r#"{"metadata":{"resourceVersion":"0"}}"#,
        json!({"metadata": {"resourceVersion": "7"}}))]
    #[case::merge("PATCH", MERGE, r#"{"spec":{}}"#, json!({"spec": {}, "metadata": {"resourceVersion": "7"}}))]
    #[case::json_patch("PATCH", "application/json-patch+json", "[]",
        json!([{"op": "add", "path": "/metadata/resourceVersion", "value": "7"}]))]
    #[case::apply("PATCH", APPLY, "spec: {}", json!({"spec": {}, "metadata": {"resourceVersion": "7"}}))]
    fn writes_name_the_admitted_version(
        #[case] method: &str,
        #[case] media_type: &'static str,
        #[case] text: &str,
        #[case] expected: Value,
    ) {
        let live = json!({"metadata": {"resourceVersion": "7"}});
        assert_eq!(body(&buffered(method, media_type, text).with_expected_version(&live).unwrap()), expected);
    }

    #[rstest]
    #[case::create("POST", "application/json", "POST", json!({"metadata": {"labels": {"a": "1"}}, "spec": {"region": "east"}}))]
    #[case::merge("PATCH", MERGE, "PUT", json!({"metadata": {"labels": {"a": "1"}}, "spec": {"region": "east"}}))]
    #[case::apply("PATCH", APPLY, "PATCH", json!({"metadata": {"labels": {"a": "1"}}, "spec": {"provider": "p"}}))]
    fn changes_of_admission_become_part_of_the_write(
        #[case] method: &str,
        #[case] media_type: &'static str,
        #[case] expected_method: &str,
        #[case] expected: Value,
    ) {
        let base = json!({"metadata": {"managedFields": [1]}, "spec": {"region": "east", "zone": "z"}});
        let changed = json!({"metadata": {"managedFields": [1], "labels": {"a": "1"}}, "spec": {"region": "east"}});
        let write = buffered(method, media_type, r#"{"spec": {"provider": "p", "zone": "z"}}"#);
        let replaced = write.with_result(&base, changed).unwrap();
        assert_eq!((replaced.method.as_str(), body(&replaced)), (expected_method, expected));
    }

    #[test]
    fn generated_names_are_those_that_were_admitted() {
        let write = buffered("POST", "application/json", r#"{"metadata":{"generateName":"a-"}}"#);
        let result = json!({"metadata": {"generateName": "a-", "name": "a-x", "uid": "u", "labels": {}}});
        let metadata = json!({"metadata": {"generateName": "a-", "labels": {}}});
        assert_eq!(write.without_identity(&result), metadata);
        assert_eq!(
            body(&write.with_generated_name(&result)),
            json!({"metadata": {"generateName": "a-", "name": "a-x"}})
        );
    }

    #[rstest]
    #[case::nothing("", json!({"preconditions": {"resourceVersion": "7"}, "apiVersion": "v1", "kind": "DeleteOptions"}))]
    #[case::uid(r#"{"preconditions":{"uid":"u"},"dryRun":["All"]}"#,
        json!({"preconditions": {"uid": "u", "resourceVersion": "7"}, "dryRun": ["All"], "apiVersion": "v1", "kind": "DeleteOptions"}))]
    #[case::version(r#"{"preconditions":{"resourceVersion":"3"}}"#, json!({"preconditions": {"resourceVersion": "3"}}))]
    fn deletions_name_the_admitted_version(#[case] text: &str, #[case] expected: Value) {
        let deletion = buffered("DELETE", "application/json", text);
        let options = deletion.delete_options(&Query::default()).unwrap();
        let live = json!({"metadata": {"resourceVersion": "7"}});
        assert_eq!(body(&deletion.deletion(&options, &live)), expected);
    }

    #[test]
    fn options_that_cannot_be_read_are_left_to_the_control_plane() {
        let deletion = buffered("DELETE", "application/vnd.kubernetes.protobuf", "k8s");
        let options = deletion.delete_options(&Query::default()).unwrap();
        assert_eq!(deletion.deletion(&options, &json!({})).body, deletion.body);
    }

    #[rstest]
    #[case::replacement("PUT", "application/json", r#"{"spec":{"a":2},"status":{"b":1}}"#, json!({"spec": {"a": 1}, "status": {"b": 1}}))]
    #[case::replacement_without_a_spec("PUT", "application/yaml", "status: {b: 1}", json!({"spec": {"a": 1}, "status": {"b": 1}}))]
    #[case::merge("PATCH", MERGE, r#"{"spec":{"a":2},"status":{"b":1}}"#, json!({"status": {"b": 1}}))]
    #[case::apply("PATCH", APPLY, "{spec: {a: 2}, status: {b: 1}}", json!({"status": {"b": 1}}))]
    #[case::json_patch("PATCH", "application/json-patch+json", "[]", json!([]))]
    fn status_writes_do_not_change_the_object_itself(
        #[case] method: &str,
        #[case] media_type: &'static str,
        #[case] text: &str,
        #[case] expected: Value,
    ) {
        let live = json!({"metadata": {"name": "a"}, "spec": {"a": 1}, "status": {"b": 0}});
        assert_eq!(body(&buffered(method, media_type, text).status_only(&live)), expected);
    }

    #[test]
    fn a_status_write_follows_the_write_of_the_object() {
        let mut write =
            buffered("PUT", "application/json", r#"{"metadata":{"resourceVersion":"3"},"spec":{},"status":{}}"#);
        assert!(write.has_more_than_status());
        write.update_version(&json!({"metadata": {"resourceVersion": "4"}}));
        assert_eq!(body(&write), json!({"metadata": {"resourceVersion": "4"}, "spec": {}, "status": {}}));
    }

    #[rstest]
    #[case::status(json!({"metadata": {"resourceVersion": "2"}, "spec": {"a": 1}, "status": {"b": 2}}), true)]
    #[case::spec(json!({"metadata": {"resourceVersion": "2"}, "spec": {"a": 2}}), false)]
    #[case::labels(json!({"metadata": {"labels": {}}, "spec": {"a": 1}}), false)]
    fn changes_of_the_status_do_not_change_the_object(#[case] after: Value, #[case] expected: bool) {
        let before = json!({"metadata": {"resourceVersion": "1"}, "spec": {"a": 1}});
        assert_eq!(differs_in_status_only(&before, &after), expected);
    }
}
