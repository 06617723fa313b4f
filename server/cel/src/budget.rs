//! What evaluating costs. A step is about a name that is looked up or a function that is called, as in cel-go.

use std::cell::Cell;

use super::Failure;

thread_local! {
    /// What the expression that runs on this thread may still take; nothing is charged while none runs.
    static LEFT: Cell<u64> = const { Cell::new(0) };
}

/// Steps that are left to a group of expressions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget(u64);

impl Budget {
    /// One expression.
    const CALL: u64 = 1_000_000;

    /// The rules of one custom resource, or the expressions of one policy.
    pub fn rules() -> Self {
        Self(10_000_000)
    }

    /// The match conditions of one webhook or policy.
    pub fn conditions() -> Self {
        Self(2_500_000)
    }

    pub fn is_spent(self) -> bool {
        self.0 == 0
    }

    /// Runs an expression that costs so much besides what it is charged meanwhile.
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
            // Errors of parts do not always reach the whole: `a || b` is true where `b` is.
            0 if allowed < Self::CALL => Err(Failure::Budget),
            0 => Err(Failure::Call),
            _ => value,
        }
    }
}

/// Charges the running expression; false when it may take no more.
pub(super) fn charge(steps: u64) -> bool {
    LEFT.with(|left| {
        left.set(left.get().saturating_sub(steps));
        left.get() > 0
    })
}
