//! One object as the document of an engine.
//!
//! Converted from the [`Document`] that the text index uses as well. Strings are converted to lower case here and not
//! by the engine, because Rust and Java differ for some letters. Terms are sorted and unique, so that an object always
//! gives the same bytes.

use super::dsl::to_signed;
use super::fields::{LABELS, facet_name, flat_name, is_multi_valued, is_multi_valued_number, key_name, keyword_name};
use super::model::{Document, Facet, Keyword, chunk_terms, chunks, lower_into, scope_terms, suffixes};
use super::paths::{INCOMPLETE, PathTerms};
use super::terms::{GAP, grams, lower_term, token, truncate_term};
use serde::Serialize;
use serde_json::Value;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

type Name = Cow<'static, str>;

/// A document of the index that [`super::template`] creates. Its fields have the names of the index: `k` (keys), `w` (keywords),
/// `n` (numbers), `f` (facets) and `s` (values to sort by) contain one field per column; see [`super::fields`].
#[derive(Debug, Default, PartialEq, Serialize)]
pub struct EngineDocument {
    pub id: i64,
    k: BTreeMap<&'static str, BTreeSet<i64>>,
    w: BTreeMap<Name, BTreeSet<String>>,
    n: BTreeMap<Name, BTreeSet<i64>>,
    f: BTreeMap<Name, BTreeSet<String>>,
    s: BTreeMap<Name, Value>,
    exact: BTreeSet<String>,
    has: BTreeSet<String>,
    scope: BTreeSet<String>,
    content: String,
    message: BTreeSet<String>,
    #[serde(rename = "said")]
    message_lines: Vec<String>,
    grams: BTreeSet<String>,
    paths: BTreeSet<String>,
}

impl EngineDocument {
    /// Converts a document. The content is read before the messages and the tree, so that the manifest is parsed once.
    pub fn from_document(document: &Document) -> Self {
        let mut engine = Self { id: to_signed(document.id), ..Self::default() };
        engine.content = content(document.content());
        engine.add_messages(document.messages());
        let paths = PathTerms::from_manifest(document.tree());
        engine.has.extend(document.present_columns().map(lower_term));
        engine.has.extend(paths.incomplete.then(|| INCOMPLETE.to_owned()));
        engine.paths = paths.terms;
        engine.add_words(document);
        engine.add_numbers(document);
        engine.add_facets(document);
        for (key, value) in &document.keys {
            engine.k.entry(key_name(*key)).or_default().insert(to_signed(*value));
        }
        engine
    }

    fn add_words(&mut self, document: &Document) {
        for (keyword, value) in &document.keywords {
            if let Some(name) = keyword_name(*keyword) {
                self.w.entry(name).or_default().insert(lower_term(value));
            }
            if *keyword != Keyword::Qualified {
                self.exact.insert(truncate_term(&format!("{}={value}", keyword.name())).to_owned());
            }
            if *keyword == Keyword::Label {
                let labels = self.f.entry(LABELS.into()).or_default();
                labels.insert(truncate_term(value).to_owned());
            }
        }
        let anything = document.bare_word_values(false).filter(|(keyword, _)| *keyword != Keyword::Name);
        let anything: BTreeSet<String> = anything.map(|(_, value)| lower_term(value)).collect();
        if let Some(name) = keyword_name(Keyword::Anything).filter(|_| !anything.is_empty()) {
            self.w.insert(name, anything);
        }
        self.grams = document.bare_word_values(true).map(|(_, value)| grams(&value.to_lowercase())).collect();
    }

    fn add_numbers(&mut self, document: &Document) {
        for (number, value) in &document.numbers {
            self.n.entry(flat_name(number.name())).or_default().insert(*value);
            if is_multi_valued_number(*number) {
                self.s.entry(flat_name(number.name())).or_insert_with(|| (*value).into());
            }
        }
    }

    fn add_facets(&mut self, document: &Document) {
        let value_of = |searched_facet: Facet| {
            let found = document.facets.iter().find(|(facet, _)| *facet == searched_facet);
            found.map(|(_, value)| value.as_str()).unwrap_or_default()
        };
        for (facet, value) in &document.facets {
            let value = truncate_term(value).to_owned();
            if is_multi_valued(*facet) {
                self.s.entry(facet_name(*facet)).or_insert_with(|| value.clone().into());
            }
            self.f.entry(facet_name(*facet)).or_default().insert(value);
        }
        self.scope = scope_terms(value_of(Facet::Scope), value_of(Facet::Name));
    }

    fn add_messages(&mut self, messages: &[String]) {
        let mut lower = String::new();
        for message in messages {
            lower_into(&mut lower, message);
            self.message.extend(chunks(&lower).flat_map(chunk_terms).map(|term| token(term).into_owned()));
            let lines: Vec<String> = chunks(&lower).map(message_line).collect();
            if !lines.is_empty() {
                self.message_lines.push(lines.join("\n"));
            }
        }
    }
}

/// A chunk as the analyzer of messages reads it: its suffixes, separated by tabs.
fn message_line(chunk: &str) -> String {
    let suffixes: Vec<Cow<'_, str>> = suffixes(chunk).map(token).collect();
    // Without this placeholder, phrases would match across the chunk.
    if suffixes.is_empty() { GAP.to_string() } else { suffixes.join("\t") }
}

/// The distinct terms of the manifest, one per line.
fn content(text: &str) -> String {
    let mut lower = String::new();
    lower_into(&mut lower, text);
    let terms: BTreeSet<&str> = chunks(&lower).flat_map(chunk_terms).collect();
    let terms: Vec<Cow<'_, str>> = terms.into_iter().map(token).collect();
    terms.join("\n")
}
