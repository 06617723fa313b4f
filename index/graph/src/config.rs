//! Configuration and inputs of a sink.

use crate::bolt::BoltTarget;
use crowsnest_apimachinery::references::CustomRule;
use crowsnest_component_base::retry::Backoff;
use crowsnest_index::export::ChangeSource;
use crowsnest_store::CollectionStates;
use std::sync::Arc;
use std::time::Duration;

/// Settings of a sink.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SinkOptions {
    /// Maximum number of objects of a transaction. It is lower for a while after a transaction needed too much time or
    /// memory.
    pub batch_size: usize,
    /// Delays between sessions after errors.
    pub backoff: Backoff,
    /// Interval at which the claim on the graph is checked.
    pub check_interval: Duration,
    /// Interval at which all objects are written again if the selection is not stable ([`SinkConfig::is_stable`]).
    pub reload_interval: Duration,
    /// Minimum time between two loads that are caused by changes of permissions, and minimum delay, before jitter, of a
    /// load that is necessary because the store no longer keeps deletions that the graph lacks.
    pub min_reload_interval: Duration,
}

impl Default for SinkOptions {
    fn default() -> Self {
        Self {
            batch_size: 1_000,
            backoff: Backoff::new(Duration::from_millis(500), Duration::from_secs(30)),
            check_interval: Duration::from_secs(30),
            reload_interval: Duration::from_secs(3600),
            min_reload_interval: Duration::from_secs(30),
        }
    }
}

/// Configuration of a sink.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SinkConfig {
    /// Name in the graph, unique among all sinks that could use the database.
    pub name: String,
    pub target: BoltTarget,
    /// All settings that determine what is written, except permissions: the query, the ServiceAccount, the rules of references
    /// and [`crate::MODEL_VERSION`]. If it changes, everything is written again.
    pub selection: String,
    /// True if the selection of an object depends only on the object itself and the permissions, not on other objects
    /// or time.
    pub is_stable: bool,
    pub options: SinkOptions,
}

/// Inputs of a sink from the cache.
pub struct SinkSource {
    pub changes: ChangeSource,
    pub states: Arc<CollectionStates>,
    /// Name of the store in the graph. It is public to all readers of the graph, unlike the store's secret identity.
    pub store_name: String,
    /// Clock in Unix milliseconds.
    pub now_ms: fn() -> i64,
    /// References that the configuration adds.
    pub rules: Vec<CustomRule>,
}
