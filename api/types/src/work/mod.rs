//! work.karmada.io: bindings (v1alpha2, and v1alpha1 for old clients) and works (v1alpha1). Written by the control
//! loops and the scheduler; read by everybody who wants to know where an object is.

mod binding;
mod reference;
pub mod v1alpha1;

pub use binding::*;
pub use v1alpha1::{Manifest, ManifestStatus, ResourceIdentifier, Work, WorkSpec, WorkStatus, WorkloadTemplate};

use crate::object::word;

/// The API group of this module.
pub const GROUP: &str = "work.karmada.io";

word! { closed
    /// Health of a member object, as interpreted.
    ResourceHealth { Healthy = "Healthy", Unhealthy = "Unhealthy", Unknown = "Unknown" }
}
