//! Type checker: the types of all parts of an expression, and all type errors, as in cel-go. Has no side effects.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use super::Declarations;
use super::functions::{self, Overload};
use super::syntax::{Expr, Fold, Issue, Literal, Node};
use super::types::{Substitution, Type, more_general};
use crate::json::is_reserved;

/// Results of type checking, indexed by node ID.
#[derive(Debug)]
pub(super) struct CheckResults {
    pub types: Vec<Type>,
    /// Possible overloads of each call.
    pub overloads: Vec<Vec<&'static str>>,
    /// True for calls whose target is the prefix of the function's name, not a value.
    pub is_namespaced: Vec<bool>,
    /// True for selections that are a qualified name.
    pub qualified_names: Vec<bool>,
    /// Variables that the expression reads.
    pub read_variables: BTreeSet<String>,
}

/// Object type of JSON patch operations. As in cel-go, its unknown fields have an empty type, to which no value can be
/// assigned.
const JSON_PATCH: &str = "JSONPatch";

/// Range of timestamps in seconds.
const TIMESTAMP_SECONDS: RangeInclusive<i64> = -62_135_596_800..=253_402_300_799;

struct Checker<'a> {
    declarations: &'a Declarations,
    check_results: CheckResults,
    substitution: Substitution,
    locals: Vec<(String, Type)>,
    type_param_count: usize,
    issues: Vec<Issue>,
}

pub(super) fn check(node: &Node, count: usize, declarations: &Declarations) -> Result<CheckResults, Vec<Issue>> {
    let check_results = CheckResults {
        types: vec![Type::Error; count],
        overloads: vec![Vec::new(); count],
        is_namespaced: vec![false; count],
        qualified_names: vec![false; count],
        read_variables: BTreeSet::new(),
    };
    let mut checker = Checker {
        declarations,
        check_results,
        substitution: Substitution::default(),
        locals: Vec::new(),
        type_param_count: 0,
        issues: Vec::new(),
    };
    checker.check(node);
    if !checker.issues.is_empty() {
        return Err(checker.issues);
    }
    for ty in &mut checker.check_results.types {
        *ty = checker.substitution.substitute(ty, true);
    }
    Ok(checker.check_results)
}

impl Checker<'_> {
    fn report(&mut self, at: usize, text: String) {
        self.issues.push(Issue { at, text });
    }

    fn report_undeclared(&mut self, at: usize, name: &str) {
        self.report(at, format!("undeclared reference to '{name}' (in container '')"));
    }

    fn set_type(&mut self, node: &Node, ty: Type) {
        self.check_results.types[node.id] = ty;
    }

    fn type_of(&self, node: &Node) -> Type {
        self.check_results.types[node.id].clone()
    }

    fn new_type_param(&mut self) -> Type {
        self.type_param_count += 1;
        Type::Param(format!("_var{}", self.type_param_count - 1).into())
    }

    fn check(&mut self, node: &Node) {
        let ty = match &node.expr {
            Expr::Literal(literal) => literal_type(literal),
            Expr::Name(name) => self.name(node, name),
            Expr::Select { operand, field, test } => self.select(node, operand, field, *test),
            Expr::Call { name, target, args } => self.call(node, name, target.as_deref(), args),
            Expr::List { items, optional } => self.list(items, optional),
            Expr::Map(_) => self.map(node),
            Expr::Object { name, .. } => self.object(node, name),
            Expr::Fold(fold) => self.fold(fold),
        };
        self.set_type(node, ty);
    }

    fn local(&self, name: &str) -> Option<Type> {
        self.locals.iter().rev().find(|(local, _)| local == name).map(|(_, ty)| ty.clone())
    }

    /// Type of a global name.
    fn global(&mut self, name: &str) -> Option<Type> {
        let name = name.strip_prefix('.').unwrap_or(name);
        if let Some(ty) = self.declarations.variables.get(name) {
            self.check_results.read_variables.insert(name.to_owned());
            return Some(ty.clone());
        }
        let object = || self.declarations.objects.contains_key(name).then(|| Type::type_of(Type::object(name)));
        functions::type_by_name(name).or_else(object)
    }

    fn name(&mut self, node: &Node, name: &str) -> Type {
        if let Some(ty) = self.local(name).or_else(|| self.global(name)) {
            return ty;
        }
        self.report_undeclared(node.at, name);
        Type::Error
    }

    fn select(&mut self, node: &Node, operand: &Node, field: &str, test: bool) -> Type {
        if !test
            && let Some(name) = operand.qualified_name()
            && self.local(name.split('.').next().unwrap_or_default()).is_none()
            && let Some(ty) = self.global(&format!("{name}.{field}"))
        {
            self.check_results.qualified_names[node.id] = true;
            return ty;
        }
        let found = self.field(node, operand, field, false);
        if test { Type::Bool } else { self.substitution.substitute(&found, false) }
    }

    fn field(&mut self, node: &Node, operand: &Node, field: &str, optional: bool) -> Type {
        self.check(operand);
        let operand = self.substitution.substitute(&self.type_of(operand), false);
        let (target, is_optional) = match operand.optional_value_type() {
            Some(inner) => (inner.clone(), true),
            None => (operand, false),
        };
        let found = match &target {
            Type::Map(pair) => pair.1.clone(),
            Type::Object(name) => self.field_type(node.at, name, field),
            Type::Param(_) => {
                self.substitution.unify(&Type::Dyn, &target);
                Type::Dyn
            }
            other if other.is_dyn_or_error() => Type::Dyn,
            other => {
                self.report(node.at, format!("type '{other}' does not support field selection"));
                Type::Dyn
            }
        };
        if is_optional || optional { Type::optional(found) } else { found }
    }

    /// True for objects of patches, which accept any field except for JSON patch operations.
    fn is_patch_object(&self, name: &str) -> bool {
        self.declarations.allows_patches && (name == "Object" || name.starts_with("Object."))
    }

    /// Type of an object's field.
    fn field_type(&mut self, at: usize, name: &str, field: &str) -> Type {
        if self.is_patch_object(name) {
            return Type::Dyn;
        }
        let Some(fields) = self.declarations.objects.get(name) else {
            self.report(at, format!("unexpected failed resolution of '{name}'"));
            return Type::Error;
        };
        // Reserved words can be used without escaping.
        if let Some(ty) =
            fields.get(field).or_else(|| fields.get(&format!("__{field}__")).filter(|_| is_reserved(field)))
        {
            return ty.clone();
        }
        self.report(at, format!("undefined field '{field}'"));
        Type::Error
    }

    fn call(&mut self, node: &Node, name: &str, target: Option<&Node>, args: &[Node]) -> Type {
        if name == "_?._"
            && let [operand, field] = args
            && let Some(Literal::Text(text)) = field.literal()
        {
            let found = self.field(node, operand, text, true);
            self.check_results.types[field.id] = Type::String;
            self.check_results.overloads[node.id] = vec!["select_optional_field"];
            return self.substitution.substitute(&found, false);
        }
        for arg in args {
            self.check(arg);
        }
        let Some(target) = target else {
            return match self.overloads(name) {
                Some(overloads) => self.resolve(node, name, overloads, None, args),
                None => {
                    self.report_undeclared(node.at, name);
                    Type::Error
                }
            };
        };
        if let Some(full) = target.qualified_name().map(|prefix| format!("{prefix}.{name}"))
            && let Some(overloads) = self.overloads(&full)
        {
            self.check_results.is_namespaced[node.id] = true;
            return self.resolve(node, &full, overloads, None, args);
        }
        self.check(target);
        match self.overloads(name) {
            Some(overloads) => self.resolve(node, name, overloads, Some(target), args),
            None => {
                self.report_undeclared(node.at, name);
                Type::Error
            }
        }
    }

    fn overloads(&self, name: &str) -> Option<&'static [Overload]> {
        let name = name.strip_prefix('.').unwrap_or(name);
        functions::overloads(name).filter(|_| self.declarations.allows_patches || name != functions::ESCAPE_KEY)
    }

    fn resolve(
        &mut self,
        node: &Node,
        name: &str,
        overloads: &'static [Overload],
        target: Option<&Node>,
        args: &[Node],
    ) -> Type {
        let arg_types: Vec<Type> = target.into_iter().chain(args).map(|arg| self.type_of(arg)).collect();
        if let "_&&_" | "_||_" = name {
            return self.resolve_logical(node, overloads, args, &arg_types);
        }
        let mut result: Option<Type> = None;
        for overload in overloads.iter().filter(|overload| overload.is_method == target.is_some()) {
            let mut fresh = Substitution::default();
            for param in &overload.type_params {
                let open = self.new_type_param();
                fresh.insert(param.clone(), open);
            }
            let parameters: Vec<Type> =
                overload.parameters.iter().map(|parameter| fresh.substitute(parameter, false)).collect();
            if !self.substitution.unify_all(&arg_types, &parameters) {
                continue;
            }
            self.check_results.overloads[node.id].push(overload.id);
            let result_type = self.substitution.substitute(&fresh.substitute(&overload.result, false), false);
            result = Some(match result {
                None => result_type,
                Some(before) if before.is_dyn() || before == result_type => before,
                Some(_) => Type::Dyn,
            });
        }
        if let Some(result) = result {
            return result;
        }
        let mut type_names = arg_types.iter().map(|ty| self.substitution.substitute(ty, true).to_string());
        let receiver =
            target.and_then(|_| type_names.next()).map(|receiver| format!("{receiver}.")).unwrap_or_default();
        let signature = type_names.collect::<Vec<_>>().join(", ");
        self.report(node.at, format!("found no matching overload for '{name}' applied to '{receiver}({signature})'"));
        Type::Error
    }

    fn resolve_logical(
        &mut self,
        node: &Node,
        overloads: &'static [Overload],
        args: &[Node],
        arg_types: &[Type],
    ) -> Type {
        let mut fits = true;
        for (arg, ty) in args.iter().zip(arg_types) {
            if !self.substitution.unify(ty, &Type::Bool) {
                self.report(arg.at, format!("expected type 'bool' but found '{ty}'"));
                fits = false;
            }
        }
        if !fits {
            return Type::Error;
        }
        self.check_results.overloads[node.id] = overloads.iter().take(1).map(|overload| overload.id).collect();
        Type::Bool
    }

    /// The element type that an optional element adds to a literal.
    fn unwrap_element(&mut self, node: &Node, ty: Type, optional: bool) -> Type {
        if !optional {
            return ty;
        }
        match ty.optional_value_type() {
            Some(inner) => inner.clone(),
            None => {
                if !ty.is_dyn() {
                    let expected = Type::optional(ty.clone());
                    self.report(node.at, format!("expected type '{expected}' but found '{ty}'"));
                }
                ty
            }
        }
    }

    /// The common type of two elements; [`check_literals`] reports mixed types where they are not allowed.
    fn join_types(&mut self, before: Option<Type>, now: Type) -> Type {
        match before {
            None => now,
            Some(before) if self.substitution.unify(&before, &now) => more_general(&before, &now).clone(),
            Some(_) => Type::Dyn,
        }
    }

    fn list(&mut self, items: &[Node], optional: &[usize]) -> Type {
        let mut joined = None;
        for (index, item) in items.iter().enumerate() {
            self.check(item);
            let ty = self.type_of(item);
            let ty = self.unwrap_element(item, ty, optional.contains(&index));
            joined = Some(self.join_types(joined, ty));
        }
        let item = joined.unwrap_or_else(|| self.new_type_param());
        Type::list(item)
    }

    fn map(&mut self, node: &Node) -> Type {
        let Expr::Map(entries) = &node.expr else { return Type::Error };
        let (mut key, mut value) = (None, None);
        for entry in entries {
            self.check(&entry.key);
            key = Some(self.join_types(key, self.type_of(&entry.key)));
            self.check(&entry.value);
            let ty = self.type_of(&entry.value);
            let ty = self.unwrap_element(&entry.value, ty, entry.optional);
            value = Some(self.join_types(value, ty));
        }
        match (key, value) {
            (Some(key), Some(value)) => Type::map(key, value),
            _ => {
                let (key, value) = (self.new_type_param(), self.new_type_param());
                Type::map(key, value)
            }
        }
    }

    fn object(&mut self, node: &Node, name: &str) -> Type {
        let Expr::Object { fields, .. } = &node.expr else { return Type::Error };
        let bare = name.strip_prefix('.').unwrap_or(name);
        if let Some(Type::Type(Some(known))) = functions::type_by_name(bare)
            && matches!(*known, Type::Timestamp | Type::Duration)
            && fields.is_empty()
        {
            return (*known).clone();
        }
        if !self.declarations.objects.contains_key(bare) && !self.is_patch_object(bare) {
            self.report_undeclared(node.at, name);
            return Type::Error;
        }
        for field in fields {
            self.check(&field.value);
            if bare == JSON_PATCH
                && !self.declarations.objects.get(bare).is_some_and(|known| known.contains_key(&field.name))
            {
                let (name, value_type) = (&field.name, self.type_of(&field.value));
                self.report(
                    field.at,
                    format!("expected type of field '{name}' is '' but provided type is '{value_type}'"),
                );
                continue;
            }
            let expected = self.field_type(field.at, bare, &field.name);
            let value_type = self.type_of(&field.value);
            let value_type = self.unwrap_element(&field.value, value_type, field.optional);
            if !self.substitution.unify(&expected, &value_type) {
                let name = &field.name;
                let text =
                    format!("expected type of field '{name}' is '{expected}' but provided type is '{value_type}'");
                self.report(field.at, text);
            }
        }
        Type::object(bare)
    }

    fn fold(&mut self, fold: &Fold) -> Type {
        self.check(&fold.range);
        self.check(&fold.init);
        let range = self.substitution.substitute(&self.type_of(&fold.range), false);
        let accumulated = self.type_of(&fold.init);
        let (first, second) = match &range {
            Type::List(item) if fold.second.is_some() => (Type::Int, (**item).clone()),
            Type::List(item) => ((**item).clone(), Type::Error),
            Type::Map(pair) => (pair.0.clone(), pair.1.clone()),
            Type::Dyn | Type::Error | Type::Param(_) => {
                self.substitution.unify(&Type::Dyn, &range);
                (Type::Dyn, Type::Dyn)
            }
            other => {
                let text = format!(
                    "expression of type '{other}' cannot be range of a comprehension (must be list, map, or dynamic)"
                );
                self.report(fold.range.at, text);
                (Type::Error, Type::Error)
            }
        };
        let outside = self.locals.len();
        self.locals.push((fold.accumulator.clone(), accumulated.clone()));
        let inside = self.locals.len();
        self.locals.push((fold.variable.clone(), first));
        self.locals.extend(fold.second.iter().map(|name| (name.clone(), second.clone())));
        self.check(&fold.condition);
        self.check_assignable(&fold.condition, &Type::Bool);
        self.check(&fold.step);
        self.check_assignable(&fold.step, &accumulated);
        self.locals.truncate(inside);
        self.check(&fold.result);
        self.locals.truncate(outside);
        self.substitution.substitute(&self.type_of(&fold.result), false)
    }

    fn check_assignable(&mut self, node: &Node, expected: &Type) {
        let actual = self.type_of(node);
        if !self.substitution.unify(expected, &actual) {
            self.report(node.at, format!("expected type '{expected}' but found '{actual}'"));
        }
    }
}

fn literal_type(literal: &Literal) -> Type {
    match literal {
        Literal::Null => Type::Null,
        Literal::Bool(_) => Type::Bool,
        Literal::Int(_) => Type::Int,
        Literal::Uint => Type::Uint,
        Literal::Double => Type::Double,
        Literal::Text(_) => Type::String,
        Literal::Bytes(_) => Type::Bytes,
    }
}

/// Reports invalid literals: malformed times and patterns, and lists and maps of mixed types.
pub(super) fn check_literals(
    node: &Node,
    check_results: &CheckResults,
    accepts_literal: &dyn Fn(&str, &str) -> bool,
) -> Vec<Issue> {
    let mut issues = Vec::new();
    for function in ["duration", "timestamp", "matches"] {
        node.walk(false, &mut |node, _| {
            if let Expr::Call { name, args, .. } = &node.expr
                && name == function
                && let Some(arg) = args.first()
                && let Some(literal) = arg.literal()
                && match literal {
                    Literal::Text(text) => !accepts_literal(function, text),
                    Literal::Int(seconds) => function == "timestamp" && !TIMESTAMP_SECONDS.contains(seconds),
                    _ => false,
                }
            {
                issues.push(Issue { at: arg.at, text: format!("invalid {function} argument") });
            }
        });
    }
    // The arguments of `format` can have any types.
    node.walk(false, &mut |node, formatted| {
        if let Expr::List { items, optional } = &node.expr
            && !formatted
        {
            issues.extend(find_mixed_type(
                items.iter().enumerate().map(|(index, item)| (item, optional.contains(&index))),
                check_results,
            ));
        }
    });
    node.walk(false, &mut |node, formatted| {
        if let Expr::Map(entries) = &node.expr
            && !formatted
        {
            issues.extend(find_mixed_type(entries.iter().map(|entry| (&entry.key, false)), check_results));
            issues.extend(find_mixed_type(entries.iter().map(|entry| (&entry.value, entry.optional)), check_results));
        }
    });
    issues
}

/// The first element whose type differs from that of the first element.
fn find_mixed_type<'a>(
    elements: impl Iterator<Item = (&'a Node, bool)>,
    check_results: &CheckResults,
) -> Option<Issue> {
    let mut first: Option<&Type> = None;
    for (node, optional) in elements {
        let ty = &check_results.types[node.id];
        let ty = if optional { ty.optional_value_type().unwrap_or(ty) } else { ty };
        match first {
            None => first = Some(ty),
            Some(expected) if expected != ty => {
                return Some(Issue { at: node.at, text: format!("expected type '{expected}' but found '{ty}'") });
            }
            Some(_) => {}
        }
    }
    None
}
