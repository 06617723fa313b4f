//! Tests with several replicas behind a load balancer that distributes connections round-robin.

use super::*;
use crowsnest_apimachinery::names::ClusterName;
use crowsnest_members::Dialer;
use crowsnest_members::dial::ProxyOptions;
use crowsnest_members::tunnel::Tunnels;
use http::HeaderValue;
use hyper_util::rt::TokioIo;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use tokio::io::DuplexStream;

/// Several replicas behind one address; requests are distributed round-robin.
struct LoadBalancer {
    replicas: Vec<(Tunnels, Option<Replica>)>,
    requests: AtomicUsize,
    /// The last replica accepts no connections.
    is_last_unreachable: AtomicBool,
}

impl LoadBalancer {
    fn new(names: &[Option<&str>]) -> Arc<Self> {
        let replica = |name: &Option<&str>| {
            let headers =
                name.map(|name| HeaderMap::from_iter([(REPLICA_HEADER, HeaderValue::from_str(name).unwrap())]));
            (Tunnels::default(), headers.and_then(|headers| Replica::from_response(&headers)))
        };
        Arc::new(Self {
            replicas: names.iter().map(replica).collect(),
            requests: AtomicUsize::new(0),
            is_last_unreachable: AtomicBool::new(false),
        })
    }

    fn connect(&self, headers: &HeaderMap) -> TunnelResponse<TokioIo<DuplexStream>> {
        let requests = self.requests.fetch_add(1, Ordering::Relaxed);
        let reachable_count = self.replicas.len() - usize::from(self.is_last_unreachable.load(Ordering::Relaxed));
        let (tunnels, replica) = &self.replicas[requests % reachable_count];
        if replica.as_ref().is_some_and(|replica| replica.has_tunnel(headers)) && tunnels.is_open(&m1()) {
            return TunnelResponse::AlreadyOpen;
        }
        let (agent_end, replica_end) = tokio::io::duplex(64 << 10);
        tunnels.add(m1(), async { Ok::<_, Infallible>(TokioIo::new(replica_end)) });
        TunnelResponse::Opened(TokioIo::new(agent_end), replica.clone())
    }

    fn tunnel_counts(&self) -> Vec<usize> {
        self.replicas.iter().map(|(tunnels, _)| tunnels.counts().iter().map(|(_, open, _)| open).sum()).collect()
    }

    async fn wait_for_tunnels(&self, expected: &[usize]) {
        self.wait_until(|| self.tunnel_counts() == expected).await;
    }

    async fn wait_until(&self, condition: impl Fn() -> bool) {
        let polling = async {
            while !condition() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let result = tokio::time::timeout(Duration::from_secs(60), polling).await;
        assert!(result.is_ok(), "{:?}", self.tunnel_counts());
    }
}

const REPLICA_HEADER: http::HeaderName = http::HeaderName::from_static("crowsnest-tunnel-replica");

fn m1() -> ClusterName {
    "m1".parse().unwrap()
}

fn agent() -> Agent {
    let endpoint: http::Uri = "https://member.internal:6443".parse().unwrap();
    let dialer = Dialer::new(endpoint.clone(), None, ProxyOptions::default(), Duration::from_secs(10)).unwrap();
    Agent::new(&endpoint, dialer).unwrap()
}

#[tokio::test]
async fn each_replica_has_one_tunnel_after_reconnects() {
    let balancer = LoadBalancer::new(&[Some("a"), Some("b"), Some("c")]);
    let (state, stop) = (watch::Sender::new(TunnelState::Registering), CancellationToken::new());
    let (connector, stop_token, reported_state) = (Arc::clone(&balancer), stop.clone(), state.subscribe());
    let task = tokio::spawn(async move {
        let request_tunnel = |headers: HeaderMap| std::future::ready(Ok(connector.connect(&headers)));
        maintain(request_tunnel, &agent(), &state, &stop_token).await;
    });
    balancer.wait_for_tunnels(&[1, 1, 1]).await;
    // Each replica gets several requests, and none opens a second tunnel.
    let requests = balancer.requests.load(Ordering::Relaxed);
    balancer.wait_until(|| balancer.requests.load(Ordering::Relaxed) >= requests + 3).await;
    assert_eq!(balancer.tunnel_counts(), [1, 1, 1]);
    balancer.replicas[1].0.close(&m1());
    balancer.wait_for_tunnels(&[1, 0, 1]).await;
    assert_eq!(*reported_state.borrow(), TunnelState::Open);
    balancer.wait_for_tunnels(&[1, 1, 1]).await;
    stop.cancel();
    task.await.unwrap();
    balancer.wait_for_tunnels(&[0, 0, 0]).await;
}

#[tokio::test]
async fn announced_replicas_get_a_tunnel_at_once() {
    let balancer = LoadBalancer::new(&[Some("a"), Some("b"), Some("c")]);
    // The third replica accepts no connections yet.
    balancer.is_last_unreachable.store(true, Ordering::Relaxed);
    let (state, stop) = (watch::Sender::new(TunnelState::Registering), CancellationToken::new());
    let (connector, stop_token) = (Arc::clone(&balancer), stop.clone());
    let task = tokio::spawn(async move {
        let request_tunnel = |headers: HeaderMap| std::future::ready(Ok(connector.connect(&headers)));
        maintain(request_tunnel, &agent(), &state, &stop_token).await;
    });
    balancer.wait_for_tunnels(&[1, 1, 0]).await;
    let requests = balancer.requests.load(Ordering::Relaxed);
    // By now the agent waits four to eight seconds between connection attempts.
    balancer.wait_until(|| balancer.requests.load(Ordering::Relaxed) >= requests + 4).await;
    balancer.is_last_unreachable.store(false, Ordering::Relaxed);
    let started_at = Instant::now();
    balancer.replicas[0].0.announce_replicas(3);
    balancer.wait_for_tunnels(&[1, 1, 1]).await;
    assert!(started_at.elapsed() < Duration::from_secs(4), "{:?}", started_at.elapsed());
    stop.cancel();
    task.await.unwrap();
}
