//! From templates and policies to bindings: which policy a template follows, how it is claimed, what its binding says.

pub mod binding;
pub mod change;
pub mod choice;
pub mod claim;
pub mod lazy;
pub mod skipped;

pub use choice::{Choice, Policy, choose};
pub use claim::{Claim, Preemption};
