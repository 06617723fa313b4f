//! The grammar of the string form of label selectors:
//!
//! ```text
//! selector    := requirement { "," requirement }
//! requirement := [ "!" ] key | key ( "=" | "==" | "!=" | ">" | "<" ) [ value ] | key ( "in" | "notin" ) "(" values ")"
//! values      := [ value ] { "," [ value ] }
//! ```

use std::collections::BTreeSet;

use crate::names::format;
use crate::selector::{Operator, Requirement, SelectorError};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token {
    End,
    OpenParenthesis,
    CloseParenthesis,
    Comma,
    Not,
    Operator(Operator),
    Identifier,
}

fn is_special(character: char) -> bool {
    matches!(character, '=' | '!' | '(' | ')' | ',' | '>' | '<')
}

fn tokenize(text: &str) -> Vec<(Token, &str)> {
    let mut tokens = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let length = if is_special(first) {
            ["==", "!="].iter().find(|operator| rest.starts_with(**operator)).map_or(1, |operator| operator.len())
        } else {
            rest.find(|character: char| is_special(character) || character.is_whitespace()).unwrap_or(rest.len())
        };
        let (word, after) = rest.split_at(length);
        let token = match word {
            "(" => Token::OpenParenthesis,
            ")" => Token::CloseParenthesis,
            "," => Token::Comma,
            "!" => Token::Not,
            "=" => Token::Operator(Operator::Equals),
            "==" => Token::Operator(Operator::DoubleEquals),
            "!=" => Token::Operator(Operator::NotEquals),
            ">" => Token::Operator(Operator::GreaterThan),
            "<" => Token::Operator(Operator::LessThan),
            "in" => Token::Operator(Operator::In),
            "notin" => Token::Operator(Operator::NotIn),
            _ => Token::Identifier,
        };
        tokens.push((token, word));
        rest = after.trim_start();
    }
    tokens
}

struct Parser<'t> {
    tokens: Vec<(Token, &'t str)>,
    position: usize,
}

impl<'t> Parser<'t> {
    /// The next token where an operator is expected.
    fn peek_operator(&self) -> (Token, &'t str) {
        self.tokens.get(self.position).copied().unwrap_or((Token::End, ""))
    }

    /// The next token where a key or value is expected: `in` and `notin` are identifiers there.
    fn peek(&self) -> (Token, &'t str) {
        match self.peek_operator() {
            (Token::Operator(Operator::In | Operator::NotIn), word) => (Token::Identifier, word),
            other => other,
        }
    }

    fn next_token(&mut self) -> (Token, &'t str) {
        let token = self.peek();
        self.position += 1;
        token
    }

    fn parse_requirement(&mut self) -> Result<Requirement, SelectorError> {
        let mut is_negated = false;
        let (mut token, mut word) = self.next_token();
        if token == Token::Not {
            is_negated = true;
            (token, word) = self.next_token();
        }
        if token != Token::Identifier {
            return Err(SelectorError::Syntax(format!("found '{word}', expected: identifier")));
        }
        let key = word;
        if let problems @ [_, ..] = format::validate_qualified_name(key).as_slice() {
            let error = crate::field::FieldError::invalid("<nil>", key, problems.join("; "));
            return Err(SelectorError::Syntax(error.to_string()));
        }
        if is_negated {
            return Requirement::new(key, Operator::DoesNotExist, BTreeSet::new());
        }
        if matches!(self.peek().0, Token::End | Token::Comma) {
            return Requirement::new(key, Operator::Exists, BTreeSet::new());
        }
        let (token, word) = self.peek_operator();
        self.position += 1;
        let Token::Operator(operator) = token else {
            return Err(SelectorError::Syntax(format!("found '{word}', expected: in, notin, =, ==, !=, gt, lt")));
        };
        let values = match operator {
            Operator::In | Operator::NotIn => self.parse_values()?,
            _ => self.parse_single_value()?,
        };
        Requirement::new(key, operator, values)
    }

    fn parse_single_value(&mut self) -> Result<BTreeSet<String>, SelectorError> {
        match self.peek() {
            (Token::End | Token::Comma, _) => Ok(BTreeSet::from([String::new()])),
            (Token::Identifier, word) => {
                self.position += 1;
                Ok(BTreeSet::from([word.to_owned()]))
            }
            (_, word) => Err(SelectorError::Syntax(format!("found '{word}', expected: identifier"))),
        }
    }

    fn parse_values(&mut self) -> Result<BTreeSet<String>, SelectorError> {
        let (token, word) = self.next_token();
        if token != Token::OpenParenthesis {
            return Err(SelectorError::Syntax(format!("found '{word}' expected: '('")));
        }
        match self.peek() {
            // As in kube-apiserver, `()` is a list with the empty value.
            (Token::Identifier | Token::Comma | Token::CloseParenthesis, _) => {}
            (_, word) => {
                return Err(SelectorError::Syntax(format!("found '{word}', expected: ',', ')' or identifier")));
            }
        }
        let mut values = BTreeSet::new();
        let mut expects_value = true;
        loop {
            match self.next_token() {
                (Token::Identifier, word) if expects_value => {
                    values.insert(word.to_owned());
                    expects_value = false;
                }
                // A missing value before or after a comma is the empty value.
                (Token::Comma, _) => {
                    if expects_value {
                        values.insert(String::new());
                    }
                    expects_value = true;
                }
                (Token::CloseParenthesis, _) => {
                    if expects_value {
                        values.insert(String::new());
                    }
                    return Ok(values);
                }
                (_, word) if expects_value => {
                    return Err(SelectorError::Syntax(format!("found '{word}', expected: ',', or identifier")));
                }
                (_, word) => return Err(SelectorError::Syntax(format!("found '{word}', expected: ',' or ')'"))),
            }
        }
    }
}

/// Parses the requirements of a selector, in the order of the text.
pub(super) fn parse_requirements(text: &str) -> Result<Vec<Requirement>, SelectorError> {
    let mut parser = Parser { tokens: tokenize(text), position: 0 };
    let mut requirements = Vec::new();
    loop {
        match parser.peek() {
            (Token::Identifier | Token::Not, _) => {}
            (Token::End, _) => return Ok(requirements),
            (_, word) => {
                return Err(SelectorError::Syntax(format!(
                    "found '{word}', expected: !, identifier, or 'end of string'"
                )));
            }
        }
        let requirement = parser.parse_requirement().map_err(|error| SelectorError::Requirement(error.to_string()))?;
        requirements.push(requirement);
        match parser.next_token() {
            (Token::End, _) => return Ok(requirements),
            (Token::Comma, _) => match parser.peek() {
                (Token::Identifier | Token::Not, _) => {}
                (_, word) => {
                    return Err(SelectorError::Syntax(format!("found '{word}', expected: identifier after ','")));
                }
            },
            (_, word) => {
                return Err(SelectorError::Syntax(format!("found '{word}', expected: ',' or 'end of string'")));
            }
        }
    }
}
