//! Runtime of the controllers: the trait [`Controller`], the registry, the dispatcher of changes and the supervisor of tasks.
//!
//! A controller is a type that implements [`Controller`] and a line in [`registry::CONTROLLERS`]. Queues, watches, the full
//! resync, metrics and the names of `--controllers` derive from the registry.

pub mod controller;
pub(crate) mod dispatcher;
mod registered;
pub mod registry;
pub mod selection;
pub mod setup;
pub(crate) mod supervisor;
pub mod watch;

pub use controller::{Controller, Switch};
pub use registry::{Registration, Registry};
pub use selection::{Selection, SelectionError};
pub use setup::{Resync, Setup, Trigger};
pub use watch::{Requests, Source, Watch};
