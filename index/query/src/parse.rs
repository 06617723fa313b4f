//! Parses text into a [`Query`]. The parser is lenient: it searches invalid parts as text and adds notices. It rejects
//! only queries that exceed a limit.

use super::Limits;
use super::ast::{
    ComparisonOperator, Expr, Field, FieldKind, LabelMatch, Notice, Output, Pattern, Query, SortKey, Term, TermKind,
    Value, Values,
};
use super::fields::{self, STATES};
use super::lex::{Cursor, parse_word_pattern};
use super::literal::{parse_duration, parse_literal, parse_time};
use super::selector::{parse_requirement, parse_set_requirement, split_selector};

/// Limit that a query exceeds; the message states the limit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LimitExceeded {
    #[error("the query is {0} bytes long; the limit is {1}")]
    Length(usize, usize),
    #[error("the query has more than {0} terms; split it or use a glob")]
    Terms(usize),
    #[error("the query nests deeper than {0} levels")]
    Depth(usize),
    #[error("a regular expression is longer than {0} bytes")]
    Regex(usize),
    #[error("the query has more than {0} regular expressions; join them by | in one")]
    Regexes(usize),
}

/// Parses a query.
pub fn parse(text: &str, limits: &Limits) -> Result<Query, LimitExceeded> {
    if text.len() > limits.length {
        return Err(LimitExceeded::Length(text.len(), limits.length));
    }
    let mut parser = Parser {
        cursor: Cursor::new(text),
        limits,
        terms: 0,
        regexes: 0,
        depth: 0,
        output: Output::default(),
        notices: Vec::new(),
    };
    let mut parts = Vec::new();
    loop {
        parts.push(parser.parse_or()?);
        let at = parser.cursor.at;
        // Only an unmatched closing parenthesis can stop the parser here.
        if !parser.cursor.eat(")") {
            break;
        }
        parser.add_notice(at, "unmatched closing parenthesis, ignored");
    }
    Ok(Query { filter: Expr::and(parts), output: parser.output, notices: parser.notices })
}

struct Parser<'a> {
    cursor: Cursor<'a>,
    limits: &'a Limits,
    /// Number of terms so far.
    terms: usize,
    /// Number of regular expressions so far.
    regexes: usize,
    /// Current nesting depth of parentheses and negations.
    depth: usize,
    output: Output,
    notices: Vec<Notice>,
}

impl Parser<'_> {
    fn add_notice(&mut self, start: usize, message: impl Into<String>) {
        let span = self.cursor.span_from(start);
        self.notices.push(Notice { span, message: message.into() });
    }

    fn parse_or(&mut self) -> Result<Expr, LimitExceeded> {
        let mut parts = vec![self.parse_and()?];
        loop {
            self.cursor.skip_whitespace();
            let at = self.cursor.at;
            if !self.cursor.eat_operator("OR") {
                break;
            }
            let next = self.parse_and()?;
            if next == Expr::All {
                self.add_notice(at, "OR has no right operand, ignored");
            } else {
                parts.push(next);
            }
        }
        if parts.len() > 1 {
            parts.retain(|p| *p != Expr::All);
        }
        Ok(if parts.len() == 1 { parts.remove(0) } else { Expr::Or(parts) })
    }

    fn parse_and(&mut self) -> Result<Expr, LimitExceeded> {
        let mut parts = Vec::new();
        loop {
            self.cursor.skip_whitespace();
            while self.cursor.eat_operator("AND") {
                self.cursor.skip_whitespace();
            }
            let start = self.cursor.clone();
            if matches!(self.cursor.peek(), None | Some(')')) || self.cursor.eat_operator("OR") {
                self.cursor = start;
                return Ok(Expr::and(parts));
            }
            parts.push(self.parse_not()?);
        }
    }

    fn parse_not(&mut self) -> Result<Expr, LimitExceeded> {
        let start = self.cursor.at;
        let is_negated = if self.cursor.eat_operator("NOT") {
            true
        } else if matches!(self.cursor.peek(), Some('-' | '!')) {
            let next = self.cursor.rest()[1..].chars().next();
            let applies = next.is_some_and(|c| !c.is_whitespace() && c != ')' && c != '-');
            applies && self.cursor.bump().is_some()
        } else {
            false
        };
        if !is_negated {
            return self.parse_primary();
        }
        self.enter_nesting()?;
        self.cursor.skip_whitespace();
        let inner = if matches!(self.cursor.peek(), None | Some(')')) { Expr::All } else { self.parse_not()? };
        self.depth -= 1;
        if inner == Expr::All {
            self.add_notice(start, "NOT has no operand, ignored");
            return Ok(Expr::All);
        }
        Ok(Expr::Not(Box::new(inner)))
    }

    /// Increments the nesting depth; the caller decrements it after parsing the nested expression.
    fn enter_nesting(&mut self) -> Result<(), LimitExceeded> {
        self.depth += 1;
        if self.depth > self.limits.depth { Err(LimitExceeded::Depth(self.limits.depth)) } else { Ok(()) }
    }

    fn parse_primary(&mut self) -> Result<Expr, LimitExceeded> {
        let start = self.cursor.at;
        if self.cursor.eat("(") {
            return self.parse_group(start);
        }
        self.terms += 1;
        if self.terms > self.limits.terms {
            return Err(LimitExceeded::Terms(self.limits.terms));
        }
        if let Some(has) = self.parse_has()? {
            return Ok(has);
        }
        if let Some(name) = self.cursor.field_name() {
            return self.parse_field(name.to_owned());
        }
        let pattern = self.parse_pattern(false)?;
        Ok(self.new_term(start, TermKind::Text(pattern)))
    }

    fn parse_group(&mut self, start: usize) -> Result<Expr, LimitExceeded> {
        self.enter_nesting()?;
        let inner = self.parse_or()?;
        self.depth -= 1;
        if !self.cursor.eat(")") {
            self.add_notice(start, "this parenthesis is never closed");
        }
        Ok(inner)
    }

    /// Parses a term such as `has.event( … )`, if there is one.
    fn parse_has(&mut self) -> Result<Option<Expr>, LimitExceeded> {
        let start = self.cursor.at;
        let Some(rest) = self.cursor.rest().strip_prefix("has.") else { return Ok(None) };
        let end = rest.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(rest.len());
        if end == 0 || !rest[end..].starts_with('(') {
            return Ok(None);
        }
        let what = rest[..end].to_owned();
        self.cursor.at += "has.".len() + end + 1;
        let inner = self.parse_group(start)?;
        Ok(Some(self.new_term(start, TermKind::Has { what, inner: Box::new(inner) })))
    }

    fn new_term(&self, start: usize, kind: TermKind) -> Expr {
        Expr::Term(Term { span: self.cursor.span_from(start), kind })
    }

    /// Parses quoted text, a regular expression or a word, which ends at a comma if `ends_at_comma`.
    fn parse_pattern(&mut self, ends_at_comma: bool) -> Result<Pattern, LimitExceeded> {
        let start = self.cursor.at;
        if self.cursor.peek() == Some('"') {
            let (content, is_closed) = self.cursor.parse_quoted();
            if !is_closed {
                self.add_notice(start, "this quote is never closed");
            }
            return Ok(Pattern::Phrase(content));
        }
        if let Some(found) = self.cursor.parse_regex() {
            return self.check_regex(start, found);
        }
        let word = self.cursor.parse_word(ends_at_comma);
        if word.is_empty() {
            // No word can begin here: consume the character to make progress.
            let c = self.cursor.bump().map(String::from).unwrap_or_default();
            return Ok(Pattern::Phrase(c));
        }
        Ok(parse_word_pattern(word))
    }

    fn check_regex(&mut self, start: usize, found: Pattern) -> Result<Pattern, LimitExceeded> {
        let Pattern::Regex { source, .. } = &found else { return Ok(found) };
        if source.len() > self.limits.regex {
            return Err(LimitExceeded::Regex(self.limits.regex));
        }
        self.regexes += 1;
        if self.regexes > self.limits.regexes {
            return Err(LimitExceeded::Regexes(self.limits.regexes));
        }
        if let Err(error) = regex::RegexBuilder::new(source).size_limit(super::MAX_COMPILED_REGEX_BYTES).build() {
            let text = source.clone();
            let message = error.to_string();
            let message = message.lines().last().unwrap_or_default();
            self.add_notice(
                start,
                format!("not a regular expression ({}), searched as text", message.trim_start_matches("error: ")),
            );
            return Ok(Pattern::Phrase(text));
        }
        Ok(found)
    }

    fn parse_field(&mut self, name: String) -> Result<Expr, LimitExceeded> {
        let start = self.cursor.at;
        let Some(field) = fields::find_field(&name) else {
            let word = self.cursor.parse_word(false).to_owned();
            // A port, tag or URL scheme is not reported as an unknown field.
            let looks_like_text = name.contains(['.', '-'])
                || word[name.len() + 1..].starts_with(|c: char| c.is_ascii_digit() || c == '/');
            if !looks_like_text {
                self.add_notice(start, format!("unknown field {name:?}, searched as text"));
            }
            return Ok(self.new_term(start, TermKind::Text(parse_word_pattern(&word))));
        };
        self.cursor.at += name.len() + 1;
        let exact = self.cursor.eat("=");
        if let Field::Definition(definition) = &field
            && (definition.kind == FieldKind::Output || definition.name == "group")
            && let Some(term) = self.parse_output_term(start, definition.name)
        {
            return Ok(term);
        }
        let kind = match &field {
            Field::Definition(definition) => definition.kind,
            Field::Path(_) => FieldKind::Word,
        };
        let is_path = matches!(field, Field::Path(_));
        let values = self.parse_values(start, &name, kind, is_path)?;
        if let Field::Definition(definition) = &field
            && definition.name == "is"
        {
            self.check_states(start, &values);
        }
        Ok(self.new_term(start, TermKind::Field { field, exact, values }))
    }

    fn check_states(&mut self, start: usize, values: &Values) {
        for value in &values.any {
            if let Value::Pattern(Pattern::Word(state)) = value
                && !STATES.contains(&state.to_ascii_lowercase().as_str())
            {
                self.add_notice(start, format!("unknown state {state:?}; the states are {}", STATES.join(", ")));
            }
        }
    }

    fn parse_values(
        &mut self,
        start: usize,
        name: &str,
        kind: FieldKind,
        is_path: bool,
    ) -> Result<Values, LimitExceeded> {
        let negated = kind != FieldKind::Label && !self.cursor.rest().starts_with("!=") && self.cursor.eat("!");
        let mut any = Vec::new();
        if self.cursor.eat("(") {
            loop {
                self.cursor.skip_whitespace();
                if self.cursor.eat_operator("OR") || self.cursor.eat(",") {
                    continue;
                }
                if matches!(self.cursor.peek(), None | Some(')')) {
                    break;
                }
                any.push(self.parse_value(start, kind, is_path)?);
            }
            if !self.cursor.eat(")") {
                self.add_notice(start, "this parenthesis is never closed");
            }
        } else if !matches!(self.cursor.peek(), None | Some(')'))
            && !self.cursor.peek().is_some_and(char::is_whitespace)
        {
            loop {
                any.push(self.parse_value(start, kind, is_path)?);
                if !self.cursor.eat(",") || matches!(self.cursor.peek(), None | Some(')')) {
                    break;
                }
            }
        }
        if any.len() > self.limits.terms {
            return Err(LimitExceeded::Terms(self.limits.terms));
        }
        if any.is_empty() {
            self.add_notice(start, format!("{name}: has no value"));
            any.push(Value::Exists);
        }
        Ok(Values { negated, any })
    }

    fn parse_value(&mut self, start: usize, kind: FieldKind, is_path: bool) -> Result<Value, LimitExceeded> {
        if kind == FieldKind::Label {
            return self.parse_label();
        }
        let is_typed =
            is_path || matches!(kind, FieldKind::Number | FieldKind::Quantity | FieldKind::Age | FieldKind::Time);
        if is_typed
            && self.cursor.peek() != Some('"')
            && let Some(value) = self.parse_typed_value(kind)
        {
            return Ok(value);
        }
        let at = self.cursor.at;
        let found = self.parse_pattern(true)?;
        Ok(match found {
            Pattern::Glob(all) if all == "*" => Value::Exists,
            Pattern::Word(word) if is_typed && !is_path => {
                self.add_notice(start, format!("{word:?} is not a {}", describe_values(kind)));
                Value::Pattern(Pattern::Word(word))
            }
            Pattern::Word(word) if word.is_empty() => {
                self.add_notice(at, "the value is empty");
                Value::Exists
            }
            other => Value::Pattern(other),
        })
    }

    /// Parses a comparison, a range or a plain literal of a typed field. If there is none, the cursor does not move.
    fn parse_typed_value(&mut self, kind: FieldKind) -> Option<Value> {
        let start = self.cursor.clone();
        let operator = [
            ("<=", ComparisonOperator::LessOrEqual),
            (">=", ComparisonOperator::GreaterOrEqual),
            ("!=", ComparisonOperator::NotEqual),
            ("<", ComparisonOperator::Less),
            (">", ComparisonOperator::Greater),
            ("=", ComparisonOperator::Equal),
        ]
        .into_iter()
        .find(|(sign, _)| self.cursor.eat(sign))
        .map(|(_, operator)| operator);
        let literal_kind = if kind == FieldKind::Word { FieldKind::Reference } else { kind };
        let word = self.cursor.parse_word(true).to_owned();
        let found = match (operator, word.split_once("..")) {
            (Some(operator), _) => parse_literal(&word, literal_kind).map(|l| Value::Compare(operator, l)),
            (None, Some((low, high))) => {
                let bound = |text: &str| match text {
                    "" => Some(None),
                    text => parse_literal(text, literal_kind).map(Some),
                };
                match (bound(low), bound(high)) {
                    (Some(None), Some(None)) | (None, _) | (_, None) => None,
                    (Some(low), Some(high)) => Some(Value::Range(low, high)),
                }
            }
            (None, None) if kind == FieldKind::Word => None,
            (None, None) => parse_literal(&word, literal_kind).map(|l| match kind {
                // `created:hour` and `age:1h` match objects created within that period.
                FieldKind::Time => Value::Compare(ComparisonOperator::GreaterOrEqual, l),
                FieldKind::Age => Value::Compare(ComparisonOperator::LessOrEqual, l),
                _ => Value::Compare(ComparisonOperator::Equal, l),
            }),
        };
        if found.is_none() {
            self.cursor = start;
        }
        found
    }

    /// Parses `app=web`, `app!=web`, `app`, `!app`, globs in key and value, or a quoted selector.
    fn parse_label(&mut self) -> Result<Value, LimitExceeded> {
        let start = self.cursor.at;
        if self.cursor.peek() == Some('"') {
            let (content, is_closed) = self.cursor.parse_quoted();
            if !is_closed {
                self.add_notice(start, "this quote is never closed");
            }
            return Ok(Value::Selector(self.parse_selector(start, &content)));
        }
        let word = self.cursor.parse_word(true).to_owned();
        Ok(match parse_requirement(&word) {
            _ if word == "*" => Value::Exists,
            Some(found) => Value::Label(found),
            None => {
                if word.is_empty() {
                    // No label can begin here: consume the character to make progress.
                    self.cursor.bump();
                }
                self.add_notice(start, "a label needs a key");
                Value::Exists
            }
        })
    }

    fn parse_selector(&mut self, start: usize, text: &str) -> Vec<LabelMatch> {
        let mut found = Vec::new();
        for part in split_selector(text) {
            match parse_set_requirement(&part).or_else(|| parse_requirement(&part)) {
                Some(requirement) => found.push(requirement),
                None => self.add_notice(start, format!("{part:?} is not a label requirement, ignored")),
            }
        }
        found
    }

    /// Parses a term that controls the output. Returns `None` if the term is a filter.
    fn parse_output_term(&mut self, start: usize, name: &str) -> Option<Expr> {
        let value = match self.cursor.peek() {
            // A quoted value is an API group.
            Some('"') if name == "group" => return None,
            Some('"') => self.cursor.parse_quoted().0,
            _ => {
                let word = self.cursor.clone().parse_word(false).to_owned();
                if name == "group" && !fields::is_facet(&word) {
                    return None;
                }
                self.cursor.at += word.len();
                word
            }
        };
        let is_valid = set_output(&mut self.output, name, &value);
        if !is_valid {
            self.add_notice(start, format!("{name}:{value} is invalid, ignored"));
        }
        Some(Expr::All)
    }
}

/// Sets an output option. Returns false if the value is invalid.
fn set_output(output: &mut Output, name: &str, value: &str) -> bool {
    if value.is_empty() {
        return false;
    }
    match name {
        "sort" => output.sort.extend(value.split(',').filter(|f| !f.is_empty()).map(|field| SortKey {
            field: field.trim_start_matches(['-', '+']).to_owned(),
            descending: field.starts_with('-'),
        })),
        "group" | "group-by" => output.group = Some(fields::canonical_facet(value)),
        "select" => output.select = Some(value.to_owned()),
        "scope" => output.scope = Some(value.to_owned()),
        "limit" => return set_if_some(&mut output.limit, value.parse().ok()),
        "depth" => return set_if_some(&mut output.depth, value.parse().ok()),
        "timeout" => return set_if_some(&mut output.timeout, parse_duration(value)),
        "at" => return set_if_some(&mut output.at, parse_time(value)),
        "during" => {
            let Some((from, to)) = value.split_once("..") else { return false };
            let bound = |text: &str| if text.is_empty() { Some(None) } else { parse_time(text).map(Some) };
            let (Some(from), Some(to)) = (bound(from), bound(to)) else { return false };
            output.during = Some((from, to));
        }
        _ => return false,
    }
    true
}

fn set_if_some<T>(slot: &mut Option<T>, value: Option<T>) -> bool {
    let is_some = value.is_some();
    if is_some {
        *slot = value;
    }
    is_some
}

/// Description of the values of a field, for notices.
fn describe_values(kind: FieldKind) -> &'static str {
    match kind {
        FieldKind::Number => "number such as 3, >5 or 3..10",
        FieldKind::Quantity => "quantity such as 500m or 2Gi",
        FieldKind::Age => "duration such as 90s, 15m, 2h or 7d",
        FieldKind::Time => "time such as 2026-08-01 or now-2h",
        FieldKind::Word | FieldKind::Label | FieldKind::Condition | FieldKind::Reference | FieldKind::Output => "value",
    }
}
