//! Static cost estimate of an expression from the sizes that its schema allows: cel-go's algorithm with Kubernetes'
//! costs. Has no side effects.
//!
//! A step is about a variable lookup. Estimates have a minimum and a maximum; the minimum matters for replacements
//! in texts and for concatenated lists.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use super::calls::{self, Argument, Call};
use super::checker::CheckResults;
use super::decl_type::DeclType;
use super::syntax::{Expr, Fold, Literal, Node};
use super::types::Type;

/// Minimum and maximum of a number of steps or of a size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SizeRange {
    pub min: u64,
    pub max: u64,
}

// Costs of reading a variable and of creating a list, map or object.
const NAME: SizeRange = SizeRange::fixed(1);
const LIST: SizeRange = SizeRange::fixed(10);
const MAP: SizeRange = SizeRange::fixed(30);
const OBJECT: SizeRange = SizeRange::fixed(40);

impl SizeRange {
    pub const UNKNOWN: Self = Self { min: 0, max: u64::MAX };
    pub const NONE: Self = Self::fixed(0);
    /// Neutral element of unions.
    const EMPTY: Self = Self { min: u64::MAX, max: 0 };

    pub const fn fixed(size: u64) -> Self {
        Self { min: size, max: size }
    }

    pub fn plus(self, other: Self) -> Self {
        Self { min: self.min.saturating_add(other.min), max: self.max.saturating_add(other.max) }
    }

    pub fn times(self, other: Self) -> Self {
        Self { min: self.min.saturating_mul(other.min), max: self.max.saturating_mul(other.max) }
    }

    pub fn scale(self, factor: f64) -> Self {
        Self { min: scale_size(self.min, factor), max: scale_size(self.max, factor) }
    }

    pub fn union(self, other: Self) -> Self {
        Self { min: self.min.min(other.min), max: self.max.max(other.max) }
    }
}

fn scale_size(size: u64, factor: f64) -> u64 {
    let exact = size as f64;
    if exact > 0.0 && factor > 0.0 && exact > u64::MAX as f64 / factor {
        return u64::MAX;
    }
    (exact * factor).ceil() as u64
}

/// Sizes of the elements of a list or map.
#[derive(Debug, Clone, Copy)]
struct ElementSizes {
    is_list: bool,
    key: SizeRange,
    value: SizeRange,
}

impl ElementSizes {
    fn union(self, other: Self) -> Self {
        Self { is_list: self.is_list, key: self.key.union(other.key), value: self.value.union(other.value) }
    }
}

/// Origin of a value: a variable, then fields and `@items`, `@keys` or `@values`.
///
/// It behaves like Go's slices, on which Kubernetes' estimate depends: paths derived from the same prefix share
/// their storage while there is capacity, so an element appended to one is visible in others of that length.
#[derive(Debug, Clone, Default)]
pub(super) struct Path {
    storage: Rc<RefCell<Vec<String>>>,
    length: usize,
}

impl Path {
    fn from_name(name: &str) -> Self {
        Self::default().join(name)
    }

    pub fn join(&self, step: &str) -> Self {
        let length = self.length + 1;
        if self.length < self.storage.borrow().len() {
            step.clone_into(&mut self.storage.borrow_mut()[self.length]);
            return Self { storage: Rc::clone(&self.storage), length };
        }
        let mut storage = self.storage.borrow().clone();
        storage.resize((self.length * 2).max(1), String::new());
        step.clone_into(&mut storage[self.length]);
        Self { storage: Rc::new(RefCell::new(storage)), length }
    }

    /// A copy with its own storage.
    pub fn detach(&self) -> Self {
        let storage = self.storage.borrow()[..self.length].to_vec();
        Self { storage: Rc::new(RefCell::new(storage)), length: self.length }
    }

    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    fn starts_with(&self, name: &str) -> bool {
        self.length > 0 && self.storage.borrow()[0] == name
    }
}

/// A loop variable.
#[derive(Debug, Clone)]
struct Local {
    path: Path,
    size: Option<SizeRange>,
    inside: Option<ElementSizes>,
}

pub(super) struct CostEstimator<'a> {
    pub check_results: &'a CheckResults,
    pub root: &'a DeclType,
    paths: HashMap<usize, Path>,
    sizes: HashMap<usize, SizeRange>,
    element_sizes: HashMap<usize, ElementSizes>,
    locals: HashMap<String, Vec<Local>>,
}

/// Minimum and maximum steps of an expression over values of `root`.
pub(super) fn estimate(node: &Node, check_results: &CheckResults, root: &DeclType) -> SizeRange {
    let mut estimator = CostEstimator {
        check_results,
        root,
        paths: HashMap::new(),
        sizes: HashMap::new(),
        element_sizes: HashMap::new(),
        locals: HashMap::new(),
    };
    estimator.cost(node)
}

impl<'a> CostEstimator<'a> {
    fn type_of(&self, node: &Node) -> &'a Type {
        &self.check_results.types[node.id]
    }

    fn cost(&mut self, node: &'a Node) -> SizeRange {
        match &node.expr {
            Expr::Literal(_) => SizeRange::NONE,
            Expr::Name(name) => self.name(node, name),
            Expr::Select { operand, field, test } => self.select(node, operand, field, *test),
            Expr::Call { name, target, args } => self.call(node, name, target.as_deref(), args),
            Expr::List { items, .. } => {
                let mut sum = LIST;
                let mut item = if items.is_empty() { SizeRange::NONE } else { SizeRange::EMPTY };
                for element in items {
                    sum = sum.plus(self.cost(element));
                    item = item.union(self.size_or_unknown(element));
                }
                self.element_sizes
                    .insert(node.id, ElementSizes { is_list: true, key: SizeRange::fixed(1), value: item });
                sum
            }
            Expr::Map(entries) => {
                let mut sum = MAP;
                let start = if entries.is_empty() { SizeRange::NONE } else { SizeRange::EMPTY };
                let (mut key, mut value) = (start, start);
                for entry in entries {
                    sum = sum.plus(self.cost(&entry.key)).plus(self.cost(&entry.value));
                    key = key.union(self.size_or_unknown(&entry.key));
                    value = value.union(self.size_or_unknown(&entry.value));
                }
                self.element_sizes.insert(node.id, ElementSizes { is_list: false, key, value });
                sum
            }
            Expr::Object { fields, .. } => fields.iter().fold(OBJECT, |sum, field| sum.plus(self.cost(&field.value))),
            Expr::Fold(fold) if is_binding(fold) => self.binding(node, fold),
            Expr::Fold(fold) => self.fold(node, fold),
        }
    }

    fn name(&mut self, node: &Node, name: &str) -> SizeRange {
        let path = self.local(name).map_or_else(|| Path::from_name(name), |local| local.path.clone());
        self.paths.insert(node.id, path);
        NAME
    }

    fn select(&mut self, node: &Node, operand: &'a Node, field: &str, test: bool) -> SizeRange {
        if self.check_results.qualified_names[node.id] {
            let name = node.qualified_name().unwrap_or_default();
            self.paths.insert(node.id, Path::from_name(&name));
            return NAME;
        }
        let sum = self.cost(operand);
        if test {
            return sum;
        }
        self.paths.insert(node.id, self.path(operand).join(field));
        match self.type_of(operand) {
            Type::Map(_) | Type::Object(_) | Type::Param(_) => sum.plus(NAME),
            _ => sum,
        }
    }

    fn call(&mut self, node: &'a Node, name: &str, target: Option<&'a Node>, args: &'a [Node]) -> SizeRange {
        if name == "dyn"
            && let Some(arg) = args.first()
        {
            let cost = self.cost(arg);
            self.copy_sizes(node, arg);
            return cost.plus(SizeRange::fixed(1));
        }
        let costs: Vec<SizeRange> = args.iter().map(|arg| self.cost(arg)).collect();
        let arguments: Vec<Argument<'a>> = args.iter().map(|arg| self.argument(arg)).collect();
        let overloads = &self.check_results.overloads[node.id];
        let target = target.filter(|_| !self.check_results.is_namespaced[node.id]);
        let qualified_name =
            if self.check_results.is_namespaced[node.id] { qualified_function(node) } else { name.to_owned() };
        let mut sum = SizeRange::NONE;
        let mut target_argument = None;
        if let Some(target) = target {
            sum = self.cost(target);
            target_argument = Some(self.argument(target));
        }
        let mut cost = SizeRange::EMPTY;
        let mut size: Option<SizeRange> = None;
        for overload in overloads {
            let call = Call {
                name: &qualified_name,
                overload,
                target: target_argument.as_ref(),
                args: &arguments,
                costs: &costs,
            };
            let (overload_cost, result) = self.overload(node, &call, args);
            cost = cost.union(overload_cost);
            if let Some(result) = result {
                size = Some(size.map_or(result, |size| size.union(result)));
            }
            let step = match *overload {
                "index_list" => Some("@items"),
                "index_map" => Some("@values"),
                _ => None,
            };
            if let Some((step, container)) = step.zip(args.first()) {
                size = self.sizes_of_elements(container).map(|inside| inside.value);
                self.paths.insert(node.id, self.path(container).join(step));
            }
            size = size.or_else(|| self.size(node));
        }
        if let Some(size) = size {
            self.sizes.insert(node.id, size);
        }
        if overloads.is_empty() { SizeRange::NONE } else { sum.plus(cost) }
    }

    /// Cost of one overload with its arguments, and the size of its result.
    fn overload(&mut self, node: &Node, call: &Call<'_, 'a>, args: &'a [Node]) -> (SizeRange, Option<SizeRange>) {
        let argument_cost = call.costs.iter().fold(SizeRange::NONE, |sum, cost| sum.plus(*cost));
        if let Some((cost, size)) = calls::specific_cost(self, call) {
            return (cost.plus(argument_cost), size);
        }
        match (call.overload, call.costs) {
            ("logical_and" | "logical_or", [left, right]) => {
                (SizeRange { min: left.min, max: left.plus(*right).max }, None)
            }
            ("conditional", [condition, yes, no]) => {
                let size = call.args[1].size_or_unknown().union(call.args[2].size_or_unknown());
                let inside = self.sizes_of_elements(&args[1]).zip(self.sizes_of_elements(&args[2]));
                self.element_sizes.extend(inside.map(|(yes, no)| (node.id, yes.union(no))));
                (condition.plus(yes.union(*no)), Some(size))
            }
            ("add_string" | "add_bytes" | "add_list", [_, _]) => {
                let size = call.args[0].size_or_unknown().plus(call.args[1].size_or_unknown());
                let inside = self.sizes_of_elements(&args[0]).zip(self.sizes_of_elements(&args[1]));
                self.element_sizes.extend(inside.map(|(left, right)| (node.id, left.union(right))));
                let cost =
                    if call.overload == "add_list" { SizeRange::fixed(1) } else { size.scale(calls::TRAVERSAL_COST) };
                (cost.plus(argument_cost), Some(size))
            }
            _ => {
                let (cost, size) = calls::standard_cost(call);
                (cost.plus(argument_cost), size)
            }
        }
    }

    fn argument(&mut self, node: &'a Node) -> Argument<'a> {
        let mut path = self.path(node);
        if path.starts_with(super::macros::RESULT) {
            path = Path::default();
        }
        Argument { path, cel_type: self.type_of(node).clone(), node: Some(node), size: self.size(node) }
    }

    fn binding(&mut self, node: &Node, fold: &'a Fold) -> SizeRange {
        let mut sum = self.cost(&fold.range).plus(self.cost(&fold.init));
        self.push_value(&fold.accumulator, &fold.init);
        sum = sum.plus(self.cost(&fold.result));
        self.pop(&fold.accumulator);
        self.copy_sizes(node, &fold.result);
        sum
    }

    fn fold(&mut self, node: &Node, fold: &'a Fold) -> SizeRange {
        let sum = self.cost(&fold.range).plus(self.cost(&fold.init));
        self.push_value(&fold.accumulator, &fold.init);
        let inside = self.sizes_of_elements(&fold.range);
        let list = inside.map_or(matches!(self.type_of(&fold.range), Type::List(_)), |inside| inside.is_list);
        let (key, value) = (inside.map(|inside| inside.key), inside.map(|inside| inside.value));
        match &fold.second {
            Some(second) => {
                self.push_element(&fold.variable, &fold.range, if list { "@indices" } else { "@keys" }, key);
                self.push_element(second, &fold.range, if list { "@items" } else { "@values" }, value);
            }
            None if list => self.push_element(&fold.variable, &fold.range, "@items", value),
            None => self.push_element(&fold.variable, &fold.range, "@keys", key),
        }
        let iteration = self.cost(&fold.condition).plus(self.cost(&fold.step));
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
                let inside = self.sizes_of_elements(&fold.step);
                self.element_sizes.extend(inside.map(|inside| (node.id, inside)));
            }
            _ => {}
        }
        sum.plus(iterations.times(iteration))
    }

    fn push_value(&mut self, name: &str, value: &'a Node) {
        let local = Local { path: self.path(value), size: self.size(value), inside: self.sizes_of_elements(value) };
        self.locals.entry(name.to_owned()).or_default().push(local);
    }

    fn push_element(&mut self, name: &str, container: &Node, step: &str, size: Option<SizeRange>) {
        let path = self.path(container).join(step);
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

    fn copy_sizes(&mut self, to: &Node, from: &'a Node) {
        let (size, inside) = (self.size(from), self.sizes_of_elements(from));
        self.sizes.extend(size.map(|size| (to.id, size)));
        self.element_sizes.extend(inside.map(|inside| (to.id, inside)));
    }

    fn sizes_of_elements(&self, node: &Node) -> Option<ElementSizes> {
        let local_sizes = || match &node.expr {
            Expr::Name(name) => self.local(name).and_then(|local| local.inside),
            _ => None,
        };
        self.element_sizes.get(&node.id).copied().or_else(local_sizes)
    }

    fn size_or_unknown(&mut self, node: &Node) -> SizeRange {
        self.size(node).unwrap_or(SizeRange::UNKNOWN)
    }

    fn size(&mut self, node: &Node) -> Option<SizeRange> {
        if let Some(size) = self.sizes.get(&node.id) {
            return Some(*size);
        }
        if let Some(size) = literal_size(node) {
            return Some(SizeRange::fixed(size));
        }
        let path = self.path(node);
        if let Some(max) = self.declared_size(&path) {
            self.sizes.insert(node.id, max);
            return Some(max);
        }
        if self.type_of(node).is_scalar() {
            return Some(SizeRange::fixed(1));
        }
        match &node.expr {
            Expr::Name(name) => self.local(name).and_then(|local| local.size),
            _ => None,
        }
    }

    /// Size limit in the schema at the end of a path.
    pub fn declared_size(&self, path: &Path) -> Option<SizeRange> {
        self.root.size(&path.storage.borrow()[..path.length]).map(|max| SizeRange { min: 0, max })
    }
}

/// Size of a literal.
fn literal_size(node: &Node) -> Option<u64> {
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
fn is_binding(fold: &Fold) -> bool {
    matches!(&fold.range.expr, Expr::List { items, .. } if items.is_empty())
        && fold.condition.literal() == Some(&Literal::Bool(false))
}

/// Name of a function with its prefix.
fn qualified_function(node: &Node) -> String {
    match &node.expr {
        Expr::Call { name, target: Some(target), .. } => match target.qualified_name() {
            Some(prefix) => format!("{prefix}.{name}"),
            None => name.clone(),
        },
        Expr::Call { name, .. } => name.clone(),
        _ => String::new(),
    }
}
