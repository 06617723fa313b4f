//! Prints a pattern in openCypher's form, which parses to the same pattern.

use super::{Direction, HopPattern, NodePattern, PathPattern};
use std::fmt::{self, Display, Formatter};

impl Display for PathPattern {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.first.fmt(f)?;
        self.hops.iter().try_for_each(|(hop, node)| write!(f, "{hop}{node}"))
    }
}

impl Display for NodePattern {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("(")?;
        self.variable.iter().try_for_each(|variable| f.write_str(&quote_identifier(variable)))?;
        self.label.iter().try_for_each(|label| write!(f, ":{}", quote_identifier(label)))?;
        if !self.properties.is_empty() {
            let gap = if self.variable.is_none() && self.label.is_none() { "" } else { " " };
            let all = self.properties.iter().map(|(property, value)| format!("{}: {}", property.name(), quote(value)));
            write!(f, "{gap}{{{}}}", all.collect::<Vec<_>>().join(", "))?;
        }
        f.write_str(")")
    }
}

impl Display for HopPattern {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let variable = self.variable.as_deref().map(quote_identifier).unwrap_or_default();
        let types: Vec<&str> = self.types.iter().map(|edge_type| edge_type.name()).collect();
        let types = if types.is_empty() { String::new() } else { format!(":{}", types.join("|")) };
        let steps = match (self.min_steps, self.max_steps) {
            (1, 1) => String::new(),
            // An upper bound is always stated: in graph databases, `*` alone has none.
            (min, max) if min == max => format!("*{min}"),
            (min, max) => format!("*{min}..{max}"),
        };
        let (start, end) = match self.direction {
            Direction::Out => ("-", "->"),
            Direction::In => ("<-", "-"),
            Direction::Both => ("-", "-"),
        };
        write!(f, "{start}[{variable}{types}{steps}]{end}")
    }
}

/// A name, in backticks unless it consists of letters, digits and underscores.
fn quote_identifier(text: &str) -> String {
    let is_plain = text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
        && !text.starts_with(|c: char| c.is_ascii_digit())
        && !text.is_empty();
    if is_plain { text.to_owned() } else { format!("`{}`", text.replace('`', "``")) }
}

fn quote(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}
