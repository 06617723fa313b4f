//! Static types and costs of expressions, with cel-go's rules and messages.
//!
//! [`check`] parses an expression and reports type errors. The resulting [`CheckedExpression`] has the expression's type,
//! the variables that it reads, and its maximum cost. Has no side effects. Used by the validation of CRD rules and
//! admission policies.

mod calls;
mod checker;
mod cost;
mod decl_type;
mod format_checks;
mod functions;
pub(super) mod lexer;
mod macros;
mod parser;
mod syntax;
mod types;

use std::collections::BTreeMap;

pub use decl_type::{DeclType, ObjectTypes};
pub(super) use parser::RESERVED;
pub use types::Type;

use checker::CheckResults;
use parser::ParseError;
use syntax::{Expr, Node, format_issues};

/// Variables and objects that an expression can use.
#[derive(Debug, Clone, Default)]
pub struct Declarations {
    pub variables: BTreeMap<String, Type>,
    pub objects: ObjectTypes,
    /// True if the expression can create objects of patches.
    pub allows_patches: bool,
}

impl Declarations {
    /// Declares a variable and the objects it contains.
    pub fn add(&mut self, name: &str, declared: &DeclType) {
        self.variables.insert(name.to_owned(), declared.cel_type.clone());
        declared.collect_objects(&mut self.objects);
    }

    /// Declares an object. Field types are written as in error messages, such as `list(string)`.
    pub fn add_object(&mut self, name: &str, fields: &[(&str, &str)]) {
        let fields = fields.iter().filter_map(|(field, ty)| Some(((*field).to_owned(), functions::parse_type(ty)?)));
        self.objects.insert(name.into(), fields.collect());
    }
}

/// Maximum depth of an expression, as in cel-go.
const MAX_DEPTH: usize = 250;

/// An expression without type errors.
#[derive(Debug)]
pub struct CheckedExpression {
    node: Node,
    check_results: CheckResults,
    depth: usize,
}

/// Checks an expression; errors are formatted like those of cel-go.
pub fn check(source: &str, declarations: &Declarations) -> Result<CheckedExpression, String> {
    let depth = super::bounds::check(source)?;
    super::with_deep_stack(depth, || {
        let parsed = parser::parse(source);
        if let Err(ParseError::Issue(issue)) = parsed {
            return Err(format_issues(source, vec![issue]));
        }
        // The parser of the `cel` crate reports better syntax errors.
        super::parse_expression(source)?;
        let unreadable = || super::syntax_error(source, (1, 1), "Syntax error: expression cannot be parsed");
        let (node, count) = parsed.map_err(|_| unreadable())?;
        if node.depth() > MAX_DEPTH {
            return Err("ERROR: <input>:-1:0: max recursion depth exceeded".to_owned());
        }
        let check_results =
            checker::check(&node, count, declarations).map_err(|issues| format_issues(source, issues))?;
        let mut issues = checker::check_literals(&node, &check_results, &super::accepts_literal);
        issues.extend(format_checks::check_templates(&node, &check_results));
        if !issues.is_empty() {
            return Err(format_issues(source, issues));
        }
        Ok(CheckedExpression { node, check_results, depth })
    })
}

impl CheckedExpression {
    pub fn result_type(&self) -> &Type {
        &self.check_results.types[self.node.id]
    }

    pub fn reads(&self, variable: &str) -> bool {
        self.check_results.read_variables.contains(variable)
    }

    /// Maximum cost in steps over values of `root`.
    pub fn cost(&self, root: &DeclType) -> u64 {
        super::with_deep_stack(self.depth, || cost::estimate(&self.node, &self.check_results, root).max)
    }
}

impl Drop for CheckedExpression {
    fn drop(&mut self) {
        let nothing = Node { id: 0, at: 0, expr: Expr::List { items: Vec::new(), optional: Vec::new() } };
        let node = std::mem::replace(&mut self.node, nothing);
        super::with_deep_stack(self.depth, || drop(node));
    }
}

#[cfg(test)]
mod tests;
