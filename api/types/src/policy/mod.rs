//! policy.karmada.io/v1alpha1: propagation policies, override policies, federated resource quotas and cluster taint
//! policies. Written by users; read by the planners of the controllers and by admission.

mod overriding;
mod placement;
mod propagation;
mod quota;
mod taint;

pub use overriding::*;
pub use placement::*;
pub use propagation::*;
pub use quota::*;
pub use taint::*;

/// The API group of this module.
pub const GROUP: &str = "policy.karmada.io";
/// The API version of all kinds of this module.
pub const VERSION: &str = "v1alpha1";
