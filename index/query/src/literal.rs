//! Parses literals: numbers, percentages, quantities, durations and times.

use crowsnest_apimachinery::quantity::Quantity;

use super::ast::{FieldKind, Literal, Moment, Scalar};

/// Parses a literal for a field of this kind; `None` if the kind has no such literal.
pub(super) fn parse_literal(text: &str, kind: FieldKind) -> Option<Literal> {
    let value = match kind {
        FieldKind::Number => Scalar::Number(parse_number(text)?),
        FieldKind::Quantity => Scalar::Number(parse_quantity(text)?),
        FieldKind::Age => {
            parse_duration(text).map(Scalar::Duration).or_else(|| parse_time(text).map(Scalar::Moment))?
        }
        FieldKind::Time => parse_time(text).map(Scalar::Moment)?,
        // The type of a manifest path is unknown, so quantities are tried before durations: `500m` is half a core, not
        // 500 minutes.
        _ => parse_number(text)
            .or_else(|| parse_quantity(text))
            .map(Scalar::Number)
            .or_else(|| parse_duration(text).map(Scalar::Duration))
            .or_else(|| parse_timestamp(text).map(Scalar::Moment))?,
    };
    Some(Literal { text: text.to_owned(), value })
}

fn parse_number(text: &str) -> Option<f64> {
    if let Some(percent) = text.strip_suffix('%') {
        return parse_number(percent).map(|n| n / 100.0);
    }
    let plain = text.bytes().all(|b| b.is_ascii_digit() || matches!(b, b'.' | b'-' | b'+'));
    text.parse().ok().filter(|n: &f64| plain && n.is_finite())
}

fn parse_quantity(text: &str) -> Option<f64> {
    let quantity = text.parse::<Quantity>().ok()?;
    let value = quantity.as_f64();
    value.is_finite().then_some(value)
}

/// Parses a duration such as `90s`, `15m`, `2h30m`, `7d`, `4w` or `250ms`. Returns seconds.
pub(super) fn parse_duration(text: &str) -> Option<f64> {
    let mut total = 0.0;
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !(c.is_ascii_digit() || c == '.')).filter(|n| *n > 0)?;
        let amount: f64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let letters = rest.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(rest.len());
        let unit = match &rest[..letters] {
            "ms" => 0.001,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            "d" => 86_400.0,
            "w" => 604_800.0,
            _ => return None,
        };
        total += amount * unit;
        rest = &rest[letters..];
    }
    (!text.is_empty() && f64::is_finite(total)).then_some(total)
}

/// Parses a time: a form of `parse_timestamp`, a time of day in UTC (`10:05` or `10:05:30`, the most recent occurrence), or a
/// duration before now (`2h`).
pub fn parse_time(text: &str) -> Option<Moment> {
    parse_timestamp(text).or_else(|| parse_time_of_day(text)).or_else(|| parse_duration(text).map(Moment::Ago))
}

fn parse_time_of_day(text: &str) -> Option<Moment> {
    let parts: Vec<&str> = text.trim_end_matches('Z').split(':').collect();
    let is_number = |part: &&str| part.len() == 2 && part.bytes().all(|b| b.is_ascii_digit());
    if !(2..=3).contains(&parts.len()) || !parts.iter().all(is_number) {
        return None;
    }
    let numbers: Vec<u32> = parts.iter().map(|part| part.parse()).collect::<Result<_, _>>().ok()?;
    let second = numbers.get(2).copied().unwrap_or_default();
    let is_time = numbers[0] < 24 && numbers[1] < 60 && second < 60;
    is_time.then(|| Moment::Daily(numbers[0] * 3600 + numbers[1] * 60 + second))
}

/// Parses RFC 3339, a date (`2026-08-01`), `now`, `now-2h`, or one `hour`, `day`, `week`, `month` (30 days) or `year`
/// (365 days) before now.
pub(super) fn parse_timestamp(text: &str) -> Option<Moment> {
    let seconds_ago = match text {
        "now" => Some(0.0),
        "hour" => Some(3600.0),
        "day" => Some(86_400.0),
        "week" => Some(604_800.0),
        "month" => Some(30.0 * 86_400.0),
        "year" => Some(365.0 * 86_400.0),
        _ => text.strip_prefix("now-").and_then(parse_duration),
    };
    if let Some(seconds) = seconds_ago {
        return Some(Moment::Ago(seconds));
    }
    if let Ok(time) = text.parse::<jiff::Timestamp>() {
        return Some(Moment::Absolute(time));
    }
    // A time without a zone is in UTC, like timestamps of the API. Seconds are optional.
    let civil = if text.ends_with('Z') { text.trim_end_matches('Z').to_owned() } else { text.to_owned() };
    let civil = civil
        .parse::<jiff::civil::DateTime>()
        .ok()
        .or_else(|| civil.parse::<jiff::civil::Date>().ok().map(|d| d.at(0, 0, 0, 0)))?;
    let zoned = civil.to_zoned(jiff::tz::TimeZone::UTC).ok()?;
    Some(Moment::Absolute(zoned.timestamp()))
}
