//! Cost budget of evaluation. A step is about a variable lookup or function call, as in cel-go.

use std::cell::Cell;

use super::Failure;

thread_local! {
    /// Remaining steps of the expression that runs on this thread; zero while none runs.
    static LEFT: Cell<u64> = const { Cell::new(0) };
}

/// Remaining steps of a group of expressions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget(u64);

impl Budget {
    /// Limit per expression.
    const CALL: u64 = 1_000_000;

    /// Budget for the rules of one custom resource, or the expressions of one policy.
    pub fn rules() -> Self {
        Self(10_000_000)
    }

    /// Budget for the match conditions of one webhook or policy.
    pub fn conditions() -> Self {
        Self(2_500_000)
    }

    pub fn is_spent(self) -> bool {
        self.0 == 0
    }

    /// Runs an expression with the given fixed cost; further steps are charged during evaluation.
    pub(super) fn run<T>(&mut self, cost: u64, run: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
        if self.is_spent() {
            return Err(Failure::Budget);
        }
        let allowed = self.0.min(Self::CALL);
        LEFT.set(allowed.saturating_sub(cost).max(1));
        let value = run();
        let left = LEFT.replace(0);
        self.0 = self.0.saturating_sub(allowed - left.min(allowed));
        match left {
            // Exhaustion may be hidden by other results, such as in `a || b`.
            0 if allowed < Self::CALL => Err(Failure::Budget),
            0 => Err(Failure::Call),
            _ => value,
        }
    }
}

/// Charges the running expression; false if its limit is exceeded.
pub(super) fn charge(steps: u64) -> bool {
    LEFT.with(|left| {
        left.set(left.get().saturating_sub(steps));
        left.get() > 0
    })
}
