//! The agent of an unreachable member: a separate process, whose connection to the control plane can be cut.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use anyhow::{Context, Result};
use crowsnest_sim::member::Member;
use crowsnest_sim::member::network::{Network, NetworkState};
use crowsnest_tests::{Fleet, binary};
use kube::config::Kubeconfig;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// A running agent, and a TCP proxy between it and the control plane. Killed when dropped.
pub struct Agent {
    child: Child,
    network: Arc<Network>,
    /// Current address of the control plane, to which the proxy forwards.
    control_plane: watch::Sender<SocketAddr>,
    kubeconfig: PathBuf,
    proxy_address: SocketAddr,
    forward_task: JoinSet<()>,
}

impl Agent {
    /// Starts the proxy and the agent. The agent's files are in `folder`.
    pub async fn start(folder: &Path, member: &Member, fleet: &Fleet) -> Result<Self> {
        let name = member.name();
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let proxy_address = listener.local_addr()?;
        let (control_plane, target) = watch::channel(address(fleet)?);
        let network = Arc::new(Network::default());
        let mut forward_task = JoinSet::new();
        forward_task.spawn(forward_connections(listener, Arc::clone(&network), target));
        let kubeconfig = folder.join(format!("{name}.agent.kubeconfig"));
        write_kubeconfig(&kubeconfig, fleet, proxy_address)?;
        let member_kubeconfig = folder.join(format!("{name}.kubeconfig"));
        fs::write(&member_kubeconfig, member.kubeconfig()?)?;
        let log = File::create(folder.join(format!("{name}.agent.log")))?;
        let child = Command::new(binary()?)
            .args(["-v", "agent", "--cluster-name", name, "--karmada-kubeconfig"])
            .arg(&kubeconfig)
            .arg("--kubeconfig")
            .arg(&member_kubeconfig)
            .stdout(Stdio::null())
            .stderr(log)
            .spawn();
        Ok(Self {
            child: child.context("cannot start the agent")?,
            network,
            control_plane,
            kubeconfig,
            proxy_address,
            forward_task,
        })
    }

    /// Forwards new connections to the address of a restarted control plane.
    pub fn set_control_plane(&self, fleet: &Fleet) -> Result<()> {
        self.control_plane.send_replace(address(fleet)?);
        write_kubeconfig(&self.kubeconfig, fleet, self.proxy_address)
    }

    /// Stops or resumes forwarding. Connections stay open, and data is delivered on resumption.
    pub fn set_cut(&self, cut: bool) {
        self.network.set(if cut { NetworkState::Stalled } else { NetworkState::Up });
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.forward_task.abort_all();
        // The child may have exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

async fn forward_connections(listener: TcpListener, network: Arc<Network>, target: watch::Receiver<SocketAddr>) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let (mut near, target) = (network.wrap(stream), *target.borrow());
        connections.spawn(async move {
            // Errors of a connection are reported by its client.
            if let Ok(mut far) = TcpStream::connect(target).await {
                drop(copy_bidirectional(&mut near, &mut far).await);
            }
        });
        while connections.try_join_next().is_some() {}
    }
}

fn address(fleet: &Fleet) -> Result<SocketAddr> {
    let server = fleet.server()?;
    server.trim_start_matches("https://").parse().with_context(|| format!("{server} is not an address"))
}

/// Writes the control plane's kubeconfig with the proxy's address.
fn write_kubeconfig(path: &Path, fleet: &Fleet, proxy_address: SocketAddr) -> Result<()> {
    let mut kubeconfig = Kubeconfig::read_from(fleet.kubeconfig("cp"))?;
    let cluster = kubeconfig
        .clusters
        .first_mut()
        .and_then(|named| named.cluster.as_mut())
        .context("the kubeconfig has no cluster")?;
    cluster.server = Some(format!("https://{proxy_address}"));
    Ok(fs::write(path, serde_json::to_vec(&kubeconfig)?)?)
}
