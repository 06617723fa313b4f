//! Table cells, and kubectl's age format.

use jiff::SignedDuration;
use serde::{Deserialize, Serialize};

/// A table cell. A cell with an age stores the point in time; [`Cell::render`] computes the age.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Cell {
    Flag(bool),
    Number(i64),
    Text(String),
    /// An age: the time that has passed since `since`.
    Since {
        /// Unix seconds.
        since: i64,
    },
    /// A count with the time since the last occurrence: `3 (5m ago)`.
    Ago {
        count: i64,
        /// Unix seconds.
        #[serde(rename = "ago")]
        last_occurrence: i64,
    },
    Empty,
}

impl Cell {
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text(text.into())
    }

    /// The age of a time in Unix seconds; `<unknown>` for `None`.
    pub fn since(seconds: Option<i64>) -> Self {
        seconds.map_or_else(|| Self::text("<unknown>"), |since| Self::Since { since })
    }

    /// The cell as displayed in a Table row at `now` (Unix seconds).
    pub fn render(&self, now: i64) -> serde_json::Value {
        match self {
            Self::Flag(flag) => (*flag).into(),
            Self::Number(number) => (*number).into(),
            Self::Text(text) => text.as_str().into(),
            Self::Since { since } => human_duration(now - since).into(),
            Self::Ago { count, last_occurrence } => {
                format!("{count} ({} ago)", human_duration(now - last_occurrence)).into()
            }
            Self::Empty => serde_json::Value::Null,
        }
    }
}

impl From<bool> for Cell {
    fn from(flag: bool) -> Self {
        Self::Flag(flag)
    }
}

impl From<i64> for Cell {
    fn from(number: i64) -> Self {
        Self::Number(number)
    }
}

impl From<usize> for Cell {
    fn from(number: usize) -> Self {
        Self::Number(i64::try_from(number).unwrap_or(i64::MAX))
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        Self::text(text)
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

/// Formats a duration in seconds like `HumanDuration` in k8s.io/apimachinery: `119s`, `2m5s`, `3h1m`, `8d`.
pub fn human_duration(seconds: i64) -> String {
    let duration = SignedDuration::from_secs(seconds);
    let (seconds, minutes, hours) = (duration.as_secs(), duration.as_mins(), duration.as_hours());
    let (days, years) = (hours / 24, hours / 24 / 365);
    let two_units = |first: i64, first_unit: &str, second: i64, second_unit: &str| {
        if second == 0 { format!("{first}{first_unit}") } else { format!("{first}{first_unit}{second}{second_unit}") }
    };
    match seconds {
        i64::MIN..=-2 => "<invalid>".to_owned(),
        -1..=0 => "0s".to_owned(),
        1..120 => format!("{seconds}s"),
        _ if minutes < 10 => two_units(minutes, "m", seconds % 60, "s"),
        _ if minutes < 180 => format!("{minutes}m"),
        _ if hours < 8 => two_units(hours, "h", minutes % 60, "m"),
        _ if hours < 48 => format!("{hours}h"),
        _ if hours < 24 * 8 => two_units(days, "d", hours % 24, "h"),
        _ if hours < 24 * 365 * 2 => format!("{days}d"),
        _ if hours < 24 * 365 * 8 => two_units(years, "y", days % 365, "d"),
        _ => format!("{years}y"),
    }
}
