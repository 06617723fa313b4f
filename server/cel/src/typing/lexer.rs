//! Lexer: tokens of an expression with their positions. Has no side effects; used by [`super::parser`].

use std::borrow::Cow;

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Token {
    Name(String),
    /// Without sign.
    Int(u64),
    Uint,
    Double,
    Text(String),
    /// A bytes literal of this size.
    Bytes(usize),
    /// An operator or bracket.
    Symbol(&'static str),
    End,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct PositionedToken {
    pub at: usize,
    pub token: Token,
}

/// Operators and brackets, longer ones first.
const SYMBOLS: &[&str] = &[
    "&&", "||", "==", "!=", "<=", ">=", "<", ">", "[", "]", "{", "}", "(", ")", ".", ",", "-", "+", "*", "/", "%", "!",
    "?", ":",
];

/// All tokens, terminated by [`Token::End`]; `None` for an invalid one.
pub(super) fn tokenize(source: &str) -> Option<Vec<PositionedToken>> {
    let chars: Vec<char> = source.chars().collect();
    let mut tokens = Vec::new();
    let mut at = 0;
    while at < chars.len() {
        let next = chars[at];
        if next.is_ascii_whitespace() {
            at += 1;
        } else if chars[at..].starts_with(&['/', '/']) {
            at += chars[at..].iter().take_while(|c| **c != '\n').count();
        } else if let Some((token, length)) = text(&chars[at..])? {
            tokens.push(PositionedToken { at, token });
            at += length;
        } else if next.is_ascii_alphabetic() || next == '_' {
            let length = chars[at..].iter().take_while(|c| c.is_ascii_alphanumeric() || **c == '_').count();
            tokens.push(PositionedToken { at, token: Token::Name(chars[at..at + length].iter().collect()) });
            at += length;
        } else if next.is_ascii_digit() || (next == '.' && chars.get(at + 1).is_some_and(char::is_ascii_digit)) {
            let (token, length) = number(&chars[at..])?;
            tokens.push(PositionedToken { at, token });
            at += length;
        } else {
            let symbol =
                SYMBOLS.iter().find(|symbol| symbol.chars().eq(chars[at..].iter().copied().take(symbol.len())))?;
            tokens.push(PositionedToken { at, token: Token::Symbol(symbol) });
            at += symbol.len();
        }
    }
    tokens.push(PositionedToken { at: chars.len(), token: Token::End });
    Some(tokens)
}

/// Rewrites repeated signs for the parser of the `cel` crate, which treats any number of them as one. Positions do
/// not change.
pub(crate) fn reduce_signs(source: &str) -> Cow<'_, str> {
    let Some(tokens) = tokenize(source).filter(|_| source.contains(['-', '!'])) else { return source.into() };
    let is_symbol =
        |at: usize, symbol: &'static str| matches!(tokens.get(at), Some(next) if next.token == Token::Symbol(symbol));
    let mut removed = Vec::new();
    let (mut at, mut is_after_operand) = (0, false);
    while at < tokens.len() {
        let Token::Symbol(sign @ ("-" | "!")) = tokens[at].token else {
            is_after_operand = match &tokens[at].token {
                Token::Symbol(symbol) => matches!(*symbol, ")" | "]" | "}"),
                Token::Name(name) => name != "in",
                _ => true,
            };
            at += 1;
            continue;
        };
        // After an operand, the first minus is subtraction.
        let from = at + usize::from(is_after_operand && sign == "-");
        at = (from..).find(|at| !is_symbol(*at, sign)).unwrap_or(from).max(at + 1);
        let signs = at.saturating_sub(from);
        let remaining = signs % 2;
        removed.extend(tokens[from..from + signs - remaining].iter().map(|positioned| positioned.at));
        is_after_operand = false;
    }
    if removed.is_empty() {
        return source.into();
    }
    let mut chars: Vec<char> = source.chars().collect();
    removed.into_iter().for_each(|at| chars[at] = ' ');
    chars.into_iter().collect::<String>().into()
}

fn number(chars: &[char]) -> Option<(Token, usize)> {
    let digits = |from: usize, radix: u32| chars[from..].iter().take_while(|c| c.is_digit(radix)).count();
    if chars.starts_with(&['0', 'x']) {
        let length = 2 + digits(2, 16);
        let digits_text: String = chars[2..length].iter().collect();
        return integer(&digits_text, 16, chars.get(length), length);
    }
    let mut length = digits(0, 10);
    let mut is_fractional = false;
    if chars.get(length) == Some(&'.') && chars.get(length + 1).is_some_and(char::is_ascii_digit) {
        is_fractional = true;
        length += 1 + digits(length + 1, 10);
    }
    if matches!(chars.get(length), Some('e' | 'E')) {
        let sign = usize::from(matches!(chars.get(length + 1), Some('+' | '-')));
        let exponent = digits((length + 1 + sign).min(chars.len()), 10);
        if exponent > 0 {
            is_fractional = true;
            length += 1 + sign + exponent;
        }
    }
    if is_fractional {
        return Some((Token::Double, length));
    }
    let digits_text: String = chars[..length].iter().collect();
    integer(&digits_text, 10, chars.get(length), length)
}

fn integer(digits_text: &str, radix: u32, next: Option<&char>, length: usize) -> Option<(Token, usize)> {
    let number = u64::from_str_radix(digits_text, radix).ok()?;
    Some(if matches!(next, Some('u' | 'U')) { (Token::Uint, length + 1) } else { (Token::Int(number), length) })
}

/// A string or bytes literal with its source length. The inner option is `None` without a literal, the outer one if
/// it is unterminated.
fn text(chars: &[char]) -> Option<Option<(Token, usize)>> {
    let prefix = chars.iter().take(2).take_while(|c| matches!(c, 'r' | 'R' | 'b' | 'B')).count();
    let Some(quote @ ('"' | '\'')) = chars.get(prefix).copied() else { return Some(None) };
    let has_prefix = |letter: char| chars[..prefix].iter().any(|c| c.eq_ignore_ascii_case(&letter));
    let (is_raw, is_bytes) = (has_prefix('r'), has_prefix('b'));
    let quotes = if chars[prefix..].starts_with(&[quote; 3]) { 3 } else { 1 };
    let mut at = prefix + quotes;
    let mut value = String::new();
    let mut size = 0;
    loop {
        let rest = chars.get(at..).filter(|rest| !rest.is_empty())?;
        if rest.iter().take(quotes).filter(|c| **c == quote).count() == quotes {
            at += quotes;
            break;
        }
        let (letter, length, byte) = if rest[0] == '\\' && !is_raw { parse_escape(rest)? } else { (rest[0], 1, false) };
        value.push(letter);
        size += if byte { 1 } else { letter.len_utf8() };
        at += length;
    }
    Some(Some((if is_bytes { Token::Bytes(size) } else { Token::Text(value) }, at)))
}

/// The character of an escape sequence, the length of the sequence, and whether it is a single byte in bytes
/// literals.
fn parse_escape(chars: &[char]) -> Option<(char, usize, bool)> {
    let code = |from: usize, count: usize, radix: u32| {
        let digits_text: String = chars.get(from..from + count)?.iter().collect();
        char::from_u32(u32::from_str_radix(&digits_text, radix).ok()?)
    };
    Some(match chars.get(1)? {
        'a' => ('\u{7}', 2, false),
        'b' => ('\u{8}', 2, false),
        'f' => ('\u{c}', 2, false),
        'n' => ('\n', 2, false),
        'r' => ('\r', 2, false),
        't' => ('\t', 2, false),
        'v' => ('\u{b}', 2, false),
        letter @ ('\\' | '\'' | '"' | '`' | '?') => (*letter, 2, false),
        'x' | 'X' => (code(2, 2, 16)?, 4, true),
        'u' => (code(2, 4, 16)?, 6, false),
        'U' => (code(2, 8, 16)?, 10, false),
        '0'..='3' => (code(1, 3, 8)?, 4, true),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[rstest::rstest]
    #[case("- -3", "   3")]
    #[case("---x", "  -x")]
    #[case("1 - -3", "1 - -3")]
    #[case("1---x", "1-  x")]
    #[case("1 in - -x", "1 in    x")]
    #[case("f(1)--2 + [3][0]- - -x", "f(1)--2 + [3][0]-    x")]
    #[case("!!a && !!!b", "  a &&   !b")]
    #[case("!-!a", "!-!a")]
    #[case("a != -b", "a != -b")]
    #[case("'--' + \"- -\" // - -", "'--' + \"- -\" // - -")]
    #[case("'ä' == --x", "'ä' ==   x")]
    #[case("-", "-")]
    #[case("--", "  ")]
    #[case("'open --", "'open --")]
    fn pairs_of_repeated_signs_are_removed(#[case] source: &str, #[case] expected: &str) {
        assert_eq!(reduce_signs(source), expected);
    }
}
