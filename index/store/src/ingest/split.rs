//! Splits and joins JSON objects without decoding their values.

use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::fmt;

/// Text that is borrowed from the JSON unless it has escapes.
#[derive(Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(transparent)]
pub(crate) struct Text<'a>(#[serde(borrow)] pub Cow<'a, str>);

impl Text<'_> {
    pub fn into_owned(self) -> String {
        self.0.into_owned()
    }
}

impl<'a> From<&'a str> for Text<'a> {
    fn from(text: &'a str) -> Self {
        Self(Cow::Borrowed(text))
    }
}

impl std::ops::Deref for Text<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

/// The fields of a JSON object in order, with raw values.
#[derive(Debug, Default)]
pub(crate) struct Fields<'a>(Vec<(Text<'a>, &'a RawValue)>);

impl<'a> Fields<'a> {
    pub fn get(&self, name: &str) -> Option<&'a RawValue> {
        self.0.iter().find(|(field, _)| &**field == name).map(|(_, value)| *value)
    }

    /// The value of a string field.
    pub fn text(&self, name: &str) -> Option<Text<'a>> {
        self.get(name).and_then(|raw| serde_json::from_str(raw.get()).ok())
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &'a RawValue)> {
        self.0.iter().map(|(name, value)| (&**name, *value))
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Fields<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct FieldsVisitor;
        impl<'de> Visitor<'de> for FieldsVisitor {
            type Value = Vec<(Text<'de>, &'de RawValue)>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut fields = Vec::with_capacity(8);
                while let Some(entry) = map.next_entry()? {
                    fields.push(entry);
                }
                Ok(fields)
            }
        }
        deserializer.deserialize_map(FieldsVisitor).map(Self)
    }
}

/// Writes a JSON object field by field.
pub(crate) struct ObjectWriter<'o> {
    out: &'o mut String,
    is_first: bool,
}

impl<'o> ObjectWriter<'o> {
    pub fn new(out: &'o mut String) -> Self {
        out.push('{');
        Self { out, is_first: true }
    }

    /// Writes a field whose value is given as JSON.
    pub fn push(&mut self, name: &str, value: &str) {
        self.begin_field(name).push_str(value);
    }

    /// Writes a string field.
    pub fn push_text(&mut self, name: &str, text: &str) {
        quote(text, self.begin_field(name));
    }

    /// Begins a field; the caller appends its JSON value.
    pub fn begin_field(&mut self, name: &str) -> &mut String {
        if !self.is_first {
            self.out.push(',');
        }
        self.is_first = false;
        quote(name, self.out);
        self.out.push(':');
        self.out
    }

    pub fn finish(self) {
        self.out.push('}');
    }
}

/// Predicate that returns true if an annotation is kept, by its key and its value as JSON.
pub(crate) type AnnotationFilter<'s> = &'s dyn Fn(&str, &RawValue) -> bool;

/// Copies `metadata` with the annotations to keep, without `managedFields` unless they are kept as well. Returns true if an
/// annotation was removed.
pub(crate) fn copy_metadata(
    fields: &Fields<'_>,
    keep_managed_fields: bool,
    keep: Option<AnnotationFilter<'_>>,
    out: &mut String,
) -> Result<bool, serde_json::Error> {
    let mut out = ObjectWriter::new(out);
    let mut is_removed = false;
    for (name, value) in fields.iter() {
        match (name, keep) {
            ("managedFields", _) if !keep_managed_fields => {}
            ("annotations", Some(keep)) if value.get().starts_with('{') => {
                is_removed |= copy_annotations(value.get(), keep, out.begin_field(name))?;
            }
            _ => out.push(name, value.get()),
        }
    }
    out.finish();
    Ok(is_removed)
}

/// Copies the annotations to keep. Returns true if an annotation was removed.
pub(crate) fn copy_annotations(
    raw: &str,
    keep: AnnotationFilter<'_>,
    out: &mut String,
) -> Result<bool, serde_json::Error> {
    let annotations: Fields<'_> = serde_json::from_str(raw)?;
    let mut writer = ObjectWriter::new(out);
    let mut is_removed = false;
    for (key, value) in annotations.iter() {
        match keep(key, value) {
            true => writer.push(key, value.get()),
            false => is_removed = true,
        }
    }
    writer.finish();
    Ok(is_removed)
}

fn quote(text: &str, out: &mut String) {
    if text.bytes().all(|b| b != b'"' && b != b'\\' && b >= 0x20) {
        out.push('"');
        out.push_str(text);
        out.push('"');
    } else {
        out.push_str(&serde_json::Value::from(text).to_string());
    }
}
