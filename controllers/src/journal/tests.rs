use super::*;
use crowsnest_api::keys::BindingKey;
use crowsnest_api::work::ObjectReference;
use crowsnest_plan::journal::{Action, Cause, id};
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt;
use kube::client::Body;
use rstest::rstest;
use serde_json::json;
use std::collections::BTreeMap;
use std::convert::Infallible;

fn entry(nth: usize) -> Entry {
    let subject = ObjectReference::new("apps/v1", "Deployment", "shop", "web");
    Entry {
        at: k8s_openapi::jiff::Timestamp::UNIX_EPOCH,
        id: id(&subject, "u", Action::Evicted, &[&nth.to_string()]),
        subject,
        action: Action::Evicted,
        cluster: "m1".to_owned(),
        cause: Cause::default(),
        effect: json!({"nth": nth}),
        generation: None,
        is_warning: false,
        message: format!("entry {nth}"),
    }
}

/// Requests and successes by message.
type SeenMessages = Arc<Mutex<BTreeMap<String, (usize, usize)>>>;

/// An API server. The first response for each Event is the error returned by `error_code`, if any.
fn server(error_code: impl Fn(usize) -> Option<u16> + Clone + Send + Sync + 'static) -> (DynamicClient, SeenMessages) {
    let seen = SeenMessages::default();
    let recorded = Arc::clone(&seen);
    let service = tower::service_fn(move |request: Request<Body>| {
        let (recorded, error_code) = (Arc::clone(&recorded), error_code.clone());
        async move {
            let body = request.into_body().collect().await.expect("a body").to_bytes();
            let event: Value = serde_json::from_slice(&body).expect("JSON");
            let (attempts, nth) = {
                let mut recorded = recorded.lock();
                let nth = recorded.len();
                let (attempts, _) =
                    recorded.entry(event["message"].as_str().expect("a message").to_owned()).or_default();
                *attempts += 1;
                (*attempts, nth)
            };
            let response = match error_code(nth).filter(|_| attempts == 1) {
                Some(code) => {
                    let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code,
                        "message": "no", "reason": "No"});
                    let code = StatusCode::from_u16(code).expect("a code");
                    Response::builder().status(code).body(status.to_string().into_bytes().into())
                }
                None => {
                    recorded.lock().entry(event["message"].as_str().expect("a message").to_owned()).or_default().1 += 1;
                    Response::builder().status(201).body(body.to_vec().into())
                }
            };
            let response: Response<Body> = response.expect("a response");
            Ok::<_, Infallible>(response)
        }
    });
    (DynamicClient::new(kube::Client::new(service, "default")), seen)
}

/// A journal with a short queue, and its writer.
fn new_journal(
    objects: DynamicClient,
    length: usize,
    closing: CancellationToken,
) -> (Journal, impl Future<Output = ()>) {
    let (journal, entries) = Journal::queue(length, CancellationToken::new());
    let writer = Writer {
        objects,
        component: "test",
        write_load: Arc::default(),
        retry_backoff: Backoff::new(Duration::from_millis(1), Duration::from_secs(5)),
    };
    let waiting = Arc::clone(&journal.waiting);
    (journal, write_all(entries, waiting, writer, closing))
}

#[tokio::test]
async fn all_entries_of_a_burst_are_written_once() {
    const BURST: usize = 5000;
    // Two thirds of the first attempts fail with retriable errors.
    let (objects, seen) = server(|nth| [None, Some(500), Some(429)][nth % 3]);
    let (journal, writing) = new_journal(objects, 16, CancellationToken::new());
    let adding = async {
        let all = (0..4).map(|part| journal.add_all((0..BURST).filter(move |nth| nth % 4 == part).map(entry)));
        futures::future::join_all(all).await;
        assert!(*journal.waiting.borrow() <= 16 + WRITERS, "the queue is limited");
        journal.wait_flushed().await;
    };
    tokio::select! {
        () = adding => {}
        () = writing => panic!("the journal ended"),
    }
    let seen = seen.lock();
    assert_eq!((seen.len(), seen.values().all(|(_, accepted)| *accepted == 1)), (BURST, true));
}

#[tokio::test]
async fn recent_entries_are_not_repeated() {
    let (objects, seen) = server(|_| None);
    let (journal, writing) = new_journal(objects, 16, CancellationToken::new());
    let adding = async {
        journal.add_all([entry(1), entry(2), entry(1)]).await;
        journal.wait_flushed().await;
        journal.add(entry(2)).await;
        assert!(journal.is_flushed());
    };
    tokio::select! {
        () = adding => {}
        () = writing => panic!("the journal ended"),
    }
    assert_eq!(seen.lock().values().copied().collect::<Vec<_>>(), [(1, 1), (1, 1)]);
}

#[tokio::test]
async fn shutdown_writes_remaining_entries() {
    let closing = CancellationToken::new();
    let (objects, seen) = server(|_| Some(503));
    let (journal, writing) = new_journal(objects, 64, closing.clone());
    journal.add_all((0..50).map(entry)).await;
    closing.cancel();
    writing.await;
    assert_eq!(seen.lock().values().filter(|(_, accepted)| *accepted == 1).count(), 50);
    // Later entries are logged without waiting.
    journal.add(entry(99)).await;
    assert!(journal.is_flushed());
}

#[tokio::test]
async fn callers_do_not_wait_during_shutdown() {
    let stopping = CancellationToken::new();
    // There is no writer.
    let (journal, _entries) = Journal::queue(1, stopping.clone());
    journal.add(entry(1)).await;
    let mut waits = std::pin::pin!(journal.add(entry(2)));
    assert!(futures::poll!(waits.as_mut()).is_pending());
    stopping.cancel();
    waits.await;
    assert_eq!(*journal.waiting.borrow(), 1);
}

#[rstest]
#[case::written_before(409, WriteOutcome::AlreadyExists)]
#[case::namespace_not_found(404, WriteOutcome::Rejected)]
#[case::namespace_terminating(403, WriteOutcome::Rejected)]
#[case::too_many_requests(429, WriteOutcome::Retry)]
#[case::unavailable(503, WriteOutcome::Retry)]
#[tokio::test]
async fn write_errors_are_classified(#[case] code: u16, #[case] expected: WriteOutcome) {
    let (objects, _) = server(move |_| Some(code));
    let resource = Resource::builtin("", "v1", "events", "Event", true);
    let error = objects.create(&resource, "shop", &entry(1).event("test")).await.expect_err("refused");
    assert_eq!(classify_error(&error), expected);
}

#[test]
fn cause_of_rescheduling_is_returned_once() {
    let (journal, _entries) = Journal::queue(1, CancellationToken::new());
    let key = BindingKey::new("shop", "web-deployment");
    journal.set_cause(key.clone(), "shop/web.1".to_owned());
    assert_eq!(journal.take_cause(&key).as_deref(), Some("shop/web.1"));
    assert_eq!(journal.take_cause(&key), None);
}
