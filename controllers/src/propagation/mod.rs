//! Propagation: templates and policies become bindings, bindings become Works, Works become objects in members, and their status
//! returns.

pub mod binding;
pub mod binding_status;
pub mod dependencies_distributor;
pub mod detector;
pub mod execution;
pub mod interpreter_configuration;
pub mod namespace;
