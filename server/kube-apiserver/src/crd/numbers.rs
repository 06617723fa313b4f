//! Numbers of decoded custom resources. Has no side effects.

use crowsnest_apimachinery::yaml::convert_integral_floats;
use serde_json::Value;

use super::traversal::visit_mut;

/// Replaces floats without a fraction with integers where the schema accepts numbers, because Go's JSON encoder prints
/// float64(1) as `1`. Elsewhere they remain floats, which validation refuses as such.
pub(super) fn convert(schema: &Value, value: &mut Value) {
    visit_mut(schema, value, &mut |schema, value| {
        let Value::Number(number) = value else { return };
        let is_float = !number.is_i64();
        let is_refused = schema["x-kubernetes-int-or-string"] == true
            || matches!(schema["type"].as_str(), Some("string" | "boolean" | "object" | "array"));
        match number.as_f64().filter(|_| is_float && is_refused) {
            Some(float) => *value = Value::from(float),
            None => convert_integral_floats(value),
        }
    });
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    #[rstest]
    #[case::integer(json!({"type": "integer"}), json!(1.0), json!(1))]
    #[case::number(json!({"type": "number"}), json!(1.0), json!(1))]
    #[case::any(Value::Null, json!({"a": [1.0, 1.5]}), json!({"a": [1, 1.5]}))]
    #[case::string(json!({"type": "string"}), json!(1.0), json!(1.0))]
    #[case::long(json!({"type": "string"}), json!(u64::MAX), json!(1.8446744073709552e19))]
    #[case::int_or_string(json!({"x-kubernetes-int-or-string": true}), json!(1.0), json!(1.0))]
    #[case::short(json!({"type": "string"}), json!(1), json!(1))]
    #[case::nested(
        json!({"properties": {"l": {"items": {"type": "boolean"}}}, "additionalProperties": {"type": "integer"}}),
        json!({"l": [2.0], "m": 2.0}),
        json!({"l": [2.0], "m": 2})
    )]
    fn floats_remain_where_numbers_are_refused(#[case] schema: Value, #[case] value: Value, #[case] expected: Value) {
        let mut converted = value;
        convert(&schema, &mut converted);
        assert_eq!(converted, expected);
    }
}
