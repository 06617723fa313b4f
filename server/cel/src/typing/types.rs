//! Types and assignability with type parameters, as in cel-go. Has no side effects.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

/// Type of an expression.
#[derive(Debug, Clone, PartialEq)]
pub enum Type {
    Dyn,
    /// Type of an erroneous part; assignable to everything, so that each error is reported once.
    Error,
    Null,
    Bool,
    Int,
    Uint,
    Double,
    String,
    Bytes,
    Duration,
    Timestamp,
    List(Arc<Type>),
    Map(Arc<(Type, Type)>),
    /// Named type with fields.
    Object(Arc<str>),
    /// Named type without fields, such as an IP address or an optional.
    Opaque(Arc<str>, Arc<[Type]>),
    /// Type of a value that is itself a type, such as `int` in `type(x) == int`.
    Type(Option<Arc<Type>>),
    /// Type parameter.
    Param(Arc<str>),
}

const OPTIONAL: &str = "optional_type";

impl Type {
    pub fn list(item: Type) -> Self {
        Type::List(Arc::new(item))
    }

    pub fn map(key: Type, value: Type) -> Self {
        Type::Map(Arc::new((key, value)))
    }

    pub fn object(name: &str) -> Self {
        Type::Object(name.into())
    }

    pub fn optional(ty: Type) -> Self {
        Type::Opaque(OPTIONAL.into(), Arc::new([ty]))
    }

    pub(super) fn type_of(ty: Type) -> Self {
        Type::Type(Some(Arc::new(ty)))
    }

    pub(super) fn is_dyn(&self) -> bool {
        matches!(self, Type::Dyn)
    }

    pub(super) fn is_dyn_or_error(&self) -> bool {
        matches!(self, Type::Dyn | Type::Error)
    }

    /// The value type of an optional.
    pub(super) fn optional_value_type(&self) -> Option<&Type> {
        match self {
            Type::Opaque(name, params) if name.as_ref() == OPTIONAL => params.first(),
            _ => None,
        }
    }

    /// True for types whose values all have the same size.
    pub(super) fn is_scalar(&self) -> bool {
        match self {
            Type::Bool | Type::Double | Type::Duration | Type::Int | Type::Timestamp | Type::Uint => true,
            other => other.optional_value_type().is_some_and(Type::is_scalar),
        }
    }

    /// Name in messages about the result of a policy's expression: that of the protocol buffer type.
    pub fn full_name(&self) -> String {
        let params: Vec<String> = self.params().into_iter().map(Type::full_name).collect();
        let name = match self {
            Type::Null => "null_type".to_owned(),
            Type::Duration => "google.protobuf.Duration".to_owned(),
            Type::Timestamp => "google.protobuf.Timestamp".to_owned(),
            Type::List(_) => "list".to_owned(),
            Type::Map(_) => "map".to_owned(),
            Type::Opaque(name, _) => name.to_string(),
            Type::Type(_) => "type".to_owned(),
            other => other.to_string(),
        };
        if params.is_empty() { name } else { format!("{name}({})", params.join(", ")) }
    }

    fn params(&self) -> Vec<&Type> {
        match self {
            Type::List(item) => vec![item],
            Type::Map(pair) => vec![&pair.0, &pair.1],
            Type::Opaque(_, params) => params.iter().collect(),
            Type::Type(ty) => ty.iter().map(AsRef::as_ref).collect(),
            _ => Vec::new(),
        }
    }

    fn is_nullable(&self) -> bool {
        matches!(self, Type::Opaque(..) | Type::Object(_) | Type::Duration | Type::Timestamp | Type::Null)
    }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name: &str = match self {
            Type::Dyn => "dyn",
            Type::Error => "!error!",
            Type::Null => "null",
            Type::Bool => "bool",
            Type::Int => "int",
            Type::Uint => "uint",
            Type::Double => "double",
            Type::String => "string",
            Type::Bytes => "bytes",
            Type::Duration => "duration",
            Type::Timestamp => "timestamp",
            Type::List(_) => "list",
            Type::Map(_) => "map",
            Type::Object(name) | Type::Opaque(name, _) | Type::Param(name) => name,
            Type::Type(_) => "type",
        };
        f.write_str(name)?;
        let params = self.params();
        for (index, param) in params.iter().enumerate() {
            f.write_str(if index == 0 { "(" } else { ", " })?;
            param.fmt(f)?;
        }
        f.write_str(if params.is_empty() { "" } else { ")" })
    }
}

/// Substitution of type parameters.
#[derive(Debug, Clone, Default)]
pub(super) struct Substitution(HashMap<Arc<str>, Type>);

impl Substitution {
    pub fn insert(&mut self, name: Arc<str>, ty: Type) {
        self.0.insert(name, ty);
    }

    fn find(&self, ty: &Type) -> Option<&Type> {
        match ty {
            Type::Param(name) => self.0.get(name),
            _ => None,
        }
    }

    /// Substitutes type parameters; with `unbound_as_dyn`, unbound ones become dynamic.
    pub fn substitute(&self, ty: &Type, unbound_as_dyn: bool) -> Type {
        if let Some(found) = self.find(ty) {
            return self.substitute(found, unbound_as_dyn);
        }
        match ty {
            Type::Param(_) if unbound_as_dyn => Type::Dyn,
            Type::List(item) => Type::list(self.substitute(item, unbound_as_dyn)),
            Type::Map(pair) => {
                Type::map(self.substitute(&pair.0, unbound_as_dyn), self.substitute(&pair.1, unbound_as_dyn))
            }
            Type::Opaque(name, params) => {
                Type::Opaque(name.clone(), params.iter().map(|param| self.substitute(param, unbound_as_dyn)).collect())
            }
            Type::Type(Some(inner)) => Type::type_of(self.substitute(inner, unbound_as_dyn)),
            other => other.clone(),
        }
    }

    /// Returns true if the types in one list are pairwise assignable to those in the other. Bindings of type parameters
    /// are kept only on success.
    pub fn unify_all(&mut self, left: &[Type], right: &[Type]) -> bool {
        let mut extended = self.clone();
        let unifies = extended.unify_pairwise(left, right);
        if unifies {
            *self = extended;
        }
        unifies
    }

    pub fn unify(&mut self, left: &Type, right: &Type) -> bool {
        self.unify_all(std::slice::from_ref(left), std::slice::from_ref(right))
    }

    fn unify_pairwise(&mut self, left: &[Type], right: &[Type]) -> bool {
        left.len() == right.len() && left.iter().zip(right).all(|(left, right)| self.unify_types(left, right))
    }

    fn unify_types(&mut self, left: &Type, right: &Type) -> bool {
        if let Type::Param(name) = right {
            let (is_valid, was_bound) = self.bind_param(name, right, left);
            if is_valid || was_bound {
                return is_valid;
            }
        }
        if let Type::Param(name) = left {
            return self.bind_param(name, left, right).0;
        }
        if left.is_dyn_or_error() || right.is_dyn_or_error() {
            return true;
        }
        match (left, right) {
            (Type::Null, other) | (other, Type::Null) => other.is_nullable(),
            (Type::Type(_), Type::Type(_)) => true,
            (Type::List(one), Type::List(other)) => self.unify_types(one, other),
            (Type::Map(one), Type::Map(other)) => {
                self.unify_types(&one.0, &other.0) && self.unify_types(&one.1, &other.1)
            }
            (Type::Opaque(one, left_params), Type::Opaque(other, right_params)) => {
                one == other && self.unify_pairwise(left_params, right_params)
            }
            (one, other) => one == other,
        }
    }

    /// Binds a parameter to a type. Returns true if that is possible, and true if no new binding was
    /// needed to decide it.
    fn bind_param(&mut self, name: &Arc<str>, param: &Type, ty: &Type) -> (bool, bool) {
        if param == ty {
            return (true, true);
        }
        if let Some(found) = self.0.get(name).cloned() {
            if found == *ty {
                return (true, true);
            }
            if !self.unify_types(ty, &found) {
                return (false, true);
            }
            let general = more_general(ty, &found).clone();
            if self.is_free_of(param, &general) {
                self.0.insert(name.clone(), general);
            }
            return (true, true);
        }
        let is_free = self.is_free_of(param, ty);
        if is_free {
            self.0.insert(name.clone(), ty.clone());
        }
        (is_free, false)
    }

    /// True if a parameter does not occur in a type.
    fn is_free_of(&self, param: &Type, within: &Type) -> bool {
        if param == within {
            return false;
        }
        match within {
            Type::Param(_) => self.find(within).is_none_or(|found| self.is_free_of(param, found)),
            other => other.params().into_iter().all(|inner| self.is_free_of(param, inner)),
        }
    }
}

/// The more general of two mutually assignable types.
pub(super) fn more_general<'a>(one: &'a Type, other: &'a Type) -> &'a Type {
    if is_less_specific(one, other) { one } else { other }
}

fn is_less_specific(one: &Type, other: &Type) -> bool {
    match (one, other) {
        (Type::Dyn | Type::Param(_), _) => true,
        (_, Type::Dyn | Type::Param(_)) => false,
        (Type::List(one), Type::List(other)) => is_less_specific(one, other),
        (Type::Map(one), Type::Map(other)) => is_less_specific(&one.0, &other.0) && is_less_specific(&one.1, &other.1),
        (Type::Opaque(one, left_params), Type::Opaque(other, right_params)) => {
            one == other
                && left_params.len() == right_params.len()
                && left_params.iter().zip(right_params.iter()).all(|(one, other)| is_less_specific(one, other))
        }
        (Type::Type(_), Type::Type(_)) => true,
        (one, other) => one == other,
    }
}
