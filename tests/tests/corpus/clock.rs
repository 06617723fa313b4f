//! Converts times of the corpus, which has a fixed current time, to times of the test. Times in objects are shifted so
//! that the corpus' current time is the start of the test. Times in queries are converted to times with the same
//! result.
//!
//! Conditions on times of objects (`age:`, `created:`, `last:`) are shifted in the same way. Conditions on the time at
//! which the cache saw a change (`changed:`, `deleted:`, `at:`, `during:`) are converted to a time between the same two
//! changes.

use std::cell::RefCell;
use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use serde_json::Value;

use super::fixtures::NOW;

/// Conversion from times of the corpus to times of the test, both in Unix seconds.
#[derive(Debug)]
pub struct Clock {
    shift: i64,
    /// Times of the corpus that queries refer to.
    query_times: BTreeSet<i64>,
    /// Times of changes in the corpus, and the last second of the test in which each was the newest change.
    changes: Vec<(i64, i64)>,
}

impl Clock {
    /// Maps the current time of the corpus to `now`. Changes are distinguished if a query refers to a time between them.
    pub fn new(now: i64, queries: impl IntoIterator<Item = impl AsRef<str>>) -> Result<Self> {
        let query_times = RefCell::new(BTreeSet::new());
        let record = |at| {
            query_times.borrow_mut().insert(at);
            at
        };
        for query in queries {
            convert_query(query.as_ref(), 0, NOW, &record)?;
        }
        Ok(Self { shift: now - NOW, query_times: query_times.into_inner(), changes: Vec::new() })
    }

    /// The second in which a change at this time of the corpus must not be seen: with the resolution of seconds,
    /// queries could not distinguish it from earlier changes.
    pub fn indistinguishable_second(&self, at: i64) -> Option<i64> {
        let (last, seen) = self.changes.last()?;
        self.query_times.range(last..&at).next().map(|_| *seen)
    }

    /// Records that the cache has received all changes up to the time `at` of the corpus; `now` is the current time.
    pub fn record(&mut self, at: i64, now: i64) -> Result<()> {
        ensure!(
            self.changes.last().is_none_or(|(last, seen)| *last <= at && *seen <= now),
            "changes are recorded out of order"
        );
        ensure!(
            self.indistinguishable_second(at).is_none_or(|forbidden| forbidden < now),
            "the changes until {at} were received in the second of the previous ones, but a query refers to a time between them"
        );
        self.changes.push((at, now));
        Ok(())
    }

    /// The last second of the test in which the state was that of the corpus at this time.
    fn last_second_at(&self, at: i64) -> i64 {
        let before = self.changes.partition_point(|(changed, _)| *changed <= at);
        self.changes.get(before.wrapping_sub(1)).map_or(i64::MIN, |(_, seen)| *seen)
    }

    /// Shifts the times in an object.
    pub fn shift_times(&self, object: &mut Value) -> Result<()> {
        match object {
            Value::Object(fields) => fields.values_mut().try_for_each(|value| self.shift_times(value)),
            Value::Array(items) => items.iter_mut().try_for_each(|value| self.shift_times(value)),
            Value::String(text) => {
                const SECONDS: usize = "2026-09-21T13:00:06".len();
                if let (Ok(time), Some(rest)) = (text.parse::<Timestamp>(), text.get(SECONDS..)) {
                    let to = format_time(time.as_second() + self.shift)?;
                    *text = format!("{}{rest}", to.trim_end_matches('Z'));
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// The query that has the same result now as the given one in the corpus.
    pub fn shift_query(&self, query: &str, now: i64) -> Result<String> {
        convert_query(query, self.shift, now, &|at| self.last_second_at(at))
    }
}

/// Converts the times in a query: `shift` and `now` are in seconds, `last_second_at` as [`Clock::last_second_at`].
fn convert_query(query: &str, shift: i64, now: i64, last_second_at: &dyn Fn(i64) -> i64) -> Result<String> {
    let words = || query.split_inclusive([' ', '(', ')']);
    let word_length = |word: &str| word.trim_end_matches([' ', '(', ')']).len();
    // Ages in a query about a past time refer to that time.
    let at = words().find_map(|word| parse_time(word[..word_length(word)].strip_prefix("at:")?));
    let elapsed = at.map_or(now - NOW, |at| last_second_at(at) - at) - shift;
    let mut converted_query = String::new();
    for word in words() {
        let (word, rest) = word.split_at(word_length(word));
        let Some((field, value)) = word.split_once(':') else {
            converted_query.extend([word, rest]);
            continue;
        };
        let converted = match field.trim_start_matches('-') {
            "age" | "last" => {
                convert_operands(value, |text| Ok(parse_duration(text).map(|age| format!("{}s", age + elapsed))))?
            }
            "created" => {
                convert_operands(value, |text| parse_time(text).map(|time| format_time(time + shift)).transpose())?
            }
            "changed" | "deleted" => convert_ages(value, last_second_at)?,
            "at" => parse_time(value).map(|at| format_time(last_second_at(at))).transpose()?,
            "during" => convert_period(value, last_second_at)?,
            _ => None,
        };
        converted_query.extend([field, ":", converted.as_deref().unwrap_or(value), rest]);
    }
    Ok(converted_query)
}

/// Converts ages of changes to times. A longer age is an earlier time, so comparisons are inverted.
fn convert_ages(value: &str, last_second_at: &dyn Fn(i64) -> i64) -> Result<Option<String>> {
    let ago = |text: &str| parse_duration(text).map(|age| last_second_at(NOW - age));
    if let Some((from, to)) = value.split_once("..") {
        let (Some(from), Some(to)) = (ago(from), ago(to)) else { return Ok(None) };
        return Ok(Some(format!("{}..{}", format_time(to + 1)?, format_time(from)?)));
    }
    let (sign, inverted) = match value.chars().next() {
        Some('<') => ("<", ">"),
        Some('>') => (">", "<="),
        _ => ("", ">"),
    };
    ago(&value[sign.len()..]).map(|time| Ok(format!("{inverted}{}", format_time(time)?))).transpose()
}

fn convert_period(value: &str, last_second_at: &dyn Fn(i64) -> i64) -> Result<Option<String>> {
    let Some((from, to)) = value.split_once("..") else { return Ok(None) };
    // Objects that were deleted in the second before must not match.
    let from = parse_time(from).map(|time| format_time(last_second_at(time) + 1)).transpose()?.unwrap_or_default();
    let to = parse_time(to).map(|time| format_time(last_second_at(time))).transpose()?.unwrap_or_default();
    Ok(Some(format!("{from}..{to}")))
}

/// Converts both ends of a range, or the operand of a comparison. `None` if there is nothing to convert.
fn convert_operands(value: &str, convert: impl Fn(&str) -> Result<Option<String>>) -> Result<Option<String>> {
    if let Some((from, to)) = value.split_once("..") {
        let (converted_from, converted_to) = (convert(from)?, convert(to)?);
        let is_converted = converted_from.is_some() || converted_to.is_some();
        let from = converted_from.unwrap_or_else(|| from.to_owned());
        let to = converted_to.unwrap_or_else(|| to.to_owned());
        return Ok(is_converted.then(|| format!("{from}..{to}")));
    }
    let sign = value.len() - value.trim_start_matches(['<', '>', '=', '!']).len();
    Ok(convert(&value[sign..])?.map(|converted| format!("{}{converted}", &value[..sign])))
}

/// Seconds of `15m` or `2w`.
fn parse_duration(text: &str) -> Option<i64> {
    let amount: i64 = text.get(..text.len().checked_sub(1)?)?.parse().ok()?;
    let unit = match text.as_bytes().last()? {
        b's' => 1,
        b'm' => 60,
        b'h' => 3600,
        b'd' => 86_400,
        b'w' => 604_800,
        _ => return None,
    };
    Some(amount * unit)
}

/// A time of the corpus: RFC 3339, also without seconds or as a date, `now`, `now-2h`.
fn parse_time(text: &str) -> Option<i64> {
    if let Some(ago) = text.strip_prefix("now") {
        return if ago.is_empty() { Some(NOW) } else { Some(NOW - parse_duration(ago.strip_prefix('-')?)?) };
    }
    let bare = text.trim_end_matches('Z');
    let civil = bare.parse::<jiff::civil::DateTime>().ok()?;
    Some(civil.to_zoned(jiff::tz::TimeZone::UTC).ok()?.timestamp().as_second())
}

fn format_time(seconds: i64) -> Result<String> {
    Ok(Timestamp::from_second(seconds).with_context(|| format!("invalid time {seconds}"))?.to_string())
}

#[test]
fn times_in_queries_and_objects_are_converted() -> Result<()> {
    let cases = [
        ("kind:pod name:web* restarts:>2", "kind:pod name:web* restarts:>2"),
        ("(last:<5m OR -age:1h..2d) is:x", "(last:<315s OR -age:3615s..172815s) is:x"),
        ("created:<2026-04-01", "created:<2026-04-01T01:00:00Z"),
        ("created:2026-04-01..2026-04-02T10:00:00Z", "created:2026-04-01T01:00:00Z..2026-04-02T11:00:00Z"),
        ("changed:<5m", "changed:>2026-09-21T15:13:20Z"),
        ("deleted:>5m", "deleted:<=2026-09-21T15:13:20Z"),
        ("changed:0s..5m", "changed:2026-09-21T15:13:21Z..2026-09-21T15:13:29Z"),
        ("deleted:!* changed:soon", "deleted:!* changed:soon"),
        ("at:now kind:x", "at:2026-09-21T15:13:29Z kind:x"),
        ("at:2026-09-21T14:05 age:<1h", "at:2026-09-21T15:13:20Z age:<4100s"),
        ("during:now-5m..now", "during:2026-09-21T15:13:21Z..2026-09-21T15:13:29Z"),
        ("during:..2026-09-21T14:01:00Z", "during:..2026-09-21T15:13:20Z"),
        ("at:whenever during:now-1h", "at:whenever during:now-1h"),
    ];
    // The test starts an hour after the corpus' current time. The cache sees changes until 14:00 in the first second of
    // the test, and later ones in the tenth.
    let mut clock = Clock::new(NOW + 3600, cases.map(|(query, _)| query))?;
    clock.record(NOW - 800, NOW + 3600)?;
    assert_eq!(
        (clock.indistinguishable_second(NOW - 750), clock.indistinguishable_second(NOW - 60)),
        (None, Some(NOW + 3600))
    );
    clock.record(NOW - 60, NOW + 3609)?;
    for (query, expected) in cases {
        assert_eq!(clock.shift_query(query, NOW + 3615)?, expected, "{query}");
    }
    let mut object = serde_json::json!({"a": ["2026-09-21T13:00:06Z", "2026-09-21T13:20:00.000000Z", "13:20", "x"]});
    clock.shift_times(&mut object)?;
    let expected = serde_json::json!({"a": ["2026-09-21T14:00:06Z", "2026-09-21T14:20:00.000000Z", "13:20", "x"]});
    assert_eq!(object, expected);
    Ok(())
}
