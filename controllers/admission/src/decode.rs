//! Decoding and encoding objects as leniently as Go.

use crowsnest_api::Kind;
use crowsnest_apimachinery::unstructured;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{Outcome, Refusal};

/// Decodes an object. Null counts as absent; a value of the wrong type is rejected with Go's message.
pub(super) fn decode<K: Kind + DeserializeOwned>(object: &Value) -> Result<K, Refusal> {
    let error = match K::deserialize(object) {
        Ok(decoded) => return Ok(decoded),
        Err(error) => error,
    };
    K::deserialize(&unstructured::remove_nulls(object.clone())).map_err(|_| {
        Refusal::bad_request(crowsnest_api::crd::find_type_mismatch::<K>(object).unwrap_or_else(|| error.to_string()))
    })
}

/// Encodes the object to store. Fields of the request's object that the types of this version do not have are kept, so
/// that during an upgrade the earlier version does not drop fields of the later one.
pub(super) fn encode_changed<K: Kind + Serialize + DeserializeOwned>(
    object: &K,
    request_object: &Value,
) -> Result<Value, Refusal> {
    let encode = |object: &K| serde_json::to_value(object).map_err(|error| Refusal::internal(error.to_string()));
    let mut encoded = encode(object)?;
    // Usually nothing is missing; decoding the object again would double the cost.
    if has_missing_values(request_object, &encoded) {
        copy_unknown_fields(request_object, &encode(&decode(request_object)?)?, &mut encoded);
    }
    Ok(encoded)
}

/// True if a value of the original is missing in the encoded object. Empty values are ignored.
fn has_missing_values(original: &Value, encoded: &Value) -> bool {
    match (original, encoded) {
        (Value::Object(original), Value::Object(encoded)) => {
            original.iter().any(|(name, member)| match encoded.get(name) {
                Some(encoded) => has_missing_values(member, encoded),
                None => !is_empty(member),
            })
        }
        (Value::Array(original), Value::Array(encoded)) => {
            original.iter().zip(encoded).any(|(original, encoded)| has_missing_values(original, encoded))
        }
        _ => false,
    }
}

/// Copies the fields of the original that the types do not have into the encoded result. `decoded` is the original
/// after decoding and encoding it. Empty values, which Go's types would omit, are omitted, and lists whose items were
/// added, removed or moved are left unchanged.
pub fn copy_unknown_fields(original: &Value, decoded: &Value, encoded: &mut Value) {
    match (original, decoded, encoded) {
        (Value::Object(original), Value::Object(decoded), Value::Object(encoded)) => {
            for (name, member) in original {
                match (decoded.get(name), encoded.get_mut(name)) {
                    (Some(decoded), Some(encoded)) => copy_unknown_fields(member, decoded, encoded),
                    (None, None) if !is_empty(member) => drop(encoded.insert(name.clone(), member.clone())),
                    _ => {}
                }
            }
        }
        (Value::Array(original), Value::Array(decoded), Value::Array(encoded))
            if original.len() == decoded.len() && are_in_order(decoded, encoded) =>
        {
            for ((original, decoded), encoded) in original.iter().zip(decoded).zip(encoded) {
                copy_unknown_fields(original, decoded, encoded);
            }
        }
        _ => {}
    }
}

/// True if a list has the same number of items as before, and the scalar fields that each item had are unchanged. The
/// items then are in the same order.
fn are_in_order(before: &[Value], after: &[Value]) -> bool {
    let is_same = |(before, after): (&Value, &Value)| match (before.as_object(), after.as_object()) {
        (Some(before), Some(after)) => before
            .iter()
            .filter(|(_, value)| !value.is_object() && !value.is_array())
            .all(|(name, value)| after.get(name) == Some(value)),
        _ => before == after,
    };
    before.len() == after.len() && before.iter().zip(after).all(is_same)
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(value) => !value,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(members) => members.values().all(is_empty),
    }
}

/// Encodes the object to store. `lists` names the required lists in `spec`. A list that is missing in the request is
/// encoded as null, so that the schema rejects it with Karmada's message.
pub(super) fn encode_changed_with_lists<K: Kind + Serialize + DeserializeOwned>(
    object: &K,
    request_object: &Value,
    lists: &[&str],
) -> Result<Outcome, Refusal> {
    let mut object = encode_changed(object, request_object)?;
    for list in lists {
        if request_object["spec"].get(*list).is_none_or(Value::is_null) {
            object["spec"][*list] = Value::Null;
        }
    }
    Ok(Outcome::Changed(object))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::json;

    #[rstest]
    #[case::field(json!({"a": 1, "new": "x"}), json!({"a": 1}), json!({"a": 1, "b": 2}), json!({"a": 1, "b": 2, "new": "x"}))]
    #[case::nested_field(json!({"a": {"new": [1]}}), json!({"a": {}}), json!({"a": {"b": 2}}), json!({"a": {"b": 2, "new": [1]}}))]
    #[case::field_in_a_list(json!([{"new": 1}, {}]), json!([{}, {}]), json!([{"b": 1}, {"b": 2}]), json!([{"b": 1, "new": 1}, {"b": 2}]))]
    #[case::list_with_an_added_item(json!([{"new": 1}]), json!([{}]), json!([{}, {}]), json!([{}, {}]))]
    #[case::sorted_list(json!([{"a": 1, "new": 1}, {"a": 0}]), json!([{"a": 1}, {"a": 0}]), json!([{"a": 0}, {"a": 1}]), json!([{"a": 0}, {"a": 1}]))]
    #[case::removed_fields_are_not_restored(json!({"a": 1}), json!({"a": 1}), json!({}), json!({}))]
    #[case::empty_values_are_omitted(json!({"a": "", "b": {"c": []}, "d": false, "e": 0, "f": null}), json!({}), json!({}), json!({}))]
    fn unknown_fields_are_kept(
        #[case] original: Value,
        #[case] decoded: Value,
        #[case] mut encoded: Value,
        #[case] expected: Value,
    ) {
        let has_missing = has_missing_values(&original, &encoded);
        let before = encoded.clone();
        copy_unknown_fields(&original, &decoded, &mut encoded);
        assert_eq!(encoded, expected);
        assert!(has_missing || encoded == before, "a missing value must be detected");
    }
}
