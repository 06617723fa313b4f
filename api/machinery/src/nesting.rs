//! Limit of the nesting depth of stored objects, so that every reader can parse them.

use serde_json::Value;

/// Maximum depth of the innermost value, where the object itself has depth 0. `serde_json` parses 128 levels; 8 of them
/// are reserved for objects that contain the stored one: lists, watch events, reviews, Works.
pub const MAX_DEPTH: usize = 120;

/// True if some value within `value` has a greater depth than `depth`, where `value` itself has depth 0.
pub fn exceeds_depth(value: &Value, depth: usize) -> bool {
    let inner = |value: &Value| match depth.checked_sub(1) {
        Some(remaining_depth) => exceeds_depth(value, remaining_depth),
        None => true,
    };
    match value {
        Value::Array(items) => items.iter().any(inner),
        Value::Object(fields) => fields.values().any(inner),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::json;

    #[rstest]
    #[case::text(json!("a"), 0, false)]
    #[case::empty(json!({}), 0, false)]
    #[case::too_deep(json!({"a": 1}), 0, true)]
    #[case::at_the_limit(json!({"a": [1]}), 2, false)]
    #[case::in_a_list(json!([[], [[1]]]), 2, true)]
    fn deeper_values_are_found(#[case] value: Value, #[case] depth: usize, #[case] expected: bool) {
        assert_eq!(exceeds_depth(&value, depth), expected);
    }
}
