//! Cost budget of evaluation. A step is about a variable lookup or function call, as in cel-go.

use std::cell::Cell;

use super::Failure;

thread_local! {
    /// Remaining steps of the expression that runs on this thread; zero while none runs.
    static REMAINING_STEPS: Cell<u64> = const { Cell::new(0) };
}

/// Remaining steps of a group of expressions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget(u64);

impl Budget {
    /// Limit per expression.
    const MAX_COST: u64 = 1_000_000;

    /// Budget for the rules of one custom resource, or the expressions of one policy.
    pub fn for_rules() -> Self {
        Self(10_000_000)
    }

    /// Budget for the match conditions of one webhook or policy.
    pub fn for_conditions() -> Self {
        Self(2_500_000)
    }

    pub fn is_exhausted(self) -> bool {
        self.0 == 0
    }

    /// Runs an expression with the given fixed cost; further steps are charged during evaluation.
    pub(super) fn run<T>(&mut self, cost: u64, run: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
        if self.is_exhausted() {
            return Err(Failure::Budget);
        }
        let allowed = self.0.min(Self::MAX_COST);
        REMAINING_STEPS.set(allowed.saturating_sub(cost).max(1));
        let value = run();
        let remaining = REMAINING_STEPS.replace(0);
        self.0 = self.0.saturating_sub(allowed - remaining.min(allowed));
        match remaining {
            // Exhaustion may be hidden by other results, such as in `a || b`.
            0 if allowed < Self::MAX_COST => Err(Failure::Budget),
            0 => Err(Failure::CostLimit),
            _ => value,
        }
    }
}

/// Charges the running expression; false if its limit is exceeded.
pub(super) fn charge(steps: u64) -> bool {
    REMAINING_STEPS.with(|remaining| {
        remaining.set(remaining.get().saturating_sub(steps));
        remaining.get() > 0
    })
}
