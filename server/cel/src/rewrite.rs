//! Determines the kinds of lists and optionals in an expression at compile time, and inserts calls that compare,
//! concatenate and wrap them accordingly; see [`super::kinds`] and [`super::optionals`]. Has no side effects.

use std::mem::take;

use kube::core::cel::cel::common::ast::{
    CallExpr, ComprehensionExpr, EntryExpr, Expr, IdedExpr, LiteralValue, operators,
};

use super::functions::{INSERT, PAIRS, PAIRS_TO_MAP, SORT_BY};
use super::kinds::{CONCATENATE, CONTAINS, EQUAL, ValueKind};
use super::macros::{call, node};
use super::optionals::{OPTIONAL_OF_STORED, UNWRAP_OPTIONAL, WRAP_OPTIONAL};

/// A variable that an expression can read.
#[derive(Debug)]
struct ScopedVariable {
    name: String,
    kind: ValueKind,
    /// True for the elements of a list.
    is_element: bool,
}

/// Rewrites an expression whose macros are expanded.
#[derive(Debug)]
pub(super) struct Rewriter {
    /// Names in scope, innermost last.
    scope: Vec<ScopedVariable>,
    /// Kinds referenced by inserted calls.
    pub kinds: Vec<ValueKind>,
    /// True if the variables are stored values.
    has_stored_variables: bool,
}

/// Name of the variable that holds a kind at evaluation.
pub(super) fn variable(index: usize) -> String {
    format!("@kind{index}")
}

impl Rewriter {
    pub fn new(variables: &[(&str, ValueKind)]) -> Self {
        let scope = variables.iter().map(|(name, kind)| ScopedVariable {
            name: (*name).to_owned(),
            kind: kind.clone(),
            is_element: false,
        });
        Self { scope: scope.collect(), kinds: Vec::new(), has_stored_variables: !variables.is_empty() }
    }

    /// Rewrites an expression and returns its kind.
    pub fn rewrite(&mut self, expr: &mut IdedExpr) -> ValueKind {
        match &mut expr.expr {
            Expr::Ident(name) => {
                let found = self.scope.iter().rev().find(|known| known.name == *name);
                let Some(ScopedVariable { kind, is_element, .. }) = found else { return ValueKind::Plain };
                let (kind, is_wrapped) = (kind.clone(), *is_element && kind.is_optional());
                if is_wrapped {
                    *expr = call(UNWRAP_OPTIONAL, vec![take(expr)]);
                }
                kind
            }
            Expr::Select(select) => {
                let operand = self.rewrite(&mut select.operand);
                if !select.test {
                    return operand.member(&select.field);
                }
                if operand.is_optional() {
                    let field = node(Expr::Literal(LiteralValue::String(select.field.as_str().into())));
                    let member = call(operators::OPT_SELECT, vec![take(&mut select.operand), field]);
                    *expr = method(member, "hasValue");
                }
                ValueKind::Plain
            }
            Expr::List(list) => {
                let mut item_kind = ValueKind::Plain;
                for (index, item) in list.elements.iter_mut().enumerate() {
                    let kind = self.rewrite(item);
                    if list.optional_indices.contains(&index) {
                        item_kind = item_kind.or(kind.unwrap_optional());
                        continue;
                    }
                    if kind.is_optional() {
                        *item = call(WRAP_OPTIONAL, vec![take(item)]);
                    }
                    item_kind = item_kind.or(kind);
                }
                item_kind.wrap_in(ValueKind::Computed)
            }
            Expr::Map(map) => {
                let mut values = ValueKind::Plain;
                for entry in &mut map.entries {
                    if let EntryExpr::MapEntry(entry) = &mut entry.expr {
                        self.rewrite(&mut entry.key);
                        let value = self.rewrite(&mut entry.value);
                        values = values.or(if entry.optional { value.unwrap_optional() } else { value });
                    }
                }
                values.wrap_in(ValueKind::Values)
            }
            Expr::Struct(object) => {
                for entry in &mut object.entries {
                    if let EntryExpr::StructField(field) = &mut entry.expr {
                        self.rewrite(&mut field.value);
                    }
                }
                ValueKind::Plain
            }
            Expr::Comprehension(fold) => self.rewrite_loop(fold),
            Expr::Call(call_expr) => {
                let (kind, replacement) = self.rewrite_call(call_expr);
                if let Some(replacement) = replacement {
                    *expr = replacement;
                }
                kind
            }
            _ => ValueKind::Plain,
        }
    }

    fn rewrite_loop(&mut self, fold: &mut ComprehensionExpr) -> ValueKind {
        let range = self.rewrite(&mut fold.iter_range);
        let init = self.rewrite(&mut fold.accu_init);
        let outside = self.scope.len();
        let scoped =
            |name: &String, kind: ValueKind, is_element: bool| ScopedVariable { name: name.clone(), kind, is_element };
        self.scope.push(scoped(&fold.accu_var, init.clone(), false));
        self.scope.push(scoped(&fold.iter_var, range.item(), true));
        self.rewrite(&mut fold.loop_cond);
        let step = self.rewrite(&mut fold.loop_step);
        self.scope.truncate(outside);
        self.scope.push(scoped(&fold.accu_var, init.or(step), false));
        let result = self.rewrite(&mut fold.result);
        self.scope.truncate(outside);
        result
    }

    /// The kind of a call's result, and the call that replaces it.
    fn rewrite_call(&mut self, call_expr: &mut CallExpr) -> (ValueKind, Option<IdedExpr>) {
        let is_first_empty =
            matches!(call_expr.args.first(), Some(IdedExpr { expr: Expr::List(list), .. }) if list.elements.is_empty());
        let target = call_expr.target.as_mut().map(|target| self.rewrite(target));
        let args: Vec<ValueKind> = call_expr.args.iter_mut().map(|arg| self.rewrite(arg)).collect();
        let name = call_expr.func_name.as_str();
        if let Some(target) = target {
            let is_namespaced = matches!(call_expr.target.as_deref(), Some(IdedExpr { expr: Expr::Ident(name), .. }) if name == "optional");
            let replacement = (is_namespaced
                && name == "ofNonZeroValue"
                && self.has_stored_variables
                && call_expr.args.iter().all(is_read_from_variable))
            .then(|| call(OPTIONAL_OF_STORED, take(&mut call_expr.args)));
            return (
                if is_namespaced { optional_function_kind(name, &args) } else { method_kind(name, target, args) },
                replacement,
            );
        }
        match (name, args.as_slice()) {
            (operators::EQUALS, [left, _]) if !left.is_plain() => {
                (ValueKind::Plain, Some(self.call_with_kind(EQUAL, left.clone(), &mut call_expr.args)))
            }
            (operators::NOT_EQUALS, [left, _]) if !left.is_plain() => {
                let equal = self.call_with_kind(EQUAL, left.clone(), &mut call_expr.args);
                (ValueKind::Plain, Some(call(operators::LOGICAL_NOT, vec![equal])))
            }
            (operators::IN, [item, list]) => {
                let kind = match list {
                    ValueKind::Computed(_) => item.clone().wrap_in(ValueKind::Computed),
                    list => list.item(),
                };
                let replacement = (!kind.is_plain()).then(|| self.call_with_kind(CONTAINS, kind, &mut call_expr.args));
                (ValueKind::Plain, replacement)
            }
            (operators::ADD, [left @ (ValueKind::Set | ValueKind::Keyed(..)), _]) => {
                (left.clone(), Some(self.call_with_kind(CONCATENATE, left.clone(), &mut call_expr.args)))
            }
            // Concatenation with an empty literal returns the list unchanged.
            (operators::ADD, [_, right]) if is_first_empty => (right.clone(), None),
            (operators::ADD, [left, right]) => (left.clone().or(right.item().wrap_in(ValueKind::Computed)), None),
            (operators::CONDITIONAL, [_, yes, no]) => (yes.clone().or(no.clone()), None),
            (operators::INDEX | operators::OPT_INDEX | operators::OPT_SELECT, [container, _]) => {
                let kind = index_kind(container, &call_expr.args[1]);
                if name != operators::INDEX && !container.is_optional() {
                    return (kind.optional(), None);
                }
                let is_wrapped = kind.is_optional() && matches!(container, ValueKind::Computed(_));
                (kind, is_wrapped.then(|| call(UNWRAP_OPTIONAL, vec![node(Expr::Call(take_call(call_expr)))])))
            }
            ("dyn", [arg]) => (arg.clone(), None),
            (PAIRS, [ValueKind::Values(value)]) => {
                ((**value).clone().wrap_in(ValueKind::Pair).wrap_in(ValueKind::Computed), None)
            }
            (PAIRS, [list]) => (list.item().wrap_in(ValueKind::Pair).wrap_in(ValueKind::Computed), None),
            (PAIRS_TO_MAP, [pairs]) => (pairs.item().item().wrap_in(ValueKind::Values), None),
            (INSERT, [into, more]) => (into.clone().or(more.clone()), None),
            (SORT_BY, [list, _]) => (list.item().wrap_in(ValueKind::Computed), None),
            _ => (ValueKind::Plain, None),
        }
    }

    fn call_with_kind(&mut self, name: &str, kind: ValueKind, args: &mut Vec<IdedExpr>) -> IdedExpr {
        let position = self.kinds.iter().position(|existing| *existing == kind);
        let index = position.unwrap_or_else(|| {
            self.kinds.push(kind);
            self.kinds.len() - 1
        });
        let mut all_args = vec![node(Expr::Ident(variable(index)))];
        all_args.append(&mut take(args));
        call(name, all_args)
    }
}

fn take_call(call_expr: &mut CallExpr) -> CallExpr {
    CallExpr {
        func_name: take(&mut call_expr.func_name),
        target: call_expr.target.take(),
        args: take(&mut call_expr.args),
    }
}

fn method(target: IdedExpr, name: &str) -> IdedExpr {
    node(Expr::Call(CallExpr { func_name: name.to_owned(), target: Some(Box::new(target)), args: Vec::new() }))
}

/// True if the value is read from a variable rather than computed.
fn is_read_from_variable(expr: &IdedExpr) -> bool {
    match &expr.expr {
        Expr::Ident(_) => true,
        Expr::Select(select) => is_read_from_variable(&select.operand),
        Expr::Call(call_expr) if call_expr.func_name == operators::INDEX => {
            call_expr.args.first().is_some_and(is_read_from_variable)
        }
        _ => false,
    }
}

/// The kind of an element or entry; for an optional, an optional.
fn index_kind(container: &ValueKind, index: &IdedExpr) -> ValueKind {
    match (container, &index.expr) {
        (ValueKind::Optional(inner), _) => index_kind(inner, index).optional(),
        (ValueKind::Values(value), _) => (**value).clone(),
        (ValueKind::Pair(value), Expr::Literal(LiteralValue::Int(position))) if *position.inner() == 1 => {
            (**value).clone()
        }
        (container, Expr::Literal(LiteralValue::String(name))) => container.member(name.inner()),
        (container, _) => container.item(),
    }
}

fn optional_function_kind(name: &str, args: &[ValueKind]) -> ValueKind {
    match (name, args) {
        ("of" | "ofNonZeroValue", [value]) => value.clone().optional(),
        ("none", []) => ValueKind::Plain.optional(),
        ("unwrap", [list]) => list.item().unwrap_optional().wrap_in(ValueKind::Computed),
        _ => ValueKind::Plain,
    }
}

fn method_kind(name: &str, target: ValueKind, args: Vec<ValueKind>) -> ValueKind {
    let first_arg = args.into_iter().next().unwrap_or(ValueKind::Plain);
    match name {
        "value" => target.unwrap_optional(),
        "orValue" => target.unwrap_optional().or(first_arg),
        "or" => target.or(first_arg),
        "first" | "last" => target.item().optional(),
        "validate" => ValueKind::Plain.optional(),
        "reverse" | "sort" | "distinct" | "slice" => target.item().wrap_in(ValueKind::Computed),
        "flatten" => target.item().item().wrap_in(ValueKind::Computed),
        "unwrapOpt" => target.item().unwrap_optional().wrap_in(ValueKind::Computed),
        _ => ValueKind::Plain,
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::super::{Budget, Program, to_json, with_base_scope};
    use super::*;
    use crate::json::to_cel;

    fn schema() -> Value {
        let set = |items: &str| json!({"type": "array", "x-kubernetes-list-type": "set", "items": {"type": items}});
        let fields = json!({"k": {"type": "string"}, "namespace": {"type": "string"}, "tags": set("string")});
        let entries = |keys: &[&str]| {
            json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": keys,
                "items": {"type": "object", "properties": fields}})
        };
        json!({"type": "object", "properties": {
            "abc": set("string"), "cab": set("string"), "numbers": set("number"),
            "plain": {"type": "array", "items": {"type": "string"}},
            "sets": {"type": "array", "items": set("string")},
            "by": {"type": "object", "additionalProperties": set("string")},
            "map": entries(&["k"]), "reversed": entries(&["k"]), "namespaced": entries(&["k", "namespace"]),
        }})
    }

    /// Results of kube-apiserver.
    #[rstest]
    #[case("self.abc == self.cab", json!(true))]
    #[case("self.abc != self.cab", json!(false))]
    #[case("self.abc == self.plain", json!(true))]
    #[case("self.plain == self.abc", json!(false))]
    #[case("self.abc == ['c', 'b']", json!(false))]
    #[case("self.numbers == self.numbers", json!(false))]
    #[case("[self.abc] == [self.cab]", json!(true))]
    #[case("{'a': self.abc} == {'a': self.cab}", json!(true))]
    #[case("['b', 'a'] in self.sets", json!(true))]
    #[case("self.plain in [self.abc]", json!(false))]
    #[case("self.sets.all(s, s == ['b', 'a'])", json!(true))]
    #[case("self.abc.filter(x, true) == self.cab", json!(false))]
    #[case("dyn(self.abc) == self.cab", json!(true))]
    #[case("(has(self.abc) ? self.abc : []) == self.cab", json!(true))]
    #[case("self.?abc.orValue([]) == self.cab", json!(true))]
    #[case("self.?abc.optMap(s, s + ['a', 'q']).orValue([])", json!(["a", "b", "c", "q"]))]
    #[case("self.by.all(k, v, v == ['b', 'a'])", json!(true))]
    #[case("self.by.transformMap(k, v, v).all(k, v, v == ['b', 'a'])", json!(true))]
    #[case("self.abc + ['a', 'd', 'd']", json!(["a", "b", "c", "d"]))]
    #[case("['a'] + self.abc", json!(["a", "a", "b", "c"]))]
    #[case("([] + self.abc) + ['a']", json!(["a", "b", "c"]))]
    #[case("self.map == self.reversed", json!(true))]
    #[case("self.map[0] == self.reversed[1]", json!(true))]
    #[case("self.map.all(e, e in self.reversed)", json!(true))]
    #[case("(self.map + self.reversed).map(e, e.k)", json!(["x", "y"]))]
    #[case("self.namespaced == self.namespaced", json!(false))]
    #[case("self == self", json!(false))]
    fn list_operations_match_kube_apiserver(#[case] source: &str, #[case] expected: Value) {
        let object = json!({
            "abc": ["a", "b", "c"], "cab": ["c", "a", "b"], "plain": ["b", "c", "a"], "numbers": [1, 2.5],
            "sets": [["a", "b"], ["b", "a"]], "by": {"one": ["a", "b"]},
            "map": [{"k": "x", "tags": ["p", "q"]}, {"k": "y"}],
            "reversed": [{"k": "y"}, {"k": "x", "tags": ["q", "p"]}],
            "namespaced": [{"k": "x", "namespace": "a"}, {"k": "x", "namespace": "b"}],
        });
        let schema = schema();
        let program = Program::compile_with_kinds(source, &[("self", ValueKind::from_schema(&schema))]).unwrap();
        let result = with_base_scope(|base| {
            let mut scope = base.new_inner_scope();
            scope.add_variable_from_value("self", to_cel(&schema, &object));
            to_json(&program.execute(&scope, &mut Budget::for_rules()).unwrap()).unwrap()
        });
        assert_eq!(result, expected);
    }
}
