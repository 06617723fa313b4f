//! Propagation: from templates and policies to bindings, Works and member objects, and status back to the templates.

pub mod binding;
pub mod binding_status;
pub mod dependencies_distributor;
pub mod detector;
pub mod execution;
pub mod interpreter_configuration;
pub mod namespace;
