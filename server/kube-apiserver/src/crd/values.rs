//! Validation of a custom resource by its schema, with kube-apiserver's wording.
//!
//! The object has its defaults. It may have fields that its schema does not define, if it was applied or changed by
//! admission. Messages contain dotted paths (`spec.list[0].k in body …`).

use std::num::NonZeroUsize;
use std::sync::{Arc, LazyLock};

use crowsnest_apimachinery::field::{FieldError, FieldErrorKind, go_value};
use crowsnest_schema::formats as string_formats;
use lru::LruCache;
use parking_lot::Mutex;
use regex::Regex;
use serde_json::Value;

use super::formats;
use super::traversal::MAX_DEPTH;

/// The field of errors that belong to no field, as Go prints it.
pub(super) const NO_FIELD: &str = "<nil>";

/// Maximum number of cached patterns: enough for all kinds of Karmada and those used recently.
const MAX_CACHED_PATTERNS: NonZeroUsize = NonZeroUsize::new(256).expect("a constant above zero");

/// Compiles the pattern of a schema, or returns it from the cache; `None` if it is invalid. Compiling takes a hundred
/// times longer than matching.
fn compile_pattern(pattern: &str) -> Option<Arc<Regex>> {
    static CACHE: LazyLock<Mutex<LruCache<String, Option<Arc<Regex>>>>> =
        LazyLock::new(|| Mutex::new(LruCache::new(MAX_CACHED_PATTERNS)));
    CACHE.lock().get_or_insert_ref(pattern, || crowsnest_apiserver::regexp::compile(pattern).ok().map(Arc::new)).clone()
}

/// Validates `value`; `name` is its path in messages, empty for a complete object.
pub fn validate(schema: &Value, value: &Value, name: &str) -> Vec<FieldError> {
    let mut found = Findings::default();
    walk(schema, CorrelatedValue { new: value, old: None }, name, 0, &mut found);
    found.errors
}

/// Validates a complete value that replaces `old`. Errors of unchanged values are tolerated (KEP-4008).
pub fn validate_update(schema: &Value, old: Option<&Value>, new: &Value) -> Vec<FieldError> {
    let mut found = Findings::default();
    walk(schema, CorrelatedValue { new, old }, "", 0, &mut found);
    found.errors
}

/// A value, with the value that it replaces in an update.
#[derive(Clone, Copy)]
struct CorrelatedValue<'v> {
    new: &'v Value,
    old: Option<&'v Value>,
}

impl<'v> CorrelatedValue<'v> {
    /// A member of an object.
    fn member(self, key: &str, new: &'v Value) -> Self {
        Self { new, old: self.old.and_then(|old| old.get(key)) }
    }

    /// An item of a list with this schema.
    fn item(self, schema: &Value, new: &'v Value) -> Self {
        Self { new, old: self.old.and_then(|old| find_correlated_item(schema, old, new)) }
    }
}

/// The item of an old list that a new item replaces. Items of list maps are correlated by their keys, which must be
/// scalars; other items replace none.
pub(super) fn find_correlated_item<'v>(schema: &Value, old: &'v Value, item: &Value) -> Option<&'v Value> {
    let keys = keyword(schema, "x-kubernetes-list-map-keys")?.as_array().filter(|keys| !keys.is_empty())?;
    let is_scalar = |value: &&Value| matches!(value, Value::Bool(_) | Value::Number(_) | Value::String(_));
    let has_key =
        |old: &Value, key: &str| item.get(key).filter(is_scalar).is_some_and(|value| old.get(key) == Some(value));
    old.as_array()?.iter().find(|old| keys.iter().filter_map(Value::as_str).all(|key| has_key(old, key)))
}

/// True if a value equals the one that it replaces, as kube-apiserver compares them: the order of a list map does not
/// count, and an object with fields that the schema does not describe is never equal.
pub(super) fn is_unchanged(schema: &Value, old: &Value, new: &Value) -> bool {
    match (old, new) {
        (Value::Array(before), Value::Array(after)) if keyword(schema, "x-kubernetes-list-map-keys").is_some() => {
            let has_equal = |item: &Value| {
                let replaced = find_correlated_item(schema, old, item).zip(keyword(schema, "items"));
                replaced.is_some_and(|(replaced, items)| is_unchanged(items, replaced, item))
            };
            before.len() == after.len() && after.iter().all(has_equal)
        }
        (Value::Object(before), Value::Object(after)) => {
            let has_equal = |(key, member): (&String, &Value)| {
                let replaced = before.get(key).zip(member_schema(schema, key));
                replaced.is_some_and(|(replaced, schema)| is_unchanged(schema, replaced, member))
            };
            before.len() == after.len() && after.iter().all(has_equal)
        }
        _ => old == new,
    }
}

/// The schema of a member of an object.
fn member_schema<'s>(schema: &'s Value, key: &str) -> Option<&'s Value> {
    let property = keyword(schema, "properties").and_then(|properties| properties.get(key));
    property.or_else(|| keyword(schema, "additionalProperties").filter(|additional| additional.is_object()))
}

#[derive(Default)]
struct Findings {
    errors: Vec<FieldError>,
    /// Number of satisfied keywords. For a failed junctor, the errors of the branch with the most are reported.
    satisfied_count: usize,
}

impl Findings {
    fn check(&mut self, is_satisfied: bool, error: impl FnOnce() -> FieldError) {
        if is_satisfied { self.satisfied_count += 1 } else { self.errors.push(error()) }
    }
}

pub(super) fn keyword<'a>(schema: &'a Value, key: &str) -> Option<&'a Value> {
    schema.get(key).filter(|v| !v.is_null())
}

fn is_true(schema: &Value, key: &str) -> bool {
    schema.get(key).and_then(Value::as_bool).unwrap_or(false)
}

/// Type name in error messages.
fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        // Go decodes an integer outside the range of int64 as a float.
        Value::Number(n) if !n.is_i64() && !n.as_f64().is_some_and(is_integral) => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn type_error(name: &str, expected: &str, value: &Value) -> FieldError {
    let actual = format!("{:?}", if value.is_f64() { "number" } else { type_name(value) });
    FieldError::new(
        FieldErrorKind::TypeInvalid,
        name,
        Some(actual.clone()),
        format!("{name} in body must be of type {expected}: {actual}"),
    )
}

fn invalid_error(name: &str, value: &Value, detail: String) -> FieldError {
    FieldError::new(FieldErrorKind::Invalid, name, Some(go_value(value)), format!("{name} in body {detail}"))
}

fn walk(schema: &Value, value: CorrelatedValue<'_>, name: &str, depth: usize, found: &mut Findings) {
    let error_count = found.errors.len();
    check_value(schema, value, name, depth, found);
    if found.errors.len() > error_count && value.old.is_some_and(|old| is_unchanged(schema, old, value.new)) {
        found.errors.truncate(error_count);
    }
}

fn check_value(schema: &Value, correlated: CorrelatedValue<'_>, name: &str, depth: usize, found: &mut Findings) {
    if depth > MAX_DEPTH {
        return;
    }
    let value = correlated.new;
    let is_allowed_null = value.is_null() && is_true(schema, "nullable");
    if !is_allowed_null {
        check_type(schema, value, name, found);
    }
    if let Some(Value::Array(allowed)) = keyword(schema, "enum") {
        found.check(allowed.contains(value), || {
            let listed: Vec<String> =
                allowed.iter().map(|v| v.as_str().map_or_else(|| v.to_string(), str::to_owned)).collect();
            FieldError::not_supported(name, value, &listed.iter().map(String::as_str).collect::<Vec<_>>())
        });
    }
    // A null is compared with type and enum alone.
    if value.is_null() {
        return;
    }
    match value {
        Value::String(text) => check_string(schema, value, text, name, found),
        Value::Number(_) => check_number(schema, value, name, found),
        Value::Array(_) => check_array(schema, correlated, name, depth, found),
        Value::Object(_) => check_object(schema, correlated, name, depth, found),
        _ => {}
    }
    check_junctors(schema, value, name, depth, found);
}

fn check_type(schema: &Value, value: &Value, name: &str, found: &mut Findings) {
    if is_true(schema, "x-kubernetes-int-or-string") {
        let fits = !value.is_f64() && matches!(type_name(value), "integer" | "string");
        found.check(fits, || type_error(name, "integer,string", value));
        return;
    }
    let Some(expected) = keyword(schema, "type").and_then(Value::as_str).filter(|t| !t.is_empty()) else { return };
    let actual = type_name(value);
    // Go's validator leaves lists, like strings, to the format if there is one.
    let has_format = || formats::is_recognized(schema) && keyword(schema, "format").is_some_and(|f| f != "");
    let is_left_to_format = value.is_array() && !matches!(expected, "integer" | "number") && has_format();
    let fits = actual == expected || (expected == "number" && actual == "integer") || is_left_to_format;
    found.check(fits, || match formats_to_compare(schema, value) {
        Some((expected, actual)) => format_error(name, expected, actual),
        None => type_error(name, expected, value),
    });
}

/// The format of a schema and that of a value of the wrong type, as Go's validator compares them instead of the types.
/// Strings, lists and nulls are compared by type.
fn formats_to_compare<'a>(schema: &'a Value, value: &Value) -> Option<(&'a str, &'static str)> {
    let format = keyword(schema, "format").and_then(Value::as_str).filter(|_| formats::is_recognized(schema))?;
    match value {
        Value::Number(number) if !number.is_i64() => Some((format, "float64")),
        Value::Number(_) => Some((format, "int64")),
        Value::Bool(_) | Value::Object(_) => Some((format, "")),
        Value::String(_) | Value::Array(_) | Value::Null => None,
    }
}

fn format_error(name: &str, expected: &str, actual: &str) -> FieldError {
    let actual = format!("{actual:?}");
    let detail = format!("{name} in body must be of type {expected}: {actual}");
    FieldError::new(FieldErrorKind::TypeInvalid, name, Some(actual), detail)
}

fn check_string(schema: &Value, value: &Value, text: &str, name: &str, found: &mut Findings) {
    check_length_and_pattern(schema, value, text, name, found);
    if let Some(format) = keyword(schema, "format").and_then(Value::as_str) {
        found.check(string_formats::matches_format(format, text), || {
            let value_text = go_value(value);
            let detail = format!("{name} in body must be of type {format}: {value_text}");
            FieldError::new(FieldErrorKind::TypeInvalid, name, Some(value_text), detail)
        });
    }
}

/// Reports only the first of these three errors.
fn check_length_and_pattern(schema: &Value, value: &Value, text: &str, name: &str, found: &mut Findings) {
    let length = text.chars().count() as u64;
    let previous_error_count = found.errors.len();
    if let Some(max) = keyword(schema, "maxLength").and_then(Value::as_u64) {
        found.check(length <= max, || FieldError::too_long(name, usize::try_from(max).unwrap_or(usize::MAX)));
    }
    if let Some(min) =
        keyword(schema, "minLength").and_then(Value::as_u64).filter(|_| found.errors.len() == previous_error_count)
    {
        found.check(length >= min, || invalid_error(name, value, format!("should be at least {min} chars long")));
    }
    let pattern = keyword(schema, "pattern").and_then(Value::as_str).filter(|p| !p.is_empty());
    if let Some(pattern) = pattern.filter(|_| found.errors.len() == previous_error_count) {
        let fits = compile_pattern(pattern).is_some_and(|regex| regex.is_match(text));
        found.check(fits, || invalid_error(name, value, format!("should match '{pattern}'")));
    }
}

fn check_number(schema: &Value, value: &Value, name: &str, found: &mut Findings) {
    // Go prints an integral float without a fraction.
    let integral = value.as_f64().filter(|float| value.is_f64() && float.fract() == 0.0 && float.abs() < 1e15);
    let integral = integral.map(|float| Value::from(float as i64));
    let value = integral.as_ref().unwrap_or(value);
    let number = value.as_f64().unwrap_or(f64::NAN);
    // Go's validator compares integers with the integral part of limits, except in a field of the type `integer`.
    let is_truncated = integral.is_none() && value.is_i64() && keyword(schema, "type").is_none_or(|t| t != "integer");
    let read_limit = |key: &str| {
        let displayed = keyword(schema, key)?;
        let limit = displayed.as_f64()?;
        Some(if is_truncated { (limit.trunc(), Value::from(limit as i64)) } else { (limit, displayed.clone()) })
    };
    match read_limit("multipleOf") {
        Some((factor, displayed)) if is_truncated && factor <= 0.0 => {
            let detail = format!("factor MultipleOf declared for {name} must be positive: {displayed}");
            found.errors.push(FieldError::new(FieldErrorKind::Invalid, name, Some(displayed.to_string()), detail));
        }
        Some((factor, displayed)) => {
            let integers = value.as_i64().zip(is_integral(factor).then_some(factor as i64));
            let fits = match integers.filter(|_| integral.is_none()) {
                Some((number, factor)) => number.checked_rem(factor) == Some(0),
                None => is_multiple(number, factor),
            };
            found.check(fits, || invalid_error(name, value, format!("should be a multiple of {displayed}")));
        }
        None => {}
    }
    if let Some((max, displayed)) = read_limit("maximum") {
        let exclusive = is_true(schema, "exclusiveMaximum");
        let fits = if exclusive { number < max } else { number <= max };
        let or_equal = if exclusive { "" } else { " or equal to" };
        found.check(fits, || {
            invalid_error(name, value, format!("should be less than{or_equal} {}", format_limit(&displayed)))
        });
    }
    if let Some((min, displayed)) = read_limit("minimum") {
        let exclusive = is_true(schema, "exclusiveMinimum");
        let fits = if exclusive { number > min } else { number >= min };
        let or_equal = if exclusive { "" } else { " or equal to" };
        found.check(fits, || {
            invalid_error(name, value, format!("should be greater than{or_equal} {}", format_limit(&displayed)))
        });
    }
    check_integer(schema, value, name, found);
}

/// True if a float is a multiple of a factor, as Go's validator computes it: the quotient must be below 2^53, and may
/// exceed an integer by a relative error.
fn is_multiple(number: f64, factor: f64) -> bool {
    const MAX_QUOTIENT: f64 = 9_007_199_254_740_991.0;
    const MAX_ERROR: f64 = 1e-9;
    let quotient = if factor < 1.0 { 1.0 / factor * number } else { number / factor };
    let integer = quotient.trunc();
    let is_close = || integer > 0.0 && (quotient - integer) / (quotient + integer) < MAX_ERROR;
    quotient.abs() <= MAX_QUOTIENT && (quotient.fract() == 0.0 || is_close())
}

/// Checks that an integer and its limits are integral and within the range of the format.
fn check_integer(schema: &Value, value: &Value, name: &str, found: &mut Findings) {
    if keyword(schema, "type").and_then(Value::as_str) != Some("integer") {
        return;
    }
    let format = keyword(schema, "format").and_then(Value::as_str).unwrap_or("");
    let is_in_64_bits = |value: &Value| value.as_i64().is_some() || value.as_f64().is_some_and(is_integral);
    let fits = |value: &Value| match format {
        "int32" => value.as_i64().map_or_else(|| is_in_64_bits(value), |number| i32::try_from(number).is_ok()),
        "int64" | "" => is_in_64_bits(value),
        _ => true,
    };
    let displayed = if format.is_empty() { "(default format)".to_owned() } else { format!("with format {format}") };
    let error = |checked: &str| {
        let detail = format!("{checked} value must be of type integer {displayed} in {name}");
        FieldError::new(FieldErrorKind::Invalid, NO_FIELD, Some("\"\"".into()), detail)
    };
    found.check(fits(value), || error("Checked"));
    for (key, checked) in
        [("multipleOf", "MultipleOf"), ("maximum", "Maximum boundary"), ("minimum", "Minimum boundary")]
    {
        if keyword(schema, key).is_some_and(|limit| !fits(limit)) {
            found.errors.push(error(checked));
        }
    }
}

/// True if a float is integral and fits into 64 bits.
fn is_integral(number: f64) -> bool {
    number.fract() == 0.0 && number.abs() < 9.2e18
}

/// A limit as Go prints a float: `10`, `0.5`.
fn format_limit(number: &Value) -> String {
    match number.as_f64() {
        Some(float) if float.fract() == 0.0 && float.abs() < 1e15 => format!("{float:.0}"),
        _ => number.to_string(),
    }
}

fn check_array(schema: &Value, value: CorrelatedValue<'_>, name: &str, depth: usize, found: &mut Findings) {
    let Value::Array(items) = value.new else { return };
    if let Some(each) = keyword(schema, "items") {
        for (index, item) in items.iter().enumerate() {
            walk(each, value.item(schema, item), &format!("{name}[{index}]"), depth + 1, found);
        }
    }
    let count = items.len() as u64;
    if let Some(min) = keyword(schema, "minItems").and_then(Value::as_u64) {
        found.check(count >= min, || invalid_error(name, &count.into(), format!("should have at least {min} items")));
    }
    if let Some(max) = keyword(schema, "maxItems").and_then(Value::as_u64) {
        found.check(count <= max, || too_many(name, count, max));
    }
}

fn too_many(name: &str, count: u64, max: u64) -> FieldError {
    let items = if max == 1 { "item" } else { "items" };
    FieldError::new(FieldErrorKind::TooMany, name, Some(count.to_string()), format!("must have at most {max} {items}"))
}

/// The path of a member of an object.
pub(super) fn child_path(name: &str, key: &str) -> String {
    if name.is_empty() { key.to_owned() } else { format!("{name}.{key}") }
}

fn check_object(schema: &Value, value: CorrelatedValue<'_>, name: &str, depth: usize, found: &mut Findings) {
    let Value::Object(members) = value.new else { return };
    let count = members.len() as u64;
    if let Some(min) = keyword(schema, "minProperties").and_then(Value::as_u64) {
        found.check(count >= min, || {
            invalid_error(name, &count.into(), format!("should have at least {min} properties"))
        });
    }
    if let Some(max) = keyword(schema, "maxProperties").and_then(Value::as_u64) {
        found.check(count <= max, || too_many(name, count, max));
    }
    if let Some(Value::Array(required)) = keyword(schema, "required") {
        for key in required.iter().filter_map(Value::as_str) {
            found.check(members.contains_key(key), || FieldError::required(child_path(name, key), ""));
        }
    }
    for (key, member) in members {
        let Some(sub) = member_schema(schema, key) else { continue };
        // As in kube-apiserver, errors in the type of the object are not tolerated.
        let member = match name.is_empty() && matches!(key.as_str(), "apiVersion" | "kind") {
            true => CorrelatedValue { new: member, old: None },
            false => value.member(key, member),
        };
        walk(sub, member, &child_path(name, key), depth + 1, found);
    }
}

/// An error of a junctor, which has no field.
fn junctor_error(name: &str, detail: &str) -> FieldError {
    FieldError::new(FieldErrorKind::Invalid, NO_FIELD, Some("\"\"".into()), format!("{name:?} {detail}"))
}

/// As in kube-apiserver, a branch does not tolerate errors of unchanged values: it must select the same objects as before.
fn check_junctors(schema: &Value, value: &Value, name: &str, depth: usize, found: &mut Findings) {
    let branches = |key: &str| keyword(schema, key).and_then(Value::as_array).filter(|b| !b.is_empty());
    let validate_branch = |branch: &Value| {
        let mut inner = Findings::default();
        check_value(branch, CorrelatedValue { new: value, old: None }, name, depth + 1, &mut inner);
        inner
    };
    if let Some(all) = branches("anyOf") {
        let results: Vec<Findings> = all.iter().map(validate_branch).collect();
        if !results.iter().any(|r| r.errors.is_empty()) {
            found.errors.push(junctor_error(name, "must validate at least one schema (anyOf)"));
            add_best_branch_errors(results, found);
        }
    }
    if let Some(all) = branches("oneOf") {
        let results: Vec<Findings> = all.iter().map(validate_branch).collect();
        match results.iter().filter(|r| r.errors.is_empty()).count() {
            1 => found.satisfied_count += 1,
            0 => {
                found
                    .errors
                    .push(junctor_error(name, "must validate one and only one schema (oneOf). Found none valid"));
                add_best_branch_errors(results, found);
            }
            n => {
                let detail = format!("must validate one and only one schema (oneOf). Found {n} valid alternatives");
                found.errors.push(junctor_error(name, &detail));
            }
        }
    }
    if let Some(all) = branches("allOf") {
        let results: Vec<Findings> = all.iter().map(validate_branch).collect();
        let valid = results.iter().filter(|r| r.errors.is_empty()).count();
        if valid < results.len() {
            let none = if valid == 0 { ". None validated" } else { "" };
            found.errors.push(junctor_error(name, &format!("must validate all the schemas (allOf){none}")));
            results.into_iter().for_each(|r| found.errors.extend(r.errors));
        }
    }
    if let Some(not) = keyword(schema, "not")
        && validate_branch(not).errors.is_empty()
    {
        found.errors.push(junctor_error(name, "must not validate the schema (not)"));
    }
}

/// Adds the errors of the branch with the most satisfied keywords.
fn add_best_branch_errors(results: Vec<Findings>, found: &mut Findings) {
    let mut best: Option<Findings> = None;
    for result in results {
        if best.as_ref().is_none_or(|b| result.satisfied_count > b.satisfied_count) {
            best = Some(result);
        }
    }
    found.errors.extend(best.map(|b| b.errors).unwrap_or_default());
}
