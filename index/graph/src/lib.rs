//! Graph sinks: copy the objects that a ServiceAccount may read in the cache, and their references, to a graph
//! database.
//!
//! [`model`] turns objects into nodes and edges, [`batch`] plans the rows of a transaction, [`sweep`] decides which
//! collections may be swept, [`cypher`] and [`dialect`] contain the texts of the statements: all of these are pure. A
//! [`sink::GraphSink`] follows the changes of the store and writes them over Bolt.
//!
//! Values are passed as parameters. Only labels and edge types are part of a statement's text; labels are kinds that a
//! cluster serves, of letters and digits.

pub mod batch;
mod batch_size;
pub mod bolt;
pub mod config;
mod continuation;
pub mod cypher;
pub mod dialect;
pub mod error;
mod generation;
mod load_selectors;
pub mod model;
pub mod progress;
pub mod selectors;
mod session;
pub mod sink;
pub mod sweep;
pub mod visibility;
mod writer;

pub use bolt::{Bolt, BoltTarget};
pub use config::{SinkConfig, SinkOptions, SinkSource};
pub use error::{SinkError, SinkFailure};
pub use model::MODEL_VERSION;
pub use progress::{SinkCounters, SinkProgress, SinkState};
pub use sink::GraphSink;
pub use visibility::{CacheVisibility, RuleDigests, Visibility, VisibilityDecision};
