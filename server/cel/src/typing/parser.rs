//! Parser: converts an expression to nodes with positions, as in cel-go, and expands macros by [`super::macros`].
//!
//! The parser of the `cel` crate, which compiles the expression for evaluation, checks the syntax as well and reports its
//! errors.

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
pub(super) enum ParseError {
    Syntax,
    Issue(Issue),
}

type ParseResult<T> = Result<T, ParseError>;

pub(super) struct Parser {
    tokens: Vec<PositionedToken>,
    position: usize,
    pub(super) next_id: usize,
}

/// Parses an expression; returns its root node and the number of node IDs.
pub(super) fn parse(source: &str) -> ParseResult<(Node, usize)> {
    let tokens = tokenize(source).ok_or(ParseError::Syntax)?;
    let mut parser = Parser { tokens, position: 0, next_id: 0 };
    let node = parser.expression()?;
    match parser.peek() {
        Token::End => Ok((node, parser.next_id)),
        _ => Err(ParseError::Syntax),
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
        &self.tokens[self.position.min(self.tokens.len() - 1)].token
    }

    fn at(&self) -> usize {
        self.tokens[self.position.min(self.tokens.len() - 1)].at
    }

    fn is_symbol_ahead(&self, ahead: usize, symbol: &'static str) -> bool {
        self.tokens.get(self.position + ahead).is_some_and(|next| next.token == Token::Symbol(symbol))
    }

    /// Consumes this symbol if it is next, and returns its position.
    fn take(&mut self, symbol: &'static str) -> Option<usize> {
        let at = self.at();
        self.is_symbol_ahead(0, symbol).then(|| {
            self.position += 1;
            at
        })
    }

    fn expect(&mut self, symbol: &'static str) -> ParseResult<usize> {
        self.take(symbol).ok_or(ParseError::Syntax)
    }

    fn name(&mut self) -> ParseResult<String> {
        let Token::Name(name) = self.peek().clone() else { return Err(ParseError::Syntax) };
        self.position += 1;
        Ok(name)
    }

    fn expression(&mut self) -> ParseResult<Node> {
        let condition = self.disjunction()?;
        let Some(at) = self.take("?") else { return Ok(condition) };
        let yes = self.disjunction()?;
        self.expect(":")?;
        let no = self.expression()?;
        Ok(self.call(at, "_?_:_", vec![condition, yes, no]))
    }

    fn disjunction(&mut self) -> ParseResult<Node> {
        self.chain("||", "_||_", Self::conjunction)
    }

    fn conjunction(&mut self) -> ParseResult<Node> {
        self.chain("&&", "_&&_", |parser| parser.relation())
    }

    fn chain(
        &mut self,
        symbol: &'static str,
        name: &str,
        term: fn(&mut Self) -> ParseResult<Node>,
    ) -> ParseResult<Node> {
        let (mut terms, mut positions) = (vec![Some(term(self)?)], Vec::new());
        while let Some(at) = self.take(symbol) {
            positions.push(at);
            terms.push(Some(term(self)?));
        }
        self.balance(name, &mut terms, &positions).ok_or(ParseError::Syntax)
    }

    /// Builds a balanced tree of the terms.
    fn balance(&mut self, name: &str, terms: &mut [Option<Node>], positions: &[usize]) -> Option<Node> {
        if positions.is_empty() {
            return terms[0].take();
        }
        let middle = positions.len() / 2;
        let (before, after) = terms.split_at_mut(middle + 1);
        let left = self.balance(name, before, &positions[..middle])?;
        let right = self.balance(name, after, &positions[middle + 1..])?;
        Some(self.call(positions[middle], name, vec![left, right]))
    }

    fn relation(&mut self) -> ParseResult<Node> {
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

    fn sum(&mut self) -> ParseResult<Node> {
        self.operators(Self::product, |token| match token {
            Token::Symbol("+") => Some("_+_"),
            Token::Symbol("-") => Some("_-_"),
            _ => None,
        })
    }

    fn product(&mut self) -> ParseResult<Node> {
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
        operand: fn(&mut Self) -> ParseResult<Node>,
        function: fn(&Token) -> Option<&'static str>,
    ) -> ParseResult<Node> {
        let mut left = operand(self)?;
        loop {
            let at = self.at();
            let Some(name) = function(self.peek()) else { return Ok(left) };
            self.position += 1;
            let right = operand(self)?;
            left = self.call(at, name, vec![left, right]);
        }
    }

    fn unary(&mut self) -> ParseResult<Node> {
        for (symbol, name) in [("!", "!_"), ("-", "-_")] {
            // A single minus before a number is part of the literal.
            if !self.is_symbol_ahead(0, symbol) || (symbol == "-" && self.is_number_ahead()) {
                continue;
            }
            let (at, from) = (self.at(), self.position);
            while self.take(symbol).is_some() {}
            let count = self.position - from;
            let member = self.member()?;
            return Ok(if count.is_multiple_of(2) { member } else { self.call(at, name, vec![member]) });
        }
        self.member()
    }

    fn is_number_ahead(&self) -> bool {
        matches!(self.tokens.get(self.position + 1).map(|next| &next.token), Some(Token::Int(_) | Token::Double))
    }

    fn member(&mut self) -> ParseResult<Node> {
        let mut operand = self.primary()?;
        loop {
            if let Some(at) = self.take(".") {
                if self.take("?").is_some() {
                    let position = self.at();
                    let field = self.name()?;
                    let field = self.node(position, Expr::Literal(Literal::Text(field)));
                    operand = self.call(at, "_?._", vec![operand, field]);
                    continue;
                }
                let name = self.name()?;
                match self.take("(") {
                    Some(open) => {
                        let args = self.arguments()?;
                        operand = macros::expand_method(self, open, name, operand, args).map_err(ParseError::Issue)?;
                    }
                    None => {
                        operand = self.node(at, Expr::Select { operand: Box::new(operand), field: name, test: false })
                    }
                }
            } else if let Some(at) = self.take("[") {
                let name = if self.take("?").is_some() { "_[?_]" } else { "_[_]" };
                let index = self.expression()?;
                self.expect("]")?;
                operand = self.call(at, name, vec![operand, index]);
            } else {
                return Ok(operand);
            }
        }
    }

    fn arguments(&mut self) -> ParseResult<Vec<Node>> {
        let mut args = Vec::new();
        if self.take(")").is_some() {
            return Ok(args);
        }
        loop {
            args.push(self.expression()?);
            if self.take(",").is_none() {
                self.expect(")")?;
                return Ok(args);
            }
        }
    }

    fn primary(&mut self) -> ParseResult<Node> {
        let at = self.at();
        if self.take("(").is_some() {
            let inner = self.expression()?;
            self.expect(")")?;
            return Ok(inner);
        }
        if self.take("[").is_some() {
            return self.list(at);
        }
        if self.take("{").is_some() {
            return self.map(at);
        }
        let has_leading_dot = self.is_symbol_ahead(0, ".");
        match self.peek() {
            Token::Name(name) if matches!(name.as_str(), "true" | "false" | "null") => self.literal(at),
            Token::Name(_) => self.name_or_call(at, false),
            Token::Symbol(".") if has_leading_dot => {
                self.position += 1;
                self.name_or_call(at, true)
            }
            _ => self.literal(at),
        }
    }

    fn literal(&mut self, at: usize) -> ParseResult<Node> {
        let is_negative = self.take("-").is_some();
        let token = self.peek().clone();
        self.position += 1;
        let literal = match token {
            Token::Int(size) => {
                let number = if is_negative { -i128::from(size) } else { i128::from(size) };
                Literal::Int(i64::try_from(number).map_err(|_| ParseError::Syntax)?)
            }
            Token::Double => Literal::Double,
            _ if is_negative => return Err(ParseError::Syntax),
            Token::Uint => Literal::Uint,
            Token::Text(text) => Literal::Text(text),
            Token::Bytes(size) => Literal::Bytes(size),
            Token::Name(name) if name == "null" => Literal::Null,
            Token::Name(name) => Literal::Bool(name == "true"),
            _ => return Err(ParseError::Syntax),
        };
        Ok(self.node(at, Expr::Literal(literal)))
    }

    /// Parses a name, a function call, or an object literal.
    fn name_or_call(&mut self, at: usize, has_leading_dot: bool) -> ParseResult<Node> {
        let dot = if has_leading_dot { "." } else { "" };
        if let Some(length) = self.object_name_length() {
            let mut name = dot.to_owned();
            for _ in 0..length {
                match self.peek() {
                    Token::Name(part) => name.push_str(part),
                    _ => name.push('.'),
                }
                self.position += 1;
            }
            let open = self.expect("{")?;
            return self.object(open, name);
        }
        let name = self.name()?;
        if RESERVED.contains(&name.as_str()) {
            return Err(ParseError::Issue(Issue { at, text: format!("reserved identifier: {name}") }));
        }
        let full = format!("{dot}{name}");
        match self.take("(") {
            Some(open) => {
                let args = self.arguments()?;
                macros::expand_function(self, open, full, args).map_err(ParseError::Issue)
            }
            None => Ok(self.node(at, Expr::Name(full))),
        }
    }

    /// Number of tokens in the name of an object literal, if one is next.
    fn object_name_length(&self) -> Option<usize> {
        let mut length = 1;
        while self.is_symbol_ahead(length, ".")
            && matches!(self.tokens.get(self.position + length + 1).map(|next| &next.token), Some(Token::Name(_)))
        {
            length += 2;
        }
        self.is_symbol_ahead(length, "{").then_some(length)
    }

    fn list(&mut self, at: usize) -> ParseResult<Node> {
        let (mut items, mut optional) = (Vec::new(), Vec::new());
        while self.take("]").is_none() {
            if self.take("?").is_some() {
                optional.push(items.len());
            }
            items.push(self.expression()?);
            if self.take(",").is_none() {
                self.expect("]")?;
                break;
            }
        }
        Ok(self.node(at, Expr::List { items, optional }))
    }

    fn map(&mut self, at: usize) -> ParseResult<Node> {
        let mut entries = Vec::new();
        while self.take("}").is_none() {
            let optional = self.take("?").is_some();
            let key = self.expression()?;
            self.expect(":")?;
            let value = self.expression()?;
            entries.push(Entry { key, value, optional });
            if self.take(",").is_none() {
                self.expect("}")?;
                break;
            }
        }
        Ok(self.node(at, Expr::Map(entries)))
    }

    fn object(&mut self, open: usize, name: String) -> ParseResult<Node> {
        let mut fields = Vec::new();
        while self.take("}").is_none() {
            let optional = self.take("?").is_some();
            let field = self.name()?;
            let at = self.expect(":")?;
            let value = self.expression()?;
            fields.push(Field { at, name: field, value, optional });
            if self.take(",").is_none() {
                self.expect("}")?;
                break;
            }
        }
        Ok(self.node(open, Expr::Object { name, fields }))
    }
}
