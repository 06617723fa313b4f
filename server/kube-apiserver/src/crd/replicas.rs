//! Validation of the replicas at the paths of the scale subresource. Pure.

use crowsnest_apimachinery::field::FieldError;
use crowsnest_schema::patch::{go_type, go_value};
use serde_json::Value;

/// Validates the number of replicas at a path, such as `.spec.replicas`. It may be missing.
pub(super) fn validate(path: &str, object: &Value) -> Option<FieldError> {
    let replicas = match integer_at(path, object) {
        Ok(replicas) => replicas?,
        Err(why) => return Some(FieldError::invalid(path, &Value::from(0), why)),
    };
    if replicas < 0 {
        return Some(FieldError::invalid(path, &Value::from(replicas), "should be a non-negative integer"));
    }
    let max = i64::from(i32::MAX);
    let detail = || format!("should be less than or equal to {max}");
    (replicas > max).then(|| FieldError::invalid(path, &Value::from(replicas), detail()))
}

/// The integer at a path, with the error of Go's `unstructured.NestedInt64`.
fn integer_at(path: &str, object: &Value) -> Result<Option<i64>, String> {
    let fields: Vec<&str> = path.trim_start_matches('.').split('.').collect();
    let accessor_error = |depth: usize, value: &Value, expected: &str| {
        let at = fields[..depth].join(".");
        format!(".{at} accessor error: {} is of the type {}, expected {expected}", go_value(value), go_type(value))
    };
    let mut value = object;
    for (depth, field) in fields.iter().enumerate() {
        let Value::Object(members) = value else {
            return Err(accessor_error(depth + 1, value, "map[string]interface{}"));
        };
        match members.get(*field) {
            None | Some(Value::Null) => return Ok(None),
            Some(member) => value = member,
        }
    }
    value.as_i64().map(Some).ok_or_else(|| accessor_error(fields.len(), value, "int64"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::json;

    #[rstest]
    #[case::valid(json!({"replicas": 3}), None)]
    #[case::missing(json!({}), None)]
    #[case::null(json!({"replicas": null}), None)]
    #[case::negative(json!({"replicas": -1}), Some(".spec.replicas: Invalid value: -1: should be a non-negative integer"))]
    #[case::large(json!({"replicas": 4_294_967_296_u64}),
        Some(".spec.replicas: Invalid value: 4294967296: should be less than or equal to 2147483647"))]
    #[case::text(json!({"replicas": "x"}),
        Some(".spec.replicas: Invalid value: 0: .spec.replicas accessor error: x is of the type string, expected int64"))]
    #[case::decimal(json!({"replicas": 1.5}),
        Some(".spec.replicas: Invalid value: 0: .spec.replicas accessor error: 1.5 is of the type float64, expected int64"))]
    fn replicas_are_validated(#[case] spec: Value, #[case] expected: Option<&str>) {
        let found = validate(".spec.replicas", &json!({"spec": spec})).map(|error| error.to_string());
        assert_eq!(found.as_deref(), expected);
    }
}
