//! Traversal of a custom resource together with its schema. Has no side effects.

use serde_json::Value;

/// Maximum depth of visited values; the decoder rejects deeper objects.
pub(super) const MAX_DEPTH: usize = 200;

/// Calls `visit` with each value in `value` and its schema, containers before their elements. The schema of a value
/// that is not described is null, or the boolean of `additionalProperties`.
pub(super) fn visit_mut(schema: &Value, value: &mut Value, visit: &mut impl FnMut(&Value, &mut Value)) {
    visit_at_depth(schema, value, 0, visit);
}

fn visit_at_depth(schema: &Value, value: &mut Value, depth: usize, visit: &mut impl FnMut(&Value, &mut Value)) {
    if depth > MAX_DEPTH {
        return;
    }
    visit(schema, value);
    match value {
        Value::Array(items) => {
            items.iter_mut().for_each(|item| visit_at_depth(&schema["items"], item, depth + 1, visit));
        }
        Value::Object(members) => {
            for (key, member) in members.iter_mut() {
                let property = schema["properties"].get(key);
                visit_at_depth(property.unwrap_or(&schema["additionalProperties"]), member, depth + 1, visit);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Titles of the schemas with which the numbers in a value are visited.
    fn titles_of_numbers(schema: &Value, value: &Value) -> Vec<(i64, String)> {
        let mut found = Vec::new();
        visit_mut(schema, &mut value.clone(), &mut |schema, value| {
            let title = schema["title"].as_str().unwrap_or_default();
            found.extend(value.as_i64().map(|number| (number, title.to_owned())));
        });
        found
    }

    #[test]
    fn values_are_visited_with_their_schemas() {
        let schema = json!({"properties": {
            "list": {"items": {"title": "item"}},
            "map": {"properties": {"a": {"title": "property"}}, "additionalProperties": {"title": "other"}},
            "open": {"additionalProperties": true},
        }});
        let value = json!({"list": [1], "map": {"a": 2, "b": 3}, "open": {"c": 4}, "unknown": [5]});
        let expected = [(1, "item"), (2, "property"), (3, "other"), (4, ""), (5, "")];
        assert_eq!(titles_of_numbers(&schema, &value), expected.map(|(number, title)| (number, title.to_owned())));
    }

    #[test]
    fn the_depth_is_limited() {
        let nested = |depth: usize| (0..depth).fold(json!(7), |value, _| json!([value]));
        assert_eq!(titles_of_numbers(&Value::Null, &nested(MAX_DEPTH)).len(), 1);
        assert!(titles_of_numbers(&Value::Null, &nested(MAX_DEPTH + 1)).is_empty());
    }
}
