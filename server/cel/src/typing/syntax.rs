//! Expressions as types and costs are told of: every node knows its place, which the evaluating parser forgets. Pure.

/// A node of an expression.
#[derive(Debug, Clone)]
pub(super) struct Node {
    /// Its number within the expression.
    pub id: usize,
    /// Where it stands: the code points before it. What a macro adds stands where the macro is called.
    pub at: usize,
    pub expr: Expr,
}

#[derive(Debug, Clone)]
pub(super) enum Expr {
    Literal(Literal),
    Name(String),
    Select { of: Box<Node>, field: String, test: bool },
    Call { name: String, target: Option<Box<Node>>, args: Vec<Node> },
    List { items: Vec<Node>, optional: Vec<usize> },
    Map(Vec<Entry>),
    Object { name: String, fields: Vec<Field> },
    Fold(Box<Fold>),
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Literal {
    Null,
    Bool(bool),
    Int(i64),
    Uint,
    Double,
    Text(String),
    /// How many they are.
    Bytes(usize),
}

/// An entry of a map literal.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub key: Node,
    pub value: Node,
    pub optional: bool,
}

/// A field of an object literal.
#[derive(Debug, Clone)]
pub(super) struct Field {
    pub at: usize,
    pub name: String,
    pub value: Node,
    pub optional: bool,
}

/// A loop, which is what most macros become.
#[derive(Debug, Clone)]
pub(super) struct Fold {
    pub range: Node,
    pub variable: String,
    pub second: Option<String>,
    pub accumulator: String,
    pub init: Node,
    pub condition: Node,
    pub step: Node,
    pub result: Node,
}

impl Node {
    /// Calls `see` with every node, the outer before the inner ones, and whether it stands in a call of `format`.
    pub fn walk<'a>(&'a self, formatted: bool, see: &mut dyn FnMut(&'a Node, bool)) {
        see(self, formatted);
        match &self.expr {
            Expr::Literal(_) | Expr::Name(_) => {}
            Expr::Select { of, .. } => of.walk(formatted, see),
            Expr::Call { name, target, args } => {
                let formatted = formatted || name == "format";
                target.iter().for_each(|target| target.walk(formatted, see));
                args.iter().for_each(|one| one.walk(formatted, see));
            }
            Expr::List { items, .. } => items.iter().for_each(|one| one.walk(formatted, see)),
            Expr::Map(entries) => entries.iter().for_each(|entry| {
                entry.key.walk(formatted, see);
                entry.value.walk(formatted, see);
            }),
            Expr::Object { fields, .. } => fields.iter().for_each(|field| field.value.walk(formatted, see)),
            Expr::Fold(fold) => {
                for part in [&fold.range, &fold.init, &fold.condition, &fold.step, &fold.result] {
                    part.walk(formatted, see);
                }
            }
        }
    }

    /// How deep cel-go's parser goes: conditions, relations, sums and products, fields, elements and methods are levels to it.
    pub fn depth(&self) -> usize {
        let deepest = |nodes: &mut dyn Iterator<Item = &Node>| nodes.map(Node::depth).max().unwrap_or_default();
        match &self.expr {
            Expr::Literal(_) | Expr::Name(_) => 0,
            Expr::Select { of, .. } => of.depth() + 1,
            Expr::Call { name, target, args } => {
                let level = target.is_some() || (is_operator(name) && !UNCOUNTED.contains(&name.as_str()));
                deepest(&mut target.as_deref().into_iter().chain(args)) + usize::from(level)
            }
            Expr::List { items, .. } => deepest(&mut items.iter()),
            Expr::Map(entries) => deepest(&mut entries.iter().flat_map(|entry| [&entry.key, &entry.value])),
            Expr::Object { fields, .. } => deepest(&mut fields.iter().map(|field| &field.value)),
            Expr::Fold(fold) => fold.range.depth().max(fold.step.depth()) + 1,
        }
    }

    /// `a.b.c` as it is written, where it is no more than names.
    pub fn qualified(&self) -> Option<String> {
        match &self.expr {
            Expr::Name(name) => Some(name.clone()),
            Expr::Select { of, field, test: false } => Some(format!("{}.{field}", of.qualified()?)),
            _ => None,
        }
    }

    pub fn literal(&self) -> Option<&Literal> {
        match &self.expr {
            Expr::Literal(literal) => Some(literal),
            _ => None,
        }
    }
}

/// Operators whose operands stand beside each other, and signs.
const UNCOUNTED: [&str; 4] = ["_&&_", "_||_", "!_", "-_"];

fn is_operator(name: &str) -> bool {
    name == "@in" || name.starts_with('_') && !name.starts_with("__") || name.ends_with('_') && name.len() == 2
}

/// What is wrong at a place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Issue {
    pub at: usize,
    pub text: String,
}

/// Issues as cel-go shows them: in the order of their places, each with its line and a mark below the place.
pub(super) fn shown(source: &str, mut issues: Vec<Issue>) -> String {
    issues.sort_by_key(|issue| issue.at);
    issues.iter().map(|issue| one_shown(source, issue)).collect::<Vec<_>>().join("\n")
}

fn one_shown(source: &str, issue: &Issue) -> String {
    let (mut line, mut column) = (1, 0);
    for letter in source.chars().take(issue.at) {
        (line, column) = if letter == '\n' { (line + 1, 0) } else { (line, column + 1) };
    }
    let shown = source.split('\n').nth(line - 1).unwrap_or("").replace('\t', " ");
    let mut letters = shown.chars();
    // Wide letters are marked by wide marks.
    let below: String =
        letters.by_ref().take(column).map(|c| if c.len_utf8() > 1 { '\u{ff0e}' } else { '.' }).collect();
    let mark = if letters.next().is_some_and(|c| c.len_utf8() > 1) { '\u{ff3e}' } else { '^' };
    format!("ERROR: <input>:{line}:{}: {}\n | {shown}\n | {below}{mark}", column + 1, issue.text)
}
