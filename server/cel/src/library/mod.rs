//! Kubernetes' CEL functions whose behaviour differs in the crate: argument checks of `ip`, `cidr`, `semver`, `duration`,
//! `timestamp` and `quantity`, `url`, named formats, and `string`.
//!
//! Arguments are parsed as by Go's `net/netip`, `net/url` and semver packages. The crate's types for addresses and
//! versions are kept; their arguments are validated first ([`checked`]).

mod address;
mod format;
mod named;
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

const IP: &str = "@ip";
const CIDR: &str = "@cidr";
const SEMVER: &str = "@semver";
const STRING: &str = "@string";
const DURATION: &str = "@duration";
const TIMESTAMP: &str = "@timestamp";
const QUANTITY: &str = "@quantity";
/// Checks a text or value that may be a network.
const NETWORK: &str = "@network";

type Outcome = Result<Cel, ExecutionError>;

/// The internal function that validates the arguments of a function or method; `of` is the name it is called on.
pub(super) fn checked(function: &str, is_method: bool, of: Option<&str>) -> Option<&'static str> {
    if is_method && of.is_none() || function == "containsCIDR" {
        return (function == "containsCIDR").then_some(NETWORK);
    }
    match (function, of) {
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

pub(super) fn add(context: &mut Context<'_>) {
    context.add_function(IP, |text: Cel| check(text, |text| address::read(text).map(drop)));
    context.add_function(CIDR, |text: Cel| check(text, address::read_network));
    context.add_function(NETWORK, |value: Cel| match value {
        Cel::String(_) => check(value, address::read_network),
        value => Ok(value),
    });
    context.add_function(STRING, text::of);
    context.add_function(DURATION, |text: Cel| check_as("duration", text, |text| duration::parse(text).is_ok()));
    context.add_function(TIMESTAMP, |text: Cel| check_as("timestamp", text, has_go_separators));
    context.add_function(QUANTITY, |text: Cel| check_as("quantity", text, |text| Quantity::parse(text).is_ok()));
    context.add_function("isQuantity", |text: Arc<String>| is(Quantity::parse(&text).is_ok()));
    context.add_function("format", format::format);
    context.add_function("isIP", |text: Arc<String>| is(address::read(&text).is_ok()));
    context.add_function("isCIDR", |text: Arc<String>| is(address::read_network(&text).is_ok()));
    context.add_function(SEMVER, |Arguments(given): Arguments| -> Outcome {
        let version = semver(&given)?.map_err(|why| ExecutionError::function_error(SEMVER, why))?;
        Ok(Cel::String(Arc::new(version)))
    });
    context.add_function("isSemver", |Arguments(given): Arguments| is(semver(&given)?.is_ok()));
    regex::add(context);
    named::add(context);
    time::add(context);
    url::add(context);
}

fn is(so: bool) -> Outcome {
    Ok(Cel::Bool(so))
}

/// Returns the argument if it can be parsed.
fn check(argument: Cel, read: impl FnOnce(&str) -> Result<(), String>) -> Outcome {
    let Cel::String(text) = &argument else { return Err(ExecutionError::NoSuchOverload) };
    read(text).map_err(|why| ExecutionError::function_error("ip", why))?;
    Ok(argument)
}

/// Returns the argument unless it is a text that Go does not accept for this function. The crate's parsers are lenient.
fn check_as(function: &str, argument: Cel, is_valid: impl Fn(&str) -> bool) -> Outcome {
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
fn semver(given: &[Cel]) -> Result<Result<String, String>, ExecutionError> {
    match given {
        [Cel::String(text)] | [Cel::String(text), Cel::Bool(false)] => Ok(version::read(text)),
        [Cel::String(text), Cel::Bool(true)] => Ok(version::normalized(text).and_then(|text| version::read(&text))),
        _ => Err(ExecutionError::NoSuchOverload),
    }
}
