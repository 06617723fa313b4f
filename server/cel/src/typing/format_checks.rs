//! Type checks of literal templates, `'%d'.format([…])`, as in cel-go. Has no side effects.

use super::super::library::parse_clause;
use super::checker::CheckResults;
use super::syntax::{Expr, Issue, Literal, Node};
use super::types::Type;

/// Errors of templates in an expression.
pub(super) fn check_templates(node: &Node, check_results: &CheckResults) -> Vec<Issue> {
    let mut issues = Vec::new();
    node.walk(false, &mut |node, _| {
        if let Expr::Call { name, target: Some(target), args } = &node.expr
            && name == "format"
            && let Some(Literal::Text(template)) = target.literal()
            && let [Node { expr: Expr::List { items, .. }, .. }] = args.as_slice()
        {
            issues.extend(check_template(node.at, template, items, check_results).err());
        }
    });
    issues
}

fn check_template(at: usize, template: &str, items: &[Node], check_results: &CheckResults) -> Result<(), Issue> {
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
            parse_clause(after).map_err(|reason| issue(format!("could not parse formatting clause: {reason}")))?;
        check_argument(letter, item, check_results)
            .map_err(|Issue { at, text }| Issue { at, text: format!("error during formatting: {text}") })?;
        (rest, next) = (after, next + 1);
    }
    if items.len() > next {
        let count = items.len();
        return Err(issue(format!("too many arguments supplied to string.format (expected {next}, got {count})")));
    }
    Ok(())
}

fn check_argument(letter: char, item: &Node, check_results: &CheckResults) -> Result<(), Issue> {
    let ty = &check_results.types[item.id];
    let (fits, requirement) = match letter {
        's' => return check_printable(item, check_results),
        'd' => (matches!(ty, Type::Int | Type::Uint), "decimal clause can only be used on integers"),
        'o' => (matches!(ty, Type::Int | Type::Uint), "octal clause can only be used on integers"),
        'f' => (matches!(ty, Type::Double | Type::String), "fixed-point clause can only be used on doubles"),
        'e' => (matches!(ty, Type::Double | Type::String), "scientific clause can only be used on doubles"),
        'b' => {
            (matches!(ty, Type::Int | Type::Uint | Type::Bool), "only integers and bools can be formatted as binary")
        }
        _ => (
            matches!(ty, Type::Int | Type::Uint | Type::String | Type::Bytes),
            "only integers, byte buffers, and strings can be formatted as hex",
        ),
    };
    if fits || ty.is_dyn() { Ok(()) } else { Err(argument_error(item, ty, requirement)) }
}

fn argument_error(item: &Node, ty: &Type, requirement: &str) -> Issue {
    let name = ty.full_name();
    let name = name.split('(').next().unwrap_or_default();
    Issue { at: item.at, text: format!("{requirement}, was given {name}") }
}

/// Checks that all parts of a value can be formatted.
fn check_printable(item: &Node, check_results: &CheckResults) -> Result<(), Issue> {
    let ty = &check_results.types[item.id];
    if matches!(ty, Type::Opaque(..) | Type::Object(_) | Type::Param(_) | Type::Error) {
        let requirement = "string clause can only be used on strings, bools, bytes, ints, doubles, maps, lists, types, durations, and timestamps";
        return Err(argument_error(item, ty, requirement));
    }
    match &item.expr {
        Expr::List { items, .. } => items.iter().try_for_each(|item| check_printable(item, check_results)),
        Expr::Map(entries) => entries.iter().try_for_each(|entry| {
            check_printable(&entry.key, check_results).and_then(|()| check_printable(&entry.value, check_results))
        }),
        _ => Ok(()),
    }
}
