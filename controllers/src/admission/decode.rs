//! Objects into types and back, as leniently as Go does it.

use crowsnest_api::Kind;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{Outcome, Refusal};

/// The object as its type. A null counts as an absent field; a wrong type is refused in Go's words.
pub(super) fn decode<K: Kind + DeserializeOwned>(object: &Value) -> Result<K, Refusal> {
    let error = match K::deserialize(object) {
        Ok(decoded) => return Ok(decoded),
        Err(error) => error,
    };
    let mut without_nulls = object.clone();
    drop_nulls(&mut without_nulls);
    K::deserialize(&without_nulls).map_err(|_| {
        Refusal::bad_request(crowsnest_api::crd::mismatch::<K>(object).unwrap_or_else(|| error.to_string()))
    })
}

fn drop_nulls(value: &mut Value) {
    match value {
        Value::Object(members) => {
            members.retain(|_, member| !member.is_null());
            members.values_mut().for_each(drop_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(drop_nulls),
        _ => {}
    }
}

/// The object to store instead.
pub(super) fn changed<K: Serialize>(object: &K) -> Result<Value, Refusal> {
    serde_json::to_value(object).map_err(|error| Refusal::internal(error.to_string()))
}

/// The object to store instead, with the lists that are required but were not given written as null: that is how the
/// schema check comes to say what it says about them.
pub(super) fn changed_with_lists<K: Serialize>(object: &K, given: &Value, lists: &[&str]) -> Result<Outcome, Refusal> {
    let mut object = changed(object)?;
    for list in lists {
        if given["spec"].get(*list).is_none_or(Value::is_null) {
            object["spec"][*list] = Value::Null;
        }
    }
    Ok(Outcome::Changed(object))
}
