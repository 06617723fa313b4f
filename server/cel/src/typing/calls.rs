//! Costs of functions in Kubernetes' library and in cel-go. Pure; used by [`super::cost`].

use super::cost::{Estimate, Path, Span};
use super::syntax::{Literal, Node};
use super::types::Type;

/// Steps per traversed character.
pub(super) const TRAVERSAL: f64 = 0.1;
/// Steps per character of a pattern.
const PATTERN: f64 = 0.25;
/// Assumed pattern length of a named format.
const LONGEST_PATTERN: f64 = 128.0;
/// Cost of an authorization check.
const AUTHORIZATION_CHECK: u64 = 350_000;

/// An argument of a call.
#[derive(Debug)]
pub(super) struct Argument<'a> {
    pub path: Path,
    pub of: Type,
    pub node: Option<&'a Node>,
    pub size: Option<Span>,
}

impl Argument<'_> {
    pub fn size_or_unknown(&self) -> Span {
        self.size.unwrap_or(Span::UNKNOWN)
    }

    /// The value of an integer literal.
    fn number(&self) -> Option<i64> {
        match self.node?.literal()? {
            Literal::Int(number) => Some(*number),
            _ => None,
        }
    }
}

/// One overload of a call.
pub(super) struct Call<'c, 'a> {
    pub name: &'c str,
    pub overload: &'c str,
    pub target: Option<&'c Argument<'a>>,
    pub args: &'c [Argument<'a>],
    pub costs: &'c [Span],
}

type CallCost = Option<(Span, Option<Span>)>;

/// Cost of a function with its own cost rule, and the size of its result.
pub(super) fn specific_cost(estimate: &Estimate<'_>, call: &Call<'_, '_>) -> CallCost {
    by_overload(call).or_else(|| by_function(estimate, call))
}

/// Costs by overload, for sets and lists.
fn by_overload(call: &Call<'_, '_>) -> CallCost {
    let (target, args) = (call.target, call.args);
    let allocating = |factor: f64, size: Span| Some((size.by(factor).plus(Span::fixed(11)), Some(size)));
    let number = |arg: &Argument<'_>, otherwise: u64| match arg.number() {
        Some(number) => u64::try_from(number).unwrap_or(0),
        None => otherwise,
    };
    let squared = |of: &Argument<'_>, texts: bool| {
        let size = of.size_or_unknown();
        allocating(if texts { 2.0 + TRAVERSAL } else { 2.0 }, size.times(size))
    };
    match (call.overload, target, args) {
        ("list_sets_contains_list" | "list_sets_intersects_list", None, [one, other]) => {
            Some((one.size_or_unknown().times(other.size_or_unknown()).by(1.0).plus(Span::fixed(1)), None))
        }
        ("list_sets_equivalent_list", None, [one, other]) => {
            Some((one.size_or_unknown().times(other.size_or_unknown()).by(2.0).plus(Span::fixed(1)), None))
        }
        ("list_slice", Some(list), [from, to]) => {
            let to = number(to, list.size_or_unknown().most);
            allocating(1.0, Span::fixed(to.wrapping_sub(number(from, 0))))
        }
        ("lists_range", None, [to]) => allocating(1.0, Span::fixed(number(to, u64::MAX))),
        ("list_reverse", Some(list), []) => allocating(1.0, list.size_or_unknown()),
        ("list_flatten", Some(list), []) => allocating(1.0, list.size_or_unknown()),
        ("list_flatten_int", Some(list), [depth]) => allocating(number(depth, u64::MAX) as f64, list.size_or_unknown()),
        ("list_distinct", Some(list), []) => {
            let texts = matches!(&list.of, Type::List(item) if matches!(**item, Type::Text | Type::Bytes));
            squared(list, texts)
        }
        (overload, Some(list), []) if overload.starts_with("list_") && overload.ends_with("_sort") => {
            squared(list, matches!(overload, "list_string_sort" | "list_bytes_sort"))
        }
        (overload, Some(_), [keys]) if overload.ends_with("_sortByAssociatedKeys") => {
            squared(keys, overload.starts_with("list_string") || overload.starts_with("list_bytes"))
        }
        _ => None,
    }
}

/// Costs by function name.
fn by_function(estimate: &Estimate<'_>, call: &Call<'_, '_>) -> CallCost {
    let first = call.args.first().map(Argument::size_or_unknown);
    let target = call.target.map(Argument::size_or_unknown);
    let one = Some((Span::fixed(1), None));
    match call.name {
        "check" => Some((Span::fixed(AUTHORIZATION_CHECK), None)),
        "serviceAccount" | "path" | "group" | "resource" | "subresource" | "namespace" | "name" | "allowed"
        | "reason" | "error" | "errored" => one,
        "fieldSelector" | "labelSelector" => first.map(|size| (selector(size), None)),
        "isSorted" | "sum" | "max" | "min" | "indexOf" | "lastIndexOf" => {
            call.target.map(|list| (compare_elements(estimate, list), None))
        }
        "url" | "jsonpatch.escapeKey" => first.map(|size| (size.by(TRAVERSAL), Some(size))),
        "lowerAscii" | "upperAscii" | "substring" | "trim" => target.map(|size| (size.by(TRAVERSAL), Some(size))),
        "replace" if call.args.len() >= 2 => {
            let (old, new) = (call.args[0].size_or_unknown(), call.args[1].size_or_unknown());
            target.map(|size| (size.by(2.0 * TRAVERSAL), Some(replaced_size(size, old, new))))
        }
        "split" => target.map(|size| {
            let limit = call.args.get(1).and_then(Argument::number);
            let most = limit.map_or(size.most, |limit| limit as u64);
            (size.by(2.0 * TRAVERSAL), Some(Span { least: 0, most }))
        }),
        "join" => call.target.map(|list| join_cost(estimate, list, first)),
        "find" | "findAll" => target.zip(first).map(|(size, pattern)| {
            let text = size.plus(Span::fixed(1)).by(TRAVERSAL);
            (text.times(pattern.by(PATTERN)), Some(Span { least: 0, most: size.most }))
        }),
        "ip" if call.overload == "cidr_ip" => one,
        "cidr" | "isIP" | "isCIDR" | "ip" | "quantity" | "isQuantity" | "semver" | "isSemver" => {
            first.map(|size| (size.by(TRAVERSAL), None))
        }
        "ip.isCanonical" => first.map(|size| (size.by(2.0 * TRAVERSAL), None)),
        "masked"
        | "prefixLength"
        | "family"
        | "isUnspecified"
        | "isLoopback"
        | "isLinkLocalMulticast"
        | "isLinkLocalUnicast"
        | "isGlobalUnicast" => one,
        "containsIP" | "containsCIDR" => first.map(|size| (containment(call, size), None)),
        "validate" => first.map(|size| (size.by(TRAVERSAL).by(LONGEST_PATTERN * PATTERN), None)),
        "format.named" | "sign" | "asInteger" | "isInteger" | "asApproximateFloat" | "isGreaterThan" | "isLessThan"
        | "compareTo" | "add" | "sub" | "major" | "minor" | "patch" | "getScheme" | "getHostname" | "getHost"
        | "getPort" | "getEscapedPath" | "getQuery" => one,
        "_==_" => equal(call).map(|cost| (cost, None)),
        _ => None,
    }
}

fn selector(length: Span) -> Span {
    // The shortest requirement has two characters, and each one costs a list and an object.
    Span::fixed(10).plus(length.by(TRAVERSAL)).plus(length.by(0.5).by(50.0))
}

/// Elements are compared pairwise, or characters are traversed.
fn compare_elements(estimate: &Estimate<'_>, list: &Argument<'_>) -> Span {
    let size = list.size_or_unknown();
    match element(estimate, list) {
        Some((Type::Text | Type::Bytes, item)) => size.times(Span::fixed(1).plus(item.by(TRAVERSAL))),
        Some(_) => size.times(Span::fixed(1)),
        None => size.by(TRAVERSAL),
    }
}

/// Type and size of a list's elements.
fn element(estimate: &Estimate<'_>, list: &Argument<'_>) -> Option<(Type, Span)> {
    let of = match &list.of {
        Type::List(item) => (**item).clone(),
        Type::Map(pair) => pair.0.clone(),
        Type::Opaque(_, params) => params.first()?.clone(),
        Type::Kind(Some(of)) => (**of).clone(),
        _ => return None,
    };
    let path = if list.path.is_empty() { Path::default() } else { list.path.apart().and("@items") };
    Some((of, estimate.declared(&path).unwrap_or(Span::UNKNOWN)))
}

/// Size of a text after replacements.
fn replaced_size(size: Span, old: Span, new: Span) -> Span {
    let share = |size: u64, part: u64| (size as f64 / part as f64).ceil() as u64;
    let (mut count, mut kept) = (Span::NONE, Span::NONE);
    if old.least == 0 {
        (count.most, kept.most) = (size.most.saturating_add(1), size.most);
    } else if new.most <= old.least {
        kept.most = size.most;
    } else {
        count.most = share(size.most, old.least);
    }
    if old.most == 0 {
        (count.least, kept.least) = (size.least.saturating_add(1), size.least);
    } else if old.most <= new.least {
        kept.least = size.least;
    } else {
        count.least = share(size.least, old.most);
    }
    count.times(new).plus(kept)
}

fn join_cost(estimate: &Estimate<'_>, list: &Argument<'_>, separator: Option<Span>) -> (Span, Option<Span>) {
    let count = list.size_or_unknown();
    let mut size = element(estimate, list).map_or(Span::NONE, |(_, item)| count.times(item));
    if let Some(separator) = separator {
        let between = Span { least: count.least.saturating_sub(1), most: count.most.saturating_sub(1) };
        size = size.plus(separator.times(between));
    }
    (size.by(TRAVERSAL), Some(size))
}

/// Compares the bytes of an address, which is parsed first if it is a text.
fn containment(call: &Call<'_, '_>, given: Span) -> Span {
    let bytes = Span { least: 4, most: 16 };
    let mut cost = bytes.plus(bytes).by(TRAVERSAL);
    if call.name == "containsCIDR" {
        cost = cost.plus(bytes.by(TRAVERSAL)).plus(Span::fixed(1));
    }
    match call.overload {
        "cidr_contains_ip_string" | "cidr_contains_cidr_string" => cost.plus(given.by(TRAVERSAL)),
        _ => cost,
    }
}

/// Comparison of Kubernetes' own types has a fixed cost.
fn equal(call: &Call<'_, '_>) -> Option<Span> {
    let [left, right] = call.args else { return None };
    if left.of != right.of {
        return None;
    }
    match &left.of {
        Type::Opaque(name, _) if matches!(name.as_ref(), "net.IP" | "net.CIDR") => Some(Span::fixed(1)),
        Type::Object(name) => match name.as_ref() {
            "kubernetes.NamedFormat" => Some(Span { least: 1, most: 64 }.by(TRAVERSAL)),
            "kubernetes.URL" => {
                let most = right.size.map_or(1, |size| size.most);
                Some(Span { least: 1, most }.by(TRAVERSAL))
            }
            "kubernetes.Quantity" | "kubernetes.Semver" => Some(Span::fixed(1)),
            other if other.starts_with("kubernetes.authorization.") => Some(Span::fixed(1)),
            _ => None,
        },
        _ => None,
    }
}

/// Cost of a standard function without its arguments, and the size of its result.
pub(super) fn standard_cost(call: &Call<'_, '_>) -> (Span, Option<Span>) {
    let target = call.target.map(Argument::size_or_unknown);
    let args: Vec<Span> = call.args.iter().map(Argument::size_or_unknown).collect();
    let pattern = |text: Span, pattern: Span| text.plus(Span::fixed(1)).by(TRAVERSAL).times(pattern.by(PATTERN));
    let cost = match (call.overload, target, args.as_slice()) {
        ("string_format", Some(text), _) => text.by(TRAVERSAL),
        ("starts_with_string" | "ends_with_string", _, [one]) => one.by(TRAVERSAL),
        ("string_to_bytes", _, [one]) => {
            let size = Span { least: one.least, most: one.most.wrapping_mul(4) };
            return (one.by(TRAVERSAL), Some(size));
        }
        ("bytes_to_string", _, [one]) => {
            return (one.by(TRAVERSAL), Some(Span { least: one.least / 4, most: one.most }));
        }
        ("strings_quote", _, [one]) => {
            let size = Span { least: one.least.wrapping_add(2), most: one.most.wrapping_mul(2).wrapping_add(2) };
            return (one.by(TRAVERSAL), Some(size));
        }
        ("in_list", _, [_, list]) => list.by(1.0),
        ("matches_string", Some(text), [expression]) => pattern(text, *expression),
        ("matches", None, [text, expression]) => pattern(*text, *expression),
        ("contains_string", Some(text), [part]) => text.by(TRAVERSAL).times(part.by(TRAVERSAL)),
        (
            "less_string"
            | "greater_string"
            | "less_equals_string"
            | "greater_equals_string"
            | "less_bytes"
            | "greater_bytes"
            | "less_equals_bytes"
            | "greater_equals_bytes"
            | "equals"
            | "not_equals",
            _,
            [left, right],
        ) => {
            let most = left.most.min(right.most);
            Span { least: most.min(1), most }.by(TRAVERSAL)
        }
        _ => Span::fixed(1),
    };
    (cost, None)
}
