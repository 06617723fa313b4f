//! `metav1.Time` and `metav1.MicroTime` in Go's formats.

use jiff::Timestamp;
use jiff::tz::TimeZone;

const RFC3339: &str = "2006-01-02T15:04:05Z07:00";
const RFC3339_MICRO: &str = "2006-01-02T15:04:05.000000Z07:00";

/// Normalizes an RFC 3339 time to UTC with whole seconds. Errors have the messages of Go's `time.Parse`.
pub fn canonical_time(text: &str) -> Result<String, String> {
    check_layout(text, RFC3339, false)?;
    let time: Timestamp = text.parse().map_err(|_| out_of_range(text))?;
    Ok(time.to_zoned(TimeZone::UTC).strftime("%Y-%m-%dT%H:%M:%SZ").to_string())
}

/// Normalizes an RFC 3339 time to UTC with six fractional digits, which the input must have as well.
pub fn canonical_micro_time(text: &str) -> Result<String, String> {
    check_layout(text, RFC3339_MICRO, true)?;
    let time: Timestamp = text.parse().map_err(|_| out_of_range(text))?;
    Ok(time.to_zoned(TimeZone::UTC).strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string())
}

/// The error of `time.Parse` for a well-formed time with a value out of range.
fn out_of_range(text: &str) -> String {
    let number = |from: usize| text.get(from..from + 2).and_then(|n| n.parse::<u8>().ok()).unwrap_or(0);
    let component = match (number(5), number(11), number(14), number(17)) {
        (month, ..) if !(1..=12).contains(&month) => "month",
        (_, hour, ..) if hour > 23 => "hour",
        (_, _, minute, _) if minute > 59 => "minute",
        (_, _, _, second) if second > 59 => "second",
        _ => "day",
    };
    format!("parsing time {text:?}: {component} out of range")
}

/// Checks a time against a layout and returns the error of `time.Parse` for the first mismatch.
fn check_layout(text: &str, layout: &str, micro: bool) -> Result<(), String> {
    let fail = |rest: &str, element: &str| {
        Err(format!("parsing time {text:?} as {layout:?}: cannot parse {rest:?} as {element:?}"))
    };
    let mut rest = text;
    for (digits, element, next) in
        [(4, "2006", "-"), (2, "01", "-"), (2, "02", "T"), (2, "15", ":"), (2, "04", ":"), (2, "05", "")]
    {
        let Some(after) = take_digits(rest, digits) else { return fail(rest, element) };
        rest = after;
        match rest.strip_prefix(next) {
            Some(after) => rest = after,
            None => return fail(rest, next),
        }
    }
    if micro {
        match rest.strip_prefix('.').and_then(|after| take_digits(after, 6)) {
            Some(after) => rest = after,
            None => return fail(rest, ".000000"),
        }
    } else if let Some(fraction) = rest.strip_prefix('.') {
        let digits = fraction.bytes().take_while(u8::is_ascii_digit).count();
        if digits > 0 {
            rest = &fraction[digits..];
        }
    }
    match rest.strip_prefix('Z') {
        Some("") => Ok(()),
        Some(extra) => Err(format!("parsing time {text:?}: extra text: {extra:?}")),
        None => {
            let offset =
                rest.strip_prefix(['+', '-']).and_then(|o| take_digits(o, 2)).and_then(|o| o.strip_prefix(':'));
            match offset.and_then(|o| take_digits(o, 2)) {
                Some("") => Ok(()),
                Some(extra) => Err(format!("parsing time {text:?}: extra text: {extra:?}")),
                None => fail(rest, "Z07:00"),
            }
        }
    }
}

fn take_digits(text: &str, count: usize) -> Option<&str> {
    let head = text.get(..count)?;
    head.bytes().all(|b| b.is_ascii_digit()).then(|| &text[count..])
}
