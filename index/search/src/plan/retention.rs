//! How far back answers know: the cache was filled at some time, and keeps what objects were for some time.

use crate::plan::Asked;
use std::time::Duration;

/// What the cache knows of the past. Times are Unix seconds.
#[derive(Debug, Clone, Copy)]
pub struct Known {
    pub now: i64,
    /// When it began to be filled.
    pub began: i64,
    pub kept_for: Duration,
}

impl Known {
    /// What to say of an answer about a time of which not everything is known.
    pub fn lacks(&self, asked: Asked) -> Option<String> {
        let asked = match asked {
            Asked::At(at) | Asked::During(at, _) => at,
            Asked::Now | Asked::Deleted => return None,
        };
        let kept_since = self.now.saturating_sub(i64::try_from(self.kept_for.as_secs()).unwrap_or(i64::MAX));
        if asked < self.began && kept_since < self.began {
            let began = jiff::Timestamp::from_second(self.began).map(|at| format!(" at {at}")).unwrap_or_default();
            return Some(format!("the cache began to be filled{began}: what was there before is not known"));
        }
        let hours = self.kept_for.as_secs() / 3600;
        (asked < kept_since)
            .then(|| format!("what changed more than {hours} h ago is not kept: the answer may miss it"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::now(Asked::Now, 100, None)]
    #[case::deleted(Asked::Deleted, 100, None)]
    #[case::known(Asked::At(9_000), 8_000, None)]
    #[case::not_filled_yet(Asked::At(7_999), 8_000, Some("began to be filled at 1970-01-01T02:13:20Z"))]
    #[case::from_the_beginning(Asked::During(i64::MIN, 9_000), 8_000, Some("began to be filled"))]
    #[case::not_kept(Asked::At(6_399), 100, Some("more than 1 h ago is not kept"))]
    #[case::kept(Asked::At(6_400), 100, None)]
    #[case::neither_there_nor_kept(Asked::At(50), 100, Some("more than 1 h ago"))]
    fn what_is_not_known_is_said(#[case] asked: Asked, #[case] began: i64, #[case] expected: Option<&str>) {
        let said = Known { now: 10_000, began, kept_for: Duration::from_secs(3600) }.lacks(asked);
        assert_eq!(said.is_some(), expected.is_some(), "{said:?}");
        assert!(said.unwrap_or_default().contains(expected.unwrap_or_default()));
    }
}
