//! Access to the metadata of objects in JSON form.

use crowsnest_apimachinery::status::ApiResult;
use serde_json::{Map, Value};

use crate::error_without_reason;

/// Accessors of `metadata` on a JSON object. Missing fields read as empty.
pub trait Object {
    fn metadata(&self) -> Option<&Map<String, Value>>;
    /// Creates `metadata` if it is absent.
    fn metadata_mut(&mut self) -> &mut Map<String, Value>;

    fn meta_text(&self, key: &str) -> &str {
        self.metadata().and_then(|m| m.get(key)).and_then(Value::as_str).unwrap_or_default()
    }
    fn name(&self) -> &str {
        self.meta_text("name")
    }
    fn namespace(&self) -> &str {
        self.meta_text("namespace")
    }
    fn uid(&self) -> &str {
        self.meta_text("uid")
    }
    fn resource_version(&self) -> &str {
        self.meta_text("resourceVersion")
    }
    fn labels(&self) -> Option<&Value> {
        self.metadata()?.get("labels")
    }
    fn finalizers(&self) -> Vec<String> {
        let all = self.metadata().and_then(|m| m.get("finalizers")).and_then(Value::as_array);
        all.into_iter().flatten().filter_map(|f| f.as_str().map(str::to_owned)).collect()
    }
    fn set_finalizers(&mut self, finalizers: Vec<String>) {
        if finalizers.is_empty() {
            self.metadata_mut().remove("finalizers");
        } else {
            self.metadata_mut().insert("finalizers".into(), finalizers.into());
        }
    }
    fn is_deleting(&self) -> bool {
        self.metadata().and_then(|m| m.get("deletionTimestamp")).is_some_and(|t| !t.is_null())
    }
    fn grace_period_seconds(&self) -> Option<i64> {
        self.metadata()?.get("deletionGracePeriodSeconds")?.as_i64()
    }
    fn generation(&self) -> i64 {
        self.metadata().and_then(|m| m.get("generation")).and_then(Value::as_i64).unwrap_or(0)
    }
}

impl Object for Value {
    fn metadata(&self) -> Option<&Map<String, Value>> {
        self.get("metadata").and_then(Value::as_object)
    }

    fn metadata_mut(&mut self) -> &mut Map<String, Value> {
        if !self.is_object() {
            *self = Value::Object(Map::new());
        }
        let Value::Object(members) = self else { unreachable!("made an object above") };
        let metadata = members.entry("metadata").or_insert_with(|| Value::Object(Map::new()));
        if !metadata.is_object() {
            *metadata = Value::Object(Map::new());
        }
        match metadata {
            Value::Object(metadata) => metadata,
            _ => unreachable!("made an object above"),
        }
    }
}

/// The resourceVersion of an object as kube-apiserver parses it; 0 if it is empty.
pub(crate) fn parse_object_version(object: &Value) -> ApiResult<u64> {
    let version = object.resource_version();
    if version.is_empty() {
        return Ok(0);
    }
    // Go accepts no sign.
    let has_only_digits = version.bytes().all(|byte| byte.is_ascii_digit());
    let number = version.parse::<u64>().ok().filter(|_| has_only_digits);
    let reason = if has_only_digits { "value out of range" } else { "invalid syntax" };
    number.ok_or_else(|| error_without_reason(format!("strconv.ParseUint: parsing {version:?}: {reason}")))
}

/// Formats a `metav1.Time`: UTC, whole seconds.
pub fn format_time(at: jiff::Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}
