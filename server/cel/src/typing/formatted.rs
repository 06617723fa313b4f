//! Type checks of literal templates, `'%d'.format([…])`, as in cel-go. Pure.

use super::super::library::parse_clause;
use super::checker::Facts;
use super::syntax::{Expr, Issue, Literal, Node};
use super::types::Type;

/// Errors of templates in an expression.
pub(super) fn issues(node: &Node, facts: &Facts) -> Vec<Issue> {
    let mut issues = Vec::new();
    node.walk(false, &mut |node, _| {
        if let Expr::Call { name, target: Some(target), args } = &node.expr
            && name == "format"
            && let Some(Literal::Text(template)) = target.literal()
            && let [Node { expr: Expr::List { items, .. }, .. }] = args.as_slice()
        {
            issues.extend(checked(node.at, template, items, facts).err());
        }
    });
    issues
}

fn checked(at: usize, template: &str, items: &[Node], facts: &Facts) -> Result<(), Issue> {
    let issue = |text: String| Issue { at, text };
    let (mut rest, mut next) = (template, 0);
    while let Some((_, after)) = rest.split_once('%') {
        if let Some(after) = after.strip_prefix('%') {
            rest = after;
            continue;
        }
        if after.is_empty() {
            return Err(issue("unexpected end of string".to_owned()));
        }
        let item = items.get(next).ok_or_else(|| issue(format!("index {next} out of range")))?;
        let (_, letter, after) =
            parse_clause(after).map_err(|why| issue(format!("could not parse formatting clause: {why}")))?;
        fits(letter, item, facts)
            .map_err(|Issue { at, text }| Issue { at, text: format!("error during formatting: {text}") })?;
        (rest, next) = (after, next + 1);
    }
    if items.len() > next {
        let given = items.len();
        return Err(issue(format!("too many arguments supplied to string.format (expected {next}, got {given})")));
    }
    Ok(())
}

fn fits(letter: char, item: &Node, facts: &Facts) -> Result<(), Issue> {
    let of = &facts.types[item.id];
    let (fits, takes) = match letter {
        's' => return shown(item, facts),
        'd' => (matches!(of, Type::Int | Type::Uint), "decimal clause can only be used on integers"),
        'o' => (matches!(of, Type::Int | Type::Uint), "octal clause can only be used on integers"),
        'f' => (matches!(of, Type::Double | Type::Text), "fixed-point clause can only be used on doubles"),
        'e' => (matches!(of, Type::Double | Type::Text), "scientific clause can only be used on doubles"),
        'b' => {
            (matches!(of, Type::Int | Type::Uint | Type::Bool), "only integers and bools can be formatted as binary")
        }
        _ => (
            matches!(of, Type::Int | Type::Uint | Type::Text | Type::Bytes),
            "only integers, byte buffers, and strings can be formatted as hex",
        ),
    };
    if fits || of.is_dyn() { Ok(()) } else { Err(given(item, of, takes)) }
}

fn given(item: &Node, of: &Type, takes: &str) -> Issue {
    let name = of.full_name();
    let name = name.split('(').next().unwrap_or_default();
    Issue { at: item.at, text: format!("{takes}, was given {name}") }
}

/// Checks that all parts of a value can be formatted.
fn shown(item: &Node, facts: &Facts) -> Result<(), Issue> {
    let of = &facts.types[item.id];
    if matches!(of, Type::Opaque(..) | Type::Object(_) | Type::Param(_) | Type::Error) {
        let takes = "string clause can only be used on strings, bools, bytes, ints, doubles, maps, lists, types, durations, and timestamps";
        return Err(given(item, of, takes));
    }
    match &item.expr {
        Expr::List { items, .. } => items.iter().try_for_each(|one| shown(one, facts)),
        Expr::Map(entries) => {
            entries.iter().try_for_each(|entry| shown(&entry.key, facts).and_then(|()| shown(&entry.value, facts)))
        }
        _ => Ok(()),
    }
}
