//! Static cost estimate of an expression from the sizes that its schema allows: cel-go's algorithm with Kubernetes'
//! costs. Pure.
//!
//! A step is about a variable lookup. Estimates have a minimum and a maximum; the minimum matters for replacements
//! in texts and for concatenated lists.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use super::calls::{self, Argument, Call};
use super::checker::Facts;
use super::declared::Declared;
use super::syntax::{Expr, Fold, Literal, Node};
use super::types::Type;

/// A range of steps or sizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Span {
    pub least: u64,
    pub most: u64,
}

const NAME: Span = Span::fixed(1);
const LIST: Span = Span::fixed(10);
const MAP: Span = Span::fixed(30);
const OBJECT: Span = Span::fixed(40);

impl Span {
    pub const UNKNOWN: Self = Self { least: 0, most: u64::MAX };
    pub const NONE: Self = Self::fixed(0);
    /// Neutral element of unions.
    const EMPTY: Self = Self { least: u64::MAX, most: 0 };

    pub const fn fixed(size: u64) -> Self {
        Self { least: size, most: size }
    }

    pub fn plus(self, other: Self) -> Self {
        Self { least: self.least.saturating_add(other.least), most: self.most.saturating_add(other.most) }
    }

    pub fn times(self, other: Self) -> Self {
        Self { least: self.least.saturating_mul(other.least), most: self.most.saturating_mul(other.most) }
    }

    pub fn by(self, factor: f64) -> Self {
        Self { least: scaled(self.least, factor), most: scaled(self.most, factor) }
    }

    pub fn or(self, other: Self) -> Self {
        Self { least: self.least.min(other.least), most: self.most.max(other.most) }
    }
}

fn scaled(size: u64, factor: f64) -> u64 {
    let exact = size as f64;
    if exact > 0.0 && factor > 0.0 && exact > u64::MAX as f64 / factor {
        return u64::MAX;
    }
    (exact * factor).ceil() as u64
}

/// Sizes of the elements of a list or map.
#[derive(Debug, Clone, Copy)]
struct Inside {
    list: bool,
    key: Span,
    value: Span,
}

impl Inside {
    fn or(self, other: Self) -> Self {
        Self { list: self.list, key: self.key.or(other.key), value: self.value.or(other.value) }
    }
}

/// Origin of a value: a variable, then fields and `@items`, `@keys` or `@values`.
///
/// It behaves like Go's slices, on which Kubernetes' estimate depends: paths derived from the same prefix share
/// their storage while there is capacity, so an element appended to one is visible in others of that length.
#[derive(Debug, Clone, Default)]
pub(super) struct Path {
    room: Rc<RefCell<Vec<String>>>,
    length: usize,
}

impl Path {
    fn of(name: &str) -> Self {
        Self::default().and(name)
    }

    pub fn and(&self, step: &str) -> Self {
        let length = self.length + 1;
        if self.length < self.room.borrow().len() {
            step.clone_into(&mut self.room.borrow_mut()[self.length]);
            return Self { room: Rc::clone(&self.room), length };
        }
        let mut room = self.room.borrow().clone();
        room.resize((self.length * 2).max(1), String::new());
        step.clone_into(&mut room[self.length]);
        Self { room: Rc::new(RefCell::new(room)), length }
    }

    /// A copy with its own storage.
    pub fn apart(&self) -> Self {
        let room = self.room.borrow()[..self.length].to_vec();
        Self { room: Rc::new(RefCell::new(room)), length: self.length }
    }

    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    fn starts_with(&self, name: &str) -> bool {
        self.length > 0 && self.room.borrow()[0] == name
    }
}

/// A loop variable.
#[derive(Debug, Clone)]
struct Local {
    path: Path,
    size: Option<Span>,
    inside: Option<Inside>,
}

pub(super) struct Estimate<'a> {
    pub facts: &'a Facts,
    pub root: &'a Declared,
    paths: HashMap<usize, Path>,
    sizes: HashMap<usize, Span>,
    insides: HashMap<usize, Inside>,
    locals: HashMap<String, Vec<Local>>,
}

/// Minimum and maximum steps of an expression over values of `root`.
pub(super) fn estimate(node: &Node, facts: &Facts, root: &Declared) -> Span {
    let mut estimate = Estimate {
        facts,
        root,
        paths: HashMap::new(),
        sizes: HashMap::new(),
        insides: HashMap::new(),
        locals: HashMap::new(),
    };
    estimate.cost(node)
}

impl<'a> Estimate<'a> {
    fn of(&self, node: &Node) -> &'a Type {
        &self.facts.types[node.id]
    }

    fn cost(&mut self, node: &'a Node) -> Span {
        match &node.expr {
            Expr::Literal(_) => Span::NONE,
            Expr::Name(name) => self.name(node, name),
            Expr::Select { of, field, test } => self.select(node, of, field, *test),
            Expr::Call { name, target, args } => self.call(node, name, target.as_deref(), args),
            Expr::List { items, .. } => {
                let mut sum = LIST;
                let mut item = if items.is_empty() { Span::NONE } else { Span::EMPTY };
                for one in items {
                    sum = sum.plus(self.cost(one));
                    item = item.or(self.size_or_unknown(one));
                }
                self.insides.insert(node.id, Inside { list: true, key: Span::fixed(1), value: item });
                sum
            }
            Expr::Map(entries) => {
                let mut sum = MAP;
                let start = if entries.is_empty() { Span::NONE } else { Span::EMPTY };
                let (mut key, mut value) = (start, start);
                for entry in entries {
                    sum = sum.plus(self.cost(&entry.key)).plus(self.cost(&entry.value));
                    key = key.or(self.size_or_unknown(&entry.key));
                    value = value.or(self.size_or_unknown(&entry.value));
                }
                self.insides.insert(node.id, Inside { list: false, key, value });
                sum
            }
            Expr::Object { fields, .. } => fields.iter().fold(OBJECT, |sum, field| sum.plus(self.cost(&field.value))),
            Expr::Fold(fold) if is_bound(fold) => self.bound(node, fold),
            Expr::Fold(fold) => self.fold(node, fold),
        }
    }

    fn name(&mut self, node: &Node, name: &str) -> Span {
        let path = self.local(name).map_or_else(|| Path::of(name), |local| local.path.clone());
        self.paths.insert(node.id, path);
        NAME
    }

    fn select(&mut self, node: &Node, operand: &'a Node, field: &str, test: bool) -> Span {
        if self.facts.whole_names[node.id] {
            let name = node.qualified().unwrap_or_default();
            self.paths.insert(node.id, Path::of(&name));
            return NAME;
        }
        let sum = self.cost(operand);
        if test {
            return sum;
        }
        self.paths.insert(node.id, self.path(operand).and(field));
        match self.of(operand) {
            Type::Map(_) | Type::Object(_) | Type::Param(_) => sum.plus(NAME),
            _ => sum,
        }
    }

    fn call(&mut self, node: &'a Node, name: &str, target: Option<&'a Node>, args: &'a [Node]) -> Span {
        if name == "dyn"
            && let Some(arg) = args.first()
        {
            let cost = self.cost(arg);
            self.copy(node, arg);
            return cost.plus(Span::fixed(1));
        }
        let costs: Vec<Span> = args.iter().map(|arg| self.cost(arg)).collect();
        let given: Vec<Argument<'a>> = args.iter().map(|arg| self.argument(arg)).collect();
        let overloads = &self.facts.overloads[node.id];
        let target = target.filter(|_| !self.facts.namespaced[node.id]);
        let full = if self.facts.namespaced[node.id] { qualified(node) } else { name.to_owned() };
        let mut sum = Span::NONE;
        let mut on = None;
        if let Some(target) = target {
            sum = self.cost(target);
            on = Some(self.argument(target));
        }
        let mut cost = Span::EMPTY;
        let mut size: Option<Span> = None;
        for overload in overloads {
            let call = Call { name: &full, overload, target: on.as_ref(), args: &given, costs: &costs };
            let (one, result) = self.overload(node, &call, args);
            cost = cost.or(one);
            if let Some(result) = result {
                size = Some(size.map_or(result, |size| size.or(result)));
            }
            let step = match *overload {
                "index_list" => Some("@items"),
                "index_map" => Some("@values"),
                _ => None,
            };
            if let Some((step, of)) = step.zip(args.first()) {
                size = self.inside(of).map(|inside| inside.value);
                self.paths.insert(node.id, self.path(of).and(step));
            }
            size = size.or_else(|| self.size(node));
        }
        if let Some(size) = size {
            self.sizes.insert(node.id, size);
        }
        if overloads.is_empty() { Span::NONE } else { sum.plus(cost) }
    }

    /// Cost of one overload with its arguments, and the size of its result.
    fn overload(&mut self, node: &Node, call: &Call<'_, 'a>, args: &'a [Node]) -> (Span, Option<Span>) {
        let all = call.costs.iter().fold(Span::NONE, |sum, cost| sum.plus(*cost));
        if let Some((cost, size)) = calls::specific_cost(self, call) {
            return (cost.plus(all), size);
        }
        match (call.overload, call.costs) {
            ("logical_and" | "logical_or", [left, right]) => {
                (Span { least: left.least, most: left.plus(*right).most }, None)
            }
            ("conditional", [condition, yes, no]) => {
                let size = call.args[1].size_or_unknown().or(call.args[2].size_or_unknown());
                let inside = self.inside(&args[1]).zip(self.inside(&args[2]));
                self.insides.extend(inside.map(|(yes, no)| (node.id, yes.or(no))));
                (condition.plus(yes.or(*no)), Some(size))
            }
            ("add_string" | "add_bytes" | "add_list", [_, _]) => {
                let size = call.args[0].size_or_unknown().plus(call.args[1].size_or_unknown());
                let inside = self.inside(&args[0]).zip(self.inside(&args[1]));
                self.insides.extend(inside.map(|(left, right)| (node.id, left.or(right))));
                let cost = if call.overload == "add_list" { Span::fixed(1) } else { size.by(calls::TRAVERSAL) };
                (cost.plus(all), Some(size))
            }
            _ => {
                let (cost, size) = calls::standard_cost(call);
                (cost.plus(all), size)
            }
        }
    }

    fn argument(&mut self, node: &'a Node) -> Argument<'a> {
        let mut path = self.path(node);
        if path.starts_with(super::macros::RESULT) {
            path = Path::default();
        }
        Argument { path, of: self.of(node).clone(), node: Some(node), size: self.size(node) }
    }

    fn bound(&mut self, node: &Node, fold: &'a Fold) -> Span {
        let mut sum = self.cost(&fold.range).plus(self.cost(&fold.init));
        self.push_whole(&fold.accumulator, &fold.init);
        sum = sum.plus(self.cost(&fold.result));
        self.pop(&fold.accumulator);
        self.copy(node, &fold.result);
        sum
    }

    fn fold(&mut self, node: &Node, fold: &'a Fold) -> Span {
        let sum = self.cost(&fold.range).plus(self.cost(&fold.init));
        self.push_whole(&fold.accumulator, &fold.init);
        let inside = self.inside(&fold.range);
        let list = inside.map_or(matches!(self.of(&fold.range), Type::List(_)), |inside| inside.list);
        let (key, value) = (inside.map(|inside| inside.key), inside.map(|inside| inside.value));
        match &fold.second {
            Some(second) => {
                self.push_part(&fold.variable, &fold.range, if list { "@indices" } else { "@keys" }, key);
                self.push_part(second, &fold.range, if list { "@items" } else { "@values" }, value);
            }
            None if list => self.push_part(&fold.variable, &fold.range, "@items", value),
            None => self.push_part(&fold.variable, &fold.range, "@keys", key),
        }
        let turn = self.cost(&fold.condition).plus(self.cost(&fold.step));
        self.pop(&fold.variable);
        if let Some(second) = &fold.second {
            self.pop(second);
        }
        let sum = sum.plus(self.cost(&fold.result));
        self.pop(&fold.accumulator);
        let iterations = self.size_or_unknown(&fold.range);
        match &fold.init.expr {
            Expr::Literal(_) => {
                let size = self.size(&fold.init);
                self.sizes.extend(size.map(|size| (node.id, size)));
            }
            Expr::List { .. } | Expr::Map(_) => {
                self.sizes.insert(node.id, iterations);
                let inside = self.inside(&fold.step);
                self.insides.extend(inside.map(|inside| (node.id, inside)));
            }
            _ => {}
        }
        sum.plus(iterations.times(turn))
    }

    fn push_whole(&mut self, name: &str, of: &'a Node) {
        let local = Local { path: self.path(of), size: self.size(of), inside: self.inside(of) };
        self.locals.entry(name.to_owned()).or_default().push(local);
    }

    fn push_part(&mut self, name: &str, of: &Node, step: &str, size: Option<Span>) {
        let path = self.path(of).and(step);
        self.locals.entry(name.to_owned()).or_default().push(Local { path, size, inside: None });
    }

    fn pop(&mut self, name: &str) {
        if let Some(all) = self.locals.get_mut(name) {
            all.pop();
        }
    }

    fn local(&self, name: &str) -> Option<&Local> {
        self.locals.get(name).and_then(|all| all.last())
    }

    fn path(&self, node: &Node) -> Path {
        if let Expr::Name(name) = &node.expr
            && let Some(local) = self.local(name)
        {
            return local.path.clone();
        }
        self.paths.get(&node.id).cloned().unwrap_or_default()
    }

    fn copy(&mut self, to: &Node, from: &'a Node) {
        let (size, inside) = (self.size(from), self.inside(from));
        self.sizes.extend(size.map(|size| (to.id, size)));
        self.insides.extend(inside.map(|inside| (to.id, inside)));
    }

    fn inside(&self, node: &Node) -> Option<Inside> {
        let named = || match &node.expr {
            Expr::Name(name) => self.local(name).and_then(|local| local.inside),
            _ => None,
        };
        self.insides.get(&node.id).copied().or_else(named)
    }

    fn size_or_unknown(&mut self, node: &Node) -> Span {
        self.size(node).unwrap_or(Span::UNKNOWN)
    }

    fn size(&mut self, node: &Node) -> Option<Span> {
        if let Some(size) = self.sizes.get(&node.id) {
            return Some(*size);
        }
        if let Some(size) = written(node) {
            return Some(Span::fixed(size));
        }
        let path = self.path(node);
        if let Some(most) = self.declared(&path) {
            self.sizes.insert(node.id, most);
            return Some(most);
        }
        if self.of(node).is_scalar() {
            return Some(Span::fixed(1));
        }
        match &node.expr {
            Expr::Name(name) => self.local(name).and_then(|local| local.size),
            _ => None,
        }
    }

    /// Size limit in the schema at the end of a path.
    pub fn declared(&self, path: &Path) -> Option<Span> {
        self.root.size(&path.room.borrow()[..path.length]).map(|most| Span { least: 0, most })
    }
}

/// Size of a literal.
fn written(node: &Node) -> Option<u64> {
    let size = match &node.expr {
        Expr::Literal(Literal::Text(text)) => text.chars().count(),
        Expr::Literal(Literal::Bytes(size)) => *size,
        Expr::Literal(_) => 1,
        Expr::List { items, .. } => items.len(),
        Expr::Map(entries) => entries.len(),
        _ => return None,
    };
    u64::try_from(size).ok()
}

/// True for a name bound to a value, which is a loop without iterations.
fn is_bound(fold: &Fold) -> bool {
    matches!(&fold.range.expr, Expr::List { items, .. } if items.is_empty())
        && fold.condition.literal() == Some(&Literal::Bool(false))
}

/// Name of a function with its prefix.
fn qualified(node: &Node) -> String {
    match &node.expr {
        Expr::Call { name, target: Some(target), .. } => match target.qualified() {
            Some(prefix) => format!("{prefix}.{name}"),
            None => name.clone(),
        },
        Expr::Call { name, .. } => name.clone(),
        _ => String::new(),
    }
}
