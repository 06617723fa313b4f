//! Durations in Go's notation (`1h30m`, `1.5s`, `-2ms`): `time.ParseDuration`.

use jiff::SignedDuration;

/// Reason why a text is not a duration, in Go's wording.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DurationError {
    #[error("time: invalid duration {0:?}")]
    Invalid(String),
    #[error("time: missing unit in duration {0:?}")]
    MissingUnit(String),
    #[error("time: unknown unit {unit:?} in duration {text:?}")]
    UnknownUnit { unit: String, text: String },
}

/// Parses a duration. As in Go, it must fit in 64 bits of nanoseconds.
pub fn parse(text: &str) -> Result<SignedDuration, DurationError> {
    let invalid = || DurationError::Invalid(text.to_owned());
    let (is_negative, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    if rest == "0" {
        return Ok(SignedDuration::ZERO);
    }
    if rest.is_empty() {
        return Err(invalid());
    }
    let mut sum = 0_f64;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (amount, unit) = rest.split_at(digits);
        let amount: f64 = amount.parse().map_err(|_| invalid())?;
        let length = unit.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(unit.len());
        let (unit, after) = unit.split_at(length);
        let nanos = match unit {
            "ns" => 1.0,
            "us" | "µs" | "μs" => 1e3,
            "ms" => 1e6,
            "s" => 1e9,
            "m" => 60e9,
            "h" => 3600e9,
            "" => return Err(DurationError::MissingUnit(text.to_owned())),
            unit => return Err(DurationError::UnknownUnit { unit: unit.to_owned(), text: text.to_owned() }),
        };
        sum += amount * nanos;
        rest = after;
    }
    if sum >= i64::MAX as f64 {
        return Err(invalid());
    }
    let nanos = SignedDuration::from_nanos(sum.round() as i64);
    Ok(if is_negative { -nanos } else { nanos })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_parsed_as_in_go() {
        let cases = [
            ("0", Ok(0)),
            ("1h30m", Ok(5_400_000)),
            ("-1.5s", Ok(-1_500)),
            ("+2ms", Ok(2)),
            (".5s", Ok(500)),
            ("", Err("time: invalid duration \"\"")),
            ("x", Err("time: invalid duration \"x\"")),
            (".s", Err("time: invalid duration \".s\"")),
            ("10", Err("time: missing unit in duration \"10\"")),
            ("1d", Err("time: unknown unit \"d\" in duration \"1d\"")),
            ("9999999h", Err("time: invalid duration \"9999999h\"")),
        ];
        for (text, expected) in cases {
            let read = parse(text).map(|read| read.as_millis()).map_err(|error| error.to_string());
            assert_eq!(read, expected.map_err(str::to_owned), "{text}");
        }
    }
}
