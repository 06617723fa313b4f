//! Patterns of the query language as tests on lower-case strings.

use crowsnest_query::MAX_COMPILED_REGEX_BYTES;
use crowsnest_query::Pattern;
use std::sync::LazyLock;

/// Maximum edit distance of a fuzzy word.
pub const MAX_EDITS: u8 = 2;

/// A test on one lower-case string.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Test {
    Equals(String),
    Contains(String),
    /// Must match the complete string.
    Regex(String),
    /// Within this edit distance; a transposition is one edit. If the flag is set, only the beginning of the string has to
    /// match.
    Fuzzy(String, u8, bool),
}

/// The test for a pattern on a complete string; `contains` applies to plain words.
pub(crate) fn pattern_test(pattern: &Pattern, contains: bool) -> Test {
    match pattern {
        Pattern::Word(word) | Pattern::Phrase(word) if contains => Test::Contains(word.to_lowercase()),
        Pattern::Word(word) | Pattern::Phrase(word) => Test::Equals(word.to_lowercase()),
        Pattern::Fuzzy { word, distance } => Test::Fuzzy(word.to_lowercase(), (*distance).min(MAX_EDITS), false),
        Pattern::Glob(glob) => match glob.strip_prefix('*').and_then(|rest| rest.strip_suffix('*')) {
            Some(part) if !part.is_empty() && !part.contains(['*', '?']) => Test::Contains(part.to_lowercase()),
            _ => Test::Regex(glob_regex(glob, ".")),
        },
        Pattern::Regex { source, .. } => Test::Regex(strip_anchors(source)),
    }
}

/// Converts a glob; `any` is the regex for a single wildcard character.
pub(crate) fn glob_regex(glob: &str, any: &str) -> String {
    let mut regex = String::new();
    for c in glob.to_lowercase().chars() {
        match c {
            '*' => regex.push_str(&format!("{any}*")),
            '?' => regex.push_str(any),
            other => regex.push_str(&regex::escape(other.encode_utf8(&mut [0; 4]))),
        }
    }
    regex
}

/// Converts a regular expression that may match a part of a text to one that must match a complete lower-case term: each
/// alternative without an anchor gets a pattern for the surrounding text.
pub(crate) fn strip_anchors(source: &str) -> String {
    let alternatives: Vec<String> = split_alternatives(source).into_iter().map(strip_alternative_anchors).collect();
    match alternatives.as_slice() {
        [one] => one.clone(),
        many => format!("(?:{})", many.join("|")),
    }
}

fn strip_alternative_anchors(source: &str) -> String {
    let (prefix, inner) = match source.strip_prefix('^') {
        Some(rest) => ("", rest),
        None => (".*", source),
    };
    let is_end_escaped = inner.ends_with("\\$");
    let (inner, suffix) = match inner.strip_suffix('$') {
        Some(rest) if !is_end_escaped => (rest, ""),
        _ => (inner, ".*"),
    };
    format!("{prefix}(?i:{inner}){suffix}")
}

/// Splits at bars outside groups and classes.
fn split_alternatives(source: &str) -> Vec<&str> {
    let (mut parts, mut start, mut depth, mut class, mut escaped) = (Vec::new(), 0, 0_usize, false, false);
    for (at, c) in source.char_indices() {
        match c {
            _ if std::mem::take(&mut escaped) => {}
            '\\' => escaped = true,
            '[' if !class => class = true,
            ']' => class = false,
            '(' if !class => depth += 1,
            ')' if !class => depth = depth.saturating_sub(1),
            '|' if !class && depth == 0 => {
                parts.push(&source[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&source[start..]);
    parts
}

/// The regex for a label's key or value within `key=value`.
pub(crate) fn label_part_regex(pattern: &Pattern, any: &str) -> String {
    match pattern {
        Pattern::Word(word) | Pattern::Phrase(word) | Pattern::Fuzzy { word, .. } => {
            regex::escape(&word.to_lowercase())
        }
        Pattern::Glob(glob) => glob_regex(glob, any),
        Pattern::Regex { source, .. } => format!("(?:{})", strip_anchors(source)),
    }
}

/// The text of a word or phrase; None for globs, regular expressions and fuzzy words.
pub(crate) fn literal_word(pattern: &Pattern) -> Option<&str> {
    match pattern {
        Pattern::Word(word) | Pattern::Phrase(word) => Some(word),
        _ => None,
    }
}

impl Test {
    /// The compiled regex of this test; None for other tests and invalid regexes.
    pub fn regex(&self) -> Option<regex::Regex> {
        match self {
            Self::Regex(source) => compile(source),
            _ => None,
        }
    }

    /// `value` must be lower-case.
    pub fn passes(&self, value: &str, regex: Option<&regex::Regex>) -> bool {
        match self {
            Self::Equals(expected) => value == expected,
            Self::Contains(expected) => value.contains(expected.as_str()),
            Self::Regex(_) => regex.is_some_and(|regex| regex.is_match(value)),
            Self::Fuzzy(word, distance, is_prefix) => is_within_edits(value, word, *distance, *is_prefix),
        }
    }
}

/// Maximum number of cached compiled expressions; those of a query are applied to many objects.
const MAX_CACHED: u64 = 128;
static COMPILED: LazyLock<moka::sync::Cache<String, Option<regex::Regex>>> =
    LazyLock::new(|| moka::sync::Cache::builder().max_capacity(MAX_CACHED).build());

/// Compiles an expression that matches the complete string, with a size limit.
pub fn compile(source: &str) -> Option<regex::Regex> {
    let compiled =
        || regex::RegexBuilder::new(&format!("^(?:{source})$")).size_limit(MAX_COMPILED_REGEX_BYTES).build().ok();
    COMPILED.get_with_by_ref(source, compiled)
}

/// True if `term`, or a prefix of it with `is_prefix`, is within the edit distance of `word` (a transposition is one
/// edit).
pub fn is_within_edits(term: &str, word: &str, distance: u8, is_prefix: bool) -> bool {
    let word: Vec<char> = word.chars().collect();
    let max_length = word.len() + distance as usize;
    let is_complete = term.chars().count() <= max_length;
    let term: Vec<char> = term.chars().take(max_length).collect();
    let mut rows: Vec<Vec<usize>> = vec![(0..=word.len()).collect()];
    let is_near = |row: &[usize]| row.last().is_some_and(|last| *last <= distance as usize);
    if is_prefix && is_near(&rows[0]) {
        return true;
    }
    for (i, c) in term.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, w) in word.iter().enumerate() {
            let mut best = (rows[i][j + 1] + 1).min(row[j] + 1).min(rows[i][j] + usize::from(c != w));
            if i > 0 && j > 0 && *c == word[j - 1] && term[i - 1] == *w {
                best = best.min(rows[i - 1][j - 1] + 1);
            }
            row.push(best);
        }
        if is_prefix && is_near(&row) {
            return true;
        }
        rows.push(row);
    }
    !is_prefix && is_complete && rows.last().is_some_and(|row| is_near(row))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("^web|-0$", "web.x", true)]
    #[case("^web|-0$", "a-0", true)]
    #[case("^web|-0$", "aweb", false)]
    #[case("^(a|b)$", "ab", false)]
    #[case("[|]x", "a|xb", true)]
    #[case("a\\|b", "xa|b", true)]
    #[case("eb", "WEB-0", true)]
    fn anchors_apply_to_their_alternative(#[case] source: &str, #[case] text: &str, #[case] expected: bool) {
        assert_eq!(compile(&strip_anchors(source)).unwrap().is_match(text), expected);
    }

    #[rstest]
    #[case("checkout", "checkuot", 1, true)]
    #[case("checkouts", "checkout", 0, false)]
    #[case("checkouts", "checkout", 1, true)]
    #[case("checkout-7d9f", "checkout", 2, false)]
    #[case("", "ab", 2, true)]
    fn edit_distance_applies_to_the_whole_term(
        #[case] term: &str,
        #[case] word: &str,
        #[case] distance: u8,
        #[case] expected: bool,
    ) {
        assert_eq!(is_within_edits(term, word, distance, false), expected);
    }
}
