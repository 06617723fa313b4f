//! `crowsnest port-forward`: forwards local ports to a pod of any cluster. Each local connection opens its own
//! connection to the pod. If the pod of a workload was deleted, the next connection uses another pod.

use std::io::Write;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, anyhow, bail, ensure};
use clap::Args;
use futures::FutureExt;
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, ResourceExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::RwLock;
use tokio::task::JoinSet;

use crate::clients;
use crate::connection::ConnectionArgs;
use crate::output::terminal;
use crate::workload::{PortMap, Workload};

#[derive(Debug, Args)]
#[command(after_help = examples![
    "crowsnest port-forward -n shop web-0 8080:80",
    "crowsnest port-forward -n shop --cluster member1 svc/web :http    a free local port",
    "crowsnest port-forward -n shop deploy/web 8080 --address 0.0.0.0",
])]
pub struct PortForwardArgs {
    /// Pod, or TYPE/NAME to choose one of its running pods
    #[arg(value_name = "POD")]
    pod: String,
    /// LOCAL:REMOTE, REMOTE for both, or :REMOTE for a free local port; remote ports may be names
    #[arg(value_name = "PORTS", required = true)]
    ports: Vec<PortMapping>,
    /// Cluster of the pod [default: the only cluster that has the object]
    #[arg(short = 'C', long, visible_alias = "clusters")]
    cluster: Option<String>,
    /// Namespace of the pod [default: the namespace of the kubeconfig's context]
    #[arg(short, long)]
    namespace: Option<String>,
    /// Local addresses to listen on, separated by commas
    #[arg(long, value_delimiter = ',', default_value = "localhost", value_name = "ADDRESSES")]
    address: Vec<String>,
    #[command(flatten)]
    connection: ConnectionArgs,
}

/// The local port, `None` for a free one, and the remote port.
#[derive(Debug, Clone, PartialEq, Eq)]
struct PortMapping {
    local: Option<u16>,
    remote: String,
}

impl std::str::FromStr for PortMapping {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (local, remote) = text.split_once(':').unwrap_or((text, text));
        if remote.is_empty() || remote.contains(':') {
            return Err(format!("invalid port {text:?}: expected LOCAL:REMOTE"));
        }
        if remote.parse::<u32>().is_ok_and(|port| port == 0 || port > 65535) {
            return Err(format!("invalid remote port {remote}"));
        }
        let local = match local {
            "" | "0" => None,
            // A named remote port gets a free local port.
            name if name == remote && name.parse::<u16>().is_err() => None,
            number => Some(number.parse().map_err(|_| format!("invalid local port {number:?}"))?),
        };
        Ok(Self { local, remote: remote.to_owned() })
    }
}

/// The pod or workload to forward to.
struct ForwardTarget {
    workload: Workload,
    namespace: String,
    cluster: String,
    member: kube::Client,
    pods: Api<Pod>,
    /// The current pod.
    pod: RwLock<Pod>,
}

impl ForwardTarget {
    /// Connects to a port of the pod; if that fails, to another pod of the workload.
    async fn connect(&self, mapping: &PortMapping, ports: &PortMap) -> anyhow::Result<kube::api::Portforwarder> {
        let pod = self.pod.read().await.clone();
        let port = ports.resolve(&mapping.remote, &pod)?;
        match self.pods.portforward(&pod.name_any(), &[port]).await {
            Ok(forwarder) => Ok(forwarder),
            Err(first) => {
                let again = self.workload.find_pod(&self.member, &self.namespace).await;
                let Some(next) = again.ok().filter(|next| next.uid() != pod.uid()) else {
                    let pod_description =
                        format!("pod {}/{} of cluster {}", self.namespace, pod.name_any(), self.cluster);
                    return Err(anyhow!(first).context(format!("cannot connect to port {port} of {pod_description}")));
                };
                let port = ports.resolve(&mapping.remote, &next)?;
                let forwarder = self.pods.portforward(&next.name_any(), &[port]).await;
                let name = next.name_any();
                *self.pod.write().await = next;
                forwarder.with_context(|| format!("cannot connect to port {port} of pod {}/{name}", self.namespace))
            }
        }
    }
}

pub(crate) async fn run(args: PortForwardArgs) -> anyhow::Result<ExitCode> {
    let config = args.connection.load_config().await?;
    let namespace = args.namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
    let workload = Workload::parse(&args.pod)?;
    let cluster = match &args.cluster {
        Some(cluster) => cluster.clone(),
        None => workload.cluster(&kube::Client::try_from(config.clone())?, &namespace).await?,
    };
    let member = clients::member(&config, &cluster)?;
    let within = || format!("cluster {cluster}");
    let pod = workload.find_pod(&member, &namespace).await.with_context(within)?;
    let ports = Arc::new(workload.read_ports(&member, &namespace).await.with_context(within)?);
    for mapping in &args.ports {
        ports.resolve(&mapping.remote, &pod)?;
    }
    let pods = Api::namespaced(member.clone(), &namespace);
    let target = Arc::new(ForwardTarget { workload, namespace, cluster, member, pods, pod: RwLock::new(pod) });
    let mut accept_tasks = JoinSet::new();
    for mapping in &args.ports {
        for listener in bind(mapping, &args.address).await? {
            let address = listener.local_addr()?;
            let port = ports.resolve(&mapping.remote, &*target.pod.read().await)?;
            writeln!(std::io::stdout(), "Forwarding from {address} -> {port}")?;
            accept_tasks.spawn(accept(listener, target.clone(), mapping.clone(), ports.clone()));
        }
    }
    match accept_tasks.join_next().await {
        Some(result) => result?.map(|()| ExitCode::SUCCESS),
        None => Ok(ExitCode::SUCCESS),
    }
}

/// Binds each address; `localhost` binds both loopback addresses, one of which may be missing.
async fn bind(mapping: &PortMapping, addresses: &[String]) -> anyhow::Result<Vec<TcpListener>> {
    let mut listeners = Vec::new();
    for address in addresses {
        let local = mapping.local.unwrap_or_default();
        if address != "localhost" {
            let ip: std::net::IpAddr = address.parse().with_context(|| format!("--address {address}"))?;
            let bound = TcpListener::bind(SocketAddr::new(ip, local)).await;
            listeners.push(bound.with_context(|| format!("cannot listen on {address}, port {local}"))?);
            continue;
        }
        let first = TcpListener::bind(("127.0.0.1", local)).await;
        // Both loopback addresses use the same free port.
        let port = first.as_ref().map_or(Ok(local), |first| first.local_addr().map(|bound| bound.port()))?;
        let second = TcpListener::bind(("::1", port)).await;
        match (first, second) {
            (Err(error), Err(_)) => {
                return Err(error).with_context(|| format!("cannot listen on localhost, port {local}"));
            }
            (first, second) => listeners.extend(first.into_iter().chain(second)),
        }
    }
    ensure!(!listeners.is_empty(), "--address must name at least one address");
    Ok(listeners)
}

async fn accept(
    listener: TcpListener,
    target: Arc<ForwardTarget>,
    mapping: PortMapping,
    ports: Arc<PortMap>,
) -> anyhow::Result<()> {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let (stream, _) = accepted.context("cannot accept a connection")?;
                connections.spawn(forward_connection(stream, target.clone(), mapping.clone(), ports.clone()));
            }
            Some(result) = connections.join_next() => {
                // An error of one connection does not end the others.
                if let Err(error) = result? {
                    writeln!(terminal::stderr(), "error: {error:#}")?;
                }
            }
        }
    }
}

async fn forward_connection(
    mut local: TcpStream,
    target: Arc<ForwardTarget>,
    mapping: PortMapping,
    ports: Arc<PortMap>,
) -> anyhow::Result<()> {
    let port = local.local_addr()?.port();
    writeln!(terminal::stderr(), "Handling connection for {port}")?;
    let mut forwarder = target.connect(&mapping, &ports).await?;
    let remote = ports.resolve(&mapping.remote, &*target.pod.read().await)?;
    let (Some(mut stream), Some(failed)) = (forwarder.take_stream(remote), forwarder.take_error(remote)) else {
        bail!("port {remote} of the pod was not opened");
    };
    let copied = tokio::io::copy_bidirectional(&mut local, &mut stream).await;
    drop(stream);
    // The remote error arrives before the stream ends.
    if let Some(Some(reason)) = failed.now_or_never() {
        bail!("port {remote} of pod {}: {reason}", target.pod.read().await.name_any());
    }
    // It is not an error if the client disconnects.
    if let Err(error) = copied {
        tracing::debug!(%error, "a forwarded connection was lost");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[rstest::rstest]
    #[case("8080:80", Ok((Some(8080), "80")))]
    #[case("80", Ok((Some(80), "80")))]
    #[case(":80", Ok((None, "80")))]
    #[case("0:80", Ok((None, "80")))]
    #[case("8080:http", Ok((Some(8080), "http")))]
    #[case("http", Ok((None, "http")))]
    #[case("8080:", Err("expected LOCAL:REMOTE"))]
    #[case("1:2:3", Err("expected LOCAL:REMOTE"))]
    #[case("x:80", Err("invalid local port \"x\""))]
    #[case("70000:80", Err("invalid local port \"70000\""))]
    #[case("80:70000", Err("invalid remote port 70000"))]
    fn ports_are_parsed(#[case] text: &str, #[case] expected: Result<(Option<u16>, &str), &str>) {
        match (text.parse::<PortMapping>(), expected) {
            (Ok(read), Ok(expected)) => assert_eq!((read.local, read.remote.as_str()), expected),
            (Err(error), Err(expected)) => assert!(error.contains(expected), "{error}"),
            (read, _) => panic!("{text}: {read:?}"),
        }
    }
}
