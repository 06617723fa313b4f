//! Clusters die, die slowly, are cut off, fall silent, flap and say that they are unwell, most of them at once, and the control
//! plane is killed amid it. While that goes on the members' own stores are looked at several times a second: a good copy of
//! each workload is there at any moment, none that may run once only is there twice, and nothing moves that should not. When
//! all is mended, everything is exactly where it is planned: nothing is left behind, and nothing is under way. And nothing moves
//! because the control plane's wall clock jumps.
//!
//! Members are simulated in this process, so that they live on when the control plane dies; what they suffer from is what
//! outsiders see, and their own loops go on.

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

/// What a case may need of the control plane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Needs {
    /// A cluster is not ready only when several signals say so (HEALTH-1).
    Damping,
    /// Nothing is evicted while most of the fleet looks dead (HEALTH-3, FAIL-3).
    Doubt,
    /// An eviction that nothing has replaced ends when its cluster is back (FAIL-4).
    Cancelling,
    /// Workloads are exclusive by annotation, and to the last pod (FAIL-6).
    Exclusive,
}

/// What the control plane does by now. What needs more is left out.
const THERE: &[Needs] = &[Needs::Damping, Needs::Doubt, Needs::Cancelling, Needs::Exclusive];

fn has(needs: Needs) -> bool {
    THERE.contains(&needs)
}

/// Looks at the members in which whatever the control plane would do wrong shows.
const LONG_ENOUGH: usize = 40;

struct Case {
    home: &'static str,
    spare: &'static str,
    fault: Fault,
    /// Whether what is at home moves, where that is certain.
    moves: fn() -> Option<bool>,
}

/// Half of the fleet at most, so that the control plane does not doubt itself.
static CASES: [Case; 7] = [
    Case { home: "dead", spare: "spare1", fault: Fault::Death, moves: || Some(true) },
    Case { home: "slow", spare: "spare2", fault: Fault::SlowDeath, moves: || Some(true) },
    Case { home: "cut", spare: "spare3", fault: Fault::Partition, moves: || Some(true) },
    // Nobody dials it: its agent's connection is cut.
    Case { home: "behind", spare: "spare7", fault: Fault::Partition, moves: || Some(true) },
    Case { home: "silent", spare: "spare4", fault: Fault::Silence, moves: || Some(true) },
    Case { home: "flapping", spare: "spare5", fault: Fault::Flapping, moves: || None },
    // Its watches go on: one signal of several.
    Case { home: "unwell", spare: "spare6", fault: Fault::Unwell, moves: || Some(!has(Needs::Damping)) },
];

/// What runs at home and can go to a spare, of each kind that the control plane knows.
fn workloads(home: &'static str, spare: &'static str) -> Vec<Workload> {
    let mut kinds = vec![Kind::Gentle, Kind::Single];
    kinds.extend(has(Needs::Exclusive).then_some(Kind::Exclusive));
    kinds.extend(has(Needs::Cancelling).then_some(Kind::Pinned));
    kinds.into_iter().map(|kind| Workload::of(kind, home, spare)).collect()
}

#[test]
fn a_good_copy_stays_whatever_fails_and_none_is_there_twice() -> Result<()> {
    let members: Vec<&str> = CASES.iter().flat_map(|case| [case.home, case.spare]).collect();
    let mut all: Vec<Workload> = CASES.iter().flat_map(|case| workloads(case.home, case.spare)).collect();
    all.push(Workload::wide(members.clone()));
    let mut site = Site::start(&members, &["behind"], all)?;
    CASES.iter().try_for_each(|case| site.begin(case.fault, case.home))?;

    // The control plane dies as soon as it has begun to evict, and finds the members as they are by now.
    site.until("an eviction to begin", |plans, _| match plans.evict() {
        true => Vec::new(),
        false => vec!["none".to_owned()],
    })?;
    site.kill_control_plane()?;
    site.start_control_plane()?;
    let gentle = |case: &Case| Workload::of(Kind::Gentle, case.home, case.spare);
    let moved = || CASES.iter().filter(|case| (case.moves)() == Some(true));
    site.until("everything to move that has to", |_, copies| {
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
fn most_of_the_fleet_goes_at_once() -> Result<()> {
    let members: Vec<&str> = LOST.into_iter().chain(["left"]).collect();
    let mut all: Vec<Workload> = LOST.iter().flat_map(|home| workloads(home, "left")).collect();
    all.push(Workload::wide(members.clone()));
    let mut site = Site::start(&members, &[], all)?;

    // Whoever was asleep knows nothing of the time between.
    site.hold_still(true)?;
    site.freeze_control_plane(LONG_ENOUGH)?;
    site.looks(LONG_ENOUGH)?;
    ensure!(!site.look()?.0.evict(), "an eviction began while nobody failed");

    site.hold_still(has(Needs::Doubt))?;
    site.begin_at_once(Fault::Death, &LOST)?;
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
    site.settled().context("after all came back")?;
    site.stop()
}

/// How far ahead the control plane's wall clock is, one after the other: it jumps forward, back, and forward again.
const AHEAD: [i64; 3] = [3600, 0, 600];

#[test]
fn nothing_moves_because_a_clock_jumps() -> Result<()> {
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

    // What dies is still left, and what comes back is taken in again, while the clock jumps on.
    site.hold_still(false)?;
    site.begin(Fault::Death, "home")?;
    site.set_clock(AHEAD[0])?;
    let gentle = Workload::of(Kind::Gentle, "home", "spare");
    site.until("what was at home to move", |_, copies| match is_well_in(copies, &gentle, "spare") {
        true => Vec::new(),
        false => vec![gentle.name.clone()],
    })?;
    site.set_clock(AHEAD[2])?;
    site.mend()?;
    site.settled()?;
    site.stop()
}
