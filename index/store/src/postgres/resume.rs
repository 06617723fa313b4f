//! Fills the tail of a starting replica from the change log.

use super::{LogPage, PostgresStore};
use crate::tail::Tail;
use crate::{Error, Seq, Store};

/// Maximum number of changes that one read of the log returns, which limits the memory for their bodies.
pub const MAX_CHANGES_PER_READ: u64 = 500;

/// Creates the tail of a starting replica. It contains the newest changes of the log, within the limits, so that
/// watches that began at another replica can continue at this one.
pub async fn resume_tail(store: &PostgresStore, max_changes: usize, max_bytes: usize) -> Result<Tail, Error> {
    let latest = store.latest().await?;
    let tail = Tail::new(Seq(latest.0.saturating_sub(max_changes as u64)), max_changes, max_bytes);
    while tail.latest() < latest {
        match store.changes(tail.latest(), MAX_CHANGES_PER_READ).await? {
            LogPage::Changes(changes) if changes.is_empty() => break,
            LogPage::Changes(changes) => drop(tail.publish(changes)),
            // Earlier changes were pruned: halve the range until nothing is missing.
            LogPage::Pruned(_) => tail.restart(Seq(latest.0 - (latest.0 - tail.latest().0) / 2)),
        }
    }
    Ok(tail)
}
