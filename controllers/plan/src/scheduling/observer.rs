//! Observation of a decision's steps. Measuring time is left to the observer, since decisions have no clock.

/// Step of a decision, by Karmada's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    Filter,
    Score,
    /// Selection by spread constraints, including the estimates.
    Select,
    AssignReplicas,
}

/// Receives the start and the end of each step. A step that fails also ends.
pub trait Observer {
    fn step_started(&self, step: Step);
    fn step_ended(&self, step: Step);
}

/// An observer that ignores all steps.
#[derive(Debug, Clone, Copy)]
pub struct NoopObserver;

impl Observer for NoopObserver {
    fn step_started(&self, _: Step) {}
    fn step_ended(&self, _: Step) {}
}
