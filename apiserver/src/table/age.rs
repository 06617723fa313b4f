//! Durations and ages as kubectl prints them.

use jiff::Timestamp;

/// `85s`, `3m12s`, `2d4h`, `400d`, `3y20d`: fewer units the longer it is. Input in seconds.
pub fn human_duration(seconds: i64) -> String {
    let (minutes, hours) = (seconds / 60, seconds / 3600);
    let two = |big: i64, big_unit: char, small: i64, small_unit: char| {
        if small == 0 { format!("{big}{big_unit}") } else { format!("{big}{big_unit}{small}{small_unit}") }
    };
    match seconds {
        ..-1 => "<invalid>".to_owned(),
        -1 => "0s".to_owned(),
        0..120 => format!("{seconds}s"),
        _ if minutes < 10 => two(minutes, 'm', seconds % 60, 's'),
        _ if minutes < 180 => format!("{minutes}m"),
        _ if hours < 8 => two(hours, 'h', minutes % 60, 'm'),
        _ if hours < 48 => format!("{hours}h"),
        _ if hours < 192 => two(hours / 24, 'd', hours % 24, 'h'),
        _ if hours < 24 * 365 * 2 => format!("{}d", hours / 24),
        _ if hours < 24 * 365 * 8 => two(hours / 24 / 365, 'y', (hours / 24) % 365, 'd'),
        _ => format!("{}y", hours / 24 / 365),
    }
}

/// Time from an RFC 3339 text until `now`; `None` when it is no time.
pub fn since(text: &str, now: Timestamp) -> Option<String> {
    let then: Timestamp = text.parse().ok()?;
    Some(human_duration(seconds_between(then, now)))
}

/// Whole seconds, rounded towards zero except that anything negative stays negative.
pub fn seconds_between(then: Timestamp, now: Timestamp) -> i64 {
    let nanos = now.as_nanosecond() - then.as_nanosecond();
    let seconds = nanos / 1_000_000_000;
    i64::try_from(seconds).unwrap_or(i64::MAX)
}
