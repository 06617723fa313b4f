//! Prints a [`Query`] as text that parses to the same query.

use std::fmt::{self, Display, Formatter, Write};

use super::ast::{
    Expr, Field, LabelMatch, LabelOp, Literal, Moment, Output, Pattern, Query, Term, TermKind, Value, Values,
};
use super::fields::is_facet;
use super::lex::opens_regex;

/// Operators. A word that equals one of them has to be quoted.
const OPERATORS: [&str; 3] = ["AND", "OR", "NOT"];

impl Display for Query {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let filter = self.filter.to_string();
        let output = self.output.to_string();
        let gap = if filter.is_empty() || output.is_empty() { "" } else { " " };
        let needs_parentheses = matches!(self.filter, Expr::Or(_)) && !output.is_empty();
        if needs_parentheses { write!(f, "({filter}){gap}{output}") } else { write!(f, "{filter}{gap}{output}") }
    }
}

impl Display for Expr {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Expr::All => Ok(()),
            Expr::And(parts) => join(f, parts, " ", |part| matches!(part, Expr::And(_) | Expr::Or(_))),
            Expr::Or(parts) => join(f, parts, " OR ", |part| matches!(part, Expr::Or(_))),
            Expr::Not(inner) => match **inner {
                Expr::Term(_) => write!(f, "NOT {inner}"),
                _ => write!(f, "NOT ({inner})"),
            },
            Expr::Term(term) => term.fmt(f),
        }
    }
}

fn join(
    f: &mut Formatter<'_>,
    parts: &[Expr],
    between: &str,
    needs_parentheses: impl Fn(&Expr) -> bool,
) -> fmt::Result {
    for (index, part) in parts.iter().enumerate() {
        if index > 0 {
            f.write_str(between)?;
        }
        if needs_parentheses(part) {
            write!(f, "({part})")?;
        } else {
            part.fmt(f)?;
        }
    }
    Ok(())
}

impl Display for Term {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match &self.kind {
            TermKind::Text(pattern) => pattern.fmt(f),
            TermKind::Field { field, exact, values } => {
                let (sign, values) = (if *exact { ":=" } else { ":" }, values.to_string());
                // Without parentheses, `group:` with the name of a facet would group the hits.
                let needs_parentheses =
                    matches!(field, Field::Definition(field) if field.name == "group") && !exact && is_facet(&values);
                if needs_parentheses {
                    write!(f, "{field}{sign}({values})")
                } else {
                    write!(f, "{field}{sign}{values}")
                }
            }
            TermKind::Has { what, inner } => write!(f, "has.{what}({inner})"),
        }
    }
}

impl Display for Field {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Field::Definition(definition) => f.write_str(definition.name),
            Field::Path(path) => write!(f, ".{path}"),
        }
    }
}

impl Display for Values {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if self.negated {
            f.write_char('!')?;
        }
        let texts: Vec<String> = self.any.iter().map(ToString::to_string).collect();
        let list = texts.join(",");
        // Without parentheses, the beginning of such a value would be parsed as part of the field's syntax.
        let needs_parentheses = match self.any.first() {
            Some(Value::Pattern(_)) => list.starts_with(['!', '=', '(']),
            Some(Value::Label(_)) => list.starts_with(['=', '(']),
            _ => false,
        };
        if needs_parentheses { write!(f, "({list})") } else { f.write_str(&list) }
    }
}

impl Display for Value {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Value::Exists => f.write_char('*'),
            Value::Pattern(pattern) => pattern.fmt(f),
            Value::Compare(operator, literal) => write!(f, "{operator}{literal}"),
            Value::Range(low, high) => {
                let text = |bound: &Option<Literal>| bound.as_ref().map(|l| l.text.clone()).unwrap_or_default();
                write!(f, "{}..{}", text(low), text(high))
            }
            Value::Label(label) => label.fmt(f),
            Value::Selector(labels) => {
                let parts: Vec<String> = labels.iter().map(ToString::to_string).collect();
                quote(f, &parts.join(","))
            }
        }
    }
}

impl Display for LabelMatch {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let list = |values: &[Pattern]| values.iter().map(raw_text).collect::<Vec<_>>().join(",");
        let key = raw_text(&self.key);
        match &self.op {
            LabelOp::Exists => f.write_str(&key),
            LabelOp::Absent => write!(f, "!{key}"),
            LabelOp::In(values) if values.len() == 1 => write!(f, "{key}={}", list(values)),
            LabelOp::NotIn(values) if values.len() == 1 => write!(f, "{key}!={}", list(values)),
            LabelOp::In(values) => write!(f, "{key} in ({})", list(values)),
            LabelOp::NotIn(values) => write!(f, "{key} notin ({})", list(values)),
        }
    }
}

/// Text of a pattern in a label requirement, where quotes have no meaning.
fn raw_text(pattern: &Pattern) -> String {
    match pattern {
        Pattern::Word(text) | Pattern::Phrase(text) | Pattern::Glob(text) => text.clone(),
        Pattern::Fuzzy { word, distance } => format!("{word}~{distance}"),
        Pattern::Regex { source, .. } => source.clone(),
    }
}

impl Display for Pattern {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Pattern::Word(text) if opens_regex(text) || OPERATORS.contains(&text.as_str()) => quote(f, text),
            Pattern::Word(text) | Pattern::Glob(text) => f.write_str(text),
            Pattern::Phrase(text) => quote(f, text),
            Pattern::Fuzzy { word, distance } => write!(f, "{word}~{distance}"),
            Pattern::Regex { source, ignore_case } => {
                f.write_char('/')?;
                let mut escaped = false;
                for c in source.chars() {
                    if c == '/' && !escaped {
                        f.write_char('\\')?;
                    }
                    escaped = c == '\\' && !escaped;
                    f.write_char(c)?;
                }
                f.write_char('/')?;
                if *ignore_case { f.write_char('i') } else { Ok(()) }
            }
        }
    }
}

impl Display for Literal {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

fn quote(f: &mut Formatter<'_>, text: &str) -> fmt::Result {
    f.write_char('"')?;
    for c in text.chars() {
        if matches!(c, '"' | '\\') {
            f.write_char('\\')?;
        }
        f.write_char(c)?;
    }
    f.write_char('"')
}

impl Display for Output {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let mut terms: Vec<String> = Vec::new();
        let mut push =
            |name: &str, value: Option<String>| terms.extend(value.map(|v| format!("{name}:{}", quote_if_needed(v))));
        push("select", self.select.clone());
        push("depth", self.depth.map(|d| d.to_string()));
        push("scope", self.scope.clone());
        push("at", self.at.as_ref().map(format_moment));
        let bound = |m: &Option<Moment>| m.as_ref().map(format_moment).unwrap_or_default();
        push("during", self.during.as_ref().map(|(from, to)| format!("{}..{}", bound(from), bound(to))));
        let sort: Vec<String> =
            self.sort.iter().map(|k| format!("{}{}", if k.descending { "-" } else { "" }, k.field)).collect();
        push("sort", (!sort.is_empty()).then(|| sort.join(",")));
        push("group-by", self.group.clone());
        push("limit", self.limit.map(|l| l.to_string()));
        push("timeout", self.timeout.map(|t| format!("{t}s")));
        f.write_str(&terms.join(" "))
    }
}

/// Quotes text that contains the end of a word (whitespace, a quote or a parenthesis) or begins with `=`.
fn quote_if_needed(text: String) -> String {
    if text.starts_with('=') || text.contains(|c: char| c.is_whitespace() || matches!(c, '"' | '(' | ')')) {
        Pattern::Phrase(text).to_string()
    } else {
        text
    }
}

fn format_moment(moment: &Moment) -> String {
    match moment {
        Moment::Absolute(time) => time.to_string(),
        Moment::Ago(seconds) => format!("now-{seconds}s"),
        Moment::Daily(second_of_day) => {
            format!("{:02}:{:02}:{:02}", second_of_day / 3600, second_of_day / 60 % 60, second_of_day % 60)
        }
    }
}
