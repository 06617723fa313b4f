//! Ages in kubectl's format.

use crowsnest_apimachinery::printers::human_duration;
use jiff::Timestamp;

/// Formats the time from an RFC 3339 timestamp until `now`; `None` if the timestamp is malformed.
pub fn format_age(text: &str, now: Timestamp) -> Option<String> {
    let then: Timestamp = text.parse().ok()?;
    Some(human_duration(seconds_between(then, now)))
}

/// Whole seconds between two times, rounded towards zero.
pub fn seconds_between(then: Timestamp, now: Timestamp) -> i64 {
    let nanos = now.as_nanosecond() - then.as_nanosecond();
    let seconds = nanos / 1_000_000_000;
    i64::try_from(seconds).unwrap_or(i64::MAX)
}
