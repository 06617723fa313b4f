//! Turns by name: whoever has the turn of a name goes on alone, others wait.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::OwnedMutexGuard;

type Turn = tokio::sync::Mutex<()>;

/// Turns that are taken or waited for, by name.
#[derive(Default)]
pub struct Turns(Mutex<HashMap<String, Weak<Turn>>>);

impl Turns {
    /// Waits for the turn of a name; it ends with the guard.
    pub async fn take(&self, name: &str) -> OwnedMutexGuard<()> {
        let turn = {
            let mut turns = self.0.lock();
            turns.retain(|_, turn| turn.strong_count() > 0);
            let turn = turns.get(name).and_then(Weak::upgrade).unwrap_or_default();
            turns.insert(name.to_owned(), Arc::downgrade(&turn));
            turn
        };
        turn.lock_owned().await
    }
}
