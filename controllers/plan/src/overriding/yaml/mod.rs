//! YAML text as Karmada reads and writes it: YAML 1.1 as Go's yaml.v2 has it, by way of JSON.
//!
//! [`read`] makes a document of text, [`write`] makes text of it; both ask [`scalar`] what a word without quotes means.
//! The way through JSON is why `1.0` comes back as `1` and a date stays text.

mod read;
mod scalar;
mod write;

use serde_json::Value;

pub use read::ReadError;
pub use write::document as written;

use super::OverrideError;
use super::patch::{self, Operation};

/// The text after the patch: comments are gone, keys sorted.
pub fn edit<'a>(text: &str, operations: impl IntoIterator<Item = Operation<'a>>) -> Result<String, OverrideError> {
    let mut document: Value = read::document(text)?;
    patch::apply(&mut document, operations)?;
    Ok(write::document(&document))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::overriding::json;
    use proptest::prelude::*;
    use serde_json::json;

    /// Words of which many mean something else in YAML.
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
        fn what_is_written_is_read_as_it_was(document in documents()) {
            let text = write::document(&document);
            prop_assert_eq!(read::document(&text), Ok(document), "{}", text);
        }

        #[test]
        fn json_that_is_not_patched_keeps_its_meaning(document in documents()) {
            let pretty = serde_json::to_string_pretty(&document).expect("JSON");
            let written = json::edit(&pretty, std::iter::empty()).expect("a document");
            prop_assert_eq!(&serde_json::from_str::<Value>(&written).expect("JSON"), &document);
            prop_assert_eq!(json::edit(&written, std::iter::empty()).expect("a document"), written);
        }
    }
}
