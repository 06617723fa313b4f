//! Wall and monotonic clock of the controllers. Tests can advance either.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use k8s_openapi::jiff::{SignedDuration, Timestamp};

use crowsnest_plan::health::Moment;

/// Cheap to clone; all clones are the same clock.
#[derive(Debug, Clone)]
pub struct Clock {
    began: Instant,
    /// How far it is ahead of the machine's clocks, in milliseconds: the wall's, and the monotonic one.
    ahead: Arc<(AtomicI64, AtomicI64)>,
}

impl Default for Clock {
    fn default() -> Self {
        Clock { began: Instant::now(), ahead: Arc::default() }
    }
}

impl Clock {
    /// Now, on the wall's clock.
    pub fn wall(&self) -> Timestamp {
        let wall = Timestamp::now();
        let ahead = SignedDuration::from_millis(self.ahead.0.load(Ordering::Relaxed));
        wall.checked_add(ahead).unwrap_or(wall)
    }

    /// Now, on the wall's clock in whole seconds, as Kubernetes keeps times.
    pub fn now(&self) -> Moment {
        let wall = self.wall();
        let paused = u64::try_from(self.ahead.1.load(Ordering::Relaxed)).unwrap_or_default();
        Moment {
            mono: self.began.elapsed() + Duration::from_millis(paused),
            wall: Timestamp::from_second(wall.as_second()).unwrap_or(wall),
        }
    }

    /// Lets the wall's clock jump, as when somebody sets it.
    pub fn jump(&self, by: SignedDuration) {
        let by = i64::try_from(by.as_millis()).unwrap_or(i64::MAX);
        self.ahead.0.fetch_add(by, Ordering::Relaxed);
    }

    /// Lets both clocks jump ahead, as when the machine slept.
    pub fn sleep(&self, by: Duration) {
        let by = i64::try_from(by.as_millis()).unwrap_or(i64::MAX);
        self.ahead.0.fetch_add(by, Ordering::Relaxed);
        self.ahead.1.fetch_add(by, Ordering::Relaxed);
    }
}
