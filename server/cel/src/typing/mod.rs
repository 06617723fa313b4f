//! Static types and costs of expressions, with cel-go's rules and messages.
//!
//! [`check`] parses an expression and reports type errors. The resulting [`Checked`] has the expression's type, the
//! variables it reads, and its maximum cost. Pure. Used by the validation of CRD rules and admission policies.

mod calls;
mod checker;
mod cost;
mod declared;
mod formatted;
mod functions;
pub(super) mod lexer;
mod macros;
mod parser;
mod syntax;
mod types;

use std::collections::BTreeMap;

pub use declared::{Declared, Objects};
pub(super) use parser::RESERVED;
pub use types::Type;

use checker::Facts;
use parser::Unreadable;
use syntax::{Expr, Node, shown};

/// Declarations for an expression, and whether it can create patches.
#[derive(Debug, Clone, Default)]
pub struct Names {
    pub variables: BTreeMap<String, Type>,
    pub objects: Objects,
    pub patches: bool,
}

impl Names {
    /// Declares a variable and the objects it contains.
    pub fn add(&mut self, name: &str, declared: &Declared) {
        self.variables.insert(name.to_owned(), declared.of.clone());
        declared.objects(&mut self.objects);
    }

    /// Declares an object; field types are in the notation of errors.
    pub fn add_object(&mut self, name: &str, fields: &[(&str, &str)]) {
        let fields = fields.iter().filter_map(|(field, of)| Some(((*field).to_owned(), functions::written(of)?)));
        self.objects.insert(name.into(), fields.collect());
    }
}

/// Limit of cel-go.
const MAX_DEPTH: usize = 250;

/// An expression without type errors.
#[derive(Debug)]
pub struct Checked {
    node: Node,
    facts: Facts,
    depth: usize,
}

/// Checks an expression; errors are formatted like those of cel-go.
pub fn check(source: &str, names: &Names) -> Result<Checked, String> {
    let depth = super::bounds::check(source)?;
    super::deep(depth, || {
        let parsed = parser::parse(source);
        if let Err(Unreadable::Issue(issue)) = parsed {
            return Err(shown(source, vec![issue]));
        }
        // The evaluating parser has better syntax errors.
        super::parse_within(source)?;
        let unreadable = || super::syntax_error(source, (1, 1), "Syntax error: expression cannot be parsed");
        let (node, count) = parsed.map_err(|_| unreadable())?;
        if node.depth() > MAX_DEPTH {
            return Err("ERROR: <input>:-1:0: max recursion depth exceeded".to_owned());
        }
        let facts = checker::check(&node, count, names).map_err(|issues| shown(source, issues))?;
        let mut issues = checker::literals(&node, &facts, &super::is_literal);
        issues.extend(formatted::issues(&node, &facts));
        if !issues.is_empty() {
            return Err(shown(source, issues));
        }
        Ok(Checked { node, facts, depth })
    })
}

impl Checked {
    pub fn gives(&self) -> &Type {
        &self.facts.types[self.node.id]
    }

    pub fn reads(&self, variable: &str) -> bool {
        self.facts.reads.contains(variable)
    }

    /// Maximum cost in steps over values of `root`.
    pub fn cost(&self, root: &Declared) -> u64 {
        super::deep(self.depth, || cost::estimate(&self.node, &self.facts, root).most)
    }
}

impl Drop for Checked {
    fn drop(&mut self) {
        let nothing = Node { id: 0, at: 0, expr: Expr::List { items: Vec::new(), optional: Vec::new() } };
        let node = std::mem::replace(&mut self.node, nothing);
        super::deep(self.depth, || drop(node));
    }
}

#[cfg(test)]
mod tests;
