//! Tests with several replicas behind one address that connects to them in turn.

use super::*;
use crowsnest_apimachinery::names::ClusterName;
use crowsnest_members::Dialer;
use crowsnest_members::dial::ProxyRoute;
use crowsnest_members::tunnel::Tunnels;
use http::HeaderValue;
use hyper_util::rt::TokioIo;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use tokio::io::DuplexStream;

struct Address {
    replicas: Vec<(Tunnels, Option<Replica>)>,
    turn: AtomicUsize,
    /// The last replica accepts no connections.
    closed: AtomicBool,
}

impl Address {
    fn of(names: &[Option<&str>]) -> Arc<Self> {
        let replica = |name: &Option<&str>| {
            let headers = name.map(|name| HeaderMap::from_iter([(REPLICA, HeaderValue::from_str(name).unwrap())]));
            (Tunnels::default(), headers.and_then(|headers| Replica::of_answer(&headers)))
        };
        Arc::new(Self {
            replicas: names.iter().map(replica).collect(),
            turn: AtomicUsize::new(0),
            closed: AtomicBool::new(false),
        })
    }

    fn ask(&self, met: &HeaderMap) -> Answer<TokioIo<DuplexStream>> {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let open = self.replicas.len() - usize::from(self.closed.load(Ordering::Relaxed));
        let (tunnels, replica) = &self.replicas[turn % open];
        if replica.as_ref().is_some_and(|replica| replica.is_met(met)) && tunnels.is_open(&m1()) {
            return Answer::Met;
        }
        let (here, there) = tokio::io::duplex(64 << 10);
        tunnels.admit(m1(), async { Ok::<_, Infallible>(TokioIo::new(there)) });
        Answer::Opened(TokioIo::new(here), replica.clone())
    }

    fn tunnels(&self) -> Vec<usize> {
        self.replicas.iter().map(|(tunnels, _)| tunnels.counts().iter().map(|(_, open, _)| open).sum()).collect()
    }

    async fn until(&self, expected: &[usize]) {
        self.comes(|| self.tunnels() == expected).await;
    }

    async fn comes(&self, is_so: impl Fn() -> bool) {
        let come = async {
            while !is_so() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let came = tokio::time::timeout(Duration::from_secs(60), come).await;
        assert!(came.is_ok(), "{:?}", self.tunnels());
    }
}

const REPLICA: http::HeaderName = http::HeaderName::from_static("crowsnest-tunnel-replica");

fn m1() -> ClusterName {
    "m1".parse().unwrap()
}

fn agent() -> Agent {
    let endpoint: http::Uri = "https://member.internal:6443".parse().unwrap();
    let dialer = Dialer::new(endpoint.clone(), None, ProxyRoute::default(), Duration::from_secs(10)).unwrap();
    Agent::new(&endpoint, dialer).unwrap()
}

#[tokio::test]
async fn each_replica_has_one_tunnel_after_reconnects() {
    let address = Address::of(&[Some("a"), Some("b"), Some("c")]);
    let (tell, stop) = (watch::Sender::new(Tunnel::Registering), CancellationToken::new());
    let (asked, kept, told) = (Arc::clone(&address), stop.clone(), tell.subscribe());
    let keeping = tokio::spawn(async move {
        let ask = |met: HeaderMap| std::future::ready(Ok(asked.ask(&met)));
        keep(ask, &agent(), &tell, &kept).await;
    });
    address.until(&[1, 1, 1]).await;
    // Each replica gets several requests, and none opens a second tunnel.
    let turn = address.turn.load(Ordering::Relaxed);
    address.comes(|| address.turn.load(Ordering::Relaxed) >= turn + 3).await;
    assert_eq!(address.tunnels(), [1, 1, 1]);
    address.replicas[1].0.close(&m1());
    address.until(&[1, 0, 1]).await;
    assert_eq!(*told.borrow(), Tunnel::Open);
    address.until(&[1, 1, 1]).await;
    stop.cancel();
    keeping.await.unwrap();
    address.until(&[0, 0, 0]).await;
}

#[tokio::test]
async fn new_replicas_are_found_after_a_report() {
    let address = Address::of(&[Some("a"), Some("b"), Some("c")]);
    // The third replica accepts no connections yet.
    address.closed.store(true, Ordering::Relaxed);
    let (tell, stop) = (watch::Sender::new(Tunnel::Registering), CancellationToken::new());
    let (asked, kept) = (Arc::clone(&address), stop.clone());
    let keeping = tokio::spawn(async move {
        let ask = |met: HeaderMap| std::future::ready(Ok(asked.ask(&met)));
        keep(ask, &agent(), &tell, &kept).await;
    });
    address.until(&[1, 1, 0]).await;
    let turn = address.turn.load(Ordering::Relaxed);
    // The delay has grown to four to eight seconds by now.
    address.comes(|| address.turn.load(Ordering::Relaxed) >= turn + 4).await;
    address.closed.store(false, Ordering::Relaxed);
    let began = Instant::now();
    address.replicas[0].0.tell_of_replicas(3);
    address.until(&[1, 1, 1]).await;
    assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
    stop.cancel();
    keeping.await.unwrap();
}
