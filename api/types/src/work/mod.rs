//! work.karmada.io: bindings (v1alpha2, and v1alpha1 for old clients) and Works (v1alpha1). Written by the
//! controllers and the scheduler.

mod binding;
mod reference;
pub mod v1alpha1;

pub use binding::*;
pub use v1alpha1::{Manifest, ManifestStatus, ResourceIdentifier, Work, WorkSpec, WorkStatus, WorkloadTemplate};

use crate::object::string_enum;

/// The API group of this module.
pub const GROUP: &str = "work.karmada.io";

string_enum! { closed
    /// ResourceHealth is the interpreted health of an object in a member cluster.
    ResourceHealth { Healthy = "Healthy", Unhealthy = "Unhealthy", Unknown = "Unknown" }
}
