//! From templates and policies to bindings: policy selection, claims, and the contents of bindings.

pub mod binding;
pub mod change;
pub mod choice;
pub mod claim;
pub mod lazy;
pub mod skipped;

pub use choice::{Choice, Policy, choose};
pub use claim::{Claim, Preemption};
