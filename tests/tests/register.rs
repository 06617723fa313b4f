//! `crowsnest register`: with a token and the hash of its authority, the agent finds the control plane, gets a certificate and its renewals
//! with permissions for its own cluster only, and connects the cluster; a request for an existing cluster's name is not
//! approved automatically.

use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use crowsnest_tests::{CommandOutput, Fleet, Kubectl, binary, free_port, until};
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
use serde_json::json;

/// The agent, running in the foreground; killed when dropped.
struct Agent(Child);

impl Drop for Agent {
    fn drop(&mut self) {
        // The child may have exited already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_cluster_registers_itself_with_a_token() -> Result<()> {
    let dir = tempfile::tempdir()?;
    // A cluster of another owner.
    let theirs = Fleet::start(&dir.path().join("theirs"), &["--members", "east"])?;
    let ours = Fleet::start(&dir.path().join("ours"), &["--no-members"])?;
    let Some(kubectl) = ours.any_kubectl()? else { return Ok(()) };
    let east = theirs.kubeconfig("east");
    let walk = || -> Result<()> {
        let output = ours.crowsnest(&["token", "create", "--print-register-command"])?;
        let words: Vec<&str> = output.out.split_whitespace().skip(1).collect();
        ensure!(words.first() == Some(&"register"), "{output:?}");
        refuses_strangers(&words, &east)?;
        keeps_existing_secrets(&words, &kubectl.on(&east), &east)?;

        let _agent = Agent(start(&words, &east, dir.path())?);
        let read_log = || std::fs::read_to_string(dir.path().join("agent.log")).unwrap_or_default();
        until("cluster oslo to be ready", || {
            let shown = ["get", "cluster", "oslo", "-o", "jsonpath={.status.conditions[?(@.type==\"Ready\")].status}"];
            Ok(kubectl.run(&shown, "")?.out == "True")
        })
        .with_context(read_log)?;
        let server = ours.server()?;
        let proxy_url = format!("{server}/apis/cluster.karmada.io/v1alpha1/clusters/oslo/proxy");
        kubectl
            .with(&["--server", &proxy_url])
            .until(&["get", "nodes", "-o", "name"], |out| out.contains("node/east-node-1"))?;
        has_minimal_permissions(&kubectl, dir.path())?;
        gets_its_next_certificate(&kubectl, dir.path())?;
        renews_its_certificate(&kubectl, &east, dir.path())?;
        renews_it_in_a_secret(&kubectl, &east, dir.path())?;
        an_existing_name_is_not_approved(&words, &east, &kubectl)
    };
    walk().with_context(|| ours.log())?;
    ensure!(ours.stop()?.success() && theirs.stop()?.success());
    Ok(())
}

fn register(words: &[&str], member: &Path, more: &[&str]) -> Result<Command> {
    let mut command = Command::new(binary()?);
    command.args(words).args(["--cluster-name", "oslo", "--kubeconfig"]).arg(member).args(more);
    Ok(command)
}

/// Another token, and another authority.
fn refuses_strangers(words: &[&str], member: &Path) -> Result<()> {
    let changed = |from: &str, to: &str| -> Result<CommandOutput> {
        let at = words.iter().position(|word| *word == from).context("the flag")? + 1;
        let mut words = words.to_vec();
        words[at] = to;
        CommandOutput::of(&register(&words, member, &["--run"])?.output()?)
    };
    let output = changed("--token", "abcdef.0123456789abcdef")?;
    ensure!(output.code == Some(1) && output.err.contains("is not signed with token abcdef"), "{output:?}");
    let output = changed("--discovery-token-ca-cert-hash", &format!("sha256:{}", "0".repeat(64)))?;
    ensure!(output.code == Some(1) && output.err.contains("wrong control plane"), "{output:?}");
    Ok(())
}

fn start(words: &[&str], member: &Path, folder: &Path) -> Result<Child> {
    let kept = folder.join("agent.kubeconfig").display().to_string();
    let mut command = register(words, member, &["--run", "--agent-kubeconfig", &kept])?;
    let log = File::create(folder.join("agent.log"))?;
    Ok(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn()?)
}

/// The agent's kubeconfig gives access to its own cluster only.
fn has_minimal_permissions(kubectl: &Kubectl, folder: &Path) -> Result<()> {
    let agent = kubectl.on(&folder.join("agent.kubeconfig"));
    agent.says(&["get", "secrets", "-A"], "", 1, "User \"system:karmada:agent:oslo\" cannot list")?;
    agent.says(&["get", "secret", "oslo", "-n", "karmada-cluster"], "", 1, "cannot get")?;
    agent.says(&["auth", "can-i", "patch", "clusters/oslo"], "", 0, "yes")?;
    agent.says(&["auth", "can-i", "patch", "clusters/other"], "", 1, "no")?;
    Ok(())
}

/// With its own identity and name, although its cluster exists; not for another name.
fn gets_its_next_certificate(kubectl: &Kubectl, folder: &Path) -> Result<()> {
    let agent = kubectl.on(&folder.join("agent.kubeconfig"));
    for (name, cluster) in [("stolen", "other"), ("next", "oslo")] {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, "system:karmada:agents");
        params.distinguished_name.push(DnType::CommonName, format!("system:karmada:agent:{cluster}"));
        let pem = params.serialize_request(&KeyPair::generate()?)?.pem()?;
        let request = json!({
            "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest", "metadata": {"name": name},
            "spec": {"signerName": "kubernetes.io/kube-apiserver-client", "request": STANDARD.encode(pem),
                "usages": ["digital signature", "client auth"]},
        });
        agent.ok(&["create", "-f", "-"], &request.to_string())?;
    }
    let csr = agent.until(&["get", "csr", "next", "-o", "json"], |out| out.contains("\"certificate\""))?;
    ensure!(csr.contains("Auto approving self karmada agent certificate"), "{csr}");
    let stolen = agent.ok(&["get", "csr", "stolen", "-o", "jsonpath={.status}"], "")?;
    ensure!(stolen == "{}" || stolen.is_empty(), "an agent has got another's certificate: {stolen}");
    kubectl.ok(&["delete", "csr", "stolen"], "").map(drop)
}

/// A certificate that is due is renewed in the kubeconfig, with the same identity.
fn renews_its_certificate(kubectl: &Kubectl, member: &Path, folder: &Path) -> Result<()> {
    let kept = folder.join("agent.kubeconfig");
    let before = std::fs::read_to_string(&kept)?;
    let mut command = Command::new(binary()?);
    command.args(["agent", "--cluster-name", "oslo", "--control-plane-kubeconfig"]).arg(&kept);
    command.arg("--kubeconfig").arg(member).args(["--enable-cert-rotation", "--cert-rotation-checking-interval", "1h"]);
    // Regardless of its age.
    command.args(["--cert-rotation-remaining-time-threshold", "0.9999999999"]);
    let log = File::create(folder.join("renewing.log"))?;
    let _agent = Agent(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn()?);
    let read_log = || std::fs::read_to_string(folder.join("renewing.log")).unwrap_or_default();
    until("another certificate", || Ok(std::fs::read_to_string(&kept)? != before)).with_context(read_log)?;
    let agent = kubectl.on(&kept);
    agent.says(&["get", "secrets", "-A"], "", 1, "User \"system:karmada:agent:oslo\" cannot list")?;
    agent.says(&["auth", "can-i", "patch", "clusters/oslo"], "", 0, "yes").map(drop)
}

/// With a kubeconfig mounted from a Secret, as in the agent's chart: the Secret is updated, not the file. Its probes are served.
fn renews_it_in_a_secret(kubectl: &Kubectl, member: &Path, folder: &Path) -> Result<()> {
    let (mounted, east) = (folder.join("agent.kubeconfig"), kubectl.on(member));
    let before = std::fs::read_to_string(&mounted)?;
    let from = format!("--from-file={}", mounted.display());
    east.ok(&["create", "secret", "generic", "kept", "-n", "default", &from], "")?;
    let [health, metrics] = [free_address()?, free_address()?];
    let mut command = Command::new(binary()?);
    command.args(["-v", "agent", "--cluster-name", "oslo", "--control-plane-kubeconfig"]).arg(&mounted);
    command.arg("--kubeconfig").arg(member).args(["--control-plane-kubeconfig-secret", "default/kept"]);
    // In all supported ways.
    let settings = folder.join("agent.yaml");
    std::fs::write(&settings, "enable-cert-rotation: true\ncert-rotation-checking-interval: 1h\nlog-format: json\n")?;
    command.arg("--config").arg(&settings).env("CROWSNEST_CERT_ROTATION_REMAINING_TIME_THRESHOLD", "0.9999999999");
    command.args(["--health-probe-bind-address", &health, "--metrics-bind-address", &metrics]);
    let log = folder.join("kept.log");
    let agent = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(&log)?).spawn()?;
    let _agent = Agent(agent);
    let read_log = || std::fs::read_to_string(&log).unwrap_or_default();
    let kept = || -> Result<String> {
        let shown = ["get", "secret", "kept", "-n", "default", "-o", "jsonpath={.data.agent\\.kubeconfig}"];
        Ok(String::from_utf8(STANDARD.decode(east.ok(&shown, "")?)?)?)
    };
    until("another certificate in the Secret", || Ok(kept()? != before)).with_context(read_log)?;
    ensure!(std::fs::read_to_string(&mounted)? == before, "the file was written, too");
    let next = folder.join("kept.kubeconfig");
    std::fs::write(&next, kept()?)?;
    kubectl.on(&next).says(&["auth", "can-i", "patch", "clusters/oslo"], "", 0, "yes")?;

    until("the tunnel to be open", || Ok(got(&health, "/readyz")?.ends_with("\r\n\r\nok"))).with_context(read_log)?;
    let figures = got(&metrics, "/metrics")?;
    for figure in ["karmada_build_info{", "rest_client_requests_total{code=\"101\"", "crowsnest_agent_tunnel_open 1\n"]
    {
        ensure!(figures.contains(figure), "{figure}: {figures}");
    }
    for line in read_log().lines() {
        let line: serde_json::Value = serde_json::from_str(line).with_context(|| format!("no JSON: {line}"))?;
        ensure!(line["message"].is_string() && line["level"].is_string() && line["timestamp"].is_string(), "{line}");
    }
    Ok(())
}

fn free_address() -> Result<String> {
    Ok(format!("127.0.0.1:{}", free_port()?))
}

/// A response with its head; empty while nothing listens.
fn got(address: &str, path: &str) -> Result<String> {
    let mut response = String::new();
    let Ok(mut stream) = TcpStream::connect(address) else { return Ok(response) };
    write!(stream, "GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")?;
    stream.read_to_string(&mut response)?;
    Ok(response)
}

/// An existing agent's Secret is not overwritten.
fn keeps_existing_secrets(words: &[&str], in_member: &Kubectl, member: &Path) -> Result<()> {
    in_member.ok(&["create", "namespace", "karmada-system"], "")?;
    let secret = ["secret", "generic", "karmada-kubeconfig", "-n", "karmada-system"];
    in_member.ok(&[&["create"], &secret[..], &["--from-literal=theirs=1"]].concat(), "")?;
    let try_it =
        || CommandOutput::of(&register(words, member, &["--agent-image", "crowsnest:any", "--dry-run"])?.output()?);
    let output = try_it()?;
    let expected = "secret karmada-system/karmada-kubeconfig exists and was not created by";
    ensure!(output.code == Some(1) && output.err.contains(expected), "{output:?}");
    in_member.ok(&["delete", "secret", "karmada-kubeconfig", "-n", "karmada-system"], "")?;
    let output = try_it()?;
    ensure!(output.code == Some(0) && output.out.contains("would be registered"), "{output:?}");
    in_member.ok(&["delete", "namespace", "karmada-system"], "").map(drop)
}

/// A request with a token for the name of an existing cluster.
fn an_existing_name_is_not_approved(words: &[&str], member: &Path, kubectl: &Kubectl) -> Result<()> {
    let output = CommandOutput::of(&register(words, member, &["--run", "--discovery-timeout", "3s"])?.output()?)?;
    ensure!(output.code == Some(1) && output.err.contains("certificate signing request oslo-"), "{output:?}");
    let open = kubectl.ok(&["get", "csr"], "")?;
    ensure!(open.matches("Pending").count() == 1, "{open}");
    Ok(())
}
