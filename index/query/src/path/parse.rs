//! Parses patterns. Both forms may be mixed in one pattern; errors state the byte offset.

use super::{
    DEFAULT_MAX_STEPS, Direction, EdgeType, HopPattern, MAX_BYTES, MAX_STEPS, NodePattern, PathPattern, PatternError,
    Property,
};
use crate::lex::Cursor;
use std::collections::BTreeSet;

/// Parses a complete pattern.
pub(super) fn parse_pattern(text: &str) -> Result<PathPattern, PatternError> {
    if text.len() > MAX_BYTES {
        let reason = format!("the pattern is {} bytes long; the limit is {MAX_BYTES}", text.len());
        return Err(PatternError { at: MAX_BYTES, reason });
    }
    let mut parser = Parser { cursor: Cursor::new(text), variables: BTreeSet::new() };
    let mut pattern = PathPattern { first: parser.parse_node()?, hops: Vec::new() };
    loop {
        parser.cursor.skip_whitespace();
        let at = parser.cursor.at;
        if parser.cursor.peek().is_none() {
            return Ok(pattern);
        }
        let hop = parser.parse_hop()?;
        pattern.hops.push((hop, parser.parse_node()?));
        if pattern.max_steps() > MAX_STEPS {
            return Err(PatternError { at, reason: format!("the pattern has more than {MAX_STEPS} steps") });
        }
    }
}

struct Parser<'t> {
    cursor: Cursor<'t>,
    variables: BTreeSet<String>,
}

type ParseResult<T> = Result<T, PatternError>;

impl Parser<'_> {
    fn error<T>(&self, at: usize, reason: impl Into<String>) -> ParseResult<T> {
        Err(PatternError { at, reason: reason.into() })
    }

    /// Returns an error at the cursor that states what was expected and which character was found.
    fn expected_error<T>(&self, what: &str) -> ParseResult<T> {
        let found = self.cursor.peek().map_or_else(|| "the end".to_owned(), |c| format!("{c:?}"));
        self.error(self.cursor.at, format!("expected {what}, found {found}"))
    }

    fn require(&mut self, token: &str) -> ParseResult<()> {
        self.cursor.skip_whitespace();
        if self.cursor.eat(token) { Ok(()) } else { self.expected_error(&format!("{token:?}")) }
    }

    fn parse_node(&mut self) -> ParseResult<NodePattern> {
        self.cursor.skip_whitespace();
        match self.cursor.peek() {
            Some('(') => self.parse_cypher_node(),
            Some(c) if c.is_ascii_alphanumeric() || c == '*' => self.parse_short_node(),
            _ => self.expected_error("a node, such as (:Pod) or pod/shop/web-0"),
        }
    }

    /// `(variable:Label {name: "value"})`
    fn parse_cypher_node(&mut self) -> ParseResult<NodePattern> {
        self.cursor.eat("(");
        self.cursor.skip_whitespace();
        let mut node = NodePattern { variable: self.parse_variable()?, ..NodePattern::default() };
        self.cursor.skip_whitespace();
        if self.cursor.eat(":") {
            self.cursor.skip_whitespace();
            let at = self.cursor.at;
            let Some(label) = self.parse_identifier()? else { return self.expected_error("a kind") };
            self.set_kind(&mut node, at, &label)?;
            self.cursor.skip_whitespace();
            if self.cursor.peek() == Some(':') {
                return self.error(self.cursor.at, "an object has one kind");
            }
        }
        self.cursor.skip_whitespace();
        if self.cursor.eat("{") {
            self.parse_properties(&mut node)?;
        }
        self.require(")")?;
        Ok(node)
    }

    /// Sets the kind; its group, if stated, is a property.
    fn set_kind(&self, node: &mut NodePattern, at: usize, label: &str) -> ParseResult<()> {
        let (kind, group) = label.split_once('.').map_or((label, None), |(kind, group)| (kind, Some(group)));
        if kind.is_empty() {
            return self.error(at, "the kind is empty");
        }
        node.label = Some(kind.to_owned());
        group.into_iter().for_each(|group| {
            node.set(Property::ApiGroup, group.to_owned());
        });
        Ok(())
    }

    fn parse_properties(&mut self, node: &mut NodePattern) -> ParseResult<()> {
        self.cursor.skip_whitespace();
        if self.cursor.eat("}") {
            return Ok(());
        }
        loop {
            self.cursor.skip_whitespace();
            let at = self.cursor.at;
            let Some(name) = self.parse_identifier()? else { return self.expected_error("a property") };
            let Some(property) = Property::ALL.into_iter().find(|property| property.name() == name) else {
                let names = Property::ALL.map(Property::name).join(", ");
                return self.error(at, format!("unknown property {name:?}; properties are {names}"));
            };
            self.require(":")?;
            self.cursor.skip_whitespace();
            let value = self.parse_string()?;
            if !node.set(property, value) {
                return self.error(at, format!("the property {name} is stated twice"));
            }
            self.cursor.skip_whitespace();
            if !self.cursor.eat(",") {
                return self.require("}");
            }
        }
    }

    /// `KIND`, `KIND/NAME`, `KIND/NAMESPACE/NAME` or `*`. Ends at whitespace, because names may contain dashes.
    fn parse_short_node(&mut self) -> ParseResult<NodePattern> {
        let start = self.cursor.at;
        while self.cursor.peek().is_some_and(|c| !c.is_whitespace()) {
            self.cursor.bump();
        }
        let text = self.cursor.text_since(start);
        let mut node = NodePattern::default();
        if text == "*" {
            return Ok(node);
        }
        if let Some(arrow) = text.find(['<', '>', '[', '(']) {
            let end = text[..arrow].trim_end_matches('-').len();
            let reason = "expected a space between a node and an arrow, as in pod --> service";
            return self.error(start + end, reason);
        }
        if let Some(star) = text.find(['*', '?']) {
            let reason = "a reference cannot contain globs; use a query, such as (:Pod {q: \"name:web-*\"})";
            return self.error(start + star, reason);
        }
        let (kind, namespace, name) = match text.split('/').collect::<Vec<_>>().as_slice() {
            [kind] => (*kind, None, None),
            [kind, name] => (*kind, None, Some(*name)),
            [kind, namespace, name] => (*kind, Some(*namespace), Some(*name)),
            _ => return self.error(start, format!("{text:?} is not KIND, KIND/NAME or KIND/NAMESPACE/NAME")),
        };
        if name.is_some_and(str::is_empty) {
            return self.error(start, format!("{text:?} has an empty name"));
        }
        self.set_kind(&mut node, start, kind)?;
        let properties = [(Property::Namespace, namespace), (Property::Name, name)];
        for (property, value) in properties {
            value.filter(|value| !value.is_empty()).into_iter().for_each(|value| {
                node.set(property, value.to_owned());
            });
        }
        Ok(node)
    }

    /// `-[:TYPE*1..3]->` or `-TYPE*1..3->`, in either direction or without one.
    fn parse_hop(&mut self) -> ParseResult<HopPattern> {
        let to_left = self.cursor.eat("<");
        if !self.cursor.eat("-") {
            return self.expected_error("an arrow, such as -[:OWNS]-> or <-USES-");
        }
        let mut hop = HopPattern {
            variable: None,
            types: BTreeSet::new(),
            direction: Direction::Both,
            min_steps: 1,
            max_steps: 1,
        };
        self.cursor.skip_whitespace();
        if self.cursor.eat("[") {
            self.cursor.skip_whitespace();
            hop.variable = self.parse_variable()?;
            self.cursor.skip_whitespace();
            if self.cursor.eat(":") {
                self.parse_types(&mut hop)?;
            }
            self.parse_steps(&mut hop)?;
            self.require("]")?;
        } else {
            if self.cursor.peek().is_some_and(|c| c.is_ascii_alphabetic()) {
                self.parse_types(&mut hop)?;
            }
            self.parse_steps(&mut hop)?;
        }
        self.require("-")?;
        let to_right = self.cursor.eat(">");
        hop.direction = match (to_left, to_right) {
            (true, false) => Direction::In,
            (false, true) => Direction::Out,
            _ => Direction::Both,
        };
        Ok(hop)
    }

    /// `OWNS|USES`
    fn parse_types(&mut self, hop: &mut HopPattern) -> ParseResult<()> {
        loop {
            self.cursor.skip_whitespace();
            let at = self.cursor.at;
            let Some(name) = self.parse_identifier()? else { return self.expected_error("a type, such as OWNS") };
            match name.parse::<EdgeType>() {
                Ok(edge) => hop.types.insert(edge),
                Err(error) => return self.error(at, error.to_string()),
            };
            self.cursor.skip_whitespace();
            if !self.cursor.eat("|") {
                return Ok(());
            }
            // Older versions of openCypher repeat the colon: `:OWNS|:USES`.
            self.cursor.skip_whitespace();
            self.cursor.eat(":");
        }
    }

    /// `*`, `*2`, `*1..3`, `*..3` or `*2..`
    fn parse_steps(&mut self, hop: &mut HopPattern) -> ParseResult<()> {
        self.cursor.skip_whitespace();
        let at = self.cursor.at;
        if !self.cursor.eat("*") {
            return Ok(());
        }
        let min = self.parse_number()?;
        self.cursor.skip_whitespace();
        (hop.min_steps, hop.max_steps) = match (min, self.cursor.eat("..")) {
            (None, false) => (1, DEFAULT_MAX_STEPS),
            (Some(exactly), false) => (exactly, exactly),
            (min, true) => {
                let min = min.unwrap_or(1);
                (min, self.parse_number()?.unwrap_or(DEFAULT_MAX_STEPS.max(min)))
            }
        };
        if hop.min_steps > hop.max_steps {
            return self.error(at, format!("{} is more than {}", hop.min_steps, hop.max_steps));
        }
        if hop.max_steps == 0 || hop.max_steps > MAX_STEPS {
            return self.error(at, format!("a hop has 1 to {MAX_STEPS} steps"));
        }
        Ok(())
    }

    fn parse_number(&mut self) -> ParseResult<Option<u8>> {
        self.cursor.skip_whitespace();
        let start = self.cursor.at;
        while self.cursor.peek().is_some_and(|c| c.is_ascii_digit()) {
            self.cursor.bump();
        }
        match self.cursor.text_since(start) {
            "" => Ok(None),
            digits => match digits.parse() {
                Ok(number) => Ok(Some(number)),
                Err(_) => self.error(start, format!("{digits} steps are more than {MAX_STEPS}")),
            },
        }
    }

    /// A variable, which names one node or hop.
    fn parse_variable(&mut self) -> ParseResult<Option<String>> {
        let at = self.cursor.at;
        let Some(name) = self.parse_identifier()? else { return Ok(None) };
        match self.variables.insert(name.clone()) {
            true => Ok(Some(name)),
            false => self.error(at, format!("the variable {name} is used twice")),
        }
    }

    /// Letters, digits and underscores, or any text in backticks.
    fn parse_identifier(&mut self) -> ParseResult<Option<String>> {
        let start = self.cursor.at;
        if self.cursor.eat("`") {
            let mut name = String::new();
            loop {
                match self.cursor.bump() {
                    None => return self.error(start, "the backtick is not closed"),
                    Some('`') if !self.cursor.eat("`") => break,
                    Some(c) => name.push(c),
                }
            }
            return if name.is_empty() { self.error(start, "the name is empty") } else { Ok(Some(name)) };
        }
        if self.cursor.peek().is_some_and(|c| c.is_ascii_digit()) {
            return Ok(None);
        }
        while self.cursor.peek().is_some_and(|c| c.is_ascii_alphanumeric() || c == '_') {
            self.cursor.bump();
        }
        Ok(Some(self.cursor.text_since(start)).filter(|name| !name.is_empty()).map(str::to_owned))
    }

    /// A string in single or double quotes.
    fn parse_string(&mut self) -> ParseResult<String> {
        let start = self.cursor.at;
        let Some(quote @ ('"' | '\'')) = self.cursor.peek() else { return self.expected_error("a string in quotes") };
        self.cursor.bump();
        let mut value = String::new();
        loop {
            match self.cursor.bump() {
                None => return self.error(start, "the quote is not closed"),
                Some(c) if c == quote => return Ok(value),
                Some('\\') => match self.cursor.bump() {
                    Some('n') => value.push('\n'),
                    Some('r') => value.push('\r'),
                    Some('t') => value.push('\t'),
                    Some(c @ ('"' | '\'' | '\\' | '`')) => value.push(c),
                    _ => return self.error(self.cursor.at.saturating_sub(1), "unknown escape"),
                },
                Some(c) => value.push(c),
            }
        }
    }
}
