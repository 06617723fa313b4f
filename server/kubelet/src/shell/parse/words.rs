//! Words of a script: quotes, variables, substitutions.

use super::{Command, ParseResult, Parser, SyntaxError, parse};

/// A word: a sequence of literal text, variables and substitutions.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Word(pub Vec<Part>);

/// A part of a word. Quoted parts are neither split nor globbed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    Text {
        text: String,
        quoted: bool,
    },
    /// `$NAME`, `${NAME}`, `${NAME:-word}`, …
    Variable {
        name: String,
        operation: Option<(ParameterOperator, Word)>,
        quoted: bool,
    },
    /// `${#NAME}`
    Length(String),
    /// `$(…)` and backquotes
    Command {
        script: Box<Command>,
        quoted: bool,
    },
    /// `$((…))`
    Arithmetic(Word),
}

/// Operators of `${NAME<op>word}`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParameterOperator {
    /// `:-`
    Default,
    /// `:=`
    Assign,
    /// `:+`
    Alternative,
    /// `%`: without the shortest suffix
    Suffix,
    /// `#`: without the shortest prefix
    Prefix,
}

impl Parser {
    /// Parses the word at the current position. Returns `None` at a separator.
    pub(super) fn word(&mut self) -> ParseResult<Option<Word>> {
        let mut word = Word::default();
        let mut any = false;
        while let Some(c) = self.peek() {
            match c {
                c if c.is_whitespace() || ";|&()<>".contains(c) => break,
                '\'' => {
                    let rest = &self.text[self.at + 1..];
                    let end = rest.iter().position(|c| *c == '\'').ok_or(SyntaxError::Unterminated)?;
                    word.push_text(rest[..end].iter().collect(), true);
                    self.at += end + 2;
                }
                '"' => {
                    self.at += 1;
                    self.parse_until(&mut word, '"', true)?;
                }
                '\\' => {
                    self.at += 1;
                    match self.peek() {
                        Some('\n') => {}
                        Some(c) => word.push_text(c.to_string(), true),
                        None => word.push_text("\\".into(), true),
                    }
                    self.at = (self.at + 1).min(self.text.len());
                }
                '$' | '`' => self.parse_dollar(&mut word, false)?,
                c => {
                    word.push_text(c.to_string(), false);
                    self.at += 1;
                }
            }
            any = true;
        }
        Ok(any.then_some(word))
    }

    /// Parses text up to and including `end`, with the rules of double quotes.
    fn parse_until(&mut self, word: &mut Word, end: char, quoted: bool) -> ParseResult<()> {
        if quoted {
            word.push_text(String::new(), true);
        }
        loop {
            match self.peek() {
                None => return Err(SyntaxError::Unterminated),
                Some(c) if c == end => {
                    self.at += 1;
                    return Ok(());
                }
                Some('\\') if self.peek_at(1).is_some_and(|c| "$`\"\\\n".contains(c)) => {
                    if let Some(c) = self.peek_at(1).filter(|c| *c != '\n') {
                        word.push_text(c.to_string(), true);
                    }
                    self.at += 2;
                }
                Some('$' | '`') => self.parse_dollar(word, quoted)?,
                Some('"') if !quoted => {
                    self.at += 1;
                    self.parse_until(word, '"', true)?;
                }
                Some(c) => {
                    word.push_text(c.to_string(), quoted);
                    self.at += 1;
                }
            }
        }
    }

    fn parse_dollar(&mut self, word: &mut Word, quoted: bool) -> ParseResult<()> {
        if self.eat("`") {
            let start = self.at;
            while self.peek().ok_or(SyntaxError::Unterminated)? != '`' {
                self.at += 1;
            }
            let script: String = self.text[start..self.at].iter().collect();
            self.at += 1;
            word.0.push(Part::Command { script: Box::new(parse(&script)?), quoted });
            return Ok(());
        }
        self.at += 1;
        if self.eat("((") {
            let mut inner = Word::default();
            let mut open = 0;
            loop {
                if open == 0 && self.eat("))") {
                    word.0.push(Part::Arithmetic(inner));
                    return Ok(());
                }
                match self.peek().ok_or(SyntaxError::Unterminated)? {
                    '$' | '`' => self.parse_dollar(&mut inner, true)?,
                    c => {
                        open += i32::from(c == '(') - i32::from(c == ')');
                        inner.push_text(c.to_string(), true);
                        self.at += 1;
                    }
                }
            }
        }
        if self.eat("(") {
            let script = Box::new(self.sequence(&[])?);
            if !self.eat(")") {
                return Err(self.unexpected());
            }
            word.0.push(Part::Command { script, quoted });
            return Ok(());
        }
        if self.eat("{") {
            return self.parse_braces(word, quoted);
        }
        let mut name = self.name();
        if let Some(special) = self.peek().filter(|c| name.is_empty() && "?$#@*!0123456789".contains(*c)) {
            name = special.to_string();
            self.at += 1;
        }
        match name.is_empty() {
            true => word.push_text("$".into(), true),
            false => word.0.push(Part::Variable { name, operation: None, quoted }),
        }
        Ok(())
    }

    fn parse_braces(&mut self, word: &mut Word, quoted: bool) -> ParseResult<()> {
        if self.starts_with("#") && self.peek_at(1) != Some('}') {
            self.at += 1;
            let name = self.name();
            word.0.push(Part::Length(name));
            return if self.eat("}") { Ok(()) } else { Err(self.unexpected()) };
        }
        let mut name = self.name();
        if let Some(special) = self.peek().filter(|c| name.is_empty() && "?$#@*0123456789".contains(*c)) {
            name = special.to_string();
            self.at += 1;
        }
        let operators: [(&[&str], ParameterOperator); 5] = [
            (&[":-", "-"], ParameterOperator::Default),
            (&[":=", "="], ParameterOperator::Assign),
            (&[":+", "+"], ParameterOperator::Alternative),
            (&["%"], ParameterOperator::Suffix),
            (&["#"], ParameterOperator::Prefix),
        ];
        let operation = match operators.into_iter().find(|(texts, _)| texts.iter().any(|text| self.eat(text))) {
            Some((_, operator)) => {
                let mut inner = Word::default();
                self.parse_until(&mut inner, '}', quoted)?;
                Some((operator, inner))
            }
            None if self.eat("}") => None,
            None => return Err(self.unexpected()),
        };
        word.0.push(Part::Variable { name, operation, quoted });
        Ok(())
    }
}

impl Word {
    fn push_text(&mut self, more: String, quote: bool) {
        match self.0.last_mut() {
            Some(Part::Text { text, quoted }) if *quoted == quote => text.push_str(&more),
            _ => self.0.push(Part::Text { text: more, quoted: quote }),
        }
    }
}
