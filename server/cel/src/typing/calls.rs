//! Costs of functions in Kubernetes' library and in cel-go. Has no side effects; used by [`super::cost`].

use super::cost::{CostEstimator, Path, SizeRange};
use super::syntax::{Literal, Node};
use super::types::Type;

/// Steps per traversed character.
pub(super) const TRAVERSAL_COST: f64 = 0.1;
/// Steps per character of a pattern.
const PATTERN_COST: f64 = 0.25;
/// Assumed pattern length of a named format.
const MAX_FORMAT_PATTERN_LENGTH: f64 = 128.0;
/// Cost of an authorization check.
const AUTHORIZATION_CHECK_COST: u64 = 350_000;

/// An argument of a call.
#[derive(Debug)]
pub(super) struct Argument<'a> {
    pub path: Path,
    pub cel_type: Type,
    pub node: Option<&'a Node>,
    pub size: Option<SizeRange>,
}

impl Argument<'_> {
    pub fn size_or_unknown(&self) -> SizeRange {
        self.size.unwrap_or(SizeRange::UNKNOWN)
    }

    /// The value of an integer literal.
    fn number(&self) -> Option<i64> {
        match self.node?.literal()? {
            Literal::Int(number) => Some(*number),
            _ => None,
        }
    }
}

/// A call resolved to one overload.
pub(super) struct Call<'c, 'a> {
    pub name: &'c str,
    pub overload: &'c str,
    pub target: Option<&'c Argument<'a>>,
    pub args: &'c [Argument<'a>],
    pub costs: &'c [SizeRange],
}

type CallCost = Option<(SizeRange, Option<SizeRange>)>;

/// Cost of a function with its own cost rule, and the size of its result.
pub(super) fn specific_cost(estimator: &CostEstimator<'_>, call: &Call<'_, '_>) -> CallCost {
    cost_by_overload(call).or_else(|| cost_by_function(estimator, call))
}

/// Costs by overload, for sets and lists.
fn cost_by_overload(call: &Call<'_, '_>) -> CallCost {
    let (target, args) = (call.target, call.args);
    let allocation_cost =
        |factor: f64, size: SizeRange| Some((size.scale(factor).plus(SizeRange::fixed(11)), Some(size)));
    let number = |arg: &Argument<'_>, default: u64| match arg.number() {
        Some(number) => u64::try_from(number).unwrap_or(0),
        None => default,
    };
    let quadratic = |list: &Argument<'_>, has_text_elements: bool| {
        let size = list.size_or_unknown();
        allocation_cost(if has_text_elements { 2.0 + TRAVERSAL_COST } else { 2.0 }, size.times(size))
    };
    match (call.overload, target, args) {
        ("list_sets_contains_list" | "list_sets_intersects_list", None, [one, other]) => {
            Some((one.size_or_unknown().times(other.size_or_unknown()).scale(1.0).plus(SizeRange::fixed(1)), None))
        }
        ("list_sets_equivalent_list", None, [one, other]) => {
            Some((one.size_or_unknown().times(other.size_or_unknown()).scale(2.0).plus(SizeRange::fixed(1)), None))
        }
        ("list_slice", Some(list), [from, to]) => {
            let to = number(to, list.size_or_unknown().max);
            allocation_cost(1.0, SizeRange::fixed(to.wrapping_sub(number(from, 0))))
        }
        ("lists_range", None, [to]) => allocation_cost(1.0, SizeRange::fixed(number(to, u64::MAX))),
        ("list_reverse", Some(list), []) => allocation_cost(1.0, list.size_or_unknown()),
        ("list_flatten", Some(list), []) => allocation_cost(1.0, list.size_or_unknown()),
        ("list_flatten_int", Some(list), [depth]) => {
            allocation_cost(number(depth, u64::MAX) as f64, list.size_or_unknown())
        }
        ("list_distinct", Some(list), []) => {
            let has_text_elements =
                matches!(&list.cel_type, Type::List(item) if matches!(**item, Type::String | Type::Bytes));
            quadratic(list, has_text_elements)
        }
        (overload, Some(list), []) if overload.starts_with("list_") && overload.ends_with("_sort") => {
            quadratic(list, matches!(overload, "list_string_sort" | "list_bytes_sort"))
        }
        (overload, Some(_), [keys]) if overload.ends_with("_sortByAssociatedKeys") => {
            quadratic(keys, overload.starts_with("list_string") || overload.starts_with("list_bytes"))
        }
        _ => None,
    }
}

/// Costs by function name.
fn cost_by_function(estimator: &CostEstimator<'_>, call: &Call<'_, '_>) -> CallCost {
    let first = call.args.first().map(Argument::size_or_unknown);
    let target = call.target.map(Argument::size_or_unknown);
    let unit_cost = Some((SizeRange::fixed(1), None));
    match call.name {
        "check" => Some((SizeRange::fixed(AUTHORIZATION_CHECK_COST), None)),
        "serviceAccount" | "path" | "group" | "resource" | "subresource" | "namespace" | "name" | "allowed"
        | "reason" | "error" | "errored" => unit_cost,
        "fieldSelector" | "labelSelector" => first.map(|size| (selector_cost(size), None)),
        "isSorted" | "sum" | "max" | "min" | "indexOf" | "lastIndexOf" => {
            call.target.map(|list| (comparison_cost(estimator, list), None))
        }
        "url" | "jsonpatch.escapeKey" => first.map(|size| (size.scale(TRAVERSAL_COST), Some(size))),
        "lowerAscii" | "upperAscii" | "substring" | "trim" => {
            target.map(|size| (size.scale(TRAVERSAL_COST), Some(size)))
        }
        "replace" if call.args.len() >= 2 => {
            let (old, new) = (call.args[0].size_or_unknown(), call.args[1].size_or_unknown());
            target.map(|size| (size.scale(2.0 * TRAVERSAL_COST), Some(replaced_size(size, old, new))))
        }
        "split" => target.map(|size| {
            let limit = call.args.get(1).and_then(Argument::number);
            let max = limit.map_or(size.max, |limit| limit as u64);
            (size.scale(2.0 * TRAVERSAL_COST), Some(SizeRange { min: 0, max }))
        }),
        "join" => call.target.map(|list| join_cost(estimator, list, first)),
        "find" | "findAll" => target.zip(first).map(|(size, pattern)| {
            let text = size.plus(SizeRange::fixed(1)).scale(TRAVERSAL_COST);
            (text.times(pattern.scale(PATTERN_COST)), Some(SizeRange { min: 0, max: size.max }))
        }),
        "ip" if call.overload == "cidr_ip" => unit_cost,
        "cidr" | "isIP" | "isCIDR" | "ip" | "quantity" | "isQuantity" | "semver" | "isSemver" => {
            first.map(|size| (size.scale(TRAVERSAL_COST), None))
        }
        "ip.isCanonical" => first.map(|size| (size.scale(2.0 * TRAVERSAL_COST), None)),
        "masked"
        | "prefixLength"
        | "family"
        | "isUnspecified"
        | "isLoopback"
        | "isLinkLocalMulticast"
        | "isLinkLocalUnicast"
        | "isGlobalUnicast" => unit_cost,
        "containsIP" | "containsCIDR" => first.map(|size| (containment_cost(call, size), None)),
        "validate" => {
            first.map(|size| (size.scale(TRAVERSAL_COST).scale(MAX_FORMAT_PATTERN_LENGTH * PATTERN_COST), None))
        }
        "format.named" | "sign" | "asInteger" | "isInteger" | "asApproximateFloat" | "isGreaterThan" | "isLessThan"
        | "compareTo" | "add" | "sub" | "major" | "minor" | "patch" | "getScheme" | "getHostname" | "getHost"
        | "getPort" | "getEscapedPath" | "getQuery" => unit_cost,
        "_==_" => equality_cost(call).map(|cost| (cost, None)),
        _ => None,
    }
}

fn selector_cost(length: SizeRange) -> SizeRange {
    // The shortest requirement has two characters, and each one costs a list and an object.
    SizeRange::fixed(10).plus(length.scale(TRAVERSAL_COST)).plus(length.scale(0.5).scale(50.0))
}

/// Cost of comparing the elements of a list pairwise, or of traversing the characters of a string.
fn comparison_cost(estimator: &CostEstimator<'_>, list: &Argument<'_>) -> SizeRange {
    let size = list.size_or_unknown();
    match element_of(estimator, list) {
        Some((Type::String | Type::Bytes, item)) => size.times(SizeRange::fixed(1).plus(item.scale(TRAVERSAL_COST))),
        Some(_) => size.times(SizeRange::fixed(1)),
        None => size.scale(TRAVERSAL_COST),
    }
}

/// Type and size of a list's elements.
fn element_of(estimator: &CostEstimator<'_>, list: &Argument<'_>) -> Option<(Type, SizeRange)> {
    let ty = match &list.cel_type {
        Type::List(item) => (**item).clone(),
        Type::Map(pair) => pair.0.clone(),
        Type::Opaque(_, params) => params.first()?.clone(),
        Type::Type(Some(ty)) => (**ty).clone(),
        _ => return None,
    };
    let path = if list.path.is_empty() { Path::default() } else { list.path.detach().join("@items") };
    Some((ty, estimator.declared_size(&path).unwrap_or(SizeRange::UNKNOWN)))
}

/// Size of a text after replacements.
fn replaced_size(size: SizeRange, old: SizeRange, new: SizeRange) -> SizeRange {
    let count_of_parts = |size: u64, part: u64| (size as f64 / part as f64).ceil() as u64;
    // The number of replacements, and the size of the text that is kept.
    let count_and_kept_size = |size: u64, old: u64, keeps_all: bool| match old {
        0 => (size.saturating_add(1), size),
        _ if keeps_all => (0, size),
        _ => (count_of_parts(size, old), 0),
    };
    let (max_count, max_kept) = count_and_kept_size(size.max, old.min, new.max <= old.min);
    let (min_count, min_kept) = count_and_kept_size(size.min, old.max, old.max <= new.min);
    let count = SizeRange { min: min_count, max: max_count };
    count.times(new).plus(SizeRange { min: min_kept, max: max_kept })
}

fn join_cost(
    estimator: &CostEstimator<'_>,
    list: &Argument<'_>,
    separator: Option<SizeRange>,
) -> (SizeRange, Option<SizeRange>) {
    let count = list.size_or_unknown();
    let mut size = element_of(estimator, list).map_or(SizeRange::NONE, |(_, item)| count.times(item));
    if let Some(separator) = separator {
        let between = SizeRange { min: count.min.saturating_sub(1), max: count.max.saturating_sub(1) };
        size = size.plus(separator.times(between));
    }
    (size.scale(TRAVERSAL_COST), Some(size))
}

/// Cost of comparing the bytes of an address, which is parsed first if it is a text.
fn containment_cost(call: &Call<'_, '_>, argument: SizeRange) -> SizeRange {
    let bytes = SizeRange { min: 4, max: 16 };
    let mut cost = bytes.plus(bytes).scale(TRAVERSAL_COST);
    if call.name == "containsCIDR" {
        cost = cost.plus(bytes.scale(TRAVERSAL_COST)).plus(SizeRange::fixed(1));
    }
    match call.overload {
        "cidr_contains_ip_string" | "cidr_contains_cidr_string" => cost.plus(argument.scale(TRAVERSAL_COST)),
        _ => cost,
    }
}

/// Cost of comparing two values of one of Kubernetes' own types; `None` for other types.
fn equality_cost(call: &Call<'_, '_>) -> Option<SizeRange> {
    let [left, right] = call.args else { return None };
    if left.cel_type != right.cel_type {
        return None;
    }
    match &left.cel_type {
        Type::Opaque(name, _) if matches!(name.as_ref(), "net.IP" | "net.CIDR") => Some(SizeRange::fixed(1)),
        Type::Object(name) => match name.as_ref() {
            "kubernetes.NamedFormat" => Some(SizeRange { min: 1, max: 64 }.scale(TRAVERSAL_COST)),
            "kubernetes.URL" => {
                let max = right.size.map_or(1, |size| size.max);
                Some(SizeRange { min: 1, max }.scale(TRAVERSAL_COST))
            }
            "kubernetes.Quantity" | "kubernetes.Semver" => Some(SizeRange::fixed(1)),
            other if other.starts_with("kubernetes.authorization.") => Some(SizeRange::fixed(1)),
            _ => None,
        },
        _ => None,
    }
}

/// Cost of a standard function, not including the evaluation of its arguments, and the size of its result.
pub(super) fn standard_cost(call: &Call<'_, '_>) -> (SizeRange, Option<SizeRange>) {
    let target = call.target.map(Argument::size_or_unknown);
    let args: Vec<SizeRange> = call.args.iter().map(Argument::size_or_unknown).collect();
    let pattern = |text: SizeRange, pattern: SizeRange| {
        text.plus(SizeRange::fixed(1)).scale(TRAVERSAL_COST).times(pattern.scale(PATTERN_COST))
    };
    let cost = match (call.overload, target, args.as_slice()) {
        ("string_format", Some(text), _) => text.scale(TRAVERSAL_COST),
        ("starts_with_string" | "ends_with_string", _, [size]) => size.scale(TRAVERSAL_COST),
        ("string_to_bytes", _, [one]) => {
            let size = SizeRange { min: one.min, max: one.max.wrapping_mul(4) };
            return (one.scale(TRAVERSAL_COST), Some(size));
        }
        ("bytes_to_string", _, [one]) => {
            return (one.scale(TRAVERSAL_COST), Some(SizeRange { min: one.min / 4, max: one.max }));
        }
        ("strings_quote", _, [one]) => {
            let size = SizeRange { min: one.min.wrapping_add(2), max: one.max.wrapping_mul(2).wrapping_add(2) };
            return (one.scale(TRAVERSAL_COST), Some(size));
        }
        ("in_list", _, [_, list]) => list.scale(1.0),
        ("matches_string", Some(text), [expression]) => pattern(text, *expression),
        ("matches", None, [text, expression]) => pattern(*text, *expression),
        ("contains_string", Some(text), [part]) => text.scale(TRAVERSAL_COST).times(part.scale(TRAVERSAL_COST)),
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
            let max = left.max.min(right.max);
            SizeRange { min: max.min(1), max }.scale(TRAVERSAL_COST)
        }
        _ => SizeRange::fixed(1),
    };
    (cost, None)
}
