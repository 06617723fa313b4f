//! Determines the kinds of lists and optionals in an expression at compile time, and inserts calls that compare,
//! concatenate and wrap them accordingly; see [`super::kinds`] and [`super::optionals`]. Pure.

use std::mem::take;

use kube::core::cel::cel::common::ast::{
    CallExpr, ComprehensionExpr, EntryExpr, Expr, IdedExpr, LiteralValue, operators,
};

use super::functions::{INSERTED, MAP_OF, PAIRS, SORTED};
use super::kinds::{ADDED, CONTAINED, EQUAL, Kind};
use super::macros::{call, node};
use super::optionals::{FREED, HELD, OF_STORED};

/// A name that an expression reads.
#[derive(Debug)]
struct Known {
    name: String,
    kind: Kind,
    /// True for the elements of a list.
    element: bool,
}

/// Rewrites an expression whose macros are expanded.
#[derive(Debug)]
pub(super) struct Rewriter {
    /// Names in scope, innermost last.
    scope: Vec<Known>,
    /// Kinds referenced by inserted calls.
    pub kinds: Vec<Kind>,
    /// True if the variables are stored values.
    stored: bool,
}

/// Name of the variable that holds a kind at evaluation.
pub(super) fn variable(index: usize) -> String {
    format!("@kind{index}")
}

impl Rewriter {
    pub fn new(variables: &[(&str, Kind)]) -> Self {
        let scope =
            variables.iter().map(|(name, kind)| Known { name: (*name).to_owned(), kind: kind.clone(), element: false });
        Self { scope: scope.collect(), kinds: Vec::new(), stored: !variables.is_empty() }
    }

    /// Rewrites an expression and returns its kind.
    pub fn rewrite(&mut self, expr: &mut IdedExpr) -> Kind {
        match &mut expr.expr {
            Expr::Ident(name) => {
                let found = self.scope.iter().rev().find(|known| known.name == *name);
                let Some(Known { kind, element, .. }) = found else { return Kind::Plain };
                let (kind, held) = (kind.clone(), *element && kind.is_optional());
                if held {
                    *expr = call(FREED, vec![take(expr)]);
                }
                kind
            }
            Expr::Select(select) => {
                let of = self.rewrite(&mut select.operand);
                if !select.test {
                    return of.member(&select.field);
                }
                if of.is_optional() {
                    let field = node(Expr::Literal(LiteralValue::String(select.field.as_str().into())));
                    let member = call(operators::OPT_SELECT, vec![take(&mut select.operand), field]);
                    *expr = method(member, "hasValue");
                }
                Kind::Plain
            }
            Expr::List(list) => {
                let mut item = Kind::Plain;
                for (index, one) in list.elements.iter_mut().enumerate() {
                    let kind = self.rewrite(one);
                    if list.optional_indices.contains(&index) {
                        item = item.or(kind.unwrapped());
                        continue;
                    }
                    if kind.is_optional() {
                        *one = call(HELD, vec![take(one)]);
                    }
                    item = item.or(kind);
                }
                item.within(Kind::Made)
            }
            Expr::Map(map) => {
                let mut of = Kind::Plain;
                for entry in &mut map.entries {
                    if let EntryExpr::MapEntry(entry) = &mut entry.expr {
                        self.rewrite(&mut entry.key);
                        let value = self.rewrite(&mut entry.value);
                        of = of.or(if entry.optional { value.unwrapped() } else { value });
                    }
                }
                of.within(Kind::Values)
            }
            Expr::Struct(object) => {
                for entry in &mut object.entries {
                    if let EntryExpr::StructField(field) = &mut entry.expr {
                        self.rewrite(&mut field.value);
                    }
                }
                Kind::Plain
            }
            Expr::Comprehension(fold) => self.fold(fold),
            Expr::Call(called) => {
                let (kind, instead) = self.call(called);
                if let Some(instead) = instead {
                    *expr = instead;
                }
                kind
            }
            _ => Kind::Plain,
        }
    }

    fn fold(&mut self, fold: &mut ComprehensionExpr) -> Kind {
        let range = self.rewrite(&mut fold.iter_range);
        let init = self.rewrite(&mut fold.accu_init);
        let outside = self.scope.len();
        let known = |name: &String, kind: Kind, element: bool| Known { name: name.clone(), kind, element };
        self.scope.push(known(&fold.accu_var, init.clone(), false));
        self.scope.push(known(&fold.iter_var, range.item(), true));
        self.rewrite(&mut fold.loop_cond);
        let step = self.rewrite(&mut fold.loop_step);
        self.scope.truncate(outside);
        self.scope.push(known(&fold.accu_var, init.or(step), false));
        let result = self.rewrite(&mut fold.result);
        self.scope.truncate(outside);
        result
    }

    /// The kind of a call's result, and the call that replaces it.
    fn call(&mut self, called: &mut CallExpr) -> (Kind, Option<IdedExpr>) {
        let empty =
            matches!(called.args.first(), Some(IdedExpr { expr: Expr::List(list), .. }) if list.elements.is_empty());
        let target = called.target.as_mut().map(|target| self.rewrite(target));
        let of: Vec<Kind> = called.args.iter_mut().map(|one| self.rewrite(one)).collect();
        let name = called.func_name.as_str();
        if let Some(target) = target {
            let namespace = matches!(called.target.as_deref(), Some(IdedExpr { expr: Expr::Ident(name), .. }) if name == "optional");
            let instead = (namespace && name == "ofNonZeroValue" && self.stored && called.args.iter().all(is_read))
                .then(|| call(OF_STORED, take(&mut called.args)));
            return (if namespace { of_optional(name, &of) } else { of_method(name, target, of) }, instead);
        }
        match (name, of.as_slice()) {
            (operators::EQUALS, [left, _]) if !left.is_plain() => {
                (Kind::Plain, Some(self.with_kind(EQUAL, left.clone(), &mut called.args)))
            }
            (operators::NOT_EQUALS, [left, _]) if !left.is_plain() => {
                let equal = self.with_kind(EQUAL, left.clone(), &mut called.args);
                (Kind::Plain, Some(call(operators::LOGICAL_NOT, vec![equal])))
            }
            (operators::IN, [one, list]) => {
                let kind = match list {
                    Kind::Made(_) => one.clone().within(Kind::Made),
                    list => list.item(),
                };
                let instead = (!kind.is_plain()).then(|| self.with_kind(CONTAINED, kind, &mut called.args));
                (Kind::Plain, instead)
            }
            (operators::ADD, [left @ (Kind::Set | Kind::Keyed(..)), _]) => {
                (left.clone(), Some(self.with_kind(ADDED, left.clone(), &mut called.args)))
            }
            // Concatenation with an empty literal returns the list unchanged.
            (operators::ADD, [_, right]) if empty => (right.clone(), None),
            (operators::ADD, [left, right]) => (left.clone().or(right.item().within(Kind::Made)), None),
            (operators::CONDITIONAL, [_, yes, no]) => (yes.clone().or(no.clone()), None),
            (operators::INDEX | operators::OPT_INDEX | operators::OPT_SELECT, [of, _]) => {
                let kind = indexed(of, &called.args[1]);
                if name != operators::INDEX && !of.is_optional() {
                    return (kind.optional(), None);
                }
                let held = kind.is_optional() && matches!(of, Kind::Made(_));
                (kind, held.then(|| call(FREED, vec![node(Expr::Call(take_call(called)))])))
            }
            ("dyn", [of]) => (of.clone(), None),
            (PAIRS, [Kind::Values(of)]) => ((**of).clone().within(Kind::Pair).within(Kind::Made), None),
            (PAIRS, [of]) => (of.item().within(Kind::Pair).within(Kind::Made), None),
            (MAP_OF, [of]) => (of.item().item().within(Kind::Values), None),
            (INSERTED, [into, more]) => (into.clone().or(more.clone()), None),
            (SORTED, [of, _]) => (of.item().within(Kind::Made), None),
            _ => (Kind::Plain, None),
        }
    }

    fn with_kind(&mut self, name: &str, kind: Kind, args: &mut Vec<IdedExpr>) -> IdedExpr {
        let known = self.kinds.iter().position(|known| *known == kind);
        let index = known.unwrap_or_else(|| {
            self.kinds.push(kind);
            self.kinds.len() - 1
        });
        let mut all = vec![node(Expr::Ident(variable(index)))];
        all.append(&mut take(args));
        call(name, all)
    }
}

fn take_call(called: &mut CallExpr) -> CallExpr {
    CallExpr { func_name: take(&mut called.func_name), target: called.target.take(), args: take(&mut called.args) }
}

fn method(target: IdedExpr, name: &str) -> IdedExpr {
    node(Expr::Call(CallExpr { func_name: name.to_owned(), target: Some(Box::new(target)), args: Vec::new() }))
}

/// True if the value is read from a variable rather than computed.
fn is_read(expr: &IdedExpr) -> bool {
    match &expr.expr {
        Expr::Ident(_) => true,
        Expr::Select(select) => is_read(&select.operand),
        Expr::Call(called) if called.func_name == operators::INDEX => called.args.first().is_some_and(is_read),
        _ => false,
    }
}

/// The kind of an element or entry; for an optional, an optional.
fn indexed(of: &Kind, index: &IdedExpr) -> Kind {
    match (of, &index.expr) {
        (Kind::Optional(of), _) => indexed(of, index).optional(),
        (Kind::Values(of), _) => (**of).clone(),
        (Kind::Pair(of), Expr::Literal(LiteralValue::Int(position))) if *position.inner() == 1 => (**of).clone(),
        (of, Expr::Literal(LiteralValue::String(name))) => of.member(name.inner()),
        (of, _) => of.item(),
    }
}

fn of_optional(name: &str, args: &[Kind]) -> Kind {
    match (name, args) {
        ("of" | "ofNonZeroValue", [of]) => of.clone().optional(),
        ("none", []) => Kind::Plain.optional(),
        ("unwrap", [of]) => of.item().unwrapped().within(Kind::Made),
        _ => Kind::Plain,
    }
}

fn of_method(name: &str, target: Kind, args: Vec<Kind>) -> Kind {
    let other = args.into_iter().next().unwrap_or(Kind::Plain);
    match name {
        "value" => target.unwrapped(),
        "orValue" => target.unwrapped().or(other),
        "or" => target.or(other),
        "first" | "last" => target.item().optional(),
        "validate" => Kind::Plain.optional(),
        "reverse" | "sort" | "distinct" | "slice" => target.item().within(Kind::Made),
        "flatten" => target.item().item().within(Kind::Made),
        "unwrapOpt" => target.item().unwrapped().within(Kind::Made),
        _ => Kind::Plain,
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::super::{Budget, Program, to_json, with_base};
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
            "map": entries(&["k"]), "turned": entries(&["k"]), "spaced": entries(&["k", "namespace"]),
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
    #[case("self.map == self.turned", json!(true))]
    #[case("self.map[0] == self.turned[1]", json!(true))]
    #[case("self.map.all(e, e in self.turned)", json!(true))]
    #[case("(self.map + self.turned).map(e, e.k)", json!(["x", "y"]))]
    #[case("self.spaced == self.spaced", json!(false))]
    #[case("self == self", json!(false))]
    fn list_operations_match_kube_apiserver(#[case] source: &str, #[case] wanted: Value) {
        let object = json!({
            "abc": ["a", "b", "c"], "cab": ["c", "a", "b"], "plain": ["b", "c", "a"], "numbers": [1, 2.5],
            "sets": [["a", "b"], ["b", "a"]], "by": {"one": ["a", "b"]},
            "map": [{"k": "x", "tags": ["p", "q"]}, {"k": "y"}], "turned": [{"k": "y"}, {"k": "x", "tags": ["q", "p"]}],
            "spaced": [{"k": "x", "namespace": "a"}, {"k": "x", "namespace": "b"}],
        });
        let schema = schema();
        let program = Program::compile_over(source, &[("self", Kind::of_schema(&schema))]).unwrap();
        let found = with_base(|base| {
            let mut scope = base.new_inner_scope();
            scope.add_variable_from_value("self", to_cel(&schema, &object));
            to_json(&program.execute(&scope, &mut Budget::rules()).unwrap()).unwrap()
        });
        assert_eq!(found, wanted);
    }
}
