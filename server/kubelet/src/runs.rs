//! Cache of the files and logs of container runs.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use super::filesystem::FileSystem;
use super::logs::RunLog;
use super::pods::{Container, Run};

/// Maximum number of runs whose files are kept; the least recently used ones are dropped.
const MAX_CACHED_RUNS: usize = 512;

/// Key of one run of a container. Each restart starts with fresh files.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RunKey {
    pub pod_uid: String,
    pub container: String,
    pub restarts: i64,
}

impl RunKey {
    pub fn new(container: &Container, run: &Run) -> Self {
        Self { pod_uid: container.pod.uid().to_owned(), container: container.name.clone(), restarts: run.restarts }
    }

    /// Returns a deterministic seed for the run.
    pub fn seed(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.hash(&mut hasher);
        hasher.finish()
    }
}

/// Files of a container and the log lines written by its process and exec.
pub struct RunState {
    pub fs: Arc<FileSystem>,
    pub log: Arc<RunLog>,
}

/// A least-recently-used cache of run states.
#[derive(Default)]
pub struct RunCache {
    /// Number of the last use and state of each run.
    states: HashMap<RunKey, (u64, Arc<RunState>)>,
    /// Number of uses of the cache.
    use_count: u64,
}

impl RunCache {
    /// Returns the state of a run, if cached, and marks it as used.
    pub fn get(&mut self, key: &RunKey) -> Option<Arc<RunState>> {
        self.use_count += 1;
        let (last_use, state) = self.states.get_mut(key)?;
        *last_use = self.use_count;
        Some(state.clone())
    }

    /// Drops the states of a deleted pod.
    pub fn remove_pod(&mut self, uid: &str) {
        self.states.retain(|key, _| key.pod_uid != uid);
    }

    /// Adds a state unless the run already has one, and returns the cached state.
    pub fn insert_if_absent(&mut self, key: RunKey, state: Arc<RunState>) -> Arc<RunState> {
        if self.states.len() >= MAX_CACHED_RUNS
            && let Some(oldest) =
                self.states.iter().min_by_key(|(_, (last_use, _))| *last_use).map(|(key, _)| key.clone())
        {
            self.states.remove(&oldest);
        }
        let use_count = self.use_count;
        self.states.entry(key).or_insert((use_count, state)).1.clone()
    }
}
