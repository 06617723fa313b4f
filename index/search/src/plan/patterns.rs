//! Patterns of the language as tests of lower-case strings.

use crowsnest_query::MAX_COMPILED;
use crowsnest_query::Pattern;
use std::sync::LazyLock;

/// Edits a fuzzy word may be away.
pub const MOST_EDITS: u8 = 2;

/// A test of one string, lower case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Test {
    Equals(String),
    Contains(String),
    /// Matches the whole string.
    Regex(String),
    /// Within so many edits, swaps of neighbours counting as one.
    /// Or, where that is set, its beginning.
    Near(String, u8, bool),
}

/// Pattern as a test on a whole string; plain words as the field wants them.
pub(crate) fn test(pattern: &Pattern, contains: bool) -> Test {
    match pattern {
        Pattern::Word(word) | Pattern::Phrase(word) if contains => Test::Contains(word.to_lowercase()),
        Pattern::Word(word) | Pattern::Phrase(word) => Test::Equals(word.to_lowercase()),
        Pattern::Fuzzy { word, distance } => Test::Near(word.to_lowercase(), (*distance).min(MOST_EDITS), false),
        Pattern::Glob(glob) => match glob.strip_prefix('*').and_then(|rest| rest.strip_suffix('*')) {
            Some(part) if !part.is_empty() && !part.contains(['*', '?']) => Test::Contains(part.to_lowercase()),
            _ => Test::Regex(glob_regex(glob, ".")),
        },
        Pattern::Regex { source, .. } => Test::Regex(unanchored(source)),
    }
}

/// `any` is what `*` and `?` stand for.
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

/// Terms are lower case, and term dictionaries match from end to end: anchors of each alternative become what may stand
/// around it.
pub(crate) fn unanchored(source: &str) -> String {
    let alternatives: Vec<String> = alternatives(source).into_iter().map(one_unanchored).collect();
    match alternatives.as_slice() {
        [one] => one.clone(),
        many => format!("(?:{})", many.join("|")),
    }
}

fn one_unanchored(source: &str) -> String {
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

/// Split at the bars outside groups and classes.
fn alternatives(source: &str) -> Vec<&str> {
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

/// The regex a label's key or value must match, as part of `key=value`.
pub(crate) fn piece(pattern: &Pattern, any: &str) -> String {
    match pattern {
        Pattern::Word(word) | Pattern::Phrase(word) | Pattern::Fuzzy { word, .. } => {
            regex::escape(&word.to_lowercase())
        }
        Pattern::Glob(glob) => glob_regex(glob, any),
        Pattern::Regex { source, .. } => format!("(?:{})", unanchored(source)),
    }
}

pub(crate) fn literal_word(pattern: &Pattern) -> Option<&str> {
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
            Self::Near(word, distance, begins) => near(value, word, *distance, *begins),
        }
    }
}

/// Compiled expressions that are kept: those of one query are asked of many objects.
const MOST_KEPT: u64 = 128;
static COMPILED: LazyLock<moka::sync::Cache<String, Option<regex::Regex>>> =
    LazyLock::new(|| moka::sync::Cache::builder().max_capacity(MOST_KEPT).build());

/// From end to end, with bounded size.
pub fn compile(source: &str) -> Option<regex::Regex> {
    let whole = || regex::RegexBuilder::new(&format!("^(?:{source})$")).size_limit(MAX_COMPILED).build().ok();
    COMPILED.get_with_by_ref(source, whole)
}

/// Whether `term`, or some beginning of it, is within `distance` edits (swaps count as one) of `word`.
pub fn near(term: &str, word: &str, distance: u8, begins: bool) -> bool {
    let word: Vec<char> = word.chars().collect();
    let most = word.len() + distance as usize;
    let whole = term.chars().count() <= most;
    let term: Vec<char> = term.chars().take(most).collect();
    let mut rows: Vec<Vec<usize>> = vec![(0..=word.len()).collect()];
    let near = |row: &[usize]| row.last().is_some_and(|last| *last <= distance as usize);
    if begins && near(&rows[0]) {
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
        if begins && near(&row) {
            return true;
        }
        rows.push(row);
    }
    !begins && whole && rows.last().is_some_and(|row| near(row))
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
    fn anchors_are_of_their_alternative(#[case] source: &str, #[case] text: &str, #[case] expected: bool) {
        assert_eq!(compile(&unanchored(source)).unwrap().is_match(text), expected);
    }

    #[rstest]
    #[case("checkout", "checkuot", 1, true)]
    #[case("checkouts", "checkout", 0, false)]
    #[case("checkouts", "checkout", 1, true)]
    #[case("checkout-7d9f", "checkout", 2, false)]
    #[case("", "ab", 2, true)]
    fn nearness_is_of_the_whole(#[case] term: &str, #[case] word: &str, #[case] distance: u8, #[case] expected: bool) {
        assert_eq!(near(term, word, distance, false), expected);
    }
}
