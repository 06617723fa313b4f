//! Checking CEL rules against the schema they stand in: undefined fields, unknown names, impossible comparisons.
//!
//! Not a full type checker: what it cannot tell is dynamic and passes. What it refuses, kube-apiserver refuses too.

use kube::core::cel::cel::common::ast::{EntryExpr, Expr, IdedEntryExpr, IdedExpr, LiteralValue, operators};
use serde_json::Value;

use super::cel::escape;
use crate::cel::{Program, read};

/// What is known of an expression.
#[derive(Debug, Clone)]
enum Ty<'a> {
    Dyn,
    Bool,
    Int,
    Double,
    Text,
    Null,
    List(Box<Ty<'a>>),
    Map(Box<Ty<'a>>),
    /// An object with declared fields; the flag says that it is a resource with `apiVersion`, `kind` and `metadata`.
    Object(&'a Value, bool),
    /// One whose fields are written as they are called.
    Plain(&'a Value),
    /// `metadata` of a resource: only its name can be read.
    Metadata,
    /// What a literal with a type's name makes.
    Message(String),
}

impl Ty<'_> {
    fn name(&self) -> String {
        match self {
            Ty::Dyn => "dyn".into(),
            Ty::Bool => "bool".into(),
            Ty::Int => "int".into(),
            Ty::Double => "double".into(),
            Ty::Text => "string".into(),
            Ty::Null => "null_type".into(),
            Ty::List(item) => format!("list({})", item.name()),
            Ty::Map(value) => format!("map(string, {})", value.name()),
            Ty::Object(..) | Ty::Plain(_) | Ty::Metadata => "object".into(),
            Ty::Message(name) => name.clone(),
        }
    }

    fn scalar(&self) -> bool {
        matches!(self, Ty::Bool | Ty::Int | Ty::Double | Ty::Text)
    }
}

/// Global functions and methods that rules may call.
const FUNCTIONS: &[&str] = &[
    "abs",
    "add",
    "allowed",
    "asApproximateFloat",
    "asInteger",
    "base64.decode",
    "base64.encode",
    "bool",
    "bytes",
    "ceil",
    "charAt",
    "check",
    "cidr",
    "compareTo",
    "contains",
    "containsCIDR",
    "containsIP",
    "distinct",
    "double",
    "duration",
    "dyn",
    "endsWith",
    "error",
    "errored",
    "exists",
    "family",
    "fieldSelector",
    "find",
    "findAll",
    "first",
    "flatten",
    "floor",
    "format",
    "getDate",
    "getDayOfMonth",
    "getDayOfWeek",
    "getDayOfYear",
    "getEscapedPath",
    "getFullYear",
    "getHost",
    "getHostname",
    "getHours",
    "getMilliseconds",
    "getMinutes",
    "getMonth",
    "getPort",
    "getQuery",
    "getScheme",
    "getSeconds",
    "group",
    "hasValue",
    "indexOf",
    "int",
    "ip",
    "ip.isCanonical",
    "isCIDR",
    "isCanonical",
    "isGlobalUnicast",
    "isGreaterThan",
    "isIP",
    "isInteger",
    "isLessThan",
    "isLinkLocalMulticast",
    "isLinkLocalUnicast",
    "isLoopback",
    "isQuantity",
    "isSemver",
    "isSorted",
    "isURL",
    "isUnspecified",
    "join",
    "labelSelector",
    "jsonpatch.escapeKey",
    "last",
    "lastIndexOf",
    "lowerAscii",
    "major",
    "masked",
    "matches",
    "math.abs",
    "math.bitAnd",
    "math.bitNot",
    "math.bitOr",
    "math.bitShiftLeft",
    "math.bitShiftRight",
    "math.bitXor",
    "math.ceil",
    "math.floor",
    "math.greatest",
    "math.isFinite",
    "math.isInf",
    "math.isNaN",
    "math.least",
    "math.round",
    "math.sign",
    "math.sqrt",
    "math.trunc",
    "max",
    "min",
    "minor",
    "name",
    "namespace",
    "optional.none",
    "optional.of",
    "optional.ofNonZeroValue",
    "or",
    "orValue",
    "patch",
    "path",
    "prefixLength",
    "quantity",
    "quote",
    "range",
    "reason",
    "replace",
    "resource",
    "reverse",
    "semver",
    "serviceAccount",
    "sets.contains",
    "sets.equivalent",
    "sets.intersects",
    "sign",
    "size",
    "slice",
    "sort",
    "split",
    "startsWith",
    "string",
    "strings.quote",
    "sub",
    "subresource",
    "substring",
    "sum",
    "timestamp",
    "trim",
    "trunc",
    "type",
    "uint",
    "upperAscii",
    "url",
    "validate",
    "value",
    "format.named",
    "format.dns1123Label",
    "format.dns1123Subdomain",
    "format.dns1035Label",
    "format.qualifiedName",
    "format.dns1123LabelPrefix",
    "format.dns1123SubdomainPrefix",
    "format.dns1035LabelPrefix",
    "format.labelValue",
    "format.uri",
    "format.uuid",
    "format.byte",
    "format.date",
    "format.datetime",
    "named",
    "dns1123Label",
    "dns1123Subdomain",
    "dns1035Label",
    "qualifiedName",
    "dns1123LabelPrefix",
    "dns1123SubdomainPrefix",
    "dns1035LabelPrefix",
    "labelValue",
    "uri",
    "uuid",
    "byte",
    "date",
    "datetime",
    "greatest",
    "least",
    "none",
    "of",
    "ofNonZeroValue",
    "encode",
    "decode",
    "equivalent",
    "intersects",
    "escapeKey",
    "transformList",
    "transformMap",
    "optMap",
    "optFlatMap",
    "existsOne",
    "exists_one",
    "all",
    "filter",
    "map",
    "sortBy",
    "cel.bind",
    "bind",
];

/// Namespaces of functions and names of types, which parse as identifiers.
const NAMES: &[&str] = &[
    "sets",
    "math",
    "optional",
    "base64",
    "format",
    "strings",
    "jsonpatch",
    "ip",
    "cel",
    "int",
    "uint",
    "double",
    "bool",
    "string",
    "bytes",
    "list",
    "map",
    "null_type",
    "type",
    "timestamp",
    "duration",
    "google",
    "optional_type",
    "cidr",
];

struct Scope<'a> {
    this: Option<Ty<'a>>,
    old: Option<Ty<'a>>,
    locals: Vec<(String, Ty<'a>)>,
}

/// The first thing wrong with a rule over values of `schema`, as cel-go reports it. `root` says that `schema` is a whole resource.
pub fn check_rule(source: &str, schema: &Value, root: bool, optional_old: bool, wanted: &str) -> Result<(), String> {
    Program::compile(source)?;
    let this = typed(schema, root);
    let old = Some(if optional_old { Ty::Dyn } else { this.clone() });
    let mut scope = Scope { this: Some(this), old, locals: Vec::new() };
    let found = read(source, |expression| {
        infer(expression, &mut scope).map_err(|(text, token)| located(source, &text, &token))
    })?;
    let fits = match wanted {
        "bool" => matches!(found, Ty::Bool | Ty::Dyn),
        _ => matches!(found, Ty::Text | Ty::Dyn),
    };
    if fits { Ok(()) } else { Err(format!("cel expression must evaluate to a {wanted}")) }
}

/// The type that an expression gives, which reads variables of any type and of known ones, or the first thing wrong with it.
pub fn check_expression(source: &str, any: &[&str], known: &[(&str, &Value)]) -> Result<String, String> {
    let mut locals: Vec<(String, Ty<'_>)> = any.iter().map(|name| ((*name).to_owned(), Ty::Dyn)).collect();
    locals.extend(known.iter().map(|(name, schema)| ((*name).to_owned(), Ty::Plain(schema))));
    let mut scope = Scope { this: None, old: None, locals };
    read(source, |expression| {
        let found = infer(expression, &mut scope);
        found.map(|found| found.name()).map_err(|(text, token)| located(source, &text, &token))
    })
}

/// True when the rule reads `oldSelf`.
pub fn uses_old(source: &str) -> bool {
    Program::compile(source).is_ok_and(|program| program.references().has_variable("oldSelf"))
}

fn located(source: &str, text: &str, token: &str) -> String {
    let at = source.find(token).unwrap_or(0);
    let before = &source[..at];
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap_or("").chars().count();
    let shown = source.lines().nth(line - 1).unwrap_or("");
    format!("ERROR: <input>:{line}:{}: {text}\n | {shown}\n | {}^", column + 1, ".".repeat(column))
}

fn typed(schema: &Value, resource: bool) -> Ty<'_> {
    let flag = |key: &str| schema.get(key).and_then(Value::as_bool).unwrap_or(false);
    if flag("x-kubernetes-int-or-string") {
        return Ty::Dyn;
    }
    match schema.get("type").and_then(Value::as_str).unwrap_or("") {
        "boolean" => Ty::Bool,
        "integer" => Ty::Int,
        "number" => Ty::Double,
        "string" => match schema.get("format").and_then(Value::as_str) {
            Some("date-time" | "datetime" | "date" | "duration" | "byte") => Ty::Dyn,
            _ => Ty::Text,
        },
        "array" => Ty::List(Box::new(schema.get("items").map_or(Ty::Dyn, |items| typed(items, false)))),
        "object" => match schema.get("additionalProperties").filter(|a| a.is_object()) {
            Some(values) => Ty::Map(Box::new(typed(values, false))),
            None => Ty::Object(schema, resource || flag("x-kubernetes-embedded-resource")),
        },
        _ => Ty::Dyn,
    }
}

type Failure = (String, String);

fn select<'a>(operand: &Ty<'a>, field: &str) -> Result<Ty<'a>, Failure> {
    let undefined = || (format!("undefined field '{field}'"), format!(".{field}"));
    match operand {
        Ty::Dyn => Ok(Ty::Dyn),
        Ty::Map(value) => Ok((**value).clone()),
        Ty::Metadata => match field {
            "name" | "generateName" => Ok(Ty::Text),
            _ => Err(undefined()),
        },
        Ty::Plain(schema) => schema["properties"].get(field).map(|sub| typed(sub, false)).ok_or_else(undefined),
        Ty::Object(schema, resource) => {
            let properties = schema.get("properties").and_then(Value::as_object);
            if *resource {
                match field {
                    "apiVersion" | "kind" => return Ok(Ty::Text),
                    "metadata" => return Ok(Ty::Metadata),
                    _ => {}
                }
            }
            let found = properties.and_then(|all| all.iter().find(|(name, _)| escape(name) == field));
            found.map(|(_, sub)| typed(sub, false)).ok_or_else(undefined)
        }
        other => Err((format!("type '{}' does not support field selection", other.name()), format!(".{field}"))),
    }
}

fn infer<'a>(expr: &IdedExpr, scope: &mut Scope<'a>) -> Result<Ty<'a>, Failure> {
    match &expr.expr {
        Expr::Literal(literal) => Ok(match literal {
            LiteralValue::Boolean(_) => Ty::Bool,
            LiteralValue::Int(_) => Ty::Int,
            LiteralValue::Double(_) => Ty::Double,
            LiteralValue::String(_) => Ty::Text,
            LiteralValue::Null => Ty::Null,
            _ => Ty::Dyn,
        }),
        Expr::Ident(name) => ident(name, scope),
        Expr::Select(select_expr) => {
            if let Expr::Ident(namespace) = &select_expr.operand.expr
                && NAMES.contains(&namespace.as_str())
                && !scope.locals.iter().any(|(n, _)| n == namespace)
            {
                return Ok(Ty::Dyn);
            }
            let operand = infer(&select_expr.operand, scope)?;
            let found = select(&operand, &select_expr.field)?;
            Ok(if select_expr.test { Ty::Bool } else { found })
        }
        Expr::List(list) => {
            let items = list.elements.iter().map(|element| infer(element, scope)).collect::<Result<Vec<_>, _>>()?;
            let same = items.windows(2).all(|pair| pair[0].name() == pair[1].name());
            Ok(Ty::List(Box::new(items.into_iter().next().filter(|_| same).unwrap_or(Ty::Dyn))))
        }
        Expr::Map(map) => {
            entries(&map.entries, scope)?;
            Ok(Ty::Map(Box::new(Ty::Dyn)))
        }
        Expr::Struct(object) => {
            entries(&object.entries, scope)?;
            Ok(Ty::Message(object.type_name.clone()))
        }
        Expr::Unspecified => Ok(Ty::Dyn),
        Expr::Call(call) => self::call(call, scope),
        Expr::Comprehension(loop_expr) => {
            let range = infer(&loop_expr.iter_range, scope)?;
            let item = match range {
                Ty::List(item) => *item,
                Ty::Map(_) => Ty::Text,
                ref scalar if scalar.scalar() => {
                    let text = format!(
                        "expression of type '{}' cannot be range of a comprehension (must be list, map, or dynamic)",
                        scalar.name()
                    );
                    return Err((text, String::new()));
                }
                _ => Ty::Dyn,
            };
            let init = infer(&loop_expr.accu_init, scope)?;
            let known = scope.locals.len();
            scope.locals.push((loop_expr.iter_var.clone(), item));
            if let Some(second) = &loop_expr.iter_var2 {
                scope.locals.push((second.clone(), Ty::Dyn));
            }
            let accumulated = match init {
                Ty::Bool => Ty::Bool,
                _ => Ty::Dyn,
            };
            scope.locals.push((loop_expr.accu_var.clone(), accumulated));
            infer(&loop_expr.loop_cond, scope)?;
            infer(&loop_expr.loop_step, scope)?;
            let result = infer(&loop_expr.result, scope);
            scope.locals.truncate(known);
            result
        }
    }
}

/// Looks into a literal.
fn entries<'a>(all: &[IdedEntryExpr], scope: &mut Scope<'a>) -> Result<(), Failure> {
    for entry in all {
        match &entry.expr {
            EntryExpr::MapEntry(entry) => {
                infer(&entry.key, scope)?;
                infer(&entry.value, scope)?;
            }
            EntryExpr::StructField(field) => {
                infer(&field.value, scope)?;
            }
        }
    }
    Ok(())
}

fn ident<'a>(name: &str, scope: &Scope<'a>) -> Result<Ty<'a>, Failure> {
    if let Some((_, ty)) = scope.locals.iter().rev().find(|(local, _)| local == name) {
        return Ok(ty.clone());
    }
    match name {
        "self" if scope.this.is_some() => Ok(scope.this.clone().unwrap_or(Ty::Dyn)),
        "oldSelf" if scope.old.is_some() => Ok(scope.old.clone().unwrap_or(Ty::Dyn)),
        _ if NAMES.contains(&name) => Ok(Ty::Dyn),
        _ => Err((format!("undeclared reference to '{name}' (in container '')"), name.to_owned())),
    }
}

fn call<'a>(call: &kube::core::cel::cel::common::ast::CallExpr, scope: &mut Scope<'a>) -> Result<Ty<'a>, Failure> {
    let target = match &call.target {
        Some(target) => Some(infer(target, scope)?),
        None => None,
    };
    let mut arguments = Vec::with_capacity(call.args.len());
    for (index, argument) in call.args.iter().enumerate() {
        // The second argument of an optional selection is a field name.
        if call.func_name == operators::OPT_SELECT && index == 1 {
            continue;
        }
        arguments.push(infer(argument, scope)?);
    }
    let no_overload = |shown: &str| {
        let types: Vec<String> = arguments.iter().map(Ty::name).collect();
        (
            format!("found no matching overload for '{}' applied to '({})'", call.func_name, types.join(", ")),
            format!(" {shown}"),
        )
    };
    match (call.func_name.as_str(), arguments.as_slice()) {
        (operators::EQUALS | operators::NOT_EQUALS, [a, b]) => {
            if a.scalar() && b.scalar() && a.name() != b.name() {
                return Err(no_overload(if call.func_name == operators::EQUALS { "==" } else { "!=" }));
            }
            Ok(Ty::Bool)
        }
        (operators::LESS | operators::LESS_EQUALS | operators::GREATER | operators::GREATER_EQUALS, [a, b]) => {
            let numeric = |ty: &Ty<'_>| matches!(ty, Ty::Int | Ty::Double);
            if a.scalar() && b.scalar() && a.name() != b.name() && !(numeric(a) && numeric(b)) {
                return Err(no_overload(call.func_name.trim_matches('_')));
            }
            Ok(Ty::Bool)
        }
        (operators::LOGICAL_AND | operators::LOGICAL_OR | operators::LOGICAL_NOT, all) => {
            if all.iter().any(|ty| matches!(ty, Ty::Int | Ty::Double | Ty::Text | Ty::List(_) | Ty::Map(_))) {
                return Err(no_overload(call.func_name.trim_matches('_')));
            }
            Ok(Ty::Bool)
        }
        (operators::IN | operators::NOT_STRICTLY_FALSE, _) => Ok(Ty::Bool),
        (operators::CONDITIONAL, [_, yes, _]) => Ok(yes.clone()),
        (operators::INDEX, [Ty::List(item) | Ty::Map(item), _]) => Ok((**item).clone()),
        (operators::ADD, [a, b]) => {
            if a.scalar() && b.scalar() && a.name() != b.name() {
                return Err(no_overload("+"));
            }
            Ok(if a.scalar() { a.clone() } else { Ty::Dyn })
        }
        ("size", _) => Ok(Ty::Int),
        ("string", _) => Ok(Ty::Text),
        ("startsWith" | "endsWith" | "contains" | "matches", _) => Ok(Ty::Bool),
        (name, _) if name.starts_with(['_', '@', '-', '!']) || name.contains('?') => Ok(Ty::Dyn),
        (name, _) if FUNCTIONS.contains(&name) => Ok(Ty::Dyn),
        (name, _) if target.is_some() && matches!(target, Some(Ty::Dyn)) && NAMES.contains(&name) => Ok(Ty::Dyn),
        (name, _) => Err((format!("undeclared reference to '{name}' (in container '')"), name.to_owned())),
    }
}
