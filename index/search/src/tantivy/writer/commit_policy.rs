//! Decides when the text index is committed and how eagerly its segments are merged. Has no side effects: time is an
//! argument.

use std::time::{Duration, Instant};

use crowsnest_component_base::burst::{BurstDetector, BurstLimits};

use super::FAR_BEHIND_CHANGES;
use crate::tantivy::MergeMode;

/// Limits of a burst of changes: the rate that is not a burst, and the number of changes above it at which one begins.
const BURST: BurstLimits = BurstLimits { rate_per_second: 100.0, begin_threshold: 500.0 };

/// Number of changes that the writer has to read from the store above which it uses several threads.
const BULK_CHANGES: u64 = 50_000;
/// Number of changes between commits of such a writer.
const BULK_COMMIT_CHANGES: usize = 50_000;

/// Decides commits by the rate of changes and the duration of earlier commits.
#[derive(Debug)]
pub(super) struct CommitPolicy {
    interval: Duration,
    max_changes: usize,
    /// Number of changes to read from the store above which a bulk writer is used.
    pub bulk_changes: u64,
    changes: BurstDetector,
    /// Duration of the last commit.
    commit_took: Duration,
}

/// Changes that are not committed yet.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct UncommittedChanges {
    pub changes: usize,
    /// Changes of the store that the writer has not received yet.
    pub lag: u64,
    /// Times of the first and of the last change.
    pub first_at: Option<Instant>,
    pub last_at: Option<Instant>,
}

impl CommitPolicy {
    /// `interval` is the maximum time from a change to its commit unless the writer is far behind. After `max_changes`
    /// changes, a commit is due earlier.
    pub fn new(interval: Duration, max_changes: usize) -> Self {
        let changes = BurstDetector::new(BURST);
        CommitPolicy { interval, max_changes, bulk_changes: BULK_CHANGES, changes, commit_took: Duration::ZERO }
    }

    /// True if there are so many uncommitted changes that they are committed immediately.
    pub fn has_enough_changes(&self, changes: usize) -> bool {
        changes >= self.max_changes
    }

    pub fn observe_change(&mut self, now: Instant) {
        self.changes.observe(now);
    }

    pub fn observe_commit(&mut self, took: Duration) {
        self.commit_took = took;
    }

    /// The load of the writer. If the index is far behind, larger commits are more efficient, because each commit
    /// creates a segment that has to be merged.
    pub fn mode(&mut self, uncommitted: &UncommittedChanges, now: Instant) -> MergeMode {
        if uncommitted.lag > FAR_BEHIND_CHANGES as u64 || uncommitted.changes > FAR_BEHIND_CHANGES {
            MergeMode::Filling
        } else if self.changes.is_burst(now) {
            MergeMode::Burst
        } else {
            MergeMode::Following
        }
    }

    /// Time of the next commit. `None` if there is nothing to commit.
    pub fn deadline(&self, uncommitted: &UncommittedChanges, mode: MergeMode) -> Option<Instant> {
        let first_at = uncommitted.first_at?;
        Some(match mode {
            MergeMode::Filling | MergeMode::Bulk => {
                let last = uncommitted.last_at.unwrap_or(first_at);
                (first_at + self.interval * 10).min(last + self.interval)
            }
            MergeMode::Burst | MergeMode::Following => first_at + self.commit_delay(),
        })
    }

    /// True if a writer that is `lag` changes behind is to be replaced by a bulk writer, which uses several threads.
    pub fn needs_bulk_writer(&self, lag: u64) -> bool {
        lag > self.bulk_changes
    }

    /// True if changes read from the store are to be committed. A bulk writer commits rarely, for large segments.
    pub fn is_replay_commit_due(&self, changes: usize, age: Duration, is_bulk: bool) -> bool {
        let (max_changes, max_age) = match is_bulk {
            true => (BULK_COMMIT_CHANGES, self.interval * 40),
            false => (self.max_changes, self.interval * 10),
        };
        changes >= max_changes || age >= max_age
    }

    /// Delay of the commit after the first change. The interval includes the duration of the commit.
    fn commit_delay(&self) -> Duration {
        self.interval.saturating_sub(self.commit_took).max(self.interval / 2)
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    /// All times in milliseconds; changes happened within one millisecond each, the last one now.
    #[rstest]
    #[case::few_changes(10, 0, 0, MergeMode::Following, 500)]
    #[case::commits_take_time(10, 0, 100, MergeMode::Following, 400)]
    #[case::commits_take_long(10, 0, 900, MergeMode::Following, 250)]
    #[case::burst(600, 0, 0, MergeMode::Burst, 500)]
    #[case::commits_take_long_in_a_burst(600, 0, 900, MergeMode::Burst, 250)]
    #[case::many_changes(1_001, 0, 0, MergeMode::Filling, 1_501)]
    #[case::far_behind(10, 1_001, 0, MergeMode::Filling, 510)]
    fn the_commit_delay_depends_on_the_load(
        #[case] changes: usize,
        #[case] lag: u64,
        #[case] commit_took: u64,
        #[case] mode: MergeMode,
        #[case] commit_after: u64,
    ) {
        let (start, millis) = (Instant::now(), Duration::from_millis);
        let mut policy = CommitPolicy::new(millis(500), 5_000);
        policy.observe_commit(millis(commit_took));
        let now = start + millis(changes as u64);
        (0..changes).for_each(|nth| policy.observe_change(start + millis(nth as u64)));
        let uncommitted = UncommittedChanges { changes, lag, first_at: Some(start), last_at: Some(now) };
        assert_eq!(policy.mode(&uncommitted, now), mode);
        assert_eq!(policy.deadline(&uncommitted, mode), Some(start + millis(commit_after)));
    }

    #[rstest]
    #[case::few(4_999, 4_999, false, false)]
    #[case::many(5_000, 0, false, true)]
    #[case::old(1, 5_000, false, true)]
    #[case::bulk(49_999, 19_999, true, false)]
    #[case::many_in_bulk(50_000, 0, true, true)]
    #[case::old_in_bulk(1, 20_000, true, true)]
    fn changes_of_the_store_are_committed(
        #[case] changes: usize,
        #[case] millis: u64,
        #[case] is_bulk: bool,
        #[case] is_due: bool,
    ) {
        let policy = CommitPolicy::new(Duration::from_millis(500), 5_000);
        assert_eq!(policy.is_replay_commit_due(changes, Duration::from_millis(millis), is_bulk), is_due);
    }

    #[test]
    fn nothing_is_committed_without_changes_and_a_burst_ends() {
        let start = Instant::now();
        let mut policy = CommitPolicy::new(Duration::from_millis(500), 5_000);
        (0..10_000).for_each(|_| policy.observe_change(start));
        let nothing = UncommittedChanges::default();
        assert_eq!(policy.deadline(&nothing, MergeMode::Burst), None);
        assert_eq!(policy.mode(&nothing, start + Duration::from_secs(7)), MergeMode::Burst);
        assert_eq!(policy.mode(&nothing, start + Duration::from_secs(8)), MergeMode::Following);
    }
}
