//! Translation of single conditions (leaves of a [`Match`]) to queries.

use super::Translator;
use super::query::{self, MAX_EXPANSIONS, MAX_PREFIX_BYTES, Query};
use crate::opensearch::edits;
use crate::opensearch::fields::{self, CONTENT, GRAMS, HAS, ID, MESSAGE, MESSAGE_LINES};
use crate::opensearch::model::{
    Key, Keyword, MAX_CHUNK_BYTES, MAX_EDITS, Match, Number, Test, chunks, matches_by_prefix,
    score::{ANY_COLUMN, CONTENT as IN_CONTENT, MESSAGE as IN_MESSAGE, NAME_EXACT, NAME_PREFIX},
};
use crate::opensearch::regex::{RegexError, escape_literal, escape_wildcard, limit_length, to_lucene};
use crate::opensearch::terms::{lower_term, phrase_windows, token, truncate_term};

/// Maximum number of characters of a wildcard query; longer substrings become regular expressions. Engines refuse a wildcard of
/// 4,000 characters ("more than 10000 effort"). Elasticsearch 8.19 refuses regular expressions that repeat one character 1,000
/// times.
const MAX_WILDCARD: usize = 128;
/// Maximum length of words whose fuzzy matches are expressed as a regular expression. A fuzzy query limits the distance by the
/// word's length, so it may miss terms whose distance equals that length.
const MAX_SHORT_WORD: usize = 3;

/// The field and the value of a condition that requires one exact value.
pub(super) fn field_value(matches: &Match) -> Option<(String, String)> {
    match matches {
        Match::Keyword(keyword, Test::Equals(text)) => Some((fields::keyword(*keyword), lower_term(text))),
        Match::Exact(keyword, text) => Some((fields::keyword(Keyword::Exact), exact(*keyword, text))),
        _ => None,
    }
}

fn exact(keyword: Keyword, text: &str) -> String {
    truncate_term(&format!("{}={text}", keyword.name())).to_owned()
}

/// The last word of a phrase, if it is matched as a prefix.
pub(super) fn phrase_end(matches: &Match) -> Option<String> {
    let chunks: Vec<String> = match matches {
        Match::Message(chunks) => chunks.clone(),
        Match::Bare(word) => chunks(word).map(str::to_owned).collect(),
        _ => return None,
    };
    match chunks.as_slice() {
        [_, .., last] if matches_by_prefix(last) => Some(token(last).into_owned()),
        _ => None,
    }
}

impl Translator<'_> {
    pub(super) fn leaf(&mut self, matches: &Match) -> Query {
        match matches {
            Match::Keyword(keyword, test) => self.test(&fields::keyword(*keyword), test),
            Match::Exact(keyword, text) => query::term(&fields::keyword(Keyword::Exact), &exact(*keyword, text)),
            Match::Number(number, from, to) => self::number(*number, *from, *to),
            Match::Content(chunks) => prefixes(CONTENT, chunks),
            Match::Message(chunks) => self.message(chunks),
            Match::Bare(word) => self.bare(word),
            Match::BareRegex(pattern) => self.bare_regex(pattern),
            Match::Fuzzy(word, distance) => {
                let distance = (*distance).min(MAX_EDITS);
                let name = self.fuzzy_query(&fields::keyword(Keyword::Name), word, distance, true);
                let in_content = self.fuzzy_query(CONTENT, &token(word), distance, true);
                query::any(vec![
                    query::constant_score(name, NAME_PREFIX),
                    query::constant_score(in_content, IN_CONTENT),
                ])
            }
            Match::Clusters(names) => query::terms(
                &fields::keyword(Keyword::Cluster),
                names.iter().map(|name| lower_term(name).into()).collect(),
            ),
            Match::Keys(columns, numbers) => {
                query::any(columns.iter().map(|key: &Key| self.ids(&fields::key(*key), numbers)).collect())
            }
            Match::Ids(numbers) => self.ids(ID, numbers),
            Match::All | Match::None | Match::And(_) | Match::Or(_) | Match::Not(_) => self.query(matches),
            Match::Path(_) | Match::Relation(_) | Match::Changed(_) | Match::WithReason(..) => self.query(matches),
        }
    }

    fn test(&mut self, field: &str, test: &Test) -> Query {
        match test {
            Test::Equals(text) => query::term(field, &lower_term(text)),
            Test::Contains(part) => contains(field, part),
            Test::Regex(pattern) => self.pattern(pattern, |pattern| query::regexp(field, pattern)),
            Test::Fuzzy(word, distance, is_prefix) => self.fuzzy_query(field, word, *distance, *is_prefix),
        }
    }

    /// Query for a pattern. Patterns that the text index refuses are refused here as well, which limits the size of the
    /// automaton that the engine has to build.
    fn pattern(&mut self, pattern: &str, query: impl FnOnce(&str) -> Query) -> Query {
        if let Err(error) = tantivy_fst::Regex::new(pattern) {
            self.notices.insert(format!("cannot match {pattern}: {error}"));
            return Query::None;
        }
        match to_lucene(pattern) {
            Ok(lucene_pattern) => query(&lucene_pattern),
            Err(error) => {
                self.add_regex_notice(pattern, &error);
                Query::None
            }
        }
    }

    /// Terms within an edit distance of a word; with `is_prefix`, terms with a prefix within that distance.
    fn fuzzy_query(&mut self, field: &str, word: &str, distance: u8, is_prefix: bool) -> Query {
        let is_short = word.chars().nth(MAX_SHORT_WORD).is_none();
        match (distance, is_prefix) {
            (0, true) => query::prefix(field, word),
            (0, false) => query::term(field, word),
            _ if word.len() > MAX_PREFIX_BYTES => Query::None,
            (_, false) if !is_short => query::fuzzy(field, word, distance),
            // Engines have no fuzzy prefix query.
            _ => match limit_length(edits::fuzzy_pattern(word, distance) + if is_prefix { ".*" } else { "" }) {
                Ok(pattern) => query::regexp(field, &pattern),
                Err(error) => {
                    self.add_regex_notice(&format!("{word}~{distance}"), &error);
                    Query::None
                }
            },
        }
    }

    /// Adds a notice that a pattern cannot be translated.
    fn add_regex_notice(&mut self, pattern: &str, error: &RegexError) {
        self.notices.insert(format!("cannot match {pattern}: {error}"));
    }

    fn bare(&mut self, word: &str) -> Query {
        let name = fields::keyword(Keyword::Name);
        let chunks: Vec<String> = chunks(word).map(str::to_owned).collect();
        let parts = [
            (query::term(&name, &lower_term(word)), NAME_EXACT),
            (query::prefix(&name, truncate_term(word)), NAME_PREFIX),
            (anywhere(word), ANY_COLUMN),
            (self.message(&chunks), IN_MESSAGE),
            (prefixes(CONTENT, &chunks), IN_CONTENT),
        ];
        query::any(parts.into_iter().map(|(query, score)| query::constant_score(query, score)).collect())
    }

    fn bare_regex(&mut self, pattern: &str) -> Query {
        let mut columns = vec![Keyword::Name, Keyword::Anything];
        columns.extend(pattern.contains('/').then_some(Keyword::Qualified));
        let in_columns = |pattern: &str| {
            query::any(columns.iter().map(|keyword| query::regexp(&fields::keyword(*keyword), pattern)).collect())
        };
        self.pattern(pattern, |lucene_pattern| {
            let in_content = query::regexp(CONTENT, lucene_pattern);
            query::any(vec![
                query::constant_score(in_columns(lucene_pattern), ANY_COLUMN),
                query::constant_score(in_content, IN_CONTENT),
            ])
        })
    }

    /// Query for messages that contain the chunks one after another. The last chunk is a prefix of a term, unless it is very short.
    fn message(&mut self, chunks: &[String]) -> Query {
        let [_, .., last] = chunks else { return prefixes(MESSAGE, chunks) };
        // Terms are never longer than a chunk may be.
        if chunks.iter().any(|chunk| chunk.len() > MAX_CHUNK_BYTES) {
            return Query::None;
        }
        let lines: Vec<_> = chunks.iter().map(|chunk| token(chunk)).collect();
        let lines = lines.join("\n");
        if !matches_by_prefix(last) {
            return query::phrase(MESSAGE_LINES, &lines);
        }
        if !self.inputs.broad_phrase_ends.contains(&*token(last)) {
            return query::phrase_prefix(MESSAGE_LINES, &lines, chunks.len());
        }
        let reason =
            format!("the last word of {:?} is the prefix of more than {MAX_EXPANSIONS} words", chunks.join(" "));
        self.notices.insert(format!("{reason}: messages with all words of the phrase in any order are returned"));
        prefixes(MESSAGE, chunks)
    }
}

/// Documents in which every chunk is the prefix of a term; very short chunks must equal a term.
fn prefixes(field: &str, chunks: &[String]) -> Query {
    if chunks.is_empty() {
        return Query::None;
    }
    let prefixes = chunks.iter().map(|chunk| match matches_by_prefix(chunk) {
        true => query::prefix(field, &token(chunk)),
        false => query::term(field, &token(&chunk.to_lowercase())),
    });
    query::all(prefixes.collect())
}

/// Query for a substring of any value in which bare words are searched.
fn anywhere(part: &str) -> Query {
    match phrase_windows(part) {
        Some(windows) => query::phrase(GRAMS, &windows),
        None => query::prefix(GRAMS, &token(part)),
    }
}

fn contains(field: &str, part: &str) -> Query {
    match part.chars().nth(MAX_WILDCARD) {
        None => query::wildcard(field, &format!("*{}*", escape_wildcard(part))),
        Some(_) => query::regexp(field, &format!(".*{}.*", escape_literal(part))),
    }
}

fn number(number: Number, from: Option<i64>, to: Option<i64>) -> Query {
    match (from, to) {
        (Some(from), Some(to)) if from > to => Query::None,
        (None, None) => query::term(HAS, &number.name().to_lowercase()),
        (from, to) => query::numbers(&fields::number(number), from, to),
    }
}
