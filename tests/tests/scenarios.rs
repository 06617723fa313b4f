//! The recorded scenarios of the suite `fleet` (`.ci/conformance`) with the standard deployment: a control plane in its
//! own process, three replicas of `crowsnest serve` on one Postgres behind one address, and members in their own
//! processes, while the replicas are killed in turn and restarted.
//!
//! `CROWSNEST_FLEET_ONLY` selects scenarios (comma-separated, with `*`; the default is a selection for CI, `*` the full
//! test), `CROWSNEST_FLEET_TIER` the tier, and `CROWSNEST_FLEET_KILL` the seconds between the recovery of a killed replica
//! and the next kill (0: no kills); the first replica is killed when the first scenario has ended. `.ci/conformance
//! fleet-serve` runs all scenarios. Scenarios that need all replicas are listed in `.ci/fleet-serve-undisturbed`, with
//! the reason: they run again after the last kill, and that result counts.

#![expect(clippy::print_stderr, reason = "verdicts are printed when they are known")]

mod deployment;
mod recordings;
mod suite;

use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use crowsnest_tests::wait_for;
use deployment::Deployment;
use suite::Suite;

/// The most common operations: an object is propagated, changed by overrides, divided, propagated as a dependency,
/// listed and watched fleet-wide, and deleted.
const DEFAULT_SCENARIOS: &str = "cm-basic,conflict-abort,deps-*,dynamic-two-names,namespace-sync,override-*,policy-*,proxy-*,\
    rejected-c*,search-*,static-weights-*,status-d*,template-*";
/// Default interval between kills in seconds, longer than the lease of a killed leader (15 s), so that the next leader
/// can act before it is killed.
const DEFAULT_KILL_INTERVAL: u64 = 30;

fn number_from_env(variable: &str, default: u64) -> Result<u64> {
    match std::env::var(variable) {
        Ok(text) => text.parse().with_context(|| format!("{variable}={text} is not a number")),
        Err(_) => Ok(default),
    }
}

#[test]
fn scenarios_pass_while_replicas_are_killed() -> Result<()> {
    let only = std::env::var("CROWSNEST_FLEET_ONLY").unwrap_or_else(|_| DEFAULT_SCENARIOS.to_owned());
    let (tier, kill_interval) =
        (number_from_env("CROWSNEST_FLEET_TIER", 3)?, number_from_env("CROWSNEST_FLEET_KILL", DEFAULT_KILL_INTERVAL)?);
    let Some(suite) = Suite::find(&only, tier)? else { return Ok(()) };
    let Some(mut deployment) = Deployment::start()? else { return Ok(()) };
    let kubeconfigs = deployment.kubeconfigs.clone();
    let (running, scenarios) = mpsc::channel();
    let target = &mut deployment;
    let (mut verdicts, kills) = thread::scope(|scope| {
        let kill_thread = scope.spawn(move || kill_in_turn(target, kill_interval, &scenarios));
        let verdicts = suite.check(&kubeconfigs, &suite.only, Some(running));
        let kills = kill_thread.join().map_err(|_| anyhow::anyhow!("the thread that kills replicas panicked"))?;
        anyhow::Ok((verdicts?, kills?))
    })?;
    let undisturbed = verdicts.undisturbed_names();
    if !undisturbed.is_empty() {
        verdicts.extend(suite.check(&kubeconfigs, &undisturbed.join(","), None)?);
    }
    eprintln!(
        "{} passed, {} failed, replicas killed {kills} times",
        verdicts.passed_count(),
        verdicts.failed_names().len()
    );
    ensure!(verdicts.failed_names().is_empty(), "{:?}\n{}", verdicts.failed_names(), deployment.logs());
    ensure!(verdicts.passed_count() > 0, "no scenario matches {only}");
    ensure!(kill_interval == 0 || kills > 0, "the scenarios ended before a replica was killed");
    Ok(())
}

/// Kills replicas in turn from the first message of `scenarios` until its sender is dropped; returns the number of kills.
/// Waits until a killed replica is ready again, and `interval` seconds more, so that a slow machine also has times
/// without an outage.
fn kill_in_turn(deployment: &mut Deployment, interval: u64, scenarios: &mpsc::Receiver<()>) -> Result<usize> {
    let mut kills = 0;
    if interval == 0 || scenarios.recv().is_err() {
        return Ok(kills);
    }
    loop {
        let at = kills % deployment.replicas.len();
        let replica = &mut deployment.replicas[at];
        eprintln!("killed: {}", replica.name);
        replica.kill()?;
        kills += 1;
        replica.restart()?;
        wait_for(&format!("replica {} to be ready", replica.name), || replica.is_ready())
            .with_context(|| replica.log())?;
        if scenarios.recv_timeout(Duration::from_secs(interval)) != Err(RecvTimeoutError::Timeout) {
            return Ok(kills);
        }
    }
}
