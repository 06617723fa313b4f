//! Taking JSON objects apart and putting them together again without decoding the pieces.

use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::fmt;

/// Text borrowed from the JSON wherever it has no escapes.
#[derive(Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(transparent)]
pub(crate) struct Text<'a>(#[serde(borrow)] pub Cow<'a, str>);

impl std::ops::Deref for Text<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The fields of a JSON object in their order, values untouched.
#[derive(Debug)]
pub(crate) struct Fields<'a>(Vec<(Text<'a>, &'a RawValue)>);

impl<'a> Fields<'a> {
    pub fn get(&self, name: &str) -> Option<&'a RawValue> {
        self.0.iter().find(|(field, _)| &**field == name).map(|(_, value)| *value)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &'a RawValue)> {
        self.0.iter().map(|(name, value)| (&**name, *value))
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Fields<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Collect;
        impl<'de> Visitor<'de> for Collect {
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
        deserializer.deserialize_map(Collect).map(Self)
    }
}

/// Writes a JSON object field by field.
pub(crate) struct Joined<'o> {
    out: &'o mut String,
    first: bool,
}

impl<'o> Joined<'o> {
    pub fn new(out: &'o mut String) -> Self {
        out.push('{');
        Self { out, first: true }
    }

    /// `value` is JSON.
    pub fn push(&mut self, name: &str, value: &str) {
        if !self.first {
            self.out.push(',');
        }
        self.first = false;
        self.out.push('"');
        if name.bytes().all(|b| b != b'"' && b != b'\\' && b >= 0x20) {
            self.out.push_str(name);
        } else {
            // Quoted and escaped by serde_json, less its own quotes.
            let quoted = serde_json::Value::from(name).to_string();
            self.out.push_str(&quoted[1..quoted.len() - 1]);
        }
        self.out.push_str("\":");
        self.out.push_str(value);
    }

    pub fn finish(self) {
        self.out.push('}');
    }
}

const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// `metadata` without `managedFields`; of a secret also without the copy of its values in an annotation.
pub(crate) fn metadata(raw: &str, secret: bool) -> Result<String, serde_json::Error> {
    let fields: Fields<'_> = serde_json::from_str(raw)?;
    let mut text = String::with_capacity(raw.len().min(2048));
    let mut out = Joined::new(&mut text);
    for (name, value) in fields.iter() {
        match name {
            "managedFields" => {}
            "annotations" if secret && value.get().starts_with('{') => {
                let annotations: Fields<'_> = serde_json::from_str(value.get())?;
                let mut kept = String::new();
                let mut joined = Joined::new(&mut kept);
                annotations.iter().filter(|(name, _)| *name != LAST_APPLIED).for_each(|(n, v)| joined.push(n, v.get()));
                joined.finish();
                out.push(name, &kept);
            }
            _ => out.push(name, value.get()),
        }
    }
    out.finish();
    Ok(text)
}
