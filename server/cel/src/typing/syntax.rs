//! Syntax tree for types and costs. Nodes have positions, which the parser of the `cel` crate does not keep. Has no
//! side effects.

/// A node of an expression.
#[derive(Debug, Clone)]
pub(super) struct Node {
    /// Number within the expression.
    pub id: usize,
    /// Position in code points. Nodes from a macro have the position of the call.
    pub at: usize,
    pub expr: Expr,
}

#[derive(Debug, Clone)]
pub(super) enum Expr {
    Literal(Literal),
    Name(String),
    Select { operand: Box<Node>, field: String, test: bool },
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
    /// Number of bytes.
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

/// A loop, to which most macros expand.
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
    /// Calls `visit` with all nodes, parents first, and whether the node is inside a call of `format`.
    pub fn walk<'a>(&'a self, formatted: bool, visit: &mut dyn FnMut(&'a Node, bool)) {
        visit(self, formatted);
        match &self.expr {
            Expr::Literal(_) | Expr::Name(_) => {}
            Expr::Select { operand, .. } => operand.walk(formatted, visit),
            Expr::Call { name, target, args } => {
                let formatted = formatted || name == "format";
                target.iter().for_each(|target| target.walk(formatted, visit));
                args.iter().for_each(|child| child.walk(formatted, visit));
            }
            Expr::List { items, .. } => items.iter().for_each(|child| child.walk(formatted, visit)),
            Expr::Map(entries) => entries.iter().for_each(|entry| {
                entry.key.walk(formatted, visit);
                entry.value.walk(formatted, visit);
            }),
            Expr::Object { fields, .. } => fields.iter().for_each(|field| field.value.walk(formatted, visit)),
            Expr::Fold(fold) => {
                for part in [&fold.range, &fold.init, &fold.condition, &fold.step, &fold.result] {
                    part.walk(formatted, visit);
                }
            }
        }
    }

    /// Depth as cel-go's parser counts it: conditions, relations, sums, products, fields, indexes and methods.
    pub fn depth(&self) -> usize {
        let deepest = |nodes: &mut dyn Iterator<Item = &Node>| nodes.map(Node::depth).max().unwrap_or_default();
        match &self.expr {
            Expr::Literal(_) | Expr::Name(_) => 0,
            Expr::Select { operand, .. } => operand.depth() + 1,
            Expr::Call { name, target, args } => {
                let adds_level =
                    target.is_some() || (is_operator(name) && !OPERATORS_WITHOUT_DEPTH.contains(&name.as_str()));
                deepest(&mut target.as_deref().into_iter().chain(args)) + usize::from(adds_level)
            }
            Expr::List { items, .. } => deepest(&mut items.iter()),
            Expr::Map(entries) => deepest(&mut entries.iter().flat_map(|entry| [&entry.key, &entry.value])),
            Expr::Object { fields, .. } => deepest(&mut fields.iter().map(|field| &field.value)),
            Expr::Fold(fold) => fold.range.depth().max(fold.step.depth()) + 1,
        }
    }

    /// The text of a qualified name such as `a.b.c`.
    pub fn qualified_name(&self) -> Option<String> {
        match &self.expr {
            Expr::Name(name) => Some(name.clone()),
            Expr::Select { operand, field, test: false } => Some(format!("{}.{field}", operand.qualified_name()?)),
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

/// Operators that do not add to the depth: those with flat chains, and signs.
const OPERATORS_WITHOUT_DEPTH: [&str; 4] = ["_&&_", "_||_", "!_", "-_"];

fn is_operator(name: &str) -> bool {
    name == "@in" || name.starts_with('_') && !name.starts_with("__") || name.ends_with('_') && name.len() == 2
}

/// An error at a position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Issue {
    pub at: usize,
    pub text: String,
}

/// Formats errors like cel-go: ordered by position, each with its line and a marker below the position.
pub(super) fn format_issues(source: &str, mut issues: Vec<Issue>) -> String {
    issues.sort_by_key(|issue| issue.at);
    issues.iter().map(|issue| format_issue(source, issue)).collect::<Vec<_>>().join("\n")
}

fn format_issue(source: &str, issue: &Issue) -> String {
    let (mut line, mut column) = (1, 0);
    for letter in source.chars().take(issue.at) {
        (line, column) = if letter == '\n' { (line + 1, 0) } else { (line, column + 1) };
    }
    let text = source.split('\n').nth(line - 1).unwrap_or("").replace('\t', " ");
    let mut chars = text.chars();
    // Wide characters have wide markers.
    let below: String = chars.by_ref().take(column).map(|c| if c.len_utf8() > 1 { '\u{ff0e}' } else { '.' }).collect();
    let mark = if chars.next().is_some_and(|c| c.len_utf8() > 1) { '\u{ff3e}' } else { '^' };
    format!("ERROR: <input>:{line}:{}: {}\n | {text}\n | {below}{mark}", column + 1, issue.text)
}
