//! The JSONPath dialect of kubectl and of CustomResourceDefinitions.
//!
//! `.spec.size`, `$.items[*].name`, `['a.b']`, `.a\.b`, `[0]`, `[-1:]`, `[1:5:2]`, `..name`, `[0,2]`, `['a','b']`,
//! `[?(@.type=="Ready")]`. An expression can be enclosed in braces. Missing keys have no result.

mod template;

use std::fmt;

use serde_json::Value;

pub use template::{Template, TemplateError};

/// A parsed path.
#[derive(Debug, Clone, PartialEq)]
pub struct JsonPath {
    steps: Vec<Step>,
}

#[derive(Debug, Clone, PartialEq)]
enum Step {
    Field(String),
    /// `*`: every element or value.
    Wildcard,
    /// `[start:end:step]`: the elements from `start` up to, but not including, `end`.
    Slice {
        start: Option<i64>,
        end: Option<i64>,
        step: i64,
    },
    Index(i64),
    /// `['a','b']`, `[0,2]`: results of each, in order.
    Union(Vec<Step>),
    /// `..`: the value itself and everything below it.
    Recursive,
    Filter(Operand, Option<(Comparison, Operand)>),
}

#[derive(Debug, Clone, PartialEq)]
enum Operand {
    Path(JsonPath),
    Literal(Value),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

/// Reason why a text is not a valid path.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    #[error("unterminated array")]
    UnterminatedArray,
    #[error("unterminated filter")]
    UnterminatedFilter,
    #[error("unterminated quoted string")]
    UnterminatedString,
    #[error("unclosed action")]
    UnclosedAction,
    #[error("invalid array index {0}")]
    InvalidIndex(String),
    #[error("unrecognized character in action: {0:?}")]
    UnexpectedCharacter(char),
}

/// Maximum nesting depth of an expression.
const MAX_DEPTH: usize = 32;
/// Maximum number of values that a step selects. Each union in a path multiplies their number.
const MAX_SELECTED: usize = 100_000;

impl JsonPath {
    /// Parses an expression, with or without braces.
    pub fn parse(text: &str) -> Result<Self, ParseError> {
        let trimmed = text.trim();
        let inner = match (trimmed.strip_prefix('{'), trimmed.strip_suffix('}')) {
            (Some(_), Some(_)) => &trimmed[1..trimmed.len() - 1],
            (Some(_), None) => return Err(ParseError::UnclosedAction),
            _ => trimmed,
        };
        let mut parser = Parser { rest: inner.chars().peekable(), depth: 0 };
        let path = parser.parse_path()?;
        match parser.rest.next() {
            None => Ok(path),
            Some(c) => Err(ParseError::UnexpectedCharacter(c)),
        }
    }

    /// All selected values in document order, up to [`MAX_SELECTED`] per step.
    pub fn find<'a>(&self, root: &'a Value) -> Vec<&'a Value> {
        let mut current = vec![root];
        for step in &self.steps {
            let mut next = Vec::new();
            for value in current {
                step.select(value, &mut next);
                if next.len() >= MAX_SELECTED {
                    next.truncate(MAX_SELECTED);
                    break;
                }
            }
            current = next;
        }
        current
    }

    /// The field names of a path that consists only of fields (`.spec.replicas`); `None` for any other.
    pub fn fields(&self) -> Option<Vec<&str>> {
        self.steps
            .iter()
            .map(|step| match step {
                Step::Field(name) => Some(name.as_str()),
                _ => None,
            })
            .collect()
    }
}

impl fmt::Display for JsonPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut steps = self.steps.iter().peekable();
        while let Some(step) = steps.next() {
            write!(f, "{step}")?;
            // After `..`, a plain name needs no further dot.
            let starts_with_dot = |next: &&Step| next.to_string().starts_with('.');
            if *step == Step::Recursive && !steps.peek().is_some_and(starts_with_dot) {
                f.write_str(".")?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bound = |n: &Option<i64>| n.map(|n| n.to_string()).unwrap_or_default();
        match self {
            Step::Field(name)
                if name.chars().all(|c| c.is_alphanumeric() || c == '_' || c == '-') && !name.is_empty() =>
            {
                write!(f, ".{name}")
            }
            Step::Field(name) => write!(f, "[{}]", quote(name)),
            Step::Wildcard => f.write_str("[*]"),
            Step::Index(index) => write!(f, "[{index}]"),
            Step::Slice { start, end, step } => write!(f, "[{}:{}:{step}]", bound(start), bound(end)),
            Step::Recursive => f.write_str("."),
            Step::Union(steps) => {
                let parts: Vec<String> = steps
                    .iter()
                    .map(|s| s.to_string().trim_start_matches('[').trim_end_matches(']').to_owned())
                    .collect();
                write!(f, "[{}]", parts.join(","))
            }
            Step::Filter(left, None) => write!(f, "[?({left})]"),
            Step::Filter(left, Some((comparison, right))) => write!(f, "[?({left}{}{right})]", comparison.symbol()),
        }
    }
}

impl fmt::Display for Operand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Operand::Path(path) => write!(f, "@{path}"),
            Operand::Literal(Value::String(text)) => f.write_str(&quote(text)),
            Operand::Literal(other) => write!(f, "{other}"),
        }
    }
}

fn quote(text: &str) -> String {
    format!("'{}'", text.replace('\\', "\\\\").replace('\'', "\\'"))
}

impl Comparison {
    fn symbol(self) -> &'static str {
        match self {
            Comparison::Equal => "==",
            Comparison::NotEqual => "!=",
            Comparison::Less => "<",
            Comparison::LessOrEqual => "<=",
            Comparison::Greater => ">",
            Comparison::GreaterOrEqual => ">=",
        }
    }
}

impl Step {
    fn select<'a>(&self, value: &'a Value, selected: &mut Vec<&'a Value>) {
        match self {
            Step::Field(name) => selected.extend(value.get(name)),
            Step::Wildcard => match value {
                Value::Array(items) => selected.extend(items),
                Value::Object(map) => selected.extend(map.values()),
                _ => {}
            },
            Step::Index(index) => {
                if let Value::Array(items) = value {
                    let at = if *index < 0 { *index + items.len() as i64 } else { *index };
                    selected.extend(usize::try_from(at).ok().and_then(|at| items.get(at)));
                }
            }
            Step::Slice { start, end, step } => select_slice(value, *start, *end, *step, selected),
            Step::Union(steps) => steps.iter().for_each(|step| step.select(value, selected)),
            Step::Recursive => select_descendants(value, selected),
            Step::Filter(left, right) => {
                if let Value::Array(items) = value {
                    selected.extend(items.iter().filter(|item| filter_matches(item, left, right.as_ref())));
                }
            }
        }
    }
}

fn select_slice<'a>(value: &'a Value, start: Option<i64>, end: Option<i64>, step: i64, selected: &mut Vec<&'a Value>) {
    let Value::Array(items) = value else { return };
    let len = items.len() as i64;
    let clamp = |n: i64| (if n < 0 { n + len } else { n }).clamp(0, len);
    let (from, to) = (clamp(start.unwrap_or(0)), clamp(end.unwrap_or(len)));
    if step <= 0 || from >= to {
        return;
    }
    let (from, to, step) = (from as usize, to as usize, usize::try_from(step).unwrap_or(usize::MAX));
    selected.extend(items[from..to].iter().step_by(step));
}

fn select_descendants<'a>(value: &'a Value, selected: &mut Vec<&'a Value>) {
    selected.push(value);
    match value {
        Value::Array(items) => items.iter().for_each(|item| select_descendants(item, selected)),
        Value::Object(map) => map.values().for_each(|item| select_descendants(item, selected)),
        _ => {}
    }
}

fn filter_matches(item: &Value, left: &Operand, right: Option<&(Comparison, Operand)>) -> bool {
    let first_value = |operand: &Operand| match operand {
        Operand::Literal(value) => Some(value.clone()),
        Operand::Path(path) => path.find(item).first().copied().cloned(),
    };
    let Some(left) = first_value(left) else { return false };
    let Some((comparison, right)) = right else { return true };
    let Some(right) = first_value(right) else { return false };
    let order = match (&left, &right) {
        (Value::Number(a), Value::Number(b)) => a.as_f64().partial_cmp(&b.as_f64()),
        (Value::String(a), Value::String(b)) => Some(a.cmp(b)),
        (a, b) if a == b => Some(std::cmp::Ordering::Equal),
        (Value::Bool(_), Value::Bool(_)) => return *comparison == Comparison::NotEqual,
        _ => None,
    };
    let Some(order) = order else { return false };
    match comparison {
        Comparison::Equal => order.is_eq(),
        Comparison::NotEqual => order.is_ne(),
        Comparison::Less => order.is_lt(),
        Comparison::LessOrEqual => order.is_le(),
        Comparison::Greater => order.is_gt(),
        Comparison::GreaterOrEqual => order.is_ge(),
    }
}

/// A value as text: strings without quotes, everything else as JSON.
pub fn to_text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

struct Parser<'a> {
    rest: std::iter::Peekable<std::str::Chars<'a>>,
    depth: usize,
}

impl Parser<'_> {
    fn parse_path(&mut self) -> Result<JsonPath, ParseError> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(ParseError::UnexpectedCharacter('['));
        }
        let mut steps = Vec::new();
        if matches!(self.rest.peek(), Some('$' | '@')) {
            self.rest.next();
        }
        while let Some(&next) = self.rest.peek() {
            match next {
                '.' => {
                    self.rest.next();
                    match self.rest.peek() {
                        Some('.') => {
                            self.rest.next();
                            steps.push(Step::Recursive);
                            if self.rest.peek().is_some_and(|c| *c != '[') {
                                steps.push(self.parse_field()?);
                            }
                        }
                        // `.['a']` and a lone `.` select nothing by themselves.
                        Some('[') | None => {}
                        Some(_) => steps.push(self.parse_field()?),
                    }
                }
                '[' => {
                    self.rest.next();
                    steps.push(self.parse_bracket()?);
                }
                c if steps.is_empty() && (c.is_alphanumeric() || c == '_' || c == '*') => {
                    steps.push(self.parse_field()?)
                }
                _ => break,
            }
        }
        self.depth -= 1;
        Ok(JsonPath { steps })
    }

    fn parse_field(&mut self) -> Result<Step, ParseError> {
        let mut name = String::new();
        while let Some(&c) = self.rest.peek() {
            match c {
                '\\' => {
                    self.rest.next();
                    name.extend(self.rest.next());
                }
                '.' | '[' | ']' | ' ' | ',' | ')' | '=' | '!' | '<' | '>' | '|' | '&' | '{' | '}' | '\'' | '"' => break,
                c => {
                    name.push(c);
                    self.rest.next();
                }
            }
        }
        match (name.as_str(), self.rest.peek()) {
            ("", Some(c)) => Err(ParseError::UnexpectedCharacter(*c)),
            ("", None) => Err(ParseError::UnclosedAction),
            ("*", _) => Ok(Step::Wildcard),
            _ => Ok(Step::Field(name)),
        }
    }

    fn skip_blanks(&mut self) {
        while self.rest.next_if(|c| *c == ' ').is_some() {}
    }

    fn parse_quoted(&mut self, quote: char) -> Result<String, ParseError> {
        let mut text = String::new();
        loop {
            match self.rest.next() {
                None => return Err(ParseError::UnterminatedString),
                Some('\\') => text.extend(self.rest.next()),
                Some(c) if c == quote => return Ok(text),
                Some(c) => text.push(c),
            }
        }
    }

    fn parse_bracket(&mut self) -> Result<Step, ParseError> {
        self.skip_blanks();
        if self.rest.next_if_eq(&'?').is_some() {
            return self.parse_filter();
        }
        let mut steps = Vec::new();
        loop {
            self.skip_blanks();
            let step = match self.rest.peek() {
                None => return Err(ParseError::UnterminatedArray),
                Some('*') => {
                    self.rest.next();
                    Step::Wildcard
                }
                Some(&quote @ ('\'' | '"')) => {
                    self.rest.next();
                    Step::Field(self.parse_quoted(quote)?)
                }
                Some(_) => self.parse_subscript()?,
            };
            steps.push(step);
            self.skip_blanks();
            match self.rest.next() {
                Some(',') => {}
                Some(']') if steps.len() == 1 => return Ok(steps.remove(0)),
                Some(']') => return Ok(Step::Union(steps)),
                Some(c) => return Err(ParseError::UnexpectedCharacter(c)),
                None => return Err(ParseError::UnterminatedArray),
            }
        }
    }

    /// `3`, `-1`, `1:`, `:2`, `1:5:2`, or a bare key.
    fn parse_subscript(&mut self) -> Result<Step, ParseError> {
        let mut text = String::new();
        while let Some(c) = self.rest.next_if(|c| !matches!(c, ',' | ']')) {
            text.push(c);
        }
        let text = text.trim();
        let number = |part: &str| match part.trim() {
            "" => Ok(None),
            digits => digits.parse::<i64>().map(Some).map_err(|_| ParseError::InvalidIndex(text.to_owned())),
        };
        let parts: Vec<&str> = text.split(':').collect();
        match parts.as_slice() {
            [single] => match number(single)? {
                Some(index) => Ok(Step::Index(index)),
                None => Err(ParseError::InvalidIndex(text.to_owned())),
            },
            [start, end] => Ok(Step::Slice { start: number(start)?, end: number(end)?, step: 1 }),
            [start, end, step] => {
                Ok(Step::Slice { start: number(start)?, end: number(end)?, step: number(step)?.unwrap_or(1) })
            }
            _ => Err(ParseError::InvalidIndex(text.to_owned())),
        }
    }

    fn parse_filter(&mut self) -> Result<Step, ParseError> {
        if self.rest.next() != Some('(') {
            return Err(ParseError::UnterminatedFilter);
        }
        let left = self.parse_operand()?;
        self.skip_blanks();
        let mut symbol = String::new();
        while let Some(c) = self.rest.next_if(|c| matches!(c, '=' | '!' | '<' | '>')) {
            symbol.push(c);
        }
        let right = match symbol.as_str() {
            "" => None,
            "==" => Some(Comparison::Equal),
            "!=" => Some(Comparison::NotEqual),
            "<" => Some(Comparison::Less),
            "<=" => Some(Comparison::LessOrEqual),
            ">" => Some(Comparison::Greater),
            ">=" => Some(Comparison::GreaterOrEqual),
            _ => return Err(ParseError::UnexpectedCharacter(symbol.chars().next().unwrap_or('='))),
        };
        let right = match right {
            Some(comparison) => Some((comparison, self.parse_operand()?)),
            None => None,
        };
        self.skip_blanks();
        match (self.rest.next(), {
            self.skip_blanks();
            self.rest.next()
        }) {
            (Some(')'), Some(']')) => Ok(Step::Filter(left, right)),
            _ => Err(ParseError::UnterminatedFilter),
        }
    }

    fn parse_operand(&mut self) -> Result<Operand, ParseError> {
        self.skip_blanks();
        match self.rest.peek() {
            None => Err(ParseError::UnterminatedFilter),
            Some(&quote @ ('\'' | '"')) => {
                self.rest.next();
                Ok(Operand::Literal(Value::String(self.parse_quoted(quote)?)))
            }
            Some('@' | '$' | '.') => Ok(Operand::Path(self.parse_path()?)),
            Some(_) => {
                let mut text = String::new();
                while let Some(c) = self.rest.next_if(|c| !matches!(c, ' ' | ')' | '=' | '!' | '<' | '>')) {
                    text.push(c);
                }
                serde_json::from_str(&text)
                    .map(Operand::Literal)
                    .map_err(|_| ParseError::UnexpectedCharacter(text.chars().next().unwrap_or(')')))
            }
        }
    }
}
