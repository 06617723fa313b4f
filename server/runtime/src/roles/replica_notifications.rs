//! Notifies agents of new replicas, so that they open tunnels to them without delay (docs/TUNNEL.md, *Replicas*). Reads the set of live
//! replicas.

use std::collections::BTreeSet;
use std::time::Duration;

use crowsnest_members::Tunnels;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Interval between notifications.
const NOTIFY_INTERVAL: Duration = Duration::from_secs(1);
/// Number of notifications per new replica: it is visible before it is ready and before load balancers use it.
const NOTIFICATIONS_PER_REPLICA: u32 = 8;

/// Notifies agents whenever a replica joins, until `stop` is cancelled.
pub(super) async fn notify_agents(
    tunnels: Tunnels,
    mut live_replicas: watch::Receiver<BTreeSet<String>>,
    stop: CancellationToken,
) {
    let mut previous = live_replicas.borrow_and_update().clone();
    let mut remaining = 0;
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            changed = live_replicas.changed() => {
                if changed.is_err() {
                    return;
                }
                let current = live_replicas.borrow_and_update().clone();
                remaining = if current.is_subset(&previous) { remaining } else { NOTIFICATIONS_PER_REPLICA };
                previous = current;
            }
            () = tokio::time::sleep(NOTIFY_INTERVAL), if remaining > 0 => {
                remaining -= 1;
                tunnels.announce_replicas(previous.len());
            }
        }
    }
}
