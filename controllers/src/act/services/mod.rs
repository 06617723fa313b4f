//! Multi-cluster services (KEP-1645 as Karmada has it): [`Exports`] collects the EndpointSlices of exported Services from members
//! into Works, [`Slices`] makes EndpointSlices of the control plane of them, [`Imports`] keeps the Service that stands for an
//! import. The distributor takes Service and slices to where the import goes.

mod exports;
mod imports;
mod slices;

pub use exports::Exports;
pub use imports::Imports;
pub use slices::Slices;
