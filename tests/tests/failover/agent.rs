//! The agent of an unreachable member: a separate process, whose connection to the control plane can be cut.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use anyhow::{Context, Result};
use crowsnest_sim::member::Member;
use crowsnest_sim::member::wire::{Wire, Wiring};
use crowsnest_tests::{Fleet, binary};
use kube::config::Kubeconfig;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Killed when dropped.
pub struct Agent {
    child: Child,
    wiring: Arc<Wiring>,
    /// The control plane's current address.
    control_plane: watch::Sender<SocketAddr>,
    kubeconfig: PathBuf,
    door: SocketAddr,
    carrying: JoinSet<()>,
}

impl Agent {
    pub async fn start(folder: &Path, member: &Member, up: &Fleet) -> Result<Self> {
        let name = member.name();
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let door = listener.local_addr()?;
        let (control_plane, target) = watch::channel(address(up)?);
        let wiring = Arc::new(Wiring::default());
        let mut carrying = JoinSet::new();
        carrying.spawn(carry(listener, Arc::clone(&wiring), target));
        let kubeconfig = folder.join(format!("{name}.agent.kubeconfig"));
        write(&kubeconfig, up, door)?;
        let own = folder.join(format!("{name}.kubeconfig"));
        fs::write(&own, member.kubeconfig()?)?;
        let log = File::create(folder.join(format!("{name}.agent.log")))?;
        let child = Command::new(binary()?)
            .args(["-v", "agent", "--cluster-name", name, "--karmada-kubeconfig"])
            .arg(&kubeconfig)
            .arg("--kubeconfig")
            .arg(&own)
            .stdout(Stdio::null())
            .stderr(log)
            .spawn();
        Ok(Self { child: child.context("starting an agent")?, wiring, control_plane, kubeconfig, door, carrying })
    }

    /// Follows the control plane to another address.
    pub fn follow(&self, up: &Fleet) -> Result<()> {
        self.control_plane.send_replace(address(up)?);
        write(&self.kubeconfig, up, self.door)
    }

    /// Stops or resumes forwarding. Connections stay open, and data is delivered on resumption.
    pub fn cut(&self, cut: bool) {
        self.wiring.set(if cut { Wire::Holds } else { Wire::Carries });
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.carrying.abort_all();
        // The child may have exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

async fn carry(listener: TcpListener, wiring: Arc<Wiring>, target: watch::Receiver<SocketAddr>) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let (mut near, target) = (wiring.around(stream), *target.borrow());
        connections.spawn(async move {
            // Errors of a connection are reported by its client.
            if let Ok(mut far) = TcpStream::connect(target).await {
                drop(copy_bidirectional(&mut near, &mut far).await);
            }
        });
        while connections.try_join_next().is_some() {}
    }
}

fn address(up: &Fleet) -> Result<SocketAddr> {
    let server = up.server()?;
    server.trim_start_matches("https://").parse().with_context(|| format!("{server} is no address"))
}

/// The control plane's kubeconfig with another address.
fn write(path: &Path, up: &Fleet, door: SocketAddr) -> Result<()> {
    let mut kubeconfig = Kubeconfig::read_from(up.kubeconfig("cp"))?;
    let cluster = kubeconfig.clusters.first_mut().and_then(|named| named.cluster.as_mut()).context("a cluster")?;
    cluster.server = Some(format!("https://{door}"));
    Ok(fs::write(path, serde_json::to_vec(&kubeconfig)?)?)
}
