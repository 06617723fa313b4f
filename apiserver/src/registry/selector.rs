//! Label and field selectors: parsing as apimachinery does, with its words for what is wrong, and matching. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde_json::Value;

use crate::registry::validation;
use crate::status::{ApiError, ApiResult};
use crate::storage::ObjectKey;

/// One requirement of a label selector.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Requirement {
    In(String, BTreeSet<String>),
    NotIn(String, BTreeSet<String>),
    Exists(String),
    Absent(String),
    Greater(String, i64),
    Less(String, i64),
}

impl Requirement {
    fn matches<'v>(&self, get: impl Fn(&str) -> Option<&'v str>) -> bool {
        match self {
            Self::In(key, values) => get(key).is_some_and(|v| values.contains(v)),
            Self::NotIn(key, values) => get(key).is_none_or(|v| !values.contains(v)),
            Self::Exists(key) => get(key).is_some(),
            Self::Absent(key) => get(key).is_none(),
            Self::Greater(key, n) => get(key).and_then(|v| v.parse::<i64>().ok()).is_some_and(|v| v > *n),
            Self::Less(key, n) => get(key).and_then(|v| v.parse::<i64>().ok()).is_some_and(|v| v < *n),
        }
    }
}

/// `labels.Selector`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LabelSelector {
    requirements: Vec<Requirement>,
    nothing: bool,
}

impl LabelSelector {
    /// Parses the query form: `a=b,c in (d,e),!f`.
    pub fn parse(text: &str) -> ApiResult<Self> {
        let tokens = tokenize(text);
        let mut parser = Parser { tokens: &tokens, at: 0 };
        let requirements = parser.selector().map_err(ApiError::bad_request)?;
        Ok(Self { requirements, nothing: false })
    }

    /// Takes a `metav1.LabelSelector`: absent selects nothing, empty everything.
    pub fn from_object(selector: Option<&Value>) -> Result<Self, String> {
        let Some(selector) = selector.filter(|s| !s.is_null()) else {
            return Ok(Self { requirements: Vec::new(), nothing: true });
        };
        let mut requirements = Vec::new();
        let labels: BTreeMap<&String, &Value> =
            selector.get("matchLabels").and_then(Value::as_object).into_iter().flatten().collect();
        for (key, value) in labels {
            let values = BTreeSet::from([value.as_str().unwrap_or_default().to_owned()]);
            requirements.push(Requirement::In(key.clone(), values));
        }
        for expression in selector.get("matchExpressions").and_then(Value::as_array).into_iter().flatten() {
            let key = expression["key"].as_str().unwrap_or_default().to_owned();
            let values: BTreeSet<String> = expression["values"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(|v| v.as_str().map(str::to_owned))
                .collect();
            requirements.push(match expression["operator"].as_str().unwrap_or_default() {
                "In" => Requirement::In(key, values),
                "NotIn" => Requirement::NotIn(key, values),
                "Exists" => Requirement::Exists(key),
                "DoesNotExist" => Requirement::Absent(key),
                other => return Err(format!("{other:?} is not a valid label selector operator")),
            });
        }
        Ok(Self { requirements, nothing: false })
    }

    pub fn is_everything(&self) -> bool {
        !self.nothing && self.requirements.is_empty()
    }

    /// `labels` is the object's `metadata.labels`.
    pub fn matches(&self, labels: Option<&Value>) -> bool {
        !self.nothing && self.requirements.iter().all(|r| r.matches(|key| labels?.get(key)?.as_str()))
    }
}

impl fmt::Display for LabelSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, requirement) in self.requirements.iter().enumerate() {
            if i > 0 {
                f.write_str(",")?;
            }
            let join = |values: &BTreeSet<String>| values.iter().cloned().collect::<Vec<_>>().join(",");
            match requirement {
                Requirement::In(key, values) if values.len() == 1 => write!(f, "{key}={}", join(values))?,
                Requirement::In(key, values) => write!(f, "{key} in ({})", join(values))?,
                Requirement::NotIn(key, values) => write!(f, "{key} notin ({})", join(values))?,
                Requirement::Exists(key) => f.write_str(key)?,
                Requirement::Absent(key) => write!(f, "!{key}")?,
                Requirement::Greater(key, n) => write!(f, "{key}>{n}")?,
                Requirement::Less(key, n) => write!(f, "{key}<{n}")?,
            }
        }
        Ok(())
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Token {
    Symbol(&'static str),
    Word(String),
    End,
}

impl Token {
    fn text(&self) -> &str {
        match self {
            Token::Symbol(text) => text,
            Token::Word(text) => text,
            Token::End => "",
        }
    }
}

fn tokenize(text: &str) -> Vec<Token> {
    const SYMBOLS: [&str; 9] = ["!=", "==", "=", "!", "(", ")", ",", ">", "<"];
    let mut tokens = Vec::new();
    let mut rest = text;
    loop {
        rest = rest.trim_start_matches([' ', '\t', '\r', '\n']);
        if rest.is_empty() {
            tokens.push(Token::End);
            return tokens;
        }
        if let Some(symbol) = SYMBOLS.iter().find(|s| rest.starts_with(**s)) {
            tokens.push(Token::Symbol(symbol));
            rest = &rest[symbol.len()..];
            continue;
        }
        let end = rest.find([' ', '\t', '\r', '\n', '=', '!', '(', ')', ',', '>', '<']).unwrap_or(rest.len());
        tokens.push(Token::Word(rest[..end].to_owned()));
        rest = &rest[end..];
    }
}

struct Parser<'a> {
    tokens: &'a [Token],
    at: usize,
}

impl Parser<'_> {
    fn peek(&self) -> &Token {
        self.tokens.get(self.at).unwrap_or(&Token::End)
    }

    fn next(&mut self) -> Token {
        let token = self.peek().clone();
        self.at += 1;
        token
    }

    fn selector(&mut self) -> Result<Vec<Requirement>, String> {
        let mut requirements = Vec::new();
        loop {
            match self.peek() {
                Token::End => return Ok(requirements),
                Token::Symbol("!") | Token::Word(_) => {}
                other => return Err(format!("found '{}', expected: !, identifier, or 'end of string'", other.text())),
            }
            requirements.push(self.requirement().map_err(|e| format!("unable to parse requirement: {e}"))?);
            match self.next() {
                Token::End => return Ok(requirements),
                Token::Symbol(",") => {
                    if !matches!(self.peek(), Token::Word(_)) && *self.peek() != Token::Symbol("!") {
                        return Err(format!("found '{}', expected: identifier after ','", self.peek().text()));
                    }
                }
                other => return Err(format!("found '{}', expected: ',' or 'end of string'", other.text())),
            }
        }
    }

    fn requirement(&mut self) -> Result<Requirement, String> {
        let absent = *self.peek() == Token::Symbol("!");
        if absent {
            self.next();
        }
        let token = self.next();
        if !matches!(token, Token::Word(_)) {
            return Err(format!("found '{}', expected: identifier", token.text()));
        }
        let key = token.text().to_owned();
        if let Some(error) = validation::qualified_name(&key).into_iter().next() {
            return Err(format!("<nil>: Invalid value: {key:?}: {error}"));
        }
        if absent {
            return Ok(Requirement::Absent(key));
        }
        if matches!(self.peek(), Token::End | Token::Symbol(",")) {
            return Ok(Requirement::Exists(key));
        }
        let operator = self.next();
        match (&operator, operator.text()) {
            (Token::Word(_), "in") => Ok(Requirement::In(key, self.values()?)),
            (Token::Word(_), "notin") => Ok(Requirement::NotIn(key, self.values()?)),
            (Token::Symbol(_), "=" | "==") => Ok(Requirement::In(key.clone(), self.exact(&key)?)),
            (Token::Symbol(_), "!=") => Ok(Requirement::NotIn(key.clone(), self.exact(&key)?)),
            (Token::Symbol(_), ">") => Ok(Requirement::Greater(key.clone(), self.number(&key)?)),
            (Token::Symbol(_), "<") => Ok(Requirement::Less(key.clone(), self.number(&key)?)),
            (_, other) => Err(format!("found '{other}', expected: in, notin, =, ==, !=, gt, lt")),
        }
    }

    fn exact(&mut self, key: &str) -> Result<BTreeSet<String>, String> {
        match self.peek() {
            Token::End | Token::Symbol(",") => Ok(BTreeSet::from([String::new()])),
            Token::Word(_) => {
                let value = self.next().text().to_owned();
                checked(key, BTreeSet::from([value]))
            }
            other => Err(format!("found '{}', expected: identifier", other.text())),
        }
    }

    fn number(&mut self, key: &str) -> Result<i64, String> {
        let values = self.exact(key)?;
        let value = values.first().map(String::as_str).unwrap_or_default();
        value.parse().map_err(|_| {
            format!("values[0]: Invalid value: {value:?}: for 'Gt', 'Lt' operators, the value must be an integer")
        })
    }

    fn values(&mut self) -> Result<BTreeSet<String>, String> {
        let open = self.next();
        if open != Token::Symbol("(") {
            return Err(format!("found '{}' expected: '('", open.text()));
        }
        let mut values = BTreeSet::new();
        let mut expect_value = true;
        loop {
            match self.next() {
                Token::Word(word) if expect_value => {
                    values.insert(word);
                    expect_value = false;
                }
                Token::Symbol(",") => {
                    if expect_value {
                        values.insert(String::new());
                    }
                    expect_value = true;
                }
                Token::Symbol(")") => {
                    if expect_value {
                        values.insert(String::new());
                    }
                    return checked("values", values);
                }
                other => return Err(format!("found '{}', expected: ',' or ')'", other.text())),
            }
        }
    }
}

fn checked(_key: &str, values: BTreeSet<String>) -> Result<BTreeSet<String>, String> {
    for (i, value) in values.iter().enumerate() {
        if let Some(error) = validation::label_value(value).into_iter().next() {
            return Err(format!("values[{i}]: Invalid value: {value:?}: {error}"));
        }
    }
    Ok(values)
}

/// `fields.Selector`: (`path`, equal?, value) terms, all of which must hold.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FieldSelector {
    pub terms: Vec<(String, bool, String)>,
}

impl FieldSelector {
    pub fn parse(text: &str) -> ApiResult<Self> {
        let mut terms = Vec::new();
        let mut parts = split_terms(text);
        // Of several mistakes the first in this order is told.
        parts.sort();
        for part in parts {
            if part.is_empty() {
                continue;
            }
            let (path, equal, value) = ["!=", "==", "="]
                .iter()
                .filter_map(|op| part.find(op).map(|at| (at, *op)))
                .min_by_key(|(at, op)| (*at, std::cmp::Reverse(op.len())))
                .map(|(at, op)| (&part[..at], op != "!=", &part[at + op.len()..]))
                .ok_or_else(|| {
                    ApiError::bad_request(format!("invalid selector: '{text}'; can't understand '{part}'"))
                })?;
            terms.push((path.to_owned(), equal, unescape(value).map_err(ApiError::bad_request)?));
        }
        Ok(Self { terms })
    }

    pub fn is_everything(&self) -> bool {
        self.terms.is_empty()
    }

    /// The value that a path must equal, when the selector says so.
    pub fn exact(&self, path: &str) -> Option<&str> {
        self.terms.iter().find(|(p, equal, _)| *equal && p == path).map(|(_, _, value)| value.as_str())
    }

    /// An object's key tells all that is asked.
    pub fn by_key(&self) -> bool {
        self.terms.iter().all(|(path, _, _)| in_key(path))
    }

    /// False when the key alone rules the object out.
    pub fn may_match(&self, key: &ObjectKey) -> bool {
        let of_key = |path: &str| if path == "metadata.name" { key.name() } else { key.namespace() };
        self.terms.iter().all(|(path, equal, value)| !in_key(path) || (of_key(path) == value) == *equal)
    }

    /// `get` gives a field as text; unknown fields are empty.
    pub fn matches(&self, get: &dyn Fn(&str) -> String) -> bool {
        self.terms.iter().all(|(path, equal, value)| (get(path) == *value) == *equal)
    }
}

fn in_key(path: &str) -> bool {
    path == "metadata.name" || path == "metadata.namespace"
}

fn split_terms(text: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut escaped = false;
    for c in text.chars() {
        if c == ',' && !escaped {
            parts.push(String::new());
            continue;
        }
        escaped = c == '\\' && !escaped;
        if let Some(last) = parts.last_mut() {
            last.push(c);
        }
    }
    parts
}

fn unescape(value: &str) -> Result<String, String> {
    let mut out = String::new();
    let mut chars = value.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some(escaped @ ('\\' | ',' | '=')) => out.push(escaped),
                other => {
                    let sequence: String = std::iter::once(c).chain(other).collect();
                    return Err(format!("invalid field selector: invalid escape sequence: {sequence}"));
                }
            },
            // Go prints the number of the character.
            ',' | '=' => return Err(format!("invalid field selector: unescaped character in value: {}", u32::from(c))),
            c => out.push(c),
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn labels() -> impl Strategy<Value = BTreeMap<String, String>> {
        prop::collection::btree_map("[ab]", "[xy1]{0,2}", 0..3)
    }

    /// Selectors with what they mean.
    fn requirement() -> impl Strategy<Value = (String, Requirement)> {
        let (key, value) = ("[ab]", "[xy1]{1,2}");
        let values = || prop::collection::btree_set("[xy1]{1,2}", 1..3);
        let joined = |values: &BTreeSet<String>| values.iter().cloned().collect::<Vec<_>>().join(",");
        prop_oneof![
            (key, value, prop::sample::select(vec!["=", "==", " = "]))
                .prop_map(|(k, v, is)| (format!("{k}{is}{v}"), Requirement::In(k, BTreeSet::from([v])))),
            (key, value).prop_map(|(k, v)| (format!("{k}!={v}"), Requirement::NotIn(k, BTreeSet::from([v])))),
            (key, values()).prop_map(move |(k, v)| (format!("{k} in ({})", joined(&v)), Requirement::In(k, v))),
            (key, values()).prop_map(move |(k, v)| (format!("{k} notin ({})", joined(&v)), Requirement::NotIn(k, v))),
            key.prop_map(|k| (k.clone(), Requirement::Exists(k))),
            key.prop_map(|k| (format!("!{k}"), Requirement::Absent(k))),
            (key, 0..30_i64).prop_map(|(k, n)| (format!("{k}>{n}"), Requirement::Greater(k, n))),
            (key, 0..30_i64).prop_map(|(k, n)| (format!("{k}<{n}"), Requirement::Less(k, n))),
        ]
    }

    /// Kubernetes' definition, by the value of the label.
    fn holds(requirement: &Requirement, labels: &BTreeMap<String, String>) -> bool {
        let number = |key: &String| labels.get(key).and_then(|value| value.parse::<i64>().ok());
        match requirement {
            Requirement::In(key, values) => labels.get(key).is_some_and(|value| values.contains(value)),
            Requirement::NotIn(key, values) => labels.get(key).is_none_or(|value| !values.contains(value)),
            Requirement::Exists(key) => labels.contains_key(key),
            Requirement::Absent(key) => !labels.contains_key(key),
            Requirement::Greater(key, n) => number(key).is_some_and(|value| value > *n),
            Requirement::Less(key, n) => number(key).is_some_and(|value| value < *n),
        }
    }

    proptest! {
        #[test]
        fn selectors_mean_what_they_say(all in prop::collection::vec(requirement(), 0..4), labels in labels()) {
            let text = all.iter().map(|(text, _)| text.as_str()).collect::<Vec<_>>().join(",");
            let selector = LabelSelector::parse(&text).unwrap();
            let wanted = all.iter().all(|(_, requirement)| holds(requirement, &labels));
            prop_assert_eq!(selector.matches(Some(&json!(labels))), wanted, "{}", text);
            let printed = LabelSelector::parse(&selector.to_string()).unwrap();
            prop_assert_eq!(printed.matches(Some(&json!(labels))), wanted, "{} printed as {}", text, selector);
        }

        #[test]
        fn no_text_breaks_a_selector(text in prop_oneof!["[ab=!(),<> in\\\\]{0,24}", any::<String>()]) {
            if let Ok(selector) = LabelSelector::parse(&text) {
                selector.matches(Some(&json!({"a": "b"})));
                prop_assert!(LabelSelector::parse(&selector.to_string()).is_ok(), "{} of {}", selector, text);
            }
            if let Ok(selector) = FieldSelector::parse(&text) {
                selector.matches(&|_| String::new());
            }
        }
    }
}
