//! Explains why results about the past may be incomplete: the start of the cache, and the retention of old versions.

use crate::plan::TimeScope;
use std::time::Duration;

/// Range of the cache's history. Times are Unix seconds.
#[derive(Debug, Clone, Copy)]
pub struct HistoryRange {
    pub now: i64,
    /// Time when the cache was created.
    pub since: i64,
    pub retention: Duration,
}

impl HistoryRange {
    /// Notice for a result that may be incomplete because of the requested time.
    pub fn describe_gap(&self, scope: TimeScope) -> Option<String> {
        let time = match scope {
            TimeScope::At(at) | TimeScope::During(at, _) => at,
            TimeScope::Now | TimeScope::Deleted => return None,
        };
        let kept_since = self.now.saturating_sub(i64::try_from(self.retention.as_secs()).unwrap_or(i64::MAX));
        if time < self.since && kept_since < self.since {
            let time = jiff::Timestamp::from_second(self.since).map(|at| format!(" at {at}")).unwrap_or_default();
            return Some(format!("the cache was created{time}; earlier objects are unknown"));
        }
        let hours = self.retention.as_secs() / 3600;
        (time < kept_since).then(|| format!("changes older than {hours} h are not kept; the result may be incomplete"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::now(TimeScope::Now, 100, None)]
    #[case::deleted(TimeScope::Deleted, 100, None)]
    #[case::known(TimeScope::At(9_000), 8_000, None)]
    #[case::not_filled_yet(TimeScope::At(7_999), 8_000, Some("was created at 1970-01-01T02:13:20Z"))]
    #[case::from_the_beginning(TimeScope::During(i64::MIN, 9_000), 8_000, Some("was created"))]
    #[case::not_kept(TimeScope::At(6_399), 100, Some("older than 1 h are not kept"))]
    #[case::kept(TimeScope::At(6_400), 100, None)]
    #[case::before_the_cache_and_not_kept(TimeScope::At(50), 100, Some("older than 1 h"))]
    fn missing_history_is_reported(#[case] scope: TimeScope, #[case] since: i64, #[case] expected: Option<&str>) {
        let notice = HistoryRange { now: 10_000, since, retention: Duration::from_secs(3600) }.describe_gap(scope);
        assert_eq!(notice.is_some(), expected.is_some(), "{notice:?}");
        assert!(notice.unwrap_or_default().contains(expected.unwrap_or_default()));
    }
}
