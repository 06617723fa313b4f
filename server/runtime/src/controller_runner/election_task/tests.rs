//! Tests of two candidates of which one has a runtime that hangs: a task blocks its only worker. The clock of the election is
//! advanced by the tests.

use std::sync::{Arc, mpsc};

use parking_lot::Mutex;
use rstest::rstest;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;

use super::*;
use crate::leader_election::fixtures::{MockLeases, block_worker, mock_election, run_spawned_tasks, single_worker};

/// Minutes, because the write fence uses the clocks of the machine and must not close during a test.
const TIMINGS: Timings = Timings {
    lease_duration: Duration::from_secs(15 * 60),
    renew_deadline: Duration::from_secs(10 * 60),
    retry_period: Duration::from_secs(2 * 60),
};
/// Number of attempts in the renew deadline. The first one after the hang sends the heartbeat.
const ATTEMPTS: u32 = 5;

/// Starts controllers that only wait for their stop, and records the write fences of active ones.
struct MockFactory {
    runtime: Handle,
    fences: Arc<Mutex<Vec<Fence>>>,
}

struct MockControllers {
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl ControllerFactory for MockFactory {
    type Controllers = MockControllers;

    fn start(&self, fence: Fence) -> MockControllers {
        self.fences.lock().push(fence);
        self.observe()
    }

    fn observe(&self) -> MockControllers {
        let stop = CancellationToken::new();
        MockControllers { task: self.runtime.spawn(stop.clone().cancelled_owned()), stop }
    }

    fn check_cache(&self) -> Result<(), String> {
        Ok(())
    }
}

impl RunningControllers for MockControllers {
    fn health(&self) -> Result<(), UnhealthyReason> {
        Ok(())
    }

    async fn stop(self) {
        self.stop.cancel();
        self.task.await.unwrap();
    }
}

struct Candidate {
    task: ElectionTask<MockFactory>,
    readers: ElectionReaders,
    fences: Arc<Mutex<Vec<Fence>>>,
    /// Runtime of the controllers.
    runtime: Runtime,
}

impl Candidate {
    fn status(&self) -> LeadershipStatus {
        self.readers.leadership.borrow().clone()
    }
}

/// Runs the attempts of the candidates one after another.
struct TestElection {
    /// Runtime of the election.
    runtime: Runtime,
    clock: Clock,
    stop: CancellationToken,
}

impl TestElection {
    /// Two candidates after their first attempts: the first one is the leader.
    fn start() -> (Self, Candidate, Candidate) {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let election = Self { runtime, clock: Clock::default(), stop: CancellationToken::new() };
        let leases = Arc::default();
        let [first, second] = ["first", "second"].map(|identity| {
            let mut candidate = election.candidate(identity, &leases);
            election.attempt(&mut candidate).unwrap();
            candidate
        });
        assert_eq!(first.status(), LeadershipStatus::Leader { term: 0 });
        assert_eq!(second.status(), standby(Some("first")));
        (election, first, second)
    }

    fn candidate(&self, identity: &str, leases: &Arc<Mutex<MockLeases>>) -> Candidate {
        let _context = self.runtime.enter();
        let (runtime, fences) = (single_worker(), Arc::default());
        let factory = MockFactory { runtime: runtime.handle().clone(), fences: Arc::clone(&fences) };
        let (observer, election) = (factory.observe(), mock_election(leases, identity, TIMINGS));
        let (task, readers) =
            ElectionTask::new(&election, factory, observer, self.clock.clone(), runtime.handle().clone());
        Candidate { task, readers, fences, runtime }
    }

    fn attempt(&self, candidate: &mut Candidate) -> Result<(), ControllersHang> {
        self.runtime.block_on(candidate.task.try_elect(&self.stop))
    }

    fn advance(&self) {
        self.clock.advance(TIMINGS.retry_period);
    }

    /// Blocks the worker of one candidate until the next attempt finds that its heartbeat has missed the renew deadline.
    fn hang(&self, hanging: &mut Candidate, other: &mut Candidate) -> mpsc::Sender<()> {
        run_spawned_tasks(&hanging.runtime);
        let release = block_worker(&hanging.runtime);
        let before = (hanging.status(), other.status());
        for _ in 0..ATTEMPTS {
            self.advance();
            self.attempt(hanging).unwrap();
            self.attempt(other).unwrap();
            run_spawned_tasks(&other.runtime);
            assert_eq!((hanging.status(), other.status()), before);
        }
        self.advance();
        release
    }

    /// Number of attempts until the candidate is the leader.
    fn attempts_until_leader(&self, candidate: &mut Candidate) -> Option<u32> {
        (1..=20).find(|_| {
            self.attempt(candidate).unwrap();
            run_spawned_tasks(&candidate.runtime);
            self.advance();
            matches!(candidate.status(), LeadershipStatus::Leader { .. })
        })
    }
}

fn standby(leader: Option<&str>) -> LeadershipStatus {
    LeadershipStatus::Standby { leader: leader.map(str::to_owned) }
}

/// For each started term, true if writes are allowed.
fn open_fences(fences: &Mutex<Vec<Fence>>) -> Vec<bool> {
    fences.lock().iter().map(|fence| fence.is_open(ClockReading::now())).collect()
}

/// Controllers that never stop.
struct StuckControllers;

impl RunningControllers for StuckControllers {
    fn health(&self) -> Result<(), UnhealthyReason> {
        Ok(())
    }

    async fn stop(self) {
        std::future::pending().await
    }
}

#[tokio::test]
async fn controllers_that_do_not_stop_in_time_must_not_write() {
    let (limit, fence) = (Duration::from_millis(1), Fence::default());
    assert_eq!(stop_within(limit, StuckControllers, Some(&fence)).await, Err(ControllersHang(limit)));
    assert!(!fence.is_open(ClockReading::now()));
}

#[test]
fn a_leader_that_hangs_gives_up_and_reports_it_and_another_candidate_takes_over() {
    let (election, mut first, mut second) = TestElection::start();
    let release = election.hang(&mut first, &mut second);
    assert_eq!(open_fences(&first.fences), [true]);
    // The hang does not end.
    first.task.hang_limit = Duration::ZERO;
    election.runtime.block_on(first.task.run(election.stop.clone()));
    assert_eq!(first.readers.hang.borrow().clone(), Some(ControllersHang(Duration::ZERO)));
    assert_eq!(*first.readers.leadership.borrow(), standby(None));
    assert_eq!(open_fences(&first.fences), [false]);
    // The last renewal was observed two minutes before the first of these attempts; the leases expire after 15 minutes.
    assert_eq!(election.attempts_until_leader(&mut second), Some(8));
    assert_eq!(second.status(), LeadershipStatus::Leader { term: 1 });
    // The former leader stays without permission to write when its runtime continues.
    drop(release);
    run_spawned_tasks(&first.runtime);
    assert_eq!((open_fences(&first.fences), open_fences(&second.fences)), (vec![false], vec![true]));
}

#[test]
fn a_leader_whose_runtime_continues_becomes_a_standby() {
    let (election, mut first, mut second) = TestElection::start();
    let release = election.hang(&mut first, &mut second);
    let continued = async move { drop(release) };
    let attempt = async { tokio::join!(biased; first.task.try_elect(&election.stop), continued) };
    assert_eq!(election.runtime.block_on(attempt), (Ok(()), ()));
    assert_eq!((first.status(), open_fences(&first.fences)), (standby(None), vec![false]));
    // The leases were released.
    assert_eq!(election.attempts_until_leader(&mut second), Some(1));
    election.attempt(&mut first).unwrap();
    assert_eq!(first.status(), standby(Some("second")));
    assert_eq!(open_fences(&first.fences), [false]);
}

#[rstest]
#[case::hangs(Duration::ZERO, Some(ControllersHang(Duration::ZERO)))]
#[case::continues(HANG_LIMIT, None)]
fn a_standby_that_hangs_reports_it(#[case] hang_limit: Duration, #[case] expected: Option<ControllersHang>) {
    let (election, mut first, mut second) = TestElection::start();
    let mut release = Some(election.hang(&mut second, &mut first));
    second.task.hang_limit = hang_limit;
    let continued = async {
        if expected.is_none() {
            drop(release.take());
            election.stop.cancel();
        }
    };
    let run = async { tokio::join!(biased; second.task.run(election.stop.clone()), continued) };
    election.runtime.block_on(run);
    assert_eq!(second.readers.hang.borrow().clone(), expected);
    assert_eq!((open_fences(&first.fences), open_fences(&second.fences)), (vec![true], Vec::new()));
}
