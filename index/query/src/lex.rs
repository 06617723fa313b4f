//! Lexer: splits query text into words, quoted text and regular expressions. It does not know the fields.

use super::ast::{Pattern, Span};

/// Scans the query text from left to right; positions are bytes.
#[derive(Debug, Clone)]
pub(super) struct Cursor<'a> {
    text: &'a str,
    pub(super) at: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Self { text, at: 0 }
    }

    pub(super) fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    pub(super) fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    pub(super) fn bump(&mut self) -> Option<char> {
        let c = self.peek()?;
        self.at += c.len_utf8();
        Some(c)
    }

    pub(super) fn eat(&mut self, token: &str) -> bool {
        let found = self.rest().starts_with(token);
        if found {
            self.at += token.len();
        }
        found
    }

    pub(super) fn skip_whitespace(&mut self) {
        while self.peek().is_some_and(char::is_whitespace) {
            self.bump();
        }
    }

    /// The text from a position to the cursor.
    pub(super) fn text_since(&self, start: usize) -> &'a str {
        &self.text[start..self.at]
    }

    pub(super) fn span_from(&self, start: usize) -> Span {
        Span { start, end: self.at }
    }

    /// Consumes an operator (`AND`, `OR`, `NOT`) if whitespace, a parenthesis or the end of the text follows it.
    pub(super) fn eat_operator(&mut self, operator: &str) -> bool {
        let Some(after) = self.rest().strip_prefix(operator) else { return false };
        let is_operator = after.chars().next().is_none_or(|c| c.is_whitespace() || c == '(' || c == ')');
        if is_operator {
            self.at += operator.len();
        }
        is_operator
    }

    /// The field name before a `:` at the cursor, if there is one; does not move. Brackets of a path may contain
    /// any character: `.metadata.labels[app.kubernetes.io/name]`.
    pub(super) fn field_name(&self) -> Option<&'a str> {
        let rest = self.rest();
        let mut in_brackets = false;
        let end = rest.find(|c: char| match c {
            '[' => {
                in_brackets = rest.starts_with('.');
                !in_brackets
            }
            ']' => !std::mem::take(&mut in_brackets),
            c if in_brackets => c.is_whitespace(),
            c => !(c.is_alphanumeric() || matches!(c, '.' | '_' | '-')),
        })?;
        (end > 0 && rest[end..].starts_with(':')).then(|| &rest[..end])
    }

    /// Parses quoted text at the cursor: its content, and true if the closing quote was found.
    pub(super) fn parse_quoted(&mut self) -> (String, bool) {
        self.bump();
        let mut content = String::new();
        while let Some(c) = self.bump() {
            match c {
                '"' => return (content, true),
                '\\' => content.extend(self.bump()),
                other => content.push(other),
            }
        }
        (content, false)
    }

    /// Parses a regular expression `/…/` at the cursor. Returns `None` without moving the cursor if it is incomplete;
    /// then the text is a word, such as a file path.
    pub(super) fn parse_regex(&mut self) -> Option<Pattern> {
        let rest = self.rest().strip_prefix('/')?;
        let mut source = String::new();
        let mut chars = rest.char_indices();
        while let Some((index, c)) = chars.next() {
            match c {
                '\\' => {
                    let (_, escaped) = chars.next()?;
                    if escaped != '/' {
                        source.push('\\');
                    }
                    source.push(escaped);
                }
                '/' => {
                    let mut after = &rest[index + 1..];
                    let ignore_case = after.starts_with('i') && after[1..].chars().next().is_none_or(ends_value);
                    if ignore_case {
                        after = &after[1..];
                    }
                    if source.is_empty() || !after.chars().next().is_none_or(ends_value) {
                        return None;
                    }
                    self.at = self.text.len() - after.len();
                    return Some(Pattern::Regex { source, ignore_case });
                }
                other => source.push(other),
            }
        }
        None
    }

    /// A bare word; ends at whitespace, at `,` if `ends_at_comma`, and at an unmatched `)`.
    pub(super) fn parse_word(&mut self, ends_at_comma: bool) -> &'a str {
        let start = self.at;
        let mut open_parentheses = Vec::new();
        while let Some(c) = self.peek() {
            match c {
                c if c.is_whitespace() => break,
                ',' if ends_at_comma && open_parentheses.is_empty() => break,
                '(' => open_parentheses.push(self.at),
                ')' if open_parentheses.pop().is_none() => break,
                _ => {}
            }
            self.bump();
        }
        // An unmatched parenthesis does not belong to the word.
        if let Some(first) = open_parentheses.first() {
            self.at = *first;
        }
        &self.text[start..self.at]
    }
}

/// True if a word is a regular expression or would begin one if a slash followed later in the text.
pub(super) fn opens_regex(word: &str) -> bool {
    word.starts_with('/') && Cursor::new(&format!("{word} /")).parse_regex().is_some()
}

fn ends_value(c: char) -> bool {
    c.is_whitespace() || c == ',' || c == ')'
}

/// A word as a pattern: fuzzy with a trailing `~` or `~1`, glob with `*` or `?`, else plain.
pub(super) fn parse_word_pattern(word: &str) -> Pattern {
    if let Some((stem, distance)) = word.rsplit_once('~')
        && !stem.is_empty()
        && !stem.contains('~')
        && matches!(distance, "" | "0" | "1" | "2")
    {
        let distance = distance.parse().unwrap_or(1);
        return Pattern::Fuzzy { word: stem.to_owned(), distance };
    }
    if word.contains(['*', '?']) { Pattern::Glob(word.to_owned()) } else { Pattern::Word(word.to_owned()) }
}
