//! Extracts the words and messages of a manifest in one pass over its JSON.

use crowsnest_apimachinery::printers::{MessagePosition, Messages};
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use std::fmt;

/// Maximum length in bytes of indexed manifest text.
const MAX_CONTENT_BYTES: usize = 256 << 10;

/// Text extracted from a manifest.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ManifestText {
    /// Keys and values, one per line.
    pub content: String,
    /// True if the content was truncated to 256 KiB.
    pub is_truncated: bool,
    /// Messages of the status, such as those of conditions and containers.
    pub messages: Vec<String>,
}

/// Parts of a manifest to extract.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extraction {
    /// Only messages; the content is skipped, which is faster.
    Messages,
    /// Content and messages.
    All,
}

/// Extracts from JSON text.
pub fn extract_from_json(body: &[u8], position: MessagePosition, extraction: Extraction) -> ManifestText {
    let capacity = if extraction == Extraction::All { (body.len() / 2).min(MAX_CONTENT_BYTES) } else { 0 };
    extract(&mut serde_json::Deserializer::from_slice(body), position, extraction, capacity)
}

/// Extracts from a JSON tree.
pub fn extract_from_tree(tree: &Value, position: MessagePosition, extraction: Extraction) -> ManifestText {
    extract(tree, position, extraction, 0)
}

fn extract<'de>(
    from: impl Deserializer<'de>,
    position: MessagePosition,
    extraction: Extraction,
    capacity: usize,
) -> ManifestText {
    let mut builder = TextBuilder {
        content: String::with_capacity(capacity),
        is_truncated: false,
        messages: Messages::default(),
        extraction,
    };
    // Text before a syntax error is retained.
    if let Err(error) = (JsonVisitor { builder: &mut builder, position }).deserialize(from) {
        tracing::debug!(%error, "a stored body is not JSON");
    }
    ManifestText { content: builder.content, is_truncated: builder.is_truncated, messages: builder.messages.into_vec() }
}

/// Collects the text of a manifest.
struct TextBuilder {
    content: String,
    is_truncated: bool,
    messages: Messages,
    extraction: Extraction,
}

impl TextBuilder {
    fn push(&mut self, word: &str) {
        if self.extraction == Extraction::Messages {
            return;
        }
        self.is_truncated |= self.content.len() + word.len() >= MAX_CONTENT_BYTES;
        if !self.is_truncated {
            self.content.push_str(word);
            self.content.push('\n');
        }
    }
}

/// Adds the text of a JSON value to a [`TextBuilder`] without building a tree.
struct JsonVisitor<'h> {
    builder: &'h mut TextBuilder,
    position: MessagePosition,
}

impl JsonVisitor<'_> {
    fn at(&mut self, position: MessagePosition) -> JsonVisitor<'_> {
        JsonVisitor { builder: self.builder, position }
    }
}

impl<'de> DeserializeSeed<'de> for JsonVisitor<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        match self.builder.extraction == Extraction::Messages && self.position.has_no_messages() {
            true => deserializer.deserialize_ignored_any(IgnoredAny).map(drop),
            false => deserializer.deserialize_any(self),
        }
    }
}

impl<'de> Visitor<'de> for JsonVisitor<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_str<E>(self, word: &str) -> Result<(), E> {
        self.builder.push(word);
        self.builder.messages.add(self.position, word);
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, number: i64) -> Result<(), E> {
        self.builder.push(&number.to_string());
        Ok(())
    }

    fn visit_u64<E>(self, number: u64) -> Result<(), E> {
        self.builder.push(&number.to_string());
        Ok(())
    }

    fn visit_f64<E>(self, number: f64) -> Result<(), E> {
        self.builder.push(&number.to_string());
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut seq: A) -> Result<(), A::Error> {
        let mut nth = 0;
        loop {
            let position = self.position.item(nth);
            if seq.next_element_seed(self.at(position))?.is_none() {
                return Ok(());
            }
            nth += 1;
        }
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<(), A::Error> {
        while let Some(position) = map.next_key_seed(FieldName { builder: self.builder, parent: self.position })? {
            map.next_value_seed(self.at(position))?;
        }
        Ok(())
    }
}

/// The name of a field, which determines the position of its value.
struct FieldName<'h> {
    builder: &'h mut TextBuilder,
    parent: MessagePosition,
}

impl<'de> DeserializeSeed<'de> for FieldName<'_> {
    type Value = MessagePosition;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<MessagePosition, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'de> Visitor<'de> for FieldName<'_> {
    type Value = MessagePosition;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a field's name")
    }

    fn visit_str<E>(self, name: &str) -> Result<MessagePosition, E> {
        self.builder.push(name);
        Ok(self.parent.field(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rstest::rstest;
    use serde_json::json;
    use std::collections::BTreeSet;

    fn pod() -> MessagePosition {
        MessagePosition::root("", "Pod")
    }

    #[rstest]
    #[case::whole(r#"{"status":{"message":"it failed","reason":"Bad","n":[1,-2,0.5,true,null]}}"#,
        "status message it_failed reason Bad n 1 -2 0.5", &["it failed"])]
    #[case::truncated(r#"{"status":{"message":"it failed"},"metadata":{"name":"a","#, "status message it_failed metadata name a", &["it failed"])]
    #[case::none("", "", &[])]
    fn words_and_messages_are_extracted_together(#[case] body: &str, #[case] words: &str, #[case] messages: &[&str]) {
        let text = extract_from_json(body.as_bytes(), pod(), Extraction::All);
        let lines: Vec<String> = text.content.lines().map(|line| line.replace(' ', "_")).collect();
        assert_eq!((lines.join(" "), text.is_truncated), (words.to_owned(), false));
        assert_eq!(text.messages, messages);
        let less = extract_from_json(body.as_bytes(), pod(), Extraction::Messages);
        assert_eq!((less.content.as_str(), less.messages), ("", text.messages));
    }

    #[test]
    fn long_content_is_truncated_and_messages_are_still_read() {
        let long = json!({"data": "x".repeat(MAX_CONTENT_BYTES), "status": {"message": "it failed"}}).to_string();
        let text = extract_from_json(long.as_bytes(), pod(), Extraction::All);
        assert_eq!(
            (text.content.as_str(), text.is_truncated, text.messages.as_slice()),
            ("data\n", true, ["it failed".to_owned()].as_slice())
        );
    }

    fn json_value() -> impl Strategy<Value = Value> {
        let names = ["status", "message", "conditions", "containerStatuses", "state", "waiting", "lastState", "x"];
        let leaf = prop_oneof![
            "[ ab\n\"]{0,3}".prop_map(Value::from),
            any::<i32>().prop_map(Value::from),
            any::<bool>().prop_map(Value::from),
            Just(Value::Null),
        ];
        leaf.prop_recursive(6, 40, 4, move |inner| {
            let fields = prop::collection::btree_map(prop::sample::select(names.to_vec()), inner.clone(), 0..4);
            prop_oneof![
                prop::collection::vec(inner, 0..4).prop_map(Value::from),
                fields.prop_map(|fields| fields
                    .into_iter()
                    .map(|(name, value)| (name.to_owned(), value))
                    .collect::<Value>()),
            ]
        })
    }

    proptest! {
        /// Text and tree, with full or partial extraction, yield the same content.
        #[test]
        fn text_and_tree_yield_the_same_content(value in json_value()) {
            let text = value.to_string();
            let (bytes, tree) = (extract_from_json(text.as_bytes(), pod(), Extraction::All), extract_from_tree(&value, pod(), Extraction::All));
            let words = |text: &ManifestText| text.content.lines().map(str::to_owned).collect::<BTreeSet<_>>();
            prop_assert_eq!((words(&bytes), &bytes.messages), (words(&tree), &tree.messages));
            prop_assert_eq!(&extract_from_json(text.as_bytes(), pod(), Extraction::Messages).messages, &bytes.messages);
            prop_assert_eq!(&extract_from_tree(&value, pod(), Extraction::Messages).messages, &bytes.messages);
        }
    }
}
