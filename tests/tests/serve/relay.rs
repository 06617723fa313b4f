//! Network between processes: a link that can be cut, and the load balancer in front of all replicas.

use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::Result;

use crate::serve::site::get;

/// Interval and timeout of the readiness probes.
const LOOK_EVERY: Duration = Duration::from_millis(250);
const SAYS_SO_WITHIN: Duration = Duration::from_secs(2);

/// Whether data passes. Blocked data waits without an error, as with a cut cable.
#[derive(Default)]
struct Gate {
    shut: Mutex<bool>,
    opened: Condvar,
}

impl Gate {
    fn set(&self, shut: bool) {
        *self.shut.lock().unwrap_or_else(PoisonError::into_inner) = shut;
        self.opened.notify_all();
    }

    fn pass(&self) {
        let mut shut = self.shut.lock().unwrap_or_else(PoisonError::into_inner);
        while *shut {
            shut = self.opened.wait(shut).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Accepts connections until it is dropped, and passes each to a handler.
struct Entrance {
    port: u16,
    ends: Arc<AtomicBool>,
    accepting: Option<JoinHandle<()>>,
}

impl Entrance {
    fn open(port: u16, take: impl Fn(TcpStream) + Send + 'static) -> Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", port))?;
        let port = listener.local_addr()?.port();
        let ends = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&ends);
        let accepting = thread::spawn(move || {
            for incoming in listener.incoming() {
                if ended.load(Ordering::Relaxed) {
                    return;
                }
                if let Ok(incoming) = incoming {
                    take(incoming);
                }
            }
        });
        Ok(Self { port, ends, accepting: Some(accepting) })
    }
}

impl Drop for Entrance {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        // Wakes the accept loop.
        drop(TcpStream::connect(("127.0.0.1", self.port)));
        if let Some(accepting) = self.accepting.take() {
            drop(accepting.join());
        }
    }
}

/// A link to a port.
pub struct Relay {
    entrance: Entrance,
    gate: Arc<Gate>,
}

impl Relay {
    pub fn start(behind: u16) -> Result<Self> {
        let gate = Arc::<Gate>::default();
        let through = Arc::clone(&gate);
        let entrance = Entrance::open(0, move |incoming| {
            if let Ok(taken) = TcpStream::connect(("127.0.0.1", behind)) {
                join(incoming, taken, &through);
            }
        })?;
        Ok(Self { entrance, gate })
    }

    pub fn port(&self) -> u16 {
        self.entrance.port
    }

    pub fn cut(&self) {
        self.gate.set(true);
    }

    pub fn mend(&self) {
        self.gate.set(false);
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.mend();
    }
}

/// Ports of a replica for requests and for probes.
#[derive(Debug, Clone, Copy)]
pub struct Backend {
    pub port: u16,
    pub health: u16,
}

/// A load balancer: each connection goes to the next ready replica. Connections to a replica that reports not ready
/// continue; those to one that does not respond are closed.
pub struct Balancer {
    _entrance: Entrance,
    ends: Arc<AtomicBool>,
    checks: Vec<JoinHandle<()>>,
}

struct Seat {
    backend: Backend,
    ready: AtomicBool,
    open: Mutex<Vec<TcpStream>>,
}

impl Seat {
    fn connect(&self) -> Option<TcpStream> {
        if !self.ready.load(Ordering::Relaxed) {
            return None;
        }
        let taken = TcpStream::connect(("127.0.0.1", self.backend.port)).ok()?;
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|connection| connection.peer_addr().is_ok());
        open.push(taken.try_clone().ok()?);
        Some(taken)
    }

    fn check_health(&self) {
        let response = get(self.backend.health, "/readyz", SAYS_SO_WITHIN).ok().flatten();
        self.ready
            .store(response.as_ref().is_some_and(|response| response.starts_with("HTTP/1.1 200")), Ordering::Relaxed);
        if response.is_none() {
            for connection in self.open.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
                // It may be closed already.
                let _ = connection.shutdown(Shutdown::Both);
            }
        }
    }
}

impl Balancer {
    pub fn start(port: u16, behind: impl IntoIterator<Item = Backend>) -> Result<Self> {
        let seat = |backend| Arc::new(Seat { backend, ready: AtomicBool::new(false), open: Mutex::default() });
        let seats: Vec<Arc<Seat>> = behind.into_iter().map(seat).collect();
        let ends = Arc::new(AtomicBool::new(false));
        let check_health = |seat: &Arc<Seat>| {
            let (seat, ends) = (Arc::clone(seat), Arc::clone(&ends));
            thread::spawn(move || {
                while !ends.load(Ordering::Relaxed) {
                    seat.check_health();
                    thread::park_timeout(LOOK_EVERY);
                }
            })
        };
        let checks = seats.iter().map(check_health).collect();
        let (next, gate) = (AtomicUsize::new(0), Arc::<Gate>::default());
        let entrance = Entrance::open(port, move |incoming| {
            let first = next.fetch_add(1, Ordering::Relaxed);
            let taken = (0..seats.len()).find_map(|at| seats[(first + at) % seats.len()].connect());
            if let Some(taken) = taken {
                join(incoming, taken, &gate);
            }
        })?;
        Ok(Self { _entrance: entrance, ends, checks })
    }
}

impl Drop for Balancer {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        for checks in self.checks.drain(..) {
            checks.thread().unpark();
            drop(checks.join());
        }
    }
}

/// Copies bytes in both directions until one side closes.
fn join(one: TcpStream, other: TcpStream, gate: &Arc<Gate>) {
    for (from, to) in [(one.try_clone(), other.try_clone()), (Ok(other), Ok(one))] {
        let (Ok(mut from), Ok(mut to)) = (from, to) else { return };
        let gate = Arc::clone(gate);
        thread::spawn(move || {
            let mut bytes = vec![0; 1 << 16];
            // A closed side closes the other.
            while let Ok(read @ 1..) = std::io::Read::read(&mut from, &mut bytes) {
                gate.pass();
                if std::io::Write::write_all(&mut to, &bytes[..read]).is_err() {
                    break;
                }
            }
            gate.pass();
            let _ = to.shutdown(Shutdown::Both);
            let _ = from.shutdown(Shutdown::Both);
        });
    }
}
