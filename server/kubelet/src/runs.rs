//! Files and exec log output of container runs.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use super::filesystem::FileSystem;
use super::logs::Written;
use super::pods::{Container, Run};

/// Number of runs whose files are kept; beyond it the least recently used ones are dropped.
const CONTAINERS: usize = 512;

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
    pub written: Arc<Written>,
}

/// A least-recently-used cache of run states.
#[derive(Default)]
pub struct Runs {
    states: HashMap<RunKey, (u64, Arc<RunState>)>,
    uses: u64,
}

impl Runs {
    /// Returns the state of a run, if cached, and marks it as used.
    pub fn touch(&mut self, key: &RunKey) -> Option<Arc<RunState>> {
        self.uses += 1;
        let (used, state) = self.states.get_mut(key)?;
        *used = self.uses;
        Some(state.clone())
    }

    /// Drops the states of a deleted pod.
    pub fn forget(&mut self, uid: &str) {
        self.states.retain(|key, _| key.pod_uid != uid);
    }

    /// Adds a state unless the run already has one, and returns the cached state.
    pub fn keep(&mut self, key: RunKey, state: Arc<RunState>) -> Arc<RunState> {
        if self.states.len() >= CONTAINERS
            && let Some(oldest) = self.states.iter().min_by_key(|(_, (used, _))| *used).map(|(key, _)| key.clone())
        {
            self.states.remove(&oldest);
        }
        let uses = self.uses;
        self.states.entry(key).or_insert((uses, state)).1.clone()
    }
}
