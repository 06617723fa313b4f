//! Kubernetes' CEL functions whose behaviour differs in the `cel` crate: argument checks of `ip`, `cidr`, `semver`,
//! `duration`, `timestamp` and `quantity`, `url`, named formats, and `string`.
//!
//! Arguments are parsed as by Go's `net/netip`, `net/url` and semver packages. The `cel` crate's types for addresses and
//! versions are kept; their arguments are validated first ([`argument_check`]).

mod address;
mod format;
mod named_formats;
mod regex;
mod text;
mod time;
mod url;
mod version;

use std::sync::Arc;

use crowsnest_apimachinery::duration;
use crowsnest_apimachinery::quantity::Quantity;
pub(super) use format::parse_clause;
use kube::core::cel::cel::extractors::Arguments;
use kube::core::cel::cel::{Context, ExecutionError, Value as Cel};

// Internal functions that validate arguments; expressions cannot name them.
const IP: &str = "@ip";
const CIDR: &str = "@cidr";
const SEMVER: &str = "@semver";
const STRING: &str = "@string";
const DURATION: &str = "@duration";
const TIMESTAMP: &str = "@timestamp";
const QUANTITY: &str = "@quantity";
/// Validates a network given as text; other values are returned unchanged.
const NETWORK_ARGUMENT: &str = "@network";

type Outcome = Result<Cel, ExecutionError>;

/// Name of the internal function that validates the arguments of a function or method; `None` if they need no check.
/// `target` is the identifier on which a method or namespaced function is called.
pub(super) fn argument_check(function: &str, is_method: bool, target: Option<&str>) -> Option<&'static str> {
    if is_method && target.is_none() || function == "containsCIDR" {
        return (function == "containsCIDR").then_some(NETWORK_ARGUMENT);
    }
    match (function, target) {
        ("ip", None) | ("isCanonical", Some("ip")) => Some(IP),
        ("cidr", None) => Some(CIDR),
        ("semver", None) => Some(SEMVER),
        ("string", None) => Some(STRING),
        ("duration", None) => Some(DURATION),
        ("timestamp", None) => Some(TIMESTAMP),
        ("quantity", None) => Some(QUANTITY),
        _ => None,
    }
}

pub(super) fn register(context: &mut Context<'_>) {
    context.add_function(IP, |text: Cel| check_parsable(text, |text| address::parse_ip(text).map(drop)));
    context.add_function(CIDR, |text: Cel| check_parsable(text, address::parse_cidr));
    context.add_function(NETWORK_ARGUMENT, |value: Cel| match value {
        Cel::String(_) => check_parsable(value, address::parse_cidr),
        value => Ok(value),
    });
    context.add_function(STRING, text::to_string);
    context.add_function(DURATION, |text: Cel| require_valid("duration", text, |text| duration::parse(text).is_ok()));
    context.add_function(TIMESTAMP, |text: Cel| require_valid("timestamp", text, has_go_separators));
    context.add_function(QUANTITY, |text: Cel| require_valid("quantity", text, |text| Quantity::parse(text).is_ok()));
    context.add_function("isQuantity", |text: Arc<String>| bool_result(Quantity::parse(&text).is_ok()));
    context.add_function("format", format::format);
    context.add_function("isIP", |text: Arc<String>| bool_result(address::parse_ip(&text).is_ok()));
    context.add_function("isCIDR", |text: Arc<String>| bool_result(address::parse_cidr(&text).is_ok()));
    context.add_function(SEMVER, |Arguments(arguments): Arguments| -> Outcome {
        let version = parse_semver(&arguments)?.map_err(|reason| ExecutionError::function_error(SEMVER, reason))?;
        Ok(Cel::String(Arc::new(version)))
    });
    context.add_function("isSemver", |Arguments(arguments): Arguments| bool_result(parse_semver(&arguments)?.is_ok()));
    regex::register(context);
    named_formats::register(context);
    time::register(context);
    url::register(context);
}

fn bool_result(value: bool) -> Outcome {
    Ok(Cel::Bool(value))
}

/// Returns the argument if it can be parsed.
fn check_parsable(argument: Cel, parse: impl FnOnce(&str) -> Result<(), String>) -> Outcome {
    let Cel::String(text) = &argument else { return Err(ExecutionError::NoSuchOverload) };
    // The message does not contain the name of the function.
    parse(text).map_err(|reason| ExecutionError::function_error("ip", reason))?;
    Ok(argument)
}

/// Returns the argument unless it is a text that Go does not accept for this function. The `cel` crate's parsers are lenient.
fn require_valid(function: &str, argument: Cel, is_valid: impl Fn(&str) -> bool) -> Outcome {
    match &argument {
        Cel::String(text) if !is_valid(text) => {
            Err(ExecutionError::function_error(function, format!("invalid {function}")))
        }
        _ => Ok(argument),
    }
}

/// True for a time whose separators `T` and `Z` are in upper case, as Go requires.
fn has_go_separators(text: &str) -> bool {
    !text.contains(['t', 'z', ' '])
}

/// Parses the arguments of `semver`: a text, and whether to normalize it.
fn parse_semver(arguments: &[Cel]) -> Result<Result<String, String>, ExecutionError> {
    match arguments {
        [Cel::String(text)] | [Cel::String(text), Cel::Bool(false)] => Ok(version::parse(text)),
        [Cel::String(text), Cel::Bool(true)] => Ok(version::normalize(text).and_then(|text| version::parse(&text))),
        _ => Err(ExecutionError::NoSuchOverload),
    }
}
