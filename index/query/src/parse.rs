//! Parses text into a [`Query`]. Lenient: invalid parts are searched as text and reported; only exceeded limits
//! reject a query.

use super::Limits;
use super::ast::{
    Compare, Expr, Field, FieldKind, LabelMatch, Notice, Output, Pattern, Query, SortKey, Term, TermKind, Value, Values,
};
use super::fields::{self, STATES};
use super::lex::{Cursor, pattern};
use super::literal::{duration, instant, literal};
use super::selector::{requirement, set_requirement, split_selector};

/// A query that exceeds a limit. The message names the limit and how to stay below it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LimitExceeded {
    #[error("the query is {0} bytes long; the limit is {1}")]
    Length(usize, usize),
    #[error("the query has more than {0} terms; split it or use a glob")]
    Terms(usize),
    #[error("the query nests deeper than {0} parentheses")]
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
        parts.push(parser.or()?);
        let at = parser.cursor.at;
        // Only an unmatched closing parenthesis can stop the parser here.
        if !parser.cursor.eat(")") {
            break;
        }
        parser.notice(at, "unmatched closing parenthesis, ignored");
    }
    Ok(Query { filter: Expr::and(parts), output: parser.output, notices: parser.notices })
}

struct Parser<'a> {
    cursor: Cursor<'a>,
    limits: &'a Limits,
    terms: usize,
    regexes: usize,
    depth: usize,
    output: Output,
    notices: Vec<Notice>,
}

impl Parser<'_> {
    fn notice(&mut self, start: usize, message: impl Into<String>) {
        let span = self.cursor.span_from(start);
        self.notices.push(Notice { span, message: message.into() });
    }

    fn or(&mut self) -> Result<Expr, LimitExceeded> {
        let mut parts = vec![self.and()?];
        loop {
            self.cursor.blanks();
            let at = self.cursor.at;
            if !self.cursor.eat_operator("OR") {
                break;
            }
            let next = self.and()?;
            if next == Expr::All {
                self.notice(at, "OR has no right operand, ignored");
            } else {
                parts.push(next);
            }
        }
        if parts.len() > 1 {
            parts.retain(|p| *p != Expr::All);
        }
        Ok(if parts.len() == 1 { parts.remove(0) } else { Expr::Or(parts) })
    }

    fn and(&mut self) -> Result<Expr, LimitExceeded> {
        let mut parts = Vec::new();
        loop {
            self.cursor.blanks();
            while self.cursor.eat_operator("AND") {
                self.cursor.blanks();
            }
            let ahead = self.cursor.clone();
            if matches!(self.cursor.peek(), None | Some(')')) || self.cursor.eat_operator("OR") {
                self.cursor = ahead;
                return Ok(Expr::and(parts));
            }
            parts.push(self.not()?);
        }
    }

    fn not(&mut self) -> Result<Expr, LimitExceeded> {
        let start = self.cursor.at;
        let negated = if self.cursor.eat_operator("NOT") {
            true
        } else if matches!(self.cursor.peek(), Some('-' | '!')) {
            let next = self.cursor.rest()[1..].chars().next();
            let applies = next.is_some_and(|c| !c.is_whitespace() && c != ')' && c != '-');
            applies && self.cursor.bump().is_some()
        } else {
            false
        };
        if !negated {
            return self.primary();
        }
        self.deeper()?;
        self.cursor.blanks();
        let inner = if matches!(self.cursor.peek(), None | Some(')')) { Expr::All } else { self.not()? };
        self.depth -= 1;
        if inner == Expr::All {
            self.notice(start, "NOT has no operand, ignored");
            return Ok(Expr::All);
        }
        Ok(Expr::Not(Box::new(inner)))
    }

    fn deeper(&mut self) -> Result<(), LimitExceeded> {
        self.depth += 1;
        if self.depth > self.limits.depth { Err(LimitExceeded::Depth(self.limits.depth)) } else { Ok(()) }
    }

    fn primary(&mut self) -> Result<Expr, LimitExceeded> {
        let start = self.cursor.at;
        if self.cursor.eat("(") {
            return self.group(start);
        }
        self.terms += 1;
        if self.terms > self.limits.terms {
            return Err(LimitExceeded::Terms(self.limits.terms));
        }
        if let Some(has) = self.has()? {
            return Ok(has);
        }
        if let Some(name) = self.cursor.field_name() {
            return self.field(name.to_owned());
        }
        let pattern = self.pattern(false)?;
        Ok(self.term(start, TermKind::Text(pattern)))
    }

    fn group(&mut self, start: usize) -> Result<Expr, LimitExceeded> {
        self.deeper()?;
        let inner = self.or()?;
        self.depth -= 1;
        if !self.cursor.eat(")") {
            self.notice(start, "this parenthesis is never closed");
        }
        Ok(inner)
    }

    /// `has.event( … )`
    fn has(&mut self) -> Result<Option<Expr>, LimitExceeded> {
        let start = self.cursor.at;
        let Some(rest) = self.cursor.rest().strip_prefix("has.") else { return Ok(None) };
        let end = rest.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(rest.len());
        if end == 0 || !rest[end..].starts_with('(') {
            return Ok(None);
        }
        let what = rest[..end].to_owned();
        self.cursor.at += "has.".len() + end + 1;
        let inner = self.group(start)?;
        Ok(Some(self.term(start, TermKind::Has { what, inner: Box::new(inner) })))
    }

    fn term(&self, start: usize, kind: TermKind) -> Expr {
        Expr::Term(Term { span: self.cursor.span_from(start), kind })
    }

    /// Quoted text, a regular expression or a word.
    fn pattern(&mut self, commas: bool) -> Result<Pattern, LimitExceeded> {
        let start = self.cursor.at;
        if self.cursor.peek() == Some('"') {
            let (content, closed) = self.cursor.quoted();
            if !closed {
                self.notice(start, "this quote is never closed");
            }
            return Ok(Pattern::Phrase(content));
        }
        if let Some(found) = self.cursor.regex() {
            return self.checked_regex(start, found);
        }
        let word = self.cursor.word(commas);
        if word.is_empty() {
            // No word can begin here: consume the character to make progress.
            let c = self.cursor.bump().map(String::from).unwrap_or_default();
            return Ok(Pattern::Phrase(c));
        }
        Ok(pattern(word))
    }

    fn checked_regex(&mut self, start: usize, found: Pattern) -> Result<Pattern, LimitExceeded> {
        let Pattern::Regex { source, .. } = &found else { return Ok(found) };
        if source.len() > self.limits.regex {
            return Err(LimitExceeded::Regex(self.limits.regex));
        }
        self.regexes += 1;
        if self.regexes > self.limits.regexes {
            return Err(LimitExceeded::Regexes(self.limits.regexes));
        }
        if let Err(error) = regex::RegexBuilder::new(source).size_limit(super::MAX_COMPILED).build() {
            let text = source.clone();
            let why = error.to_string();
            let why = why.lines().last().unwrap_or_default();
            self.notice(
                start,
                format!("not a regular expression ({}), searched as text", why.trim_start_matches("error: ")),
            );
            return Ok(Pattern::Phrase(text));
        }
        Ok(found)
    }

    fn field(&mut self, name: String) -> Result<Expr, LimitExceeded> {
        let start = self.cursor.at;
        let Some(field) = fields::lookup(&name) else {
            let word = self.cursor.word(false).to_owned();
            // A port, tag or URL scheme is not reported as an unknown field.
            let looks_like_text = name.contains(['.', '-'])
                || word[name.len() + 1..].starts_with(|c: char| c.is_ascii_digit() || c == '/');
            if !looks_like_text {
                self.notice(start, format!("unknown field {name:?}, searched as text"));
            }
            return Ok(self.term(start, TermKind::Text(pattern(&word))));
        };
        self.cursor.at += name.len() + 1;
        let exact = self.cursor.eat("=");
        if let Field::Known(known) = &field
            && (known.kind == FieldKind::Output || known.name == "group")
            && let Some(taken) = self.output_term(start, known.name)
        {
            return Ok(taken);
        }
        let kind = match &field {
            Field::Known(known) => known.kind,
            Field::Path(_) => FieldKind::Word,
        };
        let typed_path = matches!(field, Field::Path(_));
        let values = self.values(start, &name, kind, typed_path)?;
        if let Field::Known(known) = &field
            && known.name == "is"
        {
            self.check_states(start, &values);
        }
        Ok(self.term(start, TermKind::Field { field, exact, values }))
    }

    fn check_states(&mut self, start: usize, values: &Values) {
        for value in &values.any {
            if let Value::Pattern(Pattern::Word(state)) = value
                && !STATES.contains(&state.to_ascii_lowercase().as_str())
            {
                self.notice(start, format!("unknown state {state:?}; the states are {}", STATES.join(", ")));
            }
        }
    }

    fn values(&mut self, start: usize, name: &str, kind: FieldKind, path: bool) -> Result<Values, LimitExceeded> {
        let negated = kind != FieldKind::Label && !self.cursor.rest().starts_with("!=") && self.cursor.eat("!");
        let mut any = Vec::new();
        if self.cursor.eat("(") {
            loop {
                self.cursor.blanks();
                if self.cursor.eat_operator("OR") || self.cursor.eat(",") {
                    continue;
                }
                if matches!(self.cursor.peek(), None | Some(')')) {
                    break;
                }
                any.push(self.value(start, kind, path)?);
            }
            if !self.cursor.eat(")") {
                self.notice(start, "this parenthesis is never closed");
            }
        } else if !matches!(self.cursor.peek(), None | Some(')'))
            && !self.cursor.peek().is_some_and(char::is_whitespace)
        {
            loop {
                any.push(self.value(start, kind, path)?);
                if !self.cursor.eat(",") || matches!(self.cursor.peek(), None | Some(')')) {
                    break;
                }
            }
        }
        if any.len() > self.limits.terms {
            return Err(LimitExceeded::Terms(self.limits.terms));
        }
        if any.is_empty() {
            self.notice(start, format!("{name}: has no value"));
            any.push(Value::Exists);
        }
        Ok(Values { negated, any })
    }

    fn value(&mut self, start: usize, kind: FieldKind, path: bool) -> Result<Value, LimitExceeded> {
        if kind == FieldKind::Label {
            return self.label();
        }
        let typed = matches!(kind, FieldKind::Number | FieldKind::Quantity | FieldKind::Age | FieldKind::Time) || path;
        if typed
            && self.cursor.peek() != Some('"')
            && let Some(value) = self.typed(kind)
        {
            return Ok(value);
        }
        let at = self.cursor.at;
        let found = self.pattern(true)?;
        Ok(match found {
            Pattern::Glob(all) if all == "*" => Value::Exists,
            Pattern::Word(word) if typed && !path => {
                self.notice(start, format!("{word:?} is not a {}", expected(kind)));
                Value::Pattern(Pattern::Word(word))
            }
            Pattern::Word(word) if word.is_empty() => {
                self.notice(at, "the value is empty");
                Value::Exists
            }
            other => Value::Pattern(other),
        })
    }

    /// A comparison, a range or a plain literal of a typed field; the cursor does not move if there is none.
    fn typed(&mut self, kind: FieldKind) -> Option<Value> {
        let back = self.cursor.clone();
        let compare = [
            ("<=", Compare::LessOrEqual),
            (">=", Compare::GreaterOrEqual),
            ("!=", Compare::NotEqual),
            ("<", Compare::Less),
            (">", Compare::Greater),
            ("=", Compare::Equal),
        ]
        .into_iter()
        .find(|(sign, _)| self.cursor.eat(sign))
        .map(|(_, compare)| compare);
        let literal_kind = if kind == FieldKind::Word { FieldKind::Reference } else { kind };
        let word = self.cursor.word(true).to_owned();
        let found = match (compare, word.split_once("..")) {
            (Some(compare), _) => literal(&word, literal_kind).map(|l| Value::Compare(compare, l)),
            (None, Some((low, high))) => {
                let bound = |text: &str| match text {
                    "" => Some(None),
                    text => literal(text, literal_kind).map(Some),
                };
                match (bound(low), bound(high)) {
                    (Some(None), Some(None)) | (None, _) | (_, None) => None,
                    (Some(low), Some(high)) => Some(Value::Range(low, high)),
                }
            }
            (None, None) if kind == FieldKind::Word => None,
            (None, None) => literal(&word, literal_kind).map(|l| match kind {
                // `created:hour`, `age:1h`: within that period.
                FieldKind::Time => Value::Compare(Compare::GreaterOrEqual, l),
                FieldKind::Age => Value::Compare(Compare::LessOrEqual, l),
                _ => Value::Compare(Compare::Equal, l),
            }),
        };
        if found.is_none() {
            self.cursor = back;
        }
        found
    }

    /// `app=web`, `app!=web`, `app`, `!app`, globs in key and value, or a quoted selector.
    fn label(&mut self) -> Result<Value, LimitExceeded> {
        let start = self.cursor.at;
        if self.cursor.peek() == Some('"') {
            let (content, closed) = self.cursor.quoted();
            if !closed {
                self.notice(start, "this quote is never closed");
            }
            return Ok(Value::Selector(self.selector(start, &content)));
        }
        let word = self.cursor.word(true).to_owned();
        Ok(match requirement(&word) {
            _ if word == "*" => Value::Exists,
            Some(found) => Value::Label(found),
            None => {
                if word.is_empty() {
                    // No label can begin here: consume the character to make progress.
                    self.cursor.bump();
                }
                self.notice(start, "a label needs a key");
                Value::Exists
            }
        })
    }

    fn selector(&mut self, start: usize, text: &str) -> Vec<LabelMatch> {
        let mut found = Vec::new();
        for part in split_selector(text) {
            match set_requirement(&part).or_else(|| requirement(&part)) {
                Some(requirement) => found.push(requirement),
                None => self.notice(start, format!("{part:?} is not a label requirement, ignored")),
            }
        }
        found
    }

    /// Terms that control the output. `None`: the term is a filter.
    fn output_term(&mut self, start: usize, name: &str) -> Option<Expr> {
        let value = match self.cursor.peek() {
            // A quoted value is an API group.
            Some('"') if name == "group" => return None,
            Some('"') => self.cursor.quoted().0,
            _ => {
                let word = self.cursor.clone().word(false).to_owned();
                if name == "group" && !fields::groups(&word) {
                    return None;
                }
                self.cursor.at += word.len();
                word
            }
        };
        let understood = set(&mut self.output, name, &value);
        if !understood {
            self.notice(start, format!("{name}:{value} is invalid, ignored"));
        }
        Some(Expr::All)
    }
}

fn set(output: &mut Output, name: &str, value: &str) -> bool {
    if value.is_empty() {
        return false;
    }
    match name {
        "sort" => output.sort.extend(value.split(',').filter(|f| !f.is_empty()).map(|field| SortKey {
            field: field.trim_start_matches(['-', '+']).to_owned(),
            descending: field.starts_with('-'),
        })),
        "group" | "group-by" => output.group = Some(fields::facet_named(value)),
        "select" => output.select = Some(value.to_owned()),
        "scope" => output.scope = Some(value.to_owned()),
        "limit" => return store(&mut output.limit, value.parse().ok()),
        "depth" => return store(&mut output.depth, value.parse().ok()),
        "timeout" => return store(&mut output.timeout, duration(value)),
        "at" => return store(&mut output.at, instant(value)),
        "during" => {
            let Some((from, to)) = value.split_once("..") else { return false };
            let bound = |text: &str| if text.is_empty() { Some(None) } else { instant(text).map(Some) };
            let (Some(from), Some(to)) = (bound(from), bound(to)) else { return false };
            output.during = Some((from, to));
        }
        _ => return false,
    }
    true
}

fn store<T>(slot: &mut Option<T>, value: Option<T>) -> bool {
    let some = value.is_some();
    if some {
        *slot = value;
    }
    some
}

fn expected(kind: FieldKind) -> &'static str {
    match kind {
        FieldKind::Number => "number such as 3, >5 or 3..10",
        FieldKind::Quantity => "quantity such as 500m or 2Gi",
        FieldKind::Age => "duration such as 90s, 15m, 2h or 7d",
        FieldKind::Time => "time such as 2026-08-01 or now-2h",
        FieldKind::Word | FieldKind::Label | FieldKind::Condition | FieldKind::Reference | FieldKind::Output => "value",
    }
}
