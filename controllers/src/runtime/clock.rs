//! Wall and monotonic clock of the controllers. Tests can advance both.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use k8s_openapi::jiff::{SignedDuration, Timestamp};

use crowsnest_plan::health::Moment;

/// Clock of the controllers. Clones are cheap and share the same time.
#[derive(Debug, Clone)]
pub struct Clock {
    started_at: Instant,
    /// Offsets from the machine's wall clock and monotonic clock, in milliseconds.
    offsets_ms: Arc<(AtomicI64, AtomicI64)>,
}

impl Default for Clock {
    fn default() -> Self {
        Clock { started_at: Instant::now(), offsets_ms: Arc::default() }
    }
}

impl Clock {
    /// Current wall-clock time.
    pub fn wall(&self) -> Timestamp {
        let wall = Timestamp::now();
        let offset = SignedDuration::from_millis(self.offsets_ms.0.load(Ordering::Relaxed));
        wall.checked_add(offset).unwrap_or(wall)
    }

    /// Current time of both clocks. The wall-clock time is in whole seconds, as in Kubernetes.
    pub fn now(&self) -> Moment {
        let wall = self.wall();
        let offset_ms = u64::try_from(self.offsets_ms.1.load(Ordering::Relaxed)).unwrap_or_default();
        Moment {
            mono: self.started_at.elapsed() + Duration::from_millis(offset_ms),
            wall: Timestamp::from_second(wall.as_second()).unwrap_or(wall),
        }
    }

    /// Advances only the wall clock, as if it was set or the machine was suspended. For tests.
    pub fn advance_wall(&self, by: SignedDuration) {
        let by = i64::try_from(by.as_millis()).unwrap_or(i64::MAX);
        self.offsets_ms.0.fetch_add(by, Ordering::Relaxed);
    }

    /// Advances both clocks, as if time passed. For tests.
    pub fn advance(&self, by: Duration) {
        let by = i64::try_from(by.as_millis()).unwrap_or(i64::MAX);
        self.offsets_ms.0.fetch_add(by, Ordering::Relaxed);
        self.offsets_ms.1.fetch_add(by, Ordering::Relaxed);
    }
}
