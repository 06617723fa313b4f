//! `crowsnest agent`: a cluster that the control plane cannot reach, because its API server's name resolves only in the cluster,
//! is registered, proxied and searched through the tunnel that its agent opens, with the rights that docs/TUNNEL.md gives the agent;
//! also through an https proxy; and unregistered.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};

use anyhow::{Context, Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use crowsnest_tests::{CommandOutput, Fleet, Kubectl, binary, until};
use kube::config::Kubeconfig;

use proxy::Proxy;

mod proxy;

const DOCUMENT: &str = include_str!("../../docs/TUNNEL.md");
const TOKEN: &str = include_str!("agent/token.yaml");
const PROPAGATED: &str = include_str!("agent/propagated.yaml");
const AGENT: &str = include_str!("agent/agent.yaml");
const WEB: &str = include_str!("agent/web.yaml");
const REGISTRY: &str = include_str!("quickstart/registry.yaml");

const ATTACH: &str = "/apis/cluster.karmada.io/v1alpha1/clusters/CLUSTER/attach";
const NO_TUNNEL: &str = "no agent of cluster m1 has a tunnel open";

#[test]
fn an_unreachable_cluster_is_managed_through_its_agent() -> Result<()> {
    let dir = tempfile::tempdir()?;
    // A cluster of another owner, visible only through its agent.
    let theirs = Fleet::start(&dir.path().join("theirs"), &["--members", "east"])?;
    let Some(kubectl) = theirs.any_kubectl()? else { return Ok(()) };
    let east = kubectl.on(&theirs.kubeconfig("east"));
    east.ok(&["apply", "-f", "-"], WEB)?;
    let ours = Fleet::start(&dir.path().join("ours"), &["--no-members"])?;
    let kubectl = kubectl.on(&ours.kubeconfig("cp"));
    let file = kubeconfig_of_agent(&ours, &kubectl, dir.path())?;
    refuses_clients_other_than_agents(&kubectl, &kubectl.on(&file))?;

    let start = || Agent::start(dir.path(), &file, &theirs.kubeconfig("east"));
    let agent = start()?;
    let member = through(&kubectl, &ours)?;
    let work = || -> Result<()> {
        member.until(&["get", "nodes", "-o", "name"], |out| out.contains("node/east-node-1"))?;
        works_like_a_push_mode_cluster(&ours, &kubectl, &member)
    };
    work().with_context(|| format!("{}\n{}", agent.log(), ours.log()))?;
    refuses_another_cluster(&file, &ours.kubeconfig("cp"))?;

    agent.kill()?;
    fails_fast(&member)?;
    let agent = start()?;
    member
        .until(&["exec", "web", "--", "sh", "-c", "echo back"], |out| out == "back\n")
        .with_context(|| agent.log())?;

    // Removing the cluster from the fleet closes the tunnel, and the agent retries.
    kubectl.ok(&["delete", "cluster", "m1", "--timeout=60s"], "")?;
    until("the agent to notice", || Ok(agent.log().contains("clusters.cluster.karmada.io \"m1\" not found")))
        .with_context(|| agent.log())?;
    ensure!(agent.stop()?.success());
    east.ok(&["get", "pod", "web"], "")?;

    let proxy = Proxy::start()?;
    let behind = behind_a_proxy(dir.path(), &theirs.kubeconfig("east"), &proxy)?;
    let agent = Agent::start(dir.path(), &file, &behind)?;
    let unregistered = || -> Result<()> {
        member.until(&["get", "nodes", "-o", "name"], |out| out.contains("node/east-node-1"))?;
        ensure!(proxy.carried() > 1, "{} connections went through the proxy", proxy.carried());
        kubectl.ok(&["wait", "--for=condition=Ready", "cluster/m1", "--timeout=60s"], "")?;
        member.until(&["get", "configmap", "sent", "-o", "jsonpath={.data.to}"], |out| out == "m1")?;
        is_unregistered(&ours, &kubectl, &east, &theirs.kubeconfig("east"))
    };
    unregistered().with_context(|| format!("{}\n{}", agent.log(), ours.log()))?;
    // Its credential has been deleted as well.
    until("the agent to be refused", || Ok(agent.log().contains("401 Unauthorized"))).with_context(|| agent.log())?;
    ensure!(agent.stop()?.success());
    ensure!(ours.stop()?.success() && theirs.stop()?.success());
    Ok(())
}

/// The member's kubeconfig with an https proxy, whose certificate its authority issued.
fn behind_a_proxy(folder: &Path, kubeconfig: &Path, proxy: &Proxy) -> Result<PathBuf> {
    let mut kubeconfig = Kubeconfig::read_from(kubeconfig)?;
    let cluster = kubeconfig.clusters.first_mut().and_then(|named| named.cluster.as_mut()).context("a cluster")?;
    let known = cluster.certificate_authority_data.as_deref().context("an authority")?;
    let mut authorities = BASE64.decode(known)?;
    authorities.extend_from_slice(b"\n");
    authorities.extend_from_slice(proxy.certificate.as_bytes());
    cluster.certificate_authority_data = Some(BASE64.encode(authorities));
    cluster.proxy_url = Some(proxy.url.clone());
    let file = folder.join("behind.kubeconfig");
    fs::write(&file, serde_saphyr::to_string(&kubeconfig)?)?;
    Ok(file)
}

/// Checks that neither side keeps objects of the registration, except the member's own.
fn is_unregistered(ours: &Fleet, kubectl: &Kubectl, east: &Kubectl, member: &Path) -> Result<()> {
    let output = ours.crowsnest(&["unjoin", "m1"])?;
    ensure!(output.code == Some(1) && output.err.contains("remove it with `crowsnest unregister m1`"), "{output:?}");
    east.ok(&["apply", "-f", "-"], AGENT)?;
    let member = member.display().to_string();
    let output = ours.crowsnest(&["unregister", "m1", "--cluster-kubeconfig", &member])?;
    ensure!(output.out == "cluster(m1) is unregistered successfully\n" && output.err.is_empty(), "{output:?}");
    let missing = |kubectl: &Kubectl, what: &[&str]| -> Result<()> {
        let names: Vec<&str> = what.iter().flat_map(|one| one.split(' ')).collect();
        kubectl.expect_output(&[&["get"][..], &names].concat(), "", 1, "not found").map(drop)
    };
    missing(kubectl, &["cluster m1"])?;
    missing(kubectl, &["namespace karmada-es-m1"])?;
    for kind in ["clusterrole", "clusterrolebinding", "-n karmada-cluster role", "-n karmada-cluster rolebinding"] {
        missing(kubectl, &[kind, "crowsnest:agent:m1"])?;
    }
    for what in ["serviceaccount agent-m1", "secret agent-m1", "secret m1", "secret m1-impersonator"] {
        missing(kubectl, &["-n karmada-cluster", what])?;
    }
    for what in ["deployment karmada-agent", "serviceaccount karmada-agent-sa", "secret karmada-kubeconfig"] {
        missing(east, &["-n karmada-system", what])?;
    }
    for what in ["clusterrole karmada-agent", "clusterrolebinding karmada-agent"] {
        missing(east, &[what])?;
    }
    missing(east, &["clusterrole", "karmada-controller-manager:karmada-m1"])?;
    east.until(&["get", "namespaces", "-o", "name"], |out| !out.contains("namespace/karmada-cluster\n"))?;
    // The propagated objects have been deleted with it.
    missing(east, &["configmap sent"])?;
    east.ok(&["get", "pod", "web"], "")?;
    let output = ours.crowsnest(&["unregister", "m1"])?;
    ensure!(output.code == Some(1) && output.err == "error: cluster m1 is not registered\n", "{output:?}");
    Ok(())
}

fn through(kubectl: &Kubectl, ours: &Fleet) -> Result<Kubectl> {
    let server = ours.server()?;
    Ok(kubectl.with(&["--server", &format!("{server}/apis/cluster.karmada.io/v1alpha1/clusters/m1/proxy")]))
}

/// A service account with the documented permissions only.
fn kubeconfig_of_agent(ours: &Fleet, kubectl: &Kubectl, folder: &Path) -> Result<PathBuf> {
    let rights = DOCUMENT.split("```yaml\n").nth(1).and_then(|rest| rest.split("```").next());
    kubectl.ok(&["apply", "-f", "-"], rights.context("docs/TUNNEL.md shows no rights")?)?;
    kubectl.ok(&["apply", "-f", "-"], TOKEN)?;
    let token =
        ["get", "secret", "-n", "karmada-cluster", "agent-m1", "-o", "go-template={{.data.token | base64decode}}"];
    let token = kubectl.until(&token, |out| out.starts_with("ey"))?;
    let file = folder.join("agent.kubeconfig");
    fs::copy(ours.kubeconfig("cp"), &file)?;
    let kubectl = kubectl.on(&file);
    kubectl.ok(&["config", "set-credentials", "agent", "--token", token.trim()], "")?;
    kubectl.ok(&["config", "set-context", "--current", "--user", "agent"], "")?;
    Ok(file)
}

fn refuses_clients_other_than_agents(kubectl: &Kubectl, agent: &Kubectl) -> Result<()> {
    let attach = |kubectl: &Kubectl, cluster: &str, text: &str| {
        let path = ATTACH.replace("CLUSTER", cluster);
        kubectl.expect_output(&["create", "--raw", &path, "-f", "-"], "", 1, text)
    };
    attach(kubectl, "m1", "clusters.cluster.karmada.io \"m1\" not found")?;
    let text = "cannot create resource \"clusters/attach\" in API group \"cluster.karmada.io\" at the cluster scope";
    attach(agent, "m2", text)?;
    let path = ATTACH.replace("CLUSTER", "m1");
    agent.expect_output(&["get", "--raw", &path], "", 1, "cannot get resource \"clusters/attach\"")?;
    kubectl.expect_output(
        &["get", "--raw", &path],
        "",
        1,
        "the server does not allow this method on the requested resource",
    )?;
    Ok(())
}

fn works_like_a_push_mode_cluster(ours: &Fleet, kubectl: &Kubectl, member: &Kubectl) -> Result<()> {
    let path =
        "jsonpath={.spec.syncMode} {.spec.apiEndpoint} {.spec.secretRef.name} {.spec.impersonatorSecretRef.name}";
    let cluster = kubectl.ok(&["get", "cluster", "m1", "-o", path], "")?;
    kubectl.ok(&["wait", "--for=condition=Ready", "cluster/m1", "--timeout=60s"], "")?;
    ensure!(cluster == "Pull https://kubernetes.default.svc m1 m1-impersonator", "{cluster}");
    let path = ATTACH.replace("CLUSTER", "m1");
    let text = "the request needs the headers Connection: Upgrade and Upgrade: crowsnest-tunnel/1";
    kubectl.expect_output(&["create", "--raw", &path, "-f", "-"], "", 1, text)?;

    member.until(&["get", "pod", "web"], |out| out.contains("Running"))?;
    let output = member.ok(&["exec", "-i", "web", "--", "sh", "-c", "cat; echo $HOSTNAME"], "typed\n")?;
    ensure!(output == "typed\nweb\n", "{output:?}");
    let mut follower = member.stream(&["logs", "-f", "web", "--tail", "1"])?;
    follower.expect("\n")?;
    member.ok(&["exec", "web", "--", "sh", "-c", "echo the first > /proc/1/fd/1"], "")?;
    follower.expect("the first\n")?;
    member.expect_output(&["get", "pod", "nosuch"], "", 1, "pods \"nosuch\" not found")?;

    // Propagated objects arrive.
    kubectl.ok(&["apply", "-f", "-"], PROPAGATED)?;
    member.until(&["get", "configmap", "sent", "-o", "jsonpath={.data.to}"], |out| out == "m1")?;

    // The cache collects the member's objects.
    kubectl.ok(&["apply", "-f", "-"], REGISTRY)?;
    until("search to find the pod", || {
        let output = ours.crowsnest(&["search", "kind:pod name:web status:Running", "-o", "name"])?;
        Ok(output.out.lines().any(|line| line.starts_with("m1/")))
    })?;
    let metrics = kubectl.ok(&["get", "--raw", "/apis/search.crowsnest.io/v1alpha1/metrics"], "")?;
    ensure!(metrics.contains("crowsnest_tunnels{cluster=\"m1\"} 1\n"), "{metrics}");
    Ok(())
}

/// Requests fail at once, without waiting for a timeout.
fn fails_fast(member: &Kubectl) -> Result<()> {
    until("the control plane to notice", || Ok(member.run(&["get", "nodes"], "")?.err.contains(NO_TUNNEL)))?;
    // The error names the missing tunnel, not a request timeout.
    let output = member.expect_output(&["get", "nodes"], "", 1, NO_TUNNEL)?;
    ensure!(output.err.starts_with("Error from server (ServiceUnavailable): "), "{output:?}");
    Ok(())
}

/// The name belongs to a cluster with another id; here the control plane itself tries to use it.
fn refuses_another_cluster(file: &Path, other: &Path) -> Result<()> {
    let output = CommandOutput::of(&agent(file, other)?.output()?)?;
    ensure!(output.code == Some(1) && output.err.contains("cluster m1 is registered with ID"), "{output:?}");
    Ok(())
}

fn agent(file: &Path, member: &Path) -> Result<Command> {
    let mut command = Command::new(binary()?);
    command.args(["-v", "agent", "--cluster-name", "m1", "--karmada-kubeconfig"]).arg(file);
    // The name is in the member's certificate and resolves only in its pods.
    command.args(["--cluster-api-endpoint", "https://kubernetes.default.svc", "--kubeconfig"]).arg(member);
    Ok(command)
}

/// A running agent; killed when dropped.
struct Agent {
    child: Child,
    log: PathBuf,
}

impl Agent {
    fn start(folder: &Path, file: &Path, member: &Path) -> Result<Self> {
        let log = folder.join("agent.log");
        let child = agent(file, member)?.stdout(Stdio::null()).stderr(File::create(&log)?).spawn()?;
        Ok(Self { child, log })
    }

    fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Kills the agent, as a node failure would.
    fn kill(mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    fn stop(mut self) -> Result<ExitStatus> {
        let Output { status, stderr, .. } = Command::new("kill").arg(self.child.id().to_string()).output()?;
        ensure!(status.success(), "{}", String::from_utf8_lossy(&stderr));
        Ok(self.child.wait()?)
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // The child may have exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
