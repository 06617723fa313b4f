//! Macros of cel-go that the `cel` crate's parser leaves as calls: those of optionals, and loops with two variables.

use std::mem::take;

use kube::core::cel::cel::common::ast::{
    CallExpr, ComprehensionExpr, EntryExpr, Expr, IdedExpr, ListExpr, LiteralValue, MapExpr, operators,
};

use super::functions::{INSERT, PAIRS, PAIRS_TO_MAP, SORT_BY};

/// Accumulator variable of loops; expressions cannot use this name.
const RESULT: &str = "@result";
/// Variable of a loop over pairs.
const PAIR: &str = "@pair";

pub(super) fn node(expr: Expr) -> IdedExpr {
    IdedExpr { id: 0, expr }
}

pub(super) fn call(name: &str, args: Vec<IdedExpr>) -> IdedExpr {
    node(Expr::Call(CallExpr { func_name: name.to_owned(), target: None, args }))
}

fn method(target: IdedExpr, name: &str) -> IdedExpr {
    node(Expr::Call(CallExpr { func_name: name.to_owned(), target: Some(Box::new(target)), args: Vec::new() }))
}

fn ident(name: &str) -> IdedExpr {
    node(Expr::Ident(name.to_owned()))
}

fn list(elements: Vec<IdedExpr>) -> IdedExpr {
    node(Expr::List(ListExpr::new(elements)))
}

pub(super) fn boolean(value: bool) -> IdedExpr {
    node(Expr::Literal(LiteralValue::Boolean(value.into())))
}

pub(super) fn int(value: i64) -> IdedExpr {
    node(Expr::Literal(LiteralValue::Int(value.into())))
}

/// Binds a name to a value in `body`, as a loop without iterations.
fn bind(name: String, value: IdedExpr, body: IdedExpr) -> IdedExpr {
    node(Expr::Comprehension(Box::new(ComprehensionExpr {
        iter_range: list(Vec::new()),
        iter_var: "@none".to_owned(),
        iter_var2: None,
        loop_step: ident(&name),
        accu_var: name,
        accu_init: value,
        loop_cond: boolean(false),
        result: body,
    })))
}

/// Expands all macros of an expression, innermost first.
pub(super) fn expand(expr: IdedExpr) -> Result<IdedExpr, String> {
    let id = expr.id;
    let expr = match expr.expr {
        Expr::Call(mut call_expr) => {
            call_expr.target = call_expr.target.map(|target| expand(*target).map(Box::new)).transpose()?;
            call_expr.args = expand_all(call_expr.args)?;
            return match call_expr.target.is_some() {
                true => expand_call(call_expr),
                false => Ok(IdedExpr { id, expr: Expr::Call(call_expr) }),
            };
        }
        Expr::Select(mut select) => {
            select.operand = Box::new(expand(*select.operand)?);
            Expr::Select(select)
        }
        Expr::List(mut list) => {
            list.elements = expand_all(list.elements)?;
            Expr::List(list)
        }
        Expr::Map(mut map) => {
            for entry in &mut map.entries {
                if let EntryExpr::MapEntry(entry) = &mut entry.expr {
                    entry.key = expand(take(&mut entry.key))?;
                    entry.value = expand(take(&mut entry.value))?;
                }
            }
            Expr::Map(map)
        }
        Expr::Struct(mut object) => {
            for entry in &mut object.entries {
                if let EntryExpr::StructField(field) = &mut entry.expr {
                    field.value = expand(take(&mut field.value))?;
                }
            }
            Expr::Struct(object)
        }
        Expr::Comprehension(mut fold) => {
            for part in
                [&mut fold.iter_range, &mut fold.accu_init, &mut fold.loop_cond, &mut fold.loop_step, &mut fold.result]
            {
                *part = expand(take(part))?;
            }
            Expr::Comprehension(fold)
        }
        other => other,
    };
    Ok(IdedExpr { id, expr })
}

fn expand_all(exprs: Vec<IdedExpr>) -> Result<Vec<IdedExpr>, String> {
    exprs.into_iter().map(expand).collect()
}

/// Expands a method call if it is a macro.
fn expand_call(mut call_expr: CallExpr) -> Result<IdedExpr, String> {
    let is_macro = matches!(
        (call_expr.func_name.as_str(), call_expr.args.len()),
        ("optMap" | "optFlatMap", 2)
            | ("sortBy", 2)
            | (
                "all" | "exists" | "existsOne" | "exists_one" | "transformList" | "transformMap" | "transformMapEntry",
                3
            )
            | ("transformList" | "transformMap" | "transformMapEntry", 4)
    );
    let Some(target) = call_expr.target.take_if(|_| is_macro) else { return Ok(node(Expr::Call(call_expr))) };
    let name = take(&mut call_expr.func_name);
    let mut args = call_expr.args.into_iter();
    let mut next = || args.next().unwrap_or_default();
    if let "optMap" | "optFlatMap" = name.as_str() {
        let (variable, body) = (variable_name(next())?, next());
        return Ok(expand_optional(&name, *target, variable, body));
    }
    if name == "sortBy" {
        let (variable, key) = (variable_name(next())?, next());
        return Ok(expand_sort_by(*target, variable, key));
    }
    let (first, second) = (variable_name(next())?, variable_name(next())?);
    let bodies: Vec<IdedExpr> = args.map(|body| bind_pair(&first, &second, body)).collect();
    Ok(expand_two_variables(&name, *target, bodies))
}

fn variable_name(expr: IdedExpr) -> Result<String, String> {
    match expr.expr {
        Expr::Ident(name) => Ok(name),
        _ => Err("ERROR: <input>:1:1: argument must be a simple name".to_owned()),
    }
}

fn expand_optional(name: &str, target: IdedExpr, variable: String, body: IdedExpr) -> IdedExpr {
    let optional = |method: &str, args: Vec<IdedExpr>| {
        let target = Some(Box::new(ident("optional")));
        node(Expr::Call(CallExpr { func_name: method.to_owned(), target, args }))
    };
    let bound = bind(variable, method(target.clone(), "value"), body);
    let bound = if name == "optMap" { optional("of", vec![bound]) } else { bound };
    call(operators::CONDITIONAL, vec![method(target, "hasValue"), bound, optional("none", Vec::new())])
}

/// Sorts a list by the values of `body` for each element.
fn expand_sort_by(target: IdedExpr, variable: String, body: IdedExpr) -> IdedExpr {
    const INPUT: &str = "@input";
    let result = || ident(RESULT);
    let keys = node(Expr::Comprehension(Box::new(ComprehensionExpr {
        iter_range: ident(INPUT),
        iter_var: variable,
        iter_var2: None,
        accu_var: RESULT.to_owned(),
        accu_init: list(Vec::new()),
        loop_cond: boolean(true),
        loop_step: call(operators::ADD, vec![result(), list(vec![body])]),
        result: result(),
    })));
    bind(INPUT.to_owned(), target, call(SORT_BY, vec![ident(INPUT), keys]))
}

/// Binds two names to the parts of the current pair in `body`.
fn bind_pair(first: &str, second: &str, body: IdedExpr) -> IdedExpr {
    let part = |index: i64| call(operators::INDEX, vec![ident(PAIR), int(index)]);
    bind(first.to_owned(), part(0), bind(second.to_owned(), part(1), body))
}

fn expand_two_variables(name: &str, target: IdedExpr, mut bodies: Vec<IdedExpr>) -> IdedExpr {
    let body = bodies.pop().unwrap_or_default();
    let filter = bodies.pop();
    let result = || ident(RESULT);
    let append = |added: IdedExpr| call(operators::ADD, vec![result(), list(vec![added])]);
    let until_decided = |condition: IdedExpr| call(operators::NOT_STRICTLY_FALSE, vec![condition]);
    let apply_filter = |step: IdedExpr| match filter {
        Some(filter) => call(operators::CONDITIONAL, vec![filter, step, result()]),
        None => step,
    };
    let (init, condition, step, end) = match name {
        "all" => (boolean(true), until_decided(result()), call(operators::LOGICAL_AND, vec![result(), body]), result()),
        "exists" => {
            let condition = until_decided(call(operators::LOGICAL_NOT, vec![result()]));
            (boolean(false), condition, call(operators::LOGICAL_OR, vec![result(), body]), result())
        }
        "existsOne" | "exists_one" => {
            let incremented = call(operators::ADD, vec![result(), int(1)]);
            let step = call(operators::CONDITIONAL, vec![body, incremented, result()]);
            (int(0), boolean(true), step, call(operators::EQUALS, vec![result(), int(1)]))
        }
        "transformList" => (list(Vec::new()), boolean(true), apply_filter(append(body)), result()),
        "transformMapEntry" => {
            let empty = node(Expr::Map(MapExpr { entries: Vec::new() }));
            (empty, boolean(true), apply_filter(call(INSERT, vec![result(), body])), result())
        }
        _ => {
            let key = call(operators::INDEX, vec![ident(PAIR), int(0)]);
            let step = apply_filter(append(list(vec![key, body])));
            (list(Vec::new()), boolean(true), step, call(PAIRS_TO_MAP, vec![result()]))
        }
    };
    node(Expr::Comprehension(Box::new(ComprehensionExpr {
        iter_range: call(PAIRS, vec![target]),
        iter_var: PAIR.to_owned(),
        iter_var2: None,
        accu_var: RESULT.to_owned(),
        accu_init: init,
        loop_cond: condition,
        loop_step: step,
        result: end,
    })))
}
