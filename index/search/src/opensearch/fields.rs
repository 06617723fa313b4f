//! Names of the engine's fields, derived from the columns of the text index.
//!
//! A dot in a field name creates an object for the part before it, so dots in column names become underscores:
//! `image.tag` is `w.image_tag` beside `w.image`.

use super::model::{Facet, Key, Keyword, Number};
use std::borrow::Cow;

/// Record id, as a signed number.
pub const ID: &str = "id";
/// `column=Value` with its case kept.
pub const EXACT: &str = "exact";
/// Names of the columns in which an object has values.
pub const HAS: &str = "has";
/// Terms by which permissions are granted; see [`super::scope`].
pub const SCOPE: &str = "scope";
/// Terms of the manifest, a line each.
pub const CONTENT: &str = "content";
/// Terms of messages.
pub const MESSAGE: &str = "message";
/// Messages with the order of their chunks.
pub const MESSAGE_LINES: &str = "said";
/// Names and other strings as windows of three characters.
pub const GRAMS: &str = "grams";
/// `path␟value` of the manifest.
pub const PATHS: &str = "paths";
/// `key=value` of labels, with their case kept: counted, not searched.
pub const LABELS: &str = "label";

/// Groups of fields: keys, words, numbers, facets, and the first values of multi-valued facets and numbers.
pub const KEYS: &str = "k";
pub const KEYWORDS: &str = "w";
pub const NUMBERS: &str = "n";
pub const FACETS: &str = "f";
pub const FIRST_VALUES: &str = "s";

/// Name of a column within a group of fields, without dots.
pub fn flat_name(name: &'static str) -> Cow<'static, str> {
    if name.contains('.') { Cow::Owned(name.replace('.', "_")) } else { Cow::Borrowed(name) }
}

/// Name of a column of complete strings inside of [`KEYWORDS`]; `None` for columns with a field of their own.
pub fn keyword_name(keyword: Keyword) -> Option<Cow<'static, str>> {
    match keyword {
        Keyword::Exact | Keyword::Has => None,
        other => Some(flat_name(other.name())),
    }
}

/// Name of a facet inside of [`FACETS`].
pub fn facet_name(facet: Facet) -> Cow<'static, str> {
    // [`LABELS`] contains complete labels.
    if facet == Facet::LabelKey { Cow::Borrowed("label_key") } else { flat_name(facet.field()) }
}

/// Name of a relation key inside of [`KEYS`].
pub fn key_name(key: Key) -> &'static str {
    key.name().strip_prefix("k_").unwrap_or(key.name())
}

/// True if an object may have several values of a facet. An engine sorts by the least or greatest of several; the text
/// index sorts by the first, which therefore has a field of its own.
pub fn is_multi_valued(facet: Facet) -> bool {
    match facet {
        Facet::Image | Facet::Reason | Facet::Type | Facet::LabelKey => true,
        Facet::Cluster | Facet::Kind | Facet::Namespace | Facet::Status | Facet::Node => false,
        Facet::Name | Facet::Scope => false,
    }
}

/// True if an object may have several values of a number.
pub fn is_multi_valued_number(number: Number) -> bool {
    number == Number::Exit
}

/// Field of a column of complete strings.
pub fn keyword(keyword: Keyword) -> String {
    match keyword_name(keyword) {
        Some(name) => format!("{KEYWORDS}.{name}"),
        None if keyword == Keyword::Has => HAS.to_owned(),
        None => EXACT.to_owned(),
    }
}

/// Field of a column of numbers.
pub fn number(number: Number) -> String {
    format!("{NUMBERS}.{}", flat_name(number.name()))
}

/// Field that a facet is counted by.
pub fn facet(facet: Facet) -> String {
    format!("{FACETS}.{}", facet_name(facet))
}

/// Field of a relation key.
pub fn key(key: Key) -> String {
    format!("{KEYS}.{}", key_name(key))
}

/// Field that complete labels are counted by.
pub fn labels() -> String {
    format!("{FACETS}.{LABELS}")
}

/// Field that hits are sorted by for a facet.
pub fn sort_facet(sorted_facet: Facet) -> String {
    if is_multi_valued(sorted_facet) {
        format!("{FIRST_VALUES}.{}", facet_name(sorted_facet))
    } else {
        facet(sorted_facet)
    }
}

/// Field that hits are sorted by for a number.
pub fn sort_number(sorted_number: Number) -> String {
    if is_multi_valued_number(sorted_number) {
        format!("{FIRST_VALUES}.{}", flat_name(sorted_number.name()))
    } else {
        number(sorted_number)
    }
}
