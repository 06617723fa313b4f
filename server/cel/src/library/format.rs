//! The `format` function, with cel-go's English number format: thousands separators, and exponents as superscripts.

use std::sync::Arc;

use kube::core::cel::cel::extractors::{Arguments, This};
use kube::core::cel::cel::objects::Key;
use kube::core::cel::cel::{ExecutionError, Value as Cel};

use super::super::functions::{spend, type_name, written_type};
use super::{Outcome, text};

/// Default number of decimals.
const DEFAULT_PRECISION: usize = 6;
/// Maximum number of decimals.
const MAX_PRECISION: usize = 1000;

fn failed(why: impl Into<String>) -> ExecutionError {
    ExecutionError::function_error("format", why.into())
}

/// `text.format(values)`.
pub(super) fn format(This(this): This<Cel>, Arguments(given): Arguments) -> Outcome {
    let (Cel::String(template), Some(Cel::List(values))) = (&this, given.first()) else {
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
        let value = values.next().ok_or_else(|| failed(format!("index {next} out of range")))?.1;
        next += 1;
        if after.is_empty() {
            return Err(failed("unexpected end of string"));
        }
        let unparsed = |why: String| failed(format!("could not parse formatting clause: {why}"));
        let (precision, clause, after) = parse_clause(after).map_err(unparsed)?;
        let shown =
            format_value(clause, precision, value).map_err(|why| failed(format!("error during formatting: {why}")))?;
        spend(shown.len() as u64 / 10)?;
        out.push_str(&shown);
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
            let read = rest[..digits].parse::<usize>().ok().filter(|digits| *digits <= MAX_PRECISION);
            let unread = || {
                let number = &rest[..digits];
                let why = if number.is_empty() { "invalid syntax" } else { "value out of range" };
                format!(
                    "error while parsing precision: error while converting precision to integer: strconv.Atoi: parsing {number:?}: {why}"
                )
            };
            (Some(read.ok_or_else(unread)?), &rest[digits..])
        }
    };
    let letter = rest.chars().next().ok_or("unexpected end of string")?;
    if !"sdfebxXo".contains(letter) {
        return Err(format!("unrecognized formatting clause \"{letter}\""));
    }
    Ok((precision, letter, &rest[letter.len_utf8()..]))
}

fn format_value(clause: char, precision: Option<usize>, value: &Cel) -> Result<String, String> {
    let given = || type_name(value);
    Ok(match (clause, value) {
        ('s', value) => string(value)?,
        ('d' | 'b' | 'o' | 'x' | 'X', Cel::Int(number)) => integer(clause, *number < 0, number.unsigned_abs()),
        ('d' | 'b' | 'o' | 'x' | 'X', Cel::UInt(number)) => integer(clause, false, *number),
        ('d', _) => return Err(format!("decimal clause can only be used on integers, was given {}", given())),
        ('b', Cel::Bool(value)) => u8::from(*value).to_string(),
        ('b', _) => return Err(format!("only integers and bools can be formatted as binary, was given {}", given())),
        ('o', _) => return Err(format!("octal clause can only be used on integers, was given {}", given())),
        ('x' | 'X', Cel::String(text)) => hex(text.as_bytes(), clause == 'X'),
        ('x' | 'X', Cel::Bytes(bytes)) => hex(bytes, clause == 'X'),
        ('x' | 'X', _) => {
            let why = "only integers, byte buffers, and strings can be formatted as hex";
            return Err(format!("{why}, was given {}", given()));
        }
        ('f' | 'e', value) => {
            let name = if clause == 'f' { "fixed-point" } else { "scientific" };
            let number = number(value);
            let number =
                number.ok_or_else(|| format!("{name} clause can only be used on doubles, was given {}", given()))?;
            // The precision of scientific notation is ignored.
            if clause == 'f' { fixed(number, precision.unwrap_or(DEFAULT_PRECISION)) } else { scientific(number) }
        }
        (other, _) => return Err(format!("unrecognized formatting clause \"{other}\"")),
    })
}

fn number(value: &Cel) -> Option<f64> {
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

fn integer(clause: char, negative: bool, number: u64) -> String {
    let digits = match clause {
        'b' => format!("{number:b}"),
        'o' => format!("{number:o}"),
        'x' => format!("{number:x}"),
        'X' => format!("{number:X}"),
        _ => number.to_string(),
    };
    format!("{}{digits}", if negative { "-" } else { "" })
}

fn hex(bytes: &[u8], upper: bool) -> String {
    let digits = |byte: &u8| if upper { format!("{byte:02X}") } else { format!("{byte:02x}") };
    bytes.iter().map(digits).collect()
}

/// Text for NaN and infinities.
fn non_finite(number: f64) -> Option<String> {
    if number.is_nan() {
        return Some("NaN".to_owned());
    }
    number.is_infinite().then(|| if number > 0.0 { "∞" } else { "-∞" }.to_owned())
}

fn fixed(number: f64, precision: usize) -> String {
    if let Some(text) = non_finite(number) {
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

fn scientific(number: f64) -> String {
    if let Some(text) = non_finite(number) {
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
fn string(value: &Cel) -> Result<String, String> {
    Ok(match value {
        Cel::List(items) => {
            let items: Result<Vec<String>, String> = items.iter().map(literal).collect();
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
                Ok((key, literal(value)?))
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
        Cel::Bool(_) | Cel::Float(_) | Cel::Timestamp(_) | Cel::Duration(_) => match text::of(value.clone()) {
            Ok(Cel::String(text)) => text.to_string(),
            _ => return Err(format!("could not convert argument of type {} to string", type_name(value))),
        },
        other => written_type(other).ok_or_else(|| {
            let fit = "strings, bools, bytes, ints, doubles, maps, lists, types, durations, and timestamps";
            format!("string clause can only be used on {fit}, was given {}", type_name(other))
        })?,
    })
}

/// Text of a value inside a list or map, as a literal.
fn literal(value: &Cel) -> Result<String, String> {
    Ok(match value {
        Cel::String(text) => format!("{:?}", text.as_str()),
        Cel::Bytes(_) => format!("b{:?}", string(value)?),
        Cel::Timestamp(_) => format!("timestamp({:?})", string(value)?),
        Cel::Duration(_) => format!("duration({:?})", string(value)?),
        Cel::Float(number) if !number.is_finite() => format!("{:?}", string(value)?),
        Cel::Float(number) => format!("{number:.DEFAULT_PRECISION$}"),
        Cel::Int(_) | Cel::UInt(_) | Cel::Bool(_) | Cel::Null | Cel::List(_) | Cel::Map(_) => string(value)?,
        other => match written_type(other) {
            Some(name) => name,
            None => return Err(format!("no formatting function for {}", type_name(other))),
        },
    })
}
