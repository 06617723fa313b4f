//! Network between processes: a link that can be cut, and the load balancer in front of all replicas.

use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::Result;

use crate::serve::replica::get;

/// Interval of the readiness probes.
const PROBE_INTERVAL: Duration = Duration::from_millis(250);
/// Timeout of a readiness probe, which a healthy replica on a busy machine must not exceed.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);

/// Lets data pass, or blocks it without an error, as an unplugged cable does.
#[derive(Default)]
struct Gate {
    is_closed: Mutex<bool>,
    /// Notified when the gate opens.
    opened: Condvar,
}

impl Gate {
    fn set_closed(&self, is_closed: bool) {
        *self.is_closed.lock().unwrap_or_else(PoisonError::into_inner) = is_closed;
        self.opened.notify_all();
    }

    /// Waits until the gate is open.
    fn pass(&self) {
        let mut is_closed = self.is_closed.lock().unwrap_or_else(PoisonError::into_inner);
        while *is_closed {
            is_closed = self.opened.wait(is_closed).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Accepts connections until it is dropped, and passes each to a handler.
struct Acceptor {
    port: u16,
    is_stopped: Arc<AtomicBool>,
    task: Option<JoinHandle<()>>,
}

impl Acceptor {
    /// Listens on a port; 0 means any free port.
    fn start(port: u16, handle: impl Fn(TcpStream) + Send + 'static) -> Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", port))?;
        let port = listener.local_addr()?.port();
        let is_stopped = Arc::new(AtomicBool::new(false));
        let should_stop = Arc::clone(&is_stopped);
        let task = thread::spawn(move || {
            for incoming in listener.incoming() {
                if should_stop.load(Ordering::Relaxed) {
                    return;
                }
                if let Ok(incoming) = incoming {
                    handle(incoming);
                }
            }
        });
        Ok(Self { port, is_stopped, task: Some(task) })
    }
}

impl Drop for Acceptor {
    fn drop(&mut self) {
        self.is_stopped.store(true, Ordering::Relaxed);
        // Wakes the accept loop.
        drop(TcpStream::connect(("127.0.0.1", self.port)));
        if let Some(task) = self.task.take() {
            drop(task.join());
        }
    }
}

/// A TCP proxy in front of a port, whose connections can be cut.
pub struct Link {
    acceptor: Acceptor,
    gate: Arc<Gate>,
}

impl Link {
    pub fn start(target: u16) -> Result<Self> {
        let gate = Arc::<Gate>::default();
        let connection_gate = Arc::clone(&gate);
        let acceptor = Acceptor::start(0, move |incoming| {
            if let Ok(outgoing) = TcpStream::connect(("127.0.0.1", target)) {
                copy_both_ways(incoming, outgoing, &connection_gate);
            }
        })?;
        Ok(Self { acceptor, gate })
    }

    pub fn port(&self) -> u16 {
        self.acceptor.port
    }

    /// Blocks all data. Connections stay open.
    pub fn cut(&self) {
        self.gate.set_closed(true);
    }

    /// Lets data pass again.
    pub fn restore(&self) {
        self.gate.set_closed(false);
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.restore();
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
    _acceptor: Acceptor,
    is_stopped: Arc<AtomicBool>,
    probe_tasks: Vec<JoinHandle<()>>,
}

/// A replica as the load balancer knows it.
struct BackendState {
    backend: Backend,
    is_ready: AtomicBool,
    /// Open connections to the replica.
    connections: Mutex<Vec<TcpStream>>,
}

impl BackendState {
    /// Connects to the replica if it is ready.
    fn connect(&self) -> Option<TcpStream> {
        if !self.is_ready.load(Ordering::Relaxed) {
            return None;
        }
        let stream = TcpStream::connect(("127.0.0.1", self.backend.port)).ok()?;
        let mut connections = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
        connections.retain(|connection| connection.peer_addr().is_ok());
        connections.push(stream.try_clone().ok()?);
        Some(stream)
    }

    fn probe(&self) {
        let response = get(self.backend.health, "/readyz", PROBE_TIMEOUT).ok().flatten();
        self.is_ready
            .store(response.as_ref().is_some_and(|response| response.starts_with("HTTP/1.1 200")), Ordering::Relaxed);
        if response.is_none() {
            for connection in self.connections.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
                // The connection may be closed already.
                let _ = connection.shutdown(Shutdown::Both);
            }
        }
    }
}

impl Balancer {
    /// Listens on a port and balances connections over the backends.
    pub fn start(port: u16, backends: impl IntoIterator<Item = Backend>) -> Result<Self> {
        let state = |backend| {
            Arc::new(BackendState { backend, is_ready: AtomicBool::new(false), connections: Mutex::default() })
        };
        let states: Vec<Arc<BackendState>> = backends.into_iter().map(state).collect();
        let is_stopped = Arc::new(AtomicBool::new(false));
        let start_probes = |state: &Arc<BackendState>| {
            let (state, is_stopped) = (Arc::clone(state), Arc::clone(&is_stopped));
            thread::spawn(move || {
                while !is_stopped.load(Ordering::Relaxed) {
                    state.probe();
                    thread::park_timeout(PROBE_INTERVAL);
                }
            })
        };
        let probe_tasks = states.iter().map(start_probes).collect();
        let (next, gate) = (AtomicUsize::new(0), Arc::<Gate>::default());
        let acceptor = Acceptor::start(port, move |incoming| {
            let first = next.fetch_add(1, Ordering::Relaxed);
            let outgoing = (0..states.len()).find_map(|at| states[(first + at) % states.len()].connect());
            if let Some(outgoing) = outgoing {
                copy_both_ways(incoming, outgoing, &gate);
            }
        })?;
        Ok(Self { _acceptor: acceptor, is_stopped, probe_tasks })
    }
}

impl Drop for Balancer {
    fn drop(&mut self) {
        self.is_stopped.store(true, Ordering::Relaxed);
        for task in self.probe_tasks.drain(..) {
            task.thread().unpark();
            drop(task.join());
        }
    }
}

/// Copies bytes in both directions until one side closes.
fn copy_both_ways(incoming: TcpStream, outgoing: TcpStream, gate: &Arc<Gate>) {
    for (from, to) in [(incoming.try_clone(), outgoing.try_clone()), (Ok(outgoing), Ok(incoming))] {
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
