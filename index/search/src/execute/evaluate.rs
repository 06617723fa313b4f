//! Evaluates a condition on one document: whether it matches, why, and with which score. The tests compare the
//! engines with this evaluation.

use crate::document::Document;
use crate::document::columns::{Key, Keyword};
use crate::document::tokens::{chunk_around, chunks, contains_phrase, lower_into, matches_by_prefix, terms};
use crate::plan::patterns::{MAX_EDITS, compile, is_within_edits};
use crate::plan::predicate::{Match, Test};
use crate::plan::score;
use serde::Serialize;
use std::collections::BTreeSet;

/// A field whose value matched, with that value.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Reason {
    pub field: String,
    pub value: String,
    /// Byte ranges of the matches in the value; empty if the complete value matches or if the match has no position.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub marks: Vec<(usize, usize)>,
}

/// Maximum length in bytes of values in reasons.
const MAX_VALUE_BYTES: usize = 200;

/// A document prepared for repeated evaluation.
pub struct DocumentEvaluator<'d> {
    document: &'d Document,
    /// Text of the manifest in lower case.
    lower: Option<String>,
    /// Terms of the manifest.
    content: Option<BTreeSet<String>>,
}

impl<'d> DocumentEvaluator<'d> {
    pub fn new(document: &'d Document) -> Self {
        Self { document, lower: None, content: None }
    }

    /// True if the document matches.
    pub fn is_match(&mut self, matches: &Match) -> bool {
        self.parse_manifest_for(matches);
        self.evaluate(matches)
    }

    /// Parses the manifest as a tree if there are conditions on paths, so that it is parsed only once: all text is then read
    /// from the tree.
    fn parse_manifest_for(&self, matches: &Match) {
        if matches.needs_bodies() {
            self.document.tree();
        }
    }

    fn evaluate(&mut self, matches: &Match) -> bool {
        match matches {
            Match::All => true,
            Match::None => false,
            Match::And(parts) => parts.iter().all(|part| self.evaluate(part)),
            Match::Or(parts) => parts.iter().any(|part| self.evaluate(part)),
            Match::Not(inner) => !self.evaluate(inner),
            leaf => !self.leaf_reasons(leaf).is_empty(),
        }
    }

    /// The score that an engine gives the document: see [`super::super::plan::score`].
    pub fn score(&mut self, matches: &Match) -> f32 {
        match matches {
            Match::And(_) if !self.evaluate(matches) => 0.0,
            Match::And(parts) | Match::Or(parts) => parts.iter().fold(0.0, |sum, part| sum + self.score(part)),
            Match::WithReason(_, _, inner) => self.score(inner),
            Match::Bare(word) => self.bare_word_score(word),
            Match::BareRegex(pattern) => {
                let Some(regex) = compile(pattern) else { return 0.0 };
                let passes = |(_, value): (Keyword, &str)| regex.is_match(&value.to_lowercase());
                let in_value = self.document.bare_word_values(pattern.contains('/')).any(passes);
                let in_content = self.content().iter().any(|term| regex.is_match(term));
                f32::from(u8::from(in_value)) * score::ANY_COLUMN + f32::from(u8::from(in_content)) * score::CONTENT
            }
            Match::Fuzzy(word, distance) => {
                let is_close = |term: &str| is_within_edits(term, word, (*distance).min(MAX_EDITS), true);
                let names = self.document.keywords.iter().filter(|(column, _)| *column == Keyword::Name);
                let in_name = names.map(|(_, name)| name.to_lowercase()).any(|name| is_close(&name));
                let in_content = self.content().iter().any(|term| is_close(term));
                f32::from(u8::from(in_name)) * score::NAME_PREFIX + f32::from(u8::from(in_content)) * score::CONTENT
            }
            _ => 0.0,
        }
    }

    fn bare_word_score(&mut self, word: &str) -> f32 {
        let document = self.document;
        let names =
            || document.keywords.iter().filter(|(column, _)| *column == Keyword::Name).map(|(_, n)| n.to_lowercase());
        let chunks = words(word);
        // The content is read first, because the messages are then read in the same pass over the manifest.
        let in_content = !self.content_reasons(&chunks).is_empty();
        let parts = [
            (names().any(|name| name == word), score::NAME_EXACT),
            (names().any(|name| name.starts_with(word)), score::NAME_PREFIX),
            (
                document.bare_word_values(word.contains('/')).any(|(_, value)| value.to_lowercase().contains(word)),
                score::ANY_COLUMN,
            ),
            (!self.message_reasons(&chunks).is_empty(), score::MESSAGE),
            (in_content, score::CONTENT),
        ];
        parts.into_iter().filter(|(is_match, _)| *is_match).fold(0.0, |sum, (_, score)| sum + score)
    }

    /// The reasons why the document matches, from the conditions that are not negated.
    pub fn reasons(&mut self, matches: &Match) -> Vec<Reason> {
        self.parse_manifest_for(matches);
        let (mut found, mut message_phrases) = (Vec::new(), Vec::new());
        self.collect_reasons(matches, &mut found, &mut message_phrases);
        // Messages are searched last: if the manifest was read for other parts, they are already available;
        // otherwise reading only the messages is cheaper.
        found.extend(message_phrases.iter().flat_map(|chunks| self.message_reasons(chunks)));
        found.sort();
        found.dedup();
        found
    }

    /// Collects reasons. Phrases to find in messages are collected in `message_phrases` and evaluated by the caller.
    fn collect_reasons(&mut self, matches: &Match, found: &mut Vec<Reason>, message_phrases: &mut Vec<Vec<String>>) {
        match matches {
            Match::All | Match::None | Match::Not(_) => {}
            Match::And(parts) | Match::Or(parts) => {
                parts.iter().for_each(|part| self.collect_reasons(part, found, message_phrases))
            }
            Match::Message(chunks) => message_phrases.push(chunks.clone()),
            Match::Bare(word) => match self.value_reasons(word) {
                columns if columns.is_empty() => found.extend(self.leaf_reasons(matches)),
                columns => {
                    found.extend(columns);
                    message_phrases.push(words(word));
                }
            },
            leaf => found.extend(self.leaf_reasons(leaf)),
        }
    }

    /// Reasons for the values that contain a bare word.
    fn value_reasons(&self, word: &str) -> Vec<Reason> {
        let values =
            self.document.bare_word_values(word.contains('/')).filter(|(_, value)| value.to_lowercase().contains(word));
        values.map(|(column, value)| reason(column.name(), value).mark([word])).collect()
    }

    /// Reasons of a single condition; empty if it does not match.
    fn leaf_reasons(&mut self, matches: &Match) -> Vec<Reason> {
        let document = self.document;
        match matches {
            Match::Keyword(Keyword::Has, Test::Equals(name)) => document
                .present_columns()
                .filter(|has| has.to_lowercase() == *name)
                .map(|has| reason(has, ""))
                .collect(),
            Match::Keyword(keyword, test) => {
                let regex = test.regex();
                let values = document.keywords.iter().filter(|(column, _)| column == keyword);
                let passing = values.filter(|(_, value)| test.passes(&value.to_lowercase(), regex.as_ref()));
                let word = match test {
                    Test::Contains(word) => word.as_str(),
                    Test::Equals(_) | Test::Regex(_) | Test::Fuzzy(..) => "",
                };
                passing.map(|(column, value)| reason(column.name(), value).mark([word])).collect()
            }
            Match::Exact(keyword, expected) => {
                let values = document.keywords.iter().filter(|(column, value)| column == keyword && value == expected);
                values.map(|(column, value)| reason(column.name(), value)).collect()
            }
            Match::Number(number, from, to) => {
                let values = document.numbers.iter().filter(|(column, value)| {
                    column == number && from.is_none_or(|from| *value >= from) && to.is_none_or(|to| *value <= to)
                });
                values.map(|(column, value)| reason(column.name(), &value.to_string())).collect()
            }
            Match::Content(chunks) => self.content_reasons(chunks),
            Match::Message(chunks) => self.message_reasons(chunks),
            Match::Bare(word) => {
                let (mut found, chunks) = (self.value_reasons(word), words(word));
                if found.is_empty() {
                    // Reads the content first, because the messages are then read in the same pass over the manifest.
                    document.content();
                }
                found.extend(self.message_reasons(&chunks));
                if found.is_empty() {
                    found.extend(self.content_reasons(&chunks));
                }
                found
            }
            Match::BareRegex(pattern) => {
                let Some(regex) = compile(pattern) else { return Vec::new() };
                let values = document
                    .bare_word_values(pattern.contains('/'))
                    .filter(|(_, value)| regex.is_match(&value.to_lowercase()));
                let mut found: Vec<_> = values.map(|(column, value)| reason(column.name(), value)).collect();
                if found.is_empty() {
                    let content_term = self.content().iter().find(|term| regex.is_match(term));
                    found.extend(content_term.map(|term| reason("content", term)));
                }
                found
            }
            Match::Fuzzy(word, distance) => {
                let near_term =
                    self.content().iter().find(|term| is_within_edits(term, word, (*distance).min(MAX_EDITS), true));
                near_term.map(|term| reason("content", term)).into_iter().collect()
            }
            Match::Clusters(names) => {
                let values = document
                    .keywords
                    .iter()
                    .filter(|(column, value)| *column == Keyword::Cluster && names.contains(value));
                values.map(|(column, value)| reason(column.name(), value)).collect()
            }
            Match::Path(path) => {
                let found = path.first_match(document.tree());
                found.map(|value| reason(&format!(".{}", path.path()), &value)).into_iter().collect()
            }
            Match::Keys(columns, keys) => {
                let is_match = |(column, key): &&(Key, u64)| columns.contains(column) && keys.contains(key);
                document.keys.iter().find(is_match).map(|(column, _)| reason(column.name(), "")).into_iter().collect()
            }
            Match::Ids(ids) if ids.contains(&document.id) => vec![reason("uid", "")],
            Match::WithReason(field, value, inner) if self.evaluate(inner) => vec![reason(field, value)],
            Match::Ids(_) | Match::WithReason(..) | Match::Relation(_) | Match::Changed(_) => Vec::new(),
            Match::All | Match::None | Match::And(_) | Match::Or(_) | Match::Not(_) => Vec::new(),
        }
    }

    fn content(&mut self) -> &BTreeSet<String> {
        let document = self.document;
        self.content.get_or_insert_with(|| all_terms(document.content()))
    }

    /// Messages that contain the chunks in sequence.
    fn message_reasons(&self, chunks: &[String]) -> Vec<Reason> {
        let messages =
            self.document.messages().iter().filter(|message| contains_phrase(&message.to_lowercase(), chunks));
        messages.map(|message| reason("message", message).mark(chunks.iter().map(String::as_str))).collect()
    }

    /// Terms of the manifest that begin with the chunks; empty unless all chunks match.
    fn content_reasons(&mut self, chunks: &[String]) -> Vec<Reason> {
        let document = self.document;
        let lower = self.lower.get_or_insert_with(|| to_lower_text(document.content()));
        let mut found = Vec::new();
        for chunk in chunks {
            match find_term_with_prefix(lower, chunk) {
                Some(term) => found.push(reason("content", term).mark([chunk.as_str()])),
                None => return Vec::new(),
            }
        }
        found
    }
}

/// The chunks of a bare word, for searches in messages and manifests.
fn words(word: &str) -> Vec<String> {
    chunks(word).map(str::to_owned).collect()
}

fn to_lower_text(text: &str) -> String {
    let mut lower = String::with_capacity(text.len());
    lower_into(&mut lower, text);
    lower
}

/// The first term that extends the chunk, as it is more informative; otherwise the chunk itself.
fn find_term_with_prefix<'t>(lower: &'t str, chunk: &str) -> Option<&'t str> {
    let (mut itself, mut searched_until) = (None, 0);
    for (at, _) in lower.match_indices(chunk) {
        if at < searched_until {
            continue;
        }
        let (around, end) = chunk_around(lower, at);
        searched_until = end;
        for term in terms(around) {
            if term == chunk {
                itself = Some(term);
            } else if matches_by_prefix(chunk) && term.starts_with(chunk) {
                return Some(term);
            }
        }
        // Very short chunks are matched exactly.
        if itself.is_some() && !matches_by_prefix(chunk) {
            break;
        }
    }
    itself
}

fn all_terms(text: &str) -> BTreeSet<String> {
    chunks(&to_lower_text(text)).flat_map(terms).map(str::to_owned).collect()
}

/// Maximum number of marks per value.
const MAX_MARKS: usize = 20;

fn reason(field: &str, value: &str) -> Reason {
    let mut end = value.len().min(MAX_VALUE_BYTES);
    while !value.is_char_boundary(end) {
        end -= 1;
    }
    Reason { field: field.to_owned(), value: value[..end].to_owned(), marks: Vec::new() }
}

impl Reason {
    /// Marks the occurrences of words, which must be in lower case.
    fn mark<'w>(mut self, words: impl IntoIterator<Item = &'w str>) -> Self {
        let lower = self.value.to_lowercase();
        // If lower-casing changes the length, positions would be wrong.
        if lower.len() != self.value.len() {
            return self;
        }
        for word in words.into_iter().filter(|word| !word.is_empty()) {
            self.marks.extend(lower.match_indices(word).map(|(at, found)| (at, at + found.len())));
        }
        self.marks.retain(|(from, to)| self.value.is_char_boundary(*from) && self.value.is_char_boundary(*to));
        self.marks.sort_unstable();
        self.marks.dedup();
        self.marks.truncate(MAX_MARKS);
        if self.marks == [(0, self.value.len())] {
            self.marks.clear();
        }
        self
    }
}
