//! Patterns of the language as tests of lower-case strings.

use crate::query::Pattern;

/// A test of one string, lower case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Test {
    Equals(String),
    Contains(String),
    /// Matches the whole string.
    Regex(String),
}

/// Pattern as a test on a whole string; plain words as the field wants them.
pub(super) fn test(pattern: &Pattern, contains: bool) -> Test {
    match pattern {
        Pattern::Word(word) | Pattern::Phrase(word) | Pattern::Fuzzy { word, .. } if contains => {
            Test::Contains(word.to_lowercase())
        }
        Pattern::Word(word) | Pattern::Phrase(word) | Pattern::Fuzzy { word, .. } => Test::Equals(word.to_lowercase()),
        Pattern::Glob(glob) => Test::Regex(glob_regex(glob, ".")),
        Pattern::Regex { source, .. } => Test::Regex(unanchored(source)),
    }
}

/// `any` is what `*` and `?` stand for.
pub(super) fn glob_regex(glob: &str, any: &str) -> String {
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

/// Terms are lower case, and term dictionaries match from end to end.
pub(super) fn unanchored(source: &str) -> String {
    let (open, inner) = match source.strip_prefix('^') {
        Some(rest) => ("", rest),
        None => (".*", source),
    };
    let escaped_end = inner.ends_with("\\$");
    let (inner, close) = match inner.strip_suffix('$') {
        Some(rest) if !escaped_end => (rest, ""),
        _ => (inner, ".*"),
    };
    format!("{open}(?i:{inner}){close}")
}

/// The regex a label's key or value must match, as part of `key=value`.
pub(super) fn piece(pattern: &Pattern, any: &str) -> String {
    match pattern {
        Pattern::Word(word) | Pattern::Phrase(word) | Pattern::Fuzzy { word, .. } => {
            regex::escape(&word.to_lowercase())
        }
        Pattern::Glob(glob) => glob_regex(glob, any),
        Pattern::Regex { source, .. } => format!("(?:{})", unanchored(source)),
    }
}

pub(super) fn literal_word(pattern: &Pattern) -> Option<&str> {
    match pattern {
        Pattern::Word(word) | Pattern::Phrase(word) => Some(word),
        _ => None,
    }
}

impl Test {
    /// The regex this test needs, made once; None for other tests and for regexes that are none.
    pub fn regex(&self) -> Option<regex::Regex> {
        match self {
            Self::Regex(source) => compile(source),
            _ => None,
        }
    }

    /// `value` is lower case.
    pub fn passes(&self, value: &str, regex: Option<&regex::Regex>) -> bool {
        match self {
            Self::Equals(wanted) => value == wanted,
            Self::Contains(wanted) => value.contains(wanted.as_str()),
            Self::Regex(_) => regex.is_some_and(|regex| regex.is_match(value)),
        }
    }
}

/// From end to end, with bounded size.
pub fn compile(source: &str) -> Option<regex::Regex> {
    regex::RegexBuilder::new(&format!("^(?:{source})$")).size_limit(1 << 20).build().ok()
}
