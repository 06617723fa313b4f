//! Macro expansion in the form of cel-go, on which costs and types depend. Pure.

use super::parser::Parser;
use super::syntax::{Expr, Fold, Issue, Literal, Node};

/// Accumulator variable of loops.
pub(super) const RESULT: &str = "@result";
const UNUSED: &str = "#unused";
const TARGET: &str = "@target";
const SORTED: &str = "@__sortBy_input__";

type Unfolded = Result<Node, Issue>;

/// A function call, which may be a macro.
pub(super) fn function(make: &mut Parser, at: usize, name: String, mut args: Vec<Node>) -> Unfolded {
    if name == "has" && args.len() == 1 {
        let position = args[0].at;
        return match args.remove(0).expr {
            Expr::Select { of, field, .. } => Ok(make.node(at, Expr::Select { of, field, test: true })),
            _ => Err(Issue { at: position, text: "invalid argument to has() macro".to_owned() }),
        };
    }
    Ok(make.node(at, Expr::Call { name, target: None, args }))
}

/// A method call, which may be a macro.
pub(super) fn method(make: &mut Parser, at: usize, name: String, target: Node, args: Vec<Node>) -> Unfolded {
    let mut unfold = Unfold { make, at };
    match (name.as_str(), args.len()) {
        ("all" | "exists" | "exists_one" | "existsOne", 2 | 3) => unfold.quantified(&name, target, args),
        ("map", 2 | 3) => unfold.mapped(target, args),
        ("filter", 2) => unfold.filtered(target, args),
        ("transformList", 3 | 4) => unfold.transformed(target, args, Transform::List),
        ("transformMap", 3 | 4) => unfold.transformed(target, args, Transform::Map),
        ("transformMapEntry", 3 | 4) => unfold.transformed(target, args, Transform::Entry),
        ("optMap" | "optFlatMap", 2) => unfold.optional(&name, target, args),
        ("sortBy", 2) => unfold.sorted(target, args),
        _ => Ok(make.node(at, Expr::Call { name, target: Some(Box::new(target)), args })),
    }
}

/// Result type of a transforming loop, to which each iteration adds.
#[derive(Clone, Copy)]
enum Transform {
    List,
    Map,
    Entry,
}

struct Unfold<'a> {
    make: &'a mut Parser,
    at: usize,
}

impl Unfold<'_> {
    fn node(&mut self, expr: Expr) -> Node {
        self.make.node(self.at, expr)
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
        self.make.call(self.at, name, args)
    }

    fn method(&mut self, target: Node, name: &str, args: Vec<Node>) -> Node {
        self.node(Expr::Call { name: name.to_owned(), target: Some(Box::new(target)), args })
    }

    fn variable(&self, node: &Node, otherwise: &str) -> Result<String, Issue> {
        match &node.expr {
            Expr::Name(name) if name == RESULT || name == "__result__" => {
                let text = "iteration variable overwrites accumulator variable";
                Err(Issue { at: node.at, text: text.to_owned() })
            }
            Expr::Name(name) => Ok(name.clone()),
            _ => Err(Issue { at: node.at, text: otherwise.to_owned() }),
        }
    }

    /// The variables of a loop over pairs.
    fn pair(&self, first: &Node, second: &Node) -> Result<(String, Option<String>), Issue> {
        const NAME: &str = "argument must be an identifier";
        let (one, two) = (self.variable(first, NAME)?, self.variable(second, NAME)?);
        if one == two {
            return Err(Issue { at: second.at, text: format!("duplicate variable name: {one}") });
        }
        Ok((one, Some(two)))
    }

    fn quantified(&mut self, name: &str, range: Node, mut args: Vec<Node>) -> Unfolded {
        let (variable, second) = match args.len() {
            2 => (self.variable(&args[0], "argument must be a simple name")?, None),
            _ => self.pair(&args[0], &args[1])?,
        };
        let body = args.pop().into_iter();
        let with_result = |unfold: &mut Self| -> Vec<Node> {
            let result = unfold.name(RESULT);
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
                let (counted, one) = (self.name(RESULT), self.literal(Literal::Int(1)));
                let more = self.call("_+_", vec![counted, one]);
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

    /// A loop over a complete range with an accumulator.
    fn growing(&mut self, range: Node, (variable, second): (String, Option<String>), init: Node, step: Node) -> Node {
        let condition = self.literal(Literal::Bool(true));
        let result = self.name(RESULT);
        self.fold(Fold { range, variable, second, accumulator: RESULT.to_owned(), init, condition, step, result })
    }

    /// The step, conditional on the filter.
    fn kept(&mut self, filter: Option<Node>, step: Node) -> Node {
        match filter {
            Some(filter) => {
                let same = self.name(RESULT);
                self.call("_?_:_", vec![filter, step, same])
            }
            None => step,
        }
    }

    fn appended(&mut self, item: Node) -> Node {
        let (result, list) = (self.name(RESULT), self.list(vec![item]));
        self.call("_+_", vec![result, list])
    }

    fn mapped(&mut self, range: Node, args: Vec<Node>) -> Unfolded {
        let variable = self.variable(&args[0], "argument is not an identifier")?;
        let mut args: Vec<Node> = args.into_iter().skip(1).collect();
        let Some(transform) = args.pop() else { return Ok(range) };
        let init = self.list(Vec::new());
        let step = self.appended(transform);
        let step = self.kept(args.pop(), step);
        Ok(self.growing(range, (variable, None), init, step))
    }

    fn filtered(&mut self, range: Node, mut args: Vec<Node>) -> Unfolded {
        let variable = self.variable(&args[0], "argument is not an identifier")?;
        let filter = args.pop();
        let Some(item) = args.pop() else { return Ok(range) };
        let init = self.list(Vec::new());
        let step = self.appended(item);
        let step = self.kept(filter, step);
        Ok(self.growing(range, (variable, None), init, step))
    }

    fn transformed(&mut self, range: Node, args: Vec<Node>, how: Transform) -> Unfolded {
        let pair = self.pair(&args[0], &args[1])?;
        let mut args: Vec<Node> = args.into_iter().skip(2).collect();
        let Some(transform) = args.pop() else { return Ok(range) };
        let (init, step) = match how {
            Transform::List => (self.list(Vec::new()), self.appended(transform)),
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
        let step = self.kept(args.pop(), step);
        Ok(self.growing(range, pair, init, step))
    }

    /// A name bound to a value: a loop without iterations.
    fn bound(&mut self, name: &str, value: Node, result: Node) -> Node {
        let (range, condition, step) = (self.list(Vec::new()), self.literal(Literal::Bool(false)), self.name(name));
        let (variable, accumulator) = (UNUSED.to_owned(), name.to_owned());
        self.fold(Fold { range, variable, second: None, accumulator, init: value, condition, step, result })
    }

    fn optional(&mut self, name: &str, target: Node, mut args: Vec<Node>) -> Unfolded {
        let Expr::Name(variable) = args[0].expr.clone() else {
            let text = format!("{name}() variable name must be a simple identifier");
            return Err(Issue { at: args[0].at, text });
        };
        let Some(body) = args.pop() else { return Ok(target) };
        let (known, whole) = match &target.expr {
            Expr::Name(known) => (known.clone(), None),
            _ => (TARGET.to_owned(), Some(target)),
        };
        let has_value = self.name(&known);
        let has_value = self.method(has_value, "hasValue", Vec::new());
        let value = self.name(&known);
        let value = self.method(value, "value", Vec::new());
        let mut some = self.bound(&variable, value, body);
        if name == "optMap" {
            some = self.call("optional.of", vec![some]);
        }
        let none = self.call("optional.none", Vec::new());
        let result = self.call("_?_:_", vec![has_value, some, none]);
        Ok(match whole {
            Some(target) => self.bound(TARGET, target, result),
            None => result,
        })
    }

    fn sorted(&mut self, target: Node, args: Vec<Node>) -> Unfolded {
        if matches!(target.expr, Expr::Literal(_) | Expr::Map(_) | Expr::Object { .. }) {
            let text = "sortBy can only be applied to a list, identifier, comprehension, call or select expression";
            return Err(Issue { at: target.at, text: text.to_owned() });
        }
        let input = self.name(SORTED);
        let keys = self.mapped(input, args)?;
        let input = self.name(SORTED);
        let result = self.method(input, "@sortByAssociatedKeys", vec![keys]);
        Ok(self.bound(SORTED, target, result))
    }
}
