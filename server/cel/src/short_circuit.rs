//! Short-circuiting operators and loops (`&&`, `||`, `all`, `exists`), evaluated as in cel-go: an error is deferred, and
//! discarded if another value decides the result; of two errors the first is reported. [`super::instrument`]
//! inserts the calls.

use std::sync::Arc;

use kube::core::cel::cel::common::ast::{ComprehensionExpr, Expr, IdedExpr, operators};
use kube::core::cel::cel::objects::Opaque;
use kube::core::cel::cel::{Context, ExecutionError, FunctionContext, Value as Cel};

use super::macros::{boolean, call, node};

/// `&&` whose operands may fail.
pub(super) const AND: &str = "@and";
/// `||` whose operands may fail.
pub(super) const OR: &str = "@or";
/// Combines the accumulator with the result of an iteration.
const ITERATE: &str = "@iterate";
/// True until a value has decided the loop.
const UNDECIDED: &str = "@undecided";
/// Result of the loop: its accumulator, or the deferred error.
const LOOP_RESULT: &str = "@loop_result";

type Outcome = Result<Cel, ExecutionError>;

/// The first error of an undecided loop.
#[derive(Debug, Clone, PartialEq)]
struct DeferredError(ExecutionError);

// Never compared: expressions cannot name these values.
impl Eq for DeferredError {}

impl Opaque for DeferredError {
    fn runtime_type_name(&self) -> &str {
        "error"
    }
}

fn deferred_error(value: &Cel) -> Option<&ExecutionError> {
    match value {
        Cel::Opaque(opaque) => opaque.downcast_ref::<DeferredError>().map(|deferred_error| &deferred_error.0),
        _ => None,
    }
}

pub(super) fn register(context: &mut Context<'_>) {
    context.add_function(AND, |call: &FunctionContext<'_, '_>| evaluate_operands(call, false));
    context.add_function(OR, |call: &FunctionContext<'_, '_>| evaluate_operands(call, true));
    context.add_function(ITERATE, iterate);
    context.add_function(UNDECIDED, |short_circuit: bool, accumulator: Cel| -> Outcome {
        Ok(Cel::Bool(accumulator != Cel::Bool(short_circuit)))
    });
    context.add_function(LOOP_RESULT, |value: Cel| -> Outcome {
        deferred_error(&value).cloned().map_or(Ok(value.clone()), Err)
    });
}

/// Evaluates two operands. `short_circuit` is the value with which either operand determines the result.
fn evaluate_operands(call: &FunctionContext<'_, '_>, short_circuit: bool) -> Outcome {
    let [left, right] = call.args else { return Err(ExecutionError::NoSuchOverload) };
    let side = |expr| match Cel::resolve(expr, call.ptx) {
        Ok(Cel::Bool(value)) => Ok(value),
        Ok(_) => Err(ExecutionError::NoSuchOverload),
        Err(error) => Err(error),
    };
    let left = side(left);
    if left == Ok(short_circuit) {
        return Ok(Cel::Bool(short_circuit));
    }
    match (left, side(right)) {
        (_, Ok(value)) if value == short_circuit => Ok(Cel::Bool(short_circuit)),
        (left, right) => left.and(right).map(Cel::Bool),
    }
}

/// `@iterate(short_circuit, accumulator, body)`, whose body may fail.
fn iterate(call: &FunctionContext<'_, '_>) -> Outcome {
    let [short_circuit, accumulator, body] = call.args else { return Err(ExecutionError::NoSuchOverload) };
    let (short_circuit, accumulator) = (Cel::resolve(short_circuit, call.ptx)?, Cel::resolve(accumulator, call.ptx)?);
    let outcome = match Cel::resolve(body, call.ptx) {
        Ok(value @ Cel::Bool(_)) => Ok(value),
        Ok(_) => Err(ExecutionError::NoSuchOverload),
        Err(error) => Err(error),
    };
    match outcome {
        Ok(value) if value == short_circuit => Ok(value),
        Err(error) if deferred_error(&accumulator).is_none() => Ok(Cel::Opaque(Arc::new(DeferredError(error)))),
        Ok(_) | Err(_) => Ok(accumulator),
    }
}

/// The value that ends a loop early; `None` for other loops.
pub(super) fn short_circuit_value(comprehension: &ComprehensionExpr) -> Option<bool> {
    let Expr::Call(step) = &comprehension.loop_step.expr else { return None };
    let Expr::Call(condition) = &comprehension.loop_cond.expr else { return None };
    let is_short_circuiting = condition.func_name == operators::NOT_STRICTLY_FALSE;
    let uses_accumulator =
        matches!(step.args.first(), Some(IdedExpr { expr: Expr::Ident(name), .. }) if *name == comprehension.accu_var);
    match step.func_name.as_str() {
        operators::LOGICAL_AND if is_short_circuiting && uses_accumulator => Some(false),
        operators::LOGICAL_OR if is_short_circuiting && uses_accumulator => Some(true),
        _ => None,
    }
}

/// Changes a short-circuiting loop to defer errors. Its parts have already been instrumented.
pub(super) fn defer_errors(comprehension: &mut ComprehensionExpr, short_circuit: bool) {
    let accumulator = || node(Expr::Ident(comprehension.accu_var.clone()));
    let condition = call(UNDECIDED, vec![boolean(short_circuit), accumulator()]);
    let result = call(LOOP_RESULT, vec![std::mem::take(&mut comprehension.result)]);
    let body = match &mut comprehension.loop_step.expr {
        Expr::Call(step) => step.args.pop().unwrap_or_default(),
        _ => return,
    };
    comprehension.loop_step = call(ITERATE, vec![boolean(short_circuit), accumulator(), body]);
    (comprehension.loop_cond, comprehension.result) = (condition, result);
}
