//! Patches within text fields that contain YAML.

use crowsnest_apimachinery::yaml;
use serde_json::Value;

use super::OverrideError;
use super::patch::{self, Operation};

/// Applies a patch. Comments are lost, and keys are sorted.
pub fn edit<'a>(text: &str, operations: impl IntoIterator<Item = Operation<'a>>) -> Result<String, OverrideError> {
    let mut document: Value = yaml::parse(text)?;
    patch::apply(&mut document, operations)?;
    Ok(yaml::to_yaml(&document))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::overriding::json;
    use proptest::prelude::*;
    use serde_json::json;

    /// Strings, many of which have a special meaning in YAML.
    fn words() -> impl Strategy<Value = String> {
        prop_oneof!["[ -~\n\t]{0,40}", "[0-9eE.:_xo+-]{1,8}", "[a-z #:,'\"]{60,120}", "[ -~\u{a0}-\u{17f}\n]{0,20}"]
    }

    fn documents() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            words().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<bool>().prop_map(Value::from),
            Just(Value::Null),
            (0..1_000_000_i32).prop_map(|number| Value::from(f64::from(number) + 0.25)),
        ];
        let value = leaf.prop_recursive(4, 40, 5, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
                proptest::collection::btree_map(words(), inner, 0..5).prop_map(|fields| json!(fields)),
            ]
        });
        value.prop_map(|value| json!({"document": value}))
    }

    proptest! {
        #[test]
        fn written_documents_are_read_back(document in documents()) {
            let text = yaml::to_yaml(&document);
            prop_assert_eq!(yaml::parse(&text), Ok(document), "{}", text);
        }

        #[test]
        fn unpatched_json_keeps_its_values(document in documents()) {
            let pretty = serde_json::to_string_pretty(&document).expect("JSON");
            let written = json::edit(&pretty, std::iter::empty()).expect("a document");
            prop_assert_eq!(&serde_json::from_str::<Value>(&written).expect("JSON"), &document);
            prop_assert_eq!(json::edit(&written, std::iter::empty()).expect("a document"), written);
        }
    }
}
