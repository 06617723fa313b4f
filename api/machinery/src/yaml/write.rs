//! Prints JSON as YAML in the format of Go's yaml.v2: keys in natural order, list items with the indentation of their
//! key, text wrapped after column 80, multi-line text as literal block.

use std::cmp::Ordering;

use serde_json::{Map, Number, Value};

use super::scalar::{format_float, is_plain, json_number};

/// A line is broken at the first single space after this column.
const MAX_COLUMN: usize = 80;
/// Number of spaces per level of indentation.
const INDENT_WIDTH: usize = 2;

/// Prints a value as a YAML document.
pub fn to_yaml(value: &Value) -> String {
    let mut writer = Writer { out: String::new(), column: 0, after_space: true, in_indent: true };
    writer.write_value(value, None, false);
    writer.write_indent(0);
    writer.out
}

struct Writer {
    out: String,
    column: usize,
    /// True if the last character separates tokens, so that no space has to be written.
    after_space: bool,
    /// True if the line contains only indentation and block indicators so far.
    in_indent: bool,
}

/// Indentation of the enclosing block. `None` at the root.
type Indent = Option<usize>;

fn child_indent(indent: Indent) -> usize {
    indent.map_or(0, |indent| indent + INDENT_WIDTH)
}

impl Writer {
    fn write_value(&mut self, value: &Value, indent: Indent, after_key: bool) {
        match value {
            Value::Null => self.write_plain("null", indent, false),
            Value::Bool(value) => self.write_plain(&value.to_string(), indent, false),
            Value::Number(number) => self.write_plain(&number_text(number), indent, false),
            Value::String(text) => self.write_text(text, indent, false),
            Value::Array(list) if list.is_empty() => self.write_empty_collection("[", "]"),
            Value::Object(fields) if fields.is_empty() => self.write_empty_collection("{", "}"),
            Value::Array(list) => self.write_list(list, indent, after_key),
            Value::Object(fields) => self.write_fields(fields, indent),
        }
    }

    fn write_empty_collection(&mut self, begin: &str, end: &str) {
        self.write_indicator(begin, true);
        self.after_space = true;
        self.write_indicator(end, false);
    }

    fn write_list(&mut self, list: &[Value], indent: Indent, after_key: bool) {
        let is_indentless = after_key && !self.in_indent;
        let indent = if is_indentless { indent.unwrap_or_default() } else { child_indent(indent) };
        for item in list {
            self.write_indent(indent);
            self.write_block_indicator("-");
            self.write_value(item, Some(indent), false);
        }
    }

    fn write_fields(&mut self, fields: &Map<String, Value>, indent: Indent) {
        let indent = child_indent(indent);
        for (key, value) in sort_keys(fields) {
            self.write_indent(indent);
            if is_simple(key) {
                self.write_text(key, Some(indent), true);
                self.write_indicator(":", false);
            } else {
                self.write_block_indicator("?");
                self.write_text(key, Some(indent), false);
                self.write_indent(indent);
                self.write_block_indicator(":");
            }
            self.write_value(value, Some(indent), true);
        }
    }

    fn write_indent(&mut self, indent: usize) {
        if !self.in_indent || self.column > indent || (self.column == indent && !self.after_space) {
            self.write_line_break();
        }
        while self.column < indent {
            self.write_character(' ');
        }
        self.after_space = true;
        self.in_indent = true;
    }

    fn write_line_break(&mut self) {
        self.out.push('\n');
        self.column = 0;
    }

    fn write_character(&mut self, character: char) {
        self.out.push(character);
        self.column += 1;
    }

    fn write_indicator(&mut self, indicator: &str, separate: bool) {
        if separate && !self.after_space {
            self.write_character(' ');
        }
        indicator.chars().for_each(|character| self.write_character(character));
        self.after_space = false;
        self.in_indent = false;
    }

    /// Writes an indicator after which a block may start on the same line.
    fn write_block_indicator(&mut self, indicator: &str) {
        let in_indent = self.in_indent;
        self.write_indicator(indicator, true);
        self.in_indent = in_indent;
    }

    fn write_text(&mut self, text: &str, indent: Indent, is_key: bool) {
        match choose_style(text, is_key) {
            Style::Plain => self.write_plain(text, indent, is_key),
            Style::SingleQuoted => self.write_single_quoted(text, indent, is_key),
            Style::DoubleQuoted => self.write_double_quoted(text, indent, is_key),
            Style::Literal => self.write_literal(text, indent),
        }
    }

    /// Indentation of continuation lines.
    fn continuation_indent(indent: Indent) -> usize {
        indent.map_or(INDENT_WIDTH, |indent| indent + INDENT_WIDTH)
    }

    fn write_plain(&mut self, text: &str, indent: Indent, is_key: bool) {
        if !self.after_space {
            self.write_character(' ');
        }
        self.write_flow_text(text, indent, is_key, false);
        self.after_space = false;
        self.in_indent = false;
    }

    fn write_single_quoted(&mut self, text: &str, indent: Indent, is_key: bool) {
        self.write_indicator("'", true);
        self.write_flow_text(text, indent, is_key, true);
        self.write_indicator("'", false);
    }

    /// Writes plain or single-quoted text. Long lines are broken at single spaces.
    fn write_flow_text(&mut self, text: &str, indent: Indent, is_key: bool, is_quoted: bool) {
        let characters: Vec<char> = text.chars().collect();
        let (mut after_space, mut after_break) = (false, false);
        for (index, character) in characters.iter().copied().enumerate() {
            let next_is_space = characters.get(index + 1) == Some(&' ');
            let is_inner = !is_quoted || (index > 0 && index + 1 < characters.len());
            match character {
                ' ' if !is_key && !after_space && self.column > MAX_COLUMN && is_inner && !next_is_space => {
                    self.write_indent(Self::continuation_indent(indent));
                    after_space = true;
                }
                ' ' => {
                    self.write_character(' ');
                    after_space = true;
                }
                character if is_break(character) => {
                    if !after_break && character == '\n' {
                        self.write_line_break();
                    }
                    self.write_break(character);
                    self.in_indent = true;
                    after_break = true;
                }
                character => {
                    if after_break {
                        self.write_indent(Self::continuation_indent(indent));
                    }
                    if is_quoted && character == '\'' {
                        self.write_character('\'');
                    }
                    self.write_character(character);
                    self.in_indent = false;
                    (after_space, after_break) = (false, false);
                }
            }
        }
    }

    fn write_break(&mut self, character: char) {
        if character == '\n' {
            self.write_line_break();
        } else {
            self.write_character(character);
            self.column = 0;
        }
    }

    fn write_double_quoted(&mut self, text: &str, indent: Indent, is_key: bool) {
        self.write_indicator("\"", true);
        let characters: Vec<char> = text.chars().collect();
        // yaml.v2 checks for a byte order mark at the start of the text for every character.
        let starts_with_mark = characters.first() == Some(&'\u{feff}');
        let mut after_space = false;
        for (index, character) in characters.iter().copied().enumerate() {
            if starts_with_mark || !is_printable(character) || is_break(character) || matches!(character, '"' | '\\') {
                self.write_escape(character);
                after_space = false;
            } else if character == ' ' {
                let is_inner = index > 0 && index + 1 < characters.len();
                if !is_key && !after_space && self.column > MAX_COLUMN && is_inner {
                    self.write_indent(Self::continuation_indent(indent));
                    if characters.get(index + 1) == Some(&' ') {
                        self.write_character('\\');
                    }
                } else {
                    self.write_character(' ');
                }
                after_space = true;
            } else {
                self.write_character(character);
                after_space = false;
            }
        }
        self.write_indicator("\"", false);
    }

    fn write_escape(&mut self, character: char) {
        let letter = match character {
            '\0' => '0',
            '\u{7}' => 'a',
            '\u{8}' => 'b',
            '\t' => 't',
            '\n' => 'n',
            '\u{b}' => 'v',
            '\u{c}' => 'f',
            '\r' => 'r',
            '\u{1b}' => 'e',
            '"' => '"',
            '\\' => '\\',
            '\u{85}' => 'N',
            '\u{a0}' => '_',
            '\u{2028}' => 'L',
            '\u{2029}' => 'P',
            other => {
                let code = u32::from(other);
                let escaped = match code {
                    0..=0xff => format!("\\x{code:02X}"),
                    0x100..=0xffff => format!("\\u{code:04X}"),
                    _ => format!("\\U{code:08X}"),
                };
                return escaped.chars().for_each(|character| self.write_character(character));
            }
        };
        self.write_character('\\');
        self.write_character(letter);
    }

    fn write_literal(&mut self, text: &str, indent: Indent) {
        self.write_indicator("|", true);
        if text.starts_with(|first| first == ' ' || is_break(first)) {
            self.write_indicator("2", false);
        }
        let mut from_end = text.chars().rev();
        match (from_end.next().is_some_and(is_break), from_end.next()) {
            (false, _) => self.write_indicator("-", false),
            (true, None) => self.write_indicator("+", false),
            (true, Some(before)) if is_break(before) => self.write_indicator("+", false),
            _ => {}
        }
        self.write_line_break();
        self.in_indent = true;
        self.after_space = true;
        let mut after_break = true;
        for character in text.chars() {
            if is_break(character) {
                self.write_break(character);
                self.in_indent = true;
                after_break = true;
            } else {
                if after_break {
                    self.write_indent(Self::continuation_indent(indent));
                }
                self.write_character(character);
                self.in_indent = false;
                after_break = false;
            }
        }
    }
}

fn number_text(number: &Number) -> String {
    if number.is_f64()
        && let Some(float) = number.as_f64()
    {
        let Value::Number(number) = json_number(float) else { return format_float(float) };
        return if number.is_f64() { format_float(float) } else { number.to_string() };
    }
    number.to_string()
}

enum Style {
    Plain,
    SingleQuoted,
    DoubleQuoted,
    Literal,
}

/// Chooses the simplest style that is read back as the same text.
fn choose_style(text: &str, is_key: bool) -> Style {
    let shape = Shape::from_text(text);
    if text.contains('\n') {
        let can_be_literal = !is_key && !shape.ends_in_space && !shape.space_before_break && !shape.unprintable;
        return if can_be_literal { Style::Literal } else { Style::DoubleQuoted };
    }
    if !is_plain(text) {
        return Style::DoubleQuoted;
    }
    let can_be_plain =
        !(shape.starts_or_ends_in_space_or_break || shape.breaks || shape.unprintable || shape.indicators);
    let can_be_single_quoted = !(shape.space_after_break || shape.space_before_break || shape.unprintable);
    match (can_be_plain, can_be_single_quoted) {
        (true, _) => Style::Plain,
        (false, true) => Style::SingleQuoted,
        (false, false) => Style::DoubleQuoted,
    }
}

/// Properties of a text that rule out styles.
#[derive(Default)]
struct Shape {
    breaks: bool,
    unprintable: bool,
    /// True if a character would be an indicator at its position.
    indicators: bool,
    ends_in_space: bool,
    starts_or_ends_in_space_or_break: bool,
    space_after_break: bool,
    space_before_break: bool,
}

impl Shape {
    fn from_text(text: &str) -> Self {
        let mut shape = Shape { indicators: text.starts_with("---") || text.starts_with("..."), ..Shape::default() };
        let is_blank = |character: Option<&char>| character.is_none_or(|character| matches!(character, ' ' | '\t'));
        let characters: Vec<char> = text.chars().collect();
        let mut previous: Option<char> = None;
        for (index, character) in characters.iter().copied().enumerate() {
            let last = index + 1 == characters.len();
            let is_followed_by_blank = is_blank(characters.get(index + 1));
            let is_preceded_by_blank =
                previous.is_none_or(|previous| matches!(previous, ' ' | '\t' | '\0') || is_break(previous));
            shape.indicators |= match character {
                ',' | '[' | ']' | '{' | '}' | '&' | '*' | '!' | '|' | '>' | '\'' | '"' | '%' | '@' | '`' => index == 0,
                '#' => is_preceded_by_blank,
                '?' | '-' => index == 0 && is_followed_by_blank,
                ':' => is_followed_by_blank,
                _ => false,
            };
            shape.unprintable |= !is_printable(character);
            let (space, breaks) = (character == ' ', is_break(character));
            shape.breaks |= breaks;
            shape.starts_or_ends_in_space_or_break |= (space || breaks) && (index == 0 || last);
            shape.ends_in_space |= space && last;
            shape.space_after_break |= space && previous.is_some_and(is_break);
            shape.space_before_break |= breaks && previous == Some(' ');
            previous = Some(character);
        }
        shape
    }
}

fn is_break(character: char) -> bool {
    matches!(character, '\r' | '\n' | '\u{85}' | '\u{2028}' | '\u{2029}')
}

/// True if the character is allowed unescaped. Tabs and characters outside of the Basic Multilingual Plane are not.
fn is_printable(character: char) -> bool {
    matches!(character, '\n' | ' '..='~' | '\u{a0}'..='\u{d7ff}' | '\u{e000}'..='\u{fefe}' | '\u{ff00}'..='\u{fffd}')
}

/// True if a key needs no explicit key indicator (`?`).
fn is_simple(key: &str) -> bool {
    const MAX_LENGTH: usize = 128;
    key.len() <= MAX_LENGTH && !key.contains(is_break)
}

/// Fields in the natural order of their keys. The order is not transitive ("1a" < "2" < "12" < "1a"), for which
/// `sort_by` may panic, so this function inserts each key by binary search.
fn sort_keys(fields: &Map<String, Value>) -> Vec<(&String, &Value)> {
    let mut ordered: Vec<(&String, &Value)> = Vec::with_capacity(fields.len());
    for entry in fields {
        let index = ordered.partition_point(|inserted| compare_natural(inserted.0, entry.0) != Ordering::Greater);
        ordered.insert(index, entry);
    }
    ordered
}

/// Compares two keys in natural order: runs of digits by value, other characters before letters.
fn compare_natural(left: &str, right: &str) -> Ordering {
    let (left, right): (Vec<char>, Vec<char>) = (left.chars().collect(), right.chars().collect());
    let Some(at) = left.iter().zip(&right).position(|(left, right)| left != right) else {
        return left.len().cmp(&right.len());
    };
    match (left[at].is_alphabetic(), right[at].is_alphabetic()) {
        (true, true) => return left[at].cmp(&right[at]),
        (true, false) => return Ordering::Greater,
        (false, true) => return Ordering::Less,
        (false, false) => {}
    }
    // A zero at the first difference is significant if a digit other than zero precedes it; otherwise it is a leading zero.
    let has_significant_digits = (left[at] == '0' || right[at] == '0')
        && left[..at].iter().rev().take_while(|digit| digit.is_ascii_digit()).any(|digit| *digit != '0');
    let number = |text: &[char]| {
        let digits = text[at..].iter().map_while(|digit| digit.to_digit(10).map(i64::from));
        digits.fold((i64::from(has_significant_digits), 0_usize), |(value, length), digit| {
            (value.wrapping_mul(10).wrapping_add(digit), length + 1)
        })
    };
    number(&left).cmp(&number(&right)).then_with(|| left[at].cmp(&right[at]))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::super::parse;
    use super::*;

    /// Strings of white space and of characters with a meaning in YAML are read back unchanged.
    #[rstest]
    #[case::tab_and_break("\t\n", "a: \"\\t\\n\"\n")]
    #[case::tab("\t", "a: \"\\t\"\n")]
    #[case::line_that_begins_with_a_tab("\tkey\nvalue\n", "a: \"\\tkey\\nvalue\\n\"\n")]
    #[case::breaks("\n\n", "a: |2+\n\n\n")]
    #[case::blank_and_break(" \n", "a: \" \\n\"\n")]
    #[case::lines("first\nsecond\n", "a: |\n  first\n  second\n")]
    #[case::carriage_return("first\r\nsecond", "a: \"first\\r\\nsecond\"\n")]
    #[case::boolean("yes", "a: \"yes\"\n")]
    #[case::octal("0755", "a: \"0755\"\n")]
    #[case::version("1.10", "a: \"1.10\"\n")]
    #[case::empty("", "a: \"\"\n")]
    fn strings_are_read_back(#[case] text: &str, #[case] expected: &str) {
        let value = json!({"a": text});
        let written = to_yaml(&value);
        assert_eq!(written, expected);
        assert_eq!(parse(&written), Ok(value));
    }
}
