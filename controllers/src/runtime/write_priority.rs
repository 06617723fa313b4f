//! Write priority: defers low-priority writes while the control plane is under write load or in a burst of changes.
//!
//! The load is the number of concurrent writes of this process that propagate templates to members: claims, bindings,
//! scheduling results and Works. A burst is a high rate of changed statuses. In both, events and statuses are deferred
//! for a limited time ([`deferral`]).

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crowsnest_api::work::ResourceHealth;
use crowsnest_component_base::burst::{BurstDetector, BurstLimits};
use parking_lot::Mutex;

/// Number of concurrent writes at which the control plane counts as under write load.
const BUSY_WRITES: usize = 8;

/// Times since the first deferral at which a status that is deferred under write load is checked again. At the last
/// one, it is written under any load.
const CHECK_TIMES: [Duration; 4] =
    [Duration::from_secs(1), Duration::from_secs(3), Duration::from_secs(6), Duration::from_secs(10)];
/// Longest deferral of a status that is still changing, in a burst.
const MAX_BURST_DEFERRAL: Duration = Duration::from_secs(10);
/// Minimum interval between two writes of a status that is still changing.
const MIN_WRITE_INTERVAL: Duration = Duration::from_secs(1);
/// Limits above which changed statuses are a burst: their rate per second, and the number that begins a burst.
const STATUS_BURST: BurstLimits = BurstLimits { rate_per_second: 10.0, begin_threshold: 50.0 };

/// Load of the control plane, as far as this process causes it.
#[derive(Debug)]
pub struct WriteLoad {
    in_progress: AtomicUsize,
    statuses: Mutex<BurstDetector>,
}

impl Default for WriteLoad {
    fn default() -> Self {
        WriteLoad { in_progress: AtomicUsize::new(0), statuses: Mutex::new(BurstDetector::new(STATUS_BURST)) }
    }
}

/// A write in progress. Ends when dropped.
#[derive(Debug)]
pub struct WriteInProgress<'t>(&'t WriteLoad);

impl Drop for WriteInProgress<'_> {
    fn drop(&mut self) {
        self.0.in_progress.fetch_sub(1, Ordering::Relaxed);
    }
}

impl WriteLoad {
    /// Counts a write that propagates a template until the guard is dropped.
    pub fn begin(&self) -> WriteInProgress<'_> {
        self.in_progress.fetch_add(1, Ordering::Relaxed);
        WriteInProgress(self)
    }

    /// Returns true if the control plane is under write load.
    pub fn is_busy(&self) -> bool {
        self.in_progress.load(Ordering::Relaxed) >= BUSY_WRITES
    }

    /// Counts a changed status unless it was deferred before, and returns the pressure.
    fn observe(&self, is_new: bool, now: Instant) -> Pressure {
        let mut statuses = self.statuses.lock();
        if is_new {
            statuses.observe(now);
        }
        match (self.is_busy(), statuses.is_burst(now)) {
            (true, _) => Pressure::Load,
            (false, true) => Pressure::Burst,
            (false, false) => Pressure::None,
        }
    }
}

/// State of the object whose status is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// Further changes are expected, since the object is not healthy yet.
    Changing,
    Settled,
}

impl Progress {
    pub fn from_changing(is_changing: bool) -> Self {
        if is_changing { Progress::Changing } else { Progress::Settled }
    }

    /// True if an object with the health `now` is expected to become healthy. `written` is the health that was written
    /// last: if it was healthy, the object has become stable, so that its failure is written immediately.
    pub fn is_becoming_healthy(written: Option<&ResourceHealth>, now: Option<&ResourceHealth>) -> bool {
        now == Some(&ResourceHealth::Unhealthy) && written != Some(&ResourceHealth::Healthy)
    }
}

/// Reason to defer writes of statuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pressure {
    None,
    /// Many statuses change.
    Burst,
    /// The control plane is under write load.
    Load,
}

/// A changed status that is not written yet.
#[derive(Debug, Clone, Copy)]
pub struct ChangedStatus {
    pub progress: Progress,
    pub pressure: Pressure,
    /// Time since its first deferral.
    pub deferred: Duration,
    /// Time since the object's status was written last. `None` if that is long ago.
    pub since_written: Option<Duration>,
}

/// Delay after which a changed status is checked again. `None` if it is written now.
pub fn deferral(status: &ChangedStatus) -> Option<Duration> {
    let ChangedStatus { progress, pressure, deferred, since_written } = *status;
    let until = |limit: Duration, passed: Duration| limit.checked_sub(passed).filter(|rest| !rest.is_zero());
    match (pressure, progress) {
        (Pressure::Load, _) => CHECK_TIMES.into_iter().find_map(|check| until(check, deferred)),
        (Pressure::Burst, Progress::Changing) => until(MAX_BURST_DEFERRAL, deferred),
        (Pressure::None, Progress::Changing) | (Pressure::Burst, Progress::Settled) => {
            since_written.and_then(|since| until(MIN_WRITE_INTERVAL, since))
        }
        (Pressure::None, Progress::Settled) => None,
    }
}

/// Keys whose writes are deferred, with the times of their first deferral and of their last writes.
#[derive(Debug)]
pub struct DeferredWrites<K> {
    state: Mutex<DeferralState<K>>,
}

#[derive(Debug)]
struct DeferralState<K> {
    waiting: HashMap<K, Instant>,
    /// Times of the last writes. Those older than [`MIN_WRITE_INTERVAL`] are removed with the next write.
    written: HashMap<K, Instant>,
    /// Keys and times of these writes, oldest first. A key occurs once per write.
    order: VecDeque<(Instant, K)>,
}

impl<K> Default for DeferredWrites<K> {
    fn default() -> Self {
        let state = DeferralState { waiting: HashMap::new(), written: HashMap::new(), order: VecDeque::new() };
        DeferredWrites { state: Mutex::new(state) }
    }
}

/// Time of the first deferral of a key's write, if it is deferred.
#[derive(Debug, Clone, Copy)]
pub struct Deferral(Option<Instant>);

impl<K: Hash + Eq + Clone> DeferredWrites<K> {
    /// Begins a reconcile of the key, whose write is no longer deferred unless the reconcile ends with
    /// [`DeferredWrites::defer`].
    pub fn begin(&self, key: &K) -> Deferral {
        Deferral(self.state.lock().waiting.remove(key))
    }

    /// Defers the write of a key's status under pressure, and returns the delay after which the key must be reconciled
    /// again. `None` if the status must be written now.
    pub fn defer(&self, write_load: &WriteLoad, key: &K, since: Deferral, progress: Progress) -> Option<Duration> {
        self.defer_at(write_load, key, since, progress, Instant::now())
    }

    fn defer_at(
        &self,
        write_load: &WriteLoad,
        key: &K,
        Deferral(since): Deferral,
        progress: Progress,
        now: Instant,
    ) -> Option<Duration> {
        let pressure = write_load.observe(since.is_none(), now);
        let since = since.unwrap_or(now);
        let mut state = self.state.lock();
        let since_written = state.written.get(key).map(|at| now.saturating_duration_since(*at));
        let deferred = now.saturating_duration_since(since);
        let wait = deferral(&ChangedStatus { progress, pressure, deferred, since_written });
        if wait.is_some() {
            state.waiting.insert(key.clone(), since);
        } else {
            state.record_write(key.clone(), now);
        }
        wait
    }

    /// True if no write is deferred.
    pub fn is_empty(&self) -> bool {
        self.state.lock().waiting.is_empty()
    }
}

impl<K: Hash + Eq + Clone> DeferralState<K> {
    fn record_write(&mut self, key: K, now: Instant) {
        let is_old = |(at, _): &(Instant, K)| now.saturating_duration_since(*at) >= MIN_WRITE_INTERVAL;
        while self.order.front().is_some_and(is_old)
            && let Some((at, oldest)) = self.order.pop_front()
        {
            // The key may have been written again.
            if self.written.get(&oldest) == Some(&at) {
                self.written.remove(&oldest);
            }
        }
        self.order.push_back((now, key.clone()));
        self.written.insert(key, now);
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const CHANGING: Progress = Progress::Changing;
    const SETTLED: Progress = Progress::Settled;

    #[rstest]
    #[case::first_change(CHANGING, Pressure::None, 0, None, None)]
    #[case::changes_again(CHANGING, Pressure::None, 0, Some(300), Some(700))]
    #[case::interval_passed(CHANGING, Pressure::None, 700, Some(1_000), None)]
    #[case::last_state(SETTLED, Pressure::None, 0, Some(300), None)]
    #[case::burst(CHANGING, Pressure::Burst, 0, None, Some(10_000))]
    #[case::burst_goes_on(CHANGING, Pressure::Burst, 4_000, None, Some(6_000))]
    #[case::burst_is_too_long(CHANGING, Pressure::Burst, 10_000, None, None)]
    #[case::settled_in_a_burst(SETTLED, Pressure::Burst, 4_000, None, None)]
    #[case::settled_after_a_write(SETTLED, Pressure::Burst, 0, Some(200), Some(800))]
    #[case::load(SETTLED, Pressure::Load, 0, None, Some(1_000))]
    #[case::load_is_checked_again(SETTLED, Pressure::Load, 1_000, None, Some(2_000))]
    #[case::load_between_checks(CHANGING, Pressure::Load, 4_500, None, Some(1_500))]
    #[case::load_is_too_long(CHANGING, Pressure::Load, 10_000, None, None)]
    fn statuses_are_deferred(
        #[case] progress: Progress,
        #[case] pressure: Pressure,
        #[case] deferred: u64,
        #[case] since_written: Option<u64>,
        #[case] expected: Option<u64>,
    ) {
        let (deferred, since_written) = (Duration::from_millis(deferred), since_written.map(Duration::from_millis));
        let status = ChangedStatus { progress, pressure, deferred, since_written };
        assert_eq!(deferral(&status), expected.map(Duration::from_millis));
    }

    #[rstest]
    #[case::new(None, Some(ResourceHealth::Unhealthy), true)]
    #[case::unhealthy(Some(ResourceHealth::Unhealthy), Some(ResourceHealth::Unhealthy), true)]
    #[case::failed(Some(ResourceHealth::Healthy), Some(ResourceHealth::Unhealthy), false)]
    #[case::healthy(Some(ResourceHealth::Unhealthy), Some(ResourceHealth::Healthy), false)]
    #[case::unknown(None, Some(ResourceHealth::Unknown), false)]
    #[case::not_reported(None, None, false)]
    fn unhealthy_objects_are_expected_to_change(
        #[case] written: Option<ResourceHealth>,
        #[case] now: Option<ResourceHealth>,
        #[case] expected: bool,
    ) {
        assert_eq!(Progress::is_becoming_healthy(written.as_ref(), now.as_ref()), expected);
    }

    #[test]
    fn writes_are_deferred_under_load_for_a_limited_time() {
        let (write_load, deferred, start) = (WriteLoad::default(), DeferredWrites::default(), Instant::now());
        let wait = |seconds| {
            let now = start + Duration::from_secs(seconds);
            deferred.defer_at(&write_load, &1, deferred.begin(&1), SETTLED, now).map(|delay| delay.as_secs())
        };
        assert_eq!(wait(0), None);
        let writes: Vec<WriteInProgress<'_>> = (0..BUSY_WRITES).map(|_| write_load.begin()).collect();
        assert_eq!([wait(10), wait(11), wait(13), wait(16)], [1, 2, 3, 4].map(Some));
        assert!(!deferred.is_empty());
        assert_eq!(wait(20), None);
        assert_eq!(wait(21), Some(1), "the next write is deferred again");
        drop(writes);
        assert_eq!(wait(22), None);
        assert!(deferred.is_empty() && !write_load.is_busy());
    }

    #[test]
    fn old_writes_are_removed() {
        let (write_load, deferred, start) = (WriteLoad::default(), DeferredWrites::default(), Instant::now());
        for (key, millis, expected) in [(1, 0, 1), (2, 500, 2), (1, 900, 2), (3, 1_600, 2), (4, 5_000, 1)] {
            let now = start + Duration::from_millis(millis);
            assert_eq!(deferred.defer_at(&write_load, &key, deferred.begin(&key), SETTLED, now), None);
            assert_eq!(deferred.state.lock().written.len(), expected, "at {millis} ms");
        }
    }

    #[test]
    fn in_a_burst_a_changing_status_is_written_once_it_has_settled() {
        let (write_load, deferred, start) = (WriteLoad::default(), DeferredWrites::default(), Instant::now());
        let wait = |key, progress, millis| {
            let now = start + Duration::from_millis(millis);
            deferred.defer_at(&write_load, &key, deferred.begin(&key), progress, now).is_some()
        };
        let deferrals = (0..100).filter(|key| wait(*key, CHANGING, 0)).count();
        assert_eq!(deferrals, 51, "statuses are deferred from the beginning of the burst");
        assert!(wait(99, CHANGING, 500), "a changing status is deferred");
        assert!(!wait(99, SETTLED, 600), "a settled status is written");
        assert!(!wait(98, CHANGING, 9_000), "the burst is over");
    }
}
