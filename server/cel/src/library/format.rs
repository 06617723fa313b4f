//! The `format` function, with cel-go's English number format: thousands separators, and exponents as superscripts.

use std::sync::Arc;

use kube::core::cel::cel::extractors::{Arguments, This};
use kube::core::cel::cel::objects::Key;
use kube::core::cel::cel::{ExecutionError, Value as Cel};

use super::super::functions::{charge_or_fail, named_type, type_name};
use super::{Outcome, text};

/// Default number of decimals.
const DEFAULT_PRECISION: usize = 6;
/// Maximum number of decimals.
const MAX_PRECISION: usize = 1000;

fn format_error(reason: impl Into<String>) -> ExecutionError {
    ExecutionError::function_error("format", reason.into())
}

/// `text.format(values)`.
pub(super) fn format(This(this): This<Cel>, Arguments(args): Arguments) -> Outcome {
    let (Cel::String(template), Some(Cel::List(values))) = (&this, args.first()) else {
        return Err(ExecutionError::NoSuchOverload);
    };
    let (mut out, mut rest, mut values) = (String::new(), template.as_str(), values.iter().enumerate());
    let mut next = 0;
    while let Some((before, after)) = rest.split_once('%') {
        out.push_str(before);
        if let Some(after) = after.strip_prefix('%') {
            out.push('%');
            rest = after;
            continue;
        }
        let value = values.next().ok_or_else(|| format_error(format!("index {next} out of range")))?.1;
        next += 1;
        if after.is_empty() {
            return Err(format_error("unexpected end of string"));
        }
        let clause_error = |reason: String| format_error(format!("could not parse formatting clause: {reason}"));
        let (precision, clause, after) = parse_clause(after).map_err(clause_error)?;
        let formatted = format_value(clause, precision, value)
            .map_err(|reason| format_error(format!("error during formatting: {reason}")))?;
        charge_or_fail(formatted.len() as u64 / 10)?;
        out.push_str(&formatted);
        rest = after;
    }
    out.push_str(rest);
    Ok(Cel::String(Arc::new(out)))
}

/// Parses the precision and the letter of a clause; returns them with the remaining text.
pub(crate) fn parse_clause(text: &str) -> Result<(Option<usize>, char, &str), String> {
    let (precision, rest) = match text.strip_prefix('.') {
        None => (None, text),
        Some(rest) => {
            let digits = rest.find(|c: char| !c.is_ascii_digit());
            let digits = digits.ok_or("error while parsing precision: could not find end of precision specifier")?;
            let parsed = rest[..digits].parse::<usize>().ok().filter(|digits| *digits <= MAX_PRECISION);
            let parse_error = || {
                let number = &rest[..digits];
                let reason = if number.is_empty() { "invalid syntax" } else { "value out of range" };
                format!(
                    "error while parsing precision: error while converting precision to integer: strconv.Atoi: parsing {number:?}: {reason}"
                )
            };
            (Some(parsed.ok_or_else(parse_error)?), &rest[digits..])
        }
    };
    let letter = rest.chars().next().ok_or("unexpected end of string")?;
    if !"sdfebxXo".contains(letter) {
        return Err(format!("unrecognized formatting clause \"{letter}\""));
    }
    Ok((precision, letter, &rest[letter.len_utf8()..]))
}

fn format_value(clause: char, precision: Option<usize>, value: &Cel) -> Result<String, String> {
    let type_name = || type_name(value);
    Ok(match (clause, value) {
        ('s', value) => format_string(value)?,
        ('d' | 'b' | 'o' | 'x' | 'X', Cel::Int(number)) => format_integer(clause, *number < 0, number.unsigned_abs()),
        ('d' | 'b' | 'o' | 'x' | 'X', Cel::UInt(number)) => format_integer(clause, false, *number),
        ('d', _) => return Err(format!("decimal clause can only be used on integers, was given {}", type_name())),
        ('b', Cel::Bool(value)) => u8::from(*value).to_string(),
        ('b', _) => {
            return Err(format!("only integers and bools can be formatted as binary, was given {}", type_name()));
        }
        ('o', _) => return Err(format!("octal clause can only be used on integers, was given {}", type_name())),
        ('x' | 'X', Cel::String(text)) => format_hex(text.as_bytes(), clause == 'X'),
        ('x' | 'X', Cel::Bytes(bytes)) => format_hex(bytes, clause == 'X'),
        ('x' | 'X', _) => {
            let reason = "only integers, byte buffers, and strings can be formatted as hex";
            return Err(format!("{reason}, was given {}", type_name()));
        }
        ('f' | 'e', value) => {
            let name = if clause == 'f' { "fixed-point" } else { "scientific" };
            let number = to_double(value);
            let number = number
                .ok_or_else(|| format!("{name} clause can only be used on doubles, was given {}", type_name()))?;
            // The precision of scientific notation is ignored.
            if clause == 'f' {
                format_fixed(number, precision.unwrap_or(DEFAULT_PRECISION))
            } else {
                format_scientific(number)
            }
        }
        (other, _) => return Err(format!("unrecognized formatting clause \"{other}\"")),
    })
}

fn to_double(value: &Cel) -> Option<f64> {
    match value {
        Cel::Float(number) => Some(*number),
        Cel::String(text) => match text.as_str() {
            "NaN" => Some(f64::NAN),
            "Infinity" => Some(f64::INFINITY),
            "-Infinity" => Some(f64::NEG_INFINITY),
            _ => None,
        },
        _ => None,
    }
}

fn format_integer(clause: char, is_negative: bool, number: u64) -> String {
    let digits = match clause {
        'b' => format!("{number:b}"),
        'o' => format!("{number:o}"),
        'x' => format!("{number:x}"),
        'X' => format!("{number:X}"),
        _ => number.to_string(),
    };
    format!("{}{digits}", if is_negative { "-" } else { "" })
}

fn format_hex(bytes: &[u8], is_upper: bool) -> String {
    let digits = |byte: &u8| if is_upper { format!("{byte:02X}") } else { format!("{byte:02x}") };
    bytes.iter().map(digits).collect()
}

/// Text for NaN and infinities.
fn format_non_finite(number: f64) -> Option<String> {
    if number.is_nan() {
        return Some("NaN".to_owned());
    }
    number.is_infinite().then(|| if number > 0.0 { "∞" } else { "-∞" }.to_owned())
}

fn format_fixed(number: f64, precision: usize) -> String {
    if let Some(text) = format_non_finite(number) {
        return text;
    }
    let text = format!("{:.precision$}", number.abs());
    let (whole, fraction) = text.split_once('.').map_or((text.as_str(), ""), |(whole, fraction)| (whole, fraction));
    let mut grouped = String::with_capacity(text.len() + whole.len() / 3);
    for (index, digit) in whole.chars().enumerate() {
        if index > 0 && (whole.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    let sign = if number.is_sign_negative() { "-" } else { "" };
    let point = if fraction.is_empty() { "" } else { "." };
    format!("{sign}{grouped}{point}{fraction}")
}

fn format_scientific(number: f64) -> String {
    if let Some(text) = format_non_finite(number) {
        return text;
    }
    let text = format!("{number:.DEFAULT_PRECISION$e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let (sign, exponent) = exponent.strip_prefix('-').map_or(("", exponent), |exponent| ("⁻", exponent));
    const SUPERSCRIPTS: [char; 10] = ['⁰', '¹', '²', '³', '⁴', '⁵', '⁶', '⁷', '⁸', '⁹'];
    let superscripts = format!("{exponent:0>2}");
    let superscripts: String =
        superscripts.chars().filter_map(|digit| SUPERSCRIPTS.get(digit.to_digit(10)? as usize)).collect();
    format!("{digits}×10{sign}{superscripts}")
}

/// Text of a value.
fn format_string(value: &Cel) -> Result<String, String> {
    Ok(match value {
        Cel::List(items) => {
            let items: Result<Vec<String>, String> = items.iter().map(format_literal).collect();
            format!("[{}]", items?.join(", "))
        }
        Cel::Map(map) => {
            let entry = |(key, value): (&Key, &Cel)| {
                let key = match key {
                    Key::String(key) => format!("{:?}", key.as_str()),
                    Key::Int(key) => key.to_string(),
                    Key::Uint(key) => key.to_string(),
                    Key::Bool(key) => key.to_string(),
                };
                Ok((key, format_literal(value)?))
            };
            let entries: Result<Vec<(String, String)>, String> = map.map.iter().map(entry).collect();
            let mut entries = entries?;
            entries.sort();
            let entries: Vec<String> = entries.into_iter().map(|(key, value)| format!("{key}:{value}")).collect();
            format!("{{{}}}", entries.join(", "))
        }
        Cel::Null => "null".to_owned(),
        Cel::String(text) => text.to_string(),
        Cel::Int(number) => number.to_string(),
        Cel::UInt(number) => number.to_string(),
        Cel::Bytes(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Cel::Bool(_) | Cel::Float(_) | Cel::Timestamp(_) | Cel::Duration(_) => match text::to_string(value.clone()) {
            Ok(Cel::String(text)) => text.to_string(),
            _ => return Err(format!("could not convert argument of type {} to string", type_name(value))),
        },
        other => named_type(other).ok_or_else(|| {
            let supported = "strings, bools, bytes, ints, doubles, maps, lists, types, durations, and timestamps";
            format!("string clause can only be used on {supported}, was given {}", type_name(other))
        })?,
    })
}

/// Text of a value inside a list or map, as a literal.
fn format_literal(value: &Cel) -> Result<String, String> {
    Ok(match value {
        Cel::String(text) => format!("{:?}", text.as_str()),
        Cel::Bytes(_) => format!("b{:?}", format_string(value)?),
        Cel::Timestamp(_) => format!("timestamp({:?})", format_string(value)?),
        Cel::Duration(_) => format!("duration({:?})", format_string(value)?),
        Cel::Float(number) if !number.is_finite() => format!("{:?}", format_string(value)?),
        Cel::Float(number) => format!("{number:.DEFAULT_PRECISION$}"),
        Cel::Int(_) | Cel::UInt(_) | Cel::Bool(_) | Cel::Null | Cel::List(_) | Cel::Map(_) => format_string(value)?,
        other => match named_type(other) {
            Some(name) => name,
            None => return Err(format!("no formatting function for {}", type_name(other))),
        },
    })
}
