//! How a decision goes on, for whoever measures it: decisions know no clock.

/// A part of a decision, by Karmada's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    Filter,
    Score,
    /// With what the clusters have room for.
    Select,
    AssignReplicas,
}

/// Hears when a step begins and ends. One that does not come to its end by a result ends all the same.
pub trait Observer {
    fn began(&self, step: Step);
    fn ended(&self, step: Step);
}

/// Nobody.
#[derive(Debug, Clone, Copy)]
pub struct Unobserved;

impl Observer for Unobserved {
    fn began(&self, _: Step) {}
    fn ended(&self, _: Step) {}
}
