//! Clusters fail in several ways (stopped, slow, partitioned, silent, flapping, unhealthy), most of them at once, and
//! the control plane is killed meanwhile. The members' own stores are checked several times per second: a healthy copy
//! of each workload exists at all times, exclusive workloads never run twice, and unaffected workloads do not move.
//! After recovery, all workloads are exactly where they are planned, with no leftovers and no pending evictions. Jumps
//! of the control plane's wall clock move nothing.
//!
//! Members are simulated in this process, so that they survive the control plane; faults affect their connections, and
//! their own controllers keep running.

#![expect(clippy::print_stderr, reason = "how long each part takes is printed")]

mod agent;
mod clock;
mod fault;
mod look;
mod site;
mod workload;

use anyhow::{Context, Result, ensure};
use fault::Fault;
use look::is_well_in;
use site::Site;
use workload::{Kind, Workload};

/// Features of the control plane that a case needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Needs {
    /// A cluster is not ready only if several signals fail (HEALTH-1).
    Damping,
    /// No evictions while most of the fleet fails (HEALTH-3, FAIL-3).
    Doubt,
    /// An eviction without a replacement is cancelled when its cluster recovers (FAIL-4).
    Cancelling,
    /// Workloads are exclusive by annotation, until the last pod has stopped (FAIL-6).
    Exclusive,
}

/// Implemented features. Cases that need others are skipped.
const THERE: &[Needs] = &[Needs::Damping, Needs::Doubt, Needs::Cancelling, Needs::Exclusive];

fn has(needs: Needs) -> bool {
    THERE.contains(&needs)
}

/// Number of checks during which a state must hold.
const LONG_ENOUGH: usize = 40;

struct Case {
    home: &'static str,
    spare: &'static str,
    fault: Fault,
    /// True if workloads move, if that is certain.
    moves: fn() -> Option<bool>,
}

/// At most half of the fleet, so that the control plane does not doubt its data.
static CASES: [Case; 7] = [
    Case { home: "dead", spare: "spare1", fault: Fault::ConnectionRefused, moves: || Some(true) },
    Case { home: "slow", spare: "spare2", fault: Fault::IncreasingDelay, moves: || Some(true) },
    Case { home: "cut", spare: "spare3", fault: Fault::Partition, moves: || Some(true) },
    // A member behind an agent: the agent's connection is cut.
    Case { home: "behind", spare: "spare7", fault: Fault::Partition, moves: || Some(true) },
    Case { home: "silent", spare: "spare4", fault: Fault::NoResponse, moves: || Some(true) },
    Case { home: "flapping", spare: "spare5", fault: Fault::Flapping, moves: || None },
    // Its watches continue: one failing signal of several.
    Case { home: "unwell", spare: "spare6", fault: Fault::NotReady, moves: || Some(!has(Needs::Damping)) },
];

/// Workloads of each supported kind that run in one cluster and can move to a spare.
fn workloads(home: &'static str, spare: &'static str) -> Vec<Workload> {
    let mut kinds = vec![Kind::Gentle, Kind::Single];
    kinds.extend(has(Needs::Exclusive).then_some(Kind::Exclusive));
    kinds.extend(has(Needs::Cancelling).then_some(Kind::Pinned));
    kinds.into_iter().map(|kind| Workload::of(kind, home, spare)).collect()
}

#[test]
fn workloads_keep_a_healthy_copy_and_exclusive_ones_never_run_twice() -> Result<()> {
    let members: Vec<&str> = CASES.iter().flat_map(|case| [case.home, case.spare]).collect();
    let mut all: Vec<Workload> = CASES.iter().flat_map(|case| workloads(case.home, case.spare)).collect();
    all.push(Workload::wide(members.clone()));
    let mut site = Site::start(&members, &["behind"], all)?;
    CASES.iter().try_for_each(|case| site.begin(case.fault, case.home))?;

    // The control plane is killed when it has started evicting, and restarts with the members' current state.
    site.until("an eviction to begin", |plans, _| match plans.evict() {
        true => Vec::new(),
        false => vec!["none".to_owned()],
    })?;
    site.kill_control_plane()?;
    site.start_control_plane()?;
    let gentle = |case: &Case| Workload::of(Kind::Gentle, case.home, case.spare);
    let moved = || CASES.iter().filter(|case| (case.moves)() == Some(true));
    site.until("all affected workloads to move", |_, copies| {
        let waiting = moved().filter(|case| !is_well_in(copies, &gentle(case), case.spare));
        waiting.map(|case| format!("{:?} of {}", case.fault, case.home)).collect()
    })?;
    site.looks(LONG_ENOUGH)?;
    let (plans, copies) = site.look()?;
    for case in CASES.iter().filter(|case| (case.moves)() == Some(false)) {
        ensure!(is_well_in(&copies, &gentle(case), case.home), "{:?} moved something", case.fault);
        ensure!(plans.reasons("HealthSignals")[case.home] == "Damped", "{:?}", plans.reasons("HealthSignals"));
    }

    site.mend()?;
    site.settled()?;
    site.stop()
}

/// Most of the fleet.
const LOST: [&str; 4] = ["lost1", "lost2", "lost3", "lost4"];

#[test]
fn most_of_the_fleet_fails_at_once() -> Result<()> {
    let members: Vec<&str> = LOST.into_iter().chain(["left"]).collect();
    let mut all: Vec<Workload> = LOST.iter().flat_map(|home| workloads(home, "left")).collect();
    all.push(Workload::wide(members.clone()));
    let mut site = Site::start(&members, &[], all)?;

    // A suspended process has no data of that period.
    site.hold_still(true)?;
    site.freeze_control_plane(LONG_ENOUGH)?;
    site.looks(LONG_ENOUGH)?;
    ensure!(!site.look()?.0.evict(), "an eviction started without a failure");

    site.hold_still(has(Needs::Doubt))?;
    site.begin_at_once(Fault::ConnectionRefused, &LOST)?;
    if has(Needs::Doubt) {
        site.until("the control plane to doubt itself", |plans, _| {
            let reasons = plans.reasons("HealthSignals");
            LOST.into_iter().filter(|lost| reasons[lost] != "Doubted").map(str::to_owned).collect()
        })?;
        site.looks(LONG_ENOUGH)?;
        let plans = site.look()?.0;
        ensure!(!plans.evict(), "an eviction began while the control plane doubts itself");
        let reasons = plans.reasons("Ready");
        ensure!(LOST.iter().all(|lost| reasons[lost] == "ClusterReady"), "{reasons:?}");
    } else {
        site.until("everything to move", |_, copies| {
            let waiting = LOST.into_iter().filter(|lost| {
                let gentle = Workload::of(Kind::Gentle, lost, "left");
                !is_well_in(copies, &gentle, "left")
            });
            waiting.map(str::to_owned).collect()
        })?;
    }
    site.mend()?;
    site.settled().context("after all members recovered")?;
    site.stop()
}

/// Successive offsets of the control plane's wall clock: forward, back, and forward again.
const AHEAD: [i64; 3] = [3600, 0, 600];

#[test]
fn clock_jumps_move_nothing() -> Result<()> {
    let members = ["home", "spare"];
    let mut all = workloads("home", "spare");
    all.push(Workload::wide(members.to_vec()));
    let mut site = Site::start(&members, &[], all)?;
    site.hold_still(true)?;
    for ahead in AHEAD {
        site.set_clock(ahead)?;
        site.looks(LONG_ENOUGH).with_context(|| format!("{ahead} s ahead"))?;
        let plans = site.look()?.0;
        ensure!(!plans.evict(), "an eviction began because the clock is {ahead} s ahead");
        let reasons = plans.reasons("Ready");
        ensure!(members.iter().all(|member| reasons[member] == "ClusterReady"), "{ahead} s ahead: {reasons:?}");
    }

    // Failed clusters are evicted, and recovered ones are used again, while the clock keeps jumping.
    site.hold_still(false)?;
    site.begin(Fault::ConnectionRefused, "home")?;
    site.set_clock(AHEAD[0])?;
    let gentle = Workload::of(Kind::Gentle, "home", "spare");
    site.until("the workloads to move", |_, copies| match is_well_in(copies, &gentle, "spare") {
        true => Vec::new(),
        false => vec![gentle.name.clone()],
    })?;
    site.set_clock(AHEAD[2])?;
    site.mend()?;
    site.settled()?;
    site.stop()
}
