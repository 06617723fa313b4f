//! Runtime of the controllers: the trait [`Controller`], the registry, the dispatcher of changes and the supervisor of
//! tasks.
//!
//! A controller is a type that implements [`Controller`] and is listed in [`registry::CONTROLLERS`]. Queues, watches,
//! the full resync, metrics and the names of `--controllers` are derived from the registry.

pub mod clock;
pub mod config;
pub mod context;
pub mod controller;
pub mod discovery;
pub(crate) mod dispatcher;
pub mod dynamic_client;
pub mod event_recorder;
pub mod keyed_mutex;
pub mod manager;
mod registered_controller;
pub mod registry;
pub mod rest_mapper;
pub mod selection;
pub mod setup;
pub(crate) mod supervisor;
pub mod watch;
pub mod workqueue;
pub mod write_fence;
pub mod write_priority;

pub use config::{Config, Periods, Workers};
pub use context::WellKnownKinds;
pub use controller::{Controller, Switch};
pub use manager::{Manager, MetricsReader, UnhealthyReason};
pub use registry::{Registration, Registry};
pub use selection::{Selection, SelectionError};
pub use setup::{Resync, Setup, Trigger};
pub use watch::{Requests, Source, Watch};
