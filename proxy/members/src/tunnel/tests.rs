//! Both sides of tunnels in one process: the agent's connection is a pipe, its API server a loopback socket.

use super::*;
use crate::dial::ProxyOptions;
use crate::{Dialer, MemberIo, MemberRoute};
use crowsnest_apimachinery::names::ClusterName;
use hyper_util::rt::TokioIo;
use rstest::rstest;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::Instant;

/// Endpoint of the API server in the Cluster; it cannot be dialed.
const ENDPOINT: &str = "https://member.invalid:6443";

fn m1() -> ClusterName {
    ClusterName::parse("m1").unwrap()
}

/// An API server that sends a letter and then echoes.
async fn server(letter: u8) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            tokio::spawn(async move {
                socket.write_u8(letter).await?;
                let (mut read, mut write) = socket.split();
                tokio::io::copy(&mut read, &mut write).await?;
                write.shutdown().await
            });
        }
    });
    address
}

struct RunningAgent {
    stop: CancellationToken,
    task: JoinHandle<Result<(), crate::Error>>,
}

/// Starts an agent of m1 with an open tunnel.
async fn attach(tunnels: &Tunnels, member: SocketAddr) -> RunningAgent {
    let member = format!("http://{member}").parse().unwrap();
    let member = Dialer::new(member, None, ProxyOptions::default(), Duration::from_secs(10)).unwrap();
    let agent = Agent::new(&Uri::from_static(ENDPOINT), member).unwrap();
    let (ours, theirs) = tokio::io::duplex(64 << 10);
    let mut changes = tunnels.changes();
    tunnels.add(m1(), async { Ok::<_, io::Error>(TokioIo::new(ours)) });
    changes.changed().await.unwrap();
    let stop = CancellationToken::new();
    let stopped = stop.clone();
    RunningAgent { stop, task: tokio::spawn(async move { agent.serve(TokioIo::new(theirs), &stopped).await }) }
}

impl RunningAgent {
    /// Simulates a killed process.
    async fn kill(self) {
        self.task.abort();
        assert!(self.task.await.unwrap_err().is_cancelled());
    }
}

fn dialer(tunnels: &Tunnels, target: &str, route: MemberRoute) -> Dialer {
    let dialer = Dialer::new(target.parse().unwrap(), None, ProxyOptions::default(), Duration::from_secs(30)).unwrap();
    dialer.with_route(route, tunnels, &m1()).unwrap()
}

async fn dial(tunnels: &Tunnels) -> Result<MemberIo, String> {
    dialer(tunnels, ENDPOINT, MemberRoute::AgentOnly).dial().await.map_err(|error| error.to_string())
}

/// The letter that the API server at the end of a new connection sends.
async fn first_letter(tunnels: &Tunnels) -> u8 {
    dial(tunnels).await.unwrap().read_u8().await.unwrap()
}

/// Sends bytes while reading them back.
async fn roundtrip(mut io: MemberIo, seed: usize, length: usize) {
    let sent: Vec<u8> = (0..length).map(|at| (at * 31 + seed) as u8).collect();
    assert_eq!(io.read_u8().await.unwrap(), b'a');
    let (mut read, mut write) = tokio::io::split(io);
    let mut back = Vec::new();
    let (sent_result, received_length) = tokio::join!(
        async {
            write.write_all(&sent).await?;
            write.shutdown().await
        },
        read.read_to_end(&mut back),
    );
    sent_result.unwrap();
    assert_eq!(received_length.unwrap(), length);
    assert!(back == sent, "stream {seed} was echoed incorrectly");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unread_connection_does_not_block_the_others() {
    let tunnels = Tunnels::default();
    let _agent = attach(&tunnels, server(b'a').await).await;
    let (mut unread, mut stuck) = tokio::io::split(dial(&tunnels).await.unwrap());
    let sent_bytes = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&sent_bytes);
    let stuck = tokio::spawn(async move {
        let chunk = vec![0; 64 << 10];
        while counter.load(Ordering::SeqCst) < 256 << 20 {
            stuck.write_all(&chunk).await.unwrap();
            counter.fetch_add(chunk.len(), Ordering::SeqCst);
        }
    });
    let mut streams = JoinSet::new();
    for seed in 0..40 {
        let io = dial(&tunnels).await.unwrap();
        streams.spawn(roundtrip(io, seed, 2 << 20));
    }
    while let Some(done) = streams.join_next().await {
        done.unwrap();
    }
    assert_eq!(tunnels.counts(), [(m1(), 1, 1)]);
    // It could only send what fits into the windows and the kernel's buffers.
    assert!(!stuck.is_finished() && sent_bytes.load(Ordering::SeqCst) < 128 << 20, "{sent_bytes:?}");
    assert_eq!(unread.read_u8().await.unwrap(), b'a');
    stuck.abort();
    tunnels.stop().await;
    assert!(!tunnels.is_open(&m1()));
}

#[tokio::test]
async fn the_death_of_the_agent_ends_its_connections() {
    let tunnels = Tunnels::default();
    let agent = attach(&tunnels, server(b'a').await).await;
    let mut io = dial(&tunnels).await.unwrap();
    assert_eq!(io.read_u8().await.unwrap(), b'a');
    let mut changes = tunnels.changes();
    agent.kill().await;
    let mut rest = Vec::new();
    // The connection fails instead of ending, so that a truncated response is not mistaken for a complete one.
    assert!(io.read_to_end(&mut rest).await.is_err());
    changes.changed().await.unwrap();
    let error = dial(&tunnels).await.unwrap_err();
    assert_eq!(error, "no agent of cluster m1 has a tunnel open, and it can only be reached through a tunnel");
}

#[tokio::test]
async fn an_agent_that_stops_closes_its_tunnel() {
    let tunnels = Tunnels::default();
    let agent = attach(&tunnels, server(b'a').await).await;
    assert_eq!(first_letter(&tunnels).await, b'a');
    let mut changes = tunnels.changes();
    agent.stop.cancel();
    changes.changed().await.unwrap();
    assert!(!tunnels.is_open(&m1()));
    agent.task.await.unwrap().unwrap();
}

#[tokio::test]
async fn the_newest_tunnel_is_used_and_older_ones_when_it_dies() {
    let tunnels = Tunnels::default();
    let _old = attach(&tunnels, server(b'a').await).await;
    let new = attach(&tunnels, server(b'b').await).await;
    assert_eq!(first_letter(&tunnels).await, b'b');
    // Connections do not wait until the registry notices.
    new.kill().await;
    assert_eq!(first_letter(&tunnels).await, b'a');
    let _newer = attach(&tunnels, server(b'c').await).await;
    assert_eq!(first_letter(&tunnels).await, b'c');
    tunnels.close(&m1());
    assert!(dial(&tunnels).await.is_err());
}

#[tokio::test]
async fn a_tunnel_above_the_limit_closes_the_oldest() {
    let tunnels = Tunnels::default();
    let member = server(b'a').await;
    let oldest = attach(&tunnels, member).await;
    let mut others = Vec::new();
    for _ in 0..MAX_TUNNELS {
        others.push(attach(&tunnels, member).await);
    }
    // Its agent notices the close.
    let _ = oldest.task.await.unwrap();
    assert!(others.iter().all(|other| !other.task.is_finished()));
    assert_eq!(first_letter(&tunnels).await, b'a');
}

#[tokio::test]
async fn an_agent_that_does_not_respond_to_pings_counts_as_dead() {
    let timeouts = TunnelTimeouts {
        ping_interval: Duration::from_millis(40),
        ping_timeout: Duration::from_millis(80),
        ..TunnelTimeouts::default()
    };
    let tunnels = Tunnels::with_timeouts(timeouts);
    // The peer holds the connection and sends nothing.
    let (ours, _held) = tokio::io::duplex(64 << 10);
    let mut changes = tunnels.changes();
    tunnels.add(m1(), async { Ok::<_, io::Error>(TokioIo::new(ours)) });
    changes.changed().await.unwrap();
    assert!(tunnels.is_open(&m1()));
    changes.changed().await.unwrap();
    assert!(!tunnels.is_open(&m1()));
    let defaults = TunnelTimeouts::default();
    assert_eq!(defaults.ping_interval + defaults.ping_timeout, Duration::from_secs(45));
}

#[tokio::test]
async fn the_number_of_replicas_is_announced_to_agents() {
    let tunnels = Tunnels::default();
    let (ours, theirs) = tokio::io::duplex(64 << 10);
    let member =
        Dialer::new("http://127.0.0.1:1".parse().unwrap(), None, ProxyOptions::default(), Duration::from_secs(10));
    let agent = Agent::new(&Uri::from_static(ENDPOINT), member.unwrap()).unwrap();
    let mut replicas = agent.replicas();
    let mut changes = tunnels.changes();
    tunnels.add(m1(), async { Ok::<_, io::Error>(TokioIo::new(ours)) });
    changes.changed().await.unwrap();
    let serving = agent.clone();
    let served = tokio::spawn(async move { serving.serve(TokioIo::new(theirs), &CancellationToken::new()).await });
    for number in [3, 3, 2] {
        tunnels.announce_replicas(number);
        replicas.changed().await.unwrap();
        assert_eq!(*replicas.borrow_and_update(), number);
    }
    served.abort();
}

#[tokio::test]
async fn requests_wait_for_a_tunnel_that_is_expected_soon() {
    let open_timeout = Duration::from_millis(300);
    let tunnels = Tunnels::with_timeouts(TunnelTimeouts { open_timeout, ..TunnelTimeouts::default() });
    let wait_until_open = async || {
        let started_at = Instant::now();
        (tunnels.wait_until_open(&m1()).await, started_at.elapsed() >= open_timeout)
    };
    // First request: the agent may not have found this process yet.
    assert_eq!(wait_until_open().await, (false, true));
    // The wait is over, so this does not wait again.
    assert_eq!(wait_until_open().await, (false, false));
    // Resets the wait, as for a new cluster of the same name.
    tunnels.close(&m1());
    let (ours, theirs) = tokio::io::duplex(64 << 10);
    let (result, ()) = tokio::join!(wait_until_open(), async {
        tunnels.add(m1(), async { Ok::<_, io::Error>(TokioIo::new(ours)) });
    });
    assert_eq!(result, (true, false));
    // A tunnel that just ended is expected to be reopened.
    let mut changes = tunnels.changes();
    drop(theirs);
    changes.changed().await.unwrap();
    assert_eq!(wait_until_open().await, (false, true));
}

#[rstest]
#[case::another_api_server(
    "https://10.0.0.7:5432",
    "cannot connect to https://10.0.0.7:5432/: its agent refused: 403 Forbidden: \
    this agent connects only to member.invalid:6443, not to 10.0.0.7:5432"
)]
#[case::another_port(
    "https://member.invalid",
    "cannot connect to https://member.invalid/: its agent refused: 403 Forbidden: \
    this agent connects only to member.invalid:6443, not to member.invalid:443"
)]
#[case::its_api_server_is_down(
    ENDPOINT,
    "cannot connect to https://member.invalid:6443/: its agent refused: 502 Bad Gateway: \
    cannot connect to http://127.0.0.1:1/: tcp connect error: Connection refused (os error 111)"
)]
#[tokio::test]
async fn agents_report_why_they_do_not_connect(#[case] target: &str, #[case] expected: &str) {
    let tunnels = Tunnels::default();
    let _agent = attach(&tunnels, "127.0.0.1:1".parse().unwrap()).await;
    let error = dialer(&tunnels, target, MemberRoute::AgentOnly).dial().await.unwrap_err();
    assert_eq!(error.to_string(), expected);
}

#[tokio::test]
async fn a_cluster_that_may_be_dialed_is_dialed_without_an_agent() {
    let tunnels = Tunnels::default();
    let (direct, tunnelled) = (server(b'd').await, server(b't').await);
    let dialer = dialer(&tunnels, &format!("http://{direct}"), MemberRoute::AgentIfConnected);
    assert_eq!(dialer.dial().await.unwrap().read_u8().await.unwrap(), b'd');
    // With a tunnel, the agent decides.
    let _agent = attach(&tunnels, tunnelled).await;
    assert!(dialer.dial().await.unwrap_err().to_string().contains("403 Forbidden"));
}

/// The endpoint of a cluster behind a tunnel is not dialed from this process.
#[tokio::test]
async fn endpoints_behind_a_tunnel_may_be_local() {
    let tunnels = Tunnels::default();
    let tunnelled = server(b't').await;
    let dialer = dialer(&tunnels, &format!("http://{tunnelled}"), MemberRoute::AgentIfConnected);
    let dialer = dialer.with_rules(crate::EndpointRules::default());
    assert!(dialer.dial().await.unwrap_err().to_string().contains("is a loopback address"));
    // The agent decides about the address, and uses another one.
    let _agent = attach(&tunnels, tunnelled).await;
    assert!(dialer.dial().await.unwrap_err().to_string().contains("403 Forbidden"));
}

#[rstest]
#[case(0, 0.0, 500)]
#[case(0, 1.0, 250)]
#[case(1, 0.0, 1_000)]
#[case(3, 0.5, 3_000)]
#[case(6, 0.0, 30_000)]
#[case(u32::MAX, 1.0, 15_000)]
fn delays_grow_with_jitter(#[case] failures: u32, #[case] random: f64, #[case] milliseconds: u128) {
    assert_eq!(reconnect_delay(failures, random).as_millis(), milliseconds);
}

#[rstest]
#[case("https://M1.example", "m1.example:443")]
#[case("http://m1/base", "m1:80")]
#[case("https://[fd00::1]:6443", "[fd00::1]:6443")]
fn connect_targets_are_host_and_port(#[case] endpoint: &str, #[case] expected: &str) {
    assert_eq!(authority(&endpoint.parse().unwrap()).unwrap().as_str(), expected);
}
