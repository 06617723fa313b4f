//! Loops and operators in which one value decides (`all`, `exists`, `&&`, `||`), evaluated as in cel-go: an error is
//! kept and discarded if another value decides the result; of two errors the first is reported. [`super::arm`]
//! inserts the calls.

use std::sync::Arc;

use kube::core::cel::cel::common::ast::{ComprehensionExpr, Expr, IdedExpr, operators};
use kube::core::cel::cel::objects::Opaque;
use kube::core::cel::cel::{Context, ExecutionError, FunctionContext, Value as Cel};

use super::macros::{boolean, call, node};

/// `&&` whose operands may fail.
pub(super) const BOTH: &str = "@both";
/// `||` whose operands may fail.
pub(super) const EITHER: &str = "@either";
/// Combines the accumulator with the result of an iteration.
const TURN: &str = "@turn";
/// True if the loop continues.
const UNDECIDED: &str = "@undecided";
/// Final result of the loop.
const SETTLED: &str = "@settled";

type Outcome = Result<Cel, ExecutionError>;

/// The first error of an undecided loop.
#[derive(Debug, Clone, PartialEq)]
struct Held(ExecutionError);

// Never compared: expressions cannot name these values.
impl Eq for Held {}

impl Opaque for Held {
    fn runtime_type_name(&self) -> &str {
        "error"
    }
}

fn held(value: &Cel) -> Option<&ExecutionError> {
    match value {
        Cel::Opaque(opaque) => opaque.downcast_ref::<Held>().map(|held| &held.0),
        _ => None,
    }
}

pub(super) fn add(context: &mut Context<'_>) {
    context.add_function(BOTH, |call: &FunctionContext<'_, '_>| evaluate_operands(call, false));
    context.add_function(EITHER, |call: &FunctionContext<'_, '_>| evaluate_operands(call, true));
    context.add_function(TURN, turn);
    context.add_function(UNDECIDED, |decides: bool, so_far: Cel| -> Outcome {
        Ok(Cel::Bool(so_far != Cel::Bool(decides)))
    });
    context.add_function(SETTLED, |value: Cel| -> Outcome { held(&value).cloned().map_or(Ok(value.clone()), Err) });
}

/// Result of two operands, either of which can decide.
fn evaluate_operands(call: &FunctionContext<'_, '_>, decides: bool) -> Outcome {
    let [left, right] = call.args else { return Err(ExecutionError::NoSuchOverload) };
    let side = |expr| match Cel::resolve(expr, call.ptx) {
        Ok(Cel::Bool(value)) => Ok(value),
        Ok(_) => Err(ExecutionError::NoSuchOverload),
        Err(error) => Err(error),
    };
    let left = side(left);
    if left == Ok(decides) {
        return Ok(Cel::Bool(decides));
    }
    match (left, side(right)) {
        (_, Ok(value)) if value == decides => Ok(Cel::Bool(decides)),
        (left, right) => left.and(right).map(Cel::Bool),
    }
}

/// `@turn(decides, accumulator, body)`, whose body may fail.
fn turn(call: &FunctionContext<'_, '_>) -> Outcome {
    let [decides, so_far, body] = call.args else { return Err(ExecutionError::NoSuchOverload) };
    let (decides, so_far) = (Cel::resolve(decides, call.ptx)?, Cel::resolve(so_far, call.ptx)?);
    let came_to = match Cel::resolve(body, call.ptx) {
        Ok(value @ Cel::Bool(_)) => Ok(value),
        Ok(_) => Err(ExecutionError::NoSuchOverload),
        Err(error) => Err(error),
    };
    match came_to {
        Ok(value) if value == decides => Ok(value),
        Err(error) if held(&so_far).is_none() => Ok(Cel::Opaque(Arc::new(Held(error)))),
        Ok(_) | Err(_) => Ok(so_far),
    }
}

/// The value that ends a loop early; `None` for other loops.
pub(super) fn decides(of: &ComprehensionExpr) -> Option<bool> {
    let Expr::Call(step) = &of.loop_step.expr else { return None };
    let Expr::Call(condition) = &of.loop_cond.expr else { return None };
    let goes_on = condition.func_name == operators::NOT_STRICTLY_FALSE;
    let builds = matches!(step.args.first(), Some(IdedExpr { expr: Expr::Ident(name), .. }) if *name == of.accu_var);
    match step.func_name.as_str() {
        operators::LOGICAL_AND if goes_on && builds => Some(false),
        operators::LOGICAL_OR if goes_on && builds => Some(true),
        _ => None,
    }
}

/// Changes such a loop to keep errors. Its parts have already been rewritten.
pub(super) fn keep_errors(of: &mut ComprehensionExpr, decides: bool) {
    let so_far = || node(Expr::Ident(of.accu_var.clone()));
    let condition = call(UNDECIDED, vec![boolean(decides), so_far()]);
    let result = call(SETTLED, vec![std::mem::take(&mut of.result)]);
    let body = match &mut of.loop_step.expr {
        Expr::Call(step) => step.args.pop().unwrap_or_default(),
        _ => return,
    };
    of.loop_step = call(TURN, vec![boolean(decides), so_far(), body]);
    (of.loop_cond, of.result) = (condition, result);
}
