//! Validation of the fields at the paths of the scale subresource. Has no side effects.

use crowsnest_apimachinery::field::FieldError;
use crowsnest_registry::resource::ScalePaths;
use crowsnest_schema::patch::{go_type, go_value};
use serde_json::Value;

/// Validates the replicas in spec and status, and the selector. A write of the status is not validated by its spec.
pub(super) fn validate_scale(paths: &ScalePaths, subresource: &str, object: &Value) -> Vec<FieldError> {
    let spec = (subresource != "status").then(|| validate_replicas(&paths.spec_replicas, object)).flatten();
    let selector = paths.selector.as_deref().and_then(|path| validate_selector(path, object));
    [spec, validate_replicas(&paths.status_replicas, object), selector].into_iter().flatten().collect()
}

/// Validates the number of replicas at a path, such as `.spec.replicas`. It may be missing.
fn validate_replicas(path: &str, object: &Value) -> Option<FieldError> {
    let replicas = match integer_at(path, object) {
        Ok(replicas) => replicas?,
        Err(reason) => return Some(FieldError::invalid(path, &Value::from(0), reason)),
    };
    if replicas < 0 {
        return Some(FieldError::invalid(path, &Value::from(replicas), "should be a non-negative integer"));
    }
    let max = i64::from(i32::MAX);
    let detail = || format!("should be less than or equal to {max}");
    (replicas > max).then(|| FieldError::invalid(path, &Value::from(replicas), detail()))
}

/// Validates that the selector at a path, such as `.status.selector`, is a text. It may be missing.
fn validate_selector(path: &str, object: &Value) -> Option<FieldError> {
    let reason = match value_at(path, object) {
        Ok(Some(value)) if !value.is_string() => accessor_error(&fields(path), value, "string"),
        Ok(_) => return None,
        Err(reason) => reason,
    };
    Some(FieldError::invalid(path, "", reason))
}

/// The integer at a path, with the error of Go's `unstructured.NestedInt64`.
fn integer_at(path: &str, object: &Value) -> Result<Option<i64>, String> {
    let Some(value) = value_at(path, object)? else { return Ok(None) };
    value.as_i64().map(Some).ok_or_else(|| accessor_error(&fields(path), value, "int64"))
}

/// The value at a path, with the error of Go's `unstructured.NestedFieldNoCopy`.
fn value_at<'o>(path: &str, object: &'o Value) -> Result<Option<&'o Value>, String> {
    let fields = fields(path);
    let mut value = object;
    for (depth, field) in fields.iter().enumerate() {
        match value {
            Value::Null => return Ok(None),
            Value::Object(members) => match members.get(*field) {
                Some(member) => value = member,
                None => return Ok(None),
            },
            other => return Err(accessor_error(&fields[..=depth], other, "map[string]interface{}")),
        }
    }
    Ok(Some(value))
}

fn fields(path: &str) -> Vec<&str> {
    path.trim_start_matches('.').split('.').collect()
}

fn accessor_error(fields: &[&str], value: &Value, expected: &str) -> String {
    let at = fields.join(".");
    format!(".{at} accessor error: {} is of the type {}, expected {expected}", go_value(value), go_type(value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::json;

    #[rstest]
    #[case::valid(json!({"replicas": 3}), None)]
    #[case::missing(json!({}), None)]
    #[case::null(json!({"replicas": null}),
        Some(".spec.replicas: Invalid value: 0: .spec.replicas accessor error: <nil> is of the type <nil>, expected int64"))]
    #[case::negative(json!({"replicas": -1}), Some(".spec.replicas: Invalid value: -1: should be a non-negative integer"))]
    #[case::large(json!({"replicas": 4_294_967_296_u64}),
        Some(".spec.replicas: Invalid value: 4294967296: should be less than or equal to 2147483647"))]
    #[case::text(json!({"replicas": "x"}),
        Some(".spec.replicas: Invalid value: 0: .spec.replicas accessor error: x is of the type string, expected int64"))]
    #[case::decimal(json!({"replicas": 1.5}),
        Some(".spec.replicas: Invalid value: 0: .spec.replicas accessor error: 1.5 is of the type float64, expected int64"))]
    fn replicas_are_validated(#[case] spec: Value, #[case] expected: Option<&str>) {
        let found = validate_replicas(".spec.replicas", &json!({"spec": spec})).map(|error| error.to_string());
        assert_eq!(found.as_deref(), expected);
    }

    #[rstest]
    #[case::valid("", 1, json!({"replicas": 1, "selector": "a=b"}), &[])]
    #[case::missing("", 1, json!(null), &[])]
    #[case::replicas_of_spec("", -1, json!({"replicas": 1}), &[".spec.replicas: Invalid value: -1: should be a non-negative integer"])]
    #[case::unchecked_spec("status", -1, json!({"replicas": 1}), &[])]
    #[case::replicas_of_status("status", 1, json!({"replicas": -2}),
        &[".status.replicas: Invalid value: -2: should be a non-negative integer"])]
    #[case::status_of_another_type("status", 1, json!(["a"]), &[
        ".status.replicas: Invalid value: 0: .status.replicas accessor error: [a] is of the type []interface {}, expected map[string]interface{}",
        ".status.selector: Invalid value: \"\": .status.selector accessor error: [a] is of the type []interface {}, expected map[string]interface{}"])]
    #[case::selector_of_another_type("status", 1, json!({"selector": {"app": "a"}}), &[
        ".status.selector: Invalid value: \"\": .status.selector accessor error: map[app:a] is of the type map[string]interface {}, expected string"])]
    fn fields_of_the_scale_are_validated(
        #[case] subresource: &str,
        #[case] replicas: i64,
        #[case] status: Value,
        #[case] expected: &[&str],
    ) {
        let paths = ScalePaths {
            spec_replicas: ".spec.replicas".to_owned(),
            status_replicas: ".status.replicas".to_owned(),
            selector: Some(".status.selector".to_owned()),
        };
        let object = json!({"spec": {"replicas": replicas}, "status": status});
        let errors = validate_scale(&paths, subresource, &object);
        assert_eq!(errors.iter().map(ToString::to_string).collect::<Vec<_>>(), expected);
    }
}
