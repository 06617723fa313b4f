//! Functions of Kubernetes 1.36's CEL environment: overloads with their parameters and results.
//!
//! `functions.txt` was generated from the declarations of Kubernetes' CEL library. Pure.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use super::types::Type;

/// An overload of a function.
#[derive(Debug)]
pub(super) struct Overload {
    pub id: &'static str,
    pub method: bool,
    /// Parameter types; the first is the target of a method.
    pub takes: Vec<Type>,
    pub gives: Type,
    /// Type parameters.
    pub params: Vec<Arc<str>>,
}

/// Function that is available in patches only.
pub(super) const ESCAPE_KEY: &str = "jsonpatch.escapeKey";

static FUNCTIONS: LazyLock<HashMap<&'static str, Vec<Overload>>> = LazyLock::new(|| {
    let mut functions: HashMap<&'static str, Vec<Overload>> = HashMap::new();
    for line in include_str!("functions.txt").lines() {
        if let Some((name, overload)) = overload(line) {
            functions.entry(name).or_default().push(overload);
        }
    }
    functions
});

/// Types without fields.
const OPAQUE: &[&str] = &["net.CIDR", "net.IP"];

/// Types of Kubernetes.
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
pub(super) fn named_type(name: &str) -> Option<Type> {
    let inner = match name {
        "dyn" => Type::Dyn,
        "list" => Type::list(Type::Dyn),
        "map" => Type::map(Type::Dyn, Type::Dyn),
        "type" => return Some(Type::kind(Type::Kind(None))),
        "optional_type" => Type::optional(Type::Param("V".into())),
        "google.protobuf.Timestamp" => Type::Timestamp,
        "google.protobuf.Duration" => Type::Duration,
        "null_type" => Type::Null,
        "bool" | "bytes" | "double" | "int" | "string" | "uint" => simple(name)?,
        _ if OPAQUE.contains(&name) => Type::Opaque(name.into(), Arc::new([])),
        _ if OBJECTS.contains(&name) => Type::object(name),
        _ => return None,
    };
    Some(Type::kind(inner))
}

fn simple(name: &str) -> Option<Type> {
    Some(match name {
        "dyn" => Type::Dyn,
        "null" => Type::Null,
        "bool" => Type::Bool,
        "int" => Type::Int,
        "uint" => Type::Uint,
        "double" => Type::Double,
        "string" => Type::Text,
        "bytes" => Type::Bytes,
        "duration" => Type::Duration,
        "timestamp" => Type::Timestamp,
        "type" => Type::Kind(None),
        _ => return None,
    })
}

/// Parses a type in the notation of errors.
pub(super) fn written(of: &str) -> Option<Type> {
    read(of, &mut Vec::new())
}

/// Parses a line: `id<TAB>target :: name(args) -> result`.
fn overload(line: &'static str) -> Option<(&'static str, Overload)> {
    let (id, signature) = line.split_once('\t')?;
    let (target, rest) = match signature.split_once(" :: ") {
        Some((target, rest)) => (Some(target), rest),
        None => (None, signature),
    };
    let (call, gives) = rest.rsplit_once(" -> ")?;
    let (name, takes) = call.strip_suffix(')')?.split_once('(')?;
    let mut params = Vec::new();
    let mut all = Vec::new();
    for written in target.into_iter().chain(parts(takes)) {
        all.push(read(written, &mut params)?);
    }
    let gives = read(gives, &mut params)?;
    Some((name, Overload { id, method: target.is_some(), takes: all, gives, params }))
}

fn read(written: &str, params: &mut Vec<Arc<str>>) -> Option<Type> {
    if let Some(found) = simple(written) {
        return Some(found);
    }
    let (name, inner) = match written.strip_suffix(')').and_then(|head| head.split_once('(')) {
        Some((name, inner)) => (name, parts(inner)),
        None => (written, Vec::new()),
    };
    let inner = inner.into_iter().map(|one| read(one, params)).collect::<Option<Vec<Type>>>()?;
    Some(match (name, inner.as_slice()) {
        ("list", [item]) => Type::list(item.clone()),
        ("map", [key, value]) => Type::map(key.clone(), value.clone()),
        ("type", [of]) => Type::kind(of.clone()),
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

/// Splits at commas outside of brackets.
fn parts(written: &str) -> Vec<&str> {
    let (mut depth, mut from, mut all) = (0, 0, Vec::new());
    for (at, letter) in written.char_indices() {
        match letter {
            '(' => depth += 1,
            ')' => depth -= 1,
            ',' if depth == 0 => {
                all.push(written[from..at].trim());
                from = at + 1;
            }
            _ => {}
        }
    }
    all.push(written[from..].trim());
    all.retain(|part| !part.is_empty());
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_lines_are_parsed() {
        for line in include_str!("functions.txt").lines() {
            assert!(overload(line).is_some(), "{line}");
        }
        let found = overloads("transformed").is_none() && overloads("size").is_some_and(|all| all.len() == 8);
        assert!(found, "{:?}", overloads("size"));
    }
}
