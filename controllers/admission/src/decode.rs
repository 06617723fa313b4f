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

/// Encodes the object to store. `given` is the object of the request. Its fields that the types of this version do not
/// have are kept, so that during an upgrade the earlier version does not drop fields of the later one.
pub(super) fn encode_changed<K: Kind + Serialize + DeserializeOwned>(
    object: &K,
    given: &Value,
) -> Result<Value, Refusal> {
    let encode = |object: &K| serde_json::to_value(object).map_err(|error| Refusal::internal(error.to_string()));
    let mut kept = encode(object)?;
    // Usually nothing is missing; decoding the object again would double the cost.
    if is_missing(given, &kept) {
        keep_unknown(given, &encode(&decode(given)?)?, &mut kept);
    }
    Ok(kept)
}

/// True if any value of `given` is missing in `kept`. Empty values are ignored.
fn is_missing(given: &Value, kept: &Value) -> bool {
    match (given, kept) {
        (Value::Object(given), Value::Object(kept)) => given.iter().any(|(name, member)| match kept.get(name) {
            Some(kept) => is_missing(member, kept),
            None => !is_empty(member),
        }),
        (Value::Array(given), Value::Array(kept)) => {
            given.iter().zip(kept).any(|(given, kept)| is_missing(given, kept))
        }
        _ => false,
    }
}

/// Copies the fields of `given` that the types do not have into `kept`, the encoded result. `known` is the decoded and
/// encoded `given`. Empty values, which Go's types would omit, are omitted, and lists whose items were added, removed
/// or moved are left unchanged.
pub fn keep_unknown(given: &Value, known: &Value, kept: &mut Value) {
    match (given, known, kept) {
        (Value::Object(given), Value::Object(known), Value::Object(kept)) => {
            for (name, member) in given {
                match (known.get(name), kept.get_mut(name)) {
                    (Some(known), Some(kept)) => keep_unknown(member, known, kept),
                    (None, None) if !is_empty(member) => drop(kept.insert(name.clone(), member.clone())),
                    _ => {}
                }
            }
        }
        (Value::Array(given), Value::Array(known), Value::Array(kept))
            if given.len() == known.len() && are_in_order(known, kept) =>
        {
            for ((given, known), kept) in given.iter().zip(known).zip(kept) {
                keep_unknown(given, known, kept);
            }
        }
        _ => {}
    }
}

/// True if a list has the same number of items as before, and the scalar fields that each item had are unchanged. The
/// items then are in the same order.
fn are_in_order(before: &[Value], now: &[Value]) -> bool {
    let is_same = |(before, now): (&Value, &Value)| match (before.as_object(), now.as_object()) {
        (Some(before), Some(now)) => before
            .iter()
            .filter(|(_, value)| !value.is_object() && !value.is_array())
            .all(|(name, value)| now.get(name) == Some(value)),
        _ => before == now,
    };
    before.len() == now.len() && before.iter().zip(now).all(is_same)
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

/// Encodes the object to store. `lists` names required lists in `spec`. A list that is missing in the request is
/// encoded as null, so that the schema rejects it with Karmada's message.
pub(super) fn encode_changed_with_lists<K: Kind + Serialize + DeserializeOwned>(
    object: &K,
    given: &Value,
    lists: &[&str],
) -> Result<Outcome, Refusal> {
    let mut object = encode_changed(object, given)?;
    for list in lists {
        if given["spec"].get(*list).is_none_or(Value::is_null) {
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
        #[case] given: Value,
        #[case] known: Value,
        #[case] mut kept: Value,
        #[case] expected: Value,
    ) {
        let has_missing = is_missing(&given, &kept);
        let before = kept.clone();
        keep_unknown(&given, &known, &mut kept);
        assert_eq!(kept, expected);
        assert!(has_missing || kept == before, "a missing value must be detected");
    }
}
