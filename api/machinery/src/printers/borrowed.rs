//! Types that deserialize JSON without copying its strings. This matters because every change of every object is
//! parsed.

use serde::Deserialize;
use std::borrow::Cow;

/// A string that is borrowed from the JSON unless it has escapes.
#[derive(Deserialize, Default, PartialEq, Eq, PartialOrd, Ord)]
#[serde(transparent)]
pub struct Str<'a>(#[serde(borrow)] Cow<'a, str>);

impl std::ops::Deref for Str<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl AsRef<str> for Str<'_> {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl PartialEq<str> for Str<'_> {
    fn eq(&self, other: &str) -> bool {
        *self.0 == *other
    }
}

impl PartialEq<&str> for Str<'_> {
    fn eq(&self, other: &&str) -> bool {
        *self.0 == **other
    }
}

impl std::fmt::Display for Str<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// Declares structs that deserialize some fields of a JSON object, whose names are in camel case, and ignore the others.
/// `Deserialize` and [`null_as_default`] must be in scope.
#[macro_export]
macro_rules! views {
    ($( $(#[$doc:meta])* $name:ident { $( $(#[$meta:meta])* $field:ident : $ty:ty ),* $(,)? } )+) => { $(
        $(#[$doc])*
        #[derive(Deserialize, Default)]
        #[serde(rename_all = "camelCase", default, bound(deserialize = "'de: 'a"))]
        pub(super) struct $name<'a> {
            $( #[serde(deserialize_with = "null_as_default")] $(#[$meta])* pub $field: $ty, )*
            #[serde(skip)] _borrow: std::marker::PhantomData<&'a ()>,
        }
    )+ };
}

/// Deserializes `null` as the default value, because objects can have `null` instead of an absent field.
pub fn null_as_default<'de, D: serde::Deserializer<'de>, T: Deserialize<'de> + Default>(d: D) -> Result<T, D::Error> {
    Ok(Option::<T>::deserialize(d)?.unwrap_or_default())
}
