//! String formats that OpenAPI validation of custom resources checks, as `go-openapi/strfmt` defines them. Unknown
//! formats accept any string.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::LazyLock;

use jiff::SignedDuration;
use regex::Regex;

macro_rules! pattern {
    ($name:ident, $pattern:literal) => {
        static $name: LazyLock<Regex> = LazyLock::new(|| Regex::new($pattern).expect("constant pattern"));
    };
}

// One label of letters, digits and symbols, or several labels of which the last has only letters.
pattern!(
    HOSTNAME,
    r"^([a-zA-Z0-9\p{S}\p{L}](-?[a-zA-Z0-9\p{S}\p{L}]{0,62})?|([a-zA-Z0-9\p{S}\p{L}]([-a-zA-Z0-9\p{S}\p{L}]{0,61}[a-zA-Z0-9\p{S}\p{L}])?\.)+[a-zA-Z\p{L}]{2,63})$"
);
pattern!(EMAIL, r"^([^<>@]*<[^\s@<>()\[\],;:]+@[^\s@<>]+>|[^\s@<>()\[\],;:]+@[^\s@]+)$");
pattern!(MAC, r"^([0-9A-Fa-f]{2}([:-]))([0-9A-Fa-f]{2}[:-]){4}[0-9A-Fa-f]{2}$");
pattern!(DOTTED_MAC, r"^([0-9A-Fa-f]{4}\.){2}[0-9A-Fa-f]{4}$");
pattern!(UUID, r"(?i)^[0-9a-f]{8}-?[0-9a-f]{4}-?([0-9a-f])[0-9a-f]{3}-?([0-9a-f])[0-9a-f]{3}-?[0-9a-f]{12}$");
pattern!(BSON, r"^[0-9a-fA-F]{24}$");
pattern!(HEX_COLOR, r"^#?([0-9a-fA-F]{3}|[0-9a-fA-F]{6})$");
pattern!(RGB_COLOR, r"^rgb\(\s*(\d{1,3})\s*,\s*(\d{1,3})\s*,\s*(\d{1,3})\s*\)$");
pattern!(SSN, r"^\d{3}[- ]\d{2}[- ]\d{4}$");
pattern!(CREDIT_CARD, r"^[\d\- ]{13,23}$");
pattern!(ISBN, r"^[\dXx\- ]{10,17}$");
pattern!(BASE64, r"^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=|[A-Za-z0-9+/]{4})$");
pattern!(TIME, r"^([0-9]{2}):([0-9]{2}):([0-9]{2})(.[0-9]+)?(z|[+-][0-9]{2}:[0-9]{2})$");
pattern!(DATE, r"^\d{4}-\d{2}-\d{2}$");
pattern!(COUNT_AND_UNIT, r"(\d+)\s*([A-Za-zµ]+)");
pattern!(SHORT_NAME, r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$");
pattern!(LONG_NAME, r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$");

/// Removes leading zeros from the parts of an IPv4 address. They are ambiguous, because C interprets such parts as octal.
pub fn strip_leading_zeros(text: &str) -> String {
    let trimmed = |part: &str| match part.trim_start_matches('0') {
        "" if !part.is_empty() => "0".to_owned(),
        rest => rest.to_owned(),
    };
    text.split('.').map(trimmed).collect::<Vec<_>>().join(".")
}

/// True if `text` has the format.
pub fn matches_format(format: &str, text: &str) -> bool {
    match format {
        "date-time" | "datetime" => is_date_time(text),
        "date" => is_date(text),
        "duration" => parse_duration(text).is_some(),
        "ipv4" => strip_leading_zeros(text).parse::<Ipv4Addr>().is_ok(),
        "ipv6" => text.parse::<Ipv6Addr>().is_ok(),
        "cidr" => is_cidr(text),
        "mac" => MAC.is_match(text) || DOTTED_MAC.is_match(text),
        "hostname" => text.len() <= 255 && HOSTNAME.is_match(text) && text.split('.').all(|label| label.len() <= 63),
        "email" => EMAIL.is_match(text),
        "uri" => {
            text.starts_with('/')
                || text.parse::<http::Uri>().is_ok_and(|u| u.scheme().is_some())
                || is_opaque_uri(text)
        }
        "uuid" => UUID.is_match(text),
        "uuid3" => is_uuid_version(text, "3"),
        "uuid4" => is_uuid_version(text, "4"),
        "uuid5" => is_uuid_version(text, "5"),
        "byte" => BASE64.is_match(text),
        "bsonobjectid" => BSON.is_match(text),
        "hexcolor" => HEX_COLOR.is_match(text),
        "rgbcolor" => {
            RGB_COLOR.captures(text).is_some_and(|c| (1..=3).all(|i| c[i].parse::<u16>().is_ok_and(|n| n < 256)))
        }
        "ssn" => SSN.is_match(text),
        "creditcard" => CREDIT_CARD.is_match(text) && has_luhn_checksum(text),
        "isbn" | "isbn10" | "isbn13" => is_isbn(format, text),
        "k8s-short-name" => SHORT_NAME.is_match(text),
        "k8s-long-name" => text.len() <= 253 && LONG_NAME.is_match(text),
        _ => true,
    }
}

/// Parses a text of format `duration`: Go's notation (`1h30m`), or the sum of all numbers with a unit in the text
/// (`2 days`, `P1D`).
pub fn parse_duration(text: &str) -> Option<SignedDuration> {
    if let Ok(duration) = crowsnest_apimachinery::duration::parse(text) {
        return Some(duration);
    }
    let mut sum: Option<i64> = None;
    for found in COUNT_AND_UNIT.captures_iter(text) {
        let count: i64 = found[1].parse().ok()?;
        if let Some(nanoseconds) = unit_nanoseconds(&found[2]) {
            // As in Go, the 64-bit sum wraps around.
            sum = Some(sum.unwrap_or(0).wrapping_add(count.wrapping_mul(nanoseconds)));
        }
    }
    sum.map(SignedDuration::from_nanos)
}

/// Nanoseconds of a time unit, by its symbol or a word that starts with its name.
fn unit_nanoseconds(word: &str) -> Option<i64> {
    const UNITS: [(&[&str], &str, i64); 8] = [
        (&["ns"], "nano", 1),
        (&["us", "µs"], "micro", 1_000),
        (&["ms"], "milli", 1_000_000),
        (&["s"], "sec", 1_000_000_000),
        (&["m"], "min", 60_000_000_000),
        (&["h", "hr"], "hour", 3_600_000_000_000),
        (&["d"], "day", 86_400_000_000_000),
        (&["w"], "week", 604_800_000_000_000),
    ];
    let word = word.to_lowercase();
    let is_named =
        |(symbols, name, _): &&(&[&str], &str, i64)| symbols.contains(&word.as_str()) || word.starts_with(name);
    UNITS.iter().find(is_named).map(|(_, _, nanoseconds)| *nanoseconds)
}

fn is_date(text: &str) -> bool {
    DATE.is_match(text) && text.parse::<jiff::civil::Date>().is_ok()
}

/// A date and a time of day with zone; leap seconds are not accepted.
fn is_date_time(text: &str) -> bool {
    let text = text.to_lowercase();
    let mut parts = text.split('t');
    let (Some(day), Some(time)) = (parts.next(), parts.next()) else { return false };
    is_date(day) && TIME.captures(time).is_some_and(|c| &c[1] <= "23" && &c[2] <= "59" && &c[3] <= "59")
}

fn is_cidr(text: &str) -> bool {
    let Some((address, bits)) = text.split_once('/') else { return false };
    let Ok(bits) = bits.parse::<u8>() else { return false };
    (address.parse::<Ipv4Addr>().is_ok() && bits <= 32) || (address.parse::<Ipv6Addr>().is_ok() && bits <= 128)
}

/// A scheme and a non-empty rest: `mailto:x`, `urn:a:b`.
fn is_opaque_uri(text: &str) -> bool {
    text.split_once(':').is_some_and(|(scheme, rest)| {
        let mut letters = scheme.chars();
        !rest.is_empty()
            && !rest.contains(char::is_whitespace)
            && letters.next().is_some_and(|c| c.is_ascii_alphabetic())
            && letters.all(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.'))
    })
}

fn is_uuid_version(text: &str, version: &str) -> bool {
    UUID.captures(text).is_some_and(|c| {
        let variant = version == "3" || matches!(c[2].to_ascii_lowercase().as_str(), "8" | "9" | "a" | "b");
        &c[1] == version && variant
    })
}

fn collect_digits(text: &str) -> Vec<u32> {
    text.chars().filter_map(|c| c.to_digit(10)).collect()
}

/// True if the digits have a valid Luhn checksum.
fn has_luhn_checksum(text: &str) -> bool {
    let digits = collect_digits(text);
    let sum: u32 = digits
        .iter()
        .rev()
        .enumerate()
        .map(|(i, d)| {
            if i % 2 == 0 {
                *d
            } else if *d > 4 {
                d * 2 - 9
            } else {
                d * 2
            }
        })
        .sum();
    (13..=19).contains(&digits.len()) && sum.is_multiple_of(10)
}

fn is_isbn(format: &str, text: &str) -> bool {
    if !ISBN.is_match(text) {
        return false;
    }
    let mut digits = collect_digits(text);
    if text.ends_with(['X', 'x']) {
        digits.push(10);
    }
    let is_isbn10 =
        || digits.len() == 10 && digits.iter().enumerate().map(|(i, d)| d * (10 - i as u32)).sum::<u32>() % 11 == 0;
    let is_isbn13 = || {
        let sum = digits.iter().enumerate().map(|(i, d)| if i % 2 == 0 { *d } else { d * 3 }).sum::<u32>();
        digits.len() == 13 && sum.is_multiple_of(10)
    };
    match format {
        "isbn10" => is_isbn10(),
        "isbn13" => is_isbn13(),
        _ => is_isbn10() || is_isbn13(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("1h30m", Some(5_400))]
    #[case("-2s", Some(-2))]
    #[case("1d", Some(86_400))]
    #[case("1w", Some(604_800))]
    #[case("2 days", Some(172_800))]
    #[case("1 s", Some(1))]
    #[case("P1D", Some(86_400))]
    #[case("1 Hour 2 minutes", Some(3_720))]
    #[case("", None)]
    #[case("soon", None)]
    #[case("5", None)]
    #[case("5 parsecs", None)]
    #[case("99999999999999999999d", None)]
    fn durations_are_parsed(#[case] text: &str, #[case] seconds: Option<i64>) {
        assert_eq!(parse_duration(text).map(|duration| duration.as_secs()), seconds);
    }
}
