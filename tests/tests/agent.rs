//! `crowsnest agent`: the control plane cannot reach a cluster, because the name of its API server resolves only in the
//! cluster. The cluster is registered, proxied and searched through the tunnel that its agent opens, with the
//! permissions in docs/TUNNEL.md, and also through an https proxy; then it is unregistered.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};

use anyhow::{Context, Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use crowsnest_tests::{CommandOutput, Fleet, Kubectl, Member, binary, wait_for};
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
    // A cluster that the control plane reaches only through its agent.
    let mut remote = Member::start("east", &dir.path().join("theirs"), &[])?;
    let fleet = Fleet::start(&dir.path().join("ours"), &["--no-members"])?;
    let Some(kubectl) = fleet.any_kubectl()? else { return Ok(()) };
    let east = kubectl.with_kubeconfig(&remote.kubeconfig);
    east.run_ok(&["apply", "-f", "-"], WEB)?;
    let agent_kubeconfig = create_agent_kubeconfig(&fleet, &kubectl, dir.path())?;
    check_attach_authorization(&kubectl, &kubectl.with_kubeconfig(&agent_kubeconfig))?;

    let start = || Agent::start(dir.path(), &agent_kubeconfig, &remote.kubeconfig);
    let agent = start()?;
    let member = kubectl_via_proxy(&kubectl, &fleet)?;
    let checks = || -> Result<()> {
        member.run_until(&["get", "nodes", "-o", "name"], |out| out.contains("node/east-node-1"))?;
        check_pull_mode_cluster(&fleet, &kubectl, &member)
    };
    checks().with_context(|| format!("{}\n{}", agent.log(), fleet.log()))?;
    check_other_cluster_is_refused(&agent_kubeconfig, &fleet.kubeconfig("cp"))?;

    agent.kill()?;
    check_requests_fail_fast(&member)?;
    let agent = start()?;
    member
        .run_until(&["exec", "web", "--", "sh", "-c", "echo back"], |out| out == "back\n")
        .with_context(|| agent.log())?;

    // Removing the cluster from the fleet closes the tunnel, and the agent retries.
    kubectl.run_ok(&["delete", "cluster", "m1", "--timeout=240s"], "")?;
    wait_for("the agent to report that its cluster does not exist", || {
        Ok(agent.log().contains("clusters.cluster.karmada.io \"m1\" not found"))
    })
    .with_context(|| agent.log())?;
    ensure!(agent.stop()?.success());
    east.run_ok(&["get", "pod", "web"], "")?;

    let proxy = Proxy::start()?;
    let kubeconfig_with_proxy = write_kubeconfig_with_proxy(dir.path(), &remote.kubeconfig, &proxy)?;
    let agent = Agent::start(dir.path(), &agent_kubeconfig, &kubeconfig_with_proxy)?;
    let checks_via_proxy = || -> Result<()> {
        member.run_until(&["get", "nodes", "-o", "name"], |out| out.contains("node/east-node-1"))?;
        ensure!(proxy.connection_count() > 1, "{} connections went through the proxy", proxy.connection_count());
        kubectl.run_ok(&["wait", "--for=condition=Ready", "cluster/m1", "--timeout=240s"], "")?;
        member.run_until(&["get", "configmap", "sent", "-o", "jsonpath={.data.to}"], |out| out == "m1")?;
        check_unregistration(&fleet, &kubectl, &east, &remote.kubeconfig)
    };
    checks_via_proxy().with_context(|| format!("{}\n{}", agent.log(), fleet.log()))?;
    // Its credential has also been deleted.
    wait_for("the agent to be refused", || Ok(agent.log().contains("401 Unauthorized")))
        .with_context(|| agent.log())?;
    ensure!(agent.stop()?.success());
    ensure!(fleet.stop()?.success() && remote.stop()?.success());
    Ok(())
}

/// Writes a copy of the member's kubeconfig with an https proxy, whose certificate is added to the trusted ones.
fn write_kubeconfig_with_proxy(folder: &Path, kubeconfig: &Path, proxy: &Proxy) -> Result<PathBuf> {
    let mut kubeconfig = Kubeconfig::read_from(kubeconfig)?;
    let cluster = kubeconfig
        .clusters
        .first_mut()
        .and_then(|named| named.cluster.as_mut())
        .context("the kubeconfig has no cluster")?;
    let authority =
        cluster.certificate_authority_data.as_deref().context("the kubeconfig has no certificate authority")?;
    let mut authorities = BASE64.decode(authority)?;
    authorities.extend_from_slice(b"\n");
    authorities.extend_from_slice(proxy.certificate.as_bytes());
    cluster.certificate_authority_data = Some(BASE64.encode(authorities));
    cluster.proxy_url = Some(proxy.url.clone());
    let file = folder.join("with-proxy.kubeconfig");
    fs::write(&file, serde_saphyr::to_string(&kubeconfig)?)?;
    Ok(file)
}

/// Unregisters the cluster, and checks that all objects of the registration are deleted and the member's own are kept.
fn check_unregistration(fleet: &Fleet, kubectl: &Kubectl, east: &Kubectl, member: &Path) -> Result<()> {
    let output = fleet.crowsnest(&["unjoin", "m1"])?;
    ensure!(output.code == Some(1) && output.err.contains("remove it with `crowsnest unregister m1`"), "{output:?}");
    east.run_ok(&["apply", "-f", "-"], AGENT)?;
    let member = member.display().to_string();
    let output = fleet.crowsnest(&["unregister", "m1", "--cluster-kubeconfig", &member])?;
    ensure!(output.out == "cluster(m1) is unregistered successfully\n" && output.err.is_empty(), "{output:?}");
    let ensure_missing = |kubectl: &Kubectl, what: &[&str]| -> Result<()> {
        let names: Vec<&str> = what.iter().flat_map(|one| one.split(' ')).collect();
        kubectl.expect_output(&[&["get"][..], &names].concat(), "", 1, "not found").map(drop)
    };
    ensure_missing(kubectl, &["cluster m1"])?;
    ensure_missing(kubectl, &["namespace karmada-es-m1"])?;
    for kind in ["clusterrole", "clusterrolebinding", "-n karmada-cluster role", "-n karmada-cluster rolebinding"] {
        ensure_missing(kubectl, &[kind, "crowsnest:agent:m1"])?;
    }
    for what in ["serviceaccount agent-m1", "secret agent-m1", "secret m1", "secret m1-impersonator"] {
        ensure_missing(kubectl, &["-n karmada-cluster", what])?;
    }
    for what in ["deployment karmada-agent", "serviceaccount karmada-agent-sa", "secret karmada-kubeconfig"] {
        ensure_missing(east, &["-n karmada-system", what])?;
    }
    for what in ["clusterrole karmada-agent", "clusterrolebinding karmada-agent"] {
        ensure_missing(east, &[what])?;
    }
    ensure_missing(east, &["clusterrole", "karmada-controller-manager:karmada-m1"])?;
    east.run_until(&["get", "namespaces", "-o", "name"], |out| !out.contains("namespace/karmada-cluster\n"))?;
    // The propagated object was deleted with the registration; other objects of the member are kept.
    ensure_missing(east, &["configmap sent"])?;
    east.run_ok(&["get", "pod", "web"], "")?;
    let output = fleet.crowsnest(&["unregister", "m1"])?;
    ensure!(output.code == Some(1) && output.err == "error: cluster m1 is not registered\n", "{output:?}");
    Ok(())
}

/// kubectl for the member through the control plane's cluster proxy.
fn kubectl_via_proxy(kubectl: &Kubectl, fleet: &Fleet) -> Result<Kubectl> {
    let server = fleet.server()?;
    Ok(kubectl.with_flags(&["--server", &format!("{server}/apis/cluster.karmada.io/v1alpha1/clusters/m1/proxy")]))
}

/// Creates a service account with the documented permissions only; returns its kubeconfig.
fn create_agent_kubeconfig(fleet: &Fleet, kubectl: &Kubectl, folder: &Path) -> Result<PathBuf> {
    let permissions = DOCUMENT.split("```yaml\n").nth(1).and_then(|rest| rest.split("```").next());
    kubectl.run_ok(&["apply", "-f", "-"], permissions.context("docs/TUNNEL.md contains no RBAC objects")?)?;
    kubectl.run_ok(&["apply", "-f", "-"], TOKEN)?;
    let token =
        ["get", "secret", "-n", "karmada-cluster", "agent-m1", "-o", "go-template={{.data.token | base64decode}}"];
    let token = kubectl.run_until(&token, |out| out.starts_with("ey"))?;
    let file = folder.join("agent.kubeconfig");
    fs::copy(fleet.kubeconfig("cp"), &file)?;
    let kubectl = kubectl.with_kubeconfig(&file);
    kubectl.run_ok(&["config", "set-credentials", "agent", "--token", token.trim()], "")?;
    kubectl.run_ok(&["config", "set-context", "--current", "--user", "agent"], "")?;
    Ok(file)
}

fn check_attach_authorization(kubectl: &Kubectl, agent: &Kubectl) -> Result<()> {
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

fn check_pull_mode_cluster(fleet: &Fleet, kubectl: &Kubectl, member: &Kubectl) -> Result<()> {
    let path =
        "jsonpath={.spec.syncMode} {.spec.apiEndpoint} {.spec.secretRef.name} {.spec.impersonatorSecretRef.name}";
    let cluster = kubectl.run_ok(&["get", "cluster", "m1", "-o", path], "")?;
    kubectl.run_ok(&["wait", "--for=condition=Ready", "cluster/m1", "--timeout=240s"], "")?;
    ensure!(cluster == "Pull https://kubernetes.default.svc m1 m1-impersonator", "{cluster}");
    let path = ATTACH.replace("CLUSTER", "m1");
    let text = "the request needs the headers Connection: Upgrade and Upgrade: crowsnest-tunnel/1";
    kubectl.expect_output(&["create", "--raw", &path, "-f", "-"], "", 1, text)?;

    member.run_until(&["get", "pod", "web"], |out| out.contains("Running"))?;
    let output = member.run_ok(&["exec", "-i", "web", "--", "sh", "-c", "cat; echo $HOSTNAME"], "typed\n")?;
    ensure!(output == "typed\nweb\n", "{output:?}");
    let mut follower = member.stream(&["logs", "-f", "web", "--tail", "1"])?;
    follower.expect("\n")?;
    member.run_ok(&["exec", "web", "--", "sh", "-c", "echo the first > /proc/1/fd/1"], "")?;
    follower.expect("the first\n")?;
    member.expect_output(&["get", "pod", "nosuch"], "", 1, "pods \"nosuch\" not found")?;

    // Propagated objects arrive.
    kubectl.run_ok(&["apply", "-f", "-"], PROPAGATED)?;
    member.run_until(&["get", "configmap", "sent", "-o", "jsonpath={.data.to}"], |out| out == "m1")?;

    // The cache collects the member's objects.
    kubectl.run_ok(&["apply", "-f", "-"], REGISTRY)?;
    wait_for("search to find the pod", || {
        let output = fleet.crowsnest(&["search", "kind:pod name:web status:Running", "-o", "name"])?;
        Ok(output.out.lines().any(|line| line.starts_with("m1/")))
    })?;
    let metrics = kubectl.run_ok(&["get", "--raw", "/apis/search.crowsnest.io/v1alpha1/metrics"], "")?;
    ensure!(metrics.contains("crowsnest_tunnels{cluster=\"m1\"} 1\n"), "{metrics}");
    Ok(())
}

/// Requests fail immediately, not after a timeout.
fn check_requests_fail_fast(member: &Kubectl) -> Result<()> {
    wait_for("the control plane to report the missing tunnel", || {
        Ok(member.run(&["get", "nodes"], "")?.err.contains(NO_TUNNEL))
    })?;
    // The error names the missing tunnel, not a request timeout.
    let output = member.expect_output(&["get", "nodes"], "", 1, NO_TUNNEL)?;
    ensure!(output.err.starts_with("Error from server (ServiceUnavailable): "), "{output:?}");
    Ok(())
}

/// The agent of a cluster with another ID cannot use a registered name; here that cluster is the control plane itself.
fn check_other_cluster_is_refused(agent_kubeconfig: &Path, other: &Path) -> Result<()> {
    let output = CommandOutput::parse(&agent_command(agent_kubeconfig, other)?.output()?)?;
    ensure!(output.code == Some(1) && output.err.contains("cluster m1 is registered with ID"), "{output:?}");
    Ok(())
}

/// Command of an agent with a kubeconfig for the control plane and one for the member.
fn agent_command(agent_kubeconfig: &Path, member: &Path) -> Result<Command> {
    let mut command = Command::new(binary()?);
    command.args(["-v", "agent", "--cluster-name", "m1", "--karmada-kubeconfig"]).arg(agent_kubeconfig);
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
    fn start(folder: &Path, agent_kubeconfig: &Path, member: &Path) -> Result<Self> {
        let log = folder.join("agent.log");
        let child =
            agent_command(agent_kubeconfig, member)?.stdout(Stdio::null()).stderr(File::create(&log)?).spawn()?;
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
