//! CEL as used by kube-apiserver: validation rules of CRDs, match conditions, admission policies. Used by
//! `crowsnest-registry` (expressions in admission), `crowsnest-builtin` (their validation) and the CRD rules of
//! `server/kube-apiserver`.
//!
//! The `cel` crate parses and evaluates. Missing features are added by rewriting expressions when they are compiled:
//! [`macros`] that the crate lacks; [`instrument`] adds optional selection, object literals of patches, cost charges per
//! loop iteration, and loops that tolerate errors ([`short_circuit`]). [`kinds`] compares lists that are sets or maps,
//! [`optionals`] corrects the behaviour of optionals, [`constants`] finds errors of constant parts. [`library`]
//! replaces Kubernetes functions whose behaviour in the crate differs. [`bounds`] rejects expressions that could
//! overflow the stack. None of this has side effects, except that [`authorizer`] calls the authorizer of the request.
//! [`typing`] computes type and cost before evaluation.

pub mod authorizer;
mod bounds;
mod budget;
mod constants;
mod functions;
mod instrument;
pub mod json;
mod kinds;
mod library;
mod macros;
mod optionals;
mod rewrite;
mod short_circuit;
pub mod typing;
mod value;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use kube::core::cel::KubeCelExt;
use kube::core::cel::cel::common::ast::IdedExpr;
use kube::core::cel::cel::parser::{ExpressionReferences, Parser};
use kube::core::cel::cel::{Context, ExecutionError, Value as Cel};

pub use budget::Budget;
pub use constants::instantiate;
pub use kinds::ValueKind;
pub use value::to_json;

use crowsnest_schema::go_regexp_errors;

/// Nesting limit of the parser. [`bounds`] checks the expression first.
const MAX_NESTING: u16 = 251;
/// Maximum depth for which the thread's own stack is used.
const SHALLOW_DEPTH: usize = 8;
/// Stack size per level of depth, in bytes: that of a debug build with a margin. Only used pages consume memory.
const STACK_BYTES_PER_LEVEL: usize = 512 << 10;
/// Minimum size of a separate stack, in bytes.
const MIN_STACK_BYTES: usize = 64 << 20;

/// Runs a recursive function with enough stack for the depth of an expression.
fn with_deep_stack<T>(depth: usize, run: impl FnOnce() -> T) -> T {
    if depth > SHALLOW_DEPTH { stacker::grow(MIN_STACK_BYTES.max(depth * STACK_BYTES_PER_LEVEL), run) } else { run() }
}

/// Calls `evaluate` with the base scope, which has all functions and is created once per thread.
pub fn with_base_scope<R>(evaluate: impl FnOnce(&Context<'static>) -> R) -> R {
    thread_local! {
        static BASE: Context<'static> = base_scope();
    }
    BASE.with(evaluate)
}

/// A scope with all functions that Kubernetes provides.
fn base_scope() -> Context<'static> {
    let mut context = Context::default().with_all();
    functions::register(&mut context);
    library::register(&mut context);
    short_circuit::register(&mut context);
    kinds::register(&mut context);
    optionals::register(&mut context);
    authorizer::register(&mut context);
    context
}

/// Parses an expression and expands its macros.
fn parse_expression(source: &str) -> Result<IdedExpr, String> {
    let parser = Parser::new().max_recursion_depth(MAX_NESTING).enable_optional_syntax(true);
    let parsed = catch_unwind(AssertUnwindSafe(|| parser.parse(&typing::lexer::reduce_signs(source))));
    let parse_error = || syntax_error(source, (1, 1), "Syntax error: expression cannot be parsed");
    let parsed = parsed.map_err(|_| parse_error())?;
    let parsed = parsed.map_err(|errors| {
        // An error without position means that the nesting limit was exceeded.
        let positioned = errors.errors.iter().filter(|error| error.pos.0 > 0);
        let messages: Vec<String> = positioned.map(|error| syntax_error(source, error.pos, &error.msg)).collect();
        if messages.is_empty() { parse_error() } else { messages.join("\n") }
    })?;
    macros::expand(parsed)
}

/// True if the function accepts a literal argument.
fn accepts_literal(function: &str, text: &str) -> bool {
    if function == "matches" {
        return go_regexp_errors::pattern_error(text).is_none();
    }
    let Ok(program) = Program::compile(&format!("{function}(v)")) else { return true };
    with_base_scope(|base| {
        let mut scope = base.new_inner_scope();
        scope.add_variable_from_value("v", text);
        match program.execute(&scope, &mut Budget::for_conditions()) {
            // Durations beyond Go's range are truncated.
            Ok(Cel::Duration(duration)) => {
                duration.num_nanoseconds().is_some_and(|nanoseconds| nanoseconds.abs() < i64::MAX)
            }
            value => value.is_ok(),
        }
    })
}

/// Formats an error like cel-go: with the line, and a marker below the position.
fn syntax_error(source: &str, (line, column): (isize, isize), text: &str) -> String {
    let (line, column) = (usize::try_from(line).unwrap_or(1).max(1), usize::try_from(column).unwrap_or(1).max(1));
    let line_text = source.lines().nth(line - 1).unwrap_or_default();
    format!("ERROR: <input>:{line}:{column}: {text}\n | {line_text}\n | {}^", ".".repeat(column - 1))
}

/// Error of an evaluation.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// With cel-go's message.
    #[error("{0}")]
    Evaluation(String),
    /// The expression exceeded its cost limit.
    #[error("operation cancelled: actual cost limit exceeded")]
    CostLimit,
    /// The group of expressions exceeded its budget.
    #[error("validation failed due to running out of cost budget, no further validation rules will be run")]
    Budget,
}

/// A compiled expression.
#[derive(Debug)]
pub struct Program {
    expression: IdedExpr,
    /// Cost in steps, without the iterations of loops.
    cost: u64,
    /// Upper bound of the nesting depth.
    depth: usize,
    /// Kinds of the lists that it compares.
    kinds: Vec<Arc<ValueKind>>,
}

impl Program {
    /// Compiles an expression. Errors are those of cel-go, without kube-apiserver's prefix.
    pub fn compile(source: &str) -> Result<Self, String> {
        Self::build(source, false, &[])
    }

    /// Compiles an expression whose variables contain lists that are sets or maps.
    pub fn compile_with_kinds(source: &str, variables: &[(&str, ValueKind)]) -> Result<Self, String> {
        Self::build(source, false, variables)
    }

    /// Compiles an expression in which `Object{…}` and `JSONPatch{…}` are allowed.
    pub fn compile_patch(source: &str) -> Result<Self, String> {
        Self::build(source, true, &[])
    }

    fn build(source: &str, allows_patches: bool, variables: &[(&str, ValueKind)]) -> Result<Self, String> {
        let depth = bounds::check(source)?;
        with_deep_stack(depth, || {
            let mut parsed = parse_expression(source)?;
            let mut rewriter = rewrite::Rewriter::new(variables);
            rewriter.rewrite(&mut parsed);
            let cost = instrument::base_cost(&parsed);
            let kinds = rewriter.kinds.into_iter().map(Arc::new).collect();
            Ok(Self { expression: instrument::instrument(parsed, allows_patches)?, cost, depth, kinds })
        })
    }

    pub fn references(&self) -> ExpressionReferences<'_> {
        with_deep_stack(self.depth, || self.expression.references())
    }

    /// Evaluates the expression; its cost is deducted from the budget.
    pub fn execute(&self, scope: &Context<'_>, budget: &mut Budget) -> Result<Cel, Failure> {
        let mut inner;
        let scope = if self.kinds.is_empty() {
            scope
        } else {
            inner = scope.new_inner_scope();
            for (index, kind) in self.kinds.iter().enumerate() {
                inner.add_variable_from_value(rewrite::variable(index), Cel::Opaque(kind.clone()));
            }
            &inner
        };
        budget.run(self.cost, || {
            let resolve = || catch_unwind(AssertUnwindSafe(|| Cel::resolve(&self.expression, scope)));
            let value = with_deep_stack(self.depth, resolve);
            let value =
                value.map_err(|_| Failure::Evaluation("internal error: expression cannot be evaluated".into()))?;
            value.map_err(|error| Failure::Evaluation(format_error(&error)))
        })
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let expression = std::mem::take(&mut self.expression);
        with_deep_stack(self.depth, || drop(expression));
    }
}

/// Formats an evaluation error like cel-go.
fn format_error(error: &ExecutionError) -> String {
    match error {
        ExecutionError::NoSuchKey(key) => format!("no such key: {key}"),
        ExecutionError::UndeclaredReference(name) => format!("undeclared reference to '{name}' (in container '')"),
        ExecutionError::DivisionByZero(_) => "division by zero".into(),
        ExecutionError::RemainderByZero(_) => "modulus by zero".into(),
        ExecutionError::Overflow(_, Cel::UInt(_), _) => "unsigned integer overflow".into(),
        ExecutionError::Overflow(_, Cel::Timestamp(_), _) => "timestamp overflow".into(),
        ExecutionError::Overflow(..) => "integer overflow".into(),
        ExecutionError::IndexOutOfBounds(Cel::Int(index)) => format!("index out of bounds: {index}"),
        ExecutionError::FunctionError { function, .. } if function == "containsIP" => "no such overload".into(),
        ExecutionError::FunctionError { function, .. } if function == "timestamp" => {
            "type conversion error from 'string' to 'google.protobuf.Timestamp'".into()
        }
        ExecutionError::FunctionError { function, .. } if function == "duration" => {
            "type conversion error from 'string' to 'google.protobuf.Duration'".into()
        }
        ExecutionError::FunctionError { message, .. } if message == "quantity is not an integer" => {
            "cannot convert value to integer".into()
        }
        ExecutionError::FunctionError { message, .. } if message == "depth must be non-negative" => {
            "level must be non-negative".into()
        }
        ExecutionError::FunctionError { function, message }
            if function == "quantity" && !message.starts_with("expected") =>
        {
            "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'".into()
        }
        ExecutionError::FunctionError { message, .. } => {
            let list = message.split_once(" out of range for list of length ");
            let text = message.split_once(" out of range for string of length ");
            match (list, text) {
                (Some((call, _)), _) if call.contains("(-") || call.contains(", -") => {
                    format!("cannot {call}, negative indexes not supported")
                }
                (Some((call, length)), _) => format!("cannot {call}, list is length {length}"),
                (_, Some((head, _))) => {
                    format!("index out of range: {}", head.rsplit(' ').next().unwrap_or_default())
                }
                _ => message
                    .strip_prefix("cannot call ")
                    .map_or_else(|| message.clone(), |call| call.replace(" on empty list", " called on empty list")),
            }
        }
        ExecutionError::NoSuchOverload
        | ExecutionError::InvalidArgumentCount { .. }
        | ExecutionError::UnsupportedTargetType { .. }
        | ExecutionError::NotSupportedAsMethod { .. }
        | ExecutionError::UnexpectedType { .. }
        | ExecutionError::ValuesNotComparable(..)
        | ExecutionError::UnsupportedUnaryOperator(..)
        | ExecutionError::UnsupportedBinaryOperator(..)
        | ExecutionError::UnsupportedMapIndex(_)
        | ExecutionError::UnsupportedListIndex(_)
        | ExecutionError::UnsupportedIndex(..) => "no such overload".into(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests;
