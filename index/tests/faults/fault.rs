//! Faults: chosen at random, begun between writes, ended after further writes.

use crate::members::within;
use crate::process::Host;
use crate::test_member::TestMember;
use crate::{POLL_INTERVAL, Storage};
use rand::Rng;
use rand::rngs::StdRng;

const HOUR_MS: i64 = 3_600_000;
const WORKERS: [&str; 4] = ["collectors", "store writer", "text index", "authorization"];
/// Workers that only replicas have.
const REPLICA_WORKERS: [&str; 4] = ["lease", "log follower", "shared states", "shared interests"];

/// Members are identified by index.
#[derive(Debug, Clone)]
pub enum Fault {
    /// SIGKILL. `down`: the process stays down while members change.
    Kill {
        down: bool,
        next: RestartConditions,
    },
    /// Regular shutdown and restart.
    Stop {
        next: RestartConditions,
    },
    /// SIGSTOP and a later SIGCONT; with a lease, possibly after it has expired.
    Freeze {
        past_lease: bool,
    },
    /// A worker ends; a supervisor would restart the process.
    Abort {
        worker: &'static str,
        next: RestartConditions,
    },
    /// A member's API server ends, with or without a shutdown, and restarts without its watch history.
    Restart {
        member: usize,
        abrupt: bool,
    },
    Cut {
        member: usize,
    },
    CutWithin {
        member: usize,
        bytes: i64,
    },
    Stall {
        member: usize,
        cut: bool,
    },
    /// A member drops its watch history, while its connections are cut or while it is watched.
    Compact {
        member: usize,
        while_disconnected: bool,
    },
    /// Postgres terminates all connections of the host.
    Terminate,
}

/// Conditions of the next start.
#[derive(Debug, Clone)]
pub struct RestartConditions {
    skew_hours: i64,
    /// The text index is deleted.
    deletes_text_index: bool,
    /// The replica restarts with the same name.
    same_name: bool,
}

impl RestartConditions {
    fn choose(rng: &mut StdRng) -> Self {
        // Beyond a day, history with a retention of a day expires at once.
        let skew_hours = if rng.random_bool(0.5) { 0 } else { rng.random_range(-60..=60) };
        Self { skew_hours, deletes_text_index: rng.random_bool(0.1), same_name: rng.random_bool(0.7) }
    }

    async fn apply(&self, host: &mut Host) {
        host.start.skew_ms = self.skew_hours * HOUR_MS;
        if !self.same_name && host.start.database.is_some() {
            host.start.replica = None;
        } else if host.start.database.is_some() {
            host.start.replica = Some("host".to_owned());
        }
        let text = host.start.directory.join("text");
        if self.deletes_text_index && text.exists() {
            tokio::fs::remove_dir_all(text).await.unwrap();
        }
    }
}

impl Fault {
    pub fn choose(rng: &mut StdRng, storage: &Storage, members: usize) -> Self {
        let replicated = matches!(storage, Storage::Postgres(_));
        let member = rng.random_range(0..members);
        match rng.random_range(0..if replicated { 22 } else { 20 }) {
            0..4 => Self::Kill { down: rng.random_bool(0.5), next: RestartConditions::choose(rng) },
            4 => Self::Stop { next: RestartConditions::choose(rng) },
            5..7 => Self::Freeze { past_lease: replicated && rng.random_bool(0.25) },
            7..11 => {
                let workers = if replicated && rng.random_bool(0.4) { REPLICA_WORKERS } else { WORKERS };
                Self::Abort {
                    worker: workers[rng.random_range(0..workers.len())],
                    next: RestartConditions::choose(rng),
                }
            }
            11..13 => Self::Restart { member, abrupt: rng.random_bool(0.5) },
            13 => Self::Cut { member },
            14..16 => Self::CutWithin { member, bytes: rng.random_range(1..40_000) },
            16..18 => Self::Stall { member, cut: rng.random_bool(0.5) },
            18..20 => Self::Compact { member, while_disconnected: rng.random_bool(0.7) },
            _ => Self::Terminate,
        }
    }

    pub async fn begin(&self, host: &mut Host, members: &[TestMember], storage: &Storage) {
        match self {
            Self::Kill { down, next } => {
                host.kill().await;
                next.apply(host).await;
                if !down {
                    host.ensure_running().await;
                }
            }
            Self::Stop { next } => {
                host.stop().await;
                next.apply(host).await;
            }
            Self::Freeze { .. } => host.set_frozen(true).await,
            Self::Abort { worker, .. } => host.abort(worker).await,
            Self::Restart { member, abrupt } => {
                if *abrupt {
                    members[*member].network.cut();
                }
                members[*member].restart().await;
            }
            Self::Cut { member } => members[*member].network.cut(),
            Self::CutWithin { member, bytes } => members[*member].network.cut_within(*bytes),
            Self::Stall { member, .. } => members[*member].network.stall(true),
            Self::Compact { member, while_disconnected } => {
                if *while_disconnected {
                    members[*member].network.refuse(true);
                    members[*member].network.cut();
                } else {
                    members[*member].compact().await;
                }
            }
            Self::Terminate => storage.terminate_connections().await,
        }
    }

    pub async fn end(&self, host: &mut Host, members: &[TestMember], storage: &Storage) {
        match self {
            Self::Kill { .. } | Self::Stop { .. } | Self::Restart { .. } | Self::Cut { .. } => {}
            Self::Terminate => storage.terminate_connections().await,
            Self::Freeze { past_lease } => {
                if *past_lease {
                    within("the end of the lease", async {
                        while !storage.is_lease_expired().await {
                            tokio::time::sleep(POLL_INTERVAL).await;
                        }
                    })
                    .await;
                }
                host.set_frozen(false).await;
            }
            Self::Abort { next, .. } => {
                host.kill().await;
                next.apply(host).await;
            }
            Self::CutWithin { member, .. } => members[*member].network.heal(),
            Self::Stall { member, cut } => {
                if *cut {
                    members[*member].network.cut();
                }
                members[*member].network.heal();
            }
            Self::Compact { member, .. } => {
                members[*member].compact().await;
                members[*member].network.heal();
            }
        }
        host.ensure_running().await;
    }
}
