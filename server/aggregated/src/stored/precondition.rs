//! The resourceVersion that a write expects: the write fails with a conflict if the object has another one. Has no side
//! effects.

use crowsnest_apimachinery::status::ApiError;
use serde_json::{Value, json};

/// JSON pointer of an object's resourceVersion.
pub(super) const RESOURCE_VERSION_POINTER: &str = "/metadata/resourceVersion";

/// True if a body expects a certain resourceVersion. The last operation of a JSON patch that sets, tests or
/// removes the field or one of its parents decides.
pub(super) fn expects_version(body: &Value) -> bool {
    match body {
        Value::Array(operations) => {
            let concerns = |path: &Value| {
                path.as_str().is_some_and(|path| matches!(path, "" | "/metadata" | RESOURCE_VERSION_POINTER))
            };
            let last = operations.iter().rfind(|operation| {
                // A test of a parent changes nothing.
                let is_test_of_parent = operation["op"] == "test" && operation["path"] != RESOURCE_VERSION_POINTER;
                !is_test_of_parent && concerns(&operation["path"])
                    || (operation["op"] == "move" && concerns(&operation["from"]))
            });
            last.is_some_and(|operation| {
                let value = &operation["value"];
                let version = match operation["path"].as_str() {
                    Some("") => value.pointer(RESOURCE_VERSION_POINTER),
                    Some("/metadata") => value.get("resourceVersion"),
                    Some(RESOURCE_VERSION_POINTER) => Some(value),
                    _ => None,
                };
                operation["op"] != "remove" && version.is_some_and(is_version)
            })
        }
        object => object.pointer(RESOURCE_VERSION_POINTER).is_some_and(is_version),
    }
}

/// An empty resourceVersion and "0" match any version, as in kube-apiserver.
fn is_version(value: &Value) -> bool {
    value.as_str().is_some_and(|version| !matches!(version, "" | "0"))
}

/// Sets the resourceVersion that a body expects: an object, a patch with the form of an object, or a JSON patch.
pub(super) fn set_expected_version(body: &mut Value, version: &str) -> Result<(), ApiError> {
    match body {
        Value::Array(operations) => {
            operations.push(json!({"op": "add", "path": RESOURCE_VERSION_POINTER, "value": version}))
        }
        Value::Object(fields) => {
            let metadata = fields.entry("metadata").or_insert_with(|| json!({})).as_object_mut();
            let metadata = metadata.ok_or_else(|| ApiError::bad_request("metadata must be an object"))?;
            metadata.insert("resourceVersion".to_owned(), version.into());
        }
        _ => return Err(ApiError::bad_request("a patch must be an object, or a list of operations")),
    }
    Ok(())
}

/// Sets the resourceVersion of `object`, if it names one, to that of `written`, which was written before it.
pub(super) fn copy_version(object: &mut Value, written: &Value) {
    if !expects_version(object) {
        return;
    }
    if let (Some(version), Some(current)) =
        (object.pointer_mut(RESOURCE_VERSION_POINTER), written.pointer(RESOURCE_VERSION_POINTER))
    {
        version.clone_from(current);
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::object(json!({"metadata": {"resourceVersion": "7"}}), true)]
    #[case::no_metadata(json!({}), false)]
    #[case::empty(json!({"metadata": {"resourceVersion": ""}}), false)]
    #[case::any(json!({"metadata": {"resourceVersion": "0"}}), false)]
    #[case::null(json!({"metadata": {"resourceVersion": null}}), false)]
    #[case::scalar(json!("7"), false)]
    #[case::added(json!([{"op": "add", "path": RESOURCE_VERSION_POINTER, "value": "7"}]), true)]
    #[case::tested(json!([{"op": "test", "path": RESOURCE_VERSION_POINTER, "value": "7"}]), true)]
    #[case::any_added(json!([{"op": "replace", "path": RESOURCE_VERSION_POINTER, "value": "0"}]), false)]
    #[case::removed(json!([{"op": "remove", "path": RESOURCE_VERSION_POINTER}]), false)]
    #[case::added_and_removed(
        json!([{"op": "add", "path": RESOURCE_VERSION_POINTER, "value": "7"}, {"op": "remove", "path": RESOURCE_VERSION_POINTER}]), false
    )]
    #[case::removed_and_added(
        json!([{"op": "remove", "path": RESOURCE_VERSION_POINTER}, {"op": "add", "path": RESOURCE_VERSION_POINTER, "value": "7"}]), true
    )]
    #[case::replaced_with_its_parent(
        json!([{"op": "add", "path": RESOURCE_VERSION_POINTER, "value": "7"}, {"op": "replace", "path": "/metadata", "value": {}}]), false
    )]
    #[case::replaced_within_its_parent(
        json!([{"op": "replace", "path": "/metadata", "value": {"resourceVersion": "7"}}]), true
    )]
    #[case::replaced_within_the_object(
        json!([{"op": "replace", "path": "", "value": {"metadata": {"resourceVersion": "7"}}}]), true
    )]
    #[case::added_before_a_test_of_its_parent(
        json!([
            {"op": "add", "path": RESOURCE_VERSION_POINTER, "value": "7"},
            {"op": "test", "path": "/metadata", "value": {"resourceVersion": "7"}}
        ]),
        true
    )]
    #[case::moved_away(
        json!([
            {"op": "add", "path": RESOURCE_VERSION_POINTER, "value": "7"},
            {"op": "move", "from": RESOURCE_VERSION_POINTER, "path": "/metadata/annotations/version"}
        ]),
        false
    )]
    #[case::another_field(json!([{"op": "add", "path": "/metadata/labels", "value": {}}]), false)]
    fn expected_versions_are_recognized(#[case] body: Value, #[case] expected: bool) {
        assert_eq!(expects_version(&body), expected);
    }

    #[rstest]
    #[case::merge(json!({"spec": {}}), Some(json!({"spec": {}, "metadata": {"resourceVersion": "7"}})))]
    #[case::replaced(json!({"metadata": {"resourceVersion": "0"}}), Some(json!({"metadata": {"resourceVersion": "7"}})))]
    #[case::json_patch(json!([]), Some(json!([{"op": "add", "path": "/metadata/resourceVersion", "value": "7"}])))]
    #[case::metadata_of_another_type(json!({"metadata": null}), None)]
    #[case::scalar(json!("7"), None)]
    fn expected_versions_are_set(#[case] mut body: Value, #[case] expected: Option<Value>) {
        assert_eq!(set_expected_version(&mut body, "7").ok().map(|()| body), expected);
    }

    #[rstest]
    #[case::named(json!({"metadata": {"resourceVersion": "3"}}), json!({"metadata": {"resourceVersion": "4"}}))]
    #[case::any(json!({"metadata": {"resourceVersion": ""}}), json!({"metadata": {"resourceVersion": ""}}))]
    #[case::unnamed(json!({"metadata": {}}), json!({"metadata": {}}))]
    fn versions_are_copied(#[case] mut object: Value, #[case] expected: Value) {
        copy_version(&mut object, &json!({"metadata": {"resourceVersion": "4"}}));
        assert_eq!(object, expected);
    }
}
