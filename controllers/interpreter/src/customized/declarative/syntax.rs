//! Rewords LuaJIT's syntax errors like gopher-lua, which authors of Karmada's scripts know.
//!
//! LuaJIT reports line and token; the column is found by parsing prefixes of the script.

/// Maximum number of positions to try. Each requires parsing the script up to that position.
const MAX_POSITIONS: usize = 64;

/// A message of LuaJIT: `<string>:LINE: REASON near 'TOKEN'`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct SyntaxErrorMessage<'m> {
    line: usize,
    reason: &'m str,
    token: &'m str,
}

impl<'m> SyntaxErrorMessage<'m> {
    fn parse(message: &'m str) -> Option<Self> {
        let (line, rest) = message.strip_prefix("<string>:")?.split_once(": ")?;
        let (reason, token) = rest.split_once(" near '")?;
        Some(SyntaxErrorMessage { line: line.parse().ok()?, reason, token: token.strip_suffix('\'')? })
    }

    /// The token as displayed by gopher-lua: strings without quotes.
    fn display_token(&self) -> &'m str {
        let strip_quotes = |quote: char| self.token.strip_prefix(quote)?.strip_suffix(quote);
        strip_quotes('"').or_else(|| strip_quotes('\'')).unwrap_or(self.token)
    }

    fn is_grammar_error(&self) -> bool {
        self.reason == "unexpected symbol"
            || self.reason.ends_with(" expected")
            || self.reason.contains(" expected (to close ")
    }

    /// Possible positions of the token: the column of its last byte, and the script up to there.
    fn token_positions<'s>(&'s self, script: &'s str) -> impl Iterator<Item = (usize, &'s str)> + 's {
        let start: usize = script.split_inclusive('\n').take(self.line.saturating_sub(1)).map(str::len).sum();
        let rest = script.get(start..).unwrap_or_default();
        let line = rest.lines().next().unwrap_or_default();
        let is_word_byte = |byte: Option<u8>| byte.is_some_and(|byte| byte == b'_' || byte.is_ascii_alphanumeric());
        let is_word = is_word_byte(self.token.bytes().next());
        let is_separate_word = move |(at, _): &(usize, &str)| {
            let bytes = line.as_bytes();
            let before = at.checked_sub(1).and_then(|before| bytes.get(before).copied());
            !is_word || !(is_word_byte(before) || is_word_byte(bytes.get(at + self.token.len()).copied()))
        };
        line.match_indices(self.token).filter(is_separate_word).filter_map(move |(at, token)| {
            let column = at + token.len();
            Some((column, script.get(..start + column)?))
        })
    }
}

/// Rewords a message of LuaJIT if gopher-lua has an equivalent one. `compile_error` returns LuaJIT's message for a
/// prefix of the script.
pub(super) fn reword_syntax_error(
    script: &str,
    message: &str,
    compile_error: impl Fn(&str) -> Option<String>,
) -> String {
    let Some(original) = SyntaxErrorMessage::parse(message) else { return message.to_owned() };
    let reason = if original.is_grammar_error() { "syntax error" } else { original.reason };
    if original.token == "<eof>" {
        return format!("<string> at EOF:   {reason}");
    }
    // A prefix that ends with the token fails with the same message; a shorter one fails because of its end.
    let ends_with_token =
        |text: &str| compile_error(text).is_some_and(|shorter| SyntaxErrorMessage::parse(&shorter) == Some(original));
    match original.token_positions(script).take(MAX_POSITIONS).find(|(_, text)| ends_with_token(text)) {
        Some((column, _)) => {
            format!("<string> line:{}(column:{column}) near '{}':   {reason}", original.line, original.display_token())
        }
        None => message.to_owned(),
    }
}
