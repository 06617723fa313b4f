//! Tests of a campaign against a mock API of Leases: the requests of a renewal, and the outcome of a conflict.

use parking_lot::Mutex;
use rstest::rstest;

use super::fixtures::{MockLeases, mock_election};
use super::*;

const TIMINGS: Timings = Timings {
    lease_duration: Duration::from_secs(15),
    renew_deadline: Duration::from_secs(10),
    retry_period: Duration::from_secs(2),
};

fn campaign(mock: &Arc<Mutex<MockLeases>>) -> Campaign {
    Campaign::new(&mock_election(mock, "me", TIMINGS), &Clock::default())
}

#[tokio::test]
async fn held_leases_are_renewed_by_one_update_each() {
    let mock = Arc::new(Mutex::new(MockLeases::default()));
    let mut campaign = campaign(&mock);
    assert_eq!(campaign.try_acquire_or_renew().await.unwrap(), ElectionOutcome::Holder { term: 0 });
    for _ in 0..3 {
        mock.lock().requests.clear();
        assert_eq!(campaign.try_acquire_or_renew().await.unwrap(), ElectionOutcome::Holder { term: 0 });
        assert_eq!(mock.lock().requests, ["PUT"; 3]);
    }
}

#[rstest]
#[case("one")]
#[case("two")]
#[case("three")]
#[tokio::test]
async fn lost_leases_are_noticed_at_the_next_renewal(#[case] name: &str) {
    let mock = Arc::new(Mutex::new(MockLeases::default()));
    let mut campaign = campaign(&mock);
    campaign.try_acquire_or_renew().await.unwrap();
    mock.lock().take_over(name);
    let lost = ElectionOutcome::OtherHolder { lease: name.to_owned(), holder: "other".to_owned() };
    assert_eq!(campaign.try_acquire_or_renew().await.unwrap(), lost);
    assert_eq!(campaign.try_acquire_or_renew().await.unwrap(), lost);
    assert_eq!(mock.lock().leases[name]["spec"]["holderIdentity"], "other");
}

#[rstest]
#[case("a fast response", 0, 2_000)]
#[case("a slow response", 1_200, 800)]
#[case("a response after the retry period", 4_000, 500)]
fn attempts_start_one_retry_period_after_each_other(#[case] _name: &str, #[case] elapsed: u64, #[case] delay: u64) {
    let elapsed = Duration::from_millis(elapsed);
    assert_eq!(retry_delay(&TIMINGS, elapsed, 0.5), Duration::from_millis(delay));
}

/// The test occupies the only worker of its runtime until the task has run.
#[tokio::test]
async fn tasks_of_the_thread_run_while_the_workers_of_the_caller_are_occupied() {
    let thread = ElectionThread::start().unwrap();
    let (sender, receiver) = std::sync::mpsc::channel();
    let create_client = async {
        tokio::spawn(async move { sender.send(std::thread::current().name().map(str::to_owned)) });
    };
    thread.wrap(create_client).await;
    assert_eq!(receiver.recv().unwrap().as_deref(), Some("leader-election"));
}
