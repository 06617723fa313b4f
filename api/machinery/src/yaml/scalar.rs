//! Resolution of plain scalars by the YAML 1.1 rules of go-yaml: `yes` and `no` are booleans, `017` is octal, `1_000`
//! is a number, and a date is a string that must be quoted when written.

use std::sync::LazyLock;

use regex::Regex;
use serde_json::{Number, Value};

/// Resolved type of a plain scalar.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ScalarValue {
    Null,
    Bool(bool),
    Integer(i64),
    Unsigned(u64),
    Float(f64),
    /// A string with the form of a YAML timestamp.
    Time,
    Text,
}

fn pattern(expression: &str) -> Regex {
    #[expect(clippy::expect_used, reason = "the expressions are constants of this file, covered by its tests")]
    Regex::new(expression).expect("a valid expression")
}

static FLOAT: LazyLock<Regex> = LazyLock::new(|| pattern(r"^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$"));
/// A fraction that begins with its decimal point, with underscores between digits.
static SEPARATED_FRACTION: LazyLock<Regex> =
    LazyLock::new(|| pattern(r"^\.[0-9]+(_[0-9]+)*([eE][-+]?[0-9]+(_[0-9]+)*)?$"));
static SEXAGESIMAL: LazyLock<Regex> = LazyLock::new(|| pattern(r"^[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?$"));
static TIME: LazyLock<Regex> = LazyLock::new(|| {
    let zone = r"(Z|[-+]([0-9]{2}):([0-9]{2}))";
    let clock = r"([0-9]{1,2}):([0-9]{1,2}):([0-9]{1,2})([.,][0-9]+)?";
    pattern(&format!("^([0-9]{{4}})-([0-9]{{1,2}})-([0-9]{{1,2}})(?:[Tt]{clock}{zone}| +{clock})?$"))
});

/// Resolves a scalar without quotes and tag.
pub fn resolve_scalar(scalar: &str) -> ScalarValue {
    match scalar {
        "" | "~" | "null" | "Null" | "NULL" => return ScalarValue::Null,
        "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => {
            return ScalarValue::Bool(true);
        }
        "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => {
            return ScalarValue::Bool(false);
        }
        ".nan" | ".NaN" | ".NAN" => return ScalarValue::Float(f64::NAN),
        ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" => return ScalarValue::Float(f64::INFINITY),
        "-.inf" | "-.Inf" | "-.INF" => return ScalarValue::Float(f64::NEG_INFINITY),
        _ => {}
    }
    match scalar.as_bytes()[0] {
        b'.' if SEPARATED_FRACTION.is_match(scalar) => parse_float(&scalar.replace('_', "")),
        b'0'..=b'9' | b'+' | b'-' if is_time(scalar) => ScalarValue::Time,
        b'0'..=b'9' | b'+' | b'-' => parse_number(&scalar.replace('_', "")),
        _ => ScalarValue::Text,
    }
}

fn parse_number(scalar: &str) -> ScalarValue {
    let (is_negative, digits) = match scalar.as_bytes().first() {
        Some(b'-') => (true, &scalar[1..]),
        Some(b'+') => (false, &scalar[1..]),
        _ => (false, scalar),
    };
    match parse_integer(digits) {
        Some(magnitude) => {
            let signed = if is_negative { -i128::from(magnitude) } else { i128::from(magnitude) };
            match i64::try_from(signed) {
                Ok(integer) => ScalarValue::Integer(integer),
                Err(_) if digits.len() == scalar.len() => ScalarValue::Unsigned(magnitude),
                Err(_) => parse_float(scalar),
            }
        }
        None => parse_float(scalar),
    }
}

/// Parses digits with a base prefix like Go. A leading zero means octal.
fn parse_integer(digits: &str) -> Option<u64> {
    let prefix = digits.get(..2).unwrap_or_default();
    let (base, digits) = match prefix {
        "0x" | "0X" => (16, &digits[2..]),
        "0b" | "0B" => (2, &digits[2..]),
        "0o" | "0O" => (8, &digits[2..]),
        _ if digits.len() > 1 && digits.starts_with('0') => (8, &digits[1..]),
        _ => (10, digits),
    };
    let has_no_sign = !digits.starts_with(['+', '-']);
    u64::from_str_radix(digits, base).ok().filter(|_| has_no_sign)
}

/// Resolves a float. Other text, and a number out of the range of f64, is a string.
fn parse_float(scalar: &str) -> ScalarValue {
    let value = FLOAT.is_match(scalar).then(|| scalar.parse::<f64>().ok()).flatten();
    value.filter(|value| value.is_finite()).map_or(ScalarValue::Text, ScalarValue::Float)
}

fn is_time(scalar: &str) -> bool {
    let Some(parts) = TIME.captures(scalar) else { return false };
    let part = |index: usize| parts.get(index).map_or(0, |part| part.as_str().parse().unwrap_or(u32::MAX));
    let (hour, minute, second) = (part(4).max(part(11)), part(5).max(part(12)), part(6).max(part(13)));
    let (year, month, day) = (part(1), part(2), part(3));
    let is_leap_year = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let days = match month {
        4 | 6 | 9 | 11 => 30,
        2 if is_leap_year => 29,
        2 => 28,
        _ => 31,
    };
    let is_valid_offset = part(9) <= 24 && part(10) <= 60;
    (1..=12).contains(&month) && (1..=days).contains(&day) && hour < 24 && minute < 60 && second < 60 && is_valid_offset
}

/// True if YAML 1.1 and 1.2 parsers read the unquoted text as a string.
pub fn is_plain(text: &str) -> bool {
    matches!(resolve_scalar(text), ScalarValue::Text) && !SEXAGESIMAL.is_match(text)
}

/// A float as JSON number. Without a fraction, it becomes an integer.
pub fn json_number(value: f64) -> Value {
    /// Go's JSON encoder prints larger numbers with an exponent.
    const EXPONENT_THRESHOLD: f64 = 1e21;
    if value.fract() == 0.0 && value.abs() < EXPONENT_THRESHOLD {
        // The shortest digits that identify the float, followed by zeros.
        let digits = value.to_string();
        if let Ok(integer) = digits.parse::<i64>() {
            return Value::from(integer);
        }
        if let Ok(unsigned) = digits.parse::<u64>() {
            return Value::from(unsigned);
        }
    }
    Number::from_f64(value).map_or(Value::Null, Value::Number)
}

/// Replaces floats without a fraction with integers, recursively, because Go's JSON encoder prints float64(1) as `1`.
/// Integers beyond 64 signed bits are floats in Go.
pub fn convert_integral_floats(value: &mut Value) {
    match value {
        Value::Number(number) if !number.is_i64() => {
            if let Some(float) = number.as_f64() {
                *value = json_number(float);
            }
        }
        Value::Array(items) => items.iter_mut().for_each(convert_integral_floats),
        Value::Object(fields) => fields.values_mut().for_each(convert_integral_floats),
        _ => {}
    }
}

/// The shortest representation, in scientific notation for decimal exponents below -4 and from 6 on. As `%g` in Go,
/// except for infinities.
pub fn format_float(value: f64) -> String {
    let scientific = format!("{value:e}");
    let Some((digits, exponent)) = scientific.split_once('e') else { return scientific };
    match exponent.parse::<i32>() {
        Ok(exponent) if !(-4..6).contains(&exponent) => {
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{digits}e{sign}{:02}", exponent.abs())
        }
        _ => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::json;

    #[rstest]
    #[case::octal("0777", ScalarValue::Integer(511))]
    #[case::invalid_octal_is_a_float("09", ScalarValue::Float(9.0))]
    #[case::hexadecimal("0x1F", ScalarValue::Integer(31))]
    #[case::separated("1_000", ScalarValue::Integer(1000))]
    #[case::separated_fraction(".1_0", ScalarValue::Float(0.1))]
    #[case::doubly_separated_fraction(".1__0", ScalarValue::Text)]
    #[case::largest("18446744073709551615", ScalarValue::Unsigned(u64::MAX))]
    #[case::too_large("18446744073709551616", ScalarValue::Float(18_446_744_073_709_551_616.0))]
    #[case::date("2024-02-29", ScalarValue::Time)]
    #[case::invalid_date("2023-02-29", ScalarValue::Text)]
    #[case::time("2001-12-14t21:59:43.10-05:00", ScalarValue::Time)]
    #[case::version("1.2.3", ScalarValue::Text)]
    #[case::exponent("1e3", ScalarValue::Float(1000.0))]
    #[case::out_of_range("1e999", ScalarValue::Text)]
    #[case::merge_key_is_text("<<", ScalarValue::Text)]
    #[case::minus("-", ScalarValue::Text)]
    fn plain_scalars_are_resolved(#[case] scalar: &str, #[case] expected: ScalarValue) {
        assert_eq!(resolve_scalar(scalar), expected);
    }

    #[rstest]
    #[case(json!([1.0, -0.0, 1.5]), json!([1, 0, 1.5]))]
    #[case(json!({"a": 12_345_678_901_234_567_890_u64}), json!({"a": 12_345_678_901_234_567_000_u64}))]
    #[case(json!(1.234_567_890_123_456_8e18), json!(1_234_567_890_123_456_800_i64))]
    #[case(json!(i64::MAX), json!(i64::MAX))]
    #[case(json!(1e22), json!(1e22))]
    fn integral_floats_become_integers(#[case] mut value: Value, #[case] expected: Value) {
        convert_integral_floats(&mut value);
        assert_eq!(value, expected);
    }

    #[rstest]
    #[case(0.1, "0.1")]
    #[case(100_000.5, "100000.5")]
    #[case(1_234_567.5, "1.2345675e+06")]
    #[case(0.000_012, "1.2e-05")]
    #[case(1e21, "1e+21")]
    fn floats_are_formatted(#[case] value: f64, #[case] expected: &str) {
        assert_eq!(format_float(value), expected);
    }
}
