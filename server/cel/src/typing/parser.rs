//! Parser: converts an expression to nodes with positions, as in cel-go, and expands macros by [`super::macros`].
//!
//! The evaluating parser also checks the syntax and reports its errors.

use super::lexer::{PositionedToken, Token, tokenize};
use super::macros;
use super::syntax::{Entry, Expr, Field, Issue, Literal, Node};

/// Reserved words, which cannot be names.
pub(crate) const RESERVED: &[&str] = &[
    "as",
    "break",
    "const",
    "continue",
    "else",
    "for",
    "function",
    "if",
    "import",
    "let",
    "loop",
    "package",
    "namespace",
    "return",
    "var",
    "void",
    "while",
];

/// Reason why an expression cannot be parsed.
#[derive(Debug)]
pub(super) enum Unreadable {
    Syntax,
    Issue(Issue),
}

type Read<T> = Result<T, Unreadable>;

pub(super) struct Parser {
    tokens: Vec<PositionedToken>,
    now: usize,
    pub(super) next_id: usize,
}

/// Parses an expression; returns its root node and the number of node IDs.
pub(super) fn parse(source: &str) -> Read<(Node, usize)> {
    let tokens = tokenize(source).ok_or(Unreadable::Syntax)?;
    let mut parser = Parser { tokens, now: 0, next_id: 0 };
    let node = parser.expression()?;
    match parser.peek() {
        Token::End => Ok((node, parser.next_id)),
        _ => Err(Unreadable::Syntax),
    }
}

impl Parser {
    pub(super) fn node(&mut self, at: usize, expr: Expr) -> Node {
        self.next_id += 1;
        Node { id: self.next_id - 1, at, expr }
    }

    pub(super) fn call(&mut self, at: usize, name: &str, args: Vec<Node>) -> Node {
        self.node(at, Expr::Call { name: name.to_owned(), target: None, args })
    }

    fn peek(&self) -> &Token {
        &self.tokens[self.now.min(self.tokens.len() - 1)].token
    }

    fn at(&self) -> usize {
        self.tokens[self.now.min(self.tokens.len() - 1)].at
    }

    fn looks(&self, ahead: usize, mark: &'static str) -> bool {
        self.tokens.get(self.now + ahead).is_some_and(|word| word.token == Token::Symbol(mark))
    }

    /// Consumes a token if it is next, and returns its position.
    fn take(&mut self, mark: &'static str) -> Option<usize> {
        let at = self.at();
        self.looks(0, mark).then(|| {
            self.now += 1;
            at
        })
    }

    fn want(&mut self, mark: &'static str) -> Read<usize> {
        self.take(mark).ok_or(Unreadable::Syntax)
    }

    fn name(&mut self) -> Read<String> {
        let Token::Name(name) = self.peek().clone() else { return Err(Unreadable::Syntax) };
        self.now += 1;
        Ok(name)
    }

    fn expression(&mut self) -> Read<Node> {
        let condition = self.any()?;
        let Some(at) = self.take("?") else { return Ok(condition) };
        let yes = self.any()?;
        self.want(":")?;
        let no = self.expression()?;
        Ok(self.call(at, "_?_:_", vec![condition, yes, no]))
    }

    fn any(&mut self) -> Read<Node> {
        self.chain("||", "_||_", Self::all)
    }

    fn all(&mut self) -> Read<Node> {
        self.chain("&&", "_&&_", |parser| parser.relation())
    }

    fn chain(&mut self, mark: &'static str, name: &str, term: fn(&mut Self) -> Read<Node>) -> Read<Node> {
        let (mut terms, mut places) = (vec![Some(term(self)?)], Vec::new());
        while let Some(at) = self.take(mark) {
            places.push(at);
            terms.push(Some(term(self)?));
        }
        self.balanced(name, &mut terms, &places).ok_or(Unreadable::Syntax)
    }

    /// A balanced tree of the terms.
    fn balanced(&mut self, name: &str, terms: &mut [Option<Node>], places: &[usize]) -> Option<Node> {
        if places.is_empty() {
            return terms[0].take();
        }
        let middle = places.len() / 2;
        let (before, after) = terms.split_at_mut(middle + 1);
        let left = self.balanced(name, before, &places[..middle])?;
        let right = self.balanced(name, after, &places[middle + 1..])?;
        Some(self.call(places[middle], name, vec![left, right]))
    }

    fn relation(&mut self) -> Read<Node> {
        self.operators(Self::sum, |token| match token {
            Token::Symbol("<") => Some("_<_"),
            Token::Symbol("<=") => Some("_<=_"),
            Token::Symbol(">") => Some("_>_"),
            Token::Symbol(">=") => Some("_>=_"),
            Token::Symbol("==") => Some("_==_"),
            Token::Symbol("!=") => Some("_!=_"),
            Token::Name(name) if name == "in" => Some("@in"),
            _ => None,
        })
    }

    fn sum(&mut self) -> Read<Node> {
        self.operators(Self::product, |token| match token {
            Token::Symbol("+") => Some("_+_"),
            Token::Symbol("-") => Some("_-_"),
            _ => None,
        })
    }

    fn product(&mut self) -> Read<Node> {
        self.operators(Self::unary, |token| match token {
            Token::Symbol("*") => Some("_*_"),
            Token::Symbol("/") => Some("_/_"),
            Token::Symbol("%") => Some("_%_"),
            _ => None,
        })
    }

    /// Parses left-associative operators of one precedence.
    fn operators(
        &mut self,
        operand: fn(&mut Self) -> Read<Node>,
        function: fn(&Token) -> Option<&'static str>,
    ) -> Read<Node> {
        let mut left = operand(self)?;
        loop {
            let at = self.at();
            let Some(name) = function(self.peek()) else { return Ok(left) };
            self.now += 1;
            let right = operand(self)?;
            left = self.call(at, name, vec![left, right]);
        }
    }

    fn unary(&mut self) -> Read<Node> {
        for (mark, name) in [("!", "!_"), ("-", "-_")] {
            // A single minus before a number is part of the literal.
            if !self.looks(0, mark) || (mark == "-" && self.number_follows()) {
                continue;
            }
            let (at, from) = (self.at(), self.now);
            while self.take(mark).is_some() {}
            let count = self.now - from;
            let member = self.member()?;
            return Ok(if count.is_multiple_of(2) { member } else { self.call(at, name, vec![member]) });
        }
        self.member()
    }

    fn number_follows(&self) -> bool {
        matches!(self.tokens.get(self.now + 1).map(|word| &word.token), Some(Token::Int(_) | Token::Double))
    }

    fn member(&mut self) -> Read<Node> {
        let mut of = self.primary()?;
        loop {
            if let Some(at) = self.take(".") {
                if self.take("?").is_some() {
                    let position = self.at();
                    let field = self.name()?;
                    let field = self.node(position, Expr::Literal(Literal::Text(field)));
                    of = self.call(at, "_?._", vec![of, field]);
                    continue;
                }
                let name = self.name()?;
                match self.take("(") {
                    Some(open) => {
                        let args = self.arguments()?;
                        of = macros::method(self, open, name, of, args).map_err(Unreadable::Issue)?;
                    }
                    None => of = self.node(at, Expr::Select { of: Box::new(of), field: name, test: false }),
                }
            } else if let Some(at) = self.take("[") {
                let name = if self.take("?").is_some() { "_[?_]" } else { "_[_]" };
                let index = self.expression()?;
                self.want("]")?;
                of = self.call(at, name, vec![of, index]);
            } else {
                return Ok(of);
            }
        }
    }

    fn arguments(&mut self) -> Read<Vec<Node>> {
        let mut all = Vec::new();
        if self.take(")").is_some() {
            return Ok(all);
        }
        loop {
            all.push(self.expression()?);
            if self.take(",").is_none() {
                self.want(")")?;
                return Ok(all);
            }
        }
    }

    fn primary(&mut self) -> Read<Node> {
        let at = self.at();
        if self.take("(").is_some() {
            let inner = self.expression()?;
            self.want(")")?;
            return Ok(inner);
        }
        if self.take("[").is_some() {
            return self.list(at);
        }
        if self.take("{").is_some() {
            return self.map(at);
        }
        let leading = self.looks(0, ".");
        match self.peek() {
            Token::Name(name) if matches!(name.as_str(), "true" | "false" | "null") => self.literal(at),
            Token::Name(_) => self.named(at, false),
            Token::Symbol(".") if leading => {
                self.now += 1;
                self.named(at, true)
            }
            _ => self.literal(at),
        }
    }

    fn literal(&mut self, at: usize) -> Read<Node> {
        let negative = self.take("-").is_some();
        let token = self.peek().clone();
        self.now += 1;
        let literal = match token {
            Token::Int(size) => {
                let number = if negative { -i128::from(size) } else { i128::from(size) };
                Literal::Int(i64::try_from(number).map_err(|_| Unreadable::Syntax)?)
            }
            Token::Double => Literal::Double,
            _ if negative => return Err(Unreadable::Syntax),
            Token::Uint => Literal::Uint,
            Token::Text(text) => Literal::Text(text),
            Token::Bytes(size) => Literal::Bytes(size),
            Token::Name(name) if name == "null" => Literal::Null,
            Token::Name(name) => Literal::Bool(name == "true"),
            _ => return Err(Unreadable::Syntax),
        };
        Ok(self.node(at, Expr::Literal(literal)))
    }

    /// Parses a name, a function call, or an object literal.
    fn named(&mut self, at: usize, leading: bool) -> Read<Node> {
        let dot = if leading { "." } else { "" };
        if let Some(length) = self.object_ahead() {
            let mut name = dot.to_owned();
            for _ in 0..length {
                match self.peek() {
                    Token::Name(part) => name.push_str(part),
                    _ => name.push('.'),
                }
                self.now += 1;
            }
            let open = self.want("{")?;
            return self.object(open, name);
        }
        let name = self.name()?;
        if RESERVED.contains(&name.as_str()) {
            return Err(Unreadable::Issue(Issue { at, text: format!("reserved identifier: {name}") }));
        }
        let full = format!("{dot}{name}");
        match self.take("(") {
            Some(open) => {
                let args = self.arguments()?;
                macros::function(self, open, full, args).map_err(Unreadable::Issue)
            }
            None => Ok(self.node(at, Expr::Name(full))),
        }
    }

    /// Number of tokens in the name of an object literal, if one is next.
    fn object_ahead(&self) -> Option<usize> {
        let mut length = 1;
        while self.looks(length, ".")
            && matches!(self.tokens.get(self.now + length + 1).map(|word| &word.token), Some(Token::Name(_)))
        {
            length += 2;
        }
        self.looks(length, "{").then_some(length)
    }

    fn list(&mut self, at: usize) -> Read<Node> {
        let (mut items, mut optional) = (Vec::new(), Vec::new());
        while self.take("]").is_none() {
            if self.take("?").is_some() {
                optional.push(items.len());
            }
            items.push(self.expression()?);
            if self.take(",").is_none() {
                self.want("]")?;
                break;
            }
        }
        Ok(self.node(at, Expr::List { items, optional }))
    }

    fn map(&mut self, at: usize) -> Read<Node> {
        let mut entries = Vec::new();
        while self.take("}").is_none() {
            let optional = self.take("?").is_some();
            let key = self.expression()?;
            self.want(":")?;
            let value = self.expression()?;
            entries.push(Entry { key, value, optional });
            if self.take(",").is_none() {
                self.want("}")?;
                break;
            }
        }
        Ok(self.node(at, Expr::Map(entries)))
    }

    fn object(&mut self, open: usize, name: String) -> Read<Node> {
        let mut fields = Vec::new();
        while self.take("}").is_none() {
            let optional = self.take("?").is_some();
            let field = self.name()?;
            let at = self.want(":")?;
            let value = self.expression()?;
            fields.push(Field { at, name: field, value, optional });
            if self.take(",").is_none() {
                self.want("}")?;
                break;
            }
        }
        Ok(self.node(open, Expr::Object { name, fields }))
    }
}
