//! JSON parser that keeps the order and duplicates of members, with the syntax errors of Go's `encoding/json`.

use crowsnest_apimachinery::nesting::MAX_DEPTH;
use serde_json::{Number, Value};

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Json {
    Null,
    Bool(bool),
    Number(Number),
    String(String),
    Array(Vec<Json>),
    Object(Vec<(String, Json)>),
}

impl Json {
    /// Go's name for the kind of value.
    pub fn kind(&self) -> &'static str {
        match self {
            Json::Null => "null",
            Json::Bool(_) => "bool",
            Json::Number(_) => "number",
            Json::String(_) => "string",
            Json::Array(_) => "array",
            Json::Object(_) => "object",
        }
    }

    /// Converts to a JSON value; the last of duplicate members is used.
    pub(super) fn into_value(self) -> Value {
        match self {
            Json::Null => Value::Null,
            Json::Bool(flag) => Value::Bool(flag),
            Json::Number(number) => Value::Number(number),
            Json::String(text) => Value::String(text),
            Json::Array(items) => Value::Array(items.into_iter().map(Json::into_value).collect()),
            Json::Object(fields) => Value::Object(fields.into_iter().map(|(k, v)| (k, v.into_value())).collect()),
        }
    }

    pub(super) fn from_value(value: Value) -> Json {
        match value {
            Value::Null => Json::Null,
            Value::Bool(flag) => Json::Bool(flag),
            Value::Number(number) => Json::Number(number),
            Value::String(text) => Json::String(text),
            Value::Array(items) => Json::Array(items.into_iter().map(Json::from_value).collect()),
            Value::Object(fields) => Json::Object(fields.into_iter().map(|(k, v)| (k, Json::from_value(v))).collect()),
        }
    }
}

pub(super) fn parse(text: &[u8]) -> Result<Json, String> {
    let mut parser = Parser { text, at: 0 };
    parser.skip_space();
    let value = parser.value(0, "looking for beginning of value")?;
    parser.skip_space();
    match parser.peek() {
        None => Ok(value),
        Some(_) => Err(parser.unexpected("after top-level value")),
    }
}

struct Parser<'a> {
    text: &'a [u8],
    at: usize,
}

impl Parser<'_> {
    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    fn skip_space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    /// Error `invalid character 'x' CONTEXT`, or unexpected end of input.
    fn unexpected(&self, context: &str) -> String {
        let Some(byte) = self.peek() else { return "unexpected end of JSON input".into() };
        let shown = match byte {
            b'\'' => r"'\''".to_owned(),
            b'"' => "'\"'".to_owned(),
            b'\n' => r"'\n'".to_owned(),
            b'\r' => r"'\r'".to_owned(),
            b'\t' => r"'\t'".to_owned(),
            b'\\' => r"'\\'".to_owned(),
            0x20..=0x7e => format!("'{}'", char::from(byte)),
            0xa1..=0xff => format!("'{}'", char::from(byte)),
            _ => format!("'\\x{byte:02x}'"),
        };
        format!("invalid character {shown} {context}")
    }

    fn value(&mut self, depth: usize, context: &str) -> Result<Json, String> {
        if depth > MAX_DEPTH {
            return Err("exceeded max depth".into());
        }
        match self.peek() {
            Some(b'{') => self.object(depth),
            Some(b'[') => self.array(depth),
            Some(b'"') => self.string().map(Json::String),
            Some(b'-' | b'0'..=b'9') => self.number(),
            Some(b't') => self.literal("true").map(|()| Json::Bool(true)),
            Some(b'f') => self.literal("false").map(|()| Json::Bool(false)),
            Some(b'n') => self.literal("null").map(|()| Json::Null),
            _ => Err(self.unexpected(context)),
        }
    }

    fn literal(&mut self, word: &str) -> Result<(), String> {
        for expected in word.bytes() {
            if self.peek() != Some(expected) {
                return Err(self.unexpected(&format!("in literal {word} (expecting '{}')", char::from(expected))));
            }
            self.at += 1;
        }
        Ok(())
    }

    fn object(&mut self, depth: usize) -> Result<Json, String> {
        let mut fields = Vec::new();
        self.elements(b'}', "after object key:value pair", |parser| {
            if parser.peek() != Some(b'"') {
                return Err(parser.unexpected("looking for beginning of object key string"));
            }
            let key = parser.string()?;
            parser.skip_space();
            if parser.peek() != Some(b':') {
                return Err(parser.unexpected("after object key"));
            }
            parser.at += 1;
            parser.skip_space();
            fields.push((key, parser.value(depth + 1, "looking for beginning of value")?));
            Ok(())
        })?;
        Ok(Json::Object(fields))
    }

    fn array(&mut self, depth: usize) -> Result<Json, String> {
        let mut items = Vec::new();
        self.elements(b']', "after array element", |parser| {
            items.push(parser.value(depth + 1, "looking for beginning of value")?);
            Ok(())
        })?;
        Ok(Json::Array(items))
    }

    /// Reads an object or array up to its `end`, with `element` for each element. `after_element` is the context in the
    /// error for an unexpected character after an element.
    fn elements(
        &mut self,
        end: u8,
        after_element: &str,
        mut element: impl FnMut(&mut Self) -> Result<(), String>,
    ) -> Result<(), String> {
        self.at += 1;
        self.skip_space();
        if self.peek() == Some(end) {
            self.at += 1;
            return Ok(());
        }
        loop {
            self.skip_space();
            element(self)?;
            self.skip_space();
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(byte) if byte == end => {
                    self.at += 1;
                    return Ok(());
                }
                _ => return Err(self.unexpected(after_element)),
            }
        }
    }

    fn string(&mut self) -> Result<String, String> {
        let start = self.at;
        self.at += 1;
        loop {
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(self.unquote(start));
                }
                Some(b'\\') => {
                    self.at += 1;
                    match self.peek() {
                        Some(b'b' | b'f' | b'n' | b'r' | b't' | b'\\' | b'/' | b'"') => self.at += 1,
                        Some(b'u') => {
                            self.at += 1;
                            for _ in 0..4 {
                                if !self.peek().is_some_and(|b| b.is_ascii_hexdigit()) {
                                    return Err(self.unexpected("in \\u hexadecimal character escape"));
                                }
                                self.at += 1;
                            }
                        }
                        _ => return Err(self.unexpected("in string escape code")),
                    }
                }
                Some(byte) if byte < 0x20 => return Err(self.unexpected("in string literal")),
                Some(_) => self.at += 1,
                None => return Err(self.unexpected("")),
            }
        }
    }

    /// Content of the string literal from `start`. Lone surrogates and invalid UTF-8 become U+FFFD, as in Go.
    fn unquote(&self, start: usize) -> String {
        let raw = String::from_utf8_lossy(&self.text[start..self.at]);
        if !raw.contains('\\') {
            return raw[1..raw.len() - 1].to_owned();
        }
        serde_json::from_str(&raw).unwrap_or_else(|_| unescape_surrogates(&raw[1..raw.len() - 1]))
    }

    fn number(&mut self) -> Result<Json, String> {
        let start = self.at;
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        match self.peek() {
            Some(b'0') => self.at += 1,
            Some(b'1'..=b'9') => self.digits(),
            _ => return Err(self.unexpected("in numeric literal")),
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            if !self.peek().is_some_and(|b| b.is_ascii_digit()) {
                return Err(self.unexpected("after decimal point in numeric literal"));
            }
            self.digits();
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            if !self.peek().is_some_and(|b| b.is_ascii_digit()) {
                return Err(self.unexpected("in exponent of numeric literal"));
            }
            self.digits();
        }
        let text = String::from_utf8_lossy(&self.text[start..self.at]);
        if text == "-0" {
            // An integer in Go, and a float for serde_json.
            return Ok(Json::Number(0.into()));
        }
        serde_json::from_str(&text)
            .map(Json::Number)
            .map_err(|_| format!("json: cannot unmarshal number {text} into Go value of type float64"))
    }

    fn digits(&mut self) {
        while self.peek().is_some_and(|b| b.is_ascii_digit()) {
            self.at += 1;
        }
    }
}

/// Unescapes a string with lone surrogates, which serde_json rejects; they become U+FFFD.
fn unescape_surrogates(text: &str) -> String {
    let mut units: Vec<u16> = Vec::new();
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        if c != '\\' {
            units.extend(c.encode_utf16(&mut [0; 2]).iter());
            continue;
        }
        units.push(match chars.next() {
            Some('u') => {
                chars.by_ref().take(4).fold(0u16, |n, c| n.wrapping_mul(16) | c.to_digit(16).unwrap_or(0) as u16)
            }
            Some('b') => 8,
            Some('f') => 12,
            Some('n') => 10,
            Some('r') => 13,
            Some('t') => 9,
            Some(other) => other as u16,
            None => continue,
        });
    }
    String::from_utf16_lossy(&units)
}
