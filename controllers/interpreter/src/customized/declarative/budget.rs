//! Time and step limits of one script call, shared by the instruction hook and by library functions that run without
//! executing Lua instructions.

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Maximum number of pattern-matching steps in one call of a script, about one second.
const MAX_STEPS: u64 = 50_000_000;
/// Number of steps between two checks of the time.
const STEPS_PER_TIME_CHECK: u64 = 4096;

/// Error of a call that has used up its time or its steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BudgetExhausted;

/// Budget of one call. Clones share it.
#[derive(Clone)]
pub(super) struct Budget {
    end: Instant,
    steps: Rc<Cell<u64>>,
}

impl Budget {
    pub(super) fn new(time: Duration) -> Self {
        Self { end: Instant::now() + time, steps: Rc::default() }
    }

    #[cfg(test)]
    fn exhausted() -> Self {
        Self { end: Instant::now(), steps: Rc::default() }
    }

    pub(super) fn is_expired(&self) -> bool {
        Instant::now() >= self.end
    }

    /// Accounts for one step of work; fails if the budget is exhausted.
    pub(super) fn step(&self) -> Result<(), BudgetExhausted> {
        let steps = self.steps.get() + 1;
        self.steps.set(steps);
        match steps >= MAX_STEPS || (steps.is_multiple_of(STEPS_PER_TIME_CHECK) && self.is_expired()) {
            true => Err(BudgetExhausted),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budget_is_limited_by_time_and_steps() {
        let exhausted = Budget::exhausted();
        assert!((0..STEPS_PER_TIME_CHECK).any(|_| exhausted.step() == Err(BudgetExhausted)));
        let budget = Budget::new(Duration::from_secs(3600));
        let clone = budget.clone();
        assert!((0..MAX_STEPS).any(|_| clone.step() == Err(BudgetExhausted)));
        assert_eq!((budget.step(), budget.is_expired()), (Err(BudgetExhausted), false));
    }
}
