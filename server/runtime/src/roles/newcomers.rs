//! Lets members' agents know when a replica has come, so that it has tunnels soon (docs/TUNNEL.md, *Replicas*). Reads who collects with
//! this process; the agents look for whom they have not met.

use std::collections::BTreeSet;
use std::time::Duration;

use crowsnest_members::Tunnels;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Between two words to the agents.
const EVERY: Duration = Duration::from_secs(1);
/// How often they are told of one: it is seen before it is ready, and before a balancer leads anybody to it.
const TIMES: u32 = 8;

/// Until told to stop.
pub(super) async fn tell_agents(
    tunnels: Tunnels,
    mut live: watch::Receiver<BTreeSet<String>>,
    stop: CancellationToken,
) {
    let mut known = live.borrow_and_update().clone();
    let mut left = 0;
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            changed = live.changed() => {
                if changed.is_err() {
                    return;
                }
                let now = live.borrow_and_update().clone();
                left = if now.is_subset(&known) { left } else { TIMES };
                known = now;
            }
            () = tokio::time::sleep(EVERY), if left > 0 => {
                left -= 1;
                tunnels.tell_of_replicas(known.len());
            }
        }
    }
}
