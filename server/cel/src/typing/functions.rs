//! Functions of Kubernetes 1.36's CEL environment: overloads with their parameters and results.
//!
//! `functions.txt` was generated from the declarations of Kubernetes' CEL library. Has no side effects.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use super::types::Type;

/// An overload of a function.
#[derive(Debug)]
pub(super) struct Overload {
    pub id: &'static str,
    pub is_method: bool,
    /// Parameter types; the first is the target of a method.
    pub parameters: Vec<Type>,
    pub result: Type,
    pub type_params: Vec<Arc<str>>,
}

/// Function that is available in patches only.
pub(super) const ESCAPE_KEY: &str = "jsonpatch.escapeKey";

static FUNCTIONS: LazyLock<HashMap<&'static str, Vec<Overload>>> = LazyLock::new(|| {
    let mut functions: HashMap<&'static str, Vec<Overload>> = HashMap::new();
    for line in include_str!("functions.txt").lines() {
        if let Some((name, overload)) = parse_overload(line) {
            functions.entry(name).or_default().push(overload);
        }
    }
    functions
});

/// Abstract types, which have no fields.
const OPAQUE: &[&str] = &["net.CIDR", "net.IP"];

/// Object types that Kubernetes' library adds.
const OBJECTS: &[&str] = &[
    "kubernetes.NamedFormat",
    "kubernetes.Quantity",
    "kubernetes.Semver",
    "kubernetes.URL",
    "kubernetes.authorization.Authorizer",
    "kubernetes.authorization.Decision",
    "kubernetes.authorization.GroupCheck",
    "kubernetes.authorization.PathCheck",
    "kubernetes.authorization.ResourceCheck",
];

pub(super) fn overloads(name: &str) -> Option<&'static [Overload]> {
    FUNCTIONS.get(name).map(Vec::as_slice)
}

/// The type that a name denotes in an expression.
pub(super) fn type_by_name(name: &str) -> Option<Type> {
    let inner = match name {
        "dyn" => Type::Dyn,
        "list" => Type::list(Type::Dyn),
        "map" => Type::map(Type::Dyn, Type::Dyn),
        "type" => return Some(Type::type_of(Type::Type(None))),
        "optional_type" => Type::optional(Type::Param("V".into())),
        "google.protobuf.Timestamp" => Type::Timestamp,
        "google.protobuf.Duration" => Type::Duration,
        "null_type" => Type::Null,
        "bool" | "bytes" | "double" | "int" | "string" | "uint" => simple(name)?,
        _ if OPAQUE.contains(&name) => Type::Opaque(name.into(), Arc::new([])),
        _ if OBJECTS.contains(&name) => Type::object(name),
        _ => return None,
    };
    Some(Type::type_of(inner))
}

fn simple(name: &str) -> Option<Type> {
    Some(match name {
        "dyn" => Type::Dyn,
        "null" => Type::Null,
        "bool" => Type::Bool,
        "int" => Type::Int,
        "uint" => Type::Uint,
        "double" => Type::Double,
        "string" => Type::String,
        "bytes" => Type::Bytes,
        "duration" => Type::Duration,
        "timestamp" => Type::Timestamp,
        "type" => Type::Type(None),
        _ => return None,
    })
}

/// Parses a type in the notation of error messages: `list(int)`.
pub(super) fn parse_type(text: &str) -> Option<Type> {
    parse_type_expression(text, &mut Vec::new())
}

/// Parses a line: `id<TAB>target :: name(args) -> result`.
fn parse_overload(line: &'static str) -> Option<(&'static str, Overload)> {
    let (id, signature) = line.split_once('\t')?;
    let (target, rest) = match signature.split_once(" :: ") {
        Some((target, rest)) => (Some(target), rest),
        None => (None, signature),
    };
    let (call, result) = rest.rsplit_once(" -> ")?;
    let (name, parameters) = call.strip_suffix(')')?.split_once('(')?;
    let mut type_params = Vec::new();
    let mut all = Vec::new();
    for text in target.into_iter().chain(split_arguments(parameters)) {
        all.push(parse_type_expression(text, &mut type_params)?);
    }
    let result = parse_type_expression(result, &mut type_params)?;
    Some((name, Overload { id, is_method: target.is_some(), parameters: all, result, type_params }))
}

/// Parses a type and adds its type parameters, which have one letter, to `params`.
fn parse_type_expression(text: &str, params: &mut Vec<Arc<str>>) -> Option<Type> {
    if let Some(found) = simple(text) {
        return Some(found);
    }
    let (name, inner) = match text.strip_suffix(')').and_then(|head| head.split_once('(')) {
        Some((name, inner)) => (name, split_arguments(inner)),
        None => (text, Vec::new()),
    };
    let inner = inner.into_iter().map(|text| parse_type_expression(text, params)).collect::<Option<Vec<Type>>>()?;
    Some(match (name, inner.as_slice()) {
        ("list", [item]) => Type::list(item.clone()),
        ("map", [key, value]) => Type::map(key.clone(), value.clone()),
        ("type", [ty]) => Type::type_of(ty.clone()),
        (name, []) if name.len() == 1 => {
            let name: Arc<str> = name.into();
            if !params.contains(&name) {
                params.push(name.clone());
            }
            Type::Param(name)
        }
        (name, []) if !OPAQUE.contains(&name) => Type::object(name),
        (name, _) => Type::Opaque(name.into(), inner.into()),
    })
}

/// Splits arguments at commas outside of parentheses.
fn split_arguments(text: &str) -> Vec<&str> {
    let (mut depth, mut from, mut all) = (0, 0, Vec::new());
    for (at, letter) in text.char_indices() {
        match letter {
            '(' => depth += 1,
            ')' => depth -= 1,
            ',' if depth == 0 => {
                all.push(text[from..at].trim());
                from = at + 1;
            }
            _ => {}
        }
    }
    all.push(text[from..].trim());
    all.retain(|part| !part.is_empty());
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_declared_overloads_are_parsed() {
        for line in include_str!("functions.txt").lines() {
            assert!(parse_overload(line).is_some(), "{line}");
        }
        let is_complete = overloads("transformed").is_none() && overloads("size").is_some_and(|all| all.len() == 8);
        assert!(is_complete, "{:?}", overloads("size"));
    }
}
