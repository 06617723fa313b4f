//! Errors of constant expressions that cel-go finds when it instantiates a program: invalid conversions of literals,
//! and invalid patterns.

use crowsnest_schema::go_regexp_errors;
use kube::core::cel::cel::common::ast::{CallExpr, EntryExpr, Expr, IdedExpr, LiteralValue, operators};

use super::{Budget, Failure, Program, bounds, instrument, parse_expression, with_base_scope, with_deep_stack};

/// Conversion functions, including those to types, which never fail.
const CONVERSIONS: &[&str] =
    &["bool", "bytes", "double", "duration", "dyn", "int", "string", "timestamp", "type", "uint"];

/// Checks if a valid expression can be instantiated as a program.
pub fn instantiate(source: &str) -> Result<(), String> {
    let depth = bounds::check(source)?;
    with_deep_stack(depth, || check_constant(&parse_expression(source)?).map(drop))
}

/// Returns whether the expression is constant. Fails if the evaluation of a constant part fails.
fn check_constant(expr: &IdedExpr) -> Result<bool, String> {
    match &expr.expr {
        Expr::Literal(_) => Ok(true),
        Expr::Ident(_) | Expr::Unspecified => Ok(false),
        Expr::Select(select) => check_constant(&select.operand).map(|_| false),
        Expr::List(list) => check_all(list.elements.iter()),
        Expr::Map(map) => check_all(map.entries.iter().flat_map(|entry| entry_parts(&entry.expr))),
        Expr::Struct(object) => {
            check_all(object.entries.iter().flat_map(|entry| entry_parts(&entry.expr))).map(|_| false)
        }
        Expr::Comprehension(fold) => {
            let fold = [&fold.accu_init, &fold.iter_range, &fold.loop_cond, &fold.loop_step, &fold.result];
            check_all(fold.into_iter()).map(|_| false)
        }
        Expr::Call(call_expr) => check_call(expr, call_expr),
    }
}

fn entry_parts(entry: &EntryExpr) -> Vec<&IdedExpr> {
    match entry {
        EntryExpr::MapEntry(entry) => vec![&entry.key, &entry.value],
        EntryExpr::StructField(field) => vec![&field.value],
    }
}

fn check_all<'e>(mut parts: impl Iterator<Item = &'e IdedExpr>) -> Result<bool, String> {
    parts.try_fold(true, |all_constant, part| Ok(check_constant(part)? && all_constant))
}

fn check_call(expr: &IdedExpr, call_expr: &CallExpr) -> Result<bool, String> {
    let target = call_expr.target.as_deref();
    let is_constant = check_all(target.into_iter().chain(&call_expr.args))?;
    let name = call_expr.func_name.as_str();
    if matches!(name, "find" | "findAll" | "matches")
        && target.is_some()
        && let Some(problem) = call_expr.args.first().and_then(string_literal).and_then(go_regexp_errors::pattern_error)
    {
        return Err(problem);
    }
    if !is_constant || target.is_some() || call_expr.args.len() != 1 {
        return Ok(false);
    }
    if CONVERSIONS.contains(&name) {
        evaluate(expr)?;
        return Ok(true);
    }
    // A negated constant is a constant: the sign of a number is parsed as an operator.
    Ok(name == operators::NEGATE)
}

/// A string literal, possibly converted by `dyn`.
fn string_literal(expr: &IdedExpr) -> Option<&str> {
    match &expr.expr {
        Expr::Literal(LiteralValue::String(text)) => Some(text.inner()),
        Expr::Call(call_expr) if call_expr.func_name == "dyn" => call_expr.args.first().and_then(string_literal),
        _ => None,
    }
}

fn evaluate(expr: &IdedExpr) -> Result<(), String> {
    let expression = instrument::instrument(expr.clone(), false)?;
    let program = Program { cost: instrument::base_cost(expr), expression, depth: 0, kinds: Vec::new() };
    match with_base_scope(|base| program.execute(base, &mut Budget::for_rules())) {
        Err(Failure::Evaluation(reason)) => Err(reason),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("int('x') == 1", "type conversion error from 'string' to 'int'")]
    #[case("[1].all(i, i == int('x'))", "type conversion error from 'string' to 'int'")]
    #[case("[1, int('x')] == [1]", "type conversion error from 'string' to 'int'")]
    #[case("int(1e30) == 1", "integer overflow")]
    #[case("uint(-1) == 1u", "unsigned integer overflow")]
    #[case("uint('-1') == 1u", "type conversion error from 'string' to 'uint'")]
    #[case("double('x') == 1.0", "type conversion error from 'string' to 'double'")]
    #[case("bool('yes')", "type conversion error from 'string' to 'bool'")]
    #[case("string(b'\\xff') == ''", "invalid UTF-8 in bytes, cannot convert to string")]
    #[case("self.find('[') == ''", "error parsing regexp: missing closing ]: `[`")]
    #[case("self.matches(dyn('(')) == ''", "error parsing regexp: missing closing ): `(`")]
    fn invalid_constants_are_rejected(#[case] source: &str, #[case] expected: &str) {
        assert_eq!(instantiate(source), Err(expected.to_owned()));
    }

    #[rstest]
    #[case("int('12') == 12")]
    #[case("int(self) == 12")]
    #[case("1 / 0 == 1")]
    #[case("quantity('x') == quantity('1')")]
    #[case("self.find('a') == ''")]
    fn non_constant_errors_are_not_reported(#[case] source: &str) {
        assert_eq!(instantiate(source), Ok(()));
    }
}
