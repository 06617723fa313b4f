//! Macro expansion in the form of cel-go, on which costs and types depend. Has no side effects.

use super::parser::Parser;
use super::syntax::{Expr, Fold, Issue, Literal, Node};

/// Accumulator variable of loops.
pub(super) const RESULT: &str = "@result";
const UNUSED_VARIABLE: &str = "#unused";
const OPTIONAL_TARGET: &str = "@target";
const SORT_INPUT: &str = "@__sortBy_input__";

type ExpandResult = Result<Node, Issue>;

/// Expands a function call if it is a macro.
pub(super) fn expand_function(parser: &mut Parser, at: usize, name: String, mut args: Vec<Node>) -> ExpandResult {
    if name == "has" && args.len() == 1 {
        let position = args[0].at;
        return match args.remove(0).expr {
            Expr::Select { operand, field, .. } => Ok(parser.node(at, Expr::Select { operand, field, test: true })),
            _ => Err(Issue { at: position, text: "invalid argument to has() macro".to_owned() }),
        };
    }
    Ok(parser.node(at, Expr::Call { name, target: None, args }))
}

/// Expands a method call if it is a macro.
pub(super) fn expand_method(
    parser: &mut Parser,
    at: usize,
    name: String,
    target: Node,
    args: Vec<Node>,
) -> ExpandResult {
    let mut expander = MacroExpander { parser, at };
    match (name.as_str(), args.len()) {
        ("all" | "exists" | "exists_one" | "existsOne", 2 | 3) => expander.expand_quantifier(&name, target, args),
        ("map", 2 | 3) => expander.expand_map(target, args),
        ("filter", 2) => expander.expand_filter(target, args),
        ("transformList", 3 | 4) => expander.expand_transform(target, args, Transform::List),
        ("transformMap", 3 | 4) => expander.expand_transform(target, args, Transform::Map),
        ("transformMapEntry", 3 | 4) => expander.expand_transform(target, args, Transform::Entry),
        ("optMap" | "optFlatMap", 2) => expander.expand_optional_map(&name, target, args),
        ("sortBy", 2) => expander.expand_sort_by(target, args),
        _ => Ok(parser.node(at, Expr::Call { name, target: Some(Box::new(target)), args })),
    }
}

/// Result type of a transforming loop, to which each iteration adds.
#[derive(Clone, Copy)]
enum Transform {
    List,
    Map,
    Entry,
}

struct MacroExpander<'a> {
    parser: &'a mut Parser,
    at: usize,
}

impl MacroExpander<'_> {
    fn node(&mut self, expr: Expr) -> Node {
        self.parser.node(self.at, expr)
    }

    fn name(&mut self, name: &str) -> Node {
        self.node(Expr::Name(name.to_owned()))
    }

    fn literal(&mut self, literal: Literal) -> Node {
        self.node(Expr::Literal(literal))
    }

    fn list(&mut self, items: Vec<Node>) -> Node {
        self.node(Expr::List { items, optional: Vec::new() })
    }

    fn call(&mut self, name: &str, args: Vec<Node>) -> Node {
        self.parser.call(self.at, name, args)
    }

    fn method(&mut self, target: Node, name: &str, args: Vec<Node>) -> Node {
        self.node(Expr::Call { name: name.to_owned(), target: Some(Box::new(target)), args })
    }

    fn variable(&self, node: &Node, error: &str) -> Result<String, Issue> {
        match &node.expr {
            Expr::Name(name) if name == RESULT || name == "__result__" => {
                let text = "iteration variable overwrites accumulator variable";
                Err(Issue { at: node.at, text: text.to_owned() })
            }
            Expr::Name(name) => Ok(name.clone()),
            _ => Err(Issue { at: node.at, text: error.to_owned() }),
        }
    }

    /// Names of the variables of a loop over pairs.
    fn pair_variables(&self, first: &Node, second: &Node) -> Result<(String, Option<String>), Issue> {
        const NAME: &str = "argument must be an identifier";
        let (one, two) = (self.variable(first, NAME)?, self.variable(second, NAME)?);
        if one == two {
            return Err(Issue { at: second.at, text: format!("duplicate variable name: {one}") });
        }
        Ok((one, Some(two)))
    }

    fn expand_quantifier(&mut self, name: &str, range: Node, mut args: Vec<Node>) -> ExpandResult {
        let (variable, second) = match args.len() {
            2 => (self.variable(&args[0], "argument must be a simple name")?, None),
            _ => self.pair_variables(&args[0], &args[1])?,
        };
        let body = args.pop().into_iter();
        let with_result = |expander: &mut Self| -> Vec<Node> {
            let result = expander.name(RESULT);
            std::iter::once(result).chain(body.clone()).collect()
        };
        let (init, condition, step, result) = match name {
            "all" => {
                let (init, result) = (self.literal(Literal::Bool(true)), self.name(RESULT));
                let condition = self.call("@not_strictly_false", vec![result]);
                let args = with_result(self);
                (init, condition, self.call("_&&_", args), self.name(RESULT))
            }
            "exists" => {
                let (init, result) = (self.literal(Literal::Bool(false)), self.name(RESULT));
                let not = self.call("!_", vec![result]);
                let condition = self.call("@not_strictly_false", vec![not]);
                let args = with_result(self);
                (init, condition, self.call("_||_", args), self.name(RESULT))
            }
            _ => {
                let (init, condition) = (self.literal(Literal::Int(0)), self.literal(Literal::Bool(true)));
                let (count, one) = (self.name(RESULT), self.literal(Literal::Int(1)));
                let more = self.call("_+_", vec![count, one]);
                let same = self.name(RESULT);
                let args = body.chain([more, same]).collect();
                let step = self.call("_?_:_", args);
                let (found, one) = (self.name(RESULT), self.literal(Literal::Int(1)));
                (init, condition, step, self.call("_==_", vec![found, one]))
            }
        };
        Ok(self.fold(Fold { range, variable, second, accumulator: RESULT.to_owned(), init, condition, step, result }))
    }

    fn fold(&mut self, fold: Fold) -> Node {
        self.node(Expr::Fold(Box::new(fold)))
    }

    /// Builds a loop over a complete range with an accumulator.
    fn accumulate(
        &mut self,
        range: Node,
        (variable, second): (String, Option<String>),
        init: Node,
        step: Node,
    ) -> Node {
        let condition = self.literal(Literal::Bool(true));
        let result = self.name(RESULT);
        self.fold(Fold { range, variable, second, accumulator: RESULT.to_owned(), init, condition, step, result })
    }

    /// Makes the step conditional on the filter.
    fn apply_filter(&mut self, filter: Option<Node>, step: Node) -> Node {
        match filter {
            Some(filter) => {
                let same = self.name(RESULT);
                self.call("_?_:_", vec![filter, step, same])
            }
            None => step,
        }
    }

    fn append(&mut self, item: Node) -> Node {
        let (result, list) = (self.name(RESULT), self.list(vec![item]));
        self.call("_+_", vec![result, list])
    }

    fn expand_map(&mut self, range: Node, args: Vec<Node>) -> ExpandResult {
        let variable = self.variable(&args[0], "argument is not an identifier")?;
        let mut args: Vec<Node> = args.into_iter().skip(1).collect();
        let Some(transform) = args.pop() else { return Ok(range) };
        let init = self.list(Vec::new());
        let step = self.append(transform);
        let step = self.apply_filter(args.pop(), step);
        Ok(self.accumulate(range, (variable, None), init, step))
    }

    fn expand_filter(&mut self, range: Node, mut args: Vec<Node>) -> ExpandResult {
        let variable = self.variable(&args[0], "argument is not an identifier")?;
        let filter = args.pop();
        let Some(item) = args.pop() else { return Ok(range) };
        let init = self.list(Vec::new());
        let step = self.append(item);
        let step = self.apply_filter(filter, step);
        Ok(self.accumulate(range, (variable, None), init, step))
    }

    fn expand_transform(&mut self, range: Node, args: Vec<Node>, kind: Transform) -> ExpandResult {
        let pair = self.pair_variables(&args[0], &args[1])?;
        let mut args: Vec<Node> = args.into_iter().skip(2).collect();
        let Some(transform) = args.pop() else { return Ok(range) };
        let (init, step) = match kind {
            Transform::List => (self.list(Vec::new()), self.append(transform)),
            Transform::Map => {
                let (result, key) = (self.name(RESULT), self.name(&pair.0));
                let step = self.call("cel.@mapInsert", vec![result, key, transform]);
                (self.node(Expr::Map(Vec::new())), step)
            }
            Transform::Entry => {
                let result = self.name(RESULT);
                let step = self.call("cel.@mapInsert", vec![result, transform]);
                (self.node(Expr::Map(Vec::new())), step)
            }
        };
        let step = self.apply_filter(args.pop(), step);
        Ok(self.accumulate(range, pair, init, step))
    }

    /// Binds a name to a value, as a loop without iterations.
    fn bind(&mut self, name: &str, value: Node, result: Node) -> Node {
        let (range, condition, step) = (self.list(Vec::new()), self.literal(Literal::Bool(false)), self.name(name));
        let (variable, accumulator) = (UNUSED_VARIABLE.to_owned(), name.to_owned());
        self.fold(Fold { range, variable, second: None, accumulator, init: value, condition, step, result })
    }

    fn expand_optional_map(&mut self, name: &str, target: Node, mut args: Vec<Node>) -> ExpandResult {
        let Expr::Name(variable) = args[0].expr.clone() else {
            let text = format!("{name}() variable name must be a simple identifier");
            return Err(Issue { at: args[0].at, text });
        };
        let Some(body) = args.pop() else { return Ok(target) };
        let (bound_name, unbound_target) = match &target.expr {
            Expr::Name(name) => (name.clone(), None),
            _ => (OPTIONAL_TARGET.to_owned(), Some(target)),
        };
        let has_value = self.name(&bound_name);
        let has_value = self.method(has_value, "hasValue", Vec::new());
        let value = self.name(&bound_name);
        let value = self.method(value, "value", Vec::new());
        let mut some = self.bind(&variable, value, body);
        if name == "optMap" {
            some = self.call("optional.of", vec![some]);
        }
        let none = self.call("optional.none", Vec::new());
        let result = self.call("_?_:_", vec![has_value, some, none]);
        Ok(match unbound_target {
            Some(target) => self.bind(OPTIONAL_TARGET, target, result),
            None => result,
        })
    }

    fn expand_sort_by(&mut self, target: Node, args: Vec<Node>) -> ExpandResult {
        if matches!(target.expr, Expr::Literal(_) | Expr::Map(_) | Expr::Object { .. }) {
            let text = "sortBy can only be applied to a list, identifier, comprehension, call or select expression";
            return Err(Issue { at: target.at, text: text.to_owned() });
        }
        let input = self.name(SORT_INPUT);
        let keys = self.expand_map(input, args)?;
        let input = self.name(SORT_INPUT);
        let result = self.method(input, "@sortByAssociatedKeys", vec![keys]);
        Ok(self.bind(SORT_INPUT, target, result))
    }
}
