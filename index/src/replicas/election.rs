//! Elects the replica that writes an index shared by all replicas.
//!
//! The election has no separate lease; it is a function of the live replicas. While their views differ, two
//! replicas may write; the engine keeps the newer version of each document.

use super::plan::owner;
use crowsnest_store::Error;
use std::collections::BTreeSet;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Hashed with the replicas' names. No cluster has this name.
const SHARED_INDEX: &str = "search/index";

/// Publishes whether this replica is elected, until stopped.
pub(crate) async fn run(
    replica: String,
    mut live: watch::Receiver<BTreeSet<String>>,
    elected: watch::Sender<bool>,
    stop: CancellationToken,
) -> Result<(), Error> {
    loop {
        let now = is_elected(&replica, &live.borrow_and_update());
        elected.send_if_modified(|before| std::mem::replace(before, now) != now);
        match stop.run_until_cancelled(live.changed()).await {
            Some(Ok(())) => {}
            Some(Err(_)) | None => return Ok(()),
        }
    }
}

fn is_elected(replica: &str, live: &BTreeSet<String>) -> bool {
    owner(SHARED_INDEX, live.iter().map(String::as_str)) == Some(replica)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn one_live_replica_is_elected() {
        let all: BTreeSet<String> = ["a", "b", "c"].map(str::to_owned).into();
        let elected: Vec<&String> = all.iter().filter(|replica| is_elected(replica, &all)).collect();
        let [first] = elected[..] else { panic!("{elected:?} are elected") };
        let others: BTreeSet<String> = all.iter().filter(|replica| *replica != first).cloned().collect();
        let second = others.iter().find(|replica| is_elected(replica, &others)).unwrap().clone();
        assert!(!is_elected(first, &BTreeSet::new()), "no replica is elected before the replicas are known");

        let (live, seen) = watch::channel(BTreeSet::new());
        let (elect, mut elected) = watch::channel(false);
        let stop = CancellationToken::new();
        let running = tokio::spawn(run(second, seen, elect, stop.clone()));
        for (replicas, expected) in [(&others, true), (&all, false), (&others, true)] {
            live.send_replace(replicas.clone());
            elected.wait_for(|elected| *elected == expected).await.unwrap();
        }
        stop.cancel();
        running.await.unwrap().unwrap();
    }
}
