//! Clusters fail in several ways (stopped, slow, partitioned, silent, flapping, unhealthy), most of them concurrently,
//! while the control plane is killed. The members' own stores are checked several times per second: a healthy copy
//! of each workload exists at all times, exclusive workloads never run twice, and unaffected workloads do not move.
//! After recovery, all workloads are exactly where they are planned, with no leftovers and no pending evictions. Jumps
//! of the control plane's wall clock move nothing.
//!
//! Members are simulated in this process, so that they survive the control plane; faults affect their connections, and
//! their own controllers keep running.

#![expect(clippy::print_stderr, reason = "the duration of each step is printed")]

mod agent;
mod clock;
mod fault;
mod state;
mod test_env;
mod workload;

use anyhow::{Context, Result, ensure};
use fault::Fault;
use state::{Copies, is_ready_in, uids};
use test_env::TestEnv;
use workload::{Kind, Workload};

/// Features of the control plane that a case needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Feature {
    /// A cluster becomes not ready only if several health signals fail.
    Damping,
    /// Readiness is not changed while most of the fleet fails (reason `Doubted`), so nothing is evicted.
    Doubt,
    /// An eviction without a replacement is cancelled when its cluster recovers.
    EvictionCancellation,
    /// A workload with the annotation `failover.crowsnest.io/exclusive` starts elsewhere only after its last pod has
    /// stopped.
    ExclusiveWorkloads,
}

/// Features that the control plane implements. Checks that depend on others are omitted.
const IMPLEMENTED_FEATURES: &[Feature] =
    &[Feature::Damping, Feature::Doubt, Feature::EvictionCancellation, Feature::ExclusiveWorkloads];

fn is_implemented(feature: Feature) -> bool {
    IMPLEMENTED_FEATURES.contains(&feature)
}

/// Number of checks of the members' stores during which a state must hold.
const CHECKS_PER_STATE: usize = 40;

/// A cluster with a fault.
struct Case {
    primary: &'static str,
    /// Cluster to which the workloads of `primary` can move.
    spare: &'static str,
    fault: Fault,
    /// Returns true if the workloads must move, false if they must not, and `None` if both are correct.
    moves: fn() -> Option<bool>,
}

/// Faults of at most half of the fleet: if more clusters failed, the control plane would not trust its health data.
static CASES: [Case; 7] = [
    Case { primary: "dead", spare: "spare1", fault: Fault::ConnectionRefused, moves: || Some(true) },
    Case { primary: "slow", spare: "spare2", fault: Fault::IncreasingDelay, moves: || Some(true) },
    Case { primary: "cut", spare: "spare3", fault: Fault::Partition, moves: || Some(true) },
    // A member behind an agent: the agent's connection is cut.
    Case { primary: "behind", spare: "spare7", fault: Fault::Partition, moves: || Some(true) },
    Case { primary: "silent", spare: "spare4", fault: Fault::NoResponse, moves: || Some(true) },
    Case { primary: "flapping", spare: "spare5", fault: Fault::Flapping, moves: || None },
    // Its watches continue: one failing signal of several.
    Case {
        primary: "unwell",
        spare: "spare6",
        fault: Fault::NotReady,
        moves: || Some(!is_implemented(Feature::Damping)),
    },
];

/// Workloads of each kind that run in `primary` and can move to `spare`, except for pinned ones.
fn workloads(primary: &'static str, spare: &'static str) -> Vec<Workload> {
    let mut kinds = vec![Kind::Graceful, Kind::Direct];
    kinds.extend(is_implemented(Feature::ExclusiveWorkloads).then_some(Kind::Exclusive));
    kinds.extend(is_implemented(Feature::EvictionCancellation).then_some(Kind::Pinned));
    kinds.into_iter().map(|kind| Workload::new(kind, primary, spare)).collect()
}

#[test]
fn workloads_keep_a_healthy_copy_and_exclusive_ones_never_run_twice() -> Result<()> {
    let members: Vec<&str> = CASES.iter().flat_map(|case| [case.primary, case.spare]).collect();
    let mut all_workloads: Vec<Workload> = CASES.iter().flat_map(|case| workloads(case.primary, case.spare)).collect();
    all_workloads.push(Workload::with_copies(members.clone()));
    let mut env = TestEnv::start(&members, &["behind"], all_workloads)?;
    let before = env.read_state()?.1;
    CASES.iter().try_for_each(|case| env.inject(case.fault, case.primary))?;

    // The control plane is killed when it has started evicting, and restarts with the members' current state.
    env.wait_until("an eviction to start", |state, _| match state.has_evictions() {
        true => Vec::new(),
        false => vec!["none".to_owned()],
    })?;
    env.kill_control_plane()?;
    env.start_control_plane()?;
    let graceful = |case: &Case| Workload::new(Kind::Graceful, case.primary, case.spare);
    let affected_cases = || CASES.iter().filter(|case| (case.moves)() == Some(true));
    env.wait_until("all affected workloads to move", |_, copies| {
        let waiting = affected_cases().filter(|case| !is_ready_in(copies, &graceful(case), case.spare));
        waiting.map(|case| format!("{:?} of {}", case.fault, case.primary)).collect()
    })?;
    env.wait_for_checks(CHECKS_PER_STATE)?;
    let unaffected_cases = || CASES.iter().filter(|case| (case.moves)() == Some(false));
    env.wait_until("the condition HealthSignals to have the reason Damped", |state, _| {
        let reasons = state.condition_reasons("HealthSignals");
        let waiting = unaffected_cases().filter(|case| reasons.get(case.primary) != Some(&"Damped"));
        waiting.map(|case| case.primary.to_owned()).collect()
    })?;
    let after = env.read_state()?.1;
    for case in unaffected_cases() {
        let placement = |copies: &Copies| {
            let mut placement = uids(copies);
            placement.retain(|(name, _), _| *name == graceful(case).name);
            placement
        };
        ensure!(placement(&after) == placement(&before), "{:?} moved a workload", case.fault);
    }

    env.end_faults()?;
    env.wait_until_settled()?;
    env.stop()
}

/// Clusters that fail at the same time: most of the fleet.
const LOST: [&str; 4] = ["lost1", "lost2", "lost3", "lost4"];

#[test]
fn nothing_is_evicted_while_most_of_the_fleet_fails() -> Result<()> {
    let members: Vec<&str> = LOST.into_iter().chain(["healthy"]).collect();
    let mut all_workloads: Vec<Workload> = LOST.iter().flat_map(|primary| workloads(primary, "healthy")).collect();
    all_workloads.push(Workload::with_copies(members.clone()));
    let mut env = TestEnv::start(&members, &[], all_workloads)?;

    // A process that was suspended has no health data of that period, which must not count as a failure.
    env.forbid_moves(true)?;
    env.suspend_control_plane(CHECKS_PER_STATE)?;
    env.wait_for_checks(CHECKS_PER_STATE)?;
    ensure!(!env.read_state()?.0.has_evictions(), "an eviction started without a failure");

    env.forbid_moves(is_implemented(Feature::Doubt))?;
    env.inject_into_all(Fault::ConnectionRefused, &LOST)?;
    if is_implemented(Feature::Doubt) {
        env.wait_until("the condition HealthSignals to have the reason Doubted", |state, _| {
            let reasons = state.condition_reasons("HealthSignals");
            LOST.into_iter().filter(|lost| reasons[lost] != "Doubted").map(str::to_owned).collect()
        })?;
        env.wait_for_checks(CHECKS_PER_STATE)?;
        let state = env.read_state()?.0;
        ensure!(!state.has_evictions(), "an eviction started while most of the fleet fails");
        let reasons = state.condition_reasons("Ready");
        ensure!(LOST.iter().all(|lost| reasons[lost] == "ClusterReady"), "{reasons:?}");
    } else {
        env.wait_until("everything to move", |_, copies| {
            let waiting = LOST.into_iter().filter(|lost| {
                let graceful = Workload::new(Kind::Graceful, lost, "healthy");
                !is_ready_in(copies, &graceful, "healthy")
            });
            waiting.map(str::to_owned).collect()
        })?;
    }
    env.end_faults()?;
    env.wait_until_settled().context("after all members recovered")?;
    env.stop()
}

/// Successive offsets of the control plane's wall clock, in seconds: forward, back, and forward again.
const CLOCK_OFFSETS: [i64; 3] = [3600, 0, 600];

#[test]
fn clock_jumps_move_nothing() -> Result<()> {
    let members = ["home", "spare"];
    let mut all_workloads = workloads("home", "spare");
    all_workloads.push(Workload::with_copies(members.to_vec()));
    let mut env = TestEnv::start(&members, &[], all_workloads)?;
    env.forbid_moves(true)?;
    for offset in CLOCK_OFFSETS {
        env.set_clock(offset)?;
        env.wait_for_checks(CHECKS_PER_STATE).with_context(|| format!("{offset} s ahead"))?;
        let state = env.read_state()?.0;
        ensure!(!state.has_evictions(), "an eviction started because the clock is {offset} s ahead");
        let reasons = state.condition_reasons("Ready");
        ensure!(members.iter().all(|member| reasons[member] == "ClusterReady"), "{offset} s ahead: {reasons:?}");
    }

    // Failed clusters are evicted, and recovered ones are used again, while the clock keeps jumping.
    env.forbid_moves(false)?;
    env.inject(Fault::ConnectionRefused, "home")?;
    env.set_clock(CLOCK_OFFSETS[0])?;
    let graceful = Workload::new(Kind::Graceful, "home", "spare");
    env.wait_until("the workloads to move", |_, copies| match is_ready_in(copies, &graceful, "spare") {
        true => Vec::new(),
        false => vec![graceful.name.clone()],
    })?;
    env.set_clock(CLOCK_OFFSETS[2])?;
    env.end_faults()?;
    env.wait_until_settled()?;
    env.stop()
}
