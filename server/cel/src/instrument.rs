//! Instruments a parsed expression for evaluation: optional selection, object literals of patches, cost charges per
//! loop iteration, and loops that tolerate errors.

use kube::core::cel::cel::common::ast::{
    CallExpr, EntryExpr, Expr, IdedEntryExpr, IdedExpr, LiteralValue, MapEntryExpr, MapExpr, SelectExpr, StructExpr,
    operators,
};

use super::authorizer::{AUTHORIZER, REQUEST_RESOURCE};
use super::functions::{CHARGE, CHARGE_SIZE};
use super::macros::{call, int, node};
use super::{library, short_circuit};

/// Type of the object in an apply configuration; nested objects have paths (`Object.spec.template`).
const OBJECT: &str = "Object";
/// Type of a JSON patch operation.
const JSON_PATCH: &str = "JSONPatch";
/// Methods whose cost depends on the size of the text or list that they traverse.
const TRAVERSING_METHODS: &[&str] = &[
    "contains",
    "find",
    "findAll",
    "indexOf",
    "isSorted",
    "lastIndexOf",
    "lowerAscii",
    "matches",
    "max",
    "min",
    "quote",
    "reverse",
    "sort",
    "split",
    "sum",
    "trim",
    "upperAscii",
];
/// Prefixes of function names that are not values.
const NAMESPACES: &[&str] = &["base64", "format", "jsonpatch", "lists", "math", "optional", "sets", "strings"];
/// Functions that are rewritten as methods of their only argument; called as functions, the `cel` crate would discard errors
/// of the argument.
const CALLED_AS_METHODS: &[&str] = &["ip", "semver", "size", "string"];
/// Functions that compile a pattern on each call.
const PATTERN_FUNCTIONS: &[&str] = &["find", "findAll", "matches"];
/// Cost of compiling a pattern, in steps.
const PATTERN_COST: u64 = 100;

/// Evaluation cost in steps, without the iterations of loops.
pub(super) fn base_cost(expr: &IdedExpr) -> u64 {
    let all = |each: &mut dyn Iterator<Item = &IdedExpr>| each.map(base_cost).sum::<u64>();
    1 + match &expr.expr {
        Expr::Call(call_expr) => {
            let pattern = if PATTERN_FUNCTIONS.contains(&call_expr.func_name.as_str()) { PATTERN_COST } else { 0 };
            pattern + all(&mut call_expr.target.iter().map(AsRef::as_ref).chain(&call_expr.args))
        }
        Expr::Select(select) => base_cost(&select.operand),
        Expr::List(list) => all(&mut list.elements.iter()),
        Expr::Map(map) => map.entries.iter().map(entry_base_cost).sum(),
        Expr::Struct(object) => object.entries.iter().map(entry_base_cost).sum(),
        Expr::Comprehension(comprehension) => {
            base_cost(&comprehension.iter_range)
                + base_cost(&comprehension.accu_init)
                + base_cost(&comprehension.result)
        }
        Expr::Literal(_) | Expr::Ident(_) | Expr::Unspecified => 0,
    }
}

fn entry_base_cost(entry: &IdedEntryExpr) -> u64 {
    match &entry.expr {
        EntryExpr::MapEntry(entry) => base_cost(&entry.key) + base_cost(&entry.value),
        EntryExpr::StructField(field) => base_cost(&field.value),
    }
}

/// Instruments `expr`. With `allows_patches`, it may contain the object literals of patches; others are errors.
pub(super) fn instrument(expr: IdedExpr, allows_patches: bool) -> Result<IdedExpr, String> {
    let id = expr.id;
    let expr = match expr.expr {
        Expr::Call(call_expr) => return instrument_call(call_expr, allows_patches),
        Expr::Select(SelectExpr { operand, field, test }) => {
            if matches!(&operand.expr, Expr::Ident(name) if name == AUTHORIZER) && field == REQUEST_RESOURCE {
                return Ok(node(Expr::Ident(format!("{AUTHORIZER}.{REQUEST_RESOURCE}"))));
            }
            let operand = instrument(*operand, allows_patches)?;
            if !test {
                // An index operation supports optionals and fails on missing fields.
                return Ok(call(operators::INDEX, vec![operand, string(field)]));
            }
            Expr::Select(SelectExpr { operand: Box::new(operand), field, test })
        }
        Expr::List(mut list) => {
            list.elements =
                list.elements.into_iter().map(|expr| instrument(expr, allows_patches)).collect::<Result<_, _>>()?;
            Expr::List(list)
        }
        Expr::Map(map) => {
            let entries = map.entries.into_iter().map(|entry| instrument_entry(entry, allows_patches));
            Expr::Map(MapExpr { entries: entries.collect::<Result<_, _>>()? })
        }
        Expr::Struct(object) => instrument_object(object, allows_patches)?,
        Expr::Comprehension(mut comprehension) => {
            let iteration_cost = base_cost(&comprehension.loop_cond) + base_cost(&comprehension.loop_step);
            let short_circuit_value = short_circuit::short_circuit_value(&comprehension);
            comprehension.iter_range = instrument(comprehension.iter_range, allows_patches)?;
            comprehension.accu_init = instrument(comprehension.accu_init, allows_patches)?;
            comprehension.loop_step = instrument(comprehension.loop_step, allows_patches)?;
            comprehension.result = instrument(comprehension.result, allows_patches)?;
            comprehension.loop_cond = instrument(comprehension.loop_cond, allows_patches)?;
            if let Some(short_circuit_value) = short_circuit_value {
                short_circuit::defer_errors(&mut comprehension, short_circuit_value);
            }
            let charge = call(CHARGE, vec![int(i64::try_from(iteration_cost).unwrap_or(i64::MAX))]);
            comprehension.loop_cond = call(operators::LOGICAL_AND, vec![charge, comprehension.loop_cond]);
            Expr::Comprehension(comprehension)
        }
        Expr::Unspecified => return Err("ERROR: <input>:1:1: Syntax error: expression cannot be parsed".to_owned()),
        other => other,
    };
    Ok(IdedExpr { id, expr })
}

fn string(text: String) -> IdedExpr {
    node(Expr::Literal(LiteralValue::String(text.into())))
}

fn instrument_call(call_expr: CallExpr, allows_patches: bool) -> Result<IdedExpr, String> {
    let CallExpr { func_name: name, target, args } = call_expr;
    let target = target.map(|target| instrument(*target, allows_patches)).transpose()?;
    let mut args = args.into_iter().map(|expr| instrument(expr, allows_patches)).collect::<Result<Vec<_>, _>>()?;
    let name = match name.as_str() {
        // The `cel` crate's selection fails if a field is missing.
        operators::OPT_SELECT => operators::OPT_INDEX.to_owned(),
        // The `cel` crate's operators do not report the first of two errors.
        operators::LOGICAL_AND => short_circuit::AND.to_owned(),
        operators::LOGICAL_OR => short_circuit::OR.to_owned(),
        operators::ADD | operators::IN => {
            // Literals are small.
            let is_small = match name.as_str() {
                operators::ADD => args.iter().any(|arg| matches!(arg.expr, Expr::Literal(_))),
                _ => args.get(1).is_some_and(|arg| matches!(arg.expr, Expr::List(_))),
            };
            if !is_small && let Some(right) = args.pop() {
                args.push(call(CHARGE_SIZE, vec![right]));
            }
            name
        }
        _ => name,
    };
    let target_name = target.as_ref().and_then(|target| match &target.expr {
        Expr::Ident(name) => Some(name.as_str()),
        _ => None,
    });
    if let Some(check) = library::argument_check(&name, target.is_some(), target_name) {
        args = vec![call(check, args)];
    }
    let is_called_as_method = target.is_none() && args.len() == 1 && CALLED_AS_METHODS.contains(&name.as_str());
    let target = if is_called_as_method { args.pop().map(Box::new) } else { target.map(Box::new) };
    let is_traversing = TRAVERSING_METHODS.contains(&name.as_str());
    let target = target.map(|target| match &target.expr {
        Expr::Ident(namespace) if NAMESPACES.contains(&namespace.as_str()) => target,
        _ if is_traversing => Box::new(call(CHARGE_SIZE, vec![*target])),
        _ => target,
    });
    Ok(node(Expr::Call(CallExpr { func_name: name, target, args })))
}

fn instrument_entry(entry: IdedEntryExpr, allows_patches: bool) -> Result<IdedEntryExpr, String> {
    let expr = match entry.expr {
        EntryExpr::MapEntry(MapEntryExpr { key, value, optional }) => EntryExpr::MapEntry(MapEntryExpr {
            key: instrument(key, allows_patches)?,
            value: instrument(value, allows_patches)?,
            optional,
        }),
        EntryExpr::StructField(field) => EntryExpr::MapEntry(MapEntryExpr {
            key: string(field.field),
            value: instrument(field.value, allows_patches)?,
            optional: field.optional,
        }),
    };
    Ok(IdedEntryExpr { id: entry.id, expr })
}

/// Converts an object literal of a patch to a map.
fn instrument_object(object: StructExpr, allows_patches: bool) -> Result<Expr, String> {
    let name = object.type_name.as_str();
    let is_object = name == OBJECT || name.starts_with("Object.");
    if !allows_patches || (!is_object && name != JSON_PATCH) {
        return Err(format!("ERROR: <input>:1:1: undeclared reference to '{name}' (in container '')"));
    }
    for entry in &object.entries {
        let EntryExpr::StructField(field) = &entry.expr else { continue };
        if name == JSON_PATCH && !["op", "path", "from", "value"].contains(&field.field.as_str()) {
            return Err(format!("ERROR: <input>:1:1: undefined field '{}'", field.field));
        }
        if is_object {
            check_object_type(&field.value, &format!("{name}.{}", field.field))?;
        }
    }
    let entries = object.entries.into_iter().map(|entry| instrument_entry(entry, allows_patches));
    Ok(Expr::Map(MapExpr { entries: entries.collect::<Result<_, _>>()? }))
}

/// Checks that nested objects, also in lists, have the type of their path.
fn check_object_type(value: &IdedExpr, expected: &str) -> Result<(), String> {
    match &value.expr {
        Expr::Struct(object) if object.type_name != expected => {
            Err(format!("type mismatch: unexpected type name {:?}, expected {expected:?}", object.type_name))
        }
        Expr::List(list) => list.elements.iter().try_for_each(|element| check_object_type(element, expected)),
        _ => Ok(()),
    }
}
