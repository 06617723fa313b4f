//! Numbers, durations, quantities, percents and times.

use crowsnest_apimachinery::quantity::Quantity;

use super::ast::{FieldKind, Literal, Moment, Scalar};

/// Parses a literal for a field of this kind.
pub(super) fn literal(text: &str, kind: FieldKind) -> Option<Literal> {
    let value = match kind {
        FieldKind::Number => Scalar::Number(number(text)?),
        FieldKind::Quantity => Scalar::Number(quantity(text)?),
        FieldKind::Age => duration(text).map(Scalar::Duration).or_else(|| instant(text).map(Scalar::Moment))?,
        FieldKind::Time => instant(text).map(Scalar::Moment)?,
        // In paths, `500m` is a quantity, not minutes.
        _ => number(text)
            .or_else(|| quantity(text))
            .map(Scalar::Number)
            .or_else(|| duration(text).map(Scalar::Duration))
            .or_else(|| moment(text).map(Scalar::Moment))?,
    };
    Some(Literal { text: text.to_owned(), value })
}

fn number(text: &str) -> Option<f64> {
    if let Some(percent) = text.strip_suffix('%') {
        return number(percent).map(|n| n / 100.0);
    }
    let plain = text.bytes().all(|b| b.is_ascii_digit() || matches!(b, b'.' | b'-' | b'+'));
    text.parse().ok().filter(|n: &f64| plain && n.is_finite())
}

fn quantity(text: &str) -> Option<f64> {
    let quantity = text.parse::<Quantity>().ok()?;
    let value = quantity.as_f64();
    value.is_finite().then_some(value)
}

/// Seconds of `90s`, `15m`, `2h30m`, `7d`, `4w`, `250ms`.
pub(super) fn duration(text: &str) -> Option<f64> {
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

/// A point in time, `10:05` or `10:05:30` (the most recent occurrence), or `2h` (ago).
pub fn instant(text: &str) -> Option<Moment> {
    moment(text).or_else(|| daily(text)).or_else(|| duration(text).map(Moment::Ago))
}

fn daily(text: &str) -> Option<Moment> {
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

/// RFC 3339, `2026-08-01`, `now`, `now-2h`, or `hour`, `day`, `week`, `month`, `year` (ago).
pub(super) fn moment(text: &str) -> Option<Moment> {
    let named = match text {
        "now" => Some(0.0),
        "hour" => Some(3600.0),
        "day" => Some(86_400.0),
        "week" => Some(604_800.0),
        "month" => Some(30.0 * 86_400.0),
        "year" => Some(365.0 * 86_400.0),
        _ => text.strip_prefix("now-").and_then(duration),
    };
    if let Some(ago) = named {
        return Some(Moment::Ago(ago));
    }
    if let Ok(time) = text.parse::<jiff::Timestamp>() {
        return Some(Moment::Absolute(time));
    }
    // Without a time zone it is UTC, like timestamps of the API; seconds are optional.
    let padded = if text.ends_with('Z') { text.trim_end_matches('Z').to_owned() } else { text.to_owned() };
    let civil = padded
        .parse::<jiff::civil::DateTime>()
        .ok()
        .or_else(|| padded.parse::<jiff::civil::Date>().ok().map(|d| d.at(0, 0, 0, 0)))?;
    let zoned = civil.to_zoned(jiff::tz::TimeZone::UTC).ok()?;
    Some(Moment::Absolute(zoned.timestamp()))
}
