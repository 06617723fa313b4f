//! Observation of a decision's steps. Measuring time is left to the observer, since decisions have no clock.

/// Step of a decision, by Karmada's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    Filter,
    Score,
    /// Including the estimates.
    Select,
    AssignReplicas,
}

/// Is notified when a step begins and ends, also if the step fails.
pub trait Observer {
    fn began(&self, step: Step);
    fn ended(&self, step: Step);
}

/// An observer that ignores all steps.
#[derive(Debug, Clone, Copy)]
pub struct Unobserved;

impl Observer for Unobserved {
    fn began(&self, _: Step) {}
    fn ended(&self, _: Step) {}
}
